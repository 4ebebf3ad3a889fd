"""Queues in one process: delivery, answers, timeouts, dead letters, delays, and refused arguments."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Message, Queue, QueueCounts, Store
from sawlog.errors import (
    CorruptBatch,
    GroupActive,
    GroupError,
    InvalidConfig,
    InvalidRecord,
    LogClosed,
    ReadOnlyLog,
    TopicNotFound,
)
from sawlog.store.queues import delivery as delivery_module
from sawlog.store.queues import queue as queue_module

from ...looping import for_each

PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as made:
        made.create_topic("orders", partitions=2)
        yield made


def fill(store: Store, count: int, partition: int = 0) -> list[bytes]:
    values = [b"%d/%d" % (partition, number) for number in range(count)]
    store["orders"].append_many(values, partition=partition)
    return values


def acked(queue: Queue) -> list[bytes]:
    """All messages that are there, acknowledged."""
    found: list[bytes] = []
    for message in queue.drain():
        assert message.value is not None
        found.append(message.value)
        queue.ack(message)
    return found


def until(queue: Queue, count: int = 1) -> list[Message]:
    """Wait for messages."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += queue.receive(count - len(found), timeout_s=0.5)
    return found


def lag(store: Store, group: str = "workers") -> int:
    return sum(row.lag for row in store.groups.describe(group).rows)


def test_each_message_is_delivered_once_and_finished_by_its_ack(store: Store) -> None:
    values = fill(store, 30) + fill(store, 30, partition=1)
    with store.queue("orders", group="workers") as queue:
        assert sorted(acked(queue)) == sorted(values)
        assert acked(queue) == []
    assert lag(store) == 0
    assert store.groups._offsets.pages("workers") == {}  # nothing is left to remember
    fill(store, 1)
    with store.queue("orders", group="workers") as queue:
        assert acked(queue) == [b"0/0"]


def test_messages_are_acknowledged_in_any_order_and_each_by_itself(store: Store) -> None:
    fill(store, 10)
    with store.queue("orders", group="workers") as queue:
        messages = queue.receive(10)
        assert [message.offset for message in messages] == list(range(10))
        for message in messages[::-2]:
            queue.ack(message)
    assert store.groups.describe("workers").rows[0].committed == 0
    with store.queue("orders", group="workers") as queue:
        again = queue.receive(10)
        assert [(message.offset, message.deliveries) for message in again] == [(n, 2) for n in (0, 2, 4, 6, 8)]
        for message in again:
            queue.ack(message)
    assert store.groups.describe("workers").rows[0].committed == 10


def test_a_released_message_comes_again_with_a_higher_count(store: Store) -> None:
    fill(store, 1)
    with store.queue("orders", group="workers", max_deliveries=None) as queue:
        for count in range(1, 8):
            (message,) = until(queue)
            assert message.deliveries == count
            queue.release(message)
        queue.ack(until(queue)[0])
        assert acked(queue) == []


def test_a_delayed_release_comes_after_its_time(store: Store) -> None:
    fill(store, 1)
    with store.queue("orders", group="workers") as queue:
        (message,) = queue.receive()
        released = time.monotonic()
        queue.release(message, delay_s=0.3)
        (message,) = list(queue.drain()) or until(queue)
        assert time.monotonic() - released >= 0.29
        assert message.deliveries == 2


def test_a_message_with_a_delay_is_delivered_then_and_others_before(store: Store) -> None:
    with store.queue("orders", group="workers") as queue:
        put = time.monotonic()
        queue.put(b"later", b"k", [("h", b"1")], delay_s=1.5)
        queue.put(b"now", b"k", {"given": b"as a dict"})
        (now,) = until(queue)
        assert now.headers == (("given", b"as a dict"),)
        queue.ack(now)
        (message,) = until(queue)
        assert time.monotonic() - put >= 1.49
        assert (message.value, message.key, message.deliveries, message.headers[0]) == (b"later", b"k", 1, ("h", b"1"))


