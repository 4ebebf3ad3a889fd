"""What a log needs of its replica: the records that are only there, and proof that others are there, too.

A log that is *tiered* starts (`log_start`) before its first segment here (`SegmentSet.lowest_offset`). What is below
that is read from the replica: `RemoteLog`. It is opened when somebody reads it (`RemoteSource`), since a replica is a
store on object storage, of which this package knows nothing. Every method may wait for the network, and raises
`RemoteUnavailable` if the replica cannot be reached, or does not have what was asked for: never fewer records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...batch.header import Rows
from ...errors import DataLoss
from ...isolation import Isolation
from ..files.remote import RemotePart
from .pages import Fetched

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a replica says of itself."""

    lowest_offset: int
    #: Below this it has everything, and every transaction is decided.
    stable_offset: int
    #: (leader epoch, its first offset).
    epochs: tuple[tuple[int, int], ...]


class Located(Protocol):
    """What batches are read from: a segment, or the replica."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""


class RemoteSlices(Protocol):
    """Reads slices that `RemoteLog.plan` has returned, perhaps in another process."""

    def read(
        self, piece: Any, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None]
    ) -> Iterator[pa.RecordBatch]:
        """The records of a slice, all of them."""


class RemoteLog(Protocol):
    """One partition in the replica. Safe for threads."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

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

    def evidence(self) -> Evidence:
        """What it has, looked up now. `RemoteUnavailable` if it is not the copy of this very log, or not any more."""

    def part(self, end: int) -> RemotePart:
        """All that it has below `end`, where the list of what was removed here is lost."""


class RemoteSource(Protocol):
    """Where the replica of a log is found."""

    @property
    def is_recorded(self) -> bool:
        """Whether the store knows of one."""

    def open(self) -> RemoteLog:
        """The partition in the replica; `RemoteUnavailable` if that is not known or cannot be opened."""
