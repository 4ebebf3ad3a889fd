"""Named parts of a store besides its topics: `Snapshots`, read-only versions of them, and `ObjectRegistry`, small
documents such as the users of a broker.

A snapshot is a commit that refers to the extents of all topics once more. Nothing is copied, and taking one takes as
long as that commit. Records that expire or are compacted or deleted later stay in it and use space until it is deleted.
A snapshot is consistent across topics and partitions: it has every earlier commit, and no later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...clock import now_ms
from ...errors import SnapshotNotFound, TopicNotFound
from ..base import DocumentRegistry
from ..directory.documents import Document, check_document_name
from ..names import check_topic_name
from .session import StoreSession, results
from .state.partitions import id_in_snapshot


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    name: str
    #: When the snapshot was taken, by the clock of the process that took it.
    time_ms: int
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


class Snapshots:
    """The snapshots of one store. Thread-safe."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def take(self, name: str, topics: Sequence[str] | None = None) -> SnapshotInfo:
        """Take a snapshot of all topics, or of some. Raises `SnapshotExists`."""
        check_topic_name(name)
        wanted = None if topics is None else sorted(set(topics))
        self._session.commit([{"do": "take snapshot", "name": name, "topics": wanted, "time_ms": now_ms()}])
        return self.get(name)

    def list(self) -> list[SnapshotInfo]:
        """Return all snapshots, sorted by name."""
        found = self._session.look(lambda state: state.snapshots(), fresh=True)
        return [_info(name, entry) for name, entry in sorted(found.items())]

    def get(self, name: str) -> SnapshotInfo:
        """Return a snapshot. Raises `SnapshotNotFound`."""
        return _info(name, self._entry(name))

    def drop(self, name: str) -> None:
        """Delete a snapshot. Objects that only it refers to are deleted later. Raises `SnapshotNotFound`."""
        self._session.commit([{"do": "drop snapshot", "name": name}])

    def topic(self, name: str, snapshot: str) -> str:
        """Return the id of a topic in a snapshot. Raises `TopicNotFound`."""
        entry = self._entry(snapshot)["topics"].get(name)
        if entry is None:
            raise TopicNotFound(f"no topic {name!r} in snapshot {snapshot!r} of {self._session.bucket.url}")
        return id_in_snapshot(entry["id"], snapshot)

    def _entry(self, name: str) -> Mapping[str, Any]:
        found = self._session.look(lambda state: state.snapshots().get(name)) or self._session.look(
            lambda state: state.snapshots().get(name), fresh=True
        )
        if found is None:
            raise SnapshotNotFound(f"no snapshot {name!r} in {self._session.bucket.url}")
        return found


def _info(name: str, entry: Mapping[str, Any]) -> SnapshotInfo:
    return SnapshotInfo(name, int(entry["time_ms"]), tuple(sorted(entry["topics"])))


class ObjectRegistry(DocumentRegistry):
    """The documents of one store. Each change is a commit that names the version it replaces. Safe for threads and
    processes."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def read(self, name: str) -> Document:
        """Return the current document; version 0 without fields if it was never stored."""
        check_document_name(name)
        return Document(*self._session.look(lambda state: state.document(name), fresh=True))

    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Document:
        """Replace the fields of a document by the result of `edit`, durably. `edit` is called again if another process
        changed the document meanwhile. If it raises or returns the same fields, nothing is stored."""
        check_document_name(name)
        self._session.check_writable()
        while True:
            found = self.read(name)
            fields = dict(edit(found.fields))
            if fields == found.fields:
                return found
            action = {"do": "change document", "name": name, "version": found.version, "fields": fields}
            outcome = self._session.submit([action]).result()
            if "no" not in outcome or outcome["no"][0] != "Changed":
                results(outcome)
                return Document(found.version + 1, fields)
