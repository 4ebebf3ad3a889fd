"""A page of a log: complete batches, as they are stored."""

from __future__ import annotations

from typing import NamedTuple


class Fetched(NamedTuple):
    """Complete batches as they are stored. The first may begin below the requested offset."""

    buffers: tuple[memoryview, ...]
    next_offset: int
    #: Below this every transaction was decided when the page was fetched.
    last_stable_offset: int = -1
    #: (producer id, first offset) of the aborted transactions that have batches in the page, by offset; only if it was
    #: fetched with isolation "committed". The batches are not filtered.
    aborted: tuple[tuple[int, int], ...] = ()

    @property
    def raw(self) -> bytes:
        """All batches as one copy."""
        return b"".join(self.buffers)

    @property
    def size_bytes(self) -> int:
        """Size of all batches in bytes."""
        return sum(len(buffer) for buffer in self.buffers)
