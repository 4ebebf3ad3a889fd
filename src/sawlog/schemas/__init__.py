"""Schemas of JSON values, as topics declare them.

`parse` reads one from text: Avro, JSON Schema, or DDL as Spark writes it. All three become the same `Schema`: named
fields of a few types. `checking` reports why a value does not match, `columns` converts many values to Arrow, and
`types` lists the reasons why values of an earlier schema cannot be read with a later one.

Pure: no I/O and no registry.
"""

from __future__ import annotations

from functools import lru_cache

from ..batch.text import parse_json
from ..errors import InvalidConfig
from . import avro, ddl, json_schema
from .types import Schema

__all__ = ["Schema", "parse"]

#: Maximum length in characters: a longer text is not a schema but the wrong file.
MAX_TEXT = 1 << 20


@lru_cache(maxsize=256)
def parse(text: str) -> Schema:
    """Parse a schema. Raises `InvalidConfig` with the error.

    Text that begins with a brace is JSON: an Avro schema if its type is "record", else a JSON Schema. Everything else
    is DDL: `id BIGINT NOT NULL, name STRING`.
    """
    if len(text) > MAX_TEXT:
        raise InvalidConfig(f"a schema can have at most {MAX_TEXT:,} characters, not {len(text):,}")
    if not text.lstrip().startswith(("{", "[", '"')):
        return ddl.parse(text)
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InvalidConfig(f"a schema that begins with a brace must be JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidConfig('a schema as JSON must be an object: an Avro record, or a JSON Schema of type "object"')
    return avro.parse(document) if document.get("type") == "record" else json_schema.parse(document)
