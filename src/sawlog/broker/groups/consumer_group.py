"""`ConsumerGroup`: one group of the protocol of KIP-848, in which the broker assigns the partitions.

There is one request, a heartbeat: a member says what it subscribes to and what it owns, and is told what to own. Nobody
waits for anybody.

- The *group epoch* increases whenever members, subscriptions or partitions change. A target is computed for it: who
  should own what.
- A member goes to its target by itself. First it gives up what it should not own any more, and says so in a later
  heartbeat. Then it gets what it should own, as far as nobody else has it. Its *member epoch* is that of the target
  that it has reached; with another one its heartbeats and commits are refused.
- So a partition has one owner: it is free only when its owner has said that it gave it up, or is removed. A member is
  removed when it leaves, when nothing was heard of it for the session timeout, or when it does not give up within its
  rebalance timeout what it should.

Members keep their ids when they join again, so an epoch must not be given out a second time: a commit or a fetch of
before would count again. Nothing of a group is stored, so a group that a broker begins to coordinate, also after it was
killed, begins with an epoch that is left to chance (`first_epoch`).

A static member that leaves for a while keeps its partitions for the session timeout, and whoever comes back with its
instance id gets them.

Sans-io, as `group`: time comes from `Timers`. Partitions are (topic id in hex, number). Threads: one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...display import counted
from ...store.assignment import Share
from ..wire.errors import ErrorCode
from .assignment import ASSIGNORS, DEFAULT, is_pattern, matching
from .settings import Alarm, GroupConfig, Timers

_logger = logging.getLogger("sawlog.broker.groups")

#: Member epochs that are none: joining, leaving, and leaving for a while.
JOINING, LEAVING, PAUSING = 0, -1, -2
#: What a member of each protocol is told that has another epoch.
_OTHER_EPOCH = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that members may read."""

    #: In hex.
    id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat says. None: as before."""

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
    owned: frozenset[Share] | None = None
    #: Which topics the member may know of: a pattern matches no others.
    sees: Callable[[str], bool] = lambda topic: True


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a heartbeat."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    #: All that the member should own; None: as it was told before.
    assignment: frozenset[Share] | None = None


@dataclass(slots=True)
class ConsumerMember:
    """One member."""

    id: str
    instance_id: str | None
    #: Rings when its session has expired; when it has not given up in time what it should.
    session: Alarm = field(repr=False)
    revoking_alarm: Alarm = field(repr=False)
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_ms: int = 300_000
    session_timeout_ms: int = 45_000
    #: Whether it uses the classic protocol: see `classic_members`.
    is_classic: bool = False
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    sees: Callable[[str], bool] = lambda topic: True
    #: The topics that the pattern matches.
    matched: frozenset[str] = frozenset()
    assignor: str | None = None
    epoch: int = JOINING
    previous_epoch: int = JOINING
    assigned: set[Share] = field(default_factory=set)
    #: The epoch from which on it has had each partition that it owns.
    since: dict[Share, int] = field(default_factory=dict)
    #: What it has to give up, and has not said yet that it did.
    revoking: set[Share] = field(default_factory=set)

    @property
    def subscription(self) -> frozenset[str]:
        """The names of all topics that it reads, whether they exist or not."""
        return self.topics | self.matched

    def stop(self) -> None:
        """It is gone."""
        self.session.stop()
        self.revoking_alarm.stop()


class ConsumerGroup:
    """The members of one group, and who should own what."""

    def __init__(
        self,
        name: str,
        timers: Timers,
        config: GroupConfig,
        on_empty: Callable[[], None] = lambda: None,
        *,
        first_epoch: int = 0,
    ) -> None:
        self.name = name
        #: No epoch that members were told before is close to it.
        self._first_epoch = first_epoch
        self.epoch = first_epoch
        #: The group epoch for which the target was computed.
        self.assignment_epoch = first_epoch
        self._timers = timers
        self._config = config
        self._on_empty = on_empty
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._topics: Mapping[str, TopicInfo] = {}
        self._target: dict[str, set[Share]] = {}
        #: Who has a partition, or has not given it up yet.
        self._owners: dict[Share, str] = {}

    # --- properties

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self._members

    @property
    def has_begun(self) -> bool:
        """Whether it has had members."""
        return self.assignment_epoch > self._first_epoch

    @property
    def members(self) -> Sequence[ConsumerMember]:
        """Who is in it."""
        return list(self._members.values())

    @property
    def state(self) -> str:
        """As Kafka's tools show it."""
        if not self._members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(
            each.epoch in (self.assignment_epoch, PAUSING) and each.assigned == self.target_of(each.id)
            for each in self._members.values()
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes: dict[str, int] = {}
        for member in self._members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that its members read."""
        return frozenset().union(*(each.subscription for each in self._members.values()))

    @property
    def has_patterns(self) -> bool:
        """Whether somebody reads what a pattern matches, so that every topic matters."""
        return any(each.pattern for each in self._members.values())

    def member(self, member_id: str) -> ConsumerMember | None:
        """A member; None if there is none of that id."""
        return self._members.get(member_id)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that has an instance id; None if there is none."""
        return self._members.get(self._static.get(instance_id or "", ""))

    def names(self, shares: Iterable[Share]) -> list[Share]:
        """Partitions by the names of their topics."""
        found = {topic.id: name for name, topic in self._topics.items()}
        return [(found[id], number) for id, number in shares if id in found]

    def has_newer_target(self, member: ConsumerMember) -> bool:
        """Whether a target was computed since a member has reached its last one."""
        return member.epoch != self.assignment_epoch

    def has_to_move(self, member: ConsumerMember) -> bool:
        """Whether a member is not where its target is, and can get closer."""
        if self.has_newer_target(member) or member.revoking:
            return True
        return any(share not in self._owners for share in self.target_of(member.id) - member.assigned)

    def target_of(self, member_id: str) -> set[Share]:
        """What a member should own."""
        return self._target.get(member_id, set())

    # --- heartbeats

    def heartbeat(self, beat: Beat, topics: Mapping[str, TopicInfo]) -> Told:
        """A heartbeat. `topics` are those that the group and this member read, or all."""
        error, message = self._error(beat)
        if error is not ErrorCode.NONE:
            return Told(error, message)
        if beat.epoch in (LEAVING, PAUSING):
            return self._leave(beat)
        known = len(self._members)
        member = self._members.get(beat.member_id)
        if member is None:
            member = self._admit(beat)
        member.is_classic, member.session_timeout_ms = False, self._config.group_consumer_session_timeout_ms
        if self._update(member, beat) or len(self._members) > known:
            self.epoch += 1
        self.look_at(topics)
        before = set(member.assigned)
        self._reconcile(member, beat.owned)
        member.session.set(member.session_timeout_ms)
        is_told = beat.epoch != member.epoch or member.assigned != before or _is_full(beat)
        return Told(
            ErrorCode.NONE,
            None,
            member.id,
            member.epoch,
            frozenset(member.assigned) if is_told else None,
        )

    def _error(self, beat: Beat) -> tuple[ErrorCode, str | None]:
        """Why a heartbeat is refused."""
        invalid = _invalid(beat)
        if invalid is not None:
            return invalid
        if beat.epoch == JOINING:
            known = self._static.get(beat.instance_id or "")
            if known is not None and known != beat.member_id and not self._may_replace(self._members[known]):
                return ErrorCode.UNRELEASED_INSTANCE_ID, f"another member has the instance id {beat.instance_id!r}"
            if beat.member_id not in self._members and known is None and self._is_full:
                return (
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"the group has {counted(len(self._members), 'member')}, which is the most",
                )
            return ErrorCode.NONE, None
        error = self.member_error(beat.member_id, beat.instance_id)
        if error is not ErrorCode.NONE:
            return error, "the member has to join again"
        member = self._members[beat.member_id]
        if beat.epoch in (LEAVING, PAUSING) or beat.epoch == member.epoch:
            return ErrorCode.NONE, None
        # The answer with the next epoch may have been lost.
        owned = beat.owned
        if beat.epoch == member.previous_epoch < member.epoch and owned is not None and owned <= member.assigned:
            return ErrorCode.NONE, None
        return ErrorCode.FENCED_MEMBER_EPOCH, f"the member's epoch is {member.epoch}, not {beat.epoch}: join again"

    @staticmethod
    def _may_replace(member: ConsumerMember) -> bool:
        """Whether another member may take over an instance id. Static members of the classic protocol do not say that
        they leave, so that they are replaced as they replace each other."""
        return member.epoch == PAUSING or member.is_classic

    @property
    def _is_full(self) -> bool:
        return len(self._members) >= self._config.group_max_size

    def member_error(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """Whether that is a member."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def epoch_error(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether a member with that epoch may fetch offsets."""
        error = self.member_error(member_id)
        if error is ErrorCode.NONE and epoch != self._members[member_id].epoch:
            # The classic protocol knows no epochs.
            is_classic = self._members[member_id].is_classic
            return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        return error

    def commit_error(self, member_id: str, epoch: int, partitions: Iterable[Share]) -> ErrorCode:
        """Whether a member with that epoch may commit offsets of these partitions, by the names of their topics.

        It may not have heard of its present epoch yet. An earlier one will do for partitions that it has had since then
        (KIP-1251): nobody else can have read them meanwhile.
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
            Alarm(self._timers, lambda: self._expired(made, "its session expired")),
            Alarm(self._timers, lambda: self._expired(made, "it did not give up partitions in time")),
        )
        return made

    def adopt(self, member_id: str, instance_id: str | None, epoch: int, owned: Iterable[Share]) -> ConsumerMember:
        """A member of a classic group, with the generation of that group and what it owns."""
        made = self._members[member_id] = self._new_member(member_id, instance_id)
        if instance_id is not None:
            self._static[instance_id] = member_id
        made.epoch = epoch
        for share in owned:
            if self._owners.setdefault(share, member_id) == member_id:
                made.assigned.add(share)
                made.since[share] = epoch
        self._target[member_id] = set(made.assigned)
        self.epoch = max(self.epoch, epoch) + 1
        return made

    def _admit(self, beat: Beat) -> ConsumerMember:
        """A new member; a static one gets what it had before."""
        made = self._new_member(beat.member_id or str(uuid.uuid4()), beat.instance_id)
        before = self._members.get(self._static.get(beat.instance_id or "", ""))
        if before is not None:
            made.topics, made.pattern, made.matched = before.topics, before.pattern, before.matched
            made.assignor, made.rack_id = before.assignor, before.rack_id
            self._target[made.id] = self._target.pop(before.id, set())
            self._discard(before)
        self._members[made.id] = made
        if beat.instance_id is not None:
            self._static[beat.instance_id] = made.id
        _logger.info("group %s: member %s joins", self.name, made.id)
        return made

    def _update(self, member: ConsumerMember, beat: Beat) -> bool:
        """Remember what a heartbeat says; whether the target has to be computed again."""
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

    def _leave(self, beat: Beat) -> Told:
        member = self._members[beat.member_id]
        if beat.epoch == PAUSING and member.instance_id is not None:
            _logger.info("group %s: static member %s leaves for a while", self.name, member.id)
            member.epoch = PAUSING
            member.session.set(self._config.group_consumer_session_timeout_ms)
        else:
            self._remove(member, "it leaves")
        return Told(ErrorCode.NONE, None, member.id, beat.epoch)

    def _expired(self, member: ConsumerMember, why: str) -> None:
        self._remove(member, why)

    def remove(self, members: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """An administrator removes members: by their id, or static ones by their instance id."""
        codes: list[ErrorCode] = []
        for member_id, instance_id in members:
            known = member_id or self._static.get(instance_id or "", "")
            codes.append(self.member_error(known, instance_id))
            if codes[-1] is ErrorCode.NONE:
                self._remove(self._members[known], "it was removed")
        return codes

    def _remove(self, member: ConsumerMember, why: str) -> None:
        _logger.info("group %s: member %s is gone: %s", self.name, member.id, why)
        self._discard(member)
        self._target.pop(member.id, None)
        self.epoch += 1
        if not self._members:
            self._on_empty()

    def _discard(self, member: ConsumerMember) -> None:
        member.stop()
        self._release(member)
        del self._members[member.id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.id:
            del self._static[member.instance_id]

    def _release(self, member: ConsumerMember) -> None:
        """It owns nothing any more."""
        for share in member.assigned | member.revoking:
            del self._owners[share]
        member.assigned.clear()
        member.revoking.clear()
        member.since.clear()
        member.revoking_alarm.stop()

    def end(self) -> None:
        """The coordinator stops."""
        for member in self._members.values():
            member.stop()
        self._members.clear()

    # --- who should own what

    def look_at(self, topics: Mapping[str, TopicInfo]) -> None:
        """Notice topics that are new, gone, recreated or have got more partitions, and compute a new target if it is
        needed. `topics` are those that the group reads, or all."""
        for member in self._members.values():
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
            for member in self._members.values()
        }
        partitions = [(topic.id, number) for topic in self._topics.values() for number in range(topic.partitions)]
        before = {share: member_id for member_id, shares in self._target.items() for share in shares}
        self._target = ASSIGNORS[self.assignor](subscriptions, partitions, before)
        self.assignment_epoch = self.epoch
        _logger.info("group %s: epoch %d, %s", self.name, self.epoch, counted(len(self._members), "member"))

    def _reconcile(self, member: ConsumerMember, owned: frozenset[Share] | None) -> None:
        """Lead a member to its target: first it gives up, then it gets."""
        if self._is_revoking(member, owned):
            return
        target = self.target_of(member.id)
        member.revoking = member.assigned - target
        member.assigned &= target
        if self._is_revoking(member, owned):
            member.revoking_alarm.set(member.rebalance_timeout_ms)
            return
        for share in target - member.assigned:
            if share not in self._owners:
                self._owners[share] = member.id
                member.assigned.add(share)
                member.since[share] = self.assignment_epoch
        if member.epoch != self.assignment_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.assignment_epoch

    def _is_revoking(self, member: ConsumerMember, owned: frozenset[Share] | None) -> bool:
        """Whether it has not said yet that it gave up what it should."""
        if not member.revoking:
            return False
        if owned is None or owned & member.revoking:
            return True
        for share in member.revoking:
            del self._owners[share], member.since[share]
        member.revoking = set()
        member.revoking_alarm.stop()
        return False


def _invalid(beat: Beat) -> tuple[ErrorCode, str] | None:
    """What is wrong with a heartbeat, whatever the group."""
    reason = _nonsense(beat)
    if reason is not None:
        return ErrorCode.INVALID_REQUEST, reason
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        return ErrorCode.UNSUPPORTED_ASSIGNOR, f"{beat.assignor!r} is not one of {', '.join(ASSIGNORS)}"
    if beat.pattern and not is_pattern(beat.pattern):
        return ErrorCode.INVALID_REGULAR_EXPRESSION, f"{beat.pattern!r} is not a regular expression of RE2"
    return None


def _nonsense(beat: Beat) -> str | None:
    """What does not fit together in a heartbeat."""
    is_joining = beat.epoch == JOINING
    return next(
        (
            reason
            for is_wrong, reason in (
                (beat.epoch < PAUSING, f"{beat.epoch} is no member epoch"),
                (not is_joining and not beat.member_id, "a member that has joined has an id"),
                (beat.epoch == PAUSING and beat.instance_id is None, "only a static member leaves for a while"),
                (is_joining and beat.rebalance_timeout_ms is None, "who joins says its rebalance timeout"),
                (is_joining and beat.owned != frozenset(), "who joins owns nothing, and says so"),
                (is_joining and beat.topics is None and not beat.pattern, "who joins says which topics it reads"),
            )
            if is_wrong
        ),
        None,
    )


def _is_full(beat: Beat) -> bool:
    """Whether a member says everything: it has lost its connection, and may have missed an answer."""
    return (
        beat.rebalance_timeout_ms is not None
        and (beat.topics is not None or beat.pattern is not None)
        and beat.owned is not None
    )
