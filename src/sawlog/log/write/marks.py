"""The ends of a log: durable, visible, written.

    durable_offset <= visible_offset <= written_offset <= next_offset

Each end is a *tail*: (offset, base offset of the segment, position in its file).

    written    the end of the last complete append
    synced     the end of what is synced, complete appends or not
    durable    the end of the last complete append that is synced: the checkpoint's watermark

What is visible follows what is durable under "always", else what is written; readers learn the visible end together
with the leader epoch, atomically (see visible.py).

Threads: everything is called with the log's lock or, where only `synced` and `durable` move, with that of the active
segment (see active.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ...batch import kernel
from ...clock import give_way
from ..segment.segments import SegmentSet
from .commit import GroupCommit
from .visible import VisibleEnd

#: How often the ends are read again before they are considered out of order.
_LOOKS = 10_000
#: (offset, base offset of the segment, position in its file)
Tail = tuple[int, int, int]


class Marks(kernel.MarksFields):
    """The three ends of a log, the visible one, and the leader epoch that batches get."""

    __slots__ = ("_show", "commit", "durable", "shows_written", "visible")
    written: Tail
    synced: Tail
    epoch: int

    def __init__(
        self, visible: VisibleEnd, tail: Tail, epoch: int, *, shows_written: bool, sync: Callable[[], int]
    ) -> None:
        self.visible = visible
        self._show = visible.show
        self.epoch = epoch
        #: Whether what is written is visible; else what is durable is.
        self.shows_written = shows_written
        self.written = self.synced = self.durable = tail
        self.commit = GroupCommit(sync, tail[0], self._check if shows_written else self.show)

    def checked(self, segments: SegmentSet) -> tuple[int, int, int, int]:
        """(durable, visible, written, next). Other threads move them concurrently; but if they are out of order on
        every look, something is wrong."""
        for _ in range(_LOOKS):
            ends = self.commit.durable_offset, segments.visible_offset, self.written[0], segments.next_offset
            if ends[0] <= ends[1] <= ends[2] <= ends[3]:
                return ends
            give_way()
        path = segments.directory.path
        raise AssertionError(f"durable, visible, written and next offset of {path} are out of order: {ends}")

    def _check(self, offset: int) -> None:
        """What is durable has moved, and the policy shows what is written."""
        assert offset <= self.written[0], f"{offset} is durable, but only {self.written[0]} is written"

    def show(self, offset: int) -> None:
        """Make everything below this visible."""
        self._check(offset)
        self._show(offset, self.epoch)

    def show_all(self) -> None:
        """Make visible what the policy says; after an interrupt that may have come before it."""
        self.show(self.written[0] if self.shows_written else self.commit.durable_offset)

    def append(self, tail: Tail) -> None:
        """One append that was written in one go ends there."""
        self.written = tail
        if self.shows_written:
            self._show(tail[0], self.epoch)

    def complete(self, tail: Tail) -> None:
        """A complete append ends there, parts of which may already have been synced."""
        self.append(tail)
        if self.synced[0] >= tail[0]:  # it was synced before it was complete
            self.durable = tail
            self.commit.reached(tail[0])
        elif self.shows_written and self.synced > self.durable:  # some of it was, by a rotation
            self.durable = self.synced
            self.commit.reached(self.synced[0])

    def sync(self, written: Tail, tail: Tail) -> None:
        """The file was synced: `written` and `tail` are the ends when that began."""
        self.durable, self.synced = written, tail

    def go_on(self, tail: Tail) -> None:
        """The same offset is now the beginning of the next segment, and durable."""
        self.synced = tail
        if self.written[0] == tail[0]:
            self.written = self.durable = tail

    def begin_epoch(self, epoch: int) -> None:
        """From now on batches get this epoch; readers learn it when the visible end is next shown."""
        self.epoch = epoch

    def lower(self, tail: Tail) -> Tail:
        """Nothing after `tail` counts as durable; returns what did before, for `restore`."""
        before = self.durable
        self.durable = min(tail, before)
        return before

    def restore(self, durable: Tail) -> None:
        """The log is not cut after all."""
        self.durable = durable

    def cut(self, tail: Tail, epoch: int) -> None:
        """Nothing from there on is durable, visible or written, and a leader epoch begins."""
        self.epoch = epoch
        self.commit.retreat(tail[0])
        self.written, self.synced = min(self.written, tail), min(self.synced, tail)
        if self.visible.offset > tail[0]:
            self._show(tail[0], epoch)

    def resume(self, tail: Tail, *, within_append: bool) -> None:
        """Everything is durable, and complete except for what an append in progress has placed."""
        self.synced = tail
        self.written = min(self.written, tail) if within_append else tail
        self.durable = self.written
        self.commit.reached(self.written[0])
        if not within_append and self.commit.failure is None:
            self.show(self.written[0])
