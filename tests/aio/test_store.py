"""Stores, topics and logs for asyncio: appends succeed, whichever process holds the partition, and nothing blocks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

import sawlog
import sawlog.aio
from sawlog import Log
from sawlog.aio.store import AsyncStore
from sawlog.aio.topic import AsyncTopic
from sawlog.errors import (
    DirectoryLocked,
    InvalidRecord,
    LogClosed,
    OffsetMismatch,
    OffsetOutOfRange,
    StreamTooLong,
    TopicExists,
    TopicNotFound,
)


def test_the_classes_can_be_named_by_programs() -> None:
    assert sawlog.aio.AsyncStore is AsyncStore
    assert all(hasattr(sawlog.aio, name) for name in sawlog.aio.__all__)
    assert not hasattr(sawlog.aio, "Nothing")


async def values(topic: AsyncTopic) -> list[bytes | None]:
    return [record.value async for record in topic.scan()]


def test_a_store_is_opened_by_a_block_or_by_await_and_closed_once(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders", 2)
            assert await store.topics() == ["orders"]
            assert (topic.name, topic.partitions) == ("orders", 2)
        with pytest.raises(LogClosed):
            await topic.append(b"late")
        await store.close()
        again = await sawlog.open_async(path)
        assert (await again.topic("orders")).partitions == 2
        await again.alter_topic("orders", 3)
        assert (await again.topic("orders")).partitions == 3
        with pytest.raises(TopicExists):
            await again.create_topic("orders")
        assert (await again.create_topic("orders", exist_ok=True)).partitions == 3
        await again.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await again.topic("orders")
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["os", "always", "interval:50:8388608"])
def test_every_way_to_append_stores_what_it_returns(path: Path, durability: str) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders", 3, durability=durability)
            one = await topic.append(b"one", b"key", [("h", b"x")], 7)
            found = await topic.read(one)
            assert (found.value, found.key, found.headers, found.timestamp) == (b"one", b"key", (("h", b"x"),), 7)
            many = await topic.append_many([(b"%d" % i, b"%d" % i) for i in range(50)])
            assert sum(map(len, many.values())) == 50
            arrow = await topic.append_arrow(pa.table({"value": [b"arrow"]}), partition=1)
            assert (await topic.read((1, arrow[1].start))).value == b"arrow"
            assert Counter(await values(topic)) == Counter([b"one", b"arrow", *(b"%d" % i for i in range(50))])
            for number, offsets in many.items():
                assert topic.partition(number).durable_offset >= (offsets.stop if durability == "always" else 0)
            with pytest.raises(InvalidRecord):
                await topic.append_many([])

    asyncio.run(main())


def test_every_append_can_expect_an_offset(path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"
        yield b"y"

    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("expecting")
            log = topic.partition(0)
            assert await topic.append(b"0", expect_offset=0) == (0, 0)
            assert await topic.append_stream(chunks(), expect_offset=1) == (0, 1)
            assert await topic.append_arrow(pa.table({"value": [b"2"]}), expect_offset=2) == {0: range(2, 3)}
            assert await log.append(b"3", expect_offset=3) == 3
            assert await log.append_stream(chunks(), max_bytes=2, expect_offset=4) == 4
            for wrong in (3, 6):
                for write in (
                    topic.append(b"x", expect_offset=wrong),
                    topic.append_stream(chunks(), expect_offset=wrong),
                    topic.append_arrow(pa.table({"value": [b"x"]}), expect_offset=wrong),
                    log.append(b"x", expect_offset=wrong),
                    log.append_stream(chunks(), expect_offset=wrong),
                ):
                    with pytest.raises(OffsetMismatch):
                        await write
            with pytest.raises(StreamTooLong):
                await topic.append_stream(chunks(), max_bytes=1)
            assert await values(topic) == [b"0", b"xy", b"2", b"3", b"xy"]

    asyncio.run(main())


def test_tasks_that_append_at_once_share_batches(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders")
            await topic.append(b"first")
            positions = await asyncio.gather(*(topic.append(b"%d" % i) for i in range(200)))
            assert [position.offset for position in positions] == list(range(1, 201))
            assert topic.partition(0).sync.size_bytes < 200 * 61

    asyncio.run(main())


def test_a_log_reads_truncates_and_trims(tmp_path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_log_async(tmp_path / "log") as log:
            assert await log.append_many([b"%d" % i for i in range(10)]) == range(10)
            assert await log.append(b"10") == 10
            with pytest.raises(sawlog.errors.OffsetMismatch):
                await log.append_many([b"x"], expect_offset=3)
            assert await log.truncate(9) == 2
            assert await log.trim(2) == 2
            assert [record.offset async for record in log] == list(range(2, 9))
            assert [record.offset async for record in log.scan(4, 6)] == [4, 5]
            with pytest.raises(OffsetOutOfRange):
                await log.read(9)

            async def chunks() -> object:
                yield b"a" * 10
                yield b"b"

            assert await log.append_stream(chunks()) == 9  # type: ignore[arg-type] # an async generator
            assert (await log.read(9)).value == b"a" * 10 + b"b"
            await log.flush()
            assert log.durable_offset == log.visible_offset == 10
        with pytest.raises(LogClosed):
            await log.append(b"late")
        with Log.open(tmp_path / "log") as again:
            assert again.recovery.clean

    asyncio.run(main())


def test_truncate_and_trim_of_a_topic(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders")
            await topic.append_many([b"%d" % i for i in range(10)])
            assert await topic.truncate(0, 8) == 2
            assert await topic.trim({0: 3}) == 3
            assert await topic.offsets() == {0: (3, 8)}
            assert await topic.offset_at(0) == {0: 3}

    asyncio.run(main())


@pytest.mark.parametrize("writer", ["here", "elsewhere"])
def test_following_a_topic_returns_what_is_there_and_what_comes(path: Path, writer: str) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store, sawlog.open_async(path) as other:
            topic = await store.create_topic("orders", 2)
            source = topic if writer == "here" else await other.topic("orders")
            await source.append_many([b"0", b"1"], partition=0)
            seen: list[bytes | None] = []

            async def follow() -> None:
                async for record in topic.follow({0: 1}):
                    seen.append(record.value)
                    if len(seen) == 4:
                        return

            following = asyncio.create_task(follow())
            await asyncio.sleep(0)
            for number in range(3):
                await source.append(b"new %d" % number, partition=number % 2)
            await asyncio.wait_for(following, 30)
            assert sorted(map(str, seen)) == sorted(map(str, [b"1", b"new 0", b"new 1", b"new 2"]))

    asyncio.run(main())


def test_following_ends_after_its_timeout_and_when_the_store_is_closed(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders")
            await topic.append(b"x")
            assert [record.value async for record in topic.follow(timeout=0.01)] == [b"x"]
            log = topic.partition(0)
            assert [record.value async for record in log.follow(timeout=0.01)] == [b"x"]

            async def endless(which: AsyncTopic) -> int:
                return len([record async for record in which.follow()])

            waiting = asyncio.create_task(endless(topic))
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(waiting, 30) == 1

    asyncio.run(main())


def test_following_a_log_that_is_truncated_below_what_was_returned_raises(tmp_path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_log_async(tmp_path / "log") as log:
            await log.append_many([b"%d" % i for i in range(10)])
            records = log.follow()
            for offset in range(10):
                assert (await anext(records)).offset == offset
            await log.truncate(5)
            await log.append_many([b"other"] * 10)
            with pytest.raises(OffsetOutOfRange):
                await asyncio.wait_for(anext(records), 30)

    asyncio.run(main())


# --- other tasks, other processes


def test_a_long_scan_lets_other_tasks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders", durability="os")
            for _ in range(20):
                await topic.append_many([bytes(1000)] * 500)
            counting = asyncio.create_task(count())
            async for _ in topic.scan():
                pass
            assert turns
            turns = 0
            async with store.consumer("group", "orders") as consumer:
                turns = 0
                async for _ in consumer.drain():
                    pass
            counting.cancel()
        return turns

    monkeypatch.setattr("sawlog.aio.waiting._TURN_S", 0.0)
    assert asyncio.run(main()) >= 19


def test_appends_in_the_loop_start_no_thread_for_each_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders", durability="os")
            await topic.append(b"takes the lock, in a thread")
            topic.partition(0).sync._watch(lambda: None)  # starts the background's timer
            loop = asyncio.get_running_loop()
            with monkeypatch.context() as patched:
                patched.setattr("sawlog.log.open.IDLE_S", 1000.0)
                await topic.append(b"x")
                patched.setattr(type(loop), "run_in_executor", None)
                patched.setattr(threading.Thread, "start", None)
                await topic.append_many([b"y"])
                assert await values(topic) == [b"takes the lock, in a thread", b"x", b"y"]
                assert [record.value async for record in topic.follow(timeout=0.0)][-1] == b"y"

    asyncio.run(main())


def test_turns_are_taken_with_another_process(path: Path) -> None:
    async def main() -> None:
        with sawlog.open(path) as holder:
            kept = holder.create_topic("orders", 2)
            kept.partition(0).append(b"held")
            async with sawlog.open_async(path) as store:
                topic = await store.topic("orders")
                assert await topic.append(b"one", partition=0) == (0, 1)
                assert await topic.append_many([b"two", b"three"], partition=0) == {0: range(2, 4)}
                assert await topic.append(b"mine", partition=1) == (1, 0)
                assert kept.partition(0).append(b"held again") == 4
                assert await topic.append(b"two again", partition=0) == (0, 5)
                assert await values(topic) == [b"held", b"one", b"two", b"three", b"held again", b"two again", b"mine"]

    asyncio.run(main())


def test_an_append_waits_for_a_lock_without_blocking_the_loop_and_can_be_cancelled(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path, lock_timeout=30) as store:
            topic = await store.create_topic("orders")
            log = await sawlog.open_log_async(path / "topics" / "orders" / "partition-0")
            waiting = asyncio.create_task(topic.append(b"cancelled"))
            patient = asyncio.create_task(topic.append_many([b"patient"]))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(waiting, 10)
            await log.close()
            assert await asyncio.wait_for(patient, 30) == {0: range(1)}
            assert await values(topic) == [b"patient"]

    asyncio.run(main())


def test_an_append_gives_up_when_the_lock_timeout_is_over(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path, lock_timeout=0.05) as store:
            topic = await store.create_topic("orders")
            async with sawlog.open_log_async(path / "topics" / "orders" / "partition-0"):
                with pytest.raises(DirectoryLocked, match=r"timed out after 0\.05 s"):
                    await topic.append(b"x")
            assert await topic.append(b"x") == (0, 0)

    asyncio.run(main())


def test_nothing_is_lost_or_doubled_while_locks_are_given_back(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders", durability="os")

            async def snatch() -> None:
                while True:
                    topic.sync.partition(0)._end_turn()
                    await asyncio.sleep(0)

            async def write(tag: int) -> None:
                for number in range(30):
                    await topic.append(b"%d one %d" % (tag, number))
                    await topic.append_many([b"%d many %d" % (tag, number)])

            snatching = asyncio.create_task(snatch())
            await asyncio.gather(*map(write, range(4)))
            snatching.cancel()
            found = await values(topic)
            assert len(found) == len(set(found)) == 4 * 30 * 2

    asyncio.run(main())


# --- cancellation


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("durability", ["os", "always"])
def test_a_retry_after_cancellation_stores_the_record_once(path: Path, durability: str, many: bool) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders", 2, durability=durability)

            async def write(number: int) -> None:
                """Append, and retry until the append is acknowledged, as programs do."""
                value = b"%d" % number
                while True:
                    try:
                        async with asyncio.timeout(0.0002 * (number % 7)):
                            await (topic.append_many([(value, value)]) if many else topic.append(value, value))
                        return
                    except TimeoutError:
                        number += 1

            await asyncio.wait_for(asyncio.gather(*map(write, range(200))), 60)
            found = await values(topic)
            assert len(found) == len(set(found)) == 200

    asyncio.run(main())


def test_closing_the_store_ends_appends_on_their_way(path: Path) -> None:
    async def main() -> list[object]:
        async with sawlog.open_async(path) as store:
            topic = await store.create_topic("orders")
            await topic.append(b"first")
            tasks = [asyncio.create_task(topic.append(b"%d" % i)) for i in range(50)]
            await asyncio.sleep(0)
        return list(await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30))

    results = asyncio.run(main())
    with sawlog.open(path, "r") as store:
        stored = {record.offset for record in store["orders"].scan()}
    for each in results:
        assert isinstance(each, LogClosed) or (isinstance(each, tuple) and each[1] in stored)
    assert len(stored) == 1 + sum(isinstance(each, tuple) for each in results)


def test_opening_that_is_cancelled_leaves_no_lock(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(3):
            opening = asyncio.ensure_future(_opened(tmp_path / "log"))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            Log.open(tmp_path / "log").close()

    asyncio.run(main())


async def _opened(path: Path) -> object:
    return await sawlog.open_log_async(path)


def test_a_store_to_read_refuses_to_append(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await (await store.create_topic("orders")).append(b"x")
        async with sawlog.open_async(path, "r") as reader:
            topic = await reader.topic("orders")
            assert await values(topic) == [b"x"]
            for write in (topic.append(b"y"), topic.append_many([b"y"])):
                with pytest.raises(sawlog.errors.ReadOnlyLog):
                    await write
            assert isinstance(reader, AsyncStore)

    asyncio.run(main())
