"""`Topic`: partitions under one name. The topic decides which partition a record goes to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from ...batch import kernel
from ...batch.build import Encoder
from ...batch.header import DEFAULT_COLUMNS
from ...batch.inputs import HeadersInput, RecordInput, TableInput
from ...batch.kernel import Record
from ...clock import milliseconds
from ...config import Isolation, LogConfig
from ...display import render_soon
from ...errors import DataLoss, InvalidRecord
from ...log.reader import ARROW_ROWS
from ...log.writer import BATCH_BYTES, Writer, recipe_of
from ..descriptions import PartitionDescription, TopicDescription, topic_html
from ..names import check_partition_number
from ..partitioner import Router
from ..settings import Value
from ..table_info import TableInfo
from ..writer import Packer, TopicWriter
from .partition import MOST_SHOWN, Partition, _paced, encoded_table, unsupported

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from ...log.maintenance import MaintenanceReport
    from ...log.summaries import Blocks
    from ...sql.dataset import TopicDataset, Wanted
    from ...sql.history import History
    from ...typed.serializers import MetadataSerializer, RawHeaders, Serializer
    from ...typed.views import TypedTopic
    from .store import Store

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")

#: Start or end of a table: offsets by partition, one offset for all partitions, or a time.
TableEnd = Mapping[int, int] | int | datetime | None


#: A partition: name of the topic, and number.
TopicPartition = tuple[str, int]


class Position(NamedTuple):
    """Partition and offset of a record."""

    partition: int
    offset: int


class Offsets(NamedTuple):
    """Range of offsets in a partition: lowest <= offset < next."""

    lowest: int
    next: int


class PlannedSlice(ABC):
    """Part of a partition, start_offset <= offset < end_offset, that another process can read. It can be pickled."""

    __slots__ = ()

    start_offset: int
    end_offset: int

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Approximate number of bytes to read."""

    @abstractmethod
    def joined(self, after: object) -> PlannedSlice | None:
        """Return this slice and the next one as one, or None if they are not neighbours in one file."""


