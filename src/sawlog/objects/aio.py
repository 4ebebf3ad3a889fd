"""`AsyncAppends`: appending to a partition on object storage from tasks of an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterable
from datetime import datetime

from ..batch.given import GivenHeaders
from ..errors import StreamAborted, StreamTooLong
from ..log.write.aio import past_recall
from .appending import STREAM_BYTES, ObjectAppends


async def collected(chunks: AsyncIterable[bytes], max_bytes: int | None) -> bytes:
    """The value of a stream, in memory."""
    most = STREAM_BYTES if max_bytes is None else min(max_bytes, STREAM_BYTES)
    value = bytearray()
    try:
        async for chunk in chunks:
            value += chunk
            if len(value) > most:
                raise StreamTooLong(f"the stream exceeds {most:,} bytes; nothing was stored")
    except StreamTooLong:
        raise
    except Exception as error:
        raise StreamAborted(f"the stream raised {type(error).__name__}: {error}; nothing was stored") from error
    return bytes(value)


class AsyncAppends(ObjectAppends):
    """Each call runs in a thread, because a commit is waited for; many share one."""

    async def append_async(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """As `append`, without blocking the event loop."""
        return await past_recall(self.append, value, key, headers, timestamp)

    async def append_stream_async(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """As `append_stream`, for chunks that come asynchronously."""
        value = await collected(chunks, max_bytes)
        return await past_recall(self.append, value, key, headers, timestamp, expect_offset)
