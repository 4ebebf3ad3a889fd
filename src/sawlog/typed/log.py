"""`TypedLog`: a log whose records are objects. `log.typed(value=JSON(Order))` returns one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Generic, TypeVar

from ..isolation import Isolation
from ..topics.base import Partition
from .bad import BadRecords
from .codec import Codec
from .entries import entries
from .reading import TypedFeed, typed_scan
from .record import TypedRecord

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


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
