"""`Ledger`: which transactions are committed and not completed, and which of their parts are placed.

```
staging/
  <id>.proposal                what an intent will be, before it is committed
  <id>.intent                  committed, not completed
  <id>.at.<n>.<offset>         the n-th part begins at that offset; nothing else is appended there before it is marked
  <id>.applied.<n>             the n-th part is in its log, durably, or its topic is deleted
  <id>.applied.<n>.<offset>    the same, with its offset, if the intent does not name it
  =<name>.committed            the last intent of that name: see notes.py
```

A note and a mark are empty files: the name says everything, and one sync of the directory makes it durable. The note
becomes the mark by a rename. intents.py says how and why.

Threads and processes: any. `propose`, `accept`, `record`, `revoke` and `complete` are for the process that holds the
stage; `note` and `mark` for the one that holds the partition.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from ....clock import Deadline
from ....errors import CorruptFile, DirectoryLocked, StorageError
from .committed_names import Notes, sequence_of
from .intent import INTENT, Intent, Part
from .staging_directory import APPLIED, AT, StagingArea, lock_owner, remove_all

_PROPOSAL = ".proposal"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an intent is placed: the offsets of its parts by number."""

    #: Parts that are begun.
    noted: dict[int, int] = field(default_factory=dict)
    #: Parts that are done; -1 if the intent names the offset, or the topic is deleted.
    applied: dict[int, int] = field(default_factory=dict)


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
        """Intents that are not completed, oldest first."""
        if not self._area.exists():
            return []
        found = (self._load(name) for name in self._area.directory.names() if name.endswith(INTENT))
        return sorted((intent for intent in found if intent is not None), key=lambda intent: intent.at_ms)

    def find(self, id_: str) -> Intent | None:
        """The intent of an id; None if it was not committed, or is completed."""
        return self._load(f"{id_}{INTENT}")

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

    def is_pending(self, intent: Intent) -> bool:
        """Whether an intent is committed and not completed."""
        return self._area.directory.exists(intent.file)

    def last(self, name: str) -> Intent | None:
        """The transaction of that name with the highest number, completed or not."""
        if not self._area.exists():
            return None
        # First those that are not completed: one that is completed meanwhile is then found as a note.
        known = [intent.at(self.progress(intent).applied) for intent in self.pending() if intent.name == name]
        note = self.notes.find(name)
        return max([*known, *([note] if note is not None else [])], key=sequence_of, default=None)

    # --- the commit point

    def record(self, intent: Intent) -> None:
        """Write an intent: when this returns, the transaction is committed, durably."""
        self._area.store(intent.file, intent.encode())

    def propose(self, intent: Intent) -> None:
        """Write down what an intent will be, for others to check. It promises nothing, and does not survive."""
        self._area.store(f"{intent.id}{_PROPOSAL}", intent.encode(), durable=False)

    def proposal(self, id_: str) -> Intent:
        """What was proposed."""
        name = f"{id_}{_PROPOSAL}"
        return Intent.decode(self._area.directory.read(name), f"{self.path}/{name}")

    def accept(self, intent: Intent) -> None:
        """Make the proposal the intent: when this returns, the transaction is committed, durably."""
        staging = self._area.directory
        storage = staging.open(f"{intent.id}{_PROPOSAL}")
        try:
            storage.sync()
        finally:
            storage.close()
        staging.rename(f"{intent.id}{_PROPOSAL}", intent.file)
        staging.sync()

    def revoke(self, intent: Intent) -> None:
        """Remove an intent of which nothing is left in any log."""
        self._area.directory.remove(intent.file)
        self._area.directory.sync()

    def settle(self) -> None:
        """Make every name durable: the process that wrote an intent or a note may have died before it was."""
        self._area.directory.sync()

    # --- parts

    def progress(self, intent: Intent) -> Progress:
        """Which parts are begun, and which are done."""
        found = Progress()
        for name in self._area.directory.names():
            for kind, numbers in ((AT, found.noted), (APPLIED, found.applied)):
                if name.startswith(f"{intent.id}{kind}"):
                    number, _, offset = name.removeprefix(f"{intent.id}{kind}").partition(".")
                    if number.isdecimal() and (offset.isdecimal() or not offset):
                        numbers[int(number)] = int(offset or -1)
        return found

    def unmarked(self, intent: Intent) -> list[tuple[int, Part]]:
        """The parts that are not known to be placed, with their numbers."""
        applied = self.progress(intent).applied
        return [(number, part) for number, part in enumerate(intent.parts) if number not in applied]

    def note(self, intent: Intent, number: int, offset: int, before: int | None = None) -> None:
        """Record durably where a part will begin; instead of `before`, if that was noted."""
        staging, name = self._area.directory, f"{intent.id}{AT}{number}."
        if before is None:
            self._area.store(f"{name}{offset}", b"", durable=False)
        else:
            staging.rename(f"{name}{before}", f"{name}{offset}")
        staging.sync()

    def mark(self, intent: Intent, number: int, offset: int | None = None) -> None:
        """Record durably that a part is done: with an offset, at the one that was noted; else at that of the intent, or
        its topic is deleted. Complete the intent if it was the last, and the process that committed it is dead."""
        staging, name = self._area.directory, f"{intent.id}{APPLIED}{number}"
        if offset is not None:
            staging.rename(f"{intent.id}{AT}{number}.{offset}", f"{name}.{offset}")
            staging.sync()
        elif staging.exists(intent.file) and number not in self.progress(intent).applied:
            staging.create(name).close()
        self.complete_if_done(intent)

    # --- completing

    def complete_if_done(self, intent: Intent) -> None:
        """Complete an intent whose parts are all marked, unless the process that committed it is alive, which does so
        itself, or another process uses one of the same name."""
        if self.unmarked(intent):
            return
        try:
            owner = lock_owner(self._area.directory, intent.id)
        except DirectoryLocked:
            return
        try:
            if intent.name is None:
                self.complete(intent)
            else:
                held = self.notes.lock(intent.name, Deadline(0.0))
                try:
                    self.complete(intent)
                finally:
                    self.notes.unlock(intent.name, held)
            remove_all(self._area.directory, intent.id)
        except DirectoryLocked:
            pass  # done when the store is next opened
        finally:
            owner.release()

    def complete(self, intent: Intent) -> None:
        """The transaction is complete: remove the intent, or make it the note that its number is done."""
        staging = self._area.directory
        names_offsets = intent.names_offsets
        if intent.name is not None and names_offsets:
            self.notes.take(intent)
        elif intent.name is not None and self.is_pending(intent):
            self.notes.put(intent.at(self.progress(intent).applied))
        staging.remove(intent.file)
        staging.sync()
        if intent.name is not None and intent.data and names_offsets:
            self.notes.strip(intent.name)

    def forget(self, is_there: Callable[[str], bool]) -> None:
        """Remove the notes that are no longer needed; `is_there` says whether a topic of that id exists."""
        if self._area.exists():
            self.notes.sweep(is_there)
