"""Batches for several partitions, placed all or not at all: what `Store.transaction` and Spark's commit are made of.

Finished batches are collected in `staging/`, by one process or by many; a few kilobytes go into the intent itself,
which saves the fsyncs of a file. To commit them, a process

1. takes the locks of all partitions that they go to, and holds the logs still;
2. makes durable what is staged, and what is in the logs already; and sees to it that there is room for all of it, so
   that a full disk is found out before anything is promised;
3. writes the *intent*: which bytes of which staged file go to which partition at which offset. It is renamed into
   place: this is the commit point. Before it nothing has happened; after it everything has, sooner or later;
4. appends the batches, and syncs the logs;
5. lets everybody see the records, in all partitions (`Log.appending`): what may still be taken back is never visible.
   Then it removes the intent (or, if the transaction has a name, renames it to the note that this number is done), then
   the staged files.

```
staging/
  <id>.owner, <id>.<label>.batches, <id>.<label>.lease    what is collected: see stage.py
  <id>.intent            committed, not completed
  <id>.applied.<n>       the n-th part of the intent is in its log, durably
  =<name>.committed      the last intent of that name: see notes.py
```

**Rolling forward.** A process that dies between 3 and 5 leaves the intent. Whoever gets the lock of one of its
partitions next places that part, before anything else is written there (`Intents.roll_forward`), and marks it. The
last one to mark completes the intent. A store that is opened for writing does so at once for all partitions that
nobody has locked.

Nobody can have a partition locked and not know of an intent for it. The intent was written by a process that held the
lock; so whoever holds it now got it after that, and looked after getting it. It does not matter how long it keeps it.

**Placing twice does no harm.** Under its lock a part's log is at the noted offset (place all), behind the part
(nothing is to be done) or between (place the batches that are missing; a batch is there wholly or not at all).
Nothing else can have been appended, by the argument above. Then the part is marked, durably, before the lock's holder
goes on to write or to truncate; a marked part is not looked at again.

**Failing after 3** (a full disk): what was placed is taken back, then the intent is removed: `TransactionAborted`. If
that does not work either, the logs are failed, so that nobody writes at offsets that are promised:
`TransactionPending`.

**Names and numbers.** A transaction may have a name and a number in it (a streaming query and its batch). A number that
is not above the last one of that name is a replay, and is not placed again. This is decided under the name's lock and
written down by the intent itself, so that no crash can come between.
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
#: How long what tasks have staged waits for the commit of their job, if nobody says otherwise.
_LEASE_S = 24 * 3600.0
#: What a partition needs beside the batches: indexes, a checkpoint, the head of a new segment.
_MARGIN_BYTES = 64 << 10
#: How often a document is written again because somebody has swept it.
_SWEPT_TIMES = 20
#: So much goes into an intent itself: a file of its own would cost more fsyncs.
INLINE_BYTES = 64 << 10
_APPLIED = ".applied."

_logger = logging.getLogger("sawlog")


class Intents:
    """The staging area of one store. Safe between threads and processes."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._opening = forkable(threading.RLock())
        self._staging: Directory | None = None

    def close(self) -> None:
        """Give up the handle."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    @property
    def staging(self) -> Directory:
        """The directory, made when it is first needed."""
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
        """A place to collect batches in, or a name for an intent that has all of them: in any case one that nobody
        sweeps before it is ended."""
        return Stage(self.staging)

    def file(self, id_: str, label: str) -> StagedFile:
        """A new staged file for a stage that another process began and holds; each label once."""
        return StagedFile(self.staging, file_name(id_, label))

    def lend(self, id_: str, label: str, seconds: float = _LEASE_S) -> None:
        """Keep what is staged under an id from being swept for so long, though nobody holds it: tasks stage, and end,
        before their job commits. Each label once."""
        self._write_lease(file_name(id_, label, LEASE), seconds)

    def withdraw(self, id_: str, label: str) -> None:
        """Remove what was staged under a label: the attempt of a task has failed."""
        remove_label(self.staging, id_, label)

    def _write_lease(self, name: str, seconds: float) -> None:
        until_ms = int((time.time() + seconds) * 1000)
        # After a power cut there is no job any more that could commit.
        self._store(name, documents.encode({"until_ms": until_ms}), durable=False)

    def _store(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file. Whoever sweeps may take a half-written one for somebody's who died: then once more."""
        for last in (*(False,) * _SWEPT_TIMES, True):
            try:
                self.staging.replace(name, data, durable=durable)
                return
            except StorageError as error:
                if error.errno != errno.ENOENT or last:
                    raise

    def adopt(self, id_: str, *, timeout_s: float = 5.0) -> Stage:
        """The stage of an id under which other processes have staged. Whoever opens the store and sweeps has it for a
        moment, and a commit whose driver died for longer: it is waited for. `DirectoryLocked` if somebody keeps it."""
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
                stage.leave()  # whoever had it before has removed the file that we locked
            time.sleep(_POLL_S)

    def discard(self, id_: str) -> None:
        """Remove what was staged under an id, unless it was committed and waits to be completed."""
        self.adopt(id_).end()

    # --- what is there

    def pending(self) -> list[Intent]:
        """Intents that are not completed, in no order."""
        if not self._exists():
            return []
        found = (self._load(name) for name in self.staging.names() if name.endswith(INTENT))
        return [intent for intent in found if intent is not None]

    def _load(self, name: str) -> Intent | None:
        """An intent; `CorruptFile` if it is damaged: then nobody knows which offsets are promised to whom."""
        path = f"{self.staging.path}/{name}"
        try:
            return Intent.decode(self.staging.read(name), path)
        except CorruptFile as error:
            raise CorruptFile(
                f"{error}. Until then nothing is written to this store; if the transaction is to be given up, remove it"
            ) from error
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None  # completed by somebody else since we looked
            raise

    def last(self, name: str) -> Intent | None:
        """The transaction of that name with the highest number, completed or not."""
        if not self._exists():
            return None
        # First those that are not completed: one that is completed meanwhile is found as a note then.
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
        """Place what is staged, all or nothing; the intent, with the offsets. A replay gives the one that counts.

        The staged files are synced already; `data` is for pieces without a file. `DirectoryLocked` if a partition is
        locked by somebody else for too long.
        """
        if not stage.held:
            raise LogClosed("what was staged belongs to the process that this one was forked from")
        deadline = time.monotonic() + lock_timeout_s
        with ExitStack() as held:
            if name is not None:
                held.callback(self._notes.unlock, name, self._notes.lock(name, deadline))
                last = self.last(name)
                if last is not None and sequence_of(last) >= (sequence or 0):
                    _logger.warning("%r %s is skipped: %s is stored already", name, sequence, sequence_of(last))
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
            with ExitStack() as appends:  # what is placed is shown when all of it is
                for log in logs:
                    appends.enter_context(log.appending())
                for part, log in zip(intent.parts, logs, strict=True):
                    self._place(intent, part, log)
        except BaseException as error:
            self._take_back(intent, logs, error, written=written)
            if not isinstance(error, Exception):
                raise  # an interrupt stays one
            raise TransactionAborted(f"nothing was stored: {error}") from error
        try:
            self._complete(intent)
        except BaseException as error:
            raise self._give_up(intent, logs, error) from error

    def _take_back(self, intent: Intent, logs: Sequence[Log], why: BaseException, *, written: bool) -> None:
        """Undo what was placed, then the intent; or leave it to the next one who opens the store."""
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
        """Nobody may write at the promised offsets: end writing here, whoever opens next goes on. If the intent is
        `there`, durably, it need not be written again, for which a full disk has no room."""
        for log in logs:
            log.fail(why)
        path = f"{self.staging.path}/{intent.file}"
        try:
            if not there:
                self._store(intent.file, intent.encode())
        except BaseException:
            return TransactionError(
                f"the transaction could be neither completed nor taken back ({why}); whether it is stored is decided "
                f"when the store is next opened: it is if {path} is there"
            )
        return TransactionPending(f"committed, and completed when the store is next opened ({path}): {why}")

    def _place(self, intent: Intent, part: Part, log: Log, skip: int = 0) -> None:
        """Append the batches of a part, without its first `skip` records."""
        passed = 0
        for raw, counts in self._groups(intent, part):
            # A batch that is not wholly there is not there at all.
            there = [size for count, size in counts if (passed := passed + count) <= skip]
            if rest := raw[sum(there) :]:
                log.place_batches(bytearray(rest))
        if passed != part.count:
            raise CorruptFile(f"{self.staging.path}: {passed} records are staged, and {part.count} were committed")
        log.sync()

    def _groups(self, intent: Intent, part: Part) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
        """The batches of a part in order, some megabytes at a time, and of each how many offsets and bytes it takes."""
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
        """Place what was committed for a partition and is not there. The caller has just got its lock."""
        for intent in self.pending():
            for number, part in enumerate(intent.parts):
                if (part.topic_id, part.partition) == (topic_id, partition) and not self._is_marked(intent, number):
                    self._apply(intent, part, log)
                    self.mark(intent, number)

    def _apply(self, intent: Intent, part: Part, log: Log) -> None:
        """Place a part, as far as it is not there. Whoever wrote the intent may have died before its name was durable,
        and what is placed is: a power cut between the two would leave a part of a transaction."""
        self.staging.sync()
        there = log.next_offset - part.offset
        if there < 0:
            _logger.warning("%s ends before offset %s, which was its end once", log.path, part.offset)
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
        """Note durably that a part needs nothing more, and complete the intent if it was the last."""
        if self.staging.exists(intent.file) and not self._is_marked(intent, number):
            self.staging.create(self._mark_name(intent, number)).close()
        self.complete_if_done(intent)

    def complete_if_done(self, intent: Intent) -> None:
        """Complete an intent whose parts are all marked, unless somebody is busy with one of the same name."""
        if self.unmarked(intent):
            return
        if intent.name is None:
            self._complete(intent)
        else:
            try:
                held = self._notes.lock(intent.name, 0.0)
            except DirectoryLocked:
                return  # it is done when the store is next opened
            try:
                self._complete(intent)
            finally:
                self._notes.unlock(intent.name, held)
        remove_all(self.staging, intent.id)

    def _complete(self, intent: Intent) -> None:
        """Nothing is to be done any more: the intent goes, or becomes the note that its number is done."""
        if intent.name is not None:
            self._notes.take(intent)
        self.staging.remove(intent.file)
        self.staging.sync()
        if intent.name is not None and intent.data:
            self._notes.strip(intent.name)

    def sweep(self) -> None:
        """Remove what was staged and never committed by processes that are gone."""
        if not self._exists():
            return
        for id_ in sorted({name.partition(".")[0] for name in self.staging.names() if not is_note(name)}):
            try:
                owner = lock_owner(self.staging, id_)
            except DirectoryLocked:
                continue  # somebody is at it
            try:
                # Looked for under the lock: its owner may have committed and died since the names were listed.
                if not self.staging.exists(f"{id_}{INTENT}") and not self._is_lent(id_):
                    remove_all(self.staging, id_)
            finally:
                owner.release()

    def forget(self, is_there: Callable[[str], bool]) -> None:
        """Remove the notes that nobody needs; `is_there` says whether there is a topic of that id."""
        if self._exists():
            self._notes.sweep(is_there)

    def _is_lent(self, id_: str) -> bool:
        """Whether a job that has not committed yet may still do so."""
        for name in self.staging.names():
            if name.partition(".")[0] == id_ and name.endswith(f"{LEASE}{TMP}"):
                # A task is just writing it; or has died in that moment, and nobody can say until when it was to be.
                self._write_lease(name.removesuffix(TMP), _LEASE_S)
                return True
            if name.partition(".")[0] == id_ and name.endswith(LEASE):
                try:
                    if int(documents.load(self.staging, name)["until_ms"]) > time.time() * 1000:
                        return True
                except CorruptFile as error:
                    # Nobody can say until when; a power cut leaves such leases, too. So from now on, once more.
                    _logger.warning("a lease is counted from now on: %s", error)
                    self._write_lease(name, _LEASE_S)
                    return True
                except (SawlogError, KeyError, TypeError, ValueError):
                    pass  # just gone: it keeps nothing
        return False


def _one_each(parts: Iterable[Part]) -> list[Part]:
    """One part a partition, in the order of the locks; pieces for the same partition stay in the order given."""
    merged: dict[tuple[str, int], Part] = {}
    for part in parts:
        before = merged.get(part.order)
        if before is not None:
            part = replace(before, count=before.count + part.count, pieces=before.pieces + part.pieces)  # noqa: PLW2901
        merged[part.order] = part
    return [merged[order] for order in sorted(merged)]


def _enter(held: ExitStack, log: Log, deadline: float) -> None:
    """Hold a log still, waiting for its lock if another process has it."""
    while True:
        try:
            held.enter_context(log.hold())
            return
        except DirectoryLocked:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _groups_in(read: Callable[[int, int], bytes], piece: Piece) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
    """Whole batches of a piece. What is in them, the log checks when they are appended."""
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
        if not counts and min(want, end - position) == wanted:  # to read the same again would change nothing
            raise CorruptFile(f"{piece.file or 'an intent'}: there is no whole batch at byte {position}")
        if counts:
            yield block[:at], counts
        position += at
