"""`Parcel`: finished batches for one partition, gathered until they are written elsewhere or committed.

`Drafts`: what a transaction has collected and not committed yet.

Records become batches when they are added. Up to a megabyte of finished batches stays in memory; more goes to staged
files, the batches of one partition to one of their own. At the commit a few kilobytes go into the intent itself, which
saves the fsyncs of a file.

Threads: one at a time; `Transaction` ensures that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

from ....batch.build import Encoded, Encoder, Recipe
from ....batch.inputs import GivenRecord
from ....errors import RecordTooLarge, TopicNotFound
from ....log.encoding import Batcher, recipe_of
from ....log.log import Log
from ....log.writer import BATCH_BYTES
from ....storage.interface import Buffer
from ..topic import Topic
from .commits import INLINE_BYTES
from .intent import Part, Piece
from .staging_directory import Stage, StagedFile, StagingArea


class OwnFile(Protocol):
    """A staged file for the batches of one partition."""

    @property
    def size_bytes(self) -> int:
        """How many bytes were written to it, if more can be."""

    def write(self, batches: Buffer) -> Piece:
        """Append finished batches."""


class Parcel:
    """Batches in memory, and where those are that were moved. For one thread at a time."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size_bytes = 0
        self._held_count = 0
        self._pieces: list[Piece] = []
        self._count = 0

    def add(self, batch: Encoded) -> None:
        """Add a finished batch. It is copied: its buffer is used again."""
        self._held.append(bytes(batch.data))
        self._size_bytes += len(batch.data)
        self._count += batch.count
        self._held_count += batch.count

    def move(self, write: Callable[[bytes], Piece]) -> None:
        """Move everything in memory elsewhere; `write` returns where it is."""
        if self._held:
            self._pieces.append(write(b"".join(self._held)))
            self._held, self._size_bytes, self._held_count = [], 0, 0

    def move_alone(self, file: OwnFile) -> None:
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
        """The number of records."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """How many bytes are in memory."""
        return self._size_bytes

    @property
    def data(self) -> bytes:
        """What is in memory."""
        return b"".join(self._held)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Where the rest is."""
        return tuple(self._pieces)


#: This many bytes are kept in memory; more goes to the staged files.
SPILL_BYTES = 1 << 20


class Draft:
    """What a transaction has for one partition: an open batch, and finished ones in memory or in the staged file."""

    #: `add(value, key, headers, timestamp_ms)`: add one record to the open batch.
    add: Callable[..., None]

    def __init__(self, topic: Topic, number: int, on_full: Callable[[Draft], None]) -> None:
        self.topic, self.number = topic, number
        config = topic.config
        self._recipe: Recipe = recipe_of(config)
        self._segment_bytes = config.segment_bytes
        self._batcher = Batcher(
            self._recipe,
            limit=min(BATCH_BYTES, self._segment_bytes),
            on_full=lambda: on_full(self),
            max_bytes=self._segment_bytes,  # compression may not make it smaller
        )
        self.add = self._batcher.add
        #: The finished batches.
        self.parcel = Parcel()
        #: How many records were not collected: those of a replay.
        self.ignored = 0

    def encode(self, records: Iterable[GivenRecord]) -> Encoded:
        """A batch of these. `RecordTooLarge` if it does not fit into a segment: after the commit it would be too
        late."""
        batch = Encoder(self._recipe).many(records)
        if len(batch.data) > self._segment_bytes:
            raise RecordTooLarge(
                f"a batch of {len(batch.data):,} bytes does not fit into a segment of {self._segment_bytes:,} bytes of "
                f"the topic {self.topic.name!r}; append fewer records at once, or raise segment.bytes"
            )
        return batch

    def take(self) -> Encoded | None:
        """End the open batch; None if there is none."""
        return self._batcher.sealed(self._batcher.take()) if self._batcher.count else None

    @property
    def count(self) -> int:
        """The number of records in finished batches."""
        return self.parcel.count

    def part(self) -> Part:
        """For the intent."""
        return Part(self.topic.name, self.topic.id, self.number, self.parcel.count, self.parcel.pieces)

    def log(self) -> Log:
        """The part for its partition."""
        return self.topic.partition(self.number)


