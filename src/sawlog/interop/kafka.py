"""Kafka: a broker's log directory, or one partition in it. The files are drawn in kafka_files.py.

The batches are ours: RecordBatch v2 is what sawlog stores, so importing is copying, and no record is decoded. Every
batch is checked on the way (header, offsets, CRC-32C: a twentieth of the copy's time, so nobody can ask to leave it
out) and then stands in our log byte for byte as in Kafka's: offset, leader epoch, producer, transaction, compression.
Where Kafka's compaction has dropped whole batches, a batch without records stands for their offsets (see
log/keeping.py). Markers of transactions are kept as they are. Kafka's indexes are a help for reading from the middle,
and believed only where the batches bear them out; producer snapshots and the index of aborted transactions can be had
from the batches and are not read.

What is there and is not imported, each with a line that says so: topics of Kafka's own (`__consumer_offsets` and all
other names with two underscores in front; name such a directory itself to have it), topics whose name cannot be one of
sawlog's, and directories that Kafka is deleting (`-delete`), moving (`-future`) or does not know (`-stray`).

What is refused: a broker that is running (`SourceInUse`; while we read it does not start either, if it left its
`.lock`), and messages of the formats before Kafka 0.11 (`UnknownFormat`).

**Damage.** Bytes at the end of the last segment that are no whole batch, with none behind them, are a *torn tail* if
the broker was not stopped in order and had not flushed them: they are cut, as Kafka does when it starts. Zeros are
space that was never written (`log.preallocate`). Anything else is damage: reading stops there with the error of its
kind, or, with `damage="skip"`, goes on behind it. Files are never mapped: a broker that is started in the middle of it
all cuts files, and can make us see nonsense, which the checksums show, but cannot take us down.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..batch import kernel
from ..batch import read as batch_read
from ..batch.checksum import crc32c
from ..batch.header import BASE, COUNT, HEADER_BYTES, LAST, LEADER_EPOCH, MAX_TIME, POSITION, SIZE, Rows
from ..batch.kernel import Record
from ..config import LogConfig
from ..errors import CorruptBatch, DirectoryLocked, ImportMismatch, OffsetOutOfRange, SourceInUse, UnknownFormat
from ..log.log import Log
from ..log.names import INDEX, file_name
from ..log.segment import Chunk, Segment
from ..storage import Directory, FileDirectory, SharedHold, Storage
from ..topics.names import is_topic_name
from . import kafka_files as files
from .damage import Finding, ForeignReport, Kind
from .foreign import Damage, Detection, ExportReport, ForeignLog, ImportJob, Place, Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from ..topics.topic import Topic

_INDEX_INTERVAL_BYTES = 4096
_MAX_DECOMPRESSED_BYTES = LogConfig().max_decompressed_bytes
#: Where a segment of Kafka's ends, ours does as well if it is this large. Each costs some fsyncs, and a topic with
#: thousands of small ones would be slow to copy and to open.
_SEAL_BYTES = 128 << 20
#: What is written is synced in the background when it adds up to this.
_SYNC_BYTES = 128 << 20
#: Of a message before RecordBatch v2: [offset i64][size i32][CRC-32 u32][magic i8]...
_OLD = struct.Struct(">qiIb")
_OLD_LEAST_BYTES = 14
#: More than a message was allowed to have, unless somebody had changed that.
_OLD_MOST_BYTES = 16 << 20


class KafkaLog(ForeignLog):
    """One partition of a broker that is not running."""

    format = "kafka"

    def __init__(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> None:
        super().__init__(directory.path, damage=damage)
        self._strict = strict
        self._owned = directory
        self._directory = cast(Directory, _Unmapped(directory))
        self._report = ForeignReport()
        self._loaded: Segment | None = None
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
            raise UnknownFormat(f"{self.path} holds no segment of Kafka's: there is no file like {'0' * 20}.log")
        bases = [*found, list(found)[-1]]
        return [self._segment(name, base, bases[at + 1]) for at, (base, name) in enumerate(found.items())]

    def _segment(self, name: str, base: int, following: int) -> Segment:
        size = self._directory.size(name)
        made = Segment(self._directory, base, following, size, _INDEX_INTERVAL_BYTES)
        made.name, made.path, made.dense = name, f"{self.path}/{name}", False
        return made

    def _end_of(self, name: str, base: int) -> int:
        """Where the offsets of a file end, by its headers."""
        segment, following = self._segment(name, base, base), base
        try:
            for chunk in segment.batches(self._directory.open_shared(name), 0, segment.size, base, check=False):
                following = int(chunk.rows[-1, LAST]) + 1
        except CorruptBatch:
            pass  # told when it is read
        return following

    def _find_end(self) -> None:
        """Where the last segment ends: behind its last whole batch."""
        last, following, position = self._segments[-1], self._segments[-1].base_offset, 0
        last.sealed = False  # nobody knows its end yet
        for chunk in self._walk(last, 0, finding_end=True):
            row = chunk.rows[-1]
            following, position = int(row[LAST]) + 1, chunk.origin + int(row[POSITION] + row[SIZE])
        last.tail, last.sealed = (following, position), True
        flushed = self._server.recovery_point.get(self._key, 0)
        if following < flushed:
            detail = f"the files end at offset {following}, and {flushed} had been reached"
            self._note(Finding(Kind.GAP, last.name, position, detail, "lost", offset=following), raising=self._strict)
        replicated = self._server.high_watermark.get(self._key, following)
        if self.lowest_offset <= replicated < following:
            detail = f"offsets {replicated} to {following - 1} had not been replicated; the cluster may not know them"
            self._note(Finding(Kind.UNREPLICATED, last.name, 0, detail, offset=replicated), raising=False)

    def _note_strangers(self) -> None:
        for name in self._directory.names():
            if not files.is_kafkas(name):
                self._note(Finding(Kind.STRANGER, name, 0, "no file of Kafka's; left alone"), raising=False)
        for name, why in self._server.problems:
            self._note(Finding(Kind.UNREADABLE, f"../{name}", 0, f"{why}; done without"), raising=self._strict)

    def _note(self, finding: Finding, *, raising: bool) -> None:
        self._report.add(finding)
        if raising:
            raise finding.error(self.path)

    # --- what it is

    @property
    def lowest_offset(self) -> int:
        """The first offset: of the first file, or where records were deleted up to."""
        deleted = self._server.log_start.get(self._key, 0)
        return min(max(self._segments[0].base_offset, deleted), self.next_offset)

    @property
    def next_offset(self) -> int:
        """The offset behind the last whole batch."""
        return self._segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, without a torn tail."""
        return sum(segment.size for segment in self._segments)

    @property
    def report(self) -> ForeignReport:
        """What was found; everything is read and checked once for it."""
        if not self._complete:
            gaps = _Gaps(self.lowest_offset)
            for segment in self._from(self.lowest_offset):
                for chunk in self._walk(segment, 0, raising=False):
                    gaps.pass_over(chunk.rows)
            self._finish(gaps)
        return self._report

    def _finish(self, gaps: _Gaps) -> None:
        self._complete = True
        gaps.close(self.next_offset)
        if gaps.count:
            detail = f"{gaps.offsets:,} offsets in {gaps.count:,} places hold no record, as compaction leaves it"
            name = self._segments[0].name
            self._note(Finding(Kind.GAP, name, 0, detail, offset=gaps.first), raising=False)

    def close(self) -> None:
        """Give up the files, and let a broker start again."""
        super().close()
        if self._hold is not None:
            self._hold.release()
        self._owned.close()

    # --- reading

    def tables(
        self, start: int, end: int | None, columns: Sequence[str], *, progress: Progress | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records as Arrow, some megabytes of batches at a time."""
        from ..batch.arrow import schema, to_arrow

        schema(columns)  # refuses unknown columns before anything is read
        if not self.lowest_offset <= start <= self.next_offset:
            raise OffsetOutOfRange(start, self.lowest_offset, self.next_offset, self.path)
        last = self.next_offset if end is None else min(end, self.next_offset)
        for segment, chunk in self._chunks(start, last):
            try:
                yield to_arrow(chunk.view, chunk.rows, start, last, columns=columns, max_bytes=_MAX_DECOMPRESSED_BYTES)
            except CorruptBatch:
                yield from self._one_by_one(segment, chunk, start, last, columns)
            if progress is not None:
                progress(self._done_bytes(segment, chunk), self.size_bytes)
        if end is None:
            self._check_end()

    def _one_by_one(
        self, segment: Segment, chunk: Chunk, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Something in these batches does not parse although its checksum is right: all but that."""
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
                self._note(finding, raising=self.damage == "stop")

    def _chunks(self, start: int, end: int) -> Iterator[tuple[Segment, Chunk]]:
        """Checked batches that hold offsets from `start` to `end`."""
        for segment in self._from(start):
            if segment.base_offset >= end:
                return
            for chunk in self._walk(segment, start):
                rows = chunk.rows
                chunk.rows = rows[(rows[:, LAST] >= start) & (rows[:, BASE] < end)]
                if len(chunk.rows):
                    yield segment, chunk
                if int(rows[-1, LAST]) + 1 >= end:
                    return

    def _check_end(self) -> None:
        """Whoever has read everything is told that there should have been more."""
        for finding in self._report:
            if finding.kind in (Kind.GAP, Kind.TORN_TAIL) and finding.outcome == "lost" and self.damage == "stop":
                raise finding.error(self.path)

    def _from(self, start: int) -> Iterator[Segment]:
        """The segments that hold offsets from `start` on."""
        last = self._segments[-1]
        return (segment for segment in self._segments if segment.next_offset > start or segment is last)

    def _done_bytes(self, segment: Segment, chunk: Chunk | None = None) -> int:
        before = sum(each.size for each in self._segments[: self._segments.index(segment)])
        if chunk is None:
            return before + segment.size
        last = chunk.rows[-1]
        return before + chunk.origin + int(last[POSITION] + last[SIZE])

    def _walk(
        self, segment: Segment, start: int, *, raising: bool = True, finding_end: bool = False
    ) -> Iterator[Chunk]:
        """The batches of one segment from about `start` on, all checked but those that lie wholly below it. At damage
        it raises, or goes on behind it: as `damage` says, or always without `raising`."""
        self.check_open()
        storage, position = self._near_end(segment) if finding_end else self._entry(segment, start)
        following = -1 if position else segment.base_offset
        raising = raising and not finding_end and self.damage == "stop"
        while position < segment.size:
            try:
                for chunk in segment.batches(storage, position, segment.size, following, skip_below=start):
                    if not finding_end:
                        self._check_within(segment, chunk)
                    last = chunk.rows[-1]
                    yield chunk
                    following, position = int(last[LAST]) + 1, chunk.origin + int(last[POSITION] + last[SIZE])
                return
            except CorruptBatch as error:
                at = position if error.position is None else error.position
                damage = _Damage(self, segment, storage, at, max(following, segment.base_offset), error.reason)
                finding, position, following = damage.found(finding_end=finding_end)
                self._note(finding, raising=self._strict or (raising and finding.outcome == "lost"))

    def _check_within(self, segment: Segment, chunk: Chunk) -> None:
        """No batch reaches into the next segment: a base offset is under no checksum."""
        beyond = np.flatnonzero(chunk.rows[:, LAST] >= segment.next_offset)
        if len(beyond):
            row = chunk.rows[beyond[0]]
            where = chunk.origin + int(row[POSITION])
            chunk.rows = chunk.rows[: beyond[0]]
            detail = f"a batch ends at offset {row[LAST]}, and the next segment begins at {segment.next_offset}"
            self._note(
                Finding(Kind.BAD_OFFSET, segment.name, where, detail, "lost", int(row[SIZE]), int(row[BASE])),
                raising=True,  # nobody can say which of the two is wrong
            )

    def _entry(self, segment: Segment, start: int) -> tuple[Storage, int]:
        """Where to begin in order to meet the batch with `start`, by Kafka's index if the batches bear it out."""
        if start <= segment.base_offset:
            return self._directory.open_shared(segment.name), 0
        if self._loaded is not None and self._loaded is not segment:
            self._loaded.unload()
        self._loaded = segment
        position, _, wanted = segment.index.bounds(start, segment.size)
        if wanted >= 0 and not Segment.names_batch(segment.storage, position, wanted):
            position = 0
        return segment.storage, position

    def _near_end(self, segment: Segment) -> tuple[Storage, int]:
        """Where to begin in order to find the end of the last segment: at the last batch that Kafka's index knows, if
        the batch is there, else at the beginning. The index is padded with zeros if the broker was not stopped."""
        storage, base = self._directory.open_shared(segment.name), segment.base_offset
        if segment.name == file_name(base) and self._directory.exists(file_name(base, INDEX)):
            offset, position = _last_entry(self._directory.read(file_name(base, INDEX)))
            if position and Segment.names_batch(storage, position, base + offset):
                return storage, position
        return storage, 0

    def is_torn(self, following: int) -> bool:
        """Whether what stands behind that offset may be an append that was interrupted."""
        return not self._server.clean and following >= self._server.recovery_point.get(self._key, 0)

    # --- importing

    def copy_to(self, log: Log, job: ImportJob) -> int:
        """Take in the batches from `log.next_offset` on, as they are; how many records are in them."""
        self._check_same(log)
        records, epoch = 0, 0
        gaps = _Gaps(log.next_offset)
        with _Hands(log) as hands:
            for segment in self._from(log.next_offset):
                new = True
                for chunk in hands.ahead(self._walk(segment, log.next_offset)):
                    chunk.rows = chunk.rows[chunk.rows[:, LAST] >= log.next_offset]
                    if len(chunk.rows):
                        start = log.next_offset
                        hands.wrote(self._take(log, chunk, new=new))
                        gaps.pass_over(chunk.rows)
                        records += int(chunk.rows[:, COUNT].sum()) - _count_below(chunk, start)
                        epoch, new = int(chunk.rows[-1, LEADER_EPOCH]), False
                        if job.progress is not None:
                            job.progress(self._done_bytes(segment, chunk), self.size_bytes)
                log.advance(max(segment.next_offset, log.next_offset), leader_epoch=max(epoch, 0))
        self._check_end()
        self._finish(gaps)
        if job.progress is not None:
            job.progress(self.size_bytes, self.size_bytes)
        return records

    def _check_same(self, log: Log) -> None:
        """The last batch that the log holds is the source's, byte for byte, if it is not one that stands for a gap."""
        last = log.next_offset - 1
        if not len(log):
            return
        ours = log.fetch(last, 1).raw
        if int.from_bytes(ours[57:61], "big") == 0:
            return
        for _, chunk in self._chunks(last, last + 1):
            position = int(chunk.rows[0, POSITION])
            if chunk.view[position : position + HEADER_BYTES] == ours[:HEADER_BYTES]:
                return
        raise ImportMismatch(
            f"{log.path} ends at offset {last} with another batch than {self.path} has there: it is no copy of it; "
            "import into a new topic"
        )

    def _take(self, log: Log, chunk: Chunk, *, new: bool) -> int:
        """Put these batches into the log; how many bytes. `new`: a segment of Kafka's begins with them."""
        first = chunk.rows[0]
        if new and self._is_worth_sealing(log, int(first[MAX_TIME])):
            log.seal()
        log.append_kept(chunk.view, chunk.rows)
        return int(chunk.rows[:, SIZE].sum())

    @staticmethod
    def _is_worth_sealing(log: Log, timestamp: int) -> bool:
        """Where a segment of Kafka's begins: whether ours should, for its size or for what retention may drop."""
        active, age = log.segment_set.active, log.config.segment_age_ms
        first = active.index.first_timestamp
        return active.size >= _SEAL_BYTES or (age is not None and first >= 0 and timestamp - first > age)


def _last_entry(index: bytes) -> tuple[int, int]:
    """(offset, position) of the last entry before positions stop going up; zeros if there is none."""
    entries = np.frombuffer(index[: len(index) // 8 * 8], ">u4").reshape(-1, 2).astype(np.int64)
    rising = np.append(np.diff(entries[:, 1], prepend=0) > 0, False)
    count = int(rising.argmin())
    offset, position = entries[count - 1].tolist() if count else (0, 0)
    return offset, position


def _count_below(chunk: Chunk, start: int) -> int:
    """How many records of the first batch lie below an offset: Kafka drops the beginning of a log record by record."""
    first = chunk.rows[:1]
    if int(first[0, BASE]) >= start:
        return 0
    found: list[Record] = []
    try:
        batch_read.records(chunk.view, first, int(first[0, BASE]), start, found, _MAX_DECOMPRESSED_BYTES)
    except CorruptBatch:
        pass  # told when it is read
    return len(found)


class _Hands:
    """Two threads beside the one that writes: one reads and checks what comes next, one has the disk take what is
    written already, so that little is left to wait for at the end."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(2, "sawlog-import")
        self._syncing: Future[None] | None = None
        self._unsynced_bytes = 0

    def __enter__(self) -> _Hands:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def ahead(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """The same; each is had while the one before it is worked on."""
        coming = self._pool.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = self._pool.submit(next, chunks, None)
            yield chunk

    def wrote(self, size_bytes: int) -> None:
        """So much more is in the log. A sync that fails ends writing, so nobody has to ask for its result."""
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._syncing, self._unsynced_bytes = self._pool.submit(self._log.sync), 0


class _Unmapped:
    """A directory in which nothing is ever mapped: a file that another program cuts would take us down with it."""

    def __init__(self, inner: Directory) -> None:
        self._inner = inner
        self.path = inner.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_sealed(self, name: str) -> Storage:
        """A copy is read instead."""
        return self._inner.open_shared(name)


class _Gaps:
    """Counts offsets that no batch covers."""

    def __init__(self, start: int) -> None:
        self._following = start
        self.count = self.offsets = 0
        #: The first of them.
        self.first = -1

    def pass_over(self, rows: Rows) -> None:
        """These batches come next."""
        missing = rows[:, BASE] - np.concatenate(([self._following], rows[:-1, LAST] + 1))
        holes = np.flatnonzero(missing > 0)
        if len(holes):
            if not self.count:
                self.first = int(rows[holes[0], BASE] - missing[holes[0]])
            self.count += len(holes)
            self.offsets += int(missing[holes].sum())
        self._following = int(rows[-1, LAST]) + 1

    def close(self, end: int) -> None:
        """The log ends here."""
        if end > self._following:
            self.first = self.first if self.count else self._following
            self.count, self.offsets = self.count + 1, self.offsets + end - self._following


class _Damage:
    """A place where no whole batch stands, and what that means."""

    def __init__(
        self, log: KafkaLog, segment: Segment, storage: Storage, position: int, following: int, reason: str
    ) -> None:
        self._log, self._segment, self._storage = log, segment, storage
        self._position, self._following, self._reason = position, following, reason
        self._size = segment.size - position

    def found(self, *, finding_end: bool) -> tuple[Finding, int, int]:
        """What is wrong, and the position and offset where good batches begin again: the end, if none do."""
        self._refuse_old()
        segment, end = self._segment, self._segment.size
        at, base = segment.resume(self._storage, self._position, end, self._following)
        if base is not None:
            return self._lost(at - self._position), at, base
        rest = self._storage.view(self._position, self._size) if finding_end else memoryview(b"")
        if finding_end and not self._has_batch(rest):
            if not np.frombuffer(rest, np.uint8).any():
                return self._tail(Kind.ZERO_TAIL, "space that was never written", "cut"), end, self._following
            if self._log.is_torn(self._following):
                return self._tail(Kind.TORN_TAIL, "an append that was not finished", "cut"), end, self._following
            return self._tail(Kind.TORN_TAIL, "the broker had written more than is there", "lost"), end, self._following
        return self._lost(self._size), end, self._following

    def _tail(self, kind: Kind, detail: str, outcome: Any) -> Finding:
        size, segment = self._size, self._segment
        return Finding(kind, segment.name, self._position, f"{size:,} bytes: {detail}", outcome, size, self._following)

    def _lost(self, size: int) -> Finding:
        kind = Kind.CHECKSUM if "checksum" in self._reason else Kind.UNREADABLE
        return Finding(kind, self._segment.name, self._position, self._reason, "lost", size, self._following)

    def _has_batch(self, rest: memoryview) -> bool:
        """Whether a whole batch with the right checksum stands anywhere behind: an interrupted append leaves none."""
        at = kernel.find_header(rest, 0, len(rest), self._segment.base_offset)
        while at >= 0:
            size = 12 + int.from_bytes(rest[at + 8 : at + 12], "big")
            crc = int.from_bytes(rest[at + 17 : at + 21], "big")
            if crc32c(rest[at + 21 : at + size]) == crc:
                return True
            at = kernel.find_header(rest, at + 1, len(rest), self._segment.base_offset)
        return False

    def _refuse_old(self) -> None:
        magic = _old_magic(self._storage.view(self._position, min(self._size, _OLD_MOST_BYTES)))
        if magic is not None:
            raise UnknownFormat(
                f"{self._segment.path} at byte {self._position}: messages of format v{magic}, from before Kafka 0.11. "
                "Sawlog reads v2: let a broker of Kafka 2 or 3 copy the topic to a new one, then import that"
            )


def _old_magic(data: memoryview) -> int | None:
    """0 or 1 if a whole message of that format, with the right checksum, stands at the beginning."""
    if len(data) < 12 + _OLD_LEAST_BYTES:
        return None
    offset, size, crc, magic = _OLD.unpack_from(data)
    if magic not in (0, 1) or offset < 0 or not _OLD_LEAST_BYTES <= size <= len(data) - 12:
        return None
    return magic if zlib.crc32(data[16 : 12 + size]) == crc else None


def _surroundings(directory: Directory) -> tuple[SharedHold | None, files.Server, tuple[str, int]]:
    """Keep a broker from starting, and what its files say about this partition, if it lies in a broker's directory."""
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
    """Keep a broker from starting on its directory, if it has left its lock; `SourceInUse` if one is running."""
    if not server.exists(files.LOCK):
        return None
    try:
        return SharedHold(server, files.LOCK)
    except DirectoryLocked as error:
        raise SourceInUse(
            f"a Kafka broker is running on {server.path} ({files.LOCK} is locked): stop it, then try again"
        ) from error


# --- the format


class KafkaFormat:
    """Kafka's own, from 0.11 on."""

    name = "kafka"
    title = "a Kafka broker's log directory, or one partition of it"

    def detect(self, directory: Directory) -> Detection | None:
        """A partition (by its files and first batch) or a broker's directory (by its checkpoints and partitions)."""
        names = directory.names()
        if files.segment_files(names, lambda name, base: base):
            return self._partition(directory, names)
        return self._server(directory, names)

    def _partition(self, directory: Directory, names: list[str]) -> Detection | None:
        why, certain = _evidence(directory, names)
        if not why:
            return None
        topic, number = files.partition_of(_basename(directory.path)) or (None, 0)
        place = Place(directory.path, topic, number)
        return Detection(self.name, "partition", directory.path, (place,), why, certain)

    def _server(self, directory: Directory, names: list[str]) -> Detection | None:
        marks = sorted(files.SERVER_FILES.intersection(names))
        found: list[Place] = []
        ignored: list[str] = []
        certain = bool(marks)
        for child in directory.children():
            key, state = files.partition_of(child), files.state_of(child)
            if state is not None:
                ignored.append(f"{child}: {state}")
                continue
            if key is None:
                continue
            seen = self._child(directory, child)
            if seen is None:
                continue
            certain = certain or seen.certain
            why = _unwanted(key[0], found)
            if why:
                ignored.append(f"{child}: {why}")
            else:
                found.append(Place(f"{directory.path.rstrip('/')}/{child}", *key))
        if not marks and not found:
            return None
        why = f"{', '.join(marks[:3]) or 'no checkpoint'}, {len(found)} partitions with batches of Kafka's"
        places = tuple(sorted(found, key=lambda place: (place.topic or "", place.partition)))
        return Detection(self.name, "data", directory.path, places, why, certain, tuple(ignored))

    def _child(self, directory: Directory, name: str) -> Detection | None:
        child = directory.child(name)
        try:
            names = child.names()
            return self._partition(child, names) if files.segment_files(names, lambda name, base: base) else None
        finally:
            child.close()

    def open(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> ForeignLog:
        """The partition in this directory; `SourceInUse` if a broker is running."""
        return KafkaLog(directory, damage=damage, strict=strict)

    def place(self, topic: str, partition: int) -> str:
        """As a broker names it."""
        return f"{topic}-{partition}"

    def write(
        self,
        log: Log,
        directory: Directory,
        *,
        start: int,
        end: int,
        options: Mapping[str, object],
        progress: Progress | None = None,
    ) -> ExportReport:
        """One partition; see kafka_export.py."""
        from .kafka_export import write_partition

        return write_partition(log, directory, start=start, end=end, options=options, progress=progress)

    def write_topic(
        self, topic: Topic, path: str, *, options: Mapping[str, object], progress: Progress | None = None
    ) -> tuple[ExportReport, ...]:
        """All partitions of a topic, and what a broker's directory says about them; see kafka_export.py."""
        from .kafka_export import write_topic

        return write_topic(topic, path, options=options, progress=progress)


def _basename(path: str) -> str:
    return Path(path).resolve().name


def _unwanted(topic: str, found: list[Place]) -> str:
    """Why a topic is not imported with the others; empty if it is."""
    if topic.startswith("__"):
        return "a topic of Kafka's own; name its directory to have it"
    if not is_topic_name(topic):
        return "sawlog cannot have a topic of that name; name its directory and another topic to have it"
    for other in found:
        if other.topic is not None and other.topic != topic and other.topic.lower() == topic.lower():
            return f"its name differs from {other.topic} by upper and lower case only"
    return ""


def _evidence(directory: Directory, names: list[str]) -> tuple[str, bool]:
    """Why a directory with segments is a partition of Kafka's, and whether that is certain; nothing if it is none."""
    if {"LOCK", "checkpoint"} <= set(names):
        return "", False  # sawlog's own: it has the same segments
    marks = sorted(files.PARTITION_FILES.intersection(names))
    if marks:
        return f"{' and '.join(marks)} beside its segments", True
    for base, name in files.segment_files(names, lambda name, base: base).items():
        if directory.exists(name) and directory.size(name):  # not a symbolic link
            return _first_batch(directory, name, base)
    return "its file names, which others have as well: all segments are empty", False


def _first_batch(directory: Directory, name: str, base: int) -> tuple[str, bool]:
    storage = directory.open_shared(name)
    try:
        head = memoryview(storage.read(0, min(storage.size, HEADER_BYTES)))
        if len(head) >= 12 + _OLD_LEAST_BYTES:
            size = 12 + max(int.from_bytes(head[8:12], "big", signed=True), 0)
            whole = memoryview(storage.read(0, min(storage.size, size)))
            if _old_magic(whole) is not None:
                return f"{name} begins with a message from before Kafka 0.11", True
            if kernel.find_header(head, 0, len(head), base) == 0 or (
                len(whole) >= HEADER_BYTES and kernel.find_header(whole, 0, len(whole), base) == 0
            ):
                crc = int.from_bytes(whole[17:21], "big")
                good = crc32c(whole[21:size]) == crc
                return f"{name} begins with a batch whose checksum {'matches' if good else 'does not match'}", good
    finally:
        storage.close()
    return "", False


FORMAT = KafkaFormat()
