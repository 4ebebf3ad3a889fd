"""Workers run every test once and a group together; the death of a worker fails one test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .parallel import units_of

ROOT = Path(__file__).resolve().parent.parent

MODULE = """
import os, signal
import pytest

@pytest.mark.parametrize("number", range(30))
def test_number(number, tmp_path):
    assert number != 7
    if number == 11:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 13:
        pytest.skip("unlucky")
    if number == 17:
        pytest.fail("with a report")

@pytest.mark.group("together")
@pytest.mark.parametrize("number", range(3))
def test_group(number):
    pass
"""


def test_every_test_runs_once_and_a_worker_that_dies_fails_one(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "--workers", "3", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=120
    )
    found = re.findall(r"^\[(\d)\] \[ *\d+%\] (\w+) test_module.py::(\w+)\[(\d+)\]", done.stdout, re.MULTILINE)
    assert Counter((name, int(number)) for _, _, name, number in found) == Counter(
        [("test_number", number) for number in range(30)] + [("test_group", number) for number in range(3)]
    ), done.stdout
    assert {int(number): how for _, how, _, number in found if how != "PASSED"} == {
        7: "FAILED",
        11: "FAILED",
        13: "SKIPPED",
        17: "FAILED",
    }
    assert len({worker for worker, _, name, _ in found if name == "test_group"}) == 1
    assert len({worker for worker, _, _, _ in found}) > 1
    assert "the worker that ran this test died of SIGKILL" in done.stdout
    assert "with a report" in done.stdout
    assert done.returncode == 1


def test_groups_and_long_tests_come_first() -> None:
    def item(name: str, group: str | None = None) -> Any:
        mark = None if group is None else SimpleNamespace(args=(group,))
        path = Path(name.partition("::")[0])
        return SimpleNamespace(nodeid=name, path=path, get_closest_marker=lambda _: mark)

    items = [
        item("a.py::test_short[0]"),
        item("a.py::test_short[1]"),
        item("a.py::test_grouped", "spark"),
        item("b.py::test_short"),
        item("b.py::test_long[0]"),
        item("b.py::test_grouped", "spark"),
        item("b.py::test_other_group", "broker"),
        item("b.py::test_last"),
    ]
    assert units_of(items, {"b.py::test_long": 5.0}) == [[2, 5], [6], [4], [0, 1], [3, 7]]
