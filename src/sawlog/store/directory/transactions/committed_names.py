"""`CommittedNames`: the last committed sequence of each named transaction, as notes in `staging/`.

```
=<name>.name           locked while a transaction of that name commits; removed afterwards
=<name>.committed      the last intent of that name, without its batches
```

A note identifies a replay, so it is kept as long as a replay is possible: until all its topics are deleted (a recreated
topic has another id), or until nothing was committed under the name for `KEPT_MS`. That bounds the number of notes to
the names used in the last weeks.

An intent becomes the note by a rename, which costs nothing. Its batches are truncated once the rename is durable,
without a sync: after a power cut they may reappear, and `sweep` truncates them again.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import replace

from ....clock import Deadline, now_ms
from ....errors import CorruptFile, DirectoryLocked, SawlogError, StorageError
from ....storage import Directory, Lock, checksummed
from ...names import quoted
from .intent import Intent, end_of_document

#: How long an unused name is remembered. A query that is restarted later, after being killed between a commit and
#: Spark's own record of it, stores that micro-batch twice.
KEPT_MS = 30 * 24 * 3600 * 1000
_NAME, _COMMITTED = ".name", ".committed"
_MARK = "="

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
            raise CorruptFile(f"{error}. Without it, it is unknown what was stored under this name") from error
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

    def put(self, intent: Intent) -> None:
        """Like `take`, for an intent whose file lacks the offsets: write a note with them. The file stays."""
        assert intent.name is not None
        known = self.find(intent.name)
        if known is None or sequence_of(known) < sequence_of(intent):
            checksummed.store(self._staging, _file(intent.name, _COMMITTED), replace(intent, data=b"").fields())

    def strip(self, name: str) -> None:
        """Truncate the batches of a note whose name is durable. Earlier, a power cut could turn it back into an intent
        that needs them."""
        self._strip(_file(name, _COMMITTED))

    def _strip(self, file: str) -> None:
        end = end_of_document(self._staging.read(file))
        storage = self._staging.open(file)
        try:
            if storage.size > end:
                storage.truncate(end)
        finally:
            storage.close()

    # --- cleaning up

    def sweep(self, is_there: Callable[[str], bool]) -> None:
        """Remove the notes of names that can no longer be replayed; `is_there` tells whether a topic id exists. Names
        in use are skipped."""
        for file in self._staging.names():
            if not file.startswith(_MARK):
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


def is_note(file: str) -> bool:
    """Return whether a file in `staging/` belongs to a name rather than to a transaction id."""
    return file.startswith(_MARK)


def _file(name: str, suffix: str) -> str:
    """Return the file for a transaction's name. The prefix distinguishes it from the files of an id."""
    return f"{_MARK}{quoted(name)}{suffix}"
