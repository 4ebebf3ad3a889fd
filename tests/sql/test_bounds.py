"""Bounds exclude nothing that passes the filter."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog.sql.filters import EVERYTHING, NONE, NOTHING, Bounds, IntRange, fields_of, tree_of

from ..looping import for_each

OFFSET, PARTITION, TIME = pc.field("offset"), pc.field("partition"), pc.field("timestamp")


def moment(ticks: int, unit: str = "us") -> pa.Scalar:
    return pa.scalar(ticks, pa.timestamp(unit, tz="UTC"))


@for_each(
    ("filter", "bounds"),
    [
        (OFFSET >= 5, Bounds(offset=IntRange(low=5))),
        (OFFSET > 5, Bounds(offset=IntRange(low=6))),
        (OFFSET <= 5, Bounds(offset=IntRange(high=5))),
        (OFFSET < 5, Bounds(offset=IntRange(high=4))),
        (OFFSET == 5, Bounds(offset=IntRange(5, 5))),
        (pc.scalar(5) < OFFSET, Bounds(offset=IntRange(low=6))),
        ((OFFSET > 5) & (OFFSET < 9) & (PARTITION == 1), Bounds(offset=IntRange(6, 8), partition=IntRange(1, 1))),
        ((OFFSET == 3) | (OFFSET == 9), Bounds(offset=IntRange(3, 9))),
        ((OFFSET == 3) | (PARTITION == 1), EVERYTHING),
        ((OFFSET < 3) & (OFFSET > 9), Bounds(offset=IntRange(10, 2))),
        (PARTITION.isin([4, 2]), Bounds(partition=IntRange(2, 4))),
        (PARTITION.isin([]), Bounds(partition=NONE)),
        (~(OFFSET == 3), EVERYTHING),
        (OFFSET != 3, EVERYTHING),
        (OFFSET + 1 == 3, EVERYTHING),
        (pc.field("value", "offset") == 3, EVERYTHING),
        (pc.scalar(False), NOTHING),
        (pc.scalar(True), EVERYTHING),
        (moment(5_000) <= TIME, Bounds(time_ms=IntRange(low=5))),
        (moment(5_500) < TIME, Bounds(time_ms=IntRange(low=5))),
        (moment(5_500) > TIME, Bounds(time_ms=IntRange(high=6))),
        (moment(7, "s") >= TIME, Bounds(time_ms=IntRange(high=7000))),
        (moment(7_000_000, "ns") == TIME, Bounds(time_ms=IntRange(7, 7))),
    ],
)
def test_a_filter_leaves_these(filter: pc.Expression, bounds: Bounds) -> None:
    assert Bounds.of(filter) == bounds


conditions = st.one_of(
    st.builds(
        lambda f, n: f(OFFSET, n), st.sampled_from([pc.greater, pc.less, pc.equal, pc.less_equal]), st.integers(0, 9)
    ),
    st.builds(lambda f, n: f(TIME, moment(n)), st.sampled_from([pc.greater, pc.less, pc.equal]), st.integers(0, 9_999)),
    st.builds(lambda ns: PARTITION.isin(ns), st.lists(st.integers(0, 3), max_size=2)),
)
filters = st.recursive(
    conditions,
    lambda inner: (
        st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda a, b: a | b, inner, inner)
        | inner.map(lambda a: ~a)
    ),
    max_leaves=5,
)
TABLE = pa.table(
    {
        "partition": pa.array([p for p in range(4) for _ in range(100)], pa.int32()),
        "offset": pa.array([o for _ in range(4) for o in range(10) for _ in range(10)], pa.int64()),
        "timestamp": pa.array([t for _ in range(40) for t in range(10)], pa.timestamp("ms", tz="UTC")),
    }
)


@settings(max_examples=50)
@given(filter=filters)
def test_no_record_outside_of_the_bounds_passes(filter: pc.Expression) -> None:
    bounds = Bounds.of(filter)
    for row in TABLE.filter(filter).to_pylist():
        time = int((row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
        assert bounds.partition.low <= row["partition"] <= bounds.partition.high
        assert bounds.offset.low <= row["offset"] <= bounds.offset.high
        assert bounds.time_ms.low <= time <= bounds.time_ms.high


def test_the_columns_of_a_filter_are_known() -> None:
    assert fields_of((OFFSET > 5) & (pc.field("value", "id") == 1) & PARTITION.isin([1])) == {
        "offset",
        "value",
        "partition",
    }
    assert fields_of(None) == set()


def test_a_name_that_looks_like_the_notation_is_a_name() -> None:
    strange = "end\ncall: 'x'"
    assert fields_of(pc.field(strange) == "literal") == {strange}
    assert tree_of(pc.field(strange) == 1) == tree_of(pc.field(strange) == 1)
