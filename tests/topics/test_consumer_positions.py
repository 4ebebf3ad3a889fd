"""Positions of consumers: the start, continuing, and positions that are lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log
from sawlog.errors import CorruptBatch, GroupError, PositionLost, ReadOnlyLog, TopicNotFound
from sawlog.storage import MemoryDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.position import PartitionPosition

from .consumers import PATIENCE_S, committed, fill, until, values


@pytest.fixture
def store(medium: str, tmp_path: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore.open(tmp_path if medium == "files" else MemoryDirectory()) as made:
        made.create_topic("orders", partitions=2)
        yield made


# --- where to start


def test_latest_skips_what_is_there(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert consumer.poll(0) == []
        wanted = fill(store, 2)
        assert values(consumer.poll(PATIENCE_S)) == wanted


def test_latest_is_decided_once_for_all_partitions(store: DirectoryStore) -> None:
    """A consumer that dies before its first commit must not make the next one skip what came meanwhile."""
    fill(store, 5)
    store.consumer("billing", ["orders"], start="latest", auto_commit_ms=None).close()
    wanted = fill(store, 2) + fill(store, 2, partition=1)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert sorted(values(consumer.drain())) == sorted(wanted)


def test_a_partition_that_is_added_is_read_from_its_beginning(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sawlog.store.position._TOPICS_S", 0.01)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        consumer.poll(0)
        store.alter_topic("orders", partitions=3)
        wanted = fill(store, 3, partition=2)
        assert values(consumer.poll(PATIENCE_S)) == wanted
        assert consumer.assignment == {("orders", 0), ("orders", 1), ("orders", 2)}


def test_a_recreated_topic_is_read_from_its_beginning_even_by_a_group_that_started_late(store: DirectoryStore) -> None:
    store.consumer("billing", ["orders"], start="latest").close()
    store.delete_topic("orders")
    store.create_topic("orders")
    wanted = fill(store, 3)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert values(consumer.drain()) == wanted


def test_a_start_counts_only_for_a_group_without_offsets(store: DirectoryStore) -> None:
    wanted = fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert values(consumer.drain()) == wanted[2:]


def test_earliest_is_what_is_there_now_not_what_was_when_the_log_was_opened(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as writer, DirectoryStore.open(tmp_path) as reader:
        writer.create_topic("orders")
        wanted = fill(writer, 10)
        assert reader.topic("orders").partition(0).lowest_offset == 0
        writer.topic("orders").partition(0).trim(6)
        with reader.consumer("billing", ["orders"], on_lost="error") as consumer:
            assert values(consumer.drain()) == wanted[6:]


def test_start_at_an_offset(store: DirectoryStore) -> None:
    wanted = fill(store, 5) + fill(store, 5, partition=1)
    with store.consumer("billing", ["orders"], start=3) as consumer:
        assert sorted(values(consumer.drain())) == sorted(wanted[3:5] + wanted[8:])


def test_start_at_a_time(store: DirectoryStore) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    log = store.topic("orders").partition(0)
    for hour in range(5):
        log.append(b"%d" % hour, timestamp=noon + timedelta(hours=hour))
    with store.consumer("billing", ["orders"], start=noon + timedelta(hours=3)) as consumer:
        assert values(consumer.drain()) == [b"3", b"4"]


def test_rewinding_to_the_beginning_an_offset_the_end_and_a_time(store: DirectoryStore) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    log = store.topic("orders").partition(0)
    for hour in range(5):
        log.append(b"%d" % hour, timestamp=noon + timedelta(hours=hour))
    with store.consumer("billing", ["orders"]) as consumer:
        for place, wanted in (
            ("earliest", [b"0", b"1", b"2", b"3", b"4"]),
            (3, [b"3", b"4"]),
            ("latest", []),
            (noon + timedelta(hours=4), [b"4"]),
        ):
            consumer.seek("orders", 0, place)  # type: ignore[arg-type]
            assert values(consumer.drain()) == wanted


def test_a_seek_in_the_loop_counts_from_the_next_record_on(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        found = []
        for record in consumer.drain():
            found.append(record.offset)
            if found == [0, 1]:
                consumer.seek("orders", 0, 4)
        assert found == [0, 1, 4]


def test_a_rewind_is_committed_like_any_position(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        list(consumer.drain())
        consumer.commit()
        consumer.seek("orders", 0, 1)
        consumer.commit()
        assert consumer.committed("orders", 0) == 1


def test_lag_counts_what_was_not_handed_out(store: DirectoryStore) -> None:
    fill(store, 10)
    fill(store, 4, partition=1)
    with store.consumer("billing", ["orders"]) as consumer:
        assert consumer.lag() == {("orders", 0): 10, ("orders", 1): 4}
        for record in consumer:
            if record.partition == 0 and record.offset == 2:
                assert consumer.lag()["orders", 0] == 7
                break
        list(consumer.drain())
        assert consumer.lag() == {("orders", 0): 0, ("orders", 1): 0}


# --- lost positions


def test_a_position_below_the_start_goes_on_at_the_first_record(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    store.topic("orders").partition(0).trim(6)
    with caplog.at_level(logging.WARNING, "sawlog"), store.consumer("billing", ["orders"]) as consumer:
        assert values(consumer.drain()) == wanted[6:]
        assert values(consumer.drain()) == []
    assert len(caplog.records) == 1
    assert "offset 2 of partition 0 of 'orders' is gone" in caplog.text


def test_a_position_below_the_start_goes_on_at_the_end(store: DirectoryStore) -> None:
    fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    store.topic("orders").partition(0).trim(6)
    with store.consumer("billing", ["orders"], on_lost="latest") as consumer:
        assert values(consumer.drain()) == []
        assert consumer.position("orders", 0) == 10


def test_a_lost_position_is_an_error_until_the_caller_decides(store: DirectoryStore) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    store.topic("orders").partition(0).trim(6)
    with store.consumer("billing", ["orders"], on_lost="error") as consumer:
        for _ in range(3):
            with pytest.raises(PositionLost, match="offset 2 of partition 0"):
                consumer.poll(1)
        consumer.seek("orders", 0, "earliest")
        assert values(consumer.drain()) == wanted[6:]


def test_a_position_behind_a_truncated_end_is_lost_as_well(store: DirectoryStore) -> None:
    fill(store, 10)
    with store.consumer("billing", ["orders"], on_lost="error") as consumer:
        list(consumer.drain())
        store.topic("orders").partition(0).truncate(4)
        with pytest.raises(PositionLost, match="offset 10"):
            consumer.poll(0)
        consumer.seek("orders", 0, "latest")
        assert consumer.position("orders", 0) == 4


def test_records_trimmed_in_the_middle_of_a_loop_are_passed_over(store: DirectoryStore) -> None:
    """The consumer is between two chunks when the log loses its beginning."""
    log = store.topic("orders").partition(0)
    for _ in range(20):
        log.append_many([b"x" * 1000] * 200)
    with store.consumer("billing", ["orders"]) as consumer:
        found = []
        for record in consumer.drain():
            found.append(record.offset)
            if record.offset == 10:
                log.trim(3000)
        assert found[:11] == list(range(11))
        assert found[-1000:] == list(range(3000, 4000))
        assert found == sorted(set(found))


def test_a_start_beyond_the_end_is_lost(store: DirectoryStore) -> None:
    fill(store, 2)
    with store.consumer("billing", ["orders"], start=100, on_lost="error") as consumer, pytest.raises(PositionLost):
        consumer.poll(0)


def test_damage_is_raised_and_can_be_passed_over(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        log = store.create_topic("orders", partitions=1).partition(0)
        positions = [log.segments[0].size_bytes]
        for number in range(5):
            log.append(b"%d" % number)
            positions.append(log.segments[0].size_bytes)
        log.seal()
        log.append(b"5")
    name = tmp_path / "topics/orders/partition-0" / f"{0:020d}.log"
    data = bytearray(name.read_bytes())
    data[positions[3] - 1] ^= 1
    name.write_bytes(data)
    with DirectoryStore.open(tmp_path) as store, store.consumer("billing", ["orders"]) as consumer:
        assert values(consumer.poll(1, max_records=2)) == [b"0", b"1"]
        for _ in range(2):
            with pytest.raises(CorruptBatch) as caught:
                consumer.poll(1)
        assert caught.value.next_offset == 3
        consumer.seek("orders", 0, 3)
        assert values(consumer.drain()) == [b"3", b"4", b"5"]


def test_what_is_wrong_with_one_partition_costs_no_record_of_another(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders", partitions=3)
        wanted = fill(store, 5) + fill(store, 5, partition=2)
        log = store.topic("orders").partition(1)
        log.append(b"damaged")
        log.seal()
    name = tmp_path / "topics/orders/partition-1" / f"{0:020d}.log"
    data = bytearray(name.read_bytes())
    data[-1] ^= 1
    name.write_bytes(data)
    with DirectoryStore.open(tmp_path) as store, store.consumer("billing", ["orders"]) as consumer:
        found: list[bytes] = []
        errors = 0
        for _ in range(20):
            try:
                found += values(consumer.poll(0, max_records=3))
            except CorruptBatch:
                errors += 1
        assert sorted(found) == sorted(wanted)
        assert errors > 0


def test_an_interrupted_poll_gives_its_records_again(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = fill(store, 5) + fill(store, 5, partition=1)
    with store.consumer("billing", ["orders"]) as consumer:

        def interrupt(*arguments: Any, **options: Any) -> Any:
            raise KeyboardInterrupt

        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(Log, "_cursors", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    consumer.poll(1)
        assert sorted(values(consumer.poll(1))) == sorted(wanted)


class Blinking:
    """A log whose end is out of sight for a moment, as while its files are being replaced."""

    def __init__(self, log: Log, looks: int) -> None:
        self.log, self.looks = log, looks

    @property
    def next_offset(self) -> int:
        self.looks -= 1
        return 0 if self.looks >= 0 else self.log.next_offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


def test_a_log_that_is_out_of_sight_for_a_moment_is_not_lost(store: DirectoryStore) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"], on_lost="error") as consumer:
        assert values(consumer.poll(1, max_records=4)) == wanted[:4]
        consumer.seek("orders", 0, 4)
        owned = consumer._position.get(("orders", 0))
        owned.log = Blinking(owned.log, looks=3)  # type: ignore[assignment]
        assert values(consumer.poll(1)) == wanted[4:]


# --- topics that come and go


def test_a_topic_that_is_not_there_is_refused(store: DirectoryStore) -> None:
    with pytest.raises(TopicNotFound):
        store.consumer("billing", ["orders", "nothing"])
    assert store.groups.list() == []


def test_a_deleted_topic_is_dropped_and_said_so(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sawlog.store.position._TOPICS_S", 0.01)
    store.create_topic("totals")
    with caplog.at_level(logging.WARNING, "sawlog"), store.consumer("billing", ["orders", "totals"]) as consumer:
        consumer.poll(0)
        store.delete_topic("totals")
        until(lambda: consumer.assignment == {("orders", 0), ("orders", 1)}, consumer)
        wanted = fill(store, 2)
        assert values(consumer.poll(PATIENCE_S)) == wanted
    assert "'totals' no longer exists" in caplog.text


def test_a_topic_made_anew_is_read_from_its_beginning(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of the old one say nothing about the new one."""
    monkeypatch.setattr("sawlog.store.position._TOPICS_S", 0.01)
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        assert len(list(consumer.drain())) == 5
        consumer.commit()
        store.delete_topic("orders")
        store.create_topic("orders", partitions=1)
        wanted = fill(store, 8)
        found: list[bytes] = []
        until(lambda: found.extend(values(consumer.poll(0.01))) or found[-1:] == wanted[-1:])
        assert found == wanted
        assert consumer.assignment == {("orders", 0)}
    assert committed(store) == 8


