"""Members of groups on object storage: consumers (`ObjectMembership`) and the workers of queues (`ObjectWorkers`), with
the delivery state of queues (`ObjectDeliveries`); and the state of a group.

state/groups.py has the argument for the safety of memberships. A heartbeat is a commit, so there is one every third of
the session timeout. Members watch each other by reading the state, which polls the bucket about once a second while it
is idle. Clocks are never compared: each member times the heartbeats of the others by its own clock.

An exchange of a queue is one commit. If two workers exchange at the same time, one of them has to retry, so the workers
of a large group should take many messages at once (`prefetch`). Delivery timeouts are wall-clock times, as in a
directory: machines whose clocks differ by a second may redeliver a message a second early. A dead worker keeps its
messages until its session or their timeout expires.
"""

from __future__ import annotations

import base64
import logging
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from ...clock import Stopwatch, now_ms
from ...errors import GroupFenced, LogClosed, SawlogError
from ...storage.locks import process_name
from ..base import Topic, TopicPartition
from ..groups import (
    Committed,
    DeliveryStates,
    Member,
    Pages,
    QueueTurn,
    QueueWorkers,
    Silence,
    StartPosition,
    TurnConflict,
    begin,
)
from ..membership import GroupMembership, GroupView, MemberOptions
from ..options import QueueOptions
from .session import StoreSession, refused_with, results
from .state import Outcome, State
from .state.entries import quoted

_logger = logging.getLogger("sawlog.store.consumer")

#: Heartbeats per session timeout.
_BEATS = 3
#: Session timeout of a worker: a heartbeat is a commit.
_SESSION_MS = 45_000
#: Minimum interval between lookups of the live workers.
_LOOK_S = 1.0


