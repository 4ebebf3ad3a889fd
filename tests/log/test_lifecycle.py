"""Opening, closing, locking, sealing and removing a log, and the files that remain."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.errors import DirectoryLocked, InvalidConfig, LogClosed, LogNotFound, SawlogError, StorageError

from .places import INDEX, LOG, TIME_INDEX, FilePlace, Place, fill, named, values


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_new_log_has_these_files(place: Place) -> None:
    log = place.open()
    assert place.names() == [named(0), "checkpoint", "visible"]
    log.append(b"x")
    assert place.names() == [named(0), "checkpoint", "visible"]
    log.close()
    segment = [named(0, INDEX), named(0, LOG), named(0, TIME_INDEX)]
    assert place.names() == [*segment, "checkpoint", "producers", "visible"]


def test_closed_log_opens_as_it_was(place: Place) -> None:
    log = place.open(segment_bytes=500, compression="gzip")
    for i in range(30):
        log.append(b"%d" % i, b"k%d" % i, [("h", b"%d" % i)])
    records, infos, size = list(log), log.segments, log.size_bytes
    log.close()
    log = place.open()
    assert list(log) == records
    assert log.size_bytes == size
    assert [(s.base_offset, s.next_offset, s.size_bytes, s.sealed) for s in log.segments] == [
        (s.base_offset, s.next_offset, s.size_bytes, s.sealed) for s in infos
    ]
    assert log.recovery.clean
    assert log.recovery
    assert log.recovery.findings == []


@pytest.mark.parametrize("count", [0, 1, 25])
def test_opening_and_closing_changes_no_byte(place: Place, count: int) -> None:
    log = place.open(segment_bytes=700, index_interval_bytes=100)
    fill(log, count)
    log.close()
    before = place.files()
    for _ in range(3):
        place.open(segment_bytes=700, index_interval_bytes=100).close()
        assert place.files() == before


def test_index_of_the_active_segment_is_not_kept_while_it_grows(place: Place) -> None:
    """A stale one must not outlive a crash."""
    log = place.open(index_interval_bytes=0)
    fill(log, 10)
    log.close()
    assert named(0, INDEX) in place.names()
    log = place.open(index_interval_bytes=0)
    assert named(0, INDEX) not in place.names()
    assert named(0, TIME_INDEX) not in place.names()
    assert [log.read(i).offset for i in range(10)] == list(range(10))


def test_close_can_be_repeated_and_with_closes(place: Place) -> None:
    with place.open() as log:
        log.append(b"x")
    log.close()
    log.close()
    with pytest.raises(LogClosed):
        log.append(b"y")
    assert values(place.open()) == [b"x"]


def test_with_closes_after_an_exception(place: Place) -> None:
    def fail() -> None:
        with place.open() as log:
            log.append(b"x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert place.open().recovery.clean


def test_attributes_can_be_read_after_close(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    log.close()
    assert log.path
    assert log.config.durability == "os"
    assert not log._is_writable
    assert "closed" in repr(log)


# --- one writer


def test_second_writer_is_refused_until_the_first_is_closed(place: Place) -> None:
    first = place.open()
    with pytest.raises(DirectoryLocked) as caught:
        place.open()
    assert caught.value.path == first.path
    first.append(b"still mine")
    first.close()
    second = place.open()
    assert values(second) == [b"still mine"]


def test_lock_is_free_after_an_open_that_failed(place: Place) -> None:
    log = place.open(initial_offset=5)
    log.append(b"x")
    log.close()
    for _ in range(2):
        with pytest.raises(InvalidConfig):
            place.open(initial_offset=6)
    assert values(place.open()) == [b"x"]


def test_lock_is_free_after_a_close_that_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that cannot be flushed must not keep the directory forever."""
    log = place.open()
    log.append(b"kept")
    writer = log.writer()
    writer.append(b"lost")

    def full(*_: Any, **__: Any) -> Any:
        raise StorageError(28, "no space left")

    monkeypatch.setattr(log._access.appender, "place", full)
    with pytest.raises(StorageError):
        log.close()
    log.close()
    assert values(place.open()) == [b"kept"]


