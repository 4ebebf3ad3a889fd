"""A page of a log: complete batches, as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from ...batch.kernel import Record
from ...batch.read import page_records
from ...config import GIB


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
