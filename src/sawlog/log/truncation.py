"""Dropping the end of a log (`truncate`) and its beginning (`trim`).

Truncation keeps [lowest, offset). First readers are kept from what is going to go, and the watermark is lowered, so
that a crash half-way leaves a longer log, never a damaged one. If anything of it was visible, a new leader epoch begins
at `offset`, durably, before anything is cut: whoever has read it finds out (see epochs.py). Later segments are deleted,
newest first, on the disk as well. The segment that holds `offset` is never cut where it lies: what remains of it is
written to a new file, fsynced and renamed over it, because readers may have it mapped. A batch that holds both kept and
dropped records is built anew with the kept ones, at the same offsets.

Trimming notes the new log start durably, then deletes the segments that lie wholly below it. What lies below it is
durable by then, whatever the policy: a log that ends before it starts is nothing that anybody could open. Offsets never
go back: if nothing is left, the log goes on in an empty segment at the offset that was next.
"""

from __future__ import annotations

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.compression import compress, decompress
from ..batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    BASE_TIME,
    BODY,
    BODY_END,
    COMPRESSION_MASK,
    COUNT,
    HEADER_BYTES,
    LEADER_EPOCH,
    MAX_TIME,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    TIMESTAMP_TYPE_BIT,
)
from ..batch.read import MALFORMED
from ..errors import CorruptBatch, OffsetOutOfRange, StorageFull
from .append import Appender
from .index import SegmentIndex
from .names import INDEX, LOG, TIME_INDEX, TMP, file_name, segment_base
from .recovery import replayed
from .segment import Chunk, Segment
from .state import load_state, store_state

_COPY_BYTES = 8 << 20


def truncate(log: Appender, offset: int) -> int:
    """Keep the records below `offset`; how many were dropped."""
    with log.exclusive():
        segments = log.segments
        lowest, following = segments.lowest_offset, segments.next_offset
        if not lowest <= offset <= following:
            raise OffsetOutOfRange(offset, lowest, following, log.directory.path)
        if offset == following:
            return 0
        kept = list(segments.all)
        target = segments.find(offset)
        position, rest, visible, whole = _cut_point(log, target, offset)
        log.cuts += 1
        _retreat_upkeep(log, offset)
        was_visible = segments.visible_offset > offset
        with log.retreating(offset, (whole, target.base_offset, position)):
            _begin_epoch(log, offset, was_visible=was_visible)
        kept = kept[: kept.index(target) + 1]
        try:
            # From here on there is no way back, only forward at the next open. Hide first what is going to go.
            target.pinned = True
            segments.set(kept)
            target.tail = offset, visible
            segments.version += 1  # for a reader that looked between the two lines above
            _delete_above(log, target.base_offset)
            kept[-1] = _cut(log, target, offset, position, rest)
            if log.producers.reaches(offset):
                log.producers = replayed(kept, log.config.producer_expiry_ms)
            log.adopt(kept)
        except BaseException as error:
            log.commit.fail(error)
            raise
    segments.wake()
    return following - offset


def _begin_epoch(log: Appender, offset: int, *, was_visible: bool) -> None:
    """A new leader epoch from `offset` on if somebody may have read what goes. Else it is as if it had never been
    there; but epochs that began in it begin here now."""
    epochs = log.segments.epochs
    if was_visible:
        log.begin_epoch(epochs.trimmed(log.segments.lowest_offset).begun(epochs.current + 1, offset))
    elif epochs.entries[-1][1] > offset:
        log.begin_epoch(epochs.begun(epochs.current, offset))


def _retreat_upkeep(log: Appender, offset: int) -> None:
    """What upkeep has done from `offset` on was done to records that go. If it is not forgotten before they do, new
    records at these offsets would be taken for compacted ones."""
    state = load_state(log.directory)
    if state.retreat(offset):
        store_state(log.directory, state)


def _delete_above(log: Appender, base_offset: int) -> None:
    """Remove the files of all later segments, newest first; also those of a rotation that failed.

    Each is gone from the disk before the next one goes: a power cut that takes names in another order than they were
    removed would leave a gap before a segment that is still there.
    """
    for name in reversed(log.directory.names()):
        base = segment_base(name)
        if base is not None and base > base_offset:
            for suffix in (LOG, INDEX, TIME_INDEX):
                log.directory.remove(file_name(base, suffix))
            log.directory.sync()


