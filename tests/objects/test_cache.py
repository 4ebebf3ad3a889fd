"""The block cache returns correct blocks or misses, whatever happens to its files, and keeps to its size."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sawlog.batch.build import encode
from sawlog.batch.header import BASE, LAST
from sawlog.errors import CorruptBatch, InvalidConfig, StorageError
from sawlog.log.ingest import rows_of
from sawlog.store.objects import cache as cache_module
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.cache import BlockCache, default_path
from sawlog.store.objects.extent_reader import ExtentReader, place_batches, place_rows
from sawlog.store.objects.journal import CommitCache
from sawlog.store.objects.state.commit import Commit, Extent, Nonce, Tombstone, content_digest
from sawlog.store.objects.store import ObjectStore

from .. import warm
from . import servers

#: A digest for blocks that are not batches.
DIGEST = "0"


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(tmp_path / "cache", "store", 1 << 20)


def files(place: Path) -> list[Path]:
    return [each for each in place.rglob("*") if each.is_file()]


def test_another_process_gets_blocks_from_the_cache(cache: BlockCache, tmp_path: Path) -> None:
    cache.put("a", 10, DIGEST, b"content")
    assert cache.get("a", 10, DIGEST, 7) == b"content"
    assert (cache.get("a", 10, DIGEST, 6), cache.get("a", 11, DIGEST, 7), cache.get("b", 10, DIGEST, 7)) == (
        None,
        None,
        None,
    )
    code = (
        "import sys; from sawlog.store.objects.cache import BlockCache; "
        "cache = BlockCache(sys.argv[1], 'store', 1 << 20); "
        "assert cache.get('a', 10, '0', 7) == b'content'; cache.put('b', 0, '0', b'from there')"
    )
    warm.run(["-c", code, str(tmp_path / "cache")], timeout=60).check_returncode()
    assert cache.get("b", 0, DIGEST, 10) == b"from there"
    assert (cache.hits, cache.misses) == (2, 3)


def test_stores_do_not_see_the_blocks_of_others(cache: BlockCache, tmp_path: Path) -> None:
    """Two stores have objects with equal names, because commits are numbered."""
    cache.put("commits/0", 0, DIGEST, b"ours")
    assert BlockCache(tmp_path / "cache", "another", 1 << 20).get("commits/0", 0, DIGEST, 4) is None


@pytest.mark.parametrize("at", [0, 3, 16, 20, 30, -1])
def test_a_damaged_block_is_a_miss_and_is_removed(cache: BlockCache, tmp_path: Path, at: int) -> None:
    cache.put("a", 0, DIGEST, b"content")
    [file] = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert cache.get("a", 0, DIGEST, 7) is None
    assert files(tmp_path) == []
    cache.put("a", 0, DIGEST, b"content")
    assert cache.get("a", 0, DIGEST, 7) == b"content"


@pytest.mark.parametrize("size", [0, 5, 20, 37])
def test_a_torn_block_is_a_miss(cache: BlockCache, tmp_path: Path, size: int) -> None:
    cache.put("a", 0, DIGEST, b"content")
    [file] = files(tmp_path)
    os.truncate(file, size)
    assert cache.get("a", 0, DIGEST, 7) is None
    assert files(tmp_path) == []


def test_the_content_of_another_block_is_a_miss(cache: BlockCache, tmp_path: Path) -> None:
    """A file that was copied over another one has a valid checksum."""
    cache.put("a", 0, DIGEST, b"content")
    [first] = files(tmp_path)
    kept = first.read_bytes()
    cache.put("b", 0, DIGEST, b"CONTENT")
    [second] = [each for each in files(tmp_path) if each != first]
    second.write_bytes(kept)
    assert cache.get("b", 0, DIGEST, 7) is None
    assert cache.get("a", 0, DIGEST, 7) == b"content"


def test_the_least_recently_used_block_is_evicted_first(tmp_path: Path) -> None:
    room = 1 << 20
    cache = BlockCache(tmp_path, "store", room)
    block = bytes(room // 32)
    for number in range(24):
        cache.put("a", number, DIGEST, block)
    for age, file in enumerate(sorted(files(tmp_path), key=lambda each: each.stat().st_mtime_ns)):
        os.utime(file, (1000 + age, 1000 + age))
    assert cache.get("a", 0, DIGEST, len(block)) == block  # needed again
    for number in range(24, 40):
        cache.put("a", number, DIGEST, block)
    assert sum(each.stat().st_size for each in files(tmp_path)) <= room
    there = [number for number in range(40) if cache.get("a", number, DIGEST, len(block)) is not None]
    assert 0 in there
    assert there[1:] == list(range(there[1], 40))


@pytest.mark.alternating
def test_concurrent_processes_keep_the_cache_within_its_size(tmp_path: Path) -> None:
    room = 1 << 20
    caches = [BlockCache(tmp_path, name, room) for name in ("one", "two", "three")]

    def fill(cache: BlockCache) -> None:
        for number in range(100):
            cache.put("a", number, DIGEST, bytes(room // 64))

    threads = [threading.Thread(target=fill, args=(each,)) for each in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.stat().st_size for each in files(tmp_path)) <= room * 1.2


def test_a_disk_error_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"not a folder")
    cache = BlockCache(blocked, "store", 1 << 20)
    cache.put("a", 0, DIGEST, b"content")
    assert cache.get("a", 0, DIGEST, 7) is None

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache = BlockCache(tmp_path / "cache", "store", 1 << 20)
    monkeypatch.setattr(cache_module.os, "rename", full)
    cache.put("a", 0, DIGEST, b"content")
    assert files(tmp_path / "cache") == []
    monkeypatch.undo()
    cache.put("a", 0, DIGEST, b"content")
    assert cache.get("a", 0, DIGEST, 7) is None  # no retry for a while


def test_a_block_that_is_too_large_is_not_cached(cache: BlockCache, tmp_path: Path) -> None:
    cache.put("a", 0, DIGEST, bytes(1 << 20))
    assert files(tmp_path) == []


def test_the_default_path_is_below_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_path() == Path("/somewhere/sawlog/blocks")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_path() == Path.home() / ".cache/sawlog/blocks"

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert default_path() is None


# --- reading through the cache


class Counted(Bucket):
    """Counts range requests."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ranges: list[tuple[str, int, int]] = []

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        self.ranges.append((key, start, size_bytes))
        return super().get_range(key, start, size_bytes)


