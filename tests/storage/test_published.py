"""The published end, two numbers in a small file: its bytes, the values readers trust, and crashes of the writer.

`DirectorySuite` has the guarantees of every directory. These tests are about the file: its bytes, restarts of the
machine, damage, torn stores, killed processes, and directories without `published`.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sawlog.errors import StorageError
from sawlog.storage import FileDirectory, MemoryDirectory, Published, open_published
from sawlog.storage import file as file_module
from sawlog.storage import published as published_module
from sawlog.storage.published import PublishedByReplacing
from sawlog.storage.system import boot_id, maps_safely

from .elsewhere import Elsewhere

NAME = "visible"
SIZE, SLOTS_AT, SLOT_BYTES = 192, 64, 32
OTHER_BOOT = bytes(range(16))

pytestmark = pytest.mark.skipif(not boot_id(), reason="this system does not tell when it was started")


@pytest.fixture(params=["mapped", "written"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Map the file, or write it with `pwrite`, as on file systems where mapping is not safe."""
    if request.param == "written":
        monkeypatch.setattr(published_module, "maps_safely", lambda fd: False)
    else:
        with tmp_path.joinpath("probe").open("wb") as file:
            if not maps_safely(file.fileno()):
                pytest.skip("this file system cannot be written safely through a mapping")
    return str(request.param)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[FileDirectory]:
    made = FileDirectory(tmp_path / "log")
    yield made
    made.close()


def writer_in(directory: Any, *numbers: tuple[int, int]) -> Published:
    made: Published | None = directory.published(NAME, create=True)
    assert made is not None
    for each in numbers:
        made.store(*each)
    return made


def loaded(directory: Any) -> tuple[int, int] | None:
    """Return the value that a new reader loads; None also if there is no file."""
    found: Published | None = open_published(directory, NAME)
    if found is None:
        return None
    try:
        return found.load()
    finally:
        found.close()


def content(directory: FileDirectory) -> bytes:
    return Path(directory.path, NAME).read_bytes()


def put(directory: FileDirectory, data: bytes) -> None:
    """Replace the bytes of the file in place, so that every process that has it open sees them."""
    with Path(directory.path, NAME).open("r+b") as file:
        file.write(data)
        file.truncate(len(data))


def restart(monkeypatch: pytest.MonkeyPatch, boot: bytes = OTHER_BOOT) -> None:
    """Simulate a restart of the machine."""
    monkeypatch.setattr(published_module, "boot_id", lambda: boot)
    monkeypatch.setattr(file_module, "boot_id", lambda: boot)


# --- the bytes


def test_the_file_is_a_title_the_boot_id_and_two_slots(directory: FileDirectory, way: str) -> None:
    writer = writer_in(directory)
    head = (b"sawlog\0\0" + boot_id()).ljust(SLOTS_AT, b"\0")
    assert content(directory) == head + bytes(SIZE - SLOTS_AT)
    slots: list[tuple[int, ...]] = []
    for numbers in ((7, 1), (8, 1), (9, 2)):
        writer.store(*numbers)
        data = content(directory)
        assert (len(data), data[:SLOTS_AT]) == (SIZE, head)
        slots = [struct.unpack_from(">4Q", data, at) for at in (SLOTS_AT, SLOTS_AT + SLOT_BYTES)]
        assert max(slots)[1:3] == numbers, "the slot with the higher sequence has the numbers"
    assert sorted(slot[:3] for slot in slots) == [(2, 8, 1), (3, 9, 2)], "the other slot has those before"
    writer.close()


def test_the_file_obeys_the_umask(directory: FileDirectory) -> None:
    before = os.umask(0o027)
    try:
        writer_in(directory).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(directory.path, NAME).stat().st_mode) == 0o640


def test_the_same_numbers_again_are_not_written(directory: FileDirectory, way: str) -> None:
    writer = writer_in(directory, (7, 1), (8, 1))
    before = content(directory)
    writer.store(8, 1)
    assert content(directory) == before
    writer.close()


