"""Batches for many partitions in one commit: `ObjectTransaction` for programs, `ObjectStaging` for jobs of many
processes, all of which upload and one of which commits.

A task uploads objects and reports where the batches of each partition are in them. The commit refers to these locations
and reads or copies nothing, so its cost grows with the number of extents, not with their size. The key of an upload
contains the number of commits that were known when it began. An upload that is not committed in time is void and is
deleted later (`floor`).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ...batch.inputs import RecordInput
from ...clock import now_ms
from ...errors import AmbiguousAppend, InvalidConfig, TransactionAborted, TransactionError
from ...log.ingest import checked_rows, rows_of
from ...storage.interface import Buffer
from ..base import JobStaging, TaskStaging, Transaction
from ..directory.transactions.pending import KEPT_MS
from ..directory.transactions.staging import Intent, Part, Piece, PlacedOffsets, check_name, check_replay, merged
from .session import StoreSession, refused_with, results
from .state.commit import INLINE, STAGED, BatchDescription, append_action, begun_at, described, job_of
from .topic import ObjectTopic

#: Maximum size of a staged extent, unless it is one batch. A commit lists every extent, so there should not be many;
#: and looking up one record reads a whole extent.
_EXTENT_BYTES = 8 << 20
#: Size up to which the batches of small partitions share an object.
_OBJECT_BYTES = 32 << 20
#: Maximum number of uploads of one task in flight.
_UPLOADS = 2


@dataclass(frozen=True, slots=True)
class ObjectPiece(Piece):
    """Batches in an object, and their extents as a commit describes them: [position, bytes, offsets, largest timestamp,
    digest]."""

    extents: tuple[tuple[Any, ...], ...] = ()

    def joined(self, after: Piece) -> Piece:
        assert isinstance(after, ObjectPiece)
        return replace(self, size_bytes=self.size_bytes + after.size_bytes, extents=self.extents + after.extents)


class ObjectTask(TaskStaging):
    """The staged objects of one attempt of a task, uploaded in the background. Not thread-safe."""

    def __init__(self, session: StoreSession, job: str) -> None:
        self._session = session
        #: The prefix contains the number of commits known when the work began.
        self._prefix = f"{STAGED}{session.known():020}-{job}-"
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
        return not self._data and not self._keys

    def write(self, batches: Buffer) -> Piece:
        self._check_open()
        position = len(self._data)
        self._data += batches
        piece = _piece(self._key, position, batches)
        if len(self._data) >= _OBJECT_BYTES:
            self._upload_shared()
        return piece

    def own_file(self) -> OwnObjects:
        return OwnObjects(self)

    def write_alone(self, batches: Buffer) -> Piece:
        """Upload finished batches to an object of their own."""
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
        self._uploads.append(self._pool.submit(self._session.bucket.put, key, data))

    def sync(self) -> None:
        """Upload everything that was written; durable on return."""
        if self._data:
            self._upload_shared()
        while self._uploads:
            self._uploads.popleft().result()
        self._synced = not self.is_empty

    def abandon(self) -> None:
        self._data.clear()
        for upload in self._uploads:
            upload.cancel()
        self.close()
        self._session.bucket.delete_many(self._keys)
        self._keys.clear()

    def close(self) -> None:
        """Stop the upload threads. Staged objects are kept."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class OwnObjects:
    """Writer for the batches of one partition: an object per call."""

    def __init__(self, task: ObjectTask) -> None:
        self._task = task

    @property
    def size_bytes(self) -> int:
        """Always 0: objects are never appended to."""
        return 0

    def write(self, batches: Buffer) -> Piece:
        return self._task.write_alone(batches)


def _piece(key: str, position: int, batches: Buffer) -> ObjectPiece:
    """Return the location of batches and their extents, with positions in the object."""
    rows = rows_of(memoryview(batches)).copy()
    rows[:, 0] += position
    extents = tuple(tuple(each) for each in described(rows, _EXTENT_BYTES).extents)
    return ObjectPiece(key, position, len(batches), 0, extents)


