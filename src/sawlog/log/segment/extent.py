"""What a segment covers: offsets and bytes, and what is known about its end."""

from __future__ import annotations

from ...batch import kernel


class Extent(kernel.ExtentFields):
    """The part of a log that is in one segment."""

    __slots__ = ("dense", "expected_end", "path", "sealed")
    base_offset: int
    #: (next offset, size): what has been committed, as one value, so that readers never see halves of two.
    tail: tuple[int, int]

    def __init__(self, base_offset: int, next_offset: int, size: int, path: str) -> None:
        self.base_offset = base_offset
        self.tail = (next_offset, size)
        self.sealed = True
        #: Where it should end, if recovery knows it; see `known_end`.
        self.expected_end: int | None = None
        #: Whether each batch begins where the previous one ended; not so after compaction.
        self.dense = True
        self.path = path

    @property
    def next_offset(self) -> int:
        """The first offset after the segment."""
        return self.tail[0]

    @property
    def size(self) -> int:
        """Committed bytes."""
        return self.tail[1]

    @property
    def known_end(self) -> int | None:
        """The first offset after the segment, if it is known."""
        if self.expected_end is not None:
            return self.expected_end
        return self.next_offset if self.next_offset > self.base_offset else None
