"""`ObjectAppends`: a partition on object storage as programs append to it: records, Arrow tables, streams, writers.

Everything becomes encoded batches, which `ObjectPartition` places with a commit. An append returns when it is durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from ..batch.build import MAX_BATCH_BYTES, NOBODY, Encoded, Encoder, Producer, Recipe
from ..batch.given import GivenHeaders, GivenRecord, GivenTable
from ..clock import milliseconds
from ..config import LogConfig
from ..errors import AmbiguousAppend, InvalidConfig, InvalidRecord, StreamAborted, StreamTooLong
from ..log.write.appender import Answer
from ..log.write.encoders import recipe_of
from ..log.write.writer import BATCH_BYTES, Writer
from .core import Core

#: A stream that is not limited by its caller is, because it has to be one batch, and is collected in memory.
STREAM_BYTES = 256 << 20


class ObjectAppends:
    """The writing half of a partition for programs. Safe for threads."""

    _core: Core
    config: LogConfig

    if TYPE_CHECKING:  # what ObjectPartition has

        def append_batches(
            self,
            raw: bytes | bytearray | memoryview,
            *,
            trusted: bool = False,
            wait: bool = True,
            expect_offset: int | None = None,
        ) -> range: ...

    @property
    def recipe(self) -> Recipe:
        """How batches are made."""
        return recipe_for(self.config)

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. With `expect_offset`: at that offset, or `OffsetMismatch` and
        nothing. It is durable when this returns: use `append_many`, a writer, or many threads, which share a commit."""
        batch = Encoder(self.recipe).one(value, key, headers, milliseconds(timestamp))
        return self.append_batches(bytes(batch.data), trusted=True, expect_offset=expect_offset).start

    def append_many(
        self, records: Iterable[GivenRecord], expect_offset: int | None = None, *, producer: Producer = NOBODY
    ) -> range:
        """Append records as one batch, all or none, and return their offsets. A record is as in `Log.append_many`; with
        `producer` the batch is idempotent."""
        batch = Encoder(self.recipe).many(records, producer)
        return self.append_batches(bytes(batch.data), trusted=True, expect_offset=expect_offset)

    def append_arrow(self, table: GivenTable, expect_offset: int | None = None) -> range:
        """Append the rows of an Arrow table, all of them or none: `value`, and optionally `key`, `timestamp`,
        `headers`."""
        return self.append_batches(encoded_table(self.recipe, table), trusted=True, expect_offset=expect_offset)

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record whose value comes in pieces, and return its offset. It is collected in memory: if it
        exceeds `max_bytes`, or 256 MiB: `StreamTooLong`; if the iterable raises: `StreamAborted`."""
        value = _collected(chunks, STREAM_BYTES if max_bytes is None else min(max_bytes, STREAM_BYTES))
        return self.append(value, key, headers, timestamp, expect_offset)

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        """A buffered writer: the fast way to append records one by one. See `Writer`."""
        self._core.check_writable()
        made = Writer(_Target(self), batch_bytes, linger_ms)
        self._core.keep(made)
        return made

    def sync(self) -> None:
        """Everything that was appended is durable: there is nothing to wait for."""
        self._core.check_writable()


class _Target:
    """Where the batches of one writer go."""

    def __init__(self, partition: ObjectAppends) -> None:
        self._partition = partition
        self.writers: set[Writer] = set()
        #: A batch may be stored or not, and nobody knows: it must not be tried again, since it could be stored twice.
        self._doubt: AmbiguousAppend | None = None

    @property
    def recipe(self) -> Recipe:
        """How batches are made."""
        return self._partition.recipe

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NOBODY,
        answer: Answer | None = None,
    ) -> range:
        """Store a batch and return its offsets."""
        self.check_failure()
        if answer is not None and answer.placed is not None:
            return answer.placed
        try:
            placed = self._partition.append_batches(bytes(batch.data), trusted=True, expect_offset=expect_offset)
        except AmbiguousAppend as error:
            self._doubt = error
            raise
        return placed if answer is None else answer.give(placed)

    def settle(self, offset: int) -> None:
        """What has an offset is durable."""

    def check_failure(self) -> None:
        """Raise if nobody knows whether a batch is stored."""
        if self._doubt is not None:
            raise AmbiguousAppend(f"this writer cannot go on: {self._doubt}") from self._doubt


def recipe_for(config: LogConfig) -> Recipe:
    """How batches for a topic with these settings are made. None is too large for a segment: those are cut later."""
    return recipe_of(config.with_(segment_bytes=max(config.segment_bytes, MAX_BATCH_BYTES)))


def encoded_table(recipe: Recipe, table: GivenTable) -> bytes:
    """Batches of the rows of an Arrow table."""
    data = b"".join(bytes(batch.data) for batch in Encoder(recipe).table(table, BATCH_BYTES))
    if not data:
        raise InvalidRecord("no record to append")
    return data


def _collected(chunks: Iterable[bytes], most: int) -> bytes:
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise InvalidConfig(f"max_bytes must be a number of bytes, not {most!r}")
    value = bytearray()
    pieces = iter(chunks)
    while True:
        try:
            chunk = next(pieces)
        except StopIteration:
            return bytes(value)
        except Exception as error:
            raise StreamAborted(f"the stream raised {type(error).__name__}: {error}; nothing was stored") from error
        value += chunk
        if len(value) > most:
            raise StreamTooLong(f"the stream exceeds {most:,} bytes; nothing was stored")
