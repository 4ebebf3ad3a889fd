"""`AsyncPartition`: one partition for asyncio, whatever stores it.

Every call may block on the disk or the network, so each runs in a thread; the event loop only hands out records that
are already decoded. Tasks that append at the same time share a commit.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record
from ..clock import Deadline, PollBackoff
from ..isolation import Isolation
from ..store.base import Partition, collected
from .waiting import END, End, in_thread, past_recall

T = TypeVar("T")
#: Number of records taken per call in a thread.
_PORTION = 5000


async def portions(begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yield the elements of an iterator that is advanced in a thread."""
    found = await in_thread(begin)
    while portion := await in_thread(lambda: list(islice(found, _PORTION))):
        for each in portion:
            yield each


class AsyncPartition:
    """One partition. Returned by `AsyncTopic.partition`."""

    _log: Partition

    def __init__(self, partition: Partition) -> None:
        self._log = partition

    @property
    def sync(self) -> Partition:
        """The synchronous partition, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._log

    @property
    def path(self) -> str:
        """Location, for messages."""
        return self._log.path

    @property
    def lowest_offset(self) -> int:
        """First offset; in an empty partition, the offset of the next record."""
        return self._log.lowest_offset

    @property
    def visible_offset(self) -> int:
        """End of the readable records."""
        return self._log.visible_offset

    def __len__(self) -> int:
        return len(self._log)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Async{repr(self._log)[1:]}"

    def _repr_html_(self) -> str:
        return self._log._repr_html_()

    # --- appending

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset when it is durable."""
        return await past_recall(self._log.append, value, key, headers, timestamp, expect_offset)

    async def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets."""
        return await past_recall(self._log.append_many, list(records), expect_offset)

    async def append_stream(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record whose value comes in chunks. The value is collected in memory."""
        value = await collected(chunks, max_bytes)
        return await self.append(value, key, headers, timestamp, expect_offset)

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """Return the record at `offset`; `OffsetOutOfRange` if there is none."""
        return await in_thread(partial(self._log.read, offset, isolation=isolation))

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
        return portions(partial(self._log.scan, start, end, isolation=isolation))

    async def follow(
        self,
        start: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - ends the iteration, cancels nothing
        *,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Yield records from `start` on, and new ones as they come. Ends when none came for `timeout` seconds."""
        partition = self._log.patient()
        feed, deadline, pauses = partition._following(start, isolation=isolation), Deadline(timeout), PollBackoff()
        while not isinstance(cursor := await in_thread(next, feed, END), End):
            if cursor is not None:
                for record in cursor:
                    yield record
                deadline = Deadline(timeout)
                pauses.found()
            elif deadline.passed:
                return
            else:  # here and not in the thread: a cancelled task must not wait for a record
                await sleep(deadline.at_most(pauses.next_s()))

    async def offset_at(self, timestamp: int | datetime) -> int:
        """Return the first offset whose record is not older than `timestamp`, or the end."""
        return await in_thread(self._log.offset_at, timestamp)

    # --- changing

    async def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return the number of offsets dropped. Only where
        `Partition.supports_truncation`."""
        return await in_thread(self._log.truncate, offset)

    async def trim(self, offset: int) -> int:
        """Drop the records below `offset` and return the number of offsets dropped."""
        return await in_thread(self._log.trim, offset)

    async def flush(self) -> None:
        """Wait until everything appended so far is durable."""
        await in_thread(self._log.sync)

    async def close(self) -> None:
        """Return at once: the store closes its partitions."""
