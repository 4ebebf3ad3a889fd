"""What a fetch returned, as batches whose records a reader may see.

A response may end within a batch, and may begin before the offset that was asked for. Markers of transactions are not
records. The records of a transaction that was aborted are left out: the broker names its producer and its first offset;
from there up to the producer's next marker, its transactional batches are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...batch import kernel
from ...batch.header import ATTRIBUTES, CONTROL_BIT, LAST, POSITION, PRODUCER_ID, TRANSACTIONAL_BIT, Rows, new_rows
from ...batch.read import first_bad_crc
from ...errors import CorruptBatch

_ROWS = 256


def complete(view: memoryview) -> Rows:
    """The headers of the complete batches in a response, checked."""
    parts: list[Rows] = []
    position, least, why = 0, -1, kernel.SCAN_MORE
    while why == kernel.SCAN_MORE:
        rows = new_rows(_ROWS)
        count, position, why, _ = kernel.scan_batches(view, position, len(view), len(view), least, memoryview(rows))
        parts.append(rows[:count])
        if count:
            least = int(rows[count - 1, LAST]) + 1
    if why not in (kernel.SCAN_END, kernel.SCAN_SHORT):
        raise CorruptBatch(f"the broker sent something that is no batch, at byte {position} of its answer")
    found = np.concatenate(parts)
    bad = first_bad_crc(view, found)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at byte {found[bad, POSITION]} of the answer does not match")
    return found


def visible(rows: Rows, aborted: Sequence[tuple[int, int]]) -> Rows:
    """The batches with records for a reader: no markers, nothing of the `aborted` transactions (producer id, first
    offset), which are sorted by offset."""
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
