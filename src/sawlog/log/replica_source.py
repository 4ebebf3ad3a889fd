"""The interface between a log and its replica, and `Fetched`, a page of batches as they are stored.

A *tiered* log starts (`log_start`) before its first local segment (`SegmentSet.lowest_offset`). Earlier offsets are
read from the replica (`RemoteLog`), which is opened on demand (`RemoteSource`): a replica is a store on object storage,
which this package does not depend on. Every method may block on the network, and raises `RemoteUnavailable` if the
replica cannot be reached or lacks the requested records. It never returns fewer records silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..batch.header import Rows
from ..batch.kernel import Record
from ..batch.read import page_records
from ..config import GIB
from ..errors import DataLoss
from ..isolation import Isolation
from .remote import RemoteSegments

if TYPE_CHECKING:
    import pyarrow as pa


class Fetched(NamedTuple):
    """Complete batches as they are stored. The first may begin below the requested offset; `records` leaves out the
    records before it."""

    buffers: tuple[memoryview, ...]
    next_offset: int
    #: Below this every transaction was decided when the page was fetched.
    last_stable_offset: int = -1
    #: (producer id, first offset) of the aborted transactions that have batches in the page, by offset; only if it was
    #: fetched with isolation "committed". The batches are not filtered.
    aborted: tuple[tuple[int, int], ...] = ()
    #: The requested offset.
    start_offset: int = 0
    #: Topic and partition of the records; (None, -1) for a log outside a topic.
    place: tuple[str | None, int] = (None, -1)

    def records(self, *, max_decompressed_bytes: int = GIB) -> Iterator[Record]:
        """Decode the records from `start_offset` to `next_offset`, in order.

        Transaction markers and the records of `aborted` transactions are left out, so a page yields what `scan` yields
        for the same offsets and isolation. Checksums are verified. Raises `CorruptBatch` after the records before the
        damage, also for a batch that decompresses to more than `max_decompressed_bytes`.
        """
        return chain.from_iterable(
            page_records(self.buffers, self.start_offset, self.aborted, *self.place, max_decompressed_bytes)
        )

    @property
    def raw(self) -> bytes:
        """All batches as one copy."""
        return b"".join(self.buffers)

    @property
    def size_bytes(self) -> int:
        """Size of all batches in bytes."""
        return sum(len(buffer) for buffer in self.buffers)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The extent of a replica, as reported by itself."""

    lowest_offset: int
    #: Below this offset the replica is complete, and every transaction is decided.
    stable_offset: int
    #: (leader epoch, its first offset).
    epochs: tuple[tuple[int, int], ...]


class BatchSource(Protocol):
    """A source of batches: a segment or the replica."""

    @property
    def path(self) -> str:
        """Location, for messages."""


class RemoteSlices(Protocol):
    """Reads slices that `RemoteLog.plan` has returned, perhaps in another process."""

    def read(
        self, planned: Any, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None]
    ) -> Iterator[pa.RecordBatch]:
        """The records of a slice, all of them."""


class RemoteLog(Protocol):
    """A partition in the replica. Thread-safe."""

    @property
    def path(self) -> str:
        """Location, for messages."""

    def chunks(
        self, start: int, end: int, *, committed: bool, cached: bool = True
    ) -> Iterator[tuple[memoryview, Rows]]:
        """Checked batches with offsets from `start` to `end`; without those of aborted transactions, if only what is
        `committed` is wanted. Batches without records may be missing. Unless `cached`, every batch is read from the
        replica now: what it returns is stored there."""

    def page(self, start: int, end: int, max_bytes: int, *, committed: bool) -> Fetched:
        """Complete batches from the one that contains `start` on, below `end`, up to `max_bytes` but at least one."""

    def offset_at(self, timestamp: int, start: int, end: int) -> int | None:
        """The first offset between these whose record is not older."""

    def newest(self, start: int, end: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record between these offsets with the largest timestamp."""

    def plan(
        self, start: int, end: int, *, target_bytes: int | None, max_records: int | None, isolation: Isolation
    ) -> list[Any]:
        """Slices (`PlannedSlice`) for all offsets from `start` to `end`; they can be pickled."""

    def slices(self) -> RemoteSlices:
        """Reads them."""

    def status(self) -> ReplicaStatus:
        """What it has, looked up now. `RemoteUnavailable` if it is not the copy of this very log, or not any more."""

    def part(self, end: int) -> RemoteSegments:
        """All that it has below `end`, where the list of what was removed here is lost."""


class RemoteSource(Protocol):
    """Opens the replica of a log."""

    @property
    def is_recorded(self) -> bool:
        """True if the store has recorded a replica."""

    def open(self) -> RemoteLog:
        """The partition in the replica; `RemoteUnavailable` if that is not known or cannot be opened."""
