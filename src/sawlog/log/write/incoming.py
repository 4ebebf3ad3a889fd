"""Encoded batches from a caller: found, checked, those that are already stored left out, and placed.

Headers and checksums are always checked, the records inside unless this library has written them (decoding compressed
ones costs more than all the rest).

One batch alone is what a broker gets most often, so it has a way of its own (`_place_sole`) with the same checks: for a
small one, numpy's arrays of one row cost more than everything else together.
"""

from __future__ import annotations

import numpy as np

from ...batch import kernel
from ...batch.build import NOBODY, Producer
from ...batch.checksum import crc32c
from ...batch.compression import decompress
from ...batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LAST,
    MAX_TIME,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Rows,
    new_rows,
)
from ...batch.read import MALFORMED, first_bad_crc, malformed
from ...clock import now_ms
from ...errors import CorruptBatch, InvalidRecord, OutOfOrderSequence
from .appender import Appender
from .producers import ProducerState

#: Batches that change what is known of transactions.
_SPECIAL = CONTROL_BIT | TRANSACTIONAL_BIT


def checked_rows(data: memoryview, *, max_unpacked_bytes: int | None = None) -> Rows:
    """The headers of these batches, at least one, whose checksums are right; with a limit for decompression, the
    records are parsed as well."""
    rows = rows_of(data)
    if not len(rows):
        raise InvalidRecord("no batch to append")
    bad = first_bad_crc(data, rows)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at byte {rows[bad, POSITION]} does not match; not stored")
    for number, error in () if max_unpacked_bytes is None else malformed(data, rows, max_unpacked_bytes):
        where = int(rows[number, POSITION])
        raise type(error)(f"{error.reason} (the batch at byte {where}; nothing was stored)")
    return rows


def place(
    appender: Appender, data: memoryview, trusted: bool, expect_offset: int | None, max_decompressed_bytes: int | None
) -> range:
    """Place batches in a buffer of ours, giving them the next offsets; all of them or none. Does not wait for a disk.
    What is expected is compared after duplicates are recognised: whoever sends again has the old expectation."""
    allowed = appender.config.max_decompressed_bytes
    max_unpacked_bytes = None if trusted else min(allowed, max_decompressed_bytes or allowed)
    if expect_offset is None:
        sole = _place_sole(appender, data, max_unpacked_bytes)
        if sole is not None:
            return sole
    rows = checked_rows(data, max_unpacked_bytes=max_unpacked_bytes)
    with appender.lock:
        rows, placed = _without_duplicates(appender.producers, rows)
        if len(rows):
            if appender.config.timestamp_type == "append":
                stamp_batches(data, rows)
            if not _is_contiguous(rows):
                data, rows = _compacted(data, rows)
            placed = appender.place_rows(data, rows, expect_offset)
    return placed


def _place_sole(appender: Appender, data: memoryview, max_unpacked_bytes: int | None) -> range | None:
    """The same for one batch that is not part of a transaction; None if that is not what there is, or if it cannot be
    stored for a reason that the ordinary way will state."""
    header = kernel.sole_batch(data)
    if header is None or appender.segments.unsettled or len(data) > appender.config.segment_bytes:
        return None
    attributes, count, delta, newest, producer_id, epoch, sequence, crc = header
    if attributes & _SPECIAL or (producer_id < 0, epoch < 0) != (sequence < 0,) * 2 or crc32c(data[21:]) != crc:
        return None
    if max_unpacked_bytes is not None:
        _check_records(data, attributes & COMPRESSION_MASK, count, delta, max_unpacked_bytes)
    producer = NOBODY if producer_id < 0 else Producer(producer_id, epoch, sequence)
    if appender.config.timestamp_type == "create":
        return appender.place(kernel.Encoded(data, delta + 1, -1, newest), producer=producer)
    with appender.lock:  # so that times increase with offsets
        newest = _stamp(data, attributes)
        return appender.place(kernel.Encoded(data, delta + 1, -1, newest), producer=producer)


