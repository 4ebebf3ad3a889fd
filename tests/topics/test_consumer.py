"""Consumers in one process: what they hand out, what they commit, where they go on."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sawlog import CorruptBatch, InvalidConfig, LogClosed, ReadOnlyLog
from sawlog.errors import GroupError, GroupFenced, PositionLost, TopicNotFound
from sawlog.storage import MemoryDirectory
from sawlog.testing import FaultyDirectory
from sawlog.testing.faulty import Call
from sawlog.topics.consumer import Consumer
from sawlog.topics.store import Store

PATIENCE_S = 20.0


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path if request.param == "files" else MemoryDirectory()) as made:
        made.create_topic("orders", partitions=2)
        yield made


def fill(store: Store, count: int, partition: int = 0, topic: str = "orders", **arguments: Any) -> list[bytes]:
    """Append so many records to a partition; their values, all different."""
    log = store.topic(topic).partition(partition)
    first = log.next_offset
    values = [b"%d/%d" % (partition, first + number) for number in range(count)]
    log.append_many([{"value": value, **arguments} for value in values])
    return values


def values(records: Any) -> list[bytes]:
    return [record.value for record in records]


def until(condition: Any, *consumers: Consumer) -> None:
    """Let consumers poll, as their own loops would, until something is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"did not come about: {consumers}"
        time.sleep(0.002)
        for consumer in consumers:
            consumer.poll(0.01)


# --- reading


def test_records_say_where_they_come_from(store: Store) -> None:
    fill(store, 3, partition=1)
    with store.consumer("billing", ["orders"]) as consumer:
        assert [(each.topic, each.partition, each.offset) for each in consumer.drain()] == [
            ("orders", 1, 0),
            ("orders", 1, 1),
            ("orders", 1, 2),
        ]


def test_every_record_of_every_partition_comes_once_and_in_order(store: Store) -> None:
    wanted = [fill(store, 5000, partition=n) for n in (0, 1)]
    with store.consumer("billing", ["orders"]) as consumer:
        found = list(consumer.drain())
    for partition in (0, 1):
        assert [each.value for each in found if each.partition == partition] == wanted[partition]


def test_partitions_take_turns(store: Store) -> None:
    """A long partition does not keep the others waiting until it ends."""
    for partition in (0, 1):
        log = store.topic("orders").partition(partition)
        for _ in range(10):
            log.append_many([b"x" * 1000] * 200)
    with store.consumer("billing", ["orders"]) as consumer:
        order = [record.partition for record in consumer.drain()]
    first_of_second = order.index(1 - order[0])
    assert first_of_second < 1000
    assert sorted(order) == [0] * 2000 + [1] * 2000


def test_several_topics_are_read_by_one_consumer(store: Store) -> None:
    store.create_topic("totals")
    wanted = fill(store, 2) + fill(store, 2, topic="totals")
    with store.consumer("billing", ["orders", "totals"]) as consumer:
        assert sorted(values(consumer.drain())) == sorted(wanted)
        assert consumer.assignment == {("orders", 0), ("orders", 1), ("totals", 0)}


def test_drain_ends_at_the_end_as_it_was(store: Store) -> None:
    fill(store, 3)
    with store.consumer("billing", ["orders"]) as consumer:
        found = []
        for record in consumer.drain():
            found.append(record.value)
            fill(store, 1)
        assert found == [b"0/0", b"0/1", b"0/2"]
        assert len(list(consumer.drain())) == 3


def test_iterating_waits_for_new_records_until_it_is_closed(store: Store) -> None:
    consumer = store.consumer("billing", ["orders"])
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: [found.append(record.value) for record in consumer])
    reader.start()
    wanted = fill(store, 3)
    until(lambda: len(found) == 3)
    wanted += fill(store, 2, partition=1)
    until(lambda: len(found) == 5)
    consumer.close()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert sorted(found) == sorted(wanted)


def test_poll_gives_at_most_so_many_and_goes_on_behind_them(store: Store) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        assert values(consumer.poll(1, max_records=4)) == wanted[:4]
        assert values(consumer.poll(1, max_records=4)) == wanted[4:8]
        assert values(consumer.poll(1, max_records=4)) == wanted[8:]
        assert consumer.poll(0) == []


def test_poll_gives_records_of_all_partitions_at_once(store: Store) -> None:
    wanted = fill(store, 3) + fill(store, 3, partition=1)
    with store.consumer("billing", ["orders"]) as consumer:
        assert sorted(values(consumer.poll(1))) == sorted(wanted)


