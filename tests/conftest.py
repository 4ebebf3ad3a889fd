"""Set-up for all tests: repeatable Hypothesis runs, and a check that the kernel under test is built from the current
source.

Profiles (`pytest --hypothesis-profile=NAME`):

    repeatable   the default: the same 25 examples every time, so that a failure can be repeated
    explore      500 new random examples; a failure prints a blob that replays it

Neither has a deadline: the machines are shared, and a slow neighbour is not a bug.
"""

from __future__ import annotations

import gc
import importlib.machinery
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from .faults.seeds import repeat, seed_of_this_run

#: A file system in memory, and how much of it has to be free: a run leaves some hundred megabytes there.
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 4 << 30
KERNEL = Path(__file__).resolve().parent.parent / "src/sawlog/batch/kernel"

pytest_plugins = ["tests.durations", "tests.matrices", "tests.parallel"]

gc.disable()  # until the tests are collected: nothing of that is garbage

# Registered before the first import, so that the shipped suites explain their failures like any other test.
pytest.register_assert_rewrite(
    "sawlog.testing.storage_suite", "sawlog.testing.directory_suite", "sawlog.testing.store_suite"
)

settings.register_profile("repeatable", max_examples=25, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=500, deadline=None, print_blob=True)
settings.load_profile("repeatable")


def stale_kernels(package: Path) -> list[Path]:
    """Compiled kernels older than one of their sources: Python would run them and ignore the sources."""
    candidates = (package / f"__init__{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    sources = [path for path in package.glob("*.p*") if path.suffix in {".py", ".pyx", ".pxi"}]
    edited = max((path.stat().st_mtime_ns for path in sources), default=0)
    return [path for path in candidates if path.exists() and path.stat().st_mtime_ns < edited]


def use_memory() -> None:
    """Put temporary directories in memory if there is room: most tests call fsync without testing it, and would wait
    for the disk. Tests of files and of killed processes get `tmp_path` on the disk (`disk_path`).
    `SAWLOG_TESTS_ON_DISK=1` leaves everything on the disk."""
    if "SAWLOG_TESTS_ON_DISK" in os.environ or "PYTEST_DEBUG_TEMPROOT" in os.environ:
        return
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return
    if os.access(MEMORY, os.W_OK) and room.f_bavail * room.f_frsize >= MEMORY_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)  # pytest's own


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A new directory where temporary files usually are. A log that a failed check has left open may still write to it
    while it is removed."""
    with tempfile.TemporaryDirectory(prefix="sawlog-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def pytest_configure() -> None:
    """Refuse to test a kernel that is not the one in the source; choose the laboratory's seed before other processes
    are started, so that they have the same."""
    seed_of_this_run()
    use_memory()
    if stale := stale_kernels(KERNEL):
        raise pytest.UsageError(f"{stale[0].name} is older than its sources and hides them: run `make kernel`")


class FrozenHeap:
    """Sets aside thousands of tests and the libraries that they use: otherwise each `gc.collect` of a test scans all of
    them, which takes half a second.

    For the same reason the heap stays frozen if a test freezes and unfreezes what it has made so far. Garbage is
    collected first, so that only live objects are frozen.
    """

    def __init__(self) -> None:
        self._freeze, self._unfreeze = gc.freeze, gc.unfreeze
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._collect_and_freeze()
            gc.freeze, gc.unfreeze = self._collect_and_freeze, lambda: None

    def _collect_and_freeze(self) -> None:
        gc.collect()
        self._freeze()

    def end(self) -> None:
        gc.freeze, gc.unfreeze = self._freeze, self._unfreeze
        gc.unfreeze()


_heap = FrozenHeap()


def pytest_unconfigure() -> None:
    """Undo the freezing, so that libraries that report leaks at exit see an ordinary heap."""
    _heap.end()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the CPU time of the test counts
def pytest_runtest_protocol() -> Iterator[None]:
    """Before the first test."""
    _heap.set()
    return (yield)


@pytest.fixture
def quick_collections() -> None:
    """Freeze the heap for a test that calls `gc.collect` very often."""
    gc.freeze()


@pytest.fixture
def no_background() -> Iterator[None]:
    """Without timed syncs, checkpoints and maintenance: a test that fails the n-th call would also count theirs."""
    from sawlog import background

    with background.suspended():
        yield


def pytest_collection_finish() -> None:
    """The tests run with the collector that users have."""
    gc.enable()


def pytest_report_header() -> str:
    """Show the kernel that the tests run with: otherwise a silent fallback would only show as slowness."""
    import sawlog

    kernel = "compiled" if sawlog.kernel_info().compiled else "plain Python"
    place = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    return f"sawlog {sawlog.__version__}, kernel: {kernel}, files in {place}, fault laboratory: {repeat()}"
