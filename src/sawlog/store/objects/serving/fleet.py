"""`ObjectFleet`: the brokers that serve a store on object storage, as they have registered themselves in its commits.

A broker that gives no sign of life is removed by others, each of which goes by its own clock alone: it asks for the
removal when it has seen the same beat for the whole time-out, and the fold refuses if there was another one meanwhile.
A broker that is restarted after a crash need not wait for that: it listens at the address, so nobody else does. A
broker that was removed by mistake registers itself again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from ....clock import Stopwatch
from ....errors import Conflict, LogClosed
from ...served import Node
from ..session import Core
from ..state.state import State

_logger = logging.getLogger("sawlog.broker")


class ObjectFleet:
    """The brokers of one store, seen by one of them. `nodes` is for any thread, the rest for one at a time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        #: This life of this process's broker.
        self.run = uuid.uuid4().hex
        self.node: Node | None = None
        #: The run and the beat of each other broker, and when it was first seen so.
        self._seen: dict[int, tuple[str, int, Stopwatch]] = {}

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Be one of them, under this id or one that nobody has; the id."""
        action = {"do": "register broker", "id": node_id, "run": self.run, "host": host, "port": port}
        (found,) = self._core.commit([action])
        assert isinstance(found, int)
        self.node = Node(found, host, port)
        return found

    def listens(self) -> None:
        """Clients reach this one at its address: whoever has registered that before is gone."""
        node = self.node
        if node is None:
            return
        for each in self._core.look(_registered):
            if each.run != self.run and (each.node.host, each.node.port) == (node.host, node.port):
                _logger.info("broker %d was at this address before, and is removed", each.node.id)
                self._remove(each.node.id, each.run, None)

    def nodes(self) -> Sequence[Node]:
        """All of them, by id; with this one, which others may just have removed."""
        found = {each.node.id: each.node for each in self._core.peek(_registered)}
        if self.node is not None:
            found[self.node.id] = self.node
        return [found[each] for each in sorted(found)]

    def beat(self, timeout_s: float) -> None:
        """Give a sign of life, and remove those that gave none for this long."""
        node = self.node
        if node is None:
            return
        try:
            self._core.commit([{"do": "beat", "id": node.id, "run": self.run}])
        except Conflict:
            others = self._core.peek(lambda state: state.entries.get(f"broker/{node.id}"))
            if others is not None:
                _logger.error("another broker has the node id %d: each needs its own (node_id)", node.id)
                return
            _logger.warning("broker %d was removed by another one, and registers again", node.id)
            self.join(node.id, node.host, node.port)
        self._remove_silent(timeout_s)

    def _remove_silent(self, timeout_s: float) -> None:
        seen = {}
        for node, run, beat in self._core.peek(_registered):
            before = self._seen.get(node.id)
            since = before[2] if before is not None and before[:2] == (run, beat) else Stopwatch()
            seen[node.id] = run, beat, since
            if run != self.run and since.elapsed_s >= timeout_s and self._remove(node.id, run, beat):
                _logger.warning("broker %d gives no sign of life, and is removed", node.id)
        self._seen = seen

    def _remove(self, node_id: int, run: str, beat: int | None) -> bool:
        """Remove a broker, with that beat if one is given; whether it was there."""
        try:
            self._core.commit([{"do": "remove broker", "id": node_id, "run": run, "beat": beat}])
        except Conflict:
            return False  # it has given another sign of life, or is gone
        return True

    def leave(self) -> None:
        """Be none of them any more."""
        node, self.node = self.node, None
        if node is not None:
            try:
                self._remove(node.id, self.run, None)
            except LogClosed:
                pass


class _Registered(NamedTuple):
    """What is known of a broker."""

    node: Node
    run: str
    beat: int


def _registered(state: State) -> list[_Registered]:
    found = []
    for name in state.entries.names("broker/"):
        entry = state.entries.get(name)
        node = Node(int(name.partition("/")[2]), entry["host"], entry["port"])
        found.append(_Registered(node, entry["run"], entry["beat"]))
    return found
