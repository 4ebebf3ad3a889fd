"""Decode many values at once: an Arrow array of JSON texts becomes a struct array.

The kernel reads the fields of common values (`sawlog.batch.kernel.json`), nearly all of them. The rest, and every value
of a schema with lists, maps or aliases, is decoded one by one (`checking.py`). A value that does not match the schema
becomes null; so does a null value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..batch import kernel
from . import checking
from .types import Field, ListOf, MapOf, Scalar, Schema, Type

TIME_TYPE = pa.timestamp("us", tz="UTC")

_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "date": pa.date32(),
    "timestamp": TIME_TYPE,
}
_KINDS = {
    "boolean": kernel.JSON_BOOLEAN,
    "int": kernel.JSON_LONG,
    "long": kernel.JSON_LONG,
    "float": kernel.JSON_DOUBLE,
    "double": kernel.JSON_DOUBLE,
    "string": kernel.JSON_STRING,
    "bytes": kernel.JSON_STRING,
}
#: The years 1 to 9999 in ticks: the range of Python's datetime.
_YEARS = {
    "ms": (-62_135_596_800_000, 253_402_300_799_999),
    "us": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
_NO_BITMAP = memoryview(b"")
Bytes = npt.NDArray[np.uint8]


def arrow_type(kind: Type) -> pa.DataType:
    """Return the column type for a schema type. Everything is nullable: a value that does not match is null."""
    if isinstance(kind, Schema):
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in kind])
    if isinstance(kind, ListOf):
        return pa.list_(arrow_type(kind.element))
    if isinstance(kind, MapOf):
        return pa.map_(pa.string(), arrow_type(kind.value))
    return pa.decimal128(kind.precision, kind.scale) if kind.kind == "decimal" else _ARROW[kind.kind]


def decode(schema: Schema, values: pa.Array) -> pa.Array:
    plan = _plan(schema)
    if plan is None:
        return _one_by_one(schema, values)
    return _Decoding(plan, values).result()


def _one_by_one(schema: Schema, values: pa.Array) -> pa.Array:
    found: list[dict[str, Any] | None] = []
    for value in values.to_pylist():
        try:
            found.append(None if value is None else checking.read(schema, value))
        except checking.Mismatch:
            found.append(None)
    return pa.array(found, arrow_type(schema))


@dataclass(frozen=True, slots=True)
class _Node:
    """A requested field and its place in the kernel's tables."""

    field: Field
    number: int
    slot: int
    children: tuple[_Node, ...]

    def walk(self) -> Iterator[_Node]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The kernel's tables for one schema."""

    schema: Schema
    root: _Node
    nodes: npt.NDArray[np.int32]
    names: bytes
    longs: int
    doubles: int


@lru_cache(maxsize=64)
def _plan(schema: Schema) -> _Plan | None:
    """Build the kernel's tables for a schema; None if the kernel cannot read it."""
    if not all(map(_is_plain, schema)):
        return None
    rows: list[list[int]] = [[kernel.JSON_STRUCT, 0, 0, 0, 0, 0]]
    names = bytearray()
    slots = {kernel.JSON_LONG: 0, kernel.JSON_DOUBLE: 0}

    def place(fields: Schema, parent: int) -> tuple[_Node, ...]:
        first = len(rows)
        rows[parent][kernel.JSON_CHILD : kernel.JSON_MANY + 1] = first, len(fields)
        for field in fields:
            name = field.name.encode()
            rows.append([_kind(field.type), 0, 0, 0, len(names), len(name)])
            names.extend(name)
        return tuple(finish(field, first + at) for at, field in enumerate(fields))

    def finish(field: Field, number: int) -> _Node:
        kind = rows[number][kernel.JSON_KIND]
        if isinstance(field.type, Schema):
            return _Node(field, number, 0, place(field.type, number))
        table = kernel.JSON_DOUBLE if kind == kernel.JSON_DOUBLE else kernel.JSON_LONG
        slot = rows[number][kernel.JSON_SLOT] = slots[table]
        slots[table] += 2 if kind == kernel.JSON_STRING else 1
        return _Node(field, number, slot, ())

    root = _Node(Field("", schema), 0, 0, place(schema, 0))
    table = np.array(rows, np.int32)
    return _Plan(schema, root, table, bytes(names), slots[kernel.JSON_LONG], slots[kernel.JSON_DOUBLE])


def _is_plain(field: Field) -> bool:
    if field.aliases or (isinstance(field.type, Schema) and field.has_default and field.default is not None):
        return False
    if isinstance(field.type, Schema):
        return all(map(_is_plain, field.type))
    return isinstance(field.type, Scalar) and (field.type.kind in _KINDS or _is_number_of_ticks(field.type))


def _is_number_of_ticks(kind: Scalar) -> bool:
    return kind.kind == "timestamp" and kind.notation in ("ms", "us")


def _kind(kind: Type) -> int:
    if isinstance(kind, Schema):
        return int(kernel.JSON_STRUCT)
    assert isinstance(kind, Scalar)
    return int(_KINDS.get(kind.kind, kernel.JSON_LONG))


