"""Sync and async offer the same: on a directory and on object storage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import sawlog
from sawlog import Position
from sawlog.aio.store import AsyncStore
from sawlog.aio.topic import AsyncTopic
from sawlog.errors import StorageError
from sawlog.store import base


@pytest.fixture(params=["directory", "objects"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "directory" else f"file://{tmp_path}"


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_an_async_class_has_nothing_that_its_sync_class_lacks() -> None:
    assert public(AsyncTopic) - public(base.Topic) == {"sync"}
    assert public(AsyncStore) - public(base.Store) == {"sync"}
    assert {"queue", "transaction", "groups", "sql", "consumer"} <= public(AsyncStore)


def test_a_topic_is_read_by_position_and_followed(address: str) -> None:
    with sawlog.open(address) as store:
        topic = store.create_topic("orders", 2)
        for number in range(4):
            topic.append(b"%d" % number, partition=number % 2)
        assert topic.read(Position(1, 0)).value == topic.read((1, 0)).value == b"1"
        assert sorted(record.value for record in topic.follow(timeout=0)) == [b"0", b"1", b"2", b"3"]
        assert [record.value for record in topic.follow({0: 1, 1: 2}, 0)] == [b"2"]
        assert [record.value for record in topic.follow({0: 1}, 0, partitions=[0])] == [b"2"]


def test_a_topic_is_truncated_where_that_is_supported(address: str) -> None:
    with sawlog.open(address) as store:
        topic = store.create_topic("orders")
        topic.append_many([b"0", b"1", b"2"])
        if store.supports_truncation:
            assert topic.truncate(0, 1) == 2
        else:
            with pytest.raises(StorageError, match="truncate"):
                topic.truncate(0, 1)


def test_backends_say_what_they_support(address: str) -> None:
    with sawlog.open(address) as store:
        topic = store.create_topic("orders")
        topic.append(b"x")
        if store.supports_snapshots:
            store.snapshot("before")
            assert topic.fork("other").partition(0).read(0).value == b"x"
        else:
            with pytest.raises(StorageError):
                store.snapshot("before")
            with pytest.raises(StorageError):
                topic.fork("other")
        if store.supports_tables:
            topic.table = None
        else:
            with pytest.raises(StorageError):
                topic.table = None


async def failing(store: AsyncStore) -> None:
    """Begin a transaction and raise in its block."""
    async with store.transaction() as transaction:
        await transaction.append("orders", b"never")
        raise ZeroDivisionError


def test_groups_transactions_queues_and_sql_are_awaited(address: str) -> None:
    pytest.importorskip("duckdb")

    async def main() -> None:
        async with sawlog.open_async(address) as store:
            await store.create_topic("orders", 2)
            async with store.transaction("job", 1) as transaction:
                await transaction.append("orders", b"one", b"k")
                await transaction.append_many("orders", [b"two", b"three"])
            with pytest.raises(ZeroDivisionError):
                await failing(store)
            async with store.transaction("job", 1) as transaction:
                assert transaction.replayed
            found = await store.sql("select count(*) as n from orders")
            assert found.to_pylist() == [{"n": 3}]
            async with store.queue("orders", "workers") as queue:
                got = [message.value for message in await queue.receive(2)]
                async for message in queue.drain():
                    got.append(message.value)
                    await queue.ack(message)
                assert sorted(got) == [b"one", b"three", b"two"]
                await queue.put(b"four")
                async for message in queue:
                    assert message.value == b"four"
                    await queue.release(message)
                    break
            await store.create_topic("jobs")
            async with store.queue("jobs", "workers", backoff_s=0.05) as queue:
                await queue.put(b"once")
                await queue.put(b"twice")
                async for message in queue.drain(wait=True):  # waits for the retry
                    if message.value == b"twice" and message.deliveries == 1:
                        await queue.release(message)
                    else:
                        await queue.ack(message)
                assert (await queue.counts()).unfinished == 0
            await store.groups.commit("billing", {("orders", 0): 0})
            assert "billing" in await store.groups.list()
            assert (await store.groups.describe("billing")).rows
            await store.groups.seek("billing", {("orders", 0): "latest"})
            await store.groups.delete("billing")
            assert "billing" not in await store.groups.list()

    asyncio.run(main())
