"""The brokers of a cluster, as a client sees them: who leads which partition, and who coordinates which group.

`sawlog serve` is one broker that does everything. The client asks nevertheless, as every client of Kafka does, so it
works with a cluster as well. One connection per address, made when it is needed.

What failed because somebody else leads by now, or because the connection broke, is tried again until the time-out is
over, if that is harmless: asking is, storing is not. A first connection that fails is not tried again.

Threads: any.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ...clock import Deadline
from ...errors import BrokerTimeout, BrokerUnavailable, SawlogError, TopicNotFound
from ..config import Address
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from ..wire.schema import Body
from .access import Access
from .connection import Connection, Unanswered
from .refusals import check, is_temporary

T = TypeVar("T")
#: A partition: its topic and its number.
Place = tuple[str, int]

#: How long to wait before something is tried again: longer each time.
_PAUSE_S, _PAUSE_MOST_S = 0.05, 1.0
#: Connections that end without an answer are not for want of luck: the broker does not want this client.
_STRANGER = 3


class Cluster:
    """Connections to the brokers, and what they say about each other."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "sawlog",
        timeout_s: float = 30.0,
        access: Access | None = None,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._access = access or Access()
        self._lock = threading.RLock()
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._controller = -1
        self._leaders: dict[Place, int] = {}
        self._coordinators: dict[str, int] = {}
        self._was_connected = False

    @property
    def name(self) -> str:
        """The addresses it was made with, for messages."""
        return ",".join(map(str, self._bootstrap))

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for each in self._connections.values():
                each.close()
            self._connections.clear()

    # --- connections

    def any(self) -> Connection:
        """A connection to any broker."""
        with self._lock:
            for each in self._connections.values():
                if each.is_open:
                    return each
            failure: SawlogError | None = None
            for address in dict.fromkeys((*self._bootstrap, *self._nodes.values())):
                try:
                    return self._connect(address)
                except (BrokerUnavailable, BrokerTimeout) as error:
                    failure = failure or error
        assert failure is not None, "a cluster has at least one address"
        raise failure

    def node(self, number: int) -> Connection:
        """A connection to one broker."""
        with self._lock:
            if number not in self._nodes:
                self.refresh(())
            address = self._nodes.get(number)
            if address is None:
                raise BrokerUnavailable(f"the brokers at {self.name} know no broker {number}")
            return self._connect(address)

    def _connect(self, address: Address) -> Connection:
        found = self._connections.get(address)
        if found is None or not found.is_open:
            found = Connection(address, client_id=self._client_id, timeout_s=self.timeout_s, access=self._access)
            self._connections[address] = found
            self._was_connected = True
        return found

    # --- who does what

    def metadata(self, topics: Iterable[str] | None) -> Body:
        """What the cluster says about topics; None: all of them. No topic is created."""
        asked = None if topics is None else [{"name": name} for name in topics]
        found = self.any().call(Key.METADATA, {"topics": asked, "allow_auto_topic_creation": False})
        with self._lock:
            self._nodes = {each["node_id"]: Address(each["host"], each["port"]) for each in found["brokers"]}
            self._controller = found["controller_id"]
            for topic in found["topics"]:
                for part in topic["partitions"]:
                    self._leaders[topic["name"], part["partition_index"]] = part["leader_id"]
        return found

    def refresh(self, topics: Iterable[str]) -> None:
        """Look at the metadata again."""
        self.metadata(list(topics))

    def controller(self) -> Connection:
        """The broker that changes topics; any, if none is named."""
        if self._controller < 0:
            self.refresh(())
        return self.any() if self._controller < 0 else self.node(self._controller)

    def leader(self, place: Place) -> Connection:
        """The broker that leads a partition."""
        number = self._leaders.get(place)
        if number is None or number < 0:
            (topic,) = self.metadata([place[0]])["topics"]
            check(topic["error_code"], f"the topic {place[0]!r} at {self.name}")
            number = self._leaders.get(place)
            if number is None:
                count = len(topic["partitions"])
                raise TopicNotFound(f"the topic {place[0]!r} has partitions 0 to {count - 1}, not {place[1]}")
            check(ErrorCode.LEADER_NOT_AVAILABLE if number < 0 else 0, f"partition {place[1]} of {place[0]!r}")
        return self.node(number)

    def by_leader(self, places: Iterable[Place]) -> dict[Connection, list[Place]]:
        """The partitions that each broker leads."""
        found: defaultdict[Connection, list[Place]] = defaultdict(list)
        for place in places:
            found[self.leader(place)].append(place)
        return found

    def coordinator(self, group: str) -> Connection:
        """The broker that coordinates a group."""
        number = self._coordinators.get(group)
        if number is None:
            number = self._find_coordinator(group)
            self._coordinators[group] = number
        return self.node(number)

    def _find_coordinator(self, group: str) -> int:
        found = self.any().call(Key.FIND_COORDINATOR, {"key": group, "coordinator_keys": [group], "key_type": 0})
        (one,) = found["coordinators"] or [found]  # up to version 3 the answer itself is the one
        check(one["error_code"], f"the coordinator of the group {group!r}", one["error_message"])
        with self._lock:
            self._nodes[one["node_id"]] = Address(one["host"], one["port"])
        return int(one["node_id"])

    def brokers(self) -> list[Connection]:
        """All brokers."""
        self.refresh(())
        return [self.node(number) for number in sorted(self._nodes)]

    # --- trying again

    def patiently(self, attempt: Callable[[], T], *, topics: Iterable[str] = (), once: bool = False) -> T:
        """Do something, and again if somebody else leads by now; unless it may be done only `once`, also if the
        connection broke."""
        deadline = Deadline(self.timeout_s, first_pause_s=_PAUSE_S, longest_pause_s=_PAUSE_MOST_S)
        unanswered = 0
        while True:
            try:
                return attempt()
            except SawlogError as error:
                unanswered += isinstance(error, Unanswered)
                if unanswered == _STRANGER:
                    raise
                broken = isinstance(error, BrokerUnavailable) and self._was_connected and not once
                if not (broken or is_temporary(error)):
                    raise
                deadline.pause(or_raise=error)
            self._forget(topics)

    def _forget(self, topics: Iterable[str]) -> None:
        """What was known about leaders and coordinators may be wrong."""
        gone = set(topics)
        with self._lock:
            self._coordinators.clear()
            self._controller = -1
            self._leaders = {place: node for place, node in self._leaders.items() if place[0] not in gone}
