"""What a fetch returned, as complete batches. A response may end within a batch, and may begin before the offset that
was asked for."""

from __future__ import annotations

import numpy as np

from ...batch import kernel
from ...batch.header import LAST, POSITION, Rows, new_rows
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
