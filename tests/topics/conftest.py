"""Every test that asks for a `place` runs in files and in memory: in one of them in the quick form, in both in the
slow form. The seed of the run chooses (`SAWLOG_FAULT_SEED` repeats it), so both are covered in about equal parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..faults.seeds import shuffled
from ..log.places import quick
from .stores import FilePlace, MemoryPlace, StorePlace


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose where a test runs quickly."""
    if "place" in metafunc.fixturenames:
        chosen, other = shuffled(["files", "memory"], f"{metafunc.module.__name__} {metafunc.function.__name__}")
        metafunc.parametrize("place", [chosen, pytest.param(other, marks=pytest.mark.slow)], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> StorePlace:
    """A new place for a store, in files or in memory; fsync takes no time."""
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
