"""`TableSource`: a partition as the source of a table.

How the records of a partition are read in parts, concurrently, depends on the backend: a `TableSource` plans the parts
and reads them. `sawlog.sql.snapshot` has the one for logs in files, `sawlog.store.objects.partition.arrow_source` the
one for object storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ..isolation import Isolation
from ..log.slices import Folding
from ..log.summaries import Blocks

#: A part of a partition, as its source has planned it.
Planned = Any


class TableReading(Protocol):
    """Reads parts of one partition. Safe for threads."""

    def read(self, part: Planned, *, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The records of a part: all of them, or `DataLoss`."""

    def fold(self, part: Planned, into: Folding, *, columns: Sequence[str], batch_rows: int) -> None:
        """Add each record of a part to something, once."""

    def close(self) -> None:
        """Release what it has opened."""


class TableSource(Protocol):
    """One partition that is read as a table."""

    def plan(
        self, start: int, end: int, *, epoch: int, target_bytes: int | None = None, isolation: Isolation = "committed"
    ) -> Sequence[Planned]:
        """Parts for all offsets from `start` to `end`, in order; `DataLoss` if some are gone."""

    def blocks(
        self, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks] | None:
        """What is known of the records between two offsets without reading them. None if that is nothing, or, if it has
        to be `exact`, if their number is not known."""

    def proven_end(self, epoch: int, end: int) -> int:
        """How far the offsets below `end` are still those of a leader epoch."""

    def open(self) -> TableReading:
        """Begin to read."""