def test_many_delayed_messages_do_not_hide_those_after_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "_MOST_AT_ONCE", 5)
    with store.queue("orders", group="workers") as queue:
        for _ in range(23):
            queue.put(b"later", b"k", delay_s=3600)
        queue.put(b"now", b"k")
        assert acked(queue) == [b"now"]
        assert lag(store) == 24  # nothing is finished before the first one is


def test_counts_tell_the_states_of_messages_apart(store: Store) -> None:
    fill(store, 5)
    with store.queue("orders", group="workers") as queue:
        assert queue.counts() == QueueCounts(ready=5, delayed=0, in_flight=0, dead=0)
        first, second, third, fourth = queue.receive(4)
        queue.ack(first)
        queue.release(second, delay_s=3600)
        queue.reject(third)
        found = queue.counts()
        assert (found.ready + found.in_flight, found.delayed, found.dead, found.unfinished) == (2, 1, 1, 3)
        queue.release(fourth)
        rest = acked(queue)
        assert sorted(rest) == [b"0/3", b"0/4"]
        assert queue.counts() == QueueCounts(ready=0, delayed=1, in_flight=0, dead=1)
        sawlog.redrive(store, queue.dead_letters)
        assert queue.counts() == QueueCounts(ready=1, delayed=1, in_flight=0, dead=0)


def test_a_released_message_backs_off_further_with_each_delivery(store: Store) -> None:
    fill(store, 1)
    released: list[float] = []
    with store.queue("orders", group="workers", backoff_s=0.1, max_backoff_s=0.2, max_deliveries=4) as queue:
        for message in queue.drain(wait=True):
            released.append(time.monotonic())
            queue.release(message)
        assert queue.counts() == QueueCounts(0, 0, 0, dead=1)
    waited = [later - earlier for earlier, later in itertools.pairwise(released)]
    assert len(waited) == 3
    assert all(each >= least for each, least in zip(waited, (0.09, 0.19, 0.19), strict=True))


def test_a_draining_worker_can_wait_for_retries_and_for_other_workers(store: Store) -> None:
    fill(store, 3)
    with store.queue("orders", group="workers") as queue, store.queue("orders", group="workers") as other:
        (elsewhere,) = other.receive()
        threading.Timer(0.3, other.release, [elsewhere]).start()
        seen: list[tuple[int, int]] = []
        for message in queue.drain(wait=True):
            seen.append((message.offset, message.deliveries))
            if message.deliveries == 1:
                queue.release(message, delay_s=0.1)
            else:
                queue.ack(message)
        assert Counter(offset for offset, _ in seen) == {elsewhere.offset: 1, 1: 2, 2: 2}
        assert queue.counts().unfinished == 0


def test_a_group_description_tells_the_lag_of_a_queue_from_its_open_messages(store: Store) -> None:
    fill(store, 5)
    with store.queue("orders", group="workers") as queue:
        first, *others = queue.receive(5)
        for message in others:
            queue.ack(message)
        queue.release(first, delay_s=3600)
        queue.flush()
        assert [(row.lag, row.open) for row in store.groups.describe("workers").rows] == [(5, 1), (0, 0)]
    assert [(row.lag, row.open) for row in store.groups.describe("workers").rows] == [(5, 1), (0, 0)]
    store.groups.commit("readers", {("orders", 0): 2})
    assert [(row.lag, row.open) for row in store.groups.describe("readers").rows] == [(3, None), (0, None)]


def test_a_message_without_an_answer_comes_again_after_the_time_out(store: Store) -> None:
    fill(store, 2)
    with (
        store.queue("orders", group="workers", visibility_s=0.3) as slow,
        store.queue("orders", group="workers") as other,
    ):
        first, second = slow.receive(2)
        slow.ack(first)
        slow.flush()
        assert acked(other) == []
        (message,) = until(other)
        assert (message.offset, message.deliveries) == (second.offset, 2)
        slow.ack(second)  # too late
        slow.flush()
        assert slow.late_answers == 1
        other.release(message)
        assert acked(other) == [b"0/1"]


