"""Many values to append, as the tuples that `append_many` takes.

Iterators over typed records: `typed_scan` in chunks, for what is stored; `TypedFeed` one by one, for what a consumer
or a follower waits for.

After a `DecodeFailed`, both continue with the next record: an error ends a `for`, not the iterator.

Threads: one.

`TypedConsumer`: a consumer that returns typed records.

It is a `Consumer` (`sawlog.store.consumer`) in every other respect: at least once, a record counts as processed
when the next one is requested. A record that does not parse is raised (`DecodeFailed`). Leaving the block with that
error does not commit it, so the group gets it again; asking for the next record goes past it.

Threads: one reads, as with `Consumer`.

`TypedLog`: a log whose records are objects. `log.typed(value=JSON(Order))` returns one.

`TypedTopic`: a topic whose records are objects. `topic.typed(value=JSON(Order), key=Utf8())` returns one.

Making views: what `Topic.typed` and `Log.typed` call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from types import TracebackType
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from ..batch.kernel import Record
from ..clock import milliseconds
from ..errors import DecodeFailed, InvalidConfig
from ..isolation import Isolation
from ..store.base import Partition, Store, Topic
from ..store.consumer import Consumer
from .codec import BadRecords, Codec
from .record import TypedRecord
from .serializers import Bytes, Unchanged

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


def entries(
    codec: Codec[V, K, M],
    values: Iterable[V],
    key: Callable[[V], K | None] | None,
    metadata: Callable[[V], M] | None,
    timestamp: Callable[[V], int | datetime] | None,
) -> list[tuple[Any, ...]]:
    """Each value with what these functions say of it, encoded; raises before anything is appended."""
    return [
        (
            *codec.encode(value, None if key is None else key(value), None if metadata is None else metadata(value)),
            None if timestamp is None else milliseconds(timestamp(value)),
        )
        for value in values
    ]


#: So many records are parsed at once.
_CHUNK = 256


def typed_scan(codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords) -> Iterator[TypedRecord[V, K, M]]:
    """The typed records of a scan."""
    return chain.from_iterable(_chunks(codec, records, bad))


def _chunks(
    codec: Codec[V, K, M], records: Iterator[Record], bad: BadRecords
) -> Iterator[Iterator[TypedRecord[V, K, M]]]:
    """Iterators over a few records each. Never raises: a chain whose source has raised has ended, but one of whose
    iterators raises can continue."""
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
    """Typed records one by one: none is taken before it is asked for."""

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
    """Reads a topic as a member of a group, as objects. Created by `TypedTopic.consumer`."""

    def __init__(self, consumer: Consumer, codec: Codec[V, K, M], bad: BadRecords) -> None:
        #: The consumer of bytes below it: for positions, lag and everything else.
        self.consumer = consumer
        self._codec = codec
        self._bad = bad

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        """Records as they arrive, endless; until `close`."""
        return TypedFeed(self._codec, iter(self.consumer), self._bad)

    def drain(self) -> Iterator[TypedRecord[V, K, M]]:
        """Records up to where each partition ended when it was first read."""
        return TypedFeed(self._codec, self.consumer.drain(), self._bad)

    def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[TypedRecord[V, K, M]]:
        """The next records, as soon as there are any; at most that many, and an empty list after `timeout_s`. Those
        before one that does not parse are returned first; the next call raises the error."""
        records = self.consumer.poll(timeout_s, max_records)
        found: list[TypedRecord[V, K, M]] = []
        for number, record in enumerate(records):
            try:
                found.append(self._codec.decode(record))
            except DecodeFailed as error:
                try:
                    self._bad.take(error)
                except BaseException:
                    self._give_back(records[number if found else number + 1 :])
                    if not found:
                        raise
                    return found
        return found

    def _give_back(self, records: Sequence[Record]) -> None:
        """Nobody got these: they are read again."""
        first: dict[tuple[str, int], int] = {}
        for record in records:
            first.setdefault((str(record.topic), record.partition), record.offset)
        for (topic, partition), offset in first.items():
            self.consumer.seek(topic, partition, offset)

    def commit(self, positions: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit everything that was returned, or these positions; durable when it returns."""
        self.consumer.commit(positions)

    def close(self) -> None:
        """Commit what was processed, and leave the group. Safe to call twice."""
        self.consumer.close()

    def __enter__(self) -> TypedConsumer[V, K, M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.consumer.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<TypedConsumer of {self.consumer!r}>"


class TypedLog(Generic[V, K, M]):
    """A view of a log. It has no state of its own: close the log, not the view. Threads: any."""

    def __init__(self, log: Partition, codec: Codec[V, K, M], bad: BadRecords) -> None:
        #: The log below it.
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
        """Append one record and return its offset; `InvalidRecord` if something is not of its type."""
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
        return self.log.append_many(entries(self._codec, values, key, metadata, timestamp), expect_offset)

    def read(self, offset: int, *, isolation: Isolation = "committed") -> TypedRecord[V, K, M]:
        """The record at `offset`; `DecodeFailed` if it does not parse, whatever `errors_to` is."""
        return self._codec.decode(self.log.read(offset, isolation=isolation))

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[TypedRecord[V, K, M]]:
        """The records with start <= offset < end, in order, as of now; by default all of them."""
        return typed_scan(self._codec, self.log.scan(start, end, isolation=isolation), self._bad)

    def __iter__(self) -> Iterator[TypedRecord[V, K, M]]:
        return self.scan()

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[TypedRecord[V, K, M]]:
        """Records from `start` on, waiting for new ones; ends when none came for `timeout` seconds."""
        return TypedFeed(self._codec, self.log.follow(start, timeout, isolation=isolation), self._bad)

    def __repr__(self) -> str:
        return f"<TypedLog of {self.log!r}, {self._codec!r}>"


class TypedTopic(Generic[V, K, M]):
    """A view of a topic. It has no state of its own: close the store, not the view. Threads: any."""

    def __init__(self, topic: Topic, codec: Codec[V, K, M], bad: BadRecords, store: Store | None) -> None:
        #: The topic below it.
        self.topic = topic
        self._codec = codec
        self._bad = bad
        self._store = store

    @property
    def name(self) -> str:
        """The name of the topic."""
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
        """Append one record and return its position; `InvalidRecord` if something is not of its type. With
        `expect_offset`: at that offset of the partition, or `OffsetMismatch` and nothing."""
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
        made = entries(self._codec, values, key, metadata, timestamp)
        return self.topic.append_many(made, partition=partition, expect_offset=expect_offset)

    def read(self, partition: int, offset: int, *, isolation: Isolation = "committed") -> TypedRecord[V, K, M]:
        """One record; `DecodeFailed` if it does not parse, whatever `errors_to` is."""
        return self._codec.decode(self.topic.partition(partition).read(offset, isolation=isolation))

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[TypedRecord[V, K, M]]:
        """The current records, partition by partition, each from its start to its end: by default all of them."""
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
    """A view of a topic; None stands for bytes and for headers as they are."""
    return TypedTopic(topic, _codec(value, key, metadata), _bad(errors_to, store, topic.name), store)


def typed_log(
    log: Partition, value: Any, key: Any, metadata: Any, errors_to: Topic | Partition | None
) -> TypedLog[Any, Any, Any]:
    """A view of a log."""
    return TypedLog(log, _codec(value, key, metadata), _bad(errors_to, None, None))


def _codec(value: Any, key: Any, metadata: Any) -> Codec[Any, Any, Any]:
    return Codec(value, Bytes() if key is None else key, Unchanged() if metadata is None else metadata)


def _bad(errors_to: str | Topic | Partition | None, store: Store | None, name: str | None) -> BadRecords:
    """Where bad records go. A topic that is given by name is created, with one partition, for the first of them."""
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
