"""Appends from asyncio that do not block the event loop and share batches and fsyncs between tasks.

`AsyncAppender` collects the appends of the tasks of one event loop. While a thread writes and syncs one batch, the next
one fills; each task wakes up with its own offset. A thousand tasks that append durably thus share one fdatasync and one
batch header. If the policy does not wait for the disk and no other thread is appending, the loop writes the batch
itself, which is faster than handing it to a thread.

`AsyncAppenders` keeps one `AsyncAppender` per event loop that uses a log. `in_thread`, `past_recall` and `outcome` run
blocking calls for the asyncio classes, with defined behaviour under cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import LogClosed, RecordTooLarge
from .appender import Appender
from .writer import Batcher, Taken

_BUFFER_BYTES = 64 << 10

T = TypeVar("T")

running_loop = asyncio.get_running_loop


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a thread. If the task is cancelled meanwhile, wait for the call to return first: it may
    use a file that is about to be closed."""
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
    """Run a blocking call in a thread as `in_thread` does, but deliver a cancellation that comes too late to undo the
    call after its result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)  # delivers a cancellation from before the call, which then never runs
    return await outcome(asyncio.get_running_loop().run_in_executor(None, call, *arguments))


async def outcome(future: asyncio.Future[T], *, cancelled: bool = False) -> T:
    """Return the result of a call that can no longer be undone. A cancellation meanwhile is delivered after the result;
    if the call raises, the cancellation takes precedence."""
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
    """Cancel the task again at its next await, unless the request was withdrawn: `asyncio.timeout` withdraws its own
    when its block ends."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().call_soon(_cancel, task)


def _cancel(task: asyncio.Task[Any]) -> None:
    if task.cancelling() and not task.done():
        task.cancel()
        task.uncancel()  # already counted the first time


@dataclass(slots=True)
class _Batch:
    """A batch on its way to the log, and the tasks that wait for it."""

    taken: Taken
    waiting: list[asyncio.Future[int]]


#: Batches with their offsets, or with the error that kept them from being stored.
_Results = list[tuple[_Batch, range, BaseException | None]]


class AsyncAppender:
    """Appends of one event loop to one log. Runs in the loop's thread, except for `_write` and `_settle`."""

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
        #: For cancelled tasks: the future that replaces the cancelled one.
        self._instead: dict[asyncio.Future[int], asyncio.Future[int]] = {}
        #: Results for cancelled tasks, until they collect them.
        self._late: dict[asyncio.Future[int], int | BaseException] = {}
        self._thread = ThreadPoolExecutor(1, "sawlog-append")

    def add(self, value: Any, key: Any, headers: Any, timestamp: Any) -> asyncio.Future[int]:
        """Add a record to the next batch. The future gets its offset once it is as durable as the policy promises.

        A closed or failed log is noticed when the batch is placed; every task of the batch then gets the error.
        """
        try:
            self._add(value, key, headers, timestamp)
        except RecordTooLarge:
            if not self._waiting:
                raise
            self._close_batch()  # the batch was full; the record may fit into the next one
            self._add(value, key, headers, timestamp)
        future = self._new_future()
        self._waiting.append(future)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        return future

    async def append(self, value: Any, key: Any, headers: Any, timestamp: Any) -> int:
        """Append a record and return its offset. If the task is cancelled, the offset comes first (see `outcome`)."""
        future = self.add(value, key, headers, timestamp)
        try:
            return await future
        except asyncio.CancelledError:
            return await self._finished(future)

    async def _finished(self, future: asyncio.Future[int]) -> int:
        """Return the offset of a record whose task was cancelled."""
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
        """Hand the collected batches to the thread. Records added meanwhile wait for the next flush."""
        self._close_batch()
        batches, self._full = self._full, []
        if not batches:
            self._flushing = False
            return
        appender = self._appender
        try:
            if not appender.must_sync() and appender.is_free:
                results = self._place(batches)
                if appender.must_sync():
                    self._thread.submit(self._settle, results)
                else:
                    self._report(results)
            else:
                self._thread.submit(self._write, batches)
        except RuntimeError:  # the log was closed
            error = LogClosed(f"the log {self._appender.directory.path} was closed before this record was written")
            self._report([(batch, range(0), error) for batch in batches])

    def _write(self, batches: list[_Batch]) -> None:
        """Place all batches, sync once, and report. Runs in the thread."""
        self._settle(self._place(batches))

    def _place(self, batches: list[_Batch]) -> _Results:
        """Place all batches. Runs in the thread, or in the loop if the policy does not wait for the disk."""
        results: _Results = []
        for batch in batches:
            try:
                placed = self._appender.place(self._batcher.sealed(batch.taken))
                results.append((batch, placed, None))
            except BaseException as error:
                results.append((batch, range(0), error))
        return results

    def _settle(self, results: _Results) -> None:
        """Wait for the disk as the policy requires, and report. Runs in the thread."""
        ends = [placed.stop for _, placed, error in results if error is None]
        if ends:
            try:
                self._appender.settle(ends[-1])
            except BaseException as error:
                results = [(batch, placed, earlier or error) for batch, placed, earlier in results]
        try:
            self.loop.call_soon_threadsafe(self._report, results)
        except RuntimeError:
            pass  # the loop is closed: no task is waiting

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
        """Keep the result of a record whose task was cancelled, until the task collects it."""
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
        """True if a record is in flight."""
        return self._flushing

    def close(self) -> None:
        """Finish the work in flight and stop the thread."""
        self._thread.shutdown(wait=True)
