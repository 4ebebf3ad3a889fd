"""Gauges computed when `/metrics` is scraped: sizes, offsets, lags, free space.

Only open partitions are covered, up to a maximum, so that a scrape of a large store stays fast.

Created in the event loop's thread, used in another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, get_args

from .. import __version__
from ..clock import now_ms
from ..errors import SawlogError
from ..store.base import Partition
from ..store.groups import GroupRow
from .metrics import Family, Sample

if TYPE_CHECKING:
    from .broker import Broker

#: Maximum number of partitions, and of partitions of groups, reported.
_MOST = 1000


#: "readonly": appends fail for lack of space. "failed": a log must be reopened.
State = Literal["ok", "readonly", "failed"]


class Levels:
    """The state of a broker at this moment."""

    def __init__(self, broker: Broker, state: State) -> None:
        self._store = broker.store
        self._state = state
        self._in_flight = broker.server.in_flight
        self._in_flight_bytes = broker.server.in_flight_bytes
        self._refused = broker.room.refused
        self._logs = {(each.topic.name, each.index): each.log for each in list(broker.partitions)[:_MOST]}

    def families(self) -> list[Family]:
        return [*self._partitions(), *self._groups(), *self._machine()]

    def _partitions(self) -> Iterator[Family]:
        sizes: list[Sample] = []
        segments: list[Sample] = []
        starts: list[Sample] = []
        ends: list[Sample] = []
        behind: list[Sample] = []
        behind_bytes: list[Sample] = []
        for (topic, index), log in self._logs.items():
            labels = {"topic": topic, "partition": str(index)}
            try:
                end = log.next_offset
                sizes.append(("", labels, log.size_bytes))
                segments.append(("", labels, len(log.segments)))
                starts.append(("", labels, log.lowest_offset))
                ends.append(("", labels, end))
                if log.locked:
                    behind.append(("", labels, max(end - log.durable_offset, 0)))
                    behind_bytes.append(("", labels, log.durable_lag_bytes))
            except SawlogError:
                continue  # closed or deleted meanwhile
        yield "sawlog_log_size_bytes", "gauge", "Bytes of a partition that is open.", sizes
        yield "sawlog_log_segments", "gauge", "Segments of a partition that is open.", segments
        yield "sawlog_log_start_offset", "gauge", "The first offset.", starts
        yield "sawlog_log_end_offset", "gauge", "The next offset.", ends
        yield "sawlog_durable_lag_records", "gauge", "Records that a power cut could still take back.", behind
        yield "sawlog_durable_lag_bytes", "gauge", "Bytes of batches that a power cut could take back.", behind_bytes

    def _groups(self) -> Iterator[Family]:
        records: list[Sample] = []
        seconds: list[Sample] = []
        most: defaultdict[str, int] = defaultdict(int)
        for name, row in self._rows():
            labels = {"group": name, "topic": row.topic, "partition": str(row.partition)}
            most[name] = max(most[name], row.lag)
            if len(records) < _MOST:
                records.append(("", labels, row.lag))
                log = self._logs.get((row.topic, row.partition))
                if log is not None:
                    seconds.append(("", labels, _age_s(log, row.committed or 0) if row.lag else 0))
        largest: list[Sample] = [("", {"group": name}, lag) for name, lag in sorted(most.items())[:_MOST]]
        yield "sawlog_group_lag_records", "gauge", "Records that a group has not committed as read.", records
        yield "sawlog_group_lag_records_max", "gauge", "The same, of the partition with the most.", largest
        yield "sawlog_group_lag_seconds", "gauge", "The age of the next batch that a group will commit.", seconds

    def _rows(self) -> Iterator[tuple[str, GroupRow]]:
        groups = self._store.groups
        for name in groups.list():
            try:
                rows = groups.describe(name).rows
            except SawlogError:
                continue  # deleted meanwhile
            for row in rows:
                yield name, row

    def _machine(self) -> Iterator[Family]:
        free = self._store.free_bytes()
        refused, requests, size = self._refused, self._in_flight, self._in_flight_bytes
        yield "sawlog_disk_free_bytes", "gauge", "Free space where the store is.", [] if free is None else _one(free)
        yield "sawlog_no_room_total", "counter", "Appends that failed for lack of room.", _one(refused)
        yield "sawlog_inflight_requests", "gauge", "Requests that are being answered.", _one(requests)
        yield "sawlog_inflight_bytes", "gauge", "Bytes of requests and responses on their way.", _one(size)
        now: list[Sample] = [("", {"state": each}, int(each == self._state)) for each in get_args(State)]
        yield "sawlog_state", "gauge", "1 for the state that it is in.", now
        yield "sawlog_build_info", "gauge", "Always 1.", [("", {"version": __version__}, 1)]


def _one(value: float) -> list[Sample]:
    return [("", {}, value)]


def _age_s(log: Partition, offset: int) -> float:
    """Return the age of the batch with this offset by its largest timestamp; 0 if it cannot be read."""
    try:
        found = log.peek(max(offset, log.local_offset), 1, isolation="uncommitted")  # never from the replica
        buffers = (found.result() if isinstance(found, Future) else found).buffers
    except SawlogError:
        return 0.0
    newest = int.from_bytes(buffers[0][35:43], "big", signed=True) if buffers else -1
    return max(now_ms() - newest, 0) / 1000 if newest >= 0 else 0.0
