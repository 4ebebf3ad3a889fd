"""`ObjectRecords`: a partition on object storage as programs read it: records, Arrow batches, times, as a `Log` does.

Everything is made of pages of complete batches, which `ObjectPartition` fetches. A reader that waits for new records
looks for the next commit, at first often and then about once a second: see `Core.look`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from ..batch import kernel
from ..batch import read as batch_read
from ..batch.header import BASE, COUNT, DEFAULT_COLUMNS, LAST, POSITION, Rows
from ..batch.kernel import Record
from ..batch.visible import visible
from ..clock import Deadline, Pauses, pause
from ..config import LogConfig, whole_number
from ..display import counted, size_text
from ..errors import CorruptBatch, InvalidConfig, LogClosed, OffsetOutOfRange, RecordRemoved, SawlogError
from ..isolation import Isolation, is_committed
from ..log.face import LogFace
from ..log.log import SegmentInfo
from ..log.read.pages import Fetched
from ..log.read.reader import ARROW_ROWS
from ..log.read.verify import Problem, VerifyReport
from ..log.write.incoming import rows_of
from .core import Core
from .extents import Extent
from .reading import check
from .state import State

if TYPE_CHECKING:
    import pyarrow as pa

#: What is read at once.
PAGE_BYTES = 4 << 20
#: How many offsets before the end are looked at for the last record; then so many times as many.
_FIRST, _TIMES = 16, 8


class ObjectRecords(LogFace):
    """The reading half of a partition for programs. Safe for threads."""

    _core: Core
    _topic: str
    _id: str
    _number: int
    config: LogConfig

    if TYPE_CHECKING:  # what ObjectPartition has

        @property
        def lowest_offset(self) -> int: ...
        @property
        def visible_offset(self) -> int: ...
        @property
        def last_stable_offset(self) -> int: ...
        @property
        def leader_epoch(self) -> int: ...
        def offset_at(self, timestamp: int | datetime) -> int: ...
        def _page(self, start: int, max_bytes: int, *, committed: bool) -> Fetched: ...
        def _chunks(self, start: int, end: int, isolation: Isolation) -> Iterator[tuple[memoryview, Rows]]: ...

    # --- what it is

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        return f"{self._core.bucket.url}/{self._topic}/{self._number}"

    def _extents(self) -> list[Extent] | None:
        return self._core.glance(lambda state: list(state.extents(self._id, self._number, 0)))

    def __repr__(self) -> str:
        """What is known; nothing is requested."""
        ends = self._core.glance(lambda state: state.ends(self._id, self._number))
        extents = self._extents()
        if ends is None or extents is None:
            return f"<ObjectPartition {self.path}>"
        size = size_text(sum(each.size_bytes for each in extents))
        amount = f"{size} in {counted(len(extents), 'extent')}"
        return f"<ObjectPartition {self.path} offsets {ends[0]}..{ends[1]}, {amount}>"

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The runs of batches in which it is stored, oldest first: parts of commits, uploads and segments."""

        def found(state: State) -> list[Extent]:
            return list(state.extents(self._id, self._number, 0))

        url = self._core.bucket.url
        return tuple(
            SegmentInfo(each.base_offset, each.next_offset, each.size_bytes, True, False, f"{url}/{each.key}")
            for each in self._core.look(found)
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(each.size_bytes for each in self.segments)

    @property
    def closed(self) -> bool:
        """Whether its store was closed."""
        return self._core.is_closed

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """(`last_stable_offset`, leader epoch), or (`visible_offset`, leader epoch) for isolation "uncommitted"."""
        return self.last_stable_offset if is_committed(isolation) else self.visible_offset, self.leader_epoch

    # --- reading

    def _span(self, start: int | None, end: int | None, isolation: Isolation) -> tuple[int, int]:
        """Where a scan starts and ends: checked, with defaults, the end no later than now."""
        last, _ = self.position(isolation=isolation)
        lowest = self.lowest_offset
        first = lowest if start is None else whole_number(start)
        if not lowest <= first <= self.visible_offset:
            raise OffsetOutOfRange(first, lowest, self.visible_offset, self.path)
        return first, last if end is None else min(whole_number(end), last)

    def _pages(
        self, start: int, end: int, max_bytes: int | None, *, committed: bool, page_bytes: int = PAGE_BYTES
    ) -> Iterator[tuple[memoryview, Rows]]:
        """Checked batches with records for a reader. A whole range is requested ahead; what is limited comes page by
        page."""
        if max_bytes is None and page_bytes == PAGE_BYTES:
            for data, rows in self._chunks(start, end, "committed" if committed else "uncommitted"):
                shown = visible(rows, ())  # without markers; what was aborted is not in it
                if len(shown):
                    yield data, shown
            return
        at, left = start, max_bytes
        while at < end and (left is None or left > 0):
            page = self._page(at, page_bytes if left is None else min(left, page_bytes), committed=committed)
            if page.next_offset <= at:
                return
            data = memoryview(page.raw)
            rows = visible(_checked(data), page.aborted if committed else ())
            if len(rows):
                yield data, rows
            at = page.next_offset
            left = None if left is None else left - len(data)

    def pages(self, start: int, end: int, *, committed: bool) -> Iterator[tuple[memoryview, Rows]]:
        """Checked batches with records for a reader, page by page."""
        return self._pages(start, end, None, committed=committed)

    def extents(self, start: int, end: int) -> list[Extent]:
        """The runs of batches that contain offsets from `start` to `end`."""
        return self._core.look(lambda state: list(state.extents(self._id, self._number, start, end)))

    def _cursors(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor]:
        """As `scan`, for code that passes records on: cursors to iterate over one after the other. Each knows the
        offset after the last record that it returned (`next_offset`), and another thread may `stop` it."""
        first, last = self._span(start, end, isolation)
        return self._cursors_in(first, last, None, committed=is_committed(isolation))

    def _cursors_in(
        self, start: int, end: int, max_bytes: int | None, *, committed: bool, page_bytes: int = PAGE_BYTES
    ) -> Iterator[kernel.RecordCursor]:
        for data, rows in self._pages(start, end, max_bytes, committed=committed, page_bytes=page_bytes):
            done = 0
            for body, run, error in batch_read.unpack(data, rows, self.config.max_decompressed_bytes):
                if error is not None:
                    raise self._located(error, rows, done)
                cursor = kernel.RecordCursor(body, memoryview(run), start, end, self._topic, self._number)
                yield cursor
                if cursor.stopped:
                    return
                if cursor.bad >= 0:
                    raise self._located(CorruptBatch(batch_read.MALFORMED), rows, done + cursor.bad)
                done += len(run)

    def _located(self, error: CorruptBatch, rows: Rows, number: int) -> CorruptBatch:
        return error.at(self.path, int(rows[number, POSITION]), int(rows[number, LAST]) + 1)

    def _following(
        self, start: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor | None]:
        """As `follow`, for code that waits elsewhere: cursors, and None where there is nothing new at the moment. Ends
        when the store is closed."""
        at, _ = self._span(start, None, isolation)
        while not self.closed:
            try:
                end, _ = self.position(isolation=isolation)
            except LogClosed:
                return
            for cursor in self._cursors_in(at, end, None, committed=is_committed(isolation)):
                yield cursor
                at = max(at, int(cursor.next_offset))
            at = max(at, end)
            yield None

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        max_bytes: int | None = None,
        *,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The records with start <= offset < end, in order, as of now; by default all of them."""
        first, last = self._span(start, end, isolation)
        return chain.from_iterable(self._cursors_in(first, last, max_bytes, committed=is_committed(isolation)))

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        batch_rows: int = ARROW_ROWS,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        views: bool = False,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; `columns` may also include `headers` and `timestamp_type`."""
        from ..batch.arrow import schema

        if batch_rows < 1:
            raise InvalidConfig(f"batch_rows must be at least 1, not {batch_rows}")
        schema(columns, views=views)  # refuses unknown columns before anything is read
        first, last = self._span(start, end, isolation)
        return self._arrow(first, last, batch_rows, columns, views, committed=is_committed(isolation))

    def _arrow(
        self, start: int, end: int, batch_rows: int, columns: Sequence[str], views: bool, *, committed: bool
    ) -> Iterator[pa.RecordBatch]:
        from ..batch.arrow import to_arrow

        most = self.config.max_decompressed_bytes
        for data, rows in self._pages(start, end, None, committed=committed):
            batch = to_arrow(data, rows, start, end, columns=columns, views=views, max_bytes=most)
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """The record at `offset`; `OffsetOutOfRange` if there is none."""
        wanted = whole_number(offset)
        end, _ = self.position(isolation=isolation)
        if not self.lowest_offset <= wanted < end:
            raise OffsetOutOfRange(wanted, self.lowest_offset, end, self.path)
        found = next(self._one(wanted, wanted + 1, isolation), None)
        if found is None:
            following = next(self._one(wanted, end, isolation), None)
            raise RecordRemoved(wanted, self.lowest_offset, end, end if following is None else following.offset)
        return found

    def _one(self, start: int, end: int, isolation: Isolation) -> Iterator[Record]:
        """Records, of which only the first is wanted: no more is read than its extent."""
        return chain.from_iterable(self._cursors_in(start, end, None, committed=is_committed(isolation), page_bytes=1))

    def _last(self) -> Record | None:
        """The last record, where the offset before the end has none."""
        lowest, stop = self.lowest_offset, self.last_stable_offset
        step = _FIRST
        while lowest < stop:
            start = max(stop - step, lowest)
            if found := deque(self.scan(start, stop), maxlen=1):
                return found[0]
            stop, step = start, step * _TIMES
        return None

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Records from `start` on, waiting for new ones; ends when none came for `timeout` seconds."""
        return chain.from_iterable(self._follow(self.patient()._following(start, isolation=isolation), timeout))

    def patient(self) -> ObjectRecords:
        """The same partition for somebody who looks for new records again and again: an idle store is asked about once
        a second."""
        return self

    @staticmethod
    def _follow(cursors: Iterator[kernel.RecordCursor | None], timeout: float | None) -> Iterator[kernel.RecordCursor]:
        deadline, pauses = Deadline(timeout), Pauses()
        pauses.look()
        for cursor in cursors:
            if cursor is not None:
                yield cursor
                deadline = Deadline(timeout)
                pauses.found()
            elif deadline.passed:
                return
            else:
                pause(deadline.at_most(pauses.next_s()))
            pauses.look()

    def newest(self) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the largest timestamp, the first of them; None if there is none."""
        found: tuple[int, int] | None = None
        segments = self._core.look(lambda state: list(state.extents(self._id, self._number, self.lowest_offset)))
        for extent in sorted(segments, key=lambda each: (-each.max_timestamp, each.base_offset)):
            if extent.max_timestamp < 0 or (found is not None and extent.max_timestamp < found[1]):
                break
            start = max(extent.base_offset, self.lowest_offset)
            for record in self.scan(start, extent.next_offset, isolation="uncommitted"):
                better = found is None or (record.timestamp, -record.offset) > (found[1], -found[0])
                if record.timestamp >= 0 and better:
                    found = record.offset, record.timestamp
        return found

    # --- checking

    def verify(self) -> VerifyReport:
        """Read and check everything: every extent is in the bucket now and follows the one before it, and its batches
        are those that were committed, have the right checksum, and can be decoded. Nothing comes from the cache. Damage
        is listed in the report, not raised."""
        report = VerifyReport()
        self._core.check_end()

        def ends_and_extents(state: State) -> tuple[int, int, list[Extent]]:
            """Of one state: between two looks, another commit could trim or append."""
            lowest, end = state.ends(self._id, self._number)
            return lowest, end, list(state.extents(self._id, self._number, lowest))

        lowest, end, extents = self._core.look(ends_and_extents, fresh=True)
        expected = lowest
        for extent in extents:
            path = f"{self._core.bucket.url}/{extent.key}"
            if max(extent.base_offset, lowest) != expected:
                reason = f"offsets {expected} to {extent.base_offset - 1} are missing"
                report.problems.append(Problem(path, extent.position, reason, extent.base_offset))
            self._verify_extent(extent, path, report)
            expected = extent.next_offset
        if expected != end:
            reason = f"offsets {expected} to {end - 1} are missing"
            report.problems.append(Problem(self.path, 0, reason, end))
        return report

    def _verify_extent(self, extent: Extent, path: str, report: VerifyReport) -> None:
        report.segments += 1
        report.size_bytes += extent.size_bytes
        try:
            data = memoryview(bytearray(self._core.bucket.get_range(extent.key, extent.position, extent.size_bytes)))
            rows = check(extent, data)
        except CorruptBatch as error:
            where = extent.position if error.position is None else error.position
            report.problems.append(Problem(path, where, error.reason, extent.next_offset))
            return
        except SawlogError as error:
            report.problems.append(Problem(path, extent.position, str(error), extent.next_offset))
            return
        report.batches += len(rows)
        report.records += int(rows[:, COUNT].sum())
        count = int((rows[:, LAST] - rows[:, BASE] + 1).sum())
        if count != extent.next_offset - extent.base_offset:
            reason = f"{count} offsets in the place of {extent.next_offset - extent.base_offset}"
            report.problems.append(Problem(path, extent.position, reason, extent.next_offset))
        for number, wrong in batch_read.malformed(data, rows, self.config.max_decompressed_bytes):
            where = extent.position + int(rows[number, POSITION])
            report.problems.append(Problem(path, where, wrong.reason, extent.next_offset))


def _checked(data: memoryview) -> Rows:
    """The headers of these batches; `CorruptBatch` if a checksum is wrong."""
    rows = rows_of(data)
    bad = batch_read.first_bad_crc(data, rows)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at byte {rows[bad, POSITION]} does not match")
    return rows
