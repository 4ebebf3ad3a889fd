"""Spark's own Kafka connector against `sawlog serve`: batch and streaming, both ways.

Skipped without a Java or the connector's jars (`make kafka-jars`). Runs Spark in a process of its own: its jars belong
to a session from its start, and other tests have another session.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ...interop.brokers import JARS, JAVA
from ..serving import ROOT, Serving

CONNECTOR = sorted((JARS / "connector").glob("*.jar"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(JAVA is None or not CONNECTOR, reason="no Java, or no connector: make kafka-jars"),
]


def test_spark_writes_and_reads_topics_in_batch_and_in_streams(broker: Serving, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.spark_job", broker.address, str(tmp_path), *map(str, CONNECTOR)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["batch"] == [[f"{number % 10}", f"value {number}"] for number in range(1000)]
    assert found["headers"] == ["name", "value"]
    assert found["half"] == 500
    assert found["since"] == 1000
    assert found["streamed"] == found["batch"]
    assert found["again"] == 100