def descriptors_below(path: str) -> int:
    """Count the open descriptors of files below a path; objects of earlier tests may close theirs at any time."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{each}").startswith(path)
    return found


def test_handles_leave_no_descriptor_and_no_mapping_behind(directory: FileDirectory, way: str) -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return descriptors_below(directory.path), maps.count(f"{directory.path}/{NAME}")

    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    writer_in(directory, (1, 0)).close()
    before = held()
    for number in range(5):
        writer = writer_in(directory, (number, 0))
        assert loaded(directory) == (number, 0)
        writer.close()
    assert held() == before


def test_a_handle_that_was_closed_stores_nothing_and_loads_nothing(directory: FileDirectory, way: str) -> None:
    writer = writer_in(directory, (7, 1))
    reader = directory.published(NAME)
    assert reader is not None
    writer.close()
    reader.close()
    writer.store(8, 1)
    assert writer.load() in (None, (8, 1))
    assert reader.load() is None
    assert loaded(directory) == (7, 1)


def test_writers_by_both_ways_and_readers_by_both_ways_understand_each_other(
    directory: FileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (writes, reads) in enumerate([(True, False), (False, True), (True, True), (False, False)]):
        monkeypatch.setattr(published_module, "maps_safely", lambda fd, mapped=writes: mapped)
        writer = writer_in(directory)
        assert writer.load() == ((number - 1, 5) if number else None)
        monkeypatch.setattr(published_module, "maps_safely", lambda fd, mapped=reads: mapped)
        reader = directory.published(NAME)
        assert reader is not None
        writer.store(number, 5)
        assert (reader.load(), loaded(directory)) == ((number, 5), (number, 5))
        writer.close()
        reader.close()


# --- values that readers reject


def test_numbers_of_another_start_of_the_machine_are_not_believed(
    directory: FileDirectory, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer_in(directory, (7, 1), (8, 1)).close()
    restart(monkeypatch)
    assert directory.published(NAME) is None
    writer = writer_in(directory)
    assert writer.load() is None
    assert loaded(directory) is None
    writer.store(3, 2)
    assert loaded(directory) == (3, 2)
    assert content(directory)[8:24] == OTHER_BOOT
    writer.close()


def test_slots_of_another_start_are_not_believed_even_below_the_right_head(
    directory: FileDirectory, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may leave the new head before the old slots."""
    writer_in(directory, (7, 1), (8, 1)).close()
    old = content(directory)
    restart(monkeypatch)
    put(directory, (b"sawlog\0\0" + OTHER_BOOT).ljust(SLOTS_AT, b"\0") + old[SLOTS_AT:])
    assert loaded(directory) is None
    writer = writer_in(directory)
    assert writer.load() is None
    for number in range(3):
        writer.store(number, 2)
        assert loaded(directory) == (number, 2)
    writer.close()


