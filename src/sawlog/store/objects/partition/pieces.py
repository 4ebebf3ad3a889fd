"""Encoded batches as a commit describes them: extents, idempotent producers and transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    COMMIT_MARKER,
    CONTROL_BIT,
    HEADER_BYTES,
    LAST,
    LEADER_EPOCH,
    MARKER,
    MARKER_MASK,
    MAX_TIME,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    TRANSACTIONAL_BIT,
    Rows,
)
from ....log.ingest import checked_rows
from ..state.extents import content_digest
from ..state.transactions import ABORT, COMMIT, RECORDS

#: Maximum size of an extent: the unit that is read to find a batch in it.
EXTENT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchDescription:
    """The description of batches in a commit."""

    #: [position, bytes, offsets, largest timestamp, digest] of each extent, in order.
    extents: list[list[Any]]
    #: [producer id, epoch, first sequence, last sequence, offsets before it] of each idempotent batch.
    producers: list[list[int]]
    #: [producer id, epoch, first, last, kind] of each transactional batch: see state/transactions.py.
    transactions: list[list[int]]
    #: Number of offsets that the batches take.
    count: int


def describe(data: memoryview, *, max_unpacked_bytes: int | None = None) -> BatchDescription:
    """Validate batches and describe them; with a limit, parse their records as well."""
    return described(checked_rows(data, max_unpacked_bytes=max_unpacked_bytes))


def described(rows: Rows, extent_bytes: int = EXTENT_BYTES) -> BatchDescription:
    """Describe batches whose headers are known."""
    extents: list[list[Any]] = []
    producers: list[list[int]] = []
    transactions: list[list[int]] = []
    starts: list[int] = []
    count, leader_epoch = 0, None
    for number, row in enumerate(rows):
        position, size, newest = int(row[POSITION]), int(row[SIZE]), int(row[MAX_TIME])
        offsets = int(row[LAST]) - int(row[BASE]) + 1
        last = extents[-1] if extents and row[LEADER_EPOCH] == leader_epoch else None  # one epoch each
        leader_epoch = row[LEADER_EPOCH]
        if last is not None and last[0] + last[1] == position and last[1] + size <= extent_bytes:
            extents[-1] = [last[0], last[1] + size, last[2] + offsets, max(last[3], newest)]
        else:
            extents.append([position, size, offsets, newest])
            starts.append(number)
        producer, epoch, first = int(row[PRODUCER_ID]), int(row[PRODUCER_EPOCH]), int(row[BASE_SEQUENCE])
        if producer >= 0 and row[ATTRIBUTES] & TRANSACTIONAL_BIT:
            transactions.append([producer, epoch, count, count + offsets - 1, _kind(row)])
        if producer >= 0 and first >= 0:
            producers.append([producer, epoch, first, (first + offsets - 1) % 2**31, count])
        count += offsets
    for extent, start, end in zip(extents, starts, [*starts[1:], len(rows)], strict=True):
        extent.append(content_digest(rows[start:end]))
    return BatchDescription(extents, producers, transactions, count)


def _kind(row: Any) -> int:
    """Return the role of a batch in its transaction."""
    if not row[ATTRIBUTES] & CONTROL_BIT:
        return RECORDS
    return COMMIT if row[MARKER] & MARKER_MASK == COMMIT_MARKER else ABORT


def placed(data: bytearray | memoryview, base_offset: int, leader_epoch: int = 0) -> list[tuple[int, int, int]]:
    """Give batches consecutive offsets from `base_offset` on, in place, and return (position, base, next offset) of
    each."""
    epoch = leader_epoch.to_bytes(4, "big")
    found: list[tuple[int, int, int]] = []
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        count = int.from_bytes(data[position + 23 : position + 27], "big") + 1
        data[position : position + 8] = base_offset.to_bytes(8, "big")
        data[position + 12 : position + 16] = epoch
        found.append((position, base_offset, base_offset + count))
        base_offset += count
        position += size
    return found


def place_rows(rows: Rows, base_offset: int, leader_epoch: int = 0) -> None:
    """Set consecutive offsets in parsed headers, without changing the batches."""
    counts = rows[:, LAST] - rows[:, BASE] + 1
    ends = base_offset + np.cumsum(counts)
    rows[:, BASE] = ends - counts
    rows[:, LAST] = ends - 1
    rows[:, LEADER_EPOCH] = leader_epoch


def append_action(
    topic: str, partition: int, key: str, described_: BatchDescription, expect: int | None
) -> dict[str, Any]:
    """Return the action that places batches."""
    action: dict[str, Any] = {
        "do": "append",
        "topic": topic,
        "partition": partition,
        "key": key,
        "extents": described_.extents,
    }
    if described_.producers:
        action["producers"] = described_.producers
    if described_.transactions:
        action["transactions"] = described_.transactions
    if expect is not None:
        action["expect"] = expect
    return action
