"""Requests of groups as clients send them, at every version that the codec knows."""

from __future__ import annotations

import asyncio
import warnings
from uuid import UUID

import pytest

from sawlog.broker import wire
from sawlog.broker.wire import ErrorCode as E
from sawlog.broker.wire import Key
from sawlog.store.directory.store import DirectoryStore

from .asking import Asked, in_loop, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in an old way
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

ORDERS = ("orders", 0), ("orders", 1)


def versions(key: Key) -> list[int]:
    return list(wire.BY_KEY[key].versions)


# --- the coordinator


@pytest.mark.parametrize("version", versions(Key.FIND_COORDINATOR))
@in_loop
async def test_this_broker_is_the_coordinator_of_groups_and_transactions(store: DirectoryStore, version: int) -> None:
    async with Asked(store) as broker:
        for key_type in (0, 1) if version else (0,):
            request = {"key": "billing"} if version < 4 else {"coordinator_keys": ["billing", "accounts"]}
            found = await broker.ask(Key.FIND_COORDINATOR, version, key_type=key_type, **request)
            for each in [found] if version < 4 else found["coordinators"]:
                assert (each["node_id"], each["host"], each["port"], each["error_code"]) == (7, "127.0.0.1", 9092, 0)


@in_loop
async def test_share_groups_have_no_coordinator(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        found = await broker.ask(Key.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=["billing:x:0"])
        assert found["coordinators"][0]["error_code"] == E.INVALID_REQUEST


# --- members


@pytest.mark.parametrize("version", versions(Key.JOIN_GROUP))
@in_loop
async def test_a_member_joins_syncs_beats_and_leaves_at_every_version(store: DirectoryStore, version: int) -> None:
    def at(key: Key) -> int:
        return min(version, versions(key)[-1])

    async with Asked(store) as broker:
        request = {
            "group_id": "billing",
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"mine"}],
        }
        joined = await broker.ask(Key.JOIN_GROUP, version, **request)
        if version >= 4:
            assert joined["error_code"] == E.MEMBER_ID_REQUIRED
            joined = await broker.ask(Key.JOIN_GROUP, version, **request, member_id=joined["member_id"])
        assert joined["error_code"] == 0
        assert joined["leader"] == joined["member_id"]
        assert joined["protocol_name"] == "range"
        assert joined["protocol_type"] == ("consumer" if version >= 7 else None)
        assert [each["metadata"] for each in joined["members"]] == [b"mine"]
        member = {"group_id": "billing", "generation_id": 1, "member_id": joined["member_id"]}
        synced = await broker.ask(
            Key.SYNC_GROUP,
            at(Key.SYNC_GROUP),
            **member,
            assignments=[{"member_id": joined["member_id"], "assignment": b"all"}],
        )
        assert (synced["error_code"], synced["assignment"]) == (0, b"all")
        assert (await broker.ask(Key.HEARTBEAT, at(Key.HEARTBEAT), **member))["error_code"] == 0
        leaving = (
            {"member_id": joined["member_id"]} if version < 3 else {"members": [{"member_id": joined["member_id"]}]}
        )
        left = await broker.ask(Key.LEAVE_GROUP, at(Key.LEAVE_GROUP), group_id="billing", **leaving)
        assert left["error_code"] == 0
        assert [each["error_code"] for each in left["members"]] == ([0] if version >= 3 else [])
        beat = await broker.ask(Key.HEARTBEAT, at(Key.HEARTBEAT), **member)
        assert beat["error_code"] == E.UNKNOWN_MEMBER_ID


