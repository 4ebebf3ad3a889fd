"""`Ledger`: which transactions are committed and not completed, and which of their parts are placed.

```
staging/
  <id>.intent            committed, not completed
  <id>.applied.<n>       the n-th part of the intent is in its log, durably
  =<name>.committed      the last intent of that name: see notes.py
```

intents.py says how and why.

Threads and processes: any. `record`, `revoke` and `complete` are for the process that holds the stage.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from ...clock import Deadline
from ...errors import CorruptFile, DirectoryLocked, StorageError
from .area import StagingArea
from .intent import INTENT, Intent, Part
from .notes import Notes, sequence_of
from .stage import remove_all

_APPLIED = ".applied."


class Ledger:
    """The intents of one store."""

    def __init__(self, area: StagingArea) -> None:
        self._area = area

    @property
    def path(self) -> str:
        """The directory that contains the intents."""
        return self._area.directory.path

    @property
    def notes(self) -> Notes:
        """What named transactions have left."""
        return Notes(self._area.directory)

    # --- reading

    def pending(self) -> list[Intent]:
        """Intents that are not completed, in any order."""
        if not self._area.exists():
            return []
        found = (self._load(name) for name in self._area.directory.names() if name.endswith(INTENT))
        return [intent for intent in found if intent is not None]

    def _load(self, name: str) -> Intent | None:
        """An intent; `CorruptFile` if it is damaged: then it is unknown which offsets are promised."""
        staging = self._area.directory
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

    def last(self, name: str) -> Intent | None:
        """The transaction of that name with the highest number, completed or not."""
        if not self._area.exists():
            return None
        # First those that are not completed: one that is completed meanwhile is then found as a note.
        known = [intent for intent in self.pending() if intent.name == name]
        note = self.notes.find(name)
        return max([*known, *([note] if note is not None else [])], key=sequence_of, default=None)

    # --- the commit point

    def record(self, intent: Intent) -> None:
        """Write an intent: when this returns, the transaction is committed, durably."""
        self._area.store(intent.file, intent.encode())

    def revoke(self, intent: Intent) -> None:
        """Remove an intent of which nothing is left in any log."""
        self._area.directory.remove(intent.file)
        self._area.directory.sync()

    def settle(self) -> None:
        """Make every name durable: the process that wrote an intent may have died before its name was."""
        self._area.directory.sync()

    # --- parts

    def _mark_name(self, intent: Intent, number: int) -> str:
        return f"{intent.id}{_APPLIED}{number}"

    def is_marked(self, intent: Intent, number: int) -> bool:
        """Whether a part is done."""
        return self._area.directory.exists(self._mark_name(intent, number))

    def unmarked(self, intent: Intent) -> list[tuple[int, Part]]:
        """The parts that nobody has placed since the intent was left, with their numbers."""
        return [(n, part) for n, part in enumerate(intent.parts) if not self.is_marked(intent, n)]

    def mark(self, intent: Intent, number: int) -> None:
        """Record durably that a part is done, and complete the intent if it was the last."""
        if self._area.directory.exists(intent.file) and not self.is_marked(intent, number):
            self._area.directory.create(self._mark_name(intent, number)).close()
        self.complete_if_done(intent)

    # --- completing

    def complete_if_done(self, intent: Intent) -> None:
        """Complete an intent whose parts are all marked, unless another process uses one of the same name."""
        if self.unmarked(intent):
            return
        if intent.name is None:
            self.complete(intent)
        else:
            try:
                held = self.notes.lock(intent.name, Deadline(0.0))
            except DirectoryLocked:
                return  # done when the store is next opened
            try:
                self.complete(intent)
            finally:
                self.notes.unlock(intent.name, held)
        remove_all(self._area.directory, intent.id)

    def complete(self, intent: Intent) -> None:
        """The transaction is complete: remove the intent, or make it the note that its number is done."""
        staging = self._area.directory
        if intent.name is not None:
            self.notes.take(intent)
        staging.remove(intent.file)
        staging.sync()
        if intent.name is not None and intent.data:
            self.notes.strip(intent.name)

    def forget(self, is_there: Callable[[str], bool]) -> None:
        """Remove the notes that are no longer needed; `is_there` says whether a topic of that id exists."""
        if self._area.exists():
            self.notes.sweep(is_there)
