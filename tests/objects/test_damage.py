"""Objects that are damaged, replaced or lost in the bucket while this machine has a good copy. Every operation that
reports, copies or deletes because of the content of the bucket detects that. Readers may use the copy, because it has
the committed records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sawlog.batch.build import encode
from sawlog.errors import CorruptBatch, CorruptData, SawlogError, StorageError
from sawlog.log.ingest import rows_of
from sawlog.store.objects import maintenance
from sawlog.store.objects.store import ObjectStore
from sawlog.store.replica import restore

from .histories import copied, give_cache, opened, values


def flip(file: Path) -> None:
    """Flip one bit of a record."""
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    """Cut off the end."""
    file.write_bytes(file.read_bytes()[:-1])


def replace(file: Path) -> None:
    """Store other batches of the same size, with valid checksums."""
    data = file.read_bytes()
    at = data.index(BATCH[16:])
    file.write_bytes(data[: at - 16] + OTHER + data[at - 16 + len(OTHER) :])


def lose(file: Path) -> None:
    file.unlink()


Damage = Callable[[Path], None]
BATCH, OTHER = (encode([(value, None, (), 1000)] * 3) for value in (b"value 1", b"VALUE 2"))
EVERY_DAMAGE = pytest.mark.parametrize("damage", [flip, cut, replace, lose])


class Warmed:
    """A store whose records are all in this machine's cache and in the memory of an open store."""

    def __init__(self, path: Path, kind: str) -> None:
        self.bucket, self.cache = path / "bucket", path / "cache"
        with opened(self.bucket) as store:
            partition = store.create_topic("orders", segment_bytes=4096).partition(0)
            for _ in range(3):
                if kind == "staged":
                    rows = rows_of(memoryview(BATCH))
                    action, inline = store._session.append_action(store.topic("orders").id, 0, BATCH, rows)
                    assert inline
                    action["key"] = store._session.upload(BATCH)
                    store._session.commit([action])
                else:
                    partition.append_batches(BATCH)
            if kind == "segments":
                place = maintenance.PartitionId("orders", store.topic("orders").id, 0)
                [run] = maintenance.small_runs(place, partition._extents(0, 9), old_commits=100)
                assert maintenance.consolidate(store._session, run)
        self.store = ObjectStore.open(f"file://{self.bucket}", maintenance_interval_s=None)
        give_cache(self.store, self.cache)
        self.partition = self.store.topic("orders").partition(0)
        self.before = self._read()
        [*extents] = self.partition._extents(0, 9)
        self.object = self.bucket / extents[0].key

    def _read(self) -> list[bytes | None]:
        return values(self.store)


@pytest.fixture(params=["commits", "staged", "segments"])
def warmed(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Warmed(tmp_path, request.param)
    assert made.object.relative_to(made.bucket).parts[0] == request.param
    yield made
    made.store.close()


@pytest.mark.alternating
@EVERY_DAMAGE
def test_verification_finds_damage_despite_a_good_copy_in_the_cache(warmed: Warmed, damage: Damage) -> None:
    assert warmed.partition.verify().ok
    damage(warmed.object)
    report = warmed.partition.verify()
    assert [problem.path for problem in report.problems] == [f"file://{warmed.object}"]
    assert warmed._read() == warmed.before  # a good copy is enough for a reader


@pytest.mark.alternating
@EVERY_DAMAGE
def test_a_read_without_caches_returns_committed_records_or_raises(warmed: Warmed, damage: Damage) -> None:
    assert [record.value for record in warmed.partition._uncached().scan()] == warmed.before
    damage(warmed.object)
    with pytest.raises((CorruptBatch, StorageError)):
        list(warmed.partition._uncached().scan())
    with pytest.raises((CorruptBatch, StorageError)):
        warmed.partition._uncached().fetch(0)


@pytest.mark.alternating
@EVERY_DAMAGE
def test_a_restore_finds_damage_despite_a_good_copy_in_the_cache(
    warmed: Warmed, damage: Damage, tmp_path: Path
) -> None:
    damage(warmed.object)
    with pytest.raises(SawlogError):
        restore(f"file://{warmed.bucket}", tmp_path / "restored")


@EVERY_DAMAGE
@pytest.mark.parametrize("warmed", ["staged", "segments"], indirect=True)
def test_consolidation_leaves_damaged_extents_despite_a_good_copy_in_the_cache(warmed: Warmed, damage: Damage) -> None:
    """Maintenance never writes from the cache: a copy on a local disk is no source for the store."""
    damage(warmed.object)
    place = maintenance.PartitionId("orders", warmed.store.topic("orders").id, 0)
    extents = tuple(warmed.partition._extents(0, 9))
    with pytest.raises((CorruptBatch, StorageError)):
        maintenance.consolidate(warmed.store._session, maintenance.ExtentRun(place, extents))
    assert tuple(warmed.partition._extents(0, 9)) == extents


@pytest.mark.alternating
@EVERY_DAMAGE
def test_a_new_process_finds_damage_or_reads_committed_records(warmed: Warmed, damage: Damage, tmp_path: Path) -> None:
    """A new process has no cache."""
    damage(warmed.object)
    with pytest.raises((CorruptData, StorageError)), opened(warmed.bucket, mode="r") as store:
        values(store)


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """Flip one bit anywhere in each object with records: verification and restore detect it, or all records are
    unchanged. The cache has good copies of everything."""
    warmed = Warmed(tmp_path, "staged")
    sound = copied(warmed.bucket, tmp_path / "sound")
    found = 0
    for file in sorted(each for each in warmed.bucket.rglob("*") if each.is_file() and b"value 1" in each.read_bytes()):
        whole = file.read_bytes()
        for bit in range(3, len(whole) * 8, 61):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            if warmed.partition.verify().ok:
                assert [record.value for record in warmed.partition._uncached().scan()] == warmed.before, bit
            else:
                found += 1
        file.write_bytes(whole)
    assert found > 30
    assert warmed.partition.verify().ok
    warmed.store.close()
    with opened(sound) as store:
        assert values(store) == warmed.before
