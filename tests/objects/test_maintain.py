"""Maintenance of a store on object storage: consolidation, retention, compaction and deletion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from unittest import mock

import pytest

from sawlog.batch.build import encode
from sawlog.batch.header import BASE, LAST
from sawlog.errors import LogClosed, ReadOnlyLog, StorageError
from sawlog.log.ingest import rows_of
from sawlog.store.objects import maintenance
from sawlog.store.objects.collect import Collector
from sawlog.store.objects.journal import StoreParameters
from sawlog.store.objects.maintenance import PartitionId, small_runs
from sawlog.store.objects.state.commit import SEGMENTS, Extent
from sawlog.store.objects.store import ObjectStore
from sawlog.store.objects.topic import ObjectTopic

from .simulated import SimulatedBucket, SimulatedClocks, World

PARAMETERS = StoreParameters(belief_s=10, grace_s=60, readers_s=5, checkpoint_every=8)


@pytest.fixture
def world() -> World:
    return World(0)


@pytest.fixture
def store(world: World) -> Iterator[ObjectStore]:
    with opened(world) as store:
        yield store


def opened(world: World, mode: str = "w") -> ObjectStore:
    return ObjectStore.open(
        SimulatedBucket(world),
        mode,  # type: ignore[arg-type]
        parameters=PARAMETERS,
        maintenance_interval_s=None,
        clocks=SimulatedClocks(world),
    )


def extents(store: ObjectStore, topic: ObjectTopic) -> list[Extent]:
    return store._session.look(lambda state: list(state.extents(topic.id, 0, 0)), fresh=True)


def values(topic: ObjectTopic) -> list[bytes | None]:
    return [each.value for each in topic.scan()]


def objects(world: World, prefix: str) -> list[str]:
    return [key for key in world.objects if key.startswith(prefix)]


def collect_for_long(world: World, store: ObjectStore) -> None:
    for _ in range(10):
        store._session.commit([{"do": "forget names", "names": []}])
        world.now_s += PARAMETERS.grace_s
        Collector(store._session, workers=1).run()


# --- consolidation


def test_small_extents_become_one_segment_with_final_offsets(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    for number in range(20):
        topic.append_many([b"%d" % number, b"more"])
    before = topic.partition(0).fetch(0).raw
    (report,) = store.maintain()
    assert report.merge
    (extent,) = extents(store, topic)
    assert extent.key.startswith(f"{SEGMENTS}{topic.id}/0/")
    data = world.objects[extent.key][0]
    assert data == bytes(before) == bytes(topic.partition(0).fetch(0).raw)  # the bytes of the batches are unchanged
    rows = rows_of(memoryview(data))
    assert (rows[:, BASE].tolist(), rows[:, LAST].tolist()) == (list(range(0, 40, 2)), list(range(1, 41, 2)))
    assert not store.maintain()


def test_staged_batches_are_consolidated_and_their_objects_removed(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    with mock.patch("sawlog.store.objects.session.INLINE_BATCH_BYTES", 0):
        for number in range(20):
            topic.append(b"%d" % number)
    assert len(objects(world, "staged/")) == 20
    store.maintain()
    collect_for_long(world, store)
    assert not objects(world, "staged/")
    assert values(opened(world, "r").topic("t")) == [b"%d" % number for number in range(20)]


def test_consolidation_leaves_extents_that_changed_meanwhile(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    for number in range(20):
        topic.append(b"%d" % number)
    (run,) = small_runs(PartitionId("t", topic.id, 0), extents(store, topic))
    topic.partition(0).trim(3)
    assert maintenance.consolidate(store._session, run) is None
    assert [each.base_offset for each in extents(store, topic)][:2] == [3, 4]
    collect_for_long(world, store)
    assert not objects(world, SEGMENTS)


def test_two_concurrent_maintainers_consolidate_once(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    for number in range(20):
        topic.append(b"%d" % number)
    (run,) = small_runs(PartitionId("t", topic.id, 0), extents(store, topic))
    with opened(world) as other:
        assert maintenance.consolidate(store._session, run)
        assert maintenance.consolidate(other._session, run) is None
    assert values(topic) == [b"%d" % number for number in range(20)]


def test_a_single_extent_in_an_old_commit_is_consolidated_so_that_the_commit_can_go(
    world: World, store: ObjectStore
) -> None:
    topic = store.create_topic("t")
    topic.append(b"alone")
    for _ in range(2 * PARAMETERS.checkpoint_every + 1):
        store._session.commit([{"do": "forget names", "names": []}])
    store.maintain()
    assert extents(store, topic)[0].key.startswith(SEGMENTS)


@pytest.mark.alternating
def test_segments_grow_so_that_few_remain(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    for number in range(400):
        topic.append(b"%03d" % number)
        if number % 16 == 15:
            store.maintain()
    assert len(extents(store, topic)) <= 10
    assert values(topic) == [b"%03d" % number for number in range(400)]


def test_batches_in_a_large_object_are_not_copied() -> None:
    def extent(base: int, key: str, size: int) -> Extent:
        return Extent(base, base + 1, key, 0, size, 0, "")

    place = PartitionId("t", "t1", 0)
    large = [extent(n, "staged/00-large", 30) for n in range(20)]
    small = [extent(20 + n, f"commits/{n:020}", 1) for n in range(20)]
    (run,) = small_runs(place, [*large, *small], segment_bytes=100)
    assert run.extents == tuple(small)


def test_a_commit_is_consolidated_however_large_its_batches_are(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t", segment_bytes=1000)
    topic.append(bytes(5000))
    for _ in range(2 * PARAMETERS.checkpoint_every + 1):
        store._session.commit([{"do": "forget names", "names": []}])
    store.maintain()
    assert extents(store, topic)[0].key.startswith(SEGMENTS)


def test_damaged_batches_are_not_consolidated(
    world: World, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    topic = store.create_topic("t")
    with mock.patch("sawlog.store.objects.session.INLINE_BATCH_BYTES", 0):
        for number in range(20):
            topic.append(b"%d" % number)
    (key, *_) = objects(world, "staged/")
    data, modified_s = world.objects[key]
    world.objects[key] = (data[:-1] + b"!", modified_s)
    assert not store.maintain()
    assert "is damaged and was not changed" in caplog.text
    assert len(extents(store, topic)) == 20


def test_a_reader_continues_after_its_extents_were_consolidated_and_removed(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    for number in range(20):
        topic.append(b"%d" % number + bytes(5000))
    with opened(world, "r") as other:
        slow = other.topic("t").partition(0)
        assert slow.visible_offset == 20
        store.maintain()
        collect_for_long(world, store)
        with mock.patch("sawlog.store.objects.session.LOOK_S", 1e9):  # as if the state was read a moment ago
            assert len(list(slow.scan())) == 20
    world.objects.pop(objects(world, SEGMENTS)[0])
    with pytest.raises(StorageError):
        list(topic.scan())


# --- retention, deletion


def test_expired_records_are_dropped(store: ObjectStore) -> None:
    topic = store.create_topic("t", retention_ms=60_000)
    topic.append(b"old", timestamp=1)
    topic.append(b"older", timestamp=0)
    topic.append(b"new")
    topic.append(b"old, but not in front", timestamp=1)
    (report,) = store.maintain()
    assert report.retention is not None
    assert report.retention.removed_records == 2
    assert values(topic) == [b"new", b"old, but not in front"]


def test_retention_by_size_drops_the_oldest_extents_but_never_the_last(store: ObjectStore) -> None:
    topic = store.create_topic("t", retention_bytes=250)
    for number in range(5):
        topic.append(b"%d" % number + bytes(50))
    store.maintain()
    assert [value[:1] for value in values(topic) if value] == [b"2", b"3", b"4"]
    store.alter_topic("t", retention_bytes=0)
    store.maintain()
    assert [value[:1] for value in values(topic) if value] == [b"4"]


def test_a_compacted_topic_does_not_expire(store: ObjectStore) -> None:
    topic = store.create_topic("t", cleanup_policy="compact", retention_ms=1)
    topic.append(b"old", key=b"k", timestamp=1)
    store.maintain()
    assert values(topic) == [b"old"]


def test_the_objects_of_a_deleted_topic_are_removed(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t")
    for number in range(20):
        topic.append(b"%d" % number)
    store.maintain()
    assert objects(world, SEGMENTS)
    store.delete_topic("t")
    collect_for_long(world, store)
    assert not objects(world, SEGMENTS)


# --- compaction


def compacted(store: ObjectStore, topic: ObjectTopic) -> None:
    """Consolidate all extents and compact them."""
    with mock.patch.object(maintenance, "_LEAST_EXTENTS", 1):
        store.maintain()


def test_the_last_record_of_each_key_is_kept_at_its_offset(store: ObjectStore) -> None:
    topic = store.create_topic("t", cleanup_policy="compact")
    for number in range(30):
        topic.append(b"%d" % number, key=b"k%d" % (number % 3))
    compacted(store, topic)
    assert [(each.offset, each.key, each.value) for each in topic.scan()] == [
        (27, b"k0", b"27"),
        (28, b"k1", b"28"),
        (29, b"k2", b"29"),
    ]
    assert topic.append(b"next", key=b"k0") == (0, 30)
    rows = rows_of(memoryview(bytearray(topic.partition(0).fetch(0).raw)))
    assert rows[1:, BASE].tolist() == (rows[:-1, LAST] + 1).tolist()  # batches cover every offset
    assert not [report for report in store.maintain() if report.compaction]


def test_compaction_continues_after_the_last_round_of_another_process(world: World, store: ObjectStore) -> None:
    topic = store.create_topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for number in range(40):
        topic.append(b"%d" % number, key=b"k%d" % (number % 4))
        if number % 10 == 9:
            with opened(world) as other:
                compacted(other, other.topic("t"))
    assert values(topic) == [b"36", b"37", b"38", b"39"]


def test_tombstones_are_dropped_after_their_retention(store: ObjectStore) -> None:
    topic = store.create_topic("t", cleanup_policy="compact", delete_retention_ms=1000)
    topic.append_many([(b"a", b"k1"), (b"b", b"k2"), (None, b"k1")])
    with mock.patch("sawlog.store.objects.maintenance.now_ms", return_value=10_000):
        compacted(store, topic)
        assert values(topic) == [b"b", None]
    with mock.patch("sawlog.store.objects.maintenance.now_ms", return_value=10_999):
        assert not store.maintain()
        topic.append_many([(None, b"k2"), (b"c", b"k3"), (b"d" * 500, b"k4")])
        compacted(store, topic)
        assert values(topic) == [None, None, b"c", b"d" * 500]
    with mock.patch("sawlog.store.objects.maintenance.now_ms", return_value=11_000):
        store.maintain()
        assert values(topic) == [None, b"c", b"d" * 500]
        assert not store.maintain()  # the other one has time
        number = store._session.known()
        store.maintain()
        assert store._session.known() == number


def test_more_keys_than_the_table_holds_take_several_rounds(store: ObjectStore) -> None:
    topic = store.create_topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for start in range(0, 3000, 500):
        topic.append_many([(bytes(300), b"%d" % (key % 1500)) for key in range(start, start + 500)])
    with mock.patch("sawlog.store.objects.maintenance._KEY_BYTES", 24 << 10):
        compacted(store, topic)
    assert [each.offset for each in topic.scan()] == list(range(1500, 3000))


# --- the maintainer


def test_an_open_store_is_maintained_in_the_background() -> None:
    done = threading.Event()
    run = mock.patch("sawlog.store.objects.maintenance.Maintainer.run", side_effect=lambda: [done.set()][:0])
    with run, ObjectStore.open("memory://background", maintenance_interval_s=0.01):
        assert done.wait(60)


def test_maintenance_requires_a_writable_store(world: World, store: ObjectStore) -> None:
    with opened(world, "r") as reading, pytest.raises(ReadOnlyLog):
        reading.maintain()


def test_maintenance_stores_a_missed_checkpoint(world: World, store: ObjectStore) -> None:
    with mock.patch("sawlog.store.objects.session.Committer._follow_up"):
        for _ in range(PARAMETERS.checkpoint_every + 1):
            store._session.commit([{"do": "forget names", "names": []}])
    assert not objects(world, "checkpoints/")
    store.maintain()
    assert objects(world, "checkpoints/")


def test_an_idle_store_is_left_alone(world: World, store: ObjectStore) -> None:
    """No commit, and no object except the clock's."""
    topic = store.create_topic("t")
    topic.append_many([encode([b"a"])])
    collect_for_long(world, store)
    store.maintain()
    store.maintain()
    number, keys = store._session.known(), set(world.objects)
    for _ in range(5):
        world.now_s += PARAMETERS.grace_s
        store.maintain()
        Collector(store._session, workers=1).run()
    assert store._session.known() == number
    assert set(world.objects) <= keys | {key for key in world.objects if key.startswith("notes/")}


