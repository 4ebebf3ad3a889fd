"""`ObjectMembership`: the membership of one consumer on object storage; and the state of a group.

state/groups.py has the argument for the safety of memberships. A heartbeat is a commit, so there is one every third of
the session timeout. Members watch each other by reading the state, which polls the bucket about once a second while it
is idle. Clocks are never compared: each member times the heartbeats of the others by its own clock.
"""

from __future__ import annotations

import logging
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ...clock import Stopwatch, now_ms
from ...errors import GroupFenced, LogClosed, SawlogError
from ...storage.locks import process_name
from ..base import Topic, TopicPartition
from ..groups import Committed, Member, Silence, StartPosition, begin
from ..membership import GroupMembership, GroupView, MemberOptions
from .session import StoreSession
from .state import Outcome, State
from .state.entries import quoted

_logger = logging.getLogger("sawlog.store.consumer")

#: Heartbeats per session timeout.
_BEATS = 3


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
        """Id of this member; empty while it is not one."""
        return self._id

    @property
    def owned(self) -> set[TopicPartition]:
        """The partitions that this member has taken."""
        return set(self._owned)

    def _action(self, do: str, **fields: Any) -> dict[str, Any]:
        return {"do": do, "group": self._options.group, "member": self._id, **fields}

    # --- heartbeats

    def join(self) -> None:
        """Join the group, unless this is a member already."""
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
        return self._session.look(lambda state: members_of(state, self._options.group), calm=True)

    def view(self, owners: Mapping[TopicPartition, str] | None = None) -> GroupView:
        """Return the members, the silent ones among them, and the owners of partitions."""
        found = self._members()
        self._silence.watch(found)
        silent = frozenset(id for id, each in found.items() if self._silence.is_silent(each))
        read = self._session.look(lambda state: owners_of(state, self._options.group), calm=True)
        return GroupView({id: each.topics for id, each in found.items()}, silent, read)

    def fence_silent(self) -> None:
        """Remove members whose session has expired, unless they have sent a heartbeat since."""
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
        starts: dict[str, list[Any]] = {}
        if start != "earliest":
            for topic in topics.values():
                if topic.name not in known:
                    starts[topic.id] = [topic.name, [list(place) for _, place in sorted(begin(topic, start).items())]]
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
        """Commit offsets; rejected unless this member still owns the partitions."""
        rows = [
            [each.topic_id, partition[1], each.offset, each.metadata, each.leader_epoch]
            for partition, each in offsets.items()
        ]
        names = {each.topic_id: partition[0] for partition, each in offsets.items()}
        self._session.commit([self._action("commit offsets", offsets=rows, topics=names)])

    def committed(self) -> dict[TopicPartition, Committed]:
        """Return the committed offsets of the group."""
        return self._session.look(lambda state: committed_of(state, self._options.group))

    # --- leaving

    def leave(self) -> None:
        """Release all partitions and leave the group."""
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


# --- the state of a group


def members_of(state: State, group: str) -> dict[str, Member]:
    """Return the members of a group, by id."""
    prefix = f"member/{quoted(group)}/"
    found: dict[str, Member] = {}
    for name in state.entries.names(prefix):
        each, id_ = state.entries.get(name), name.removeprefix(prefix)
        topics, timeout = tuple(each["topics"]), int(each["timeout_ms"])
        works = bool(each["works"])
        found[id_] = Member(
            id_, each["name"], each["process"], topics, timeout, int(each["beat"]), int(each["time_ms"]), works
        )
    return found


def owners_of(state: State, group: str) -> dict[TopicPartition, str]:
    """Return the owner of each partition."""
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


def topics_by_id(state: State) -> dict[str, str]:
    """Return the names of all topics by id."""
    return {(state.topic(name) or {})["id"]: name for name in state.topics()}
