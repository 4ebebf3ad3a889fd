"""`/metrics`, `/healthz` and `/readyz`, for what watches a broker. Answers GET, knows nothing else of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ..errors import SawlogError
from .config import Address
from .metrics import Sample, as_text

if TYPE_CHECKING:
    from .broker import Broker

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_TIMEOUT_S = 5.0
#: Above this many partitions, the figures per partition are left out.
_MOST_PARTITIONS = 1000


class HttpServer:
    """A small server for three pages."""

    def __init__(self, broker: Broker, address: Address) -> None:
        self._broker = broker
        self._address = address
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, self._address.host, self._address.port, limit=8192)
        self._address = Address(self._address.host, self._server.sockets[0].getsockname()[1])

    @property
    def listening(self) -> Address:
        """Where it listens."""
        return self._address

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            reason = self._not_ready()
            return (200, "ready\n") if reason is None else (503, reason + "\n")
        if path == "/metrics":
            return 200, as_text([*self._broker.metrics.families(), *await self._broker.run(self._levels)])
        return 404, "there is /metrics, /healthz and /readyz\n"

    def _not_ready(self) -> str | None:
        if self._broker.is_stopping:
            return "stopping"
        failed = [each.log.path for each in self._broker.partitions if each.log.locked and not each.log.writable]
        return f"writing has failed: {', '.join(failed)}" if failed else None

    def _levels(self) -> list[tuple[str, str, str, list[Sample]]]:
        """What is looked at when somebody asks. In a thread."""
        sizes: list[Sample] = []
        starts: list[Sample] = []
        ends: list[Sample] = []
        behind: list[Sample] = []
        segments: list[Sample] = []
        for each in list(self._broker.partitions)[:_MOST_PARTITIONS]:
            labels = {"topic": each.topic.name, "partition": str(each.index)}
            try:
                end = each.log.next_offset
                sizes.append(("", labels, each.log.size_bytes))
                starts.append(("", labels, each.log.lowest_offset))
                ends.append(("", labels, end))
                segments.append(("", labels, len(each.log.segments)))
                if each.log.locked:
                    behind.append(("", labels, max(end - each.log.durable_offset, 0)))
            except SawlogError:
                continue  # closed or deleted meanwhile
        failed = self._not_ready()
        return [
            ("sawlog_log_size_bytes", "gauge", "Bytes of a partition that is open.", sizes),
            ("sawlog_log_segments", "gauge", "Segments of a partition that is open.", segments),
            ("sawlog_log_start_offset", "gauge", "The first offset.", starts),
            ("sawlog_log_end_offset", "gauge", "The next offset.", ends),
            ("sawlog_durable_lag_records", "gauge", "Records that a power cut could still take back.", behind),
            ("sawlog_group_lag_records", "gauge", "Records that a group has not committed as read.", self._lags()),
            ("sawlog_state", "gauge", "1 if all is well.", [("", {"state": "ok"}, 0 if failed else 1)]),
        ]

    def _lags(self) -> list[Sample]:
        groups = self._broker.store.groups
        found: list[Sample] = []
        for name in groups.list():
            try:
                rows = groups.describe(name).rows
            except SawlogError:
                continue  # deleted meanwhile
            found += [
                ("", {"group": name, "topic": row.topic, "partition": str(row.partition)}, row.lag) for row in rows
            ]
        return found[:_MOST_PARTITIONS]
