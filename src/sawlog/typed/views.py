"""Typed views of topics, logs and consumers: `TypedTopic`, `TypedLog`, `TypedConsumer`.

`topic.typed(value=JSON(Order), key=Utf8())` and `log.typed(value=JSON(Order))` return them. A view encodes and decodes
records and has no other state.

Stored records are decoded in chunks (`typed_scan`), records of a consumer or a follower one by one (`TypedFeed`). After
a `DecodeFailed`, both continue with the next record: the error ends a `for` loop, not the iterator.

A typed consumer is a `Consumer` (`sawlog.store.consumer`) in every other respect: at least once, and a record counts as
processed when the next one is requested. A record that does not parse raises `DecodeFailed`. Leaving the block with
that error does not commit it, so the group gets it again; requesting the next record skips it.

Views are thread-safe. An iterator or a consumer belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from ..batch.kernel import Record
from ..clock import milliseconds
from ..config import Isolation
from ..errors import DecodeFailed, InvalidConfig
from ..store.base import Partition, Store, Topic
from ..store.consumer import Consumer
from .codec import BadRecords, Codec, TypedRecord
from .serializers import Bytes, Unchanged

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


def encode_entries(
    codec: Codec[V, K, M],
    values: Iterable[V],
    key: Callable[[V], K | None] | None,
    metadata: Callable[[V], M] | None,
    timestamp: Callable[[V], int | datetime] | None,
) -> list[tuple[Any, ...]]:
    """Encode values for `append_many`, with the key, metadata and timestamp that these functions return. Raises before
    anything is appended."""
    return [
        (
            *codec.encode(value, None if key is None else key(value), None if metadata is None else metadata(value)),
            None if timestamp is None else milliseconds(timestamp(value)),
        )
        for value in values
    ]


#: Records decoded at once.
_CHUNK = 256


def typed_scan(codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords) -> Iterator[TypedRecord[V, K, M]]:
    return chain.from_iterable(_chunks(codec, records, bad))


def _chunks(
    codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords
) -> Iterator[Iterator[TypedRecord[V, K, M]]]:
    """Yield iterators over a few records each. Never raises: a `chain` ends when its source raises, but continues when
    one of its iterators does."""
    while True:
        chunk: list[Record] = []
        failure: Exception | None = None
        try:
            chunk.extend(islice(records, _CHUNK))
        except Exception as error:  # raised after the records before it
            failure = error
        try:
            ready: Iterator[TypedRecord[V, K, M]] = codec.decode_many(chunk)
        except Exception:  # one of them does not parse: find out which
            ready = TypedFeed(codec, iter(chunk), bad)
        yield ready
        if failure is not None:
            yield _raising(failure)
        if len(chunk) < _CHUNK:
            return


def _raising(failure: Exception) -> Iterator[TypedRecord[V, K, M]]:
    yield from ()
    raise failure


class TypedFeed(Generic[V, K, M]):
    """Iterator that decodes records one by one and never reads ahead."""

    def __init__(self, codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords) -> None:
        self._codec = codec
        self._records = records
        self._bad = bad

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        return self

    def __next__(self) -> TypedRecord[V, K, M]:
        for record in self._records:
            try:
                return self._codec.decode(record)
            except DecodeFailed as error:
                self._bad.take(error)
        raise StopIteration


class ConsumerOptions(TypedDict, total=False):
    """The options of `Store.consumer`; see `Consumer`."""

    start: Literal["earliest", "latest"] | int | datetime
    on_lost: Literal["earliest", "latest", "error"]
    auto_commit_ms: int | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    member: str | None
    isolation: Isolation
    on_assigned: Callable[[set[tuple[str, int]]], None] | None
    on_revoked: Callable[[set[tuple[str, int]]], None] | None


class TypedConsumer(Generic[V, K, M]):
    """Member of a consumer group that returns typed records. Created by `TypedTopic.consumer`."""

    def __init__(self, consumer: Consumer, codec: Codec[V, K, M], bad: BadRecords) -> None:
        #: The underlying consumer: for positions, lag and everything else.
        self.consumer = consumer
        self._codec = codec
        self._bad = bad

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        """Yield records as they arrive, until `close`."""
        return TypedFeed(self._codec, iter(self.consumer), self._bad)

    def drain(self) -> Iterator[TypedRecord[V, K, M]]:
        """Yield records up to the end that each partition had when it was first read."""
        return TypedFeed(self._codec, self.consumer.drain(), self._bad)

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[TypedRecord[V, K, M]]:
        """Return the next records as soon as there are any, at most `max_records`; an empty list after `timeout_s`.
        Records before one that does not parse are returned first; the next call raises the error."""
        records = self.consumer.poll(timeout_s, max_records)
        found: list[TypedRecord[V, K, M]] = []
        for number, record in enumerate(records):
            try:
                found.append(self._codec.decode(record))
            except DecodeFailed as error:
                try:
                    self._bad.take(error)
                except BaseException:
                    self._seek_back(records[number if found else number + 1 :])
                    if not found:
                        raise
                    return found
        return found

    def _seek_back(self, records: Sequence[Record]) -> None:
        """Seek back to these records, which were not returned."""
        first: dict[tuple[str, int], int] = {}
        for record in records:
            first.setdefault((str(record.topic), record.partition), record.offset)
        for (topic, partition), offset in first.items():
            self.consumer.seek(topic, partition, offset)

    def commit(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit everything returned so far, or these positions. Durable when it returns."""
        self.consumer.commit(positions)

    def close(self) -> None:
        """Commit the processed records and leave the group. Safe to call twice."""
        self.consumer.close()

    def __enter__(self) -> TypedConsumer[V, K, M]:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.consumer.__exit__(*raised)

    def __repr__(self) -> str:
        return f"<TypedConsumer of {self.consumer!r}>"


