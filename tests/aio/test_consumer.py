"""Consumers for asyncio: the promises of a group hold, whatever is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import sawlog
from sawlog.aio.store import AsyncConsumer, AsyncStore
from sawlog.errors import LogClosed, ReadOnlyLog, TopicNotFound


async def filled(store: AsyncStore, count: int = 10, partitions: int = 2) -> None:
    topic = await store.create_topic("orders", partitions, durability="os")
    await topic.append_many([(b"%d" % i, b"%d" % i) for i in range(count)])


async def rest(store: AsyncStore, group: str | None = "billing") -> list[bytes]:
    """Return the records that the group has not processed."""
    async with store.consumer(group, ["orders"], auto_commit_ms=None) as consumer:
        return sorted([record.value or b"" async for record in consumer.drain()], key=int)


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - polls the effect of other members from outside
            await asyncio.sleep(0.001)


def test_a_group_continues_where_it_was(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, partitions=1)
            async with store.consumer("billing", "orders") as consumer:
                seen = 0
                async for record in consumer:
                    seen += 1
                    assert record.value == b"%d" % (seen - 1)
                    if seen == 4:
                        break
                assert consumer.assignment == {("orders", 0)}
                assert consumer.position("orders", 0) == 4
                assert consumer.lag() == {("orders", 0): 6}
            assert await rest(store) == numbers(4, 10)
            assert await rest(store, None) == numbers(0, 10)

    asyncio.run(main())


def test_new_records_of_any_process_wake_it_up(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store, sawlog.open_async(path) as other:
            await filled(store, 2)
            theirs = await other.topic("orders")
            seen: list[bytes | None] = []

            async def consume() -> None:
                async with store.consumer("billing", ["orders"]) as consumer:
                    async for record in consumer:
                        seen.append(record.value)
                        if len(seen) == 5:
                            return

            task = asyncio.create_task(consume())
            await until(lambda: len(seen) == 2)
            for number in range(3):
                await theirs.append(b"new", partition=number % 2)
                await until(lambda wanted=3 + number: len(seen) == wanted)  # type: ignore[misc] # a default
            await asyncio.wait_for(task, 30)

    asyncio.run(main())


def test_polling_returns_what_there_is_and_an_empty_list_after_its_timeout(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, 10, partitions=1)
            async with store.consumer("billing", ["orders"]) as consumer:
                assert [record.value for record in await consumer.poll(1.0, 3)] == numbers(0, 3)
                await consumer.commit()
                assert await consumer.committed("orders", 0) == 3
                assert [record.value for record in await consumer.poll()] == numbers(3, 10)
                assert await consumer.poll(0.01) == []
                consumer.seek("orders", 0, 8)
                assert [record.value for record in await consumer.poll()] == numbers(8, 10)
                polling = asyncio.create_task(consumer.poll(30))
                await asyncio.sleep(0.01)
                await (await store.topic("orders")).append(b"10")
                assert [record.value for record in await asyncio.wait_for(polling, 10)] == [b"10"]

    asyncio.run(main())


def test_a_commit_of_given_positions_counts(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, partitions=1)
            async with store.consumer("billing", ["orders"], auto_commit_ms=None) as consumer:
                assert len(await consumer.poll()) == 10
                await consumer.commit({("orders", 0): 7})
            assert await rest(store) == numbers(7, 10)

    asyncio.run(main())


def test_what_is_due_between_two_records_is_committed(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, partitions=1)
            async with store.consumer("billing", ["orders"], auto_commit_ms=1) as consumer:
                records = aiter(consumer)
                for _ in range(10):
                    await anext(records)
                waiting = asyncio.create_task(anext(records))  # type: ignore[arg-type] # an awaitable is enough
                async with asyncio.timeout(30):
                    while await consumer.committed("orders", 0) != 10:  # noqa: ASYNC110 - as seen from outside
                        await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting

    asyncio.run(main())


# --- ending


@pytest.mark.parametrize("how", ["cancel", "error"])
def test_the_record_that_was_not_processed_is_read_again(path: Path, how: str) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, partitions=1)
            at_work = asyncio.Event()

            async def consume() -> None:
                async with store.consumer("billing", ["orders"]) as consumer:
                    async for record in consumer:
                        if record.offset == 5:
                            at_work.set()
                            if how == "error":
                                raise ZeroDivisionError
                            await asyncio.sleep(60)

            task = asyncio.create_task(consume())
            await asyncio.wait_for(at_work.wait(), 30)
            if how == "cancel":
                task.cancel()
            with pytest.raises((asyncio.CancelledError, ZeroDivisionError)):
                await asyncio.wait_for(task, 30)
            assert await rest(store) == numbers(5, 10)

    asyncio.run(main())


def test_cancelling_a_task_that_waits_for_records_commits_what_was_processed(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, partitions=1)
            seen: list[int] = []

            async def consume() -> None:
                async with store.consumer("billing", ["orders"], auto_commit_ms=3_600_000) as consumer:
                    async for record in consumer:
                        seen.append(record.offset)  # noqa: PERF401 - looked at meanwhile

            task = asyncio.create_task(consume())
            await until(lambda: len(seen) == 10)
            await asyncio.sleep(0.01)  # it waits for more
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)
            assert await rest(store) == []

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(6))
def test_cancelled_anywhere_no_record_is_lost(path: Path, steps: int) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, 30)
            seen: list[bytes] = []

            async def consume() -> None:
                async with store.consumer("billing", ["orders"], auto_commit_ms=1) as consumer:
                    async for record in consumer:
                        await asyncio.sleep(0)
                        seen.append(record.value or b"")

            for _ in range(4):
                task = asyncio.create_task(consume())
                for _ in range(3**steps):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(task, 30)
            seen += await rest(store)
            assert set(seen) == set(numbers(0, 30))

    asyncio.run(main())


@pytest.mark.parametrize("what", ["consumer", "store"])
def test_closing_ends_a_task_that_waits(path: Path, what: str) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store)
            consumer = store.consumer("billing", ["orders"])
            seen: list[int] = []

            async def consume() -> None:
                async for record in consumer:
                    seen.append(record.offset)  # noqa: PERF401 - looked at meanwhile

            task = asyncio.create_task(consume())
            await until(lambda: len(seen) == 10)
            await (consumer.close() if what == "consumer" else store.close())
            await asyncio.wait_for(task, 30)
            with pytest.raises(LogClosed):
                await anext(aiter(consumer))
            await consumer.close()

    asyncio.run(main())


def test_two_tasks_share_the_partitions_of_a_group(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            await filled(store, 1, partitions=4)
            topic = await store.topic("orders")
            seen: list[tuple[int, bytes | None]] = []

            async def consume(number: int) -> None:
                async with store.consumer("billing", ["orders"], session_timeout_ms=2000) as consumer:
                    members[number] = consumer
                    async for record in consumer:
                        seen.append((number, record.value))  # noqa: PERF401 - looked at meanwhile

            members: dict[int, AsyncConsumer] = {}
            tasks = [asyncio.create_task(consume(number)) for number in range(2)]
            await until(lambda: len(members) == 2 and all(len(each.assignment) == 2 for each in members.values()))
            for number in range(4):
                await topic.append(b"x", partition=number)
            await until(lambda: len({number for number, value in seen if value == b"x"}) == 2)
            await until(lambda: sum(value == b"x" for _, value in seen) == 4)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_errors_of_joining_are_raised_where_the_block_begins(path: Path) -> None:
    async def main() -> None:
        async with sawlog.open_async(path) as store:
            with pytest.raises(TopicNotFound):
                async with store.consumer("billing", ["nothing"]):
                    pass
            await filled(store)
            with pytest.raises(LogClosed, match="not joined"):
                store.consumer("billing", ["orders"]).lag()
        async with sawlog.open_async(path, "r") as reader:
            with pytest.raises(ReadOnlyLog):
                async with reader.consumer("billing", ["orders"]):
                    pass
            assert await rest(reader, None) == numbers(0, 10)

    asyncio.run(main())
