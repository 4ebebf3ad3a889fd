"""Appending from asyncio without blocking the loop, and sharing batches and fsyncs between tasks.

`AsyncAppends` collects what the tasks of one event loop want to append. While one batch is being written and synced
in a thread, the next one fills; each task wakes up with its own offset. So a thousand tasks that append durably cost
one fdatasync, not a thousand, and one batch header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..batch import kernel
from ..batch.build import finish, refuse
from .append import Appender

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
            future.exception()  # seen; the cancellation is what counts
        raise


async def past_recall(call: Callable[..., T], *arguments: Any) -> T:
    """As `in_thread`, but a cancellation that comes too late to undo the call is delivered after its result."""
    future = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    task = asyncio.current_task()
    if cancelled and task is not None:
        if future.exception() is not None:
            raise asyncio.CancelledError
        task.cancel()
    return future.result()


class AsyncAppends:
    """The appends of one event loop to one log."""

    def __init__(self, log: Appender) -> None:
        self._log = log
        self.loop = asyncio.get_running_loop()
        recipe = log.recipe
        self._builder = kernel.BatchBuilder(
            refuse, max_record=recipe.max_record_bytes, max_total=recipe.max_batch_bytes, capacity=64 << 10
        )
        self._spare = bytearray(64 << 10)
        self._waiting: list[asyncio.Future[int]] = []
        self._flushing = False
        self._thread = ThreadPoolExecutor(1, "sawlog-append")

    async def append(self, value: Any, key: Any, headers: Any, timestamp: Any) -> int:
        """Take part in the next batch; the record's offset, when it is as durable as the policy says."""
        self._log.check_open()
        self._builder.add(value, key, headers, timestamp)
        future: asyncio.Future[int] = self.loop.create_future()
        self._waiting.append(future)
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        """Hand the open batch to the thread and open the next one."""
        if not self._waiting:
            self._flushing = False
            return
        waiting, self._waiting = self._waiting, []
        batch = finish(self._builder, self._log.recipe)
        buffer = self._builder.swap(self._spare)
        self._thread.submit(self._write, batch, buffer, waiting)

    def _write(self, batch: Any, buffer: bytearray, waiting: list[asyncio.Future[int]]) -> None:
        """In the thread: place, sync, report."""
        placed, error = range(0), None
        try:
            placed = self._log.place(batch)
            self._log.settle(placed.stop)
        except BaseException as caught:
            error = caught
        self._spare = buffer
        try:
            self.loop.call_soon_threadsafe(self._report, waiting, placed, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _report(self, waiting: list[asyncio.Future[int]], placed: range, error: BaseException | None) -> None:
        if error is None:
            for future, offset in zip(waiting, placed, strict=True):
                if not future.done():
                    future.set_result(offset)
        else:
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        self._flush()

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False)
