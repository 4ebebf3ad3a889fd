"""`ObjectTransactionalIds`: transactional ids in the commits of a store. Any broker may change them; the version
decides.

A transaction ends in one commit: see state/transactions.py.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ....clock import now_ms
from ....errors import TopicNotFound
from ....log.ingest import checked_rows
from ....log.markers import marker
from ....storage.forking import forkable
from ...base import TopicPartition
from ...serving import StagedOffset, TransactionalIds, TransactionMarker
from ..extent_reader import append_action, described
from ..session import StoreSession
from ..state.entries import quoted
from ..state.extents import INLINE
from ..state.state import State

#: Producer ids are allocated in blocks of this size. Unused ids are lost when the broker stops.
_BLOCK = 1000


class ObjectTransactionalIds(TransactionalIds):
    """The transactional ids of one store. Thread-safe."""

    is_shared = True

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        self._lock = forkable(threading.Lock())
        self._ids = iter(range(0))

    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        """Return version and fields, as of the last folded commit."""
        found = self._session.peek(lambda state: state.entries.get(f"transaction/{quoted(name)}"))
        return None if found is None else (found[0], found[1])

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """Return all transactional ids."""
        return self._session.peek(_all)

    def pending(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets an ongoing transaction will commit."""
        found = self._session.peek(lambda state: state.entries.get(f"pending/{quoted(group)}", {}))
        return frozenset((topic, partition) for shares in found.values() for topic, partition in shares)

    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[TransactionMarker] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        """Replace an entry, together with the markers and offsets that end its transaction. Raises `Conflict` unless
        the entry has that version."""
        saving = {"do": "save transaction", "name": name, "version": version, "fields": fields}
        while True:
            actions, inline = self._session.peek(lambda state: _ending(state, markers, offsets or {}))
            try:
                self._session.commit([saving, *actions], inline)
                return
            except TopicNotFound:  # deleted meanwhile: the next attempt leaves it out
                self.refresh()

    def refresh(self) -> None:
        """Fold what other brokers have stored."""
        self._session.look(lambda state: None, fresh=True)

    def new_producer_id(self) -> int:
        """Return an unused producer id."""
        with self._lock:
            found = next(self._ids, None)
            if found is None:
                (first,) = self._session.commit([{"do": "take numbers", "name": "producer", "count": _BLOCK}])
                assert isinstance(first, int)
                self._ids = iter(range(first, first + _BLOCK))
                found = next(self._ids)
            return found


def _all(state: State) -> dict[str, tuple[int, Mapping[str, Any]]]:
    found = {}
    for name in state.entries.names("transaction/"):
        version, fields = state.entries.get(name)
        found[unquote(name.partition("/")[2])] = (version, fields)
    return found


def _ending(
    state: State, markers: Sequence[TransactionMarker], offsets: Mapping[str, Sequence[StagedOffset]]
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the actions that end a transaction in those of its topics that still exist."""
    actions: list[dict[str, Any]] = []
    inline: list[bytes] = []
    for each in markers:
        if state.entries.get(f"end/{each.topic_id}/{each.partition}") is None:
            continue
        data = bytes(marker(each.producer_id, each.epoch, 0, now_ms(), commit=each.commit))
        actions.append(
            append_action(each.topic_id, each.partition, INLINE, described(checked_rows(memoryview(data))), None)
        )
        inline.append(data)
    for group, staged in offsets.items():
        rows, names = [], {}
        for topic, partition, offset, epoch, metadata in staged:
            entry = state.topic(topic)
            if entry is not None and partition < entry["partitions"]:
                rows.append([entry["id"], partition, offset, metadata, epoch])
                names[entry["id"]] = topic
        if rows:
            actions.append({"do": "commit offsets", "group": group, "offsets": rows, "topics": names, "decided": True})
    return actions, inline
