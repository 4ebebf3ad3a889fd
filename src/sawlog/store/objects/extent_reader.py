"""`ExtentReader`: read the batches of extents in order, with read-ahead, and verify their checksums.

Adjacent extents of one object are one request, and small requests run in parallel. Read-ahead overlaps with the work of
the caller. Parts of commits that are in memory (`CommitCache`) are not requested: recently folded commits, and commits
of which a second part was wanted.

A store has three readers (`StoreSession`), which differ in the sources that they may answer from:

| reader | local cache | memory | for |
|---|---|---|---|
| `extents` | yes | yes | scans, fetches, consumers, slices |
| `maintenance` | no | yes | consolidation and compaction, which write what they read |
| `uncached` | no | no | proof that the bucket has the records now: replication, tiering |

Each returns exactly the batches that the commit placed, or raises `CorruptBatch`. The requesting threads compare bytes
from the bucket or from memory with the digest of the extent, and every batch with its checksum. Cached blocks are not
checked again: the digest is part of the cache key, only verified blocks are cached, and a block has a checksum of its
own.

```
extents   a a a b c c        of objects a, b and c
requests  [a a a] [b] [c c]  at most `REQUEST_BYTES` each; `_AHEAD` of them, or `_AHEAD_BYTES`, in flight
```

A caller that only decodes batches gets them as stored, in `Part`s, and sets the offsets in the parsed headers
(`place_rows`), so that the buffer stays untouched. A caller that passes batches on gets copies that it may change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ...batch.header import BASE, HEADER_BYTES, LAST, LEADER_EPOCH, POSITION, Rows, new_rows
from ...batch.read import first_bad_crc
from ...errors import CorruptBatch, CorruptData
from ...log.ingest import rows_of
from ...storage.forking import forkable
from .bucket import Bucket
from .cache import BlockCache
from .journal import CommitCache
from .state.commit import COMMITS, Commit, Extent, UpgradeRequired, content_digest, in_runs, is_tombstone

#: Approximate size decoded at once: enough for a call, and small enough for the processor's cache.
CHUNK_BYTES = 2 << 20
#: Maximum size of a request, unless one extent is larger.
REQUEST_BYTES = 8 << 20
#: Maximum number and size of the requests of one reader in flight.
_AHEAD, _AHEAD_BYTES = 16, 64 << 20
#: Maximum number of concurrent requests of all readers of a store.
_THREADS = 32
#: Number of commits for which a partial read is remembered.
_ASKED = 1024

#: The extents of one request.
_Run = Sequence[Extent]


class Part(NamedTuple):
    """Adjacent batches in one buffer, with verified checksums."""

    extents: Sequence[Extent]
    #: The batches as stored. May be read-only.
    data: memoryview

    def each(self) -> Iterator[tuple[Extent, memoryview]]:
        """Yield the batches of each extent, which the caller may change."""
        data = memoryview(bytearray(self.data)) if self.data.readonly else self.data
        position = 0
        for extent in self.extents:
            yield extent, data[position : position + extent.size_bytes]
            position += extent.size_bytes


class ExtentReader:
    """Reader for the extents of one store. Thread-safe."""

    def __init__(self, bucket: Bucket, cache: BlockCache | None = None, recent: CommitCache | None = None) -> None:
        """Without `cache` and `recent`, every read goes to the bucket."""
        self._bucket = bucket
        self._cache = cache
        #: Commits in memory, and commits of which a part was requested recently.
        self._recent = recent
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = forkable(threading.Lock())

    def close(self) -> None:
        """Start no more requests."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def read(self, extent: Extent) -> memoryview:
        """Return the batches of one extent as stored; the caller may change them. Raises `CorruptBatch` if they are
        damaged."""
        [part] = self._fetch([extent])
        [(_, data)] = part.each()
        return data

    def read_all(self, extents: Iterable[Extent]) -> Iterator[tuple[Extent, memoryview]]:
        """Yield the batches of extents, in order, in buffers that the caller may change."""
        for part in self.read_parts(extents):
            yield from part.each()

    def read_parts(self, extents: Iterable[Extent]) -> Iterator[Part]:
        """Yield the batches of extents, in order, several extents at a time where one request or buffer has them.
        Cached blocks are not read ahead, because that costs more than it saves."""
        runs = iter(_runs(extents))
        waiting = next(runs, None)
        under_way: deque[tuple[_Run, bool, Future[list[Part]] | None]] = deque()
        try:
            while waiting is not None or under_way:
                while waiting is not None and (not under_way or _has_room(under_way, waiting)):
                    following = next(runs, None)
                    is_last = following is None and not under_way  # nothing to read ahead of
                    is_cached = self._is_cached(waiting)
                    is_near = is_cached or (self._recent is not None and self._recent.has(waiting[0].key))
                    coming = None if is_last or is_near else self._submit(waiting)
                    under_way.append((waiting, is_cached, coming))
                    waiting = following
                run, is_cached, coming = under_way.popleft()
                yield from self._parts(run, is_cached=is_cached) if coming is None else coming.result()
        finally:
            for _, _, coming in under_way:
                if coming is not None:
                    coming.cancel()

    def _is_cached(self, run: _Run) -> bool:
        return self._cache is not None and all(map(self._has, run))

    def _has(self, extent: Extent) -> bool:
        return self._cache is not None and self._cache.has(
            extent.key, extent.position, extent.digest, extent.size_bytes
        )

    def _submit(self, run: _Run) -> Future[list[Part]]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-objects-read")
            return self._pool.submit(self._fetch, run)

    def _fetch(self, run: _Run) -> list[Part]:
        return list(self._parts(run))

    def _parts(self, run: _Run, *, is_cached: bool = False) -> Iterator[Part]:
        """Yield the extents of one run from the cache, or with few requests where they are missing. Cached blocks are
        read on demand, so that they are decoded while still in the processor's cache."""
        if self._cache is None:
            yield self._get(run)
            return
        for is_here, extents in [(True, run)] if is_cached else groupby(run, self._has):
            if is_here:
                for group in _runs(extents, CHUNK_BYTES):
                    yield from self._load(self._cache, group)
            else:
                yield from self._keep(self._cache, list(extents))

    def _load(self, cache: BlockCache, group: _Run) -> Iterator[Part]:
        """Yield extents that are probably cached in one buffer; from the bucket if one is missing or damaged."""
        data = memoryview(np.empty(sum(each.size_bytes for each in group), np.uint8))  # not filled with zeros first
        position = 0
        for each in group:
            if not cache.load(each.key, each.position, each.digest, data[position : position + each.size_bytes]):
                yield from self._keep(cache, group)
                return
            position += each.size_bytes
        yield Part(group, data)

    def _keep(self, cache: BlockCache, extents: _Run) -> Iterator[Part]:
        """Yield extents from the bucket and cache them."""
        for run in _runs(extents):
            part = self._get(run)
            position = 0
            for each in part.extents:
                cache.put(each.key, each.position, each.digest, part.data[position : position + each.size_bytes])
                position += each.size_bytes
            yield part

    def _get(self, run: _Run) -> Part:
        key, start, end = run[0].key, run[0].position, run[-1].position + run[-1].size_bytes
        near = self._near(key, start, end)
        if near is not None:
            with suppress(CorruptBatch):
                return _checked(run, memoryview(near))
            assert self._recent is not None
            self._recent.forget(key)  # a commit of another history
        return _checked(run, memoryview(self._bucket.get_range(key, start, end - start)))

    def _near(self, key: str, start: int, end: int) -> bytes | None:
        """Return a part of a commit from memory. When a second part of a commit is wanted, all of it is read: a commit
        may have batches of thousands of partitions, and a request for each would take minutes."""
        if self._recent is None or not key.startswith(COMMITS):
            return None
        if not self._recent.has(key) and self._is_second(key):
            self._recall(self._recent, key)
        return self._recent.get(key, start, end - start)

    def in_memory(self, extent: Extent) -> bytes | None:
        """Return the batches of an extent if they are in memory. Never blocks."""
        found = None if self._recent is None else self._recent.get(extent.key, extent.position, extent.size_bytes)
        if found is None:
            return None
        try:
            return found if content_digest(rows_of(memoryview(found))) == extent.digest else None
        except CorruptBatch:
            return None

    def _is_second(self, key: str) -> bool:
        with self._lock:
            found = key in self._asked
            self._asked[key] = None
            if len(self._asked) > _ASKED:
                self._asked.popitem(last=False)
            return found

    def _recall(self, recent: CommitCache, key: str) -> None:
        """Read a commit into memory. If it is damaged or gone, reading a part of it reports that."""
        data = self._bucket.get(key)
        if data is not None and not is_tombstone(data):
            with suppress(CorruptData, UpgradeRequired):
                Commit.decode(data, key)
                recent.add(key, data)