class ObjectStaging(JobStaging):
    """The staging area of a store on object storage."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        self._check_writable = session.check_writable

    def task(self, job: str) -> ObjectTask:
        if not job or not job.replace("-", "").replace("_", "").isalnum():
            raise InvalidConfig(f"a job is named by letters, digits, - and _, not {job!r}")
        return ObjectTask(self._session, job)

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
        """Commit staged batches and return their offsets. If this number was published under the name before, nothing
        is placed again and the result is empty; raises `ReplayMismatch` if its records differ. There is no lock to wait
        for."""
        check_name(name, sequence)
        wanted = list(parts)
        actions: list[dict[str, object]] = []
        inline: list[bytes] = []
        for part in wanted:
            for piece in part.pieces:
                key = piece.file or INLINE
                actions.append(append_action(part.topic_id, part.partition, key, self._described(piece, data), None))
                if not piece.file:
                    inline.append(data[piece.position : piece.position + piece.size_bytes])
        found = commit_once(self._session, name, sequence, wanted, actions, inline)
        return {} if found is None else _offsets(wanted, found)

    def _described(self, piece: Piece, data: bytes) -> BatchDescription:
        """Describe staged batches for a commit: as reported by the task that staged them, or by reading them."""
        if isinstance(piece, ObjectPiece) and piece.extents:
            extents = [list(each) for each in piece.extents]
            return BatchDescription(extents, [], [], sum(each[2] for each in extents))
        if piece.file:
            content = self._session.bucket.get_range(piece.file, piece.position, piece.size_bytes)
            start = piece.position
        else:
            content, start = data[piece.position : piece.position + piece.size_bytes], 0
        rows = checked_rows(memoryview(content)).copy()
        rows[:, 0] += start
        return described(rows)

    def last(self, name: str) -> Intent | None:
        return stored_under(self._session, name)

    def replay_of(self, job: str, find: Callable[[], Intent | None], *, lock_timeout_s: float = 60.0) -> Intent | None:
        """Return the earlier result that replaces this job, as found by `find`, and abandon the job. There is no need
        to wait for a commit in flight: only one of two commits with the same name and number is applied."""
        found = find()
        if found is not None:
            self.discard(job)
        return found

    def forget_names(self) -> None:
        before_ms = now_ms() - KEPT_MS
        names = self._session.look(lambda state: state.names_before(before_ms))
        if names:
            self._session.commit([{"do": "forget names", "names": names, "before_ms": before_ms}])

    def discard(self, job: str) -> None:
        """Abandon a job. A commit of it that is still in flight is void from now on; an earlier one stands, and its
        objects are kept."""
        self._session.commit([{"do": "void", "job": job}])

        # Only a state after the commit makes it safe to delete.
        voided, referenced = self._session.look(lambda state: (state.voided(job), state.referenced()), fresh=True)
        for entry in self._session.bucket.list(STAGED):
            # Later uploads may be adopted once the floor has passed and the job is forgotten.
            is_void = job_of(entry.key) == job and (begun_at(entry.key) or 0) <= voided
            if is_void and entry.key not in referenced:
                self._session.bucket.delete(entry.key)


def commit_once(
    session: StoreSession,
    name: str | None,
    sequence: int | None,
    parts: list[Part],
    actions: Sequence[Mapping[str, Any]],
    inline: Sequence[bytes],
) -> list[object] | None:
    """Commit the actions that store these parts, and return their results. With a name the request is idempotent: None
    if this number is stored under it already. Raises `ReplayMismatch` if it is stored with different records."""
    if name is None:
        return session.commit(actions, inline) if actions else []
    said = [[part.topic, part.topic_id, part.partition, part.count, f"{part.digest:016x}"] for part in merged(parts)]
    once = {"do": "once", "name": name, "sequence": sequence or 0, "time_ms": now_ms(), "parts": said}
    outcome = session.submit([once, *actions], inline).result()
    if refused_with(outcome) != "Done":
        return results(outcome)[1:]
    if parts and (last := stored_under(session, name)) is not None:
        check_replay(last, sequence or 0, parts)
    return None


def stored_under(session: StoreSession, name: str) -> Intent | None:
    """Return the last transaction of a name, without offsets; without an id if its records are unknown."""
    last = session.look(lambda state: state.last_of(name), fresh=True)
    if last is None:
        return None
    sequence, at_ms, said = last
    if said is None:
        return Intent("", (), name, sequence)
    parts = (Part(topic, id_, number, count, (), digest=int(digest, 16)) for topic, id_, number, count, digest in said)
    return Intent(name, tuple(parts), name, sequence, at_ms=at_ms)


def _offsets(parts: list[Part], found: list[object]) -> PlacedOffsets:
    """Return the offsets of each part. Its pieces are contiguous, unless parts of one partition interleave."""
    placed: dict[tuple[str, int], range] = {}
    results = iter(found)
    for part in parts:
        for _ in part.pieces:
            first, end = next(results)  # type: ignore[misc]
            before = placed.get(part.order)
            placed[part.order] = range(first if before is None else before.start, end)  # type: ignore[has-type]
    return placed


class ObjectTransaction(Transaction):
    """A transaction buffered in memory and committed as one object. Not thread-safe."""

    def __init__(
        self, session: StoreSession, topic_of: Callable[[str], ObjectTopic], name: str | None, sequence: int | None
    ) -> None:
        if name is not None or sequence is not None:
            check_name(name, sequence)
        self._session = session
        self._topic_of = topic_of
        self._name, self._sequence = name, sequence
        self._parts: dict[tuple[str, int], list[RecordInput]] = {}
        self._topics: dict[str, ObjectTopic] = {}
        self._state = "open"
        self._placed: PlacedOffsets = {}
        last = None if name is None else stored_under(session, name)
        self.replayed = last is not None and (last.sequence or 0) >= (sequence or 0)
        #: Set if the commit may be stored but has no name by which a retry would be recognised.
        self._doubt: AmbiguousAppend | None = None

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        self.append_many(topic, [(value, key)])

    def append_many(self, topic: str, records: Iterable[RecordInput], partition: int | None = None) -> None:
        self._check_open()
        found = self._topics.get(topic) or self._topics.setdefault(topic, self._topic_of(topic))
        for number, each in found._split(list(records), partition).items():
            self._parts.setdefault((topic, number), []).extend(each)

    def _check_open(self) -> None:
        if self._state == "aborted":
            raise TransactionAborted("the transaction was aborted")
        if self._state == "committed":
            raise TransactionError("the transaction is committed")
        if self._doubt is not None:
            raise AmbiguousAppend(f"the transaction may be stored, and cannot be repeated: {self._doubt}")

    def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition). Raises `ReplayMismatch` if this name and
        sequence are stored with different records."""
        if self._state == "committed":
            return self._placed
        self._check_open()
        actions: list[dict[str, Any]] = []
        inline: list[bytes] = []
        parts: list[Part] = []
        for (topic, number), records in sorted(self._parts.items()):
            action, batches = self._topics[topic]._append_action(number, records)
            actions.append(action)
            inline += batches
            parts.append(Part(topic, self._topics[topic].id, number, len(records), ()))
        try:
            found: Any = commit_once(self._session, self._name, self._sequence, parts, actions, inline)
        except AmbiguousAppend as error:
            self._doubt = error if self._name is None else None
            raise
        if found is None:
            self.replayed = True
        else:
            self._placed = {part: range(*placed) for part, placed in zip(sorted(self._parts), found, strict=True)}
        self._state = "committed"
        return self._placed

    def abort(self) -> None:
        if self._state == "open":
            self._state = "aborted"
            self._parts.clear()
