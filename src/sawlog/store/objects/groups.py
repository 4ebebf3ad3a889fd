"""`ObjectGroups`: the consumer groups of a store on object storage.

A member that died without leaving remains until another process has watched it for its session timeout. So moving or
deleting a group fails at once if a member has recently sent a heartbeat, by the clocks of both machines. Otherwise the
caller watches the members for that time, by its own clock, and removes those that stay silent.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from ...clock import now_ms, pause
from ...config import whole_number
from ...errors import GroupActive, GroupNotFound, InvalidConfig, TopicNotFound
from ...log.epochs import MAX_EPOCH
from ..base import TopicPartition
from ..groups import (
    Committed,
    GroupDescription,
    GroupDocuments,
    GroupRow,
    Groups,
    Member,
    Silence,
    StartPosition,
    checked_position,
    resolve,
)
from ..membership import MemberOptions
from ..names import check_group_name
from ..options import QueueOptions
from ..queues.delivery_state import unfinished
from .membership import (
    ObjectDeliveries,
    ObjectMembership,
    ObjectWorkers,
    committed_of,
    members_of,
    owners_of,
    pages_of,
    remove_member,
)
from .partition import ObjectPartition
from .session import StoreSession
from .state import State
from .topic import ObjectTopic

#: Interval between looks at a member that seems to be dead.
_WATCH_S = 0.5


class ObjectGroups(Groups):
    """The groups of one store, as `store.groups` returns them."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def _membership(self, options: MemberOptions) -> ObjectMembership:
        return ObjectMembership(self._session, options)

    def _queueing(self, options: QueueOptions) -> tuple[ObjectDeliveries, ObjectWorkers]:
        workers = ObjectWorkers(self._session, options)
        return ObjectDeliveries(self._session, workers), workers

    # --- inspecting

    def list(self) -> builtins.list[str]:
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
        check_group_name(name)
        if self._session.look(lambda state: state.group(name), fresh=True) is None:
            raise self._not_found(name)
        found = {partition: resolve(self._partition(partition), place) for partition, place in offsets.items()}
        self._commit(name, {**self._moving(name, found, "", {}), "outside": True, "alone": True})
        return found

    def delete(self, name: str) -> None:
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
    def _documents(self, name: str) -> Iterator[ObjectDocuments]:
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
        version, fields = self._session.look(lambda state: state.document(self._prefix + name), fresh=True)
        self._seen[name] = version
        return dict(fields) or None

    def keep(self, name: str, fields: dict[str, Any]) -> None:
        if name not in self._seen:
            self.find(name)
        action = {"do": "change document", "name": self._prefix + name, "version": self._seen[name], "fields": fields}
        self._session.commit([action])
        self._seen[name] += 1

    def remove(self, name: str) -> None:
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
    pages, works = pages_of(state, name), any(member.works for member in members.values())
    rows = []
    for topic in sorted(topics):
        entry = state.topic(topic)
        for partition in range(0 if entry is None else entry["partitions"]):
            assert entry is not None
            lowest, end = state.ends(entry["id"], partition)
            found = committed.get((entry["id"], partition))
            offset = None if found is None else found[0]
            reached = lowest if offset is None else max(offset, lowest)
            lag, place, left = max(end - reached, 0), (topic, partition), None
            if pages or works:
                left = unfinished(entry["id"], reached, lowest, end, pages.get(place, {}))
            rows.append(GroupRow(topic, partition, offset, lowest, end, lag, owners.get(place), left))
    return GroupDescription(name, tuple(sorted(members.values(), key=lambda each: each.id)), tuple(rows))