def _checked(run: _Run, data: memoryview) -> Part:
    """Return the extents of a run in one buffer. Raises `CorruptBatch` unless all of them are the committed batches."""
    for extent in run:
        check_extent(extent, data[extent.position - run[0].position :][: extent.size_bytes])
    return Part(run, data)


def check_extent(extent: Extent, data: memoryview) -> Rows:
    """Return the batch headers of an extent. Raises `CorruptBatch` unless the bytes are the committed batches."""
    try:
        rows = rows_of(data)
    except CorruptBatch:
        rows = new_rows(0)
    bad = first_bad_crc(data, rows)
    if bad >= 0:
        where = extent.position + int(rows[bad, POSITION])
        raise CorruptBatch("the checksum of a batch does not match", path=extent.key, position=where)
    if not len(rows) or content_digest(rows) != extent.digest:
        found = "intact batches, but not those" if len(rows) else "no complete batches instead of those"
        raise CorruptBatch(
            f"{found} that were committed: the object was replaced, or the bucket was rolled back to another history",
            path=extent.key,
            position=extent.position,
        )
    return rows


def _runs(extents: Iterable[Extent], max_bytes: int | None = None) -> Iterator[_Run]:
    """Group adjacent extents of one object up to a size, by default that of a request."""

    def is_adjacent(one: Extent, other: Extent) -> bool:
        return one.key == other.key and one.position + one.size_bytes == other.position

    return in_runs(extents, REQUEST_BYTES if max_bytes is None else max_bytes, is_adjacent)


