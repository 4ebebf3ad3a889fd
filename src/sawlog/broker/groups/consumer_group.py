"""`ConsumerGroup`: a group of the KIP-848 protocol, in which the broker assigns the partitions.

There is one request, the heartbeat: a member reports its subscription and the partitions it owns, and learns the
partitions it should own. No request waits for another member.

- The *group epoch* increases whenever members, subscriptions or partitions change. A target assignment is computed for
  each.
- Each member moves to its target independently. First it gives up the partitions it should no longer own, and reports
  that in a later heartbeat. Then it gets those it should own, as far as no other member has them. Its *member epoch* is
  that of the target it has reached; heartbeats and commits with another epoch are refused.
- A partition therefore has one owner: it is free only when its owner has reported giving it up, or is removed. A member
  is removed when it leaves, when it is silent for the session timeout, or when it does not give up partitions within
  its rebalance timeout.

Members keep their ids when they rejoin, so an epoch must not be reused: an old commit or fetch would become valid
again. Groups are not stored, so a group that a broker begins to coordinate, even after a crash, begins at a random
epoch (`first_epoch`).

A static member that leaves temporarily keeps its partitions for the session timeout; a member that joins with its
instance id gets them.

Assignors: *uniform* is balanced and sticky; consumers of this library share partitions by the same function,
`store.membership.assign`. *range* gives each member consecutive partitions, the same numbers of every topic if all
topics have as many, so that co-partitioned records meet in one member.

Patterns of clients are matched in linear time by RE2, which Kafka's brokers use as well. It comes with Arrow, which is
imported when a client first sends a pattern, because the import costs memory and startup time.

Sans-io, like `classic_group`: time comes from the event loop's clock. Partitions are (topic id in hex, number).
Single-threaded.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from ...display import counted
from ...store.base import TopicPartition
from ...store.membership import assign
from ..config import BrokerConfig
from ..wire import ErrorCode
from .members import DeadlineTimer, Members

_logger = logging.getLogger("sawlog.broker.groups")

#: Special member epochs: joining, leaving, and temporary leave of a static member.
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
#: Errors for another epoch, in either protocol.
_OTHER_EPOCH = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that members may read."""

    #: In hexadecimal.
    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A ConsumerGroupHeartbeat request. None means unchanged."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None
    #: Tells whether the member may describe a topic. A pattern matches no others.
    sees: Callable[[str], bool] = lambda topic: True


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The response to a heartbeat."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    #: All partitions that the member should own; None if unchanged.
    assignment: frozenset[TopicPartition] | None = None


@dataclass(slots=True)
class ConsumerMember:
    """A member of a KIP-848 group."""

    id: str
    instance_id: str | None
    #: Fire when the session expires, and when the member has not given up partitions in time.
    session: DeadlineTimer = field(repr=False)
    revoking_alarm: DeadlineTimer = field(repr=False)
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = 300_000
    session_timeout_ms: int = 45_000
    #: True if it uses the classic protocol: see `Group`.
    is_classic: bool = False
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    sees: Callable[[str], bool] = lambda topic: True
    #: Topics that match the pattern.
    matched: frozenset[str] = frozenset()
    assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    assigned: set[TopicPartition] = field(default_factory=set)
    #: Epoch since which it has owned each partition.
    since: dict[TopicPartition, int] = field(default_factory=dict)
    #: Partitions that it must give up and has not reported yet.
    revoking: set[TopicPartition] = field(default_factory=set)

    @property
    def subscription(self) -> frozenset[str]:
        """Names of all subscribed topics, existing or not."""
        return self.topics | self.matched

    def stop(self) -> None:
        self.session.stop()
        self.revoking_alarm.stop()