def test_a_late_answer_counts_if_no_other_worker_had_the_message(store: Store) -> None:
    fill(store, 1)
    with store.queue("orders", group="workers", visibility_s=0.05) as queue:
        (message,) = queue.receive()
        while message.until_ms > time.time() * 1000:
            time.sleep(0.005)
        queue.ack(message)
        queue.flush()
        assert queue.late_answers == 0
    assert lag(store) == 0


def test_a_message_can_be_kept_longer(store: Store) -> None:
    fill(store, 1)
    with (
        store.queue("orders", group="workers", visibility_s=0.2) as slow,
        store.queue("orders", group="workers") as other,
    ):
        (message,) = slow.receive()
        before = message.until_ms
        slow.extend(message, 60)
        assert message.until_ms > before + 50_000
        assert other.receive(timeout_s=0.5) == []
        slow.ack(message)
        with pytest.raises(GroupError, match="answered before"):
            slow.extend(message)


def test_after_the_last_delivery_a_message_is_a_dead_letter(store: Store) -> None:
    fill(store, 2)
    with store.queue("orders", group="workers", max_deliveries=3) as queue:
        counts: Counter[int] = Counter()
        for message in queue.drain():
            counts[message.offset] += 1
            if message.offset == 0:
                queue.release(message)
            else:
                queue.ack(message)
        assert counts == {0: 3, 1: 1}
    (letter,) = store["orders-dead"].scan()
    told = dict(letter.headers)
    assert letter.value == b"0/0"
    assert told["sawlog.dead.topic"] == b"orders"
    assert (told["sawlog.dead.partition"], told["sawlog.dead.offset"]) == (b"0", b"0")
    assert (told["sawlog.dead.group"], told["sawlog.dead.deliveries"]) == (b"workers", b"3")
    assert told["sawlog.dead.reason"] == b"released after 3 deliveries"
    assert lag(store) == 0


def test_an_unanswered_message_becomes_a_dead_letter(store: Store) -> None:
    fill(store, 1)
    with store.queue("orders", group="workers", max_deliveries=2, visibility_s=0.05, dead_letters="dead") as queue:
        assert [until(queue)[0].deliveries for _ in range(2)] == [1, 2]
        deadline = time.monotonic() + PATIENCE_S
        while "dead" not in store.topics() or not list(store["dead"].scan()):
            assert time.monotonic() < deadline
            assert queue.receive(timeout_s=0.05) == []
    (letter,) = store["dead"].scan()
    assert dict(letter.headers)["sawlog.dead.reason"] == b"not acknowledged after 2 deliveries"


def test_a_rejected_message_is_a_dead_letter_at_once_with_its_reason(store: Store) -> None:
    store["orders"].append(b"v", b"k", (("h", None),), partition=1)
    with store.queue("orders", group="workers") as queue:
        (message,) = queue.receive()
        queue.reject(message, "no such customer: é")
        queue.flush()
        (letter,) = store["orders-dead"].scan()
    assert (letter.value, letter.key, letter.headers[0]) == (b"v", b"k", ("h", None))
    assert dict(letter.headers)["sawlog.dead.reason"] == "no such customer: é".encode()
    assert lag(store) == 0


def test_leaving_by_an_exception_gives_the_message_back(store: Store) -> None:
    fill(store, 5)

    def work() -> None:
        with store.queue("orders", group="workers") as queue:
            for message in queue:
                if message.offset == 2:
                    raise ZeroDivisionError
                queue.ack(message)

    with pytest.raises(ZeroDivisionError):
        work()
    with store.queue("orders", group="workers") as queue:
        assert [(each.offset, each.deliveries) for each in queue.drain()] == [(2, 2), (3, 1), (4, 1)]


def test_what_was_fetched_and_not_handed_out_does_not_count_as_delivered(store: Store) -> None:
    fill(store, 100)
    with store.queue("orders", group="workers") as queue:
        for message in queue:
            queue.ack(message)
            if message.offset == 50:
                break
        assert queue._ready  # more were fetched
    with store.queue("orders", group="workers") as queue:
        assert {message.deliveries for message in queue.drain()} == {1}


