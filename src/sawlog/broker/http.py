"""`/metrics`, `/healthz` and `/readyz` over a minimal HTTP server that supports only GET and HEAD."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from .config import Address
from .levels import Levels, State
from .metrics import as_text

if TYPE_CHECKING:
    from .broker import Broker

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_TIMEOUT_S = 5.0
#: Maximum number of concurrent requests. More are refused, so that they cannot exhaust the descriptors.
_CONNECTIONS = 64


class HttpServer:
    """A small HTTP server for three pages."""

    def __init__(self, broker: Broker, address: Address) -> None:
        self._broker = broker
        self._address = address
        self._server: asyncio.Server | None = None
        self._asking = 0

    async def start(self) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._serve, self._address.host, self._address.port, limit=8192)
        self._address = Address(self._address.host, self._server.sockets[0].getsockname()[1])

    @property
    def listening(self) -> Address:
        """Listening address."""
        return self._address

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._asking >= _CONNECTIONS:
            self._broker.limits.refuse("metrics", "a client of the metrics", f"{self._asking} others are there")
            writer.transport.abort()
            return
        self._asking += 1
        try:
            await self._answer(reader, writer)
        finally:
            self._asking -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
                code, text = (405, "only GET\n") if method not in (b"GET", b"HEAD") else await self._page(path)
                body = text.encode()
                writer.write(
                    f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                )
                if method == b"GET":
                    writer.write(body)
                await writer.drain()
        writer.close()

    async def _page(self, path: str) -> tuple[int, str]:
        if path == "/healthz":
            return 200, "ok\n"
        if path == "/readyz":
            _, reason = self._state()
            return (200, "ready\n") if reason is None else (503, reason + "\n")
        if path == "/metrics":
            levels = Levels(self._broker, self._state()[0])
            return 200, as_text([*self._broker.metrics.families(), *await self._broker.run(levels.families)])
        return 404, "there is /metrics, /healthz and /readyz\n"

    def _state(self) -> tuple[State, str | None]:
        """Return the state of the broker, and why it is not ready, if so."""
        failed = [each.log.path for each in self._broker.partitions if each.log.locked and not each.log.writable]
        if failed:
            return "failed", f"writing has failed: {', '.join(failed)}"
        short = self._broker.room.reason()
        if short is not None:
            return "readonly", short
        return "ok", "stopping" if self._broker.is_stopping else None
