"""Administration of a cluster of one broker, at every version."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sawlog.broker.wire import BY_KEY, ErrorCode, Key
from sawlog.testing import Broker

from .peers import Peer, batch, produce_body

NODE = 7


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(node_id=NODE) as made:
        made.create_topic("orders", partitions=2)
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.address) as made:
        yield made


def each_version(key: Key) -> list[Any]:
    return [pytest.param(version, id=f"v{version}") for version in BY_KEY[key].versions]


def codes(parts: list[dict[str, Any]], number: str = "partition_index") -> dict[int, ErrorCode]:
    return {each[number]: ErrorCode(each["error_code"]) for each in parts}


@pytest.mark.parametrize("name", [None, "", "orders", "nothing"])
@pytest.mark.parametrize("version", [12, 13])
def test_metadata_finds_a_topic_by_its_id_whatever_its_name(
    broker: Broker, peer: Peer, version: int, name: str | None
) -> None:
    topic_id = uuid.UUID(broker.store.topic("orders").id).bytes
    asked = [{"name": name, "topic_id": each} for each in (topic_id, uuid.uuid4().bytes)]
    found, unknown = peer.ask(Key.METADATA, version, {"topics": asked, "allow_auto_topic_creation": True})["topics"]
    assert (found["error_code"], found["name"], found["topic_id"]) == (ErrorCode.NONE, "orders", topic_id)
    assert len(found["partitions"]) == 2
    assert (unknown["error_code"], unknown["name"]) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert "nothing" not in broker.store.topics()


def test_a_topic_is_deleted_by_its_name_or_by_its_id_but_not_by_both(broker: Broker, peer: Peer) -> None:
    def delete(name: str | None, topic_id: bytes) -> int:
        asked = {"topics": [{"name": name, "topic_id": topic_id}], "timeout_ms": 1000}
        return int(peer.ask(Key.DELETE_TOPICS, 6, asked)["responses"][0]["error_code"])

    for number, name in enumerate([None, ""]):
        broker.create_topic(f"doomed-{number}")
        topic_id = uuid.UUID(broker.store.topic(f"doomed-{number}").id).bytes
        assert delete("orders", topic_id) == delete(None, bytes(16)) == ErrorCode.INVALID_REQUEST
        assert delete(name, topic_id) == ErrorCode.NONE
        assert delete(name, topic_id) == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.store.topics() == ["orders"]


@pytest.mark.parametrize("version", [3, 4])
def test_features_are_told_that_clients_and_tools_ask_for(peer: Peer, version: int) -> None:
    told = peer.ask(Key.API_VERSIONS, version, {"client_software_name": "x", "client_software_version": "1"})
    supported = {each["name"]: (each["min_version"], each["max_version"]) for each in told["supported_features"]}
    finalized = {each["name"]: each["max_version_level"] for each in told["finalized_features"]}
    assert told["finalized_features_epoch"] >= 0, "a client takes them for unknown otherwise"
    assert finalized["group.version"] == 1
    assert finalized["transaction.version"] == 1, "with 2, producers expect an epoch per transaction"
    assert finalized.keys() == {"group.version", "metadata.version", "transaction.version"}
    if version == 3:  # its clients fail if a range begins with 0
        assert all(lowest > 0 for lowest, _ in supported.values())
    else:
        assert supported.keys() == finalized.keys()
    assert all(supported[name][0] <= finalized[name] <= supported[name][1] for name in supported)


@pytest.mark.parametrize("version", each_version(Key.ELECT_LEADERS))
def test_no_partition_needs_an_election(peer: Peer, version: int) -> None:
    asked = [{"topic": "orders", "partitions": [0, 1, 2]}, {"topic": "nothing", "partitions": [0]}]
    orders, nothing = peer.ask(Key.ELECT_LEADERS, version, {"topic_partitions": asked})["replica_election_results"]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    needless = ErrorCode.ELECTION_NOT_NEEDED
    assert codes(orders["partition_result"], "partition_id") == {0: needless, 1: needless, 2: unknown}
    assert codes(nothing["partition_result"], "partition_id") == {0: unknown}
    assert peer.ask(Key.ELECT_LEADERS, version, {"topic_partitions": None})["replica_election_results"] == []


@pytest.mark.parametrize("version", each_version(Key.ALTER_PARTITION_REASSIGNMENTS))
def test_a_partition_can_be_reassigned_to_where_it_is_and_nowhere_else(peer: Peer, version: int) -> None:
    wanted = [(0, [NODE]), (1, [NODE + 1]), (2, [NODE])]
    parts = [{"partition_index": number, "replicas": replicas} for number, replicas in wanted]
    parts.append({"partition_index": 1, "replicas": None})
    body = {"topics": [{"name": "orders", "partitions": parts}]}
    (orders,) = peer.ask(Key.ALTER_PARTITION_REASSIGNMENTS, version, body)["responses"]
    assert [each["error_code"] for each in orders["partitions"]] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ]
    assert orders["partitions"][0]["error_message"] is None
    assert str(NODE) in orders["partitions"][1]["error_message"]


@pytest.mark.parametrize("topics", [None, [{"name": "orders", "partition_indexes": [0]}]])
def test_no_reassignment_is_ever_going_on(peer: Peer, topics: list[dict[str, Any]] | None) -> None:
    found = peer.ask(Key.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": topics})
    assert (found["error_code"], found["topics"]) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("version", each_version(Key.ALTER_REPLICA_LOG_DIRS))
def test_a_replica_can_be_moved_to_the_directory_that_it_is_in(peer: Peer, version: int) -> None:
    (here,) = peer.ask(Key.DESCRIBE_LOG_DIRS, 2, {"topics": None})["results"]
    dirs = [
        {"path": here["log_dir"], "topics": [{"name": "orders", "partitions": [0, 9]}]},
        {"path": "/elsewhere", "topics": [{"name": "orders", "partitions": [1]}]},
    ]
    (orders,) = peer.ask(Key.ALTER_REPLICA_LOG_DIRS, version, {"dirs": dirs})["results"]
    assert orders["topic_name"] == "orders"
    assert codes(orders["partitions"]) == {
        0: ErrorCode.NONE,
        9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        1: ErrorCode.LOG_DIR_NOT_FOUND,
    }


@pytest.mark.parametrize("version", each_version(Key.DESCRIBE_LOG_DIRS))
def test_all_partitions_are_in_one_directory(broker: Broker, peer: Peer, version: int) -> None:
    (here,) = peer.ask(Key.DESCRIBE_LOG_DIRS, version, {"topics": None})["results"]
    assert [(topic["name"], len(topic["partitions"])) for topic in here["topics"]] == [("orders", 2)]
    if version >= 4:
        assert 0 < here["usable_bytes"] <= here["total_bytes"]
    if version >= 5:
        assert here["is_cordoned"] is False


@pytest.mark.parametrize("version", each_version(Key.DESCRIBE_QUORUM))
def test_the_broker_is_a_quorum_of_one(broker: Broker, peer: Peer, version: int) -> None:
    asked = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
        {"topic_name": "orders", "partitions": [{"partition_index": 0}]},
    ]
    found = peer.ask(Key.DESCRIBE_QUORUM, version, {"topics": asked})
    (quorum,), (orders,) = (each["partitions"] for each in found["topics"])
    assert (quorum["error_code"], quorum["leader_id"]) == (ErrorCode.NONE, NODE)
    assert [each["replica_id"] for each in quorum["current_voters"]] == [NODE]
    assert quorum["observers"] == []
    assert orders["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 2:
        (node,) = found["nodes"]
        (listener,) = node["listeners"]
        assert (node["node_id"], f"{listener['host']}:{listener['port']}") == (NODE, broker.address)


def test_config_resources_are_those_that_can_be_described(peer: Peer) -> None:
    def listed(*kinds: int) -> set[tuple[int, str]]:
        found = peer.ask(Key.LIST_CONFIG_RESOURCES, 1, {"resource_types": list(kinds)})
        return {(each["resource_type"], each["resource_name"]) for each in found["config_resources"]}

    assert listed() == {(2, "orders"), (4, str(NODE)), (8, str(NODE))}
    assert listed(2) == {(2, "orders")}
    assert listed(4) == {(4, str(NODE))}
    assert listed(16, 32) == set()
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in listed()]
    for described in peer.ask(Key.DESCRIBE_CONFIGS, 4, {"resources": asked})["results"]:
        assert described["error_code"] == ErrorCode.NONE
    assert peer.ask(Key.LIST_CONFIG_RESOURCES, 0, {})["config_resources"] == []


@pytest.mark.parametrize("version", each_version(Key.DESCRIBE_CLIENT_QUOTAS))
def test_there_are_no_quotas(peer: Peer, version: int) -> None:
    found = peer.ask(Key.DESCRIBE_CLIENT_QUOTAS, version, {"components": [], "strict": False})
    assert (found["error_code"], found["entries"]) == (ErrorCode.NONE, [])


def test_a_group_has_the_brokers_settings(peer: Peer) -> None:
    asked = {"resource_type": 32, "resource_name": "billing", "configuration_keys": None}
    (found,) = peer.ask(Key.DESCRIBE_CONFIGS, 4, {"resources": [asked]})["results"]
    assert found["error_code"] == ErrorCode.NONE
    assert {each["name"]: (each["value"], each["read_only"]) for each in found["configs"]} == {
        "consumer.session.timeout.ms": ("45000", True),
        "consumer.heartbeat.interval.ms": ("5000", True),
    }


@pytest.mark.parametrize("kind", [2, 4, 32])
def test_every_setting_is_documented_to_who_asks_for_that(peer: Peer, kind: int) -> None:
    name = {2: "orders", 4: str(NODE), 32: "billing"}[kind]
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    for wanted in (True, False):
        body = {"resources": [asked], "include_documentation": wanted}
        (found,) = peer.ask(Key.DESCRIBE_CONFIGS, 4, body)["results"]
        assert found["configs"]
        assert {bool(each["documentation"]) for each in found["configs"]} == {wanted}


def test_a_cleanup_policy_keeps_its_order_and_may_be_empty(broker: Broker, peer: Peer) -> None:
    """Like Kafka since 4.2. The last element may be removed."""

    def change(operation: int, value: str) -> int:
        config = {"name": "cleanup.policy", "config_operation": operation, "value": value}
        resource = {"resource_type": 2, "resource_name": topic.name, "configs": [config]}
        (found,) = peer.ask(Key.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
        return int(found["error_code"])

    def described() -> str:
        asked = {"resource_type": 2, "resource_name": topic.name, "configuration_keys": ["cleanup.policy"]}
        (found,) = peer.ask(Key.DESCRIBE_CONFIGS, 4, {"resources": [asked]})["results"]
        assert (found["error_code"], found["error_message"]) == (ErrorCode.NONE, None)
        (config,) = found["configs"]
        return str(config["value"])

    topic = broker.create_topic("kept")
    for operation, value, policy in (
        (2, "compact", "delete,compact"),
        (3, "compact,delete", ""),
        (3, "delete", ""),
        (2, "delete", "delete"),
        (0, "compact,delete", "compact,delete"),
        (2, "compact", "compact,delete"),
        (3, "compact", "delete"),
        (0, "delete, compact", "delete,compact"),
        (0, "", ""),
    ):
        assert change(operation, value) == ErrorCode.NONE
        assert described() == policy
    assert change(2, "shred") == ErrorCode.INVALID_CONFIG
    peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(b"old")))
    part = {"name": topic.name, "partitions": [{"partition_index": 0, "offset": 1}]}
    (found,) = peer.ask(Key.DELETE_RECORDS, 2, {"topics": [part], "timeout_ms": 5000})["topics"]
    assert found["partitions"][0]["error_code"] == ErrorCode.NONE
