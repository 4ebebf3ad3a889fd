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

`history_of` looks up the current version. A table is used only if it belongs to this topic, and if the log has not lost
records that the table has: the log would reuse their offsets for other records. The quarantine holds records that are
in the log but not in the table. The table job commits it before the table, so it is looked up after the table: below
the table's ends it is complete. Its records from there on are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from .. import tables
from ..batch.arrow import HEADER_TYPE, TIME_TYPE
from ..errors import DataLoss, InvalidConfig
from ..log import slices
from ..schemas.columns import arrow_type
from ..schemas.types import Schema
from ..store.base import Topic
from ..store.table_info import TableInfo
from ..tables.formats import DataFile, Mark, Span, TableSnapshot
from .filters import ALL, EVERYTHING, Bounds, IntRange
from .snapshot import map_in_order

#: The columns of the log; the files may have these types in another width or unit.
_TYPES = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIME_TYPE,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADER_TYPE,
}
#: Characters that DuckDB treats as a glob pattern in a file name.
_PATTERN = frozenset("*?[]{}")
Finish = Callable[[pa.RecordBatch, int | None], pa.RecordBatch | None]


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


def history_of(topic: Topic) -> History | None:
    """Return the current version of a topic's table; None if it has none."""
    info = topic.table
    if info is None:
        return None
    found = tables.snapshot(info)
    check_same_topic(found, topic)
    for number, mark in found.marks.items():
        check_same_log(topic, number, mark)
    return History(list(_files(info, found, topic)), found.ends, found.schema, found.fields)


def _files(info: TableInfo, found: TableSnapshot, topic: Topic) -> Iterator[HistoryFile]:
    yield from (_file(each, found.ends, unparsed=False) for each in found.data)
    bad = tables.open_table(tables.quarantine_of(info)).snapshot()
    if bad is not None:
        check_same_topic(bad, topic)
        yield from (_file(each, found.ends, unparsed=True) for each in bad.data)


