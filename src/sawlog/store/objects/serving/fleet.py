"""`ObjectBrokers`: the brokers registered in the commits of a store on object storage.

A silent broker is removed by the others, each by its own clock alone: a broker requests the removal after it has seen
the same beat for the whole timeout, and the fold rejects the request if there was another beat meanwhile. A broker that
restarts after a crash need not wait for that: it listens at the address, so the earlier one is gone. A broker that was
removed by mistake registers again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from ....clock import Stopwatch
from ....errors import Conflict, LogClosed
from ...served import Node
from ..session import StoreSession
from ..state.state import State

_logger = logging.getLogger("sawlog.broker")


class ObjectBrokers:
    """The brokers of one store, as one of them sees them. `nodes` is thread-safe, the rest is not."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        #: Identifies this run of this process's broker.
        self.run = uuid.uuid4().hex
        self.node: Node | None = None
        #: The run and the beat of each other broker, and since when they were seen.
        self._seen: dict[int, tuple[str, int, Stopwatch]] = {}

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Register under this id, or under an unused one, and return the id."""
        action = {"do": "register broker", "id": node_id, "run": self.run, "host": host, "port": port}
        (found,) = self._session.commit([action])
        assert isinstance(found, int)
        self.node = Node(found, host, port)
        return found

    def listens(self) -> None:
        """Remove earlier brokers with this address: clients reach this one there, so they are gone."""
        node = self.node
        if node is None:
            return
        for each in self._session.look(_registered):
            if each.run != self.run and (each.node.host, each.node.port) == (node.host, node.port):
                _logger.info("broker %d was at this address before, and is removed", each.node.id)
                self._remove(each.node.id, each.run, None)

    def nodes(self) -> Sequence[Node]:
        """Return all brokers by id, including this one even if others have just removed it."""
        found = {each.node.id: each.node for each in self._session.peek(_registered)}
        if self.node is not None:
            found[self.node.id] = self.node
        return [found[each] for each in sorted(found)]

    def beat(self, timeout_s: float) -> None:
        """Send a heartbeat, and remove brokers that were silent for `timeout_s`."""
        node = self.node
        if node is None:
            return
        try:
            self._session.commit([{"do": "beat", "id": node.id, "run": self.run}])
        except Conflict:
            others = self._session.peek(lambda state: state.entries.get(f"broker/{node.id}"))
            if others is not None:
                _logger.error("another broker has the node id %d: each needs its own (node_id)", node.id)
                return
            _logger.warning("broker %d was removed by another one, and registers again", node.id)
            self.join(node.id, node.host, node.port)
        self._remove_silent(timeout_s)

    def _remove_silent(self, timeout_s: float) -> None:
        seen = {}
        for node, run, beat in self._session.peek(_registered):
            before = self._seen.get(node.id)
            since = before[2] if before is not None and before[:2] == (run, beat) else Stopwatch()
            seen[node.id] = run, beat, since
            if run != self.run and since.elapsed_s >= timeout_s and self._remove(node.id, run, beat):
                _logger.warning("broker %d gives no sign of life, and is removed", node.id)
        self._seen = seen

    def _remove(self, node_id: int, run: str, beat: int | None) -> bool:
        """Remove a broker, with that beat if one is given, and return whether it was removed."""
        try:
            self._session.commit([{"do": "remove broker", "id": node_id, "run": run, "beat": beat}])
        except Conflict:
            return False  # it has sent another heartbeat, or is gone
        return True

    def leave(self) -> None:
        """Deregister this broker. Blocks."""
        node, self.node = self.node, None
        if node is not None:
            try:
                self._remove(node.id, self.run, None)
            except LogClosed:
                pass


class _Registered(NamedTuple):
    """A registered broker."""

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
