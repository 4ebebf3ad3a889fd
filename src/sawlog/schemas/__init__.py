"""Schemas of JSON values, as topics declare them.

`parse` reads one from text: Avro, JSON Schema, or DDL as Spark writes it. All three become the same `Schema`: named
fields of a few types. `checking` reports why a value does not match, `columns` converts many values to Arrow, and
`types` lists the reasons why values of an earlier schema cannot be read with a later one.

Pure: no I/O and no registry.
"""

from __future__ import annotations

from .notations import parse
from .types import Schema

__all__ = ["Schema", "parse"]
