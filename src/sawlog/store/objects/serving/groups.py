"""`ServedGroups`: consumer groups on object storage whose members are brokers' clients.

Who coordinates a group has a *claim* to it in the commits, with an epoch; see folding/brokers.py. What a broker commits
for members carries its claim, so a broker that has lost it commits nothing: `NotCoordinator`.
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
from ..session import Core, results
from ..state.book import quoted
from ..state.state import Outcome, State
from .fleet import ObjectFleet


class ServedGroups:
    """The groups of one store, for one broker. Safe for threads."""

    def __init__(self, core: Core, fleet: ObjectFleet) -> None:
        self._core = core
        self._fleet = fleet
        self._stored = ObjectGroups(core)
        self.offsets = _Offsets(core)
        #: The epochs of the claims that this broker has, by group.
        self.claims: dict[str, int] = {}

    def list(self) -> builtins.list[str]:
        """The names of all groups."""
        return self._stored.list()

    def describe(self, name: str) -> GroupDescription:
        """The progress of a group."""
        return self._stored.describe(name)

    def delete(self, name: str) -> None:
        """Delete a group and its offsets."""
        self._stored.delete(name)

    def claim(self, name: str, address: str) -> ObjectClaim:
        """Coordinate a group."""
        return ObjectClaim(self._core, self._fleet, self.claims, check_group_name(name), address)

    def commit_together(self, changes: Sequence[Change]) -> Sequence[GroupError | None]:
        """Commit for several groups, with one commit if nothing else is in the way."""
        waiting = [(change, self._core.submit([self._action(change)])) for change in changes]
        return [self._result(change, outcome) for change, outcome in waiting]

    def _action(self, change: Change) -> dict[str, Any]:
        rows: builtins.list[builtins.list[object]] = []
        known = self._core.peek(lambda state: {topic: state.topic(topic) for topic, _ in change.offsets})
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
        except TopicNotFound:  # deleted after it was looked at: the others are committed without it
            self._core.look(lambda state: None, fresh=True)
            return self._result(change, self._core.submit([self._action(change)]))
        except (GroupActive, NotCoordinator) as error:
            return error
        return None


class _Offsets:
    """What groups have committed."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def of(self, group: str) -> dict[Share, Committed]:
        """The offsets of one group, as of now."""

        def read(state: State) -> dict[Share, Committed]:
            names = {entry["id"]: name for name in state.topics() if (entry := state.topic(name)) is not None}
            return {
                (names[topic_id], partition): Committed(offset, topic_id, metadata, 0, "", epoch)
                for (topic_id, partition), (offset, metadata, epoch) in state.offsets(group).items()
                if topic_id in names
            }

        return self._core.look(read, fresh=True)


class ObjectClaim:
    """Attempts to coordinate one group. Consumers that opened the store keep it out; one that gives no sign of life for
    its session timeout, by the clock of this process, is removed."""

    def __init__(self, core: Core, fleet: ObjectFleet, claims: dict[str, int], group: str, address: str) -> None:
        self._core = core
        self._fleet = fleet
        self._claims = claims
        self._group = group
        self._address = address
        #: The beat of each consumer that was seen, and since when.
        self._seen: dict[str, tuple[int, Stopwatch]] = {}

    @property
    def may_succeed(self) -> bool:
        """Whether no consumer has given a sign of life since it was first seen."""
        found = self._core.look(self._members, fresh=True)
        return all(self._seen.get(member, (beat,))[0] == beat for member, beat, _ in found)

    def _members(self, state: State) -> builtins.list[tuple[str, int, int]]:
        prefix = f"member/{quoted(self._group)}/"
        found = [(unquote(name.removeprefix(prefix)), state.entries.get(name)) for name in state.entries.names(prefix)]
        return [(member, each["beat"], each["timeout_ms"]) for member, each in found]

    def _remove_silent(self) -> None:
        for member, beat, timeout_ms in self._core.look(self._members, fresh=True):
            seen = self._seen.setdefault(member, (beat, Stopwatch()))
            if seen[0] == beat and seen[1].elapsed_ms >= timeout_ms:
                with suppress(Conflict):  # it has given one, or has left
                    action = {"do": "remove member", "group": self._group, "member": member, "beat": beat}
                    self._core.commit([action])

    def take(self) -> TakenGroup:
        """Coordinate the group from now on: whoever did before has lost it. `GroupActive` if consumers that opened the
        store are in it."""
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
        (epoch,) = self._core.commit([action])
        assert isinstance(epoch, int)
        self._claims[self._group] = epoch
        return TakenGroup(self._core, self._fleet.run, self._claims, self._group, epoch)

    def close(self) -> None:
        """Nothing is open."""


class TakenGroup:
    """A group that this broker coordinates."""

    def __init__(self, core: Core, run: str, claims: dict[str, int], group: str, epoch: int) -> None:
        self._core = core
        self._run = run
        self._claims = claims
        self._group = group
        self._epoch = epoch

    @property
    def current(self) -> bool:
        """Whether it still does, as far as is known."""
        served = self._core.peek(lambda state: state.entries.get(f"served/{quoted(self._group)}"))
        return served is not None and [served[2], served[0]] == [self._run, self._epoch]

    def release(self) -> None:
        """Let others join the group."""
        if self._claims.get(self._group) != self._epoch:
            return
        del self._claims[self._group]
        claim = [self._run, self._epoch]
        try:
            self._core.commit([{"do": "release group", "group": self._group, "claim": claim}])
        except (NotCoordinator, Conflict):
            pass  # another broker coordinates it
