"""Kafka's RecordBatch v2, the format of sawlog on disk and on the wire, and access to its header.

All numbers are big endian. A batch is this header, then `record count` records, compressed as one blob or not:

```
 0  i64  base offset             written by the log when it places the batch; not covered by the CRC
 8  i32  batch length            bytes after this field
12  i32  partition leader epoch  also written by the log; not covered by the CRC
16  i8   magic = 2
17  u32  CRC-32C                 of everything from here + 4 to the end
21  i16  attributes              bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
23  i32  last offset delta       last offset = base offset + this
27  i64  base timestamp          ms since 1970
35  i64  max timestamp
43  i64  producer id             -1 none
51  i16  producer epoch
53  i32  base sequence
57  i32  record count
61  ...  records: varint length · i8 attributes · varint timestamp delta · varint offset delta ·
         varint key length (-1 null) · key · varint value length (-1 null) · value ·
         varint header count · (varint key length · key · varint value length · value)*
```

All varints are zig-zag. They need not be minimal: a streamed record pads its lengths to five bytes, because they are
known last. Since the CRC does not cover base offset and leader epoch, a finished batch can be placed at any offset of
any log by patching 12 bytes.

A `rows` array holds many headers at once: two-dimensional int64, one row per batch, with the columns named below. The
kernel fills it. `scan_rows` returns the headers of a buffer as rows, `scan` as objects; `batch_spans` splits bytes into
batches by their lengths alone, and `visible_batches` selects the batches whose records a reader may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import CorruptBatch
from . import kernel
from .checksum import crc32c

HEADER_BYTES = kernel.HEADER_BYTES

#: Columns of a row; `kernel/declarations.py` describes each.
POSITION = kernel.POSITION
SIZE = kernel.SIZE
BASE = kernel.BASE
LAST = kernel.LAST
COUNT = kernel.COUNT
ATTRIBUTES = kernel.ATTRIBUTES
BASE_TIME = kernel.BASE_TIME
MAX_TIME = kernel.MAX_TIME
PRODUCER_ID = kernel.PRODUCER_ID
PRODUCER_EPOCH = kernel.PRODUCER_EPOCH
BASE_SEQUENCE = kernel.BASE_SEQUENCE
CRC = kernel.CRC
BODY = kernel.BODY
BODY_END = kernel.BODY_END
LEADER_EPOCH = kernel.LEADER_EPOCH
MARKER = kernel.MARKER

#: Kinds of transaction markers, in the lowest byte of `MARKER`; the coordinator's epoch is above it.
ABORT_MARKER = kernel.ABORT_MARKER
COMMIT_MARKER = kernel.COMMIT_MARKER
MARKER_MASK = kernel.MARKER_MASK
MARKER_SHIFT = kernel.MARKER_SHIFT

#: Bits of the attributes.
COMPRESSION_MASK = kernel.COMPRESSION_MASK
TIMESTAMP_TYPE_BIT = kernel.TIMESTAMP_TYPE_BIT
TRANSACTIONAL_BIT = kernel.TRANSACTIONAL_BIT
CONTROL_BIT = kernel.CONTROL_BIT
DELETE_HORIZON_BIT = kernel.DELETE_HORIZON_BIT

#: Columns that records can have in Arrow, and the default ones. Defined here because importing arrow.py takes longer
#: than everything else together.
COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value")

Rows = npt.NDArray[np.int64]


def new_rows(count: int) -> Rows:
    return np.empty((count, kernel.ROW_WIDTH), np.int64)


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """One batch's header as a Python object, for inspection and for code that need not be fast. `count` is the number
    of records: a control batch has none."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    count: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    crc: int
    leader_epoch: int

    @classmethod
    def from_row(cls, row: Any) -> BatchHeader:
        """Create a header from one row of a `rows` array."""
        numbers = [int(x) for x in row]
        return cls(*numbers[:BODY], *numbers[LEADER_EPOCH : LEADER_EPOCH + 1])

    @property
    def compression(self) -> int:
        """Codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """0: the producer set the timestamps; 1: the log did, and all records have `max_timestamp`."""
        return 1 if self.attributes & TIMESTAMP_TYPE_BIT else 0

    @property
    def is_control(self) -> bool:
        """True if the batch is a transaction marker instead of data."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)


