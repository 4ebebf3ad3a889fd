"""The offsets and bytes that a segment covers, and what is known about its end."""

from __future__ import annotations

from ..batch import kernel


class Extent(kernel.ExtentFields):
    """The range of offsets and bytes of one segment."""

    __slots__ = ("expected_end", "path")
    base_offset: int
    sealed: bool
    #: True if each batch begins where the previous one ended. Holds for our own logs, but not for Kafka's.
    dense: bool
    #: Committed (next offset, size) as one value, so that readers never see a torn pair.
    tail: tuple[int, int]

    def __init__(
        self,
        base_offset: int,
        next_offset: int,
        size: int,
        path: str,
        *,
        sealed: bool = True,
        expected_end: int | None = None,
        dense: bool = True,
    ) -> None:
        self.base_offset = base_offset
        self.tail = (next_offset, size)
        self.sealed = sealed
        #: The offset where the segment should end, if recovery knows it; see `known_end`.
        self.expected_end = expected_end
        self.dense = dense
        self.path = path

    def reach(self, next_offset: int, size: int) -> None:
        """Move the end forward."""
        self.tail = next_offset, size

    def unseal(self) -> None:
        """Mark the segment as growing: its end is not known yet."""
        self.sealed = False

    def seal_at(self, next_offset: int, size: int) -> None:
        """Set the final end."""
        self.tail, self.sealed = (next_offset, size), True

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Move the end back: the rest was rolled back, or is about to be cut."""
        self.tail = tail

    def expect(self, next_offset: int, size: int) -> None:
        """Require the segment to extend to this end: anything unreadable below it is damage."""
        self.expected_end = next_offset
        self.tail = next_offset, size

    @property
    def next_offset(self) -> int:
        """First offset after the segment."""
        return self.tail[0]

    @property
    def size(self) -> int:
        """Committed bytes."""
        return self.tail[1]

    @property
    def known_end(self) -> int | None:
        """First offset after the segment, if known."""
        if self.expected_end is not None:
            return self.expected_end
        return self.next_offset if self.next_offset > self.base_offset else None
