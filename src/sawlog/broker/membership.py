"""`ClusterMembership`: the brokers that serve the same store, and how work is divided among them.

Each broker serves every partition, so leadership only spreads the load: a hash distributes it over all brokers. The
coordinator of a group or a transactional id is chosen likewise, by rendezvous hashing: when a broker comes or goes,
only its own share moves. Brokers that briefly disagree on the membership send clients to different coordinators; the
store decides which of them may commit (docs/adr/0026).

Belongs to the event loop's thread; blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from ..clock import Stopwatch
from ..errors import SawlogError
from ..store.serving import Node
from .config import Address

if TYPE_CHECKING:
    from .broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: Lifetime of the cached list of brokers.
_CACHED_S = 0.05

Kind = Literal["group", "transaction", "partition"]


class ClusterMembership:
    """This broker among its peers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = broker.store.brokers
        self._beating: asyncio.Task[None] | None = None
        #: Id of this broker, once it has joined.
        self.id = -1
        self._ids: tuple[int, ...] = ()
        self._refreshed = Stopwatch()

    async def join(self) -> None:
        """Register this broker before clients are served."""
        config = self._broker.config
        told = config.advertise or config.listen
        self.id = await self._broker.run(self._registry.join, config.node_id, told.host, told.port)
        self._refresh()

    async def start(self) -> None:
        """Announce that clients can connect, and begin heartbeats."""
        config, told = self._broker.config, self._broker.server.advertised
        if told != (config.advertise or config.listen):  # the port is known only now
            await self._broker.run(self._registry.join, self.id, told.host, told.port)
        await self._broker.run(self._registry.listens)
        self._refresh()
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Deregister this broker, so that clients go to the others."""
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        try:
            await self._broker.run(self._registry.leave)
        except SawlogError as error:
            _logger.warning("cannot deregister this broker: %s", error)

    async def _beat(self) -> None:
        """Send heartbeats and follow the membership."""
        config, waited_s = self._broker.config, 0.0
        pause_s = min(config.refresh_s, config.broker_heartbeat_s)
        while True:
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            if waited_s >= config.broker_heartbeat_s:
                waited_s = 0.0
                try:
                    await self._broker.run(self._registry.beat, config.broker_expiry_s)
                except SawlogError as error:
                    _logger.warning("cannot send a heartbeat: %s", error)
            self._refresh()
            self._broker.groups.give_up_others()

    def _refresh(self) -> Sequence[Node]:
        found = self._registry.nodes()
        self._ids = tuple(each.id for each in found)
        self._refreshed.restart()
        return found

    # --- division of work

    def all(self, advertised: Address) -> Sequence[Node]:
        """Return all brokers; this one with the address that the client uses."""
        here = Node(self.id, advertised.host, advertised.port)
        return [here if each.id == self.id else each for each in self._refresh()] or [here]

    def of(self, kind: Kind, key: str, advertised: Address) -> Node:
        """Return the broker responsible for a key."""
        return max(self.all(advertised), key=lambda each: weight(kind, key, each.id))

    def leader(self, topic_id: str, partition: int) -> int:
        """Return the id of the broker that clients should use for a partition."""
        return self._chosen("partition", f"{topic_id}/{partition}")

    def coordinates(self, kind: Kind, key: str) -> bool:
        """Return whether this broker is responsible, by the same current membership as `of`: with the membership of the
        last heartbeat, a broker could refuse clients that were just sent to it, for seconds."""
        if self._refreshed.elapsed_s > _CACHED_S:
            self._refresh()
        return self._chosen(kind, key) == self.id

    def _chosen(self, kind: Kind, key: str) -> int:
        return self.id if len(self._ids) < 2 else max(self._ids, key=lambda each: weight(kind, key, each))


def weight(kind: Kind, key: str, node_id: int) -> bytes:
    """Return the weight of a broker for a key. The highest wins."""
    return blake2b(f"{kind}/{node_id}/{key}".encode(), digest_size=8).digest()
