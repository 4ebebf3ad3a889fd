"""durable_offset <= visible_offset <= written_offset <= next_offset, at all times and for every policy.

And what each policy promises.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sawlog import Interval, Log, LogConfig, Producer
from sawlog.batch.build import encode
from sawlog.errors import InvalidConfig
from sawlog.storage import MemoryDirectory, MemoryStorage

from ..places import Place, eventually, fill

POLICIES = ["always", Interval(ms=5, bytes=1000), "os"]


def hold(log: Log) -> None:
    durable, visible, written = log.durable_offset, log.visible_offset, log.written_offset
    assert log.lowest_offset <= durable <= visible <= written <= log.next_offset
    assert visible == (durable if log.config.durability == "always" else written)


@pytest.mark.parametrize("policy", POLICIES, ids=["always", "interval", "os"])
def test_watermarks_are_in_order_after_every_operation(place: Place, policy: Any) -> None:
    log = place.open(LogConfig(durability=policy, segment_bytes=1000))
    operations = [
        lambda: log.append(b"x" * 100),
        lambda: log.append_many([b"y"] * 5),
        lambda: log.append_stream([b"z" * 50] * 3),
        lambda: log.append_batches(encode([b"a"]) * 4),
        lambda: log.seal(),
        lambda: log.append(b"x" * 100),
        lambda: log.truncate(log.next_offset - 3),
        lambda: log.append(b"x" * 700),
        lambda: log.append(b"x" * 700),
        lambda: log.truncate(log.lowest_offset + 2),
        lambda: log.trim(log.next_offset),
        lambda: log.append_many([b"y"] * 5),
        lambda: log.remove_expired(0),
        lambda: log.append(b"x"),
        lambda: log.sync(),
    ]
    hold(log)
    for _ in range(3):
        for operation in operations:
            operation()
            hold(log)
    with log.writer() as writer:
        for _ in range(100):
            writer.append(b"x" * 50)
            hold(log)
    log.sync()
    assert log.durable_offset == log.next_offset
    log.close()
    log = place.open(LogConfig(durability=policy))
    assert log.durable_offset == log.next_offset


@pytest.mark.parametrize("policy", POLICIES, ids=["always", "interval", "os"])
def test_watermarks_are_in_order_for_those_who_watch(place: Place, policy: Any) -> None:
    log = place.open(LogConfig(durability=policy, segment_bytes=5000))
    wrong: list[tuple[int, ...]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            found = log.durable_offset, log.visible_offset, log.written_offset, log.next_offset
            if list(found) != sorted(found):
                wrong.append(found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for i in range(200):
            log.append(b"x" * 50)
            if i % 50 == 49:
                log.trim(log.next_offset - 20)
    finally:
        stop.set()
        watcher.join()
    assert wrong == []


def test_always_means_durable_before_the_append_returns(place: Place) -> None:
    log = place.open(LogConfig(durability="always"))
    for i in range(3):
        assert log.append(b"x") + 1 == log.durable_offset == log.next_offset
        assert log.append_many([b"x", b"y"]).stop == log.durable_offset
        assert log.append_stream([b"x"]) + 1 == log.durable_offset
        assert log.append_batches(encode([b"x"])).stop == log.durable_offset
        assert asyncio.run(log.append_async(b"x")) + 1 == log.durable_offset
        with log.writer() as writer:
            writer.append(b"x")
            assert writer.flush().stop == log.durable_offset
        if i:
            log.seal()


def test_os_leaves_it_to_the_system_until_it_is_asked(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    assert (log.durable_offset, log.written_offset) == (0, 5)
    log.sync()
    assert log.durable_offset == 5
    fill(log, 5)
    log.seal()
    assert log.durable_offset == 10


def test_interval_syncs_after_a_while(place: Place) -> None:
    log = place.open(LogConfig(durability=Interval(ms=1, bytes=10**9)))
    fill(log, 5)
    assert log.written_offset == 5
    assert eventually(lambda: log.durable_offset == 5)
    log.append(b"x")
    assert eventually(lambda: log.durable_offset == 6)


def test_interval_syncs_when_enough_bytes_were_written(place: Place) -> None:
    log = place.open(LogConfig(durability=Interval(ms=3_600_000, bytes=1000)))
    log.append(b"x" * 500)
    assert log.durable_offset == 0
    log.append(b"x" * 500)
    assert log.durable_offset == 2
    log.append(b"x" * 10)
    assert log.durable_offset == 2
    log.append_stream([b"x" * 2000])
    assert log.durable_offset == 4
    log.append_batches(encode([b"x" * 2000]))
    assert log.durable_offset == 5


class _CountingStorage(MemoryStorage):
    syncs = 0

    def sync(self) -> None:
        _CountingStorage.syncs += 1
        super().sync()


class _CountingDirectory(MemoryDirectory):
    def create(self, name: str) -> Any:
        super().create(name)
        self._files[name] = _CountingStorage(self, name)
        return self._files[name]


def test_os_never_syncs_an_append_and_always_syncs_each() -> None:
    for policy, expected in (("os", 0), ("always", 10)):
        log = Log.open(_CountingDirectory(), LogConfig(durability=policy))  # type: ignore[arg-type]
        _CountingStorage.syncs = 0
        fill(log, 10)
        assert _CountingStorage.syncs == expected
        log.close()


def test_appends_that_wait_together_share_a_sync() -> None:
    """Group commit: while one sync runs, the others queue up and share the next."""
    running = threading.Event()
    go_on = threading.Event()

    class Slow(_CountingStorage):
        def sync(self) -> None:
            running.set()
            assert go_on.wait(60)
            super().sync()

    class Directory(MemoryDirectory):
        def create(self, name: str) -> Any:
            super().create(name)
            self._files[name] = Slow(self, name)
            return self._files[name]

    log = Log.open(Directory(), LogConfig(durability="always"))
    _CountingStorage.syncs = 0
    threads = [threading.Thread(target=log.append, args=(b"x",)) for _ in range(20)]
    threads[0].start()
    assert running.wait(60)
    for thread in threads[1:]:
        thread.start()
    assert eventually(lambda: log.next_offset == 20)
    assert log.durable_offset == 0
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert log.durable_offset == 20
    assert 2 <= _CountingStorage.syncs <= 3
    log.close()


def test_retry_of_a_batch_is_acknowledged_no_earlier_than_the_first() -> None:
    """A duplicate is answered from memory, but only once the batch that it repeats is durable."""
    running, go_on = threading.Event(), threading.Event()

    class Slow(MemoryStorage):
        def sync(self) -> None:
            running.set()
            assert go_on.wait(60)
            super().sync()

    class Directory(MemoryDirectory):
        def create(self, name: str) -> Any:
            super().create(name)
            self._files[name] = Slow(self, name)
            return self._files[name]

    batch = encode([b"a"] * 3, producer=Producer(7, 0, 0))
    retries: tuple[Callable[[Log], range], ...] = (
        lambda log: log.append_batches(batch),
        lambda log: log.append_many([b"a"] * 3, producer=Producer(7, 0, 0)),
    )
    answers: list[tuple[range, int]] = []

    def try_again(log: Log, retry: Callable[[Log], range]) -> None:
        answers.append((retry(log), log.durable_offset))

    for retry in retries:
        answers.clear()
        running.clear()
        go_on.clear()
        log = Log.open(Directory(), LogConfig(durability="always"))
        first = threading.Thread(target=log.append_batches, args=(batch,))
        first.start()
        assert running.wait(60)
        again = threading.Thread(target=try_again, args=(log, retry))
        again.start()
        again.join(0.05)
        assert not answers
        assert log.durable_offset == 0
        go_on.set()
        first.join(60)
        again.join(60)
        assert answers == [(range(3), 3)]
        log.close()


@pytest.mark.parametrize("policy", ["never", "", None, 5, "ALWAYS", Interval])
def test_unknown_policy_is_refused(policy: Any) -> None:
    with pytest.raises(InvalidConfig, match="durability"):
        LogConfig(durability=policy)


@pytest.mark.parametrize("arguments", [{"ms": 0}, {"ms": -1}, {"bytes": 0}, {"ms": 1.5}, {"ms": True}, {"bytes": "1"}])
def test_interval_is_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Interval(**arguments)


def test_watermark_is_noted_on_disk_while_the_log_is_written_to(place: Place) -> None:
    """At least every `checkpoint_interval_ms`, even if no append follows."""
    log = place.open(LogConfig(durability="always", checkpoint_interval_ms=5))
    log.append(b"x")
    assert eventually(lambda: b'"durable_offset": 1,' in place.files()["checkpoint"])
    log.append(b"x")
    assert eventually(lambda: b'"durable_offset": 2,' in place.files()["checkpoint"])
    assert b'"clean": false' in place.files()["checkpoint"]
    log.close()
    assert b'"clean": true' in place.files()["checkpoint"]


def test_noted_watermark_is_never_ahead_of_what_is_durable(place: Place) -> None:
    """It may be older than the true watermark but never newer, because recovery does not verify records below it."""
    log = place.open(LogConfig(durability="os", checkpoint_interval_ms=1, segment_bytes=2000))
    import json

    def noted() -> int:
        return int(json.loads(place.files()["checkpoint"].splitlines()[1])["durable_offset"])

    for i in range(60):
        log.append(b"x" * 100)
        assert noted() <= log.durable_offset
        if i == 30:
            log.truncate(10)
            assert noted() <= 10
