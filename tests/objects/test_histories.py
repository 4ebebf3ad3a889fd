"""A bucket that was copied or rolled back has the keys of another history, with other records.

Remains of that history on this machine or in this process are never read as records of the present one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog.batch.build import encode
from sawlog.errors import CorruptBatch
from sawlog.store.objects import maintenance
from sawlog.store.objects.cache import BlockCache
from sawlog.store.objects.slices import ObjectSliceReader
from sawlog.store.objects.state.commit import content_digest
from sawlog.store.replica import restore

from .histories import copied, give_cache, opened, values, write


class Histories:
    """A store and a copy of it, with different later records. The cache has all of the first one."""

    def __init__(self, path: Path) -> None:
        self.cache, self.first, self.second = path / "cache", path / "first", path / "second"
        with opened(self.first) as store:
            store.create_topic("orders", cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
        copied(self.first, self.second)
        self.of_first = write(self.first, b"first ")
        self.of_second = write(self.second, b"second")
        with opened(self.first, self.cache) as store:
            assert values(store) == self.of_first


@pytest.fixture
def both(tmp_path: Path) -> Histories:
    return Histories(tmp_path)


def test_the_histories_differ_in_nothing_but_their_records(both: Histories) -> None:
    """Otherwise these tests would find nothing."""
    with opened(both.first) as one, opened(both.second) as other:
        assert one.id == other.id
        here, there = (each.topic("orders").partition(0)._extents(0, 100) for each in (one, other))
        assert [each._replace(digest="") for each in here] == [each._replace(digest="") for each in there]
        assert all(one_.digest != other_.digest for one_, other_ in zip(here, there, strict=True))


def test_a_copied_bucket_never_serves_the_originals_blocks(both: Histories) -> None:
    with opened(both.second, both.cache) as store:
        topic = store.topic("orders")
        partition = topic.partition(0)
        assert values(store) == both.of_second
        assert [partition.read(number).value for number in range(20)] == both.of_second
        arrow = [value for batch in partition.scan_arrow() for value in batch.column("value").to_pylist()]
        assert arrow == both.of_second
        assert both.of_second[0] in partition.fetch(0).raw
        assert partition.offset_at(1007) == 7
    with opened(both.first, both.cache) as store:
        assert values(store) == both.of_first


def test_a_slice_read_by_another_process_has_the_history_of_its_plan(both: Histories) -> None:
    """Like a task of Spark: the reader knows only the slice."""
    with opened(both.second) as store:
        slices = store.topic("orders").partition(0)._plan(0, 20)
        topic_id = store.topic("orders").id
    with opened(both.second, both.cache, "r") as store:
        reader = ObjectSliceReader(store._session, "orders", topic_id, 0)
        found = [
            value
            for each in slices
            for batch in reader.read(each, columns=("value",), batch_rows=100)
            for value in batch.column("value").to_pylist()
        ]
        assert found == both.of_second


def test_a_slice_planned_before_a_rollback_is_refused(both: Histories) -> None:
    """The bucket has intact batches in the same places, but not the planned ones."""
    with opened(both.first) as store:
        [piece] = store.topic("orders").partition(0)._plan(0, 20)
        topic_id = store.topic("orders").id
    copied(both.second, both.first)
    with opened(both.first, mode="r") as store:
        reader = ObjectSliceReader(store._session, "orders", topic_id, 0)
        with pytest.raises(CorruptBatch, match="rolled back"):
            list(reader.read(piece, columns=("value",), batch_rows=100))


def test_a_rolled_back_bucket_never_serves_blocks_of_lost_records(both: Histories) -> None:
    copied(both.second, both.first)
    with opened(both.first, both.cache) as store:
        assert values(store) == both.of_second


def test_a_commit_in_memory_of_another_history_is_not_read(both: Histories) -> None:
    with opened(both.first) as other:
        stale = {
            each.key: other._session.bucket.get(each.key) for each in other.topic("orders").partition(0)._extents(0, 9)
        }
    with opened(both.second) as store:
        extents = store.topic("orders").partition(0)._extents(0, 9)
        for key, data in stale.items():
            assert data is not None
            store._session._journal.recent.add(key, data)
        assert [store._session.extents.in_memory(each) for each in extents] == [None] * len(extents)
        assert values(store) == both.of_second
        assert not any(
            store._session._journal.recent.get(key, 0, len(data or b"")) == data for key, data in stale.items()
        )


def test_a_commit_that_is_folded_replaces_one_of_another_history_in_memory(both: Histories) -> None:
    with opened(both.second) as store:
        [extent, *_] = store.topic("orders").partition(0)._extents(0, 9)
        kept = store._session.bucket.get(extent.key)
        assert kept is not None
        store._session._journal.recent.add(extent.key, b"of another history")
        store._session._journal.recent.add(extent.key, kept)
        assert store._session.extents.in_memory(extent) is not None


def test_consolidation_of_a_copy_writes_the_copys_own_records(both: Histories) -> None:
    with opened(both.second, both.cache) as store:
        store._session._journal.recent._kept.clear()
        assert any("merged" in str(each) for each in store.maintain())
        extents = store.topic("orders").partition(0)._extents(0, 9)
        assert {each.key.partition("/")[0] for each in extents} == {"segments"}
    with opened(both.second) as store:
        assert set(values(store)) <= set(both.of_second)
        assert both.of_second[-3:] == values(store)[-3:]


def test_compaction_of_a_copy_writes_the_copys_own_records(both: Histories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_LEAST_EXTENTS", 1)
    with opened(both.first, both.cache) as store:
        store.maintain()
        values(store)
    with opened(both.second, both.cache) as store:
        for _ in range(3):
            store.maintain()
    with opened(both.second) as store:
        assert values(store) == both.of_second[-3:]


def test_a_restore_takes_only_committed_records(both: Histories, tmp_path: Path) -> None:
    """One commit belongs to another history: intact, and with the same offsets."""
    key = "commits/00000000000000000005"
    (both.second / key).write_bytes((both.first / key).read_bytes())
    with pytest.raises(Exception, match="digest"):
        restore(f"file://{both.second}", tmp_path / "restored")


def test_equal_digests_are_equal_content_and_placing_batches_does_not_change_them() -> None:
    from sawlog.log.ingest import rows_of
    from sawlog.store.objects.extent_reader import place_batches

    def digest(data: bytes | bytearray) -> str:
        return content_digest(rows_of(memoryview(data)))

    data = bytearray(encode([b"a", b"b"]) + encode([b"c"]))
    before = digest(data)
    place_batches(data, 1 << 40, 7)
    assert digest(data) == before
    assert len({before, digest(encode([b"a", b"b"])), digest(encode([b"c"])), digest(encode([b"a"]))}) == 4


def test_the_cache_keeps_both_histories_apart(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, "store")
    cache.put("commits/1", 10, "1", b"first")
    cache.put("commits/1", 10, "2", b"other")
    assert (cache.get("commits/1", 10, "1", 5), cache.get("commits/1", 10, "2", 5)) == (b"first", b"other")
    assert cache.get("commits/1", 10, "3", 5) is None


def test_the_cache_is_used_for_reading(both: Histories) -> None:
    """Otherwise these tests would find nothing."""
    with opened(both.first) as store:
        store._session._journal.recent._kept.clear()
        cache = give_cache(store, both.cache)
        assert values(store) == both.of_first
        assert (cache.hits, cache.misses) == (20, 0)
