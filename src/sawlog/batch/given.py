"""What may be given where records are appended, as types: a checker finds a wrong one before the kernel refuses it.

pyarrow ships no types, so `pa.Table` would mean anything to a type checker. `GivenTable` and `GivenSchema` say the
least that its objects have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from .kernel import Record

#: Bytes of a value or a key; None: there is none.
GivenBytes = bytes | bytearray | memoryview | None
#: Headers by name, or as pairs where a name may be repeated.
GivenHeaders = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None
#: A value alone, a `Record`, a mapping with the names of `append`'s parameters, or a tuple in their order.
GivenRecord = (
    GivenBytes
    | Record
    | Mapping[str, object]
    | tuple[GivenBytes]
    | tuple[GivenBytes, GivenBytes]
    | tuple[GivenBytes, GivenBytes, GivenHeaders]
    | tuple[GivenBytes, GivenBytes, GivenHeaders, int | None]
)


class GivenSchema(Protocol):
    """A `pyarrow.Schema`."""

    @property
    def names(self) -> list[str]:
        """The names of its fields."""


class GivenTable(Protocol):
    """A `pyarrow.Table` or a `pyarrow.RecordBatch`."""

    @property
    def num_rows(self) -> int:
        """How many rows it has."""

    @property
    def nbytes(self) -> int:
        """The size of its columns in bytes."""
