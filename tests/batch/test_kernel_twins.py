"""The kernel is one file that runs compiled and interpreted: both have to make the same bytes.

That reading agrees is tested where the reading is (`test_hostile`, `test_roundtrip`). Here are the writing,
the whole package on top of the interpreted kernel, and the kernel without Cython on the machine at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import arrow, build, cyshim, header, read
from sawlog.batch import kernel as packaged
from sawlog.batch.arrow import COLUMNS, HEADER_TYPE, record_columns
from sawlog.batch.build import Encoder, EncoderOptions, encode
from sawlog.batch.compression import CODECS
from sawlog.errors import InvalidRecord, SawlogError

from .strategies import record_lists, share
from .test_bad_records import BAD_RECORDS, name
from .twins import BOTH, FOR_EVER, interpreted, load_interpreted, plain

T = 1_700_000_000_000


def built(kernel: Any, records: Any) -> tuple[bytes, int, int, int]:
    """Encode records with a builder of this kernel."""
    builder = kernel.BatchBuilder(build.record_error, capacity=61)
    builder.extend(records)
    for value, key, headers, timestamp in records:
        builder.add(value, key, headers, timestamp)
    return (
        bytes(builder.buffer[61 : builder.position]),
        builder.count,
        builder.base_timestamp,
        builder.max_timestamp,
    )


@share(0.5)
@given(records=record_lists)
def test_both_kernels_encode_records_to_the_same_bytes(records: list[tuple[Any, ...]]) -> None:
    assert built(packaged, records) == built(interpreted, records)


@pytest.mark.parametrize("bad", [bad for bad, _ in BAD_RECORDS], ids=name)
def test_both_kernels_refuse_the_same_records_with_the_same_words(bad: Any) -> None:
    said = []
    for kernel in (packaged, interpreted):
        with pytest.raises(SawlogError) as raised:
            kernel.BatchBuilder(build.record_error).extend([bad])
        said.append((type(raised.value), str(raised.value)))
    assert said[0] == said[1]


numbers = {
    8: st.integers(-(2**63), 2**63 - 1),
    4: st.integers(-(2**31), 2**31 - 1),
    2: st.integers(-(2**15), 2**15 - 1),
}


@given(
    longs=st.tuples(*[numbers[8]] * 4),
    ints=st.tuples(*[numbers[4]] * 5),
    shorts=st.tuples(*[numbers[2]] * 2),
    at=st.integers(0, 9),
)
def test_both_kernels_write_the_same_header(longs: Any, ints: Any, shorts: Any, at: int) -> None:
    made = []
    for kernel in (packaged, interpreted):
        view = memoryview(bytearray(70))
        kernel.write_header(
            view, at, longs[0], ints[0], ints[1], shorts[0], ints[2], *longs[1:], shorts[1], ints[3], ints[4]
        )
        kernel.patch_crc(view, at, ints[0] % 2**32)
        kernel.patch_place(view, at, longs[3], ints[4])
        made.append(bytes(view))
    assert made[0] == made[1]


@share(0.5)
@given(records=record_lists, first=st.integers(0, 3), limit=st.integers(1, 300), room=st.integers(100, 3000))
def test_both_kernels_encode_arrow_to_the_same_bytes(records: Any, first: int, limit: int, room: int) -> None:
    values, keys, headers, times = zip(*records, strict=True)
    table = pa.table(
        {
            "value": pa.array([v and v[:50] for v in values], pa.binary()),
            "key": pa.array([k and k[:50] for k in keys], pa.binary()),
            "headers": pa.array([list(h) for h in headers], HEADER_TYPE),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    (columns,) = record_columns(table, T)
    first = min(first, len(records) - 1)
    made = []
    for kernel in (packaged, interpreted):
        out = bytearray(room)
        made.append(
            (
                kernel.encode_arrow(memoryview(out), 61, first, columns.rows, limit, T, *columns.buffers),
                bytes(out),
            )
        )
    assert made[0] == made[1]
    row, end, base, top = made[0][0]
    assert first <= row <= columns.rows
    assert row == first or (base, top) == (times[first], max(times[first:row]))
    assert made[0][1][end:] == bytes(room - end)


# --- all of it, interpreted ---------------------------------------------------------------------------------


@pytest.fixture
def interpreted_package() -> Iterator[None]:
    """Import `sawlog.batch` on top of the interpreted kernel."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (arrow, build, header, read):
            patch.setattr(module, "kernel", interpreted)
        yield


@pytest.mark.usefixtures("interpreted_package")
@pytest.mark.parametrize("codec", CODECS)
def test_the_package_works_without_a_compiled_kernel(codec: str) -> None:
    records = [(b"value %d" % i * 9, b"key", (("h", None),), T + i) for i in range(20)]
    data = encode(records, compression=codec, base_offset=5)
    assert [plain(r) for r in read.decode(data)] == [(v, k, h, t, 5 + i, 0) for i, (v, k, h, t) in enumerate(records)]
    assert header.scan(data)[0].count == 20
    rows = header.new_rows(1)
    interpreted.scan_batches(memoryview(data), 0, len(data), len(data), 0, memoryview(rows))
    for views in (False, True):
        made = arrow.to_arrow(memoryview(data), rows, 0, FOR_EVER, columns=COLUMNS, views=views)
        made.validate(full=True)
        assert made.column(4).to_pylist() == [record[0] for record in records]
    table = pa.table({"value": [record[0] for record in records], "timestamp": [record[3] for record in records]})
    (part,) = Encoder(EncoderOptions(CODECS[codec])).table(table, 1 << 20)
    assert [r.value for r in read.decode(bytes(part.data))] == [record[0] for record in records]