class TypedLog(Generic[V, K, M]):
    """View of a log. It has no state of its own: close the log, not the view. Thread-safe."""

    def __init__(self, log: Partition, codec: Codec[V, K, M], bad: BadRecords) -> None:
        #: The underlying log.
        self.log = log
        self._codec = codec
        self._bad = bad

    def append(
        self,
        value: V,
        key: K | None = None,
        metadata: M | None = None,
        timestamp: int | datetime | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. Raises `InvalidRecord` if a part has the wrong type."""
        return self.log.append(*self._codec.encode(value, key, metadata), timestamp, expect_offset)

    def append_many(
        self,
        values: Iterable[V],
        *,
        key: Callable[[V], K | None] | None = None,
        metadata: Callable[[V], M] | None = None,
        timestamp: Callable[[V], int | datetime] | None = None,
        expect_offset: int | None = None,
    ) -> range:
        """Append values as one batch, all or none, and return their offsets. `key`, `metadata` and `timestamp` are
        called with each value."""
        return self.log.append_many(encode_entries(self._codec, values, key, metadata, timestamp), expect_offset)

    def read(self, offset: int, *, isolation: Isolation = "committed") -> TypedRecord[V, K, M]:
        """Return the record at `offset`. Raises `DecodeFailed` if it does not parse, whatever `errors_to` is."""
        return self._codec.decode(self.log.read(offset, isolation=isolation))

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[TypedRecord[V, K, M]]:
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
        return typed_scan(self._codec, self.log.scan(start, end, isolation=isolation), self._bad)

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        return self.scan()

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[TypedRecord[V, K, M]]:
        """Yield records from `start` on, and new ones as they come. Ends when none came for `timeout` seconds."""
        return TypedFeed(self._codec, self.log.follow(start, timeout, isolation=isolation), self._bad)

    def __repr__(self) -> str:
        return f"<TypedLog of {self.log!r}, {self._codec!r}>"


class TypedTopic(Generic[V, K, M]):
    """View of a topic. It has no state of its own: close the store, not the view. Thread-safe."""

    def __init__(self, topic: Topic, codec: Codec[V, K, M], bad: BadRecords, store: Store | None) -> None:
        #: The underlying topic.
        self.topic = topic
        self._codec = codec
        self._bad = bad
        self._store = store

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.topic.name

    def append(
        self,
        value: V,
        key: K | None = None,
        metadata: M | None = None,
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> tuple[int, int]:
        """Append one record and return its position. Raises `InvalidRecord` if a part has the wrong type. With
        `expect_offset`, append at that offset of the partition, or raise `OffsetMismatch`."""
        return self.topic.append(
            *self._codec.encode(value, key, metadata), timestamp, partition=partition, expect_offset=expect_offset
        )

    def append_many(
        self,
        values: Iterable[V],
        *,
        key: Callable[[V], K | None] | None = None,
        metadata: Callable[[V], M] | None = None,
        timestamp: Callable[[V], int | datetime] | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> dict[int, range]:
        """Append values, one batch per partition, and return their offsets. `key`, `metadata` and `timestamp` are
        called with each value: `append_many(orders, key=lambda order: order.customer)`. If one of the values cannot be
        encoded, nothing is appended. `expect_offset` as in `Topic.append_many`."""
        made = encode_entries(self._codec, values, key, metadata, timestamp)
        return self.topic.append_many(made, partition=partition, expect_offset=expect_offset)

    def read(self, partition: int, offset: int, *, isolation: Isolation = "committed") -> TypedRecord[V, K, M]:
        """Return one record. Raises `DecodeFailed` if it does not parse, whatever `errors_to` is."""
        return self._codec.decode(self.topic.partition(partition).read(offset, isolation=isolation))

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[TypedRecord[V, K, M]]:
        """Return the current records, partition by partition, each from its start to its end; by default all of
        them."""
        records = self.topic.scan(start, end, partitions=partitions, isolation=isolation)
        return typed_scan(self._codec, records, self._bad)

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        return self.scan()

    def consumer(self, group: str | None, **options: Unpack[ConsumerOptions]) -> TypedConsumer[V, K, M]:
        """Read the topic as a member of a group; options as in `Store.consumer`."""
        if self._store is None:
            raise InvalidConfig(f"the topic {self.name!r} belongs to no store, so it has no consumer groups")
        return TypedConsumer(self._store.consumer(group, self.name, **options), self._codec, self._bad)

    def __repr__(self) -> str:
        return f"<TypedTopic {self.name}, {self._codec!r}>"


def typed_topic(
    topic: Topic, store: Store | None, value: Any, key: Any, metadata: Any, errors_to: str | Topic | Partition | None
) -> TypedTopic[Any, Any, Any]:
    """Return a view of a topic; None stands for bytes, and for raw headers."""
    return TypedTopic(topic, _codec(value, key, metadata), _bad(errors_to, store, topic.name), store)


def typed_log(
    log: Partition, value: Any, key: Any, metadata: Any, errors_to: Topic | Partition | None
) -> TypedLog[Any, Any, Any]:
    return TypedLog(log, _codec(value, key, metadata), _bad(errors_to, None, None))


def _codec(value: Any, key: Any, metadata: Any) -> Codec[Any, Any, Any]:
    return Codec(value, Bytes() if key is None else key, Unchanged() if metadata is None else metadata)


def _bad(errors_to: str | Topic | Partition | None, store: Store | None, name: str | None) -> BadRecords:
    """Return the destination of bad records. A topic given by name is created, with one partition, for the first of
    them."""
    if errors_to is None:
        return BadRecords()
    if isinstance(errors_to, str):
        if store is None:
            raise InvalidConfig(f"errors_to={errors_to!r} names a topic, but there is no store: give a topic or a log")
        if errors_to == name:
            raise InvalidConfig(f"errors_to={errors_to!r} is the topic itself: a bad record would be copied forever")
        return BadRecords(lambda: store.create_topic(errors_to, exist_ok=True))
    if not callable(getattr(errors_to, "append", None)):
        raise InvalidConfig(f"errors_to must be the name of a topic, a topic or a log, not {errors_to!r}")
    return BadRecords(lambda: errors_to)
