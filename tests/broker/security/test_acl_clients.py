"""Rules as the admin clients of others create, describe and delete them, and as their producers and consumers meet
them."""

from __future__ import annotations

from typing import Any

import pytest

from sawlog.testing import Broker

from .roles import change

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


# --- librdkafka


confluent = pytest.importorskip("confluent_kafka")


def settings(broker: Broker, client_id: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": broker.address, "client.id": client_id, "log_level": 0, **more}


def test_librdkafka_creates_describes_and_deletes_rules(broker: Broker) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient(settings(broker, "root"))
    read = AclBinding(
        ResourceType.TOPIC,
        "ord",
        ResourcePatternType.PREFIXED,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    deny = AclBinding(
        ResourceType.GROUP,
        "*",
        ResourcePatternType.LITERAL,
        "User:*",
        "10.0.0.1",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    for future in admin.create_acls([read, deny]).values():
        assert future.result(60) is None

    def wanted(name: str | None, pattern: ResourcePatternType) -> AclBindingFilter:
        anything = AclOperation.ANY, AclPermissionType.ANY
        return AclBindingFilter(ResourceType.ANY, name, pattern, None, None, *anything)

    assert set(admin.describe_acls(wanted(None, ResourcePatternType.ANY)).result(60)) == {read, deny}
    assert admin.describe_acls(wanted("orders", ResourcePatternType.MATCH)).result(60) == [read, deny]
    assert admin.describe_acls(wanted("orders", ResourcePatternType.LITERAL)).result(60) == []
    (future,) = admin.delete_acls([wanted("ord", ResourcePatternType.PREFIXED)]).values()
    assert future.result(60) == [read]
    assert admin.describe_acls(wanted(None, ResourcePatternType.ANY)).result(60) == [deny]
    other = AdminClient(settings(broker, "ann"))
    (future,) = other.create_acls([read]).values()
    with pytest.raises(confluent.KafkaException, match="User:ann is not allowed") as refused:
        future.result(60)
    assert refused.value.args[0].name() == "CLUSTER_AUTHORIZATION_FAILED"


def test_librdkafka_produces_and_consumes_as_far_as_it_may(broker: Broker) -> None:
    from .test_acl_gate import GROUP, READ, TOPIC, WRITE, ann

    change(broker, ann(TOPIC, "orders", WRITE), ann(TOPIC, "orders", READ), ann(GROUP, "billing", READ))
    told: dict[str, str | None] = {}
    producer = confluent.Producer(settings(broker, "ann", **{"enable.idempotence": True}))
    for topic in ("orders", "secret"):
        producer.produce(
            topic,
            b"one",
            on_delivery=lambda error, message: told.update({message.topic(): error and error.name()}),
        )
    assert producer.flush(20) == 0
    assert told == {"orders": None, "secret": "TOPIC_AUTHORIZATION_FAILED"}
    found: list[str] = []
    reading = {"group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = confluent.Consumer(settings(broker, "ann", **reading))
    try:
        consumer.subscribe(["orders", "secret"])
        while len(found) < 2:
            message = consumer.poll(20)
            assert message is not None, found
            found.append(message.error().name() if message.error() else message.value().decode())
    finally:
        consumer.close()
    assert sorted(found) == ["TOPIC_AUTHORIZATION_FAILED", "one"]
    consumer = confluent.Consumer(settings(broker, "ann", **{**reading, "group.id": "other"}))
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(20)
        assert message.error().name() == "GROUP_AUTHORIZATION_FAILED"
    finally:
        consumer.close()


# --- kafka-python


def test_kafka_python_creates_describes_and_deletes_rules(broker: Broker) -> None:
    kafka = pytest.importorskip("kafka.admin")
    errors = pytest.importorskip("kafka.errors")
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.address, client_id="root")
    other = kafka.KafkaAdminClient(bootstrap_servers=broker.address, client_id="ann")
    try:
        orders = kafka.ResourcePattern(kafka.ResourceType.TOPIC, "orders")
        acl = kafka.ACL("User:ann", "*", kafka.ACLOperation.READ, kafka.ACLPermissionType.ALLOW, orders)
        made = admin.create_acls([acl])
        assert (made["succeeded"], made["failed"]) == ([acl], [])
        anything = kafka.ACLFilter(
            None,
            None,
            kafka.ACLOperation.ANY,
            kafka.ACLPermissionType.ANY,
            kafka.ResourcePatternFilter(kafka.ResourceType.ANY, None, kafka.ACLResourcePatternType.ANY),
        )
        found, error = admin.describe_acls(anything)
        assert (found, error) == ([acl], errors.NoError)
        with pytest.raises(errors.ClusterAuthorizationFailedError):
            other.describe_acls(anything)
        assert other.list_topics() == ["orders"]
        ((_, deleted, error),) = admin.delete_acls([anything])
        assert (deleted, error) == ([acl], errors.NoError)
        assert other.list_topics() == ["orders", "secret"]
    finally:
        admin.close()
        other.close()
