"""Every test that asks for a `place` runs on every storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..log.places import quick
from .stores import FilePlace, MemoryPlace, StorePlace


@pytest.fixture(params=["files", "memory"])
def place(request: pytest.FixtureRequest) -> StorePlace:
    """A new place for a store, in files and in memory; fsync takes no time."""
    made: StorePlace = request.getfixturevalue("file_place" if request.param == "files" else "memory_place")
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
