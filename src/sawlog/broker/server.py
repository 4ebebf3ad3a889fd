"""`Server`: the listener of a broker and its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from .config import Address
from .connection import ClientConnection
from .handlers import Answer, Body, Context, Handler
from .limits import ConnectionMonitor
from .security.tls import TlsListener
from .wire.frames import RequestHeader

if TYPE_CHECKING:
    from .broker import Broker

#: Grace period of a stop for a client that does not read.
_PATIENCE_S = 1.0
#: Replaces a handler; see `sawlog.testing.Broker`.
Fault = Callable[[ClientConnection, Context, Handler, Body], Answer]


class Server:
    """One listener of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._listener: asyncio.Server | TlsListener | None = None
        self._connections: set[ClientConnection] = set()
        self._watch = ConnectionMonitor(broker.limits, lambda: self._connections)
        self._watching: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._listening = broker.config.listen
        #: Returns a fault to inject for a request; for tests of clients.
        self.fault_for: Callable[[RequestHeader, Body], Fault | None] = lambda header, request: None

    async def start(self) -> None:
        """Start listening."""
        wanted, tls = self.broker.config.listen, self.broker.authenticator.tls
        if tls is not None:
            self._listener = secure = TlsListener(
                tls, lambda: ClientConnection(self), self._refused, timeout_s=self.broker.config.handshake_timeout_s
            )
            port = await secure.start(wanted.host, wanted.port)
        else:
            self._listener = plain = await self.broker.loop.create_server(
                lambda: ClientConnection(self), wanted.host, wanted.port, backlog=1024
            )
            port = plain.sockets[0].getsockname()[1]
        self._watching = asyncio.create_task(self._watch.run())
        self._listening = Address(wanted.host, port)

    def _refused(self, reason: str) -> None:
        self.broker.metrics.rejected[reason] += 1

    @property
    def listening(self) -> Address:
        """Listening address, with the actual port."""
        return self._listening

    @property
    def advertised(self) -> Address:
        """Address that clients should connect to."""
        told = self.broker.config.advertise
        return self._listening if told is None else Address(told.host, told.port or self._listening.port)

    @property
    def in_flight(self) -> int:
        """Number of requests in progress."""
        return sum(each.in_flight for each in self._connections)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests and responses in memory."""
        return sum(each.in_flight_bytes for each in self._connections)

    def opened(self, connection: ClientConnection) -> None:
        """Add a connection."""
        self._connections.add(connection)
        self._empty.clear()
        self.broker.metrics.connections += 1
        self.broker.metrics.connections_total += 1

    def closed(self, connection: ClientConnection) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        self.broker.metrics.connections -= 1
        if not self._connections:
            self._empty.set()

    def refuse_new(self) -> None:
        """Stop listening. Existing connections stay open."""
        if self._listener is not None:
            self._listener.close()

    async def stop(self, timeout_s: float) -> None:
        """Finish the requests in progress, then close all connections. Clients that stop reading their responses are
        dropped."""
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
        """Drop connections that have not read any of their responses since the last check."""
        while True:
            before = {each: each.unread_bytes for each in self._connections}
            await asyncio.sleep(_PATIENCE_S)
            for connection, size in before.items():
                if size and connection.unread_bytes == size:
                    connection.abort()

    def drop_all(self) -> None:
        """Abort every connection, as a network failure would."""
        for connection in list(self._connections):
            connection.abort()
