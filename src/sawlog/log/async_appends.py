"""Appends from asyncio without blocking the loop, and shares batches and fsyncs between tasks.

`AsyncAppends` collects what the tasks of one event loop want to append. While one batch is being written and synced in
a thread, the next one fills; each task wakes up with its own offset. So a thousand tasks that append durably cost one
fdatasync, not a thousand, and one batch header. Where the policy does not wait for the disk, and no other thread is
appending, the loop writes by itself: that is faster than asking a thread.

The async appends of a log: one `AsyncAppends` per event loop that uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import LogClosed, RecordTooLarge
from .appender import Appender
from .encoding import Batcher, Taken

if TYPE_CHECKING:
    pass


_BUFFER_BYTES = 64 << 10

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a thread. If the task is cancelled meanwhile, wait for the call to end first: it may be
    using a file that is about to be closed."""
    future = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not future.done():
            await asyncio.wait({future})
        if not future.cancelled():
            future.exception()  # retrieved; the cancellation takes precedence
        raise


async def past_recall(call: Callable[..., T], *arguments: Any) -> T:
    """As `in_thread`, but a cancellation that comes too late to undo the call is delivered after its result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)  # a cancellation that came before the call started: delivered here, the call never runs
    return await outcome(asyncio.get_running_loop().run_in_executor(None, call, *arguments))


async def outcome(future: asyncio.Future[T], *, cancelled: bool = False) -> T:
    """The result of what can no longer be undone. If the task is cancelled meanwhile, that is delivered later: the
    result comes first. If there is an error instead of a result, the cancellation takes precedence."""
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if future.cancelled() or future.exception() is not None:
            raise asyncio.CancelledError
        _cancel_later()
    return future.result()


def _cancel_later() -> None:
    """Cancel the task again when it waits next, if it is still to be cancelled then: `asyncio.timeout` takes its
    request back when its block ends."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().call_soon(_cancel, task)


def _cancel(task: asyncio.Task[Any]) -> None:
    if task.cancelling() and not task.done():
        task.cancel()
        task.uncancel()  # it was counted the first time


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the calling task."""
    return asyncio.get_running_loop()


@dataclass(slots=True)
class _Batch:
    """A batch on its way to the log, and the tasks that wait for it."""

    taken: Taken
    waiting: list[asyncio.Future[int]]


#: Batches with their offsets, or with the error that prevented them.
_Results = list[tuple[_Batch, range, BaseException | None]]


class AsyncAppends:
    """The appends of one event loop to one log. All but `_write` runs in the loop's thread."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self.loop = asyncio.get_running_loop()
        self.running_loop = asyncio.get_running_loop
        self._new_future: Callable[[], asyncio.Future[int]] = self.loop.create_future
        self._batcher = Batcher(appender.encoders.recipe, capacity=_BUFFER_BYTES, keep=4)
        self._add = self._batcher.add
        self._waiting: list[asyncio.Future[int]] = []
        self._full: list[_Batch] = []
        self._flushing = False
        #: For tasks that were cancelled: what they wait for instead.
        self._instead: dict[asyncio.Future[int], asyncio.Future[int]] = {}
        #: Results for tasks that were cancelled, until these ask for them.
        self._late: dict[asyncio.Future[int], int | BaseException] = {}
        self._thread = ThreadPoolExecutor(1, "sawlog-append")

    def add(self, value: Any, key: Any, headers: Any, timestamp: Any) -> asyncio.Future[int]:
        """Add the record to the next batch and return its offset when it is as durable as the policy says.

        Whether the log can still be written to is checked when the batch is placed; every task in it gets the result.
        """
        try:
            self._add(value, key, headers, timestamp)
        except RecordTooLarge:
            if not self._waiting:
                raise
            self._close_batch()  # it was full; alone the record may fit
            self._add(value, key, headers, timestamp)
        future = self._new_future()
        self._waiting.append(future)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        return future

    async def append(self, value: Any, key: Any, headers: Any, timestamp: Any) -> int:
        """The same as a coroutine: if its task is cancelled, the offset comes first (see `outcome`)."""
        future = self.add(value, key, headers, timestamp)
        try:
            return await future
        except asyncio.CancelledError:
            return await self._finished(future)

    async def _finished(self, future: asyncio.Future[int]) -> int:
        """The offset of a record whose task was cancelled."""
        if future.cancelled():
            fresh = self._new_future()
            if future in self._late:
                self._give(fresh, self._late.pop(future))
            else:
                self._instead[future] = fresh
            future = fresh
        return await outcome(future, cancelled=True)

    def _close_batch(self) -> None:
        if self._waiting:
            self._full.append(_Batch(self._batcher.take(), self._waiting))
            self._waiting = []

    def _flush(self) -> None:
        """Pass what is collected to the thread; what comes meanwhile waits for the next turn."""
        self._close_batch()
        batches, self._full = self._full, []
        if not batches:
            self._flushing = False
            return
        appender = self._appender
        try:
            if not appender.waits() and appender.is_free:
                results = self._place(batches)
                if appender.waits():
                    self._thread.submit(self._settle, results)
                else:
                    self._report(results)
            else:
                self._thread.submit(self._write, batches)
        except RuntimeError:  # the log was closed
            error = LogClosed(f"the log {self._appender.directory.path} was closed before this record was written")
            self._report([(batch, range(0), error) for batch in batches])

    def _write(self, batches: list[_Batch]) -> None:
        """In the thread: place all, sync once, report."""
        self._settle(self._place(batches))

    def _place(self, batches: list[_Batch]) -> _Results:
        """In the thread; or in the loop, if nobody waits for the disk."""
        results: _Results = []
        for batch in batches:
            try:
                placed = self._appender.place(self._batcher.sealed(batch.taken))
                results.append((batch, placed, None))
            except BaseException as error:
                results.append((batch, range(0), error))
        return results

    def _settle(self, results: _Results) -> None:
        """In the thread: wait for the disk as the policy says, and report."""
        ends = [placed.stop for _, placed, error in results if error is None]
        if ends:
            try:
                self._appender.settle(ends[-1])
            except BaseException as error:
                results = [(batch, placed, earlier or error) for batch, placed, earlier in results]
        try:
            self.loop.call_soon_threadsafe(self._report, results)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any longer

    def _report(self, results: _Results) -> None:
        for batch, placed, error in results:
            self._batcher.give_back(batch.taken[0])
            if error is None:
                for future, offset in zip(batch.waiting, placed, strict=True):
                    if not future.done():
                        future.set_result(offset)
                    else:
                        self._keep(future, offset)
            else:
                for future in batch.waiting:
                    if not future.done():
                        future.set_exception(error)
                    else:
                        self._keep(future, error)
        self._flush()

    def _keep(self, future: asyncio.Future[int], result: int | BaseException) -> None:
        """The task that waited for this was cancelled: it asks again."""
        fresh = self._instead.pop(future, None)
        if fresh is None:
            self._late[future] = result
        elif not fresh.done():
            self._give(fresh, result)

    @staticmethod
    def _give(future: asyncio.Future[int], result: int | BaseException) -> None:
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    @property
    def is_busy(self) -> bool:
        """Whether a record is on its way."""
        return self._flushing

    def close(self) -> None:
        """Stop the thread when it has finished its work."""
        self._thread.shutdown(wait=True)
