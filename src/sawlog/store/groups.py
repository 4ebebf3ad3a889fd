"""Consumer groups, as every backend describes them: members, committed offsets, and `Groups`, which administers them.

`sawlog.store.directory.groups` keeps groups in files, `sawlog.store.objects.groups` in the commits of a store on object
storage. Consumers use `membership.GroupMembership`, brokers `CoordinatorClaim`.
"""

from __future__ import annotations

import builtins
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from ..batch.text import parse_json
from ..clock import Stopwatch, now_ms
from ..config import whole_number
from ..errors import InvalidConfig
from ..storage.forking import forkable
from .base import Partition, Topic, TopicPartition

if TYPE_CHECKING:
    from .membership import GroupMembership, MemberOptions
    from .options import QueueOptions

#: Start position: the first record, the end, an offset, or the first record that is not older than a time.
StartPosition = Literal["earliest", "latest"] | int | datetime


#: Maximum time between two checks that counts as inactivity of a member.
_MOST_COUNTED_S = 1.0


# --- committed offsets


@dataclass(frozen=True, slots=True)
class Committed:
    """One committed offset."""

    offset: int
    topic_id: str
    metadata: str
    time_ms: int
    #: Id of the committing member; empty for a commit from outside the group.
    member: str
    #: Leader epoch in which the offset was read; -1 if unknown.
    leader_epoch: int = -1
    #: Leader epoch that a network client sent, if it differs; returned to the client unchanged.
    told_epoch: int | None = None
    #: Offset that a network client sent, if it differs: a negative one means an end of the partition, which `offset`
    #: resolves.
    told_offset: int | None = None

    @classmethod
    def by_member(cls, member: str, topic_id: str, offset: int, epoch: int) -> Committed:
        """Return a commit by a member, as of now."""
        return cls(offset, topic_id, "", now_ms(), member, epoch)

    def encode(self) -> bytes:
        """Return the value of the record."""
        fields = asdict(self)
        for name in ("told_epoch", "told_offset"):
            if fields[name] is None:
                del fields[name]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> Committed:
        """Parse the value of a record; `ValueError`, `KeyError` or `TypeError` if it is invalid."""
        found = parse_json(value)
        return cls(
            int(found["offset"]),
            str(found["topic_id"]),
            str(found["metadata"]),
            int(found["time_ms"]),
            str(found["member"]),
            int(found.get("leader_epoch", -1)),
            *(None if found.get(name) is None else int(found[name]) for name in ("told_epoch", "told_offset")),
        )


def begin(topic: Topic, start: StartPosition) -> dict[TopicPartition, tuple[int, int]]:
    """Resolve a start position in every partition of a topic, with the current leader epoch."""
    places: dict[TopicPartition, tuple[int, int]] = {}
    for number in range(topic.partitions):
        log = topic.partition(number)
        epoch = log.leader_epoch  # before the end is read: it may belong to a later one
        places[topic.name, number] = resolve(log, start), epoch
    return places


def resolve(log: Partition, place: StartPosition) -> int:
    """Resolve a start position to an offset of a log. A number is used unchanged, even if the log does not contain
    it."""
    end = log.last_stable_offset  # refreshes what other processes did
    if place == "earliest":
        return log.lowest_offset
    if place == "latest":
        return end
    if isinstance(place, datetime):
        return log.offset_at(place)
    if isinstance(place, bool) or not isinstance(place, int):
        raise InvalidConfig(f'a position must be "earliest", "latest", an offset or a datetime, not {place!r}')
    return checked_position(place)


def checked_position(offset: object) -> int:
    """Return the offset if it is valid; else `InvalidConfig`."""
    found = whole_number(offset)
    if not 0 <= found < 2**62:
        raise InvalidConfig(f"an offset must be an integer from 0 to 2**62 - 1, not {offset!r}")
    return found


# --- members


@dataclass(frozen=True, slots=True)
class Member:
    """A member's description of itself."""

    id: str
    #: The name it was given, if any.
    name: str
    #: Process and machine.
    process: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    #: Heartbeat counter.
    beat: int
    #: Time of the last heartbeat by the member's own clock: for display, not for decisions.
    time_ms: int
    #: True if it is a worker of a queue, which owns no partition: see `sawlog.store.queues`.
    works: bool = False


@dataclass(slots=True)
class _Watched:
    """Time for which a member's heartbeat counter has not changed."""

    beat: int
    silent_s: float = 0.0
    _looked: Stopwatch = field(default_factory=Stopwatch)

    def note_silence(self) -> None:
        """Account for an unchanged counter. Only the time between checks counts."""
        self.silent_s += min(self._looked.restart(), _MOST_COUNTED_S)


class Silence:
    """Time since each member's last heartbeat, as one process sees it. Thread-safe."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._watching = forkable(threading.Lock())

    def watch(self, found: Mapping[str, Member]) -> None:
        """Update the set of members and their counters."""
        with self._watching:
            self._watched = {id: each for id, each in self._watched.items() if id in found}
            for member in found.values():
                seen = self._watched.get(member.id)
                if seen is None or seen.beat != member.beat:
                    self._watched[member.id] = _Watched(member.beat)
                else:
                    seen.note_silence()

    def is_silent(self, member: Member) -> bool:
        """Return whether the member's session has expired, as far as this process has checked."""
        seen = self._watched.get(member.id)
        return seen is not None and seen.beat == member.beat and seen.silent_s * 1000 >= member.session_timeout_ms


