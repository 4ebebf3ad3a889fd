"""franz-go, the client of most programs in Go: its own simplest test of consumer groups, in both protocols.

`make suites` runs all of franz-go's tests. This one runs with the quick tests because its default consumer group sends
what no other client here sends: a classic member that names itself when it fetches offsets. Skipped without Go, or
where Go cannot fetch the module. Building the tests takes a minute, once per user: the program is kept in the user's
cache (`tools/suites/places.py`), whichever clone of the repository has built it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...documents import ROOT
from ..serving import PATIENCE_S, Serving


@pytest.fixture(scope="module")
def kgo_tests() -> Path:
    """The tests of franz-go's package kgo, as a program."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        suite = importlib.import_module("suites.franz_go").FranzGo()
        suite.prepare()
    except importlib.import_module("suites.suite").CannotRun as error:
        pytest.skip(str(error))
    finally:
        sys.path.remove(str(ROOT / "tools"))
    program: Path = suite.program
    return program


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
