"""The part of a topic that is in a table, and how queries ask for it.

A topic may be materialised: its older records are in Parquet files (a Delta or Iceberg table, or a plain directory), up
to some offset in each partition. A query then reads the files up to there, and the log from there on. `History` is all
that SQL has to know of such a table:

    ends     partition to offset: the files hold every record below it that the log had; rows from it on do not count
    files    the Parquet files of one version of the table

Both must be of the same version of the table, and it must be taken before the log's ends are: a record that moves from
the log to the table in between is then read from the log.

The files have the columns of a record: `partition`, `offset`, `timestamp`, `key`, `value` (bytes), and possibly
`headers`; others are ignored. A table may be without `value`. Then `fields` says which columns have the fields of
values; otherwise these are not used, because Spark has parsed them, which accepts other values than a topic's schema
does: a query would have another result when a record has moved to the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from .filters import EVERYTHING, Bounds


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One Parquet file."""

    path: str
    #: The number of rows, if it is known.
    rows: int | None = None
    #: What its rows are known to be within, as narrow as possible.
    bounds: Bounds = EVERYTHING
    #: Whether it may have rows from the ends on.
    beyond: bool = False
    #: Whether its values did not fit the table's schema: then they are there as bytes, and no fields.
    unparsed: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """One version of a topic's table."""

    files: Sequence[HistoryFile]
    ends: Mapping[int, int]
    #: The columns of the table.
    schema: pa.Schema
    #: Field of a value to the column that has it.
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_value(self) -> bool:
        """Whether values are there as the log had them."""
        return "value" in self.schema.names
