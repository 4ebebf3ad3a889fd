"""`/metrics`, `/healthz` and `/readyz`: a collector for prometheus-client, and a minimal HTTP server for three pages.

Counters are read, and sizes, lags and free space computed, when `/metrics` is scraped. Only open partitions are
covered, up to a maximum, so that a scrape of a large store stays fast.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, get_args

from .. import __version__
from ..clock import now_ms
from ..errors import MissingPackage, SawlogError
from ..storage.counters import COUNTERS, SYNC_DURATIONS
from ..store.base import Partition
from ..store.groups import GroupRow
from .config import Address

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
except ImportError as error:
    raise MissingPackage(
        "--metrics needs prometheus-client: run pip install '.[broker]' in a clone of sawlog"
    ) from error

if TYPE_CHECKING:
    from .broker import Broker

#: Maximum number of partitions, and of partitions of groups, reported.
_MOST = 1000
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_TIMEOUT_S = 5.0
#: Maximum number of concurrent requests. More are refused, so that they cannot exhaust the descriptors.
_CONNECTIONS = 64

#: "readonly": appends fail for lack of space. "failed": a log must be reopened.
State = Literal["ok", "readonly", "failed"]

#: Gauges of an open partition: name and help text. The last two are only known to its writer.
_OF_PARTITIONS = {
    "log_size_bytes": "Bytes of an open partition.",
    "log_segments": "Segments of an open partition.",
    "log_start_offset": "First offset.",
    "log_end_offset": "Next offset.",
    "durable_lag_records": "Records that a power cut could still take back.",
    "durable_lag_bytes": "Bytes of batches that a power cut could take back.",
}
#: Counters of the process, likewise.
_PROCESS = {
    "segments_created": "Segments begun by rotation.",
    "segments_removed": "Segments deleted by retention, trimming and compaction.",
    "compaction_removed_bytes": "Bytes that compaction has removed.",
    "recovery_truncated_bytes": "Bytes of torn tails that recovery has cut off.",
    "index_rebuilds": "Indexes that were rebuilt.",
    "scrubbed_bytes": "Bytes of sealed segments that scrubbing has verified.",
    "scrub_problems": "Problems that scrubbing has found.",
    "corrupt_batches": "Damaged batches found by recovery, scrubbing or a fetch, each counted once.",
}


class HttpServer:
    """The listener for scrapers and health checks. Supports only GET and HEAD."""

    def __init__(self, broker: Broker, address: Address) -> None:
        self._broker = broker
        #: Listening address, with the actual port once it has started.
        self.address = address
        self._server: asyncio.Server | None = None
        self._active = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.address.host, self.address.port, limit=8192)
        self.address = Address(self.address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._active >= _CONNECTIONS:
            self._broker.limits.refuse("metrics", "a client of the metrics", f"{self._active} others are there")
            writer.transport.abort()
            return
        self._active += 1
        try:
            await self._answer(reader, writer)
        finally:
            self._active -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
                code, body = (405, b"only GET\n") if method not in (b"GET", b"HEAD") else await self._page(path)
                writer.write(
                    f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                )
                if method == b"GET":
                    writer.write(body)
                await writer.drain()
        writer.close()

    async def _page(self, path: str) -> tuple[int, bytes]:
        if path == "/healthz":
            return 200, b"ok\n"
        if path == "/readyz":
            _, reason = self._state()
            return (200, b"ready\n") if reason is None else (503, f"{reason}\n".encode())
        if path == "/metrics":
            return 200, await self._broker.run(generate_latest, Scrape(self._broker, self._state()[0]))
        return 404, b"there is /metrics, /healthz and /readyz\n"

    def _state(self) -> tuple[State, str | None]:
        """Return the state of the broker, and why it is not ready, if so."""
        failed = [each.log.path for each in self._broker.partitions if each.log._locked and not each.log._is_writable]
        if failed:
            return "failed", f"writing has failed: {', '.join(failed)}"
        short = self._broker.disk_space.reason()
        if short is not None:
            return "readonly", short
        return "ok", "stopping" if self._broker.is_stopping else None


class Scrape:
    """Values of one scrape. Created in the event loop's thread, which owns the counters; collected in another one."""

    def __init__(self, broker: Broker, state: State) -> None:
        self._store = broker.store
        self._state = state
        self._counters = list(_counters(broker))
        self._logs = {(each.topic.name, each.index): each.log for each in list(broker.partitions)[:_MOST]}

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; the interface of prometheus-client."""
        yield from self._counters
        yield from self._partitions()
        yield from self._groups()
        free = GaugeMetricFamily("sawlog_disk_free_bytes", "Free space where the store is.")
        if (free_bytes := self._store.free_bytes()) is not None:
            free.add_metric([], free_bytes)
        yield free
        state = GaugeMetricFamily("sawlog_state", "1 for the current state of the broker.", labels=["state"])
        for each in get_args(State):
            state.add_metric([each], int(each == self._state))
        yield state
        build = GaugeMetricFamily("sawlog_build_info", "Always 1.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build

    def _partitions(self) -> Iterator[Metric]:
        families = {
            name: GaugeMetricFamily(f"sawlog_{name}", about, labels=["topic", "partition"])
            for name, about in _OF_PARTITIONS.items()
        }
        for (topic, index), log in self._logs.items():
            try:
                end = log.next_offset
                values = [log.size_bytes, len(log.segments), log.lowest_offset, end]
                if log._is_writable:
                    values += [max(end - log.durable_offset, 0), log._durable_lag_bytes]
            except SawlogError:
                continue  # closed or deleted meanwhile
            for family, value in zip(families.values(), values, strict=False):
                family.add_metric([topic, str(index)], value)
        yield from families.values()

    def _groups(self) -> Iterator[Metric]:
        labels = ["group", "topic", "partition"]
        about = "Records that a group has not committed as read."
        records = GaugeMetricFamily("sawlog_group_lag_records", about, labels=labels)
        about = "Lag of the group's partition with the largest lag."
        largest = GaugeMetricFamily("sawlog_group_lag_records_max", about, labels=["group"])
        about = "Age of the next batch that a group will commit."
        seconds = GaugeMetricFamily("sawlog_group_lag_seconds", about, labels=labels)
        most: defaultdict[str, int] = defaultdict(int)
        for name, row in self._rows():
            place = [name, row.topic, str(row.partition)]
            most[name] = max(most[name], row.lag)
            if len(records.samples) < _MOST:
                records.add_metric(place, row.lag)
                log = self._logs.get((row.topic, row.partition))
                if log is not None:
                    seconds.add_metric(place, _age_s(log, row.committed or 0) if row.lag else 0)
        for name, lag in sorted(most.items())[:_MOST]:
            largest.add_metric([name], lag)
        yield from (records, largest, seconds)

    def _rows(self) -> Iterator[tuple[str, GroupRow]]:
        groups = self._store.groups
        for name in groups.list():
            try:
                rows = groups.describe(name).rows
            except SawlogError:
                continue  # deleted meanwhile
            for row in rows:
                yield name, row


def _counters(broker: Broker) -> Iterator[Metric]:
    """Yield the counters of the broker and of the process."""
    metrics = broker.metrics

    def by(name: str, about: str, labels: list[str], counter: Mapping[Any, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(f"sawlog_{name}", about, labels=labels)
        for key, count in sorted(counter.items()):
            family.add_metric([key] if isinstance(key, str) else key, count)
        return family

    yield by("requests", "Requests that were answered.", ["api"], metrics.requests)
    about = "Error codes in responses: of whole requests, and of each partition, topic or group in them."
    yield by("errors", about, ["api", "error"], metrics.errors)
    times = HistogramMetricFamily("sawlog_request_seconds", "From the request to its response.", labels=["api"])
    for api, histogram in sorted(metrics.seconds.items()):
        times.add_metric([api], list(histogram), histogram.sum_s)
    yield times
    yield by("append_records", "Records produced.", ["topic"], metrics.records_in)
    yield by("append_bytes", "Bytes of batches produced.", ["topic"], metrics.bytes_in)
    yield by("fetch_bytes", "Bytes of batches sent.", ["topic"], metrics.bytes_out)
    yield GaugeMetricFamily("sawlog_connections", "Open connections.", metrics.connections)
    yield CounterMetricFamily("sawlog_connections", "Connections accepted.", metrics.connections_total)
    yield by("rejected", "Connections that were closed.", ["reason"], metrics.rejected)
    syncs = HistogramMetricFamily("sawlog_fsync_seconds", "Duration of file syncs.")
    syncs.add_metric([], list(SYNC_DURATIONS), SYNC_DURATIONS.sum_s)
    yield syncs
    for name, about in _PROCESS.items():
        yield CounterMetricFamily(f"sawlog_{name}", about, COUNTERS[name])
    yield CounterMetricFamily("sawlog_no_room", "Appends that failed for lack of space.", broker.disk_space.refused)
    yield GaugeMetricFamily("sawlog_inflight_requests", "Requests in progress.", broker.server.in_flight)
    about = "Bytes of requests and responses in memory."
    yield GaugeMetricFamily("sawlog_inflight_bytes", about, broker.server.in_flight_bytes)


def _age_s(log: Partition, offset: int) -> float:
    """Return the age of the batch with this offset by its largest timestamp; 0 if it cannot be read."""
    try:
        found = log._peek(max(offset, log._local_offset), 1, isolation="uncommitted")  # never from the replica
        buffers = (found.result() if isinstance(found, Future) else found).buffers
    except SawlogError:
        return 0.0
    newest = int.from_bytes(buffers[0][35:43], "big", signed=True) if buffers else -1
    return max(now_ms() - newest, 0) / 1000 if newest >= 0 else 0.0
