"""`Mirror`: a replica of a log in memory, for tests of logs that use one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sawlog import Log
from sawlog.batch.header import BASE, LAST, MAX_TIME, POSITION, SIZE, Rows
from sawlog.config import Isolation
from sawlog.errors import RemoteUnavailable
from sawlog.log.epochs import Epochs
from sawlog.log.ingest import rows_of
from sawlog.log.reader import Fetched
from sawlog.log.remote import RemoteRun, RemoteSegments, ReplicaStatus


class Mirror:
    """A copy of a log's batches; a `RemoteSource` and a `RemoteLog`."""

    is_recorded = True
    path = "the mirror"

    def __init__(self, raw: bytes = b"") -> None:
        self.log = Log.in_memory()
        self.raw = b""
        self.is_reachable = True
        #: Number of requests so far.
        self.asked = 0
        self._add(raw)

    def _add(self, raw: bytes) -> None:
        if raw:
            self.log._append_at_offsets(raw)
            self.raw += raw

    def copy(self, log: Log) -> None:
        """Copy the new records."""
        while self.log.next_offset < log.visible_offset:
            page = log.fetch(self.log.next_offset, 1 << 20, isolation="uncommitted")
            self._add(page.raw)

    def open(self) -> Mirror:
        self.asked += 1
        if not self.is_reachable:
            raise RemoteUnavailable(5, "the mirror is away")
        return self

    def _rows(self, start: int, end: int) -> Iterator[tuple[memoryview, Rows]]:
        if not self.log.lowest_offset <= start <= end <= self.log.next_offset:
            raise RemoteUnavailable(2, f"the mirror does not have {start} to {end - 1}")
        view = memoryview(self.raw)
        rows = rows_of(view)
        yield view, rows[(rows[:, LAST] >= start) & (rows[:, BASE] < end)]

    def chunks(
        self, start: int, end: int, *, committed: bool, cached: bool = True
    ) -> Iterator[tuple[memoryview, Rows]]:
        for view, rows in self._rows(start, end):
            found = self.log._segment_set.transaction_view.committed(rows) if committed else rows
            for number in range(len(found)):  # one batch at a time
                yield view, found[number : number + 1]

    def page(self, start: int, end: int, max_bytes: int, *, committed: bool) -> Fetched:
        buffers, after = [], start
        for view, rows in self._rows(start, end):
            for row in rows.tolist():
                if buffers and sum(map(len, buffers)) + row[SIZE] > max_bytes:
                    break
                buffers.append(view[row[POSITION] : row[POSITION] + row[SIZE]])
                after = row[LAST] + 1
        aborted = self.log._segment_set.transaction_view.aborted(start, after - 1) if committed else ()
        return Fetched(tuple(buffers), after, -1, tuple((each.producer_id, each.first_offset) for each in aborted))

    def offset_at(self, timestamp: int, start: int, end: int) -> int | None:
        return next((each.offset for each in self.log.scan(start, end) if each.timestamp >= timestamp), None)

    def newest(self, start: int, end: int) -> tuple[int, int] | None:
        found = [(each.timestamp, -each.offset) for each in self.log.scan(start, end, isolation="uncommitted")]
        return (-max(found)[1], max(found)[0]) if found else None

    def plan(
        self, start: int, end: int, *, target_bytes: int | None, max_records: int | None, isolation: Isolation
    ) -> list[Any]:
        raise NotImplementedError

    def read_slice(self, planned: Any, **how: Any) -> Any:
        raise NotImplementedError

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(self.log.lowest_offset, self.log.last_stable_offset, self.log._leader_epochs)

    def part(self, end: int) -> RemoteSegments:
        rows = rows_of(memoryview(self.raw))
        lowest = self.log.lowest_offset
        runs = [
            RemoteRun(max(row[BASE], lowest), row[LAST] + 1, row[SIZE], row[MAX_TIME])
            for row in rows.tolist()
            if row[LAST] < end
        ]
        epochs = tuple(each for each in self.log._leader_epochs if each[1] < end)
        return RemoteSegments(lowest, (), ()).grown(runs, Epochs(epochs))
