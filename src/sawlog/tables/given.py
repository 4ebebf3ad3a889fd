"""The schema of a topic's values, as somebody gives it: SQL's DDL, JSON Schema, or Avro; as text or as a file.

    id bigint, name string                     DDL
    {"type": "object", "properties": {…}}      JSON Schema
    {"type": "record", "fields": […]}          Avro (.avsc)
    @orders.avsc                               a file with one of these; also a name that ends with .avsc, .json or .ddl

`sawlog.schemas` reads them. Of a schema only what a column can have is used here: whether a field may be missing, its
defaults and aliases are not.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from .. import schemas
from ..errors import InvalidConfig
from . import ddl

_FILES = (".avsc", ".json", ".ddl", ".sql")


def value_schema(given: str) -> pa.Schema:
    """The fields of values; `InvalidConfig` if that is not a schema."""
    return ddl.columns_of(schemas.parse(_text(given.strip())))


def _text(given: str) -> str:
    named = given.startswith("@")
    path = Path(given.removeprefix("@"))
    if not named and path.suffix.lower() not in _FILES:
        return given
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the schema cannot be read from {path}: {error}") from error
