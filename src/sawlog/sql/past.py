"""`Past`: the records of a topic that are in a table's Parquet files, read as if they were in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..batch.arrow import HEADER_TYPE, TIME_TYPE
from ..errors import DataLoss, InvalidConfig
from ..schemas.columns import arrow_type
from ..schemas.types import Schema
from . import scanning
from .filters import Bounds, Range
from .history import History, HistoryFile

#: What the log has, too; the files may have these types in another width or unit.
_TYPES = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIME_TYPE,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADER_TYPE,
}
#: What DuckDB would take for a pattern in the name of a file.
_PATTERN = frozenset("*?[]{}")
Finish = Callable[[pa.RecordBatch, int | None], pa.RecordBatch | None]


class Past:
    """What a table holds of a topic, from `starts` and to `ends`, by partition, if these are given. `schema` is that of
    the values, as they are wanted."""

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
        """Whether all of the table is wanted."""
        return not self._starts and not self._ends

    def batches(
        self, columns: Sequence[str], bounds: Bounds, finish: Finish, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The records within the bounds, with these columns, and what `finish` makes of them. Files that cannot have
        one are not opened."""
        wanted = ["partition", *columns]
        files = [each for each in self.history.files if not each.bounds.both(bounds).is_empty]
        if files and "value" in wanted:
            self._check_values()

        def finished(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            made = finish(self._shaped(batch, wanted), None)
            return [] if made is None or not made.num_rows else [made]

        with ExitStack() as last:
            raw = (batch for group in _alike(files) for batch in self._scan(group, wanted, bounds, batch_rows))
            yield from scanning.in_order(finished, raw, last)

    def _check_values(self) -> None:
        """Raise if values are wanted that the table does not have."""
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
        """The rows of files of one kind, as they are."""
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
        """The columns of a file as they are read. Without those that have the fields of values, if these are not
        needed: a file that is older than such a column has it as null."""
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

    def _shaped(self, batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(batch, name) for name in wanted], names=list(wanted))

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name in batch.schema.names:
            found = batch.column(name)
            return found if found.type == _TYPES[name] else found.cast(_TYPES[name], safe=False)
        if name == "headers":
            return pa.array([[]] * batch.num_rows, HEADER_TYPE)
        assert self._schema is not None  # _check_values
        fields = [batch.column(self.history.fields[each.name]).cast(arrow_type(each.type)) for each in self._schema]
        return pa.StructArray.from_arrays(fields, self._names)

    # --- for an engine that reads Parquet itself

    def direct(self) -> list[HistoryFile]:
        """The files that an engine can read as they are: all their rows count, and values are bytes on both sides."""
        if not self.is_whole or self._schema is not None or not self.history.has_value:
            return []
        return [each for each in self.history.files if not each.beyond and not _PATTERN.intersection(each.path)]

    @property
    def has_plain_keys(self) -> bool:
        """Whether an engine can read all files as they are, if it asks for no values."""
        return self.is_whole and not any(each.beyond or _PATTERN.intersection(each.path) for each in self.history.files)

    def without(self, files: Sequence[HistoryFile]) -> Past | None:
        """The same without these files; None if nothing is left."""
        paths = {each.path for each in files}
        rest = [each for each in self.history.files if each.path not in paths]
        if not rest:
            return None
        history = History(rest, self.history.ends, self.history.schema, self.history.fields)
        return Past(history, schema=self._schema, starts=self._starts, ends=self._ends, topic=self._topic)

    def expressions(self) -> list[str]:
        """SQL for the columns of a topic, from those of the files."""
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
        """The error for files that are gone; None if all are there."""
        for each in self.history.files:
            if not Path(each.path).exists():
                return gone(each.path, self._topic)
        return None


def gone(what: object, topic: str) -> DataLoss:
    """The error for a file that was removed while a query was reading."""
    return DataLoss(
        f"a file of the table of {topic!r} is gone ({what}): it was replaced and then removed since the query began. "
        "Run the query again; keep replaced files longer (--keep) if this happens often"
    )


def _alike(files: Iterable[HistoryFile]) -> list[list[HistoryFile]]:
    """The files in groups that are read in the same way."""
    groups: dict[tuple[bool, bool], list[HistoryFile]] = {}
    for each in files:
        groups.setdefault((each.unparsed, each.beyond), []).append(each)
    return list(groups.values())


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _within(column: str, values: Range, kind: pa.DataType | None) -> Iterator[pc.Expression]:
    """A column in a range; a timestamp in the unit of the files."""

    def constant(number: int) -> pa.Scalar:
        if kind is None:
            return pa.scalar(number)
        return pa.scalar(number, pa.timestamp("ms", tz=kind.tz)).cast(kind)

    smallest, largest = (-(2**63), 2**63 - 1) if kind is None else (-(2**42), 2**42)
    if values.low > smallest:
        yield pc.field(column) >= constant(min(values.low, largest))
    if values.high < largest:
        yield pc.field(column) <= (constant(values.high) if kind is None else constant(values.high + 1))
