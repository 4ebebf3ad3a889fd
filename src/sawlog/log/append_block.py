"""One append of several parts, as a block: nothing of it counts before the block ends, and if the block raises, what
was placed is rolled back.

    with appender.appending() as first_offset:
        ...

The log's lock is held meanwhile. Blocks may be nested; the outermost one decides.

An interrupt (a signal handler that raises) may come just when the block ends, so that `__exit__` never runs. Then the
append is *abandoned*, and what it had placed is rolled back: when the block's object is collected, which is immediately
if it is not referenced elsewhere; else when the log is next used in this thread, and the frame that entered the block
is no longer running (`Appender.check_open`). It must not be later than that: other appends would be acknowledged after
it.
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


class Open:
    """An append in progress."""

    __slots__ = ("_holding", "around", "first", "frame")

    def __init__(self, first: int, around: object, frame: FrameType | None, lock: Lock) -> None:
        #: The offset that the first record gets.
        self.first = first
        #: The append of which this one is a part.
        self.around = around
        self.frame = frame
        self._holding = cast("GeneratorType[None, None, None]", _holding(lock))

    def hold(self) -> None:
        """Keep the log's lock until `let_go`, or until this object is no longer referenced."""
        next(self._holding)

    def let_go(self) -> None:
        """Release the lock, if it is held."""
        self._holding.close()

    def is_running(self) -> bool:
        """Whether the calling thread may be executing the block."""
        if not self._holding.gi_suspended:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None


#: Represents an append without a block: what is done before others may write, and a rollback.
_BEGINNING, _ENDING = "beginning", "ending"


class OpenAppends(kernel.OpenAppendsFields):
    """Which append of a log is in progress, if any. Changed only by who holds the log's lock."""

    __slots__ = ("_appended", "_lock", "_take_back", "has_begun")
    #: The append that has not placed all of its parts, or None. What `Log` does before others may write (`on_lock`) is
    #: the first of them.
    current: object

    def __init__(self, lock: Lock, take_back: Callable[[int], None], appended: Callable[[], None]) -> None:
        self._lock = lock
        self._take_back = take_back
        self._appended = appended
        self.current = _BEGINNING
        #: Whether that is done.
        self.has_begun = False

    def begin(self) -> None:
        """Everything that had to be done before others may write is done."""
        self.current, self.has_begun = None, True

    def end_abandoned(self) -> None:
        """Roll back what was placed by blocks whose end was prevented by an interrupt. The caller holds the lock."""
        while isinstance(self.current, Open) and not self.current.is_running():
            self.end(self.current)

    def end(self, block: Open) -> None:
        """Roll back what was placed by a block that will never end. Only in its own thread: it holds the lock."""
        if self.current is block and self._lock._is_owned():  # type: ignore[attr-defined]
            self.take_back_of(block)

    def take_back_of(self, block: Open) -> None:
        """Roll back what a block has placed, and end it. If an interrupt prevents that, the block stays abandoned and
        keeps the lock: the next call rolls it back."""
        self.current = _ENDING
        try:
            self._take_back(block.first)
        except BaseException:
            block.frame, self.current = None, block
            raise
        self.current = block.around
        block.let_go()

    def enter(self, block: Open) -> None:
        """Begin a block, which keeps the lock until it ends."""
        self.current = block
        block.hold()

    def complete(self, block: Open) -> None:
        """All parts of a block are placed: it ends, and counts if it was the outermost."""
        try:
            self.current = block.around
            try:
                self._appended()
            except BaseException:  # an interrupt when everything is placed: count all of it
                self._appended()
                raise
        finally:
            block.let_go()


class Appending:
    """See the module's docstring. Created by `Appender.appending`, used once."""

    __slots__ = ("_appender", "_blocks", "_open")

    def __init__(self, appender: Appender, blocks: OpenAppends) -> None:
        self._appender = appender
        self._blocks = blocks
        self._open: Open | None = None

    def __enter__(self) -> int:
        appender = self._appender
        with appender.lock:
            appender.check_open()
            made = Open(appender.segments.next_offset, self._blocks.current, _outside(sys._getframe(1)), appender.lock)
            self._open = made
            self._blocks.enter(made)
        return made.first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._open
        if opened is None:
            return  # it was abandoned, and has already been ended
        if kind is not None:
            self._blocks.take_back_of(opened)
            self._open = None
            return
        self._blocks.complete(opened)
        self._open = None

    def __del__(self) -> None:
        opened = getattr(self, "_open", None)
        if opened is not None and not sys.is_finalizing():
            self._blocks.end(opened)


class Settled(Appending):
    """As `Appending`; and when it ends the durability policy decides whether the caller waits."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            self._appender.settle(self._appender.written_offset)


def _holding(lock: Lock) -> Generator[None]:
    """Holds a lock from the first `next` to `close`. A `with` in a generator, because no interrupt can come between a
    lock and its `with`: whether it is held is always known."""
    with lock:
        yield


def _outside(frame: FrameType | None) -> FrameType | None:
    """The frame that a block belongs to: an `ExitStack` enters it for its caller."""
    while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:
        frame = frame.f_back
    return frame
