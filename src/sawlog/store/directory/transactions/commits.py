"""`Intents`: atomic commits of batches for several partitions. The basis of `Store.transaction` and of Spark's commit.

Complete batches are collected in `staging/`, by one process or by many; a few kilobytes go into the intent itself,
which saves the fsyncs of a file. To commit them, a process

1. takes its turns in all partitions involved, in one order, and keeps them until the end;
2. makes durable what is staged and what is already in the logs, and reserves space for all batches, so that a full disk
   is detected before anything is promised;
3. writes the *intent*: which bytes of which staged file go to which partition at which offset. The rename that puts the
   intent in place is the commit point: before it nothing has happened, after it the transaction will be completed;
4. appends the batches and syncs the logs. A large file with the batches of one partition becomes a segment by a second
   name; the rest is copied;
5. makes the records visible in all partitions (`Log._appending`), so that no reader sees what may still be rolled back.
   Then it removes the intent, or renames it to the note of its name, and removes the staged files.

```
staging/
  <id>.owner, <id>.<label>.batches, <id>.<label>.lease    staged batches: see staging_directory
  <id>.intent                                             committed, not completed: see pending
  <id>.applied.<n>                                        parts that are placed
  =<name>.committed                                       the last intent of that name: see pending
```

**Rolling forward.** A process that dies between 3 and 5 leaves the intent, and its turns unfinished. The next process
that takes a turn in one of its partitions recovers, and places that part before anything else is written there
(`Placement.roll_forward`), and marks it. The process that marks the last part completes the intent. Opening a store for
writing rolls forward all partitions.

No process can have a turn in a partition without knowing of an intent with a part there: the process that wrote the
intent had the turn until the intent was gone, or left it unfinished, and after an unfinished turn, as after a restart
of the machine, the next process looks for intents. An ordinary turn need not look.

**Placing twice is harmless.** Under its lock, a part's log ends at the recorded offset (place everything), after the
part (nothing to do) or in between (place the missing batches; a batch is there completely or not at all). Nothing else
can have been appended, by the argument above. The part is then marked, durably, before the lock's holder writes or
truncates; a marked part is not examined again.

**Failure after 3** (a full disk): what was placed is rolled back, then the intent is removed: `TransactionAborted`. If
that fails, too, the logs are failed, so that no process writes at promised offsets: `TransactionPending`.

**Completing.** A part is checked for its mark first, then for its intent, because marks are removed after the intent.
Before the files of an intent are swept, the directory is synced: the process that removed the intent may have died
before the removal was durable, and an intent that reappears without its marks would be placed again.

**Names and sequences.** A transaction may have a name and a sequence (a streaming query and its batch). A sequence that
is not above the last one of that name is a replay, and is not placed again. This is decided under the name's lock and
recorded by the intent itself, so that no crash can come between. A replay of the last sequence must have as many
records for each topic as the stored one, otherwise it raises `ReplayMismatch`: skipping it would lose records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from ....clock import Deadline, now_ms
from ....errors import (
    LogClosed,
    SawlogError,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from ....log.log import Log
from ....log.open import waiting_for
from ....storage import Directory
from ..topic import DirectoryTopic
from .intent import Intent, Part, check_replay, merged
from .pending import PendingTransactions, sequence_of
from .placement import FileNumbering, Placement
from .staging_directory import StagedTransaction, StagingDirectory

#: Maximum wait for a turn in which to place a part that another process has committed.
_PATIENCE_S = 1.0
#: Up to this size, batches go into the intent itself: a separate file would cost more fsyncs.
INLINE_BYTES = 64 << 10

_logger = logging.getLogger("sawlog")


class Intents:
    """Transactions of one store. Safe for threads and processes."""

    def __init__(self, root: Directory, topic_of: Callable[[str], DirectoryTopic]) -> None:
        #: Uncommitted files.
        self.staging = StagingDirectory(root)
        #: Committed transactions that are not completed.
        self.pending = PendingTransactions(self.staging)
        self.placement = Placement(self.staging, self.pending)
        self._topic_of = topic_of

    def close(self) -> None:
        """Close the handle."""
        self.staging.close()

    def commit(
        self,
        stage: StagedTransaction,
        parts: Iterable[Part],
        log_of: Callable[[Part], Log],
        *,
        data: bytes = b"",
        name: str | None = None,
        sequence: int | None = None,
        lock_timeout_s: float = 5.0,
    ) -> Intent:
        """Place staged batches, all or nothing, and return the intent with the offsets; for a replay, the stored one.
        `ReplayMismatch` if the stored one has different records.

        The staged files are already synced; `data` is for pieces without a file. `DirectoryLocked` if other processes
        write to a partition and this one does not get its turn in time.
        """
        if not stage.held:
            raise LogClosed("the staged batches belong to the parent process, before the fork")
        deadline = Deadline(lock_timeout_s)
        ordered = merged(parts)
        with ExitStack() as named:
            if name is not None:
                names = self.pending.names
                named.callback(names.unlock, name, names.lock(name, deadline))
                last = self.pending.last(name)
                if last is not None and sequence_of(last) >= (sequence or 0):
                    check_replay(last, sequence, ordered)
                    _logger.warning("%r %s is skipped: %s is already stored", name, sequence, sequence_of(last))
                    return last
            if any(piece.file for part in ordered for piece in part.pieces):
                self.pending.settle()
            intent = Intent(stage.id, tuple(ordered), name, sequence, data, now_ms())
            logs = [log_of(part) for part in ordered]
            with ExitStack() as held:
                for log in logs:
                    held.enter_context(log._hold(deadline.at_most(lock_timeout_s)))
                for log in logs:
                    log.sync()  # records before the part must not be lost once the intent exists
                intent = intent.at([log.next_offset for log in logs])
                self._place_all(intent, logs)
                return intent

    def complete_all(self, where: str) -> None:
        """Try to complete the transactions of dead processes. Failures are logged and retried the next time."""
        for intent in self.pending.intents():
            try:
                for number, part in self.pending.unmarked(intent):
                    self._complete(intent, number, part)
                self.pending.complete_if_done(intent)
            except SawlogError as error:
                _logger.warning("%s: a transaction is not completed yet: %s", where, error)

    def _complete(self, intent: Intent, number: int, part: Part) -> None:
        """Get a part placed, by taking a turn in its partition."""
        try:
            topic = self._topic_of(part.topic)
        except TopicNotFound:
            topic = None
        if topic is None or topic.id != part.topic_id:
            self.pending.mark(intent, number)  # its topic is deleted
            return
        with waiting_for(_PATIENCE_S):
            topic._partitions.roll_forward(part.partition)

    # --- the commit

    def _place_all(self, intent: Intent, logs: Sequence[Log]) -> None:
        """Write the intent and place its parts. The caller holds the locks of the logs."""
        written = False
        try:
            for part, log in zip(intent.parts, logs, strict=True):
                self.placement.claim(part, log)
            self.pending.record(intent)
            written = True
            with ExitStack() as appends:  # nothing becomes visible before everything is placed
                for log in logs:
                    appends.enter_context(log._appending())
                with FileNumbering() as numbering:
                    for part, log in zip(intent.parts, logs, strict=True):
                        self.placement.number(numbering, part, log)
                    for part, log in zip(intent.parts, logs, strict=True):
                        self.placement.place(intent, part, log, 0, numbering)
        except BaseException as error:
            self._take_back(intent, logs, error, written=written)
            if not isinstance(error, Exception):
                raise  # an interrupt is re-raised unchanged
            raise TransactionAborted(f"nothing was stored: {error}") from error
        try:
            self.pending.complete(intent)
        except BaseException as error:
            raise self._give_up(intent, logs, error) from error

    def _take_back(self, intent: Intent, logs: Sequence[Log], why: BaseException, *, written: bool) -> None:
        """Roll back the placed parts, then remove the intent; if that fails, leave it to the next open of the store."""
        there = written
        try:
            for part, log in zip(intent.parts, logs, strict=True):
                log.truncate(part.offset)
                log._unclaim()
            there = False
            self.pending.revoke(intent)
        except BaseException:
            raise self._give_up(intent, logs, why, there=there) from why

    def _give_up(
        self, intent: Intent, logs: Sequence[Log], why: BaseException, *, there: bool = False
    ) -> TransactionError:
        """Fail the logs, so that no process writes at the promised offsets before the next open completes the
        transaction. If the intent is `there`, durably, it is not written again: a full disk has no space for it."""
        for log in logs:
            log._fail(why)
        path = f"{self.pending.path}/{intent.file}"
        try:
            if not there:
                self.pending.record(intent)
        except BaseException:
            return TransactionError(
                f"the transaction could be neither completed nor rolled back ({why}); whether it is stored is decided "
                f"when the store is next opened: it is if {path} exists"
            )
        return TransactionPending(f"committed; it will be completed when the store is next opened ({path}): {why}")