def test_the_kernel_runs_where_cython_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cython", None)
    bare = load_interpreted("sawlog_kernel_without_cython")
    assert bare.walk.cython is cyshim.cython
    assert not bare.COMPILED
    records = [(b"value", b"key", (("h", b"1"),), T), (None, None, (), T - 1)]
    assert built(bare, records) == built(packaged, records)
    view = memoryview(encode(records))
    rows = header.new_rows(2)
    assert bare.scan_batches(view, 0, len(view), len(view), 0, memoryview(rows)) == (
        1,
        len(view),
        bare.SCAN_END,
        False,
    )
    found: list[Any] = []
    assert bare.decode_records(view, memoryview(rows), 0, 1, 0, FOR_EVER, found) == -1
    assert [plain(r) for r in found] == [(v, k, h, t, i, 0) for i, (v, k, h, t) in enumerate(records)]


# --- columns that lie ---------------------------------------------------------------------------------------


def ints(*values: int) -> memoryview:
    return memoryview(np.array(values, np.int32))


NONE = (ints(), memoryview(b""), memoryview(b""), 0)
FINE = (ints(0, 3, 5), memoryview(b"abcde"), memoryview(b""), 0)
LIARS = {
    "beyond the data": (ints(0, 3, 6), FINE[1], FINE[2], 0),
    "far beyond": (ints(0, 2**31 - 1, 2**31 - 1), FINE[1], FINE[2], 0),
    "negative": (ints(-5, 3, 5), FINE[1], FINE[2], 0),
    "going down": (ints(3, 0, 5), FINE[1], FINE[2], 0),
    "too few": (ints(0, 3), FINE[1], FINE[2], 0),
    "index": (FINE[0], FINE[1], FINE[2], 1),
    "negative index": (FINE[0], FINE[1], FINE[2], -1),
    "validity": (ints(*range(10), 10), memoryview(b"x" * 10), memoryview(b"\xff"), 8),
}


COLUMNS_THAT_LIE = [
    (column, lie)
    for column in ("value", "key", "header name", "header value")
    for lie in LIARS
    if (column, lie) != ("header name", "validity")  # a header's name has no bitmap: it is never null
]


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(("column", "lie"), COLUMNS_THAT_LIE)
def test_offsets_that_leave_their_data_are_refused(kernel: Any, column: str, lie: str) -> None:
    liar, lists = LIARS[lie], (ints(), 0, NONE, NONE)
    if column.startswith("header"):
        lists = (ints(0, 1, 2), 0, *((liar, FINE) if column == "header name" else (FINE, liar)))
    out = memoryview(bytearray(1000))
    with pytest.raises(ValueError, match="outside"):
        kernel.encode_arrow(
            out, 61, 0, 2, 900, T, memoryview(np.empty(0, np.int64)),
            liar if column == "value" else FINE, liar if column == "key" else NONE, lists,
        )  # fmt: skip


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("lists", [(0, 1, 3), (0, 2, 1), (-1, 0, 1), (0, 1), (0, 2**31 - 1, 2**31 - 1)], ids=str)
def test_lists_of_headers_that_leave_their_data_are_refused(kernel: Any, lists: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="outside"):
        kernel.encode_arrow(
            memoryview(bytearray(1000)), 61, 0, 2, 900, T, memoryview(np.empty(0, np.int64)), FINE, NONE,
            (ints(*lists), 0, FINE, FINE),
        )  # fmt: skip


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    ("start", "first", "last", "times"),
    [(-1, 0, 2, 0), (1001, 0, 2, 0), (61, -1, 2, 0), (61, 0, 3, 0), (61, 0, 2, 1)],
)
def test_rows_that_a_table_does_not_have_are_refused(
    kernel: Any, start: int, first: int, last: int, times: int
) -> None:
    clock = memoryview(np.full(times, T, np.int64))
    with pytest.raises(ValueError, match="outside"):
        kernel.encode_arrow(
            memoryview(bytearray(1000)),
            start,
            first,
            last,
            900,
            T,
            clock,
            FINE,
            NONE,
            (ints(), 0, NONE, NONE),
        )


def test_a_table_whose_offsets_lie_is_refused() -> None:
    # Arrow itself checks only the first and the last offset.
    for offsets in ((0, 9, 5), (0, 2**31 - 1, 5), (0, -3, 5), (4, 2, 5)):
        column = pa.Array.from_buffers(
            pa.binary(), 2, [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abcde")]
        )
        with pytest.raises(InvalidRecord):
            list(Encoder().table(pa.table({"value": column}), 1 << 20))
