"""Batches by their lengths alone."""

from __future__ import annotations

import pytest

from sawlog.batch.header import HEADER_BYTES, BatchSpan, batch_spans

from . import wire


def batches(*counts: int) -> list[bytes]:
    return [wire.batch([(i, 0, None, b"v" * i, ()) for i in range(count)]) for count in counts]


def test_every_batch_is_found_whatever_its_offset_is() -> None:
    made = [b"\xff" * 8 + each[8:] for each in batches(1, 30, 2)]
    first, second, third = map(len, made)
    found, following = batch_spans(memoryview(b"".join(made)))
    assert found == [BatchSpan(0, first, 1), BatchSpan(first, second, 30), BatchSpan(first + second, third, 2)]
    assert following == 0


def test_of_a_part_only_its_size_is_known() -> None:
    whole, cut = batches(3, 40)
    for length in range(len(cut)):
        found, following = batch_spans(memoryview(whole + cut[:length]))
        assert found == [BatchSpan(0, len(whole), 3)]
        assert following == (len(cut) if length >= HEADER_BYTES else 0)


@pytest.mark.parametrize(
    ("position", "value"), [(8, -1), (8, HEADER_BYTES - 13), (23, -1), (23, -(2**31))], ids=["size", "small", "0", "-"]
)
def test_it_ends_where_no_batch_begins(position: int, value: int) -> None:
    whole, bad = batches(3, 4)
    changed = bad[:position] + value.to_bytes(4, "big", signed=True) + bad[position + 4 :]
    assert batch_spans(memoryview(whole + changed + whole)) == ([BatchSpan(0, len(whole), 3)], 0)


def test_nothing_has_no_batch() -> None:
    assert batch_spans(memoryview(b"")) == ([], 0)
