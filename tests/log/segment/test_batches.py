"""The batches of a segment in order, however they are split between reads."""

from __future__ import annotations

from typing import Any

import pytest

from sawlog.batch.header import BASE
from sawlog.log import batches

from ..places import MemoryPlace


@pytest.mark.parametrize("rest", [1, 30, 60, 61, 62])
def test_a_view_with_less_than_a_header_left_is_no_damage(
    memory_place: MemoryPlace, monkeypatch: pytest.MonkeyPatch, rest: int
) -> None:
    log = memory_place.open()
    for _ in range(5):
        log.append(b"value")
    segment: Any = log._access.segments.active
    size = segment.size // 5
    monkeypatch.setattr(batches, "CHUNK_ROWS", 2)
    chunks = segment.batches(segment.storage, 0, segment.size, 0, chunk_bytes=2 * size + rest)
    assert [base for chunk in chunks for base in chunk.rows[:, BASE].tolist()] == [0, 1, 2, 3, 4]
