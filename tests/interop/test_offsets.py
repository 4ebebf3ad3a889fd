"""Offsets that are assigned to records whose stored offset may be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sawlog.interop import Kind
from sawlog.interop.records import Count, Trust, assign_offsets

from ..looping import for_each

B, P, C = Trust.BARE, Trust.PARSED, Trust.CHECKED


def numbered(
    said: list[int], trust: Trust, *, start: int = 10, base: int = 10, final: bool = True, loose: bool = False
):  # type: ignore[no-untyped-def]
    return assign_offsets(
        np.array(said, np.int64), Count(start - 1, start), base=base, trust=trust, final=final, loose=loose
    )


@for_each(
    ("said", "trust", "given_", "kinds"),
    [
        ([10, 11, 12], B, [10, 11, 12], []),
        # one number is damaged
        ([10, 99, 12], B, [10, 11, 12], [Kind.BAD_OFFSET]),
        ([99, 11, 12], B, [10, 11, 12], [Kind.BAD_OFFSET]),
        ([10, 11, 99], B, [10, 11, 12], [Kind.BAD_OFFSET]),
        ([10, -5, 12], P, [10, 11, 12], [Kind.BAD_OFFSET]),
        ([10, 2**60, 2**60 + 1], P, [10, 11, 12], [Kind.BAD_OFFSET]),
        # a gap, confirmed by the next record
        ([10, 20, 21], B, [10, 20, 21], [Kind.GAP]),
        ([10, 20, 21], P, [10, 20, 21], [Kind.GAP]),
        ([10, 20], C, [10, 20], [Kind.GAP]),
        # a restart
        ([10, 11, 10, 11], B, [10, 11, 12, 13], [Kind.RESTART]),
        ([10, 11, 10], B, [10, 11, 12], [Kind.RESTART]),
        ([10, 11, 11, 11], P, [10, 11, 12, 13], [Kind.RESTART, Kind.RESTART]),
        ([10, 11, 4, 9], C, [10, 11, 12, 17], [Kind.RESTART, Kind.GAP]),
    ],
)
def test_offsets(said: list[int], trust: Trust, given_: list[int], kinds: list[Kind]) -> None:
    made = numbered(said, trust)
    assert made.offsets.tolist() == given_
    assert [each.kind for each in made.anomalies] == kinds
    assert made.count.next_offset == given_[-1] + 1
    assert not made.bad


@for_each("said", [[10, 55, 77, 12], [10, 3, 77], [77, 3, 5], [11, 10, 11]])
def test_an_offset_that_no_neighbour_confirms_is_not_a_record(said: list[int]) -> None:
    made = numbered(said, B, final=False)
    assert made.bad or len(made.offsets) < len(said)
    assert made.offsets.tolist() == list(range(10, 10 + len(made.offsets)))


def test_the_last_record_waits_for_its_successor() -> None:
    made = numbered([10, 11, 50], B, final=False)
    assert (made.offsets.tolist(), made.count, made.bad) == ([10, 11], Count(11, 12), False)
    again = assign_offsets(np.array([50, 51], np.int64), made.count, base=10, trust=B, final=True)
    assert again.offsets.tolist() == [50, 51]


def test_a_jump_after_unreadable_bytes_is_not_a_finding() -> None:
    made = numbered([15, 16], B, loose=True)
    assert (made.offsets.tolist(), made.anomalies) == ([15, 16], ())


def test_offsets_stay_shifted_after_a_restart() -> None:
    first = numbered([10, 11, 10], B, final=False)
    assert first.offsets.tolist() == [10, 11]
    second = assign_offsets(np.array([10, 11, 12], np.int64), first.count, base=10, trust=B, final=False)
    assert second.offsets.tolist() == [12, 13, 14]
    third = assign_offsets(np.array([13, 14], np.int64), second.count, base=10, trust=B, final=True)
    assert (third.offsets.tolist(), third.anomalies) == ([15, 16], ())


@given(
    said=st.lists(st.one_of(st.integers(0, 30), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=12),
    trust=st.sampled_from(Trust),
    final=st.booleans(),
    loose=st.booleans(),
)
def test_offsets_always_increase_and_numbering_always_advances(
    said: list[int], trust: Trust, final: bool, loose: bool
) -> None:
    made = numbered(said, trust, final=final, loose=loose)
    offsets = made.offsets.tolist()
    assert offsets == sorted(set(offsets))
    assert all(offset >= 10 for offset in offsets)
    assert made.count.next_offset == (offsets[-1] + 1 if offsets else 10)
    assert offsets or made.bad
    if final:
        assert made.bad or len(offsets) == len(said)
    if trust >= Trust.PARSED:
        assert not made.bad
