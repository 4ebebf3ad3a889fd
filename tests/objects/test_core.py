"""Calls see a fresh state and cost few requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from sawlog.batch.build import encode
from sawlog.errors import TopicNotFound
from sawlog.store.objects.store import ObjectStore

from .simulated import InlineCommitter, SimulatedBucket, SimulatedClocks, World

#: Longer than a state is fresh.
ROUND_TRIP_S = 0.1


class SlowBucket(SimulatedBucket):
    """A bucket that delays and counts requests."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.counts: Counter[str] = Counter()

    def _counted(self, kind: str, request: Callable[[], Any]) -> Any:
        self.counts[kind] += 1
        self._world.now_s += ROUND_TRIP_S / 2
        found = request()
        self._world.now_s += ROUND_TRIP_S / 2
        return found

    def create(self, key: str, data: bytes) -> bool:
        return self._counted("create", lambda: SimulatedBucket.create(self, key, data))

    def put(self, key: str, data: bytes) -> None:
        self._counted("put", lambda: SimulatedBucket.put(self, key, data))

    def get(self, key: str) -> bytes | None:
        return self._counted("get", lambda: SimulatedBucket.get(self, key))

    def list(self, prefix: str, after: str = "") -> Iterator[Any]:
        return self._counted("list", lambda: SimulatedBucket.list(self, prefix, after))


@pytest.fixture
def world() -> Iterator[World]:
    with mock.patch("sawlog.store.objects.session.Committer", InlineCommitter):
        yield World(0)


def opened(world: World, mode: Any = "w") -> tuple[ObjectStore, SlowBucket]:
    bucket = SlowBucket(world)
    return ObjectStore.open(bucket, mode, maintenance_interval_s=None, clocks=SimulatedClocks(world)), bucket


def transact(store: ObjectStore) -> None:
    with store.transaction() as transaction:
        transaction.append("t", b"a")
        transaction.append("t", b"b", key=b"k")


APPENDS: dict[str, Callable[[ObjectStore, Any, Any], object]] = {
    "topic.append": lambda store, topic, log: topic.append(b"x"),
    "topic.append with a key": lambda store, topic, log: topic.append(b"x", key=b"k"),
    "topic.append to a partition": lambda store, topic, log: topic.append(b"x", partition=1),
    "topic.append_many": lambda store, topic, log: topic.append_many([(b"x", b"1"), (b"y", b"2"), (b"z", b"3")]),
    "topic.append_stream": lambda store, topic, log: topic.append_stream([b"x", b"y"]),
    "topic.append_arrow": lambda store, topic, log: topic.append_arrow(pa.table({"value": [b"x"], "key": [b"k"]})),
    "topic.append_batches": lambda store, topic, log: topic.append_batches(encode([b"x"]), 1),
    "topic.trim": lambda store, topic, log: topic.trim({0: 0}),
    "partition.append": lambda store, topic, log: log.append(b"x"),
    "partition.append_many": lambda store, topic, log: log.append_many([b"x", b"y"]),
    "partition.append_batches": lambda store, topic, log: log.append_batches(encode([b"x"])),
    "transaction": lambda store, topic, log: transact(store),
    "groups.commit": lambda store, topic, log: store.groups.commit("g", {("t", 0): 1}),
}


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS.keys())
def test_an_append_of_a_lone_writer_costs_one_create(world: World, append: Callable[..., object]) -> None:
    store, bucket = opened(world)
    topic = store.create_topic("t", partitions=2)
    topic.append(b"first")
    log = topic.partition(0)
    bucket.counts.clear()
    for _ in range(3):
        world.now_s += 1
        append(store, topic, log)
    assert bucket.counts == {"create": 3}


def test_a_commit_of_a_consumer_costs_one_create(world: World) -> None:
    store, bucket = opened(world)
    store.create_topic("t").append_many([b"x"] * 3)
    with store.consumer("g", ["t"], auto_commit_ms=None) as consumer:
        assert len(list(consumer.drain())) == 3
        with consumer._lock:  # nothing happens in the background meanwhile
            bucket.counts.clear()
            consumer.commit()
            assert bucket.counts["create"] == 1
            assert bucket.counts["get"] <= 1  # the membership is checked once a second anyway


def test_an_append_sees_partitions_that_another_process_has_added(world: World) -> None:
    (store, _), (other, _) = opened(world), opened(world)
    topic = store.create_topic("t")
    topic.append(b"x")
    with pytest.raises(TopicNotFound, match="partitions 0 to 0, not 2"):
        topic.append(b"y", partition=2)
    other.alter_topic("t", partitions=3)
    assert topic.append(b"y", partition=2).partition == 2
    assert set(topic.append_many([(b"v", b"%d" % number) for number in range(50)])) == {0, 1, 2}


def test_the_age_of_a_state_counts_from_its_request_and_not_from_the_answer(world: World) -> None:
    (writer, _), (reader, bucket) = opened(world), opened(world)
    topic = writer.create_topic("t")
    seen = reader.topic("t").partition(0)
    assert len(seen) == 0
    world.now_s += 1
    real = bucket.get

    def slow(key: str) -> bytes | None:
        found = real(key)
        bucket.get = real  # type: ignore[method-assign]
        topic.append(b"while the answer is on its way")
        world.now_s += 3
        return found

    bucket.get = slow  # type: ignore[method-assign]
    assert seen.visible_offset == 0
    assert seen.visible_offset == 1  # acknowledged three seconds before this call


def test_one_call_does_not_poll_a_slow_bucket_repeatedly(world: World) -> None:
    store, bucket = opened(world)
    store.create_topic("t").append_many([b"x"] * 3)
    for _ in range(4):  # so that its slowness is known
        world.now_s += 1
        assert store.topic("t").partition(0).visible_offset == 3
    world.now_s += 1
    bucket.counts.clear()
    assert len(list(store.topic("t").scan())) == 3
    assert bucket.counts["get"] <= 1
