"""`AsyncConsumer`: reads topics as a member of a group, for asyncio.

It is the `Consumer` of `sawlog.store.groups`, with its promises: at least once; what was returned counts as processed
when the next record is requested. Records are read in the event loop. Joining, committing, and what the group needs
between two records run in a thread; where there is nothing new, the task sleeps until a log has grown.

A block that is left by an exception, also by a cancellation, commits without the current record.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from types import TracebackType

from ..batch.kernel import Record, RecordCursor, handed_out
from ..clock import Deadline
from ..errors import LogClosed
from ..store.assignment import Share
from ..store.committed_offsets import Start
from ..store.consumer import Consumer
from .waiting import END, End, Pace, Waker, in_thread, may_wait, opened_in_thread

#: How long to wait before looking at the group again.
_LOOK_S = 0.25


class AsyncConsumer:
    """Reads topics as a member of a group: `async with store.consumer(...) as consumer`."""

    def __init__(self, join: Callable[[], Consumer], *, waits: bool = False) -> None:
        self._join = join
        #: Whether looking for records may wait for the network: then a thread does it.
        self._waits = waits
        self._joined: Consumer | None = None
        self._waker: Waker | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self._consumer()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(everything=kind is None, quiet=kind is not None)

    async def _consumer(self) -> Consumer:
        if self._closed:
            raise LogClosed("the consumer is closed")
        if self._joined is None:
            self._joined = await opened_in_thread(self._join, Consumer.close)
        return self._joined

    @property
    def sync(self) -> Consumer:
        """The consumer itself. Its calls may block: use `asyncio.to_thread`."""
        if self._joined is None:
            raise LogClosed("the consumer has not joined yet: use `async with`")
        return self._joined

    # --- reading

    def __aiter__(self) -> AsyncIterator[Record]:
        """Records as they arrive, endless; until `close`."""
        return self._records(drain=False)

    def drain(self) -> AsyncIterator[Record]:
        """Records up to where each owned partition ended when it was first read."""
        return self._records(drain=True)

    def _records(self, *, drain: bool) -> AsyncIterator[Record]:
        pace, feeds = Pace(), list[Iterator[RecordCursor | None]]()

        async def step() -> RecordCursor | None:
            """The next cursor, when there is one; None at the end."""
            consumer = await self._consumer()
            if not feeds:
                feeds.append(consumer.feed(drain=drain))
            elif pace.is_due:
                await sleep(0)
            while (cursor := await _step(consumer, feeds[0], waits=self._waits or may_wait(consumer.logs))) is None:
                await self._wait(consumer, _LOOK_S)
            return None if isinstance(cursor, End) else cursor

        made: AsyncIterator[Record] = handed_out(step)
        return made

    async def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Record]:
        """The next records, as soon as there are any; at most that many, and an empty list after `timeout_s`."""
        consumer, deadline = await self._consumer(), Deadline(timeout_s)
        while True:
            self._waking().arm()
            if consumer.is_due:
                await in_thread(consumer.go_on)
            if self._waits or may_wait(consumer.logs):
                records = await in_thread(consumer.poll, 0.0, max_records)
            else:
                records = consumer.poll(0.0, max_records)
            if records or deadline.passed or consumer.closed:
                return records
            await self._wait(consumer, deadline.at_most(_LOOK_S))

    def _waking(self) -> Waker:
        if self._waker is None:
            self._waker = Waker()
        return self._waker

    async def _wait(self, consumer: Consumer, seconds: float) -> None:
        waker = self._waking()
        if not self._waits:
            waker.watch(consumer.logs)
        await (waker.wait(seconds) if waker.is_armed else sleep(0))
        waker.arm()  # and look once more: some may have come before

    # --- committing, inspecting and moving

    async def commit(self, positions: Mapping[Share, int] | None = None) -> None:
        """Commit everything that was returned, or these positions: {(topic, partition): next offset to read}.

        Durable when it returns. If the task is cancelled it is committed or not; committing again does no harm.
        """
        await in_thread((await self._consumer()).commit, positions)

    @property
    def assignment(self) -> set[Share]:
        """The partitions that it reads now: {(topic, partition)}."""
        return self.sync.assignment

    @property
    def positions_lost(self) -> int:
        """How often a position was no longer in the log."""
        return self.sync.positions_lost

    def position(self, topic: str, partition: int) -> int:
        """The offset after the last record that was returned."""
        return self.sync.position(topic, partition)

    async def committed(self, topic: str, partition: int) -> int | None:
        """What the group has committed, by any member; None if nothing."""
        return await in_thread(self.sync.committed, topic, partition)

    def lag(self) -> dict[Share, int]:
        """How many records of each partition have not been returned yet."""
        return self.sync.lag()

    def seek(self, topic: str, partition: int, place: Start) -> None:
        """Continue at an offset, "earliest", "latest", or the first record that is not older than a datetime."""
        self.sync.seek(topic, partition, place)

    def pause(self, *shares: Share) -> None:
        """Read nothing of these partitions until `resume`; they stay assigned. All of them if none is given."""
        self.sync.pause(*shares)

    def resume(self, *shares: Share) -> None:
        """Continue with these partitions where they were paused. With all of them if none is given."""
        self.sync.resume(*shares)
        if self._waker is not None:
            self._waker.wake()

    @property
    def paused(self) -> set[Share]:
        """The partitions that are paused."""
        return self.sync.paused

    # --- closing

    async def close(self) -> None:
        """Commit what was processed, without the current record, and leave the group. Safe to call twice, and from
        any task: one that waits for records ends."""
        await self._close(everything=False, quiet=False)

    async def _close(self, *, everything: bool, quiet: bool) -> None:
        self._closed = True
        consumer = self._joined
        if consumer is None:
            return
        try:
            await in_thread(partial(consumer.finish, everything=everything, quiet=quiet))
        finally:
            if self._waker is not None:
                self._waker.wake()
                self._waker.close()


async def _step(consumer: Consumer, feed: Iterator[RecordCursor | None], *, waits: bool) -> RecordCursor | End | None:
    """The next cursor; in a thread if the consumer has something to do before, or waits for the network."""
    if waits or consumer.is_due:
        return await in_thread(next, feed, END)
    return next(feed, END)
