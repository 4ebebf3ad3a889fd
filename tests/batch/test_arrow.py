"""Arrow in, Arrow out: whatever the column's type, slice or chunks, the records are those of a plain list.

In: every binary and string type, timestamps in every unit, headers as lists and as maps. Out: copies and
views, any columns, any range. A batch's records and its Arrow columns are always the same thing said twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sawlog.batch import build, kernel
from sawlog.batch.arrow import COLUMNS, HEADER_TYPE, schema, to_arrow
from sawlog.batch.build import Encoder, EncoderOptions, encode
from sawlog.batch.compression import CODECS
from sawlog.batch.header import scan
from sawlog.batch.kernel import MAX_TIMESTAMP, Record
from sawlog.batch.read import decode
from sawlog.errors import (
    CorruptBatch,
    DecompressionLimit,
    InvalidRecord,
    InvalidRecordType,
    RecordTooLarge,
    SawlogError,
)

from .strategies import record_lists, share, small
from .twins import FOR_EVER
from .twins import scan as scan_rows
from .wire import APPEND_TIME, Header, batch

T = 1_700_000_000_000
NOW = T + 500


@contextmanager
def clock_at(milliseconds: int) -> Iterator[None]:
    with mock.patch.object(build, "now_ms", return_value=milliseconds):
        yield


def stored(table: Any, batch_bytes: int = 1 << 20, recipe: EncoderOptions = EncoderOptions()) -> bytes:  # noqa: B008 - immutable
    """Encode a table to consecutive batches, as a log would place them, with the clock fixed at NOW."""
    log, offset = b"", 0
    with clock_at(NOW):
        for part in Encoder(recipe).table(table, batch_bytes):
            data = bytearray(part.data)
            kernel.patch_place(memoryview(data), 0, offset, 0)
            log += data
            offset += part.count
    return log


def arrow(data: bytes, start: int = 0, end: int = FOR_EVER, **options: Any) -> pa.RecordBatch:
    """Decode all batches in a buffer with `to_arrow`, and validate the result."""
    view = memoryview(data)
    _, rows = scan_rows(kernel, view, room=64)
    made = to_arrow(view, rows, start, end, **options)
    made.validate(full=True)
    return made


def as_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Convert records to the rows of a table with all columns, with times as plain numbers."""
    return [
        {
            "offset": r.offset,
            "timestamp": r.timestamp,
            "timestamp_type": r.timestamp_type,
            "key": r.key,
            "value": r.value,
            "headers": [{"key": key, "value": value} for key, value in r.headers],
        }
        for r in records
    ]


def rows_of(made: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert a record batch to such rows."""
    table = pa.Table.from_batches([made])
    if "timestamp" in table.column_names:
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table.column(at).cast(pa.int64()))
    return table.to_pylist()


# --- columns of every type in -------------------------------------------------------------------------------

BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]


@st.composite
def payload_columns(draw: st.DrawFn, length: int) -> tuple[pa.ChunkedArray, list[bytes | None]]:
    """Draw a column of keys or values of any type, slice and chunking, and its content."""
    kind = draw(st.sampled_from([*BYTES, *TEXTS, pa.binary(5), pa.null()]))
    if kind == pa.null():
        return pa.chunked_array([pa.nulls(length)]), [None] * length
    if kind == pa.binary(5):
        content = st.binary(min_size=5, max_size=5)
    elif kind in TEXTS:
        content = st.text(max_size=20)
    else:
        content = st.binary(max_size=20)
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    size = before + length + after
    values = draw(st.lists(st.none() | content, min_size=size, max_size=size))
    array = pa.array(values, kind)
    if draw(st.booleans()) and kind not in (pa.binary_view(), pa.string_view()):
        array = array.dictionary_encode()
    plain = [v.encode() if isinstance(v, str) else v for v in values[before : before + length]]
    return chunked(draw, array.slice(before, length)), plain


def chunked(draw: st.DrawFn, array: pa.Array) -> pa.ChunkedArray:
    """Split a column into chunks, some of which may be empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(array)), max_size=3)))
    edges = [0, *cuts, len(array)]
    pieces = [array.slice(a, b - a) for a, b in pairwise(edges)]
    return pa.chunked_array(pieces, array.type)


