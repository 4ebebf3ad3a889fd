"""Run the tests in several processes: `pytest --workers 6`.

The tests are collected once. Each worker is then forked from this process, so it has every module and every test
already, and shares their memory. (pytest-xdist collects in every worker, and exchanges five messages per test: a minute
of CPU for ten thousand tests.)

Work is handed out in units: a short run of tests of one module, or all tests of a group

    @pytest.mark.group("spark")

which share an expensive fixture, such as a JVM. A worker asks for its next unit when it starts the last test of the
one before. Groups come first and the tests that tests/durations.txt lists as slow come next, so that no worker is left
alone with them in the end; the others keep their order, so that a worker seldom rebuilds the fixtures of a package.
Tests marked `late` come last.

A worker that dies fails the test that it was running; the tests that it had left return to their place in the queue. A
test that takes longer than `--test-timeout` fails with the stacks of all threads, and its worker is killed with all
processes that it has started. A worker that does not exit after its last test fails that test.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import os
import re
import signal
import sys
import time
import traceback
import warnings
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

#: A unit ends with the module, or when it is estimated to take so long.
UNIT_S = 0.5
#: A listed test that takes longer is handed out before the others.
LONG_S = 1.5
#: The estimate for a test that is not listed.
USUAL_S = 0.05
DURATIONS = Path(__file__).parent / "durations.txt"
#: A slow or late test may take this many times as long as `--test-timeout`.
SLOW_FACTOR = 6
#: A worker may take so long to exit after its last test, or `--test-timeout` if that is shorter.
_EXIT_S = 30.0
#: A worker may take so long to write its stacks.
_STACKS_S = 10.0
#: How often the controller looks for workers that hang or have died.
_CHECK_S = 1.0
#: At this signal a worker writes the stacks of its threads.
_STACKS_SIGNAL = getattr(signal, "SIGUSR1", None)
_STACKS = "stacks.txt"

Unit = list[int]  # positions in session.items


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forked processes")
    parser.addoption(
        "--test-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help=f"with --workers: fail a test after S seconds, a slow one after {SLOW_FACTOR} times as many",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "group(name): run in the same worker as the other tests of the group")
    config.addinivalue_line("markers", "late: run after all other tests, such as one that waits for a build")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--workers")
    if not count or session.config.option.collectonly or not session.items or not hasattr(os, "fork"):
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        return None  # pytest reports that
    gc.collect()
    gc.freeze()  # workers share the memory of what no collection looks at
    Controller(session, count).run()
    return True


def recorded() -> dict[str, float]:
    """Wall seconds of the listed tests; of a test with parameters, those of its slowest listed case."""
    found: defaultdict[str, float] = defaultdict(float)
    if DURATIONS.exists():
        for _, wall, test in re.findall(
            r"^ *([\d.]+) +([\d.]+) +(\S.*::.*)$", DURATIONS.read_text("utf-8"), re.MULTILINE
        ):
            name = function_of(test)
            found[name] = max(found[name], float(wall))
    return found


def function_of(test: str) -> str:
    """The name of a test without its parameters."""
    return test.partition("[")[0]


def units_of(items: list[pytest.Item], known: dict[str, float]) -> list[Unit]:
    """The units in the order in which they are handed out."""
    groups: dict[str, Unit] = {}
    late: Unit = []
    long: list[tuple[float, Unit]] = []
    others: list[Unit] = []
    module, left_s = None, 0.0
    for at, item in enumerate(items):
        cost_s = known.get(function_of(item.nodeid), USUAL_S)
        if item.get_closest_marker("late"):
            late.append(at)
        elif mark := item.get_closest_marker("group"):
            groups.setdefault(mark.args[0], []).append(at)
        elif cost_s >= LONG_S:
            long.append((cost_s, [at]))
        else:
            if item.path != module or left_s < cost_s:
                others.append([])
                module, left_s = item.path, UNIT_S
            others[-1].append(at)
            left_s -= cost_s

    def total(unit: Unit) -> float:
        return sum(known.get(function_of(items[at].nodeid), USUAL_S) for at in unit)

    long.sort(key=lambda row: -row[0])
    first = sorted(groups.values(), key=lambda unit: -total(unit))
    return [*first, *(unit for _, unit in long), *others, *([late] if late else [])]


class Controller:
    """The process that has collected the tests: it hands them out and logs the reports."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._config = session.config
        self._units = deque(units_of(session.items, recorded()))
        #: For each test, the place of its unit in that order.
        self._places = {at: place for place, unit in enumerate(self._units) for at in unit}
        self._count = min(count, len(self._units))
        self._workers: dict[Connection, Handle] = {}
        self._started = 0
        self._timeout_s: float = self._config.getoption("--test-timeout")
        self._base: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self) -> None:
        try:
            for _ in range(self._count):
                self._start()
            while self._workers:
                for end in wait(list(self._workers), _CHECK_S):
                    self._hear(self._workers[end])  # type: ignore[index]
                for worker in list(self._workers.values()):
                    self._check(worker)
        finally:
            for worker in self._workers.values():
                worker.end_of_pipe.close()  # it ends when it notices that
            for worker in self._workers.values():
                worker.end()

    def _start(self) -> None:
        ours, theirs = Pipe()
        number, self._started = self._started, self._started + 1
        base = self._base / f"worker-{number}"
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # "multi-threaded": libraries that expect a fork
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                for each in self._workers:
                    each.close()
                Worker(self._session, number, base, theirs).run()
                code = 0
            except BaseException:  # interrupts too: the worker must not run the parent's code
                traceback.print_exc()
            finally:
                _exit(code)
        theirs.close()
        self._workers[ours] = Handle(pid, str(number), ours, base / _STACKS, self._timeout_s)

    def _hear(self, worker: Handle) -> None:
        try:
            kind, content = worker.end_of_pipe.recv()
        except (EOFError, OSError):
            self._lost(worker)
            return
        if kind == "reports":
            worker.ends_test()
            for data in content:
                self._log(self._config.hook.pytest_report_from_serializable(config=self._config, data=data), worker)
        elif kind == "warning":
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=content)
        elif kind == "next":
            unit = self._units.popleft() if self._units and not self._stopped else None
            worker.assign(unit or [])
            with contextlib.suppress(OSError):  # it has died, as the next read says
                worker.end_of_pipe.send(unit)
        elif kind == "failed":
            raise RuntimeError(f"worker {worker.name} failed:\n{content}")
        elif kind == "done":
            del self._workers[worker.end_of_pipe]
            if (problem := worker.end()) and worker.last is not None:
                self._fail(worker, worker.last, f"the worker that ran this test last {problem}", "teardown")

    @property
    def _stopped(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _log(self, report: pytest.TestReport, worker: Handle) -> None:
        report.node = worker.node  # type: ignore[attr-defined] - pytest prints reports of several workers line by line
        self._config.hook.pytest_runtest_logreport(report=report)

    def _fail(self, worker: Handle, at: int, problem: str, when: Literal["call", "teardown"]) -> None:
        item = self._session.items[at]
        self._log(pytest.TestReport(item.nodeid, item.location, {}, "failed", problem, when), worker)

    def _check(self, worker: Handle) -> None:
        """Notice a worker that hangs, and one that has died while another process keeps its pipe open."""
        if worker.end_of_pipe.poll():
            return
        if worker.has_exited():
            self._lost(worker)
        elif worker.assigned:
            item = self._session.items[worker.assigned[0]]
            may_be_slow = item.get_closest_marker("slow") or item.get_closest_marker("late")
            limit_s = self._timeout_s * (SLOW_FACTOR if may_be_slow else 1)
            if worker.test_s > limit_s:
                self._lost(worker, f"was killed after {limit_s:g} s. {worker.kill()}")

    def _lost(self, worker: Handle, problem: str = "") -> None:
        """Fail the test that the worker was running and give its remaining tests to another worker."""
        del self._workers[worker.end_of_pipe]
        problem = problem or worker.end() or "exited"
        worker.end()
        if worker.assigned:
            self._fail(worker, worker.assigned.popleft(), f"the worker that ran this test {problem}", "call")
        for _, unit in groupby(worker.assigned, self._places.__getitem__):
            insort(self._units, list(unit), key=lambda each: self._places[each[0]])
        if self._units and not self._stopped:
            self._start()


class Handle:
    """The controller's view of a worker."""

    def __init__(self, pid: int, name: str, end_of_pipe: Connection, stacks: Path, timeout_s: float) -> None:
        self.name = name
        self.end_of_pipe = end_of_pipe
        self.assigned: deque[int] = deque()  # the first one is running
        #: The last test that has ended.
        self.last: int | None = None
        self.node = SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache="")  # what pytest prints
        self._pid = pid
        self._stacks = stacks
        self._exit_s = min(_EXIT_S, timeout_s)
        self._code: int | None = None
        self._since = time.monotonic()

    def assign(self, unit: Unit) -> None:
        """Add tests. If the worker has none, it begins now."""
        if not self.assigned:
            self._since = time.monotonic()
        self.assigned += unit

    def ends_test(self) -> None:
        """Note that the running test has ended, and the next one begins."""
        self.last = self.assigned.popleft()
        self._since = time.monotonic()

    @property
    def test_s(self) -> float:
        """Duration of the running test so far."""
        return time.monotonic() - self._since

    def has_exited(self) -> bool:
        """Return True if the process has ended."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def end(self) -> str:
        """Wait for the process to exit, or kill it if it does not. Return what was wrong, or an empty text."""
        self.end_of_pipe.close()
        if not _until(self.has_exited, self._exit_s):
            return f"did not exit within {self._exit_s:g} s. {self.kill()}"
        assert self._code is not None
        if self._code < 0:
            return f"died of {signal.Signals(-self._code).name}"
        return f"exited with {self._code}" if self._code else ""

    def kill(self) -> str:
        """Kill the process and its descendants; return the stacks of its threads, and the commands of the others."""
        text = "No stacks:"
        if _STACKS_SIGNAL is not None:
            os.kill(self._pid, _STACKS_SIGNAL)
            size = 0

            def complete() -> bool:
                nonlocal size
                before, size = size, self._stacks.stat().st_size
                time.sleep(0.2)  # the file is written line by line
                return 0 < before == size

            text = "Its stacks:" if _until(complete, _STACKS_S) else "It did not write all stacks:"
            text += f"\n{self._stacks.read_text('utf-8', 'replace')}"
        others = descendants(self._pid)
        commands = [f"process {pid}: {_command(pid)}" for pid in others]
        for pid in (self._pid, *others):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _until(self.has_exited, _EXIT_S)
        return "\n".join([text, *commands])


def _until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; return False if it was not met in time."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on. Linux only; nothing elsewhere."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _command(pid: int) -> str:
    """Return the beginning of the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:300]
    except OSError:
        return "(it has ended)"


