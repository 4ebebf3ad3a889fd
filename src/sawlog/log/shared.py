"""A log that several processes write, one after the other: `SharedLog`.

```python
with shared.turn() as log:      # waits until it is this process's turn
    log.append_many(records)    # durable when it returns
```

A turn holds the directory's lock. Opening and closing the log in each turn would cost half a dozen fsyncs, so every
process keeps its `Log` between turns, without the lock, and each holder leaves a note in the lock file for the next:

```
{"shape": "9f0c…", "segment": 1200, "position": 8310, "next_offset": 1291}
crc32c 1c291ca3
```

The note is written at the end of a turn, after everything was synced, and records the end of the log. The next holder
removes it when it takes the lock. At the beginning of a turn:

    the note says                                            action
    our end, and the file ends there                         continue
    a later end, same shape, and the file ends there         catch up (catching_up.py), continue
    another shape, and the file ends there                   reopen; nothing has to be synced again
    nothing, or the file ends elsewhere                      reopen with recovery, as after a crash

The *shape* identifies the past: it changes whenever anything but appends and rotations happens to the segments
(compaction, truncation, recovery), so that no process continues with files that were replaced.

Why this is safe: a holder that dies in its turn, at any point, has removed the note before it wrote its first byte and
has not left another: the next one recovers. A holder whose write or fsync failed leaves none either. A note is
therefore only ever found by the very next holder, and what it describes was synced before it was written. After a power
cut an old note may reappear, because it is not synced; but everything that it describes was synced before, and it is
trusted only if the file ends where it says, so that nothing unsynced can follow. A program that writes without turns
(`Log.open`) removes the note and leaves none.

A holder that is stopped during its turn blocks the others: they wait for `patience_s` and get `DirectoryLocked`. The
kernel releases the lock of a dead process, not that of a stopped one.

Threads: any; one turn at a time. Turns of one thread do not nest. The log is for the turn only: outside, it refuses to
write, and its content is outdated. To read without a turn, open the directory with mode="r".
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..clock import Stopwatch
from ..config import DAY_MS, LogConfig
from ..errors import CorruptFile
from ..storage import Directory, Lock
from ..storage.forking import forkable
from ..storage.locks import lock_within
from . import checkpoint
from .appender import Appender
from .catching_up import only_grew
from .checkpoint import TurnNote
from .files import LOCK, file_name
from .log import Log
from .open import Access
from .recovery import recover
from .segment import Segment
from .segments import SegmentSet

#: Maximum time that a process waits for its turn.
_PATIENCE_S = 10.0
#: Shortest time between two watermarks, which are written at the end of a turn. After a crash, damage above the last
#: one is treated as a torn tail. A background thread must not write a watermark outside its process's turn.
_CHECKPOINT_S = 1.0
_NO_CHECKPOINTS_MS = 3650 * DAY_MS
_State = tuple[tuple[Segment, ...], object]


class SharedLog:
    """One process's access to a log that is written in turns."""

    def __init__(
        self, directory: Directory, config: LogConfig | None = None, *, patience_s: float = _PATIENCE_S
    ) -> None:
        config = LogConfig() if config is None else config
        self._directory = directory
        self._config = config.with_(durability="always", checkpoint_interval_ms=_NO_CHECKPOINTS_MS)
        self._patience_s = patience_s
        self._mutex = forkable(threading.RLock())
        self._kept: tuple[Log, Appender] | None = None
        self._shape = ""
        self._saved = Stopwatch()

    @contextmanager
    def turn(self) -> Iterator[Log]:
        """Wait for the lock and hold it; yields the current log. `DirectoryLocked` if another process keeps it too
        long."""
        with self._mutex:
            held = lock_within(self._directory, LOCK, self._patience_s)
            try:
                log, appender = self._enter(held)
                before = _state(appender)
                try:
                    yield log
                finally:
                    self._end(appender, held, before)
            finally:
                held.release()

    def close(self) -> None:
        """Close the files. Nothing has to be written: everything was durable at the end of its turn."""
        with self._mutex:
            self._discard()

    # --- the beginning of a turn

    def _enter(self, held: Lock) -> tuple[Log, Appender]:
        found = note = TurnNote.decode(held.found)
        if note is not None and not self._ends_at(note):
            note = None
        if note is None or self._kept is None or not self._can_continue(self._kept[1], held, note):
            self._discard()
            self._kept = self._open(held, note, 0 if found is None else found.next_offset)
        return self._kept

    def _ends_at(self, note: TurnNote) -> bool:
        name = file_name(note.segment)
        return self._directory.exists(name) and self._directory.size(name) == note.position

    def _can_continue(self, appender: Appender, held: Lock, note: TurnNote) -> bool:
        """Return True if this process is up to date, or could read the headers of the batches appended since."""
        if note.shape != self._shape or appender.durability.failure is not None:
            return False
        return appender.resume(held, (note.next_offset, note.segment, note.position))

    def _open(self, held: Lock, note: TurnNote | None, known_end: int) -> tuple[Log, Appender]:
        """Open the log under a lock that is already held. Everything below `known_end` was durable once."""
        name = "" if note is None else file_name(note.segment)
        before = self._directory.identity(name) if name else None
        if note is not None:
            self._believe(note)
        found = recover(self._directory, self._config, known_end=known_end)
        segments = SegmentSet.of(self._directory, self._config, found.segments, found.lowest_offset, found.epochs)
        appender = Appender(self._directory, self._config, segments, found.producers, held)
        clean = note is not None or found.report.clean
        appender.lineage.take_over(clean=clean, in_order=found.epochs_in_order, stored=found.epochs_stored)
        appender.begin()
        self._saved.restart()
        active = segments.active
        same = (
            note is not None
            and (active.base_offset, *active.tail) == (note.segment, note.next_offset, note.position)
            and self._directory.identity(name) == before
        )
        self._shape = note.shape if note is not None and same else _new_shape()
        return Log(Access(self._directory, self._config, segments, appender, found.report)), appender

    def _believe(self, note: TurnNote) -> None:
        """Record the end in the note as durable in the checkpoint: no process died. Otherwise recovery would sync it
        again by replacing the file, and every other process would have to reopen it and replace it in turn."""
        try:
            saved = checkpoint.load(self._directory)
        except CorruptFile:
            return
        if saved is not None:
            made = replace(
                saved,
                clean=False,
                durable_offset=note.next_offset,
                segment=note.segment,
                position=note.position,
            )
            if made != saved:
                checkpoint.store(self._directory, made)

    # --- the end of a turn

    def _end(self, appender: Appender, held: Lock, before: _State) -> None:
        """Leave the note if the log has not failed and all of it is durable."""
        if _has_ended(appender):
            self._discard()
            return
        try:
            with appender.lock:
                appender.check_open()  # recovers an interrupted append
            appender.sync()
        except BaseException:
            self._discard()
            raise
        if self._saved.elapsed_s >= _CHECKPOINT_S:
            appender.checkpoints.save_if_moved()
            self._saved.restart()
            if _has_ended(appender):
                self._discard()
                return
        segments, rest = _state(appender)
        if not only_grew(before[0], segments) or rest != before[1]:
            self._shape = _new_shape()
        appender.pause()
        segment = appender.segments.active
        offset, position = segment.tail
        held.leave(TurnNote(self._shape, segment.base_offset, position, offset).encode())

    def _discard(self) -> None:
        if self._kept is not None:
            _, appender = self._kept
            self._kept = None
            appender.abandon()


def _state(appender: Appender) -> _State:
    """Return the segments, and a value that changes with the start of the log and the leader epoch."""
    segments = appender.segments
    return segments.all, (segments.lowest_offset, segments.epochs)


def _has_ended(appender: Appender) -> bool:
    """Return True if the appender can no longer write: it was closed or has failed."""
    return appender.closed or appender.durability.failure is not None


def _new_shape() -> str:
    return uuid.uuid4().hex
