"""`TieredLog`: a partition of a replica as its source reads it, for records that were removed from the source.

A copy has the offsets and topic ids of its source, so a partition is found by its topic's id, even if the topic was
renamed. Records that the replica lacks, or cannot read, raise `RemoteUnavailable`; they are never silently skipped.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...batch.header import Rows
from ...config import Isolation, LogConfig
from ...errors import CorruptData, DataLoss, OffsetOutOfRange, RemoteUnavailable, StorageError, TopicNotFound
from ...log.epochs import Epochs
from ...log.reader import Fetched
from ...log.remote import RemoteRun, RemoteSegments, ReplicaStatus
from .partition import ObjectPartition, again, first_extents, page_of
from .session import StoreSession
from .slices import ObjectSlice, ObjectSliceReader
from .state import State
from .state.commit import COPY_OF, Commit, Extent, commit_key

if TYPE_CHECKING:
    import pyarrow as pa

#: Size to read before read-ahead starts, since many callers want a single page.
_FIRST_BYTES = 1 << 20


class TieredLog:
    """One partition of a replica, as a `RemoteLog`. Thread-safe."""

    def __init__(
        self, session: StoreSession, source: str, topic: str, topic_id: str, partition: int, config: LogConfig
    ) -> None:
        self._session = session
        #: The id of the source store.
        self._source = source
        self._topic, self._id, self._number = topic, topic_id, partition
        self._partition = ObjectPartition(session, topic, topic_id, partition, config)

    @property
    def path(self) -> str:
        return self._partition.path

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Convert errors of the bucket within the block to `RemoteUnavailable`."""
        try:
            yield
        except RemoteUnavailable:
            raise
        except (StorageError, DataLoss, OffsetOutOfRange, TopicNotFound) as error:
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            raise RemoteUnavailable(code, f"{what} only in the replica, which does not give it: {error}") from error

    def _extents(self, start: int, end: int, *, fresh: bool = False) -> list[Extent]:
        """Return the extents of an offset range. Raises `RemoteUnavailable` unless the replica has all of it."""

        def look(state: State) -> tuple[bool, tuple[int, int], list[Extent]]:
            has, ends = state.has(self._id, self._number), state.ends(self._id, self._number)
            return has, ends, list(state.extents(self._id, self._number, start, end))

        has, (lowest, last), found = self._session.look(look, fresh=fresh)
        if (not has or not lowest <= start <= end <= last) and not fresh:
            return self._extents(start, end, fresh=True)
        if has and lowest <= start <= end <= last:
            return found
        why = f"which has {lowest} to {last - 1} only"
        if not has:
            why = "where the topic does not exist: it was deleted there, or the address is that of another store"
        where = f"{self._of(start, end)} only in the replica {self._session.bucket.url}"
        raise RemoteUnavailable(errno.ENOENT, f"{where}, {why}")

    # --- records

    def chunks(
        self, start: int, end: int, *, committed: bool, cached: bool = True
    ) -> Iterator[tuple[memoryview, Rows]]:
        """Yield verified batches with records; unless `cached`, as the bucket has them now."""
        partition = self._partition if cached else self._partition._uncached()
        stay = f"offsets {start} to {end - 1} of {self._topic}/{self._number} stay here, since they would be"
        with self._asking(self._of(start, end) if cached else stay):
            for first, last in _in_two(self._extents(start, end), start, end):
                yield from partition._pages(first, last, None, committed=committed)

    def page(self, start: int, end: int, max_bytes: int, *, committed: bool) -> Fetched:
        """Return complete batches, starting with the one that contains `start`."""
        with self._asking(self._of(start, end)):

            def read(fresh: bool) -> tuple[list[memoryview], int]:
                chosen = first_extents(self._extents(start, end, fresh=fresh), max_bytes)
                return page_of(self._session.extents.read_all(chosen), start, end, max_bytes)

            buffers, after = again(read)
            return self._partition._fetched(buffers, start, after, -1, committed=committed)

    # --- times

    def offset_at(self, timestamp: int, start: int, end: int) -> int | None:
        """Return the first offset whose record is not older than a timestamp."""
        with self._asking(self._of(start, end)):
            for extent in self._extents(start, end):
                if extent.max_timestamp >= timestamp:
                    first, last = max(start, extent.base_offset), min(end, extent.next_offset)
                    for record in self._partition.scan(first, last):
                        if record.timestamp >= timestamp:
                            return record.offset
            return None

    def newest(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first record with the largest timestamp."""
        with self._asking(self._of(start, end)):
            return self._partition._newest_in(self._extents(start, end), start, end)

    # --- slices

    def plan(
        self, start: int, end: int, *, target_bytes: int | None, max_records: int | None, isolation: Isolation
    ) -> list[ObjectSlice]:
        with self._asking(self._of(start, end)):
            self._extents(start, end)
            return self._partition._plan(
                start, end, target_bytes=target_bytes, max_records=max_records, isolation=isolation
            )

    def read_slice(
        self, planned: object, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None]
    ) -> Iterator[pa.RecordBatch]:
        """Read a slice, which another process may have planned."""
        reader = ObjectSliceReader(self._session, self._topic, self._id, self._number)
        return reader.read(planned, columns=columns, batch_rows=batch_rows, lost=lost)

    # --- identity

    def status(self) -> ReplicaStatus:
        """Return the current offsets and epochs. Raises `RemoteUnavailable` unless this is a copy of the partition."""

        def look(state: State) -> tuple[object, bool, ReplicaStatus]:
            lowest, _ = state.ends(self._id, self._number)
            stable, epochs = state.stable(self._id, self._number), state.epochs(self._id, self._number)
            if not epochs or epochs[0][0] > 0:
                epochs = [(0, 0), *epochs]  # offsets before the first epoch are in epoch 0: see commit.py
            source = state.document(COPY_OF)[1].get("source")
            return source, state.has(self._id, self._number), ReplicaStatus(lowest, stable, tuple(epochs))

        with self._asking(f"what {self.path} has is"):
            source, has, found = self._session.look(look, fresh=True)
            self._check_history()
        if source != self._source:
            raise RemoteUnavailable(
                errno.ENOENT,
                f"{self._session.bucket.url} is not the replica of this store any more: it was promoted, or deleted "
                "and recreated",
            )
        if not has:
            raise RemoteUnavailable(
                errno.ENOENT,
                f"{self._session.bucket.url} does not have {self._topic}/{self._number} (yet, or any more)",
            )
        return found

    def _check_history(self) -> None:
        """Raise unless the last commit that this process knows is still in the bucket. After a rollback, uploads of the
        lost commits may remain: they can be read, but no commit refers to them."""
        number = self._session.peek(lambda state: state.number)
        data = self._session.bucket.get(commit_key(number - 1)) if number else b""
        if data is None or (data and not self._is_known(data, number - 1)):
            raise RemoteUnavailable(
                errno.ENOENT,
                f"{self._session.bucket.url} was rolled back or damaged: commit {number - 1} is gone, or is not the "
                "one that this process has read; check the bucket, and reopen the store",
            )

    def _is_known(self, data: bytes, number: int) -> bool:
        try:
            nonce = Commit.decode(data, commit_key(number))[0].nonce
        except CorruptData:  # or a tombstone
            return False
        known = self._session.peek(lambda state: state.outcome_of(nonce.writer, nonce.sequence))
        return known is not None and known[0] == number

    def part(self, end: int) -> RemoteSegments:
        """Return the offsets below `end` that the replica has."""
        known = self.status()
        lowest = min(known.lowest_offset, end)
        with self._asking(self._of(lowest, end)):
            extents = self._extents(lowest, end)
        runs = [
            RemoteRun(max(each.base_offset, lowest), min(each.next_offset, end), each.size_bytes, each.max_timestamp)
            for each in extents
        ]
        epochs = tuple(each for each in known.epochs if each[1] < end)
        return RemoteSegments(lowest, (), ()).grown(runs, Epochs(epochs))

    def _of(self, start: int, end: int) -> str:
        return f"offsets {start} to {end - 1} of {self._topic}/{self._number} are"


def _in_two(extents: list[Extent], start: int, end: int) -> list[tuple[int, int]]:
    """Split a range into a first part and the rest, which is read ahead."""
    size = 0
    for extent in extents:
        size += extent.size_bytes
        if size >= _FIRST_BYTES:
            middle = min(extent.next_offset, end)
            return [(start, middle), (middle, end)] if middle < end else [(start, end)]
    return [(start, end)] if start < end else []
