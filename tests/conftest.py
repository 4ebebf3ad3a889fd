"""What holds for every test: hypothesis repeats itself, and the kernel under test is the one in the source.

Profiles (`pytest --hypothesis-profile=NAME`):

    repeatable   the default: the same examples every time, so that a red run is red again
    explore      new random examples, and more of them; what it finds is printed with a blob to replay

No deadline in either: the machines that run this are shared, and a slow neighbour is not a bug.
"""

from __future__ import annotations

import gc
import importlib.machinery
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from .faults.seeds import repeat, seed_of_this_run

KERNEL = Path(__file__).resolve().parent.parent / "src/sawlog/batch/kernel"

# The shipped suites explain their failures like any test of ours; said here, before anybody imports them.
pytest.register_assert_rewrite(
    "sawlog.testing.storage_suite", "sawlog.testing.directory_suite", "sawlog.testing.store_suite"
)

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=500, deadline=None, print_blob=True)
settings.load_profile("repeatable")


def stale_kernels(package: Path) -> list[Path]:
    """Compiled kernels older than one of their sources: Python would run them and ignore the sources."""
    candidates = (package / f"__init__{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    sources = [path for path in package.glob("*.p*") if path.suffix in {".py", ".pyx", ".pxi"}]
    edited = max((path.stat().st_mtime_ns for path in sources), default=0)
    return [path for path in candidates if path.exists() and path.stat().st_mtime_ns < edited]


def pytest_configure() -> None:
    """Refuse to test a kernel that is not the one in the source; choose the laboratory's seed before other processes
    are started, so that they have the same."""
    seed_of_this_run()
    if stale := stale_kernels(KERNEL):
        raise pytest.UsageError(f"{stale[0].name} is older than its sources and hides them: run `make kernel`")


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """For tests that call `gc.collect` very often: what is there already is not looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_report_header() -> str:
    """Say which kernel the tests ran with: a silent fallback would only show as slowness."""
    import sawlog

    kernel = "compiled" if sawlog.kernel_info().compiled else "plain Python"
    return f"sawlog {sawlog.__version__}, kernel: {kernel}, fault laboratory: {repeat()}"
