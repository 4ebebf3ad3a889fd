"""`Shipment`: what one commit places in a replica: batches of many partitions, at the offsets that they have.

Small ones are in the commit itself; else all of them are in a few objects, which are uploaded before: a round costs one
to five requests, however many partitions there are. Each part says at which end of its partition it begins (`expect`),
so that of two replicators that ship the same records one is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ...batch.header import POSITION
from ..objects.partition.pieces import append_action, described
from ..objects.session import Core
from ..objects.state.extents import INLINE
from ..objects.state.state import Outcome
from .batches import Batches

#: Larger shipments are uploaded before the commit that refers to them.
_INLINE_BYTES = 1 << 20
#: They are objects of about this size, and so many are uploaded at the same time.
_OBJECT_BYTES, _UPLOADS = 8 << 20, 4
#: The batches of a producer that the state remembers.
_REMEMBERED = 5

Action = dict[str, Any]


class Place(NamedTuple):
    """A partition of the replica: where it ends, and in which leader epoch."""

    topic_id: str
    partition: int
    start: int
    end: int
    epoch: int


class _Part(NamedTuple):
    place: Place
    before: list[Action]
    batches: Batches
    after: list[Action]


class Shipment:
    """Collected, and then committed once."""

    def __init__(self, condition: Action) -> None:
        #: What must be so, else nothing is committed.
        self._condition = condition
        self._parts: list[_Part] = []
        #: What is committed after the batches, if they are.
        self.actions: list[Action] = []
        self.size_bytes = 0
        self.records = 0

    def __bool__(self) -> bool:
        return bool(self._parts or self.actions)

    def add(
        self, place: Place, batches: Batches, *, before: Sequence[Action] = (), after: Sequence[Action] = ()
    ) -> None:
        """Add the next batches of a partition, with what is done to it before and after."""
        self._parts.append(_Part(place, list(before), batches, list(after)))
        self.size_bytes += len(batches.data)
        self.records += batches.next_offset - batches.base_offset

    def commit(self, core: Core) -> list[Outcome]:
        """Commit all of it together. If that is rejected, each part alone, so that one that is refused does not stop
        the others; what became of each."""
        requests: list[tuple[list[Action], list[bytes]]] = []
        for key, parts in self._uploaded(core):
            position = 0
            for part in parts:
                requests.append(_request(part, key, position))
                position += len(part.batches.data)
        together = [self._condition, *(action for actions, _ in requests for action in actions), *self.actions]
        outcome = core.submit(together, [data for _, inline in requests for data in inline]).result()
        if "ok" in outcome or len(requests) + bool(self.actions) == 1:
            return [outcome]
        waiting = [core.submit([self._condition, *actions], inline) for actions, inline in requests]
        return [each.result() for each in waiting]

    def _uploaded(self, core: Core) -> list[tuple[str, list[_Part]]]:
        """The parts, and the objects that they are in: some large ones, which are uploaded at the same time."""
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
            keys = pool.map(lambda parts: core.upload(b"".join(part.batches.data for part in parts)), groups)
            return list(zip(keys, groups, strict=True))


def _request(part: _Part, key: str, position: int) -> tuple[list[Action], list[bytes]]:
    """What a request says to place the batches of a partition, and those that are in the commit with it."""
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
    """The last batches of each producer: no more are remembered, and there may be very many."""
    found: dict[int, list[list[int]]] = defaultdict(list)
    for each in producers:
        found[each[0]].append(each)
    return [each for batches in found.values() for each in batches[-_REMEMBERED:]]


def _of(place: Place, do: str, **fields: object) -> Action:
    return {"do": do, "topic": place.topic_id, "partition": place.partition, **fields}


def advance(place: Place, offset: int) -> Action:
    """An empty partition begins at this offset."""
    return _of(place, "advance", offset=offset)


def move_start(place: Place, offset: int) -> Action:
    """What is below this offset is dropped."""
    return _of(place, "move start", offset=offset)