class ConsumerGroup:
    """The members of one group and their target assignment."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        on_empty: Callable[[], None] = lambda: None,
        *,
        first_epoch: int = 0,
    ) -> None:
        self.name = name
        #: Random, so that it is far from any epoch that members know.
        self._first_epoch = first_epoch
        self.epoch = first_epoch
        #: Group epoch of the current target.
        self.assignment_epoch = first_epoch
        self._loop = loop
        self._config = config
        self._on_empty = on_empty
        self._members = Members[ConsumerMember]()
        self._topics: Mapping[str, TopicInfo] = {}
        self._target: dict[str, set[TopicPartition]] = {}
        #: Owner of each partition, until it has reported giving the partition up.
        self._owners: dict[TopicPartition, str] = {}

    # --- properties

    @property
    def is_empty(self) -> bool:
        return not len(self._members)

    @property
    def has_begun(self) -> bool:
        """True if it has ever had members."""
        return self.assignment_epoch > self._first_epoch

    @property
    def members(self) -> Sequence[ConsumerMember]:
        return list(self._members)

    @property
    def state(self) -> str:
        """State, as Kafka's tools display it."""
        if self.is_empty:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        is_settled = all(
            each.epoch in (self.assignment_epoch, STATIC_LEAVE_EPOCH) and each.assigned == self.target_of(each.id)
            for each in self._members
        )
        return "Stable" if is_settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """Assignor that most members request."""
        votes = Counter(member.assignor for member in self._members if member.assignor is not None)
        return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT_ASSIGNOR)

    @property
    def topics(self) -> frozenset[str]:
        """Topics that the members read."""
        return frozenset().union(*(each.subscription for each in self._members))

    @property
    def has_patterns(self) -> bool:
        """True if a member subscribes by pattern, so that every topic matters."""
        return any(each.pattern for each in self._members)

    def member(self, member_id: str) -> ConsumerMember | None:
        """Return a member; None if the id is unknown."""
        return self._members.get(member_id)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member with an instance id; None if there is none."""
        return self._members.static(instance_id)

    def names(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Translate topic ids into names."""
        found = {topic.id: name for name, topic in self._topics.items()}
        return [(found[id], number) for id, number in partitions if id in found]

    def has_newer_target(self, member: ConsumerMember) -> bool:
        """Return whether a target was computed after the one that the member reached."""
        return member.epoch != self.assignment_epoch

    def must_reconcile(self, member: ConsumerMember) -> bool:
        """Return whether a member has not reached its target and can make progress."""
        if self.has_newer_target(member) or member.revoking:
            return True
        return any(partition not in self._owners for partition in self.target_of(member.id) - member.assigned)

    def target_of(self, member_id: str) -> set[TopicPartition]:
        """Return the partitions that a member should own."""
        return self._target.get(member_id, set())

    # --- heartbeats

    def heartbeat(self, beat: HeartbeatRequest, topics: Mapping[str, TopicInfo]) -> HeartbeatResponse:
        """Answer a heartbeat. `topics` must include every topic that the group or this member reads."""
        error, message = self._error(beat)
        if error is not ErrorCode.NONE:
            return HeartbeatResponse(error, message)
        if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat)
        known = len(self._members)
        member = self._members.get(beat.member_id)
        if member is None:
            member = self._admit(beat)
        member.is_classic, member.session_timeout_ms = False, self._config.group_consumer_session_timeout_ms
        if self._update(member, beat) or len(self._members) > known:
            self.epoch += 1
        self.refresh_topics(topics)
        before = set(member.assigned)
        self._reconcile(member, beat.owned)
        member.session.set(member.session_timeout_ms)
        is_told = beat.epoch != member.epoch or member.assigned != before or _is_full(beat)
        return HeartbeatResponse(
            ErrorCode.NONE, None, member.id, member.epoch, frozenset(member.assigned) if is_told else None
        )

    def _error(self, beat: HeartbeatRequest) -> tuple[ErrorCode, str | None]:
        """Return the error and message of an invalid heartbeat, or NONE."""
        invalid = _invalid(beat)
        if invalid is not None:
            return invalid
        if beat.epoch == JOIN_EPOCH:
            known = self._members.static(beat.instance_id)
            if known is not None and known.id != beat.member_id and not self._may_replace(known):
                return ErrorCode.UNRELEASED_INSTANCE_ID, f"another member has the instance id {beat.instance_id!r}"
            is_full = len(self._members) >= self._config.group_max_size
            if beat.member_id not in self._members and known is None and is_full:
                why = f"the group has {counted(len(self._members), 'member')}, the maximum"
                return ErrorCode.GROUP_MAX_SIZE_REACHED, why
            return ErrorCode.NONE, None
        error = self._members.error(beat.member_id, beat.instance_id)
        if error is not ErrorCode.NONE:
            return error, "the member has to join again"
        member = self._members[beat.member_id]
        if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH) or beat.epoch == member.epoch:
            return ErrorCode.NONE, None
        # The response with the next epoch may have been lost.
        owned = beat.owned
        if beat.epoch == member.previous_epoch < member.epoch and owned is not None and owned <= member.assigned:
            return ErrorCode.NONE, None
        return ErrorCode.FENCED_MEMBER_EPOCH, f"the member's epoch is {member.epoch}, not {beat.epoch}: join again"

    @staticmethod
    def _may_replace(member: ConsumerMember) -> bool:
        """Return whether another member may take over an instance id. Static members of the classic protocol do not
        announce that they leave, so they are replaced as in the classic protocol."""
        return member.epoch == STATIC_LEAVE_EPOCH or member.is_classic

    def member_error(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """Return the error unless this is a member."""
        return self._members.error(member_id, instance_id)

    def epoch_error(self, member_id: str, epoch: int, instance_id: str | None = None) -> ErrorCode:
        """Return the error unless this is a member with that epoch."""
        error = self.member_error(member_id, instance_id)
        if error is ErrorCode.NONE and epoch != self._members[member_id].epoch:
            # The classic protocol has no epochs.
            is_classic = self._members[member_id].is_classic
            return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        return error

    def commit_error(self, member_id: str, epoch: int, partitions: Iterable[TopicPartition]) -> ErrorCode:
        """Return the error for a commit of these partitions, given by topic name, or NONE.

        The member may not know its current epoch yet. An earlier one is accepted for partitions that it has owned since
        then (KIP-1251): no other member can have read them in between.
        """
        error = self.epoch_error(member_id, epoch)
        if error not in _OTHER_EPOCH or epoch > self._members[member_id].epoch:
            return error
        since, ids = self._members[member_id].since, {name: topic.id for name, topic in self._topics.items()}
        was_its_own = all(since.get((ids.get(name, ""), number), epoch + 1) <= epoch for name, number in partitions)
        return ErrorCode.NONE if was_its_own else error

    # --- members

    def _new_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        made = ConsumerMember(
            member_id,
            instance_id,
            DeadlineTimer(self._loop, lambda: self._remove(made, "its session expired")),
            DeadlineTimer(self._loop, lambda: self._remove(made, "it did not give up partitions in time")),
        )
        return made

    def adopt(
        self, member_id: str, instance_id: str | None, epoch: int, owned: Iterable[TopicPartition]
    ) -> ConsumerMember:
        """Add a member of a classic group, with that group's generation and the partitions it owns."""
        made = self._new_member(member_id, instance_id)
        self._members.add(made)
        made.epoch = epoch
        for partition in owned:
            if self._owners.setdefault(partition, member_id) == member_id:
                made.assigned.add(partition)
                made.since[partition] = epoch
        self._target[member_id] = set(made.assigned)
        self.epoch = max(self.epoch, epoch) + 1
        return made

    def _admit(self, beat: HeartbeatRequest) -> ConsumerMember:
        """Add a member. A static one inherits the subscription and target of its predecessor."""
        made = self._new_member(beat.member_id or str(uuid.uuid4()), beat.instance_id)
        before = self._members.static(beat.instance_id)
        if before is not None:
            made.topics, made.pattern, made.matched = before.topics, before.pattern, before.matched
            made.assignor, made.rack_id = before.assignor, before.rack_id
            self._target[made.id] = self._target.pop(before.id, set())
            self._discard(before)
        self._members.add(made)
        _logger.info("group %s: member %s joins", self.name, made.id)
        return made

    def _update(self, member: ConsumerMember, beat: HeartbeatRequest) -> bool:
        """Apply a heartbeat to a member; return whether a new target is needed."""
        before = (member.topics, member.pattern, member.assignor)
        member.client_id, member.client_host, member.sees = beat.client_id, beat.client_host, beat.sees
        member.rack_id = member.rack_id if beat.rack_id is None else beat.rack_id
        if beat.rebalance_timeout_ms is not None:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        if beat.topics is not None:
            member.topics = beat.topics
        if beat.pattern is not None:
            member.pattern, member.matched = beat.pattern, frozenset()
        if beat.assignor is not None:
            member.assignor = beat.assignor
        return before != (member.topics, member.pattern, member.assignor)

    def _leave(self, beat: HeartbeatRequest) -> HeartbeatResponse:
        member = self._members[beat.member_id]
        if beat.epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            _logger.info("group %s: static member %s leaves temporarily", self.name, member.id)
            member.epoch = STATIC_LEAVE_EPOCH
            member.session.set(self._config.group_consumer_session_timeout_ms)
        else:
            self._remove(member, "it leaves")
        return HeartbeatResponse(ErrorCode.NONE, None, member.id, beat.epoch)

    def remove(self, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members on behalf of an administrator: by id, or static ones by instance id."""
        codes: list[ErrorCode] = []
        for member_id, instance_id in members:
            known, error = self._members.find(member_id, instance_id)
            codes.append(error)
            if error is ErrorCode.NONE:
                self._remove(self._members[known], "it was removed")
        return codes

    def _remove(self, member: ConsumerMember, why: str) -> None:
        _logger.info("group %s: member %s is gone: %s", self.name, member.id, why)
        self._discard(member)
        self._target.pop(member.id, None)
        self.epoch += 1
        if self.is_empty:
            self._on_empty()

    def _discard(self, member: ConsumerMember) -> None:
        member.stop()
        self._release(member)
        self._members.remove(member)

    def _release(self, member: ConsumerMember) -> None:
        """Free all partitions of a member."""
        for partition in member.assigned | member.revoking:
            del self._owners[partition]
        member.assigned.clear()
        member.revoking.clear()
        member.since.clear()
        member.revoking_alarm.stop()

    def end(self) -> None:
        """Drop all members, because the coordinator stops."""
        for member in self._members:
            member.stop()
        self._members.clear()

    # --- assignment

    def refresh_topics(self, topics: Mapping[str, TopicInfo]) -> None:
        """Detect new, deleted, recreated or extended topics, and compute a new target if needed. `topics` are those
        that the group reads, or all."""
        for member in self._members:
            if member.pattern:
                member.matched = frozenset(filter(member.sees, matching(member.pattern, topics)))
        read = {name: topics[name] for name in sorted(self.topics) if name in topics}
        if read != self._topics:
            self._topics = read
            self.epoch += 1
        if self.epoch > self.assignment_epoch:
            self._assign()

    def _assign(self) -> None:
        """Compute the target for the group epoch."""
        subscriptions = {
            member.id: frozenset(self._topics[name].id for name in member.subscription if name in self._topics)
            for member in self._members
        }
        partitions = [(topic.id, number) for topic in self._topics.values() for number in range(topic.partitions)]
        before = {share: member_id for member_id, shares in self._target.items() for share in shares}
        self._target = ASSIGNORS[self.assignor](subscriptions, partitions, before)
        self.assignment_epoch = self.epoch
        _logger.info("group %s: epoch %d, %s", self.name, self.epoch, counted(len(self._members), "member"))

    def _reconcile(self, member: ConsumerMember, owned: frozenset[TopicPartition] | None) -> None:
        """Move a member toward its target: first revoke partitions, then assign new ones."""
        if self._is_revoking(member, owned):
            return
        target = self.target_of(member.id)
        member.revoking = member.assigned - target
        member.assigned &= target
        if self._is_revoking(member, owned):
            member.revoking_alarm.set(member.rebalance_timeout_ms)
            return
        for partition in target - member.assigned:
            if partition not in self._owners:
                self._owners[partition] = member.id
                member.assigned.add(partition)
                member.since[partition] = self.assignment_epoch
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch

    def _is_revoking(self, member: ConsumerMember, owned: frozenset[TopicPartition] | None) -> bool:
        """Return whether the member has yet to report giving up its revoked partitions."""
        if not member.revoking:
            return False
        if owned is None or owned & member.revoking:
            return True
        for partition in member.revoking:
            del self._owners[partition], member.since[partition]
        member.revoking = set()
        member.revoking_alarm.stop()
        return False


def _invalid(beat: HeartbeatRequest) -> tuple[ErrorCode, str] | None:
    """Return the error and message of a heartbeat that is invalid for any group."""
    is_joining, is_static = beat.epoch == JOIN_EPOCH, beat.instance_id is not None
    for is_wrong, reason in (
        (beat.epoch < STATIC_LEAVE_EPOCH, f"{beat.epoch} is not a member epoch"),
        (not is_joining and not beat.member_id, "a member that has joined must send its id"),
        (beat.epoch == STATIC_LEAVE_EPOCH and not is_static, "only a static member can leave temporarily"),
        (is_joining and beat.rebalance_timeout_ms is None, "a joining member must state its rebalance timeout"),
        (is_joining and beat.owned != frozenset(), "a joining member must state that it owns no partitions"),
        (is_joining and beat.topics is None and not beat.pattern, "a joining member must state its topics"),
    ):
        if is_wrong:
            return ErrorCode.INVALID_REQUEST, reason
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        return ErrorCode.UNSUPPORTED_ASSIGNOR, f"{beat.assignor!r} is not one of {', '.join(ASSIGNORS)}"
    if beat.pattern and not is_pattern(beat.pattern):
        return ErrorCode.INVALID_REGULAR_EXPRESSION, f"{beat.pattern!r} is not a regular expression of RE2"
    return None


def _is_full(beat: HeartbeatRequest) -> bool:
    """Return whether a heartbeat states everything: the member reconnected and may have missed a response."""
    return (
        beat.rebalance_timeout_ms is not None
        and (beat.topics is not None or beat.pattern is not None)
        and beat.owned is not None
    )


# --- assignment on the server


#: Maps the topics of each member, all partitions and their current owners to the partitions of each member.
Assignor = Callable[
    [Mapping[str, Collection[str]], Iterable[TopicPartition], Mapping[TopicPartition, str]],
    dict[str, set[TopicPartition]],
]


def assign_ranges(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Assign consecutive partitions of each topic to the members, in the order of their ids, regardless of current
    owners."""
    plan: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    counts: dict[str, int] = {}
    for topic, number in partitions:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    for topic, count in counts.items():
        takers = sorted(member for member, topics in subscriptions.items() if topic in topics)
        first = 0
        for position, member in enumerate(takers):
            size = count // len(takers) + (position < count % len(takers))
            plan[member].update((topic, number) for number in range(first, first + size))
            first += size
    return plan


#: By Kafka's names; the first is the default.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign, "range": assign_ranges}
DEFAULT_ASSIGNOR = "uniform"


def is_pattern(pattern: str) -> bool:
    """Return whether RE2 accepts the regular expression."""
    import pyarrow as pa

    try:
        matching(pattern, ["x"])
    except pa.ArrowInvalid:
        return False
    return True


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match as a whole."""
    return _matching(pattern, tuple(names))


@lru_cache(64)
def _matching(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Not `pa.array`: that imports pandas, if it is installed, which takes half a second.
    encoded = [name.encode() for name in names]
    ends = array("i", accumulate(map(len, encoded), initial=0))
    made = pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))
    return frozenset(made.filter(pc.match_substring_regex(made, f"^(?:{pattern})$")).to_pylist())
