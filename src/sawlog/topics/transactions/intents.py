"""Batches for several partitions, placed all or not at all: the basis of `Store.transaction` and of Spark's commit.

Finished batches are collected in `staging/`, by one process or by many; a few kilobytes go into the intent itself,
which saves the fsyncs of a file. To commit them, a process

1. takes the locks of all partitions that they go to, and blocks their logs;
2. makes durable what is staged, and what is already in the logs; and makes sure that there is space for all of it, so
   that a full disk is detected before anything is promised;
3. writes the *intent*: which bytes of which staged file go to which partition at which offset. It is renamed into
   place: this is the commit point. Before it nothing has happened; after it the transaction will be completed;
4. appends the batches, and syncs the logs;
5. makes the records visible, in all partitions (`Log.appending`): what may still be rolled back is never visible.
   Then it removes the intent (or, if the transaction has a name, renames it to the note that this number is done), then
   the staged files.

```
staging/
  <id>.owner, <id>.<label>.batches, <id>.<label>.lease    what is collected: see stage.py
  <id>.intent            committed, not completed
  <id>.applied.<n>       the n-th part of the intent is in its log, durably
  =<name>.committed      the last intent of that name: see notes.py
```

**Rolling forward.** A process that dies between 3 and 5 leaves the intent. The next process that gets the lock of one
of its partitions places that part, before anything else is written there (`Intents.roll_forward`), and marks it. The
last one to mark completes the intent. Opening a store for writing does so immediately for all partitions that are not
locked.

Nobody can hold the lock of a partition and not know of an intent for it. The intent was written by a process that held
the lock; so the current holder got it after that, and checked after getting it. It does not matter how long it keeps
it.

**Placing twice is harmless.** Under its lock a part's log is at the recorded offset (place everything), after the part
(nothing to do) or between (place the missing batches; a batch is there completely or not at all). Nothing else can have
been appended, by the argument above. Then the part is marked, durably, before the lock's holder writes or truncates; a
marked part is not examined again.

**Failing after 3** (a full disk): what was placed is rolled back, then the intent is removed: `TransactionAborted`. If
that fails too, the logs are failed, so that nobody writes at promised offsets: `TransactionPending`.

**Names and numbers.** A transaction may have a name and a number (a streaming query and its batch). A number that is
not above the last one of that name is a replay, and is not placed again. This is decided under the name's lock and
recorded by the intent itself, so that no crash can come between.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from ...batch.header import HEADER_BYTES
from ...errors import (
    CorruptFile,
    DirectoryLocked,
    LogClosed,
    SawlogError,
    StorageError,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from ...log.log import Log
from ...storage import Directory
from ...storage.forking import forkable
from .. import documents
from ..names import STAGING, TMP
from .intent import INTENT, Intent, Part, Piece
from .notes import Notes, is_note, sequence_of
from .stage import LEASE, Stage, StagedFile, file_name, lock_owner, remove_all, remove_label

#: How much is read from a staged file and appended at once.
_PLACE_BYTES = 2 << 20
_POLL_S = 0.005
#: How long what tasks have staged waits for the commit of their job by default.
_LEASE_S = 24 * 3600.0
#: What a partition needs in addition to the batches: indexes, a checkpoint, the head of a new segment.
_MARGIN_BYTES = 64 << 10
#: How often a document is written again because another process has removed it.
_SWEPT_TIMES = 20
#: Up to this size batches go into the intent itself: a separate file would cost more fsyncs.
INLINE_BYTES = 64 << 10
_APPLIED = ".applied."

_logger = logging.getLogger("sawlog")


class Intents:
    """The staging area of one store. Safe for threads and processes."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._opening = forkable(threading.RLock())
        self._staging: Directory | None = None

    def close(self) -> None:
        """Close the handle."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    @property
    def staging(self) -> Directory:
        """The directory, created when it is first needed."""
        if self._staging is None:
            with self._opening:
                if self._staging is None:
                    there = STAGING in self._root.children()  # durably: it is older than the store's own file
                    self._staging = self._root.child(STAGING, create=not there)
        return self._staging

    @property
    def _notes(self) -> Notes:
        return Notes(self.staging)

    def _exists(self) -> bool:
        return self._staging is not None or STAGING in self._root.children()

    def begin(self) -> Stage:
        """A place to collect batches, or a name for an intent that contains all of them: in any case one that nobody
        removes before it is ended."""
        return Stage(self.staging)

    def file(self, id_: str, label: str) -> StagedFile:
        """A new staged file for a stage that another process began and holds; each label once."""
        return StagedFile(self.staging, file_name(id_, label))

    def lend(self, id_: str, label: str, seconds: float = _LEASE_S) -> None:
        """Protect what is staged under an id from removal for that long, although nobody holds it: tasks stage, and
        end, before their job commits. Each label once."""
        self._write_lease(file_name(id_, label, LEASE), seconds)

    def withdraw(self, id_: str, label: str) -> None:
        """Remove what was staged under a label: the attempt of a task has failed."""
        remove_label(self.staging, id_, label)

    def _write_lease(self, name: str, seconds: float) -> None:
        until_ms = int((time.time() + seconds) * 1000)
        # After a power cut there is no job that could commit.
        self._store(name, documents.encode({"until_ms": until_ms}), durable=False)

    def _store(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file. A sweeper may treat a half-written one as that of a dead process: then try again."""
        for last in (*(False,) * _SWEPT_TIMES, True):
            try:
                self.staging.replace(name, data, durable=durable)
                return
            except StorageError as error:
                if error.errno != errno.ENOENT or last:
                    raise

    def adopt(self, id_: str, *, timeout_s: float = 5.0) -> Stage:
        """The stage of an id under which other processes have staged. A process that opens the store and sweeps holds
        it briefly, and a commit whose driver died for longer: waits for them. `DirectoryLocked` if it takes too
        long."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                stage = Stage(self.staging, adopt=id_)
            except DirectoryLocked:
                if time.monotonic() > deadline:
                    raise
            else:
                if stage.current:
                    return stage
                stage.leave()  # the previous holder has removed the file that we locked
            time.sleep(_POLL_S)

    def discard(self, id_: str) -> None:
        """Remove what was staged under an id, unless it was committed and is not completed yet."""
        self.adopt(id_).end()

    # --- reading

    def pending(self) -> list[Intent]:
        """Intents that are not completed, in any order."""
        if not self._exists():
            return []
        found = (self._load(name) for name in self.staging.names() if name.endswith(INTENT))
        return [intent for intent in found if intent is not None]

    def _load(self, name: str) -> Intent | None:
        """An intent; `CorruptFile` if it is damaged: then it is unknown which offsets are promised."""
        path = f"{self.staging.path}/{name}"
        try:
            return Intent.decode(self.staging.read(name), path)
        except CorruptFile as error:
            raise CorruptFile(
                f"{error}. Until then nothing is written to this store; to discard the transaction, remove the file"
            ) from error
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None  # completed by another process meanwhile
            raise

    def last(self, name: str) -> Intent | None:
        """The transaction of that name with the highest number, completed or not."""
        if not self._exists():
            return None
        # First those that are not completed: one that is completed meanwhile is then found as a note.
        known = [intent for intent in self.pending() if intent.name == name]
        note = self._notes.find(name)
        return max([*known, *([note] if note is not None else [])], key=sequence_of, default=None)

    # --- committing

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

        The staged files are already synced; `data` is for pieces without a file. `DirectoryLocked` if another process
        holds the lock of a partition too long.
        """
        if not stage.held:
            raise LogClosed("what was staged belongs to the parent process, before the fork")
        deadline = time.monotonic() + lock_timeout_s
        with ExitStack() as held:
            if name is not None:
                held.callback(self._notes.unlock, name, self._notes.lock(name, deadline))
                last = self.last(name)
                if last is not None and sequence_of(last) >= (sequence or 0):
                    _logger.warning("%r %s is skipped: %s is already stored", name, sequence, sequence_of(last))
                    return last
            ordered = _one_each(parts)
            logs = [log_of(part) for part in ordered]
            for log in logs:
                _enter(held, log, deadline)
                log.sync()  # what precedes the part must not be lost when the part is found again
            placed = [replace(part, offset=log.next_offset) for part, log in zip(ordered, logs, strict=True)]
            intent = Intent(stage.id, tuple(placed), name, sequence, data, int(time.time() * 1000))
            if any(piece.file for part in placed for piece in part.pieces):
                self.staging.sync()
            self._place_all(intent, logs)
        return intent

    def _place_all(self, intent: Intent, logs: Sequence[Log]) -> None:
        """From the commit point to the end. The caller holds the logs."""
        written = False
        try:
            for part, log in zip(intent.parts, logs, strict=True):
                log.claim(sum(piece.size_bytes for piece in part.pieces) + _MARGIN_BYTES)
            self._store(intent.file, intent.encode())
            written = True
            with ExitStack() as appends:  # what is placed becomes visible when all of it is
                for log in logs:
                    appends.enter_context(log.appending())
                for part, log in zip(intent.parts, logs, strict=True):
                    self._place(intent, part, log)
        except BaseException as error:
            self._take_back(intent, logs, error, written=written)
            if not isinstance(error, Exception):
                raise  # an interrupt is re-raised unchanged
            raise TransactionAborted(f"nothing was stored: {error}") from error
        try:
            self._complete(intent)
        except BaseException as error:
            raise self._give_up(intent, logs, error) from error

    def _take_back(self, intent: Intent, logs: Sequence[Log], why: BaseException, *, written: bool) -> None:
        """Undo what was placed, then the intent; or leave it to the next open of the store."""
        there = written
        try:
            for part, log in zip(intent.parts, logs, strict=True):
                log.truncate(part.offset)
                log.unclaim()
            there = False
            self.staging.remove(intent.file)
            self.staging.sync()
        except BaseException:
            raise self._give_up(intent, logs, why, there=there) from why

    def _give_up(
        self, intent: Intent, logs: Sequence[Log], why: BaseException, *, there: bool = False
    ) -> TransactionError:
        """Nobody may write at the promised offsets: end writing here, the next open continues. If the intent is
        `there`, durably, it need not be written again, for which a full disk has no space."""
        for log in logs:
            log.fail(why)
        path = f"{self.staging.path}/{intent.file}"
        try:
            if not there:
                self._store(intent.file, intent.encode())
        except BaseException:
            return TransactionError(
                f"the transaction could be neither completed nor rolled back ({why}); whether it is stored is decided "
                f"when the store is next opened: it is if {path} exists"
            )
        return TransactionPending(f"committed; it will be completed when the store is next opened ({path}): {why}")

    def _place(self, intent: Intent, part: Part, log: Log, skip: int = 0) -> None:
        """Append the batches of a part, without its first `skip` records."""
        passed = 0
        for raw, counts in self._groups(intent, part):
            # A batch is there completely or not at all.
            there = [size for count, size in counts if (passed := passed + count) <= skip]
            if rest := raw[sum(there) :]:
                log.place_batches(bytearray(rest))
        if passed != part.count:
            raise CorruptFile(f"{self.staging.path}: {passed} records are staged, but {part.count} were committed")
        log.sync()

    def _groups(self, intent: Intent, part: Part) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
        """The batches of a part in order, a few megabytes at a time, with the number of offsets and bytes of each."""
        for piece in part.pieces:
            if not piece.file:
                yield from _groups_in(lambda position, size: intent.data[position : position + size], piece)
                continue
            storage = self.staging.open_shared(piece.file)
            try:
                yield from _groups_in(storage.read, piece)
            finally:
                storage.close()

    # --- after a crash

    def roll_forward(self, topic_id: str, partition: int, log: Log) -> None:
        """Place what was committed for a partition and is missing. The caller has just got its lock."""
        for intent in self.pending():
            for number, part in enumerate(intent.parts):
                if (part.topic_id, part.partition) == (topic_id, partition) and not self._is_marked(intent, number):
                    self._apply(intent, part, log)
                    self.mark(intent, number)

    def _apply(self, intent: Intent, part: Part, log: Log) -> None:
        """Place a part, as far as it is missing. The process that wrote the intent may have died before its name was
        durable, while what is placed is: a power cut between the two would leave a part of a transaction."""
        self.staging.sync()
        there = log.next_offset - part.offset
        if there < 0:
            _logger.warning("%s ends before offset %s, which once was its end", log.path, part.offset)
        if there < part.count:
            self._place(intent, part, log, max(there, 0))
        else:
            log.sync()

    def _mark_name(self, intent: Intent, number: int) -> str:
        return f"{intent.id}{_APPLIED}{number}"

    def _is_marked(self, intent: Intent, number: int) -> bool:
        return self.staging.exists(self._mark_name(intent, number))

    def unmarked(self, intent: Intent) -> list[tuple[int, Part]]:
        """The parts that nobody has placed since the intent was left, with their numbers."""
        return [(n, part) for n, part in enumerate(intent.parts) if not self._is_marked(intent, n)]

    def mark(self, intent: Intent, number: int) -> None:
        """Record durably that a part is done, and complete the intent if it was the last."""
        if self.staging.exists(intent.file) and not self._is_marked(intent, number):
            self.staging.create(self._mark_name(intent, number)).close()
        self.complete_if_done(intent)

    def complete_if_done(self, intent: Intent) -> None:
        """Complete an intent whose parts are all marked, unless another process uses one of the same name."""
        if self.unmarked(intent):
            return
        if intent.name is None:
            self._complete(intent)
        else:
            try:
                held = self._notes.lock(intent.name, 0.0)
            except DirectoryLocked:
                return  # done when the store is next opened
            try:
                self._complete(intent)
            finally:
                self._notes.unlock(intent.name, held)
        remove_all(self.staging, intent.id)

    def _complete(self, intent: Intent) -> None:
        """The transaction is complete: remove the intent, or make it the note that its number is done."""
        if intent.name is not None:
            self._notes.take(intent)
        self.staging.remove(intent.file)
        self.staging.sync()
        if intent.name is not None and intent.data:
            self._notes.strip(intent.name)

    def sweep(self) -> None:
        """Remove what was staged and never committed by dead processes."""
        if not self._exists():
            return
        for id_ in sorted({name.partition(".")[0] for name in self.staging.names() if not is_note(name)}):
            try:
                owner = lock_owner(self.staging, id_)
            except DirectoryLocked:
                continue  # in use
            try:
                # Checked under the lock: its owner may have committed and died since the names were listed.
                if not self.staging.exists(f"{id_}{INTENT}") and not self._is_lent(id_):
                    remove_all(self.staging, id_)
            finally:
                owner.release()

    def forget(self, is_there: Callable[[str], bool]) -> None:
        """Remove the notes that are no longer needed; `is_there` says whether a topic of that id exists."""
        if self._exists():
            self._notes.sweep(is_there)

    def _is_lent(self, id_: str) -> bool:
        """Whether a job that has not committed yet may still do so."""
        for name in self.staging.names():
            if name.partition(".")[0] == id_ and name.endswith(f"{LEASE}{TMP}"):
                # A task is just writing it; or has died at that moment, and its end is unknown.
                self._write_lease(name.removesuffix(TMP), _LEASE_S)
                return True
            if name.partition(".")[0] == id_ and name.endswith(LEASE):
                try:
                    if int(documents.load(self.staging, name)["until_ms"]) > time.time() * 1000:
                        return True
                except CorruptFile as error:
                    # Its end is unknown; a power cut can leave such leases. So it starts again from now.
                    _logger.warning("a damaged lease starts again from now: %s", error)
                    self._write_lease(name, _LEASE_S)
                    return True
                except (SawlogError, KeyError, TypeError, ValueError):
                    pass  # just removed: it protects nothing
        return False


