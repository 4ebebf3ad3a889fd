"""Snapshots and forks: a snapshot keeps its records, whatever happens to its topics, and copies nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from unittest import mock

import pytest

from sawlog.batch.build import encode
from sawlog.errors import (
    InvalidTopicName,
    ReadOnlyLog,
    SnapshotExists,
    SnapshotNotFound,
    StorageError,
    TopicExists,
    TopicNotFound,
)
from sawlog.spark.options import read_options
from sawlog.spark.reading import BatchReader
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.objects.state import State
from sawlog.store.objects.state.entries import is_in_snapshot
from sawlog.store.objects.store import ObjectStore
from sawlog.store.objects.topic import ObjectTopic

from . import scenario
from .simulated import World
from .test_maintain import collect_for_long, objects, opened


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    with ObjectStore.open(url, maintenance_interval_s=None) as made:
        yield made


@pytest.fixture
def orders(store: ObjectStore) -> ObjectTopic:
    topic = store.create_topic("orders", 2)
    append(topic, *range(20))
    return topic


def append(topic: ObjectTopic, *values: int) -> None:
    for value in values:
        topic.partition(value % topic.partitions).append_batches(encode([b"%d" % value]))


def values(topic: ObjectTopic) -> list[int]:
    return sorted(int(record.value or b"") for record in topic.scan())


def test_a_snapshot_keeps_its_records_whatever_happens_later(store: ObjectStore, orders: ObjectTopic) -> None:
    taken = store.snapshot("before")
    append(orders, 20, 21)
    orders.partition(0).trim(8)
    kept = store.topic("orders", at="before")
    assert (values(kept), values(orders)) == (list(range(20)), [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19, 20, 21])
    store.delete_topic("orders")
    assert values(store.topic("orders", at=taken)) == list(range(20))
    assert [(each.name, each.topics) for each in store.snapshots()] == [("before", ("orders",))]
    assert store.topics(at="before") == ["orders"]
    assert (kept.partitions, kept.partition(1).visible_offset) == (2, 10)


def test_a_snapshot_of_some_topics_has_only_these(store: ObjectStore, orders: ObjectTopic) -> None:
    store.create_topic("stock")
    store.snapshot("some", ["stock"])
    assert store.topics(at="some") == ["stock"]
    with pytest.raises(TopicNotFound, match="snapshot"):
        store.topic("orders", at="some")
    with pytest.raises(TopicNotFound):
        store.snapshot("none", ["nothing"])
    assert [each.name for each in store.snapshots()] == ["some"]


def test_a_snapshots_name_is_unique_and_can_be_reused_after_deletion(store: ObjectStore, orders: ObjectTopic) -> None:
    store.snapshot("before")
    with pytest.raises(SnapshotExists):
        store.snapshot("before")
    kept = store.topic("orders", at="before")
    store.delete_snapshot("before")
    with pytest.raises(TopicNotFound, match="deleted"):
        kept.partition(0)
    with pytest.raises(SnapshotNotFound):
        store.delete_snapshot("before")
    with pytest.raises(SnapshotNotFound):
        store.topic("orders", at="before")
    with pytest.raises(InvalidTopicName):
        store.snapshot("a/b")
    append(orders, 20)
    store.snapshot("before")
    assert values(store.topic("orders", at="before")) == list(range(21))


def test_a_snapshot_is_read_only(store: ObjectStore, orders: ObjectTopic) -> None:
    store.snapshot("before")
    kept = store.topic("orders", at="before")
    with pytest.raises(ReadOnlyLog, match="fork"):
        append(kept, 1)
    with pytest.raises(ReadOnlyLog):
        kept.partition(0).trim(5)
    assert values(kept) == list(range(20))


def test_a_fork_and_its_source_change_independently(store: ObjectStore, orders: ObjectTopic) -> None:
    store.alter_topic("orders", retention_ms=10**12)
    store.snapshot("before")
    append(orders, 20)
    now, then = orders.fork("now"), orders.fork("then", at="before")
    again = store.topic("orders", at="before").fork("again")
    append(now, 100)
    append(then, 200)
    orders.partition(0).trim(10)
    assert values(now) == [*range(21), 100]
    assert values(then) == [*range(20), 200]
    assert values(again) == list(range(20))
    assert then.settings == {"retention.ms": 10**12}
    assert len({orders.id, now.id, then.id, again.id}) == 4
    store.delete_topic("orders")
    store.delete_snapshot("before")
    assert (values(store.topic("now")), values(again)) == ([*range(21), 100], list(range(20)))


def test_a_fork_requires_a_free_name_and_an_existing_source(store: ObjectStore, orders: ObjectTopic) -> None:
    with pytest.raises(TopicExists):
        orders.fork("orders")
    with pytest.raises(SnapshotNotFound):
        orders.fork("other", at="before")
    store.snapshot("before")
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(TopicNotFound):
        store.topic("orders").fork("other", at="before")  # another topic of that name
    assert values(store.topic("orders", at="before").fork("other")) == list(range(20))


def test_a_rejected_fork_is_rolled_back_completely(store: ObjectStore, orders: ObjectTopic) -> None:
    """A request is applied completely or not at all."""
    number = store._session.look(lambda state: state.digest, fresh=True)
    fork = {"do": "fork topic", "name": "half", "id": "x", "source": "orders", "source_id": orders.id, "at": None}
    snapshot = {"do": "take snapshot", "name": "half", "topics": None, "time_ms": 1}
    with pytest.raises(TopicNotFound):
        store._session.commit([fork, snapshot, {"do": "delete topic", "name": "nothing"}])
    assert store.topics() == ["orders"]
    assert store.snapshots() == []
    before = store._session.look(lambda state: {name for name, _ in state.entries if "nonce" not in name})
    assert not [name for name in before if "half" in name or "/x/" in name], number
    append(orders, 20)
    assert values(orders) == list(range(21))


def test_snapshots_survive_a_restart_from_a_checkpoint(url: str, store: ObjectStore, orders: ObjectTopic) -> None:
    store.snapshot("before")
    orders.fork("other", at="before")
    store._session.checkpoint()
    append(orders, 20)  # confirms it
    with ObjectStore.open(url, "r") as read:
        assert values(read.topic("orders", at="before")) == list(range(20))
        assert values(read.topic("other")) == list(range(20))


def test_collection_keeps_objects_exactly_as_long_as_snapshots_or_forks_refer_to_them() -> None:
    """The records are in commits and in uploads, some of them replaced by consolidation since."""
    world = World(0)
    with opened(world) as store:
        topic = store.create_topic("orders")
        append(topic, *range(20))
        with mock.patch("sawlog.store.objects.session.INLINE_BATCH_BYTES", 0):
            append(topic, *range(20, 40))
        store.snapshot("before")
        assert store.maintain()
        fork = topic.fork("other")
        store.delete_topic("orders")
        collect_for_long(world, store)
        assert values(store.topic("orders", at="before")) == values(fork) == list(range(40))
        store.delete_topic("other")
        collect_for_long(world, store)
        assert values(opened(world, "r").topic("orders", at="before")) == list(range(40))
        assert objects(world, "staged/")
        assert not objects(world, "segments/")
        store.delete_snapshot("before")
        collect_for_long(world, store)
        assert not objects(world, "staged/")
        sizes = [len(data) for key, (data, *_) in world.objects.items() if key.startswith("commits/")]
        assert len(sizes) < 30


def test_spark_reads_a_snapshot_by_its_name(url: str, store: ObjectStore, orders: ObjectTopic) -> None:
    store.snapshot("before")
    append(orders, 20)
    store.delete_topic("orders")
    for chosen in ({"topic": "orders"}, {"subscribePattern": "ord.*"}):
        given = read_options({"path": url, "snapshot": "before", **chosen}, streaming=False)
        reader = BatchReader(given, ("value",))
        found = [value for task in reader.partitions() for each in reader.read(task) for value in each[0].to_pylist()]
        assert sorted(map(int, found)) == list(range(20))
    given = read_options({"path": url, "snapshot": "after", "topic": "orders"}, streaming=False)
    with pytest.raises(SnapshotNotFound):
        BatchReader(given, ("value",)).partitions()


def test_a_directory_refuses_snapshots(tmp_path: object) -> None:
    with DirectoryStore.open(str(tmp_path)) as store:
        topic = store.create_topic("orders")
        assert store.snapshots() == []
        for call in (
            lambda: store.snapshot("before"),
            lambda: store.delete_snapshot("before"),
            lambda: store.topic("orders", at="before"),
            lambda: store.topics(at="before"),
            lambda: topic.fork("other"),
        ):
            with pytest.raises(StorageError, match="object storage"):
                call()


def _without_snapshots(state: State) -> set[str]:
    """Plant a bug: objects that only snapshots refer to count as unneeded."""
    extents = [(name.split("/")[1], value) for name, value in state.entries if name.startswith("extent/")]
    return {value[0] for topic, value in extents if not is_in_snapshot(topic)}


@pytest.mark.parametrize("bug", [False, True])
def test_a_collector_that_ignores_snapshots_is_found(*, bug: bool) -> None:
    world = World(0)
    with opened(world) as store, mock.patch("sawlog.store.objects.session.INLINE_BATCH_BYTES", 0):
        append(store.create_topic("orders"), *range(20))
        store.snapshot("before")
        store.delete_topic("orders")
        with mock.patch.object(State, "referenced", _without_snapshots if bug else State.referenced):
            collect_for_long(world, store)
        if bug:
            with pytest.raises(StorageError):
                values(store.topic("orders", at="before"))
        else:
            assert values(store.topic("orders", at="before")) == list(range(20))


def test_snapshots_survive_kills_and_stops_of_writers_and_maintainers() -> None:
    """Simulated stories with snapshots that are read repeatedly. A story without snapshots is replaced by another."""
    for seed in range(3, 30):
        found = scenario.run(seed, steps=5000)
        assert found.wrong == []
        if found.kept:
            return
    raise AssertionError("no snapshot was read")
