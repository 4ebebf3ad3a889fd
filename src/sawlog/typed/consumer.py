"""`TypedConsumer`: a consumer that returns typed records.

It is a `Consumer` (`sawlog.topics.groups.consumer`) in every other respect: at least once, a record counts as processed
when the next one is requested. A record that does not parse is raised (`DecodeFailed`). Leaving the block with that
error does not commit it, so the group gets it again; asking for the next record goes past it.

Threads: one reads, as with `Consumer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Generic, Literal, TypedDict, TypeVar

from ..batch.kernel import Record
from ..errors import DecodeFailed
from ..isolation import Isolation
from ..topics.groups.consumer import Consumer
from .bad import BadRecords
from .codec import Codec
from .reading import TypedFeed
from .record import TypedRecord

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


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
