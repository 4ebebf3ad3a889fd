"""Consolidation: many small extents of a partition become one segment, with Kafka's bytes and their final offsets.

```
segments/<topic id>/<partition>/<commits known>-<base offset>-<uuid>.log
```

Batches come in commits and in staged objects, a few at a time and mixed with those of other partitions. A segment has
the batches of one partition, one after the other, so that a scan reads few objects, and commits and staged objects can
be collected. The extents of the state are its index: one for each MiB or so.

What is new is uploaded first; a commit then puts it in the place of exactly the extents that were read, or does nothing
if one of them is not there any more. So any number of processes may do the same at once, and be stopped anywhere.
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
from ..session import Core
from ..state.extents import SEGMENTS, STAGED, Extent

#: A segment is about this large, at most; a topic's `segment.bytes` may make it smaller.
SEGMENT_BYTES = 64 << 20
#: Extents that one commit replaces, at most: it names each of them.
_MOST_EXTENTS = 4096
#: So many extents that are not in a segment are worth one.
_LEAST_EXTENTS = 16


#: Called between requests; raises if the store is being closed, which must not wait until a long work has ended.
Check = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of a topic."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class Run:
    """Extents that follow each other, and are replaced together."""

    place: Place
    extents: tuple[Extent, ...]

    @property
    def size_bytes(self) -> int:
        """The size of their batches."""
        return sum(each.size_bytes for each in self.extents)

    def action(self, new: Sequence[Sequence[object]]) -> dict[str, object]:
        """What a commit says to put others in their place."""
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
    """What is worth a segment: many extents that are in none, or such that are in commits below `old_commits`, which
    can be collected then. Segments before them that are not larger are taken along, so that few remain."""
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
    """Whether what a partition has in one object stays there: a segment, or so much that it is as good as one; but not
    a commit, which is to be collected."""
    return _is_segment(extents) or (extents[0].key.startswith(STAGED) and _size(extents) > segment_bytes // 2)


def _is_segment(extents: Sequence[Extent]) -> bool:
    return extents[0].key.startswith(SEGMENTS)


def _size(extents: Sequence[Extent]) -> int:
    return sum(each.size_bytes for each in extents)


def _is_old(extents: Sequence[Extent], commits: int) -> bool:
    """Whether an object was made when fewer commits were known."""
    number = extents[0].key.rpartition("/")[2].partition("-")[0]
    return number.isdigit() and int(number) < commits


def consolidate(core: Core, run: Run, check: Check = lambda: None) -> MergeReport | None:
    """Make one segment of a run; None if another process was faster. `CorruptBatch` if it is damaged: it is left as it
    is."""
    known = core.known()
    data = bytearray()
    for _, batches in read(core, run.extents, check):
        data += batches
    if not replace(core, run, known, data):
        return None
    return MergeReport(len({each.key for each in run.extents}), 1, len(data))


def read(core: Core, extents: Iterable[Extent], check: Check) -> Iterator[tuple[Extent, memoryview]]:
    """The batches of extents with their offsets; `CorruptBatch` unless all of them are right. Not from the cache: what
    is read here is written to the bucket again."""
    check()
    for extent, data in core.maintenance.read_all(extents):
        placed(data, extent.base_offset, extent.leader_epoch)
        _check(checked_rows(data), extent.base_offset, extent.next_offset, extent.key)
        yield extent, data
        check()


def _check(rows: Rows, base: int, end: int, key: str) -> None:
    if int(rows[0, BASE]) != base or int(rows[-1, LAST]) + 1 != end:
        raise CorruptBatch(f"{key} has other offsets than {base} to {end}")


def replace(core: Core, run: Run, known: int, data: bytes | bytearray) -> bool:
    """Upload batches, and put them in the place of a run; whether they are there now."""
    base = run.extents[0].base_offset
    rows = checked_rows(memoryview(data))
    _check(rows, base, run.extents[-1].next_offset, "what replaces it")
    key = f"{SEGMENTS}{run.place.topic_id}/{run.place.partition}/{known:020}-{base:020}-{uuid.uuid4().hex}.log"
    core.bucket.put(key, bytes(data))
    outcome = core.submit([run.action([[key, *each] for each in described(rows).extents])]).result()
    return "ok" in outcome
