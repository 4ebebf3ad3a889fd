"""Every test that asks for a `place` runs on every storage; the quick tests choose one for each case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..matrices import STORAGES
from .places import FilePlace, MemoryPlace, Place, quick


@pytest.fixture(params=STORAGES["place"])
def place(request: pytest.FixtureRequest) -> Place:
    """A new place for a log, in files and in memory; fsync takes no time."""
    made: Place = request.getfixturevalue("file_place" if request.param == "files" else "memory_place")
    return made


@pytest.fixture
def file_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilePlace]:
    """A new place in files; fsync takes no time."""
    with quick(monkeypatch):
        made = FilePlace(tmp_path / "log")
        yield made
        made.close()


@pytest.fixture
def memory_place() -> Iterator[MemoryPlace]:
    """A new place in memory."""
    made = MemoryPlace()
    yield made
    made.close()