@st.composite
def time_columns(draw: st.DrawFn, length: int) -> tuple[pa.ChunkedArray, list[int]]:
    """Draw a column of times of any unit, with nulls, and their milliseconds."""
    kind = draw(
        st.sampled_from(
            [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo")]
            + [pa.int64(), pa.uint64(), pa.int32(), pa.null()]
        )
    )
    if kind == pa.null():
        return pa.chunked_array([pa.nulls(length)]), [NOW] * length
    most = {"s": MAX_TIMESTAMP // 1000, "us": MAX_TIMESTAMP * 1000, "ns": 2**63 - 1}.get(
        getattr(kind, "unit", ""), MAX_TIMESTAMP
    )
    if kind == pa.int32():
        most = 2**31 - 1
    size = length + 2
    values = draw(st.lists(st.none() | st.integers(0, most), min_size=size, max_size=size))
    array = pa.array(values, pa.int64() if pa.types.is_timestamp(kind) else kind).cast(kind).slice(1, length)

    def milliseconds(value: int | None) -> int:
        if value is None:
            return NOW
        unit = getattr(kind, "unit", "ms")
        return value * 1000 if unit == "s" else value // {"ms": 1, "us": 1000, "ns": 1_000_000}[unit]

    return chunked(draw, array), [milliseconds(v) for v in values[1 : 1 + length]]


LISTS = [
    HEADER_TYPE,
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
    pa.map_(pa.string(), pa.binary()),
]


@st.composite
def header_columns(draw: st.DrawFn, length: int) -> tuple[pa.ChunkedArray, list[Any]]:
    """Draw a column of headers as lists or maps, with null lists, and their pairs."""
    kind = draw(st.sampled_from(LISTS))
    content = st.text(max_size=6) if kind == LISTS[3] else st.binary(max_size=6)
    pairs = st.lists(st.tuples(st.text(max_size=6), st.none() | content), max_size=3)
    before = draw(st.integers(0, 3))
    values = draw(st.lists(st.none() | pairs, min_size=before + length + 1, max_size=before + length + 1))
    array = pa.array(values, kind).slice(before, length)
    meant = [
        tuple((k, v.encode() if isinstance(v, str) else v) for k, v in some or ())
        for some in values[before : before + length]
    ]
    return chunked(draw, array), meant


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[tuple[Any, ...]]]:
    """Draw a table with values and any other columns, and its (value, key, headers, timestamp) tuples."""
    length = draw(st.integers(0, 12))
    names, columns = ["value"], [draw(payload_columns(length))]
    meant: dict[str, list[Any]] = {
        "key": [None] * length,
        "headers": [()] * length,
        "timestamp": [NOW] * length,
    }
    for name, strategy in (
        ("key", payload_columns),
        ("headers", header_columns),
        ("timestamp", time_columns),
    ):
        if draw(st.booleans()):
            names.append(name)
            columns.append(draw(strategy(length)))
    meant.update({name: column[1] for name, column in zip(names, columns, strict=True)})
    order = draw(st.permutations(range(len(names))))
    table = pa.table([columns[i][0] for i in order], names=[names[i] for i in order])
    return table, list(zip(meant["value"], meant["key"], meant["headers"], meant["timestamp"], strict=True))


@share(0.4)
@given(table=tables(), batch_bytes=st.sampled_from([1, 50, 200, 1 << 16]), codec=st.sampled_from(list(CODECS)))
def test_a_table_becomes_the_records_it_means(table: Any, batch_bytes: int, codec: str) -> None:
    columns, meant = table
    log = stored(columns, batch_bytes, EncoderOptions(CODECS[codec]))
    assert [(r.value, r.key, r.headers, r.timestamp) for r in decode(log)] == meant
    assert [r.offset for r in decode(log)] == list(range(len(meant)))


@share(0.3)
@given(table=tables())
def test_a_tables_batch_is_byte_for_byte_the_batch_of_its_records(table: Any) -> None:
    columns, meant = table
    assume(meant)
    # One chunk: a batch ends where a chunk ends.
    assert stored(columns.combine_chunks()) == encode(meant)


@share(0.3)
@given(table=tables())
def test_a_record_batch_is_taken_as_a_table_is(table: Any) -> None:
    columns, meant = table
    (one,) = columns.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], columns.schema)]
    assert [(r.value, r.key, r.headers, r.timestamp) for r in decode(stored(one))] == meant


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=40), batch_bytes=st.integers(1, 20_000))
def test_batches_of_a_table_are_about_as_large_as_asked(sizes: list[int], batch_bytes: int) -> None:
    table = pa.table({"value": [b"x" * size for size in sizes]})
    headers = scan(stored(table, batch_bytes))
    assert sum(header.count for header in headers) == len(sizes)
    for header in headers[:-1]:
        # The batch was closed when it was full, not earlier: without its last record it is below the limit.
        assert header.size_bytes - 61 >= batch_bytes
    for header in headers:
        last = sizes[header.last_offset]
        assert header.size_bytes - 61 - last - 16 < batch_bytes


