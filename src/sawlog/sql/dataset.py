"""`TopicDataset`: a topic as a `pyarrow.dataset.Dataset`; also as Polars and pandas frames.

DuckDB and Polars know Arrow's datasets: they ask for a scanner with the columns and the filter of a query, and rely on
the filter being applied. They recognise the class, not the methods (DuckDB rejects other objects, and reads a plain
Arrow stream in full), so this is a subclass. It uses none of the inherited methods.

| column | type | |
|---|---|---|
| partition | int32 | |
| offset | int64 | |
| timestamp | timestamp[ms, UTC] | |
| key | binary | |
| value | binary | a struct, if there is a schema |
| headers | list of struct(key, value) | |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..batch.arrow import schema as record_schema
from ..clock import in_utc
from ..config import Isolation
from ..errors import DataLoss, InvalidRecord, MissingPackage
from ..schemas import Schema, parse
from ..schemas.columns import arrow_type, decode
from ..store.base import Topic
from .filters import Bounds, fields_of
from .history import History, HistoryReader
from .snapshot import BATCH_ROWS, TopicSnapshot, scan

if TYPE_CHECKING:
    import pandas
    import polars

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
#: The setting that declares a topic's schema.
SETTING = "sawlog.schema"
#: Maximum number of times the table and the log are looked up, if retention moves the log past the table's end.
_RETRIES = 10
#: True: the schema that the topic declares; a schema or its text: this one; None or False: values are bytes.
Wanted = Schema | str | bool | None


def table_schema(schema: Schema | None) -> pa.Schema:
    fields = [pa.field("partition", pa.int32(), nullable=False), *record_schema(COLUMNS[1:])]
    if schema is not None:
        fields[COLUMNS.index("value")] = pa.field("value", arrow_type(schema))
    return pa.schema(fields)


class TopicDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A snapshot of a topic as an Arrow dataset. Thread-safe: any number of concurrent scans."""

    def __init__(
        self,
        snapshot: TopicSnapshot,
        schema: Schema | None = None,
        *,
        always: pc.Expression | None = None,
        past: HistoryReader | None = None,
        raised: list[BaseException] | None = None,
    ) -> None:
        # Not `super().__init__`, which raises: it is for wrappers of Arrow's own datasets.
        self._snapshot = snapshot
        self._values = schema
        #: A filter in addition to those of queries.
        self._always = always
        self._schema = table_schema(schema)
        self._raised = raised
        #: The records before the snapshot, in a table.
        self.past = past

    @property
    def snapshot(self) -> TopicSnapshot:
        """The part of the topic in the log."""
        return self._snapshot

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def __repr__(self) -> str:
        return f"<TopicDataset {self._snapshot.topic.name}>"

    def __reduce__(self) -> Any:
        raise TypeError("a topic cannot be pickled: open the store in the other process")

    def batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Read the records that pass the filter, with these columns."""
        wanted = list(COLUMNS) if columns is None else list(columns)
        self._check(wanted)
        if self._always is not None:
            filter = self._always if filter is None else self._always & filter
        bounds = Bounds.of(filter)
        finish = _BatchFinisher(self._values, wanted, filter)
        stored = [name for name in COLUMNS[1:] if name in finish.needed] or ["offset"]
        pieces = self._snapshot.pieces(bounds)
        batches = scan(self._snapshot, pieces, stored, finish, batch_rows=batch_rows)
        if self.past is not None:
            batches = chain(self.past.batches(stored, bounds, finish, batch_rows), batches)
        return batches if self._raised is None else self._noted(batches, self._raised)

    @staticmethod
    def _noted(batches: Iterator[pa.RecordBatch], raised: list[BaseException]) -> Iterator[pa.RecordBatch]:
        """Pass batches on; keep an error as well, for a caller that receives it only as text."""
        try:
            yield from batches
        except GeneratorExit:
            raise
        except BaseException as error:
            raised.append(error)
            raise

    def with_past(self, past: HistoryReader | None) -> TopicDataset:
        """Return the same log after another past, or after none."""
        return TopicDataset(self._snapshot, self._values, always=self._always, past=past, raised=self._raised)

    def reader(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.RecordBatchReader:
        """Like `batches`, as an Arrow stream."""
        shape = self.projected(columns)
        return pa.RecordBatchReader.from_batches(shape, self.batches(columns, filter))

    def projected(self, columns: Sequence[str] | None) -> pa.Schema:
        if columns is None:
            return self._schema
        self._check(columns)
        return pa.schema([self._schema.field(name) for name in columns])

    def _check(self, columns: Sequence[str]) -> None:
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise InvalidRecord(f"no such column: {', '.join(unknown)}; the columns are {', '.join(COLUMNS)}")

    # --- pyarrow.dataset.Dataset

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, **ignored: Any) -> TopicScanner:
        """The method that DuckDB calls. Ignores options for Arrow's own readers."""
        return TopicScanner(self, columns, filter)

    def to_batches(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> Any:
        """The method that Polars calls."""
        return self.batches(columns, filter, options.get("batch_size") or BATCH_ROWS)

    def to_table(self, columns: Any = None, filter: pc.Expression | None = None, **ignored: Any) -> pa.Table:
        """Read everything into memory."""
        return self.reader(columns, filter).read_all()

    def head(self, num_rows: int, columns: Any = None, filter: Any = None, **ignored: Any) -> pa.Table:
        shape = self.projected(columns)
        found: list[pa.RecordBatch] = []
        for batch in self.batches(columns, filter):
            found.append(batch.slice(0, num_rows))
            num_rows -= found[-1].num_rows
            if num_rows <= 0:
                break
        return pa.Table.from_batches(found, shape)

    def count_rows(self, filter: pc.Expression | None = None, **ignored: Any) -> int:
        return sum(batch.num_rows for batch in self.batches(["partition"], filter))

    def get_fragments(self, filter: pc.Expression | None = None) -> Any:
        """Not supported: a topic has no fragments that Arrow could read."""
        raise NotImplementedError("a topic is not made of files that Arrow can read: use scanner or to_batches")


@dataclass(frozen=True, slots=True)
class TopicScanner:
    """One scan of a topic. Not a `pyarrow.dataset.Scanner`: its threads read ahead, even when no more rows are wanted,
    and would be killed inside Python when the process ends."""

    dataset: TopicDataset
    columns: Sequence[str] | None
    filter: pc.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        return self.dataset.projected(self.columns)

    def to_reader(self) -> pa.RecordBatchReader:
        return self.dataset.reader(self.columns, self.filter)


class _BatchFinisher:
    """Turns a batch of stored columns into the requested columns of the rows that pass the filter."""

    def __init__(self, schema: Schema | None, columns: list[str], filter: pc.Expression | None) -> None:
        self._schema = schema
        self._columns = columns
        self._filter = filter
        #: The columns to read: the requested ones, and those in the filter.
        filtered = fields_of(filter)
        self.needed = set(columns) | (set(COLUMNS) if filtered is None else filtered)
        self._shape = pa.schema(
            [field for field in table_schema(schema) if field.name in self.needed or field.name in columns]
        )

    def __call__(self, batch: pa.RecordBatch, partition: int | None) -> pa.RecordBatch | None:
        """Finish a batch; `partition` is None if the batch has a partition column."""
        arrays = [self._array(batch, partition, name) for name in self._shape.names]
        made = pa.RecordBatch.from_arrays(arrays, schema=self._shape)
        if self._filter is not None:
            made = made.filter(self._filter)
            if not made.num_rows:
                return None
        return made if made.schema.names == self._columns else made.select(self._columns)

    def _array(self, batch: pa.RecordBatch, partition: int | None, name: str) -> pa.Array:
        if name == "partition" and partition is not None:
            return pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
        found = batch.column(name)
        if name == "value" and self._schema is not None and not pa.types.is_struct(found.type):
            return decode(self._schema, found)
        return found


# --- the dataset of a topic


def schema_of(topic: Topic, wanted: Wanted = True) -> Schema | None:
    """Return the schema to read a topic with; None if its values are bytes."""
    if wanted is True:
        text = topic.settings.get(SETTING)
        return parse(str(text)) if text else None
    if wanted is None or wanted is False:
        return None
    return parse(wanted) if isinstance(wanted, str) else wanted


def dataset_of(
    topic: Topic,
    *,
    schema: Wanted = True,
    isolation: Isolation = "committed",
    start: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    raised: list[BaseException] | None = None,
) -> TopicDataset:
    """Return the dataset of a topic as it is now, restricted to records from `since` on and before `until`. Errors
    during reading are also appended to `raised`."""
    values = schema_of(topic, schema)
    history, snapshot = _taken(topic, isolation, start or {}, end or {})
    past = None if history is None else HistoryReader(history, schema=values, starts=start, ends=end, topic=topic.name)
    return TopicDataset(snapshot, values, always=_between(since, until), past=past, raised=raised)


def _taken(
    topic: Topic, isolation: Isolation, start: Mapping[int, int], end: Mapping[int, int]
) -> tuple[History | None, TopicSnapshot]:
    """Look up the table, then the log from the table's end. If the log now begins after that, try again: the table job
    has moved on, and retention after it."""
    for _ in range(_RETRIES):
        history = topic._history()
        starts = dict(start)
        for number, offset in {} if history is None else history.ends.items():
            starts[number] = max(offset, starts.get(number, 0))
        snapshot = TopicSnapshot.of(topic, isolation=isolation, start=starts, end=end)
        if history is None or (lost := _gap(topic, history, starts, end)) is None:
            return history, snapshot
    raise DataLoss(
        f"{lost} are neither in the table nor in the log any more: retention was faster than the table's job"
    )


def _gap(topic: Topic, history: History, starts: Mapping[int, int], ends: Mapping[int, int]) -> str | None:
    """Describe the requested records of a partition that are in neither its table nor its log."""
    for number in history.ends:
        lowest = topic.partition(number).lowest_offset
        limit = min(lowest, ends.get(number, lowest))
        if starts[number] < limit:
            return f"records {starts[number]} to {limit - 1} of partition {number} of {topic.name!r}"
    return None


def _between(since: datetime | None, until: datetime | None) -> pc.Expression | None:
    """Return the filter for records from one time up to, not including, another. A time without a zone is local."""
    made: pc.Expression | None = None
    if since is not None:
        made = pc.field("timestamp") >= pa.scalar(in_utc(since), pa.timestamp("us", tz="UTC"))
    if until is not None:
        before = pc.field("timestamp") < pa.scalar(in_utc(until), pa.timestamp("us", tz="UTC"))
        made = before if made is None else made & before
    return made


def lazy_frame(dataset: TopicDataset) -> polars.LazyFrame:
    """Return a lazy frame over a topic. Polars pushes down the columns and the filter of a query as for any Arrow
    dataset, and reads batch by batch."""
    try:
        import polars
    except ImportError as error:
        raise MissingPackage("Topic.polars needs polars: run pip install '.[sql]' in a clone of sawlog") from error
    return polars.scan_pyarrow_dataset(dataset)


def data_frame(table: pa.Table) -> pandas.DataFrame:
    try:
        import pandas  # noqa: F401 - Arrow's message does not say how to install it
    except ImportError as error:
        raise MissingPackage("Topic.to_pandas needs pandas: run pip install pandas") from error
    return table.to_pandas()
