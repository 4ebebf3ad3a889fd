"""`Topic`: partitions under one name. Each is a `Log`; the topic decides which one a record goes to.

```python
orders = store.create_topic("orders", partitions=4)
orders.append(b"value", key=b"customer 7")            # Position(partition=2, offset=0)
orders.append_many([(b"one", b"a"), (b"two", b"b")])   # {0: range(0, 1), 2: range(1, 2)}
for record in orders.scan(): record.partition, record.offset
```

Records of one partition are ordered; those of different partitions are not. A call that writes to several partitions
checks and encodes everything and takes all locks first, so it is refused as a whole; but a crash or a full disk in the
middle may leave the records of some partitions only. Use `Store.transaction` for all or nothing.

A partition is read without a lock; the first write takes its lock, and keeps it as long as this process is the one that
writes (`sawlog.topics.turns`). If another process has it, what is appended is handed over to that process, which places
it (`sawlog.topics.handover`); if it takes no requests, an append waits until the lock is released. `partition` still
returns a log that reads. Settings apply when a partition is opened: those of an open log do not change. Every method
may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from ..batch.given import GivenHeaders, GivenRecord, GivenTable
from ..batch.header import DEFAULT_COLUMNS
from ..batch.kernel import Record
from ..config import LogConfig
from ..display import counted, shown_soon, size_text
from ..errors import DirectoryLocked, InvalidRecord, LogClosed, SawlogError
from ..isolation import Isolation
from ..log.log import Log
from ..log.maintain.upkeep import UpkeepReport
from ..log.read.last import MOST_SHOWN, to_show
from ..log.read.reader import ARROW_ROWS
from ..log.write.encoders import recipe_of
from ..log.write.writer import BATCH_BYTES, Writer
from ..renamed import renamed
from ..storage import Directory
from ..typed.places import Home, Sink
from ..typed.serializer import MetadataSerializer, RawHeaders, Serializer
from ..typed.topic import TypedTopic
from ..typed.views import typed_topic
from . import settings
from .catalog import Catalog
from .descriptions import PartitionDescription, TopicDescription, settings_text, topic_html
from .holdings import Holdings
from .packing import Packer
from .partitioner import partitions_for
from .routing import Router
from .tableinfo import TableInfo
from .writer import TopicWriter

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from ..sql.dataset import TopicDataset
    from ..sql.declared import Wanted
    from ..sql.history import History

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")

#: Where a table begins or ends: offsets by partition, one offset for all partitions, or a time.
TableEnd = Mapping[int, int] | int | datetime | None


class Position(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


#: `Position` of a pair: its constructor is a Python function, and takes twice as long.
_position: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)


class Offsets(NamedTuple):
    """What a partition contains: lowest <= offset < next."""

    lowest: int
    next: int


#: Names of before 0.3.
_RENAMED = {
    **{name: f"holdings.{name}" for name in ("close_writers", "end", "end_upkeep", "held", "recover")},
    **{name: f"holdings.{name}" for name in ("refresh", "reopen", "roll_forward", "update")},
    **{name: f"router.{name}" for name in ("place_for", "split")},
}


class Topic:
    """Partitions under one name. Created by `Store.topic` and `Store.create_topic`."""

    def __init__(self, catalog: Catalog, holdings: Holdings, home: Home | None = None) -> None:
        self._catalog = catalog
        #: Internal: its partitions in this process, for the rest of the store.
        self.holdings = holdings
        #: Internal: which partition a record goes to.
        self.router = Router(holdings)
        #: Its store, for typed views: the topic of bad records, and consumers.
        self._home = home

    if not TYPE_CHECKING:  # else type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            return renamed(self, name, _RENAMED)

    # --- properties

    @property
    def name(self) -> str:
        """Its name."""
        return self.holdings.entry.name

    @property
    def id(self) -> str:
        """The unique id: differs from that of an earlier topic of the same name."""
        return self.holdings.entry.id

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.holdings.entry.partitions

    @property
    def settings(self) -> dict[str, settings.Value]:
        """The settings that were given, under Kafka's names; the others have their defaults."""
        return dict(self.holdings.entry.settings)

    @property
    def table(self) -> TableInfo | None:
        """Where the topic's table is (`sawlog pipeline table`); None if it has none."""
        return self._catalog.table(self.holdings.entry)

    def set_table(self, info: TableInfo | None) -> None:
        """Note where its table is, or that it has none. The table itself is not touched."""
        self._catalog.set_table(self.holdings.entry, info)

    @property
    def config(self) -> LogConfig:
        """How its logs are opened from now on."""
        return self.holdings.config

    def __repr__(self) -> str:
        facts = [counted(self.partitions, "partition"), *self._amount(), settings_text(self.settings)]
        return f"<Topic {self.name}: {', '.join(filter(None, facts))}>"

    def _amount(self) -> list[str]:
        """How much it contains, if its partitions are open: else one would have to wait for a lock."""
        logs = [self.holdings.logs.get(number) for number in range(self.partitions)]
        known = [log for log in logs if log is not None and not log.closed]
        if len(known) < len(logs) or self.holdings.ended is not None:
            return []
        try:
            records = sum(log.visible_offset - log.lowest_offset for log in known)
            return [counted(records, "record"), size_text(sum(log.size_bytes for log in known))]
        except SawlogError as error:
            return [str(error)]

    def _repr_html_(self) -> str:
        """For notebooks: settings, partitions and the newest records. Returns soon, also if somebody holds a lock."""
        return shown_soon(self, lambda: topic_html(self.describe(), self._newest()))

    def _newest(self) -> list[Record]:
        """The newest of the last records of some partitions."""
        found = [
            record for number in range(min(self.partitions, MOST_SHOWN)) for record in to_show(self.partition(number))
        ]
        return sorted(found, key=lambda record: record.timestamp)[-MOST_SHOWN:]

    def partition(self, number: int) -> Log:
        """The log of one partition: it reads without a lock, and its first write takes the lock."""
        return self.holdings.partition(number)

    def directory(self, number: int) -> Directory:
        """The directory of one partition, for reading its files directly; `TopicNotFound` if the topic was deleted or
        recreated. The caller closes it."""
        return self.holdings.directory(number)

    def describe(self) -> TopicDescription:
        """Its settings, and how much it contains."""
        rows = tuple(self._describe(number) for number in range(self.partitions))
        return TopicDescription(
            self.name,
            self.id,
            self.partitions,
            self.settings,
            self.holdings.entry.created_ms,
            sum(row.records for row in rows),
            sum(row.size_bytes for row in rows),
            rows,
        )

    def _describe(self, number: int) -> PartitionDescription:
        log = self.partition(number)
        next_offset, lowest = log.visible_offset, log.lowest_offset
        return PartitionDescription(
            number, lowest, next_offset, next_offset - lowest, log.size_bytes, len(log.segments), log.path
        )

    # --- writing

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record and return its position. The partition is the key's, or chosen, unless it is given. With
        `expect_offset`: at that offset of the partition, or `OffsetMismatch` and nothing."""
        holdings = self.holdings
        if partition is None and holdings.entry.partitions == 1 and (key is not None or not holdings.keyed):
            number = 0
        else:
            number = self.router.place_for(value, key, partition)
        log = holdings.ready.get(number)
        if log is not None:
            try:
                return _position((number, log.append(value, key, headers, timestamp, expect_offset)))
            except DirectoryLocked:  # it had released its lock, and another process has it now
                holdings.not_ready(number)
            except LogClosed:  # it was released at this moment: nothing is stored
                if holdings.ready.get(number) is log:
                    raise
        with holdings.using(number):
            appends = holdings.appends(number)
            return _position((number, appends.append(value, key, headers, timestamp, expect_offset)))

    def append_many(
        self, records: Iterable[GivenRecord], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets. A record is as in `Log.append_many`. With
        `expect_offset` all of them go to one partition, and begin at that offset: else `OffsetMismatch`."""
        parts = self.router.split(list(records), partition)
        if len(parts) == 1:
            [(number, of_one)] = parts.items()
            with self.holdings.using(number):
                return {number: self.holdings.appends(number).append_many(of_one, expect_offset)}
        _check_sole(expect_offset)
        encoded = {number: self.router.encode(each) for number, each in sorted(parts.items())}
        with self.holdings.using(*encoded):
            logs = {number: self.holdings.appends(number) for number in encoded}  # all before anything is written
            return {number: log.append_batches(encoded[number], trusted=True) for number, log in logs.items()}

    def append_arrow(
        self, table: GivenTable, *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append the rows of an Arrow table, by their keys, and return their offsets. Columns as in
        `Log.append_arrow`, `expect_offset` as in `append_many`."""
        rows: pa.Table = table
        keys = rows.column("key") if "key" in rows.schema.names else None
        if keys is None or keys.null_count:
            self.router.refuse_keyless()
        if partition is not None or self.partitions == 1 or keys is None:
            number = self.router.together(table.nbytes) if partition is None else partition
            with self.holdings.using(number):
                return {number: self.holdings.appends(number).append_arrow(table, expect_offset)}
        _check_sole(expect_offset)
        together = self.router.together(0)
        chosen = partitions_for(keys, self.partitions, together)
        numbers = np.unique(chosen).tolist()
        with self.holdings.using(*numbers):
            logs = {number: self.holdings.appends(number) for number in numbers}
            return {
                number: log.append_arrow(rows.take(np.flatnonzero(chosen == number))) for number, log in logs.items()
            }

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record from an iterable of chunks without holding it in memory, and return its position. See
        `Log.append_stream`. It is not handed over to another process: if one holds the partition, it is asked for its
        lock and waited for."""
        number = self.router.place_for(b"", key, partition)
        with self.holdings.using(number):
            log = self.holdings.wait_for(number)
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
        """Append encoded batches to a partition unchanged, all of them or none, and return their offsets. They are
        checked as by `Log.append_batches`."""
        with self.holdings.using(partition):
            return self.holdings.appends(partition).append_batches(raw, trusted=trusted, expect_offset=expect_offset)

    def partition_writer(
        self, partition: int, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None
    ) -> Writer:
        """A buffered writer for one partition."""
        with self.holdings.using(partition):
            return self.holdings.appends(partition).writer(batch_bytes, linger_ms)

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> TopicWriter:
        """A buffered writer over all partitions: the fast way to append records one by one."""
        return self.holdings.writer(batch_bytes, linger_ms)

    def packer(self, compression: str, *, partition: int | None = None, linger_ms: float | None = None) -> Packer:
        """A buffered writer with another compression than the topic's, for all partitions or for one."""
        config = self.partition(partition or 0).config
        return Packer(
            self.partitions,
            lambda number, batch: self.append_batches(batch.data, number),
            recipe_of(config.with_(compression=compression, compression_level=None)),
            partition=partition,
            batch_bytes=min(BATCH_BYTES, config.segment_bytes),
            linger_ms=linger_ms,
        )

    def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets and return how many offsets that are."""
        with self.holdings.using(*offsets):
            logs = {number: self.holdings.take(number) for number in sorted(offsets)}
            return sum(log.trim(offsets[number]) for number, log in logs.items())

    def upkeep(self) -> list[UpkeepReport]:
        """Do now what the settings ask for (retention, compaction, merging) and return what was done per partition.

        A partition that another process writes to is skipped. Locks that are taken for this are released.
        """
        reports = (self.holdings.upkeep(number) for number in range(self.partitions))
        return [report for report in reports if report is not None]

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
    ) -> list[tuple[Log, int | None, int | None, int]]:
        """What to read from which log."""
        start, end = start or {}, end or {}
        for number in (*start, *end):
            self.holdings.check_number(number)
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
        return typed_topic(self, self._home, value, key, metadata, errors_to)

    # --- as a table

    def history(self) -> History | None:
        """The part of it that is in a table (`sawlog pipeline table`), if there is one: what SQL and `dataset` read
        from there."""
        if self.table is None:
            return None
        from .materialised import history_of

        return history_of(self)

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
            self.holdings.check_number(number)
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


def _check_sole(expect_offset: int | None) -> None:
    """Records of several partitions have no offset that could be expected."""
    if expect_offset is not None:
        raise InvalidRecord("expect_offset is for one partition, and these records go to several: give partition=")


def _offsets(log: Log) -> Offsets:
    end = log.visible_offset  # first: this makes a reader refresh
    return Offsets(log.lowest_offset, end)


def _with_partition(batch: pa.RecordBatch, number: int, columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    if "partition" not in columns:
        return batch
    numbers = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
    arrays = [numbers if column == "partition" else batch.column(column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