@pytest.mark.slow
def test_opens_that_fail_leave_no_descriptor(file_place: FilePlace, tmp_path: Path) -> None:
    log = file_place.open()
    before = descriptors()
    for _ in range(5):
        with pytest.raises(DirectoryLocked):
            file_place.open()
    assert descriptors() == before
    log.close()
    (tmp_path / "empty").mkdir()
    before = descriptors()
    for _ in range(5):
        with pytest.raises(LogNotFound):
            Log.open(tmp_path / "empty", mode="r")
        with pytest.raises(LogNotFound):
            Log.open(tmp_path / "missing", mode="r")
        with pytest.raises(InvalidConfig):
            file_place.open(mode="x")
        with pytest.raises(InvalidConfig):
            file_place.open(initial_offset=99)
    assert descriptors() == before


@pytest.mark.parametrize("clean", [True, False])
def test_opening_and_closing_leaves_no_descriptor(file_place: FilePlace, clean: bool) -> None:
    log = file_place.open(segment_bytes=500)
    fill(log, 30)
    if clean:
        log.close()
    before = descriptors()
    for _ in range(4):
        again = file_place if clean else file_place.copy()
        log = again.open()
        list(log)
        log.truncate(log.next_offset - 5)
        log.append_stream([b"x"])
        log.seal()
        log.trim(log.next_offset)
        fill(log, 10)
        log.close()
        del log
        again.logs.clear()
    assert descriptors() == before


def test_reader_beside_a_busy_writer_leaks_no_descriptor(file_place: FilePlace) -> None:
    log = file_place.open()
    log.append(b"x")
    beside = file_place.open(mode="r", max_mapped_segments=2)
    len(beside)
    before = descriptors()
    for i in range(20):
        log.append(b"x")
        log.seal()
        assert len(list(beside.scan(i))) == 2
    log.truncate(5)
    log.append(b"x")
    assert len(beside) == 6
    assert descriptors() <= before + 6


def test_number_of_open_files_does_not_grow_with_the_segments(file_place: FilePlace) -> None:
    log = file_place.open(max_mapped_segments=3)
    for _ in range(30):
        log.append(b"x")
        log.seal()
    before = descriptors()
    list(log)
    log.verify()
    log.offset_at(0)
    assert descriptors() <= before + 3


# --- reading only


def test_reader_of_nothing_is_refused(file_place: FilePlace, tmp_path: Path) -> None:
    with pytest.raises(LogNotFound) as caught:
        Log.open(tmp_path / "nowhere", mode="r")
    assert isinstance(caught.value, FileNotFoundError)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogNotFound):
        Log.open(tmp_path / "empty", mode="r")
    assert list((tmp_path / "empty").iterdir()) == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        Log.open(tmp_path / "file", mode="r")


