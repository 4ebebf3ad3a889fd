"""Schema evolution: how the columns of a table may change while it is written.

    a new field             becomes a new column; in older rows it is null
    a missing field         stays a column; in newer rows it is null
    int to bigint, float to double, decimal(p,s) to decimal(q,s)    the column is widened
    bigint for an int column, …                                     stays as wide as it is

Every other change is rejected: it would change the meaning of existing rows. The same rules apply inside structs,
arrays and the values of maps.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ..errors import InvalidConfig
from . import columns

_WIDER = {pa.int32(): (pa.int64(),), pa.float32(): (pa.float64(),)}


@dataclass(frozen=True, slots=True)
class Evolution:
    """The resulting columns, and the differences."""

    schema: pa.Schema
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


def evolved(before: pa.Schema, asked: pa.Schema, *, strict: bool = True) -> Evolution:
    """Merge the requested fields into the columns of a table. An impossible change raises `InvalidConfig`; without
    `strict`, the column keeps its type instead."""
    added: list[str] = []
    widened: list[str] = []
    fields = _Merge(strict, added, widened).fields(list(before), list(asked), "")
    return Evolution(pa.schema(fields), tuple(added), tuple(widened))


@dataclass(frozen=True, slots=True)
class _Merge:
    """Merges two schemas and records the differences."""

    strict: bool
    added: list[str]
    widened: list[str]

    def fields(self, before: list[pa.Field], asked: list[pa.Field], place: str) -> list[pa.Field]:
        """Merge the fields of a table or of a struct."""
        wanted = {field.name.lower(): field for field in asked}
        made: list[pa.Field] = []
        for field in before:
            new = wanted.pop(field.name.lower(), None)
            kind = field.type if new is None else self._type(field.type, new.type, f"{place}{field.name}")
            made.append(pa.field(field.name, kind))
        for field in wanted.values():
            made.append(pa.field(field.name, field.type))
            self.added.append(f"{place}{field.name}")
        return made

    def _type(self, before: pa.DataType, asked: pa.DataType, place: str) -> pa.DataType:
        if before == asked or is_wider(before, asked):
            return before
        if is_wider(asked, before):
            self.widened.append(place)
            return asked
        if pa.types.is_struct(before) and pa.types.is_struct(asked):
            return pa.struct(self.fields(list(before), list(asked), f"{place}."))
        if pa.types.is_list(before) and pa.types.is_list(asked):
            inner = self._type(before.value_type, asked.value_type, f"{place}.element")
            return pa.list_(pa.field("element", inner))
        if pa.types.is_map(before) and pa.types.is_map(asked) and before.key_type == asked.key_type:
            return pa.map_(before.key_type, self._type(before.item_type, asked.item_type, f"{place}.value"))
        if not self.strict:
            return before
        raise InvalidConfig(
            f"the column {place} is {columns.shown(before)} and cannot become {columns.shown(asked)}: a column can be "
            "widened (int to bigint, float to double, decimal to more digits). Keep its type, or make a new table"
        )


def is_wider(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether the first type can hold every value of the second, in all formats."""
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.scale == other.scale and one.precision > other.precision)
    return one in _WIDER.get(other, ())
