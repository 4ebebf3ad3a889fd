"""`Staging`: batches that many processes of one job make, and one of them stores, all or nothing.

```python
with store.staging.task(job) as staged:       # in each task, and in each attempt of it
    piece = staged.write(batches)             # finished batches: only their offsets are missing
    staged.sync()                             # then send the pieces to the process that publishes

store.staging.publish(job, parts)             # once; or discard(job)
```

A job is identified in all its processes by an id of letters, digits, - and _. What tasks stage is not part of the store
before it is published, so a task opens the store read only: staging takes no lock, and completes and removes nothing
for others. What is not published within a day is removed. `intents.py` explains how it is stored.

This is the whole interface for a job: names, leases and intents are internal.

Threads: any; a `TaskStage` is for one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable

from ....closing import Closing
from ....errors import TopicNotFound
from ....log.log import Log
from ....storage.interface import Buffer
from ..topic import Topic
from .buffers import OwnFile, Parcel
from .commits import INLINE_BYTES, Intents
from .intent import DIGESTS, Intent, Part, Piece, check_name, check_replay, merged, records_by_topic, stored_and_now
from .placement import ADOPT_BYTES
from .staging_directory import StagedFile, StagingArea
from .transaction import PlacedOffsets

__all__ = [
    "ADOPT_BYTES",
    "DIGESTS",
    "INLINE_BYTES",
    "Intent",
    "OwnFile",
    "Parcel",
    "Part",
    "Piece",
    "PlacedOffsets",
    "StagedFile",
    "Staging",
    "TaskStage",
    "check_name",
    "check_replay",
    "merged",
    "records_by_topic",
    "stored_and_now",
]


class TaskStage(Closing):
    """What one attempt of one task stages: its own files, created when they are first needed. `Staging.task` returns
    it."""

    def __init__(self, area: StagingArea, job: str) -> None:
        self._area = area
        self._job = job
        self._label = uuid.uuid4().hex
        #: By label; the first one is for what has no file of its own.
        self._files: dict[str, StagedFile] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return not self._files

    def write(self, batches: Buffer) -> Piece:
        """Append finished batches to the file of this attempt and return where they are, for a `Part`."""
        return (self._files.get(self._label) or self._file(self._label)).write(batches)

    def own_file(self) -> StagedFile:
        """A new file for the batches of one partition (`Parcel.move_alone`): if it is large, it becomes a segment as it
        is."""
        return self._file(f"{self._label}-{len(self._files)}")

    def _file(self, label: str) -> StagedFile:
        if not self._files:
            self._area.lend(self._job, self._label)
        made = self._files[label] = self._area.file(self._job, label)
        return made

    def sync(self) -> None:
        """Return when everything written survives a power cut, once it is published."""
        for file in self._files.values():
            file.sync()

    def abandon(self) -> None:
        """This attempt failed: remove what it has written."""
        for label in {*self._files, self._label}:
            self._area.withdraw(self._job, label)

    def close(self) -> None:
        """Close the files; what is staged is kept."""
        for file in self._files.values():
            file.close()


class Staging:
    """The staging area of a store. `Store.staging` returns it."""

    def __init__(
        self,
        intents: Intents,
        topic_of: Callable[[str], Topic],
        topic_ids: Callable[[], set[str]],
        committing: threading.RLock,
        check_writable: Callable[[], None],
    ) -> None:
        self._intents = intents
        self._topic_of = topic_of
        #: The ids of all topics that exist.
        self._topic_ids = topic_ids
        self._committing = committing
        self._check_writable = check_writable

    # --- in the tasks

    def task(self, job: str) -> TaskStage:
        """A place for one attempt of one task, also in a store that is opened read only."""
        return TaskStage(self._intents.area, job)

    # --- for the process that publishes

    def put(self, job: str, data: bytes) -> str:
        """Stage batches in a separate file, durably, and return its name, for the pieces."""
        self._check_writable()
        with self.task(job) as staged:
            piece = staged.write(data)
            staged.sync()
        return piece.file

    def publish(
        self,
        job: str,
        parts: Iterable[Part],
        *,
        data: bytes = b"",
        name: str | None = None,
        sequence: int | None = None,
        lock_timeout_s: float = 60.0,
    ) -> PlacedOffsets:
        """Place what was staged, as a transaction, and return the offsets. Pieces without a file are in `data`.

        Files of the job that are in no part, from failed attempts, are removed. If it raises, nothing was stored and
        everything is still staged, except if the error is `TransactionPending`. `ReplayMismatch` if this number is
        stored under this name with different records.
        """
        self._check_writable()
        wanted = list(parts)
        with self._committing:
            held = self._intents.area.adopt(job, timeout_s=lock_timeout_s)
            try:
                placed: PlacedOffsets = {}
                if wanted or name is not None:
                    placed = self._intents.commit(
                        held,
                        wanted,
                        self._log_of,
                        data=data,
                        name=name,
                        sequence=sequence,
                        lock_timeout_s=lock_timeout_s,
                    ).offsets
            except BaseException:
                held.leave()
                raise
            held.end()
        return placed

    def _log_of(self, part: Part) -> Log:
        topic = self._topic_of(part.topic)
        if topic.id != part.topic_id:
            raise TopicNotFound(f"the topic {part.topic!r} was deleted and recreated while it was being written to")
        return topic.partition(part.partition)

    def forget_names(self) -> None:
        """Remove the notes of named transactions that can no longer be replayed: their topics are deleted, or nothing
        was committed under that name for a month. Upkeep does it."""
        self._check_writable()
        there: set[str] = set()
        gone: set[str] = set()

        def is_there(topic_id: str) -> bool:
            if topic_id not in there and topic_id not in gone:  # it existed once: a deleted topic does not come back
                there.update(self._topic_ids())
                gone.update({topic_id} - there)
            return topic_id in there

        self._intents.ledger.forget(is_there)

    def discard(self, job: str) -> None:
        """Remove what was staged, unless it was published and is not completed yet."""
        self._check_writable()
        with self._committing:
            self._intents.area.discard(job)

    def last(self, name: str) -> Intent | None:
        """What was published last under a name: the highest number, completed or not."""
        return self._intents.ledger.last(name)

    def replay_of(self, job: str, find: Callable[[], Intent | None], *, lock_timeout_s: float = 60.0) -> Intent | None:
        """What was stored before in place of this job, as `find` returns it; then what is now staged for it is removed.

        A commit of the same job may be in progress, by a process that was considered dead: waits for it, so that `find`
        sees it.
        """
        self._check_writable()
        held = self._intents.area.adopt(job, timeout_s=lock_timeout_s)
        try:
            found = find()
        except BaseException:
            held.leave()
            raise
        (held.leave if found is None else held.end)()
        return found