def _one_each(parts: Iterable[Part]) -> list[Part]:
    """One part per partition, in the order of the locks; pieces for the same partition keep their order."""
    merged: dict[tuple[str, int], Part] = {}
    for part in parts:
        before = merged.get(part.order)
        if before is not None:
            part = replace(before, count=before.count + part.count, pieces=before.pieces + part.pieces)  # noqa: PLW2901
        merged[part.order] = part
    return [merged[order] for order in sorted(merged)]


def _enter(held: ExitStack, log: Log, deadline: float) -> None:
    """Block a log, waiting for its lock if another process holds it."""
    while True:
        try:
            held.enter_context(log.hold())
            return
        except DirectoryLocked:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _groups_in(read: Callable[[int, int], bytes], piece: Piece) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
    """Complete batches of a piece. The log checks their content when they are appended."""
    position, end, want = piece.position, piece.position + piece.size_bytes, _PLACE_BYTES
    while position < end:
        wanted = min(want, end - position)
        block = memoryview(read(position, wanted))
        counts: list[tuple[int, int]] = []
        at = 0
        while len(block) - at >= HEADER_BYTES:
            size = 12 + int.from_bytes(block[at + 8 : at + 12], "big", signed=True)
            if size < HEADER_BYTES or size > end - position - at:
                break
            if size > len(block) - at:
                want = max(want, size)
                break
            counts.append((int.from_bytes(block[at + 23 : at + 27], "big", signed=True) + 1, size))
            at += size
        if not counts and min(want, end - position) == wanted:  # reading the same again would change nothing
            raise CorruptFile(f"{piece.file or 'an intent'}: no complete batch at byte {position}")
        if counts:
            yield block[:at], counts
        position += at
