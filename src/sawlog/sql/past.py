"""`Past`: the records of a topic that are in a table's Parquet files, read as if they were in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..batch.arrow import HEADER_TYPE, TIME_TYPE
from ..schemas.types import Schema
from .bounds import Bounds, Range
from .history import History

#: What the log has, too; the files may have these types in another width or unit.
_TYPES = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIME_TYPE,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADER_TYPE,
}
Finish = Callable[[pa.RecordBatch, int | None], pa.RecordBatch | None]


class Past:
    """What a table holds of a topic, from `starts` and to `ends`, by partition, if these are given."""

    def __init__(
        self,
        history: History,
        *,
        starts: Mapping[int, int] | None = None,
        ends: Mapping[int, int] | None = None,
    ) -> None:
        self.history = history
        self._starts = dict(starts or {})
        self._ends = dict(ends or {})

    @cached_property
    def _files(self) -> ds.Dataset:
        return ds.dataset(list(self.history.files), format="parquet")

    def batches(
        self, columns: Sequence[str], bounds: Bounds, finish: Finish, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The records within the bounds, with these columns, and what `finish` makes of them."""
        if not self.history.files or bounds.is_empty:
            return
        wanted = ["partition", *columns]
        there = [name for name in wanted if name in self._files.schema.names]
        for batch in self._files.to_batches(columns=there, filter=self._filter(bounds), batch_size=batch_rows):
            arrays = [_column(batch, name) for name in wanted]
            finished = finish(pa.RecordBatch.from_arrays(arrays, names=wanted), None)
            if finished is not None and finished.num_rows:
                yield finished

    def _filter(self, bounds: Bounds) -> pc.Expression | None:
        parts = [
            *_within("partition", bounds.partition, None),
            *_within("offset", bounds.offset, None),
            *_within("timestamp", bounds.time_ms, self._files.schema.field("timestamp").type),
        ]
        for number, start in self._starts.items():
            parts.append((pc.field("partition") != number) | (pc.field("offset") >= start))
        for number, end in self._ends.items():
            parts.append((pc.field("partition") != number) | (pc.field("offset") < end))
        made: pc.Expression | None = None
        for part in parts:
            made = part if made is None else made & part
        return made

    # --- for an engine that reads Parquet itself

    def is_readable_as(self, schema: Schema | None) -> bool:
        """Whether all columns can be taken from the files as they are: values are bytes, or their fields are there."""
        if self._starts or self._ends:
            return False
        return schema is None or all(name in self.history.fields for name in schema.names)

    def expressions(self, schema: Schema | None) -> list[str]:
        """SQL for the columns of a topic, from those of the files."""
        columns = {
            "partition": "partition::integer",
            "offset": '"offset"::bigint',
            "timestamp": "timestamp::timestamptz",
            "key": "key::blob",
            "value": "value::blob" if schema is None else self._struct(schema),
            "headers": "headers" if "headers" in self._files.schema.names else "[]",
        }
        return [f'{expression} as "{name}"' for name, expression in columns.items()]

    def _struct(self, schema: Schema) -> str:
        fields = [f"{quoted(name)} := {quoted(self.history.fields[name])}" for name in schema.names]
        return f"struct_pack({', '.join(fields)})"


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


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.array([[]] * batch.num_rows, HEADER_TYPE) if name == "headers" else pa.nulls(batch.num_rows)
    found = batch.column(name)
    return found if found.type == _TYPES[name] else found.cast(_TYPES[name], safe=False)
