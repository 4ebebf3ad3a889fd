"""What the bytes of a laminarmq store prove about the entries of its index: checksums decide which entry is right."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np

from .columns import MAX_VALUE_BYTES
from .walking import CHUNK_BYTES, Cursor, SegmentFile, WalkedLog

ENTRY_BYTES = 16
ENTRY = np.dtype([("checksum", "<u8"), ("length", "<u4"), ("position", "<u4")])
#: The minimum size of a record: the length of its metadata and one byte of it.
LEAST_BYTES = 5


def proves(log: WalkedLog, segment: SegmentFile, position: int, length: int, checksum: int) -> bool:
    """Whether the bytes there have that checksum."""
    if not LEAST_BYTES <= length <= MAX_VALUE_BYTES or position + length > segment.size or checksum >> 32:
        return False
    found, end = 0, position + length
    while position < end:
        size = min(CHUNK_BYTES, end - position)
        found = crc32(log.read_data(segment, position, size), found)
        position += size
    return found == checksum


def misaligned_by(log: WalkedLog, segment: SegmentFile, cursor: Cursor) -> int:
    """By how many bytes the entries are misaligned after a torn one; 0 if they are not."""
    raw = log.read_index(segment, cursor.entry, min(2 * ENTRY_BYTES, segment.index_size - cursor.entry))
    for shift in range(1, min(len(raw) - ENTRY_BYTES + 1, ENTRY_BYTES)):
        checksum, length, position = (int(n) for n in np.frombuffer(raw, ENTRY, 1, shift)[0])
        if position >= cursor.position and proves(log, segment, position, length, checksum):
            return shift
    return 0


def other_lengths(
    segment: SegmentFile, cursor: Cursor, entries: np.ndarray[tuple[int], np.dtype[np.void]]
) -> Iterator[int]:
    """The possible length of the record if its entry is wrong: up to the next record, or to the end."""
    if len(entries) > 1:
        yield int(entries["position"][1]) - cursor.position
    if segment.index_size - cursor.entry < 2 * ENTRY_BYTES:
        yield segment.size - cursor.position


def is_zero_from(log: WalkedLog, segment: SegmentFile, entry: int) -> bool:
    """Whether the index has only zeros from there on."""
    size = ENTRY_BYTES
    while entry < segment.index_size:
        size = min(size, segment.index_size - entry)
        if np.frombuffer(log.read_index(segment, entry, size), np.uint8).any():
            return False
        entry, size = entry + size, CHUNK_BYTES
    return True


def marked(log: WalkedLog, segment: SegmentFile) -> int:
    """The base in the marker of the index."""
    return int.from_bytes(log.read_index(segment, 0, 8), "little")


def holds_records(log: WalkedLog, segment: SegmentFile, cursor: Cursor) -> bool:
    """Whether more than one record follows the last entry: the metadata of the next but one is there."""
    index = cursor.count.stored + 2
    size = min(segment.size - cursor.position, CHUNK_BYTES)
    rest = bytes(log.read_data(segment, cursor.position, size))
    for width in (4, 8):
        if 0 <= index < 1 << (8 * width):
            pattern = (1 + width).to_bytes(4, "little") + b"\1" + index.to_bytes(width, "little")
            if pattern in rest[LEAST_BYTES:]:
                return True
    return False
