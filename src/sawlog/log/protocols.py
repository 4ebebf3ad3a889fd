"""What a server needs of a partition, wherever that is stored: `Log` is one, a partition on object storage another.

A server never waits in the engine. It places batches and is called when they may be acknowledged; it fetches what there
is, and is called when there may be more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .read.pages import Fetched


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
