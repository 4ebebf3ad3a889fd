"""`AsyncConsumer`: reads topics as a member of a group, for asyncio.

It wraps `sawlog.store.consumer.Consumer` and gives the same guarantees: at least once; a returned record counts as
processed when the next one is requested. Records are read in the event loop. Joining, committing, and the group's work
between two records run in a thread; when there is nothing new, the task sleeps until a log has grown.

A block left by an exception, including a cancellation, commits without the current record.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial

from ..batch.kernel import Record, RecordCursor, handed_out
from ..clock import Deadline
from ..errors import LogClosed
from ..store.base import TopicPartition
from ..store.consumer import Consumer
from .waiting import END, End, Waker, YieldTimer, awaited, direct, in_thread, may_block, open_in_thread

#: Maximum wait before checking the group again.
_GROUP_CHECK_S = 0.25


class AsyncConsumer:
    """A member of a consumer group: `async with store.consumer(...) as consumer`."""

    def __init__(self, join: Callable[[], Consumer], *, waits: bool = False) -> None:
        self._join = join
        #: Reads may block on the network, so they run in a thread.
        self._waits = waits
        self._joined: Consumer | None = None
        self._waker: Waker | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self._consumer()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(everything=kind is None, quiet=kind is not None)

    async def _consumer(self) -> Consumer:
        if self._closed:
            raise LogClosed("the consumer is closed")
        if self._joined is None:
            self._joined = await open_in_thread(self._join, Consumer.close)
        return self._joined

    @property
    def sync(self) -> Consumer:
        """The synchronous consumer. Its calls may block: use `asyncio.to_thread`."""
        if self._joined is None:
            raise LogClosed("the consumer has not joined yet: use `async with`")
        return self._joined

    # --- reading

    def __aiter__(self) -> AsyncIterator[Record]:
        """Yield records as they arrive, until `close`."""
        return self._records(drain=False)

    def drain(self) -> AsyncIterator[Record]:
        """Yield records up to the end that each owned partition had when it was first read."""
        return self._records(drain=True)

    def _records(self, *, drain: bool) -> AsyncIterator[Record]:
        yield_timer, feeds = YieldTimer(), list[Iterator[RecordCursor | None]]()

        async def step() -> RecordCursor | None:
            """Return the next cursor as soon as there is one; None at the end."""
            consumer = await self._consumer()
            if not feeds:
                feeds.append(consumer._feed(drain=drain))
            elif yield_timer.is_due:
                await sleep(0)
            while (cursor := await _step(consumer, feeds[0], waits=self._waits or may_block(consumer._logs))) is None:
                await self._wait(consumer, _GROUP_CHECK_S)
            return None if isinstance(cursor, End) else cursor

        made: AsyncIterator[Record] = handed_out(step)
        return made

    async def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Record]:
        """Return the next records as soon as there are any, at most `max_records`; an empty list after `timeout_s`."""
        consumer, deadline = await self._consumer(), Deadline(timeout_s)
        while True:
            self._get_waker().arm()
            if consumer._is_due:
                await in_thread(consumer._go_on)
            if self._waits or may_block(consumer._logs):
                records = await in_thread(consumer.poll, 0.0, max_records)
            else:
                records = consumer.poll(0.0, max_records)
            if records or deadline.passed or consumer._is_closed:
                return records
            await self._wait(consumer, deadline.at_most(_GROUP_CHECK_S))

    def _get_waker(self) -> Waker:
        if self._waker is None:
            self._waker = Waker()
        return self._waker

    async def _wait(self, consumer: Consumer, seconds: float) -> None:
        waker = self._get_waker()
        if not self._waits:
            waker.watch(consumer._logs)
        await (waker.wait(seconds) if waker.is_armed else sleep(0))
        waker.arm()  # the caller looks again: records may have come before this

    # --- committing, inspecting and moving

    async def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit everything returned so far, or these positions: {(topic, partition): next offset to read}.

        Durable when it returns. If the task is cancelled, the commit may or may not have happened; repeating it does no
        harm.
        """
        await in_thread((await self._consumer()).commit, positions)

    @property
    def assignment(self) -> set[TopicPartition]:
        """Partitions assigned to this member: {(topic, partition)}."""
        return self.sync.assignment

    @property
    def positions_lost(self) -> int:
        """Number of times a position was no longer in the log."""
        return self.sync.positions_lost

    position = direct(Consumer.position)
    committed = awaited(Consumer.committed)
    lag = direct(Consumer.lag)
    seek = direct(Consumer.seek)
    pause = direct(Consumer.pause)

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume reading these partitions where they were paused; without arguments, all paused partitions."""
        self.sync.resume(*partitions)
        if self._waker is not None:
            self._waker.wake()

    @property
    def paused(self) -> set[TopicPartition]:
        """Paused partitions."""
        return self.sync.paused

    # --- closing

    async def close(self) -> None:
        """Commit the processed records, without the current one, and leave the group. Safe to call twice, and from any
        task: a task that waits for records ends."""
        await self._close(everything=False, quiet=False)

    async def _close(self, *, everything: bool, quiet: bool) -> None:
        self._closed = True
        consumer = self._joined
        if consumer is None:
            return
        try:
            await in_thread(partial(consumer._finish, everything=everything, quiet=quiet))
        finally:
            if self._waker is not None:
                self._waker.wake()
                self._waker.close()


async def _step(consumer: Consumer, feed: Iterator[RecordCursor | None], *, waits: bool) -> RecordCursor | End | None:
    """Return the next cursor; in a thread if the consumer has group work to do, or may block on the network."""
    if waits or consumer._is_due:
        return await in_thread(next, feed, END)
    return next(feed, END)
