"""Read the filters that engines push down, and derive the bounds that limit a scan.

Engines hand filters to a dataset as `pyarrow.compute.Expression`, which is opaque. Its serialised form is not: Arrow
writes an expression as an IPC file whose metadata lists the tree in prefix order:

```
call: and_kleene            a function and, until its `end`, its arguments
  call: greater_equal
    field_ref: offset       a column
    literal: 0              the value in that column of the file's only row
  end: greater_equal
  nested_field_ref: 2       a column and the names below it, in that many `field_ref`s
  options: 1                the options of the call, a struct in that column
end: and_kleene
```

A node of any other kind becomes `Unknown`, and the scan reads everything.

`Bounds` are the partitions, offsets and times that may pass a filter. They are conservative: a record outside them
never passes, a record inside may not pass either. So the filter is still applied to every record read; bounds only save
reading.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Field:
    """A column, and the names of nested fields below it."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """An Arrow compute function with its arguments and its serialised options."""

    function: str
    arguments: tuple[Node, ...]
    options: Any = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A node that this module does not interpret."""


Node = Field | Literal | Call | Unknown


def tree_of(expression: pc.Expression | None) -> Node:
    """Parse a filter into a tree; `Unknown` if there is none or it cannot be parsed."""
    if expression is None:
        return Unknown()
    try:
        [buffer] = expression.__reduce__()[1]
        table = pa.ipc.open_file(buffer).read_all()
        pairs = iter(_metadata(table.schema))
        return _parsed(*next(pairs), pairs, table)
    except (pa.ArrowException, ValueError, TypeError, StopIteration, LookupError):
        return Unknown()


class _ArrowSchema(ctypes.Structure):
    """The first fields of ArrowSchema in Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all metadata pairs, in order. pyarrow builds a dict, which merges equal names; Arrow's C data interface
    keeps them: their number, then length and text of each name and value, in native 32-bit integers."""
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    struct = _ArrowSchema.from_address(pointer_of(capsule, b"arrow_schema") or 0)
    at = struct.metadata
    if not at:
        return []
    texts: list[str] = []
    count = ctypes.c_int32.from_address(at).value
    at += 4
    for _ in range(2 * count):
        size = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + 4, size).decode())
        at += 4 + size
    return list(zip(texts[::2], texts[1::2], strict=True))


def _parsed(kind: str, value: str, pairs: Iterator[tuple[str, str]], table: pa.Table) -> Node:
    """Parse the node that begins with this pair; `pairs` yields the rest of it."""
    if kind == "call":
        return _call(value, pairs, table)
    if kind == "field_ref":
        return Field((value,))
    if kind == "nested_field_ref":
        names = [next(pairs) for _ in range(int(value))]
        return Field(tuple(name for kind, name in names if kind == "field_ref"))
    if kind == "literal":
        return Literal(table.column(int(value))[0])
    raise ValueError(kind)


def _call(function: str, pairs: Iterator[tuple[str, str]], table: pa.Table) -> Call:
    arguments: list[Node] = []
    options = None
    for kind, value in pairs:
        if kind == "end":
            return Call(function, tuple(arguments), options)
        if kind == "options":
            options = table.column(int(value))[0].as_py()
        else:
            arguments.append(_parsed(kind, value, pairs, table))
    raise ValueError("a call without its end")


def fields_of(expression: pc.Expression | None) -> set[str] | None:
    if expression is None:
        return set()
    found: set[str] = set()
    return found if _collect(tree_of(expression), found) else None


def _collect(node: Node, found: set[str]) -> bool:
    if isinstance(node, Field):
        found.add(node.path[0])
    if isinstance(node, Call):
        known = [_collect(argument, found) for argument in node.arguments]  # a list: visit every argument
        return all(known)
    return not isinstance(node, Unknown)


_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

#: Comparisons with swapped operands.
_MIRRORED = {"greater": "less", "greater_equal": "less_equal", "less": "greater", "less_equal": "greater_equal"}
_PER_MS = {"s": 1000, "ms": 1, "us": 1000, "ns": 1_000_000}


class IntRange(NamedTuple):
    """Integers from `low` to `high`, both inclusive. Empty if `low` is above `high`."""

    low: int = _LOWEST
    high: int = _HIGHEST

    def both(self, other: IntRange) -> IntRange:
        return IntRange(max(self.low, other.low), min(self.high, other.high))

    def either(self, other: IntRange) -> IntRange:
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return IntRange(min(self.low, other.low), max(self.high, other.high))

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    @property
    def is_everything(self) -> bool:
        return self == ALL


