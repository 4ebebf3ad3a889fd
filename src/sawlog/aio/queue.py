"""`AsyncQueue`: a queue over a topic, for asyncio. Every exchange with the store runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from ..batch.inputs import HeadersInput
from ..clock import Deadline, PollBackoff
from ..store.base import Position
from ..store.queues.message import Message
from ..store.queues.queue import Queue
from .waiting import in_thread, past_recall


class AsyncQueue:
    """Records of a topic, handed out one by one. Created by `AsyncStore.queue`; see `Queue`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._closed = False

    @property
    def sync(self) -> Queue:
        """The synchronous queue. Its calls may block: use `asyncio.to_thread`."""
        return self._queue

    async def receive(self, max_messages: int = 1, timeout_s: float = 1.0) -> list[Message]:
        """Return the next messages as soon as there are any, at most `max_messages`; an empty list after `timeout_s`. A
        cancelled task waits for the exchange in progress, whose messages are delivered again later."""
        return await self._receive(max_messages, Deadline(timeout_s))

    async def _receive(self, max_messages: int, deadline: Deadline) -> list[Message]:
        pauses = PollBackoff()
        while not self._closed:
            pauses.look()
            found = await past_recall(self._queue.receive, max_messages, 0.0)
            if found or deadline.passed:
                return found
            await asyncio.sleep(deadline.at_most(pauses.next_s()))
        return []

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they come, until `close`."""
        return self._messages(None)

    def drain(self) -> AsyncIterator[Message]:
        """Yield messages until there is none to deliver now, without waiting for delayed messages or those of other
        workers."""
        return self._messages(0.0)

    async def _messages(self, timeout_s: float | None) -> AsyncIterator[Message]:
        while found := await self._receive(1, Deadline(timeout_s)):
            yield found[0]

    async def ack(self, message: Message) -> None:
        """Finish a message: it is not delivered again."""
        await in_thread(self._queue.ack, message)

    async def release(self, message: Message, delay_s: float = 0.0) -> None:
        """Return a message to the queue: it is delivered again, after `delay_s`."""
        await in_thread(self._queue.release, message, delay_s)

    async def reject(self, message: Message, reason: str = "rejected") -> None:
        """Move a message to the dead letters."""
        await in_thread(self._queue.reject, message, reason)

    async def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """Extend the visibility timeout of a message."""
        await in_thread(self._queue.extend, message, visibility_s)

    async def flush(self) -> None:
        """Write all acknowledgements now."""
        await in_thread(self._queue.flush)

    async def put(
        self, value: bytes | None, key: bytes | None = None, headers: HeadersInput = (), *, delay_s: float = 0.0
    ) -> Position:
        """Append a message to the topic, to be delivered after `delay_s` seconds, and return its position."""
        return await past_recall(partial(self._queue.put, value, key, headers, delay_s=delay_s))

    async def close(self) -> None:
        """Write all acknowledgements, return the other messages to the queue, and leave. Safe to call twice."""
        self._closed = True
        await in_thread(self._queue.close)

    def __repr__(self) -> str:
        return f"<Async{repr(self._queue)[1:]}"