def _cut_point(log: Appender, segment: Segment, offset: int) -> tuple[int, bytes, int, int]:
    """Where the file is cut, a batch with the kept records of the one that is cut through, where that one ends, and the
    first offset after the whole batches before the cut: what lies at that position, if a crash comes before the cut."""
    for chunk in segment.chunks(offset, offset + 1):
        row = chunk.rows[0]
        position = chunk.origin + int(row[POSITION])
        if row[BASE] >= offset:
            return position, b"", position, offset
        return position, _head_of(log, chunk, offset), position + int(row[SIZE]), int(row[BASE])
    return segment.size, b"", segment.size, offset


def _head_of(log: Appender, chunk: Chunk, offset: int) -> bytes:
    """The first batch of a chunk with its records below `offset` only, byte for byte as they were."""
    row = chunk.rows[0]
    base, attributes = int(row[BASE]), int(row[ATTRIBUTES])
    body, start, end = chunk.view, int(row[BODY]), int(row[BODY_END])
    codec = attributes & COMPRESSION_MASK
    if codec:
        body = decompress(codec, chunk.view[start:end], max_bytes=log.config.max_decompressed_bytes)
        start, end = 0, len(body)
    count, end, newest = kernel.head_of(body, start, end, int(row[COUNT]), offset - base)
    if count < 0:
        raise CorruptBatch(MALFORMED)
    level = log.config.compression_level if codec == log.recipe.codec else None
    packed = compress(codec, body[start:end], level, max_bytes=log.config.max_decompressed_bytes) if codec else None
    if packed is None:
        attributes, packed = attributes & ~COMPRESSION_MASK, body[start:end]
    made = bytearray(HEADER_BYTES + len(packed))
    made[HEADER_BYTES:] = packed
    kernel.write_header(
        memoryview(made),
        0,
        base,
        len(made),
        int(row[LEADER_EPOCH]),
        attributes,
        offset - 1 - base,
        int(row[BASE_TIME]),
        int(row[MAX_TIME]) if attributes & TIMESTAMP_TYPE_BIT else int(row[BASE_TIME]) + newest,
        int(row[PRODUCER_ID]),
        int(row[PRODUCER_EPOCH]),
        int(row[BASE_SEQUENCE]),
        count,
    )
    kernel.patch_crc(memoryview(made), 0, crc32c(memoryview(made)[21:]))
    return bytes(made)


def _cut(log: Appender, segment: Segment, offset: int, position: int, rest: bytes) -> Segment:
    """What remains of a segment, as the active one."""
    directory, base = log.directory, segment.base_offset
    interval = log.config.index_interval_bytes
    segment.remove_index()
    temporary = file_name(base) + TMP
    directory.remove(temporary)
    copy = directory.create(temporary)
    source = segment.storage
    for start in range(0, position, _COPY_BYTES):
        copy.append(source.view(start, min(_COPY_BYTES, position - start)))
    if rest:
        copy.append(rest)
    copy.sync()
    copy.close()
    directory.rename(temporary, file_name(base))
    directory.sync()
    storage = directory.open(file_name(base))
    index = SegmentIndex(base, interval)
    size = position + len(rest)
    made = Segment.active(directory, base, storage, index, offset, size)
    made.dense = segment.dense
    made.walk(storage, 0, size, index)
    return made


def trim(log: Appender, offset: int) -> int:
    """Drop the records below `offset`; how many were dropped."""
    with log.exclusive():
        segments = log.segments
        lowest, following = segments.lowest_offset, segments.next_offset
        if offset < lowest:
            return 0
        if offset > following:
            raise OffsetOutOfRange(offset, lowest, following, log.directory.path)
        if offset == following and segments.active.size:
            log.rotate()
        kept = list(segments.all)
        gone: list[Segment] = []
        while len(kept) > 1 and kept[0].next_offset <= offset:
            gone.append(kept.pop(0))
        if offset > log.commit.durable_offset:
            log.sync_held()
        try:
            note_start(log, offset)
        except StorageFull:
            if not gone:
                raise
            # Make room first. The names of the files alone say where the log starts, if this is where it ends.
            segments.lowest_offset = max(lowest, kept[0].base_offset)
            _drop(log, kept, gone)
            note_start(log, offset)
        else:
            _drop(log, kept, gone)
    segments.wake()
    return offset - lowest


def note_start(log: Appender, offset: int) -> None:
    """Write down where the log starts now; or leave it where it started."""
    before, log.segments.lowest_offset = log.segments.lowest_offset, offset
    try:
        log.save(clean=False)
    except BaseException:
        log.segments.lowest_offset = before
        raise


def _drop(log: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    if gone:
        log.segments.set(kept)
        for segment in gone:
            segment.delete()
        log.directory.sync()
