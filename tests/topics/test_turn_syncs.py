"""Fsyncs of several processes that take turns: side by side, and what a failed one means for the others."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, Topic
from sawlog.errors import LogFailed, SyncFailed
from sawlog.log import appender, turns
from sawlog.log.turns import TurnWords, words_of
from sawlog.storage import FileDirectory
from sawlog.storage.file import FileStorage

from .stores import FilePlace, values

PATIENCE_S = 60.0


class Syncs:
    """Replaces the fsync of single files in a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = FileStorage.sync
        self._instead: dict[int, Callable[[], None]] = {}
        monkeypatch.setattr(FileStorage, "sync", lambda storage: self._sync(storage))

    def _sync(self, storage: FileStorage) -> None:
        self._instead.get(id(storage), lambda: None)()
        self._real(storage)

    def before(self, log: Log, call: Callable[[], None]) -> None:
        """Call this before each fsync of the active segment as this process has it open."""
        known: Any = log._access.appender or log._access.waiting
        self._instead[id(known.active.segment.storage)] = call

    def never(self) -> None:
        """Sync as usual again."""
        self._instead.clear()


class Gate:
    """Stops a thread until it is opened."""

    def __init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._opened.wait(PATIENCE_S)

    def open(self) -> None:
        self._opened.set()


def fails() -> None:
    raise SyncFailed(errno.EIO, "the disk refuses")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    monkeypatch.setattr(appender, "_CONTENTION_S", PATIENCE_S)
    return Syncs(monkeypatch)


@pytest.fixture
def both(file_place: FilePlace, syncs: Syncs) -> tuple[Topic, Topic]:
    """A topic in two stores, each of which has seen the other append."""
    first = file_place.open().create_topic("orders", durability="always")
    second = file_place.open()["orders"]
    for topic in (first, second, first):
        topic.append(b"before")
    return first, second


def words_in(topic: Topic) -> TurnWords:
    found = words_of(FileDirectory(topic.partition(0).path))
    assert found is not None
    return found


def test_a_process_that_waits_for_the_disk_keeps_no_other_from_appending(
    both: tuple[Topic, Topic], syncs: Syncs
) -> None:
    first, second = both
    slow = Gate()
    syncs.before(first.partition(0), slow)
    with ThreadPoolExecutor(1) as thread:
        appended = thread.submit(first.append, b"slow")
        assert slow.reached.wait(PATIENCE_S)
        assert second.append(b"quick").offset == 4
        # Its fsync has covered the whole file, so what the other process has appended is durable and visible, too.
        assert values(second.scan()) == [b"before"] * 3 + [b"slow", b"quick"]
        assert not appended.done()
        slow.open()
        assert appended.result().offset == 3
    assert values(first.scan()) == [b"before"] * 3 + [b"slow", b"quick"]


def test_what_another_process_has_made_durable_needs_no_fsync(both: tuple[Topic, Topic], syncs: Syncs) -> None:
    first, second = both
    log = first.partition(0)
    log._place_many([b"not synced"])
    assert log._end_turn()
    second.append(b"synced")
    syncs.before(log, fails)
    log.sync()
    assert log.durable_offset == 5


def test_no_process_acknowledges_after_a_failed_fsync_before_the_log_is_recovered(
    both: tuple[Topic, Topic], syncs: Syncs
) -> None:
    first, second = both
    generation, slow = words_in(first).generation, Gate()
    syncs.before(second.partition(0), slow)
    with ThreadPoolExecutor(1) as thread:
        appended = thread.submit(second.append, b"slow")
        assert slow.reached.wait(PATIENCE_S)
        syncs.before(first.partition(0), fails)
        with pytest.raises(SyncFailed):
            first.append(b"failed")
        assert words_in(first).has_failed
        slow.open()
        assert appended.result().offset == 3
    assert not words_in(first).has_failed
    assert words_in(first).generation != generation
    with pytest.raises(LogFailed):
        first.append(b"refused")
    syncs.never()
    assert second.append(b"after").offset == 5
    assert values(second.scan()) == [b"before"] * 3 + [b"slow", b"failed", b"after"]


@pytest.mark.parametrize("failed", [False, True])
def test_a_process_that_opens_a_log_waits_for_the_fsyncs_of_others(
    file_place: FilePlace, both: tuple[Topic, Topic], syncs: Syncs, failed: bool
) -> None:
    """A failure that was reported before it opened the file may not be reported to it."""
    first, _ = both
    words = words_in(first)
    generation, slow = words.generation, Gate()

    def end() -> None:
        slow()
        if failed:
            fails()

    syncs.before(first.partition(0), end)
    with ThreadPoolExecutor(2) as threads:
        appended = threads.submit(first.append, b"slow")
        assert slow.reached.wait(PATIENCE_S)
        third = threads.submit(file_place.open()["orders"].append, b"third")
        with pytest.raises(TimeoutError):
            third.result(0.2)
        slow.open()
        assert third.result().offset == 4
        if failed:
            assert isinstance(appended.exception(), SyncFailed)
        else:
            assert appended.result().offset == 3
    assert (words.generation != generation) == failed
    assert values(file_place.open()["orders"].scan()) == [b"before"] * 3 + [b"slow", b"third"]


def test_a_log_is_recovered_if_a_process_was_killed_in_its_fsync(
    file_place: FilePlace, both: tuple[Topic, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_SYNC_TIMEOUT_S", 0.05)
    first, second = both
    words = words_in(first)
    generation = words.generation
    assert words.begin_sync(generation) is not None
    segment = Path(first.partition(0).path) / f"{0:020d}.log"
    before = segment.stat().st_ino
    assert file_place.open()["orders"].append(b"third").offset == 3
    assert (words.generation, segment.stat().st_ino) != (generation, before)
    assert words.await_syncs()
    assert (first.append(b"first").offset, second.append(b"second").offset) == (4, 5)
    assert values(first.scan()) == [b"before"] * 3 + [b"third", b"first", b"second"]


def test_an_end_that_was_truncated_is_not_taken_for_a_durable_one(both: tuple[Topic, Topic], syncs: Syncs) -> None:
    """An older file with the published end may come back: with an offset that this process has written again."""
    first, _ = both
    log = first.partition(0)
    log.truncate(1)
    known: Any = log._access.appender
    log._place_many([b"one", b"two"])
    known.durability._published.store(3, 0)
    syncs.before(log, fails)
    with pytest.raises(SyncFailed):
        log.sync()
    assert log.visible_offset == 1


def test_a_store_that_waits_for_no_turn_gets_one_when_it_is_free(file_place: FilePlace) -> None:
    """Also after it has ended a turn for another process, and after a change that it has to read again."""
    first, second = file_place.open(lock_timeout=0).create_topic("orders"), file_place.open()["orders"]
    first.append(b"one")
    words_in(first).want()
    assert first.partition(0)._end_turn()
    second.append(b"two")
    second.partition(0).truncate(1)
    assert second.partition(0)._end_turn()
    assert first.append(b"three").offset == 1
    assert values(first.scan()) == [b"one", b"three"]
