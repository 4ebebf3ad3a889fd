"""Convert between batches and Arrow.

From batches (`to_arrow`): any of `offset` int64, `timestamp` timestamp[ms, UTC], `timestamp_type` int8, `key` and
`value` binary, `headers` list<struct<key: string, value: binary>>. With `views=True` key and value become binary_view:
16 bytes per value that point into the batch itself, nothing is copied, and the mapping lives as long as the array.

To batches (`record_columns`): `value`, and optionally `key`, `timestamp`, `headers`. Binary and string types of every
kind are accepted, timestamps in any unit or as int64 milliseconds; nulls in `timestamp` become the time of the append.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorruptBatch, DecompressionLimit, InvalidRecord, InvalidRecordType
from . import kernel
from .header import ATTRIBUTES, BODY, BODY_END, COLUMNS, COUNT, DEFAULT_COLUMNS, TIMESTAMP_TYPE_BIT, Rows
from .inputs import record_error
from .read import MALFORMED, unpack

HEADER_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
TIME_TYPE = pa.timestamp("ms", tz="UTC")

#: Arrow's binary arrays count their bytes in 32 bits.
_MAX_ARRAY_BYTES = 2**31 - 1

_EMPTY = memoryview(b"")
_EMPTY_INT = memoryview(np.empty(0, np.int32))
_EMPTY_LONG = memoryview(np.empty(0, np.int64))
_NOTHING = (_EMPTY_INT, _EMPTY, _EMPTY, 0)
_NO_HEADERS = (_EMPTY_INT, 0, _NOTHING, _NOTHING)
_WRITABLE = memoryview(bytearray(0))
_WRITABLE_INT = memoryview(np.empty(0, np.int32))
_NO_PAYLOAD = _WRITABLE_INT, _WRITABLE, _WRITABLE


def schema(columns: Sequence[str] = DEFAULT_COLUMNS, *, views: bool = False) -> pa.Schema:
    """Return the schema of the record batches that `scan_arrow` yields for these columns."""
    return _schema(tuple(columns), views)


@lru_cache(maxsize=64)
def _schema(columns: tuple[str, ...], views: bool) -> pa.Schema:
    payload = pa.binary_view() if views else pa.binary()
    types = {
        "offset": pa.field("offset", pa.int64(), nullable=False),
        "timestamp": pa.field("timestamp", TIME_TYPE, nullable=False),
        "timestamp_type": pa.field("timestamp_type", pa.int8(), nullable=False),
        "key": pa.field("key", payload),
        "value": pa.field("value", payload),
        "headers": pa.field("headers", HEADER_TYPE, nullable=False),
    }
    unknown = [name for name in columns if name not in types]
    if unknown:
        raise InvalidRecord(f"no such column: {', '.join(unknown)}; the columns are {', '.join(COLUMNS)}")
    return pa.schema([types[name] for name in columns])


# ---------------------------------------------------------------------------------------------------------------------
# From batches


def _mutable(size_bytes: int) -> tuple[pa.Buffer, memoryview]:
    """Allocate a buffer from Arrow's pool, which reuses touched memory, and return it with a writable view."""
    buffer = pa.allocate_buffer(size_bytes)
    return buffer, memoryview(buffer).cast("B")


def _longs(count: int) -> tuple[pa.Buffer, memoryview]:
    buffer, view = _mutable(count * 8)
    return buffer, view.cast("q")


def _ints(count: int) -> tuple[pa.Buffer, memoryview]:
    buffer, view = _mutable(count * 4)
    return buffer, view.cast("i")


def joined(view: memoryview, rows: Rows, max_bytes: int) -> tuple[memoryview, Rows]:
    """Return all batches decompressed in one buffer; the buffer itself if nothing is compressed."""
    runs: list[tuple[memoryview, Rows]] = []
    unpacked = total = 0
    for body, run, error in unpack(view, rows, max_bytes):
        if error is not None:
            raise error
        size = int((run[:, BODY_END] - run[:, BODY]).sum())
        total += size
        unpacked += size if body is not view else 0
        if unpacked > max_bytes or total > _MAX_ARRAY_BYTES:
            raise DecompressionLimit(f"batches of {total:,} bytes in total do not fit into one Arrow batch")
        runs.append((body, run))
    if len(runs) == 1:
        return runs[0]
    parts: list[memoryview] = []
    lines: list[Rows] = []
    position = 0
    for body, run in runs:
        first, last = int(run[0, BODY]), int(run[-1, BODY_END])
        shifted = run.copy()
        shifted[:, (BODY, BODY_END)] += position - first
        parts.append(body[first:last])
        lines.append(shifted)
        position += last - first
    return memoryview(b"".join(parts)), np.concatenate(lines)