@in_loop
async def test_two_members_share_a_group(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        first = await broker.joined()
        assert (await broker.synced(first))["assignment"] == b"all"
        second = asyncio.ensure_future(broker.joined())
        await until(lambda: len(broker.members()) == 2)
        beat = {"group_id": "billing", "generation_id": 1, "member_id": first["member_id"]}
        assert (await broker.ask(Key.HEARTBEAT, **beat))["error_code"] == E.REBALANCE_IN_PROGRESS
        first = await broker.joined(member_id=first["member_id"])
        joined = await second
        assert (first["generation_id"], joined["generation_id"]) == (2, 2)
        assert len(first["members"]) == 2
        waiting = asyncio.ensure_future(broker.synced(joined))
        await broker.synced(first, assignment=b"half")
        assert (await waiting)["assignment"] == b"half"


@in_loop
async def test_a_session_expires_by_the_loops_own_clock(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        first = await broker.joined(session_ms=100)
        await broker.synced(first)
        await until(lambda: not broker.members())


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (Key.JOIN_GROUP, {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}),
        (Key.SYNC_GROUP, {"generation_id": 1, "member_id": "m"}),
        (Key.HEARTBEAT, {"generation_id": 1, "member_id": "m"}),
        (Key.LEAVE_GROUP, {"members": [{"member_id": "m"}]}),
        (Key.OFFSET_DELETE, {}),
    ],
)
@in_loop
async def test_a_group_needs_a_name(store: DirectoryStore, key: Key, body: dict) -> None:
    async with Asked(store) as broker:
        for name in ("", "n" * 201):
            assert (await broker.ask(key, group_id=name, **body))["error_code"] == E.INVALID_GROUP_ID


@in_loop
async def test_members_of_a_group_that_is_not_known_join_again(store: DirectoryStore) -> None:
    """A restarted broker knows no groups."""
    async with Asked(store) as broker:
        member = {"group_id": "billing", "generation_id": 3, "member_id": "m"}
        assert (await broker.ask(Key.HEARTBEAT, **member))["error_code"] == E.UNKNOWN_MEMBER_ID
        assert (await broker.ask(Key.SYNC_GROUP, **member))["error_code"] == E.UNKNOWN_MEMBER_ID
        assert (await broker.joined(member_id="m"))["error_code"] == E.UNKNOWN_MEMBER_ID
        left = await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": "m"}])
        assert left["members"][0]["error_code"] == E.UNKNOWN_MEMBER_ID
        codes = await broker.commit({ORDERS[0]: 1}, {"member_id": "m", "generation_id": 3})
        assert codes == {ORDERS[0]: E.UNKNOWN_MEMBER_ID}


