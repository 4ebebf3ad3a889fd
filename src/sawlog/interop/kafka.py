"""Kafka: a broker's log directory, or one partition in it. kafka_files.py draws the files; kafka_export.py writes them.

The batches need no conversion: RecordBatch v2 is what sawlog stores, so an import copies batches and decodes no record.
Every batch is checked on the way (header, offsets, CRC-32C; about 5 % of the time, and not optional) and arrives byte
for byte as in Kafka: offset, leader epoch, producer, transaction, compression. Where Kafka's compaction has dropped
whole batches, a batch without records represents their offsets (see log/ingest.py). Transaction markers are kept
unchanged, so the copy knows as Kafka does which records are committed; records of aborted transactions are invisible in
both. Kafka's indexes help to start reading in the middle, and are used only where the batches confirm them. Producer
snapshots and the index of aborted transactions can be derived from the batches and are not read.

A running broker is refused (`SourceInUse`; if its `.lock` exists, it cannot start while we read either), and so are
messages in formats from before Kafka 0.11 (`UnknownFormat`).

A transaction that is open at the end is reported. Its records are in the copy, too, and readers of committed records
stop before them until the transaction is ended (`Log.append_marker`).

**Damage.** Bytes at the end of the last segment that are not a complete batch, with no batch after them, are a *torn
tail* if the broker was not stopped cleanly and had not flushed them: they are cut, as Kafka does when it starts. Zeros
are space that was never written (`log.preallocate`). Anything else is damage: reading stops there with the error of its
kind, or, with `damage="skip"`, continues after it. Files are never mapped: a broker that starts while we read may
truncate files, which would crash a process that has mapped them; read calls return garbage at worst, and the checksums
detect that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from ..batch import read as batch_read
from ..batch.header import BASE, COUNT, HEADER_BYTES, LAST, LEADER_EPOCH, MAX_TIME, POSITION, PRODUCER_ID, SIZE, Rows
from ..batch.kernel import Record
from ..config import LogConfig
from ..errors import CorruptBatch, ImportMismatch, OffsetOutOfRange, UnknownFormat
from ..log.batches import MAX_SPAN, Chunk, find_good_batch, names_batch
from ..log.files import INDEX, file_name
from ..log.log import Log
from ..log.segment import Segment
from ..log.transactions import OpenTransaction, Transactions, aborted_rows, overlapping
from ..storage import Directory, FileDirectory, SharedFileLock, Storage
from . import kafka_files as files
from .foreign import Finding, ForeignLog, ForeignReport, Format, Kind, OpenOptions, Outcome, Progress
from .kafka_export import write_partition, write_topic
from .records import MAX_JUMP, MAX_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

#: A batch that decompresses to more is refused, as in a `Log`.
_MAX_DECOMPRESSED_BYTES = LogConfig().max_decompressed_bytes
#: Maximum size of a message of an old format, unless it was configured higher.
_OLD_MAX_BYTES = 16 << 20
#: The copy begins a segment where Kafka does once the previous one has this size. Each segment costs some fsyncs, and
#: a topic with thousands of small ones would be slow to copy and to open.
_SEAL_BYTES = 128 << 20
#: Written bytes are synced in the background when they add up to this.
_SYNC_BYTES = 128 << 20


class KafkaLog(ForeignLog):
    """One partition of a broker, read only. Opening it raises `SourceInUse` if the broker is running. Not
    thread-safe."""

    format = files.NAME

    def __init__(self, directory: Directory, **options: Unpack[OpenOptions]) -> None:
        super().__init__(directory, **options)
        self._directory = cast(Directory, _Unmapped(directory))
        self._loaded: Segment | None = None
        #: All transactions; read on demand.
        self._transactions: Transactions | None = None
        #: True if everything has been read and checked.
        self._complete = False
        self._hold, self._broker, self._key = _broker_of(directory)
        try:
            self._note_other_files()
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
        """Drop segments whose base offset is impossible: the name is damaged, or they belong to another log."""
        near: dict[int, str] = {}
        for base, name in found.items():
            most = max(near) + MAX_JUMP if near else MAX_OFFSET - 1
            if base > min(most, MAX_OFFSET - 1):
                what = f"after {max(near)}: the gap is too large for a log" if near else "which is too large for a log"
                size = self._directory.size(name)
                detail = f"a segment begins at offset {base}, {what}"
                self.add(Finding(Kind.BAD_OFFSET, name, 0, detail, "lost", size), raising=self.strict or not near)
            else:
                near[base] = name
        return near

    def _segment(self, name: str, base: int, following: int) -> Segment:
        size = self._directory.size(name)
        return Segment(self._directory, base, following, size, files.INDEX_INTERVAL_BYTES, name=name, dense=False)

    def _end_of(self, name: str, base: int) -> int:
        """Return the offset after the last one in a file, according to its batch headers."""
        segment, following = self._segment(name, base, base), base
        try:
            for chunk in segment.batches(self._directory.open_shared(name), 0, segment.size, base, check=False):
                following = int(chunk.rows[-1, LAST]) + 1
        except CorruptBatch:
            pass  # reported when it is read
        return following

    def _find_end(self) -> None:
        """Find the end of the last segment: after its last complete batch."""
        last, following, position = self._segments[-1], self._segments[-1].base_offset, 0
        last.unseal()
        for chunk in self.walk(last, 0, finding_end=True):
            row = chunk.rows[-1]
            following, position = int(row[LAST]) + 1, chunk.origin + int(row[POSITION] + row[SIZE])
        last.seal_at(following, position)
        flushed = self._broker.recovery_point.get(self._key, 0)
        if following < flushed:
            detail = f"the files end at offset {following}, but had been flushed up to {flushed}"
            self.add(Finding(Kind.GAP, last.name, position, detail, "lost", offset=following), raising=self.strict)
        replicated = self._broker.high_watermark.get(self._key, following)
        if self.lowest_offset <= replicated < following:
            detail = f"offsets {replicated} to {following - 1} had not been replicated; the cluster may not have them"
            self.add(Finding(Kind.UNREPLICATED, last.name, 0, detail, offset=replicated), raising=False)

    def _note_other_files(self) -> None:
        for name in self._directory.names():
            if not files.is_kafka_file(name):
                self.add(Finding(Kind.UNKNOWN_FILE, name, 0, "not a Kafka file; ignored"), raising=False)
        for name, why in self._broker.problems:
            self.add(Finding(Kind.UNREADABLE, f"../{name}", 0, f"{why}; ignored"), raising=self.strict)

    # --- properties

    @property
    def lowest_offset(self) -> int:
        """First offset: that of the first file, or the one up to which records were deleted."""
        deleted = self._broker.log_start.get(self._key, 0)
        return min(max(self._segments[0].base_offset, deleted), self.next_offset)

    @property
    def next_offset(self) -> int:
        """Offset after the last complete batch."""
        return self._segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        """Size of all segments, without a torn tail."""
        return sum(segment.size for segment in self._segments)

    @property
    def report(self) -> ForeignReport:
        """All findings; the first access reads and checks everything."""
        if not self._complete:
            gaps = Gaps(self.lowest_offset)
            for segment in self.segments_from(self.lowest_offset):
                for chunk in self.walk(segment, 0, raising=False):
                    gaps.pass_over(chunk.rows)
            self.finish(gaps)
        return self._report

    def finish(self, gaps: Gaps) -> None:
        """Report the gaps after everything has been read."""
        self._complete = True
        gaps.close(self.next_offset)
        if gaps.count:
            detail = f"{gaps.offsets:,} offsets in {gaps.count:,} places hold no record, as after compaction"
            name = self._segments[0].name
            self.add(Finding(Kind.GAP, name, 0, detail, offset=gaps.first), raising=False)

    def close(self) -> None:
        """Close the files and release the broker's lock."""
        super().close()
        if self._hold is not None:
            self._hold.release()

    # --- reading

    def _committed(self, rows: Rows) -> Rows:
        """Return these batches without those of aborted and open transactions."""
        found = self._all_transactions()
        gone = aborted_rows(rows, lambda first, last: overlapping(found.aborted, first, last))
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
        """Report open transactions."""
        for each in found:
            detail = f"producer {each.producer_id} has an open transaction since offset {each.first_offset}"
            name = self._segments[-1].name
            self.add(Finding(Kind.OPEN_TRANSACTION, name, 0, detail, offset=each.first_offset), raising=False)

    def tables(
        self,
        start: int,
        end: int | None,
        columns: Sequence[str],
        *,
        progress: Progress | None = None,
        committed: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        from ..batch.arrow import schema, to_arrow

        schema(columns)  # raises for unknown columns before anything is read
        if not self.lowest_offset <= start <= self.next_offset:
            raise OffsetOutOfRange(start, self.lowest_offset, self.next_offset, self.path)
        last = self.next_offset if end is None else min(end, self.next_offset)
        for segment, chunk in self.chunks(start, last):
            if chunk.special and committed:
                chunk.keep(self._committed(chunk.rows))
                if not len(chunk.rows):
                    continue
            try:
                yield to_arrow(chunk.view, chunk.rows, start, last, columns=columns, max_bytes=_MAX_DECOMPRESSED_BYTES)
            except CorruptBatch:
                yield from self._one_by_one(segment, chunk, start, last, columns)
            if progress is not None:
                progress(self.done_bytes(segment, chunk), self.size_bytes)
        if end is None:
            self.check_end()

    def _one_by_one(
        self, segment: Segment, chunk: Chunk, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records batch by batch, without batches whose checksum is right but whose records do not parse."""
        from ..batch.arrow import to_arrow

        for number in range(len(chunk.rows)):
            row = chunk.rows[number : number + 1]
            try:
                yield to_arrow(chunk.view, row, start, end, columns=columns, max_bytes=_MAX_DECOMPRESSED_BYTES)
            except CorruptBatch as error:
                where = chunk.origin + int(row[0, POSITION])
                finding = Finding(
                    Kind.UNREADABLE, segment.name, where, error.reason, "lost", int(row[0, SIZE]), int(row[0, BASE])
                )
                self.add(finding, raising=self.damage == "stop")

    def chunks(self, start: int, end: int) -> Iterator[tuple[Segment, Chunk]]:
        """Yield checked batches that contain offsets from `start` to `end`."""
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
        """Raise if records are missing at the end. Called after everything has been read."""
        for finding in self._report:
            ends = finding.kind in (Kind.GAP, Kind.TORN_TAIL, Kind.BAD_OFFSET)
            if ends and finding.outcome == "lost" and self.damage == "stop":
                raise finding.error(self.path)

    def segments_from(self, start: int) -> Iterator[Segment]:
        """Return the segments that contain offsets from `start` on."""
        last = self._segments[-1]
        return (segment for segment in self._segments if segment.next_offset > start or segment is last)

    def done_bytes(self, segment: Segment, chunk: Chunk) -> int:
        """Return the number of bytes up to the end of a chunk, for the progress."""
        before = sum(each.size for each in self._segments[: self._segments.index(segment)])
        last = chunk.rows[-1]
        return before + chunk.origin + int(last[POSITION] + last[SIZE])

    def walk(self, segment: Segment, start: int, *, raising: bool = True, finding_end: bool = False) -> Iterator[Chunk]:
        """Yield the batches of one segment from about `start` on; all are checked except those that end below it. At
        damage, raise or continue after it as `damage` says; without `raising`, always continue."""
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
                        self.add(far, raising=self.strict or raising)
                        position = far.position + far.size_bytes
                        break
                else:
                    return
            except CorruptBatch as error:
                at = position if error.position is None else error.position
                may_be_torn = self._may_be_torn if finding_end else None
                finding, position, following = _diagnosed(
                    segment, storage, at, max(following, segment.base_offset), error.reason, may_be_torn
                )
                self.add(finding, raising=self.strict or (raising and finding.outcome == "lost"))

    @staticmethod
    def _cut_far(segment: Segment, chunk: Chunk) -> Finding | None:
        """Drop the first batch whose offset no Kafka segment can contain, and everything after it: the checksum does
        not cover the base offset, and relative offsets have 31 bits."""
        beyond = np.flatnonzero(chunk.rows[:, LAST] - segment.base_offset > MAX_SPAN)
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
            self.add(
                Finding(Kind.BAD_OFFSET, segment.name, where, detail, "lost", int(row[SIZE]), int(row[BASE])),
                raising=True,  # even with damage="skip": either of the two may be wrong
            )

    def _entry(self, segment: Segment, start: int) -> tuple[Storage, int]:
        """Return where to begin the search for the batch with `start`: at an entry of Kafka's index if the batches
        confirm it."""
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
        """Return where to begin the search for the end of the last segment: at the last batch in Kafka's index if the
        batches confirm it, else at the beginning. The index is padded with zeros if the broker was not stopped."""
        storage, base = self._directory.open_shared(segment.name), segment.base_offset
        if segment.name == file_name(base) and self._directory.exists(file_name(base, INDEX)):
            offset, position = _last_entry(self._directory.read(file_name(base, INDEX)))
            if position and names_batch(storage, position, base + offset):
                return storage, position
        return storage, 0

    def _may_be_torn(self, following: int) -> bool:
        """Return True if the bytes after that offset may be an interrupted append."""
        return not self._broker.clean and following >= self._broker.recovery_point.get(self._key, 0)

    def copy_to(self, log: Log, *, progress: Progress | None = None, timestamp: int | None = None) -> int:
        """Copy the batches from `log.next_offset` on, unchanged."""
        return _copy_batches(self, log, progress)


def _last_entry(index: bytes) -> tuple[int, int]:
    """Return (offset, position) of the last entry before positions stop increasing; zeros if there is none."""
    entries = np.frombuffer(index[: len(index) // 8 * 8], ">u4").reshape(-1, 2).astype(np.int64)
    rising = np.append(np.diff(entries[:, 1], prepend=0) > 0, False)
    count = int(rising.argmin())
    offset, position = entries[count - 1].tolist() if count else (0, 0)
    return offset, position


class _Unmapped:
    """A directory whose files are never mapped: truncation of a mapped file by another program would crash us."""

    def __init__(self, inner: Directory) -> None:
        self._inner = inner
        self.path = inner.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_sealed(self, name: str) -> Storage:
        """Read the file instead of mapping it."""
        return self._inner.open_shared(name)


def _broker_of(directory: Directory) -> tuple[SharedFileLock | None, files.BrokerState, tuple[str, int]]:
    """Lock the broker's directory above a partition and read its checkpoints, if there is one."""
    nothing = None, files.BrokerState(), ("", 0)
    if not isinstance(directory, FileDirectory):
        return nothing
    path = Path(directory.path).resolve()
    key = files.partition_of(path.name)
    if key is None:
        return nothing
    with closing(FileDirectory(path.parent, create=False)) as parent:
        return files.lock_broker_directory(parent), files.read_broker_state(parent), key


# --- damage


class Gaps:
    """Counter of the offsets that no batch covers."""

    def __init__(self, start: int) -> None:
        self._next_offset = start
        self.count = self.offsets = 0
        #: First missing offset.
        self.first = -1

    def pass_over(self, rows: Rows) -> None:
        """Count the gaps before and between the next batches."""
        missing = rows[:, BASE] - np.concatenate(([self._next_offset], rows[:-1, LAST] + 1))
        holes = np.flatnonzero(missing > 0)
        if len(holes):
            if not self.count:
                self.first = int(rows[holes[0], BASE] - missing[holes[0]])
            self.count += len(holes)
            self.offsets += int(missing[holes].sum())
        self._next_offset = int(rows[-1, LAST]) + 1

    def close(self, end: int) -> None:
        """Count the gap at the end of the log."""
        if end > self._next_offset:
            self.first = self.first if self.count else self._next_offset
            self.count, self.offsets = self.count + 1, self.offsets + end - self._next_offset


def _diagnosed(
    segment: Segment,
    storage: Storage,
    position: int,
    next_offset: int,
    reason: str,
    may_be_torn: Callable[[int], bool] | None,
) -> tuple[Finding, int, int]:
    """Return the finding about a position without a complete batch, and the position and offset where good batches
    begin again: the end, if there are none.

    `may_be_torn` is given at the end of the last segment. It returns True if the bytes after an offset can be an
    interrupted append.
    """
    size, end = segment.size - position, segment.size
    magic = files.old_magic(storage.view(position, min(size, _OLD_MAX_BYTES)))
    if magic is not None:
        raise UnknownFormat(
            f"{segment.path} at byte {position}: messages in format v{magic}, from before Kafka 0.11. "
            "Sawlog reads v2: copy the topic to a new one with a broker of Kafka 2 or 3, then import that"
        )
    kind, detail = (Kind.CHECKSUM if "checksum" in reason else Kind.UNREADABLE), reason
    at, base = segment.resume(storage, position, end, next_offset)
    if base is not None:
        return Finding(kind, segment.name, position, detail, "lost", at - position, next_offset), at, base
    outcome: Outcome = "lost"
    rest = storage.view(position, size)
    # An interrupted append leaves no complete batch behind.
    if may_be_torn is not None and find_good_batch(rest, 0, segment.base_offset) is None:
        kind = Kind.TORN_TAIL
        if not np.frombuffer(rest, np.uint8).any():
            kind, detail, outcome = Kind.ZERO_TAIL, "space that was never written", "cut"
        elif may_be_torn(next_offset):
            detail, outcome = "an append that was not finished", "cut"
        else:
            detail = "the broker had written more"
        detail = f"{size:,} bytes: {detail}"
    return Finding(kind, segment.name, position, detail, outcome, size, next_offset), end, next_offset


# --- copying batches


def _copy_batches(source: KafkaLog, log: Log, progress: Progress | None) -> int:
    """Copy the batches from `log.next_offset` on and return the number of records in them. An interrupted copy
    continues at the end of the log, whose last batch must be the source's."""
    _check_same(source, log)
    records, epoch = 0, 0
    gaps = Gaps(log.next_offset)
    with _CopyThreads(log) as threads:
        for segment in source.segments_from(log.next_offset):
            new = True
            for chunk in threads.read_ahead(source.walk(segment, log.next_offset)):
                chunk.keep(chunk.rows[chunk.rows[:, LAST] >= log.next_offset])
                if len(chunk.rows):
                    start = log.next_offset
                    if new and _is_worth_sealing(log, int(chunk.rows[0, MAX_TIME])):
                        log.seal()
                    log._append_at_offsets(chunk.view, chunk.rows, wait=False)  # synced by the threads and the caller
                    threads.wrote(int(chunk.rows[:, SIZE].sum()))
                    gaps.pass_over(chunk.rows)
                    records += int(chunk.rows[:, COUNT].sum()) - _count_below(chunk, start)
                    epoch, new = int(chunk.rows[-1, LEADER_EPOCH]), False
                    if progress is not None:
                        progress(source.done_bytes(segment, chunk), source.size_bytes)
            log._advance(max(segment.next_offset, log.next_offset), leader_epoch=max(epoch, 0), wait=False)
    source.check_end()
    source.finish(gaps)
    source.note_open(log.open_transactions)
    if progress is not None:
        progress(source.size_bytes, source.size_bytes)
    return records


def _check_same(source: KafkaLog, log: Log) -> None:
    """Check that the last batch of the log is the source's, byte for byte except for the leader epoch, which may have
    been raised. A batch that represents a gap is not compared."""
    last = log.next_offset - 1
    if not len(log):
        return
    ours = log.fetch(last, 1, isolation="uncommitted").raw
    if int.from_bytes(ours[57:61], "big") == 0:
        return
    for _, chunk in source.chunks(last, last + 1):
        position = int(chunk.rows[0, POSITION])
        theirs = chunk.view[position : position + HEADER_BYTES]
        if theirs[:12] == ours[:12] and theirs[16:] == ours[16:HEADER_BYTES]:
            return
    raise ImportMismatch(
        f"{log.path} ends at offset {last} with a different batch than {source.path}: it is not a copy of it; "
        "import into a new topic"
    )


def _is_worth_sealing(log: Log, timestamp: int) -> bool:
    """Return True if the copy should begin a segment where Kafka does: because of its size, or for retention."""
    active, age = log._segment_set.active, log.config.segment_age_ms
    first = active.index.first_timestamp
    return active.size >= _SEAL_BYTES or (age is not None and first >= 0 and timestamp - first > age)


def _count_below(chunk: Chunk, start: int) -> int:
    """Return how many records of the first batch are below an offset: Kafka trims a log record by record."""
    first = chunk.rows[:1]
    if int(first[0, BASE]) >= start:
        return 0
    found: list[Record] = []
    try:
        batch_read.records(chunk.view, first, int(first[0, BASE]), start, found, _MAX_DECOMPRESSED_BYTES)
    except CorruptBatch:
        pass  # reported when it is read
    return len(found)


class _CopyThreads:
    """Two threads besides the writing one: the first reads and checks the next batches, the second syncs bytes already
    written, which leaves a short final fsync."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(2, "sawlog-import")
        self._syncing: Future[None] | None = None
        self._unsynced_bytes = 0

    def __enter__(self) -> _CopyThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read_ahead(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks, reading each while the previous one is processed."""
        following = self._pool.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = self._pool.submit(next, chunks, None)
            yield chunk

    def wrote(self, size_bytes: int) -> None:
        """Count bytes as written, and start a sync when they add up. A failed sync makes the next append raise."""
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._syncing, self._unsynced_bytes = self._pool.submit(self._log.sync), 0


# --- format


FORMAT = Format(
    files.NAME,
    "a Kafka broker's log directory, or one partition of it (version 0.11 or later)",
    KafkaLog,
    files.detect,
    write_partition,
    write_topic,
    keeps_batches=True,
)
