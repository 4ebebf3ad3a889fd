"""franz-go, the client of most programs in Go: its own simplest test of consumer groups, in both protocols.

`make suites` runs all of franz-go's tests. This one runs with the quick tests because its default consumer group sends
what no other client here sends: a classic member that names itself when it fetches offsets. Skipped without Go, or
where Go cannot fetch the module. The program is built once per user, in the background (building.py).
"""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..serving import PATIENCE_S, Serving
from .building import franz_go


@pytest.fixture(scope="module")
def kgo_tests() -> Path:
    """The tests of franz-go's package kgo, as a program."""
    suite: Any = franz_go()
    try:
        suite.prepare()  # waits for the process that builds it
    except importlib.import_module("suites.suite").CannotRun as error:
        pytest.skip(str(error))
    program: Path = suite.program
    return program


@pytest.mark.costly  # a broker process and a client
def test_franz_gos_default_consumer_group_consumes_and_commits(broker: Serving, kgo_tests: Path) -> None:
    """One test for both protocols: as two they may be in two processes, each of which builds the program."""
    # Twice: franz-go skips KIP-848 unless another test has already asked the broker for its versions, and Go does not
    # promise the order of parallel subtests. One at a time: the first round then has them for the second.
    command = [kgo_tests, "-test.v", "-test.run=^TestGroupSimple$", "-test.parallel=1", "-test.count=2"]
    command += [f"-test.timeout={PATIENCE_S:g}s"]
    settings = {"KGO_SEEDS": broker.address, "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none"}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    for protocol in ("classic", "848"):
        assert f"--- PASS: TestGroupSimple/{protocol}" in done.stdout, done.stdout + done.stderr
