"""Groups whose partitions the broker assigns: requests over the codec, and a real client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sawlog.broker.wire.apis import Key
from sawlog.broker.wire.errors import ErrorCode as E
from sawlog.errors import GroupActive
from sawlog.testing import Broker
from sawlog.topics.store import Store

from ..serving import PATIENCE_S
from .asking import Asked, in_loop, until

ORDERS = ("orders", 0)


class Member:
    """A member that has joined."""

    def __init__(self, broker: Asked, name: str, group: str = "billing") -> None:
        self.broker = broker
        self.name, self.group = name, group
        self.epoch = 0

    async def beat(self, version: int = 1, **said: Any) -> dict[str, Any]:
        told = await self.broker.ask(
            Key.CONSUMER_GROUP_HEARTBEAT,
            version,
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch,
            **said,
        )
        if told["error_code"] == E.NONE:
            self.epoch, self.name = told["member_epoch"], told["member_id"]
        return told

    async def join(self, version: int = 1, **said: Any) -> dict[str, Any]:
        self.epoch = 0
        request = {"subscribed_topic_names": ["orders"], "rebalance_timeout_ms": 1000, "topic_partitions": []}
        return await self.beat(version, **{**request, **said})

    async def leave(self) -> None:
        self.epoch = -1
        assert (await self.beat())["error_code"] == 0


def assigned(told: dict[str, Any]) -> dict[UUID, list[int]]:
    return {UUID(bytes=each["topic_id"]): each["partitions"] for each in told["assignment"]["topic_partitions"]}


# --- requests


@pytest.mark.parametrize("version", [0, 1])
@in_loop
async def test_a_member_is_told_its_partitions_and_when_to_beat(store: Store, version: int) -> None:
    async with Asked(store, group_consumer_heartbeat_interval_ms=700) as broker:
        member = Member(broker, "" if version == 0 else "mine")
        told = await member.join(version)
        assert assigned(told) == {UUID(store.topic("orders").id): [0, 1]}
        assert (told["heartbeat_interval_ms"], told["error_message"]) == (700, None)
        assert told["member_id"]
        told = await member.beat(version)
        assert (told["error_code"], told["assignment"]) == (0, None)
        store.alter_topic("orders", partitions=3)
        assert assigned(await member.beat(version)) == {UUID(store.topic("orders").id): [0, 1, 2]}


async def fetched(broker: Asked, epoch: int, name: str = "mine") -> int:
    """Fetch offsets as a member; the error code."""
    group = {"group_id": "billing", "member_id": name, "member_epoch": epoch, "topics": None}
    found: int = (await broker.ask(Key.OFFSET_FETCH, 9, groups=[group]))["groups"][0]["error_code"]
    return found


@in_loop
async def test_members_commit_and_fetch_with_their_epoch(store: Store) -> None:
    async with Asked(store) as broker:
        member = Member(broker, "mine")
        await member.join()
        said = {"member_id": "mine", "generation_id": member.epoch}
        assert await broker.commit({ORDERS: 3}, said) == {ORDERS: E.NONE}
        assert await broker.commit({ORDERS: 4}, {**said, "generation_id": 1}) == {ORDERS: E.STALE_MEMBER_EPOCH}
        assert await broker.commit({ORDERS: 4}, {**said, "member_id": "x"}) == {ORDERS: E.UNKNOWN_MEMBER_ID}
        assert await broker.commit({ORDERS: 4}) == {ORDERS: E.UNKNOWN_MEMBER_ID}, "not from outside"
        epoch = member.epoch
        tried = [await fetched(broker, *given) for given in [(epoch,), (1,), (epoch, "x")]]
        assert tried == [E.NONE, E.STALE_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID]
        assert (await broker.committed(ORDERS))[ORDERS][0] == 3


@in_loop
async def test_what_a_member_had_at_a_broker_that_was_killed_does_not_count_at_the_next(store: Store) -> None:
    """It keeps its id, but another member may have its partitions by now."""
    async with Asked(store) as killed:
        before = Member(killed, "mine")
        await before.join()
    old = {"member_id": "mine", "generation_id": before.epoch}
    async with Asked(store) as broker:
        assert await broker.commit({ORDERS: 3}, old) == {ORDERS: E.UNKNOWN_MEMBER_ID}
        assert await fetched(broker, before.epoch) == E.UNKNOWN_MEMBER_ID
        other, again = Member(broker, "other"), Member(broker, "mine")
        await other.join()
        assert await fetched(broker, before.epoch) == E.UNKNOWN_MEMBER_ID
        await again.join()
        assert await broker.commit({ORDERS: 3}, old) == {ORDERS: E.STALE_MEMBER_EPOCH}
        assert await fetched(broker, before.epoch) == E.STALE_MEMBER_EPOCH
        assert again.epoch < 1 << 24, "librdkafka takes the first byte for a part of the member's id"


@in_loop
async def test_a_group_is_of_one_kind_until_it_is_empty(store: Store) -> None:
    async with Asked(store) as broker:
        member = Member(broker, "mine")
        await member.join()
        assert (await broker.joined())["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL
        await member.leave()
        classic = await broker.joined()
        assert classic["error_code"] == 0
        told = await member.join()
        assert (told["error_code"], "classic" in told["error_message"]) == (E.GROUP_ID_NOT_FOUND, True)
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": classic["member_id"]}])
        assert (await member.join())["error_code"] == 0


@in_loop
async def test_consumers_of_the_library_are_kept_out_and_keep_out(store: Store) -> None:
    async with Asked(store) as broker:
        member = Member(broker, "mine")
        with store.consumer("billing", ["orders"], member="worker 7"):
            told = await member.join()
            assert told["error_code"] == E.GROUP_ID_NOT_FOUND
            assert "worker 7" in told["error_message"]
        await member.join()
        with pytest.raises(GroupActive):
            store.consumer("billing", ["orders"])
        await member.leave()
        await until(lambda: store.groups.served_at("billing") is None)
        store.consumer("billing", ["orders"]).close()


@in_loop
async def test_what_cannot_be_joined_says_why(store: Store) -> None:
    async with Asked(store) as broker:
        assert (await Member(broker, "mine", "").join())["error_code"] == E.INVALID_GROUP_ID
        member = Member(broker, "mine")
        member.epoch = 4
        assert (await member.beat())["error_code"] == E.UNKNOWN_MEMBER_ID
        told = await member.join(subscribed_topic_names=None, subscribed_topic_regex="(")
        assert told["error_code"] == E.INVALID_REGULAR_EXPRESSION
        assert "(" in told["error_message"]


@pytest.mark.parametrize("version", [0, 1])
@in_loop
async def test_groups_of_this_kind_are_listed_and_described(store: Store, version: int) -> None:
    async with Asked(store) as broker:
        member = Member(broker, "mine")
        await member.join(instance_id="one", subscribed_topic_regex="ord.*", server_assignor="range")
        (listed,) = (await broker.ask(Key.LIST_GROUPS, types_filter=["consumer"]))["groups"]
        assert (listed["group_id"], listed["group_state"], listed["group_type"]) == ("billing", "Stable", "consumer")
        request = {"group_ids": ["billing", "nothing"], "include_authorized_operations": True}
        found, missing = (await broker.ask(Key.CONSUMER_GROUP_DESCRIBE, version, **request))["groups"]
        assert (found["group_state"], found["assignor_name"], found["group_epoch"]) == ("Stable", "range", member.epoch)
        assert found["authorized_operations"] == 3400
        (seen,) = found["members"]
        assert (seen["member_id"], seen["instance_id"], seen["member_epoch"]) == ("mine", "one", member.epoch)
        assert (seen["subscribed_topic_names"], seen["subscribed_topic_regex"]) == (["orders"], "ord.*")
        for which in ("assignment", "target_assignment"):
            assert [(each["topic_name"], each["partitions"]) for each in seen[which]["topic_partitions"]] == [
                ("orders", [0, 1])
            ]
        assert missing["error_code"] == E.GROUP_ID_NOT_FOUND
        (classic,) = (await broker.ask(Key.DESCRIBE_GROUPS, groups=["billing"]))["groups"]
        assert classic["error_code"] == E.GROUP_ID_NOT_FOUND
        assert await broker.groups.delete("billing") == E.NON_EMPTY_GROUP
        left = await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"group_instance_id": "one"}])
        assert left["members"][0]["error_code"] == 0
        assert await broker.groups.delete("billing") == E.NONE


# --- a client


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"


def test_confluents_consumers_share_hand_over_and_continue() -> None:
    with Broker(partitions=4, group_consumer_heartbeat_interval_ms=100) as broker:
        producer = Producer({"bootstrap.servers": broker.address})
        for number in range(40):
            producer.produce("orders", b"%d" % number, partition=number % 4)
        producer.flush()

        def consumer() -> Consumer:
            made = Consumer(
                {
                    "bootstrap.servers": broker.address,
                    "group.id": "billing",
                    "group.protocol": "consumer",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            made.subscribe(["orders"])
            members.append(made)
            return made

        members: list[Consumer] = []
        read: list[int] = []

        def poll() -> None:
            for each in members:
                found = each.poll(0.02)
                if found is not None:
                    assert found.error() is None, found.error()
                    read.append(int(found.value() or b"-1"))
                    each.commit(found, asynchronous=False)

        def shared(*counts: int) -> Callable[[], bool]:
            def check() -> bool:
                poll()
                return sorted(len(each.assignment()) for each in members) == sorted(counts)

            return check

        first, second = consumer(), consumer()
        wait_for(shared(2, 2))
        wait_for(lambda: poll() or len(read) >= 40)
        first.close()
        members.remove(first)
        wait_for(shared(4))
        for number in range(40, 50):
            producer.produce("orders", b"%d" % number, partition=number % 4)
        producer.flush()
        wait_for(lambda: poll() or len(read) >= 50)
        assert sorted(read) == list(range(50)), "what was committed is not read again"
        places = [TopicPartition("orders", number) for number in range(4)]
        assert sum(each.offset for each in second.committed(places)) == 50
        second.close()
