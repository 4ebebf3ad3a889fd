"""`BufferedTransaction`: the records of a transaction before its commit. `PartitionBuffer`: batches for one partition.

Records are encoded into batches when they are added. Up to a megabyte of complete batches stays in memory; more goes to
staged files, with a file of its own for a partition that fills the buffer alone. At the commit, a few kilobytes go into
the intent itself, which saves the fsyncs of a file.

Threads: one at a time; `Transaction` ensures that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

from ....batch.build import Encoded, Encoder, EncoderOptions
from ....batch.inputs import RecordInput
from ....errors import RecordTooLarge, TopicNotFound
from ....log.encoding import Batcher, recipe_of
from ....log.log import Log
from ....log.writer import BATCH_BYTES
from ....storage.interface import Buffer
from ..topic import DirectoryTopic
from .commits import INLINE_BYTES
from .intent import Part, Piece
from .staging_directory import StagedFile, StagedTransaction, StagingDirectory


class PartitionFile(Protocol):
    """Staged file for the batches of one partition."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far."""

    def write(self, batches: Buffer) -> Piece:
        """Append complete batches."""


class PartitionBuffer:
    """Batches of one partition in memory, and the location of those moved to files. For one thread at a time."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size_bytes = 0
        self._held_count = 0
        self._pieces: list[Piece] = []
        self._count = 0

    def add(self, batch: Encoded) -> None:
        """Add a complete batch. It is copied, because the encoder reuses its buffer."""
        self._held.append(bytes(batch.data))
        self._size_bytes += len(batch.data)
        self._count += batch.count
        self._held_count += batch.count

    def move(self, write: Callable[[bytes], Piece]) -> None:
        """Move everything in memory elsewhere; `write` returns the location."""
        if self._held:
            self._pieces.append(write(b"".join(self._held)))
            self._held, self._size_bytes, self._held_count = [], 0, 0

    def move_alone(self, file: PartitionFile) -> None:
        """Move everything in memory to a file that contains nothing else."""
        if not self._held:
            return
        count, made = self._held_count, file.write(b"".join(self._held))
        if made.position:
            before = self._pieces.pop()
            count, made = count + before.count, before.joined(made)
        self._pieces.append(replace(made, count=count))
        self._held, self._size_bytes, self._held_count = [], 0, 0

    @property
    def count(self) -> int:
        """Number of records."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Number of bytes in memory."""
        return self._size_bytes

    @property
    def data(self) -> bytes:
        """Batches in memory."""
        return b"".join(self._held)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Location of the other batches."""
        return tuple(self._pieces)


#: Maximum number of bytes kept in memory; more is spilled to staged files.
SPILL_BYTES = 1 << 20


class BufferedPart:
    """Records of a transaction for one partition: an open batch, and complete ones in memory or in a staged file."""

    #: `add(value, key, headers, timestamp_ms)`: add one record to the open batch.
    add: Callable[..., None]

    def __init__(self, topic: DirectoryTopic, number: int, on_full: Callable[[BufferedPart], None]) -> None:
        self.topic, self.number = topic, number
        config = topic.config
        self._recipe: EncoderOptions = recipe_of(config)
        self._segment_bytes = config.segment_bytes
        self._batcher = Batcher(
            self._recipe,
            limit=min(BATCH_BYTES, self._segment_bytes),
            on_full=lambda: on_full(self),
            max_bytes=self._segment_bytes,  # compression may not make it smaller
        )
        self.add = self._batcher.add
        #: Complete batches.
        self.buffer = PartitionBuffer()
        #: Number of records ignored because this is a replay.
        self.ignored = 0

    def encode(self, records: Iterable[RecordInput]) -> Encoded:
        """Encode records as one batch. `RecordTooLarge` if it does not fit into a segment: after the commit it would be
        too late."""
        batch = Encoder(self._recipe).many(records)
        if len(batch.data) > self._segment_bytes:
            raise RecordTooLarge(
                f"a batch of {len(batch.data):,} bytes does not fit into a segment of {self._segment_bytes:,} bytes of "
                f"the topic {self.topic.name!r}; append fewer records at once, or raise segment.bytes"
            )
        return batch

    def take(self) -> Encoded | None:
        """Close the open batch and return it; None if there is none."""
        return self._batcher.sealed(self._batcher.take()) if self._batcher.count else None

    @property
    def count(self) -> int:
        """Number of records in complete batches."""
        return self.buffer.count

    def part(self) -> Part:
        """Return the `Part` for the intent."""
        return Part(self.topic.name, self.topic.id, self.number, self.buffer.count, self.buffer.pieces)

    def log(self) -> Log:
        """Return the log of the partition."""
        return self.topic.partition(self.number)


class BufferedTransaction:
    """Buffered records of one transaction."""

    def __init__(self, staging: StagingDirectory, topic_of: Callable[[str], DirectoryTopic], *, wanted: bool) -> None:
        self._staging = staging
        self._topic_of = topic_of
        #: False for a replay: records are validated and ignored.
        self._wanted = wanted
        self._topics: dict[str, DirectoryTopic] = {}
        self._parts: dict[tuple[str, int], BufferedPart] = {}
        self._held_bytes = 0
        self._stage: StagedTransaction | None = None
        #: A partition that filled the memory alone gets a file of its own, and usually stays alone.
        self._first: BufferedPart | None = None
        self._own: StagedFile | None = None
        #: File for all other partitions.
        self._file: StagedFile | None = None

    @property
    def _files(self) -> list[StagedFile]:
        return [file for file in (self._own, self._file) if file is not None]

    def topic(self, topic: str | DirectoryTopic) -> DirectoryTopic:
        """Return a topic by its name. Looked up once, because the catalog is read from disk."""
        if not isinstance(topic, str):
            return topic
        if topic not in self._topics:
            self._topics[topic] = self._topic_of(topic)
        return self._topics[topic]

    def of(self, topic: DirectoryTopic, number: int) -> BufferedPart:
        """Return the buffer of a partition."""
        part = self._parts.get((topic.name, number))
        if part is None:
            part = self._parts[topic.name, number] = BufferedPart(topic, number, self.seal)
        elif part.topic.id != topic.id:
            raise TopicNotFound(f"the topic {topic.name!r} was deleted and recreated during this transaction")
        return part

    def keep(self, part: BufferedPart, batch: Encoded) -> None:
        """Add a complete batch."""
        if not self._wanted:
            part.ignored += batch.count
            return
        part.buffer.add(batch)
        self._held_bytes += len(batch.data)
        if self._held_bytes > SPILL_BYTES:
            self._spill()

    def seal(self, part: BufferedPart) -> None:
        """Close the open batch of a partition, if there is one."""
        batch = part.take()
        if batch is not None:
            self.keep(part, batch)

    def _spill(self) -> StagedTransaction:
        """Write the batches in memory to the staged files."""
        if self._stage is None:
            self._stage = self._staging.begin()
        held = [part for part in self._parts.values() if part.buffer.size_bytes]
        if len(held) == 1 and not self._files:
            self._first, self._own = held[0], self._stage.file()
        for part in held:
            if part is self._first and self._own is not None:
                part.buffer.move_alone(self._own)
            else:
                self._file = self._file or self._stage.file("1")
                part.buffer.move(self._file.write)
        self._held_bytes = 0
        return self._stage

    # --- committing

    def seal_all(self) -> bool:
        """Close all open batches; return whether there is any record."""
        for part in self._parts.values():
            self.seal(part)
        return any(part.count for part in self._parts.values())

    def stage(self) -> tuple[StagedTransaction, bytes]:
        """Move everything to where the commit finds it: durably into staged files, or, if it is small, into the
        returned bytes for the intent."""
        if self._files or self._held_bytes > INLINE_BYTES:
            stage = self._spill()
            for file in self._files:
                file.sync()
            return stage, b""
        self._stage = self._staging.begin()
        data = bytearray()

        def write(held: bytes) -> Piece:
            piece = Piece("", len(data), len(held))
            data.extend(held)
            return piece

        for part in self._parts.values():
            part.buffer.move(write)
        return self._stage, bytes(data)

    def parts(self) -> list[Part]:
        """Return the parts of all partitions with records."""
        return [part.part() for part in self._parts.values() if part.count]

    def ignored_parts(self) -> list[Part]:
        """Return the parts that a replay has appended, without their records."""
        return [
            Part(part.topic.name, part.topic.id, part.number, part.ignored, ())
            for part in self._parts.values()
            if part.ignored
        ]

    def log_of(self, part: Part) -> Log:
        """Return the log that a part goes to."""
        return self._parts[part.order].log()

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Lease the locks that are taken within this block: see `OpenPartitions.lending`."""
        with ExitStack() as each:
            for part in self._parts.values():
                each.enter_context(part.topic._partitions.lending(part.number))
            yield

    def end(self, *, pending: bool) -> None:
        """Discard everything. Removes the staged files unless `pending`: an intent needs them then."""
        self._parts = {}
        for file in self._files:
            file.close()
        if self._stage is not None:
            (self._stage.leave if pending else self._stage.end)()
        self._first = self._own = self._file = self._stage = None
