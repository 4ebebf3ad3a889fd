"""`PendingTransactions`: transactions that are committed and not completed, and which of their parts are placed.
`CommittedNames`: the last committed sequence of each named transaction.

```
staging/
  <id>.intent                  committed, not completed
  <id>.applied.<n>             part n is in its log, durably, or its topic is deleted
  =<name>.name                 locked while a transaction of that name commits; removed afterwards
  =<name>.committed            the last intent of that name, without its batches
```

Marks (`.applied.`) are empty files: the name holds the information. `commits` explains the protocol.

The last intent of a name identifies a replay, so it is kept as long as a replay is possible: until all its topics are
deleted (a recreated topic has another id), or until nothing was committed under the name for `KEPT_MS`. That bounds the
number of these files to the names used in the last weeks. An intent gets this name by a rename, which costs nothing.
Its batches are truncated once the rename is durable, without a sync: after a power cut they may reappear, and `sweep`
truncates them again.

Safe for threads and processes. `record`, `revoke` and `complete` are for the process that holds the staged transaction;
`mark` for the process that holds the partition.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import closing

from ....clock import Deadline, now_ms
from ....errors import CorruptFile, DirectoryLocked, SawlogError, StorageError
from ....storage import Directory, Lock
from ...names import quoted
from .intent import INTENT, Intent, Part, end_of_document
from .staging_directory import APPLIED, NOTE_MARK, StagingDirectory, is_note, lock_owner, remove_all

#: Time for which an unused name is remembered. A query that is restarted later, after being killed between a commit and
#: Spark's own record of it, stores that micro-batch twice.
KEPT_MS = 30 * 24 * 3600 * 1000
_NAME, _COMMITTED = ".name", ".committed"

_logger = logging.getLogger("sawlog")


class CommittedNames:
    """Notes of one store. Safe for threads and processes."""

    def __init__(self, staging: Directory) -> None:
        self._staging = staging

    # --- one name at a time

    def lock(self, name: str, deadline: Deadline) -> Lock:
        """Keep other processes from committing under a name; `DirectoryLocked` on timeout."""
        while True:
            try:
                held = self._staging.lock(_file(name, _NAME), alone=False)
            except DirectoryLocked as error:
                deadline.pause(or_raise=error)
            else:
                if held.current:
                    return held
                held.release()  # the previous holder has removed the file we locked

    def unlock(self, name: str, held: Lock) -> None:
        """Release the lock and remove its file."""
        try:
            if held.held:
                self._staging.remove(_file(name, _NAME))
        except StorageError as error:
            _logger.warning("will be removed later: %s", error)
        finally:
            held.release()

    # --- reading

    def find(self, name: str) -> Intent | None:
        """Return the last completed transaction of that name."""
        return self._load(_file(name, _COMMITTED))

    def _load(self, file: str) -> Intent | None:
        path = f"{self._staging.path}/{file}"
        try:
            return Intent.decode(self._staging.read(file), path, is_note=True)
        except CorruptFile as error:
            raise CorruptFile(f"{error}. Without it, the records stored under this name are unknown") from error
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def take(self, intent: Intent) -> None:
        """Rename a completed intent to the note of its name, unless the note is newer. The caller has locked the name
        and syncs the directory."""
        assert intent.name is not None
        file, known = _file(intent.name, _COMMITTED), self.find(intent.name)
        if self._staging.exists(intent.file) and (known is None or sequence_of(known) < sequence_of(intent)):
            self._staging.rename(intent.file, file)

    def strip(self, name: str) -> None:
        """Truncate the batches of a note whose name is durable. Earlier, a power cut could turn it back into an intent
        that needs them."""
        self._strip(_file(name, _COMMITTED))

    def _strip(self, file: str) -> None:
        end = end_of_document(self._staging.read(file))
        with closing(self._staging.open(file)) as storage:
            if storage.size > end:
                storage.truncate(end)

    # --- cleaning up

    def sweep(self, is_there: Callable[[str], bool]) -> None:
        """Remove the notes of names that can no longer be replayed; `is_there` tells whether a topic id exists. Names
        in use are skipped."""
        for file in self._staging.names():
            if not is_note(file):
                continue
            stem, _, _ = file.rpartition(".")
            try:
                held = self._staging.lock(stem + _NAME, alone=False)
            except DirectoryLocked:
                continue
            try:
                if held.current:
                    self._tidy(stem + _COMMITTED, is_there)
                    self._staging.remove(stem + _NAME)
            except SawlogError as error:
                _logger.warning("not removed: %s", error)
            finally:
                held.release()

    def _tidy(self, file: str, is_there: Callable[[str], bool]) -> None:
        note, now = self._load(file), now_ms()
        if note is None:
            return
        gone = bool(note.parts) and not any(is_there(part.topic_id) for part in note.parts)
        if gone or note.at_ms + KEPT_MS < now:
            self._staging.remove(file)
        else:
            self._strip(file)


def sequence_of(intent: Intent) -> int:
    """Return the sequence of an intent; -1 if it has no name."""
    return -1 if intent.sequence is None else intent.sequence


def _file(name: str, suffix: str) -> str:
    """Return the file for a transaction's name. The prefix distinguishes it from the files of an id."""
    return f"{NOTE_MARK}{quoted(name)}{suffix}"