def test_nothing_is_published_where_the_system_does_not_tell_its_start(
    directory: FileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer_in(directory, (7, 1)).close()
    before = content(directory)
    restart(monkeypatch, b"")
    assert directory.published(NAME) is None
    assert directory.published(NAME, create=True) is None
    assert content(directory) == before


def test_what_is_missing_is_none(directory: FileDirectory, way: str) -> None:
    assert directory.published(NAME) is None
    assert directory.names() == []
    writer = writer_in(directory)
    assert (writer.load(), loaded(directory)) == (None, None)
    writer.close()


@pytest.mark.parametrize("size", [0, 1, 8, 24, 63, 64, 96, 127, 129, 5000])
def test_a_file_of_another_size_is_ignored_and_the_next_writer_replaces_it(
    directory: FileDirectory, way: str, size: int
) -> None:
    writer_in(directory, (7, 1), (8, 1)).close()
    put(directory, content(directory).ljust(size, b"x")[:size])
    assert directory.published(NAME) is None
    writer = writer_in(directory)
    assert writer.load() is None
    writer.store(9, 1)
    assert loaded(directory) == (9, 1)
    assert len(content(directory)) == SIZE
    writer.close()


def test_any_damaged_byte_hides_nothing_after_the_writer_was_closed(directory: FileDirectory, way: str) -> None:
    writer_in(directory, (7, 1), (8, 1)).close()
    whole = content(directory)
    for position in range(SIZE):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        put(directory, bytes(damaged))
        assert loaded(directory) == (None if position < 24 else (8, 1))


def test_any_damaged_byte_leaves_one_of_the_two_last_values_or_none(directory: FileDirectory, way: str) -> None:
    writer = writer_in(directory, (7, 1), (8, 1))
    whole = content(directory)
    writer.close()
    seen = set()
    for position in range(SIZE):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        put(directory, bytes(damaged))
        found = loaded(directory)
        assert found in (None, (7, 1), (8, 1)), f"a flipped bit in byte {position} gave {found}"
        assert (found is None) == (position < 24), "only the head makes all of it worthless"
        seen.add(found)
    assert seen == {None, (7, 1), (8, 1)}


def test_random_bytes_are_none(directory: FileDirectory, way: str) -> None:
    chance = random.Random(5)
    writer_in(directory).close()
    head = content(directory)[:SLOTS_AT]
    for data in (
        bytes(SIZE),
        b"\xff" * SIZE,
        head + b"\xff" * 128,
        *(head + chance.randbytes(128) for _ in range(200)),
    ):
        put(directory, data)
        assert loaded(directory) is None


def test_a_store_that_is_torn_at_any_byte_leaves_the_older_or_the_newer_value(
    directory: FileDirectory, way: str
) -> None:
    """The process is killed in the middle of the write; bytes arrive from the front or from the back."""
    writer = writer_in(directory, (100, 1))
    before = content(directory)
    for old, new in pairwise([(100, 1), (257, 1), (257, 2), (5, 3), (5, 3), ((1 << 62) + 1, 4)]):
        writer.store(*new)
        after = content(directory)
        changed = [position for position in range(SIZE) if before[position] != after[position]]
        assert not changed or changed[-1] - changed[0] < SLOT_BYTES, "only one slot is written"
        for count in range(len(changed) + 1):
            for part in (changed[:count], changed[len(changed) - count :]):
                torn = bytearray(before)
                for position in part:
                    torn[position] = after[position]
                put(directory, bytes(torn))
                assert loaded(directory) == (new if len(part) == len(changed) else old)
                again = writer_in(directory)
                assert again.load() == (new if len(part) == len(changed) else old)
                again.store(77, 7)
                assert loaded(directory) == (77, 7), "the next writer goes on after a torn store"
                again.close()
        put(directory, after)
        before = after
    writer.close()


# --- a file system that refuses


def test_a_write_that_is_refused_leaves_the_numbers_before(
    directory: FileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file is written with `pwrite` and the disk is full, the store has no effect and raises nothing."""
    monkeypatch.setattr(published_module, "maps_safely", lambda fd: False)
    writer = writer_in(directory, (7, 1))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        writer.store(8, 1)
        assert loaded(directory) == (7, 1)
    writer.store(9, 1)
    assert loaded(directory) == (9, 1)
    writer.close()


def test_a_reader_without_write_permission_loads_and_changes_nothing(directory: FileDirectory, way: str) -> None:
    """In a process without write permission; as root, in one that has dropped its privileges."""
    writer = writer_in(directory, (7, 1))
    path = Path(directory.path, NAME)
    path.chmod(0o444)
    Path(directory.path).chmod(0o555)
    before = path.stat()
    try:
        with Elsewhere(Path(directory.path)) as other:
            other.tell("import os; from sawlog.storage import FileDirectory; directory = FileDirectory(place)")
            if way == "written":
                other.tell("from sawlog.storage import published; published.maps_safely = lambda fd: False")
            if os.geteuid() == 0:
                other.tell("os.seteuid(65534)")
            assert other.tell(f"os.access({str(path)!r}, os.W_OK, effective_ids=True)") is False
            other.tell(f"reader = directory.published({NAME!r})")
            assert other.tell("reader.load()") == (7, 1)
            writer.store(8, 1)
            assert other.tell("reader.load()") == (8, 1)
            assert other.tell("directory.published('missing')") is None
            other.tell(
                "from sawlog.errors import StorageError\n"
                "try:\n"
                f"    directory.published({NAME!r}, create=True)\n"
                "except StorageError: refused = True\n"
            )
            assert other.tell("refused")
    finally:
        Path(directory.path).chmod(0o755)
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mode) == (before.st_ino, before.st_size, before.st_mode)
    assert directory.names() == [NAME]
    writer.close()


def test_an_unreadable_file_is_ignored(directory: FileDirectory) -> None:
    """Then readers see every whole batch."""
    writer_in(directory, (7, 1)).close()
    Path(directory.path, NAME).chmod(0)
    with Elsewhere(Path(directory.path)) as other:
        other.tell("import os; from sawlog.storage import FileDirectory; directory = FileDirectory(place)")
        if os.geteuid() == 0:
            other.tell("os.seteuid(65534)")
        assert other.tell(f"directory.published({NAME!r}) is None")


def test_a_symbolic_link_is_not_followed(directory: FileDirectory, tmp_path: Path) -> None:
    elsewhere = FileDirectory(tmp_path / "elsewhere")
    writer_in(elsewhere, (7, 1)).close()
    Path(directory.path, NAME).symlink_to(Path(elsewhere.path, NAME))
    assert directory.published(NAME) is None
    with pytest.raises(StorageError):
        directory.published(NAME, create=True)
    assert loaded(elsewhere) == (7, 1)
    elsewhere.close()


def test_a_directory_of_that_name_is_refused(directory: FileDirectory) -> None:
    Path(directory.path, NAME).mkdir()
    for create in (False, True):
        with pytest.raises(StorageError):
            directory.published(NAME, create=create)


# --- other processes


def test_a_copy_of_the_directory_is_believed_on_the_same_start_of_the_machine(
    directory: FileDirectory, tmp_path: Path
) -> None:
    """So a copy of an open log shows no more than the log did."""
    writer = writer_in(directory, (7, 1))
    shutil.copytree(directory.path, tmp_path / "copy")
    writer.store(8, 1)
    copy = FileDirectory(tmp_path / "copy")
    assert loaded(copy) == (7, 1)
    copy.close()
    writer.close()


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_numbers_stored_by_a_process_that_died_are_believed(directory: FileDirectory, way: str, end: str) -> None:
    with Elsewhere(Path(directory.path)) as other:
        other.tell("import os, signal; from sawlog.storage import FileDirectory, published")
        if way == "written":
            other.tell("published.maps_safely = lambda fd: False")
        other.tell(f"writer = FileDirectory(place).published({NAME!r}, create=True)")
        other.tell("[writer.store(number, 3) for number in range(1000)] and None")
        other.begin(end)
        other.process.wait(60)
    assert loaded(directory) == (999, 3)
    writer = writer_in(directory)
    assert writer.load() == (999, 3)
    writer.store(1000, 4)
    assert loaded(directory) == (1000, 4)
    writer.close()


def test_a_writer_that_is_killed_in_the_middle_of_its_stores_leaves_one_that_it_made(
    directory: FileDirectory, way: str
) -> None:
    latest = 0
    for _ in range(2):
        with Elsewhere(Path(directory.path)) as other:
            other.tell("import itertools; from sawlog.storage import FileDirectory, published")
            if way == "written":
                other.tell("published.maps_safely = lambda fd: False")
            other.tell(f"writer = FileDirectory(place).published({NAME!r}, create=True)")
            other.begin(f"for number in itertools.count({latest + 1}): writer.store(number, number)")
            while (found := loaded(directory)) is None or found[0] < latest + 100:
                pass
            other.kill()
        found = loaded(directory)
        assert found is not None
        assert found[0] == found[1] > latest
        latest = found[0]


@pytest.mark.parametrize("share", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_another_process_loads_a_million_stores_without_a_gap_or_a_step_back(
    directory: FileDirectory, way: str, share: int
) -> None:
    """Values only increase, both numbers belong together, and after the first store a load always succeeds."""
    count = (1_000_000 if way == "mapped" else 100_000) // share
    writer = writer_in(directory, (1, 1))
    with Elsewhere(Path(directory.path)) as other:
        other.tell("from sawlog.storage import FileDirectory, published")
        if way == "written":
            other.tell("published.maps_safely = lambda fd: False")
        other.tell(f"reader = FileDirectory(place).published({NAME!r}); latest = loads = steps = 0; wrong = []")
        other.begin(
            f"while (latest < {count} or steps < 2) and not wrong:\n"
            "    found = reader.load(); loads += 1\n"
            "    if found is None or found[0] != found[1] or found[0] < latest: wrong.append((found, latest))\n"
            "    else: steps += found[0] > latest; latest = found[0]\n"
        )
        for number in itertools.count(2):
            writer.store(number, number)
            # However late the reader starts, it sees values change.
            if number >= count and number % 1000 == 0 and other.has_answered():
                break
        assert other.end() is None
        assert other.tell("wrong") == []
    writer.close()


# --- custom directories


class Foreign:
    """A directory that was written before there was `published`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "published":
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.fixture(params=["files", "memory"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    inner = FileDirectory(tmp_path / "foreign") if request.param == "files" else MemoryDirectory()
    yield Foreign(inner)
    inner.close()


def test_a_directory_that_cannot_publish_does_it_by_replacing(foreign: Any) -> None:
    assert open_published(foreign, NAME) is None
    assert foreign.names() == []
    writer = open_published(foreign, NAME, create=True)
    assert isinstance(writer, PublishedByReplacing)
    assert (writer.load(), loaded(foreign)) == (None, None)
    writer.store(7, 1)
    reader = open_published(foreign, NAME)
    assert reader is not None
    assert reader.load() == (7, 1)
    for numbers in ((8, 1), (8, 1), (3, 2), ((1 << 63) - 1, 3)):
        writer.store(*numbers)
        assert [writer.load(), reader.load(), loaded(foreign)] == [numbers] * 3
    assert foreign.names() == [NAME]
    writer.close()
    again = open_published(foreign, NAME, create=True)
    assert again is not None
    assert again.load() == ((1 << 63) - 1, 3), "what is published stays"
    again.store(9, 4)
    assert reader.load() == (9, 4)


def test_what_is_replaced_is_the_file_that_is_mapped_elsewhere(foreign: Any, directory: FileDirectory) -> None:
    writer = open_published(foreign, NAME, create=True)
    assert writer is not None
    writer.store(7, 1)
    other = writer_in(directory, (7, 1))
    assert foreign.read(NAME) == content(directory)
    other.close()


def test_a_replaced_file_of_another_start_or_damaged_is_none(foreign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_published(foreign, NAME, create=True)
    assert writer is not None
    writer.store(7, 1)
    whole = foreign.read(NAME)
    for data in (b"", whole[:-1], whole + b"x", bytes(len(whole)), whole[:SLOTS_AT] + bytes(64)):
        foreign.replace(NAME, data)
        assert loaded(foreign) is None
    foreign.replace(NAME, whole)
    assert loaded(foreign) == (7, 1)
    restart(monkeypatch)
    assert loaded(foreign) is None


def test_a_foreign_directory_on_a_system_that_does_not_tell_its_start_publishes_nothing(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a boot id, numbers from before a power cut could not be recognised, so none are published."""
    restart(monkeypatch, b"")
    writer = open_published(foreign, NAME, create=True)
    if writer is not None:
        writer.store(7, 1)
    assert loaded(foreign) is None


def test_a_replacement_that_fails_leaves_the_numbers_before(foreign: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_published(foreign, NAME, create=True)
    assert writer is not None
    writer.store(7, 1)

    def refuse(*_: object, **__: object) -> None:
        raise StorageError(5, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(foreign._inner, "replace", refuse)
        writer.store(8, 1)
        assert loaded(foreign) == (7, 1)
    writer.store(9, 1)
    assert loaded(foreign) == (9, 1)


# --- waiting for other numbers


def waits(published: Published, known: tuple[int, int] | None) -> bool:
    """Return whether a reader that knows these numbers would sleep."""
    point = published.wait_point(known)
    assert point is not None
    return not point.has_changed


def test_a_reader_sleeps_until_other_numbers_are_stored(directory: FileDirectory) -> None:
    writer = writer_in(directory, (5, 1))
    reader = directory.published(NAME)
    assert reader is not None
    if reader.wait_point((5, 1)) is None:
        pytest.skip("this file system cannot be written safely through a mapping")
    assert waits(reader, (5, 1))
    assert not waits(reader, (4, 1)), "they were stored before it could wait"
    point = reader.wait_point((5, 1))
    assert point is not None
    writer.store(5, 1)
    assert not point.has_changed
    writer.store(6, 1)
    assert point.has_changed
    assert waits(reader, (6, 1))
    writer.close()


def test_a_reader_in_another_process_is_woken(directory: FileDirectory) -> None:
    writer = writer_in(directory, (1, 1))
    with Elsewhere(Path(directory.path)) as other:
        other.tell("from sawlog.storage import FileDirectory")
        other.tell("from sawlog.storage.words import wait_any")
        other.tell(f"reader = FileDirectory(place).published({NAME!r})")
        if other.tell("reader.wait_point((1, 1)) is None"):
            pytest.skip("this file system cannot be written safely through a mapping")
        for number in range(1, 20):
            other.begin(f"(wait_any([reader.wait_point(({number}, 1))], 60), reader.load())[1]")
            writer.store(number + 1, 1)
            assert other.end() == (number + 1, 1)
    writer.close()


def test_wake_ends_the_wait_of_a_reader_although_nothing_was_stored(directory: FileDirectory) -> None:
    writer = writer_in(directory, (1, 1))
    reader = directory.published(NAME)
    assert reader is not None
    point = reader.wait_point((1, 1))
    if point is None:
        pytest.skip("this file system cannot be written safely through a mapping")
    reader.wake()
    assert point.has_changed
    assert reader.load() == (1, 1)
    writer.close()


def test_a_file_that_is_not_mapped_is_polled(directory: FileDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_module, "maps_safely", lambda fd: False)
    writer = writer_in(directory, (1, 1))
    reader = directory.published(NAME)
    assert reader is not None
    assert reader.wait_point((1, 1)) is None
    reader.wake()
    assert reader.load() == (1, 1)
    writer.close()


def test_a_reader_that_may_not_write_the_file_polls(directory: FileDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_in(directory, (1, 1))
    open_file = os.open

    def refuse(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        if path == NAME and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "open", refuse)
    reader = directory.published(NAME)
    assert reader is not None
    assert reader.wait_point((1, 1)) is None
    assert reader.load() == (1, 1)
    writer.close()
