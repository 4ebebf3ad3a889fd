"""Batches for several partitions, placed all or not at all: the basis of `Store.transaction` and of Spark's commit.

Finished batches are collected in `staging/`, by one process or by many; a few kilobytes go into the intent itself,
which saves the fsyncs of a file. To commit them, a process

1. takes the locks of all partitions that they go to, and blocks their logs;
2. makes durable what is staged, and what is already in the logs; and makes sure that there is space for all of it, so
   that a full disk is detected before anything is promised;
3. writes the *intent*: which bytes of which staged file go to which partition at which offset. It is renamed into
   place: this is the commit point. Before it nothing has happened; after it the transaction will be completed;
4. appends the batches, and syncs the logs. A large file with the batches of one partition becomes a segment of it, by
   a second name; the rest is copied;
5. makes the records visible, in all partitions (`Log.appending`): what may still be rolled back is never visible.
   Then it removes the intent (or, if the transaction has a name, renames it to the note that this number is done), then
   the staged files.

If another process holds one of the locks and places for others, the commit is handed over (see below).

```
staging/
  <id>.owner, <id>.<label>.batches, <id>.<label>.lease    what is collected: see stage.py
  <id>.intent                                             committed, not completed: see ledger.py
  <id>.at.<n>.<offset>, <id>.applied.<n>                  how far it is placed
  =<name>.committed                                       the last intent of that name: see notes.py
```

**Rolling forward.** A process that dies between 3 and 5 leaves the intent. The next process that gets the lock of one
of its partitions places that part, before anything else is written there (`Placing.roll_forward`), and marks it. The
last one to mark completes the intent, unless the process that committed it is alive, which does that itself. Opening a
store for writing does so immediately for all partitions that are not locked.

Nobody can hold the lock of a partition and not know of an intent that names an offset in it. Such an intent was written
by a process that held the lock; so the current holder got it after that, and checked after getting it. It does not
matter how long it keeps it.

**Placing twice is harmless.** Under its lock a part's log is at the recorded offset (place everything), after the part
(nothing to do) or between (place the missing batches; a batch is there completely or not at all). Nothing else can have
been appended, by the argument above. Then the part is marked, durably, before the lock's holder writes or truncates; a
marked part is not examined again.

**Failing after 3** (a full disk): what was placed is rolled back, then the intent is removed: `TransactionAborted`. If
that fails too, the logs are failed, so that nobody writes at promised offsets: `TransactionPending`.

**Handed over** (handing.py, ADR 18). A process that cannot get all locks knows neither the offsets nor who holds the
locks when it commits. So its intent names no offsets, and the arguments above are replaced:

- *The offset is noted before it is used.* Whoever holds the partition, and has blocked its log, syncs the log, notes
  the offset durably, appends the part, syncs, and marks the part. So a part without a note is not in the log at all.
  One with a note and without a mark is there up to some batch, and nothing else was appended after the noted offset:
  the process that noted it kept the log blocked until it had marked the part, or ended writing. The recorded offset of
  the argument above is the noted one.
- *A holder need not know of the intent.* It may have got the lock before the intent was written, and it may append
  other records before the part: no offset is promised. But somebody tells it: the process that commits; the end of the
  connection to that process, after which the holder looks for the intents that were prepared on it; every process that
  opens the store for writing; upkeep.
- *Nothing is rolled back after the commit point*, because another process may already have placed and shown its part.
  So each part is visible when it is placed, and not all at the same moment. Whatever could fail is checked by each
  holder before the commit point (`Placing.prepare`). If placing fails all the same, the partition accepts nothing else
  until the part is placed: `TransactionPending`.

A part is checked for its mark first, then for its intent: marks are removed after the intent. Before what is left of an
intent is swept, the directory is synced: the process that removed the intent may have died before that was durable, and
an intent that comes back without its marks would be placed again.

**Names and numbers.** A transaction may have a name and a number (a streaming query and its batch). A number that is
not above the last one of that name is a replay, and is not placed again. This is decided under the name's lock and
recorded by the intent itself, so that no crash can come between. A replay of the last number must have as many records
for each topic as the stored one: `ReplayMismatch` otherwise, because skipping it would lose records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from ....clock import Deadline, now_ms
from ....errors import (
    DirectoryLocked,
    LogClosed,
    SawlogError,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from ....log.log import Log
from ....storage import Directory
from ..topic import Topic
from .committed_names import sequence_of
from .completion import Completion, Neighbours, Nobody
from .forwarded_commit import HandedCommit
from .intent import Intent, Part, check_replay, merged
from .pending import Ledger
from .placement import Numbering, Placing
from .staging_directory import Stage, StagingArea

#: Up to this size batches go into the intent itself: a separate file would cost more fsyncs.
INLINE_BYTES = 64 << 10

_logger = logging.getLogger("sawlog")


def _no_topic(name: str) -> Topic:
    raise TopicNotFound(f"no topic {name!r}: there is only the staging area")


class Intents:
    """The transactions of one store. Safe for threads and processes."""

    def __init__(
        self, root: Directory, topic_of: Callable[[str], Topic] = _no_topic, neighbours: Neighbours | None = None
    ) -> None:
        #: What is collected and not committed.
        self.area = StagingArea(root)
        #: What is committed and not completed.
        self.ledger = Ledger(self.area)
        self.placing = Placing(self.area, self.ledger)
        self._neighbours = Nobody() if neighbours is None else neighbours
        self.completion = Completion(self.ledger, self.placing, self._neighbours, topic_of)

    def close(self) -> None:
        """Close the handle."""
        self.area.close()

    def commit(
        self,
        stage: Stage,
        parts: Iterable[Part],
        log_of: Callable[[Part], Log],
        *,
        data: bytes = b"",
        name: str | None = None,
        sequence: int | None = None,
        lock_timeout_s: float = 5.0,
    ) -> Intent:
        """Place what is staged, all or nothing, and return the intent with the offsets; for a replay, the stored one.
        `ReplayMismatch` if the stored one has different records.

        The staged files are already synced; `data` is for pieces without a file. `DirectoryLocked` if another process
        holds the lock of a partition too long, and does not place for others.
        """
        if not stage.held:
            raise LogClosed("what was staged belongs to the parent process, before the fork")
        deadline = Deadline(lock_timeout_s)
        ordered = merged(parts)
        with ExitStack() as named:
            if name is not None:
                notes = self.ledger.notes
                named.callback(notes.unlock, name, notes.lock(name, deadline))
                last = self.ledger.last(name)
                if last is not None and sequence_of(last) >= (sequence or 0):
                    check_replay(last, sequence, ordered)
                    _logger.warning("%r %s is skipped: %s is already stored", name, sequence, sequence_of(last))
                    return self._finished(last, stage, deadline)
            if any(piece.file for part in ordered for piece in part.pieces):
                self.ledger.settle()
            intent = Intent(stage.id, tuple(ordered), name, sequence, data, now_ms())
            logs = [log_of(part) for part in ordered]
            with ExitStack() as held:
                if all(self._enter(held, log, deadline) for log in logs):
                    return self._commit_here(intent, logs)
            handed = HandedCommit(
                intent,
                log_of,
                ledger=self.ledger,
                placing=self.placing,
                neighbours=self._neighbours,
                completion=self.completion,
            )
            return handed.run(lock_timeout_s)

    def _enter(self, held: ExitStack, log: Log, deadline: Deadline) -> bool:
        """Block a log, waiting for its lock if another process holds it; False if that process places for others."""
        while True:
            try:
                held.enter_context(log._hold())
                return True
            except DirectoryLocked as error:
                if self._neighbours.address(log) is not None:
                    return False
                deadline.pause(or_raise=error)

    def _finished(self, last: Intent, stage: Stage, deadline: Deadline) -> Intent:
        """A replay. The first try may have left parts to others that are not placed yet: it is committed, whether they
        can be placed now or not."""
        if self.ledger.is_pending(last) and not last.names_offsets:
            try:
                self.completion.complete(last, deadline)
                last = last.at(self.ledger.progress(last).applied)
                if last.id == stage.id and not self.ledger.unmarked(last):
                    self.ledger.complete(last)  # the stage is ours now
            except SawlogError as error:
                _logger.warning("%s is not completed yet: %s", last.file, error)
        return last

    # --- this process holds all partitions

    def _commit_here(self, intent: Intent, logs: Sequence[Log]) -> Intent:
        for log in logs:
            log.sync()  # what precedes the part must not be lost when the part is found again
        intent = intent.at({number: log.next_offset for number, log in enumerate(logs)})
        self._place_all(intent, logs)
        return intent

    def _place_all(self, intent: Intent, logs: Sequence[Log]) -> None:
        """From the commit point to the end. The caller holds the logs."""
        written = False
        try:
            for part, log in zip(intent.parts, logs, strict=True):
                self.placing.claim(part, log)
            self.ledger.record(intent)
            written = True
            with ExitStack() as appends:  # what is placed becomes visible when all of it is
                for log in logs:
                    appends.enter_context(log.appending())
                with Numbering() as numbering:
                    for part, log in zip(intent.parts, logs, strict=True):
                        self.placing.number(numbering, part, log)
                    for part, log in zip(intent.parts, logs, strict=True):
                        self.placing.place(intent, part, log, 0, numbering)
        except BaseException as error:
            self._take_back(intent, logs, error, written=written)
            if not isinstance(error, Exception):
                raise  # an interrupt is re-raised unchanged
            raise TransactionAborted(f"nothing was stored: {error}") from error
        try:
            self.ledger.complete(intent)
        except BaseException as error:
            raise self._give_up(intent, logs, error) from error

    def _take_back(self, intent: Intent, logs: Sequence[Log], why: BaseException, *, written: bool) -> None:
        """Undo what was placed, then the intent; or leave it to the next open of the store."""
        there = written
        try:
            for part, log in zip(intent.parts, logs, strict=True):
                log.truncate(part.offset)
                log._unclaim()
            there = False
            self.ledger.revoke(intent)
        except BaseException:
            raise self._give_up(intent, logs, why, there=there) from why

    def _give_up(
        self, intent: Intent, logs: Sequence[Log], why: BaseException, *, there: bool = False
    ) -> TransactionError:
        """Nobody may write at the promised offsets: end writing here, the next open continues. If the intent is
        `there`, durably, it need not be written again, for which a full disk has no space."""
        for log in logs:
            log._fail(why)
        path = f"{self.ledger.path}/{intent.file}"
        try:
            if not there:
                self.ledger.record(intent)
        except BaseException:
            return TransactionError(
                f"the transaction could be neither completed nor rolled back ({why}); whether it is stored is decided "
                f"when the store is next opened: it is if {path} exists"
            )
        return TransactionPending(f"committed; it will be completed when the store is next opened ({path}): {why}")