def test_a_loop_that_was_left_goes_on_behind_the_record_in_hand(store: Store) -> None:
    wanted = fill(store, 6)
    with store.consumer("billing", ["orders"]) as consumer:
        for record in consumer:
            if record.offset == 2:
                break
        assert values(consumer.poll(1, max_records=1)) == wanted[3:4]
        assert values(consumer.drain()) == wanted[4:]


def test_a_reader_that_is_quick_sees_what_comes_one_by_one(store: Store) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        for number in range(20):
            fill(store, 1, partition=number % 2)
            assert len(consumer.poll(PATIENCE_S)) == 1


# --- committing


def test_a_new_consumer_goes_on_where_the_group_has_committed(store: Store) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        assert values(consumer.poll(1, max_records=4)) == wanted[:4]
        consumer.commit()
        consumer.poll(1, max_records=4)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        assert consumer.position("orders", 0) == 4
        assert values(consumer.drain()) == wanted[4:]


def test_a_commit_survives_the_store(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.create_topic("orders")
        fill(store, 5)
        with store.consumer("billing", ["orders"]) as consumer:
            consumer.poll(1, max_records=3)
    with Store.open(tmp_path) as store, store.consumer("billing", ["orders"]) as consumer:
        assert consumer.committed("orders", 0) == 3
        assert consumer.position("orders", 0) == 3


def test_groups_do_not_know_of_each_other(store: Store) -> None:
    wanted = fill(store, 5)
    with store.consumer("one", ["orders"]) as consumer:
        assert values(consumer.drain()) == wanted
    with store.consumer("two", ["orders"]) as consumer:
        assert consumer.committed("orders", 0) is None
        assert values(consumer.drain()) == wanted


def test_commit_in_the_loop_includes_the_record_in_hand(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        for record in consumer:
            if record.offset == 2:
                consumer.commit()
                break
        assert consumer.committed("orders", 0) == 3


def test_leaving_in_order_commits_everything_that_was_handed_out(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        for record in consumer:
            if record.offset == 2:
                break
    assert committed(store) == 3


def committed(store: Store, partition: int = 0) -> int | None:
    rows = {(row.topic, row.partition): row for row in store.groups.describe("billing").rows}
    return rows["orders", partition].committed


def failing(consumer: Consumer, offset: int) -> None:
    for record in consumer:
        if record.offset == offset:
            raise ZeroDivisionError


def test_leaving_by_an_exception_commits_without_the_record_in_hand(store: Store) -> None:
    fill(store, 5)
    with pytest.raises(ZeroDivisionError), store.consumer("billing", ["orders"]) as consumer:
        failing(consumer, 2)
    assert committed(store) == 2


def test_closing_while_an_exception_is_on_its_way_commits_without_the_record_in_hand(store: Store) -> None:
    fill(store, 5)
    consumer = store.consumer("billing", ["orders"])

    def work() -> None:
        try:
            failing(consumer, 2)
        finally:
            consumer.close()

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(store) == 2


def test_a_failing_poll_loop_commits_nothing_of_the_last_call(store: Store) -> None:
    fill(store, 10)

    def work() -> None:
        with store.consumer("billing", ["orders"]) as consumer:
            consumer.poll(1, max_records=4)
            consumer.poll(1, max_records=4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(store) == 4


def test_closing_from_another_thread_commits_without_the_record_in_hand(store: Store) -> None:
    fill(store, 5)
    consumer = store.consumer("billing", ["orders"])
    for record in consumer:
        if record.offset == 2:
            closer = threading.Thread(target=consumer.close)
            closer.start()
            closer.join(PATIENCE_S)
            break
    assert committed(store) == 2


def test_closing_the_store_closes_its_consumers_in_order(store: Store) -> None:
    consumer = store.consumer("billing", ["orders"])
    fill(store, 3)
    assert len(list(consumer.drain())) == 3
    directory = store.directory
    store.close()
    with pytest.raises(LogClosed):
        consumer.poll(0)
    if isinstance(directory, MemoryDirectory):
        with Store.open(directory) as again:
            assert committed(again) == 3


def test_manual_means_manual(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        assert len(list(consumer.drain())) == 5
    with store.consumer("billing", ["orders"]) as consumer:
        assert consumer.committed("orders", 0) is None
        assert consumer.position("orders", 0) == 0


def test_automatic_commits_come_while_records_are_read(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=1) as consumer:
        for record in consumer:
            if record.offset == 4:
                break
        until(lambda: consumer.committed("orders", 0) == 5, consumer)


def test_an_automatic_commit_in_the_middle_of_a_chunk_is_without_the_record_in_hand(store: Store) -> None:
    """All records come from one cursor; the background interrupts it when a commit is due."""
    fill(store, 1000)
    with store.consumer("billing", ["orders"], auto_commit_ms=50, session_timeout_ms=500) as consumer:
        for record in consumer.drain():
            time.sleep(0.002)
            found = consumer.committed("orders", 0)
            if found:  # not the position that it began with
                assert found <= record.offset
                break
        else:
            raise AssertionError("nothing was committed before the end")
        assert record.offset < 999


def test_positions_can_be_committed_one_by_one(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        list(consumer.drain())
        consumer.commit({("orders", 0): 2})
        assert consumer.committed("orders", 0) == 2
        assert consumer.committed("orders", 1) is None


@pytest.mark.parametrize("offset", [-1, True, "3", 2.0])
def test_what_is_no_offset_is_not_committed(store: Store, offset: Any) -> None:
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        with pytest.raises(InvalidConfig):
            consumer.commit({("orders", 0): offset})
        assert consumer.committed("orders", 0) is None


def test_a_partition_that_is_not_assigned_is_not_committed(store: Store) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        with pytest.raises(GroupError):
            consumer.commit({("orders", 7): 1})
        with pytest.raises(GroupError):
            consumer.position("orders", 7)


def test_a_commit_without_news_writes_nothing(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        list(consumer.drain())
        consumer.commit()
        end = offsets_written(store)
        consumer.commit()
        assert offsets_written(store) == end


def offsets_written(store: Store) -> int:
    with store.groups.offsets.turn() as turn:
        return turn._log.next_offset


# --- where to start


def test_latest_skips_what_is_there(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert consumer.poll(0) == []
        wanted = fill(store, 2)
        assert values(consumer.poll(PATIENCE_S)) == wanted


def test_latest_is_decided_once_for_all_partitions(store: Store) -> None:
    """A consumer that dies before its first commit must not make the next one skip what came meanwhile."""
    fill(store, 5)
    store.consumer("billing", ["orders"], start="latest", auto_commit_ms=None).close()
    wanted = fill(store, 2) + fill(store, 2, partition=1)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert sorted(values(consumer.drain())) == sorted(wanted)


def test_a_partition_that_is_added_is_read_from_its_beginning(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sawlog.topics.consumer._TOPICS_S", 0.01)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        consumer.poll(0)
        store.alter_topic("orders", partitions=3)
        wanted = fill(store, 3, partition=2)
        assert values(consumer.poll(PATIENCE_S)) == wanted
        assert consumer.assignment == {("orders", 0), ("orders", 1), ("orders", 2)}


def test_a_topic_made_anew_is_read_from_its_beginning_even_by_a_group_that_started_late(store: Store) -> None:
    store.consumer("billing", ["orders"], start="latest").close()
    store.delete_topic("orders")
    store.create_topic("orders")
    wanted = fill(store, 3)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert values(consumer.drain()) == wanted


def test_a_start_counts_only_for_a_group_without_offsets(store: Store) -> None:
    wanted = fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    with store.consumer("billing", ["orders"], start="latest") as consumer:
        assert values(consumer.drain()) == wanted[2:]


def test_start_at_an_offset(store: Store) -> None:
    wanted = fill(store, 5) + fill(store, 5, partition=1)
    with store.consumer("billing", ["orders"], start=3) as consumer:
        assert sorted(values(consumer.drain())) == sorted(wanted[3:5] + wanted[8:])


def test_start_at_a_time(store: Store) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    log = store.topic("orders").partition(0)
    for hour in range(5):
        log.append(b"%d" % hour, timestamp=noon + timedelta(hours=hour))
    with store.consumer("billing", ["orders"], start=noon + timedelta(hours=3)) as consumer:
        assert values(consumer.drain()) == [b"3", b"4"]


def test_rewinding_to_the_beginning_an_offset_the_end_and_a_time(store: Store) -> None:
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


def test_a_seek_in_the_loop_counts_from_the_next_record_on(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        found = []
        for record in consumer.drain():
            found.append(record.offset)
            if found == [0, 1]:
                consumer.seek("orders", 0, 4)
        assert found == [0, 1, 4]


def test_a_rewind_is_committed_like_any_position(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        list(consumer.drain())
        consumer.commit()
        consumer.seek("orders", 0, 1)
        consumer.commit()
        assert consumer.committed("orders", 0) == 1


def test_lag_counts_what_was_not_handed_out(store: Store) -> None:
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


def test_a_position_below_the_start_goes_on_at_the_first_record(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    store.topic("orders").partition(0).trim(6)
    with caplog.at_level(logging.WARNING, "sawlog"), store.consumer("billing", ["orders"]) as consumer:
        assert values(consumer.drain()) == wanted[6:]
        assert values(consumer.drain()) == []
    assert len(caplog.records) == 1
    assert "offset 2 of partition 0 of 'orders' is gone" in caplog.text


def test_a_position_below_the_start_goes_on_at_the_end(store: Store) -> None:
    fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(1, max_records=2)
    store.topic("orders").partition(0).trim(6)
    with store.consumer("billing", ["orders"], on_lost="latest") as consumer:
        assert values(consumer.drain()) == []
        assert consumer.position("orders", 0) == 10


def test_a_lost_position_is_an_error_until_the_caller_decides(store: Store) -> None:
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


def test_a_position_behind_a_truncated_end_is_lost_as_well(store: Store) -> None:
    fill(store, 10)
    with store.consumer("billing", ["orders"], on_lost="error") as consumer:
        list(consumer.drain())
        store.topic("orders").partition(0).truncate(4)
        with pytest.raises(PositionLost, match="offset 10"):
            consumer.poll(0)
        consumer.seek("orders", 0, "latest")
        assert consumer.position("orders", 0) == 4


def test_records_trimmed_in_the_middle_of_a_loop_are_passed_over(store: Store) -> None:
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


def test_a_start_beyond_the_end_is_lost(store: Store) -> None:
    fill(store, 2)
    with store.consumer("billing", ["orders"], start=100, on_lost="error") as consumer, pytest.raises(PositionLost):
        consumer.poll(0)


def test_damage_is_raised_and_can_be_passed_over(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
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
    with Store.open(tmp_path) as store, store.consumer("billing", ["orders"]) as consumer:
        assert values(consumer.poll(1, max_records=2)) == [b"0", b"1"]
        for _ in range(2):
            with pytest.raises(CorruptBatch) as caught:
                consumer.poll(1)
        assert caught.value.next_offset == 3
        consumer.seek("orders", 0, 3)
        assert values(consumer.drain()) == [b"3", b"4", b"5"]


# --- topics that come and go


def test_a_topic_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(TopicNotFound):
        store.consumer("billing", ["orders", "nothing"])
    assert store.groups.list() == []


def test_a_deleted_topic_is_dropped_and_said_so(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sawlog.topics.consumer._TOPICS_S", 0.01)
    store.create_topic("totals")
    with caplog.at_level(logging.WARNING, "sawlog"), store.consumer("billing", ["orders", "totals"]) as consumer:
        consumer.poll(0)
        store.delete_topic("totals")
        until(lambda: consumer.assignment == {("orders", 0), ("orders", 1)}, consumer)
        wanted = fill(store, 2)
        assert values(consumer.poll(PATIENCE_S)) == wanted
    assert "'totals' is gone" in caplog.text


def test_a_topic_made_anew_is_read_from_its_beginning(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of the old one say nothing about the new one."""
    monkeypatch.setattr("sawlog.topics.consumer._TOPICS_S", 0.01)
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


def test_without_a_group_everything_is_read_and_nothing_committed(store: Store) -> None:
    wanted = fill(store, 3) + fill(store, 3, partition=1)
    for _ in range(2):
        with store.consumer(None, ["orders"]) as consumer:
            assert sorted(values(consumer.drain())) == sorted(wanted)
            assert consumer.committed("orders", 0) is None
            with pytest.raises(GroupError):
                consumer.commit()
    assert store.groups.list() == []
    assert "groups" not in store.directory.children()


def test_without_a_group_a_read_only_store_is_enough(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.create_topic("orders")
        wanted = fill(store, 3)
        with Store.open(tmp_path, mode="r") as reader:
            with reader.consumer(None, ["orders"]) as consumer:
                assert values(consumer.drain()) == wanted
            with pytest.raises(ReadOnlyLog):
                reader.consumer("billing", ["orders"])


# --- members in one process


def test_two_consumers_share_the_partitions(store: Store) -> None:
    with store.consumer("billing", ["orders"]) as one, store.consumer("billing", ["orders"]) as two:
        until(lambda: len(one.assignment) == len(two.assignment) == 1, one, two)
        assert one.assignment | two.assignment == {("orders", 0), ("orders", 1)}
        wanted = fill(store, 10) + fill(store, 10, partition=1)
        found: list[bytes] = []
        until(
            lambda: found.extend(values(one.poll(0.01)) + values(two.poll(0.01))) or len(found) >= 20,
        )
        assert sorted(found) == sorted(wanted)


def test_what_a_member_gives_up_is_committed_before(store: Store) -> None:
    fill(store, 10)
    fill(store, 10, partition=1)
    with store.consumer("billing", ["orders"], auto_commit_ms=3_600_000) as one:
        assert len(list(one.drain())) == 20
        with store.consumer("billing", ["orders"], auto_commit_ms=3_600_000) as two:
            again: list[bytes] = []
            until(lambda: again.extend(values(two.poll(0.01))) or len(two.assignment) == 1, one)
            ((_, moved),) = two.assignment
            assert two.committed("orders", moved) == 10
            assert two.committed("orders", 1 - moved) is None, "what stays is not committed"
            assert again + values(two.poll(0)) == [], "what was processed comes again"


def test_when_a_member_leaves_the_other_takes_over(store: Store) -> None:
    with store.consumer("billing", ["orders"]) as one:
        with store.consumer("billing", ["orders"]) as two:
            until(lambda: len(two.assignment) == 1, one, two)
        until(lambda: len(one.assignment) == 2, one)


def test_a_consumer_that_is_forgotten_gives_its_partitions_back(store: Store) -> None:
    one: Consumer | None = store.consumer("billing", ["orders"])
    with store.consumer("billing", ["orders"]) as two:
        assert one is not None
        assert two.assignment == set()
        del one
        gc.collect()
        until(lambda: len(two.assignment) == 2, two)


def test_a_consumer_in_a_long_loop_gives_up_in_the_middle_of_a_chunk(store: Store) -> None:
    """It asks for no more than the next record; the background interrupts the cursor."""
    fill(store, 3000)
    with store.consumer("billing", ["orders"]) as one:
        two = None
        for record in one.drain():
            last = record.offset
            time.sleep(0.002)
            two = two or store.consumer("billing", ["orders"])
            if len(one.assignment) == 1:
                break
        assert last < 2999
        assert two is not None
        two.close()


def test_a_member_that_does_not_ask_for_records_loses_its_partitions(store: Store) -> None:
    fill(store, 5)
    fill(store, 5, partition=1)
    idle = store.consumer("billing", ["orders"], session_timeout_ms=300, max_poll_interval_ms=100, auto_commit_ms=None)
    assert len(idle.poll(1, max_records=100)) == 10
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as other:
        until(lambda: len(other.assignment) == 2, other)
        other.commit({("orders", 0): 2})
        with pytest.raises(GroupFenced):
            idle.commit()
        assert other.committed("orders", 0) == 2, "a fenced member has committed"
        assert idle.assignment == set()
        until(lambda: len(idle.assignment) == 1, other, idle)  # the next call joins again
        idle.close()


def test_a_slow_member_that_goes_on_asking_counts_as_well(store: Store) -> None:
    """Many records come from one cursor: asking it for the next one is asking, too."""
    fill(store, 1000)
    with store.consumer("billing", ["orders"], max_poll_interval_ms=60_000) as consumer:
        records = iter(consumer)
        for _ in range(3):
            next(records)
            consumer._asked_s -= 3600
            before = beats(store)
            consumer._tick()
            assert beats(store) > before
        consumer._asked_s -= 3600
        before = beats(store)
        consumer._tick()
        assert beats(store) == before, "it has not asked since"


def beats(store: Store) -> int:
    (member,) = store.groups.describe("billing").members
    return member.beat


def test_a_fenced_member_is_told_even_if_it_has_nothing_to_commit(store: Store) -> None:
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        consumer.commit()
        (name,) = [each for each in names(store, "billing") if each.startswith("member-")]
        remove(store, "billing", name)
        with pytest.raises(GroupFenced):
            consumer.commit()


def test_a_fenced_loop_is_told_and_can_go_on(store: Store) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        (name,) = [each for each in names(store, "billing") if each.startswith("member-")]
        consumer.poll(1, max_records=2)
        remove(store, "billing", name)
        with pytest.raises(GroupFenced):
            consumer.poll(0)
        assert [record.offset for record in consumer.drain()] == [0, 1, 2, 3, 4]


def names(store: Store, group: str) -> list[str]:
    return store.directory.child("members").child(group).names()


def remove(store: Store, group: str, name: str) -> None:
    """As a member does that takes another one for dead."""
    store.directory.child("members").child(group).remove(name)


def test_a_member_fenced_while_it_waits_for_its_turn_commits_nothing() -> None:
    inner = MemoryDirectory()
    with Store.open(inner) as other:
        other.create_topic("orders")
        fill(other, 5)
        watched = FaultyDirectory(inner)
        with Store.open(watched) as store, store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
            consumer.poll(1)
            waiting = threading.Event()
            errors: list[Exception] = []

            def commit() -> None:
                try:
                    consumer.commit()
                except GroupFenced as error:
                    errors.append(error)

            def notice(call: Call) -> None:
                if call == Call("lock", "groups/LOCK"):
                    waiting.set()

            committing = threading.Thread(target=commit)
            with other.groups.offsets.turn():
                watched.before = notice
                committing.start()
                assert waiting.wait(PATIENCE_S)
                remove(other, "billing", "owner-orders-0")
            committing.join(PATIENCE_S)
            assert len(errors) == 1
            assert other.groups.offsets.of("billing") == {}


def test_a_partition_whose_lock_was_taken_away_is_not_committed(store: Store) -> None:
    """Half a fencing: whoever did it died before it was done."""
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        consumer.poll(1)
        remove(store, "billing", "owner-orders-0")
        with pytest.raises(GroupFenced):
            consumer.commit()
        assert consumer.committed("orders", 0) is None


def test_threads_that_join_and_leave_all_the_time_lose_nothing(store: Store) -> None:
    wanted: list[bytes] = []
    found: list[bytes] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                with store.consumer("billing", ["orders"]) as consumer:
                    for _ in range(3):
                        found.extend(values(consumer.poll(0.01, max_records=7)))
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(40):
        wanted += fill(store, 5) + fill(store, 5, partition=1)
        time.sleep(0.01)
    stop.set()
    for worker in workers:
        worker.join(PATIENCE_S)
    assert errors == []
    with store.consumer("billing", ["orders"]) as consumer:
        found.extend(values(consumer.drain()))
    assert set(found) == set(wanted)
    assert len(found) == len(wanted), "they left in order: nothing comes twice"


def test_closing_from_elsewhere_at_any_moment_harms_nothing(store: Store) -> None:
    wanted = fill(store, 3000) + fill(store, 3000, partition=1)
    found: list[bytes] = []
    for number in range(20):
        consumer = store.consumer("billing", ["orders"])
        closer = threading.Timer(number * 0.0005, consumer.close)
        closer.start()
        records = iter(consumer)
        try:
            found.extend(record.value for record in records)
        except LogClosed:
            pass  # it was closed before it was asked
        closer.join()
        assert consumer.assignment == set()
    with store.consumer("billing", ["orders"]) as consumer:
        found.extend(values(consumer.drain()))
    assert set(found) == set(wanted)


# --- what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"start": "middle"},
        {"start": -1},
        {"start": True},
        {"start": None},
        {"on_lost": "ignore"},
        {"auto_commit_ms": 0},
        {"session_timeout_ms": 0},
        {"session_timeout_ms": 1.5},
        {"max_poll_interval_ms": -1},
    ],
)
def test_settings_that_cannot_work_are_refused(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        store.consumer("billing", ["orders"], **options)


@pytest.mark.parametrize("topics", [[], [7], [None]])
def test_a_consumer_needs_topics(store: Store, topics: Any) -> None:
    with pytest.raises(InvalidConfig):
        store.consumer("billing", topics)


def test_a_closed_consumer_says_so(store: Store) -> None:
    consumer = store.consumer("billing", ["orders"])
    consumer.close()
    consumer.close()
    for call in (
        lambda: consumer.poll(0),
        consumer.commit,
        lambda: next(iter(consumer)),
        lambda: list(consumer.drain()),
    ):
        with pytest.raises(LogClosed):
            call()
    assert consumer.assignment == set()
    assert "closed" in repr(consumer)


def test_a_consumer_leaves_no_file_of_its_own_behind(store: Store) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(0)
    assert [name for name in names(store, "billing") if name.startswith("member-")] == []
