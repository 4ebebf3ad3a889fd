"""`Intents`: atomic commits of batches for several partitions. The basis of `Store.transaction` and of Spark's commit.

Complete batches are collected in `staging/`, by one process or by many; a few kilobytes go into the intent itself,
which saves the fsyncs of a file. To commit them, a process

1. takes the locks of all partitions involved and blocks their logs;
2. makes durable what is staged and what is already in the logs, and reserves space for all batches, so that a full disk
   is detected before anything is promised;
3. writes the *intent*: which bytes of which staged file go to which partition at which offset. The rename that puts the
   intent in place is the commit point: before it nothing has happened, after it the transaction will be completed;
4. appends the batches and syncs the logs. A large file with the batches of one partition becomes a segment by a second
   name; the rest is copied;
5. makes the records visible in all partitions (`Log._appending`), so that no reader sees what may still be rolled back.
   Then it removes the intent, or renames it to the note of its name, and removes the staged files.

If another process holds one of the locks and accepts forwarded parts, the commit is forwarded (see below).

```
staging/
  <id>.owner, <id>.<label>.batches, <id>.<label>.lease    staged batches: see staging_directory
  <id>.intent                                             committed, not completed: see pending
  <id>.at.<n>.<offset>, <id>.applied.<n>                  progress of placement
  =<name>.committed                                       the last intent of that name: see pending
```

**Rolling forward.** A process that dies between 3 and 5 leaves the intent. The next process that takes the lock of one
of its partitions places that part before anything else is written there (`Placement.roll_forward`), and marks it. The
process that marks the last part completes the intent, unless the process that committed it is alive and will do so
itself. Opening a store for writing rolls forward all partitions that are not locked.

No process can hold the lock of a partition without knowing of an intent that names an offset in it. The process that
wrote such an intent held the lock, so the current holder took the lock later, and checked after taking it. It does not
matter how long it keeps the lock.

**Placing twice is harmless.** Under its lock, a part's log ends at the recorded offset (place everything), after the
part (nothing to do) or in between (place the missing batches; a batch is there completely or not at all). Nothing else
can have been appended, by the argument above. The part is then marked, durably, before the lock's holder writes or
truncates; a marked part is not examined again.

**Failure after 3** (a full disk): what was placed is rolled back, then the intent is removed: `TransactionAborted`. If
that fails, too, the logs are failed, so that no process writes at promised offsets: `TransactionPending`.

**Forwarded commits** (`completion`, ADR 18). A process that cannot take all locks knows neither the offsets nor
who will hold the locks when it commits. Its intent names no offsets, and the arguments above are replaced:

- *The offset is noted before it is used.* The holder of the partition blocks the log, syncs it, notes the offset
  durably, appends the part, syncs, and marks the part. So a part without a note is not in the log at all. A part with a
  note and without a mark is there up to some batch, and nothing else was appended after the noted offset: the process
  that noted it kept the log blocked until it had marked the part, or stopped writing. The noted offset takes the role
  of the recorded offset in the argument above.
- *A holder need not know of the intent.* It may have taken the lock before the intent was written, and it may append
  other records before the part: no offset is promised. But it learns of the intent: from the committing process; from
  the end of the connection to that process, after which the holder looks for the intents that were prepared on it; from
  every process that opens the store for writing; from maintenance.
- *Nothing is rolled back after the commit point*, because another process may already have placed its part and made it
  visible. So each part becomes visible when it is placed, not all at the same moment. Each holder checks everything
  that could fail before the commit point (`Placement.prepare`). If placement still fails, the partition accepts nothing
  else until the part is placed: `TransactionPending`.

A part is checked for its mark first, then for its intent, because marks are removed after the intent. Before the files
of an intent are swept, the directory is synced: the process that removed the intent may have died before the removal
was durable, and an intent that reappears without its marks would be placed again.

**Names and sequences.** A transaction may have a name and a sequence (a streaming query and its batch). A sequence that
is not above the last one of that name is a replay, and is not placed again. This is decided under the name's lock and
recorded by the intent itself, so that no crash can come between. A replay of the last sequence must have as many
records for each topic as the stored one, otherwise it raises `ReplayMismatch`: skipping it would lose records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ....clock import Deadline, now_ms
from ....errors import (
    DirectoryLocked,
    LogClosed,
    SawlogError,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from ....log.log import Log
from ....storage import Directory
from ..topic import DirectoryTopic
from .completion import Completion, ForwardedCommit
from .intent import Intent, Part, check_replay, merged
from .pending import PendingTransactions, sequence_of
from .placement import FileNumbering, Placement
from .staging_directory import StagedTransaction, StagingDirectory

if TYPE_CHECKING:
    from ..forwarding.connections import PeerConnections

#: Up to this size, batches go into the intent itself: a separate file would cost more fsyncs.
INLINE_BYTES = 64 << 10

_logger = logging.getLogger("sawlog")


class Intents:
    """Transactions of one store. Safe for threads and processes."""

    def __init__(self, root: Directory, topic_of: Callable[[str], DirectoryTopic], peers: PeerConnections) -> None:
        #: Uncommitted files.
        self.staging = StagingDirectory(root)
        #: Committed transactions that are not completed.
        self.pending = PendingTransactions(self.staging)
        self.placement = Placement(self.staging, self.pending)
        self._peers = peers
        self.completion = Completion(self.pending, self.placement, self._peers, topic_of)

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

        The staged files are already synced; `data` is for pieces without a file. `DirectoryLocked` if another process
        holds the lock of a partition for too long and accepts no forwarded parts.
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
                    return self._finished(last, stage, deadline)
            if any(piece.file for part in ordered for piece in part.pieces):
                self.pending.settle()
            intent = Intent(stage.id, tuple(ordered), name, sequence, data, now_ms())
            logs = [log_of(part) for part in ordered]
            with ExitStack() as held:
                if all(self._enter(held, log, deadline) for log in logs):
                    return self._commit_here(intent, logs)
            handed = ForwardedCommit(
                intent,
                log_of,
                pending=self.pending,
                placement=self.placement,
                peers=self._peers,
                completion=self.completion,
            )
            return handed.run(lock_timeout_s)

    def _enter(self, held: ExitStack, log: Log, deadline: Deadline) -> bool:
        """Block a log, waiting for its lock if another process holds it; return False if that process accepts forwarded
        parts."""
        while True:
            try:
                held.enter_context(log._hold())
                return True
            except DirectoryLocked as error:
                if self._peers.address(log) is not None:
                    return False
                log._want_lock()
                deadline.pause(or_raise=error)

    def _finished(self, last: Intent, stage: StagedTransaction, deadline: Deadline) -> Intent:
        """Handle a replay. It is committed, but the first attempt may have left parts for other processes to place: try
        to complete it now."""
        if self.pending.is_pending(last) and not last.names_offsets:
            try:
                self.completion.complete(last, deadline)
                last = last.at(self.pending.progress(last).applied)
                if last.id == stage.id and not self.pending.unmarked(last):
                    self.pending.complete(last)  # this process holds it now
            except SawlogError as error:
                _logger.warning("%s is not completed yet: %s", last.file, error)
        return last

    # --- this process holds all partitions

    def _commit_here(self, intent: Intent, logs: Sequence[Log]) -> Intent:
        for log in logs:
            log.sync()  # records before the part must not be lost once the intent exists
        intent = intent.at({number: log.next_offset for number, log in enumerate(logs)})
        self._place_all(intent, logs)
        return intent

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
