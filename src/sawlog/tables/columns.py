"""The columns of a topic's table: those of the record, and with a schema the fields of its value.

```
key binary, value binary, partition int, offset bigint, timestamp timestamp,
headers array<struct<key: string, value: binary>>                             the record
id bigint, name string, …                                                     the fields of the value
```

A field with the name of a record's column becomes `value_<name>`, whatever its case: SQL does not distinguish it.
The record's columns come first, in this order; a table may be without `value`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from ..errors import InvalidConfig

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
#: What is in the quarantine: the record unchanged, and why it is there.
QUARANTINE = RECORD.append(pa.field("reason", pa.string()))
#: Columns that divide a table by time; they are in the paths of its files.
TIMES = ("date", "hour")

_PREFIX = "value_"
_TAKEN = frozenset((*RECORD.names, *TIMES))
#: What Delta and Parquet do not allow in a name.
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")


def column_of(field: str) -> str:
    """The column of a field."""
    return _PREFIX + field if _is_taken(field) else field


def field_of(column: str) -> str:
    """The field of a column."""
    return column.removeprefix(_PREFIX) if column.startswith(_PREFIX) and _is_taken(column) else column


def _is_taken(name: str) -> bool:
    """Whether it is a record's column, behind any number of prefixes."""
    name = name.lower()
    while name not in _TAKEN and name.startswith(_PREFIX):
        name = name.removeprefix(_PREFIX)
    return name in _TAKEN


def table_schema(fields: pa.Schema | None, *, with_value: bool = True) -> pa.Schema:
    """The columns of a table whose values have these fields; None: they are not parsed."""
    record = [field for field in RECORD if with_value or field.name != "value"]
    typed = [pa.field(column_of(field.name), field.type) for field in fields or ()]
    return pa.schema([*record, *typed])


def value_fields(schema: pa.Schema) -> pa.Schema:
    """The fields of values that a table has as columns."""
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
    """Why a field cannot be a column; empty if it can."""
    if not name:
        return "its name is empty"
    found = _FORBIDDEN.search(name)
    return f"its name contains {found[0]!r}, which tables do not allow" if found else ""


def plain(schema: pa.Schema) -> pa.Schema:
    """A schema as Spark and we write it: without metadata, and with the small variants of types."""
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
