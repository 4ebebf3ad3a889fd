"""Types as text, in SQL's way: `id int, tags array<string>, place struct<lat:double,lon:double>`.

`sawlog.schemas` reads such texts. Here they become Arrow's types, and these become texts again: that is how documents
store the columns of a table.
"""

from __future__ import annotations

import re

import pyarrow as pa

from ..errors import InvalidConfig
from ..schemas import Schema
from ..schemas.columns import arrow_type
from ..schemas.ddl import parse
from .columns import plain

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
    """The fields of a schema as columns of a table."""
    return plain(pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema]))


def parsed(text: str) -> pa.Schema:
    """The columns of a text such as `id int, name string`."""
    return columns_of(parse(text))


def parsed_type(text: str) -> pa.DataType:
    """One type, such as `array<int>`."""
    return parsed(f"it {text}").field(0).type


def shown(kind: pa.DataType) -> str:
    """A type as text; `InvalidConfig` if it has none."""
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
    """Columns as text."""
    return ", ".join(f"{_quoted(field.name)} {shown(field.type)}" for field in schema)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"
