"""Truncating the files of a log at an offset: later segments are deleted, and one segment is rewritten.

Truncation keeps [lowest, offset). If a dropped record was visible, a new leader epoch begins at `offset`, so that
readers can detect the truncation (see epochs.py). The epoch and a lowered watermark are recorded durably. Only then is
the dropped part hidden from readers, so that no reader sees the shorter log and later the longer one again. If no
dropped record was visible, there is nothing to detect, and a crash half-way leaves a longer log.

A truncation is *committed* when the checkpoint durably names a list of leader epochs whose last one begins at the
offset. From then on it can only be finished, by the same process or by the next one that opens the log for writing. A
crash before that leaves a longer log, never a damaged one.

Later segments are deleted first, newest first, each one durably. The segment that contains the offset is never
truncated in place, because readers may have it mapped: the remainder is written to a new file, fsynced and renamed over
it. A batch with both kept and dropped records is rebuilt with the kept ones, at the same offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.compression import codec_id, compress, decompress
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
from ..config import LogConfig
from ..errors import CorruptBatch
from ..storage import Directory
from .batches import Chunk
from .epochs import Epochs
from .files import INDEX, LOG, TIME_INDEX, TMP, TXN_INDEX, file_name, segment_base
from .index import SegmentIndex
from .segment import Segment
from .segments import SegmentSet

_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class CutPoint:
    """Position at which a segment is cut."""

    segment: Segment
    #: First dropped offset.
    offset: int
    #: Position of the cut in the file, and the bytes to write there: the kept records of a batch that is cut through.
    position: int
    rest: bytes
    #: End of that batch, which readers need until the cut is done.
    visible: int
    #: First offset after the complete batches before the cut: the offset at `position` if a crash comes first.
    whole: int

    @property
    def tail(self) -> tuple[int, int, int]:
        """(offset, segment, position) up to which the log is kept, whether or not the cut completes."""
        return self.whole, self.segment.base_offset, self.position


def epochs_after(segments: SegmentSet, offset: int) -> Epochs:
    """Return the leader epochs of a log cut at `offset`, with a new one if the dropped part may have been read.
    Otherwise, epochs that began in the dropped part now begin at `offset`."""
    epochs = segments.epochs
    if segments.visible_offset > offset:
        return epochs.trimmed(segments.log_start).begun(epochs.current + 1, offset)
    return epochs.begun(epochs.current, offset) if epochs.entries[-1][1] > offset else epochs


def delete_above(directory: Directory, base_offset: int) -> None:
    """Remove the files of all later segments, newest first, including those of a failed rotation.

    Each removal is synced before the next: a power cut that reorders them would leave a gap before a remaining
    segment.
    """
    for name in reversed(directory.names()):
        base = segment_base(name)
        if base is not None and base > base_offset:
            for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
                directory.remove(file_name(base, suffix))
            directory.sync()


def find_cut_point(segment: Segment, offset: int, config: LogConfig) -> CutPoint:
    """Find the position at which to cut a segment, without changing it. `CorruptBatch` if it cannot be read."""
    for chunk in segment.chunks(offset, offset + 1):
        row = chunk.rows[0]
        position = chunk.origin + int(row[POSITION])
        if row[BASE] >= offset:
            return CutPoint(segment, offset, position, b"", position, offset)
        rest = _head_of(chunk, offset, config)
        return CutPoint(segment, offset, position, rest, position + int(row[SIZE]), int(row[BASE]))
    return CutPoint(segment, offset, segment.size, b"", segment.size, offset)


def _head_of(chunk: Chunk, offset: int, config: LogConfig) -> bytes:
    """Rebuild the first batch of a chunk with only its records below `offset`, byte for byte unchanged."""
    row = chunk.rows[0]
    base, attributes = int(row[BASE]), int(row[ATTRIBUTES])
    body, start, end = chunk.view, int(row[BODY]), int(row[BODY_END])
    codec = attributes & COMPRESSION_MASK
    if codec:
        body = decompress(codec, chunk.view[start:end], max_bytes=config.max_decompressed_bytes)
        start, end = 0, len(body)
    count, end, newest = kernel.head_of(body, start, end, int(row[COUNT]), offset - base, int(row[BASE_TIME]))
    if count < 0:
        raise CorruptBatch(MALFORMED)
    level = config.compression_level if codec == codec_id(config.compression) else None
    packed = compress(codec, body[start:end], level, max_bytes=config.max_decompressed_bytes) if codec else None
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
        int(row[MAX_TIME]) if attributes & TIMESTAMP_TYPE_BIT else newest,
        int(row[PRODUCER_ID]),
        int(row[PRODUCER_EPOCH]),
        int(row[BASE_SEQUENCE]),
        count,
    )
    kernel.patch_crc(memoryview(made), 0, crc32c(memoryview(made)[21:]))
    return bytes(made)


def truncate_segment(directory: Directory, config: LogConfig, point: CutPoint) -> Segment:
    """Cut a segment and return the remainder as the active segment."""
    segment, position, rest = point.segment, point.position, point.rest
    base, interval = segment.base_offset, config.index_interval_bytes
    segment.remove_index()
    directory.remove(file_name(base, TXN_INDEX))
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
    made = Segment.active(directory, base, storage, index, point.offset, size)
    made.walk(storage, 0, size, index)
    return made
