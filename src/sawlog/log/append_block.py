"""Append blocks: several placements as one append. Nothing counts as written before the block ends, and everything is
rolled back if it raises.

    with appender.appending() as first_offset:
        ...

The block holds the log's lock. Blocks may be nested; the outermost one decides.

An interrupt (a signal handler that raises) may come just as the block ends, so that `__exit__` never runs. The append
is then *abandoned* and has to be rolled back before any other append is acknowledged: when the block object is
garbage-collected, which is immediate unless it is referenced elsewhere; otherwise at the next use of the log in this
thread once the frame that entered the block no longer runs (`Appender.check_open`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import FrameType, GeneratorType, TracebackType
from typing import TYPE_CHECKING, cast

from ..batch import kernel

if TYPE_CHECKING:
    from .appender import Appender

Lock = AbstractContextManager[bool, None]

_CONTEXTLIB = contextlib.__file__


class OpenBlock:
    """State of an entered block."""

    __slots__ = ("_holding", "around", "first", "frame")

    def __init__(self, first: int, around: object, frame: FrameType | None, lock: Lock) -> None:
        #: Offset of the first record.
        self.first = first
        #: The enclosing append.
        self.around = around
        self.frame = frame
        self._holding = cast("GeneratorType[None, None, None]", _holding(lock))

    def hold(self) -> None:
        """Take the log's lock until `release`, or until this object is garbage-collected."""
        next(self._holding)

    def release(self) -> None:
        """Release the lock if it is held."""
        self._holding.close()

    def is_running(self) -> bool:
        """Whether the calling thread may be executing the block."""
        if not self._holding.gi_suspended:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


#: Appends without a block: `on_lock` before the log is opened to other writers, and a rollback.
_BEGINNING, _ENDING = "beginning", "ending"


class AppendBlocks(kernel.AppendBlocksFields):
    """The append in progress, if any. Changed only by the holder of the log's lock."""

    __slots__ = ("_appended", "_lock", "_roll_back_to", "has_begun")
    #: The append that has not placed all of its parts, or None. The first one is what `on_lock` appends, before the log
    #: is open to other writers.
    current: object

    def __init__(self, lock: Lock, roll_back_to: Callable[[int], None], appended: Callable[[], None]) -> None:
        self._lock = lock
        self._roll_back_to = roll_back_to
        self._appended = appended
        self.current = _BEGINNING
        #: Whether the log is open to other writers.
        self.has_begun = False

    def begin(self) -> None:
        """Open the log to other writers."""
        self.current, self.has_begun = None, True

    def end_abandoned(self) -> None:
        """Roll back blocks whose `__exit__` was prevented by an interrupt. The caller holds the lock."""
        while isinstance(self.current, OpenBlock) and not self.current.is_running():
            self.end(self.current)

    def end(self, block: OpenBlock) -> None:
        """Roll back a block that will never exit. Only in its own thread, which holds the lock."""
        if self.current is block and self._lock._is_owned():  # type: ignore[attr-defined]
            self.roll_back(block)

    def roll_back(self, block: OpenBlock) -> None:
        """Roll back and end a block. If an interrupt prevents that, the block stays abandoned and keeps the lock: the
        next call rolls it back."""
        self.current = _ENDING
        try:
            self._roll_back_to(block.first)
        except BaseException:
            block.frame, self.current = None, block
            raise
        self.current = block.around
        block.release()

    def enter(self, block: OpenBlock) -> None:
        """Begin a block, which holds the lock until it ends."""
        self.current = block
        block.hold()

    def complete(self, block: OpenBlock) -> None:
        """End a block whose parts are all placed. The outermost one then counts as written."""
        try:
            self.current = block.around
            try:
                self._appended()
            except BaseException:  # interrupted after everything was placed: it still counts
                self._appended()
                raise
        finally:
            block.release()


class AppendBlock:
    """Context manager of one block, created by `Appender.appending` and used once."""

    __slots__ = ("_appender", "_blocks", "_open")

    def __init__(self, appender: Appender, blocks: AppendBlocks) -> None:
        self._appender = appender
        self._blocks = blocks
        self._open: OpenBlock | None = None

    def __enter__(self) -> int:
        appender = self._appender
        with appender.lock:
            appender.check_open()
            made = OpenBlock(
                appender.segments.next_offset, self._blocks.current, _outside(sys._getframe(1)), appender.lock
            )
            self._open = made
            self._blocks.enter(made)
        return made.first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._open
        if opened is None:
            return  # abandoned, and already rolled back
        if kind is not None:
            self._blocks.roll_back(opened)
            self._open = None
            return
        self._blocks.complete(opened)
        self._open = None

    def __del__(self) -> None:
        opened = getattr(self, "_open", None)
        if opened is not None and not sys.is_finalizing():
            self._blocks.end(opened)


class DurableAppendBlock(AppendBlock):
    """An `AppendBlock` whose end waits for the disk if the durability policy requires it."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            self._appender.settle(self._appender.written_offset)


def _holding(lock: Lock) -> Generator[None]:
    """Hold a lock from the first `next` to `close`. A `with` in a generator, because no interrupt can come between the
    `with` and its lock, so that the state of the lock is always known."""
    with lock:
        yield


def _outside(frame: FrameType | None) -> FrameType | None:
    """Return the frame that entered a block, skipping `ExitStack`, which enters it for its caller."""
    while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:
        frame = frame.f_back
    return frame