def test_records_far_larger_than_a_batch_get_their_own() -> None:
    values = [b"a", b"b" * 500_000, b"c", b"d" * 900_000, b"e"]
    log = stored(pa.table({"value": values, "key": values[::-1]}), 1000)
    assert [(r.value, r.key) for r in decode(log)] == list(zip(values, values[::-1], strict=True))


def test_a_batch_that_ends_before_a_large_record_keeps_its_own_time() -> None:
    values = [b"small", b"small", b"x" * 50_000, b"small"]
    table = pa.table({"value": values, "timestamp": [T, T + 1, T + 1000, T + 2]})
    headers = scan(stored(table, 100))
    times = table.column("timestamp").to_pylist()
    for header in headers:
        held = times[header.base_offset : header.last_offset + 1]
        assert (header.base_timestamp, header.max_timestamp) == (held[0], max(held))


def test_an_encoder_serves_tables_and_lists_in_turn() -> None:
    encoder = Encoder()
    table = pa.table({"value": [b"one", b"two"], "timestamp": [T, T + 1]})
    records = [(b"one", None, (), T), (b"two", None, (), T + 1)]
    for _ in range(3):
        assert [bytes(part.data) for part in encoder.table(table, 1 << 20)] == [encode(records)]
        assert bytes(encoder.many(records).data) == encode(records)


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_headers_of_a_slice_are_those_of_its_rows(kind: pa.DataType) -> None:
    text = kind == LISTS[3]
    pairs = [[("a", "0")], None, [("b", "1"), ("c", None)], [], [("d", "3")], [("e", "4")]]
    column = pa.array([some and [(k, v if v is None or text else v.encode()) for k, v in some] for some in pairs], kind)
    meant = [tuple((k, v if v is None else v.encode()) for k, v in some or ()) for some in pairs]
    for first in range(6):
        for last in range(first + 1, 7):
            table = pa.table({"value": [b""] * (last - first), "headers": column[first:last]})
            assert [r.headers for r in decode(stored(table))] == meant[first:last]


