"""`Collector`: deletes objects that are no longer needed, and never one that is.

```
notes/<commits>-<behind>-<low>   at that time (its Last-Modified) the store had this many commits; those below `behind`
                                 were behind two confirmed checkpoints, those below `low` are small, or tombstones
garbage/<uuid>                   keys that are not referenced and never will be; deleted after `readers_s`
clock/now, clock/swept           written to read the bucket's clock, and when all commits were last listed
```

All times are the bucket's: the Last-Modified of an old object is compared with that of one written just now. The clocks
of processes do not matter, and a note that lands late only delays what follows from it.

- *Commit numbers* (R2). A note records which commits are behind a confirmed checkpoint. They are deleted `grace_s`
  after the note, not after the checkpoint, which may have been confirmed much later than it was made: no process
  believes an answer about them any more. The last two confirmed checkpoints stay, and only commits below the older one
  are collected. A large commit becomes a tombstone earlier, when no extent refers to its batches.
- *Uploads* (R6). The floor is raised to the number of commits in such a note: uploads begun below it can no longer be
  committed. Only then is the state read, and uploads below the floor that it does not reference never will be.
- *Readers.* Unreferenced keys are first listed as garbage, and deleted `readers_s` later. A key in such a list stays
  unneeded, whichever process deletes it and however late.

Any number of collectors may run at once, be stopped anywhere, and continue later.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import CorruptData
from . import checkpoints
from .bucket import Bucket, Entry
from .checkpoints import Checkpoint
from .session import StoreSession
from .state import State
from .state.commit import (
    COMMITS,
    SEGMENTS,
    STAGED,
    TOMBSTONE_BYTES,
    Collected,
    Tombstone,
    begun_at,
    canonical,
    commit_key,
    opened,
    read_commit,
    sealed,
)

NOTES, GARBAGE, CLOCK = "notes/", "garbage/", "clock/"
_NOW, _SWEPT = CLOCK + "now", CLOCK + "swept"
_GARBAGE = b"sawlog garbage "
#: A commit up to this size is left alone until its number is deleted: a tombstone would save little.
SMALL_BYTES = 4096
#: Maximum number of keys in one list of garbage.
_MOST_KEYS = 5000
#: Number of outdated nonces that are worth a commit that forgets them.
_MANY_NONCES = 64

_logger = logging.getLogger("sawlog.maintenance")


@dataclass(slots=True)
class CollectionReport:
    """Numbers of deleted objects."""

    checkpoints: int = 0
    commits: int = 0
    tombstones: int = 0
    uploads: int = 0
    #: Number of unreferenced objects found; they are deleted later.
    condemned: int = 0

    def __bool__(self) -> bool:
        return any((self.checkpoints, self.commits, self.tombstones, self.uploads, self.condemned))

    def __str__(self) -> str:
        return (
            f"collection removed {self.checkpoints} checkpoints, {self.commits} commits and {self.uploads} uploads, "
            f"emptied {self.tombstones} commits, and found {self.condemned} objects to remove later"
        )


class Note(NamedTuple):
    """Facts that were true when the note was written, and still are."""

    commits: int
    behind: int
    low: int

    @property
    def key(self) -> str:
        return f"{NOTES}{self.commits:020}-{self.behind:020}-{self.low:020}"


#: The note that is true of every store.
_NOTHING = Note(0, 0, 0)


class _View(NamedTuple):
    """The observations of one round."""

    now_s: float
    #: The oldest note: every commit below it is deleted.
    done: Note
    #: The newest note that is older than the grace period.
    aged: Note
    last: Note
    #: Keys that are listed as garbage already.
    condemned: Collection[str]
    #: True if all commits are to be listed, even where there should be none: a process may have created a number that
    #: was deleted, and not believed it.
    sweep: bool


class Collector:
    """Garbage collector of one open store. One thread at a time."""

    def __init__(self, session: StoreSession, *, workers: int = 8, check: Callable[[], None] = lambda: None) -> None:
        self._session = session
        self._check = check
        self._bucket = session.bucket
        self._workers = workers
        #: Checkpoints whose content was read and verified.
        self._read: set[str] = set()

    def run(self) -> CollectionReport:
        report = CollectionReport()
        view = self._view()
        # After the notes were read, so that the state includes every commit that they refer to, and its references.
        number, referenced = self._session.look(lambda state: (state.number, state.referenced()), fresh=True)
        behind = max(self._behind_checkpoints(report, number), view.last.behind)
        assert max(view.last.commits, behind) <= number
        self._remove_garbage(report, view, referenced)
        low = self._empty_commits(report, view, behind, referenced)
        if (note := Note(number, behind, low)) != view.last:
            self._bucket.put(note.key, b"")
        self._delete_commits(report, view, referenced)
        self._collect_uploads(report, view)
        if report:
            _logger.info("%s: %s", self._bucket.url, report)
        return report

    # --- time and notes

    def _view(self) -> _View:
        self._bucket.put(_NOW, b"")
        times = {entry.key: entry.modified.timestamp() for entry in self._bucket.list(CLOCK)}
        now_s = times.get(_NOW, 0.0)
        old_s = now_s - self._session.parameters.grace_s
        notes = {note_of(entry.key): entry.modified.timestamp() for entry in self._bucket.list(NOTES)}
        if not notes:
            self._bucket.put(_NOTHING.key, b"")
        done, last = min(notes, default=_NOTHING), max(notes, default=_NOTHING)
        aged = max((note for note, time_s in notes.items() if time_s <= old_s), default=_NOTHING)
        lists = [entry.key for entry in self._bucket.list(GARBAGE)]
        condemned = {key for each in lists for key in read_garbage(self._bucket, each)}
        return _View(now_s, done, aged, last, condemned, times.get(_SWEPT, 0.0) <= old_s)

    # --- checkpoints and commits

    def _behind_checkpoints(self, report: CollectionReport, number: int) -> int:
        """Delete the checkpoints before the last two confirmed ones, and return the number of commits behind both."""
        confirmed: list[Checkpoint] = []
        found = checkpoints.listed(self._bucket)
        try:
            for each in found:
                if each.number <= number and self._is_right(each):
                    confirmed.append(each)
                if len(confirmed) == 2:
                    break
        except Collected:
            return 0  # another collector is ahead of this one
        if len(confirmed) < 2:
            return 0
        for each in found:
            if each.number < confirmed[1].number:
                self._bucket.delete(each.key)
                self._read.discard(each.key)
                report.checkpoints += 1
        return confirmed[1].number

    def _is_right(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is confirmed and readable: from then on it is the source of truth."""
        if not checkpoints.is_confirmed(self._bucket, checkpoint):
            return False
        if checkpoint.key not in self._read:
            checkpoints.loaded(self._bucket, checkpoint)
            self._read.add(checkpoint.key)
        return True

    def _empty_commits(self, report: CollectionReport, view: _View, behind: int, referenced: Collection[str]) -> int:
        """Find commits whose batches are unreferenced, and numbers that were created again after their deletion. Return
        the number below which there is nothing left to find."""
        start = 0 if view.sweep else min(view.last.low, behind)
        kept, empty, dead = [behind], [], []
        for entry in self._bucket.list(COMMITS, commit_key(start - 1) if start else ""):
            self._check()
            number = int(entry.key.removeprefix(COMMITS))
            if number >= behind:
                break
            is_large = entry.size_bytes > (TOMBSTONE_BYTES if number < view.aged.behind else SMALL_BYTES)
            if entry.key in referenced or entry.key in view.condemned:
                kept.append(number)
            elif is_large and (found := read_commit(self._bucket, entry.key)) and found[0].inline:
                kept.append(number)
                empty.append(entry.key)
            elif number < view.aged.behind:
                dead.append(entry.key)
        self._condemn(report, empty)
        self._each(self._bucket.delete, dead)
        report.commits += len(dead)
        if view.sweep:
            self._bucket.put(_SWEPT, b"")
        return min(kept)

    def _delete_commits(self, report: CollectionReport, view: _View, referenced: Collection[str]) -> None:
        """Delete commits about which no process believes an answer any more."""
        aged = view.aged
        if aged.behind <= view.done.behind:
            return
        keys = [commit_key(number) for number in range(view.done.behind, aged.behind)]
        keys = [key for key in keys if key not in referenced and key not in view.condemned]
        self._each(self._bucket.delete, keys)
        report.commits += len(keys)
        for entry in list(self._bucket.list(NOTES)):
            if note_of(entry.key) < aged:
                self._bucket.delete(entry.key)

    # --- uploads

    def _collect_uploads(self, report: CollectionReport, view: _View) -> None:
        uploads = [entry for prefix in (STAGED, SEGMENTS) for entry in self._bucket.list(prefix)]
        numbers = {entry.key: number for entry in uploads if (number := begun_at(entry.key)) is not None}
        if not self._raise_floor(view, view.aged.commits, numbers, {entry.key: entry for entry in uploads}):
            return
        # After the commit that raised the floor: only now can nothing refer to them any more.
        floor, referenced = self._session.look(lambda state: (state.floor, state.referenced()), fresh=True)
        gone = [key for key, number in numbers.items() if number < floor and key not in referenced]
        self._condemn(report, [key for key in gone if key not in view.condemned])

    def _raise_floor(self, view: _View, floor: int, begun: Mapping[str, int], uploads: Mapping[str, Entry]) -> bool:
        """Raise the floor if that helps, and return whether unreferenced uploads may be below it."""

        def look(state: State) -> tuple[int, int, set[str], int]:
            return state.floor, state.number, state.referenced(), state.nonces_below(floor)

        before, number, referenced, nonces = self._session.look(look)
        unneeded = {key: at for key, at in begun.items() if key not in referenced and key not in view.condemned}
        wanted = any(at < floor for at in unneeded.values()) or nonces > _MANY_NONCES
        old_s = view.now_s - self._session.parameters.grace_s
        stuck = any(at >= number and uploads[key].modified.timestamp() <= old_s for key, at in unneeded.items())
        if (wanted and floor > before) or stuck:  # stuck: nothing was committed since; this commit is something
            self._session.commit([{"do": "raise floor", "number": max(floor, before)}])
        return any(at < max(floor, before) for at in unneeded.values())

    # --- garbage

    def _condemn(self, report: CollectionReport, keys: list[str]) -> None:
        for start in range(0, len(keys), _MOST_KEYS):
            part = sorted(keys)[start : start + _MOST_KEYS]
            self._bucket.put(f"{GARBAGE}{uuid.uuid4().hex}", sealed(_GARBAGE, canonical(part)))
        report.condemned += len(keys)

    def _remove_garbage(self, report: CollectionReport, view: _View, referenced: Collection[str]) -> None:
        old_s = view.now_s - self._session.parameters.readers_s
        for entry in list(self._bucket.list(GARBAGE)):
            if entry.modified.timestamp() > old_s:
                continue
            keys = read_garbage(self._bucket, entry.key)
            needed = sorted(set(keys).intersection(referenced))
            if needed:
                raise CorruptData(f"{entry.key} says that {needed[0]} is not needed, but it is; nothing was removed")
            uploads = [key for key in keys if not key.startswith(COMMITS)]
            self._each(self._bucket.delete, uploads)
            report.uploads += len(uploads)
            for key in keys:
                self._check()
                if key.startswith(COMMITS):
                    report.tombstones += self._empty(key, delete=int(key.removeprefix(COMMITS)) < view.aged.behind)
            self._bucket.delete(entry.key)

    def _empty(self, key: str, *, delete: bool) -> bool:
        """Replace a commit by a tombstone, so that its number stays taken; or delete it."""
        if delete:
            self._bucket.delete(key)
            return True
        found = read_commit(self._bucket, key)
        if found is not None:
            self._bucket.put(key, Tombstone(found[0].nonce).encode())
        return found is not None

    def _each(self, do: Callable[[str], None], keys: Iterable[str]) -> None:
        """Process many keys, several at a time, since each waits for the bucket."""
        wanted = list(keys)

        def checked(key: str) -> None:
            self._check()
            do(key)

        if self._workers < 2 or len(wanted) < 2:
            list(map(checked, wanted))
        else:
            with ThreadPoolExecutor(self._workers, thread_name_prefix="sawlog-collect") as pool:
                list(pool.map(checked, wanted))


def note_of(key: str) -> Note:
    commits, behind, low = key.removeprefix(NOTES).split("-")
    return Note(int(commits), int(behind), int(low))


def read_garbage(bucket: Bucket, key: str) -> list[str]:
    """Return the keys in a list of garbage; empty if another collector has deleted it."""
    data = bucket.get(key)
    if data is None:
        return []
    return [str(each) for each in opened(data, _GARBAGE, key)[0]]
