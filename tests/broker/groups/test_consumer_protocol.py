"""Groups whose partitions the broker assigns: requests over the codec, and a real client."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sawlog.broker.wire import ErrorCode as E
from sawlog.broker.wire import Key
from sawlog.errors import GroupActive
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from ..serving import PATIENCE_S
from .asking import Asked, in_loop, until

ORDERS = ("orders", 0)


class ClassicMember:
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
async def test_a_member_is_told_its_partitions_and_when_to_beat(store: DirectoryStore, version: int) -> None:
    async with Asked(store, group_consumer_heartbeat_interval_ms=700) as broker:
        member = ClassicMember(broker, "" if version == 0 else "mine")
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
async def test_members_commit_and_fetch_with_their_epoch(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        member = ClassicMember(broker, "mine")
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
async def test_an_assignment_of_a_killed_broker_is_not_valid_at_the_next(store: DirectoryStore) -> None:
    """The member keeps its id, but another member may have its partitions by now."""
    async with Asked(store) as killed:
        before = ClassicMember(killed, "mine")
        await before.join()
    old = {"member_id": "mine", "generation_id": before.epoch}
    async with Asked(store) as broker:
        assert await broker.commit({ORDERS: 3}, old) == {ORDERS: E.UNKNOWN_MEMBER_ID}
        assert await fetched(broker, before.epoch) == E.UNKNOWN_MEMBER_ID
        other, again = ClassicMember(broker, "other"), ClassicMember(broker, "mine")
        await other.join()
        assert await fetched(broker, before.epoch) == E.UNKNOWN_MEMBER_ID
        await again.join()
        assert await broker.commit({ORDERS: 3}, old) == {ORDERS: E.STALE_MEMBER_EPOCH}
        assert await fetched(broker, before.epoch) == E.STALE_MEMBER_EPOCH
        assert again.epoch < 1 << 24, "librdkafka takes the first byte for a part of the member's id"


@in_loop
async def test_members_of_classic_groups_may_fetch_with_their_id_and_generation(store: DirectoryStore) -> None:
    """franz-go sends them, although only groups of KIP-848 check them. Neither does Kafka check them."""
    async with Asked(store) as broker:
        joined = await broker.joined()
        await broker.synced(joined)
        assert await broker.commit({ORDERS: 3}, joined) == {ORDERS: E.NONE}
        for name, generation in [(joined["member_id"], joined["generation_id"]), (joined["member_id"], 77), ("x", 1)]:
            assert await fetched(broker, generation, name) == E.NONE
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": joined["member_id"]}])
        assert await fetched(broker, joined["generation_id"], joined["member_id"]) == E.NONE, "the group is classic"
        member = ClassicMember(broker, "mine")
        await member.join()
        assert await fetched(broker, joined["generation_id"], joined["member_id"]) == E.UNKNOWN_MEMBER_ID


# --- members of both protocols


async def rejoined(broker: Asked, joined: dict[str, Any], owned: bytes = b"") -> dict[str, Any]:
    """Rejoin as a member of the classic protocol that still owns partitions."""
    subscription = b"\0\1\0\0\0\1\0\6orders\xff\xff\xff\xff" + (owned or b"\0\0\0\0")
    protocols = [{"name": "range", "metadata": subscription}]
    return await broker.joined(member_id=joined["member_id"], protocols=protocols)


async def beaten(broker: Asked, joined: dict[str, Any]) -> int:
    """A heartbeat of the classic protocol; its error code."""
    said = {name: joined[name] for name in ("member_id", "generation_id")}
    return int((await broker.ask(Key.HEARTBEAT, group_id="billing", **said))["error_code"])


def owns(*partitions: int) -> bytes:
    """Partitions of orders, as subscriptions and assignments have them."""
    numbers = b"".join(each.to_bytes(4, "big") for each in partitions)
    return b"\0\0\0\1\0\6orders" + len(partitions).to_bytes(4, "big") + numbers


def assignment(*partitions: int) -> bytes:
    return b"\0\0" + owns(*partitions) + b"\xff\xff\xff\xff"


@pytest.mark.parametrize("is_eager", [True, False])
@in_loop
async def test_a_member_of_kip_848_joins_a_classic_group_and_shares_its_partitions(
    store: DirectoryStore, is_eager: bool
) -> None:
    async with Asked(store) as broker:
        classic = await broker.joined()
        await broker.synced(classic, assignment=assignment(0, 1))
        new = ClassicMember(broker, "new")
        assert assigned(await new.join()) == {}, "the other member has not given up anything yet"
        assert await broker.commit({ORDERS: 3}, classic) == {ORDERS: E.NONE}, "its generation still counts"
        assert await beaten(broker, classic) == E.REBALANCE_IN_PROGRESS
        if not is_eager:  # it keeps its partitions until they are revoked
            again = await rejoined(broker, classic, owns(0, 1))
            assert (again["error_code"], again["leader"], again["members"]) == (0, "", [])
            (kept,) = [each for each in (0, 1) if (await broker.synced(again))["assignment"] == assignment(each)]
            assert (await new.beat(topic_partitions=[]))["assignment"] is None, "it has not said that it gave it up"
            again = await rejoined(broker, again, owns(kept))
        else:
            again = await rejoined(broker, classic)
            (kept,) = [each for each in (0, 1) if (await broker.synced(again))["assignment"] == assignment(each)]
        assert again["member_id"] == classic["member_id"]
        told = await new.beat(topic_partitions=[])
        assert assigned(told) == {UUID(store.topic("orders").id): [1 - kept]}
        assert await beaten(broker, again) == E.NONE
        assert await beaten(broker, classic) == E.ILLEGAL_GENERATION
        mine, given_up = ("orders", kept), ("orders", 1 - kept)
        assert await broker.commit({given_up: 4}, classic) == {given_up: E.ILLEGAL_GENERATION}, "a code that it knows"
        assert await broker.commit({mine: 4}, classic) == {mine: E.NONE}, "no other member can have read it meanwhile"
        assert await broker.commit({mine: 4}, again) == {mine: E.NONE}
        (found,) = (await broker.ask(Key.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["billing"]))["groups"]
        assert {each["member_id"]: each["member_type"] for each in found["members"]} == {
            again["member_id"]: 0,
            "new": 1,
        }
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": again["member_id"]}])
        told = await new.beat()
        assert assigned(told) == {UUID(store.topic("orders").id): [0, 1]}


@in_loop
async def test_a_classic_member_joins_a_group_of_kip_848_and_takes_it_over(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        old = ClassicMember(broker, "old")
        everything = {UUID(store.topic("orders").id): [0, 1]}
        assert assigned(await old.join()) == everything
        classic = await broker.joined()
        assert classic["error_code"] == E.NONE
        assert (await broker.synced(classic))["assignment"] == b"\0\0\0\0\0\0\xff\xff\xff\xff", "nothing is free"
        (kept,) = assigned(await old.beat()).values()
        await old.beat(topic_partitions=[{"topic_id": UUID(store.topic("orders").id).bytes, "partitions": kept}])
        assert await beaten(broker, classic) == E.REBALANCE_IN_PROGRESS, "there is something for it now"
        again = await rejoined(broker, classic)
        assert (await broker.synced(again))["assignment"] == assignment(1 - kept[0])
        await old.leave()
        assert await beaten(broker, again) == E.REBALANCE_IN_PROGRESS
        again = await rejoined(broker, again)
        assert (await broker.synced(again))["assignment"] == assignment(0, 1)
        store.alter_topic("orders", partitions=3)
        assert await beaten(broker, again) == E.REBALANCE_IN_PROGRESS, "no member leads, so the broker looks"
        again = await rejoined(broker, again)
        assert (await broker.synced(again))["assignment"] == assignment(0, 1, 2)
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": again["member_id"]}])
        alone = await broker.joined()
        assert alone["leader"] == alone["member_id"], "an empty group is one of the classic protocol again"


@in_loop
async def test_a_classic_member_that_does_not_give_up_its_partitions_is_removed(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        classic = await broker.joined(rebalance_timeout_ms=200)
        await broker.synced(classic, assignment=assignment(0, 1))
        new = ClassicMember(broker, "new")
        await new.join()
        assert await beaten(broker, classic) == E.REBALANCE_IN_PROGRESS
        await until(lambda: len(broker.members()) == 1)
        assert await beaten(broker, classic) == E.UNKNOWN_MEMBER_ID
        assert assigned(await new.beat()) == {UUID(store.topic("orders").id): [0, 1]}


@in_loop
async def test_pending_requests_of_a_classic_group_are_answered_when_it_migrates(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        first = await broker.joined()
        syncing = broker.begin(
            Key.SYNC_GROUP,
            group_id="billing",
            **{name: first[name] for name in ("generation_id", "member_id")},
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        )
        second = broker.begin(
            Key.JOIN_GROUP,
            4,
            group_id="billing",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"}],
        )
        assert (await syncing)["error_code"] in (E.NONE, E.REBALANCE_IN_PROGRESS)
        told = await second
        assert told["error_code"] == E.MEMBER_ID_REQUIRED
        new = ClassicMember(broker, "new")
        assert (await new.join())["error_code"] == E.NONE
        assert (await rejoined(broker, told))["error_code"] == E.UNKNOWN_MEMBER_ID, "so that it begins anew"
        assert (await rejoined(broker, first))["error_code"] == E.NONE


@in_loop
async def test_only_groups_of_consumers_are_taken_over(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        worker = await broker.joined(protocol_type="connect", protocols=[{"name": "default", "metadata": b"?"}])
        assert worker["error_code"] == E.NONE
        member = ClassicMember(broker, "mine")
        told = await member.join()
        assert (told["error_code"], "classic" in told["error_message"]) == (E.GROUP_ID_NOT_FOUND, True)
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": worker["member_id"]}])
        assert (await member.join())["error_code"] == E.NONE
        refused = await broker.joined(protocol_type="connect", protocols=[{"name": "default", "metadata": b"?"}])
        assert refused["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL


@in_loop
async def test_a_static_member_keeps_its_place_when_its_protocol_changes(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        everything = {UUID(store.topic("orders").id): [0, 1]}
        classic = await broker.joined(group_instance_id="one")
        await broker.synced(classic, assignment=assignment(0, 1))
        upgraded = ClassicMember(broker, "new")
        assert assigned(await upgraded.join(instance_id="one")) == everything, (
            "a classic one does not say that it leaves"
        )
        assert len(broker.members()) == 1
        downgraded = await broker.joined(group_instance_id="one")
        said = {name: downgraded[name] for name in ("generation_id", "member_id")}
        synced = await broker.ask(Key.SYNC_GROUP, group_id="billing", group_instance_id="one", assignments=[], **said)
        assert (synced["error_code"], synced["assignment"]) == (E.NONE, assignment(0, 1))
        assert len(broker.members()) == 1
        assert (await upgraded.beat(instance_id="one"))["error_code"] == E.FENCED_INSTANCE_ID


@in_loop
async def test_consumers_of_the_library_are_kept_out_and_keep_out(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        member = ClassicMember(broker, "mine")
        with store.consumer("billing", ["orders"], member="worker 7"):
            told = await member.join()
            assert told["error_code"] == E.GROUP_ID_NOT_FOUND
            assert "worker 7" in told["error_message"]
        await member.join()
        with pytest.raises(GroupActive):
            store.consumer("billing", ["orders"])
        await member.leave()
        await until(lambda: store.groups._served_at("billing") is None)
        store.consumer("billing", ["orders"]).close()


@in_loop
async def test_a_refused_join_has_an_error(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        assert (await ClassicMember(broker, "mine", "").join())["error_code"] == E.INVALID_GROUP_ID
        member = ClassicMember(broker, "mine")
        member.epoch = 4
        assert (await member.beat())["error_code"] == E.UNKNOWN_MEMBER_ID
        told = await member.join(subscribed_topic_names=None, subscribed_topic_regex="(")
        assert told["error_code"] == E.INVALID_REGULAR_EXPRESSION
        assert "(" in told["error_message"]


@pytest.mark.parametrize("version", [0, 1])
@in_loop
async def test_groups_of_this_kind_are_listed_and_described(store: DirectoryStore, version: int) -> None:
    async with Asked(store) as broker:
        member = ClassicMember(broker, "mine")
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


@pytest.mark.alternating
@pytest.mark.parametrize("protocols", [("classic", "consumer"), ("consumer", "classic")])
@pytest.mark.parametrize("assignor", ["range", pytest.param("cooperative-sticky", marks=pytest.mark.slow)])
def test_confluents_consumers_change_their_protocol_one_after_the_other(
    protocols: tuple[str, str], assignor: str
) -> None:
    """Each is replaced by one with the other protocol while the rest goes on: no record is missed, no error fatal."""
    with Broker(partitions=4, group_consumer_heartbeat_interval_ms=100, group_min_session_timeout_ms=100) as broker:
        broker.create_topic("orders", 4)  # a consumer of a missing topic gets an error
        producer = Producer({"bootstrap.servers": broker.address})
        sent = 0

        def produce(count: int) -> None:
            nonlocal sent
            for number in range(sent, sent + count):
                producer.produce("orders", b"%d" % number, partition=number % 4)
            sent += count
            producer.flush()

        def join(protocol: str) -> Consumer:
            settings: dict[str, Any] = {
                "bootstrap.servers": broker.address,
                "group.id": "billing",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
            if protocol == "classic":
                settings |= {"heartbeat.interval.ms": 100, "partition.assignment.strategy": assignor}
            made = Consumer(settings, error_cb=errors.append)
            made.subscribe(["orders"])
            members.append(made)
            return made

        members: list[Consumer] = []
        errors: list[Any] = []
        read: list[int] = []

        def poll() -> None:
            for each in members:
                found = each.poll(0.02)
                if found is not None:
                    assert found.error() is None, found.error()
                    read.append(int(found.value() or b"-1"))
                    with suppress(KafkaException):  # while partitions change hands; then it is read again
                        each.commit(found, asynchronous=False)

        def shared(*counts: int) -> Callable[[], bool]:
            def check() -> bool:
                poll()
                return sorted(len(each.assignment()) for each in members) == sorted(counts)

            return check

        before, after = protocols
        with ExitStack() as closing:
            old = [join(before), join(before)]
            closing.callback(lambda: [each.close() for each in members])
            produce(20)
            wait_for(shared(2, 2))
            for each in old:
                join(after)
                wait_for(shared(1, 1, 2))
                produce(20)
                wait_for(lambda: poll() or len(set(read)) >= sent)
                members.remove(each)
                each.close()
                wait_for(shared(2, 2))
            produce(20)
            wait_for(lambda: poll() or len(set(read)) >= sent)
        assert sorted(set(read)) == list(range(sent))
        assert not [each for each in errors if each.fatal()]


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
            # With a callback, partitions are revoked in `poll` alone, and so never between `poll` and `commit`.
            made.subscribe(["orders"], on_revoke=lambda *_: None)
            members.append(made)
            return made

        members: list[Consumer] = []
        read: list[int] = []

        def committed(member: Consumer, found: Any) -> bool:
            try:
                member.commit(found, asynchronous=False)
            except KafkaException:
                # Its epoch has just changed: try again, unless it was fenced, so that the new owner reads the record.
                return found.partition() not in [each.partition for each in member.assignment()]
            read.append(int(found.value() or b"-1"))
            return True

        def poll() -> None:
            for each in members:
                found = each.poll(0.02)
                if found is not None:
                    assert found.error() is None, found.error()
                    wait_for(partial(committed, each, found))

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
