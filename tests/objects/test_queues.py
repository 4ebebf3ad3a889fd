"""A queue on object storage delivers each message to one worker, and again until it is acknowledged."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from sawlog.errors import GroupActive
from sawlog.store.groups import Committed, TurnConflict
from sawlog.store.objects.membership import ObjectDeliveries, ObjectWorkers, pages_of
from sawlog.store.objects.store import ObjectStore
from sawlog.store.options import QueueOptions


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None) as store:
        yield store


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_an_acknowledged_message_is_not_delivered_again(store: ObjectStore) -> None:
    store.create_topic("jobs", 2).append_many([(b"%d" % number, b"%d" % number) for number in range(10)])
    with store.queue("jobs", "workers") as queue:
        taken = queue.receive(4, 5.0)
        for message in taken:
            queue.ack(message)
    with store.queue("jobs", "workers") as queue:
        rest = queue.receive(10, 5.0)
        assert {message.value for message in taken} | {message.value for message in rest} == {
            b"%d" % n for n in range(10)
        }
        assert len(rest) == 6
        for message in rest:
            queue.ack(message)
    assert sum(row.lag for row in store.groups.describe("workers").rows) == 0


def test_workers_that_opened_the_store_themselves_share_the_messages(store: ObjectStore) -> None:
    store.create_topic("jobs").append_many([b"%d" % number for number in range(60)])
    done: list[bytes] = []

    def work() -> None:
        with (
            ObjectStore.open(store.path, maintenance_interval_s=None) as mine,
            mine.queue("jobs", "workers", prefetch=5) as queue,
        ):
            for message in queue.drain():
                done.append(message.value or b"")
                queue.ack(message)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done, key=int) == [b"%d" % number for number in range(60)]


def test_of_two_concurrent_exchanges_one_is_rejected(store: ObjectStore) -> None:
    topic = store.create_topic("jobs")
    topic.append(b"a")
    wanted = QueueOptions("jobs", "workers", 30.0, 5, None, "earliest", 10, None)
    crew = ObjectWorkers(store._session, wanted)
    worker = crew.join()
    books = ObjectDeliveries(store._session, crew)
    with books.turn() as first, books.turn() as second:
        assert first.pages("workers") == second.pages("workers") == {}
        made = {("jobs", 0): Committed.by_member(worker, topic.id, 1, 0)}
        first.write_all([("workers", made)], pages={"workers": {("jobs", 0): {0: b"page"}}})
        with pytest.raises(TurnConflict):
            second.write_all([("workers", made)], pages={"workers": {("jobs", 0): {0: b"other"}}})
    assert pages_of(store._session._journal.state, "workers") == {("jobs", 0): {0: b"page"}}


def test_an_unacknowledged_message_is_redelivered_and_then_dead(store: ObjectStore) -> None:
    store.create_topic("jobs").append(b"poison")
    with store.queue("jobs", "workers", visibility_s=0.1, max_deliveries=2) as queue:
        assert queue.receive(1, 5.0)[0].deliveries == 1
        again: list[int] = []
        _wait(lambda: bool(again.extend(message.deliveries for message in queue.receive(1, 0.2)) or again))
        assert again == [2]
        _wait(lambda: queue.receive(1, 0.2) == [] and "jobs-dead" in store)
        _wait(lambda: len(store.topic("jobs-dead").partition(0)) == 1)
    assert [record.value for record in store.topic("jobs-dead").scan()] == [b"poison"]


def test_a_group_cannot_mix_workers_and_consumers(store: ObjectStore) -> None:
    store.create_topic("jobs").append(b"a")
    with store.queue("jobs", "workers"):
        with pytest.raises(GroupActive):
            store.consumer("workers", ["jobs"])
        with pytest.raises(GroupActive):
            store.groups.commit("workers", {("jobs", 0): 1})
    with store.consumer("readers", ["jobs"]), pytest.raises(GroupActive):
        store.queue("jobs", "readers")


def test_seeking_a_group_resets_its_queue(store: ObjectStore) -> None:
    store.create_topic("jobs").append_many([b"a", b"b"])
    with store.queue("jobs", "workers") as queue:
        first, second = queue.receive(2, 5.0)
        queue.ack(second)
        queue.release(first)
    store.groups.seek("workers", {("jobs", 0): "earliest"})
    with store.queue("jobs", "workers") as queue:
        assert [message.value for message in queue.receive(2, 5.0)] == [b"a", b"b"]
