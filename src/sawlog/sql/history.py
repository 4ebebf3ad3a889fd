"""The part of a topic that is in a table, as queries see it.

A topic may be materialised: its older records are in Parquet files (a Delta or Iceberg table, or a plain directory), up
to some offset in each partition. A query reads the files up to there, and the log from there on. `History` describes
such a table:

    ends     end offset by partition: the files hold every record below it that the log had; rows from it on are ignored
    files    the Parquet files of one version of the table

Both must come from the same version of the table, taken before the log's ends: a record that moves from the log to the
table in between is then read from the log.

The files have the columns of a record: `partition`, `offset`, `timestamp`, `key`, `value` (bytes), and possibly
`headers`; others are ignored. A table may lack `value`. Then `fields` names the columns that hold the fields of values.
Otherwise those columns are not used: Spark parsed them, and it accepts other values than a topic's schema does, so the
result of a query would change when a record moves to the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from .filters import EVERYTHING, Bounds


@dataclass(frozen=True, slots=True)
class HistoryFile:
    path: str
    #: Number of rows, if known.
    rows: int | None = None
    #: Known bounds of its rows.
    bounds: Bounds = EVERYTHING
    #: May contain rows at or above the ends.
    beyond: bool = False
    #: Quarantined: values did not fit the table's schema and are stored as bytes, without fields.
    unparsed: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """One version of a topic's table."""

    files: Sequence[HistoryFile]
    ends: Mapping[int, int]
    #: The columns of the table.
    schema: pa.Schema
    #: Columns by the value field they hold.
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_value(self) -> bool:
        """The files hold values as the log had them."""
        return "value" in self.schema.names
