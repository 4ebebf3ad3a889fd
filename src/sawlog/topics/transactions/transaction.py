"""`Transaction`: records for several topics and partitions, stored all or not at all, also across a crash.

```python
with store.transaction() as tx:
    tx.append("orders", b"...", key=b"7")
    tx.append("stock", b"-1", key=b"apples")
```

Leaving the block commits, leaving it by an exception stores nothing. Records are encoded when they are given, so what
is wrong with them is said at once; up to a megabyte stays in memory, more goes to a file. Locks are taken at the
commit only. Nobody sees a record before the commit. During it, a reader may see the records of one partition a moment
before those of another; after a crash in the middle, until somebody opens the store for writing. See intents.py for
how, and why.

`store.transaction(name="query-17", sequence=5)` is stored once, however often it is tried: if that sequence of that
name, or a later one, is stored already, `replayed` is True, and committing does nothing.

Threads: one transaction may be filled by several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal

from ...batch import kernel
from ...batch.build import Encoded, Encoder, Recipe, refuse, seal
from ...errors import LogClosed, RecordTooLarge, StorageError, TopicNotFound, TransactionAborted, TransactionError
from ...log.log import Log
from ...log.write.encoders import recipe_of
from ...log.write.writer import BATCH_BYTES
from ...storage.forking import forkable, this_process
from ..topic import Topic
from .intent import Intent, Part, Piece, check_name
from .intents import INLINE_BYTES, Intents
from .stage import Stage, StagedFile

#: So much is kept in memory; more goes to the staged file.
SPILL_BYTES = 1 << 20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Offsets = dict[tuple[str, int], range]


class Transaction:
    """Records for several partitions. Made by `Store.transaction`."""

    def __init__(
        self,
        intents: Intents,
        topic_of: Callable[[str], Topic],
        committing: threading.RLock,
        *,
        name: str | None = None,
        sequence: int | None = None,
        lock_timeout_s: float = 5.0,
    ) -> None:
        check_name(name, sequence)
        self.name, self.sequence = name, sequence
        self._process = this_process()
        self._intents = intents
        self._topic_of = topic_of
        self._committing = committing
        self._lock_timeout_s = lock_timeout_s
        self._lock = forkable(threading.RLock())
        self._topics: dict[str, Topic] = {}
        self._drafts: dict[tuple[str, int], _Draft] = {}
        self._stage: Stage | None = None
        self._file: StagedFile | None = None
        self._held_bytes = 0
        self._state: Literal["open", "committed", "aborted", "pending"] = "open"
        self._offsets: Offsets = {}
        #: Called once, with the transaction, at its end.
        self.on_end: Callable[[Transaction], None] = lambda transaction: None
        #: Whether this was stored before: then whatever is appended is left aside.
        self.replayed = False
        if name is not None and sequence is not None:
            self._take_over(intents.last(name))

    def _take_over(self, last: Intent | None) -> None:
        """Look whether we are a replay; of the last one, the offsets are known."""
        if last is not None and last.sequence is not None and self.sequence is not None:
            self.replayed = last.sequence >= self.sequence
            if last.sequence == self.sequence:
                self._offsets = _offsets(last.parts)

    # --- collecting

    def append(
        self,
        topic: str | Topic,
        value: bytes | None,
        key: bytes | None = None,
        headers: Any = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record; its offset is known after the commit."""
        with self._lock:
            self._check_open()
            topic = self._topic(topic) if isinstance(topic, str) else topic
            draft = self._draft(topic, topic.place_for(value, key, partition))
            try:
                draft.builder.add(value, key, headers, _milliseconds(timestamp))
            except StorageError:
                self._end("aborted")  # what was collected cannot be written: nobody could say what is in it
                raise

    def append_many(self, topic: str | Topic, records: Iterable[Any], partition: int | None = None) -> None:
        """Take many records, all or none of them; a record is what `Log.append_many` takes."""
        with self._lock:
            self._check_open()
            topic = self._topic(topic) if isinstance(topic, str) else topic
            parts = topic.split(list(records), partition)
            encoded = []
            for number, of_one in parts.items():
                draft = self._draft(topic, number)
                encoded.append((draft, draft.checked(Encoder(draft.recipe).many(of_one))))
            try:
                for draft, batch in encoded:
                    self._seal(draft)
                    self._keep(draft, batch)
            except StorageError:
                self._end("aborted")
                raise

    def _topic(self, name: str) -> Topic:
        """Looked up once: the catalogue is read from disk."""
        if name not in self._topics:
            self._topics[name] = self._topic_of(name)
        return self._topics[name]

    def _check_open(self) -> None:
        if self._state != "open":
            raise LogClosed(f"this transaction is {self._state}")
        if self._process != this_process():  # both would store it
            raise LogClosed("this transaction belongs to the process that this one was forked from")

    def _draft(self, topic: Topic, number: int) -> _Draft:
        draft = self._drafts.get((topic.name, number))
        if draft is None:
            draft = self._drafts[topic.name, number] = _Draft(topic, number, self._seal)
        elif draft.topic.id != topic.id:
            raise TopicNotFound(f"the topic {topic.name!r} was deleted and made anew during this transaction")
        return draft

    def _seal(self, draft: _Draft) -> None:
        """End the open batch of a partition, if there is one."""
        if draft.builder.count:
            self._keep(draft, draft.take())

    def _keep(self, draft: _Draft, batch: Encoded) -> None:
        if self.replayed:
            return
        draft.held.append(bytes(batch.data))
        draft.count += batch.count
        self._held_bytes += len(batch.data)
        if self._held_bytes > SPILL_BYTES:
            self._spill()

    def _inline(self) -> bytes:
        """What is in memory, for the intent; empty if there is nothing."""
        self._stage = self._intents.begin()
        data = bytearray()
        for draft in self._drafts.values():
            held = b"".join(draft.held)
            draft.pieces.append(Piece("", len(data), len(held)))
            data += held
        return bytes(data)

    def _spill(self) -> None:
        """Write what is in memory to the staged file."""
        if self._stage is None:
            self._stage = self._intents.begin()
        if self._file is None:
            self._file = self._stage.file()
        for draft in self._drafts.values():
            if draft.held:
                draft.pieces.append(self._file.write(b"".join(draft.held)))
                draft.held = []
        self._held_bytes = 0

    # --- ending

    def commit(self) -> Offsets:
        """Store everything; the offsets by (topic, partition). If it raises, nothing is stored, except where the
        error is `TransactionPending`. `DirectoryLocked`: another process writes to one of the partitions."""
        with self._lock:
            if self._state == "committed":
                return self._offsets
            self._check_open()
            try:
                with self._committing:
                    self._commit()
            except BaseException as error:
                pending = isinstance(error, TransactionError) and not isinstance(error, TransactionAborted)
                self._end("pending" if pending else "aborted")
                raise
            self._end("committed")
            return self._offsets

    def _commit(self) -> None:
        if self.replayed:
            return
        for draft in self._drafts.values():
            self._seal(draft)
        parts = {key: draft for key, draft in self._drafts.items() if draft.count}
        if not parts and self.name is None:
            return
        data = b""
        if self._file is None and self._held_bytes <= INLINE_BYTES:
            data = self._inline()
        else:
            self._spill()
        assert self._stage is not None
        if self._file is not None:
            self._file.sync()
        intent = self._intents.commit(
            self._stage,
            [draft.part() for draft in parts.values()],
            lambda part: parts[part.order].log(),
            data=data,
            name=self.name,
            sequence=self.sequence,
            lock_timeout_s=self._lock_timeout_s,
        )
        self._offsets = _offsets(intent.parts)
        if intent.id != self._stage.id:  # somebody else was first with this sequence
            self._take_over(intent)

    def abort(self) -> None:
        """Store nothing. Does nothing after the end."""
        with self._lock:
            if self._state == "open":
                self._end("aborted")

    def _end(self, state: Literal["committed", "aborted", "pending"]) -> None:
        self._state = state
        self._drafts = {}
        if self._file is not None:
            self._file.close()
        if self._stage is not None:  # what is pending needs its files
            (self._stage.leave if state == "pending" else self._stage.end)()
        self._file, self._stage = None, None
        self.on_end(self)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.commit()