# --- without a group


def test_without_a_group_everything_is_read_and_nothing_committed(store: DirectoryStore) -> None:
    wanted = fill(store, 3) + fill(store, 3, partition=1)
    for _ in range(2):
        with store.consumer(None, ["orders"]) as consumer:
            assert sorted(values(consumer.drain())) == sorted(wanted)
            assert consumer.committed("orders", 0) is None
            with pytest.raises(GroupError):
                consumer.commit()
    assert store.groups.list() == []
    assert "groups" not in store._directory.children()


def test_without_a_group_a_start_counts_for_every_partition(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sawlog.store.position._TOPICS_S", 0.01)
    for partition in (0, 1):
        fill(store, 3, partition=partition)
    with store.consumer(None, ["orders"], start="latest") as consumer:
        assert consumer.poll(0) == []
        store.alter_topic("orders", partitions=3)
        wanted = fill(store, 2, partition=2)
        assert values(consumer.poll(PATIENCE_S)) == wanted


def test_without_a_group_a_read_only_store_is_enough(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders")
        wanted = fill(store, 3)
        with DirectoryStore.open(tmp_path, mode="r") as reader:
            with reader.consumer(None, ["orders"]) as consumer:
                assert values(consumer.drain()) == wanted
            with pytest.raises(ReadOnlyLog):
                reader.consumer("billing", ["orders"])


def test_what_a_cursor_costs_does_not_depend_on_the_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of partitions took a minute: between two cursors all of them were looked at."""
    looks = 0
    reached = PartitionPosition.reached.fget
    assert reached is not None

    def counted(owned: PartitionPosition) -> int:
        nonlocal looks
        looks += 1
        return int(reached(owned))

    monkeypatch.setattr(PartitionPosition, "reached", property(counted))
    count = 60
    with DirectoryStore.open(MemoryDirectory()) as store:
        topic = store.create_topic("many", partitions=count)
        for number in range(count):
            topic.partition(number).append(b"value")
        with store.consumer("billing", ["many"], auto_commit_ms=None) as consumer:
            assert len(list(consumer.drain())) == count
            assert looks < 10 * count
        assert looks < 20 * count
