"""`ObjectGroups`: consumer groups on object storage: their members, their committed offsets, and moving them.

A member that died without leaving remains until another process has watched it for its session timeout. So moving or
deleting a group fails at once if a member has recently sent a heartbeat, by the clocks of both machines. Otherwise the
caller watches the members for that time, by its own clock, and removes those that stay silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from ...clock import now_ms, pause
from ...config import whole_number
from ...errors import GroupActive, GroupNotFound, InvalidConfig, TopicNotFound
from ...log.epochs import MAX_EPOCH
from ..assignment import Share
from ..committed_offsets import Start, checked_position, resolve
from ..consumer_options import MemberOptions
from ..groups import GroupDescription, GroupRow
from ..members import Member, Silence, check_group_name
from .membership import ObjectMembership, members_of, owners_of, remove_member
from .partition.partition import ObjectPartition
from .session import StoreSession
from .state.state import State
from .topic import ObjectTopic

#: How often to look at a member that seems to be dead.
_WATCH_S = 0.5


class ObjectGroups:
    """The groups of one store, as `store.groups` returns them."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def membership(self, terms: MemberOptions) -> ObjectMembership:
        """Return a membership for a consumer."""
        return ObjectMembership(self._session, terms)

    # --- inspecting

    def list(self) -> list[str]:
        """Return the names of all groups that have committed offsets or have members."""
        return self._session.look(_names, fresh=True)

    def describe(self, name: str) -> GroupDescription:
        """Return the members and the lag of a group. Raises `GroupNotFound` if it does not exist. Members without a
        heartbeat within their session timeout, by the clocks of both machines, are left out."""
        check_group_name(name)
        return self._session.look(lambda state: _description(state, name, self._session.bucket.url), fresh=True)

    def committed(self, name: str) -> dict[Share, int]:
        """Return the committed offsets of a group in topics that exist."""
        rows = self.describe(name).rows
        return {(row.topic, row.partition): row.committed for row in rows if row.committed is not None}

    # --- moving

    def commit(
        self,
        name: str,
        offsets: Mapping[Share, int],
        *,
        metadata: str = "",
        epochs: Mapping[Share, int] | None = None,
    ) -> None:
        """Commit offsets durably for a group without being a member. Raises `GroupActive`, and writes nothing, if a
        live member owns one of the partitions."""
        check_group_name(name)
        action = self._moving(name, offsets, metadata, epochs or {})
        try:
            self._session.commit([{**action, "outside": True}])
        except GroupActive:
            if not self._evict(name):
                raise
            self._session.commit([{**action, "outside": True}])

    def _moving(
        self, name: str, offsets: Mapping[Share, int], metadata: str, epochs: Mapping[Share, int]
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

    def seek(self, name: str, offsets: Mapping[Share, Start]) -> dict[Share, int]:
        """Move a group without live members to offsets, "earliest", "latest" or times, and return the offsets. Raises
        `GroupActive` if it has live members and `GroupNotFound` if it does not exist."""
        check_group_name(name)
        if self._session.look(lambda state: state.group(name), fresh=True) is None:
            raise self._not_found(name)
        found = {share: resolve(self._partition(share), place) for share, place in offsets.items()}
        self._alone(name, {**self._moving(name, found, "", {}), "outside": True, "alone": True})
        return found

    def delete(self, name: str) -> None:
        """Delete a group and all its offsets. Raises `GroupActive` if it has live members."""
        self._alone(check_group_name(name), {"do": "delete group", "group": name})

    def _alone(self, name: str, action: dict[str, Any]) -> None:
        """Commit an action that requires a group without live members."""
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

    def _partition(self, share: Share) -> ObjectPartition:
        entry = self._session.look(lambda state: state.topic(share[0]))
        if entry is None:
            raise TopicNotFound(f"no topic {share[0]!r} in {self._session.bucket.url}")
        return ObjectTopic(self._session, share[0], entry["id"]).partition(share[1])

    def _not_found(self, name: str) -> GroupNotFound:
        return GroupNotFound(f"no group {name!r} in {self._session.bucket.url}: nobody has committed or joined")

    @contextmanager
    def documents(self, name: str) -> Iterator[ObjectDocuments]:
        """Documents of readers that keep their own progress in a group."""
        yield ObjectDocuments(self._session, name)


class ObjectDocuments:
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
        raise GroupNotFound(f"no group {name!r} in {url}: nobody has committed or joined")
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
