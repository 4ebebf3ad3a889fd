"""`ExtentReader`: the batches of extents, in order, requested before they are needed, with right checksums.

Extents that follow each other in one object are one request; small ones are requested several at a time. What comes
next is on its way while the caller works on what it has. Parts of commits that are in memory (`Recent`) are not
requested: of those that were folded lately, and of those of which more than one part was wanted.

A store has three readers (`Core`), which differ in what they may answer from:

| reader | local cache | memory | for |
|---|---|---|---|
| `extents` | yes | yes | scans, fetches, consumers, slices |
| `maintenance` | no | yes | consolidation and compaction, which write what they read |
| `uncached` | no | no | proof that the bucket has the records now: replication, tiering |

Each returns exactly the batches that the commit placed, or raises `CorruptBatch`. Bytes from the bucket or from memory
are compared with the digest of the extent, and every batch with its checksum, by the threads that request them. The
digest is part of the cache's keys, what goes there was checked before, and a block has a checksum of its own; so blocks
are not checked again.

```
extents   a a a b c c        of objects a, b and c
requests  [a a a] [b] [c c]  at most `REQUEST_BYTES` each; `_AHEAD` of them, or `_AHEAD_BYTES`, are under way
```

Who only decodes batches gets them as they are stored, in `Part`s, and places the headers that it has read of them
(`pieces.place_rows`): nothing is written into what was read. Who hands batches on gets copies that it may change.
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

from ...batch.header import POSITION, Rows, new_rows
from ...batch.read import first_bad_crc
from ...errors import CorruptBatch, CorruptData
from ...log.ingest import rows_of
from ...storage.forking import forkable
from .bucket.bucket import Bucket
from .bucket.cache import BlockCache
from .journal.checkpoints import COMMITS
from .journal.notifier import Recent
from .state.commit import Commit, UpgradeRequired, is_tombstone
from .state.extents import Extent, content_digest

#: What is decoded at once, about: enough for a call, and not too much for the processor's cache.
CHUNK_BYTES = 2 << 20
#: One request is for at most this much, unless one extent is larger.
REQUEST_BYTES = 8 << 20
#: Requests of one reader that are under way, and their bytes.
_AHEAD, _AHEAD_BYTES = 16, 64 << 20
#: Requests of all readers of a store.
_THREADS = 32
#: Of so many commits it is remembered that a part was requested.
_ASKED = 1024

#: What one request is for.
_Run = Sequence[Extent]


class Part(NamedTuple):
    """Batches of extents that follow each other, in one buffer, with right checksums."""

    extents: Sequence[Extent]
    #: As they are stored. Perhaps not to be changed.
    data: memoryview

    def each(self) -> Iterator[tuple[Extent, memoryview]]:
        """The batches of each extent, which the caller may change."""
        data = memoryview(bytearray(self.data)) if self.data.readonly else self.data
        position = 0
        for extent in self.extents:
            yield extent, data[position : position + extent.size_bytes]
            position += extent.size_bytes


class ExtentReader:
    """Reads extents of one store. Safe for threads."""

    def __init__(self, bucket: Bucket, cache: BlockCache | None = None, recent: Recent | None = None) -> None:
        """Without `cache` and `recent`, everything is requested from the bucket, every time."""
        self._bucket = bucket
        self._cache = cache
        #: Commits that are in memory, and those of which a part was requested lately.
        self._recent = recent
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = forkable(threading.Lock())

    def close(self) -> None:
        """Begin no more requests."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def read(self, extent: Extent) -> memoryview:
        """The batches of one extent, as they are stored: the caller may change them. `CorruptBatch` if they are
        damaged."""
        [part] = self._fetch([extent])
        [(_, data)] = part.each()
        return data

    def read_all(self, extents: Iterable[Extent]) -> Iterator[tuple[Extent, memoryview]]:
        """The batches of extents, in order, for callers who change them."""
        for part in self.read_parts(extents):
            yield from part.each()

    def read_parts(self, extents: Iterable[Extent]) -> Iterator[Part]:
        """The batches of extents, in order, several extents at a time where one request or one buffer has them. What is
        in the cache is not read ahead: that costs more than it saves."""
        runs = iter(_runs(extents))
        waiting = next(runs, None)
        under_way: deque[tuple[_Run, bool, Future[list[Part]] | None]] = deque()
        try:
            while waiting is not None or under_way:
                while waiting is not None and (not under_way or _has_room(under_way, waiting)):
                    following = next(runs, None)
                    is_last = following is None and not under_way  # nothing to be ahead of
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
        """The extents of one run: from the cache, or, where they are not there, with few requests. What is cached is
        read when it is wanted, so that it is used while it is in the processor's cache."""
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
        """Extents that are probably cached, in one buffer; if one is not, or is damaged, from the bucket."""
        data = memoryview(np.empty(sum(each.size_bytes for each in group), np.uint8))  # not filled with zeros first
        position = 0
        for each in group:
            if not cache.load(each.key, each.position, each.digest, data[position : position + each.size_bytes]):
                yield from self._keep(cache, group)
                return
            position += each.size_bytes
        yield Part(group, data)

    def _keep(self, cache: BlockCache, extents: _Run) -> Iterator[Part]:
        """Extents from the bucket, which are cached from now on."""
        for run in _runs(extents):
            part = self._get(run)
            position = 0
            for each in part.extents:
                cache.put(each.key, each.position, each.digest, part.data[position : position + each.size_bytes])
                position += each.size_bytes
            yield part

    def _get(self, run: _Run) -> Part:
        """From memory, or with one request."""
        key, start, end = run[0].key, run[0].position, run[-1].position + run[-1].size_bytes
        near = self._near(key, start, end)
        if near is not None:
            with suppress(CorruptBatch):
                return _checked(run, memoryview(near))
            assert self._recent is not None
            self._recent.forget(key)  # a commit of another history
        return _checked(run, memoryview(self._bucket.get_range(key, start, end - start)))

    def _near(self, key: str, start: int, end: int) -> bytes | None:
        """A part of a commit that is in memory, or should be: when a second part of one is wanted, all of it is read. A
        commit may have batches of thousands of partitions, and a request for each would take minutes."""
        if self._recent is None or not key.startswith(COMMITS):
            return None
        if not self._recent.has(key) and self._is_second(key):
            self._recall(self._recent, key)
        return self._recent.get(key, start, end - start)

    def in_memory(self, extent: Extent) -> bytes | None:
        """The batches of an extent if they are in memory; never waits."""
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

    def _recall(self, recent: Recent, key: str) -> None:
        """Read a commit into memory. If it is damaged or gone, whoever reads a part of it will say so."""
        data = self._bucket.get(key)
        if data is not None and not is_tombstone(data):
            with suppress(CorruptData, UpgradeRequired):
                Commit.decode(data, key)
                recent.add(key, data)