class SliceReader(ABC):
    """Reader of slices of one partition, which it does not open. Thread-safe."""

    @abstractmethod
    def read(
        self, planned: Any, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None] = ...
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice as Arrow batches: all of them, or raise `DataLoss`. With `lost`, call it instead
        of raising and continue with the remaining records."""

    def close(self) -> None:
        """Close the files that were opened."""


class Topic(ABC):
    """Partitions under one name. Every method may be called from any thread.

    Records of one partition are ordered; those of different partitions are not.
    """

    _store: Store | None

    # --- the abstract core

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the topic."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Unique id: differs from that of an earlier topic of the same name."""

    @property
    @abstractmethod
    def partitions(self) -> int:
        """Number of partitions."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Value]:
        """Settings that differ from their defaults, by Kafka's names."""

    @property
    @abstractmethod
    def config(self) -> LogConfig:
        """Settings of its partitions, with all defaults."""

    @property
    @abstractmethod
    def _created_ms(self) -> int:
        """Creation time in milliseconds."""

    @abstractmethod
    def partition(self, number: int) -> Partition:
        """Return one partition."""

    @abstractmethod
    def _plan(
        self,
        number: int,
        start: int,
        end: int,
        *,
        epoch: int | None = None,
        target_bytes: int | None = None,
        max_records: int | None = None,
        isolation: Isolation = "committed",
    ) -> Sequence[PlannedSlice]:
        """Cut the offsets from `start` to `end` of a partition, which was read in the leader epoch `epoch`, into slices
        that other processes can read (`Store._slice_reader`), each about `target_bytes` large. `DataLoss` if some of
        the offsets are gone."""

    @abstractmethod
    def _slices(self, number: int) -> SliceReader:
        """Return a reader for slices of a partition that `plan` has returned. `TopicNotFound` if the topic was deleted
        or recreated since."""

    @abstractmethod
    def _blocks(
        self, number: int, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks] | None:
        """Summarise the records of a partition between two offsets without reading them, except records older than
        `since`. None if, with `exact`, the number of records is not known."""

    @abstractmethod
    def _router_for(self, partition: int | None) -> Router:
        """Return the router for an append to `partition`, or to any; `TopicNotFound`."""

    @abstractmethod
    def _append_encoded(self, batches: Mapping[int, bytes], expect_offset: int | None = None) -> dict[int, range]:
        """Append encoded batches by partition and return their offsets. Only on object storage is this atomic."""

    @abstractmethod
    def maintain(self) -> list[MaintenanceReport]:
        """Run the maintenance that the settings ask for, now, and return a report per partition."""

    def _check_number(self, number: object) -> None:
        """Raise `TopicNotFound` unless there is a partition with this number."""
        check_partition_number(self.name, number, self.partitions)

    # --- appending

    def _appends(self, number: int) -> AbstractContextManager[Any]:
        """Provide a partition for appends; `TopicNotFound`."""
        return nullcontext(self.partition(number))

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record and return its position. The key chooses the partition unless it is given. With
        `expect_offset`, append it there or raise `OffsetMismatch`."""
        router = self._router_for(partition)
        number = router.place_for(value, key, partition)
        batch = Encoder(router.recipe).one(value, key, headers, milliseconds(timestamp))
        return Position(number, self._append_encoded({number: bytes(batch.data)}, expect_offset)[number].start)

    def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets. A record is as in
        `Partition.append_many`. With `expect_offset` all go to one partition, starting at that offset, or
        `OffsetMismatch` is raised."""
        router = self._router_for(partition)
        parts = router.split(list(records), partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        encoded = {number: router.encode(each) for number, each in sorted(parts.items())}
        return self._append_encoded(encoded, expect_offset)

    def append_arrow(
        self, table: TableInput, *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append the rows of an Arrow table, by their keys, and return their offsets. Columns as in
        `Partition.append_arrow`, `expect_offset` as in `append_many`."""
        router = self._router_for(partition)
        parts = router.split_table(table, partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        encoded = {number: encoded_table(router.recipe, each) for number, each in parts.items()}
        return self._append_encoded(encoded, expect_offset)

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record whose value comes in chunks, and return its position; see `Partition.append_stream`. In a
        directory, the value is never in memory as a whole. Other processes wait for their turn until
        the stream ends."""
        number = self._router_for(partition).place_for(b"", key, partition)
        with self._appends(number) as log:
            offset = log.append_stream(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )
        return Position(number, offset)

    def append_batches(
        self,
        raw: bytes | bytearray | memoryview,
        partition: int,
        *,
        trusted: bool = False,
        expect_offset: int | None = None,
    ) -> range:
        """Append encoded batches to a partition unchanged, all of them or none, and return their offsets."""
        with self._appends(partition) as log:
            placed: range = log.append_batches(raw, trusted=trusted, expect_offset=expect_offset)
        return placed

    def _partition_writer(
        self, partition: int, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None
    ) -> Writer:
        with self._appends(partition) as log:
            made: Writer = log.writer(batch_bytes, linger_ms)
        return made

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> TopicWriter:
        """Return a buffered writer over all partitions: the fast way to append records one by one."""
        writers = [self._partition_writer(number, batch_bytes, linger_ms) for number in range(self.partitions)]
        return TopicWriter(writers, batch_bytes, keyed=self._router_for(None).keyed)

    def _packer(self, compression: str, *, partition: int | None = None, linger_ms: float | None = None) -> Packer:
        """Return a buffered writer with another compression than the topic's, for all partitions or for one."""
        config = self.config
        return Packer(
            self.partitions,
            lambda number, batch: self.append_batches(batch.data, number),
            recipe_of(config.with_(compression=compression, compression_level=None)),
            partition=partition,
            batch_bytes=min(BATCH_BYTES, config.segment_bytes),
            linger_ms=linger_ms,
        )

    def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets and return the number of offsets dropped."""
        dropped = 0
        for number, offset in sorted(offsets.items()):
            with self._appends(number) as log:
                dropped += log.trim(offset)
        return dropped

    # --- describing

    def _repr_html_(self) -> str:
        """Return settings, partitions and the newest records as HTML for a notebook. Returns soon, even if a lock is
        held."""
        return render_soon(self, lambda: topic_html(self.describe(), self._newest()))

    def _newest(self) -> list[Record]:
        """Return the newest of the last records of some partitions."""
        numbers = range(min(self.partitions, MOST_SHOWN))
        found = [record for number in numbers for record in self.partition(number)._to_show()]
        return sorted(found, key=lambda record: record.timestamp)[-MOST_SHOWN:]

    def describe(self) -> TopicDescription:
        """Return the settings, and how much the topic contains."""
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
        segments, local = len(log.segments), log._tier(lowest)
        return PartitionDescription(
            number, lowest, next_offset, next_offset - lowest, log.size_bytes, segments, log.path, *local
        )

    def offsets(self) -> dict[int, Offsets]:
        """Return the range of offsets of each partition."""
        return {number: _offsets(self.partition(number)) for number in range(self.partitions)}

    def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """Return the first offset in each partition whose record is not older than `timestamp`, or the end."""
        return {number: self.partition(number).offset_at(timestamp) for number in range(self.partitions)}

    # --- reading

    def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        """Return the record at a position: (partition, offset)."""
        number, offset = position
        return self.partition(number).read(offset, isolation=isolation)

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """Return the current records, partition by partition, each from its start to its end; by default all."""
        spans = self._spans(start, end, partitions)
        return chain.from_iterable([log.scan(first, last, isolation=isolation) for log, first, last, _ in spans])

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

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
        """Return the same records as Arrow record batches; `columns` may also include `partition`."""
        stored = [column for column in columns if column != "partition"]
        scans = [
            (number, log.scan_arrow(first, last, batch_rows, columns=stored, views=views, isolation=isolation))
            for log, first, last, number in self._spans(start, end, partitions)
        ]
        return (_with_partition(batch, number, columns) for number, batches in scans for batch in batches)

    def _spans(
        self, start: Mapping[int, int] | None, end: Mapping[int, int] | None, partitions: Iterable[int] | None
    ) -> list[tuple[Partition, int | None, int | None, int]]:
        start, end = start or {}, end or {}
        for number in (*start, *end):
            self._check_number(number)
        numbers = range(self.partitions) if partitions is None else sorted(set(partitions))
        return [(self.partition(number), start.get(number), end.get(number), number) for number in numbers]

    def follow(
        self,
        start: Mapping[int, int] | None = None,
        timeout: float | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """Return the records of all partitions, in the order of offsets in each, and new ones as they come. A partition
        that `start` does not name begins at its lowest offset. Ends when no record came for `timeout` seconds.
        Partitions that are added later are not followed."""
        spans = self._spans(start, None, partitions)
        feeds = [log._patient()._following(first, isolation=isolation) for log, first, _, _ in spans]
        return chain.from_iterable(_paced(_interleaved(feeds), timeout, [log for log, _, _, _ in spans]))

    def truncate(self, partition: int, offset: int) -> int:
        """Drop the records of a partition from `offset` on and return the number of offsets dropped. Only where
        `Store.supports_truncation`."""
        return self.partition(partition).truncate(offset)

    # --- as objects

    @overload
    def typed(
        self, value: Serializer[V], *, errors_to: str | Topic | Partition | None = None
    ) -> TypedTopic[V, bytes, RawHeaders]: ...

    @overload
    def typed(
        self, value: Serializer[V], *, metadata: MetadataSerializer[M], errors_to: str | Topic | Partition | None = None
    ) -> TypedTopic[V, bytes, M]: ...

    @overload
    def typed(
        self, value: Serializer[V], key: Serializer[K], *, errors_to: str | Topic | Partition | None = None
    ) -> TypedTopic[V, K, RawHeaders]: ...

    @overload
    def typed(
        self,
        value: Serializer[V],
        key: Serializer[K],
        *,
        metadata: MetadataSerializer[M],
        errors_to: str | Topic | Partition | None = None,
    ) -> TypedTopic[V, K, M]: ...

    def typed(
        self,
        value: Serializer[Any],
        key: Serializer[Any] | None = None,
        *,
        metadata: MetadataSerializer[Any] | None = None,
        errors_to: str | Topic | Partition | None = None,
    ) -> TypedTopic[Any, Any, Any]:
        """Return a view in which values, keys and metadata are objects: `topic.typed(value=JSON(Order), key=Utf8())`.

        A record that does not parse raises `DecodeFailed`, which has the record; with `errors_to` (the name of a topic,
        a topic or a log) it is copied there and skipped. A topic given by name is created if missing.
        """
        from ...typed.views import typed_topic

        return typed_topic(self, self._store, value, key, metadata, errors_to)

    # --- as a table

    @property
    def table(self) -> TableInfo | None:
        """Location of the topic's table (`sawlog pipeline table`); None if it has none. Assigning one records it, where
        `Store.supports_tables`."""
        return None

    @table.setter
    def table(self, info: TableInfo | None) -> None:
        raise unsupported(f"the topic {self.name!r}", "tables")

    def _history(self) -> History | None:
        """Return the part of the topic that is in its table, which SQL and `dataset` read from there; None if it has no
        table."""
        return None

    def dataset(
        self, *, start: TableEnd = None, end: TableEnd = None, schema: Wanted = True, isolation: Isolation = "committed"
    ) -> TopicDataset:
        """Return the topic as it is now as a `pyarrow.dataset.Dataset` with the columns partition, offset, timestamp,
        key, value and headers: DuckDB, Polars and others read only the columns and ranges that they need.

        `start` and `end` are offsets by partition, one offset for all, or times. Values are structs if the topic has a
        schema (the setting `sawlog.schema`) or one is given as `schema`; with `schema=None` they stay bytes.
        """
        from ...sql.dataset import dataset_of

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
        """Return the records from `start` up to, not including, `end` as a `pyarrow.Table`; see `dataset`."""
        return self.dataset(start=start, end=end, schema=schema, isolation=isolation).to_table(columns)

    def polars(self, *, schema: Wanted = True, isolation: Isolation = "committed") -> polars.LazyFrame:
        """Return the topic as it is now as a lazy Polars frame: a query reads only what it needs."""
        from ...sql.dataset import lazy_frame

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
        """Return the same records as `arrow` as a `pandas.DataFrame`."""
        from ...sql.dataset import data_frame

        return data_frame(self.arrow(start, end, columns, schema=schema, isolation=isolation))

    # --- copies

    def fork(self, name: str, at: str | None = None) -> Topic:
        """Create a topic that shares this one's records, as of now or of a snapshot. Only where
        `Store.supports_snapshots`."""
        raise unsupported(f"the topic {self.name!r}", "fork(): only a store on object storage has it")


_END = object()


def _interleaved(feeds: list[Iterator[kernel.RecordCursor | None]]) -> Iterator[kernel.RecordCursor | None]:
    """Yield the cursors of several feeds in turn, and None when none of them has anything new."""
    while feeds:
        found = False
        for feed in list(feeds):
            cursor: Any = next(feed, _END)
            if cursor is _END:
                feeds.remove(feed)
            elif cursor is not None:
                found = True
                yield cursor
        if not found:
            yield None


def _per_partition(limit: TableEnd, numbers: range) -> dict[int, int] | None:
    """Return offsets by partition; None if the limit is a time or missing."""
    if isinstance(limit, Mapping):
        return dict(limit)
    return None if limit is None or isinstance(limit, datetime) else dict.fromkeys(numbers, limit)


def _offsets(log: Partition) -> Offsets:
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
    """Refuse `expect_offset` for records of several partitions."""
    if expect_offset is not None:
        raise InvalidRecord("expect_offset is for one partition, and these records go to several: give partition=")
