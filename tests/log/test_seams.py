"""The calls of a log that a server uses: placing without waiting, callbacks, and fetching with a timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from sawlog import Interval, Log, LogConfig
from sawlog.background import Task
from sawlog.batch.build import encode
from sawlog.errors import LogFailed, OffsetOutOfRange
from sawlog.log import open
from sawlog.storage.file import FileDirectory
from sawlog.store.base import Partition

from ..faults.disk import FaultyStorage

RAW = encode([b"one", b"two"])


def settled(log: Log, offset: int) -> Future[None]:
    """A future of `when_settled`."""
    made: Future[None] = Future()

    def call(error: BaseException | None) -> None:
        if error is None:
            made.set_result(None)
        else:
            made.set_exception(error)

    log._when_settled(offset, call)
    return made


def test_a_log_is_a_partition(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log, Log.open(tmp_path, mode="r") as reader:
        assert isinstance(log, Partition)
        assert isinstance(reader, Partition)


def test_what_is_placed_is_settled_later_and_visible_then(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        placed = log.append_batches(RAW, wait=False)
        assert placed == range(2)
        settled(log, placed.stop).result(60)
        assert log.durable_offset == log.visible_offset == 2


def test_many_placements_share_their_syncs(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        appender = log._access.appender
        assert appender is not None
        syncs, sync, placed = [0], appender.active.segment.storage.sync, threading.Event()

        def count() -> None:
            syncs[0] += 1
            assert placed.wait(60)  # a disk that is slower than the placements
            sync()

        appender.active.segment.storage.sync = count  # type: ignore[method-assign]
        futures = [settled(log, log.append_batches(RAW, wait=False).stop) for _ in range(500)]
        placed.set()
        for future in futures:
            future.result(60)
        assert log.durable_offset == 1000
        assert 1 <= syncs[0] <= 2, "the first one, and one for all that came meanwhile"


@pytest.mark.parametrize("durability", ["os", Interval(ms=3_600_000, bytes=1 << 20)], ids=["os", "interval"])
def test_the_callback_comes_at_once_if_the_policy_does_not_wait(tmp_path: Path, durability: object) -> None:
    with Log.open(tmp_path, LogConfig(durability=durability)) as log:  # type: ignore[arg-type]
        assert settled(log, log.append_batches(RAW, wait=False).stop).done()
        assert log.visible_offset == 2


def test_what_cannot_be_made_durable_is_told() -> None:
    disk = FaultyStorage(1)
    log = Log.open(disk.plain)
    log.append(b"before")
    log.append_batches(RAW, wait=False)
    log._fail(OSError("the disk is gone"))
    with pytest.raises(LogFailed):
        settled(log, 3).result(60)


def test_a_fetch_waits_for_bytes(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.append_batches(RAW)
        assert log.fetch(0, min_bytes=10_000, timeout=0.05).next_offset == 2
        threading.Timer(0.05, lambda: log.append(bytes(20_000))).start()
        began = time.monotonic()
        assert log.fetch(0, min_bytes=10_000, timeout=600).next_offset == 3
        assert time.monotonic() - began < 500
        assert log.fetch(3, min_bytes=1, timeout=0.01).size_bytes == 0


def test_a_page_that_is_full_does_not_wait(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.append(bytes(1000))
        log.append(bytes(1000))
        assert log.fetch(0, 1200, min_bytes=50_000, timeout=None).next_offset == 1


def test_a_fetch_that_waits_sees_a_truncation(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        for _ in range(3):
            log.append(b"x")
        threading.Timer(0.05, lambda: log.truncate(1)).start()
        with pytest.raises(OffsetOutOfRange):
            log.fetch(3, min_bytes=1, timeout=30)


def test_those_who_watch_are_called(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        ends: list[int] = []
        segments = log._segment_set
        stop = log._watch(lambda: ends.append(segments.visible_offset))
        log.append(b"one")
        log.append_many([b"two", b"three"])
        assert ends[-1] == 3
        log.truncate(2)
        assert ends[-1] == 2
        stop()
        log.append(b"four")
        assert ends[-1] == 2


def test_those_who_watch_another_process_are_called(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log, Log.open(tmp_path, mode="r") as reader:
        moved = threading.Event()
        reader._watch(moved.set)
        assert moved.wait(60)  # it is looked at for the first time
        moved.clear()
        log.append(b"one")
        assert moved.wait(60)
        assert reader.visible_offset == 1


def test_a_log_may_be_closed_while_the_background_looks_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begun_tasks(monkeypatch)
    with Log.open(tmp_path) as log, Log.open(tmp_path, mode="r") as reader:
        identity = FileDirectory.identity
        closed = []

        def closing(directory: FileDirectory, name: str) -> object:
            reader.close()
            closed.append(name)
            return identity(directory, name)

        reader._watch(lambda: None)
        log.append(b"one")
        monkeypatch.setattr(FileDirectory, "identity", closing)
        assert not begun[-1].run(), "it ends"
        assert closed


def test_those_who_watch_are_called_after_the_lock_was_taken_and_given_up(tmp_path: Path) -> None:
    Log._create(tmp_path)
    with Log.open(tmp_path, mode="a") as log:
        moved = threading.Event()
        log._watch(moved.set)
        log.append(b"one")
        assert moved.is_set()
        log._release()
        moved.clear()
        with Log.open(tmp_path) as other:
            other.append(b"two")
            assert moved.wait(60)
        moved.clear()
        log.append(b"three")
        assert moved.is_set()


def test_watching_again_and_again_costs_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begun_tasks(monkeypatch)
    Log._create(tmp_path)
    with Log.open(tmp_path, mode="r") as log:
        for _ in range(3):
            log._watch(lambda: None)()
        assert len(begun) == 1


def test_a_writer_is_told_of_its_appends_and_looks_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log._create(tmp_path)
    begun = begun_tasks(monkeypatch)
    with Log.open(tmp_path, mode="a") as log:
        log._watch(lambda: None)
        (first,) = looks = [task for task in begun if task.seconds == open._LOOK_S]
        assert not first._cancelled
        log.append(b"one")  # takes the lock
        assert first._cancelled
        log._release()
        assert [task._cancelled for task in begun if task.seconds == open._LOOK_S] == [True, False]
        assert len(looks) == 1
    with Log.open(tmp_path) as log:
        begun.clear()
        log._watch(lambda: None)
        assert not begun


def begun_tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks of the background from now on; none of them is called."""
    begun: list[Task] = []

    def every(seconds: float, method: Callable[[], None]) -> Task:
        begun.append(Task(seconds, method, once=False))
        return begun[-1]

    monkeypatch.setattr(open.background, "every", every)
    return begun
