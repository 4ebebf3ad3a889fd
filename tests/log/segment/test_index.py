"""The indexes of a segment: batches entered many at a time leave what entering them one by one leaves."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch.header import LAST, MAX_TIME, POSITION, SIZE, new_rows
from sawlog.log.index import SegmentIndex

BASE = 1000


@given(seed=st.integers(0, 2**32))
def test_many_at_once_are_entered_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    single, many = SegmentIndex(BASE, 100), SegmentIndex(BASE, 100)
    position, offset = 0, BASE
    for _ in range(chance.randrange(1, 5)):
        rows, origin = new_rows(chance.randrange(8)), position
        rows[:] = 0
        for row in rows:
            size, offset = chance.choice([61, 90, 150, 5000]), offset + chance.randrange(1, 5)
            # The clock of a producer may stand still, or go back; there may be none.
            stamp = chance.choice([0, 7, offset, offset, chance.randrange(2000), -1 if position else 3])
            row[POSITION], row[SIZE], row[LAST], row[MAX_TIME] = position - origin, size, offset - 1, stamp
            single.add(offset - 1, position, size, stamp)
            position += size
        many.add_rows(rows, origin)
    for name in SegmentIndex.__slots__:
        assert getattr(many, name) == getattr(single, name), name
    assert many.encode() == single.encode()