def scan_rows(
    view: memoryview, start: int = 0, end: int | None = None, *, least_offset: int = 0
) -> tuple[Rows, int, int]:
    """Return the headers of the complete batches in a buffer, the position after them, and why the scan stopped there:
    `SCAN_END`, `SCAN_SHORT` in front of an incomplete batch, or `SCAN_BAD` where there is no header. Their offsets
    increase from `least_offset` on; -1: they may be any."""
    end = len(view) if end is None else end
    parts: list[Rows] = []
    why = kernel.SCAN_MORE
    while why == kernel.SCAN_MORE:
        rows = new_rows(256)
        n, start, why, _ = kernel.scan_batches(view, start, end, end, least_offset, memoryview(rows))
        parts.append(rows[:n])
        if n and least_offset >= 0:
            least_offset = int(rows[n - 1, LAST]) + 1
    return parts[0] if len(parts) == 1 else np.concatenate(parts), start, int(why)


def scan(buffer: Any, start: int = 0, end: int | None = None) -> list[BatchHeader]:
    """Return the headers of all batches in a buffer; raise `CorruptBatch` at the first incomplete one."""
    rows, stopped, why = scan_rows(memoryview(buffer).cast("B"), start, end)
    if why != kernel.SCAN_END:
        what = "an incomplete batch" if why == kernel.SCAN_SHORT else "no batch header"
        raise CorruptBatch(f"{what} at byte {stopped}")
    return [BatchHeader.from_row(row) for row in rows]


def crc_matches(buffer: memoryview, position: int, size_bytes: int, crc: int) -> bool:
    """Return whether the content of the batch at `position` matches its CRC."""
    return crc32c(buffer[position + 21 : position + size_bytes]) == crc


#: Bytes of a batch that its length field does not count.
_BEFORE_LENGTH = 12


class BatchSpan(NamedTuple):
    """Position and size of a batch, and the number of offsets it covers."""

    position: int
    size_bytes: int
    offsets: int


def batch_spans(view: memoryview) -> tuple[list[BatchSpan], int]:
    """Split bytes into batches by their lengths alone: their offsets and epochs may be wrong, if a process died while
    filling them in. Return the complete batches, and the size of an incomplete one that follows them; 0 if nothing
    follows, or the bytes there are not a batch."""
    found: list[BatchSpan] = []
    at, end = 0, len(view)
    while end - at >= HEADER_BYTES:
        size = _BEFORE_LENGTH + int.from_bytes(view[at + 8 : at + 12], "big", signed=True)
        count = 1 + int.from_bytes(view[at + 23 : at + 27], "big", signed=True)
        if size < HEADER_BYTES or count < 1:
            return found, 0
        if size > end - at:
            return found, size
        found.append(BatchSpan(at, size, count))
        at += size
    return found, 0


def visible_batches(rows: Rows, aborted: Sequence[tuple[int, int]]) -> Rows:
    """Select the batches whose records a reader may see: no markers, and nothing from the `aborted` transactions.

    `aborted` lists (producer id, first offset), sorted by offset. From that offset to the producer's next marker, its
    transactional batches are skipped.
    """
    special = (rows[:, ATTRIBUTES] & (CONTROL_BIT | TRANSACTIONAL_BIT)) != 0
    if not special.any():
        return rows
    waiting, inside = list(reversed(aborted)), set[int]()
    kept = np.ones(len(rows), bool)
    for number in np.flatnonzero(special).tolist():
        last, attributes, producer_id = (int(rows[number, at]) for at in (LAST, ATTRIBUTES, PRODUCER_ID))
        while waiting and waiting[-1][1] <= last:
            inside.add(waiting.pop()[0])
        if attributes & CONTROL_BIT:
            inside.discard(producer_id)
            kept[number] = False
        elif producer_id in inside:
            kept[number] = False
    return rows[kept]