def _file(file: DataFile, ends: Mapping[int, int], *, unparsed: bool) -> HistoryFile:
    times = None if file.times_us is None else Span(file.times_us.first // 1000, file.times_us.last // 1000)
    bounds = Bounds(_range(file.partitions), _range(file.offsets), _range(times))
    return HistoryFile(file.path, file.rows, bounds, beyond=not file.is_within(ends), unparsed=unparsed)


def _range(span: Span | None) -> IntRange:
    return ALL if span is None else IntRange(span.first, span.last)


def check_same_topic(snapshot: TableSnapshot, topic: Topic) -> None:
    """Raise `InvalidConfig` if a table belongs to an earlier topic of that name."""
    if snapshot.topic_id != topic.id:
        raise InvalidConfig(
            f"the table of {topic.name!r} was made of an earlier topic {snapshot.topic!r}, which was recreated or "
            "rewritten since: the offsets have changed. Make a new table, in another directory"
        )


def check_same_log(topic: Topic, number: int, mark: Mark) -> None:
    """Raise `DataLoss` if the log has lost records that are in the table: it would reuse their offsets for others."""
    end = slices.proven_end(topic.partition(number), mark.epoch, mark.end)
    if end < mark.end:
        raise DataLoss(
            f"partition {number} of {topic.name!r} has lost its records from offset {end} on (a power cut, or "
            f"truncate), but the table has them up to {mark.end - 1}; make a new table, in another directory"
        )


class HistoryReader:
    """The records of a topic in its table, optionally limited by `starts` and `ends` per partition. `schema` is the
    requested schema of values."""

    def __init__(
        self,
        history: History,
        *,
        schema: Schema | None = None,
        starts: Mapping[int, int] | None = None,
        ends: Mapping[int, int] | None = None,
        topic: str = "",
    ) -> None:
        self.history = history
        self._schema = schema
        self._starts = dict(starts or {})
        self._ends = dict(ends or {})
        self._topic = topic

    @property
    def is_whole(self) -> bool:
        """The whole table is requested."""
        return not self._starts and not self._ends

    def batches(
        self, columns: Sequence[str], bounds: Bounds, finish: Finish, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the records within the bounds, with these columns, and apply `finish`. Files outside the bounds are not
        opened."""
        wanted = ["partition", *columns]
        files = [each for each in self.history.files if not each.bounds.both(bounds).is_empty]
        if files and "value" in wanted:
            self._check_values()

        def finished(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            columns = [self._column(batch, name) for name in wanted]
            made = finish(pa.RecordBatch.from_arrays(columns, names=wanted), None)
            return [] if made is None or not made.num_rows else [made]

        with ExitStack() as last:
            raw = (batch for group in _alike(files) for batch in self._scan(group, wanted, bounds, batch_rows))
            yield from map_in_order(finished, raw, last)

    def _check_values(self) -> None:
        """Raise if the query requests values that the table lacks."""
        lacking = [name for name in self._names if name not in self.history.fields]
        if self.history.has_value or (self._schema is not None and not lacking):
            return
        what = f"no field {lacking[0]!r}" if lacking else "no column value"
        raise InvalidConfig(
            f"the table of {self._topic!r} has {what}: it was made without values (--drop-value), and has only the "
            f"fields {', '.join(self.history.fields)}. Give a schema with some of these, or make a new table"
        )

    def _scan(
        self, files: Sequence[HistoryFile], wanted: Sequence[str], bounds: Bounds, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of files of one kind, unconverted."""
        try:
            found = ds.dataset([each.path for each in files], schema=self._stored(files[0]), format="parquet")
            there = [name for name in wanted if name in found.schema.names]
            if "value" in wanted and "value" not in there:
                there += [self.history.fields[name] for name in self._names]
            yield from found.to_batches(
                columns=there, filter=self._filter(bounds, beyond=files[0].beyond), batch_size=batch_rows
            )
        except FileNotFoundError as error:
            raise gone(error, self._topic) from error

    @property
    def _names(self) -> list[str]:
        return [] if self._schema is None else self._schema.names

    def _stored(self, file: HistoryFile) -> pa.Schema:
        """Return the columns to read from a file. Columns for the fields of values are left out where they are not
        needed: in a file older than such a column they are null."""
        table = self.history.schema
        if file.unparsed and not self.history.has_value:
            table = table.append(pa.field("value", pa.binary()))
        own = [table.field(name) for name in _TYPES if name in table.names]
        fields = () if self.history.has_value or file.unparsed else self.history.fields.values()
        return pa.schema([*own, *(table.field(name) for name in fields)])

    def _filter(self, bounds: Bounds, *, beyond: bool) -> pc.Expression | None:
        stamps = self.history.schema.field("timestamp").type
        parts = [
            *_within("partition", bounds.partition, None),
            *_within("offset", bounds.offset, None),
            *_within("timestamp", bounds.time_ms, stamps),
        ]
        at, number = pc.field("offset"), pc.field("partition")
        parts += [(number != each) | (at >= start) for each, start in self._starts.items()]
        parts += [(number != each) | (at < end) for each, end in self._ends.items()]
        if beyond:
            below = [(number == each) & (at < end) for each, end in self.history.ends.items()]
            parts.append(reduce(pc.Expression.__or__, below, pc.scalar(False)))
        return reduce(pc.Expression.__and__, parts) if parts else None

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name in batch.schema.names:
            found = batch.column(name)
            return found if found.type == _TYPES[name] else found.cast(_TYPES[name], safe=False)
        if name == "headers":
            return pa.array([[]] * batch.num_rows, HEADER_TYPE)
        assert self._schema is not None  # _check_values
        fields = [batch.column(self.history.fields[each.name]).cast(arrow_type(each.type)) for each in self._schema]
        return pa.StructArray.from_arrays(fields, self._names)

    # --- for an engine that reads Parquet directly

    def direct(self) -> list[HistoryFile]:
        """Return the files that an engine can read directly: all their rows count, and values are bytes in both."""
        if not self.is_whole or self._schema is not None or not self.history.has_value:
            return []
        return [each for each in self.history.files if not each.beyond and not _PATTERN.intersection(each.path)]

    def without(self, files: Sequence[HistoryFile]) -> HistoryReader | None:
        """Return the past without these files; None if nothing is left."""
        paths = {each.path for each in files}
        rest = [each for each in self.history.files if each.path not in paths]
        if not rest:
            return None
        history = History(rest, self.history.ends, self.history.schema, self.history.fields)
        return HistoryReader(history, schema=self._schema, starts=self._starts, ends=self._ends, topic=self._topic)

    def expressions(self) -> list[str]:
        """Return the SQL that converts the columns of the files to those of a topic."""
        columns = {
            "partition": "partition::integer",
            "offset": '"offset"::bigint',
            "timestamp": "timestamp::timestamptz",
            "key": "key::blob",
            "value": "value::blob",
            "headers": "headers" if "headers" in self.history.schema.names else "[]",
        }
        return [f'{expression} as "{name}"' for name, expression in columns.items()]

    def missing(self) -> DataLoss | None:
        """Return the error for removed files; None if all exist."""
        for each in self.history.files:
            if not Path(each.path).exists():
                return gone(each.path, self._topic)
        return None


def gone(what: object, topic: str) -> DataLoss:
    return DataLoss(
        f"a file of the table of {topic!r} is gone ({what}): it was replaced and then removed since the query began. "
        "Run the query again; keep replaced files longer (--keep) if this happens often"
    )


def _alike(files: Iterable[HistoryFile]) -> list[list[HistoryFile]]:
    groups: dict[tuple[bool, bool], list[HistoryFile]] = {}
    for each in files:
        groups.setdefault((each.unparsed, each.beyond), []).append(each)
    return list(groups.values())


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _within(column: str, values: IntRange, kind: pa.DataType | None) -> Iterator[pc.Expression]:
    """Conditions for a column in a range; a timestamp in the unit of the files."""

    def constant(number: int) -> pa.Scalar:
        if kind is None:
            return pa.scalar(number)
        return pa.scalar(number, pa.timestamp("ms", tz=kind.tz)).cast(kind)

    smallest, largest = (-(2**63), 2**63 - 1) if kind is None else (-(2**42), 2**42)
    if values.low > smallest:
        yield pc.field(column) >= constant(min(values.low, largest))
    if values.high < largest:
        yield pc.field(column) <= (constant(values.high) if kind is None else constant(values.high + 1))
