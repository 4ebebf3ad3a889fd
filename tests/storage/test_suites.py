"""Our own storages pass the suites that we ship, and the suites notice storages that break their promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sawlog.storage import FileDirectory, MemoryDirectory, MemoryStorage
from sawlog.storage.interface import Buffer, Storage
from sawlog.testing import DirectorySuite, FaultyStorage, StorageSuite


class Files:
    """A new directory of files for each test."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Iterator[FileDirectory]:
        made = FileDirectory(tmp_path / "log")
        yield made
        made.close()


class Memory:
    """A new directory in memory for each test."""

    @pytest.fixture
    def directory(self) -> MemoryDirectory:
        return MemoryDirectory()


class Simulated:
    """A new simulated disk for each test."""

    @pytest.fixture
    def directory(self) -> FaultyStorage:
        return FaultyStorage(seed=1)


class TestFileStorage(Files, StorageSuite):
    """Files keep the promises of a storage."""


class TestFileDirectory(Files, DirectorySuite):
    """Files keep the promises of a directory."""


class TestMemoryStorage(Memory, StorageSuite):
    """Memory keeps the promises of a storage."""


class TestMemoryDirectory(Memory, DirectorySuite):
    """Memory keeps the promises of a directory."""


class TestSimulatedStorage(Simulated, StorageSuite):
    """A simulated disk that is told nothing else keeps the promises of a storage."""


class TestSimulatedDirectory(Simulated, DirectorySuite):
    """And those of a directory."""


# --- the suites can fail


class _WithStorage(MemoryDirectory):
    """A directory whose storages are of another class."""

    kind: type[MemoryStorage]

    def create(self, name: str) -> Storage:
        super().create(name)
        self._files[name] = self.kind(self, name)
        return self._files[name]


class _KeepsTheCallersBuffer(MemoryStorage):
    def append(self, data: Buffer) -> int:
        position = super().append(data)
        if isinstance(data, bytearray) and position == 0:
            self._buffer = data
        return position


class _WipesWhatIsRemoved(MemoryStorage):
    def remove(self) -> None:
        super().remove()
        self._buffer[:] = bytes(len(self._buffer))


class _CutsNothing(MemoryStorage):
    def truncate(self, size: int) -> None:
        pass


class _GivesWhatItHas(MemoryStorage):
    def read(self, position: int, size: int) -> bytes:
        return bytes(self._buffer[position : min(position + size, self._size)])


class _LetsViewsWrite(MemoryStorage):
    def view(self, position: int, size: int) -> memoryview:
        super().view(position, size)
        return memoryview(self._buffer)[position : position + size]


class _WritesAtTheEnd(MemoryStorage):
    def write_at(self, position: int, data: Buffer) -> None:
        self.append(data)


def _with(kind: type[MemoryStorage]) -> type[MemoryDirectory]:
    return type(kind.__name__, (_WithStorage,), {"kind": kind})


class _UnsortedNames(MemoryDirectory):
    def names(self) -> list[str]:
        return list(self._files)


class _CreatesTwice(MemoryDirectory):
    def create(self, name: str) -> Storage:
        self.remove(name)
        return super().create(name)


class _ReplacesInPlace(MemoryDirectory):
    def replace(self, name: str, data: Buffer) -> None:
        if name not in self._files:
            super().replace(name, data)
        else:
            self._files[name].write_at(0, bytes(len(data)))
            self._files[name]._size = 0
            self._files[name].append(data)


class _LocksNothing(MemoryDirectory):
    def lock(self, name: str):  # type: ignore[no-untyped-def]
        self._locks.clear()
        return super().lock(name)


class _MissesTheMissing(MemoryDirectory):
    def read(self, name: str) -> bytes:
        return super().read(name) if self.exists(name) else b""


def _promises(suite: type) -> list[Callable[..., None]]:
    return [getattr(suite, name) for name in dir(suite) if name.startswith("test_")]


def _broken_promises(suite: type, make: Callable[[], MemoryDirectory]) -> set[str]:
    broken = set()
    for promise in _promises(suite):
        try:
            promise(suite(), make())
        except Exception:
            broken.add(promise.__name__)
    return broken


@pytest.mark.parametrize(
    ("suite", "make", "promise"),
    [
        (StorageSuite, _with(_KeepsTheCallersBuffer), "test_appended_bytes_do_not_change_with_the_callers_buffer"),
        (StorageSuite, _with(_WipesWhatIsRemoved), "test_view_stays_valid_whatever_happens_to_the_storage"),
        (StorageSuite, _with(_CutsNothing), "test_truncate_keeps_what_is_before_and_drops_the_rest"),
        (StorageSuite, _with(_GivesWhatItHas), "test_read_beyond_the_end_is_refused_even_in_part"),
        (StorageSuite, _with(_LetsViewsWrite), "test_view_is_read_only"),
        (StorageSuite, _with(_WritesAtTheEnd), "test_write_at_replaces_bytes_and_keeps_the_size"),
        (DirectorySuite, _UnsortedNames, "test_names_are_sorted"),
        (DirectorySuite, _CreatesTwice, "test_a_name_is_created_once"),
        (DirectorySuite, _ReplacesInPlace, "test_replace_leaves_those_who_have_the_old_one_open"),
        (DirectorySuite, _LocksNothing, "test_lock_has_one_holder"),
        (DirectorySuite, _MissesTheMissing, "test_what_is_missing_is_reported_as_missing"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_suite_notices_a_broken_promise(suite: type, make: Callable[[], MemoryDirectory], promise: str) -> None:
    assert promise in _broken_promises(suite, make)


@pytest.mark.parametrize("suite", [StorageSuite, DirectorySuite])
def test_suite_finds_nothing_wrong_with_a_sound_directory(suite: type) -> None:
    assert _broken_promises(suite, MemoryDirectory) == set()
    assert len(_promises(suite)) > 10


def test_suites_do_not_need_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import sawlog.testing"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
