"""`ObjectFleet`: the brokers that serve a store on object storage, as they have registered themselves in its commits.

A broker that gives no sign of life is removed by others, each of which goes by its own clock alone: it asks for the
removal when it has seen the same beat for the whole time-out, and the fold refuses if there was another one meanwhile.
A broker that was removed by mistake registers itself again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from ...clock import Stopwatch
from ...errors import Conflict, LogClosed
from ...topics.served import Node
from ..core import Core
from ..state import State

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

    def nodes(self) -> Sequence[Node]:
        """All of them, by id; with this one, which others may just have removed."""
        found = {each.id: each for each in self._core.peek(_nodes)}
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
        for node_id, run, beat in self._core.peek(_beats):
            before = self._seen.get(node_id)
            since = before[2] if before is not None and before[:2] == (run, beat) else Stopwatch()
            seen[node_id] = run, beat, since
            if run != self.run and since.elapsed_s >= timeout_s:
                self._remove(node_id, run, beat)
        self._seen = seen

    def _remove(self, node_id: int, run: str, beat: int | None) -> None:
        try:
            self._core.commit([{"do": "remove broker", "id": node_id, "run": run, "beat": beat}])
            if run != self.run:
                _logger.warning("broker %d gives no sign of life, and is removed", node_id)
        except Conflict:
            pass  # it has given one, or is gone

    def leave(self) -> None:
        """Be none of them any more."""
        node, self.node = self.node, None
        if node is not None:
            try:
                self._remove(node.id, self.run, None)
            except LogClosed:
                pass


def _nodes(state: State) -> list[Node]:
    found = [(int(name.partition("/")[2]), state.entries.get(name)) for name in state.entries.names("broker/")]
    return [Node(node_id, each["host"], each["port"]) for node_id, each in found]


def _beats(state: State) -> list[tuple[int, str, int]]:
    found = [(int(name.partition("/")[2]), state.entries.get(name)) for name in state.entries.names("broker/")]
    return [(node_id, each["run"], each["beat"]) for node_id, each in found]