@pytest.mark.parametrize("mode", ["x", "rw", "", None, 0])
def test_unknown_mode_is_refused(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(InvalidConfig, match="mode"):
        Log.open(tmp_path / "log", mode=mode)
    assert not (tmp_path / "log").exists()


def test_path_may_be_a_string(tmp_path: Path) -> None:
    with Log.open(str(tmp_path / "log"), LogConfig(durability="os")) as log:
        log.append(b"x")
        assert log.path == str(tmp_path / "log")


def test_paths_with_strange_characters_work(tmp_path: Path) -> None:
    path = tmp_path / "ein Löwe %s {x} \n"
    with Log.open(path, LogConfig(durability="os")) as log:
        log.append(b"x")
    with Log.open(path, mode="r") as log:
        assert values(log) == [b"x"]


def test_log_follows_its_directory_when_that_is_moved(file_place: FilePlace, tmp_path: Path) -> None:
    log = file_place.open(segment_bytes=300)
    fill(log, 5)
    file_place.path.rename(tmp_path / "moved")
    expected = values(log) + fill(log, 5, start=5)
    log.close()
    with Log.open(tmp_path / "moved", LogConfig(durability="os")) as again:
        assert values(again) == expected
    file_place.logs.clear()


# --- seal


def test_seal_starts_a_new_segment_and_syncs_the_old_one(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    log.seal()
    assert [(s.base_offset, s.next_offset, s.sealed) for s in log.segments] == [(0, 3, True), (3, 3, False)]
    assert {named(0, INDEX), named(0, TIME_INDEX), named(3)} <= set(place.names())
    assert log.durable_offset == 3
    assert log.append(b"x") == 3


def test_seal_of_nothing_does_nothing(place: Place) -> None:
    log = place.open()
    for _ in range(3):
        log.seal()
    assert len(log.segments) == 1
    log.append(b"x")
    for _ in range(3):
        log.seal()
    assert [s.base_offset for s in log.segments] == [0, 1]


def test_segments_describe_themselves(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    log.seal()
    fill(log, 2)
    first, second = log.segments
    assert (first.base_offset, first.next_offset, first.sealed) == (0, 3, True)
    assert (second.base_offset, second.next_offset, second.sealed, second.mapped) == (3, 5, False, True)
    assert first.size_bytes == len(place.files()[named(0)])
    assert first.path.endswith(named(0))
    assert log.size_bytes == first.size_bytes + second.size_bytes


# --- remove


def test_remove_deletes_everything_of_ours(place: Place) -> None:
    log = place.open(segment_bytes=300)
    fill(log, 20)
    with log.writer() as writer:
        writer.append(b"x")
    log.remove()
    assert place.files() == {}
    if isinstance(place, FilePlace):
        assert not place.path.exists()
    with pytest.raises(LogClosed):
        log.append(b"x")
    log.close()


def test_remove_takes_torn_tails_and_leftovers_along(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    torn = place.copy()
    torn.extend(named(0), b"torn")
    torn.write(named(7) + ".tmp", b"x")
    torn.write(named(7) + ".deleted", b"x")
    torn.write(named(7) + ".quarantined", b"x")
    again = torn.open()
    assert named(0) + ".torn" in torn.names()
    again.remove()
    assert torn.files() == {}


def test_log_can_be_made_again_where_one_was_removed(place: Place) -> None:
    for start in (0, 10):
        log = place.open(initial_offset=start)
        assert log.append(b"x") == start
        log.remove()


# --- in memory


def test_log_in_memory_works_like_any_other() -> None:
    with Log.in_memory() as log:
        assert log.append(b"x") == 0
        assert log.durable_offset == 1
        log.append_batches(encode([b"y"]))
        assert values(log) == [b"x", b"y"]
        assert log.path == "memory:"
    with Log.in_memory(LogConfig(initial_offset=9)) as log:
        assert log.append(b"x") == 9


def test_logs_in_memory_are_separate() -> None:
    one, two = Log.in_memory(), Log.in_memory()
    one.append(b"x")
    assert len(two) == 0


@pytest.mark.alternating
def test_interpreter_ends_although_logs_are_open(tmp_path: Path) -> None:
    """The background thread must not keep a process alive, nor the data away from the next one."""
    code = (
        "import sys; from sawlog import Log, LogConfig, Interval\n"
        "log = Log.open(sys.argv[1], LogConfig(durability=Interval(1)))\n"
        "writer = log.writer(linger_ms=1)\n"
        "log.append(b'x')\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "log")], check=True, timeout=60)
    with Log.open(tmp_path / "log", LogConfig(durability="os")) as log:
        assert values(log) == [b"x"]


def test_every_error_is_a_sawlog_error(place: Place) -> None:
    log = place.open()
    for call in (lambda: log.read(5), lambda: log.append("x"), lambda: log.truncate(9), lambda: log.scan(9)):  # type: ignore[arg-type]
        with pytest.raises(SawlogError):
            call()


def test_a_log_among_the_topics_of_a_store_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """The log would look like a damaged topic. An existing partition is a log, and readers are harmless."""
    with sawlog.open(tmp_path / "data") as store:
        store.create_topic("orders").append(b"one")
    topics = tmp_path / "data" / "topics"
    for path in (
        topics,
        topics / "mine",
        topics / "orders",
        topics / "orders" / "partition-7",
        topics / "a" / "b" / "c",
    ):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(InvalidConfig, match=r"use sawlog\.open"):
            Log.open(path)
        with pytest.raises(InvalidConfig, match=r"use sawlog\.open"):
            Log._create(path)
        assert sorted(tmp_path.rglob("*")) == before
    with Log.open(topics / "orders" / "partition-0") as log:
        assert log.append(b"two") == 1
    with Log.open(topics / "orders" / "partition-0", mode="r") as log:
        assert len(log) == 2
    Log.open(tmp_path / "topics" / "mine").close()  # not of a store
