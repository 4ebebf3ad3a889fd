"""What the values of a topic are made of: a schema that a topic declares, for values that are JSON.

`parse` reads one from text: Avro, JSON Schema, or DDL as Spark writes it. All three become the same `Schema`: named
fields of a few types. From there: `check` says why a value does not match, `columns` turns many values into Arrow,
`evolution` says whether values of an earlier schema can still be read.

Pure: nothing here does I/O, and there is no registry.
"""

from __future__ import annotations

from .parsing import parse
from .types import Schema

__all__ = ["Schema", "parse"]
