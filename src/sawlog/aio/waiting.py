"""Waiting in an event loop: for calls in threads, for the disk, and for new records.

`in_thread` and `past_recall` come from the log (`sawlog.log.async_appends`): when the task is cancelled, both wait for
the call to finish; `past_recall` also returns its result first.

`awaited`, `direct` and `calling` build the methods of the asyncio classes from the synchronous ones, whose
parameters they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial, update_wrapper, wraps
from inspect import signature
from itertools import islice
from threading import get_ident
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from ..batch.kernel import Record
from ..clock import Deadline, Stopwatch
from ..config import Isolation
from ..errors import DirectoryLocked
from ..log.async_appends import in_thread, outcome, past_recall
from ..log.log import Log
from ..log.open import waiting_for
from ..store.base import Partition

__all__ = ["in_thread", "past_recall"]

C = TypeVar("C", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

#: Records taken at a time in the event loop, and in a thread; and the time after which other tasks run.
_PORTION, _THREAD_PORTION, _TURN_S = 500, 5000, 0.002
#: Maximum wait of a thread for a turn; then the task looks whether it was cancelled.
_MOMENT_S = 0.05
#: Maximum wait before looking again, even without a notification.
_LONGEST_S = 0.5


class AsyncView(Generic[S]):
    """The asyncio class of one synchronous object."""

    def __init__(self, inner: S) -> None:
        self._inner = inner

    @property
    def sync(self) -> S:
        """The synchronous object, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._inner

    def __repr__(self) -> str:
        return f"<Async{repr(self._inner)[1:]}"

    def _logs(self) -> Sequence[Log] | None:
        """Return the logs that it reads in the event loop unless they are tiered; None: it reads in threads."""
        return None

    async def _reading(self, call: Callable[[], T]) -> T:
        """Run a call that reads."""
        return await in_thread(call) if may_block(self._logs()) else call()


