"""The columns of a topic's table: those of the record and, with a schema, the fields of its value.

```
key binary, value binary, partition int, offset bigint, timestamp timestamp,
headers array<struct<key: string, value: binary>>                             the record
id bigint, name string, …                                                     the fields of the value
```

A field named like a column of the record, in any case, becomes `value_<name>`: SQL ignores case. The record's columns
come first, in this order; a table may lack `value`.

`value_schema` reads the schema of a topic's values: SQL's DDL, JSON Schema, or Avro; as text or as a file:

    id bigint, name string                     DDL
    {"type": "object", "properties": {…}}      JSON Schema
    {"type": "record", "fields": […]}          Avro (.avsc)
    @orders.avsc                               a file with one of these; also a name that ends with .avsc, .json or .ddl

`sawlog.schemas` parses them. Only the parts that a column can express are used here: not whether a field may be
missing, nor its defaults and aliases. `parsed` and `shown` convert between Arrow types and DDL such as `id int, tags
array<string>, place struct<lat:double,lon:double>`, in which documents store the columns of a table.

`evolved` says how the columns of a table may change while it is written:

    a new field             becomes a new column; in older rows it is null
    a missing field         stays a column; in newer rows it is null
    int to bigint, float to double, decimal(p,s) to decimal(q,s)    the column is widened
    bigint for an int column, …                                     stays as wide as it is

Every other change is rejected: it would change the meaning of existing rows. The same rules apply inside structs,
arrays and the values of maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from .. import schemas
from ..errors import InvalidConfig
from ..schemas import Schema
from ..schemas.columns import arrow_type
from ..schemas.notations import parse_ddl

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
RECORD = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", HEADERS),
    ]
)
#: Columns of the quarantine: the record unchanged, and the reason.
QUARANTINE = RECORD.append(pa.field("reason", pa.string()))
#: Columns that partition a table by time; they are in the paths of its files.
TIMES = ("date", "hour")

_PREFIX = "value_"
_TAKEN = frozenset((*RECORD.names, *TIMES))
#: Characters that Delta and Parquet do not allow in a name.
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")


def column_of(field: str) -> str:
    return _PREFIX + field if _is_taken(field) else field


def field_of(column: str) -> str:
    return column.removeprefix(_PREFIX) if column.startswith(_PREFIX) and _is_taken(column) else column


def _is_taken(name: str) -> bool:
    """Return whether a name, stripped of `value_` prefixes, is reserved: a record's column, `date` or `hour`. Ignores
    case."""
    name = name.lower()
    while name not in _TAKEN and name.startswith(_PREFIX):
        name = name.removeprefix(_PREFIX)
    return name in _TAKEN


def table_schema(fields: pa.Schema | None, *, with_value: bool = True) -> pa.Schema:
    """Return the columns of a table whose values have these fields; None: values are not parsed."""
    record = [field for field in RECORD if with_value or field.name != "value"]
    typed = [pa.field(column_of(field.name), field.type) for field in fields or ()]
    return pa.schema([*record, *typed])


def value_fields(schema: pa.Schema) -> pa.Schema:
    """Return the fields of values that are columns of a table."""
    own = frozenset((*RECORD.names, *TIMES))
    return pa.schema([pa.field(field_of(each.name), each.type) for each in schema if each.name not in own])


def check_names(names: Iterable[str]) -> None:
    """Raise `InvalidConfig` if fields cannot be columns."""
    seen: dict[str, str] = {}
    for name in names:
        if why := fault_of(name):
            raise InvalidConfig(f"the field {name!r} cannot be a column: {why}")
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidConfig(f"the fields {other!r} and {name!r} differ only in case: SQL does not distinguish it")


def fault_of(name: str) -> str:
    """Return why a field cannot be a column; empty if it can."""
    if not name:
        return "its name is empty"
    found = _FORBIDDEN.search(name)
    return f"its name contains {found[0]!r}, which tables do not allow" if found else ""


def plain(schema: pa.Schema) -> pa.Schema:
    """Normalise a schema: no metadata, and the small variants of types, as Spark writes them."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return kind


_WORDS = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}


def columns_of(schema: Schema) -> pa.Schema:
    return plain(pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema]))


def parsed(text: str) -> pa.Schema:
    """Parse columns such as `id int, name string`."""
    return columns_of(parse_ddl(text))


def shown(kind: pa.DataType) -> str:
    """Format a type as DDL. Raises `InvalidConfig` for types without one."""
    if kind in _WORDS:
        return _WORDS[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{shown(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{shown(kind.key_type)},{shown(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{_quoted(field.name)}:{shown(field.type)}' for field in kind)}>"
    raise InvalidConfig(f"a table has no columns of the type {kind}")


def shown_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{_quoted(field.name)} {shown(field.type)}" for field in schema)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


_FILES = (".avsc", ".json", ".ddl", ".sql")


def value_schema(given: str) -> pa.Schema:
    """Parse the schema of values. Raises `InvalidConfig` if it is not one."""
    return columns_of(schemas.parse(_text(given.strip())))


def _text(given: str) -> str:
    named = given.startswith("@")
    path = Path(given.removeprefix("@"))
    if not named and path.suffix.lower() not in _FILES:
        return given
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the schema cannot be read from {path}: {error}") from error


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
            f"the column {place} is {shown(before)} and cannot become {shown(asked)}: a column can be "
            "widened (int to bigint, float to double, decimal to more digits). Keep its type, or make a new table"
        )


def is_wider(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether the first type can hold every value of the second, in all formats."""
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.scale == other.scale and one.precision > other.precision)
    return one in _WIDER.get(other, ())