# --- tables that are refused --------------------------------------------------------------------------------

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
HIDDEN = pa.StructArray.from_arrays([pa.array(["hidden"]), pa.array([b"1"])], fields=list(PAIR), mask=pa.array([True]))


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ([b"a"], InvalidRecordType),
        ({"value": [b"a"]}, InvalidRecordType),
        (pa.table({"key": [b"a"]}), InvalidRecord),
        (pa.table({"value": [b"a"], "colour": [1]}), InvalidRecord),
        (pa.table([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"]), InvalidRecord),
        (pa.table({"value": [1]}), InvalidRecordType),
        (pa.table({"value": [1.5]}), InvalidRecordType),
        (pa.table({"value": [[b"a"]]}), InvalidRecordType),
        (pa.table({"value": pa.array([1, 2]).dictionary_encode()}), InvalidRecordType),
        (pa.table({"value": [b"a"], "key": [True]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "timestamp": [1.5]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "timestamp": [True]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "timestamp": ["now"]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "timestamp": [-1]}), InvalidRecord),
        (pa.table({"value": [b"a"], "timestamp": [MAX_TIMESTAMP + 1]}), InvalidRecord),
        (pa.table({"value": [b"a"], "timestamp": pa.array([2**64 - 1], pa.uint64())}), InvalidRecord),
        (pa.table({"value": [b"a"], "timestamp": pa.array([-1], pa.timestamp("ns"))}), InvalidRecord),
        # Times that fit into 64 bits in seconds, but not in milliseconds.
        (pa.table({"value": [b"a"], "timestamp": pa.array([2**62], pa.timestamp("s"))}), InvalidRecord),
        (
            pa.table({"value": [b"a"], "timestamp": pa.array([2**64 // 1000 + 1], pa.timestamp("s"))}),
            InvalidRecord,
        ),
        (pa.table({"value": [b"a"], "timestamp": pa.array([-(2**62)], pa.timestamp("s"))}), InvalidRecord),
        (pa.table({"value": [b"a"], "headers": [b"a"]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "headers": [["a"]]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "headers": [[{"key": "a", "value": 1}]]}), InvalidRecordType),
        (pa.table({"value": [b"a"], "headers": [[{"name": "a", "content": b"1"}]]}), InvalidRecordType),
        (
            pa.table({"value": [b"a"], "headers": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))}),
            InvalidRecordType,
        ),
        (
            pa.table({"value": [b"a"], "headers": pa.array([[(b"\xff", b"1")]], pa.map_(pa.binary(), pa.binary()))}),
            InvalidRecord,
        ),
        (pa.table({"value": [b"a"], "headers": pa.array([[(None, b"1")]], pa.list_(PAIR))}), InvalidRecord),
        (pa.table({"value": [b"a"], "headers": pa.array([[None]], pa.list_(PAIR))}), InvalidRecord),
        (pa.table({"value": [b"a"], "headers": pa.ListArray.from_arrays([0, 1], HIDDEN)}), InvalidRecord),
    ],
)
def test_a_table_that_cannot_be_stored_is_refused(table: Any, error: type[SawlogError]) -> None:
    with pytest.raises(error):
        stored(table)


@pytest.mark.parametrize(
    "bad",
    [
        {"headers": pa.array([[("ok", b"1")], [(None, b"1")]], pa.list_(PAIR))},
        {"headers": pa.array([[("ok", b"1")], [None]], pa.list_(PAIR))},
        {"timestamp": pa.array([T, -1])},
        {"value": pa.array([b"ok", b"x" * 2000])},
        {"key": pa.array([b"ok", b"x" * 2000])},
        {"headers": pa.array([[("ok", b"1")], [("x" * 2000, b"1")]], pa.list_(PAIR))},
    ],
    ids=["null header key", "null header", "timestamp", "large value", "large key", "large header"],
)
def test_a_bad_row_in_the_last_chunk_is_found_before_the_first_batch_is_made(
    bad: dict[str, pa.Array],
) -> None:
    columns = {"value": pa.array([b"a", b"b"]), **bad}
    table = pa.table({name: pa.chunked_array([array[:1], array[1:]]) for name, array in columns.items()})
    with pytest.raises(InvalidRecord):
        next(Encoder(EncoderOptions(max_record_bytes=1000)).table(table, 1 << 20))


def test_rows_outside_a_slice_are_ignored() -> None:
    headers = pa.array([[(None, b"1")], [("ok", b"1")], None], pa.list_(PAIR))
    table = pa.table({"value": [b"a", b"b", b"c"], "headers": headers, "timestamp": [-1, T, T]})[1:]
    assert [r.headers for r in decode(stored(table))] == [(("ok", b"1"),), ()]


@pytest.mark.parametrize("large", ["value", "key", "headers"])
def test_a_record_larger_than_the_log_takes_is_refused_from_a_table_too(large: str) -> None:
    whole = {"value": b"v" * 10, "key": b"k" * 10, "headers": [{"key": "h" * 5, "value": b"h" * 5}]}
    recipe = EncoderOptions(max_record_bytes=30)
    assert len(decode(stored(pa.Table.from_pylist([whole]), recipe=recipe))) == 1
    more = {**whole, large: [{"key": "h" * 5, "value": b"h" * 6}] if large == "headers" else b"x" * 11}
    with pytest.raises(RecordTooLarge):
        stored(pa.Table.from_pylist([whole, more]), recipe=recipe)


@share(0.4)
@given(table=tables())
def test_the_largest_record_of_a_table_is_measured_exactly(table: Any) -> None:
    columns, meant = table
    sizes = [
        len(value or b"") + len(key or b"") + sum(len(k.encode()) + len(v or b"") for k, v in headers)
        for value, key, headers, _ in meant
    ]
    assume(sizes and max(sizes) > 1)
    assert len(decode(stored(columns, recipe=EncoderOptions(max_record_bytes=max(sizes))))) == len(meant)
    with pytest.raises(RecordTooLarge):
        stored(columns, recipe=EncoderOptions(max_record_bytes=max(sizes) - 1))


def test_headers_hidden_under_a_null_list_are_no_headers() -> None:
    pairs = pa.array([{"key": "a", "value": b"1"}, {"key": "hidden", "value": b"x" * 100}], PAIR)
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, mask=pa.array([False, True]))
    table = pa.table({"value": [b"", b""], "headers": column})
    for recipe in (EncoderOptions(), EncoderOptions(max_record_bytes=10)):
        assert [r.headers for r in decode(stored(table, recipe=recipe))] == [(("a", b"1"),), ()]


@pytest.mark.parametrize("first", [b"small", b"x" * 19_000])
def test_a_record_larger_than_a_batch_may_be_is_refused(first: bytes) -> None:
    recipe = EncoderOptions(max_batch_bytes=20_000)
    encoder = Encoder(recipe)
    list(encoder.table(pa.table({"value": [first]}), 1000))
    with pytest.raises(RecordTooLarge):
        list(encoder.table(pa.table({"value": [b"x" * 25_000]}), 1000))


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.string_view()])
def test_a_dictionary_of_views_is_taken_too(kind: pa.DataType) -> None:
    words = pa.array(["one", "two"], pa.string()).cast(kind)
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), words)
    assert [r.value for r in decode(stored(pa.table({"value": column})))] == [b"two", None, b"one", b"two"]


