"""Accepting TLS connections: the handshake is over before a `Connection` hears of a client.

asyncio's own server would keep one context for ever, and give no hold on clients that are within their handshake. Here
each connection takes the context that is in use when it comes, and handshakes have a limit of time, of number, and of
number per address: who connects and says nothing costs a socket for seconds, and cannot keep others out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from .tls import Tls

_logger = logging.getLogger("sawlog.broker")

_BACKLOG: Final = 1024
#: Clients within their handshake, in total and per address; further ones are dropped.
_MOST, _MOST_PER_HOST = 1024, 256
#: How long a client is waited for that should say goodbye.
_SHUTDOWN_S: Final = 1.0
#: How long to wait after accepting failed, for want of descriptors for example.
_PAUSE_S: Final = 0.5


class TlsListener:
    """Listening sockets, and the handshakes that have begun."""

    def __init__(
        self,
        tls: Tls,
        make: Callable[[], asyncio.BaseProtocol],
        refused: Callable[[str], None],
        *,
        timeout_s: float,
    ) -> None:
        """`make` makes the protocol of a connection, `refused` is told why one did not come about."""
        self._tls = tls
        self._make = make
        self._refused = refused
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._by_host: Counter[str] = Counter()

    async def start(self, host: str, port: int) -> int:
        """Listen on all addresses of a host; return the port."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, *_, address in dict.fromkeys(found):
                self._sockets.append(made := _listening(family, (address[0], port, *address[2:])))
                port = port or int(made.getsockname()[1])
        except BaseException:
            self.close()
            raise
        self._accepting = [asyncio.create_task(self._accept(each)) for each in self._sockets]
        return port

    def close(self) -> None:
        """Stop listening, and drop those who are within their handshake. Connections go on."""
        for task in (*self._accepting, *self._handshakes):
            task.cancel()
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, peer = await self._loop.sock_accept(listening)
            except OSError as error:
                _logger.error("a connection could not be accepted: %s", error.strerror or error)
                await asyncio.sleep(_PAUSE_S)
                continue
            host = str(peer[0])
            if len(self._handshakes) >= _MOST or self._by_host[host] >= _MOST_PER_HOST:
                accepted.close()
                self._refused("handshakes")
                continue
            task = self._loop.create_task(self._shake_hands(accepted, host))
            self._handshakes.add(task)
            self._by_host[host] += 1
            task.add_done_callback(lambda task, host=host: self._over(task, host))  # type: ignore[misc] # of this turn

    def _over(self, task: asyncio.Task[None], host: str) -> None:
        self._handshakes.discard(task)
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError as error:  # also of TLS, and of time
            reason = getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
            _logger.info("the TLS handshake with %s failed: %s", host, reason)
            self._refused("tls")
        except BaseException:
            accepted.close()
            raise


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
