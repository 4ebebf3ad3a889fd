"""`Shipment`: one commit to a replica, with batches of many partitions at their original offsets.

Small batches are stored in the commit itself. Otherwise all of them go into a few objects, which are uploaded first, so
that a round costs one to five requests, however many partitions there are. Each part names the end of its partition
that it expects (`expect`), so that only one of two replicators that ship the same records succeeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ...batch.header import POSITION
from ..objects.extent_reader import append_action, described
from ..objects.session import StoreSession
from ..objects.state.extents import INLINE
from ..objects.state.state import Outcome
from .batches import Batches

#: Larger shipments are uploaded before the commit that refers to them.
_INLINE_BYTES = 1 << 20
#: Approximate size of the uploaded objects, and number of parallel uploads.
_OBJECT_BYTES, _UPLOADS = 8 << 20, 4
#: Number of batches that the state remembers per producer.
_REMEMBERED = 5

Action = dict[str, Any]


class Place(NamedTuple):
    """A partition of the replica: its offsets and its leader epoch."""

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
        self, place: Place, batches: Batches, *, before: Sequence[Action] = (), after: Sequence[Action] = ()
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


def _of(place: Place, do: str, **fields: object) -> Action:
    return {"do": do, "topic": place.topic_id, "partition": place.partition, **fields}


def advance(place: Place, offset: int) -> Action:
    """Return the action that sets the first offset of an empty partition."""
    return _of(place, "advance", offset=offset)


def move_start(place: Place, offset: int) -> Action:
    """Return the action that drops the records below an offset."""
    return _of(place, "move start", offset=offset)
