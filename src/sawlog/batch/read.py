"""Decode batches to records.

Readers work on a buffer and a `rows` array with the positions of the batches in it. The steps are always the same:
`scan_rows` finds the headers, `first_bad_crc` verifies the content, `unpack` decompresses, and `records` or
`sawlog.batch.arrow` decode.

Every error is a `CorruptBatch`; callers that know path and position add them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import CorruptBatch
from . import kernel
from .checksum import crc32c
from .compression import decompress
from .header import (
    ATTRIBUTES,
    BASE,
    BODY,
    BODY_END,
    COMPRESSION_MASK,
    COUNT,
    CRC,
    LAST,
    POSITION,
    SIZE,
    Rows,
    scan_rows,
    visible_batches,
)
from .kernel import Record

#: Up to this size the kernel computes a CRC faster than the crc32c package. Above, the package is as fast, and faster
#: on bytes that are not in the CPU's cache.
SMALL_BYTES = 32_768

#: Placeholder for offsets, data and bitmap of a column that is not decoded.
_NO_PAYLOAD = (memoryview(np.empty(1, np.int32)), memoryview(bytearray(1)), memoryview(bytearray(1)))

MALFORMED = "the records of a batch do not parse, although its checksum is right"


def first_bad_crc(view: memoryview, rows: Rows) -> int:
    """Return the number of the first row whose content does not match its CRC, or -1."""
    if len(rows) and int(rows[:, SIZE].min()) <= SMALL_BYTES:
        return _first_bad_of_mixed(view, rows)
    for i, (position, size, crc) in enumerate(rows[:, (POSITION, SIZE, CRC)].tolist()):
        if crc32c(view[position + 21 : position + size]) != crc:
            return i
    return -1


def _first_bad_of_mixed(view: memoryview, rows: Rows) -> int:
    lines = memoryview(rows)
    i: int = 0
    wrong: bool
    while True:
        i, wrong = kernel.check_small(view, lines, i, SMALL_BYTES)
        if wrong:
            return i
        if i == len(rows):
            return -1
        position, size = int(rows[i, POSITION]), int(rows[i, SIZE])
        if crc32c(view[position + 21 : position + size]) != rows[i, CRC]:
            return i
        i += 1


def unpack(view: memoryview, rows: Rows, max_bytes: int) -> Iterator[tuple[memoryview, Rows, CorruptBatch | None]]:
    """Yield the batches in runs that the kernel can decode: uncompressed ones in place, each compressed one
    decompressed.

    A batch that cannot be decompressed is yielded last, as its row and the error.
    """
    if not kernel.any_attribute(memoryview(rows), COMPRESSION_MASK):
        yield view, rows, None
        return
    packed = rows[:, ATTRIBUTES] & COMPRESSION_MASK
    start = 0
    for i in np.flatnonzero(packed).tolist():
        if i > start:
            yield view, rows[start:i], None
        row = rows[i : i + 1].copy()
        try:
            body = decompress(int(packed[i]), view[row[0, BODY] : row[0, BODY_END]], max_bytes=max_bytes)
        except CorruptBatch as error:
            yield view, rows[i : i + 1], error
            return
        if row[0, COUNT] > len(body) // 7:  # a record takes at least seven bytes
            yield view, rows[i : i + 1], CorruptBatch(MALFORMED)
            return
        row[0, BODY], row[0, BODY_END] = 0, len(body)
        yield body, row, None
        start = i + 1
    if start < len(rows):
        yield view, rows[start:], None


def malformed(view: memoryview, rows: Rows, max_bytes: int) -> Iterator[tuple[int, CorruptBatch]]:
    """Yield the row number and error of the first batch whose records cannot be decoded, although its checksum may be
    right. Later batches are not examined: call again from the next row."""
    done = 0
    for body, run, error in unpack(view, rows, max_bytes):
        if error is not None:
            yield done, error
            return
        total = int(run[:, COUNT].sum())
        numbers = memoryview(np.empty(2 * total, np.int64))
        said = kernel.decode_columns(
            body,
            memoryview(run),
            len(run),
            -1,
            numbers[:total],
            numbers[total:],
            *_NO_PAYLOAD,
            *_NO_PAYLOAD,
            False,
            False,
        )
        bad: int = said[0]
        if said[6]:  # `decode_columns` does not check headers; those before `bad` may be malformed too
            wrong = _first_bad_headers(body, run if bad < 0 else run[:bad], said[6])
            bad = bad if wrong < 0 else wrong
        if bad >= 0:
            yield done + bad, CorruptBatch(MALFORMED)
            return
        done += len(run)


def _first_bad_headers(view: memoryview, rows: Rows, most: int) -> int:
    """Return the number of the first row with a record whose headers do not parse, or -1. `most` is the maximum number
    of headers."""
    size = int((rows[:, BODY_END] - rows[:, BODY]).sum())
    lists, names, contents = (memoryview(np.empty(n + 1, np.int32)) for n in (int(rows[:, COUNT].sum()), most, most))
    data = memoryview(np.empty(2 * size, np.uint8))
    valid = memoryview(np.empty((most + 7) >> 3, np.uint8))
    bad: int = kernel.decode_headers(
        view, memoryview(rows), len(rows), lists, names, data[:size], contents, data[size:], valid
    )[0]
    return bad


def records(view: memoryview, rows: Rows, start: int, end: int, found: list[Record], max_bytes: int) -> int:
    """Append the records with start <= offset < end to `found`. Return -1, or the row that does not parse.

    Raises `CorruptBatch` for a batch that cannot be decompressed; `found` then has the records before it.
    """
    done = 0
    for body, run, error in unpack(view, rows, max_bytes):
        if error is not None:
            raise error
        bad: int = kernel.decode_records(body, memoryview(run), 0, len(run), start, end, found)
        if bad >= 0:
            return done + bad
        done += len(run)
    return -1


def plain_cursors(
    buffers: Sequence[memoryview],
    start: int,
    end: int,
    topic: str | None = None,
    partition: int = -1,
    *,
    check: bool = False,
) -> Generator[kernel.RecordCursor, None, tuple[int, int, int]]:
    """Yield cursors over the plain batches at the beginning of a page; drain each before the next. Return the place of
    the first other batch (number of its buffer, position there) and the next offset."""
    for number, view in enumerate(buffers):
        position, size = 0, len(view)
        while position < size:
            cursor = kernel.page_cursor(view[position:] if position else view, start, end, topic, partition, check)
            if cursor is None:
                return number, position, start
            yield cursor
            start = cursor.next_offset
            if cursor.stopped:
                return len(buffers), 0, end
            position += cursor.position
            if cursor.bad >= 0:
                return number, position, start
    return len(buffers), 0, start


def page_records(
    buffers: Sequence[memoryview],
    start: int,
    aborted: Sequence[tuple[int, int]],
    topic: str | None,
    partition: int,
    max_bytes: int,
) -> Iterator[kernel.RecordCursor]:
    """Yield cursors over the records of a page from `start` on, verified, without those of `aborted` transactions."""
    end = 2**63 - 1
    number, position, start = yield from plain_cursors(buffers, start, end, topic, partition, check=True)
    if number == len(buffers):
        return
    # No batch before this one is part of a transaction, so `visible_batches` need not see them.
    rest = buffers[number][position:]
    if number + 1 < len(buffers):
        rest = memoryview(b"".join((rest, *buffers[number + 1 :])))
    rows, _, why = scan_rows(rest)
    bad = first_bad_crc(rest, rows)
    for body, run, error in unpack(rest, visible_batches(rows if bad < 0 else rows[:bad], aborted), max_bytes):
        if error is not None:
            raise error
        cursor = kernel.RecordCursor(body, memoryview(run), start, end, topic, partition)
        yield cursor
        if cursor.bad >= 0:
            raise CorruptBatch(MALFORMED)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at offset {rows[bad, BASE]} does not match")
    if why != kernel.SCAN_END:
        raise CorruptBatch(f"no complete batch after offset {rows[-1, LAST] if len(rows) else start - 1}")


def decode(buffer: Any, start: int = 0, end: int = 2**63 - 1, *, max_bytes: int = 1 << 30) -> list[Record]:
    """Decode and verify all records of one or more complete batches, including those of aborted transactions. `start`
    and `end` are offsets."""
    view = memoryview(buffer).cast("B")
    rows, stopped, why = scan_rows(view)
    bad = first_bad_crc(view, rows)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at byte {rows[bad, POSITION]} does not match")
    found: list[Record] = []
    if records(view, rows, start, end, found, max_bytes) >= 0:
        raise CorruptBatch(MALFORMED)
    if why != kernel.SCAN_END:
        raise CorruptBatch(f"no complete batch at byte {stopped}")
    return found
