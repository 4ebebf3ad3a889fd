"""Schemas of JSON values, as topics declare them.

`parse` reads one from text: Avro, JSON Schema, or DDL as Spark writes it. All three become the same `Schema`: named
fields of a few types. `checking` says why a value does not match, `columns` turns many values into Arrow, and
`evolution` says whether values of an earlier schema can still be read.

Pure: no I/O and no registry.
"""

from __future__ import annotations

from .parsing import parse
from .types import Schema

__all__ = ["Schema", "parse"]
