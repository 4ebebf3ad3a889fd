"""Consumer groups on object storage: `ObjectGroups`, the groups of a store, and `ObjectMembership`, the membership
of one consumer.

A member that died without leaving remains until another process has watched it for its session timeout. So moving or
deleting a group fails at once if a member has recently sent a heartbeat, by the clocks of both machines. Otherwise the
caller watches the members for that time, by its own clock, and removes those that stay silent.

state/groups.py has the argument for the safety of memberships. A heartbeat is a commit, so there is one every third of
the session timeout. Members watch each other by reading the state, which polls the bucket about once a second while it
is idle. Clocks are never compared: each member times the heartbeats of the others by its own clock.
"""

from __future__ import annotations

import builtins
import logging
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from ...clock import Stopwatch, now_ms, pause
from ...config import whole_number
from ...errors import GroupActive, GroupFenced, GroupNotFound, InvalidConfig, LogClosed, SawlogError, TopicNotFound
from ...log.epochs import MAX_EPOCH
from ...storage.locks import process_name
from ..base import Topic, TopicPartition
from ..groups import (
    Committed,
    GroupDescription,
    GroupDocuments,
    GroupRow,
    Groups,
    Member,
    Silence,
    StartPosition,
    begin,
    check_group_name,
    checked_position,
    resolve,
)
from ..membership import GroupMembership, GroupView, MemberOptions
from .partition import ObjectPartition
from .session import StoreSession
from .state.entries import quoted
from .state.state import Outcome, State
from .topic import ObjectTopic

_logger = logging.getLogger("sawlog.store.consumer")

#: Interval between looks at a member that seems to be dead.
_WATCH_S = 0.5
#: Heartbeats per session timeout.
_BEATS = 3


class ObjectGroups(Groups):
    """The groups of one store, as `store.groups` returns them."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def membership(self, options: MemberOptions) -> ObjectMembership:
        return ObjectMembership(self._session, options)

    # --- inspecting

    def list(self) -> builtins.list[str]:
        """Return the names of all groups that have committed offsets or have members."""
        return self._session.look(_names, fresh=True)

    def describe(self, name: str) -> GroupDescription:
        """Return the members and the lag of a group. Raises `GroupNotFound` if it does not exist. Members without a
        heartbeat within their session timeout, by the clocks of both machines, are left out."""
        check_group_name(name)
        return self._session.look(lambda state: _description(state, name, self._session.bucket.url), fresh=True)

    def committed(self, name: str) -> dict[TopicPartition, Committed]:
        return self._session.look(lambda state: committed_of(state, name), fresh=True)

    # --- moving

    def commit(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets durably for a group without being a member. Raises `GroupActive`, and writes nothing, if a
        live member owns one of the partitions."""
        check_group_name(name)
        self._commit(name, {**self._moving(name, offsets, metadata, epochs or {}), "outside": True})

    def _moving(
        self, name: str, offsets: Mapping[TopicPartition, int], metadata: str, epochs: Mapping[TopicPartition, int]
    ) -> dict[str, Any]:
        def look(state: State) -> dict[str, Mapping[str, Any] | None]:
            return {topic: state.topic(topic) for topic, _ in offsets}

        def has_all(known: Mapping[str, Mapping[str, Any] | None]) -> bool:
            return all((entry := known[topic]) and 0 <= number < entry["partitions"] for topic, number in offsets)

        known = self._session.last_known(look)
        if not has_all(known):  # another process may have created them
            known = self._session.look(look, fresh=True)
        rows: list[list[object]] = []
        names: dict[str, str] = {}
        for (topic, partition), offset in offsets.items():
            entry = known[topic]
            if entry is None or not 0 <= partition < entry["partitions"]:
                raise TopicNotFound(f"no partition {partition} of a topic {topic!r} in {self._session.bucket.url}")
            epoch = whole_number(epochs.get((topic, partition), 0), "a leader epoch")
            if not -1 <= epoch <= MAX_EPOCH:
                raise InvalidConfig(f"a leader epoch must be an integer from -1 (unknown) to {MAX_EPOCH}, not {epoch}")
            names[entry["id"]] = topic
            rows.append([entry["id"], partition, checked_position(offset), metadata, epoch])
        return {"do": "commit offsets", "group": name, "offsets": rows, "topics": names}

    def seek(self, name: str, offsets: Mapping[TopicPartition, StartPosition]) -> dict[TopicPartition, int]:
        """Move a group without live members to offsets, "earliest", "latest" or times, and return the offsets. Raises
        `GroupActive` if it has live members and `GroupNotFound` if it does not exist."""
        check_group_name(name)
        if self._session.look(lambda state: state.group(name), fresh=True) is None:
            raise self._not_found(name)
        found = {partition: resolve(self._partition(partition), place) for partition, place in offsets.items()}
        self._commit(name, {**self._moving(name, found, "", {}), "outside": True, "alone": True})
        return found

    def delete(self, name: str) -> None:
        """Delete a group and all its offsets. Raises `GroupActive` if it has live members."""
        self._commit(check_group_name(name), {"do": "delete group", "group": name})

    def _commit(self, name: str, action: dict[str, Any]) -> None:
        """Commit an action that live members of the group forbid. If it is rejected, dead ones are removed first."""
        try:
            self._session.commit([action])
        except GroupActive:
            if not self._evict(name):
                raise
            self._session.commit([action])
        except GroupNotFound:
            raise self._not_found(name) from None

    def _evict(self, name: str) -> bool:
        """Remove members that are silent for their session timeout. Return False as soon as one sends a heartbeat."""
        silence = Silence()
        while True:
            found = self._session.look(lambda state: members_of(state, name), fresh=True)
            if any(_is_alive(each) for each in found.values()):
                return False
            silence.watch(found)
            for member in found.values():
                if silence.is_silent(member):
                    remove_member(self._session, name, member)
            if not found:
                return True
            pause(_WATCH_S)

    def _partition(self, partition: TopicPartition) -> ObjectPartition:
        entry = self._session.look(lambda state: state.topic(partition[0]))
        if entry is None:
            raise TopicNotFound(f"no topic {partition[0]!r} in {self._session.bucket.url}")
        return ObjectTopic(self._session, partition[0], entry["id"]).partition(partition[1])

    def _not_found(self, name: str) -> GroupNotFound:
        return GroupNotFound(f"no group {name!r} in {self._session.bucket.url}: it has neither commits nor members")

    @contextmanager
    def documents(self, name: str) -> Iterator[ObjectDocuments]:
        """Documents of readers that keep their own progress in a group."""
        yield ObjectDocuments(self._session, name)


