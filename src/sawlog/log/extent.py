"""What a segment covers: offsets and bytes, and what is known about its end."""

from __future__ import annotations

from ..batch import kernel


class Extent(kernel.ExtentFields):
    """The part of a log that is in one segment."""

    __slots__ = ("expected_end", "path")
    base_offset: int
    sealed: bool
    #: Whether each batch begins where the previous one ended: in a log of ours, but not in one of Kafka's.
    dense: bool
    #: (next offset, size): what has been committed, as one value, so that readers never see halves of two.
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
        #: Where it should end, if recovery knows it; see `known_end`.
        self.expected_end = expected_end
        self.dense = dense
        self.path = path

    def reach(self, next_offset: int, size: int) -> None:
        """It has grown up to here."""
        self.tail = next_offset, size

    def open_end(self) -> None:
        """It is not known yet where it ends."""
        self.sealed = False

    def close_end(self, next_offset: int, size: int) -> None:
        """It ends here, and does not grow."""
        self.tail, self.sealed = (next_offset, size), True

    def go_back(self, tail: tuple[int, int]) -> None:
        """What was after this tail is no longer part of it: it was rolled back, or will be cut."""
        self.tail = tail

    def expect(self, next_offset: int, size: int) -> None:
        """It has to extend up to here: what cannot be read of it is damage."""
        self.expected_end = next_offset
        self.tail = next_offset, size

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
