"""The part of a topic that is in a table, and how queries ask for it.

A topic may be materialised: its older records are in Parquet files (a Delta or Iceberg table, or a plain directory), up
to some offset in each partition. A query then reads the files up to there, and the log from there on. `History` is all
that SQL has to know of such a table:

    ends     partition to offset: the files hold every record below it that the log had, and none from it on
    files    the Parquet files of one version of the table, which holds exactly these records

Both must be of the same version of the table, and it must be taken before the log's ends are: a record that moves from
the log to the table in between is then read from the log. The files have the columns of a record: `partition`,
`offset`, `timestamp`, `key`, `value` (bytes), and possibly `headers`; others are ignored. `fields` says which columns
hold the fields of values, if there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class History:
    """One version of a topic's table."""

    files: Sequence[str]
    ends: Mapping[int, int]
    #: Field of the topic's schema to the column that has it; empty: the values have to be parsed.
    fields: Mapping[str, str] = field(default_factory=dict)
