"""`python -m tests.faults mutants --with promised`: tests of single promises, for bugs that no other method can find.

Some bugs break nothing that a crash, an error or a flipped bit could reveal: they cost time, descriptors or a lock, or
accept invalid input. The tests written with their fixes find them. Each of these tests runs in one process, so that a
planted bug is in the code under test.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from .report import Tally

_ROOT = Path(__file__).resolve().parents[2]
#: What is quick first.
TESTS = (
    "tests/topics/test_turn_syncs.py",
    "tests/faults/test_returned.py",
    "tests/log/test_transactions.py",
    "tests/log/maintain/test_gaps.py",
    "tests/log/maintain/test_missing_files.py",
    "tests/log/read/test_forked_readers.py",
    "tests/test_background.py",
    "tests/log/test_hostile_values.py",
    "tests/log/maintain/test_maintenance_yields.py",
    "tests/spark/test_replays.py",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """None: it is the same every time."""


class _Listening:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each test: count it; one that fails has found something."""
        if report.when == "call":
            self._tally.advance()
        if report.failed:
            self.failed.append(report.nodeid)


def tests_pass(where: Iterable[str], listening: object) -> bool:
    """Run tests in this process, slow ones too, until one fails. Ends the process if they cannot be run."""
    # The library has a plugin for pytest, which would be rewritten if it were not imported already.
    known = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", known, f"--rootdir={_ROOT}"]
    logging.getLogger("sawlog").setLevel(logging.NOTSET)  # the laboratory has silenced it; some tests look at it
    code = pytest.main([*options, *(str(_ROOT / each) for each in where)], [listening])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        os._exit(3)  # nothing was tried, which is not the same as nothing found
    return code == pytest.ExitCode.OK


def run(_options: argparse.Namespace) -> int:
    """Run the tests until one fails."""
    with Tally("promised", None, "tests") as tally:
        listening = _Listening(tally)
        tests_pass(TESTS, listening)
        for each in listening.failed:
            tally.violation(each)
    return tally.finish()
