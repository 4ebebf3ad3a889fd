"""`TypedTopic`: a topic whose records are objects. `topic.typed(value=JSON(Order), key=Utf8())` returns one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Generic, TypeVar, Unpack

from ..errors import InvalidConfig
from ..isolation import Isolation
from ..topics.base import Store, Topic
from .bad import BadRecords
from .codec import Codec
from .consumer import ConsumerOptions, TypedConsumer
from .entries import entries
from .reading import typed_scan
from .record import TypedRecord

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


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
