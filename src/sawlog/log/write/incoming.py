"""Encoded batches from a caller: found, checked, those that are already stored left out, and placed.

Headers and checksums are always checked, the records inside unless this library has written them (decoding compressed
ones costs more than all the rest).
"""

from __future__ import annotations

import numpy as np

from ...batch import kernel
from ...batch.checksum import crc32c
from ...batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
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
from ...batch.read import first_bad_crc, malformed
from ...clock import now_ms
from ...errors import CorruptBatch, InvalidRecord, OutOfOrderSequence
from .appender import Appender
from .producers import ProducerState


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


def place(appender: Appender, data: memoryview, *, trusted: bool) -> range:
    """Place batches in a buffer of ours, giving them the next offsets; all of them or none. Does not wait for a
    disk."""
    rows = checked_rows(data, max_unpacked_bytes=None if trusted else appender.config.max_decompressed_bytes)
    with appender.lock:
        rows, placed = _without_duplicates(appender.producers, rows)
        if len(rows):
            if appender.config.timestamp_type == "append":
                _stamp_batches(data, rows)
            if not _is_contiguous(rows):
                data, rows = _compacted(data, rows)
            placed = appender.place_rows(data, rows)
    return placed


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


def _stamp_batches(data: memoryview, rows: Rows) -> None:
    """LogAppendTime: the log's clock for all records of the batches."""
    now = now_ms()
    for row in rows:
        position, size = int(row[POSITION]), int(row[SIZE])
        batch = data[position : position + size]
        batch[21:23] = (int(row[ATTRIBUTES]) | TIMESTAMP_TYPE_BIT).to_bytes(2, "big")
        batch[35:43] = now.to_bytes(8, "big")
        row[MAX_TIME] = now
        kernel.patch_crc(batch, 0, crc32c(batch[21:]))