# --- out ----------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw consecutive batches of every kind: compressed and plain, of either clock, with and without gaps."""
    data, offset = b"", 0
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            records = draw(record_lists)
            codec, own_time = draw(st.sampled_from(list(CODECS))), draw(st.booleans())
            data += encode(records, compression=codec, base_offset=offset, append_time=own_time)
            offset += len(records)
        else:
            deltas = sorted(draw(st.sets(st.integers(0, 20), max_size=5)))
            contents = draw(st.lists(st.none() | small, min_size=len(deltas), max_size=len(deltas)))
            data += batch(
                [(d, d * 3, v, v, [(b"h", v)]) for d, v in zip(deltas, contents, strict=True)],
                Header(base_offset=offset, attributes=draw(st.sampled_from([0, APPEND_TIME])), last_delta=20),
            )
            offset += 21
    return data


@share(0.4)
@given(log=logs(), start=st.integers(-1, 60), end=st.integers(-1, 60))
def test_arrow_and_records_of_the_same_batches_are_the_same(log: bytes, start: int, end: int) -> None:
    assert rows_of(arrow(log, columns=COLUMNS)) == as_rows(decode(log))
    assert rows_of(arrow(log, start, end, columns=COLUMNS)) == as_rows(decode(log, start, end))


@share(0.4)
@given(log=logs(), start=st.integers(-1, 60), end=st.integers(-1, 60))
def test_views_and_copies_are_equal(log: bytes, start: int, end: int) -> None:
    copies = arrow(log, start, end, columns=COLUMNS)
    views = arrow(log, start, end, columns=COLUMNS, views=True)
    assert views.schema == schema(COLUMNS, views=True)
    assert rows_of(views) == rows_of(copies)


@share(0.3)
@given(log=logs(), columns=st.lists(st.sampled_from(COLUMNS), unique=True), views=st.booleans())
def test_any_columns_in_any_order(log: bytes, columns: list[str], views: bool) -> None:
    whole = rows_of(arrow(log, columns=COLUMNS))
    some = arrow(log, columns=columns, views=views)
    assert some.schema == schema(columns, views=views)
    if columns:
        assert rows_of(some) == [{name: row[name] for name in columns} for row in whole]


@share(0.3)
@given(table=tables())
def test_a_table_comes_back_as_it_went_in(table: Any) -> None:
    columns, meant = table
    back = rows_of(arrow(stored(columns), columns=("value", "key", "headers", "timestamp")))
    assert [
        (r["value"], r["key"], tuple((h["key"], h["value"]) for h in r["headers"]), r["timestamp"]) for r in back
    ] == meant


def test_what_comes_out_can_go_in_again() -> None:
    log = encode([(b"a", b"k", (("h", b"1"), ("n", None)), T), (None, None, (), T + 1)])
    for views in (False, True):
        out = arrow(log, columns=("value", "key", "timestamp", "headers"), views=views)
        assert stored(out) == log


def test_views_point_into_the_batch_and_outlive_everything_else() -> None:
    log = encode([(b"a value that is longer than twelve bytes", None, (), T)])
    made = arrow(log, columns=("value",), views=True)
    view = made.column(0).buffers()[2]
    assert view.address == np.frombuffer(log, np.uint8).ctypes.data + 61
    del log
    assert made.to_pylist() == [{"value": b"a value that is longer than twelve bytes"}]


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="colour"):
        arrow(encode([b"a"]), columns=("value", "colour"))


def test_header_keys_that_are_not_utf_8_never_become_a_broken_string() -> None:
    log = batch([(0, 0, None, b"", [(b"fine", b"0"), (b"\xff\xfe", b"1")])])
    try:
        made = arrow(log, columns=("headers",))  # validates the array
    except CorruptBatch:
        return
    assert [header["value"] for header in made.to_pylist()[0]["headers"]] == [b"0", b"1"]


def test_all_batches_together_unpack_to_no_more_than_is_allowed() -> None:
    log = b"".join(encode([(b"x" * 100_000, None, (), T)], compression="zstd", base_offset=i) for i in range(20))
    assert arrow(log, max_bytes=20 * 100_100).num_rows == 20
    with pytest.raises(DecompressionLimit):
        arrow(log, max_bytes=10 * 100_100)
