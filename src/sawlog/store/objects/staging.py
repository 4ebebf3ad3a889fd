"""`ObjectStaging`: batches that many processes of one job upload, and one of them commits, all or nothing.

A task uploads objects, and says where the batches of which partition are in them; the commit refers to that: no byte is
read or copied, and what it costs grows with the number of extents, not with their bytes. An upload carries the number
of commits that were known when it began; what is not committed in time is void, and is removed later (`floor`).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ...clock import now_ms
from ...closing import Closing
from ...errors import InvalidConfig, TransactionError
from ...log.ingest import checked_rows, rows_of
from ...storage.interface import Buffer
from ..directory.transactions.committed_names import KEPT_MS
from ..directory.transactions.staging import Intent, Part, Piece, PlacedOffsets, check_name, check_replay, merged
from .partition.pieces import Described, append_action, described
from .session import Core, results
from .state.extents import INLINE, STAGED, begun_at, job_of
from .state.state import State

#: An extent of what a job stages is at most this large, unless it is one batch. A commit names every extent, so it
#: should not have many; and whoever looks for one record reads a whole one.
_EXTENT_BYTES = 8 << 20
#: What is for partitions that have little goes into one object, up to this size.
_OBJECT_BYTES = 32 << 20
#: Uploads of one task that are under way.
_UPLOADS = 2


@dataclass(frozen=True, slots=True)
class ObjectPiece(Piece):
    """Batches in an object, and what a commit says of them: [position, bytes, offsets, largest timestamp, digest] of
    each extent."""

    extents: tuple[tuple[Any, ...], ...] = ()

    def joined(self, after: Piece) -> Piece:
        """This piece and what follows it in the same object, as one."""
        assert isinstance(after, ObjectPiece)
        return replace(self, size_bytes=self.size_bytes + after.size_bytes, extents=self.extents + after.extents)


class ObjectTask(Closing):
    """What one attempt of one task stages: objects, uploaded while the task goes on. For one thread."""

    def __init__(self, core: Core, job: str) -> None:
        self._core = core
        #: The commits that were known when the work began.
        self._prefix = f"{STAGED}{core.known():020}-{job}-"
        self._key = self._new_key()
        self._data = bytearray()
        self._pool: ThreadPoolExecutor | None = None
        self._uploads: deque[Future[None]] = deque()
        #: The objects that were stored, or may have been.
        self._keys: list[str] = []
        self._synced = False

    def _new_key(self) -> str:
        return f"{self._prefix}{uuid.uuid4().hex}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return not self._data and not self._keys

    def write(self, batches: Buffer) -> Piece:
        """Add finished batches and return where they are, for a `Part`."""
        self._check_open()
        position = len(self._data)
        self._data += batches
        piece = _piece(self._key, position, batches)
        if len(self._data) >= _OBJECT_BYTES:
            self._upload_shared()
        return piece

    def own_file(self) -> OwnObjects:
        """For the batches of one partition, if they are many."""
        return OwnObjects(self)

    def write_alone(self, batches: Buffer) -> Piece:
        """Store finished batches in an object of their own."""
        self._check_open()
        key = self._new_key()
        self._upload(key, bytes(batches))
        return _piece(key, 0, batches)

    def _check_open(self) -> None:
        if self._synced:
            raise TransactionError("what this task has staged is stored already")

    def _upload_shared(self) -> None:
        data, self._data = bytes(self._data), bytearray()
        self._upload(self._key, data)
        self._key = self._new_key()

    def _upload(self, key: str, data: bytes) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="sawlog-upload")
        while len(self._uploads) >= _UPLOADS:
            self._uploads.popleft().result()
        self._keys.append(key)
        self._uploads.append(self._pool.submit(self._core.bucket.put, key, data))

    def sync(self) -> None:
        """Upload what was written; durable when it returns."""
        if self._data:
            self._upload_shared()
        while self._uploads:
            self._uploads.popleft().result()
        self._synced = not self.is_empty

    def abandon(self) -> None:
        """This attempt failed: remove what it has written."""
        self._data.clear()
        for upload in self._uploads:
            upload.cancel()
        self.close()
        self._core.bucket.delete_many(self._keys)
        self._keys.clear()

    def close(self) -> None:
        """What is staged is kept."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class OwnObjects:
    """The batches of one partition: an object for each call."""

    def __init__(self, task: ObjectTask) -> None:
        self._task = task

    @property
    def size_bytes(self) -> int:
        """Nothing is ever added to an object."""
        return 0

    def write(self, batches: Buffer) -> Piece:
        """Store finished batches."""
        return self._task.write_alone(batches)


def _piece(key: str, position: int, batches: Buffer) -> ObjectPiece:
    """Where batches are, and their extents, with positions in the object."""
    rows = rows_of(memoryview(batches)).copy()
    rows[:, 0] += position
    extents = tuple(tuple(each) for each in described(rows, _EXTENT_BYTES).extents)
    return ObjectPiece(key, position, len(batches), 0, extents)