class Worker:
    """A forked process that runs units and sends their reports."""

    def __init__(self, session: pytest.Session, number: int, base: Path, end_of_pipe: Connection) -> None:
        self._session = session
        self._config = session.config
        self._pipe = end_of_pipe
        self._reports: list[dict[str, Any]] = []
        manager = self._config.pluginmanager
        for name in ("terminalreporter", "sawlog-durations", "junitxml"):
            if (plugin := manager.get_plugin(name)) is not None:
                manager.unregister(plugin)
        manager.register(self, "sawlog-worker")
        capture: Any = manager.get_plugin("capturemanager")
        capture.stop_global_capturing()  # its files are those of the parent
        capture.start_global_capturing()
        capture.suspend_global_capture()
        # A process that a test forks must neither keep the pipe open nor speak for this worker.
        os.register_at_fork(after_in_child=end_of_pipe.close)
        base.mkdir(mode=0o700)
        if _STACKS_SIGNAL is not None:
            self._stacks = (base / _STACKS).open("w")
            faulthandler.register(_STACKS_SIGNAL, self._stacks)
        self._config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]

    def run(self) -> None:
        try:
            item = None
            for following in self._items():
                if item is not None:
                    self._run(item, following)
                item = following
            if item is not None:
                self._run(item, None)
        except Exception:
            self._pipe.send(("failed", traceback.format_exc()))
        self._pipe.send(("done", None))

    def _items(self) -> Iterator[pytest.Item]:
        while True:
            self._pipe.send(("next", None))
            unit = self._pipe.recv()
            if unit is None:
                return
            for at in unit:
                yield self._session.items[at]
                if self._session.shouldfail:
                    return

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        reports, self._reports = self._reports, []
        self._pipe.send(("reports", reports))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        plain = SimpleNamespace(
            message=str(warning_message.message),
            category=warning_message.category,
            filename=warning_message.filename,
            lineno=warning_message.lineno,
            line=None,
            source=None,
        )
        self._pipe.send(("warning", {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}))


def _exit(code: int) -> None:
    """End this process as Python would, except for what its parent has to do."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