class Drafts:
    """The drafts of one transaction."""

    def __init__(self, area: StagingArea, topic_of: Callable[[str], Topic], *, wanted: bool) -> None:
        self._area = area
        self._topic_of = topic_of
        #: False: the transaction was stored before, so records are checked, and ignored.
        self._wanted = wanted
        self._topics: dict[str, Topic] = {}
        self._drafts: dict[tuple[str, int], Draft] = {}
        self._held_bytes = 0
        self._stage: Stage | None = None
        #: A partition that was alone when memory was first full has a file of its own, and usually stays alone.
        self._first: Draft | None = None
        self._own: StagedFile | None = None
        #: For all the others.
        self._file: StagedFile | None = None

    @property
    def _files(self) -> list[StagedFile]:
        return [file for file in (self._own, self._file) if file is not None]

    def topic(self, topic: str | Topic) -> Topic:
        """A topic by its name. Looked up once: the catalog is read from disk."""
        if not isinstance(topic, str):
            return topic
        if topic not in self._topics:
            self._topics[topic] = self._topic_of(topic)
        return self._topics[topic]

    def of(self, topic: Topic, number: int) -> Draft:
        """The draft for a partition."""
        draft = self._drafts.get((topic.name, number))
        if draft is None:
            draft = self._drafts[topic.name, number] = Draft(topic, number, self.seal)
        elif draft.topic.id != topic.id:
            raise TopicNotFound(f"the topic {topic.name!r} was deleted and recreated during this transaction")
        return draft

    def keep(self, draft: Draft, batch: Encoded) -> None:
        """Collect a finished batch."""
        if not self._wanted:
            draft.ignored += batch.count
            return
        draft.parcel.add(batch)
        self._held_bytes += len(batch.data)
        if self._held_bytes > SPILL_BYTES:
            self._spill()

    def seal(self, draft: Draft) -> None:
        """End the open batch of a partition, if there is one."""
        batch = draft.take()
        if batch is not None:
            self.keep(draft, batch)

    def _spill(self) -> Stage:
        """Write what is in memory to the staged files."""
        if self._stage is None:
            self._stage = self._area.begin()
        held = [draft for draft in self._drafts.values() if draft.parcel.size_bytes]
        if len(held) == 1 and not self._files:
            self._first, self._own = held[0], self._stage.file()
        for draft in held:
            if draft is self._first and self._own is not None:
                draft.parcel.move_alone(self._own)
            else:
                self._file = self._file or self._stage.file("1")
                draft.parcel.move(self._file.write)
        self._held_bytes = 0
        return self._stage

    # --- committing

    def seal_all(self) -> bool:
        """End all open batches; returns whether there is any record."""
        for draft in self._drafts.values():
            self.seal(draft)
        return any(draft.count for draft in self._drafts.values())

    def stage(self) -> tuple[Stage, bytes]:
        """Put everything where the commit finds it: durably into the staged file, or, if it is small, into the returned
        bytes, which are for the intent."""
        if self._files or self._held_bytes > INLINE_BYTES:
            stage = self._spill()
            for file in self._files:
                file.sync()
            return stage, b""
        self._stage = self._area.begin()
        data = bytearray()

        def write(held: bytes) -> Piece:
            piece = Piece("", len(data), len(held))
            data.extend(held)
            return piece

        for draft in self._drafts.values():
            draft.parcel.move(write)
        return self._stage, bytes(data)

    def parts(self) -> list[Part]:
        """What there is for each partition."""
        return [draft.part() for draft in self._drafts.values() if draft.count]

    def ignored_parts(self) -> list[Part]:
        """What a replay has appended, without the records."""
        return [
            Part(draft.topic.name, draft.topic.id, draft.number, draft.ignored, ())
            for draft in self._drafts.values()
            if draft.ignored
        ]

    def log_of(self, part: Part) -> Log:
        """The log that a part goes to."""
        return self._drafts[part.order].log()

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Locks that are taken within this block are given back: see `Holdings.lending`."""
        with ExitStack() as each:
            for draft in self._drafts.values():
                each.enter_context(draft.topic.holdings.lending(draft.number))
            yield

    def end(self, *, pending: bool) -> None:
        """Forget everything. Staged files are removed as well, unless it is `pending`: then an intent needs them."""
        self._drafts = {}
        for file in self._files:
            file.close()
        if self._stage is not None:
            (self._stage.leave if pending else self._stage.end)()
        self._first = self._own = self._file = self._stage = None
