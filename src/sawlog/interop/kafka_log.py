"""One Kafka partition, read only: its segments, its first and last offset, and its checked batches.

kafka.py says what is a torn end, what is damage, and what is neither. Files are read, never mapped. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..batch.header import BASE, LAST, POSITION, PRODUCER_ID, SIZE, Rows
from ..errors import CorruptBatch, DirectoryLocked, OffsetOutOfRange, SourceInUse, UnknownFormat
from ..log.files.names import INDEX, file_name
from ..log.files.producers import OpenTransaction
from ..log.log import Log
from ..log.segment.batches import Chunk, names_batch
from ..log.segment.segment import Segment
from ..log.segment.transactions import Transactions, aborted_rows, between
from ..storage import Directory, FileDirectory, SharedHold, Storage
from . import kafka_files as files
from .damage import Finding, ForeignReport, Kind
from .foreign import Damage, ForeignLog, ImportJob, Progress
from .kafka_copy import copy_batches
from .kafka_damage import BrokenPlace, Gaps
from .numbering import MAX_JUMP, MAX_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

_INDEX_INTERVAL_BYTES = 4096
#: The largest distance between the first and the last offset of a segment.
_MAX_SPAN = 2**31 - 1


class KafkaLog(ForeignLog):
    """One partition of a broker that is not running."""

    format = files.NAME

    def __init__(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> None:
        super().__init__(directory.path, damage=damage)
        self._strict = strict
        self._owned = directory
        self._directory = cast(Directory, _Unmapped(directory))
        self._report = ForeignReport()
        self._loaded: Segment | None = None
        #: All transactions, if they had to be known.
        self._transactions: Transactions | None = None
        #: Whether everything has been read and checked.
        self._complete = False
        self._hold, self._server, self._key = _surroundings(directory)
        try:
            self._note_strangers()
            self._segments = self._find_segments()
            self._find_end()
        except BaseException:
            self.close()
            raise

    # --- opening

    def _find_segments(self) -> list[Segment]:
        found = files.segment_files(self._directory.names(), self._end_of)
        if not found:
            raise UnknownFormat(f"{self.path} holds no Kafka segment: no file such as {'0' * 20}.log")
        found = self._without_far_ones(found)
        bases = [*found, list(found)[-1]]
        return [self._segment(name, base, bases[at + 1]) for at, (base, name) in enumerate(found.items())]

    def _without_far_ones(self, found: dict[int, str]) -> dict[int, str]:
        """The segments up to one whose base offset is impossible: its name is damaged, or it is not part of this
        log."""
        near: dict[int, str] = {}
        for base, name in found.items():
            most = max(near) + MAX_JUMP if near else MAX_OFFSET - 1
            if base > min(most, MAX_OFFSET - 1):
                what = f"after {max(near)}: the gap is too large for a log" if near else "which is too large for a log"
                size = self._directory.size(name)
                detail = f"a segment begins at offset {base}, {what}"
                self._note(Finding(Kind.BAD_OFFSET, name, 0, detail, "lost", size), raising=self._strict or not near)
            else:
                near[base] = name
        return near

    def _segment(self, name: str, base: int, following: int) -> Segment:
        size = self._directory.size(name)
        return Segment(self._directory, base, following, size, _INDEX_INTERVAL_BYTES, name=name, dense=False)

    def _end_of(self, name: str, base: int) -> int:
        """Where the offsets of a file end, according to its headers."""
        segment, following = self._segment(name, base, base), base
        try:
            for chunk in segment.batches(self._directory.open_shared(name), 0, segment.size, base, check=False):
                following = int(chunk.rows[-1, LAST]) + 1
        except CorruptBatch:
            pass  # reported when it is read
        return following

    def _find_end(self) -> None:
        """Where the last segment ends: after its last complete batch."""
        last, following, position = self._segments[-1], self._segments[-1].base_offset, 0
        last.open_end()
        for chunk in self.walk(last, 0, finding_end=True):
            row = chunk.rows[-1]
            following, position = int(row[LAST]) + 1, chunk.origin + int(row[POSITION] + row[SIZE])
        last.close_end(following, position)
        flushed = self._server.recovery_point.get(self._key, 0)
        if following < flushed:
            detail = f"the files end at offset {following}, but had been flushed up to {flushed}"
            self._note(Finding(Kind.GAP, last.name, position, detail, "lost", offset=following), raising=self._strict)
        replicated = self._server.high_watermark.get(self._key, following)
        if self.lowest_offset <= replicated < following:
            detail = f"offsets {replicated} to {following - 1} had not been replicated; the cluster may not have them"
            self._note(Finding(Kind.UNREPLICATED, last.name, 0, detail, offset=replicated), raising=False)

    def _note_strangers(self) -> None:
        for name in self._directory.names():
            if not files.is_kafkas(name):
                self._note(Finding(Kind.STRANGER, name, 0, "not a Kafka file; ignored"), raising=False)
        for name, why in self._server.problems:
            self._note(Finding(Kind.UNREADABLE, f"../{name}", 0, f"{why}; ignored"), raising=self._strict)

    def _note(self, finding: Finding, *, raising: bool) -> None:
        self._report.add(finding)
        if raising:
            raise finding.error(self.path)

    # --- properties

    @property
    def lowest_offset(self) -> int:
        """The first offset: that of the first file, or the one up to which records were deleted."""
        deleted = self._server.log_start.get(self._key, 0)
        return min(max(self._segments[0].base_offset, deleted), self.next_offset)

    @property
    def next_offset(self) -> int:
        """The offset after the last complete batch."""
        return self._segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        """Size of all segments, without a torn tail."""
        return sum(segment.size for segment in self._segments)

    @property
    def report(self) -> ForeignReport:
        """All findings; the first call reads and checks everything."""
        if not self._complete:
            gaps = Gaps(self.lowest_offset)
            for segment in self.segments_from(self.lowest_offset):
                for chunk in self.walk(segment, 0, raising=False):
                    gaps.pass_over(chunk.rows)
            self.finish(gaps)
        return self._report

    def finish(self, gaps: Gaps) -> None:
        self._complete = True
        gaps.close(self.next_offset)
        if gaps.count:
            detail = f"{gaps.offsets:,} offsets in {gaps.count:,} places hold no record, as after compaction"
            name = self._segments[0].name
            self._note(Finding(Kind.GAP, name, 0, detail, offset=gaps.first), raising=False)

    def close(self) -> None:
        """Close the files and allow a broker to start again."""
        super().close()
        if self._hold is not None:
            self._hold.release()
        self._owned.close()

    # --- reading

    def tables(
        self, start: int, end: int | None, columns: Sequence[str], *, progress: Progress | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records as Arrow, a few megabytes of batches at a time."""
        return self._tables(start, end, columns, progress, self._committed)

    def stored(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As `tables`, also with records of aborted and open transactions."""
        return self._tables(start, end, columns, None, lambda rows: rows)

    def _committed(self, rows: Rows) -> Rows:
        """These batches without those of transactions that were aborted or have no end."""
        found = self._all_transactions()
        gone = aborted_rows(rows, lambda first, last: between(found.aborted, first, last))
        for each in found.open.values():
            gone |= (rows[:, PRODUCER_ID] == each.producer_id) & (rows[:, BASE] >= each.first_offset)
        return rows[~gone]

    def _all_transactions(self) -> Transactions:
        if self._transactions is None:
            found = Transactions()
            for segment in self.segments_from(0):
                for chunk in self.walk(segment, 0, raising=False):
                    if chunk.special:
                        found.note_rows(chunk.rows)
            self._transactions = found
            self.note_open(found.open.values())
        return self._transactions

    def note_open(self, found: Iterable[OpenTransaction]) -> None:
        """Report the transactions without an end."""
        for each in found:
            detail = f"producer {each.producer_id} has an open transaction since offset {each.first_offset}"
            name = self._segments[-1].name
            self._note(Finding(Kind.OPEN_TRANSACTION, name, 0, detail, offset=each.first_offset), raising=False)

    def _tables(
        self,
        start: int,
        end: int | None,
        columns: Sequence[str],
        progress: Progress | None,
        shown: Callable[[Rows], Rows],
    ) -> Iterator[pa.RecordBatch]:
        from ..batch.arrow import schema, to_arrow

        schema(columns)  # refuses unknown columns before anything is read
        if not self.lowest_offset <= start <= self.next_offset:
            raise OffsetOutOfRange(start, self.lowest_offset, self.next_offset, self.path)
        last = self.next_offset if end is None else min(end, self.next_offset)
        for segment, chunk in self.chunks(start, last):
            if chunk.special:
                chunk.keep(shown(chunk.rows))
                if not len(chunk.rows):
                    continue
            try:
                yield to_arrow(
                    chunk.view, chunk.rows, start, last, columns=columns, max_bytes=files.MAX_DECOMPRESSED_BYTES
                )
            except CorruptBatch:
                yield from self._one_by_one(segment, chunk, start, last, columns)
            if progress is not None:
                progress(self.done_bytes(segment, chunk), self.size_bytes)
        if end is None:
            self.check_end()

    def _one_by_one(
        self, segment: Segment, chunk: Chunk, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """All records but those that do not parse although the checksum is right."""
        from ..batch.arrow import to_arrow

        for number in range(len(chunk.rows)):
            row = chunk.rows[number : number + 1]
            try:
                yield to_arrow(chunk.view, row, start, end, columns=columns, max_bytes=files.MAX_DECOMPRESSED_BYTES)
            except CorruptBatch as error:
                where = chunk.origin + int(row[0, POSITION])
                finding = Finding(
                    Kind.UNREADABLE, segment.name, where, error.reason, "lost", int(row[0, SIZE]), int(row[0, BASE])
                )
                self._note(finding, raising=self.damage == "stop")

    def chunks(self, start: int, end: int) -> Iterator[tuple[Segment, Chunk]]:
        """Checked batches that contain offsets from `start` to `end`."""
        for segment in self.segments_from(start):
            if segment.base_offset >= end:
                return
            for chunk in self.walk(segment, start):
                rows = chunk.rows
                chunk.keep(rows[(rows[:, LAST] >= start) & (rows[:, BASE] < end)])
                if len(chunk.rows):
                    yield segment, chunk
                if int(rows[-1, LAST]) + 1 >= end:
                    return

    def check_end(self) -> None:
        """Raise, once everything was read, if records are missing at the end."""
        for finding in self._report:
            ends = finding.kind in (Kind.GAP, Kind.TORN_TAIL, Kind.BAD_OFFSET)
            if ends and finding.outcome == "lost" and self.damage == "stop":
                raise finding.error(self.path)

    def segments_from(self, start: int) -> Iterator[Segment]:
        """The segments that contain offsets from `start` on."""
        last = self._segments[-1]
        return (segment for segment in self._segments if segment.next_offset > start or segment is last)

    def done_bytes(self, segment: Segment, chunk: Chunk | None = None) -> int:
        before = sum(each.size for each in self._segments[: self._segments.index(segment)])
        if chunk is None:
            return before + segment.size
        last = chunk.rows[-1]
        return before + chunk.origin + int(last[POSITION] + last[SIZE])

    def walk(self, segment: Segment, start: int, *, raising: bool = True, finding_end: bool = False) -> Iterator[Chunk]:
        """The batches of one segment from about `start` on; all are checked except those that end below it. At damage,
        raises or continues after it: as `damage` says, or always continues without `raising`."""
        self.check_open()
        storage, position = self._near_end(segment) if finding_end else self._entry(segment, start)
        following = -1 if position else segment.base_offset
        raising = raising and not finding_end and self.damage == "stop"
        while position < segment.size:
            try:
                for chunk in segment.batches(storage, position, segment.size, following, skip_below=start):
                    far = self._cut_far(segment, chunk)
                    if len(chunk.rows):
                        if not finding_end:
                            self._check_within(segment, chunk)
                        last = chunk.rows[-1]
                        yield chunk
                        following, position = int(last[LAST]) + 1, chunk.origin + int(last[POSITION] + last[SIZE])
                    if far is not None:
                        self._note(far, raising=self._strict or raising)
                        position = far.position + far.size_bytes
                        break
                else:
                    return
            except CorruptBatch as error:
                at = position if error.position is None else error.position
                broken = BrokenPlace(segment, storage, at, max(following, segment.base_offset), error.reason)
                finding, position, following = broken.found(self._may_be_torn if finding_end else None)
                self._note(finding, raising=self._strict or (raising and finding.outcome == "lost"))

    @staticmethod
    def _cut_far(segment: Segment, chunk: Chunk) -> Finding | None:
        """Drop everything from the first batch on whose offset no Kafka segment can contain: the checksum does not
        cover the base offset. Offsets in a segment are relative and have 31 bits."""
        beyond = np.flatnonzero(chunk.rows[:, LAST] - segment.base_offset > _MAX_SPAN)
        if not len(beyond):
            return None
        row = chunk.rows[beyond[0]]
        chunk.keep(chunk.rows[: beyond[0]])
        detail = f"a batch has offset {row[BASE]}, too large for a segment that begins at {segment.base_offset}"
        where = chunk.origin + int(row[POSITION])
        return Finding(Kind.BAD_OFFSET, segment.name, where, detail, "lost", int(row[SIZE]))

    def _check_within(self, segment: Segment, chunk: Chunk) -> None:
        """Check that no batch overlaps the next segment: the checksum does not cover the base offset."""
        beyond = np.flatnonzero(chunk.rows[:, LAST] >= segment.next_offset)
        if len(beyond):
            row = chunk.rows[beyond[0]]
            where = chunk.origin + int(row[POSITION])
            chunk.keep(chunk.rows[: beyond[0]])
            detail = f"a batch ends at offset {row[LAST]}, but the next segment begins at {segment.next_offset}"
            self._note(
                Finding(Kind.BAD_OFFSET, segment.name, where, detail, "lost", int(row[SIZE]), int(row[BASE])),
                raising=True,  # which of the two is wrong cannot be known
            )

    def _entry(self, segment: Segment, start: int) -> tuple[Storage, int]:
        """Where to begin to find the batch with `start`, from Kafka's index if the batches confirm it."""
        if start <= segment.base_offset:
            return self._directory.open_shared(segment.name), 0
        if self._loaded is not None and self._loaded is not segment:
            self._loaded.unload()
        self._loaded = segment
        position, _, wanted = segment.index.bounds(start, segment.size)
        if wanted >= 0 and not names_batch(segment.storage, position, wanted):
            position = 0
        return segment.storage, position

    def _near_end(self, segment: Segment) -> tuple[Storage, int]:
        """Where to begin to find the end of the last segment: at the last batch in Kafka's index, if that is there,
        else at the beginning. The index is padded with zeros if the broker was not stopped."""
        storage, base = self._directory.open_shared(segment.name), segment.base_offset
        if segment.name == file_name(base) and self._directory.exists(file_name(base, INDEX)):
            offset, position = _last_entry(self._directory.read(file_name(base, INDEX)))
            if position and names_batch(storage, position, base + offset):
                return storage, position
        return storage, 0

    def _may_be_torn(self, following: int) -> bool:
        """Whether the bytes after that offset may be an interrupted append."""
        return not self._server.clean and following >= self._server.recovery_point.get(self._key, 0)

    # --- importing

    def copy_to(self, log: Log, job: ImportJob) -> int:
        """Copy the batches from `log.next_offset` on, unchanged; see kafka_copy.py."""
        return copy_batches(self, log, job)


def _last_entry(index: bytes) -> tuple[int, int]:
    """(offset, position) of the last entry before positions stop increasing; zeros if there is none."""
    entries = np.frombuffer(index[: len(index) // 8 * 8], ">u4").reshape(-1, 2).astype(np.int64)
    rising = np.append(np.diff(entries[:, 1], prepend=0) > 0, False)
    count = int(rising.argmin())
    offset, position = entries[count - 1].tolist() if count else (0, 0)
    return offset, position


class _Unmapped:
    """A directory whose files are never mapped: if another program truncated a mapped file, we would crash."""

    def __init__(self, inner: Directory) -> None:
        self._inner = inner
        self.path = inner.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_sealed(self, name: str) -> Storage:
        """Read a copy instead."""
        return self._inner.open_shared(name)


def _surroundings(directory: Directory) -> tuple[SharedHold | None, files.Server, tuple[str, int]]:
    """Prevent a broker from starting, and return what its files say about this partition, if this is its directory."""
    nothing = None, files.Server(), ("", 0)
    if not isinstance(directory, FileDirectory):
        return nothing
    path = Path(directory.path).resolve()
    key = files.partition_of(path.name)
    if key is None:
        return nothing
    parent = FileDirectory(path.parent, create=False)
    try:
        return held(parent), files.read_server(parent), key
    finally:
        parent.close()


def held(server: Directory) -> SharedHold | None:
    """Prevent a broker from starting on its directory, if its lock file exists; `SourceInUse` if one is running."""
    if not server.exists(files.LOCK):
        return None
    try:
        return SharedHold(server, files.LOCK)
    except DirectoryLocked as error:
        raise SourceInUse(
            f"a Kafka broker is running on {server.path} ({files.LOCK} is locked): stop it, then try again"
        ) from error
