"""What named transactions leave in `staging/`: the note that a number is done.

```
=<name>.name           locked while a transaction of that name commits; removed when it has
=<name>.committed      the last intent of that name, without its batches
```

A note identifies a replay, so it is kept as long as a replay is possible: until the topics in it are all deleted (a
recreated topic has another id), or nothing was committed under the name for `KEPT_MS`. So the notes that accumulate are
limited to those of the last weeks.

The intent becomes the note by a rename, which costs nothing. Its batches are cut off when that is durable, without a
sync: after a power cut they may be there again, and `sweep` cuts them off.
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

#: How long an unused name is remembered: a query that is restarted after that, and had been killed between a commit
#: and Spark's own record of it, stores that micro-batch twice.
KEPT_MS = 30 * 24 * 3600 * 1000
_NAME, _COMMITTED = ".name", ".committed"
_MARK = "="

_logger = logging.getLogger("sawlog")


class Notes:
    """The notes of one store. Safe for threads and processes."""

    def __init__(self, staging: Directory) -> None:
        self._staging = staging

    # --- one name at a time

    def lock(self, name: str, deadline: Deadline) -> Lock:
        """Prevent others from committing under a name; `DirectoryLocked` if another process does for too long."""
        while True:
            try:
                held = self._staging.lock(_file(name, _NAME), alone=False)
            except DirectoryLocked as error:
                deadline.pause(or_raise=error)
            else:
                if held.current:
                    return held
                held.release()  # the previous holder has removed the file that we locked

    def unlock(self, name: str, held: Lock) -> None:
        """Release the lock, and remove its file."""
        try:
            if held.held:
                self._staging.remove(_file(name, _NAME))
        except StorageError as error:
            _logger.warning("will be removed later: %s", error)
        finally:
            held.release()

    # --- reading

    def find(self, name: str) -> Intent | None:
        """The last transaction of that name that is completed."""
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
        """Make a completed intent the note of its name, unless a later one is. The caller has locked the name, and
        syncs the directory."""
        assert intent.name is not None
        file, known = _file(intent.name, _COMMITTED), self.find(intent.name)
        if self._staging.exists(intent.file) and (known is None or sequence_of(known) < sequence_of(intent)):
            self._staging.rename(intent.file, file)

    def put(self, intent: Intent) -> None:
        """As `take`, for an intent whose file does not have the offsets: the note gets them. The file stays."""
        assert intent.name is not None
        known = self.find(intent.name)
        if known is None or sequence_of(known) < sequence_of(intent):
            checksummed.store(self._staging, _file(intent.name, _COMMITTED), replace(intent, data=b"").fields())

    def strip(self, name: str) -> None:
        """Cut off the batches of a note whose name is durable: if a power cut made it an intent again, it would need
        them."""
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
        """Forget the names that can no longer be replayed: `is_there` says whether a topic of that id exists. Names in
        use are skipped."""
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
    """Its sequence; -1 for one without a name."""
    return -1 if intent.sequence is None else intent.sequence


def is_note(file: str) -> bool:
    """Whether a file in `staging/` belongs to a name, and not to the id of one transaction."""
    return file.startswith(_MARK)


def _file(name: str, suffix: str) -> str:
    """A file for a transaction's name. Its prefix distinguishes it from the files of an id."""
    return f"{_MARK}{quoted(name)}{suffix}"