def to_arrow(
    view: memoryview,
    rows: Rows,
    start: int,
    end: int,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    views: bool = False,
    max_bytes: int = 1 << 30,
) -> pa.RecordBatch:
    """Decode the records with start <= offset < end in these batches to one record batch."""
    shape = schema(columns, views=views)
    view, rows = joined(view, rows, max_bytes)
    total = int(rows[:, COUNT].sum())
    offsets, offsets_view = _longs(total)
    times, times_view = _longs(total)
    payload, header_count = _decode_payload(view, rows, offsets_view, times_view, columns, views=views)
    arrays: list[pa.Array] = []
    for name in columns:
        if name == "offset":
            arrays.append(pa.Array.from_buffers(pa.int64(), total, [None, offsets]))
        elif name == "timestamp":
            arrays.append(pa.Array.from_buffers(TIME_TYPE, total, [None, times]))
        elif name == "timestamp_type":
            kinds = ((rows[:, ATTRIBUTES] & TIMESTAMP_TYPE_BIT) != 0).astype(np.int8)
            arrays.append(pa.array(np.repeat(kinds, rows[:, COUNT])))
        elif name == "headers":
            arrays.append(_decode_headers(view, rows, total, header_count))
        else:
            arrays.append(payload[name])
    batch = pa.RecordBatch.from_arrays(arrays, schema=shape)
    if total and (offsets_view[0] < start or offsets_view[total - 1] >= end):
        numbers = np.frombuffer(offsets_view, np.int64)
        low, high = np.searchsorted(numbers, (start, end))
        batch = batch.slice(int(low), max(int(high - low), 0))
    return batch


class _Payload:
    """Buffers of a column of keys or values: copies with their offsets, or views."""

    def __init__(self, total: int, room: int, *, views: bool) -> None:
        self._total = total
        self.offsets: pa.Buffer | None = None
        self.offsets_view = _WRITABLE_INT
        if not views:
            self.offsets, self.offsets_view = _ints(total + 1)
        self.data, self.data_view = _mutable(total * 16 if views else room)
        self.valid = memoryview(bytearray((total + 7) >> 3))

    @property
    def buffers(self) -> tuple[memoryview, memoryview, memoryview]:
        """Writable buffers for the kernel."""
        return self.offsets_view, self.data_view, self.valid

    def array(self, size_bytes: int, nulls: int, viewed: pa.Buffer | None) -> pa.Array:
        """Return the column: `size_bytes` of copied data, or views into `viewed`."""
        bits = pa.py_buffer(self.valid) if nulls else None
        if viewed is not None:
            return pa.Array.from_buffers(pa.binary_view(), self._total, [bits, self.data, viewed], nulls)
        data = _fitted(self.data, self.data_view, size_bytes)
        return pa.Array.from_buffers(pa.binary(), self._total, [bits, self.offsets, data], nulls)


def _decode_payload(
    view: memoryview, rows: Rows, offsets: memoryview, times: memoryview, columns: Sequence[str], *, views: bool
) -> tuple[dict[str, pa.Array], int]:
    """Decode keys and values, as far as they are requested, and count the headers. Fills offsets and timestamps."""
    total, room = len(offsets), int((rows[:, BODY_END] - rows[:, BODY]).sum())
    first, last = (int(rows[0, BODY]), int(rows[-1, BODY_END])) if len(rows) else (0, 0)
    key = _Payload(total, room, views=views) if "key" in columns else None
    value = _Payload(total, room, views=views) if "value" in columns else None
    bad, _, keys, values, null_keys, null_values, headers = kernel.decode_columns(
        view,
        memoryview(rows),
        len(rows),
        first if views else -1,
        offsets,
        times,
        *(_NO_PAYLOAD if key is None else key.buffers),
        *(_NO_PAYLOAD if value is None else value.buffers),
        key is not None,
        value is not None,
    )
    _check(bad)
    viewed = pa.py_buffer(view[first:last]) if views else None
    made: dict[str, pa.Array] = {}
    if key is not None:
        made["key"] = key.array(keys, null_keys, viewed)
    if value is not None:
        made["value"] = value.array(values, null_values, viewed)
    return made, headers


def _fitted(buffer: pa.Buffer, view: memoryview, size_bytes: int) -> pa.Buffer:
    """Return the filled part of a buffer, as a copy if it is small: an array of short keys must not pin the space that
    was allocated for whole batches."""
    if size_bytes * 2 > len(view):
        return buffer.slice(0, size_bytes)
    fitted, room = _mutable(size_bytes)
    room[:] = view[:size_bytes]
    return fitted


