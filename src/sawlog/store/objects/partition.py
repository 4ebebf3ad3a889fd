"""`ObjectPartition`: one partition of a topic on object storage.

An append is part of the next commit and returns when that commit is durable. A reader that waits for new records polls
for the next commit, at first often and then about once a second: see `StoreSession.look`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ...batch import read as batch_read
from ...batch.build import MAX_BATCH_BYTES, EncoderOptions
from ...batch.header import BASE, COUNT, LAST, POSITION, Rows, visible_batches
from ...batch.read import decode
from ...clock import Deadline, milliseconds
from ...config import Isolation, LogConfig, is_committed, whole_number
from ...display import counted, size_text
from ...errors import CorruptBatch, DataLoss, InvalidRecordType, OffsetOutOfRange, SawlogError, StorageError
from ...log.ingest import checked_rows
from ...log.reader import Fetched
from ...log.summaries import Blocks
from ...log.transactions import AbortedTransaction
from ...log.verify import Problem, VerifyReport
from ...log.writer import BATCH_BYTES, Writer, recipe_of
from ..base import PAGE_BYTES, Partition, SegmentInfo
from .extent_reader import check_extent, place_batches
from .session import StoreSession
from .slices import ObjectSlice, ObjectSliceReader, cut_into
from .state import State
from .state.commit import Extent, epoch_end

_POLL_S = 0.1
_T = TypeVar("_T")


class ObjectPartition(Partition):
    """One partition. Thread-safe."""

    def __init__(
        self, session: StoreSession, topic: str, topic_id: str, number: int, config: LogConfig, *, cached: bool = True
    ) -> None:
        self._session = session
        self._topic = topic
        self._id = topic_id
        self._number = number
        self._config = config
        #: True if records may come from the local cache or from memory.
        self._cached = cached
        self._reader = session.extents if cached else session.uncached

    def _patient(self) -> ObjectPartition:
        """Return this partition for a caller that polls: an idle store is polled about once a second."""
        return self._variant(self._session.patient, cached=self._cached)

    def _uncached(self) -> ObjectPartition:
        """Return this partition without caches: every record is read from the bucket. For callers that delete or
        acknowledge something because the bucket has it."""
        return self._variant(self._session, cached=False)

    def _variant(self, session: StoreSession, *, cached: bool) -> ObjectPartition:
        return ObjectPartition(session, self._topic, self._id, self._number, self.config, cached=cached)

    # --- properties

    @property
    def config(self) -> LogConfig:
        return self._config

    @property
    def _origin(self) -> tuple[str, int]:
        return self._topic, self._number

    @cached_property
    def _recipe(self) -> EncoderOptions:
        return recipe_for(self._config)

    @property
    def path(self) -> str:
        return f"{self._session.bucket.url}/{self._topic}/{self._number}"

    def __repr__(self) -> str:
        """Describe the partition from the last known state. Sends no request."""
        ends = self._session.glance(lambda state: state.ends(self._id, self._number))
        extents = self._session.glance(lambda state: list(state.extents(self._id, self._number, 0)))
        if ends is None or extents is None:
            return f"<ObjectPartition {self.path}>"
        size = size_text(sum(each.size_bytes for each in extents))
        amount = f"{size} in {counted(len(extents), 'extent')}"
        return f"<ObjectPartition {self.path} offsets {ends[0]}..{ends[1]}, {amount}>"

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Extents, oldest first: runs of batches in commits, uploads and segments."""

        url = self._session.bucket.url
        return tuple(
            SegmentInfo(each.base_offset, each.next_offset, each.size_bytes, True, False, f"{url}/{each.key}")
            for each in self._look(lambda state: list(state.extents(self._id, self._number, 0)))
        )

    @property
    def _is_closed(self) -> bool:
        return self._session.is_closed

    def _look(self, read: Callable[[State], _T]) -> _T:
        return self._session.look(read)

    def _ends(self) -> tuple[int, int]:
        return self._look(lambda state: state.ends(self._id, self._number))

    @property
    def lowest_offset(self) -> int:
        return self._ends()[0]

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        committed = is_committed(isolation)

        def read(state: State) -> tuple[int, int]:
            place = self._id, self._number
            epochs = state.epochs(*place)
            return state.stable(*place) if committed else state.ends(*place)[1], int(epochs[-1][0]) if epochs else 0

        return self._look(read)

    @property
    def _leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """Leader epochs with their first offsets: (0, 0), unless the partition is a copy of one that had others."""
        found = self._look(lambda state: state.epochs(self._id, self._number))
        return tuple((int(epoch), int(first)) for epoch, first in found) or ((0, 0),)

    def _plan(
        self,
        start: int,
        end: int,
        *,
        target_bytes: int | None = None,
        max_records: int | None = None,
        isolation: Isolation = "committed",
    ) -> list[ObjectSlice]:
        def look(state: State) -> tuple[int, int, list[Extent], list[tuple[int, int, int]]]:
            aborted = state.aborted(self._id, self._number, start, end) if is_committed(isolation) else []
            extents = list(state.extents(self._id, self._number, start, end))
            return *state.ends(self._id, self._number), extents, aborted

        if start >= end:
            return []
        lowest, last, extents, aborted = self._session.look(look)
        if last < end:
            lowest, last, extents, aborted = self._session.look(look, fresh=True)
        if start < lowest or last < end:
            where = f"{self._topic}/{self._number}"
            raise DataLoss(f"offsets {start} to {end - 1} of {where} are gone: it has {lowest} to {last - 1}")
        found = cut_into(extents, start, end, target_bytes=target_bytes, max_records=max_records)
        gone = tuple(AbortedTransaction(*each, each[2] + 1) for each in aborted)
        return [replace(each, isolation=isolation, aborted=_among(gone, each)) for each in found]

    def epoch_end(self, leader_epoch: int) -> int:
        def look(state: State) -> tuple[list[tuple[int, int]], int]:
            return state.epochs(self._id, self._number), state.ends(self._id, self._number)[1]

        epochs, end = self._session.look(look)
        return epoch_end(epochs, leader_epoch, end)

    def offset_at(self, timestamp: int | datetime) -> int:
        timestamp = whole_number(milliseconds(timestamp), "a timestamp")

        def find(fresh: bool) -> int:
            extent = self._session.look(lambda state: state.offset_at(self._id, self._number, timestamp), fresh=fresh)
            if extent is None:
                return self.visible_offset
            data, _ = self._read(extent)
            lowest = self.lowest_offset  # records below it are still in the extent
            return next(
                (each.offset for each in decode(data, lowest) if each.timestamp >= timestamp), extent.next_offset
            )

        return again(find)

    # --- reading

    def _read(self, extent: Extent) -> tuple[memoryview, list[tuple[int, int, int]]]:
        data = self._reader.read(extent)
        return data, place_batches(data, extent.base_offset, extent.leader_epoch)

    def fetch(
        self,
        start: int,
        max_bytes: int = 1 << 20,
        *,
        min_bytes: int = 0,
        timeout: float | None = 0.0,
        isolation: Isolation = "committed",
    ) -> Fetched:
        committed = is_committed(isolation)
        deadline = Deadline(timeout, first_pause_s=_POLL_S, longest_pause_s=_POLL_S)
        asked = self
        while True:
            found = asked._page(whole_number(start), max_bytes, committed=committed)
            if found.size_bytes >= min_bytes or not deadline.retry():
                return found
            asked = self._patient()

    def _page(self, start: int, max_bytes: int, *, committed: bool) -> Fetched:
        return again(lambda fresh: self._fetch(start, max_bytes, fresh=fresh, committed=committed))

    def _page_extents(
        self, state: State, start: int, max_bytes: int, *, committed: bool
    ) -> tuple[int, int, int, list[Extent]]:
        """Return the lowest, visible and last stable offset, and the extents of a page from `start`."""
        stable = state.stable(self._id, self._number)
        extents = state.extents(self._id, self._number, start, stable if committed else None)
        return *state.ends(self._id, self._number), stable, first_extents(extents, max_bytes)

    def _fetch(self, start: int, max_bytes: int, *, fresh: bool, committed: bool) -> Fetched:
        def look(state: State) -> tuple[int, int, int, list[Extent]]:
            return self._page_extents(state, start, max_bytes, committed=committed)

        lowest, end, stable, extents = self._session.look(look, fresh=fresh)
        if not lowest <= start <= end:
            lowest, end, stable, extents = self._session.look(look, fresh=True)
        if not lowest <= start <= end:
            raise OffsetOutOfRange(start, lowest, end, f"{self._topic}/{self._number}")
        buffers, after = page_of(self._reader.read_all(extents), start, stable if committed else end, max_bytes)
        return self._fetched(buffers, start, after, stable, committed=committed)

    def _fetched(self, buffers: list[memoryview], start: int, end: int, stable: int, *, committed: bool) -> Fetched:
        """Return batches with the aborted transactions among them."""
        aborted: list[tuple[int, int, int]] = []
        if committed and buffers:
            aborted = self._session.peek(lambda state: state.aborted(self._id, self._number, start, end))
        without_markers = tuple((producer, first) for producer, first, _ in aborted)
        return Fetched(tuple(buffers), end, stable, without_markers, start, self._origin)

    def _chunks(self, start: int, end: int, isolation: Isolation) -> Iterator[tuple[memoryview, Rows]]:
        """Yield verified batches from `start` to `end`, a few MiB at a time, with read-ahead."""
        [*slices] = self._plan(start, end, isolation=isolation) if start < end else ()
        reader = ObjectSliceReader(self._session, self._topic, self._id, self._number, cached=self._cached)
        for piece in slices:
            try:
                yield from reader.chunks(piece)
            except DataLoss:
                raise OffsetOutOfRange(start, *self._ends(), f"{self._topic}/{self._number}") from None

    def _pages(
        self, start: int, end: int, max_bytes: int | None, *, committed: bool, page_bytes: int = PAGE_BYTES
    ) -> Iterator[tuple[memoryview, Rows]]:
        """Yield verified batches for a reader. The extents of a whole range are requested ahead."""
        if max_bytes is not None or page_bytes != PAGE_BYTES:
            yield from super()._pages(start, end, max_bytes, committed=committed, page_bytes=page_bytes)
            return
        for data, rows in self._chunks(start, end, "committed" if committed else "uncommitted"):
            shown = visible_batches(rows, ())  # without markers; aborted records are left out already
            if len(shown):
                yield data, shown

    def _extents(self, start: int, end: int) -> list[Extent]:
        return self._session.look(lambda state: list(state.extents(self._id, self._number, start, end)))

    def _blocks(self, start: int, end: int, since: int) -> Iterator[Blocks]:
        """Yield the offsets and largest timestamps of the extents from `start` to `end`, without those older than
        `since`. The record counts are upper bounds."""
        extents = [each for each in self._extents(start, end) if each.max_timestamp >= since]
        if extents:
            first, end_, newest = np.array(
                [(each.base_offset, each.next_offset, each.max_timestamp) for each in extents], np.int64
            ).T
            yield Blocks(first, end_ - 1, end_ - first, newest, np.ones(len(extents), np.bool_))

    def _newest(self) -> tuple[int, int] | None:
        lowest, end = self._ends()
        return self._newest_in(self._extents(lowest, end), lowest, end)

    def _newest_in(self, extents: Iterable[Extent], start: int, end: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the largest timestamp, from `start` to `end`."""
        found: tuple[int, int] | None = None
        for extent in sorted(extents, key=lambda each: (-each.max_timestamp, each.base_offset)):
            if extent.max_timestamp < 0 or (found is not None and extent.max_timestamp < found[1]):
                break
            first, last = max(extent.base_offset, start), min(extent.next_offset, end)
            for record in self.scan(first, last, isolation="uncommitted"):
                better = found is None or (record.timestamp, -record.offset) > (found[1], -found[0])
                if record.timestamp >= 0 and better:
                    found = record.offset, record.timestamp
        return found

    def _watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when the visible end or the last stable offset may have moved. Returns a function that stops the
        calls."""

        def seen(state: State) -> tuple[int, int]:
            return state.ends(self._id, self._number)[1], state.stable(self._id, self._number)

        before = self._session.peek(seen)

        def look() -> None:
            nonlocal before
            now = self._session.peek(seen)
            if now != before:
                before = now
                call()

        return self._session.notifier.watch(look)

    # --- appending

    def append_batches(
        self,
        raw: bytes | bytearray | memoryview,
        *,
        trusted: bool = False,
        wait: bool = True,
        expect_offset: int | None = None,
    ) -> range:
        """Append encoded batches, all of them or none, and return their offsets. Durable on return. A commit assigns
        the offsets, so the call blocks even with `wait=False`."""
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"append_batches expects encoded batches as bytes, not {type(raw).__name__}")
        data = bytes(raw)
        limit = None if trusted else self.config.max_decompressed_bytes
        rows = checked_rows(memoryview(data), max_unpacked_bytes=limit)
        action, inline = self._session.append_action(self._id, self._number, data, rows, expect_offset)
        found: Any = self._session.commit([action], inline)[0]
        return range(found[0], found[1])

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        self._session.check_writable()
        made = super().writer(batch_bytes, linger_ms)
        self._session.kept.add(made)
        return made

    def sync(self) -> None:
        """No-op: an append returns when it is durable."""
        self._session.check_writable()

    def trim(self, offset: int) -> int:
        action = {"do": "move start", "topic": self._id, "partition": self._number, "offset": whole_number(offset)}
        return int(str(self._session.commit([action])[0]))

    # --- verification

    def verify(self) -> VerifyReport:
        """Read and check everything, without the cache: every extent is in the bucket and follows the one before it,
        and its batches are the committed ones, have the right checksum and can be decoded. The report lists the
        damage; nothing is raised for it."""
        report = VerifyReport()
        self._session.check_end()

        def ends_and_extents(state: State) -> tuple[int, int, list[Extent]]:
            """Read both from one state: another commit could trim or append in between."""
            lowest, end = state.ends(self._id, self._number)
            return lowest, end, list(state.extents(self._id, self._number, lowest))

        lowest, end, extents = self._session.look(ends_and_extents, fresh=True)
        expected = lowest
        for extent in extents:
            path = f"{self._session.bucket.url}/{extent.key}"
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
            data = memoryview(bytearray(self._session.bucket.get_range(extent.key, extent.position, extent.size_bytes)))
            rows = check_extent(extent, data)
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


