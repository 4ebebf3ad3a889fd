"""The simulated disk follows its fault model, and makes exactly the system calls of real files."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log
from sawlog.errors import StorageFull, SyncFailed
from sawlog.storage import Directory, FileDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Fault

from ..faults.disk import MODES, FaultyStorage, Mode

POWER_CUTS: list[Mode] = list(MODES)


def found_after(disk: FaultyStorage, mode: Mode, count: int = 40) -> set[tuple[tuple[str, bytes], ...]]:
    """Return all disks that this many power cuts can leave."""
    return {tuple(disk.crash(mode, seed).content().items()) for seed in range(count)}


# --- what is durable


@pytest.mark.parametrize("mode", POWER_CUTS)
def test_what_was_synced_survives_every_power_cut(mode: Mode) -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"x" * 1500)
    file.sync()
    assert disk.is_settled
    assert found_after(disk, mode) == {(("a", b"x" * 1500),)}


def test_what_was_not_synced_is_lost_by_one_power_cut_and_kept_by_another() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"durable ")
    file.sync()
    file.append(b"on its way")
    assert not disk.is_settled
    assert disk.crash("lose").read("a") == b"durable "
    assert disk.crash("keep").read("a") == b"durable on its way"
    assert disk.read("a") == b"durable on its way"


def test_the_sync_of_a_file_says_nothing_about_its_name() -> None:
    disk = FaultyStorage()
    disk.replace("a", b"old")
    disk.replace("b", b"new")
    disk.rename("b", "a")
    disk.open("a").sync()
    assert disk.crash("lose").content() == {"a": b"old", "b": b"new"}
    disk.sync()
    assert disk.crash("lose").content() == {"a": b"new"}


def test_the_sync_of_a_directory_says_nothing_about_the_bytes_in_it() -> None:
    disk = FaultyStorage()
    disk.create("a").append(b"abc")
    disk.sync()
    assert disk.crash("lose").content() == {"a": b""}


def test_replace_without_durability_may_leave_a_name_without_bytes() -> None:
    disk = FaultyStorage()
    disk.replace("a", b"old")
    disk.replace("a", b"new", durable=False)
    assert disk.crash("lose").content() == {"a": b"old"}
    assert (("a", b""),) in found_after(disk, "reorder")


def test_a_move_between_directories_is_one_change() -> None:
    disk = FaultyStorage()
    left, right = disk.child("left", create=True), disk.child("right", create=True)
    left.replace("a", b"abc")
    left.move("a", right, "b")
    wholly_moved, not_moved = (
        {"left/": b"", "right/": b"", "right/b": b"abc"},
        {
            "left/": b"",
            "left/a": b"abc",
            "right/": b"",
        },
    )
    assert found_after(disk, "reorder") == {tuple(wholly_moved.items()), tuple(not_moved.items())}
    left.sync()
    assert disk.crash("lose").content() == wholly_moved


# --- power cuts


def writes(disk: FaultyStorage) -> list[bytes]:
    """Leave three writes pending, of four, three and two sectors."""
    file = disk.create("a")
    made = [bytes([65 + number]) * size for number, size in enumerate((2048, 1536, 1024))]
    for data in made:
        file.append(data)
    return made


def test_prefix_keeps_the_order_and_may_cut_a_write_at_any_byte() -> None:
    disk = FaultyStorage()
    whole = b"".join(writes(disk))
    found = [dict(each)["a"] for each in found_after(disk, "prefix", 200)]
    assert all(whole.startswith(each) for each in found)
    assert any(len(each) % 512 for each in found)
    assert whole in found
    assert any(len(each) < 2048 for each in found)


def test_tear_keeps_whole_sectors_and_leaves_zeros() -> None:
    disk = FaultyStorage()
    whole = b"".join(writes(disk))
    found = [dict(each)["a"] for each in found_after(disk, "tear")]
    for each in found:
        for start in range(0, len(whole), 512):
            assert each[start : start + 512] in (whole[start : start + 512], bytes(512))
    assert any(each.strip(b"\0") != each.replace(b"\0", b"") for each in found), "no hole in the middle"


def test_reorder_lets_a_later_sector_overtake_an_earlier_one_but_not_within_a_sector() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"A" * 200)
    file.append(b"B" * 600)
    found = [dict(each)["a"] for each in found_after(disk, "reorder", 200)]
    assert any(each[512:] == b"B" * 288 and not each[:512].strip(b"\0") for each in found)
    assert not any(each[200:512].strip(b"\0") and not each[:200].strip(b"\0") for each in found)


def test_reorder_may_bring_back_what_was_cut_off() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"stale" * 10)
    file.truncate(0)
    file.append(b"new")
    assert any(b"stale" in dict(each)["a"] for each in found_after(disk, "reorder"))


def test_garbage_stands_only_where_something_was_to_be_written() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"D" * 700)
    file.sync()
    file.append(b"N" * 900)
    found = [dict(each)["a"] for each in found_after(disk, "garbage")]
    assert all(each[:700] == b"D" * 700 for each in found)
    assert any(set(each[700:]) - set(b"N\0") for each in found)


def test_any_subset_of_names_may_have_reached_the_device() -> None:
    disk = FaultyStorage()
    for name in "abc":
        disk.replace(name, name.encode())
    disk.remove("a")
    disk.rename("b", "d")
    disk.rename("c", "b")
    found = {tuple(dict(each)) for each in found_after(disk, "reorder", 300)}
    assert {("a", "b", "c"), ("b", "d"), ("a", "c", "d"), ("b", "c")} <= found
    assert len(found) == 8


def test_the_same_seed_gives_the_same_power_cut() -> None:
    for mode in MODES:
        disks = [FaultyStorage(seed=5), FaultyStorage(seed=5)]
        for disk in disks:
            writes(disk)
            disk.replace("b", b"x" * 2000, durable=False)
        assert disks[0].crash(mode).content() == disks[1].crash(mode).content()
    other = FaultyStorage(seed=6)
    writes(other)
    other.replace("b", b"x" * 2000, durable=False)
    assert any(disks[0].crash(mode).content() != other.crash(mode).content() for mode in MODES)


def test_the_end_of_a_process_loses_nothing_and_makes_nothing_durable() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"abc")
    disk.replace("b", b"x", durable=False)
    held = disk.lock("LOCK")
    found = disk.process_dies()
    assert found.content() == disk.content()
    assert found.crash("lose").content() == {"a": b""}
    found.lock("LOCK")
    assert held.held
    found.open("a").append(b"def")
    assert disk.read("a") == b"abc"
    found.sync()
    assert found.crash("lose").content() == {"LOCK": b"", "a": b"", "b": b""}


# --- calls that fail


def test_what_a_failed_sync_did_not_write_is_lost_though_the_next_one_succeeds() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"one")
    disk.arm(Fault(operations={"sync"}, names="a"))
    with pytest.raises(SyncFailed):
        file.sync()
    file.sync()
    assert not disk.is_settled
    file.append(b"two")
    file.sync()
    assert disk.read("a") == b"onetwo"
    assert disk.process_dies().read("a") == b"onetwo"
    assert disk.crash("keep").read("a") == b"\0\0\0two"


def test_names_whose_sync_failed_stay_in_doubt_until_one_succeeds() -> None:
    disk = FaultyStorage()
    disk.replace("a", b"abc")
    disk.rename("a", "b")
    disk.arm(Fault(operations={"sync"}))
    with pytest.raises(SyncFailed):
        disk.sync()
    assert set(disk.crash("lose").content()) == {"a"}
    assert set(disk.crash("keep").content()) == {"b"}
    disk.sync()
    assert set(disk.crash("lose").content()) == {"b"}


def test_a_durable_replace_whose_last_sync_fails_is_in_doubt() -> None:
    disk = FaultyStorage()
    disk.replace("a", b"old")
    disk.arm(Fault(operations={"replace"}, effect="all"))
    with pytest.raises(SyncFailed):
        disk.replace("a", b"new")
    assert (disk.crash("lose").read("a"), disk.crash("keep").read("a")) == (b"old", b"new")


def test_a_full_disk_takes_a_part_and_gives_it_back() -> None:
    disk = FaultyStorage(capacity_bytes=1000)
    file = disk.create("a")
    file.append(b"x" * 900)
    seen: list[tuple[str, int]] = []
    disk.watch = lambda step: seen.append((step.call, file.size))
    with pytest.raises(StorageFull):
        file.append(b"y" * 200)
    assert seen == [("write", 900), ("truncate", 1000)]
    assert file.size == 900
    with pytest.raises(StorageFull):
        disk.replace("b", b"z" * 200)
    assert set(disk.content()) == {"a"}
    disk.capacity_bytes = None
    assert file.append(b"y" * 200) == 900


def test_reading_fails_when_it_is_told_to() -> None:
    disk = FaultyStorage()
    file = disk.create("a")
    file.append(b"abc")
    disk.arm(Fault(operations={"read", "view"}, errno=errno.EIO, forever=True))
    for call in (lambda: file.read(0, 1), lambda: file.view(0, 1), lambda: disk.read("a")):
        with pytest.raises(OSError, match="Input/output") as raised:
            call()
        assert raised.value.errno == errno.EIO


# --- damage


def test_a_flipped_bit_is_seen_at_once_and_after_a_power_cut() -> None:
    disk = FaultyStorage()
    below = disk.child("d", create=True)
    below.replace("a", b"\x00\x00")
    held = below.open_sealed("a").view(0, 2)
    disk.flip("d/a", 9)
    assert below.read("a") == disk.crash("lose").content()["d/a"] == b"\x00\x40"
    assert bytes(held) == b"\x00\x00"
    with pytest.raises(ValueError, match="16 bits"):
        disk.flip("d/a", 16)


def test_a_misdirected_write_is_right_in_the_cache_and_wrong_on_the_device() -> None:
    disk = FaultyStorage()
    disk.replace("other", b"innocent")
    file = disk.create("a")
    disk.misdirect("a", into="other")
    file.append(b"xyz")
    file.sync()
    assert (disk.read("a"), disk.read("other")) == (b"xyz", b"innocent")
    assert disk.crash("lose").content() == {"a": b"", "other": b"xyzocent"}
    disk.misdirect("a")
    file.append(b"shifted")
    file.sync()
    assert disk.crash("lose").read("a") == bytes(3 + 512) + b"shifted"


# --- as files do it


class Recorded:
    """The system calls of a `FileDirectory` that change something, as steps of the simulated disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self.steps: list[tuple[str, str]] = []
        for name in (
            "open",
            "mkdir",
            "pwrite",
            "write",
            "ftruncate",
            "fdatasync",
            "fsync",
            "rename",
            "unlink",
            "rmdir",
        ):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _path(self, fd: int, name: Any = None) -> str:
        base = os.readlink(f"/proc/self/fd/{fd}")
        path = os.path.relpath(base if name is None else os.path.join(base, name), self.root)
        return "" if path == "." else path

    def _recording(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def recording(*given: Any, **more: Any) -> Any:
            step = getattr(self, f"_{call}")(*given, **more)
            if step is not None:
                self.steps.append(step)
            return real(*given, **more)

        return recording

    def _open(self, name: Any, flags: int, mode: int = 0, *, dir_fd: int | None = None) -> tuple[str, str] | None:
        if dir_fd is None:
            return None
        path = self._path(dir_fd, name)
        there = (self.root / path).exists()
        if flags & os.O_CREAT and not there:
            return "create", path
        return ("truncate", path) if flags & os.O_TRUNC else None

    def _mkdir(self, name: Any, mode: int = 0, *, dir_fd: int | None = None) -> tuple[str, str] | None:
        if dir_fd is None:
            return None
        path = self._path(dir_fd, name)
        return None if (self.root / path).exists() else ("mkdir", path)

    def _pwrite(self, fd: int, data: Any, position: int) -> tuple[str, str]:
        return "write", self._path(fd)

    def _write(self, fd: int, data: Any) -> tuple[str, str] | None:
        return ("write", self._path(fd)) if fd > 2 else None

    def _ftruncate(self, fd: int, size: int) -> tuple[str, str] | None:
        return None if os.fstat(fd).st_size == size else ("truncate", self._path(fd))

    def _fdatasync(self, fd: int) -> tuple[str, str]:
        return "sync", self._path(fd)

    _fsync = _fdatasync

    def _rename(self, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> tuple[str, str]:
        return ("rename" if src_dir_fd == dst_dir_fd else "move"), self._path(src_dir_fd, old)

    def _unlink(self, name: str, *, dir_fd: int) -> tuple[str, str] | None:
        path = self._path(dir_fd, name)
        return ("remove", path) if (self.root / path).exists() else None

    def _rmdir(self, name: str, *, dir_fd: int | None = None) -> tuple[str, str]:
        return "rmdir", (os.path.relpath(name, self.root) if dir_fd is None else self._path(dir_fd, name))


def every_call(directory: Directory) -> None:
    file = directory.create("a")
    file.append(b"x" * 100)
    file.write_at(3, b"abc")
    file.sync()
    file.truncate(50)
    file.close()
    file = directory.open("a")
    file.append(b"more")
    file.close()
    directory.replace("b", b"durable")
    directory.replace("b", b"not so", durable=False)
    directory.replace("empty", b"")
    directory.create("b.tmp").close()
    directory.replace("b", b"over what was left")
    directory.rename("b", "c")
    directory.remove("c")
    directory.remove("never there")
    directory.sync()
    held = directory.lock("LOCK")
    held.leave(b"a note")
    held.release()
    directory.lock("LOCK", alone=False).release()
    below = directory.child("below", create=True)
    directory.child("below", create=True).close()
    below.replace("d", b"x")
    directory.child("other", create=True).close()
    below.move("d", directory, "moved")
    directory.move("moved", below, "d")
    directory.rename("other", "another")
    directory.remove_child("below")
    directory.remove_child("never there")
    directory.child("another").dispose()
    directory.open("a").remove()


def everything_else(directory: Directory) -> None:
    """Run the operations that a log and a store use."""
    with Log.open(directory.child("log", create=True)) as log:
        log.append(b"x")
        log.seal()
        log.append_many([b"y", b"z"])
        log.truncate(2)
        log.trim(1)
        log.append_stream([b"a", b"b"])
    root = directory.child("store", create=True)
    with DirectoryStore.open(root, maintenance_interval_s=None) as store:
        store.create_topic("t", partitions=2)
        store["t"].append(b"v", partition=1)
        store.groups.commit("g", {("t", 1): 1})


@pytest.mark.parametrize("work", [every_call, everything_else])
def test_every_call_makes_the_system_calls_that_files_make(
    work: Callable[[Directory], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyStorage()
    simulated: list[tuple[str, str]] = []
    disk.watch = lambda step: simulated.append((step.call, step.path.removeprefix("disk:").removeprefix("/")))
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
    monkeypatch.setattr("sawlog.log.open.IDLE_S", 1000.0)  # no turn ends by itself
    work(disk)
    files = FileDirectory(tmp_path)
    with monkeypatch.context() as patch:
        recorded = Recorded(patch, tmp_path)
        work(files)
        made = recorded.steps
    files.close()
    assert simulated == made