def _check_records(data: memoryview, codec: int, count: int, delta: int, max_bytes: int) -> None:
    """Raise unless the records of one batch can be decoded."""
    try:
        body, start = (
            (decompress(codec, data[HEADER_BYTES:], max_bytes=max_bytes), 0) if codec else (data, HEADER_BYTES)
        )
        if not kernel.records_parse(body, start, count, delta):
            raise CorruptBatch(MALFORMED)
    except CorruptBatch as error:
        raise type(error)(f"{error.reason} (the batch at byte 0; nothing was stored)") from None


def rows_of(data: memoryview) -> Rows:
    """The headers of encoded batches, whatever their offsets; `CorruptBatch` if one is incomplete."""
    parts: list[Rows] = []
    position = 0
    while position < len(data):
        rows = new_rows(1024)
        n, position, why, _ = kernel.scan_batches(data, position, len(data), len(data), -1, memoryview(rows))
        parts.append(rows[:n])
        if why not in (kernel.SCAN_MORE, kernel.SCAN_END):
            raise CorruptBatch(f"no complete batch at byte {position}; not stored")
    return np.concatenate(parts) if parts else new_rows(0)


def _without_duplicates(state: ProducerState, rows: Rows) -> tuple[Rows, range]:
    """The batches that are not stored yet, and the offsets of those that are."""
    known = range(0)
    fresh: list[int] = []
    ahead: dict[int, tuple[int, int]] = {}  # producer -> (epoch, next sequence), as if the fresh ones were stored
    columns = (PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, BASE, LAST, ATTRIBUTES)
    for i, row in enumerate(rows[:, columns].tolist()):
        producer_id, epoch, sequence, base, last, attributes = row
        if producer_id < 0 or sequence < 0:
            if producer_id >= 0:  # a marker, or not idempotent
                state.check_epoch(producer_id, epoch)
            fresh.append(i)
            continue
        if producer_id in ahead:
            if ahead[producer_id] != (epoch, sequence):
                raise OutOfOrderSequence(
                    f"producer {producer_id} is at epoch and sequence {ahead[producer_id]}; a batch with "
                    f"{(epoch, sequence)} is refused, with all batches of the same call"
                )
        else:
            transactional = bool(attributes & TRANSACTIONAL_BIT)
            found = state.duplicate(producer_id, epoch, sequence, last - base + 1, transactional=transactional)
            if found is not None:
                known = range(min(known.start, found.start), max(known.stop, found.stop)) if known else found
                continue
        ahead[producer_id] = epoch, (sequence + last - base + 1) % 2**31
        fresh.append(i)
    return rows[fresh], known


def _is_contiguous(rows: Rows) -> bool:
    return bool((rows[1:, POSITION] == rows[:-1, POSITION] + rows[:-1, SIZE]).all())


def _compacted(data: memoryview, rows: Rows) -> tuple[memoryview, Rows]:
    """Only these batches, contiguous: the ones between them were stored before."""
    kept = bytearray().join(data[p : p + s] for p, s in rows[:, (POSITION, SIZE)].tolist())
    return memoryview(kept), rows_of(memoryview(kept))


def stamp_batches(data: memoryview, rows: Rows) -> None:
    """LogAppendTime: the log's clock for all records of the batches."""
    for row in rows:
        position, size = int(row[POSITION]), int(row[SIZE])
        row[MAX_TIME] = _stamp(data[position : position + size], int(row[ATTRIBUTES]))


def _stamp(batch: memoryview, attributes: int) -> int:
    """The same for one batch; returns the time."""
    now = now_ms()
    batch[21:23] = (attributes | TIMESTAMP_TYPE_BIT).to_bytes(2, "big", signed=True)
    batch[35:43] = now.to_bytes(8, "big")
    kernel.patch_crc(batch, 0, crc32c(batch[21:]))
    return now