def _decode_headers(view: memoryview, rows: Rows, total: int, count: int) -> pa.Array:
    room = int((rows[:, BODY_END] - rows[:, BODY]).sum()) if count else 0
    lists, lists_view = _ints(total + 1)
    names, names_view = _ints(count + 1)
    name_data, name_data_view = _mutable(room)
    contents, contents_view = _ints(count + 1)
    content_data, content_data_view = _mutable(room)
    valid = memoryview(bytearray((count + 7) >> 3))
    bad, _, name_bytes, content_bytes, nulls = kernel.decode_headers(
        view,
        memoryview(rows),
        len(rows),
        lists_view,
        names_view,
        name_data_view,
        contents_view,
        content_data_view,
        valid,
    )
    _check(bad)
    key = _text(pa.Array.from_buffers(pa.binary(), count, [None, names, name_data.slice(0, name_bytes)], 0))
    bits = pa.py_buffer(valid) if nulls else None
    value = pa.Array.from_buffers(pa.binary(), count, [bits, contents, content_data.slice(0, content_bytes)], nulls)
    pairs = pa.StructArray.from_arrays([key, value], fields=list(HEADER_TYPE.value_type))
    return pa.Array.from_buffers(HEADER_TYPE, total, [None, lists], 0, children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """Return header keys as strings. Arrow requires UTF-8: other bytes become replacement characters."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def _check(bad: int) -> None:
    if bad >= 0:
        raise CorruptBatch(MALFORMED)


# ---------------------------------------------------------------------------------------------------------------------
# To batches


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """One chunk of rows as the buffers that `kernel.encode_arrow` expects."""

    rows: int
    buffers: tuple[Any, ...]
    sizes: tuple[Any, ...]
    keep: tuple[pa.Array, ...]

    def bound(self, row: int) -> int:
        """Return an upper bound for the size of the record in `row`, in bytes."""
        return 128 + sum(int(size(row)) for size in self.sizes)


def record_columns(table: pa.Table | pa.RecordBatch, now: int, max_record_bytes: int = 0) -> Iterator[RecordColumns]:
    """Yield the chunks of a table as buffers. Raises before the first chunk if a column is invalid."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise InvalidRecordType(f"append_arrow takes a pyarrow Table or RecordBatch, not {type(table).__name__}")
    _check_names(table.column_names)
    fields: list[str] = []
    arrays: list[pa.ChunkedArray] = []
    for name, convert in (("value", _binary), ("key", _binary), ("timestamp", _timestamps), ("headers", _headers)):
        if name in table.column_names:
            fields.append(name)
            try:
                arrays.append(convert(table.column(name)))
            except pa.ArrowException as error:
                raise InvalidRecordType(f"the column '{name}' cannot be stored: {error}") from error
    converted = pa.table(arrays, names=fields)
    if "timestamp" in fields:
        at = fields.index("timestamp")
        converted = converted.set_column(at, "timestamp", _in_range(converted.column(at), now))
    if max_record_bytes:
        _check_lengths(converted, max_record_bytes)
    return (_chunk(batch) for batch in converted.to_batches() if batch.num_rows)


def _check_names(names: Sequence[str]) -> None:
    if "value" not in names:
        raise InvalidRecord(f"the table has no column 'value'; its columns are {', '.join(names)}")
    strange = {name for name in names if name not in ("value", "key", "timestamp", "headers") or names.count(name) > 1}
    if strange:
        raise InvalidRecord(
            f"the table has unknown or duplicate columns: {', '.join(sorted(strange))}; select value, "
            "key, timestamp, headers first"
        )


def _check_lengths(table: pa.Table, most: int) -> None:
    lengths = sum(
        (
            pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy()
            for name in ("value", "key")
            if name in table.column_names
        ),
        np.zeros(table.num_rows, np.int64),
    )
    if "headers" in table.column_names:
        headers = table.column("headers")
        flat = pc.list_flatten(headers)
        sizes = pc.binary_length(pc.struct_field(flat, "key")).to_numpy().astype(np.int64)
        sizes += pc.fill_null(pc.binary_length(pc.struct_field(flat, "value")), 0).to_numpy()
        np.add.at(lengths, pc.list_parent_indices(headers).to_numpy(), sizes)
    if len(lengths) and lengths.max() > most:
        raise record_error("too_large", int(lengths.max()), most)


def _binary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        chunks = [_binary(pa.chunked_array([c.dictionary])).combine_chunks().take(c.indices) for c in column.chunks]
        return pa.chunked_array(chunks, pa.binary())
    if pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()):
        return column if kind == pa.binary() else column.cast(pa.binary())
    raise InvalidRecordType(f"keys and values must be binary or string columns, not {kind}; cast the column first")


