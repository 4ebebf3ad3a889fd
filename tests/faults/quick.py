"""List the planted bugs that the quick tests find: `python -m tests.faults mutants --quick 3` makes three runs, each
with a new seed.

A run collects the quick tests once, as a plugin of pytest. Then it forks a process for each bug: the process plants the
bug and runs the tests until one fails, the tests of the bug's fastest method first. A test that starts a process tests
the unchanged code. Most tests of Spark, and those of brokers and the program, are left out: `make test` finds at least
as much.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .mutants import Mutant, planted
from .promised import TESTS
from .report import say
from .seeds import VARIABLE

_ROOT = Path(__file__).resolve().parents[2]
_FAULTS = "tests/faults/test_"
#: The tests that run first, by the method that finds a bug soonest.
_FIRST: Mapping[str, Sequence[str]] = {
    "": (),
    "crashes": (f"{_FAULTS}crashes.py", f"{_FAULTS}recorded.py"),
    "readers": (f"{_FAULTS}crashes.py", "tests/spark/test_data_loss.py"),
    "errors": (f"{_FAULTS}errors.py",),
    "bits": (f"{_FAULTS}bit_rot.py",),
    "missing": (f"{_FAULTS}missing_files.py",),
    "threads": (f"{_FAULTS}threads.py",),
    "recorded": (f"{_FAULTS}recorded.py",),
    "storage": ("tests/storage", "tests/log/write/test_aborted_streams.py"),
    "promised": TESTS,
}
#: Files of one folder side by side: pytest forgets the fixtures of a folder that it leaves.
_FOLDERS = ("tests/faults", "tests/log", "tests/storage", "tests/topics", *TESTS, "tests/spark/test_data_loss.py")
#: Tests that plant bugs themselves, or compare this process with one that has no bug.
_LEFT_OUT = (
    f"--ignore={_FAULTS}mutants.py",
    f"--deselect={_FAULTS}crashes.py::test_the_line_that_is_printed_replays_the_violation",
)
#: A bug counts as found if one test takes longer than this: it hangs.
_PATIENCE_S = 600.0
#: Report of a process: a test has passed.
_PASSED = "passed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plant", metavar="PATH", help="plant each bug named in a file, and print a line for each")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run the tests once per bug."""
    from .bugs import CONTROL, MUTANTS

    names = Path(session.config.getoption("--plant")).read_text("utf-8").splitlines()
    known = {each.name: each for each in (CONTROL, *MUTANTS)}
    for number, name in enumerate(names):
        began = time.monotonic()
        test = _first_failure(session, known[name], number)
        say(json.dumps({"bug": name, "test": test, "seconds": round(time.monotonic() - began, 1)}))
    return True


def _first_failure(session: pytest.Session, bug: Mutant, number: int) -> str:
    """Return the first test that fails with a bug, or an empty text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(reading)
            nothing = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(nothing, each)
            _run(session, bug, number, writing)
        finally:
            os._exit(1)
    os.close(writing)
    test = _PASSED
    with os.fdopen(reading, "rb", buffering=0) as said:
        while test == _PASSED:
            ended = select.select([said], [], [], _PATIENCE_S)[0]
            test = said.readline().decode().strip() if ended else "a test that hangs"
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return test if code in {0, -signal.SIGKILL} else test or f"died with {code}"


def _run(session: pytest.Session, bug: Mutant, number: int, out: int) -> NoReturn:
    """Plant the bug and run the tests in this process, until one fails."""
    config: Any = session.config
    for name in ("terminalreporter", "sawlog-durations"):
        config.pluginmanager.unregister(name=name)

    class Listening:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(out, f"{report.nodeid}\n".encode())
                os._exit(0)
            if report.when == "teardown":
                os.write(out, f"{_PASSED}\n".encode())

    config.pluginmanager.register(Listening())
    base = config._tmp_path_factory.getbasetemp() / f"bug-{number}"
    base.mkdir()
    config._tmp_path_factory._basetemp = base
    first = _FIRST[bug.by]
    items = sorted(
        session.items, key=lambda item: (not item.nodeid.startswith(tuple(first)), "faults" not in item.nodeid)
    )
    with planted(bug):
        for item, following in zip(items, [*items[1:], None], strict=True):
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    os._exit(0)


def search(bugs: Iterable[Mutant], runs: int, seed: int) -> int:
    """Run the quick tests with each bug, up to `runs` times, and print which find it."""
    left = {each.name: each for each in bugs}
    count = len(left)
    for run in range(1, runs + 1):
        with tempfile.TemporaryDirectory() as directory:
            names = Path(directory, "bugs")
            names.write_text("".join(f"{each}\n" for each in left), "utf-8")
            command = [sys.executable, "-m", "pytest", "-p", "tests.faults.quick", "--plant", str(names)]
            command += ["-q", "-s", "-p", "no:cacheprovider", *_LEFT_OUT, *_FOLDERS]
            environment = {**os.environ, VARIABLE: str(seed + run - 1)}
            with subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("{"):
                        found = json.loads(line)
                        say(f"run {run}  {found['bug']:45} {found['seconds']:6.1f} s  {found['test'] or '-'}")
                        if found["test"]:
                            del left[found["bug"]]
        if process.returncode:
            say(f"pytest exited with {process.returncode}")
            return 2
    say("", f"{runs} runs of the quick tests found {count - len(left)} of {count} bugs")
    if left:
        say(f"NOT FOUND: {', '.join(left)}")
    return 0
