"""`DirectoryTransaction`: records for several topics and partitions, stored all or not at all, also across a crash.

```python
with store.transaction() as tx:
    tx.append("orders", b"...", key=b"7")
    tx.append("stock", b"-1", key=b"apples")
```

Leaving the block commits; leaving it by an exception stores nothing. Records are encoded when they are added, so
invalid ones are refused immediately. Up to a megabyte stays in memory, more goes to a file. Locks are taken only at the
commit. No record is visible before the commit. During it, a reader may see the records of one partition a moment before
those of another; after a crash in the middle, until the next process that writes has completed it. `commits` explains
how.

`store.transaction(name="query-17", sequence=5)` is stored once, however often it is retried: if that sequence of that
name, or a later one, is already stored, `replayed` is True and committing does nothing. A replay of the last sequence
may append nothing; if it appends, it must append as many records for each topic as are stored, or `ReplayMismatch` is
raised.

Threads: several may add to one transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Literal, Protocol

from ....batch.build import Encoded, Encoder, EncoderOptions
from ....batch.inputs import HeadersInput, RecordInput
from ....clock import milliseconds
from ....errors import (
    LogClosed,
    RecordTooLarge,
    ReplayMismatch,
    StorageError,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
)
from ....log.log import Log
from ....log.writer import BATCH_BYTES, Batcher, recipe_of
from ....storage.forking import forkable, this_process
from ....storage.interface import Buffer
from ...base import Transaction
from ..topic import DirectoryTopic
from .commits import INLINE_BYTES, Intents
from .intent import Intent, Part, Piece, check_name, check_replay
from .staging_directory import StagedFile, StagedTransaction, StagingDirectory


class PartitionFile(Protocol):
    """Staged file for the batches of one partition."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes written so far."""

    def write(self, batches: Buffer) -> Piece:
        """Append complete batches."""


class PartitionBuffer:
    """Batches of one partition in memory, and the location of batches that were moved to files. For one thread at a
    time."""

    def __init__(self) -> None:
        #: Number of records.
        self.count = 0
        #: Number of bytes in memory.
        self.size_bytes = 0
        #: Location of the batches that are not in memory.
        self.pieces: tuple[Piece, ...] = ()
        self._held: list[bytes] = []
        self._held_count = 0

    def add(self, batch: Encoded) -> None:
        """Add a complete batch. It is copied, because the encoder reuses its buffer."""
        self._held.append(bytes(batch.data))
        self.size_bytes += len(batch.data)
        self.count += batch.count
        self._held_count += batch.count

    def move(self, write: Callable[[bytes], Piece]) -> None:
        """Move everything in memory elsewhere; `write` returns the location."""
        if self._held:
            self.pieces += (write(self.data),)
            self._clear()

    def move_alone(self, file: PartitionFile) -> None:
        """Move everything in memory to a file that contains nothing else."""
        if not self._held:
            return
        count, made = self._held_count, file.write(self.data)
        if made.position:
            before = self.pieces[-1]
            self.pieces = self.pieces[:-1]
            count, made = count + before.count, before.joined(made)
        self.pieces += (replace(made, count=count),)
        self._clear()

    def _clear(self) -> None:
        self._held, self.size_bytes, self._held_count = [], 0, 0

    @property
    def data(self) -> bytes:
        """Batches in memory."""
        return b"".join(self._held)


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

    def part(self) -> Part:
        """Return the `Part` for the intent."""
        return Part(self.topic.name, self.topic.id, self.number, self.buffer.count, self.buffer.pieces)


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
        return any(part.buffer.count for part in self._parts.values())

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
        return [part.part() for part in self._parts.values() if part.buffer.count]

    def ignored_parts(self) -> list[Part]:
        """Return the parts that a replay has appended, without their records."""
        return [
            Part(part.topic.name, part.topic.id, part.number, part.ignored, ())
            for part in self._parts.values()
            if part.ignored
        ]

    def log_of(self, part: Part) -> Log:
        """Return the log that a part goes to."""
        return self._parts[part.order].topic.partition(part.partition)

    def end(self, *, pending: bool) -> None:
        """Discard everything. Removes the staged files unless `pending`: an intent needs them then."""
        self._parts = {}
        for file in self._files:
            file.close()
        if self._stage is not None:
            (self._stage.leave if pending else self._stage.end)()
        self._first = self._own = self._file = self._stage = None