def _has_room(under_way: Iterable[tuple[_Run, bool, object]], run: _Run) -> bool:
    sizes = [sum(extent.size_bytes for extent in each) for each, _, _ in under_way]
    return len(sizes) < _AHEAD and sum(sizes) + sum(extent.size_bytes for extent in run) <= _AHEAD_BYTES


def place_batches(data: bytearray | memoryview, base_offset: int, leader_epoch: int = 0) -> list[tuple[int, int, int]]:
    """Give batches consecutive offsets from `base_offset` on, in place, and return (position, base, next offset) of
    each."""
    epoch = leader_epoch.to_bytes(4, "big")
    found: list[tuple[int, int, int]] = []
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        count = int.from_bytes(data[position + 23 : position + 27], "big") + 1
        data[position : position + 8] = base_offset.to_bytes(8, "big")
        data[position + 12 : position + 16] = epoch
        found.append((position, base_offset, base_offset + count))
        base_offset += count
        position += size
    return found


def place_rows(rows: Rows, base_offset: int, leader_epoch: int = 0) -> None:
    """Set consecutive offsets in parsed headers, without changing the batches."""
    counts = rows[:, LAST] - rows[:, BASE] + 1
    ends = base_offset + np.cumsum(counts)
    rows[:, BASE] = ends - counts
    rows[:, LAST] = ends - 1
    rows[:, LEADER_EPOCH] = leader_epoch
