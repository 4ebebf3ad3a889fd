"""What tables are made from: a store, its topics and their partitions. `Store` and `Topic` fit, and those on object
storage.

How the records of a partition are read in parts, at the same time, depends on where it is: `TableSource` plans that and
reads the parts. `sawlog.sql.logs` is the one for logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from ..isolation import Isolation
from ..log.protocols import LogReader
from ..log.slices import Folding
from ..log.summaries import Blocks
from .history import History

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


class TableTopic(Protocol):
    """A topic that is read as a table."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""

    @property
    def settings(self) -> Mapping[str, int | float | str]:
        """The settings that were given."""

    def partition(self, number: int) -> LogReader:
        """One partition."""

    def source(self, number: int) -> TableSource:
        """The same, as a table."""

    def history(self) -> History | None:
        """What of the topic is in a table; None if there is none."""


class TableStore(Protocol):
    """Topics by name."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def topic(self, name: str) -> TableTopic:
        """The topic of that name."""
