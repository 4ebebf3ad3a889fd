"""Our own storages pass the suites that we ship, and the suites notice storages that break their promises."""

from __future__ import annotations

import subprocess
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sawlog import Log
from sawlog.storage import FileDirectory, MemoryDirectory, MemoryStorage
from sawlog.storage.interface import Buffer, Published, Storage
from sawlog.storage.memory import PublishedMemory
from sawlog.testing import DirectorySuite, StorageSuite

from ..faults.disk import FaultyStorage


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
    """Without faults, a simulated disk keeps the promises of a storage."""


class TestSimulatedDirectory(Simulated, DirectorySuite):
    """Without faults, a simulated disk keeps the promises of a directory."""


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


class _TwoSteps(PublishedMemory):
    def store(self, first: int, second: int) -> None:
        before = self._numbers or (0, 0)
        self._numbers = first, before[1]
        time.sleep(0)
        self._numbers = first, second


class _PublishesOneAfterTheOther(MemoryDirectory):
    def published(self, name: str, *, create: bool = False) -> Published | None:
        made = super().published(name, create=create)
        if create and not isinstance(made, _TwoSteps):
            made = self._published[name] = _TwoSteps()
        return made


class _PublishesToItself(MemoryDirectory):
    def published(self, name: str, *, create: bool = False) -> Published | None:
        return PublishedMemory() if super().published(name, create=create) is not None else None


class _PublishesUnasked(MemoryDirectory):
    def published(self, name: str, *, create: bool = False) -> Published | None:
        return super().published(name, create=True)


class _ClaimsByWriting(MemoryStorage):
    def claim(self, size_bytes: int) -> None:
        self.append(bytes(size_bytes))


class _WithoutPublished(MemoryDirectory):
    """A custom directory that does not implement `published`."""

    def __getattribute__(self, name: str) -> object:
        if name == "published":
            raise AttributeError(name)
        return super().__getattribute__(name)


class _PublishesNothing(MemoryDirectory):
    """A directory without memory that its readers could share."""

    def published(self, name: str, *, create: bool = False) -> Published | None:
        return None


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


@pytest.mark.sampled(6)  # 0.1 s each
@pytest.mark.parametrize(
    ("suite", "make", "promise"),
    [
        (StorageSuite, _with(_KeepsTheCallersBuffer), "test_appended_bytes_do_not_change_with_the_callers_buffer"),
        (StorageSuite, _with(_WipesWhatIsRemoved), "test_view_stays_valid_when_the_storage_changes"),
        (StorageSuite, _with(_CutsNothing), "test_truncate_keeps_the_bytes_before_the_cut_only"),
        (StorageSuite, _with(_GivesWhatItHas), "test_read_beyond_the_end_is_refused_even_in_part"),
        (StorageSuite, _with(_LetsViewsWrite), "test_view_is_read_only"),
        (StorageSuite, _with(_WritesAtTheEnd), "test_write_at_replaces_bytes_and_keeps_the_size"),
        (DirectorySuite, _UnsortedNames, "test_names_are_sorted"),
        (DirectorySuite, _CreatesTwice, "test_a_name_is_created_once"),
        (DirectorySuite, _ReplacesInPlace, "test_replace_does_not_affect_open_handles"),
        (DirectorySuite, _LocksNothing, "test_lock_has_one_holder"),
        (DirectorySuite, _MissesTheMissing, "test_a_missing_file_is_reported_as_missing"),
        (DirectorySuite, _PublishesOneAfterTheOther, "test_both_published_numbers_change_atomically"),
        (DirectorySuite, _PublishesToItself, "test_readers_load_the_numbers_published_last"),
        (DirectorySuite, _PublishesToItself, "test_published_numbers_survive_the_closing_of_the_handle"),
        (DirectorySuite, _PublishesUnasked, "test_unpublished_numbers_are_not_found"),
        (StorageSuite, _with(_ClaimsByWriting), "test_claimed_space_is_not_content"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_suite_notices_a_broken_promise(suite: type, make: Callable[[], MemoryDirectory], promise: str) -> None:
    assert promise in _broken_promises(suite, make)


@pytest.mark.parametrize("suite", [StorageSuite, DirectorySuite])
def test_suite_finds_nothing_wrong_with_a_sound_directory(suite: type) -> None:
    assert _broken_promises(suite, MemoryDirectory) == set()
    assert len(_promises(suite)) > 10


@pytest.mark.parametrize("make", [_WithoutPublished, _PublishesNothing])
def test_suite_skips_what_a_directory_need_not_have(make: Callable[[], MemoryDirectory]) -> None:
    skipped = set()
    for promise in _promises(DirectorySuite):
        try:
            promise(DirectorySuite(), make())
        except unittest.SkipTest:
            skipped.add(promise.__name__)
    assert skipped == {promise.__name__ for promise in _promises(DirectorySuite) if "publish" in promise.__name__}
    assert len(skipped) > 5


def test_a_log_works_in_a_directory_without_published() -> None:
    """Its readers learn the visible end from a file that is replaced."""
    directory = _WithoutPublished()
    with Log.open(directory) as log:
        log.append(b"seen")
        with Log.open(directory, mode="r") as reader, log._appending():
            log.append(b"not yet")
            assert [record.value for record in reader.scan()] == [b"seen"]
        log.sync()
        with Log.open(directory, mode="r") as reader:
            assert [record.value for record in reader.scan()] == [b"seen", b"not yet"]
    assert directory.exists("visible")


def test_suites_do_not_need_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import sawlog.testing"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
