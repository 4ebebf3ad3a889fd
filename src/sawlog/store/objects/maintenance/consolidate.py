"""Consolidation: many small extents of a partition become one segment, as Kafka batches with their final offsets.

```
segments/<topic id>/<partition>/<commits known>-<base offset>-<uuid>.log
```

Batches arrive in commits and staged objects, a few at a time and mixed with those of other partitions. A segment holds
contiguous batches of one partition, so that a scan reads few objects, and commits and staged objects can be collected.
The extents in the state are its index: about one per MiB.

The new segment is uploaded first. Then a commit replaces exactly the extents that were read, or is rejected if one of
them has changed. So any number of processes may consolidate at once, and can be stopped anywhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ....batch.header import BASE, LAST, Rows
from ....errors import CorruptBatch
from ....log.ingest import checked_rows
from ....log.maintenance import MergeReport
from ..partition.pieces import described, placed
from ..session import StoreSession
from ..state.extents import SEGMENTS, STAGED, Extent

#: Maximum size of a segment, approximately; a topic's `segment.bytes` may reduce it.
SEGMENT_BYTES = 64 << 20
#: Maximum number of extents that one commit replaces, since it lists each of them.
_MOST_EXTENTS = 4096
#: Number of extents outside of segments that are worth a segment.
_LEAST_EXTENTS = 16


#: Called between requests. Raises if the store is being closed, so that closing does not wait for long work.
Check = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of a topic."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent extents that are replaced together."""

    place: Place
    extents: tuple[Extent, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the batches."""
        return sum(each.size_bytes for each in self.extents)

    def action(self, new: Sequence[Sequence[object]]) -> dict[str, object]:
        """Return the action that replaces these extents."""
        return {
            "do": "replace",
            "topic": self.place.topic_id,
            "partition": self.place.partition,
            "base": self.extents[0].base_offset,
            "end": self.extents[-1].next_offset,
            "old": [[each.base_offset, each.key, each.position] for each in self.extents],
            "new": new,
        }


def small_runs(
    place: Place, extents: Iterable[Extent], *, segment_bytes: int = SEGMENT_BYTES, old_commits: int = 0
) -> Iterator[Run]:
    """Yield runs of extents that are worth a segment: many that are in none, or some in commits below `old_commits`,
    which can be collected afterwards. Preceding segments that are not larger are included, so that few remain."""
    objects = [tuple(group) for _, group in groupby(extents, key=lambda each: each.key)]
    at = 0
    while at < len(objects):
        if is_settled(objects[at], segment_bytes):
            at += 1
            continue
        end, size, count = at, 0, 0
        while end < len(objects) and not is_settled(objects[end], segment_bytes) and count < _MOST_EXTENTS:
            if size and size + _size(objects[end]) > segment_bytes:
                break
            size += _size(objects[end])
            count += len(objects[end])
            end += 1
        is_full = end < len(objects) and size > segment_bytes // 2
        if count >= _LEAST_EXTENTS or is_full or _is_old(objects[at], old_commits):
            while at and _is_segment(objects[at - 1]) and _size(objects[at - 1]) <= min(size, segment_bytes - size):
                at -= 1
                size += _size(objects[at])
            yield Run(place, tuple(each for group in objects[at:end] for each in group))
        at = end


def is_settled(extents: Sequence[Extent], segment_bytes: int) -> bool:
    """Return whether the batches of a partition in one object stay there: a segment, or a staged object large enough to
    serve as one. Commits are never settled, because they are collected."""
    return _is_segment(extents) or (extents[0].key.startswith(STAGED) and _size(extents) > segment_bytes // 2)


def _is_segment(extents: Sequence[Extent]) -> bool:
    return extents[0].key.startswith(SEGMENTS)


def _size(extents: Sequence[Extent]) -> int:
    return sum(each.size_bytes for each in extents)


def _is_old(extents: Sequence[Extent], commits: int) -> bool:
    """Return whether an object was created when fewer commits were known."""
    number = extents[0].key.rpartition("/")[2].partition("-")[0]
    return number.isdigit() and int(number) < commits


def consolidate(session: StoreSession, run: Run, check: Check = lambda: None) -> MergeReport | None:
    """Merge a run into one segment. Return None if another process was faster. Raises `CorruptBatch`, and changes
    nothing, if a batch is damaged."""
    known = session.known()
    data = bytearray()
    for _, batches in read(session, run.extents, check):
        data += batches
    if not replace(session, run, known, data):
        return None
    return MergeReport(len({each.key for each in run.extents}), 1, len(data))


def read(session: StoreSession, extents: Iterable[Extent], check: Check) -> Iterator[tuple[Extent, memoryview]]:
    """Yield the batches of extents with their offsets. Raises `CorruptBatch` unless all of them are valid. Bypasses the
    cache, because the result is written to the bucket."""
    check()
    for extent, data in session.maintenance.read_all(extents):
        placed(data, extent.base_offset, extent.leader_epoch)
        _check(checked_rows(data), extent.base_offset, extent.next_offset, extent.key)
        yield extent, data
        check()


def _check(rows: Rows, base: int, end: int, key: str) -> None:
    if int(rows[0, BASE]) != base or int(rows[-1, LAST]) + 1 != end:
        raise CorruptBatch(f"{key} has other offsets than {base} to {end}")


def replace(session: StoreSession, run: Run, known: int, data: bytes | bytearray) -> bool:
    """Upload batches and replace a run by them; return whether that succeeded."""
    base = run.extents[0].base_offset
    rows = checked_rows(memoryview(data))
    _check(rows, base, run.extents[-1].next_offset, "what replaces it")
    key = f"{SEGMENTS}{run.place.topic_id}/{run.place.partition}/{known:020}-{base:020}-{uuid.uuid4().hex}.log"
    session.bucket.put(key, bytes(data))
    outcome = session.submit([run.action([[key, *each] for each in described(rows).extents])]).result()
    return "ok" in outcome
