"""`DirectoryService`: the broker's view of a store in a directory, which has a single broker."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...config import MIB, LogConfig, MaintenanceConfig
from ...errors import CorruptBatch, GroupError
from ...log.log import Log
from ...storage import Directory
from ...storage.system import free_bytes, space_of
from ..groups import CoordinatorClaim, OffsetChange
from ..serving import BrokerRegistry, StagedOffset, StoreService, TransactionalIds, TransactionMarker

if TYPE_CHECKING:
    from .store import DirectoryStore

NAME = "transactions"
_CONFIG = LogConfig(segment_bytes=MIB)
#: The log is compacted when it has more segments than this.
_SEGMENTS = 4
_MAINTENANCE = MaintenanceConfig(compact=True, delete=False, merge_bytes=0)


class DirectoryService(StoreService):
    """Broker's view of one open store."""

    _store: DirectoryStore

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store, BrokerRegistry())

    def reopen(self, name: str) -> None:
        self._store.topic(name)._partitions.reopen()

    def claim_group(self, name: str, address: str) -> CoordinatorClaim:
        return self._store.groups._claim(name, address)

    def commit_offsets(self, changes: Sequence[OffsetChange]) -> Sequence[GroupError | None]:
        return self._store.groups._commit_together(changes)

    def transactional_ids(self) -> DirectoryTransactionalIds:
        return DirectoryTransactionalIds(self._store._directory)

    def recover(self) -> Iterator[tuple[str, int, object]]:
        for topic in self._store:
            for number, report in topic._partitions.recover().items():
                yield topic.name, number, report

    def free_bytes(self) -> int | None:
        return free_bytes(self._store.path)

    def space(self) -> tuple[int, int]:
        return space_of(self._store.path)


class DirectoryTransactionalIds(TransactionalIds):
    """Transactional ids, durable in `transactions/`, a compacted log beside the topics.

    ```
    key     the transactional id
    value   its fields as JSON; without a value it is deleted
    ```

    The last record of a key is valid. One process has the log open at a time: a second broker on the same store has no
    transactions.
    """

    is_shared = False

    def __init__(self, root: Directory) -> None:
        self._directory = root.child(NAME, create=True)
        self._log = Log.open(self._directory, _CONFIG)
        self._known = self._load()

    def _load(self) -> dict[str, tuple[int, Mapping[str, Any]]]:
        """Read the log. Damaged entries are skipped: their clients start over."""
        found: dict[str, tuple[int, Mapping[str, Any]]] = {}
        position = self._log.lowest_offset
        while position < self._log.visible_offset:
            try:
                for record in self._log.scan(position):
                    position = record.offset + 1
                    name = (record.key or b"").decode("utf-8", "replace")
                    if record.value is None:
                        found.pop(name, None)
                    else:
                        found[name] = 1, json.loads(record.value)
                break
            except CorruptBatch as error:
                position = self._log.visible_offset if error.next_offset is None else error.next_offset
        return found

    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        return self._known.get(name)

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        return dict(self._known)

    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[TransactionMarker] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        assert not markers, "they are written one by one"
        assert not offsets, "they are written by the groups"
        self._log.append(None if fields is None else json.dumps(fields).encode(), name.encode())
        if fields is None:
            self._known.pop(name, None)
        else:
            self._known[name] = version + 1, fields
        if len(self._log.segments) > _SEGMENTS and self._log._maintenance_due(_MAINTENANCE):
            self._log.maintain(_MAINTENANCE)

    def new_producer_id(self) -> int:
        """Return 61 random bits: unique without any stored state."""
        return secrets.randbits(61)

    def close(self) -> None:
        try:
            self._log.close()
        finally:
            self._directory.close()