#: One batch; objects contain several.
BATCH = encode([b"value"])
SIZE = len(BATCH)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Counted:
    made = Counted(f"memory://{request.node.name}")
    for key in "ab":
        made.put(key, BATCH * 10)
    return made


def digest(batches: bytes) -> str:
    return content_digest(rows_of(memoryview(batches)))


def extent(key: str, first: int, batches: int) -> Extent:
    return Extent(first, first + batches, key, first * SIZE, batches * SIZE, -1, digest(BATCH * batches))


def ranges(bucket: Counted) -> list[tuple[str, int, int]]:
    """Return the requested ranges, in batches."""
    return sorted((key, start // SIZE, size // SIZE) for key, start, size in bucket.ranges)


def test_adjacent_extents_are_one_request(bucket: Counted) -> None:
    wanted = [extent("a", 0, 1), extent("a", 1, 2), extent("a", 4, 1), extent("b", 4, 1), extent("b", 5, 5)]
    reader = ExtentReader(bucket)
    found = list(reader.read_all(wanted))
    reader.close()
    assert [each for each, _ in found] == wanted
    assert [bytes(data) for _, data in found] == [BATCH * (each.next_offset - each.base_offset) for each in wanted]
    assert ranges(bucket) == [("a", 0, 3), ("a", 4, 1), ("b", 4, 6)]


def test_only_missing_extents_are_requested(bucket: Counted, cache: BlockCache) -> None:
    wanted = [extent("a", number, 1) for number in range(10)]
    reader = ExtentReader(bucket, cache)
    for number in (2, 5):
        reader.read(wanted[number])
    bucket.ranges.clear()
    assert b"".join(data for _, data in reader.read_all(wanted)) == BATCH * 10
    assert ranges(bucket) == [("a", 0, 2), ("a", 3, 2), ("a", 6, 4)]
    bucket.ranges.clear()
    assert b"".join(data for _, data in reader.read_all(wanted)) == BATCH * 10
    assert bucket.ranges == []
    reader.close()


def test_a_damaged_block_among_others_is_requested_from_the_bucket(
    bucket: Counted, cache: BlockCache, tmp_path: Path
) -> None:
    """Adjacent cached blocks are loaded into one buffer, which must not contain remains of a damaged block."""
    wanted = [extent("a", number, 1) for number in range(10)]
    reader = ExtentReader(bucket, cache)
    list(reader.read_all(wanted))
    for each in files(tmp_path)[3:5]:
        damaged = each.read_bytes()
        each.write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    bucket.ranges.clear()
    [part] = reader.read_parts(wanted)
    assert (part.extents, part.data) == (wanted, BATCH * 10)
    assert bucket.ranges
    bucket.ranges.clear()
    assert [part.data for part in reader.read_parts(wanted)] == [BATCH * 10]
    assert bucket.ranges == []
    reader.close()


def test_callers_may_change_returned_batches_without_affecting_others(bucket: Counted, cache: BlockCache) -> None:
    for reader in (ExtentReader(bucket), ExtentReader(bucket, cache)):
        for _ in range(2):
            for _, data in reader.read_all([extent("a", 0, 2), extent("a", 2, 1)]):
                assert data[: len(BATCH)] == BATCH
                data[0] ^= 1
        reader.close()


def test_placing_headers_gives_the_same_offsets_as_placing_batches() -> None:
    data = bytearray(b"".join(encode([b"value"] * count) for count in (1, 3, 2)))
    rows = rows_of(memoryview(data))
    place_rows(rows, 1000, 7)
    place_batches(data, 1000, 7)
    assert rows.tolist() == rows_of(memoryview(data)).tolist()
    assert rows[:, (BASE, LAST)].tolist() == [[1000, 1000], [1001, 1003], [1004, 1005]]


def test_damage_in_the_bucket_raises_and_is_not_cached(bucket: Counted, cache: BlockCache, tmp_path: Path) -> None:
    bucket.put("a", BATCH + BATCH[:-1] + b"?")
    reader = ExtentReader(bucket, cache)
    assert reader.read(extent("a", 0, 1)) == BATCH
    for _ in range(2):
        with pytest.raises(CorruptBatch, match="checksum"):
            reader.read(extent("a", 0, 2))
    assert len(files(tmp_path)) == 1


def test_read_ahead_is_bounded(bucket: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sawlog.store.objects.extent_reader.REQUEST_BYTES", SIZE)
    monkeypatch.setattr("sawlog.store.objects.extent_reader._AHEAD", 3)
    reader = ExtentReader(bucket)
    found = reader.read_all([extent("a", number, 1) for number in range(10)])
    next(found)
    ending = time.monotonic() + 60
    while len(bucket.ranges) < 3:
        assert time.monotonic() < ending
    assert len(bucket.ranges) == 3
    assert len(list(found)) == 9
    assert len(bucket.ranges) == 10
    reader.close()


def test_a_store_reads_a_second_time_from_the_disk(moto: servers.Server, tmp_path: Path) -> None:
    url = moto.new_url()
    options = {**moto.options, "cache_path": str(tmp_path / "cache"), "cache_bytes": "100000000"}
    with ObjectStore.open(url, options=options, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders")
        for number in range(20):
            topic.partition(0).append_batches(encode([b"%d" % number]))
        assert [record.value for record in topic.scan()] == [b"%d" % number for number in range(20)]
        assert len(files(tmp_path / "cache")) == 20
        for file in files(tmp_path / "cache")[:10]:
            file.write_bytes(b"damaged")
        assert [record.value for record in topic.scan()] == [b"%d" % number for number in range(20)]
    with ObjectStore.open(url, options=moto.options, maintenance_interval_s=None, cache_bytes=0) as store:
        assert [record.value for record in store.topic("orders").scan()] == [b"%d" % number for number in range(20)]
    with pytest.raises(InvalidConfig, match="cache_bytes"):
        ObjectStore.open(url, options={**moto.options, "cache_bytes": "much"})


# --- commits of many partitions


def committed(bucket: Bucket) -> list[Extent]:
    """Store a commit with batches of several partitions, and return it with their extents."""
    data = Commit(Nonce("w", 1), 0, "", (), 0, BATCH * 10).encode()
    bucket.put("commits/0", data)
    return [
        Extent(0, 1, "commits/0", len(data) - SIZE * number, SIZE, -1, digest(BATCH)) for number in range(10, 0, -1)
    ]


def test_a_commit_of_many_partitions_is_two_requests(bucket: Counted) -> None:
    """The second partial read fetches all of the commit."""
    wanted = committed(bucket)
    reader = ExtentReader(bucket, recent=CommitCache())
    assert [bytes(reader.read(each)) for each in wanted[:2]] == [BATCH] * 2
    bucket.delete("commits/0")
    assert [bytes(reader.read(each)) for each in wanted] == [BATCH] * 10
    assert len(bucket.ranges) == 1


def test_a_commit_that_was_folded_is_read_from_memory(bucket: Counted) -> None:
    wanted, recent = committed(bucket), CommitCache()
    found = bucket.get("commits/0")
    assert found is not None
    recent.add("commits/0", found)
    assert b"".join(data for _, data in ExtentReader(bucket, recent=recent).read_all(wanted)) == BATCH * 10
    assert bucket.ranges == []


@pytest.mark.parametrize("damage", ["a bit", "the end", "a tombstone", "all"])
def test_a_damaged_commit_is_not_kept_in_memory(bucket: Counted, damage: str) -> None:
    """Commits in memory are served without another check of their checksums."""
    wanted, recent = committed(bucket), CommitCache()
    reader = ExtentReader(bucket, recent=recent)
    assert reader.read(wanted[0]) == BATCH
    data = bytearray(bucket.get("commits/0") or b"")
    data[-1] ^= 1
    made = {"a bit": bytes(data), "the end": bytes(data[:-1]), "a tombstone": Tombstone(Nonce("w", 1)).encode()}
    if damage == "all":
        bucket.delete("commits/0")
    else:
        bucket.put("commits/0", made[damage])
    with pytest.raises((CorruptBatch, StorageError)):
        reader.read(wanted[-1])
    assert not recent.has("commits/0")