class StoppingBucket(SimulatedBucket):
    """A bucket that counts requests, and at one of them stops the maintenance of its store, as closing does."""

    requests = 0
    stop_at = 0
    store: ObjectStore | None = None

    def _request(self, what: str) -> str:
        self.requests += 1
        if self.requests == self.stop_at:
            assert self.store is not None
            self.store._maintainer.stop()
        return super()._request(what)


@pytest.mark.alternating
@pytest.mark.parametrize("rounds", [0, 1, 2], ids=["consolidation", "compaction", "collection"])
def test_closing_a_store_does_not_wait_for_long_maintenance(world: World, rounds: int) -> None:
    bucket = StoppingBucket(world)
    clocks = SimulatedClocks(world)
    with ObjectStore.open(bucket, parameters=PARAMETERS, maintenance_interval_s=None, clocks=clocks) as store:
        topic = store.create_topic("keyed", cleanup_policy="compact", segment_bytes=4096)
        for number in range(400):
            topic.append(bytes(100), key=b"%d" % number)
        if rounds == 1:  # everything is consolidated, nothing is compacted
            with mock.patch.object(store._maintainer, "_compact"):
                store.maintain()
        elif rounds == 2:
            for _ in range(4):
                store.maintain()
                world.sleep(2 * PARAMETERS.grace_s)
        store._maintainer._collector._workers = 1  # a simulated bucket has one client
        store._maintainer._since_collection = None
        bucket.store, bucket.stop_at = store, bucket.requests + 30
        with pytest.raises(LogClosed):
            store.maintain()
        assert bucket.requests - bucket.stop_at < 5
        assert len(values(topic)) == 400
