"""`TopicFace`: what a topic offers to those who read it as a whole, wherever its partitions are stored: scans, tables,
typed views, descriptions, and how a notebook shows it. `Topic` has it, and a topic on object storage.

All of it is made of the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from ..batch.header import DEFAULT_COLUMNS
from ..batch.kernel import Record
from ..config import LogConfig
from ..display import shown_soon
from ..errors import InvalidRecord
from ..isolation import Isolation
from ..log.log import Log
from ..log.protocols import LogReader
from ..log.read.last import MOST_SHOWN, to_show
from ..log.read.reader import ARROW_ROWS
from ..log.write.encoders import recipe_of
from ..log.write.writer import BATCH_BYTES
from .descriptions import PartitionDescription, TopicDescription, topic_html
from .packing import Packer
from .settings import Value

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from ..sql.dataset import TopicDataset
    from ..sql.declared import Wanted
    from ..sql.history import History
    from ..sql.sources import TableSource
    from ..typed.places import Home, Sink, TopicLike
    from ..typed.serializer import MetadataSerializer, RawHeaders, Serializer
    from ..typed.topic import TypedTopic

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")

#: Where a table begins or ends: offsets by partition, one offset for all partitions, or a time.
TableEnd = Mapping[int, int] | int | datetime | None


class Position(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class Offsets(NamedTuple):
    """What a partition contains: lowest <= offset < next."""

    lowest: int
    next: int


if TYPE_CHECKING:

    class _Below(TopicLike, Protocol):
        """What it is made of."""

        _home: Home | None

        @property
        def id(self) -> str: ...
        @property
        def partitions(self) -> int: ...
        @property
        def settings(self) -> dict[str, Value]: ...
        @property
        def config(self) -> LogConfig: ...
        @property
        def _created_ms(self) -> int: ...
        def _check_number(self, number: int) -> None: ...
        def partition(self, number: int) -> LogReader:
            """One partition."""

        def source(self, number: int) -> TableSource:
            """One partition, as a table is made from it."""

        def history(self) -> History | None:
            """The part of it that is in a table."""

        def append_batches(
            self,
            raw: bytes | bytearray | memoryview,
            partition: int,
            *,
            trusted: bool = False,
            expect_offset: int | None = None,
        ) -> range:
            """Append encoded batches."""

else:
    _Below = object


class TopicFace(_Below):
    """A topic as a whole."""

    def _repr_html_(self) -> str:
        """For notebooks: settings, partitions and the newest records. Returns soon, also if somebody holds a lock."""
        return shown_soon(self, lambda: topic_html(self.describe(), self._newest()))

    def _newest(self) -> list[Record]:
        """The newest of the last records of some partitions."""
        found = [
            record for number in range(min(self.partitions, MOST_SHOWN)) for record in to_show(self.partition(number))
        ]
        return sorted(found, key=lambda record: record.timestamp)[-MOST_SHOWN:]

    def describe(self) -> TopicDescription:
        """Its settings, and how much it contains."""
        rows = tuple(self._describe(number) for number in range(self.partitions))
        return TopicDescription(
            self.name,
            self.id,
            self.partitions,
            self.settings,
            self._created_ms,
            sum(row.records for row in rows),
            sum(row.size_bytes for row in rows),
            rows,
        )

    def _describe(self, number: int) -> PartitionDescription:
        log = self.partition(number)
        next_offset, lowest = log.visible_offset, log.lowest_offset
        here, remote = (log.local_offset, log.remote_bytes) if isinstance(log, Log) else (lowest, 0)
        records, segments = next_offset - lowest, len(log.segments)
        return PartitionDescription(
            number, lowest, next_offset, records, log.size_bytes, segments, log.path, here, remote
        )

    def packer(self, compression: str, *, partition: int | None = None, linger_ms: float | None = None) -> Packer:
        """A buffered writer with another compression than the topic's, for all partitions or for one."""
        config = self.config
        return Packer(
            self.partitions,
            lambda number, batch: self.append_batches(batch.data, number),
            recipe_of(config.with_(compression=compression, compression_level=None)),
            partition=partition,
            batch_bytes=min(BATCH_BYTES, config.segment_bytes),
            linger_ms=linger_ms,
        )

    # --- reading

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The current records, partition by partition, each from its start to its end: by default all of them.
        `isolation` as in `Log.scan`."""
        spans = self._spans(start, end, partitions)
        return chain.from_iterable([log.scan(first, last, isolation=isolation) for log, first, last, _ in spans])

    def scan_arrow(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        batch_rows: int = ARROW_ROWS,
        *,
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] = ("partition", *DEFAULT_COLUMNS),
        views: bool = False,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; `columns` may also include `partition`."""
        stored = [column for column in columns if column != "partition"]
        scans = [
            (number, log.scan_arrow(first, last, batch_rows, columns=stored, views=views, isolation=isolation))
            for log, first, last, number in self._spans(start, end, partitions)
        ]
        return (_with_partition(batch, number, columns) for number, batches in scans for batch in batches)

    def _spans(
        self, start: Mapping[int, int] | None, end: Mapping[int, int] | None, partitions: Iterable[int] | None
    ) -> list[tuple[LogReader, int | None, int | None, int]]:
        """What to read from which log."""
        start, end = start or {}, end or {}
        for number in (*start, *end):
            self._check_number(number)
        numbers = range(self.partitions) if partitions is None else sorted(set(partitions))
        return [(self.partition(number), start.get(number), end.get(number), number) for number in numbers]

    # --- as objects

    @overload
    def typed(
        self, value: Serializer[V], *, errors_to: str | Sink | None = None
    ) -> TypedTopic[V, bytes, RawHeaders]: ...

    @overload
    def typed(
        self, value: Serializer[V], *, metadata: MetadataSerializer[M], errors_to: str | Sink | None = None
    ) -> TypedTopic[V, bytes, M]: ...

    @overload
    def typed(
        self, value: Serializer[V], key: Serializer[K], *, errors_to: str | Sink | None = None
    ) -> TypedTopic[V, K, RawHeaders]: ...

    @overload
    def typed(
        self,
        value: Serializer[V],
        key: Serializer[K],
        *,
        metadata: MetadataSerializer[M],
        errors_to: str | Sink | None = None,
    ) -> TypedTopic[V, K, M]: ...

    def typed(
        self,
        value: Serializer[Any],
        key: Serializer[Any] | None = None,
        *,
        metadata: MetadataSerializer[Any] | None = None,
        errors_to: str | Sink | None = None,
    ) -> TypedTopic[Any, Any, Any]:
        """A view in which values, keys and metadata are objects: `topic.typed(value=JSON(Order), key=Utf8())`.

        A record that does not parse raises `DecodeFailed`, which has the record; or it is copied to the topic
        `errors_to` (a name, a topic or a log) and skipped. A topic that is given by name is created if it is missing.
        """
        from ..typed.views import typed_topic  # not before: most programs have no typed views

        return typed_topic(self, self._home, value, key, metadata, errors_to)

    # --- as a table

    def dataset(
        self,
        *,
        start: TableEnd = None,
        end: TableEnd = None,
        schema: Wanted = True,
        isolation: Isolation = "committed",
    ) -> TopicDataset:
        """The topic as it is now, as a `pyarrow.dataset.Dataset` with the columns partition, offset, timestamp, key,
        value and headers: for DuckDB, Polars and others, which read only the columns and ranges that they need.

        `start` and `end` are offsets by partition, one offset for all, or times. Values are structs if the topic has a
        schema (the setting `sawlog.schema`) or one is given as `schema`; they stay bytes with `schema=None`.
        """
        from ..sql.declared import dataset_of

        numbers = range(self.partitions)
        for number in (*(start if isinstance(start, Mapping) else ()), *(end if isinstance(end, Mapping) else ())):
            self._check_number(number)
        return dataset_of(
            self,
            schema=schema,
            isolation=isolation,
            start=_per_partition(start, numbers),
            end=_per_partition(end, numbers),
            since=start if isinstance(start, datetime) else None,
            until=end if isinstance(end, datetime) else None,
        )

    def arrow(
        self,
        start: TableEnd = None,
        end: TableEnd = None,
        columns: Sequence[str] | None = None,
        *,
        schema: Wanted = True,
        isolation: Isolation = "committed",
    ) -> pa.Table:
        """The records from `start` up to, not including, `end` as a `pyarrow.Table`; see `dataset`."""
        return self.dataset(start=start, end=end, schema=schema, isolation=isolation).to_table(columns)

    def polars(self, *, schema: Wanted = True, isolation: Isolation = "committed") -> polars.LazyFrame:
        """The topic as it is now, as a lazy frame of Polars: what a query selects and filters is all that is read."""
        from ..sql.frames import lazy_frame

        return lazy_frame(self.dataset(schema=schema, isolation=isolation))

    def to_pandas(
        self,
        start: TableEnd = None,
        end: TableEnd = None,
        columns: Sequence[str] | None = None,
        *,
        schema: Wanted = True,
        isolation: Isolation = "committed",
    ) -> pandas.DataFrame:
        """The same as `arrow`, as a `pandas.DataFrame`."""
        from ..sql.frames import data_frame

        return data_frame(self.arrow(start, end, columns, schema=schema, isolation=isolation))

    def offsets(self) -> dict[int, Offsets]:
        """What each partition contains."""
        return {number: _offsets(self.partition(number)) for number in range(self.partitions)}

    def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """In each partition the first offset whose record is not older than `timestamp`; the next offset if all are."""
        return {number: self.partition(number).offset_at(timestamp) for number in range(self.partitions)}


def _per_partition(limit: TableEnd, numbers: range) -> dict[int, int] | None:
    """Offsets by partition; None if it is not about offsets."""
    if isinstance(limit, Mapping):
        return dict(limit)
    return None if limit is None or isinstance(limit, datetime) else dict.fromkeys(numbers, limit)


def _offsets(log: LogReader) -> Offsets:
    end = log.visible_offset  # first: this makes a reader refresh
    return Offsets(log.lowest_offset, end)


def _with_partition(batch: pa.RecordBatch, number: int, columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    if "partition" not in columns:
        return batch
    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
    arrays = [numbers if column == "partition" else batch.column(column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def check_sole(expect_offset: int | None) -> None:
    """Records of several partitions have no offset that could be expected."""
    if expect_offset is not None:
        raise InvalidRecord("expect_offset is for one partition, and these records go to several: give partition=")
