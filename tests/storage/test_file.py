"""Storage in files: names on a real file system, short writes, locks, and mappings."""

from __future__ import annotations

import errno
import gc
import io
import os
import stat
from pathlib import Path

import pytest

from sawlog import Log
from sawlog.errors import DirectoryLocked, LogClosed, ReadBeyondEnd, StorageError, StorageFull
from sawlog.storage import FileDirectory, file


def test_directories_on_the_way_are_made(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    directory.create("x").append(b"abc")
    assert (tmp_path / "a" / "b" / "c" / "x").read_bytes() == b"abc"
    directory.close()


def test_using_a_directory_that_another_thread_has_closed_raises(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    directory.create("x").close()
    directory.close()
    for use in (directory.open, directory.open_sealed, directory.read, directory.size, directory.exists):
        with pytest.raises(LogClosed, match="was closed, or deleted, while x was read"):
            use("x")


def test_path_may_be_a_string_or_a_path(tmp_path: Path) -> None:
    for path in (str(tmp_path / "s"), tmp_path / "p"):
        directory = FileDirectory(path)
        assert directory.path == os.fspath(path)
        directory.close()


def test_directory_is_not_made_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        FileDirectory(tmp_path / "missing", create=False)
    assert caught.value.errno == errno.ENOENT
    assert not (tmp_path / "missing").exists()


def test_file_in_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for create in (True, False):
        with pytest.raises(StorageError):
            FileDirectory(tmp_path / "file", create=create)
    with pytest.raises(StorageError):
        FileDirectory(tmp_path / "file" / "below")


def test_directory_follows_its_inode_when_it_is_moved(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    directory.create("x").close()
    assert (tmp_path / "b" / "x").exists()
    directory.close()


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    directory = FileDirectory(tmp_path / "log")
    (tmp_path / "log" / "link").symlink_to(secret)
    assert not directory.exists("link")
    for call in (directory.open, directory.open_shared, directory.open_sealed, directory.read, directory.create):
        with pytest.raises(StorageError):
            call("link")
    directory.replace("link", b"a file of its own")
    assert secret.read_bytes() == b"not yours"
    directory.close()


def test_a_directory_of_that_name_is_no_storage(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    (tmp_path / "sub").mkdir()
    assert not directory.exists("sub")
    with pytest.raises(StorageError):
        directory.open("sub")
    directory.close()


def test_files_obey_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        directory = FileDirectory(tmp_path / "log")
        directory.create("x").close()
        directory.replace("y", b"")
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / "log" / name).stat().st_mode) for name in "xy"} == {0o640}
    directory.close()


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_short_writes_go_on_until_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The system may write fewer bytes than requested, for example because of a signal."""
    real_pwrite, real_write = os.pwrite, os.write
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, memoryview(data)[:step], at))
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, memoryview(data)[:step]))
    directory = FileDirectory(tmp_path)
    storage = directory.create("x")
    data = bytes(range(256)) * 4
    storage.append(data)
    assert storage.append(b"tail") == 1024
    storage.write_at(3, b"HEAD")
    assert storage.read(0, 1028) == data[:3] + b"HEAD" + data[7:] + b"tail"
    directory.replace("y", data)
    assert directory.read("y") == data
    directory.close()


def test_short_reads_go_on_until_all_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = FileDirectory(tmp_path)
    storage = directory.create("x")
    data = bytes(range(256)) * 4
    storage.append(data)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 100), at))
    assert storage.read(0, 1024) == data
    assert storage.view(5, 900) == data[5:905]
    with pytest.raises(ReadBeyondEnd):
        storage.read(1000, 25)
    directory.close()


def test_interrupt_during_an_append_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives between two parts of one append."""
    directory = FileDirectory(tmp_path)
    storage = directory.create("x")
    storage.append(b"kept")
    real, calls = os.pwrite, []

    def pwrite(fd: int, data: bytes, position: int) -> int:
        calls.append(position)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(fd, memoryview(data)[:5], position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(KeyboardInterrupt):
        storage.append(b"x" * 100)
    assert (tmp_path / "x").read_bytes() == b"kept"
    monkeypatch.undo()
    assert storage.append(b"next") == 4
    assert directory.read("x") == b"keptnext"
    directory.close()


@pytest.mark.parametrize("can_be_cut", [True, False])
def test_a_write_that_fails_half_way_leaves_nothing_or_says_that_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_be_cut: bool
) -> None:
    """A full disk: first a short write, then the error."""
    directory = FileDirectory(tmp_path)
    storage = directory.create("x")
    storage.append(b"kept")
    real = os.pwrite

    def pwrite(fd: int, data: bytes, position: int) -> int:
        if position > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, memoryview(data)[:5], position)

    def ftruncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", pwrite)
    if not can_be_cut:
        monkeypatch.setattr(os, "ftruncate", ftruncate)
    with pytest.raises(StorageFull) as found:
        storage.append(b"x" * 100)
    assert found.value.torn is not can_be_cut
    assert (tmp_path / "x").read_bytes() == (b"kept" if can_be_cut else b"keptxxxxx")
    directory.close()