def _timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert to milliseconds in int64; `_in_range` rejects times before 1970 and too far in the future."""
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if not pa.types.is_timestamp(kind):
        raise InvalidRecordType(f"timestamps must be a timestamp column or int64 milliseconds, not {kind}")
    numbers = column.cast(pa.int64())
    if kind.unit == "s":
        return pc.multiply_checked(numbers, 1000)
    if kind.unit == "ms":
        return numbers
    # Rounded down, so that a time before 1970 stays before it.
    step = 1000 if kind.unit == "us" else 1_000_000
    chunks = [_floor(chunk, step) for chunk in numbers.chunks]
    return pa.chunked_array(chunks, pa.int64())


def _floor(numbers: pa.Array, step: int) -> pa.Array:
    down = np.floor_divide(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False), step)
    return pa.array(down, pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _in_range(column: pa.ChunkedArray, now: int) -> pa.ChunkedArray:
    if column.null_count:
        column = pc.fill_null(column, now)
    if len(column):
        low, high = pc.min_max(column).as_py().values()
        if low < 0 or high > kernel.MAX_TIMESTAMP:
            raise record_error("timestamp", "timestamp", low if low < 0 else high)
    return column


def _headers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    target = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    kind = column.type
    if pa.types.is_map(kind):
        column = column.cast(pa.map_(pa.string(), pa.binary()))
        column = pa.chunked_array([_map_to_list(chunk, target) for chunk in column.chunks], type=target)
    elif pa.types.is_null(kind):
        column = column.cast(target)
    elif not _is_list_of_pairs(kind):
        raise InvalidRecordType(f"headers must be list<struct<key: string, value: binary>> or a map, not {kind}")
    column = column.cast(target)
    flat = pc.list_flatten(column)
    if flat.null_count or pc.struct_field(flat, "key").null_count:
        raise InvalidRecord("a header, and a header's key, must not be null")
    return column


def _is_list_of_pairs(kind: pa.DataType) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and pa.types.is_struct(kind.value_type) and {f.name for f in kind.value_type} == {"key", "value"}


def _map_to_list(chunk: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert maps to lists of pairs. Keys, items and offsets are those of the whole array, even for a slice."""
    pairs = pa.StructArray.from_arrays([chunk.keys, chunk.items], fields=list(target.value_type))
    return pa.ListArray.from_arrays(pc.add(chunk.offsets, 0), pairs, mask=chunk.is_null())


def _chunk(batch: pa.RecordBatch) -> RecordColumns:
    columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    value, value_size = _payload(columns.get("value"))
    key, key_size = _payload(columns.get("key"))
    headers, header_size = _header_buffers(columns.get("headers"))
    times = _EMPTY_LONG
    if "timestamp" in columns:
        times = memoryview(columns["timestamp"].to_numpy(zero_copy_only=True))
    return RecordColumns(
        batch.num_rows,
        (times, value, key, headers),
        (value_size, key_size, header_size),
        tuple(columns.values()),
    )


def _payload(array: pa.Array | None) -> tuple[tuple[Any, ...], Any]:
    """Return (offsets, data, validity, index of the first value) of a binary array, and a function for sizes."""
    if array is None:
        return _NOTHING, lambda row: 0
    valid, offsets, data = array.buffers()
    numbers = memoryview(offsets).cast("B")[: (array.offset + len(array) + 1) * 4].cast("i")
    bits = memoryview(valid).cast("B") if valid is not None and array.null_count else _EMPTY
    content = memoryview(data).cast("B") if data is not None else _EMPTY
    at = array.offset
    return (numbers, content, bits, at), lambda row: numbers[at + row + 1] - numbers[at + row]


def _header_buffers(array: pa.Array | None) -> tuple[tuple[Any, ...], Any]:
    if array is None:
        return _NO_HEADERS, lambda row: 0
    if array.null_count:  # a null list is no headers; rebuilt so that its range is empty
        array = pc.if_else(array.is_valid(), array, pa.scalar([], array.type))
    pairs = array.values
    names, contents = pairs.field("key"), pairs.field("value")
    offsets = memoryview(array.buffers()[1]).cast("B")[: (array.offset + len(array) + 1) * 4].cast("i")
    name, name_size = _payload(names.cast(pa.binary()))
    content, content_size = _payload(contents)
    at = array.offset

    def size(row: int) -> int:
        return sum(20 + name_size(h) + content_size(h) for h in range(offsets[at + row], offsets[at + row + 1]))

    return (offsets, at, name, content), size
