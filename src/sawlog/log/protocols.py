"""What a server needs of a partition, wherever that is stored: `Log` is one, a partition on object storage another.

A server never waits in the engine. It places batches and is called when they may be acknowledged; it fetches what there
is, and is called when there may be more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..batch.kernel import Record, RecordCursor
from ..config import LogConfig
from ..errors import DataLoss
from ..isolation import Isolation
from .read.pages import Fetched

if TYPE_CHECKING:
    import pyarrow as pa


class PlannedSlice(Protocol):
    """A part of a partition that can be read separately, by another process: it can be pickled."""

    @property
    def start_offset(self) -> int:
        """The first offset."""

    @property
    def end_offset(self) -> int:
        """The offset after the last."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes have to be read."""

    def joined(self, after: Any) -> PlannedSlice | None:
        """This slice and the next one as one; None if they are not next to each other in one file."""


class SliceReader(Protocol):
    """Reads slices of one partition, without opening the partition."""

    def read(
        self, piece: Any, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None]
    ) -> Iterator[pa.RecordBatch]:
        """The records of a slice as Arrow batches, all of them. What is gone is reported by `lost`, which may raise;
        then reading continues with what is left."""

    def close(self) -> None:
        """Close what it has opened."""


@runtime_checkable
class PartitionReader(Protocol):
    """The reading half of a partition."""

    @property
    def lowest_offset(self) -> int:
        """The first offset that there is."""

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends belong to."""

    @property
    def size_bytes(self) -> int:
        """The size of all its batches."""

    def __len__(self) -> int:
        """How many offsets there are."""

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Where a reader that has read everything continues: the offset and the leader epoch, at one moment."""

    def epoch_end(self, leader_epoch: int) -> int:
        """The first offset after an epoch."""

    def offset_at(self, timestamp: int) -> int:
        """The first offset whose record is not older than `timestamp`, in milliseconds."""

    def fetch(self, start: int, max_bytes: int, *, min_bytes: int = 0, timeout: float | None = 0.0) -> Fetched:
        """Whole batches from the one that contains `start` on; waits for `min_bytes`."""

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when the visible end may have moved, until the returned function is called."""


@runtime_checkable
class PartitionWriter(PartitionReader, Protocol):
    """A partition that may be written to."""

    def append_batches(self, raw: bytes, *, trusted: bool = False, wait: bool = True) -> range:
        """Place encoded batches at the next offsets."""

    def when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back when an append that ended at `offset` may be acknowledged, or with the error."""

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on."""

    def trim(self, offset: int) -> int:
        """Drop the records below `offset`."""


@runtime_checkable
class LogReader(Protocol):
    """A partition as programs read it: records one by one, as Arrow batches, and by time."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def config(self) -> LogConfig:
        """Its settings."""

    @property
    def lowest_offset(self) -> int:
        """The first offset that there is."""

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read."""

    @property
    def last_stable_offset(self) -> int:
        """Below this every transaction is committed or aborted."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends belong to."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""

    @property
    def segments(self) -> Sequence[object]:
        """The parts in which it is stored."""

    def epoch_end(self, leader_epoch: int) -> int:
        """The first offset after an epoch."""

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Where reading stops for now, and the leader epoch."""

    def offset_at(self, timestamp: int | datetime) -> int:
        """The first offset whose record is not older."""

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """One record."""

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        max_bytes: int | None = None,
        *,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The records of a range."""

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        batch_rows: int = ...,
        *,
        columns: Sequence[str] = ...,
        views: bool = False,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches."""

    def fetch(self, start: int, max_bytes: int = ..., *, isolation: Isolation = "committed") -> Fetched:
        """Complete batches as they are stored."""

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when the visible end may have moved, until the returned function is called."""

    def _cursors(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[RecordCursor]:
        """As `scan`: cursors to iterate over one after the other."""

    def _following(
        self, start: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[RecordCursor | None]:
        """As `follow`: cursors, and None where there is nothing new at the moment."""