class ObjectMembership(GroupMembership):
    """One member of one group."""

    def __init__(self, session: StoreSession, options: MemberOptions, *, works: bool = False) -> None:
        super().__init__(options)
        self._session = session
        self._works = works
        self._id = ""
        #: The topic ids of the partitions that this member owns.
        self._owned: dict[TopicPartition, str] = {}
        self._silence = Silence()
        self._beaten = Stopwatch()
        #: The heartbeat in flight.
        self._beat: Future[Outcome] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self._owned)

    def _action(self, do: str, **fields: Any) -> dict[str, Any]:
        return {"do": do, "group": self._options.group, "member": self._id, **fields}

    # --- heartbeats

    def join(self) -> None:
        if self._id:
            return
        options, made = self._options, uuid.uuid4().hex
        fields = {
            "name": options.name,
            "process": process_name(),
            "topics": list(options.topics),
            "timeout_ms": options.session_timeout_ms,
            "time_ms": now_ms(),
            "works": self._works,
        }
        self._beaten.restart()  # the session starts when the request is sent
        self._session.commit([{"do": "join group", "group": options.group, "member": made, **fields}])
        self._id = made

    def beat(self) -> None:
        """Send a heartbeat if one is due. Does not wait for it."""
        if self._beat is not None and not self._beat.done():
            return
        if self._id and self._beaten.elapsed_ms * _BEATS >= self._options.session_timeout_ms:
            self._beaten.restart()
            self._beat = self._session.submit([self._action("beat member", time_ms=now_ms())])

    @property
    def is_current(self) -> bool:
        """True if this was still a member at most a second ago."""
        return self._id in self._members()

    def still_owns(self) -> bool:
        """Return whether the member still owns its partitions. A member is removed together with its ownership in one
        commit, so being a member is enough."""
        return self.is_current

    def _members(self) -> dict[str, Member]:
        return self._session.patient.look(lambda state: members_of(state, self._options.group))

    def view(self, owners: Mapping[TopicPartition, str] | None = None) -> GroupView:
        found = self._members()
        self._silence.watch(found)
        silent = frozenset(id for id, each in found.items() if self._silence.is_silent(each))
        read = self._session.patient.look(lambda state: owners_of(state, self._options.group))
        return GroupView({id: each.topics for id, each in found.items()}, silent, read)

    def fence_silent(self) -> None:
        for member in self._members().values():
            if member.id == self._id or not self._silence.is_silent(member):
                continue
            if remove_member(self._session, self._options.group, member):
                who = member.name or member.process
                _logger.warning("the session of %s expired; it was removed from the group %r", who, self._options.group)

    # --- partitions

    def take(
        self, shares: Sequence[TopicPartition], topics: Mapping[str, Topic], start: StartPosition
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Take ownership of partitions that have no owner, and learn in the same commit where the group continues."""
        known = self._session.look(lambda state: state.group(self._options.group)) or []
        new = [] if start == "earliest" else [each for each in topics.values() if each.name not in known]
        starts = {each.id: [each.name, [list(at) for _, at in sorted(begin(each, start).items())]] for each in new}
        wanted = [[topics[name].id, partition] for name, partition in shares]
        (rows,) = self._session.commit([self._action("take partitions", shares=wanted, begin=starts)])
        taken: dict[TopicPartition, tuple[int, int] | None] = {}
        assert isinstance(rows, list)
        for share, (topic_id, _), row in zip(shares, wanted, rows, strict=True):
            if row is not None:
                self._owned[share] = str(topic_id)
                taken[share] = (int(row[0]), int(row[1])) if row else None
        return taken

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        given = [[self._owned.pop(partition), partition[1]] for partition in list(partitions)]
        if given and self._id:
            self._session.commit([self._action("give up partitions", shares=given)])

    # --- offsets

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        names = {each.topic_id: topic for (topic, _), each in offsets.items()}
        self._session.commit([self._action("commit offsets", offsets=offset_rows(offsets), topics=names)])

    def committed(self) -> dict[TopicPartition, Committed]:
        return self._session.look(lambda state: committed_of(state, self._options.group))

    # --- leaving

    def leave(self) -> None:
        action = self._left()
        if action is not None:
            with suppress(GroupFenced):
                self._session.commit([action])

    def _left(self) -> dict[str, Any] | None:
        action = self._action("leave group") if self._id else None
        self._id = ""
        self._owned.clear()
        return action

    def abandon(self) -> None:
        """Leave without waiting, on a thread: the caller may hold any lock."""
        self._closed = True
        action = self._left()
        if action is not None and not sys.is_finalizing():  # threads no longer start; the session expires
            with suppress(RuntimeError):
                threading.Thread(target=_submit, args=(self._session, action), daemon=True).start()


def _submit(session: StoreSession, action: dict[str, Any]) -> None:
    with suppress(LogClosed, SawlogError):
        session.submit([action])


def remove_member(session: StoreSession, group: str, member: Member) -> bool:
    """Remove a member unless it has sent a heartbeat since, and return whether it was removed."""
    action = {"do": "remove member", "group": group, "member": member.id, "beat": member.beat}
    return "ok" in session.submit([action]).result()


# --- queues


class ObjectWorkers(QueueWorkers):
    """The workers of a queue, as one of them sees them."""

    def __init__(self, session: StoreSession, terms: QueueOptions) -> None:
        wanted = MemberOptions(terms.group, terms.worker or "", (terms.topic,), _SESSION_MS, float("inf"))
        self._member = ObjectMembership(session, wanted, works=True)
        self._looked = Stopwatch()
        self._alive: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        return self._member.id

    def join(self) -> str:
        if self._member.id and not self._member.is_current:
            self._member.leave()
        self._member.join()
        return self._member.id

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Return which of these workers are no longer members, after removing those whose session expired."""
        unknown = workers - self._alive
        if not (unknown or now or self._looked.elapsed_s >= _LOOK_S):
            return set()
        self._looked.restart()
        view = self._member.view()
        if view.silent - {self._member.id}:
            self._member.fence_silent()
            view = self._member.view()
        self._alive = frozenset(view.subscriptions)
        return workers - self._alive

    def beat(self) -> None:
        self._member.beat()

    def leave(self) -> None:
        self._member.leave()

    def abandon(self) -> None:
        self._member.abandon()


class ObjectDeliveries(DeliveryStates):
    """Committed offsets and acknowledgement bitmaps of one group's queues."""

    def __init__(self, session: StoreSession, workers: ObjectWorkers) -> None:
        self._session = session
        self._workers = workers

    def of(self, group: str) -> dict[TopicPartition, Committed]:
        return self._session.patient.look(lambda state: committed_of(state, group))

    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        return self._session.patient.look(lambda state: pages_of(state, group))

    @contextmanager
    def turn(self) -> Iterator[ObjectExchange]:
        yield ObjectExchange(self._session, self._workers)


_Read = tuple[int, dict[TopicPartition, Committed], dict[TopicPartition, dict[int, bytes]]]


class ObjectExchange(QueueTurn):
    """An optimistic transaction: reads are of one state, and the write succeeds only if that state is still current."""

    def __init__(self, session: StoreSession, workers: ObjectWorkers) -> None:
        self._session = session
        self._workers = workers
        #: The start of the group in topics that it has not committed in.
        self._begun: dict[TopicPartition, Committed] = {}
        #: The last read: number of the exchange, offsets, bitmaps.
        self._read: _Read | None = None

    def _now(self, group: str) -> _Read:
        def look(state: State) -> _Read:
            count = int(state.entries.get(f"queue/{quoted(group)}", 0))
            return count, committed_of(state, group), pages_of(state, group)

        if self._read is None:
            self._read = self._session.look(look, fresh=True)
        return self._read

    def places(
        self, group: str, topics: Iterable[Topic], start: StartPosition, member: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        known = self._session.look(lambda state: state.group(group)) or []
        for topic in topics:
            if topic.name not in known and start != "earliest":
                places = begin(topic, start)
                self._begun |= {
                    partition: Committed.by_member(member, topic.id, *at) for partition, at in places.items()
                }
        return {partition: (each.offset, each.leader_epoch) for partition, each in self.offsets(group).items()}

    def offsets(self, group: str) -> dict[TopicPartition, Committed]:
        return {**self._begun, **self._now(group)[1]}

    def pages(self, group: str) -> dict[TopicPartition, dict[int, bytes]]:
        return self._now(group)[2]

    def write_all(
        self,
        changes: Iterable[tuple[str, Mapping[TopicPartition, Committed | None]]],
        marks: Mapping[str, str] | None = None,
        pages: Mapping[str, Pages] | None = None,
    ) -> None:
        assert not marks
        ((group, offsets),) = changes
        written = {**self._begun, **{share: each for share, each in offsets.items() if each is not None}}
        ids = self._session.look(lambda state: {name: topic for topic, name in topics_by_id(state).items()})
        rows = offset_rows(written)
        of_pages: list[list[Any]] = [
            [ids[topic], partition, number, None if content is None else base64.b64encode(content).decode()]
            for (topic, partition), of_one in (pages or {}).get(group, {}).items()
            for number, content in of_one.items()
            if topic in ids
        ]
        if not rows and not of_pages:
            return
        action = {
            "do": "exchange",
            "group": group,
            "member": self._workers.id,
            "count": self._now(group)[0],
            "offsets": rows,
            "topics": sorted({share[0] for share in written}),
            "pages": of_pages,
        }
        outcome = self._session.submit([action]).result()
        if refused_with(outcome) == "Changed":
            raise TurnConflict
        results(outcome)


# --- the state of a group


def members_of(state: State, group: str) -> dict[str, Member]:
    prefix = f"member/{quoted(group)}/"
    found: dict[str, Member] = {}
    for name in state.entries.names(prefix):
        each, id_ = state.entries.get(name), name.removeprefix(prefix)
        found[id_] = Member(
            id=id_,
            name=each["name"],
            process=each["process"],
            topics=tuple(each["topics"]),
            session_timeout_ms=int(each["timeout_ms"]),
            beat=int(each["beat"]),
            time_ms=int(each["time_ms"]),
            works=bool(each["works"]),
        )
    return found


def owners_of(state: State, group: str) -> dict[TopicPartition, str]:
    prefix = f"owner/{quoted(group)}/"
    names = state.entries.names(prefix)
    if not names:
        return {}
    by_id = topics_by_id(state)
    found: dict[TopicPartition, str] = {}
    for name in names:
        topic, partition = name.removeprefix(prefix).split("/")
        if topic in by_id:
            found[by_id[topic], int(partition)] = state.entries.get(name)
    return found


def committed_of(state: State, group: str) -> dict[TopicPartition, Committed]:
    """Return the committed offsets of a group in topics that exist."""
    by_id = topics_by_id(state)
    return {
        (by_id[topic], partition): Committed(offset, topic, metadata, 0, "", epoch)
        for (topic, partition), (offset, metadata, epoch) in state.offsets(group).items()
        if topic in by_id
    }


def offset_rows(offsets: Mapping[TopicPartition, Committed]) -> list[list[Any]]:
    return [
        [each.topic_id, partition, each.offset, each.metadata, each.leader_epoch]
        for (_, partition), each in offsets.items()
    ]


def topics_by_id(state: State) -> dict[str, str]:
    return {(state.topic(name) or {})["id"]: name for name in state.topics()}


def pages_of(state: State, group: str) -> dict[TopicPartition, dict[int, bytes]]:
    prefix = f"page/{quoted(group)}/"
    names = state.entries.names(prefix)
    found: dict[TopicPartition, dict[int, bytes]] = {}
    by_id = topics_by_id(state) if names else {}
    for name in names:
        topic, partition, number = name.removeprefix(prefix).split("/")
        if topic in by_id:
            content = base64.b64decode(state.entries.get(name))
            found.setdefault((by_id[topic], int(partition)), {})[int(number)] = content
    return found