@in_loop
async def test_a_client_that_disconnects_while_it_waits_is_not_waited_for(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        first = await broker.joined()
        await broker.synced(first)
        request = {
            "group_id": "billing",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        old = broker.begin(Key.JOIN_GROUP, 3, **request)
        await until(lambda: len(broker.members()) == 2)
        old.cancel()
        await until(lambda: len(broker.members()) == 1)
        assert (await broker.joined(member_id=first["member_id"]))["error_code"] == 0


@in_loop
async def test_a_stop_answers_everyone_who_waits(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        first = await broker.joined()
        await broker.synced(first)
        waiting = asyncio.ensure_future(broker.joined())
        await until(lambda: len(broker.members()) == 2)
        broker.groups.stop()
        assert (await waiting)["error_code"] == E.COORDINATOR_NOT_AVAILABLE
        assert (await broker.joined())["error_code"] == E.COORDINATOR_NOT_AVAILABLE
        beat = {"group_id": "billing", "generation_id": 1, "member_id": first["member_id"]}
        assert (await broker.ask(Key.HEARTBEAT, **beat))["error_code"] == E.COORDINATOR_NOT_AVAILABLE


# --- offsets


@pytest.mark.parametrize("version", range(10))
@in_loop
async def test_committed_offsets_are_fetched_at_every_version(store: DirectoryStore, version: int) -> None:
    async with Asked(store) as broker:
        codes = await broker.commit({ORDERS[0]: (7, "noted", 3), ORDERS[1]: (9, None, -1)}, version=version)
        assert codes == dict.fromkeys(ORDERS, E.NONE)
        epoch = 3 if version >= 6 else -1
        for fetched in range(10):
            found = await broker.committed(*ORDERS, version=fetched)
            seen = epoch if fetched >= 5 else -1
            assert found == {ORDERS[0]: (7, "noted", seen, 0), ORDERS[1]: (9, "", -1, 0)}
            if fetched >= 2:
                assert await broker.committed(version=fetched) == found


@in_loop
async def test_topics_have_ids_from_version_10_on(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        known, unknown = UUID(store.topic("orders").id).bytes, bytes(15) + b"\1"
        made = await broker.ask(
            Key.OFFSET_COMMIT,
            10,
            group_id="billing",
            topics=[
                {"topic_id": id, "partitions": [{"partition_index": 0, "committed_offset": 5}]}
                for id in (known, unknown)
            ],
        )
        assert [(each["topic_id"], each["partitions"][0]["error_code"]) for each in made["topics"]] == [
            (known, E.NONE),
            (unknown, E.UNKNOWN_TOPIC_ID),
        ]
        topics = [{"topic_id": id, "partition_indexes": [0]} for id in (known, unknown)]
        made = await broker.ask(Key.OFFSET_FETCH, 10, groups=[{"group_id": "billing", "topics": topics}])
        found = made["groups"][0]["topics"]
        assert [(each["topic_id"], each["partitions"][0]["committed_offset"]) for each in found] == [
            (known, 5),
            (unknown, -1),
        ]
        assert found[1]["partitions"][0]["error_code"] == E.UNKNOWN_TOPIC_ID
        made = await broker.ask(Key.OFFSET_FETCH, 10, groups=[{"group_id": "billing", "topics": None}])
        assert [each["topic_id"] for each in made["groups"][0]["topics"]] == [known]


@in_loop
async def test_a_refused_commit_has_an_error_for_each_partition(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        codes = await broker.commit(
            {
                ORDERS[0]: (1, "x" * 4096, -1),
                ORDERS[1]: (1, "x" * 4097, -1),
                ("orders", 2): 1,
                ("orders", -1): 1,
                ("nothing", 0): 1,
            }
        )
        assert codes == {
            ORDERS[0]: E.NONE,
            ORDERS[1]: E.OFFSET_METADATA_TOO_LARGE,
            ("orders", 2): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("orders", -1): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("nothing", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert (await broker.commit({ORDERS[1]: 2**62})) == {ORDERS[1]: E.INVALID_REQUEST}
        assert await broker.committed() == {ORDERS[0]: (1, "x" * 4096, -1, 0)}


@pytest.mark.parametrize(("told", "stored"), [(-1, 5), (-2, 2), (-5, 2), (-(2**63), 2)])
@in_loop
async def test_a_negative_offset_says_where_to_begin_and_is_given_back(
    store: DirectoryStore, told: int, stored: int
) -> None:
    """Like Kafka: KafkaJS resets a group this way. Consumers that open the store directly get the resolved offset."""
    log = store.topic("orders").partition(1)
    log.append_many([b"x"] * 5)
    log.trim(2)
    async with Asked(store) as broker:
        assert await broker.commit({ORDERS[1]: (told, "reset", -1)}) == {ORDERS[1]: E.NONE}
        assert await broker.committed() == {ORDERS[1]: (told, "reset", -1, 0)}
    async with Asked(store) as broker:  # which has not seen it
        assert await broker.committed() == {ORDERS[1]: (told, "reset", -1, 0)}
    assert store._serve().groups._offsets.of("billing")[ORDERS[1]].offset == stored


@in_loop
async def test_members_commit_with_their_generation_and_others_do_not(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        first = await broker.joined()
        assert await broker.commit({ORDERS[0]: 1}, first) == {ORDERS[0]: E.REBALANCE_IN_PROGRESS}
        await broker.synced(first)
        assert await broker.commit({ORDERS[0]: 2}, first) == {ORDERS[0]: E.NONE}
        assert await broker.commit({ORDERS[0]: 3}) == {ORDERS[0]: E.UNKNOWN_MEMBER_ID}
        late = {**first, "generation_id": 0}
        assert await broker.commit({ORDERS[0]: 3}, late) == {ORDERS[0]: E.ILLEGAL_GENERATION}
        assert (await broker.committed(ORDERS[0]))[ORDERS[0]][0] == 2
        assert store.groups._offsets.of("billing")[ORDERS[0]].member == first["member_id"]
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": first["member_id"]}])
        assert await broker.commit({ORDERS[0]: 4}) == {ORDERS[0]: E.NONE}, "as soon as the group is empty"


@in_loop
async def test_nothing_was_committed(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        assert await broker.committed(*ORDERS, ("nothing", 5)) == dict.fromkeys(
            [*ORDERS, ("nothing", 5)], (-1, "", -1, 0)
        )
        assert await broker.committed() == {}
        found = await broker.ask(Key.OFFSET_FETCH, 7, group_id="", topics=None)
        assert found["error_code"] == E.INVALID_GROUP_ID
        found = await broker.ask(
            Key.OFFSET_FETCH, 1, group_id="", topics=[{"name": "orders", "partition_indexes": [0]}]
        )
        assert found["topics"][0]["partitions"][0]["error_code"] == E.INVALID_GROUP_ID


@in_loop
async def test_several_groups_are_fetched_at_once(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        await broker.commit({ORDERS[0]: 1}, group="one")
        await broker.commit({ORDERS[0]: 2}, group="two")
        groups = [{"group_id": name, "topics": None} for name in ("one", "two", "")]
        found = (await broker.ask(Key.OFFSET_FETCH, 8, groups=groups))["groups"]
        assert [each["error_code"] for each in found] == [0, 0, E.INVALID_GROUP_ID]
        assert [each["topics"][0]["partitions"][0]["committed_offset"] for each in found[:2]] == [1, 2]


@in_loop
async def test_offsets_of_a_recreated_topic_are_gone(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        await broker.commit(dict.fromkeys(ORDERS, 5))
        store.delete_topic("orders")
        assert await broker.committed() == {}
        store.create_topic("orders", partitions=2)
        assert (await broker.committed(ORDERS[0]))[ORDERS[0]][0] == -1


@in_loop
async def test_offsets_are_deleted_unless_the_group_reads_the_topic(store: DirectoryStore) -> None:
    async def delete(*names: str) -> tuple[int, list[int]]:
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in names]
        made = await broker.ask(Key.OFFSET_DELETE, group_id="billing", topics=topics)
        return made["error_code"], [each["partitions"][0]["error_code"] for each in made["topics"]]

    store.create_topic("totals")
    async with Asked(store) as broker:
        assert await delete("orders") == (E.GROUP_ID_NOT_FOUND, [])
        await broker.commit({ORDERS[0]: 1, ("totals", 0): 1})
        first = await broker.joined()
        await broker.synced(first)
        assert await delete("orders", "totals", "nothing") == (
            E.NONE,
            [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION],
        )
        assert await broker.committed() == {ORDERS[0]: (1, "", -1, 0)}
        await broker.ask(Key.LEAVE_GROUP, group_id="billing", members=[{"member_id": first["member_id"]}])
        assert await delete("orders") == (E.NONE, [E.NONE])
        assert await broker.committed() == {}


@in_loop
async def test_offsets_of_a_group_that_is_no_consumers_are_not_deleted_while_it_has_members(
    store: DirectoryStore,
) -> None:
    async with Asked(store) as broker:
        await broker.joined(protocol_type="connect")
        made = await broker.ask(Key.OFFSET_DELETE, group_id="billing", topics=[])
        assert made["error_code"] == E.NON_EMPTY_GROUP


# --- looking and deleting


@pytest.mark.parametrize("version", versions(Key.LIST_GROUPS))
@in_loop
async def test_groups_are_listed_with_their_state_and_type(store: DirectoryStore, version: int) -> None:
    async with Asked(store) as broker:
        await broker.commit({ORDERS[0]: 1}, group="simple")
        first = await broker.joined("lively")
        await broker.synced(first, "lively")
        with store.consumer("embedded", ["orders"]):
            found = await broker.ask(Key.LIST_GROUPS, version)
            rows = [
                (each["group_id"], each["protocol_type"], each["group_state"], each["group_type"])
                for each in found["groups"]
            ]
            state, kind = version >= 4, version >= 5
            assert rows == [
                ("embedded", "consumer", "Stable" if state else "", "classic" if kind else ""),
                ("lively", "consumer", "Stable" if state else "", "classic" if kind else ""),
                ("simple", "", "Empty" if state else "", "classic" if kind else ""),
            ]
            if state:
                found = await broker.ask(Key.LIST_GROUPS, version, states_filter=["empty", "Dead"])
                assert [each["group_id"] for each in found["groups"]] == ["simple"]
            if kind:
                found = await broker.ask(Key.LIST_GROUPS, version, types_filter=["consumer"])
                assert found["groups"] == []


@pytest.mark.parametrize("version", versions(Key.DESCRIBE_GROUPS))
@in_loop
async def test_groups_are_described_with_their_members(store: DirectoryStore, version: int) -> None:
    async with Asked(store) as broker:
        first = await broker.joined("lively", group_instance_id="one")
        await broker.commit({ORDERS[0]: 1}, group="simple")
        names = ["lively", "simple", "nothing"]
        before = (await broker.ask(Key.DESCRIBE_GROUPS, version, groups=names))["groups"][0]
        assert (before["group_state"], before["protocol_data"]) == ("CompletingRebalance", "")
        await broker.synced(first, "lively")
        lively, simple, nothing = (await broker.ask(Key.DESCRIBE_GROUPS, version, groups=names))["groups"]
        assert (lively["group_state"], lively["protocol_type"], lively["protocol_data"]) == (
            "Stable",
            "consumer",
            "range",
        )
        (member,) = lively["members"]
        assert (member["member_id"], member["client_id"], member["client_host"]) == (
            first["member_id"],
            "tests",
            "127.0.0.1",
        )
        assert member["group_instance_id"] == ("one" if version >= 4 else None)
        assert (member["member_metadata"][8:14], member["member_assignment"]) == (b"orders", b"all")
        assert (simple["group_state"], simple["members"]) == ("Empty", [])
        assert nothing["group_state"] == "Dead"
        assert nothing["error_code"] == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)


@in_loop
async def test_authorized_operations_are_returned_on_request(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        request = {"groups": ["billing"], "include_authorized_operations": True}
        assert (await broker.ask(Key.DESCRIBE_GROUPS, **request))["groups"][0]["authorized_operations"] == 3400


@in_loop
async def test_consumers_that_opened_the_store_are_described_as_kafkas_tools_expect(store: DirectoryStore) -> None:
    async with Asked(store) as broker:
        with store.consumer("billing", ["orders"], member="worker 7"):
            (found,) = (await broker.ask(Key.DESCRIBE_GROUPS, groups=["billing"]))["groups"]
        (member,) = found["members"]
        assert (found["group_state"], found["protocol_type"], member["client_id"]) == ("Stable", "consumer", "worker 7")
        assignment = ConsumerProtocolAssignment.decode(member["member_assignment"])
        assert [(each.topic, list(each.partitions)) for each in assignment.assigned_partitions] == [("orders", [0, 1])]
        assert list(ConsumerProtocolSubscription.decode(member["member_metadata"]).topics) == ["orders"]


@pytest.mark.parametrize("version", versions(Key.DELETE_GROUPS))
@in_loop
async def test_groups_without_members_are_deleted(store: DirectoryStore, version: int) -> None:
    async def delete(*names: str) -> list[int]:
        made = await broker.ask(Key.DELETE_GROUPS, version, groups_names=list(names))
        return [each["error_code"] for each in made["results"]]

    async with Asked(store) as broker:
        await broker.commit({ORDERS[0]: 1}, group="simple")
        await broker.joined("lively")
        with store.consumer("embedded", ["orders"]):
            assert await delete("simple", "lively", "embedded", "nothing", "") == [
                E.NONE,
                E.NON_EMPTY_GROUP,
                E.NON_EMPTY_GROUP,
                E.GROUP_ID_NOT_FOUND,
                E.INVALID_GROUP_ID,
            ]
        assert await broker.committed(group="simple") == {}
        assert await delete("simple") == [E.GROUP_ID_NOT_FOUND]


@in_loop
async def test_a_group_whose_members_left_is_empty_until_it_is_deleted_or_forgotten(store: DirectoryStore) -> None:
    async with Asked(store, group_empty_ms=200) as broker:

        async def state(name: str) -> str:
            return (await broker.ask(Key.DESCRIBE_GROUPS, groups=[name]))["groups"][0]["group_state"]

        for name in ("deleted", "forgotten"):
            first = await broker.joined(name)
            await broker.ask(Key.LEAVE_GROUP, group_id=name, members=[{"member_id": first["member_id"]}])
            assert await state(name) == "Empty"
        made = await broker.ask(Key.DELETE_GROUPS, groups_names=["deleted"])
        assert made["results"][0]["error_code"] == E.NONE
        assert await state("deleted") == "Dead"
        await until(lambda: not list(broker.groups._groups))
        assert await state("forgotten") == "Dead"
