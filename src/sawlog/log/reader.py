"""The read path of a log: by offset, in order, as Arrow, as raw batches, by time, and following its end.

No reader goes beyond the visible end (durability.py). A reader of *committed* records stops at the last stable offset
and does not see the records of aborted transactions (transactions.py); no reader sees markers. Nothing here takes a
lock. Each call works on the segments as they were when it started, checks every batch, and never skips one silently:
an unreadable batch raises `CorruptBatch` with the next readable offset, from where the caller may continue. If a file
is missing because the log was trimmed meanwhile, that is `OffsetOutOfRange`, not a gap.

What is only in the replica (remote.py) is asked for where an offset is below the first segment: where a log that is not
tiered raises `OffsetOutOfRange`. A scan that begins there goes on with the segments, also if some of them are removed
at that moment: it always knows the next offset, and looks again where that is.

Memory: a scan reads about a megabyte at a time and releases mapped pages after it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..batch import kernel
from ..batch import read as batch_read
from ..batch.build import head_of
from ..batch.header import (
    ATTRIBUTES,
    BASE,
    CONTROL_BIT,
    COUNT,
    LAST,
    LEADER_EPOCH,
    POSITION,
    SIZE,
    TRANSACTIONAL_BIT,
    Rows,
    scan_rows,
)
from ..batch.kernel import Record
from ..clock import Deadline, PollBackoff
from ..config import GIB, LogConfig, whole_number
from ..errors import CorruptBatch, OffsetOutOfRange, RecordRemoved, RemoteUnavailable, StorageError
from .batches import CHUNK_BYTES, Chunk
from .remote import RemoteLog, RemoteSegments, RemoteSource
from .segment import Segment
from .segments import RETRIES, SegmentSet

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
#: The fields of a `Fetched`, in order.
_FetchedFields = tuple[tuple[memoryview, ...], int, int, tuple[tuple[int, int], ...], int, tuple[str | None, int]]
#: Mapped pages that a scan has passed are released when they add up to this.
_FORGET_BYTES = 32 << 20
ARROW_ROWS = 65_536
#: Python objects are made from fewer bytes at a time: otherwise more of them would be alive than fit into the
#: caches.
RECORD_CHUNK_BYTES = 256 << 10


class Fetched(NamedTuple):
    """Complete batches as they are stored. The first may begin below the requested offset; `records` leaves out the
    records before it."""

    buffers: tuple[memoryview, ...]
    next_offset: int
    #: Below this every transaction was decided when the page was fetched.
    last_stable_offset: int = -1
    #: (producer id, first offset) of the aborted transactions that have batches in the page, by offset; only if it was
    #: fetched with isolation "committed". The batches are not filtered.
    aborted: tuple[tuple[int, int], ...] = ()
    #: The requested offset.
    start_offset: int = 0
    #: Topic and partition of the records; (None, -1) for a log outside a topic.
    place: tuple[str | None, int] = (None, -1)

    def records(self, *, max_decompressed_bytes: int = GIB) -> Iterator[Record]:
        """Decode the records from `start_offset` to `next_offset`, in order.

        Transaction markers and the records of `aborted` transactions are left out, so a page yields what `scan` yields
        for the same offsets and isolation. Checksums are verified. Raises `CorruptBatch` after the records before the
        damage, also for a batch that decompresses to more than `max_decompressed_bytes`.
        """
        return chain.from_iterable(
            batch_read.page_records(self.buffers, self.start_offset, self.aborted, *self.place, max_decompressed_bytes)
        )

    @property
    def raw(self) -> bytes:
        """All batches as one copy."""
        return b"".join(self.buffers)

    @property
    def size_bytes(self) -> int:
        """Size of all batches in bytes."""
        return sum(len(buffer) for buffer in self.buffers)


class Reader:
    """The reading half of a log."""

    def __init__(
        self,
        segments: SegmentSet,
        config: LogConfig,
        is_open: Callable[[], bool],
        place: tuple[str | None, int] = (None, -1),
        remote: RemoteSource | None = None,
    ) -> None:
        self.segments = segments
        #: Source of the replica.
        self._remote = remote
        #: Segments that the replica reports, if the local list is damaged.
        self._found: RemoteSegments | None = None
        self.config = config
        self._is_open = is_open
        #: The topic and partition that are set in records.
        self._place = self._topic, self._partition = place
        self._fast = self._make_fast_reader()

    def _make_fast_reader(self) -> kernel.FastReader:
        keeps = self.config.max_mapped_segments != 0
        limit = self.config.max_decompressed_bytes
        return kernel.FastReader(self.segments, self._topic, self._partition, keeps, limit)

    # --- tiered records

    @property
    def lowest_offset(self) -> int:
        """First offset of the log. Asks the replica only if the list of tiered segments is damaged."""
        segments = self.segments
        remote = segments.remote
        if remote is None or remote.is_known or self._remote is None:
            return segments.log_start
        if self._found is None:
            self._found = self.replica().part(segments.lowest_offset)
        return min(self._found.log_start, segments.lowest_offset)

    def replica(self) -> RemoteLog:
        """Return this log in the replica."""
        if self._remote is None:
            where = self.segments.directory.path
            raise RemoteUnavailable(
                errno.ENOENT,
                f"the offsets of {where} below {self.segments.lowest_offset} are only in its replica: open the log "
                "through its store (sawlog.open) to read them",
            )
        return self._remote.open()

    def is_remote(self, offset: int) -> bool:
        """Return True if an offset is only in the replica."""
        segments = self.segments
        return segments.remote is not None and self.lowest_offset <= offset < segments.lowest_offset

    def _read_remote(self, offset: int, committed: bool) -> Record:
        records: Iterator[Record] = chain.from_iterable(self._cursors(offset, offset + 1, committed=committed))
        found = next(records, None)
        if found is None:
            end = self.segments.end(committed=committed)
            raise RecordRemoved(offset, self.lowest_offset, end, self._first_from(offset + 1, committed))
        return found

    # --- one record

    def read(self, offset: int, committed: bool = True) -> Record:
        """The record at `offset`."""
        try:
            found: Record | None = self._fast.read(offset, committed)
        except (CorruptBatch, StorageError):
            found = None
        # A function of its own: a lambda here would make each variable a cell, which costs a seventh of a read.
        return self._read_slowly(whole_number(offset), committed) if found is None else found

    def _read_slowly(self, offset: int, committed: bool) -> Record:
        found = self.segments.retry_if_changed(lambda: self._read(offset, committed))
        return found if self._topic is None else kernel.placed(found, self._topic, self._partition)

    def _read(self, offset: int, committed: bool) -> Record:
        """Read as `read` does, in steps that say why there is no such record."""
        segments = self.segments
        if not segments.lowest_offset <= offset < segments.end(committed=committed):
            segments.refresh()
            if self.is_remote(offset):
                return self._read_remote(offset, committed)
            segments.check(offset, committed=committed)
        segment = segments.find(offset)
        with segments.using(segment):
            found = segment.read(
                offset, self.config.max_decompressed_bytes, segments.transaction_view if committed else None
            )
        if found is None or found.offset != offset:
            following = segments.base_after(offset) if found is None else found.offset
            raise self._missing(segment, offset, following, committed=committed)
        return found

    def _missing(self, segment: Segment, offset: int, following: int, *, committed: bool) -> Exception:
        """No record has that offset although the log covers it: a hole that compaction or an aborted transaction left,
        or damage."""
        if not segment.dense or segment.has_hole_at(offset) or (committed and self._is_aborted(segment, offset)):
            lowest, end = self.segments.log_start, self.segments.end(committed=committed)
            return RecordRemoved(offset, lowest, end, self._first_from(following, committed))
        return CorruptBatch(
            f"offset {offset} is missing", path=segment.path, position=segment.size, next_offset=following
        )

    def _is_aborted(self, segment: Segment, offset: int) -> bool:
        for chunk in segment.chunks(offset, offset + 1):
            return chunk.special and not len(self.segments.transaction_view.committed(chunk.rows[:1]))
        return False

    def _first_from(self, offset: int, committed: bool) -> int:
        """The offset of the first record from `offset` on; the end if there is none."""
        end = self.segments.end(committed=committed)
        try:
            found = next(chain.from_iterable(self._cursors(offset, end, committed=committed)), None)
        except CorruptBatch:
            return offset
        return end if found is None else found.offset

    # --- many records

    def chunks(
        self,
        start: int,
        end: int,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        committed: bool = False,
        ahead: tuple[Segment, Chunk] | None = None,
    ) -> Iterator[tuple[str, Chunk]]:
        """Yield all checked batches that contain offsets from `start` to `end`, each with its path. With `committed`,
        leave out batches of aborted transactions. `ahead` is the first chunk, if it has already been read and
        checked."""
        offset, retries = start, 0
        if ahead is not None:
            segment, chunk = ahead
            offset = int(chunk.rows[-1, LAST]) + 1
            if chunk.special and committed:
                end = self._without_aborted(chunk, end)
            if len(chunk.rows):
                yield segment.path, chunk
        while offset < end:
            version = self.segments.version
            before = offset
            try:
                try:
                    segment = self._segment_for(offset)
                except OffsetOutOfRange:
                    if not self.is_remote(offset):
                        raise
                    replica, stop = self.replica(), min(end, self.segments.lowest_offset)
                    for view, rows in replica.chunks(offset, stop, committed=committed):
                        yield replica.path, Chunk(view, rows, 0, offset)
                        offset = int(rows[-1, LAST]) + 1
                    offset = max(offset, stop)
                    continue
                following = segment.next_offset  # as of now: it may be truncated and grow again meanwhile
                for chunk in self._chunks_of(segment, offset, end, chunk_bytes):
                    chunk.skip_below(offset)
                    beyond = self._beyond(segment, chunk, following)
                    reached = int(chunk.rows[-1, LAST]) + 1 if len(chunk.rows) else offset
                    if chunk.special and committed:
                        end = self._without_aborted(chunk, end)
                    if len(chunk.rows):
                        yield segment.path, chunk
                    offset = reached
                    if beyond is not None:
                        raise beyond
                if offset < min(end, following):
                    if segment.dense:
                        raise self._missing(segment, offset, following, committed=False)
                    offset = following
            except (CorruptBatch, StorageError):
                retries = 0 if offset > before else retries + 1
                if retries > RETRIES or not self.segments.changed_since(version):
                    raise

    def _without_aborted(self, chunk: Chunk, end: int) -> int:
        """Leave out the batches of aborted transactions. Return the end of the scan, which moves back if a transaction
        has been opened meanwhile."""
        segments = self.segments
        chunk.keep(segments.transaction_view.committed(chunk.rows))
        end = min(end, segments.end(committed=True))
        if len(chunk.rows) and chunk.rows[-1, BASE] >= end:
            chunk.keep(chunk.rows[chunk.rows[:, BASE] < end])
        return end

    def _beyond(self, segment: Segment, chunk: Chunk, following: int) -> CorruptBatch | None:
        """An error if a batch claims offsets of the next segment: trusting it would skip records. The chunk keeps the
        batches before it. In the last segment, a batch that is just being cut may extend further."""
        if chunk.rows[-1, LAST] < following or segment is self.segments.active:
            return None
        bad = int((chunk.rows[:, LAST] < following).sum())
        where = chunk.origin + int(chunk.rows[bad, POSITION])
        chunk.keep(chunk.rows[:bad])
        reason = f"a batch extends beyond the end of its segment at offset {following}"
        return CorruptBatch(reason, path=segment.path, position=where, next_offset=following)

    def _segment_for(self, offset: int) -> Segment:
        """The segment that contains `offset`; an error if there is none."""
        segments = self.segments
        segment = segments.find(offset)
        if segments.lowest_offset <= offset < min(segment.next_offset, segments.visible_offset):
            return segment
        segments.refresh()
        segments.check(offset)
        segment = segments.find(offset)
        if offset >= segment.next_offset:
            raise self._missing(segment, offset, segments.base_after(offset), committed=False)
        return segment

    def _chunks_of(self, segment: Segment, offset: int, end: int, chunk_bytes: int) -> Iterator[Chunk]:
        """The batches of one segment; mapped pages that have been passed are released."""
        self.segments.use(segment)
        passed = -1
        try:
            for chunk in segment.chunks(offset, end, chunk_bytes=chunk_bytes):
                yield chunk
                passed = chunk.origin if passed < 0 else passed
                if chunk.origin - passed >= _FORGET_BYTES:
                    segment.storage.forget(passed, chunk.origin - passed)
                    passed = chunk.origin
        finally:
            self.segments.done(segment)

    def span(self, start: int | None, end: int | None, *, committed: bool = True) -> tuple[int, int]:
        """Return the checked start and end of a scan. The end is at most the current one."""
        segments = self.segments
        segments.refresh()
        lowest, visible = segments.lowest_offset, segments.visible_offset
        if segments.remote is not None and (start is None or whole_number(start) < lowest):
            lowest = self.lowest_offset
        start = lowest if start is None else whole_number(start)
        end = None if end is None else whole_number(end)
        if not lowest <= start <= visible:
            raise segments.out_of_range(start, lowest, visible)
        last = segments.transaction_view.stable(visible) if segments.maybe_undecided and committed else visible
        return start, last if end is None else min(end, last)

    def scan(
        self, start: int | None, end: int | None, max_bytes: int | None = None, *, committed: bool = True
    ) -> Iterator[Record]:
        """Records in order. `max_bytes` ends it before the batch that would exceed it, but never before the first."""
        start, end = self.span(start, end, committed=committed)
        return chain.from_iterable(self._cursors(start, end, max_bytes, committed=committed))

    def cursors(self, start: int | None, end: int | None, *, committed: bool = True) -> Iterator[kernel.RecordCursor]:
        """Scan as cursors. Drain or stop each one before taking the next."""
        start, end = self.span(start, end, committed=committed)
        return self._cursors(start, end, committed=committed)

    def _cursors(
        self, start: int, end: int, max_bytes: int | None = None, *, committed: bool
    ) -> Iterator[kernel.RecordCursor]:
        """One cursor after the other, each to be drained before the next, and over batches of one leader epoch. What
        comes first is decoded without building rows, segment by segment: a short scan ends there."""
        used, most = 0, RECORD_CHUNK_BYTES if max_bytes is None else max(min(max_bytes, RECORD_CHUNK_BYTES), 1)
        is_plain, ahead = True, None
        while start < end and used < most and is_plain:
            part = self._part(start, end, most - used)
            if part is None:
                is_plain = False
                break
            view, ended, place = part
            if used and len(view) > most - used:
                break
            number, position, start = yield from batch_read.plain_cursors(
                (view,), start, end, self._topic, self._partition
            )
            is_plain = number > 0
            used += len(view) if is_plain else position
            if not is_plain and place is not None:
                ahead = _chunk(view[position:], place[0], place[1] + position, start)
            if not ended:
                break
        if start >= end or (is_plain and max_bytes is not None and max_bytes <= most):
            return
        for path, whole in self._limited(
            start, end, max_bytes, used, needs_record=True, committed=committed, ahead=ahead
        ):
            for chunk in _by_epoch(whole):
                done = 0
                for body, run, error in batch_read.unpack(chunk.view, chunk.rows, self.config.max_decompressed_bytes):
                    if error is not None:
                        raise self._located(error, path, chunk, done)
                    cursor = kernel.RecordCursor(
                        body, memoryview(run), max(start, chunk.start), end, self._topic, self._partition
                    )
                    yield cursor
                    if cursor.stopped:
                        return
                    if cursor.bad >= 0:
                        raise self._located(CorruptBatch(batch_read.MALFORMED), path, chunk, done + cursor.bad)
                    done += len(run)

    @staticmethod
    def _located(error: CorruptBatch, path: str, chunk: Chunk, number: int) -> CorruptBatch:
        """Return the error with the position of its batch and the next readable offset."""
        row = chunk.rows[number]
        return error.at(path, chunk.origin + int(row[POSITION]), int(row[LAST]) + 1)

    def _limited(
        self,
        start: int,
        end: int,
        max_bytes: int | None,
        used: int = 0,
        *,
        needs_record: bool = False,
        committed: bool = False,
        ahead: tuple[Segment, Chunk] | None = None,
    ) -> Iterator[tuple[str, Chunk]]:
        """Chunks up to `max_bytes`, of which `used` have been returned, but at least one batch; if it `needs_record`,
        one with a record from `start` on: then batches that compaction has emptied do not count. For `ahead` see
        `chunks`."""
        if max_bytes is None:
            yield from self.chunks(start, end, RECORD_CHUNK_BYTES, committed=committed, ahead=ahead)
            return
        # Bytes read beyond the page are wasted: limit them to a quarter of it.
        step = min(max(max_bytes // 4, CHUNK_BYTES // 32), CHUNK_BYTES)
        try:
            for path, chunk in self.chunks(start, end, step, committed=committed, ahead=ahead):
                counted = np.where(_may_be_empty(chunk.rows, start), 0, chunk.rows[:, SIZE])
                sizes = np.cumsum(counted if needs_record else chunk.rows[:, SIZE]) + used
                fits = int((sizes <= max_bytes).sum())
                if fits < len(chunk.rows):
                    chunk.keep(chunk.rows[: max(fits, 0 if used else int((sizes == 0).sum()) + 1)])
                    if len(chunk.rows):
                        yield path, chunk
                    return
                used = int(sizes[-1])
                yield path, chunk
        except CorruptBatch:  # a page ends before damage; the page that would start with it raises
            if not used:
                raise

    # --- Arrow

    def scan_arrow(
        self,
        start: int | None,
        end: int | None,
        batch_rows: int,
        columns: Sequence[str],
        views: bool,
        *,
        committed: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of at most `batch_rows` rows, made of about two megabytes of log each."""
        from ..batch.arrow import schema

        schema(columns, views=views)  # refuses unknown columns before anything is read
        start, end = self.span(start, end, committed=committed)
        return self._arrow(start, end, batch_rows, columns, views, committed)

    def _arrow(
        self, start: int, end: int, batch_rows: int, columns: Sequence[str], views: bool, committed: bool
    ) -> Iterator[pa.RecordBatch]:
        from ..batch.arrow import to_arrow

        for segment, chunk in self.chunks(start, end, committed=committed):
            try:
                batch = to_arrow(
                    chunk.view,
                    chunk.rows,
                    max(start, chunk.start),
                    end,
                    columns=columns,
                    views=views,
                    max_bytes=self.config.max_decompressed_bytes,
                )
            except CorruptBatch:
                yield from self._arrow_before_damage(segment, chunk, max(start, chunk.start), end, columns, views)
                continue
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)

    def _arrow_before_damage(
        self, path: str, chunk: Chunk, start: int, end: int, columns: Sequence[str], views: bool
    ) -> Iterator[pa.RecordBatch]:
        """Something in this chunk does not parse: yield what precedes it, then raise with its position."""
        from ..batch.arrow import to_arrow

        most = self.config.max_decompressed_bytes
        for i in range(len(chunk.rows)):
            row = chunk.rows[i : i + 1]
            try:
                batch = to_arrow(chunk.view, row, start, end, columns=columns, views=views, max_bytes=most)
            except CorruptBatch as error:
                raise self._located(error, path, chunk, i) from None
            if batch.num_rows:
                yield batch

    # --- raw batches

    def fetch(self, start: int, max_bytes: int, *, committed: bool = True) -> Fetched:
        """Complete batches from the one that contains `start` on, at least one if there is one."""
        try:
            found: _FetchedFields | None = self._fast.page(start, max_bytes, committed)
        except StorageError:
            found = None
        if found is not None:
            return tuple.__new__(Fetched, found)
        start, max_bytes = whole_number(start), whole_number(max_bytes, "max_bytes")
        segments = self.segments
        if not segments.lowest_offset <= start < segments.visible_offset:
            segments.refresh()
            if self.is_remote(start):
                return self._remote_page(start, max_bytes, committed)
            segments.check(start, end_allowed=True)
        end = stable = segments.visible_offset
        if segments.maybe_undecided:
            stable = segments.transaction_view.stable(end)
            end = stable if committed else end
        buffers: list[memoryview] = []
        following, special = start, False
        for _, chunk in self._limited(start, end, max(max_bytes, 1)):
            if buffers and chunk.rows[0, BASE] < following:
                break  # batches were merged meanwhile; the next page begins with one that contains some of this one
            following = int(chunk.rows[-1, LAST]) + 1
            if following > end:
                following = end
                buffers += self._shortened(chunk, end)
            else:
                buffers.append(_bytes_of(chunk.view, chunk.rows))
            special = special or bool((chunk.rows[:, ATTRIBUTES] & TRANSACTIONAL_BIT).any())
        ended = segments.transaction_view.aborted(start, following - 1) if special and committed else ()
        aborted = tuple((each.producer_id, each.first_offset) for each in ended)
        return Fetched(tuple(buffers), following, stable, aborted, start, self._place)

    def _shortened(self, chunk: Chunk, end: int) -> Iterator[memoryview]:
        """Batches up to `end`, where a truncation that is not complete will cut the last one through."""
        config = self.config
        if len(chunk.rows) > 1:
            yield _bytes_of(chunk.view, chunk.rows[:-1])
        yield memoryview(
            head_of(
                chunk.view,
                chunk.rows[-1],
                end,
                config.compression,
                config.compression_level,
                config.max_decompressed_bytes,
            )
        )

    def _remote_page(self, start: int, max_bytes: int, committed: bool) -> Fetched:
        """Return a page from the replica. It ends where the local segments begin: above that offset, the replica may
        have records that have been truncated here."""
        stop = self.segments.lowest_offset
        page = self.replica().page(start, stop, max(max_bytes, 1), committed=committed)
        return page._replace(
            last_stable_offset=self.segments.end(committed=True), start_offset=start, place=self._place
        )

    def fetch_when_available(
        self, start: int, max_bytes: int, min_bytes: int, timeout: float | None, *, committed: bool = True
    ) -> Fetched:
        """Like `fetch`, but block until at least `min_bytes`, or a full page, are available."""
        deadline, epoch = Deadline(timeout), self.segments.current_epoch
        wanted = min(whole_number(min_bytes, "min_bytes"), max(max_bytes, 1))
        while True:
            page = self.fetch(start, max_bytes, committed=committed)
            if page.size_bytes >= wanted or deadline.passed:
                return page
            end = self.segments.end(committed=committed)
            if page.next_offset < end:  # the next batch does not fit into the page
                return page
            if not self._wait(max(end, start), epoch, deadline.rest_s, committed):
                return page

    def _part(self, start: int, end: int, max_bytes: int) -> tuple[memoryview, bool, tuple[Segment, int] | None] | None:
        """See `FastReader.part`."""
        try:
            found: tuple[memoryview, bool, tuple[Segment, int] | None] | None = self._fast.part(start, max_bytes, end)
        except StorageError:
            return None
        return found

    # --- time

    def offset_at(self, timestamp: int) -> int:
        """The first offset whose record is not older than `timestamp`; the end if all are."""
        return self._stable_result(lambda: self._offset_at(timestamp))

    def _offset_at(self, timestamp: int) -> int:
        segments = self.segments
        if self._replica_may_have(timestamp):
            found = self.replica().offset_at(timestamp, self.lowest_offset, segments.lowest_offset)
            if found is not None:
                return found
        return segments.offset_at(timestamp, self.config.max_decompressed_bytes)

    def newest(self) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp; None if there is no record."""
        return self._stable_result(self._newest)

    def _newest(self) -> tuple[int, int] | None:
        found = self.segments.newest(self.config.max_decompressed_bytes)
        if not self._replica_may_have(-1 if found is None else found[1]):
            return found
        elsewhere = self.replica().newest(self.lowest_offset, self.segments.lowest_offset)
        better = elsewhere is not None and (found is None or elsewhere[1] >= found[1])
        return elsewhere if better else found

    def _replica_may_have(self, timestamp: int) -> bool:
        """Return True if a record that is only in the replica may be as new as that."""
        remote = self.segments.remote
        return remote is not None and (
            not remote.is_known or any(run.max_timestamp >= timestamp for run in remote.runs)
        )

    def _stable_result(self, look: Callable[[], T]) -> T:
        """Call `look`, and again if segments were removed meanwhile."""
        segments = self.segments
        if segments.remote is not None:
            segments.refresh()
        while True:
            lowest = segments.lowest_offset
            found = look()
            if segments.remote is None or segments.lowest_offset == lowest:
                return found

    # --- as it grows

    def follow(self, start: int | None, timeout: float | None, *, committed: bool = True) -> Iterator[Record]:
        """Return records from `start` on, and new ones as they become visible; end after `timeout` idle seconds."""
        self.segments.refresh()
        epoch = self.segments.current_epoch  # read first: records read in a later epoch do not belong to an earlier one
        offset, _ = self.span(start, None)
        return chain.from_iterable(self._follow(offset, epoch, timeout, committed))

    def following(self, start: int | None, *, committed: bool = True) -> Iterator[kernel.RecordCursor | None]:
        """As `follow`, for callers that wait elsewhere: cursors, each to be drained before the next; None where there
        is nothing new at the moment."""
        self.segments.refresh()
        epoch = self.segments.current_epoch
        offset, _ = self.span(start, None)
        return self._following(offset, epoch, committed)

    def _following(self, offset: int, epoch: int, committed: bool) -> Iterator[kernel.RecordCursor | None]:
        while True:
            for cursor in self._follow(offset, epoch, 0.0, committed):
                yield cursor
                offset, epoch = cursor.next_offset, max(epoch, cursor.leader_epoch)
            if not self._is_open():
                return
            yield None

    def _follow(self, offset: int, epoch: int, timeout: float | None, committed: bool) -> Iterator[kernel.RecordCursor]:
        while True:
            end, ended = self.segments.position(committed=committed)
            for cursor in self._cursors(offset, end, committed=committed):
                epoch = self._check_epoch(cursor.leader_epoch, epoch, offset)
                yield cursor
                offset = cursor.next_offset
            if offset < end:
                offset, epoch = end, self._check_epoch(ended, epoch, offset)
            if not self._wait(offset, epoch, timeout, committed):
                return

    def _check_epoch(self, epoch: int, before: int, offset: int) -> int:
        """Return the leader epoch of the next records; raise `OffsetOutOfRange` unless it continues the history of the
        records below `offset`, which were read in the epoch `before`."""
        if epoch > before:
            segments = self.segments
            segments.refresh()
            if (end := segments.epoch_end(before)) < offset:
                raise OffsetOutOfRange(offset, segments.log_start, end, segments.directory.path)
        return max(epoch, before)

    def _refresh(self) -> None:
        """Look for changes by other processes, unless the log is closed, at the latest while this looks."""
        try:
            if self._is_open():
                self.segments.refresh()
        except StorageError:
            if self._is_open():
                raise

    def _continue_in(self, segments: SegmentSet) -> SegmentSet:
        self.segments = segments
        self._fast = self._make_fast_reader()
        return segments

    def _wait(self, offset: int, epoch: int, timeout: float | None, committed: bool) -> bool:
        """Wait until there is a record at `offset`; return False if time ran out or the log was closed. The records
        below `offset` were read in leader epoch `epoch`. If that epoch ended before `offset`, raise
        `OffsetOutOfRange`, even if the log has grown since."""
        segments = self.segments
        deadline, pauses = Deadline(timeout), PollBackoff()
        self._refresh()
        while True:
            if segments.successor is not None:  # another process writes now, or this one again
                segments = self._continue_in(segments.successor)
                self._refresh()
                continue
            if (end := segments.epoch_end(epoch)) < offset:  # truncated: the records returned so far are gone
                raise OffsetOutOfRange(offset, segments.log_start, end, segments.directory.path)
            if segments.end(committed=committed) > offset:
                return True
            if deadline.passed or not self._is_open():
                return False
            segments.wait_beyond(offset, deadline.at_most(pauses.next_s()), committed=committed)
            self._refresh()


def _by_epoch(chunk: Chunk) -> Iterator[Chunk]:
    """A chunk as chunks of one leader epoch each; nearly always it is one."""
    rows = chunk.rows
    if not len(rows) or rows[0, LEADER_EPOCH] == rows[-1, LEADER_EPOCH]:
        yield chunk
        return
    for part in np.split(rows, np.flatnonzero(np.diff(rows[:, LEADER_EPOCH])) + 1):
        yield Chunk(chunk.view, part, chunk.origin, chunk.start)


def _may_be_empty(rows: Rows, start: int) -> Any:
    """Return a mask of the batches that may contain no record from `start` on."""
    holes = rows[:, COUNT] <= rows[:, LAST] - rows[:, BASE]
    return (rows[:, COUNT] == 0) | (holes & (rows[:, BASE] < start))


def _chunk(view: memoryview, segment: Segment, origin: int, start: int) -> tuple[Segment, Chunk] | None:
    """Batches of a segment that have been read and checked, as a chunk of the records from `start` on."""
    rows, _, why = scan_rows(view)
    if why != kernel.SCAN_END or not len(rows):
        return None
    special = bool((rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)).any())
    return segment, Chunk(view, rows, origin, start, special)


def _bytes_of(view: memoryview, rows: Rows) -> memoryview:
    first, last = rows[0], rows[-1]
    return view[int(first[POSITION]) : int(last[POSITION] + last[SIZE])]