#: Offsets of stored records by (topic, partition).
PlacedOffsets = dict[tuple[str, int], range]


class DirectoryTransaction(Transaction):
    """Records for several partitions. Created by `Store.transaction`."""

    def __init__(
        self,
        intents: Intents,
        topic_of: Callable[[str], DirectoryTopic],
        committing: threading.RLock,
        *,
        name: str | None = None,
        sequence: int | None = None,
        lock_timeout_s: float = 5.0,
        on_end: Callable[[DirectoryTransaction], None] = lambda transaction: None,
    ) -> None:
        check_name(name, sequence)
        self.name, self.sequence = name, sequence
        self._process = this_process()
        self._intents = intents
        self._committing = committing
        self._lock_timeout_s = lock_timeout_s
        self._lock = forkable(threading.RLock())
        self._state = "open"
        self._offsets: PlacedOffsets = {}
        #: Called once, with the transaction, at its end.
        self._on_end = on_end
        self.replayed = False
        #: The stored transaction that this one repeats, if its records are known.
        self._stored: Intent | None = None
        if name is not None and sequence is not None:
            self._take_over(intents.pending.last(name))
        self._buffered = BufferedTransaction(intents.staging, topic_of, wanted=not self.replayed)

    def _take_over(self, last: Intent | None) -> None:
        """Detect a replay. The offsets are known only if it repeats the last sequence."""
        if last is not None and last.sequence is not None and self.sequence is not None:
            self.replayed = last.sequence >= self.sequence
            if last.sequence == self.sequence:
                self._offsets, self._stored = last.offsets, last

    # --- collecting

    def append(
        self,
        topic: str | DirectoryTopic,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        with self._lock:
            self._check_open()
            topic = self._buffered.topic(topic)
            part = self._buffered.of(topic, topic._router.place_for(value, key, partition))
            try:
                part.add(value, key, headers, milliseconds(timestamp))
            except StorageError:
                self._end("aborted")  # the staged content is unknown after a failed write
                raise

    def append_many(
        self, topic: str | DirectoryTopic, records: Iterable[RecordInput], partition: int | None = None
    ) -> None:
        with self._lock:
            self._check_open()
            topic = self._buffered.topic(topic)
            parts = topic._router.split(list(records), partition)
            drafts = [(self._buffered.of(topic, number), of_one) for number, of_one in parts.items()]
            encoded = [(part, part.encode(of_one)) for part, of_one in drafts]
            try:
                for part, batch in encoded:
                    self._buffered.seal(part)
                    self._buffered.keep(part, batch)
            except StorageError:
                self._end("aborted")
                raise

    def _check_open(self) -> None:
        if self._state != "open":
            raise LogClosed(f"this transaction is {self._state}")
        if self._process != this_process():  # both would store it
            raise LogClosed("this transaction belongs to the parent process, before the fork")

    # --- ending

    def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition). If this raises, nothing is stored, unless the
        error is `TransactionPending`. `ReplayMismatch`: this name and sequence are stored with different records.
        `DirectoryLocked`: other processes write to one of the partitions, and this one did not get its turn in
        time."""
        with self._lock:
            if self._state == "committed":
                return self._offsets
            self._check_open()
            try:
                with self._committing:
                    self._commit()
            except BaseException as error:
                pending = isinstance(error, TransactionError)
                pending &= not isinstance(error, TransactionAborted | ReplayMismatch)
                self._end("pending" if pending else "aborted")
                raise
            self._end("committed")
            return self._offsets

    def _commit(self) -> None:
        if self.replayed:
            self._buffered.seal_all()
            given = self._buffered.ignored_parts()
            if self._stored is not None and given:
                check_replay(self._stored, self.sequence, given)
            return
        if not self._buffered.seal_all() and self.name is None:
            return
        stage, data = self._buffered.stage()
        intent = self._intents.commit(
            stage,
            self._buffered.parts(),
            self._buffered.log_of,
            data=data,
            name=self.name,
            sequence=self.sequence,
            lock_timeout_s=self._lock_timeout_s,
        )
        self._offsets = intent.offsets
        if intent.id != stage.id:  # another process was first with this sequence
            self._take_over(intent)

    def abort(self) -> None:
        with self._lock:
            if self._state == "open":
                self._end("aborted")

    def _end(self, state: Literal["committed", "aborted", "pending"]) -> None:
        self._state = state
        self._buffered.end(pending=state == "pending")
        self._on_end(self)