def test_groups_are_independent_and_consumers_see_all_records(store: Store) -> None:
    values = fill(store, 5)
    for group in ("one", "two"):
        with store.queue("orders", group=group) as queue:
            assert acked(queue) == values
    with store.consumer("three", "orders") as consumer:
        assert [record.value for record in consumer.drain()] == values


def test_a_group_has_workers_or_consumers_but_not_both(store: Store) -> None:
    fill(store, 3)
    with store.queue("orders", group="workers", worker="alice") as queue:
        (member,) = store.groups.describe("workers").members
        assert member.name == "alice"
        with pytest.raises(GroupActive, match="workers of a queue"):
            store.consumer("workers", "orders").poll(0.0)
        for call in (
            lambda: store.groups.commit("workers", {("orders", 0): 1}),
            lambda: store.groups.delete("workers"),
            lambda: store.groups.seek("workers", {("orders", 0): 0}),
        ):
            with pytest.raises(GroupActive):
                call()
        assert len(acked(queue)) == 3
    with store.consumer("workers", "orders") as consumer:
        assert consumer.poll(0.0) == []  # continues where the queue was
        with pytest.raises(GroupActive, match="has consumers"):
            store.queue("orders", group="workers")


def test_a_group_that_is_moved_back_gets_everything_again(store: Store) -> None:
    values = fill(store, 10)
    with store.queue("orders", group="workers") as queue:
        for message in queue.receive(10):
            if message.offset != 4:
                queue.ack(message)
    assert store.groups._offsets.pages("workers")
    store.groups.seek("workers", {("orders", 0): "earliest"})
    assert store.groups._offsets.pages("workers") == {}
    with store.queue("orders", group="workers") as queue:
        assert acked(queue) == values
        queue.put(b"x", b"x")
        (message,) = until(queue)
        assert message.value == b"x"
    store.groups.delete("workers")
    assert store.groups._offsets.pages("workers") == {}
    assert "workers" not in store.groups.list()


def test_a_new_group_begins_where_it_says(store: Store) -> None:
    fill(store, 5)
    with store.queue("orders", group="workers", start="latest") as queue:
        assert acked(queue) == []
        store["orders"].append(b"new", partition=0)
        assert acked(queue) == [b"new"]


def test_a_recreated_topic_starts_over(store: Store) -> None:
    fill(store, 5)
    with store.queue("orders", group="workers") as queue:
        queue.ack(queue.receive(3)[2])
    store.delete_topic("orders")
    store.create_topic("orders")
    values = fill(store, 2)
    with store.queue("orders", group="workers") as queue:
        assert [(message.value, message.deliveries) for message in queue.drain()] == [(each, 1) for each in values]


def test_records_that_are_gone_are_passed_over(store: Store) -> None:
    fill(store, 10)
    with store.queue("orders", group="workers") as queue:
        queue.ack(queue.receive(5)[3])
    store["orders"].trim({0: 7})
    with store.queue("orders", group="workers") as queue:
        assert acked(queue) == [b"0/7", b"0/8", b"0/9"]
    assert lag(store) == 0


def test_records_at_reused_offsets_are_delivered(store: Store) -> None:
    fill(store, 10)
    with store.queue("orders", group="workers") as queue:
        for message in queue.receive(10):
            queue.ack(message)
        queue.flush()
        store["orders"].partition(0).truncate(6)
        store["orders"].append_many([b"new"] * 6, partition=0)
        assert acked(queue) == [b"new"] * 6


def test_aborted_transactions_and_compacted_records_are_not_waited_for(store: Store) -> None:
    kept = store.create_topic("kept", cleanup_policy="compact", segment_bytes=2000)
    for number in range(60):
        kept.append(b"v%d" % number * 20, b"k%d" % (number % 3))
    kept.partition(0).seal()
    kept.partition(0).compact()
    expected = [record.offset for record in kept.scan()]
    assert len(expected) < 60
    with store.queue("kept", group="workers") as queue:
        found = []
        for message in queue.drain():
            found.append(message.offset)
            queue.ack(message)
        assert found == expected
    assert lag(store) == 0


