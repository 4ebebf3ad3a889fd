"""Record the cost of every test: CPU seconds, including child processes, and wall seconds.

The run ends with the unmarked tests that used more than `CPU_LIMIT_S` of CPU: speed them up, move them to `make
test-all` (`slow`), or mark them `costly` with the reason next to the mark. In CI, and with `--durations-file PATH`, it
also reports the time per folder and the slowest tests; `make durations` writes that report to `tests/durations.txt`.

The CPU time of a child counts when the child has been waited for. A JVM or a server that outlives a test counts for the
test during which it ends. Full garbage collections do not count: one of what a thousand tests have left takes a second,
and begins in any test.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: An unmarked test that uses more CPU than this is listed at the end of the run.
CPU_LIMIT_S = 1.0
#: Length of the list of slowest tests.
SLOWEST = 100
#: Marks that say that a test is known to be expensive.
EXPECTED = ("slow", "costly")

_before = pytest.StashKey[float]()
_PROPERTY = "sawlog cpu"


@dataclass(slots=True)
class Cost:
    """Cost of one test so far: set-up, call and tear-down."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    expected: bool = False


def cpu_s() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class Collections:
    """CPU seconds of full garbage collections."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.cpu_s += time.thread_time() - self._began_s


_collections = Collections()


def _test_cpu_s() -> float:
    return cpu_s() - _collections.cpu_s


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", metavar="PATH", help="write the time per folder and the slowest tests to PATH")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(config), "sawlog-durations")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_before] = _test_cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    now = _test_cpu_s()
    expected = any(item.get_closest_marker(each) for each in EXPECTED)
    report.user_properties = [*report.user_properties, (_PROPERTY, [now - item.stash[_before], expected])]
    item.stash[_before] = now
    return report


class Durations:
    """Collects the costs of all tests and reports them."""

    def __init__(self, config: pytest.Config) -> None:
        self._path: str | None = config.getoption("--durations-file")
        self._costs: defaultdict[str, Cost] = defaultdict(Cost)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = self._costs[report.nodeid]
        cost.wall_s += report.duration
        for name, value in report.user_properties:
            if name == _PROPERTY:
                cost.cpu_s += value[0]  # type: ignore[index]
                cost.expected = value[1]  # type: ignore[index]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = self.report()
        if self._path is not None:
            Path(self._path).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if os.environ.get("CI"):
            terminalreporter.section("durations")
            for line in lines:
                terminalreporter.write_line(line)
        if unexpected := self.unexpected():
            terminalreporter.section(f"unmarked tests above {CPU_LIMIT_S:g} s of CPU")
            for line in unexpected:
                terminalreporter.write_line(line)

    def unexpected(self) -> list[str]:
        """Tests above the limit that carry none of the marks, the most expensive first."""
        found = [
            (cost.cpu_s, test) for test, cost in self._costs.items() if cost.cpu_s > CPU_LIMIT_S and not cost.expected
        ]
        return [f"{cpu:6.1f} s  {test}" for cpu, test in sorted(found, reverse=True)]

    def report(self) -> list[str]:
        """Time per folder, then the slowest tests."""
        folders: defaultdict[str, list[Cost]] = defaultdict(list)
        for test, cost in self._costs.items():
            folders[folder_of(test)].append(cost)
        lines = ["   CPU s    wall s   tests  folder"]
        for folder, costs in sorted(folders.items(), key=lambda row: -sum(cost.cpu_s for cost in row[1])):
            cpu, wall = sum(cost.cpu_s for cost in costs), sum(cost.wall_s for cost in costs)
            lines.append(f"{cpu:8.1f}  {wall:8.1f}  {len(costs):6}  {folder}")
        lines += ["", "   CPU s    wall s  test"]
        slowest = sorted(self._costs.items(), key=lambda row: -max(row[1].cpu_s, row[1].wall_s))[:SLOWEST]
        return lines + [f"{cost.cpu_s:8.1f}  {cost.wall_s:8.1f}  {test}" for test, cost in slowest]


def folder_of(test: str) -> str:
    """The folder of a test below `tests`, or its file if it is not in a folder."""
    parts = test.partition("::")[0].split("/")
    return "/".join(parts[:2])
