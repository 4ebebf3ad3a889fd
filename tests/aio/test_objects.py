"""A store on object storage works with asyncio, and never blocks the event loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest

import sawlog
from sawlog.errors import InvalidConfig, OffsetMismatch
from sawlog.store.objects.bucket import Bucket


def _place() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_records_are_appended_read_and_followed() -> None:
    async def main() -> None:
        async with sawlog.open_async(_place(), maintenance_interval_s=None) as store:
            topic = await store.create_topic("orders", 2)
            assert (topic.partitions, await store.topics()) == (2, ["orders"])
            at = await topic.append(b"one", key=b"a")
            assert (await topic.read(at)).value == b"one"
            await topic.append_many([(b"%d" % number, b"%d" % number) for number in range(20)])
            assert len([record async for record in topic.scan()]) == 21
            with pytest.raises(OffsetMismatch):
                await topic.append(b"no", partition=0, expect_offset=1000)
            log = topic.partition(at.partition)
            assert (await log.read(at.offset)).value == b"one"
            assert (await topic.offsets())[at.partition].next == log.visible_offset

            async def chunks() -> AsyncIterator[bytes]:
                yield b"ab"
                yield b"cd"

            placed = await topic.append_stream(chunks(), partition=0)
            assert (await topic.read(placed)).value == b"abcd"
            assert len([record async for record in topic.follow(timeout=0.05)]) == 22
            assert [record.value async for record in topic.partition(0).follow(placed.offset, 0.05)] == [b"abcd"]

    asyncio.run(main())


def test_a_consumer_gets_what_comes_and_commits() -> None:
    async def main() -> None:
        async with sawlog.open_async(_place(), maintenance_interval_s=None) as store:
            topic = await store.create_topic("orders", 2)
            await topic.append_many([b"a", b"b"], partition=0)
            async with store.consumer("billing", ["orders"]) as consumer:
                assert [record.value async for record in consumer.drain()] == [b"a", b"b"]
                waiting = asyncio.create_task(consumer.poll(20.0))
                await topic.append(b"c", partition=1)
                assert [record.value for record in await waiting] == [b"c"]
            async with store.consumer("billing", ["orders"]) as consumer:
                assert await consumer.poll(0.05) == []

    asyncio.run(main())


def test_a_follower_that_waits_can_be_cancelled() -> None:
    async def main() -> None:
        async with sawlog.open_async(_place(), maintenance_interval_s=None) as store:
            topic = await store.create_topic("orders")

            async def forever() -> None:
                async for _ in topic.partition(0).follow():
                    pass

            task = asyncio.create_task(forever())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 20)

    asyncio.run(main())


def test_the_event_loop_goes_on_while_the_bucket_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_s, create, get = 0.3, Bucket.create, Bucket.get_range

    def slowly(call: object) -> object:
        def slow(*arguments: object) -> object:
            time.sleep(slow_s)
            return call(*arguments)  # type: ignore[operator]

        return slow

    async def main() -> None:
        async with sawlog.open_async(_place(), maintenance_interval_s=None) as store:
            topic = await store.create_topic("orders")
            monkeypatch.setattr(Bucket, "create", slowly(create))
            monkeypatch.setattr(Bucket, "get_range", slowly(get))

            async def work() -> int:
                await topic.append(b"one")
                return len([record async for record in topic.scan()])

            turns, task = 0, asyncio.create_task(work())
            while not task.done():
                turns += 1
                await asyncio.sleep(0.005)
            assert await task == 1
            assert turns > 10  # a blocked loop would run once or twice

    asyncio.run(main())


def test_options_of_directories_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(InvalidConfig, match="lock_timeout"):
            await sawlog.open_async(_place(), lock_timeout=1.0)

    asyncio.run(main())
