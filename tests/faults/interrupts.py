"""Run something at the n-th point of a call where a signal handler, or another thread, could run.

A trace function counts these points opcode by opcode: after a call, after a backward jump, and after the start of a
function. A seed therefore always hits the same point. Code inside the codecs and the simulated disk does not count, nor
do operations on the disk while it stands still (the crashes of the enumeration), nor the garbage collector.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

import sawlog
from sawlog import Log

from .device import Step
from .disk import FaultyStorage

P = ParamSpec("P")
T = TypeVar("T")
_LIBRARY = sawlog.__file__.rpartition("/")[0]
#: Not the codecs below, which keep tables that they have computed once, nor the simulated disk above.
_SOURCES = tuple(f"{_LIBRARY}/{each}/" for each in ("log", "storage", "store"))


class Stop(BaseException):
    """Raised by the handler, as by Ctrl-C or a timer."""


def stop() -> NoReturn:
    """The handler."""
    raise Stop


@cache
def _operations(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class Within:
    """Does something at the n-th place, and something once more at the m-th after that. If it gives False the moment
    was not right, and it is retried at the next place."""

    def __init__(self, act: Callable[[], bool | None], *numbers: int, sources: tuple[str, ...] = _SOURCES) -> None:
        self._act = act
        self._sources = sources
        self._left = list(numbers)
        self._count = 0
        self._before: dict[FrameType, str] = {}
        #: How often it was done.
        self.done = 0

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(self._sources):
            return None
        frame.f_trace_opcodes = True
        if event in ("return", "exception"):  # after a call that raises no handler runs
            self._before.pop(frame, None)
        if event == "opcode" and self._left:
            before = self._before.get(frame, "")
            self._before[frame] = _operations(frame.f_code).get(frame.f_lasti, "")
            if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                self._reach()
        return self._trace

    def _reach(self) -> None:
        self._count += 1
        if self._count < self._left[0]:
            return
        number = self._left.pop(0)
        self._count, self.done = 0, self.done + 1
        self._before.clear()  # a signal would not keep the frames that it interrupts
        if self._act() is False:
            self._left.insert(0, number)
            self._count, self.done = number, self.done - 1

    @contextmanager
    def on(self, disk: FaultyStorage | None) -> Iterator[None]:
        """Count from here on. An exception of a trace function ends tracing: with the next call it goes on, so that
        what cleans up after a first interrupt meets the second one."""
        before, watch, collecting = sys.gettrace(), None if disk is None else disk.watch, gc.isenabled()
        profile, still = sys.getprofile(), False

        def again(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and self._left and not still and sys.gettrace() is None:
                self._before.clear()  # self._before.clear()  # the operations since then are unknown
                sys.settrace(self._trace)
                caller: FrameType | None = frame
                while caller is not None and caller.f_code.co_filename.startswith(self._sources):
                    caller.f_trace, caller.f_trace_opcodes = self._trace, True
                    caller = caller.f_back

        def quiet(step: Step) -> None:
            nonlocal still
            still = True
            if sys.gettrace() is None:
                self._before.clear()  # self._before.clear()  # tracing had ended: the operations since then are unknown
            sys.settrace(None)
            try:
                if watch is not None:
                    watch(step)
            finally:
                still = False
                sys.settrace(self._trace if self._left else None)

        hook = sys.unraisablehook

        def unraisable(lost: Any) -> None:
            """An interrupt that comes while an object is let go is lost: Python says so, and continues."""
            if not issubclass(lost.exc_type, Stop):
                hook(lost)

        gc.disable()
        sys.unraisablehook = unraisable
        if disk is not None:
            disk.watch = quiet
        if len(self._left) > 1:
            sys.setprofile(again)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.setprofile(profile)
            sys.settrace(before)
            sys.unraisablehook = hook
            if disk is not None:
                disk.watch = watch
            if collecting:
                gc.enable()


class Interrupter(Within):
    """Raises `Stop` there: anywhere in the library."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(stop, *numbers, sources=(_LIBRARY,))

    @contextmanager
    def on(self, disk: FaultyStorage | None = None) -> Iterator[None]:
        """As `Within.on`."""
        with super().on(disk):
            yield


def undisturbed(method: Callable[P, T]) -> Callable[P, T]:
    """Decorator for the laboratory's own queries of a log: no interrupt comes inside them."""

    @wraps(method)
    def quiet(*arguments: P.args, **named: P.kwargs) -> T:
        before = sys.gettrace()
        sys.settrace(None)
        try:
            return method(*arguments, **named)
        finally:
            sys.settrace(before)

    return quiet


def is_free(log: Log, *, also_to_write: bool = False) -> bool:
    """True if another thread could sync or save now without waiting for this one; with `also_to_write`, also append."""
    appender = log._access.appender
    if appender is None or appender.closed:
        return False
    held: Any = (
        appender.active.lock._is_owned(),  # type: ignore[attr-defined]
        appender.checkpoints.lock.locked(),
        appender.durability._mutex.locked(),
        appender.durability._leader is not None,
        appender.segments._mapped_lock.locked(),
        appender.segments.changed._is_owned(),  # type: ignore[attr-defined]
        also_to_write and appender.lock._is_owned(),  # type: ignore[attr-defined]
    )
    return not any(held)
