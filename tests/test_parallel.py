"""Workers run every test once and a group together; the death of a worker fails one test, and so does a test that
hangs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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


HANGING = """
import atexit, os, subprocess, sys, threading, time
import pytest

def wait_forever():
    threading.Event().wait()

def test_before():
    pass

def test_that_hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "the child"])
    with open("child", "w") as file:
        file.write(str(child.pid))
    wait_forever()

@pytest.mark.late  # else its worker may be killed by one of the other tests
def test_after():
    atexit.register(wait_forever)
"""
HANGING_FIXTURE = """
import pytest

@pytest.fixture(scope="module")
def resource():
    yield
    while True:
        pass

def test_whose_fixture_hangs(resource):
    pass
"""
ORPHAN = """
import os, signal, time

def test_that_dies_beside_a_child_that_has_its_files():
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    with open("orphan", "w") as file:
        file.write(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)
        pytest.fail(f"process {pid} still exists")


@pytest.mark.costly  # it waits for processes that hang
def test_tests_that_hang_fail_with_their_stacks(tmp_path: Path) -> None:
    for name, text in {"call": HANGING, "fixture": HANGING_FIXTURE, "orphan": ORPHAN}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.parallel", "-p", "no:cacheprovider"]
    command += ["--workers", "3", "--test-timeout", "4", "-o", "faulthandler_timeout=0"]
    with (tmp_path / "output").open("w") as output:  # not a pipe: the orphan has it open, too
        environment = {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        code = subprocess.run(
            command, cwd=tmp_path, env=environment, stdout=output, stderr=output, check=False, timeout=120
        ).returncode
    os.kill(int((tmp_path / "orphan").read_text()), signal.SIGKILL)
    said = (tmp_path / "output").read_text()
    found = dict(re.findall(r"^(?:FAILED|ERROR) test_\w+.py::(\w+) - (.*)$", said, re.MULTILINE))
    assert found == {
        "test_that_hangs": "the worker that ran this test was killed after 4 s. Its stacks:",
        "test_whose_fixture_hangs": "the worker that ran this test was killed after 4 s. Its stacks:",
        "test_after": "the worker that ran this test last did not exit within 4 s. Its stacks:",
        "test_that_dies_beside_a_child_that_has_its_files": "the worker that ran this test died of SIGKILL",
    }, said
    assert "in wait_forever" in said
    assert "in resource" in said
    assert re.search(r"process \d+: .*the child", said)
    _wait_until_gone(int((tmp_path / "child").read_text()))
    assert "3 failed, 2 passed, 1 error" in said
    assert code == 1


def test_groups_and_long_tests_come_first_and_late_ones_last() -> None:
    def item(name: str, group: str | None = None, *, late: bool = False) -> Any:
        marks = {"late": late, "group": None if group is None else SimpleNamespace(args=(group,))}
        path = Path(name.partition("::")[0])
        return SimpleNamespace(nodeid=name, path=path, get_closest_marker=marks.get)

    items = [
        item("a.py::test_short[0]"),
        item("a.py::test_short[1]"),
        item("a.py::test_late", "spark", late=True),
        item("a.py::test_grouped", "spark"),
        item("b.py::test_short"),
        item("b.py::test_long[0]"),
        item("b.py::test_grouped", "spark"),
        item("b.py::test_other_group", "broker"),
        item("b.py::test_last"),
    ]
    assert units_of(items, {"b.py::test_long": 5.0}) == [[3, 6], [7], [5], [0, 1], [4, 8], [2]]
