"""Which batches of a page have records for a reader.

Markers of transactions are not records. The records of a transaction that was aborted are left out: whoever fetched the
page was told its producer and its first offset; from there up to the producer's next marker, its transactional batches
are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .header import ATTRIBUTES, CONTROL_BIT, LAST, PRODUCER_ID, TRANSACTIONAL_BIT, Rows


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
