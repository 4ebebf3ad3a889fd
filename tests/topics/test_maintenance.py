"""Maintenance of a whole store: due work is done, also on idle logs and after a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sawlog.errors import DirectoryLocked, LogClosed
from sawlog.log import rewrite
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.topic import DirectoryTopic

from ..looping import for_each
from .stores import FilePlace, StorePlace

DAY_MS = 86_400_000
PATIENCE_S = 60.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def filled(store: DirectoryStore, name: str, *, age_ms: int = 0, count: int = 60, **settings: object) -> DirectoryTopic:
    """A topic with that many records under three keys, in small segments, written so long ago."""
    topic = store.create_topic(name, partitions=2, segment_bytes=400, **settings)
    for number in range(count):
        topic.append(b"value %d" % number, key=b"key %d" % (number % 3), timestamp=now_ms() - age_ms)
    return topic


# --- on demand


def test_retention_drops_old_records_of_an_idle_log_after_a_restart(place: StorePlace) -> None:
    with place.open() as store:
        filled(store, "old", age_ms=3 * DAY_MS, retention_ms=2 * DAY_MS)
        filled(store, "young", age_ms=DAY_MS, retention_ms=2 * DAY_MS)
    with place.open() as store:
        ends = {number: each.next for number, each in store.topic("old").offsets().items()}
        store.maintain()
        assert list(store.topic("old").scan()) == []
        assert {number: each.next for number, each in store.topic("old").offsets().items()} == ends
        assert len(list(store.topic("young").scan())) == 60


def test_retention_by_size_works_on_an_idle_log(place: StorePlace) -> None:
    with place.open() as store:
        filled(store, "topic", retention_bytes=800)
    with place.open() as store:
        before = store.topic("topic").describe().size_bytes
        store.maintain()
        left = store.topic("topic").describe()
        assert left.size_bytes < before
        assert all(row.size_bytes >= 800 for row in left.rows if row.records)


def test_compaction_keeps_the_last_record_of_every_key(place: StorePlace) -> None:
    with place.open() as store:
        filled(store, "topic", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        topic = store.topic("topic")
        last = {record.key: record.value for record in topic.scan()}
        for number in range(topic.partitions):
            topic.partition(number).seal()
        reports = store.maintain()
        assert sum(report.compaction.records_removed for report in reports if report.compaction) == 60 - 3
        assert {record.key: record.value for record in topic.scan()} == last
        assert len(list(topic.scan())) == 3


def test_maintenance_that_has_nothing_to_do_writes_nothing(file_place: FilePlace) -> None:
    with file_place.open() as store:
        filled(store, "topic", retention_ms=DAY_MS)
    before = _state(Path(file_place.path))
    with file_place.open() as store:
        assert not any(store.maintain())
    assert _state(Path(file_place.path)) == before


def _state(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_small_segments_of_an_idle_log_are_merged(place: StorePlace) -> None:
    with place.open() as store:
        filled(store, "topic")
        store.alter_topic("topic", segment_bytes=1 << 20)
        before = list(store.topic("topic").scan())
    with place.open() as store:
        reports = store.maintain()
        assert sum(report.merge.segments_before for report in reports if report.merge) > 4
        assert list(store.topic("topic").scan()) == before
        assert all(row.segments <= 3 for row in store.topic("topic").describe().rows)


def test_old_segments_are_packed_and_read_the_same(place: StorePlace) -> None:
    with place.open() as store:
        topic = store.create_topic("topic", recompress_after_ms=DAY_MS, segment_bytes=20_000)
        for number in range(300):
            topic.append(b"the same text again and again, number %d" % number, timestamp=now_ms() - 2 * DAY_MS)
        before = list(topic.scan())
        [report] = store.maintain()
        assert report.recompression is not None
        assert report.recompression.bytes_after < report.recompression.bytes_before / 2
        assert list(topic.scan()) == before
        assert topic.partition(0).verify()


def test_scrubbing_finds_a_flipped_bit_and_says_where(file_place: FilePlace) -> None:
    with file_place.open() as store:
        filled(store, "topic", scrub_interval_ms=DAY_MS)
        assert all(report.scrub and report.scrub.ok for report in store.maintain())
        assert not any(store.maintain()), "scrubbed a moment ago"
    victim = sorted(Path(file_place.path).glob("topics/topic/partition-0/*.log"))[1]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 8
    victim.write_bytes(content)
    for state in Path(file_place.path).glob("topics/topic/*/maintenance"):
        state.unlink()
    with file_place.open() as store:
        problems = [problem for report in store.maintain() if report.scrub for problem in report.scrub.problems]
        assert [Path(problem.path).name for problem in problems] == [victim.name]


def test_a_partition_that_another_store_writes_is_left_to_it(place: StorePlace) -> None:
    with place.open() as store, place.open() as other:
        topic = filled(store, "topic", age_ms=3 * DAY_MS, retention_ms=DAY_MS)
        with topic.partition(0)._hold(), topic.partition(1)._hold():
            assert other.maintain() == []
        assert len(list(other.topic("topic").scan())) == 60
        store.maintain()
        assert list(other.topic("topic").scan()) == []


# --- in the background


def test_the_background_does_what_is_due(place: StorePlace, caplog: pytest.LogCaptureFixture) -> None:
    with place.open() as store:
        filled(store, "topic", age_ms=3 * DAY_MS, retention_ms=DAY_MS)
    caplog.set_level(logging.INFO, "sawlog.maintenance")
    with DirectoryStore.open(place.directory(), maintenance_interval_s=0.05) as store:
        wait_until(lambda: store.topic("topic").describe().records == 0)
        wait_until(lambda: "partition-0" in caplog.text and "partition-1" in caplog.text)


def test_the_background_goes_on_after_a_failure(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[int] = []

    def failing(self: DirectoryStore) -> list[object]:
        failures.append(1)
        raise DirectoryLocked("somewhere")

    monkeypatch.setattr(DirectoryStore, "maintain", failing)
    with DirectoryStore.open(place.directory(), maintenance_interval_s=0.02):
        wait_until(lambda: len(failures) >= 3)


def test_closing_a_store_ends_a_compaction_that_is_going_on(
    file_place: FilePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing interrupts the compaction. The next open removes what it leaves behind."""
    begun, go_on = threading.Event(), threading.Event()
    chunks_of = rewrite.chunks_of

    def slowly(*arguments: Any) -> object:
        for chunk in chunks_of(*arguments):
            begun.set()
            assert go_on.wait(PATIENCE_S)
            yield chunk

    with file_place.open() as store:
        filled(store, "topic", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        before = list(store.topic("topic").scan())
    monkeypatch.setattr(rewrite, "chunks_of", slowly)
    store = DirectoryStore.open(file_place.directory(), maintenance_interval_s=0.02)
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=store.close)
    closing.start()
    go_on.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    with file_place.open() as store:
        last = {record.key: record for record in before}
        assert set(last.values()) <= set(store.topic("topic").scan())
    with pytest.raises(LogClosed):
        store.maintain()


