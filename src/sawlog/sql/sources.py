"""`TableSource`: a partition as the source of a table.

How a partition is split and read concurrently depends on the backend: a `TableSource` plans the parts and reads them.
`sawlog.sql.snapshot` has the one for logs in files, `sawlog.store.objects.slices` the one for object
storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ..isolation import Isolation
from ..log.slices import SliceAggregate
from ..log.summaries import Blocks

#: A part of a partition, as its source planned it.
Planned = Any


class PartitionReader(Protocol):
    """Reader of the parts of one partition. Thread-safe."""

    def read(self, part: Planned, *, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Return the records of a part: all of them, or raise `DataLoss`."""

    def fold(self, part: Planned, into: SliceAggregate, *, columns: Sequence[str], batch_rows: int) -> None:
        """Pass each record of a part to `into`, once."""

    def close(self) -> None:
        """Release files and connections."""


class TableSource(Protocol):
    """One partition that is read as a table."""

    def plan(
        self, start: int, end: int, *, epoch: int, target_bytes: int | None = None, isolation: Isolation = "committed"
    ) -> Sequence[Planned]:
        """Return parts that cover all offsets from `start` to `end`, in order. Raises `DataLoss` if some are gone."""

    def blocks(
        self, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks] | None:
        """Summarise the records between two offsets without reading them. None if no summary exists or, with `exact`,
        if the number of records is not known."""

    def proven_end(self, epoch: int, end: int) -> int:
        """Return the end of the offsets below `end` that still belong to a leader epoch."""

    def open(self) -> PartitionReader:
        """Open a reader."""