def test_replace_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = FileDirectory(tmp_path)
    directory.replace("x", b"old")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError):
        directory.replace("x", b"new")
    monkeypatch.undo()
    assert directory.read("x") == b"old"
    directory.replace("x", b"new")
    assert directory.names() == ["x"]
    directory.close()


def test_lock_says_who_holds_it(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    held = directory.lock("LOCK")
    with pytest.raises(DirectoryLocked, match=f"process {os.getpid()}") as caught:
        directory.lock("LOCK")
    assert str(os.getpid()) in caught.value.holder
    assert isinstance(caught.value, BlockingIOError)
    held.release()
    assert (tmp_path / "LOCK").exists()
    directory.close()


def test_lock_holds_although_its_file_was_deleted(tmp_path: Path) -> None:
    """A user deletes the lock file. It must not admit a second writer."""
    directory = FileDirectory(tmp_path)
    held = directory.lock("LOCK")
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DirectoryLocked):
        directory.lock("LOCK")
    held.release()
    directory.lock("LOCK").release()
    directory.close()


def test_lock_that_is_refused_leaves_no_descriptor_open(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    held = directory.lock("LOCK")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(DirectoryLocked):
            directory.lock("LOCK")
    assert len(os.listdir("/proc/self/fd")) == before
    held.release()
    directory.close()


# --- mappings of sealed files: RustLog's list for its mapped segments


def test_mapping_has_the_bytes_and_the_length_of_the_file(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    for size in (1, 4095, 4096, 4097, 100_000):
        data = os.urandom(size)
        directory.replace("x", data)
        sealed = directory.open_sealed("x")
        assert sealed.size == size
        assert sealed.view(0, size) == data
    directory.close()


def test_mapping_an_empty_file_works(tmp_path: Path) -> None:
    """RustLog fails here; an empty segment is nothing special for us."""
    directory = FileDirectory(tmp_path)
    directory.create("x").close()
    sealed = directory.open_sealed("x")
    assert sealed.size == 0
    assert bytes(sealed.view(0, 0)) == b""
    with pytest.raises(ReadBeyondEnd):
        sealed.view(0, 1)
    sealed.close()
    directory.close()


def test_mapping_cannot_be_changed(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    directory.replace("x", b"sealed")
    sealed = directory.open_sealed("x")
    view = sealed.view(0, 6)
    with pytest.raises(TypeError):
        view[0] = 0
    with pytest.raises(io.UnsupportedOperation):
        sealed.append(b"more")
    with pytest.raises(io.UnsupportedOperation):
        sealed.write_at(0, b"S")
    with pytest.raises(io.UnsupportedOperation):
        sealed.truncate(0)
    assert directory.read("x") == b"sealed"
    directory.close()


def test_regions_of_one_mapping_share_its_memory(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    data = os.urandom(10_000)
    directory.replace("x", data)
    sealed = directory.open_sealed("x")
    regions = [sealed.view(start, 100) for start in range(0, 10_000, 100)]
    assert b"".join(regions) == data
    assert len({id(region.obj) for region in regions}) == 1
    directory.close()


def test_region_outlives_the_mapping_the_file_and_the_directory(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    directory.replace("x", b"still here")
    sealed = directory.open_sealed("x")
    region = sealed.view(6, 4)
    sealed.remove()
    directory.close()
    del sealed, directory
    assert bytes(region) == b"here"
    assert not (tmp_path / "x").exists()


def test_mapping_gives_its_descriptor_back(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    directory.replace("x", b"abc")
    gc.collect()  # collect the garbage of other tests now, not while we count
    before = len(os.listdir("/proc/self/fd"))
    mappings = [directory.open_sealed("x") for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) <= before + len(mappings)
    del mappings
    assert len(os.listdir("/proc/self/fd")) == before
    directory.close()


def test_a_directory_without_owner_releases_its_descriptor(tmp_path: Path) -> None:
    directory = FileDirectory(tmp_path)
    below = directory.child("below", create=True)
    fds = directory.fd, below.fd
    del directory, below
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_directory_that_could_not_be_opened_goes_quietly(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        FileDirectory(tmp_path / "missing", create=False)


def test_a_record_is_read_while_another_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts an append as part of the file before it writes it. A reader may map the file at that moment."""
    monkeypatch.setattr(file, "_REMAP_BYTES", 1)
    write, found = os.pwrite, []
    with Log.open(tmp_path) as log:
        log.append(b"first")

        def read_and_write(fd: int, data: bytes, position: int) -> int:
            found.append(log.read(0).value)
            return write(fd, data, position)

        with monkeypatch.context() as writing:
            writing.setattr(os, "pwrite", read_and_write)
            log.append(b"second")
        assert [record.value for record in log] == [b"first", b"second"]
    assert set(found) == {b"first"}
