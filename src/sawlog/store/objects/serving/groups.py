"""`ServedGroups`: consumer groups on object storage whose members are clients of brokers.

The coordinator of a group has a *claim* to it in the commits, with an epoch; see state/groups.py. A broker's commits
for members carry its claim, so that a broker that has lost it commits nothing: `NotCoordinator`.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from ....clock import Stopwatch
from ....errors import Conflict, GroupActive, GroupError, NotCoordinator, TopicNotFound
from ...assignment import Share
from ...committed_offsets import Committed
from ...groups import Change, GroupDescription
from ...members import check_group_name
from ..groups import ObjectGroups
from ..session import StoreSession, results
from ..state.entries import quoted
from ..state.state import Outcome, State
from .fleet import ObjectBrokers


class ServedGroups:
    """The groups of one store, for one broker. Thread-safe."""

    def __init__(self, session: StoreSession, fleet: ObjectBrokers) -> None:
        self._session = session
        self._fleet = fleet
        self._stored = ObjectGroups(session)
        self.offsets = _Offsets(session)
        #: The epochs of this broker's claims, by group.
        self.claims: dict[str, int] = {}

    def list(self) -> builtins.list[str]:
        """Return the names of all groups."""
        return self._stored.list()

    def describe(self, name: str) -> GroupDescription:
        """Return the members and the lag of a group."""
        return self._stored.describe(name)

    def delete(self, name: str) -> None:
        """Delete a group and its offsets."""
        self._stored.delete(name)

    def claim(self, name: str, address: str) -> ObjectClaim:
        """Return a claim, for coordinating a group."""
        return ObjectClaim(self._session, self._fleet, self.claims, check_group_name(name), address)

    def commit_together(self, changes: Sequence[Change]) -> Sequence[GroupError | None]:
        """Commit for several groups, usually in one commit."""
        waiting = [(change, self._session.submit([self._action(change)])) for change in changes]
        return [self._result(change, outcome) for change, outcome in waiting]

    def _action(self, change: Change) -> dict[str, Any]:
        rows: builtins.list[builtins.list[object]] = []
        known = self._session.peek(lambda state: {topic: state.topic(topic) for topic, _ in change.offsets})
        names: dict[str, str] = {}
        for (topic, partition), new in change.offsets.items():
            entry = known[topic]
            topic_id = new.topic_id if new is not None else (entry or {}).get("id")
            if entry is None or entry["id"] != topic_id:
                continue  # deleted meanwhile
            names[topic_id] = topic
            if new is None:
                rows.append([topic_id, partition, None, "", -1])
                continue
            epoch = new.leader_epoch if new.told_epoch is None else new.told_epoch
            rows.append([topic_id, partition, new.offset, new.metadata, epoch])
        action: dict[str, Any] = {"do": "commit offsets", "group": change.group, "offsets": rows, "topics": names}
        if not change.by_server:
            action["outside"] = True
        else:
            action["claim"] = [self._fleet.run, self.claims.get(change.group, 0)]
        return action

    def _result(self, change: Change, outcome: Future[Outcome]) -> GroupError | None:
        try:
            results(outcome.result())
        except TopicNotFound:  # deleted after the lookup: the others are committed without it
            self._session.look(lambda state: None, fresh=True)
            return self._result(change, self._session.submit([self._action(change)]))
        except (GroupActive, NotCoordinator) as error:
            return error
        return None


class _Offsets:
    """Committed offsets of groups."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def of(self, group: str) -> dict[Share, Committed]:
        """Return the current offsets of one group."""

        def read(state: State) -> dict[Share, Committed]:
            names = {entry["id"]: name for name in state.topics() if (entry := state.topic(name)) is not None}
            return {
                (names[topic_id], partition): Committed(offset, topic_id, metadata, 0, "", epoch)
                for (topic_id, partition), (offset, metadata, epoch) in state.offsets(group).items()
                if topic_id in names
            }

        return self._session.look(read, fresh=True)


class ObjectClaim:
    """Attempts to coordinate one group. Consumers that opened the store directly keep brokers out. A consumer that is
    silent for its session timeout, by the clock of this process, is removed."""

    def __init__(
        self, session: StoreSession, fleet: ObjectBrokers, claims: dict[str, int], group: str, address: str
    ) -> None:
        self._session = session
        self._fleet = fleet
        self._claims = claims
        self._group = group
        self._address = address
        #: The beat of each consumer, and since when it was seen.
        self._seen: dict[str, tuple[int, Stopwatch]] = {}

    @property
    def may_succeed(self) -> bool:
        """Whether no consumer has sent a heartbeat since it was first seen."""
        found = self._session.look(self._members, fresh=True)
        return all(self._seen.get(member, (beat,))[0] == beat for member, beat, _ in found)

    def _members(self, state: State) -> builtins.list[tuple[str, int, int]]:
        prefix = f"member/{quoted(self._group)}/"
        found = [(unquote(name.removeprefix(prefix)), state.entries.get(name)) for name in state.entries.names(prefix)]
        return [(member, each["beat"], each["timeout_ms"]) for member, each in found]

    def _remove_silent(self) -> None:
        for member, beat, timeout_ms in self._session.look(self._members, fresh=True):
            seen = self._seen.setdefault(member, (beat, Stopwatch()))
            if seen[0] == beat and seen[1].elapsed_ms >= timeout_ms:
                with suppress(Conflict):  # it has sent one, or has left
                    action = {"do": "remove member", "group": self._group, "member": member, "beat": beat}
                    self._session.commit([action])

    def take(self) -> CoordinatedGroup:
        """Become the coordinator of the group; any earlier one has lost it. Raises `GroupActive` if consumers that
        opened the store directly are in it."""
        self._remove_silent()
        node = self._fleet.node
        action = {
            "do": "claim group",
            "group": self._group,
            "id": -1 if node is None else node.id,
            "run": self._fleet.run,
            "address": self._address,
            "epoch": None,
        }
        (epoch,) = self._session.commit([action])
        assert isinstance(epoch, int)
        self._claims[self._group] = epoch
        return CoordinatedGroup(self._session, self._fleet.run, self._claims, self._group, epoch)

    def close(self) -> None:
        """No-op."""


class CoordinatedGroup:
    """A group that this broker coordinates."""

    def __init__(self, session: StoreSession, run: str, claims: dict[str, int], group: str, epoch: int) -> None:
        self._session = session
        self._run = run
        self._claims = claims
        self._group = group
        self._epoch = epoch

    @property
    def current(self) -> bool:
        """Whether this broker still coordinates the group, as far as is known."""
        served = self._session.peek(lambda state: state.entries.get(f"served/{quoted(self._group)}"))
        return served is not None and [served[2], served[0]] == [self._run, self._epoch]

    def release(self) -> None:
        """Release the claim, so that others can join the group."""
        if self._claims.get(self._group) != self._epoch:
            return
        del self._claims[self._group]
        claim = [self._run, self._epoch]
        try:
            self._session.commit([{"do": "release group", "group": self._group, "claim": claim}])
        except (NotCoordinator, Conflict):
            pass  # another broker coordinates it