class ObjectStaging:
    """The staging area of a store on object storage."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def task(self, job: str) -> ObjectTask:
        """A place for one attempt of one task."""
        if not job or not job.replace("-", "").replace("_", "").isalnum():
            raise InvalidConfig(f"a job is named by letters, digits, - and _, not {job!r}")
        return ObjectTask(self._core, job)

    def put(self, job: str, data: bytes) -> str:
        """Store batches in an object of their own, and return its key, for pieces."""
        self._core.check_writable()
        with self.task(job) as staged:
            piece = staged.write_alone(data)
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
        """Commit what was staged and return the offsets; for a number that was published under that name before,
        nothing is placed again, and there are none. `ReplayMismatch` if that number has different records. There is no
        lock to wait for."""
        check_name(name, sequence)
        wanted = list(parts)
        actions: list[dict[str, object]] = []
        inline: list[bytes] = []
        if name is not None:
            actions.append(once_action(name, sequence, wanted))
        for part in wanted:
            for piece in part.pieces:
                key = piece.file or INLINE
                actions.append(append_action(part.topic_id, part.partition, key, self._described(piece, data), None))
                if not piece.file:
                    inline.append(data[piece.position : piece.position + piece.size_bytes])
        if not actions:
            return {}
        outcome = self._core.submit(actions, inline).result()
        if "no" in outcome and outcome["no"][0] == "Done":
            check_repeated(self._core, name, sequence, wanted)
            return {}
        found = results(outcome)[0 if name is None else 1 :]
        return _offsets(wanted, found)

    def _described(self, piece: Piece, data: bytes) -> Described:
        """What the commit says of staged batches: as the task that has made them says, or by reading them."""
        if isinstance(piece, ObjectPiece) and piece.extents:
            extents = [list(each) for each in piece.extents]
            return Described(extents, [], [], sum(each[2] for each in extents))
        if piece.file:
            content = self._core.bucket.get_range(piece.file, piece.position, piece.size_bytes)
            start = piece.position
        else:
            content, start = data[piece.position : piece.position + piece.size_bytes], 0
        rows = checked_rows(memoryview(content)).copy()
        rows[:, 0] += start
        return described(rows)

    def last(self, name: str) -> Intent | None:
        """What was published last under a name."""
        return stored_under(self._core, name)

    def replay_of(self, job: str, find: Callable[[], Intent | None], *, lock_timeout_s: float = 60.0) -> Intent | None:
        """What was stored before in place of this job, as `find` returns it; then the job is given up. A commit that is
        on its way need not be waited for: only one of two commits with the same name and number is applied."""
        found = find()
        if found is not None:
            self.discard(job)
        return found

    def forget_names(self) -> None:
        """Drop the names under which nothing was published for a month."""
        before_ms = now_ms() - KEPT_MS
        names = self._core.look(lambda state: state.names_before(before_ms))
        if names:
            self._core.commit([{"do": "forget names", "names": names, "before_ms": before_ms}])

    def discard(self, job: str) -> None:
        """Give a job up. A commit of it that is still on its way is void from now on; one that was made before stands,
        and what it refers to is kept."""
        self._core.commit([{"do": "void", "job": job}])

        def view(state: State) -> tuple[int, set[str]]:
            return state.voided(job), state.referenced()

        voided, referenced = self._core.look(view, fresh=True)  # after the commit: only that makes it safe to delete
        for entry in self._core.bucket.list(STAGED):
            # What was begun later may be adopted when the floor has passed, and the job is forgotten.
            if job_of(entry.key) == job and begun_at(entry.key) <= voided and entry.key not in referenced:
                self._core.bucket.delete(entry.key)


def once_action(name: str, sequence: int | None, parts: Iterable[Part]) -> dict[str, object]:
    """The rest of the request happens once under this name and number; says what it stores, for a later replay."""
    said = [[part.topic, part.topic_id, part.partition, part.count, f"{part.digest:016x}"] for part in merged(parts)]
    return {"do": "once", "name": name, "sequence": sequence or 0, "time_ms": now_ms(), "parts": said}


def stored_under(core: Core, name: str) -> Intent | None:
    """The last transaction of a name, without offsets; without an id if its records are not known."""
    last = core.look(lambda state: state.last_of(name), fresh=True)
    if last is None:
        return None
    sequence, at_ms, said = last
    if said is None:
        return Intent("", (), name, sequence)
    parts = (Part(topic, id_, number, count, (), digest=int(digest, 16)) for topic, id_, number, count, digest in said)
    return Intent(name, tuple(parts), name, sequence, at_ms=at_ms)


def check_repeated(core: Core, name: str | None, sequence: int | None, parts: list[Part]) -> None:
    """Raise `ReplayMismatch` if a number that is stored under a name has different records."""
    last = None if name is None else stored_under(core, name)
    if last is not None:
        check_replay(last, sequence or 0, parts)


def _offsets(parts: list[Part], found: list[object]) -> PlacedOffsets:
    """Where each part is: its pieces follow each other, unless parts of one partition are mixed with others."""
    placed: dict[tuple[str, int], range] = {}
    results = iter(found)
    for part in parts:
        for _ in part.pieces:
            first, end = next(results)  # type: ignore[misc]
            before = placed.get(part.order)
            placed[part.order] = range(first if before is None else before.start, end)  # type: ignore[has-type]
    return placed
