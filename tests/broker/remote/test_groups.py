"""Groups through a broker: offsets as in the store, members as they joined, and the same refusals."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

import sawlog
from sawlog.broker.remote import RemoteStore
from sawlog.broker.wire import Body, Key
from sawlog.broker.wire.codec import Sink, encoder
from sawlog.broker.wire.messages import ASSIGNMENT, SUBSCRIPTION
from sawlog.broker.wire.schema import Field
from sawlog.testing import Broker

from ..peers import Peer

SHARES = {("orders", 0): 3, ("orders", 1): 7}


@pytest.fixture
def store(store: RemoteStore) -> RemoteStore:
    topic = store.create_topic("orders", 2)
    for number in (0, 1):
        topic.append_many([b"%d" % each for each in range(10)], partition=number)
    return store


def embedded(fields: tuple[Field, ...], body: Body) -> bytes:
    sink = Sink(struct.pack(">h", 1))
    encoder(fields, 1, flexible=False, what="embedded")(sink, body)
    return bytes(sink)


@pytest.fixture
def member(broker: Broker, store: RemoteStore) -> Iterator[str]:
    """A member of the group `live` that owns partition 1."""
    connection = Peer(broker.address, "a consumer")
    join: Body = {
        "group_id": "live",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": embedded(SUBSCRIPTION, {"topics": ["orders"]})}],
    }
    joined = connection.ask(Key.JOIN_GROUP, 5, join)
    if joined["error_code"]:  # it wants the id that it has given
        joined = connection.ask(Key.JOIN_GROUP, 5, {**join, "member_id": joined["member_id"]})
    owned = embedded(ASSIGNMENT, {"assigned_partitions": [{"topic": "orders", "partitions": [1]}]})
    synced = connection.ask(
        Key.SYNC_GROUP,
        5,
        {
            "group_id": "live",
            "generation_id": joined["generation_id"],
            "member_id": joined["member_id"],
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": joined["member_id"], "assignment": owned}],
        },
    )
    assert synced["error_code"] == 0
    yield joined["member_id"]
    connection.socket.close()


def test_offsets_are_those_of_the_store(broker: Broker, store: RemoteStore) -> None:
    assert store.groups.list() == []
    store.groups.commit("billing", SHARES)
    assert store.groups.list() == broker.store.groups.list() == ["billing"]
    found, here = store.groups.describe("billing"), broker.store.groups.describe("billing")
    assert found.rows == here.rows
    assert [row.lag for row in found.rows] == [7, 3]
    assert found.members == ()

    broker.store.groups.commit("billing", {("orders", 0): 10})
    assert store.groups.describe("billing").rows[0].committed == 10


def test_a_group_is_moved_and_deleted(broker: Broker, store: RemoteStore) -> None:
    store.groups.commit("billing", SHARES)
    assert store.groups.seek("billing", {("orders", 1): 0}) == {("orders", 1): 0}
    assert broker.store.groups.describe("billing").rows[1].committed == 0
    store.groups.delete("billing")
    assert broker.store.groups.list() == []


def test_a_group_that_does_not_exist_is_not_found(store: RemoteStore) -> None:
    for work in (
        lambda: store.groups.describe("nobody"),
        lambda: store.groups.seek("nobody", SHARES),
        lambda: store.groups.delete("nobody"),
    ):
        with pytest.raises(sawlog.errors.GroupNotFound, match="no group 'nobody'"):
            work()


def test_a_topic_that_was_deleted_is_left_out(store: RemoteStore) -> None:
    store.create_topic("gone").append(b"x")
    store.groups.commit("billing", {**SHARES, ("gone", 0): 1})
    store.delete_topic("gone")
    assert {row.topic for row in store.groups.describe("billing").rows} == {"orders"}


def test_members_and_what_they_own_are_shown(store: RemoteStore, member: str) -> None:
    found = store.groups.describe("live")
    (one,) = found.members
    assert (one.id, one.name, one.topics) == (member, "a consumer", ("orders",))
    assert one.process.strip("/") == "127.0.0.1"
    assert [(row.partition, row.owner) for row in found.rows] == [(0, None), (1, member)]


def test_a_group_with_members_is_not_moved(store: RemoteStore, member: str) -> None:
    for work in (
        lambda: store.groups.commit("live", SHARES),
        lambda: store.groups.seek("live", SHARES),
        lambda: store.groups.delete("live"),
    ):
        with pytest.raises(sawlog.errors.GroupActive, match="has live members"):
            work()


def test_members_whose_partitions_the_broker_assigns_are_shown(broker: Broker, store: RemoteStore) -> None:
    connection = Peer(broker.address, "a consumer")
    beat: Body = {"group_id": "new", "member_id": "", "member_epoch": 0, "rebalance_timeout_ms": 30_000}
    beat |= {"subscribed_topic_names": ["orders"], "topic_partitions": [], "member_id": "0123456789abcdef012345"}
    answer = connection.ask(Key.CONSUMER_GROUP_HEARTBEAT, 1, beat)
    assert answer["error_code"] == 0
    assert store.groups.list() == ["new"]
    found = store.groups.describe("new")
    (one,) = found.members
    assert (one.id, one.name, one.topics) == (answer["member_id"], "a consumer", ("orders",))
    assert [row.partition for row in found.rows] == [0, 1]
    with pytest.raises(sawlog.errors.GroupActive):
        store.groups.delete("new")
    connection.socket.close()