def recipe_for(config: LogConfig) -> EncoderOptions:
    """Return the settings for encoding batches of a topic. No batch is too large: consolidation cuts them."""
    return recipe_of(config.with_(segment_bytes=max(config.segment_bytes, MAX_BATCH_BYTES)))


def _among(aborted: Sequence[AbortedTransaction], piece: ObjectSlice) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that may have batches in a slice."""
    start, end = piece.start_offset, piece.end_offset
    return tuple(each for each in aborted if each.first_offset < end and each.last_offset >= start)


def first_extents(extents: Iterable[Extent], max_bytes: int) -> list[Extent]:
    chosen: list[Extent] = []
    size = 0
    for extent in extents:
        chosen.append(extent)
        size += extent.size_bytes
        if size >= max_bytes:
            break
    return chosen


def page_of(
    pieces: Iterable[tuple[Extent, bytearray | memoryview]], start: int, end: int, max_bytes: int
) -> tuple[list[memoryview], int]:
    """Cut a page from extents and their bytes: the batches from the one that contains `start`, below `end` and up to
    `max_bytes` but at least one; and the offset after them."""
    buffers: list[memoryview] = []
    at, size = start, 0
    for extent, data in pieces:
        batches = place_batches(data, extent.base_offset, extent.leader_epoch)
        view = memoryview(data)
        for number, (position, base, after) in enumerate(batches):
            stop = batches[number + 1][0] if number + 1 < len(batches) else len(data)
            if after <= start:
                continue
            if base >= end or (buffers and size + stop - position > max_bytes):
                return buffers, at
            buffers.append(view[position:stop])
            size += stop - position
            at = after
    return buffers, at


def again(read: Callable[[bool], _T]) -> _T:
    """Read, and retry once with a fresh state: an extent may have been consolidated and removed after the lookup."""
    try:
        return read(False)
    except StorageError:
        return read(True)
