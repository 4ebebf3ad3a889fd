"""A test that asks for a `place` or a `medium` runs in files or in memory.

The seed of the run chooses which for the quick form (`SAWLOG_FAULT_SEED` repeats it); the slow form has the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..faults.seeds import shuffled
from ..log.places import quick
from .stores import FilePlace, MemoryPlace, StorePlace


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the medium of the quick form."""
    if "medium" in metafunc.fixturenames:
        chosen, other = shuffled(["files", "memory"], f"{metafunc.module.__name__} {metafunc.function.__name__}")
        metafunc.parametrize("medium", [chosen, pytest.param(other, marks=pytest.mark.slow)])


@pytest.fixture
def place(request: pytest.FixtureRequest, medium: str) -> StorePlace:
    """A new place for a store, in files or in memory; fsync takes no time."""
    made: StorePlace = request.getfixturevalue("file_place" if medium == "files" else "memory_place")
    return made


@pytest.fixture
def file_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilePlace]:
    """A new place in files; fsync takes no time."""
    with quick(monkeypatch):
        made = FilePlace(tmp_path / "store")
        yield made
        made.close()


@pytest.fixture
def memory_place() -> Iterator[MemoryPlace]:
    """A new place in memory."""
    made = MemoryPlace()
    yield made
    made.close()