ALL = IntRange()
NONE = IntRange(1, 0)


class Bounds(NamedTuple):
    """Limits of the records that may pass a filter. `time_ms` is in milliseconds since 1970, like record timestamps."""

    partition: IntRange = ALL
    offset: IntRange = ALL
    time_ms: IntRange = ALL

    @classmethod
    def of(cls, filter: pc.Expression | None) -> Bounds:
        return _bounds(tree_of(filter))

    def both(self, other: Bounds) -> Bounds:
        return Bounds(*map(IntRange.both, self, other))

    def either(self, other: Bounds) -> Bounds:
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return Bounds(*map(IntRange.either, self, other))

    @property
    def is_empty(self) -> bool:
        return any(each.is_empty for each in self)


EVERYTHING = Bounds()
NOTHING = Bounds(NONE, NONE, NONE)


def _bounds(node: Node) -> Bounds:
    if isinstance(node, Literal):
        return EVERYTHING if node.value.as_py() is True else NOTHING  # null does not pass
    if not isinstance(node, Call):
        return EVERYTHING
    if node.function in ("and_kleene", "and"):
        first, second = map(_bounds, node.arguments)
        return first.both(second)
    if node.function in ("or_kleene", "or"):
        first, second = map(_bounds, node.arguments)
        return first.either(second)
    if node.function == "is_in":
        return _membership(node)
    if node.function == "if_else" and len(node.arguments) == 3:  # DuckDB's IN: null if the column is null
        return _bounds(node.arguments[1]).either(_bounds(node.arguments[2]))
    return _comparison(node)


def _comparison(node: Call) -> Bounds:
    """Return the bounds that a comparison between a column and a constant implies."""
    if len(node.arguments) != 2:
        return EVERYTHING
    function, (left, right) = node.function, node.arguments
    if isinstance(left, Literal):
        function, left, right = _MIRRORED.get(function, function), right, left
    column = _column(left)
    if column is None or not isinstance(right, Literal):
        return EVERYTHING
    return _limited(column, _compared(function, column, right.value))


def _column(node: Node) -> str | None:
    """Return the column, if it has bounds; also inside a cast, which Arrow adds to compare timestamps of different
    units."""
    if isinstance(node, Call) and node.function == "cast" and node.arguments:
        node = node.arguments[0]
    if isinstance(node, Field) and len(node.path) == 1 and node.path[0] in ("partition", "offset", "timestamp"):
        return node.path[0]
    return None


def _limited(column: str, values: IntRange) -> Bounds:
    if column == "partition":
        return Bounds(partition=values)
    return Bounds(offset=values) if column == "offset" else Bounds(time_ms=values)


def _compared(function: str, column: str, value: pa.Scalar) -> IntRange:
    number = _whole(column, value)
    if number is None:
        return ALL
    low, high = number
    step = 1 if low == high else 0  # integers: the neighbour is the first that passes
    ranges = {
        "equal": IntRange(low, high),
        "greater": IntRange(low=low + step),
        "greater_equal": IntRange(low=low),
        "less": IntRange(high=high - step),
        "less_equal": IntRange(high=high),
    }
    return ranges.get(function, ALL)


def _whole(column: str, value: pa.Scalar) -> tuple[int, int] | None:
    """Return the integers around a constant, equal if it is one; None if it has no order."""
    if not value.is_valid:
        return None
    kind = value.type
    if column == "timestamp":
        if not pa.types.is_timestamp(kind):
            return None
        ticks = int(value.cast(pa.timestamp(kind.unit)).value) if kind.tz is None else int(value.value)
        if kind.unit == "s":
            return ticks * _PER_MS["s"], ticks * _PER_MS["s"]
        return ticks // _PER_MS[kind.unit], -(-ticks // _PER_MS[kind.unit])
    number: Any = value.as_py()
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number, number


def _membership(node: Call) -> Bounds:
    column = _column(node.arguments[0]) if node.arguments else None
    values = node.options.get("value_set") if isinstance(node.options, dict) else None
    if column is None or not isinstance(values, list):
        return EVERYTHING
    found = NONE
    for value in values:
        if isinstance(value, datetime):
            number = round(value.timestamp() * 1000)
            found = found.either(IntRange(number - 1, number + 1))
        elif isinstance(value, int) and not isinstance(value, bool):
            found = found.either(IntRange(value, value))
        elif value is not None:
            return EVERYTHING
    return _limited(column, found)
