"""Run the tests in several processes: `pytest --workers 6`.

The tests are collected once. Each worker is then forked from this process, so it has every module and every test
already, and shares their memory. (pytest-xdist collects in every worker, and exchanges five messages per test: a minute
of CPU for ten thousand tests.)

Work is handed out in units: a short run of tests of one module, or all tests of a group

    @pytest.mark.group("spark")

which share an expensive fixture, such as a JVM. A worker asks for its next unit when it starts the last test of the
one before. Groups come first and the tests that tests/durations.txt lists as slow come next, so that no worker is left
alone with them in the end; the others keep their order, so that a worker seldom rebuilds the fixtures of a package.

A worker that dies fails the test that it was running; another one takes the tests that it had left.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import signal
import sys
import traceback
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

#: A unit ends with the module, or when it is estimated to take so long.
UNIT_S = 0.5
#: A listed test that takes longer is handed out before the others.
LONG_S = 1.5
#: The estimate for a test that is not listed.
USUAL_S = 0.05
DURATIONS = Path(__file__).parent / "durations.txt"
_PATIENCE_S = 30.0

Unit = list[int]  # positions in session.items


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forked processes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "group(name): run in the same worker as the other tests of the group")


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
    long: list[tuple[float, Unit]] = []
    others: list[Unit] = []
    module, left_s = None, 0.0
    for at, item in enumerate(items):
        cost_s = known.get(function_of(item.nodeid), USUAL_S)
        if mark := item.get_closest_marker("group"):
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
    return [*sorted(groups.values(), key=lambda unit: -total(unit)), *(unit for _, unit in long), *others]


class Controller:
    """The process that has collected the tests: it hands them out and logs the reports."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._config = session.config
        self._units = deque(units_of(session.items, recorded()))
        self._count = min(count, len(self._units))
        self._workers: dict[Connection, Handle] = {}
        self._started = 0
        self._base: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self) -> None:
        try:
            for _ in range(self._count):
                self._start()
            while self._workers:
                for end in wait(list(self._workers)):
                    self._hear(self._workers[end])  # type: ignore[index]
        finally:
            for worker in list(self._workers.values()):
                worker.end()

    def _start(self) -> None:
        ours, theirs = Pipe()
        number, self._started = self._started, self._started + 1
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
                Worker(self._session, number, self._base / f"worker-{number}", theirs).run()
                code = 0
            except BaseException:  # interrupts too: the worker must not run the parent's code
                traceback.print_exc()
            finally:
                _exit(code)
        theirs.close()
        self._workers[ours] = Handle(pid, str(number), ours)

    def _hear(self, worker: Handle) -> None:
        try:
            kind, content = worker.end_of_pipe.recv()
        except (EOFError, OSError):
            self._lost(worker)
            return
        if kind == "reports":
            worker.assigned.popleft()
            for data in content:
                self._log(self._config.hook.pytest_report_from_serializable(config=self._config, data=data), worker)
        elif kind == "warning":
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=content)
        elif kind == "next":
            unit = self._units.popleft() if self._units and not self._stopped else None
            worker.assigned += unit or []
            with contextlib.suppress(OSError):  # it has died, as the next read says
                worker.end_of_pipe.send(unit)
        elif kind == "failed":
            raise RuntimeError(f"worker {worker.name} failed:\n{content}")
        elif kind == "done":
            del self._workers[worker.end_of_pipe]
            worker.end()

    @property
    def _stopped(self) -> bool:
        return bool(self._session.shouldfail or self._session.shouldstop)

    def _log(self, report: pytest.TestReport, worker: Handle) -> None:
        report.node = worker.node  # type: ignore[attr-defined] - pytest prints reports of several workers line by line
        self._config.hook.pytest_runtest_logreport(report=report)

    def _lost(self, worker: Handle) -> None:
        """Fail the test that the worker was running and give its remaining tests to another worker."""
        del self._workers[worker.end_of_pipe]
        code = worker.end()
        if worker.assigned:
            item = self._session.items[worker.assigned.popleft()]
            how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            report = pytest.TestReport(
                item.nodeid, item.location, {}, "failed", f"the worker that ran this test {how}", "call"
            )
            self._log(report, worker)
        if worker.assigned:
            self._units.appendleft(list(worker.assigned))
        if self._units and not self._stopped:
            self._start()


class Handle:
    """The controller's view of a worker."""

    def __init__(self, pid: int, name: str, end_of_pipe: Connection) -> None:
        self.name = name
        self.end_of_pipe = end_of_pipe
        self.assigned: deque[int] = deque()  # the first one is running
        self.node = SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache="")  # what pytest prints
        self._pid = pid

    def end(self) -> int:
        """Wait for the process, which has ended or will soon; kill it otherwise. Return its exit code."""
        self.end_of_pipe.close()
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(self._pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


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
        base.mkdir(mode=0o700)
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
