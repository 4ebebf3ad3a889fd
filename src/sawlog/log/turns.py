"""Turns: several processes append to one log, one after the other (ADR 33).

A process that appends has the log's lock. It keeps its `Appender` when it gives the lock back, and continues with it in
its next turn. The file `visible`, which every process maps, says what happened meanwhile. After the visible end it
contains these words of 32 bits:

    GENERATION   changes with everything but appends and rotations: a truncation, a compaction, a recovery; 0: unknown
    UNFINISHED   id of the process in its turn, from before its first change until all is in order; 0: none
    FAILED       1 if an fsync has failed since the last recovery
    CLEAN        1 if the checkpoint says that the log was closed cleanly, which the next writer has to change first
    WANTED       1 if a process waits for its turn
    TURNS        number of turns so far that a process had asked for
    END          offset, base offset of the active segment, position: where the last turn ended; two words each
    SYNCING      number of fsyncs that have begun since the last recovery and not ended
    RECOVERIES   number of recoveries
    ENDED        changes when a turn ends that another process waits for, which sleeps on this word

At the start of a turn:

    the words say                                       action
    in order, and the generation is ours                read the headers of the batches up to END, continue
    in order, another generation                        read the files again; nothing has to be repaired
    UNFINISHED, FAILED, or nothing (after a reboot)     recover, and begin a new generation

A process that is killed in its turn leaves UNFINISHED set, and the kernel releases its lock. Outside its turn a process
appends nothing, but it syncs what it has appended, side by side with other processes, and publishes the end that is
durable (`Durability.sync_among_others`). A failed fsync sets FAILED before its process hears of it; from then on no
process acknowledges, and the next turn recovers the log. The kernel reports the failure to each file description that
was open then, but not always to a later one. So a process that opens the active segment waits until no fsync is running
(SYNCING), and a process that was killed in its fsync makes it recover.

A process that waits sets WANTED. The process in its turn looks at it before each append, and ends its turn if that has
lasted `TURN_S`. It then lets another process take the lock before it competes for it again. A turn without appends is
ended after `IDLE_S`: an idle process holds no lock, so a process that is stopped hardly ever blocks others.

A directory that cannot share words (`Published.words` is None) has no turns: its lock is released by closing the log
cleanly.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from .. import background
from ..clock import Deadline, Stopwatch, pause
from ..errors import CorruptFile, DirectoryLocked, SawlogError
from ..storage import Directory, Lock, open_published
from ..storage.forking import forkable, notify_after_fork, this_process
from ..storage.words import Words
from .files import LOCK, VISIBLE, WANTED, file_name
from .lock import MAINTENANCE_NOTE, is_release_requested, read_lock_note, request_release

if TYPE_CHECKING:
    from .durability import Tail

_GENERATION, _UNFINISHED, _FAILED, _CLEAN, _WANTED, _TURNS, _END = range(7)
_SYNCING, _RECOVERIES, _ENDED = _END + 6, _END + 7, _END + 8
_WORD = 2**32

#: Shortest turn while another process waits, and the time without an append after which a turn ends.
TURN_S, IDLE_S = 0.001, 0.02
#: Interval at which a background task looks at the turn of this process.
_LOOK_S = 0.005
#: Maximum time that a process leaves the lock to others after it has ended its turn for them.
_GRACE_S = 0.005
#: Maximum wait for the fsyncs of other processes before the log is recovered.
_SYNC_TIMEOUT_S = 2.0
#: Pauses between two attempts to take the lock.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.00005, 0.0005


class TurnWords:
    """The words of one log. Only the process in its turn changes them, except `is_wanted` and `has_failed`, where all
    processes store the same value."""

    __slots__ = ("_words", "view")

    def __init__(self, view: memoryview[int]) -> None:
        #: The words, for code that looks at `WANTED_AT` before every append.
        self.view = view
        self._words = Words(view)

    @property
    def generation(self) -> int:
        """Number that changes with everything but appends and rotations; 0 if nothing is known."""
        return self.view[_GENERATION]

    @property
    def is_in_order(self) -> bool:
        """True if the last turn has ended and no fsync has failed since the last recovery."""
        view = self.view
        return view[_GENERATION] > 0 and not view[_UNFINISHED] and not view[_FAILED]

    def allows(self, generation: int) -> bool:
        """Return True if a process that knows this generation can catch up."""
        return self.is_in_order and self.generation == generation

    @property
    def has_failed(self) -> bool:
        """True if an fsync has failed since the last recovery, in any process."""
        return self.view[_FAILED] > 0

    def fail(self) -> None:
        """Record that an fsync has failed."""
        self.view[_FAILED] = 1

    @property
    def is_wanted(self) -> bool:
        """True if a process waits for its turn."""
        return self.view[_WANTED] > 0

    def want(self) -> None:
        """Ask the process in its turn to end it."""
        self.view[_WANTED] = 1

    @property
    def turns(self) -> int:
        """Number of turns so far that a process had asked for."""
        return self.view[_TURNS]

    @property
    def is_clean(self) -> bool:
        """True if the checkpoint says that the log was closed cleanly."""
        return self.view[_CLEAN] > 0

    def mark_in_use(self) -> None:
        """Record that the checkpoint no longer says that the log was closed cleanly."""
        self.view[_CLEAN] = 0

    @property
    def end(self) -> Tail:
        """Where the last turn ended."""
        low = self.view[_END : _END + 6 : 2]
        high = self.view[_END + 1 : _END + 6 : 2]
        offset, base, position = (low[at] + high[at] * _WORD for at in range(3))
        return offset, base, position

    def is_known(self, generation: int, base_offset: int) -> bool:
        """Return True if a process that knows this generation and writes to this segment knows the active segment."""
        return self.generation == generation and self.end[1] == base_offset

    # --- waiting for a turn

    @property
    def ended(self) -> int:
        """A number that changes when a turn ends that another process waits for."""
        return self.view[_ENDED]

    def announce_end(self) -> None:
        """Wake the processes that wait for a turn. Call after the lock is released."""
        self.view[_ENDED] = (self.view[_ENDED] + 1) % _WORD
        self._words.wake(_ENDED)

    def await_end(self, known: int, seconds: float) -> None:
        """Sleep until `ended` is no longer this number, for at most `seconds`."""
        self._words.wait(_ENDED, known, seconds)

    # --- fsyncs of any process; the callers exclude each other (`Published.exclusive`)

    def begin_sync(self, generation: int) -> int | None:
        """Record that an fsync begins, and return a number for `end_sync`; None if the fsync would prove nothing,
        because one has failed or the log has another generation."""
        view = self.view
        if not self.allows_sync(generation):
            return None
        view[_SYNCING] += 1
        return view[_RECOVERIES]

    def end_sync(self, begun: int, *, failed: bool) -> None:
        """Record the end of an fsync."""
        view = self.view
        if failed:
            view[_FAILED] = 1
        if view[_RECOVERIES] == begun:
            view[_SYNCING] -= 1

    def allows_sync(self, generation: int) -> bool:
        """Return True if what an fsync covers is durable in a log of this generation."""
        return self.view[_GENERATION] == generation and not self.view[_FAILED]

    def await_syncs(self) -> bool:
        """Wait until no fsync is running; return False if one has failed, or does not end: its process may have been
        killed. For the process in its turn, after it has opened the active segment: an fsync that fails is reported to
        descriptions that are older, but not always to this one."""
        deadline = Deadline(_SYNC_TIMEOUT_S, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
        while self.view[_SYNCING]:
            if not deadline.retry():
                return False
        return not self.has_failed

    # --- the process in its turn

    def begin(self) -> None:
        """Begin a turn, before anything is changed."""
        self.view[_UNFINISHED] = this_process() % _WORD
        if self.view[_WANTED]:
            self.view[_WANTED] = 0
            self.view[_TURNS] = (self.view[_TURNS] + 1) % _WORD

    def recovered(self) -> None:
        """Begin a generation after a recovery. Fsyncs that are still running concern the files before it."""
        self.next_generation()
        self.view[_SYNCING], self.view[_RECOVERIES] = 0, (self.view[_RECOVERIES] + 1) % _WORD
        self.view[_FAILED] = 0
        self.view[_UNFINISHED] = this_process() % _WORD

    def next_generation(self) -> None:
        """Record that something other than an append or a rotation has changed the log."""
        self.view[_GENERATION] = self.view[_GENERATION] % (_WORD - 1) + 1

    def finish(self, end: Tail, *, clean: bool = False) -> None:
        """End the turn: everything up to `end` is in order."""
        for at, number in enumerate(end):
            self.view[_END + 2 * at], self.view[_END + 2 * at + 1] = number % _WORD, number // _WORD
        self.view[_CLEAN] = clean
        self.view[_UNFINISHED] = 0


#: Index of the word that the process in its turn looks at.
WANTED_AT = _WANTED


def words_of(directory: Directory) -> TurnWords | None:
    """Return the words of a log, if they were written since the last boot."""
    found = open_published(directory, VISIBLE)
    if found is None or found.words is None:
        return None
    found.close()
    made = open_published(directory, VISIBLE, create=True)
    return None if made is None or made.words is None else TurnWords(made.words)


def take_turn(directory: Directory, note: bytes, timeout_s: float, words: TurnWords | None = None) -> Lock:
    """Wait for the lock; `DirectoryLocked` if other processes keep it for `timeout_s`."""
    deadline = Deadline(timeout_s, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
    watch = Stopwatch()
    while True:
        ended = words.ended if words is not None else 0
        try:
            held = directory.lock(LOCK)
        except DirectoryLocked as error:
            if deadline.passed:
                raise error.after(timeout_s) from None
            words = words or words_of(directory)
            if words is not None:
                words.want()
            if words is None or watch.elapsed_s > _GRACE_S:  # longer than a turn: look who has the lock
                if words is None or read_lock_note(directory) == MAINTENANCE_NOTE:
                    request_release(directory)
                deadline.pause(or_raise=error.after(timeout_s))
            else:
                words.await_end(ended, deadline.at_most(_LONGEST_PAUSE_S))
        else:
            try:
                if note:
                    held.leave(note)
                if is_release_requested(directory):
                    directory.remove(WANTED)
            except BaseException:
                held.release()
                raise
            return held


def let_others_go_first(words: TurnWords, turns: int) -> None:
    """Wait until another process has begun a turn since there were this many, for at most a grace period."""
    watch = Stopwatch()
    while words.turns == turns and watch.elapsed_s < _GRACE_S:
        pause(_FIRST_PAUSE_S)


class Turn(Protocol):
    """A turn of this process."""

    @property
    def is_locked(self) -> bool:
        """True until the turn has ended."""

    def look_at_turn(self) -> None:
        """End the turn if it is time."""


class _Turns:
    """The turns of this process. A background task looks at them, as long as there are any."""

    def __init__(self) -> None:
        self._lock = forkable(threading.Lock())
        self._known: weakref.WeakSet[Turn] = weakref.WeakSet()
        self._task: background.Task | None = None
        notify_after_fork(self)

    def after_fork(self) -> None:
        """Begin anew in a forked child: the turns are the parent's."""
        self._known, self._task = weakref.WeakSet(), None

    def add(self, turn: Turn) -> None:
        """Look at a turn until it has ended."""
        with self._lock:
            self._known.add(turn)
            if self._task is None and not background.are_suspended():
                self._task = background.every(_LOOK_S, self._look)

    def _look(self) -> None:
        for turn in list(self._known):
            try:
                turn.look_at_turn()
            except (SawlogError, OSError):
                pass  # closed meanwhile, or failed: the next append raises the error
        with self._lock:
            for turn in [each for each in self._known if not each.is_locked]:
                self._known.discard(turn)
            if not self._known and self._task is not None:
                self._task.cancel()
                self._task = None


_turns = _Turns()
watch_turn = _turns.add


def begin(directory: Directory) -> bool:
    """Begin a turn in a log that this process is about to open; return True if everything in it is in order. The caller
    has the lock."""
    words = words_of(directory)
    if words is None:
        return False
    in_order = words.is_in_order
    words.begin()
    return in_order and words.await_syncs() and record_end(directory, words.end) and not words.has_failed


def record_end(directory: Directory, end: Tail) -> bool:
    """Sync the end of a log that is in order, and record it as durable in the checkpoint. Recovery would otherwise move
    what is not known to be durable to a new file, and every other process would have to read the files again. Return
    False if that is not possible."""
    from . import checkpoint  # which needs modules that use the words

    offset, base, position = end
    try:
        saved = checkpoint.load(directory)
    except CorruptFile:
        return False
    name = file_name(base)
    if saved is None or not directory.exists(name) or directory.size(name) != position:
        return False
    if not saved.clean:
        storage = directory.open(name)
        try:
            storage.sync()
        finally:
            storage.close()
        checkpoint.store(directory, saved.at(offset, base, position))
    return True