# --- administration


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The progress of a group in one partition."""

    topic: str
    partition: int
    #: Next offset to be read; None if nothing was committed.
    committed: int | None
    lowest: int
    end: int
    #: Records that are not yet committed as read.
    lag: int
    #: Id of the member that owns the partition, if any.
    owner: str | None
    #: Messages of a queue that are not finished; None if the group is not that of a queue. The lag also counts messages
    #: that were finished before an earlier one.
    open: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Information about a group."""

    name: str
    members: tuple[Member, ...]
    rows: tuple[GroupRow, ...]
    #: Address of the broker that has its members, if they connect over the network. In a store that was opened with
    #: mode="r" it may be the address of a broker that was killed.
    served_at: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Offsets of a group to be committed, or with None to be deleted."""

    group: str
    offsets: Mapping[TopicPartition, Committed | None]
    #: True if the broker that serves the group writes them. Otherwise the partitions must have no owner.
    by_server: bool = False
    #: Name of the transaction they belong to, and its mark: it is applied once, however often it is retried.
    transaction: tuple[str, str] | None = None


class GroupDocuments(ABC):
    """Small documents of a consumer group, by name. They are deleted with the group."""

    @abstractmethod
    def find(self, name: str) -> dict[str, Any] | None:
        """Return a document, or None."""

    @abstractmethod
    def keep(self, name: str, fields: dict[str, Any]) -> None:
        """Write or replace a document, durably."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a document if it exists; durable after `sync`."""

    @abstractmethod
    def sync(self) -> None:
        """Make removals durable."""


class Groups(ABC):
    """Consumer groups and their committed offsets."""

    @abstractmethod
    def list(self) -> builtins.list[str]:
        """Return the names of all groups."""

    @abstractmethod
    def committed(self, name: str) -> dict[TopicPartition, Committed]:
        """Return the committed offsets of a group; empty if it does not exist."""

    @abstractmethod
    def describe(self, name: str) -> GroupDescription:
        """Return the members of a group and its progress; `GroupNotFound`."""

    @abstractmethod
    def commit(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets durably; `GroupActive` if a live member owns one of the partitions."""

    @abstractmethod
    def seek(self, name: str, offsets: Mapping[TopicPartition, StartPosition]) -> dict[TopicPartition, int]:
        """Move a group without live members; `GroupActive`, `GroupNotFound`."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a group and its offsets; `GroupActive` if it has live members."""

    @abstractmethod
    def _documents(self, name: str) -> AbstractContextManager[GroupDocuments]:
        """Open the documents of a group. Concurrent changes to one document block or are refused."""

    @abstractmethod
    def _membership(self, options: MemberOptions) -> GroupMembership:
        """Return a membership that has not joined yet."""

    @abstractmethod
    def _queueing(self, options: QueueOptions) -> tuple[DeliveryStates, QueueWorkers]:
        """Return the delivery state and the workers of a queue."""


class CoordinatorClaim(ABC):
    """A broker's claim to coordinate one group. All methods block, except `current`."""

    @property
    @abstractmethod
    def may_succeed(self) -> bool:
        """True if `take`, which has failed, is worth retrying soon: no member has sent a heartbeat since."""

    @abstractmethod
    def take(self) -> None:
        """Become the group's coordinator; `GroupActive` if consumers that opened the store are in the group."""

    @property
    @abstractmethod
    def current(self) -> bool:
        """True if this broker still coordinates the group, as far as it knows."""

    @abstractmethod
    def release(self) -> None:
        """Stop coordinating the group, or trying to, so that other members can join. Safe to call twice."""


# --- queues: the state that a backend stores for the workers of a group
#
# A *turn* is one atomic read-modify-write of the delivery state. In a directory, turns are exclusive and other
# processes block; on object storage they are optimistic: the loser of a race gets `TurnConflict` and retries.

#: State pages of queues to write, by partition and number; None removes a page.
Pages = Mapping[TopicPartition, Mapping[int, bytes | None]]


class TurnConflict(Exception):
    """Another worker wrote first: nothing was written, and the state that was read is stale."""


class QueueTurn(ABC):
    """Operations within a turn."""

    @abstractmethod
    def places(
        self, group: str, topics: Iterable[Topic], start: StartPosition, member: str
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return where a group continues. Its first access to a topic commits the start position."""

    @abstractmethod
    def offsets(self, group: str) -> dict[TopicPartition, Committed]:
        """Return the offsets of one group."""

    @abstractmethod
    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        """Return the state pages of a group's queues."""

    @abstractmethod
    def write_all(
        self,
        changes: Iterable[tuple[str, Mapping[TopicPartition, Committed | None]]],
        marks: Mapping[str, str] | None = None,
        pages: Mapping[str, Pages] | None = None,
    ) -> None:
        """Commit offsets and pages, all or none; `TurnConflict`."""


class DeliveryStates(ABC):
    """Committed offsets and state pages of queues."""

    @abstractmethod
    def of(self, group: str) -> dict[TopicPartition, Committed]:
        """Return the offsets of one group."""

    @abstractmethod
    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        """Return the state pages of a group's queues, by partition and number."""

    @abstractmethod
    def turn(self) -> AbstractContextManager[QueueTurn]:
        """Begin a turn."""


class QueueWorkers(ABC):
    """Workers of a queue, as one of them sees them."""

    @abstractmethod
    def join(self) -> str:
        """Join the group as a worker and return the id."""

    @abstractmethod
    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Return which of these workers are dead."""

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group. Safe to call twice."""

    def abandon(self) -> None:
        """Leave without blocking: the queue was dropped without being closed."""
        self.leave()
