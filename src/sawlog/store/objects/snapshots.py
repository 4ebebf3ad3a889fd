"""`Snapshots`: the topics of a store as they were at a moment, under a name. What they have is kept until then.

A snapshot is a commit that refers to the extents of all topics once more: nothing is copied, and it takes as long as
that commit. Records that are expired, compacted or deleted later stay in it, and cost their space. What was committed
before it is in it, in all topics and partitions; what came later is in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...clock import now_ms
from ...errors import SnapshotNotFound, TopicNotFound
from ..names import check_topic_name
from .session import Core
from .state.snapshots import id_in


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One snapshot."""

    name: str
    #: When it was taken, by the clock of who took it.
    time_ms: int
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


class Snapshots:
    """The snapshots of one store. Safe for threads."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, name: str, topics: Sequence[str] | None = None) -> SnapshotInfo:
        """Keep all topics, or some, as they are now; `SnapshotExists`."""
        check_topic_name(name)
        wanted = None if topics is None else sorted(set(topics))
        self._core.commit([{"do": "take snapshot", "name": name, "topics": wanted, "time_ms": now_ms()}])
        return self.get(name)

    def list(self) -> list[SnapshotInfo]:
        """All of them, by name."""
        found = self._core.look(lambda state: state.snapshots(), fresh=True)
        return [_info(name, entry) for name, entry in sorted(found.items())]

    def get(self, name: str) -> SnapshotInfo:
        """One of them; `SnapshotNotFound`."""
        return _info(name, self._entry(name))

    def drop(self, name: str) -> None:
        """Forget one. What only it refers to is removed later; `SnapshotNotFound`."""
        self._core.commit([{"do": "drop snapshot", "name": name}])

    def topic(self, name: str, snapshot: str) -> str:
        """The id of a topic in a snapshot; `TopicNotFound`."""
        entry = self._entry(snapshot)["topics"].get(name)
        if entry is None:
            raise TopicNotFound(f"no topic {name!r} in snapshot {snapshot!r} of {self._core.bucket.url}")
        return id_in(entry["id"], snapshot)

    def _entry(self, name: str) -> Mapping[str, Any]:
        found = self._core.look(lambda state: state.snapshots().get(name)) or self._core.look(
            lambda state: state.snapshots().get(name), fresh=True
        )
        if found is None:
            raise SnapshotNotFound(f"no snapshot {name!r} in {self._core.bucket.url}")
        return found


def _info(name: str, entry: Mapping[str, Any]) -> SnapshotInfo:
    return SnapshotInfo(name, int(entry["time_ms"]), tuple(sorted(entry["topics"])))
