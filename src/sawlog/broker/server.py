"""Listening: the connections of a broker, how they begin, and how a stop ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from .config import Address
from .connection import Connection
from .handlers import Answer, Body, Context, Handler
from .limits.watch import Watch
from .security.tls import TlsListener
from .wire.frames import RequestHeader

if TYPE_CHECKING:
    from .broker import Broker

#: How long a stop waits for a client that does not read.
_PATIENCE_S = 1.0
#: What happens instead of the handler; see `sawlog.testing.Broker`.
Fault = Callable[[Connection, Context, Handler, Body], Answer]


class Server:
    """One listener of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._listener: asyncio.Server | TlsListener | None = None
        self._connections: set[Connection] = set()
        self._watch = Watch(broker.limits, lambda: self._connections)
        self._watching: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._listening = broker.config.listen
        #: Asked about each request; for tests of clients.
        self.fault_for: Callable[[RequestHeader, Body], Fault | None] = lambda header, request: None

    async def start(self) -> None:
        """Listen."""
        wanted, tls = self.broker.config.listen, self.broker.guard.tls
        if tls is not None:
            self._listener = secure = TlsListener(
                tls, lambda: Connection(self), self._refused, timeout_s=self.broker.config.handshake_timeout_s
            )
            port = await secure.start(wanted.host, wanted.port)
        else:
            self._listener = plain = await self.broker.loop.create_server(
                lambda: Connection(self), wanted.host, wanted.port, backlog=1024
            )
            port = plain.sockets[0].getsockname()[1]
        self._watching = asyncio.create_task(self._watch.run())
        self._listening = Address(wanted.host, port)

    def _refused(self, reason: str) -> None:
        self.broker.metrics.rejected[reason] += 1

    @property
    def listening(self) -> Address:
        """Where it listens; the port is the real one."""
        return self._listening

    @property
    def advertised(self) -> Address:
        """What clients are told to connect to."""
        told = self.broker.config.advertise
        return self._listening if told is None else Address(told.host, told.port or self._listening.port)

    @property
    def in_flight(self) -> int:
        """How many requests are being answered."""
        return sum(each.in_flight for each in self._connections)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests that have come and responses that have not gone."""
        return sum(each.in_flight_bytes for each in self._connections)

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        self._connections.add(connection)
        self._empty.clear()
        self.broker.metrics.connections += 1
        self.broker.metrics.connections_total += 1

    def closed(self, connection: Connection) -> None:
        """A client is gone."""
        self._connections.discard(connection)
        self.broker.metrics.connections -= 1
        if not self._connections:
            self._empty.set()

    def refuse_new(self) -> None:
        """Stop listening; connections go on."""
        if self._listener is not None:
            self._listener.close()

    async def stop(self, timeout_s: float) -> None:
        """Answer what has begun, then close all connections. A client that takes nothing of its responses for a while
        is not waited for."""
        self.refuse_new()
        for connection in list(self._connections):
            connection.end()
        dropping = asyncio.create_task(self._drop_idle())
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            self.drop_all()
        finally:
            dropping.cancel()
            if self._watching is not None:
                self._watching.cancel()

    async def _drop_idle(self) -> None:
        """Drop those who have responses to take, and have taken none of them since the last look."""
        while True:
            before = {each: each.untaken_bytes for each in self._connections}
            await asyncio.sleep(_PATIENCE_S)
            for connection, size in before.items():
                if size and connection.untaken_bytes == size:
                    connection.abort()

    def drop_all(self) -> None:
        """Abort every connection, as a network that breaks does."""
        for connection in list(self._connections):
            connection.abort()