class ObjectDocuments(GroupDocuments):
    """Small documents of a group, in the state. There is no lock: a change fails if another process has changed the
    document meanwhile. An empty document stands for one that was removed."""

    def __init__(self, session: StoreSession, group: str) -> None:
        self._session = session
        self._prefix = f"group/{quote(group, safe='')}/"
        #: The versions that were read.
        self._seen: dict[str, int] = {}

    def find(self, name: str) -> dict[str, Any] | None:
        """Return a document; None if it does not exist."""
        version, fields = self._session.look(lambda state: state.document(self._prefix + name), fresh=True)
        self._seen[name] = version
        return dict(fields) or None

    def keep(self, name: str, fields: dict[str, Any]) -> None:
        """Write or replace a document, durably."""
        if name not in self._seen:
            self.find(name)
        action = {"do": "change document", "name": self._prefix + name, "version": self._seen[name], "fields": fields}
        self._session.commit([action])
        self._seen[name] += 1

    def remove(self, name: str) -> None:
        """Remove a document, if it exists."""
        if self.find(name) is not None:
            self.keep(name, {})

    def sync(self) -> None:
        """No-op: every change is durable."""


def _is_alive(member: Member) -> bool:
    """Return whether a member sent a heartbeat within its session timeout, if the clocks of both machines agree."""
    return abs(now_ms() - member.time_ms) <= member.session_timeout_ms


def _names(state: State) -> list[str]:
    joined = {name.split("/")[1] for name in state.entries.names("member/")}
    return sorted({*state.groups(), *map(unquote, joined)})


def _description(state: State, name: str, url: str) -> GroupDescription:
    committed_in = state.group(name)
    all_members = members_of(state, name)
    if committed_in is None and not all_members:
        raise GroupNotFound(f"no group {name!r} in {url}: it has neither commits nor members")
    members = {id: each for id, each in all_members.items() if _is_alive(each)}
    owners = {share: id for share, id in owners_of(state, name).items() if id in members}
    topics = {*(committed_in or ())}.union(*(member.topics for member in members.values()))
    committed = state.offsets(name)
    rows = []
    for topic in sorted(topics):
        entry = state.topic(topic)
        for partition in range(0 if entry is None else entry["partitions"]):
            assert entry is not None
            lowest, end = state.ends(entry["id"], partition)
            found = committed.get((entry["id"], partition))
            offset = None if found is None else found[0]
            lag = end - (lowest if offset is None else max(offset, lowest))
            rows.append(GroupRow(topic, partition, offset, lowest, end, max(lag, 0), owners.get((topic, partition))))
    return GroupDescription(name, tuple(sorted(members.values(), key=lambda each: each.id)), tuple(rows))


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