class _Decoding:
    """One array of values being decoded."""

    def __init__(self, plan: _Plan, values: pa.Array) -> None:
        self._plan = plan
        self._values = values
        count = len(values)
        self._state: Bytes = np.zeros((len(plan.nodes), count), np.uint8)
        self._longs = np.zeros((plan.longs, count), np.int64)
        self._doubles = np.zeros((plan.doubles, count), np.float64)
        self._odd: Bytes = np.zeros(count, np.uint8)
        bitmap, offsets, data = values.buffers()
        self._text = _NO_BITMAP if data is None else memoryview(data).cast("B")
        kernel.json_fields(
            self._text,
            memoryview(offsets).cast("B").cast("i") if offsets is not None else memoryview(np.zeros(1, np.int32)),
            _NO_BITMAP if bitmap is None else memoryview(bitmap).cast("B"),
            values.offset,
            count,
            memoryview(plan.nodes),
            memoryview(plan.names),
            memoryview(self._state),
            memoryview(self._longs),
            memoryview(self._doubles),
            memoryview(self._odd),
        )

    def result(self) -> pa.Array:
        for child in self._plan.root.children:
            self._apply_defaults(child, self._state[0] == kernel.JSON_PRESENT)
        odd = np.flatnonzero(self._odd)
        if len(odd):  # discard the fields read before the kernel gave up on a value
            self._state[:, odd] = kernel.JSON_NULL
            self._longs[:, odd] = 0
        made = self._struct(self._plan.root)
        return made if not len(odd) else self._with_odd(made, odd)

    def _apply_defaults(self, node: _Node, present: npt.NDArray[np.bool_]) -> None:
        """Fill in defaults, and mark as odd the values with a missing field, a disallowed null or a number out of
        range. Python decides about those; they are rare."""
        state, field = self._state[node.number], node.field
        if not field.nullable:
            self._odd |= present & (state == kernel.JSON_NULL)
        absent = present & (state == kernel.JSON_ABSENT)
        if absent.any() and (field.has_default or not field.nullable):
            self._fill(node, absent)
        if isinstance(field.type, Scalar) and field.type.kind == "int":
            numbers = self._longs[node.slot]
            self._odd |= present & (state == kernel.JSON_PRESENT) & ((numbers < -(2**31)) | (numbers >= 2**31))
        if isinstance(field.type, Scalar) and field.type.kind == "timestamp":
            low, high = _YEARS[field.type.notation]
            numbers = self._longs[node.slot]
            self._odd |= present & (state == kernel.JSON_PRESENT) & ((numbers < low) | (numbers > high))
        for child in node.children:
            self._apply_defaults(child, present & (state == kernel.JSON_PRESENT))

    def _fill(self, node: _Node, absent: npt.NDArray[np.bool_]) -> None:
        default = node.field.default
        if default is None:
            return
        if type(default) is int and _kind(node.field.type) == kernel.JSON_LONG and -(2**31) <= default < 2**31:
            self._longs[node.slot, absent] = default
            self._state[node.number, absent] = kernel.JSON_PRESENT
        elif type(default) in (int, float) and _kind(node.field.type) == kernel.JSON_DOUBLE:
            self._doubles[node.slot, absent] = default
            self._state[node.number, absent] = kernel.JSON_PRESENT
        else:
            self._odd |= absent

    def _with_odd(self, made: pa.Array, odd: npt.NDArray[np.int64]) -> pa.Array:
        """Replace the odd values by their one-by-one results."""
        read = _one_by_one(self._plan.schema, self._values.take(pa.array(odd)))
        order = np.arange(len(made))
        order[odd] = np.arange(len(made), len(made) + len(odd))
        return pa.concat_arrays([made, read]).take(pa.array(order))

    # --- columns

    def _struct(self, node: _Node) -> pa.Array:
        arrays = [self._column(child) for child in node.children]
        kind = node.field.type
        assert isinstance(kind, Schema)
        fields = list(arrow_type(kind))
        missing = self._state[node.number] != kernel.JSON_PRESENT
        mask = pa.array(missing) if missing.any() else None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def _column(self, node: _Node) -> pa.Array:
        kind = node.field.type
        if isinstance(kind, Schema):
            return self._struct(node)
        assert isinstance(kind, Scalar)
        if _kind(kind) == kernel.JSON_STRING:
            return self._strings(node, arrow_type(kind))
        missing = self._state[node.number] != kernel.JSON_PRESENT
        mask = missing if missing.any() else None
        if _kind(kind) == kernel.JSON_DOUBLE:
            return pa.array(self._doubles[node.slot], pa.float64(), mask=mask).cast(arrow_type(kind), safe=False)
        numbers = self._longs[node.slot]
        if kind.kind == "boolean":
            return pa.array(numbers != 0, pa.bool_(), mask=mask)
        if kind.kind == "int":
            return pa.array(numbers.astype(np.int32), pa.int32(), mask=mask)
        made = pa.array(numbers, pa.int64(), mask=mask)
        if kind.kind != "timestamp":
            return made
        return made.cast(pa.timestamp(kind.notation, tz="UTC")).cast(TIME_TYPE)

    def _strings(self, node: _Node, kind: pa.DataType) -> pa.Array:
        state, count = self._state[node.number], len(self._values)
        starts, sizes = self._longs[node.slot], self._longs[node.slot + 1]
        present = state == kernel.JSON_PRESENT
        offsets = pa.allocate_buffer(4 * (count + 1))
        data = pa.allocate_buffer(int(sizes[present].sum()))
        kernel.gather_slices(
            self._text,
            memoryview(starts),
            memoryview(sizes),
            memoryview(state),
            count,
            memoryview(offsets).cast("B").cast("i"),
            memoryview(data).cast("B"),
        )
        bits = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
        return pa.Array.from_buffers(kind, count, [bits, offsets, data])
