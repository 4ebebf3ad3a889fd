"""`Staging`: batches that many processes of one job write, and one of them publishes, all or nothing.

```python
with store._staging.task(job) as staged:       # in each task, and in each attempt of it
    piece = staged.write(batches)             # complete batches: only their offsets are missing
    staged.sync()                             # then send the pieces to the process that publishes

store._staging.publish(job, parts)             # once; or discard(job)
```

All processes identify a job by the same id of letters, digits, - and _. Staged batches are not part of the store until
they are published, so a task opens the store read only: staging takes no lock, and completes and removes nothing for
other processes. Batches that are not published within a day are removed. `commits` explains how they are stored.

This is the complete interface for a job; names, leases and intents are internal.

Thread-safe, except that a `StagedTask` is for one thread.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable

from ....errors import TopicNotFound
from ....log.log import Log
from ....storage.interface import Buffer
from ...base import JobStaging, TaskStaging
from ..topic import DirectoryTopic
from .commits import INLINE_BYTES, Intents
from .intent import DIGESTS, Intent, Part, Piece, check_name, check_replay, merged, records_by_topic, stored_and_now
from .placement import ADOPT_BYTES
from .staging_directory import StagedFile, StagingDirectory
from .transaction import PartitionBuffer, PartitionFile, PlacedOffsets

__all__ = [
    "ADOPT_BYTES",
    "DIGESTS",
    "INLINE_BYTES",
    "Intent",
    "Part",
    "PartitionBuffer",
    "PartitionFile",
    "Piece",
    "PlacedOffsets",
    "StagedFile",
    "StagedTask",
    "Staging",
    "check_name",
    "check_replay",
    "merged",
    "records_by_topic",
    "stored_and_now",
]


class StagedTask(TaskStaging):
    """Files staged by one attempt of one task, created on demand. Returned by `Staging.task`."""

    def __init__(self, staging: StagingDirectory, job: str) -> None:
        self._staging = staging
        self._job = job
        self._label = uuid.uuid4().hex
        #: Files by label. The first one is for batches without a file of their own.
        self._files: dict[str, StagedFile] = {}

    @property
    def is_empty(self) -> bool:
        return not self._files

    def write(self, batches: Buffer) -> Piece:
        return (self._files.get(self._label) or self._file(self._label)).write(batches)

    def own_file(self) -> StagedFile:
        """Create a file for the batches of one partition (`PartitionBuffer.move_alone`). A large one becomes a segment
        unchanged."""
        return self._file(f"{self._label}-{len(self._files)}")

    def _file(self, label: str) -> StagedFile:
        if not self._files:
            self._staging.lend(self._job, self._label)
        made = self._files[label] = self._staging.file(self._job, label)
        return made

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()

    def abandon(self) -> None:
        for label in {*self._files, self._label}:
            self._staging.withdraw(self._job, label)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Staging(JobStaging):
    """Job staging of a store. Returned by `Store._staging`."""

    def __init__(
        self,
        intents: Intents,
        topic_of: Callable[[str], DirectoryTopic],
        topic_ids: Callable[[], set[str]],
        committing: threading.RLock,
        check_writable: Callable[[], None],
    ) -> None:
        self._intents = intents
        self._topic_of = topic_of
        #: Returns the ids of all existing topics.
        self._topic_ids = topic_ids
        self._committing = committing
        self._check_writable = check_writable

    # --- in the tasks

    def task(self, job: str) -> StagedTask:
        """Begin one attempt of one task. Also works in a store that is open read only."""
        return StagedTask(self._intents.staging, job)

    # --- for the process that publishes

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
        """Commit the staged batches as a transaction and return their offsets. Pieces without a file are in `data`.

        Files of the job that no part refers to, from failed attempts, are removed. If this raises, nothing was stored
        and everything is still staged, unless the error is `TransactionPending`. `ReplayMismatch` if this sequence is
        stored under this name with different records.
        """
        self._check_writable()
        wanted = list(parts)
        with self._committing:
            held = self._intents.staging.adopt(job, timeout_s=lock_timeout_s)
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
        was committed under the name for a month. Maintenance calls it."""
        self._check_writable()
        there: set[str] = set()
        gone: set[str] = set()

        def is_there(topic_id: str) -> bool:
            if topic_id not in there and topic_id not in gone:  # topic ids are never reused
                there.update(self._topic_ids())
                gone.update({topic_id} - there)
            return topic_id in there

        self._intents.pending.forget(is_there)

    def discard(self, job: str) -> None:
        """Remove the staged files, unless they were published and the transaction is not completed yet."""
        self._check_writable()
        with self._committing:
            self._intents.staging.discard(job)

    def last(self, name: str) -> Intent | None:
        return self._intents.pending.last(name)

    def replay_of(self, job: str, find: Callable[[], Intent | None], *, lock_timeout_s: float = 60.0) -> Intent | None:
        """Return the stored transaction that this job would repeat, as `find` returns it, and remove the job's staged
        files if there is one.

        A process that was presumed dead may still be committing the same job: block until it is done, so that `find`
        sees the result.
        """
        self._check_writable()
        held = self._intents.staging.adopt(job, timeout_s=lock_timeout_s)
        try:
            found = find()
        except BaseException:
            held.leave()
            raise
        (held.leave if found is None else held.end)()
        return found
