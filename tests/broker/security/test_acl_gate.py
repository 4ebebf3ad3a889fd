"""Authorization of special cases: automatic creation, topic ids, acks=0, transactions, patterns."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from sawlog.broker.config import BrokerConfig, from_text
from sawlog.broker.handlers import Context
from sawlog.broker.security.acls import CLUSTER_NAME, Binding, Operation, Pattern, Permission, Resource
from sawlog.broker.wire import ErrorCode, Key, RequestHeader
from sawlog.errors import InvalidConfig
from sawlog.testing import Broker

from ..peers import Peer, batch, fetch_body, produce_body
from .roles import asked_by, change

READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
DELETE, ALL = Operation.DELETE, Operation.ALL
TOPIC, GROUP, CLUSTER, TRANSACTION = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID
NO_TOPIC, NO_GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def ann(resource: Resource, name: str, operation: Operation, **more: Any) -> Binding:
    return Binding(resource, name, "User:ann", operation, **more)


def ids(broker: Broker) -> dict[str, bytes]:
    return {topic.name: uuid.UUID(topic.id).bytes for topic in broker.store}


def codes(body: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["error_code"] for each in body["topics"]}


# --- Metadata


def test_asking_for_a_missing_topic_creates_it_only_with_permission(broker: Broker) -> None:
    change(broker, ann(TOPIC, "new-", DESCRIBE, pattern=Pattern.PREFIXED), ann(TOPIC, "new-1", CREATE))
    asked = {"topics": [{"name": "new-1"}, {"name": "new-2"}, {"name": "hidden"}], "allow_auto_topic_creation": True}
    found = asked_by(broker, "ann", Key.METADATA, 9, asked)
    assert codes(found) == {"new-1": ErrorCode.NONE, "new-2": NO_TOPIC, "hidden": NO_TOPIC}
    assert {"new-1"} == {"new-1", "new-2", "hidden"} & set(broker.store.topics())
    broker._call(broker._live().delete_topic("new-1"))


def test_create_on_the_cluster_allows_automatic_creation(broker: Broker) -> None:
    change(broker, ann(TOPIC, "*", DESCRIBE), ann(CLUSTER, CLUSTER_NAME, CREATE))
    assert codes(asked_by(broker, "ann", Key.METADATA, 9, {"topics": [{"name": "made"}]})) == {"made": ErrorCode.NONE}
    assert "made" in broker.store.topics()
    broker._call(broker._live().delete_topic("made"))


def test_a_missing_topic_is_unknown_to_those_who_do_not_want_it_created(broker: Broker) -> None:
    change(broker, ann(TOPIC, "*", DESCRIBE))
    asked = {"topics": [{"name": "missing"}], "allow_auto_topic_creation": False}
    found = asked_by(broker, "ann", Key.METADATA, 9, asked)
    assert codes(found) == {"missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [0, 9, 12])
def test_a_refused_topic_looks_the_same_whether_it_exists_or_not(broker: Broker, version: int) -> None:
    change(broker, ann(TOPIC, "orders", READ))
    asked = {"topics": [{"name": "secret"}, {"name": "no-such"}], "allow_auto_topic_creation": True}
    first, second = asked_by(broker, "ann", Key.METADATA, version, asked)["topics"]
    assert {**first, "name": ""} == {**second, "name": ""}
    assert (first["error_code"], first["topic_id"], first["partitions"]) == (NO_TOPIC, bytes(16), [])


@pytest.mark.parametrize("name", [None, "", "orders"])
def test_topics_asked_for_by_id_are_refused_without_telling_their_name(broker: Broker, name: str | None) -> None:
    change(broker, ann(TOPIC, "orders", READ))
    known, nobody = ids(broker), uuid.uuid4().bytes
    asked = {"topics": [{"name": name, "topic_id": each} for each in (known["orders"], known["secret"], nobody)]}
    found = {each["topic_id"]: each for each in asked_by(broker, "ann", Key.METADATA, 12, asked)["topics"]}
    assert found[known["orders"]]["name"] == "orders"
    assert (found[known["secret"]]["name"], found[known["secret"]]["error_code"]) == (None, NO_TOPIC)
    assert found[nobody]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_authorized_operations_are_those_of_the_client(broker: Broker) -> None:
    wanted = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}

    def told(client: str) -> tuple[int, int]:
        found = asked_by(broker, client, Key.METADATA, 9, {"topics": [{"name": "orders"}], **wanted})
        return found["topics"][0]["topic_authorized_operations"], found["cluster_authorized_operations"]

    assert told("ann") == (3576, 8096)  # no rule: everything
    change(broker, ann(TOPIC, "orders", READ), ann(GROUP, "billing", READ))
    assert told("ann") == (1 << READ | 1 << DESCRIBE, 0)
    cluster = asked_by(broker, "ann", Key.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": True})
    assert cluster["cluster_authorized_operations"] == 0
    described = {"groups": ["billing"], "include_authorized_operations": True}
    (group,) = asked_by(broker, "ann", Key.DESCRIBE_GROUPS, 5, described)["groups"]
    assert group["authorized_operations"] == 1 << READ | 1 << DESCRIBE
    (page,) = asked_by(broker, "ann", Key.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "orders"}]})["topics"]
    assert page["topic_authorized_operations"] == 1 << READ | 1 << DESCRIBE


def test_pages_of_all_topics_tell_nothing_of_hidden_ones(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", READ))
    asked = {"topics": [], "response_partition_limit": 1}
    found = asked_by(broker, "ann", Key.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
    assert ([each["name"] for each in found["topics"]], found["next_cursor"]) == (["orders"], None)
    found = asked_by(broker, "bob", Key.DESCRIBE_TOPIC_PARTITIONS, 0, asked)
    assert (found["topics"], found["next_cursor"]) == ([], None)


# --- records


def test_topic_ids_are_checked_as_names_are(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", WRITE), ann(TOPIC, "orders", READ))
    known = {**ids(broker), "nobody": uuid.uuid4().bytes}
    with Peer(broker.address, "ann") as peer:
        for name, expected in (("orders", 0), ("secret", NO_TOPIC), ("nobody", ErrorCode.UNKNOWN_TOPIC_ID)):
            body = produce_body("", batch(b"x"))
            body["topic_data"][0]["topic_id"] = known[name]
            (topic,) = peer.ask(Key.PRODUCE, 13, body)["responses"]
            assert (topic["topic_id"], topic["partition_responses"][0]["error_code"]) == (known[name], expected)
            body = fetch_body("", 0)
            body["topics"][0]["topic_id"] = known[name]
            (topic,) = peer.ask(Key.FETCH, 13, body)["responses"]
            assert (topic["topic_id"], topic["partitions"][0]["error_code"]) == (known[name], expected)
    assert broker.records("secret") == []


@pytest.mark.parametrize("version", [11, 13])
def test_a_fetch_waits_for_allowed_topics_although_others_are_refused(broker: Broker, version: int) -> None:
    change(broker, ann(TOPIC, "orders", READ))
    known = ids(broker)
    end = broker.store.topic("orders").partition(0).next_offset
    orders, secret = (fetch_body(name, at)["topics"][0] for name, at in (("orders", end), ("secret", 0)))
    topics = [{**topic, "topic_id": known[topic["topic"]]} for topic in (secret, orders)]
    with Peer(broker.address, "ann") as peer:
        peer.send(Key.FETCH, version, {**fetch_body("", 0, wait_ms=60_000), "topics": topics})
        asked_by(broker, "root", Key.PRODUCE, 9, produce_body("orders", batch(b"x")))
        _, body = peer.receive()
    names = {value: name for name, value in known.items()}
    found = {each["topic"] or names[each["topic_id"]]: each["partitions"][0] for each in body["responses"]}
    assert (found["orders"]["error_code"], found["orders"]["high_watermark"]) == (0, end + 1)
    assert len(found["orders"]["records"]) > 0
    assert (found["secret"]["error_code"], found["secret"]["high_watermark"]) == (NO_TOPIC, -1)


def test_a_producer_without_acknowledgements_learns_by_a_closed_connection(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", WRITE))
    before = len(broker.records("orders"))
    body = produce_body("orders", batch(b"stored"), acks=0)
    with Peer(broker.address, "ann") as peer:
        peer.send_together([(Key.PRODUCE, 9, body)])
        peer.ask(Key.API_VERSIONS, 0, {})  # it is still there
        body["topic_data"] += produce_body("secret", batch(b"refused"))["topic_data"]
        peer.send_together([(Key.PRODUCE, 9, body)])
        assert peer.is_closed()
    assert len(broker.records("orders")) == before + 2  # allowed batches are stored, as without rules
    assert broker.records("secret") == []


def test_produce_requests_follow_each_other_in_order_also_if_some_are_refused(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", WRITE))
    with Peer(broker.address, "ann") as peer:
        wanted = [
            peer.send(Key.PRODUCE, 9, produce_body("secret" if number % 3 == 0 else "orders", batch(b"x")))
            for number in range(60)
        ]
        answers = [peer.receive() for _ in wanted]
    assert [number for number, _ in answers] == wanted
    found = [body["responses"][0]["partition_responses"][0] for _, body in answers]
    assert [each["error_code"] != 0 for each in found] == [number % 3 == 0 for number in range(60)]
    offsets = [each["base_offset"] for each in found if each["error_code"] == 0]
    assert offsets == list(range(offsets[0], offsets[0] + 40))


def test_a_producer_with_a_transactional_id_needs_to_write_it_too(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", WRITE))
    body = {**produce_body("orders", batch(b"x")), "transactional_id": "pay"}
    (topic,) = asked_by(broker, "ann", Key.PRODUCE, 9, body)["responses"]
    assert topic["partition_responses"][0]["error_code"] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    change(broker, ann(TOPIC, "orders", WRITE), ann(TRANSACTION, "pay", WRITE))
    (topic,) = asked_by(broker, "ann", Key.PRODUCE, 9, body)["responses"]
    assert topic["partition_responses"][0]["error_code"] == 0


def test_an_idempotent_producer_may_write_to_some_topic_or_to_all(broker: Broker) -> None:
    def code() -> int:
        asked = {"transactional_id": None, "transaction_timeout_ms": 1000}
        found: int = asked_by(broker, "ann", Key.INIT_PRODUCER_ID, 4, asked)["error_code"]
        return found

    change(broker, ann(TOPIC, "orders", READ))
    assert code() == NO_CLUSTER
    change(broker, ann(CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE))
    assert code() == 0
    change(broker, ann(TOPIC, "o", WRITE, pattern=Pattern.PREFIXED))
    assert code() == 0
    change(broker, ann(TOPIC, "o", WRITE, pattern=Pattern.PREFIXED), ann(TOPIC, "*", WRITE, permission=Permission.DENY))
    assert code() == NO_CLUSTER


def test_partitions_are_added_to_a_transaction_all_or_none(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", WRITE), ann(TRANSACTION, "pay", WRITE))
    with Peer(broker.address, "ann") as peer:
        begun = {"transactional_id": "pay", "transaction_timeout_ms": 60_000}
        producer = peer.ask(Key.INIT_PRODUCER_ID, 2, begun)
        topics = [{"name": name, "partitions": [0]} for name in ("orders", "secret")]
        asked = {
            "v3_and_below_transactional_id": "pay",
            "v3_and_below_producer_id": producer["producer_id"],
            "v3_and_below_producer_epoch": producer["producer_epoch"],
            "v3_and_below_topics": topics,
        }
        found = {
            each["name"]: each["results_by_partition"][0]["partition_error_code"]
            for each in peer.ask(Key.ADD_PARTITIONS_TO_TXN, 3, asked)["results_by_topic_v3_and_below"]
        }
    assert found == {"orders": ErrorCode.OPERATION_NOT_ATTEMPTED, "secret": NO_TOPIC}
    (entry,) = [each for name, each in broker._live().transactions.entries().items() if name == "pay"]
    assert not entry.partitions


# --- topics and settings


def test_topics_are_deleted_by_id_only_with_permission(broker: Broker) -> None:
    broker.create_topic("doomed")
    change(broker, ann(TOPIC, "doomed", DELETE), ann(TOPIC, "orders", READ))
    known = ids(broker)
    asked = [{"name": None, "topic_id": known[name]} for name in ("doomed", "orders", "secret")]
    found = asked_by(broker, "ann", Key.DELETE_TOPICS, 6, {"topics": asked, "timeout_ms": 1000})["responses"]
    assert {each["topic_id"]: each["error_code"] for each in found} == {
        known["doomed"]: 0,
        known["orders"]: NO_TOPIC,
        known["secret"]: NO_TOPIC,
    }
    assert broker.store.topics() == ["orders", "secret"]


def test_settings_of_a_new_topic_are_told_to_those_who_may_know_them(broker: Broker) -> None:
    topic = {"name": "fresh", "num_partitions": 3, "replication_factor": 1}
    asked = {"topics": [topic], "validate_only": True}
    change(broker, ann(TOPIC, "fresh", CREATE))
    (found,) = asked_by(broker, "ann", Key.CREATE_TOPICS, 7, asked)["topics"]
    assert (found["error_code"], found["topic_config_error_code"]) == (0, NO_TOPIC)
    assert (found["num_partitions"], found["configs"]) == (-1, [])
    change(broker, ann(TOPIC, "fresh", CREATE), ann(TOPIC, "fresh", Operation.ALTER_CONFIGS))
    (found,) = asked_by(broker, "ann", Key.CREATE_TOPICS, 7, asked)["topics"]
    assert (found["topic_config_error_code"], found["num_partitions"]) == (0, 3)


@pytest.mark.parametrize(("kind", "name", "code"), [(2, "orders", NO_TOPIC), (4, "1", NO_CLUSTER), (32, "g", NO_GROUP)])
def test_settings_are_described_by_the_type_of_what_has_them(broker: Broker, kind: int, name: str, code: int) -> None:
    change(broker, ann(TOPIC, "secret", ALL))
    asked = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
    (found,) = asked_by(broker, "ann", Key.DESCRIBE_CONFIGS, 4, asked)["results"]
    assert (found["error_code"], found["configs"]) == (code, [])
    assert found["error_message"].startswith("User:ann is not allowed: DescribeConfigs needs describe-configs on the ")


def test_the_oldest_describe_log_dirs_is_refused_with_an_empty_answer(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", ALL))
    assert asked_by(broker, "ann", Key.DESCRIBE_LOG_DIRS, 1, {"topics": None})["results"] == []


# --- groups


@pytest.mark.parametrize("version", [0, 1, 2, 7, 8, 9, 10])
def test_offsets_are_fetched_of_described_groups_and_topics(broker: Broker, version: int) -> None:
    offset = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [offset]} for name in ("orders", "secret")]
    asked_by(broker, "root", Key.OFFSET_COMMIT, 2, {"group_id": "billing", "topics": topics})
    change(broker, ann(TOPIC, "orders", READ), ann(GROUP, "billing", READ))

    def fetched(group: str, names: list[str] | None) -> tuple[int, dict[str, int]]:
        known = {value: name for name, value in ids(broker).items()}
        wanted = None if names is None else [{"name": name, "partition_indexes": [0]} for name in names]
        with_ids = None if names is None else [{**each, "topic_id": ids(broker)[each["name"]]} for each in wanted or ()]
        body = {"group_id": group, "topics": wanted, "groups": [{"group_id": group, "topics": with_ids}]}
        answer = asked_by(broker, "ann", Key.OFFSET_FETCH, version, body)
        found = answer["groups"][0] if version >= 8 else answer
        return found["error_code"], {
            each["name"] or known[each["topic_id"]]: each["partitions"][0]["error_code"] for each in found["topics"]
        }

    assert fetched("billing", ["orders", "secret"]) == (0, {"orders": 0, "secret": NO_TOPIC})
    if version >= 2:
        assert fetched("billing", None) == (0, {"orders": 0})
        assert fetched("other", ["orders"]) == (NO_GROUP, {})
    else:
        assert fetched("other", ["orders"])[1] == {"orders": NO_GROUP}


def test_a_pattern_assigns_no_topics_of_which_the_member_may_not_know(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", READ), ann(GROUP, "*", READ))
    joining = {
        "group_id": "patterns",
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "rebalance_timeout_ms": 5000,
        "subscribed_topic_regex": ".*",
        "topic_partitions": [],
    }
    found = asked_by(broker, "ann", Key.CONSUMER_GROUP_HEARTBEAT, 1, joining)
    assert found["error_code"] == 0
    assert [each["topic_id"] for each in found["assignment"]["topic_partitions"]] == [ids(broker)["orders"]]


def test_a_member_may_know_of_the_topics_that_it_names(broker: Broker) -> None:
    change(broker, ann(GROUP, "*", READ), ann(TOPIC, "orders", READ))
    joining = {"group_id": "named", "member_id": str(uuid.uuid4()), "member_epoch": 0, "rebalance_timeout_ms": 5000}
    joining |= {"subscribed_topic_names": ["orders", "secret"], "topic_partitions": []}
    assert asked_by(broker, "ann", Key.CONSUMER_GROUP_HEARTBEAT, 0, joining)["error_code"] == NO_TOPIC
    joining["subscribed_topic_names"] = ["orders"]
    assert asked_by(broker, "ann", Key.CONSUMER_GROUP_HEARTBEAT, 0, joining)["error_code"] == 0
    (group,) = asked_by(broker, "ann", Key.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": ["named"]})["groups"]
    assert (group["error_code"], len(group["members"])) == (0, 1)
    change(broker, ann(GROUP, "*", READ))
    (group,) = asked_by(broker, "ann", Key.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": ["named"]})["groups"]
    assert (group["error_code"], group["members"]) == (NO_TOPIC, [])


# --- rules over the network


def creation(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": Pattern.LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": READ,
        "permission_type": Permission.ALLOW,
        **changes,
    }


def test_rules_that_are_wrong_are_refused_one_by_one_and_in_order(broker: Broker) -> None:
    creations = [
        creation("orders"),
        creation("orders", principal="ann"),
        creation("orders", resource_type=99),
        creation("orders", operation=0),
        creation("orders", resource_type=CLUSTER),
        creation(""),
        creation("orders", resource_pattern_type=Pattern.MATCH),
        creation("secret"),
    ]
    results = asked_by(broker, "root", Key.CREATE_ACLS, 3, {"creations": creations})["results"]
    wrong = ErrorCode.INVALID_REQUEST
    assert [each["error_code"] for each in results] == [0, *[wrong] * 6, 0]
    assert all(each["error_message"] for each in results[1:-1])
    found = asked_by(broker, "ann", Key.METADATA, 9, {"topics": None})["topics"]
    assert [each["name"] for each in found] == ["orders", "secret"]  # in force at once


def test_filters_that_are_wrong_are_refused_one_by_one_and_in_order(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", READ), ann(TOPIC, "secret", READ))

    def wanted(**changes: Any) -> dict[str, Any]:
        nothing = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
        return {
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
            **nothing,
            **changes,
        }

    filters = [wanted(operation=99), wanted(resource_name_filter="orders"), wanted(resource_name_filter="none")]
    results = asked_by(broker, "root", Key.DELETE_ACLS, 3, {"filters": filters})["filter_results"]
    assert [each["error_code"] for each in results] == [ErrorCode.INVALID_REQUEST, 0, 0]
    assert [[acl["resource_name"] for acl in each["matching_acls"]] for each in results] == [[], ["orders"], []]
    told = asked_by(broker, "root", Key.DESCRIBE_ACLS, 3, wanted())["resources"]
    assert [each["resource_name"] for each in told] == ["secret"]


# --- settings of a broker


ANYTHING = {
    **dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1),
    **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")),
}
READ_ORDERS = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:ann",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def test_an_anonymous_client_of_a_broker_without_access_control_locks_out_no_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        with Peer(broker.address) as peer:
            (created,) = peer.ask(Key.CREATE_ACLS, 3, {"creations": [READ_ORDERS]})["results"]
            (deleted,) = peer.ask(Key.DELETE_ACLS, 3, {"filters": [ANYTHING]})["filter_results"]
            described = peer.ask(Key.DESCRIBE_ACLS, 3, ANYTHING)
            for each in (created, deleted, described):
                assert each["error_code"] == ErrorCode.SECURITY_DISABLED
                assert "super_users" in each["error_message"]
            assert codes(peer.ask(Key.METADATA, 9, {"topics": [{"name": "orders"}]})) == {"orders": ErrorCode.NONE}
        assert any("SECURITY_DISABLED" in each.getMessage() for each in caplog.records)
        assert not any("access control is on" in each.getMessage() for each in caplog.records)
        # The administrator of the machine may: from then on rules are in force, and those whom they allow manage them.
        change(broker, Binding(CLUSTER, CLUSTER_NAME, "User:*", ALL))
        assert any("access control is on" in each.getMessage() for each in caplog.records)
        with Peer(broker.address) as peer:
            (resource,) = peer.ask(Key.DESCRIBE_ACLS, 3, ANYTHING)["resources"]
            assert resource["resource_name"] == CLUSTER_NAME
            (created,) = peer.ask(Key.CREATE_ACLS, 3, {"creations": [READ_ORDERS]})["results"]
            assert created["error_code"] == ErrorCode.NONE


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"super_users": ["User:ops"]},
        {"allow_everyone_if_no_acl_found": True},
        {"sasl_mechanisms": ["SCRAM-SHA-256"]},
        {"tls_certificate": "cert.pem", "tls_client_ca": "ca.pem"},
    ],
)
def test_access_control_is_on_as_soon_as_a_setting_is_about_it(settings: dict[str, Any]) -> None:
    assert BrokerConfig(**settings).has_access_control is bool(settings)


def test_super_users_are_principals_and_are_listed_with_semicolons_on_a_command_line() -> None:
    assert BrokerConfig(super_users=["User:ann"]).super_users == ("User:ann",)
    assert from_text("super_users", "User:ann; User:CN=bob,O=shop") == ("User:ann", "User:CN=bob,O=shop")
    for wrong in (["ann"], "User:ann", [7]):
        with pytest.raises(InvalidConfig, match=r"super_users|principal"):
            BrokerConfig(super_users=wrong)  # type: ignore[arg-type]


def test_an_address_of_ipv4_is_recognised_behind_a_listener_for_both_families(broker: Broker) -> None:
    header = RequestHeader(Key.FETCH, 12, 0, None, 0)
    assert Context(broker._live(), header, "::ffff:10.0.0.1", "User:ann").client == ("User:ann", "10.0.0.1")


def test_rules_for_a_host_hold_for_clients_from_there(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", READ, host="127.0.0.1"), ann(TOPIC, "secret", READ, host="10.0.0.1"))
    found = asked_by(broker, "ann", Key.METADATA, 9, {"topics": None})["topics"]
    assert [each["name"] for each in found] == ["orders"]


def test_refusals_are_counted(broker: Broker) -> None:
    change(broker, ann(TOPIC, "orders", READ))
    asked_by(broker, "ann", Key.PRODUCE, 9, produce_body("orders", batch(b"x")))
    assert broker._live().metrics.errors["Produce", "TOPIC_AUTHORIZATION_FAILED"] >= 1
