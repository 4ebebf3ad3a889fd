"""Batches on their way between a directory and object storage. `Shipment` is one commit to a replica, with batches of
many partitions at their original offsets.

Small batches are stored in the commit itself. Otherwise all of them go into a few objects, which are uploaded first, so
that a round costs one to five requests, however many partitions there are. Each part names the end of its partition
that it expects (`expect`), so that only one of two replicators that ship the same records succeeds.

`Batches` are read at an offset, cut where they overlap, and filled where offsets are missing. Their bytes do not
change, except where a batch must be cut. Reads from object storage (`read_ahead`) bypass the cache and verify the
committed digests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

from ...batch.header import BASE, HEADER_BYTES, LAST, LEADER_EPOCH, MAX_TIME, POSITION, SIZE, Rows
from ...batch.read import decode
from ...errors import ImportMismatch
from ...log.batches import Chunk
from ...log.ingest import checked_rows, fillers, rows_of
from ...log.log import Log
from ...log.rebatch import Rebatcher, RewriteOptions
from ...log.rewrite import ReplacementFile
from ...log.segment import Segment
from ..objects.extent_reader import place_batches
from ..objects.maintenance import ChunkOrigin, RewriteBuffer
from ..objects.session import StoreSession
from ..objects.state import Outcome
from ..objects.state.commit import INLINE, Extent, append_action, described
from ..objects.topic import ObjectTopic

#: Larger shipments are uploaded before the commit that refers to them.
_INLINE_BYTES = 1 << 20
#: Approximate size of the uploaded objects, and number of parallel uploads.
_OBJECT_BYTES, _UPLOADS = 8 << 20, 4
#: Number of batches that the state remembers per producer.
_REMEMBERED = 5

Action = dict[str, Any]


class ReplicaPartition(NamedTuple):
    """A partition of the replica: its offsets and its leader epoch."""

    topic_id: str
    partition: int
    start: int
    end: int
    epoch: int


class _Part(NamedTuple):
    place: ReplicaPartition
    before: list[Action]
    batches: Batches
    after: list[Action]


class Shipment:
    """Batches and actions, collected and then committed once."""

    def __init__(self, condition: Action) -> None:
        #: The condition under which anything is committed.
        self._condition = condition
        self._parts: list[_Part] = []
        #: Actions to commit after the batches, together with them.
        self.actions: list[Action] = []
        self.size_bytes = 0
        self.records = 0

    def __bool__(self) -> bool:
        return bool(self._parts or self.actions)

    def add(
        self, place: ReplicaPartition, batches: Batches, *, before: Sequence[Action] = (), after: Sequence[Action] = ()
    ) -> None:
        """Add the next batches of a partition, with the actions before and after them."""
        self._parts.append(_Part(place, list(before), batches, list(after)))
        self.size_bytes += len(batches.data)
        self.records += batches.next_offset - batches.base_offset

    def commit(self, session: StoreSession) -> list[Outcome]:
        """Commit everything together and return the outcome. If that is rejected, commit each part separately, so that
        a rejected part does not stop the others, and return the outcome of each."""
        requests: list[tuple[list[Action], list[bytes]]] = []
        for key, parts in self._uploaded(session):
            position = 0
            for part in parts:
                requests.append(_request(part, key, position))
                position += len(part.batches.data)
        together = [self._condition, *(action for actions, _ in requests for action in actions), *self.actions]
        outcome = session.submit(together, [data for _, inline in requests for data in inline]).result()
        if "ok" in outcome or len(requests) + bool(self.actions) == 1:
            return [outcome]
        waiting = [session.submit([self._condition, *actions], inline) for actions, inline in requests]
        return [each.result() for each in waiting]

    def _uploaded(self, session: StoreSession) -> list[tuple[str, list[_Part]]]:
        """Return the keys of the objects and the parts in them. Several large objects are uploaded in parallel."""
        if self.size_bytes <= _INLINE_BYTES:
            return [(INLINE, self._parts)]
        groups: list[list[_Part]] = []
        size = _OBJECT_BYTES
        for part in self._parts:
            if size >= _OBJECT_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += len(part.batches.data)
        with ThreadPoolExecutor(_UPLOADS, "sawlog-replicate") as pool:
            keys = pool.map(lambda parts: session.upload(b"".join(part.batches.data for part in parts)), groups)
            return list(zip(keys, groups, strict=True))


def _request(part: _Part, key: str, position: int) -> tuple[list[Action], list[bytes]]:
    """Return the request that places the batches of a partition, and the batches to store in the commit."""
    place, actions, inline = part.place, list(part.before), []
    end, epoch = part.batches.base_offset, place.epoch
    for number, piece in part.batches.epochs():
        if number > epoch:
            actions.append(_of(place, "begin epoch", epoch=number))
            epoch = number
        rows = piece.rows.copy()
        if key != INLINE:
            rows[:, POSITION] += position
        about = described(rows)
        made = append_action(place.topic_id, place.partition, key, about, end)
        made["copied"] = True
        if about.producers:
            made["producers"] = _latest(about.producers)
        actions.append(made)
        if key == INLINE:
            inline.append(bytes(piece.data))
        position += len(piece.data)
        end += about.count
    return actions + part.after, inline


def _latest(producers: list[list[int]]) -> list[list[int]]:
    """Return the last batches of each producer: no more are remembered, and there may be very many."""
    found: dict[int, list[list[int]]] = defaultdict(list)
    for each in producers:
        found[each[0]].append(each)
    return [each for batches in found.values() for each in batches[-_REMEMBERED:]]


def _of(place: ReplicaPartition, do: str, **fields: object) -> Action:
    return {"do": do, "topic": place.topic_id, "partition": place.partition, **fields}


def advance(place: ReplicaPartition, offset: int) -> Action:
    return _of(place, "advance", offset=offset)


def move_start(place: ReplicaPartition, offset: int) -> Action:
    return _of(place, "move start", offset=offset)


def read_ahead(session: StoreSession, extents: Iterable[Extent]) -> Iterator[Batches]:
    """Yield the batches of extents with their offsets, in order, from the bucket."""
    for part in session.uncached.read_parts(extents):
        data = memoryview(bytearray(part.data))
        position = 0
        for each in part.extents:
            place_batches(data[position : position + each.size_bytes], each.base_offset, each.leader_epoch)
            position += each.size_bytes
        yield Batches(data, rows_of(data))


def between(batches: Batches, start: int, end: int, where: str) -> Batches | None:
    """Return the batches with offsets from `start` to `end`; None if there are none. Raises `ImportMismatch` if a batch
    extends beyond the end, because it was compacted since with records that were written later."""
    rows = batches.rows[(batches.rows[:, LAST] >= start) & (batches.rows[:, BASE] < end)]
    if not len(rows):
        return None
    if int(rows[-1, LAST]) >= end:
        raise ImportMismatch(
            f"{where} was compacted since: offset {end}, where it ended at that moment, is inside a batch now, and "
            "the earlier records are gone"
        )
    return Batches(batches.data, rows)


class Batches(NamedTuple):
    """Contiguous batches and their headers."""

    data: memoryview
    rows: Rows

    @property
    def base_offset(self) -> int:
        return int(self.rows[0, BASE])

    @property
    def next_offset(self) -> int:
        return int(self.rows[-1, LAST]) + 1

    def epochs(self) -> Iterator[tuple[int, Batches]]:
        """Yield the batches of each leader epoch. Batches without an epoch belong to epoch 0."""
        start = 0
        for at in range(1, len(self.rows) + 1):
            if at == len(self.rows) or self.rows[at, LEADER_EPOCH] != self.rows[start, LEADER_EPOCH]:
                yield max(int(self.rows[start, LEADER_EPOCH]), 0), self._part(start, at)
                start = at

    def _part(self, start: int, end: int) -> Batches:
        rows = self.rows[start:end].copy()
        first, last = int(rows[0, POSITION]), int(rows[-1, POSITION] + rows[-1, SIZE])
        rows[:, POSITION] -= first
        return Batches(self.data[first:last], rows)


def checked(data: bytes | bytearray | memoryview) -> Batches:
    view = memoryview(data)
    return Batches(view, checked_rows(view))


def cut_below(batches: Batches, offset: int, max_bytes: int) -> Batches:
    """Return the batches from an offset on, even if it is inside the first batch: the source may have merged batches
    since the last ones were copied."""
    if batches.base_offset >= offset:
        return batches
    out = RewriteBuffer()
    rows = batches.rows[batches.rows[:, LAST] >= offset]
    if int(rows[0, BASE]) < offset:
        made = Rebatcher(cast("ReplacementFile", out), offset, RewriteOptions(floor=offset), max_bytes)
        made.take(Chunk(batches.data, rows[:1], 0), cast("Segment", ChunkOrigin("the source")))
        made.finish(int(rows[0, LAST]) + 1)
        rows = rows[1:]
    if len(rows):
        out.data += batches.data[int(rows[0, POSITION]) : int(rows[-1, POSITION] + rows[-1, SIZE])]
    return checked(out.data)


def filled(raw: bytes, start: int, end: int, epoch: int) -> Batches:
    """Return batches that start at `start`. An empty batch fills missing offsets before them or, if there are none, the
    offsets up to `end`."""
    if not raw:
        return checked(fillers(start, end, -1, epoch))
    batches = checked(raw)
    if batches.base_offset <= start:
        return batches
    first = batches.rows[0]
    before = fillers(start, batches.base_offset, int(first[MAX_TIME]), max(int(first[LEADER_EPOCH]), 0))
    made = memoryview(bytes(before) + bytes(batches.data))
    return Batches(made, rows_of(made))


def is_same_batch(session: StoreSession, log: Log, topic: str, topic_id: str, partition: int, offset: int) -> bool:
    """Return whether a log and its copy, as the bucket has it now, have the same batch at an offset."""
    copy = ObjectTopic(session, topic, topic_id).partition(partition)._uncached()
    mine, theirs = (each.fetch(offset, 1, isolation="uncommitted").raw for each in (log, copy))
    return _same_at(mine, theirs, offset)


def _same_at(one: bytes, other: bytes, offset: int) -> bool:
    """Return whether two batches that contain an offset are the same: byte for byte except for the leader epoch or, if
    one was rewritten by compaction, whether both have the same record at the offset, where both have it."""
    if one[:12] == other[:12] and one[16:HEADER_BYTES] == other[16:HEADER_BYTES]:
        return True
    mine, theirs = decode(one, offset, offset + 1), decode(other, offset, offset + 1)
    if not mine or not theirs:
        return True
    return [(each.timestamp, each.key, each.value, each.headers) for each in mine] == [
        (each.timestamp, each.key, each.value, each.headers) for each in theirs
    ]