def test_nobody_waits_for_maintenance_in_another_store_to_write(
    file_place: FilePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    chunks_of = rewrite.chunks_of

    def slowly(*arguments: Any) -> object:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        yield from chunks_of(*arguments)

    with file_place.open() as store:
        filled(store, "topic", cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    monkeypatch.setattr(rewrite, "chunks_of", slowly)
    with file_place.open() as tending, file_place.open() as writing:
        maintenance = threading.Thread(target=tending.maintain)
        maintenance.start()
        assert begun.wait(PATIENCE_S)
        before = [writing.topic("topic").partition(number).next_offset for number in range(2)]
        for number in range(2):
            assert writing.topic("topic").append(b"new", key=b"key 0", partition=number) == (number, before[number])
        assert writing.topic("topic")._partitions.maintain(0) is None, "one process at a time"
        go_on.set()
        maintenance.join(PATIENCE_S)
        for number in range(2):
            log = writing.topic("topic").partition(number)
            assert log.append(b"newer", b"key 0") == before[number] + 1
            assert [record.value for record in log.scan() if record.key == b"key 0"][-2:] == [b"new", b"newer"]
            assert len(list(log.scan())) < before[number], "compacted"


@for_each("interval", [0, -1, True, "often"])
def test_an_interval_that_cannot_be_is_refused(place: StorePlace, interval: object) -> None:
    with pytest.raises(ValueError, match="maintenance_interval_s"):
        DirectoryStore.open(place.directory(), maintenance_interval_s=interval)  # type: ignore[arg-type]
