"""`DirectoryTransaction`: records for several topics and partitions, stored all or not at all, also across a crash.

```python
with store.transaction() as tx:
    tx.append("orders", b"...", key=b"7")
    tx.append("stock", b"-1", key=b"apples")
```

Leaving the block commits; leaving it by an exception stores nothing. Records are encoded when they are added, so
invalid ones are refused immediately. Up to a megabyte stays in memory, more goes to a file. Locks are taken only at the
commit; parts for partitions that other processes hold are forwarded to these. No record is visible before the commit.
During it, a reader may see the records of one partition a moment before those of another; after a crash in the middle,
until the holders or the next process that opens the store for writing have completed it. `commits` explains how.

`store.transaction(name="query-17", sequence=5)` is stored once, however often it is retried: if that sequence of that
name, or a later one, is already stored, `replayed` is True and committing does nothing. A replay of the last sequence
may append nothing; if it appends, it must append as many records for each topic as are stored, or `ReplayMismatch` is
raised.

Threads: several may add to one transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Literal

from ....batch.inputs import HeadersInput, RecordInput
from ....clock import milliseconds
from ....errors import LogClosed, ReplayMismatch, StorageError, TransactionAborted, TransactionError
from ....storage.forking import forkable, this_process
from ...base import Transaction
from ..topic import DirectoryTopic
from .buffers import BufferedTransaction
from .commits import Intents
from .intent import Intent, check_name, check_replay

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
        """Add one record; its offset is known after the commit."""
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
        """Add many records, all or none of them; a record is as in `Log.append_many`."""
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
        `DirectoryLocked`: another process holds one of the partitions and accepts no forwarded parts, or does not
        answer."""
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
        with self._buffered.lending():
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
        """Discard the records. No-op once the transaction has ended."""
        with self._lock:
            if self._state == "open":
                self._end("aborted")

    def _end(self, state: Literal["committed", "aborted", "pending"]) -> None:
        self._state = state
        self._buffered.end(pending=state == "pending")
        self._on_end(self)