def test_large_messages_are_fetched_few_at_a_time_and_none_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "_MOST_BYTES", 1000)
    for number in range(40):
        store["orders"].append_many([b"%d" % number * 100] * 3, partition=0)
    with store.queue("orders", group="workers") as queue:
        first = queue.receive(100)
        assert sum(len(message.value or b"") for message in first) < 1500
        for message in first:
            queue.ack(message)
        assert len(first) + len(acked(queue)) == 120
    assert lag(store) == 0


def test_what_is_before_damage_is_delivered_and_the_damage_is_told(store: Store) -> None:
    fill(store, 3)
    log = store["orders"].partition(0)
    log.seal()
    log.append_many([b"behind"])
    log.seal()
    store["orders"].append_many([b"end"], partition=0)
    data = bytearray(Path(log.segments[1].path).read_bytes())
    data[-1] ^= 1
    damaged = Path(log.segments[1].path)
    store["orders"]._partitions.reopen()
    damaged.write_bytes(data)
    with store.queue("orders", group="workers") as queue:
        found = queue.receive(10)
        assert [message.value for message in found] == [b"0/0", b"0/1", b"0/2"]
        for message in found:
            queue.ack(message)
        with pytest.raises(CorruptBatch):
            queue.receive(10)
    assert store.groups.describe("workers").rows[0].committed == 3


