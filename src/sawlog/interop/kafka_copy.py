"""Copies a Kafka partition into a log of ours: batches unchanged, one thread reading ahead, one syncing behind.

Nothing is decoded. The bytes that were checked are the bytes that are written. An interrupted import continues where
the log ends; its last batch must be the same as the source's, which shows that the log is a copy of this source.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..batch import read as batch_read
from ..batch.header import BASE, COUNT, HEADER_BYTES, LAST, LEADER_EPOCH, MAX_TIME, POSITION, SIZE
from ..batch.kernel import Record
from ..errors import CorruptBatch, ImportMismatch
from ..log.log import Log
from ..log.segment.batches import Chunk
from .foreign import ImportJob
from .kafka_damage import Gaps
from .kafka_files import MAX_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from .kafka_log import KafkaLog

#: Where a Kafka segment ends, ours ends too if it is at least this large. Each segment costs some fsyncs, and a
#: topic with thousands of small ones would be slow to copy and to open.
_SEAL_BYTES = 128 << 20
#: Written bytes are synced in the background when they add up to this.
_SYNC_BYTES = 128 << 20


def copy_batches(source: KafkaLog, log: Log, job: ImportJob) -> int:
    """Copy the batches from `log.next_offset` on and return the number of records in them."""
    _check_same(source, log)
    records, epoch = 0, 0
    gaps = Gaps(log.next_offset)
    with _Hands(log) as hands:
        for segment in source.segments_from(log.next_offset):
            new = True
            for chunk in hands.ahead(source.walk(segment, log.next_offset)):
                chunk.keep(chunk.rows[chunk.rows[:, LAST] >= log.next_offset])
                if len(chunk.rows):
                    start = log.next_offset
                    hands.wrote(_take(log, chunk, new=new))
                    gaps.pass_over(chunk.rows)
                    records += int(chunk.rows[:, COUNT].sum()) - _count_below(chunk, start)
                    epoch, new = int(chunk.rows[-1, LEADER_EPOCH]), False
                    if job.progress is not None:
                        job.progress(source.done_bytes(segment, chunk), source.size_bytes)
            log.advance(max(segment.next_offset, log.next_offset), leader_epoch=max(epoch, 0), wait=False)
    source.check_end()
    source.finish(gaps)
    source.note_open(log.open_transactions)
    if job.progress is not None:
        job.progress(source.size_bytes, source.size_bytes)
    return records


def _check_same(source: KafkaLog, log: Log) -> None:
    """Check that the last batch of the log is the source's, byte for byte, except for its leader epoch, which may have
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


def _take(log: Log, chunk: Chunk, *, new: bool) -> int:
    """Append these batches to the log and return their size in bytes. `new`: a Kafka segment begins with them."""
    first = chunk.rows[0]
    if new and _is_worth_sealing(log, int(first[MAX_TIME])):
        log.seal()
    log.append_kept(chunk.view, chunk.rows, wait=False)  # `_Hands` syncs it, and the caller does at the end
    return int(chunk.rows[:, SIZE].sum())


def _is_worth_sealing(log: Log, timestamp: int) -> bool:
    """Whether a segment of ours should begin where a Kafka segment does: for its size, or for retention."""
    active, age = log.engine.segment_set.active, log.config.segment_age_ms
    first = active.index.first_timestamp
    return active.size >= _SEAL_BYTES or (age is not None and first >= 0 and timestamp - first > age)


def _count_below(chunk: Chunk, start: int) -> int:
    """How many records of the first batch are below an offset: Kafka drops the beginning of a log record by record."""
    first = chunk.rows[:1]
    if int(first[0, BASE]) >= start:
        return 0
    found: list[Record] = []
    try:
        batch_read.records(chunk.view, first, int(first[0, BASE]), start, found, MAX_DECOMPRESSED_BYTES)
    except CorruptBatch:
        pass  # reported when it is read
    return len(found)


class _Hands:
    """Two threads next to the one that writes: one reads and checks the next batches, one syncs what is already
    written, so that little is left to wait for at the end."""

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
        """The same items; each is read while the previous one is processed."""
        coming = self._pool.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = self._pool.submit(next, chunks, None)
            yield chunk

    def wrote(self, size_bytes: int) -> None:
        """Count these bytes as written. A sync that fails ends writing, so nobody needs its result."""
        self._unsynced_bytes += size_bytes
        if self._unsynced_bytes >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._syncing, self._unsynced_bytes = self._pool.submit(self._log.sync), 0