class PendingTransactions:
    """Intents of one store."""

    def __init__(self, staging: StagingDirectory) -> None:
        self._staging = staging

    @property
    def path(self) -> str:
        """Directory of the intents."""
        return self._staging.directory.path

    @property
    def names(self) -> CommittedNames:
        """Notes of named transactions."""
        return CommittedNames(self._staging.directory)

    # --- reading

    def intents(self) -> list[Intent]:
        """Return the intents that are not completed, oldest first."""
        if not self._staging.exists():
            return []
        found = (self._load(name) for name in self._staging.directory.names() if name.endswith(INTENT))
        return sorted((intent for intent in found if intent is not None), key=lambda intent: intent.at_ms)

    def _load(self, name: str) -> Intent | None:
        """Read an intent. `CorruptFile` if it is damaged: the promised offsets are then unknown."""
        staging = self._staging.directory
        try:
            return Intent.decode(staging.read(name), f"{staging.path}/{name}")
        except CorruptFile as error:
            raise CorruptFile(
                f"{error}. Until then nothing is written to this store; to discard the transaction, remove the file"
            ) from error
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None  # completed by another process meanwhile
            raise

    def is_pending(self, intent: Intent) -> bool:
        """Return whether an intent is committed and not completed."""
        return self._staging.directory.exists(intent.file)

    def last(self, name: str) -> Intent | None:
        """Return the transaction of that name with the highest sequence, completed or not."""
        if not self._staging.exists():
            return None
        # Pending intents first: one that is completed meanwhile is then found as a note.
        known = [intent for intent in self.intents() if intent.name == name]
        note = self.names.find(name)
        return max([*known, *([note] if note is not None else [])], key=sequence_of, default=None)

    # --- the commit point

    def record(self, intent: Intent) -> None:
        """Write an intent. When this returns, the transaction is committed, durably."""
        self._staging.store(intent.file, intent.encode())

    def revoke(self, intent: Intent) -> None:
        """Remove an intent of which no log contains anything."""
        self._staging.directory.remove(intent.file)
        self._staging.directory.sync()

    def settle(self) -> None:
        """Make all names durable: the process that wrote an intent or a note may have died before its sync."""
        self._staging.directory.sync()

    # --- parts

    def applied(self, intent: Intent) -> set[int]:
        """Return the numbers of the parts that are marked as placed."""
        start = f"{intent.id}{APPLIED}"
        found = (name.removeprefix(start) for name in self._staging.directory.names() if name.startswith(start))
        return {int(number) for number in found if number.isdecimal()}

    def unmarked(self, intent: Intent) -> list[tuple[int, Part]]:
        """Return the parts that are not known to be placed, with their numbers."""
        applied = self.applied(intent)
        return [(number, part) for number, part in enumerate(intent.parts) if number not in applied]

    def mark(self, intent: Intent, number: int) -> None:
        """Record durably that a part is placed, or that its topic is deleted. Complete the intent if this was the last
        part and the process that committed it is dead."""
        staging = self._staging.directory
        if staging.exists(intent.file) and number not in self.applied(intent):
            staging.create(f"{intent.id}{APPLIED}{number}").close()
        self.complete_if_done(intent)

    # --- completing

    def complete_if_done(self, intent: Intent) -> None:
        """Complete an intent whose parts are all marked. Leaves it alone if the process that committed it is alive and
        will do so itself, or if another process is committing under the same name."""
        if self.unmarked(intent):
            return
        try:
            owner = lock_owner(self._staging.directory, intent.id)
        except DirectoryLocked:
            return
        try:
            if intent.name is None:
                self.complete(intent)
            else:
                held = self.names.lock(intent.name, Deadline(0.0))
                try:
                    self.complete(intent)
                finally:
                    self.names.unlock(intent.name, held)
            remove_all(self._staging.directory, intent.id)
        except DirectoryLocked:
            pass  # done when the store is next opened
        finally:
            owner.release()

    def complete(self, intent: Intent) -> None:
        """Remove the intent of a fully placed transaction, or turn it into the note of its name."""
        staging = self._staging.directory
        if intent.name is not None:
            self.names.take(intent)
        staging.remove(intent.file)
        staging.sync()
        if intent.name is not None and intent.data:
            self.names.strip(intent.name)

    def forget(self, is_there: Callable[[str], bool]) -> None:
        """Remove notes that are no longer needed; `is_there` tells whether a topic id exists."""
        if self._staging.exists():
            self.names.sweep(is_there)