class _Draft:
    """What a transaction has for one partition."""

    def __init__(self, topic: Topic, number: int, seal: Callable[[_Draft], None]) -> None:
        self.topic, self.number = topic, number
        config = topic.config
        self.recipe: Recipe = recipe_of(config)
        self.segment_bytes = config.segment_bytes
        self.builder = kernel.BatchBuilder(
            refuse,
            limit=min(BATCH_BYTES, self.segment_bytes),
            on_full=lambda: seal(self),
            max_record=self.recipe.max_record_bytes,
            max_total=min(self.recipe.max_batch_bytes, self.segment_bytes),  # it may turn out not to shrink
            capacity=4096,
        )
        self.held: list[bytes] = []
        self.pieces: list[Piece] = []
        self.count = 0

    def take(self) -> Encoded:
        """The open batch, finished."""
        taken: tuple[bytearray, int, int, int, int] = self.builder.take(bytearray(4096))
        return seal(*taken, self.recipe)

    def checked(self, batch: Encoded) -> Encoded:
        """The batch, if a segment can take it: after the commit it would be too late to find out."""
        if len(batch.data) > self.segment_bytes:
            raise RecordTooLarge(
                f"a batch of {len(batch.data):,} bytes does not fit into a segment of {self.segment_bytes:,} of the "
                f"topic {self.topic.name!r}; append fewer records at once, or raise segment.bytes"
            )
        return batch

    def part(self) -> Part:
        """For the intent."""
        return Part(self.topic.name, self.topic.id, self.number, self.count, tuple(self.pieces))

    def log(self) -> Log:
        """Where it goes to."""
        return self.topic.partition(self.number)


def _offsets(parts: Iterable[Part]) -> Offsets:
    return {part.order: part.offsets for part in parts}


def _milliseconds(timestamp: int | datetime | None) -> int | None:
    if isinstance(timestamp, datetime):
        return (timestamp.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    return timestamp
