"""`Nodes`: the brokers that serve the same store, and which of them is asked for what.

Each broker serves every partition, so who leads one is only a matter of load: it is spread over all by a hash. The
coordinator of a group or of a transactional id is chosen in the same way, by the highest hash of the key and a broker:
when a broker comes or goes, only its own share moves. Brokers that do not agree for a moment on who is there send a
client to different coordinators; which of them may commit is decided by the store, not here (docs/adr/0026).

Threads: the event loop's; what may wait runs in threads.
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
from ..store.served import Node
from .config import Address

if TYPE_CHECKING:
    from .broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: What was looked at this long ago is not looked at again for every group.
_LOOK_S = 0.05

Kind = Literal["group", "transaction", "partition"]


class Nodes:
    """This broker among the others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._fleet = broker.store.fleet
        self._beating: asyncio.Task[None] | None = None
        #: The id of this broker, once it has joined.
        self.id = -1
        self._ids: tuple[int, ...] = ()
        self._looked = Stopwatch()

    async def join(self) -> None:
        """Become one of the others, before clients are served."""
        config = self._broker.config
        told = config.advertise or config.listen
        self.id = await self._broker.run(self._fleet.join, config.node_id, told.host, told.port)
        self._look()

    async def start(self) -> None:
        """Stay one of them. When clients can connect."""
        config, told = self._broker.config, self._broker.server.advertised
        if told != (config.advertise or config.listen):  # the port was not known before
            await self._broker.run(self._fleet.join, self.id, told.host, told.port)
        await self._broker.run(self._fleet.listens)
        self._look()
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Leave the others, so that clients go there."""
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
        try:
            await self._broker.run(self._fleet.leave)
        except SawlogError as error:
            _logger.warning("the other brokers could not be told that this one stops: %s", error)

    async def _beat(self) -> None:
        """Give signs of life, and notice who comes and goes."""
        config, waited_s = self._broker.config, 0.0
        pause_s = min(config.refresh_s, config.broker_heartbeat_s)
        while True:
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            if waited_s >= config.broker_heartbeat_s:
                waited_s = 0.0
                try:
                    await self._broker.run(self._fleet.beat, config.broker_expiry_s)
                except SawlogError as error:
                    _logger.warning("no sign of life could be given: %s", error)
            self._look()
            self._broker.groups.give_up_others()

    def _look(self) -> Sequence[Node]:
        found = self._fleet.nodes()
        self._ids = tuple(each.id for each in found)
        self._looked.restart()
        return found

    # --- who is asked for what

    def all(self, advertised: Address) -> Sequence[Node]:
        """All brokers; this one at the address that the client knows."""
        here = Node(self.id, advertised.host, advertised.port)
        return [here if each.id == self.id else each for each in self._look()] or [here]

    def of(self, kind: Kind, key: str, advertised: Address) -> Node:
        """The broker that is asked for something."""
        return max(self.all(advertised), key=lambda each: weight(kind, key, each.id))

    def leader(self, topic_id: str, partition: int) -> int:
        """The id of the broker that clients are sent to for a partition."""
        if len(self._ids) < 2:
            return self.id
        return max(self._ids, key=lambda each: weight("partition", f"{topic_id}/{partition}", each))

    def _coordinates(self, kind: Kind, key: str) -> bool:
        """By what is known now, as `of` says it: a sign of life may take seconds, and a broker that clients are sent to
        would refuse them for as long."""
        if self._looked.elapsed_s > _LOOK_S:
            self._look()
        if len(self._ids) < 2:
            return True
        return max(self._ids, key=lambda each: weight(kind, key, each)) == self.id

    def coordinates_group(self, name: str) -> bool:
        """Whether this broker coordinates a group."""
        return self._coordinates("group", name)

    def coordinates_transaction(self, name: str) -> bool:
        """Whether this broker coordinates a transactional id."""
        return self._coordinates("transaction", name)


def weight(kind: Kind, key: str, node_id: int) -> bytes:
    """By which a broker is chosen for something: the highest has it."""
    return blake2b(f"{kind}/{node_id}/{key}".encode(), digest_size=8).digest()
