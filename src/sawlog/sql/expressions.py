"""A filter as a tree that can be walked.

Engines hand filters to a dataset as `pyarrow.compute.Expression`, which does not show what is in it. Its serialised
form does: Arrow writes an expression as an IPC file whose metadata lists the tree in prefix order:

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

What is not understood becomes `Unknown`, about which nothing can be said: then everything is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Field:
    """A column; below it, the names of nested fields."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Arrow's, its arguments, and its options as they are written."""

    function: str
    arguments: tuple[Node, ...]
    options: Any = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something else."""


Node = Field | Literal | Call | Unknown


def tree_of(expression: pc.Expression | None) -> Node:
    """The tree of a filter; `Unknown` without one, or if it cannot be read."""
    if expression is None:
        return Unknown()
    try:
        [buffer] = expression.__reduce__()[1]
        table = pa.ipc.open_file(buffer).read_all()
        return _node(iter(_metadata(table.schema)), table)
    except (pa.ArrowException, ValueError, TypeError, StopIteration, LookupError):
        return Unknown()


class _ArrowSchema(ctypes.Structure):
    """The beginning of the struct of Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """All pairs, in order. pyarrow makes a dict of them, in which equal names would be one; Arrow's C data interface
    has them as they are: their number, then length and text of each name and value, in native 32-bit integers."""
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


def _node(pairs: Iterator[tuple[str, str]], table: pa.Table) -> Node:
    kind, value = next(pairs)
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
    queue = _Pushback(pairs)
    for kind, value in queue:
        if kind == "end":
            return Call(function, tuple(arguments), options)
        if kind == "options":
            options = table.column(int(value))[0].as_py()
        else:
            queue.give_back((kind, value))
            arguments.append(_node(queue, table))
    raise ValueError("a call without its end")


class _Pushback:
    """An iterator that takes one element back."""

    def __init__(self, pairs: Iterator[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._returned: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self

    def __next__(self) -> tuple[str, str]:
        return self._returned.pop() if self._returned else next(self._pairs)

    def give_back(self, pair: tuple[str, str]) -> None:
        """Return it again next time."""
        self._returned.append(pair)


def fields_of(expression: pc.Expression | None) -> set[str] | None:
    """The columns that a filter uses; None if that is not known."""
    if expression is None:
        return set()
    found: set[str] = set()
    return found if _collect(tree_of(expression), found) else None


def _collect(node: Node, found: set[str]) -> bool:
    if isinstance(node, Field):
        found.add(node.path[0])
    if isinstance(node, Call):
        known = [_collect(argument, found) for argument in node.arguments]  # all of them, whatever the first says
        return all(known)
    return not isinstance(node, Unknown)
