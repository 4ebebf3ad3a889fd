"""What can be wrong in a Kafka partition: places without a complete batch, offsets that no batch covers, and messages
in formats older than ours."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Literal

import numpy as np

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import BASE, LAST, Rows
from ..errors import UnknownFormat
from ..log.segment.segment import Segment
from ..storage import Storage
from .damage import Finding, Kind

#: A message before RecordBatch v2: [offset i64][size i32][CRC-32 u32][magic i8]...
_OLD = struct.Struct(">qiIb")
OLD_LEAST_BYTES = 14
#: More than the maximum size of a message, unless it was configured higher.
_OLD_MOST_BYTES = 16 << 20


class Gaps:
    """Counts offsets that no batch covers."""

    def __init__(self, start: int) -> None:
        self._next_offset = start
        self.count = self.offsets = 0
        #: The first of these offsets.
        self.first = -1

    def pass_over(self, rows: Rows) -> None:
        """Count the batches that come next."""
        missing = rows[:, BASE] - np.concatenate(([self._next_offset], rows[:-1, LAST] + 1))
        holes = np.flatnonzero(missing > 0)
        if len(holes):
            if not self.count:
                self.first = int(rows[holes[0], BASE] - missing[holes[0]])
            self.count += len(holes)
            self.offsets += int(missing[holes].sum())
        self._next_offset = int(rows[-1, LAST]) + 1

    def close(self, end: int) -> None:
        """Count up to the end of the log."""
        if end > self._next_offset:
            self.first = self.first if self.count else self._next_offset
            self.count, self.offsets = self.count + 1, self.offsets + end - self._next_offset


class BrokenPlace:
    """A place without a complete batch, and what that means."""

    def __init__(self, segment: Segment, storage: Storage, position: int, next_offset: int, reason: str) -> None:
        self._segment, self._storage = segment, storage
        self._position, self._next_offset, self._reason = position, next_offset, reason
        self._size = segment.size - position

    def found(self, may_be_torn: Callable[[int], bool] | None = None) -> tuple[Finding, int, int]:
        """What is wrong, and the position and offset where good batches begin again: the end, if there are none.

        `may_be_torn` is given at the end of the last segment: it says whether the bytes after an offset can be an
        interrupted append."""
        self._refuse_old()
        segment, end = self._segment, self._segment.size
        at, base = segment.resume(self._storage, self._position, end, self._next_offset)
        if base is not None:
            return self._lost(at - self._position), at, base
        if may_be_torn is None:
            return self._lost(self._size), end, self._next_offset
        rest = self._storage.view(self._position, self._size)
        if not self._has_batch(rest):
            if not np.frombuffer(rest, np.uint8).any():
                return self._tail(Kind.ZERO_TAIL, "space that was never written", "cut"), end, self._next_offset
            if may_be_torn(self._next_offset):
                return self._tail(Kind.TORN_TAIL, "an append that was not finished", "cut"), end, self._next_offset
            return self._tail(Kind.TORN_TAIL, "the broker had written more", "lost"), end, self._next_offset
        return self._lost(self._size), end, self._next_offset

    def _tail(self, kind: Kind, detail: str, outcome: Literal["cut", "lost"]) -> Finding:
        size, segment = self._size, self._segment
        return Finding(
            kind, segment.name, self._position, f"{size:,} bytes: {detail}", outcome, size, self._next_offset
        )

    def _lost(self, size: int) -> Finding:
        kind = Kind.CHECKSUM if "checksum" in self._reason else Kind.UNREADABLE
        return Finding(kind, self._segment.name, self._position, self._reason, "lost", size, self._next_offset)

    def _has_batch(self, rest: memoryview) -> bool:
        """Whether a complete batch with the right checksum follows anywhere: an interrupted append leaves none."""
        at = kernel.find_header(rest, 0, len(rest), self._segment.base_offset)
        while at >= 0:
            size = 12 + int.from_bytes(rest[at + 8 : at + 12], "big")
            crc = int.from_bytes(rest[at + 17 : at + 21], "big")
            if crc32c(rest[at + 21 : at + size]) == crc:
                return True
            at = kernel.find_header(rest, at + 1, len(rest), self._segment.base_offset)
        return False

    def _refuse_old(self) -> None:
        magic = old_magic(self._storage.view(self._position, min(self._size, _OLD_MOST_BYTES)))
        if magic is not None:
            raise UnknownFormat(
                f"{self._segment.path} at byte {self._position}: messages in format v{magic}, from before Kafka 0.11. "
                "Sawlog reads v2: copy the topic to a new one with a broker of Kafka 2 or 3, then import that"
            )


def old_magic(data: memoryview) -> int | None:
    """0 or 1 if the bytes begin with a complete message of that format with the right checksum."""
    if len(data) < 12 + OLD_LEAST_BYTES:
        return None
    offset, size, crc, magic = _OLD.unpack_from(data)
    if magic not in (0, 1) or offset < 0 or not OLD_LEAST_BYTES <= size <= len(data) - 12:
        return None
    return magic if zlib.crc32(data[16 : 12 + size]) == crc else None
