"""Consumers: returned records and committed offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog.errors import GroupError, InvalidConfig, LogClosed
from sawlog.storage import MemoryDirectory
from sawlog.store.consumer import Consumer
from sawlog.store.directory.store import DirectoryStore

from ..log.transactional import send
from ..looping import for_each
from .consumers import PATIENCE_S, committed, fill, names, until, values


@pytest.fixture
def store(medium: str, tmp_path: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore.open(tmp_path if medium == "files" else MemoryDirectory()) as made:
        made.create_topic("orders", partitions=2)
        yield made


# --- reading


def test_records_say_where_they_come_from(store: DirectoryStore) -> None:
    fill(store, 3, partition=1)
    with store.consumer("billing", ["orders"]) as consumer:
        assert [(each.topic, each.partition, each.offset) for each in consumer.drain()] == [
            ("orders", 1, 0),
            ("orders", 1, 1),
            ("orders", 1, 2),
        ]


def test_every_record_of_every_partition_comes_once_and_in_order(store: DirectoryStore) -> None:
    wanted = [fill(store, 5000, partition=n) for n in (0, 1)]
    with store.consumer("billing", ["orders"]) as consumer:
        found = list(consumer.drain())
    for partition in (0, 1):
        assert [each.value for each in found if each.partition == partition] == wanted[partition]


def test_partitions_take_turns(store: DirectoryStore) -> None:
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


def test_several_topics_are_read_by_one_consumer(store: DirectoryStore) -> None:
    store.create_topic("totals")
    wanted = fill(store, 2) + fill(store, 2, topic="totals")
    with store.consumer("billing", ["orders", "totals"]) as consumer:
        assert sorted(values(consumer.drain())) == sorted(wanted)
        assert consumer.assignment == {("orders", 0), ("orders", 1), ("totals", 0)}


def test_drain_ends_at_the_end_as_it_was(store: DirectoryStore) -> None:
    fill(store, 3)
    with store.consumer("billing", ["orders"]) as consumer:
        found = []
        for record in consumer.drain():
            found.append(record.value)
            fill(store, 1)
        assert found == [b"0/0", b"0/1", b"0/2"]
        assert len(list(consumer.drain())) == 3


def test_iterating_waits_for_new_records_until_it_is_closed(store: DirectoryStore) -> None:
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


def test_poll_returns_at_most_max_records_and_continues_after_them(store: DirectoryStore) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"]) as consumer:
        assert values(consumer.poll(1, max_records=4)) == wanted[:4]
        assert values(consumer.poll(1, max_records=4)) == wanted[4:8]
        assert values(consumer.poll(1, max_records=4)) == wanted[8:]
        assert consumer.poll(0) == []


def test_poll_gives_records_of_all_partitions_at_once(store: DirectoryStore) -> None:
    wanted = fill(store, 3) + fill(store, 3, partition=1)
    with store.consumer("billing", ["orders"]) as consumer:
        assert sorted(values(consumer.poll(1))) == sorted(wanted)


def test_a_new_loop_continues_after_the_last_record_of_the_previous_loop(store: DirectoryStore) -> None:
    wanted = fill(store, 6)
    with store.consumer("billing", ["orders"]) as consumer:
        for record in consumer:
            if record.offset == 2:
                break
        assert values(consumer.poll(1, max_records=1)) == wanted[3:4]
        assert values(consumer.drain()) == wanted[4:]


def test_a_reader_that_is_quick_sees_what_comes_one_by_one(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        for number in range(20):
            fill(store, 1, partition=number % 2)
            assert len(consumer.poll(PATIENCE_S)) == 1


# --- committing


def test_a_new_consumer_goes_on_where_the_group_has_committed(store: DirectoryStore) -> None:
    wanted = fill(store, 10)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        assert values(consumer.poll(1, max_records=4)) == wanted[:4]
        consumer.commit()
        consumer.poll(1, max_records=4)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        assert consumer.position("orders", 0) == 4
        assert values(consumer.drain()) == wanted[4:]


def test_a_commit_survives_the_store(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders")
        fill(store, 5)
        with store.consumer("billing", ["orders"]) as consumer:
            consumer.poll(1, max_records=3)
    with DirectoryStore.open(tmp_path) as store, store.consumer("billing", ["orders"]) as consumer:
        assert consumer.committed("orders", 0) == 3
        assert consumer.position("orders", 0) == 3


def test_groups_do_not_know_of_each_other(store: DirectoryStore) -> None:
    wanted = fill(store, 5)
    with store.consumer("one", ["orders"]) as consumer:
        assert values(consumer.drain()) == wanted
    with store.consumer("two", ["orders"]) as consumer:
        assert consumer.committed("orders", 0) is None
        assert values(consumer.drain()) == wanted


def test_commit_in_the_loop_includes_the_record_in_hand(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        for record in consumer:
            if record.offset == 2:
                consumer.commit()
                break
        assert consumer.committed("orders", 0) == 3


def test_leaving_in_order_commits_everything_that_was_handed_out(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"]) as consumer:
        for record in consumer:
            if record.offset == 2:
                break
    assert committed(store) == 3


def failing(consumer: Consumer, offset: int) -> None:
    for record in consumer:
        if record.offset == offset:
            raise ZeroDivisionError


def test_leaving_by_an_exception_commits_without_the_record_in_hand(store: DirectoryStore) -> None:
    fill(store, 5)
    with pytest.raises(ZeroDivisionError), store.consumer("billing", ["orders"]) as consumer:
        failing(consumer, 2)
    assert committed(store) == 2


def test_closing_while_an_exception_is_on_its_way_commits_without_the_record_in_hand(store: DirectoryStore) -> None:
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


def test_a_failing_poll_loop_commits_nothing_of_the_last_call(store: DirectoryStore) -> None:
    fill(store, 10)

    def work() -> None:
        with store.consumer("billing", ["orders"]) as consumer:
            consumer.poll(1, max_records=4)
            consumer.poll(1, max_records=4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(store) == 4


def test_closing_from_another_thread_commits_without_the_record_in_hand(store: DirectoryStore) -> None:
    fill(store, 5)
    consumer = store.consumer("billing", ["orders"])
    for record in consumer:
        if record.offset == 2:
            closer = threading.Thread(target=consumer.close)
            closer.start()
            closer.join(PATIENCE_S)
            break
    assert committed(store) == 2


def test_closing_the_store_closes_its_consumers_in_order(store: DirectoryStore) -> None:
    consumer = store.consumer("billing", ["orders"])
    fill(store, 3)
    assert len(list(consumer.drain())) == 3
    directory = store._directory
    store.close()
    with pytest.raises(LogClosed):
        consumer.poll(0)
    if isinstance(directory, MemoryDirectory):
        with DirectoryStore.open(directory) as again:
            assert committed(again) == 3


def test_manual_means_manual(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        assert len(list(consumer.drain())) == 5
    with store.consumer("billing", ["orders"]) as consumer:
        assert consumer.committed("orders", 0) is None
        assert consumer.position("orders", 0) == 0


def test_automatic_commits_come_while_records_are_read(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=1) as consumer:
        for record in consumer:
            if record.offset == 4:
                break
        until(lambda: consumer.committed("orders", 0) == 5, consumer)


def test_an_automatic_commit_in_the_middle_of_a_chunk_is_without_the_record_in_hand(store: DirectoryStore) -> None:
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


def test_positions_can_be_committed_one_by_one(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        list(consumer.drain())
        consumer.commit({("orders", 0): 2})
        assert consumer.committed("orders", 0) == 2
        assert consumer.committed("orders", 1) is None


@for_each("offset", [-1, True, "3", 2.0])
def test_what_is_no_offset_is_not_committed(store: DirectoryStore, offset: Any) -> None:
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        with pytest.raises(InvalidConfig):
            consumer.commit({("orders", 0): offset})
        assert consumer.committed("orders", 0) is None


def test_a_partition_that_is_not_assigned_is_not_committed(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        with pytest.raises(GroupError):
            consumer.commit({("orders", 7): 1})
        with pytest.raises(GroupError):
            consumer.position("orders", 7)


def test_a_commit_without_news_writes_nothing(store: DirectoryStore) -> None:
    fill(store, 5)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
        list(consumer.drain())
        consumer.commit()
        end = offsets_written(store)
        consumer.commit()
        assert offsets_written(store) == end


def offsets_written(store: DirectoryStore) -> int:
    with store.groups._offsets.turn() as turn:
        return turn._log.next_offset


# --- what is refused


@for_each(
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
def test_settings_that_cannot_work_are_refused(store: DirectoryStore, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        store.consumer("billing", ["orders"], **options)


@for_each("topics", [[], [7], [None]])
def test_a_consumer_needs_topics(store: DirectoryStore, topics: Any) -> None:
    with pytest.raises(InvalidConfig):
        store.consumer("billing", topics)


def test_a_closed_consumer_says_so(store: DirectoryStore) -> None:
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


def test_a_consumer_leaves_no_file_of_its_own_behind(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(0)
    assert [name for name in names(store, "billing") if name.startswith("member-")] == []


# --- transactions of Kafka's producers


def test_a_consumer_waits_for_open_transactions_and_passes_over_aborted_ones(store: DirectoryStore) -> None:
    log = store.topic("orders").partition(0)
    send(log, [b"gone"], 7)
    log.append_marker(7, 0, commit=False)
    send(log, [b"mine"], 7)
    log.append(b"after")
    with store.consumer("billing", ["orders"]) as consumer:
        assert consumer.poll(0) == []
        assert consumer.lag() == {("orders", 0): 0, ("orders", 1): 0}
        log.append_marker(7, 0, commit=True)
        assert values(consumer.poll(PATIENCE_S)) == [b"mine", b"after"]
        consumer.commit()
    assert committed(store) == 5
    with store.consumer(None, ["orders"], isolation="uncommitted") as consumer:
        assert values(consumer.drain()) == [b"gone", b"mine", b"after"]
    assert values(store.topic("orders").scan()) == [b"mine", b"after"]
    assert values(store.topic("orders").scan(isolation="uncommitted")) == [b"gone", b"mine", b"after"]


def test_a_waiting_consumer_is_given_what_is_committed_meanwhile(store: DirectoryStore) -> None:
    log = store.topic("orders").partition(0)
    send(log, [b"mine"], 7)
    with store.consumer(None, ["orders"]) as consumer:
        ending = threading.Timer(0.1, lambda: log.append_marker(7, 0, commit=True))
        ending.start()
        assert next(iter(consumer)).value == b"mine"
        ending.join()


def test_latest_is_where_everything_is_decided(store: DirectoryStore) -> None:
    log = store.topic("orders").partition(0)
    log.append(b"before")
    send(log, [b"mine"], 7)
    with store.consumer(None, ["orders"], start="latest") as consumer:
        log.append_marker(7, 0, commit=True)
        assert values(consumer.poll(PATIENCE_S)) == [b"mine"]


def test_an_isolation_that_there_is_not_is_refused(store: DirectoryStore) -> None:
    with pytest.raises(InvalidConfig, match="isolation"):
        store.consumer(None, ["orders"], isolation="none")