def _checked(run: _Run, data: memoryview) -> Part:
    """The extents of a run in one buffer; `CorruptBatch` unless all of them are what was committed."""
    for extent in run:
        check(extent, data[extent.position - run[0].position :][: extent.size_bytes])
    return Part(run, data)


def check(extent: Extent, data: memoryview) -> Rows:
    """The headers of an extent's batches; `CorruptBatch` unless these bytes are the batches that were committed."""
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


def _runs(extents: Iterable[Extent], most_bytes: int | None = None) -> Iterator[_Run]:
    """Extents that follow each other in one object, together up to a size: that of a request, if none is given."""
    most_bytes = REQUEST_BYTES if most_bytes is None else most_bytes
    run: list[Extent] = []
    size = 0
    for each in extents:
        follows = run and (run[-1].key, run[-1].position + run[-1].size_bytes) == (each.key, each.position)
        if run and (not follows or size + each.size_bytes > most_bytes):
            yield run
            run, size = [], 0
        run.append(each)
        size += each.size_bytes
    if run:
        yield run


def _has_room(under_way: Iterable[tuple[_Run, bool, object]], run: _Run) -> bool:
    sizes = [sum(extent.size_bytes for extent in each) for each, _, _ in under_way]
    return len(sizes) < _AHEAD and sum(sizes) + sum(extent.size_bytes for extent in run) <= _AHEAD_BYTES