def test_many_threads_share_one_queue_and_each_message_goes_to_one(store: Store) -> None:
    values = fill(store, 2000) + fill(store, 2000, partition=1)
    got: list[bytes] = []
    failed: list[BaseException] = []

    def work(queue: Queue) -> None:
        try:
            for number, message in enumerate(queue.drain()):
                assert message.value is not None
                if message.deliveries == 1 and number % 10 == 3:
                    queue.release(message)
                else:
                    got.append(message.value)
                    queue.ack(message)
        except BaseException as error:
            failed.append(error)

    with store.queue("orders", group="workers") as shared, store.queue("orders", group="workers") as other:
        threads = [threading.Thread(target=work, args=(queue,)) for queue in (shared, shared, shared, other, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        work(shared)
    assert failed == []
    assert sorted(got) == sorted(values)
    assert lag(store) == 0


def test_a_waiting_thread_is_woken_by_a_message_and_by_close(store: Store) -> None:
    got: list[bytes | None] = []
    queue = store.queue("orders", group="workers")

    def work() -> None:
        for message in queue:
            got.append(message.value)
            queue.ack(message)

    thread = threading.Thread(target=work)
    thread.start()
    store["orders"].append(b"one")
    deadline = time.monotonic() + PATIENCE_S
    while got != [b"one"]:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    queue.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_acks_are_written_after_a_moment_without_any_call(store: Store) -> None:
    fill(store, 1)
    with store.queue("orders", group="workers") as queue:
        queue.ack(queue.receive()[0])
        deadline = time.monotonic() + PATIENCE_S
        while lag(store):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_closing_the_store_closes_its_queues(tmp_path: Path) -> None:
    with sawlog.open(tmp_path / "other") as store:
        store.create_topic("orders").append(b"x")
        queue = store.queue("orders", group="workers")
        (message,) = queue.receive()
    with pytest.raises(LogClosed):
        queue.ack(message)
    with pytest.raises(LogClosed):
        queue.receive()
    queue.close()


def test_a_dropped_queue_lets_others_have_its_messages(store: Store) -> None:
    fill(store, 1)
    queue = store.queue("orders", group="workers")
    assert len(queue.receive()) == 1
    del queue
    with store.queue("orders", group="workers") as other:
        assert until(other)[0].deliveries == 2


def test_one_message_that_kills_takes_no_others_with_it(store: Store) -> None:
    """Workers take as many messages as they get, and die with all of them in hand if one of these is number 50."""
    fill(store, 100)
    deaths = 0
    batches: list[int] = []
    while True:
        queue = store.queue("orders", group="workers", max_deliveries=4)
        while messages := queue.receive(100, timeout_s=0.0):
            batches.append(len(messages))
            if 50 in [message.offset for message in messages]:
                deaths += 1
                break
            for message in messages:
                queue.ack(message)
            message = None  # type: ignore[assignment]
        else:
            queue.close()
            break
        del queue, messages  # as if its process had died
    assert deaths == 4
    assert batches[0] == 100
    assert max(batches[1:]) == 10
    assert [letter.value for letter in store["orders-dead"].scan()] == [b"0/50"]
    assert lag(store) == 0


def test_answers_survive_a_turn_that_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 2)
    with store.queue("orders", group="workers") as queue:
        messages = queue.receive(2)
        queue.ack(messages[0])
        queue.reject(messages[1])
        monkeypatch.setattr(queue_module.Delivery, "exchange", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            queue.flush()
        monkeypatch.undo()
    assert lag(store) == 0
    assert len(list(store["orders-dead"].scan())) == 1  # and was not put there twice


def test_answers_count_although_dead_letters_cannot_be_stored(store: Store) -> None:
    fill(store, 2)
    store.create_topic("keyed", cleanup_policy="compact")  # accepts no record without a key
    queue = store.queue("orders", group="workers", dead_letters="keyed")
    messages = queue.receive(2)
    queue.reject(messages[0])
    queue.ack(messages[1])
    with pytest.raises(InvalidRecord, match="needs a key"):
        queue.flush()
    store.alter_topic("keyed", cleanup_policy="delete")
    queue.close()
    assert lag(store) == 0
    assert [letter.value for letter in store["keyed"].scan()] == [b"0/0"]


def test_an_answer_of_a_slow_thread_is_late_and_not_an_error(store: Store) -> None:
    fill(store, 1)
    with store.queue("orders", group="workers", visibility_s=0.05) as queue:
        (slow,) = until(queue)
        (again,) = until(queue)
        assert again.deliveries == 2
        queue.ack(slow)
        assert queue.late_answers == 1
        queue.ack(again)
    assert lag(store) == 0


@for_each(
    "options",
    [
        {"group": ""},
        {"group": 7},
        {"visibility_s": 0},
        {"visibility_s": -1},
        {"visibility_s": "30"},
        {"visibility_s": float("nan")},
        {"visibility_s": float("inf")},
        {"max_deliveries": 0},
        {"max_deliveries": True},
        {"max_deliveries": 1.5},
        {"dead_letters": "orders"},
        {"start": "middle"},
        {"prefetch": 0},
        {"backoff_s": -1},
        {"max_backoff_s": "1h"},
        {"worker": 7},
    ],
)
def test_wrong_options_are_refused(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        store.queue("orders", **{"group": "workers", **options})
    assert store.groups.list() == []


def test_wrong_calls_are_refused(store: Store) -> None:
    fill(store, 2)
    with pytest.raises(TopicNotFound):
        store.queue("missing", group="workers")
    with store.queue("orders", group="workers") as queue, store.queue("orders", group="others") as other:
        (message,) = queue.receive()
        for answer in (other.ack, other.release, other.reject, other.extend):
            with pytest.raises(GroupError, match="is not with this queue"):
                answer(message)
        for call in (
            lambda: queue.ack(message.record),
            lambda: queue.receive(0),
            lambda: queue.receive(timeout_s=-1),
            lambda: queue.release(message, delay_s=-1),
            lambda: queue.put(b"x", delay_s="soon"),  # type: ignore[arg-type]
            lambda: queue.extend(message, 0),
        ):
            with pytest.raises(InvalidConfig):
                call()
        queue.ack(message)
        with pytest.raises(GroupError, match="answered before"):
            queue.ack(message)
        with pytest.raises(GroupError, match="answered before"):
            queue.release(message)
    path = store.path
    store.close()
    with sawlog.open(path, "r") as reader, pytest.raises(ReadOnlyLog):
        reader.queue("orders", group="workers")