@overload
def awaited(
    method: Callable[Concatenate[Any, P], T], *, recallable: bool = True, reads: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...


@overload
def awaited(
    method: Callable[Concatenate[Any, P], T], convert: Callable[[T], R]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]: ...


def awaited(method: Any, convert: Any = None, *, recallable: bool = True, reads: bool = False) -> Any:
    """Return a method that runs the method of the same name of `self.sync` in a thread, and converts its result. One
    that is not `recallable` returns its result before a cancellation is delivered. One that `reads` runs in the event
    loop if it cannot block."""
    run = in_thread if recallable else past_recall

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        found = getattr(self.sync, method.__name__)(*arguments, **keywords)
        return found if convert is None else convert(found)

    @wraps(method, updated=())
    async def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
        work = partial(call, self, *arguments, **keywords)
        return await (self._reading(work) if reads else run(work))

    return called if convert is None else _with_result_of(convert, called)


def direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the method of the same name of `self.sync`, which never blocks."""

    def called(self: Any, *arguments: P.args, **keywords: P.kwargs) -> T:
        found: T = getattr(self.sync, method.__name__)(*arguments, **keywords)
        return found

    return update_wrapper(called, method, updated=())  # type: ignore[return-value]


def calling(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[[Callable[[S, Callable[[], T]], R]], Callable[Concatenate[S, P], R]]:
    """Decorate a method whose argument is a call of `method` of `self.sync`, to be made later, in a thread. The result
    has the parameters of `method`."""

    def decorated(function: Callable[[S, Callable[[], T]], R]) -> Callable[Concatenate[S, P], R]:
        def called(self: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
            return function(self, partial(getattr(self.sync, method.__name__), *arguments, **keywords))

        update_wrapper(called, method, assigned=("__name__",), updated=())
        called.__doc__ = function.__doc__
        return _with_result_of(function, called)

    return decorated


def _with_result_of(function: Callable[..., Any], called: C) -> C:
    """Document that `called` returns what `function` returns."""
    vars(called)["__signature__"] = signature(called).replace(return_annotation=function.__annotations__["return"])
    return called


async def turn(log: Log) -> None:
    """Wait for the turn to write to a log. A thread waits, a moment at a time, so that a cancellation takes effect."""
    deadline = Deadline(log._turn_timeout_s)
    while not log._locked:
        try:
            await in_thread(_take_soon, log)
            return  # even if the turn has ended since: the append takes another one
        except DirectoryLocked as error:
            if log._turn_timeout_s is None or deadline.passed:
                raise error.after(log._turn_timeout_s or 0) from None


def _take_soon(log: Log) -> None:
    with waiting_for(_MOMENT_S):
        log._take()


async def until_durable(log: Log, offset: int) -> None:
    """Return when an append that ended at `offset` is as durable as the policy promises. The append cannot be
    recalled."""
    loop, thread = asyncio.get_running_loop(), get_ident()
    future: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def call(error: BaseException | None) -> None:
        if get_ident() == thread:
            finish(error)
            return
        try:
            loop.call_soon_threadsafe(finish, error)
        except RuntimeError:
            pass  # the loop is closed, and its tasks with it

    log._when_settled(offset, call)
    await outcome(future)


class YieldTimer:
    """Tells a task that returns many records when to yield to others: a yield costs as much as some dozen records."""

    def __init__(self) -> None:
        self._watch = Stopwatch()

    @property
    def is_due(self) -> bool:
        """Time to yield. Reading True restarts the clock."""
        if self._watch.elapsed_s < _TURN_S:
            return False
        self._watch.restart()
        return True


def may_block(logs: Iterable[object] | None) -> bool:
    """Return whether reading one of these partitions may block on the network: it is on object storage, or a part of it
    is only in its replica. None: it may."""
    return logs is None or any(not isinstance(log, Log) or log._is_tiered for log in logs)


def portions(begin: Callable[[], Iterator[Record]], logs: Sequence[Partition] | None) -> AsyncIterator[Record]:
    """Yield the records of these partitions, and let other tasks run in between. Reads that may block run in threads;
    without `logs`, all of them do. With `logs`, invalid arguments raise at once."""
    return _portions(begin, None) if logs is None else _portions(partial(iter, begin()), logs)


async def _portions(begin: Callable[[], Iterator[Record]], logs: Sequence[Partition] | None) -> AsyncIterator[Record]:
    yield_timer = YieldTimer()
    records = await in_thread(begin) if logs is None else begin()
    while True:
        if may_block(logs):
            portion = await in_thread(lambda: list(islice(records, _THREAD_PORTION)))
        else:
            portion = list(islice(records, _PORTION))
        if not portion:
            return
        for record in portion:
            yield record
        if yield_timer.is_due:
            await asyncio.sleep(0)


async def followed(
    logs: Mapping[int, Partition], start: Mapping[int, int], timeout_s: float | None, isolation: Isolation
) -> AsyncIterator[Record]:
    """Yield the records of these partitions, in offset order within each, and new ones as they come. Ends when none
    came for `timeout_s` seconds, or when all are closed."""
    feeds = {number: log._following(start.get(number), isolation=isolation) for number, log in logs.items()}
    waker, yield_timer, deadline = Waker(), YieldTimer(), Deadline(timeout_s)
    waker.watch(logs.values())
    try:
        while feeds:
            waker.arm()
            found = False
            for number, feed in list(feeds.items()):
                cursor = await in_thread(next, feed, END) if may_block([logs[number]]) else next(feed, END)
                if isinstance(cursor, End):
                    del feeds[number]
                elif cursor is not None:
                    for record in cursor:
                        yield record
                    if yield_timer.is_due:
                        await asyncio.sleep(0)
                    found = True
            if found:
                deadline = Deadline(timeout_s)
            elif deadline.passed:
                return
            else:
                await waker.wait(deadline.at_most(1.0))
    finally:
        waker.close()


async def open_in_thread(open_: Callable[[], T], close: Callable[[T], None]) -> T:
    """Open an object in a thread. If the task is cancelled meanwhile, close it again."""
    future = asyncio.get_running_loop().run_in_executor(None, open_)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        if not future.cancelled() and future.exception() is None:
            await in_thread(close, future.result())
        raise


class End:
    """The type of `END`, which `next` returns instead of raising StopIteration: neither a coroutine nor a thread can
    pass that on."""


END = End()


class Waker:
    """Wakes a task when one of several logs has grown. For one task at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._armed = False
        self._watched: dict[Partition, Callable[[], None]] = {}

    def watch(self, logs: Iterable[Partition]) -> None:
        wanted = set(logs)
        for log in self._watched.keys() - wanted:
            self._watched.pop(log)()
        for log in wanted - self._watched.keys():
            self._watched[log] = log._watch(self._moved)

    def _moved(self) -> None:
        """Called in any thread, while the log is locked."""
        if self._armed:
            self._armed = False
            try:
                self._loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:
                pass  # the loop is closed

    def arm(self) -> None:
        """Report growth from now on. Look for records once more before waiting: some may have come just before."""
        self._event.clear()
        self._armed = True

    @property
    def is_armed(self) -> bool:
        """Armed, with nothing reported since."""
        return self._armed

    def wake(self) -> None:
        """Wake the task. Call it in the event loop."""
        self._armed = False
        self._event.set()

    async def wait(self, seconds: float = _LONGEST_S) -> None:
        """Return when growth was reported, or after `seconds`."""
        try:
            async with asyncio.timeout(min(seconds, _LONGEST_S)):
                await self._event.wait()
        except TimeoutError:
            pass
        self._armed = False

    def close(self) -> None:
        self.watch(())


class Closable(Protocol):
    """An object with an asynchronous `close`."""

    async def close(self) -> None:
        """Release everything. Safe to call twice."""


Closing = TypeVar("Closing", bound=Closable)


class Opening(Generic[Closing]):
    """An open call that has not run yet: await it, or enter it with `async with`, which also closes; once."""

    def __init__(self, open_: Callable[[], Awaitable[Closing]]) -> None:
        self._open = open_
        self._opened: Closing | None = None

    def __await__(self) -> Generator[Any, Any, Closing]:
        return self._open().__await__()

    async def __aenter__(self) -> Closing:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()
