"""Users who have authenticated, and rules about them: what one may and the other may not, through real clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from sawlog.testing import Broker

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(sasl_mechanisms=["SCRAM-SHA-256"], super_users=["User:admin"], refresh_s=0.05) as broker:
        for user in ("admin", "ann", "bob"):
            broker.add_user(user, f"secret of {user}")
        admin = AdminClient(settings(broker, "admin"))
        produced(Producer(settings(broker, "admin")), "orders", b"first")
        rules = [
            binding("User:ann", AclOperation.WRITE, "orders"),
            binding("User:bob", AclOperation.READ, "orders"),
        ]
        for made in admin.create_acls(rules).values():
            made.result(PATIENCE_S)
        yield broker


def settings(broker: Broker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": f"secret of {user}",
        "log_level": 0,
    }


def binding(principal: str, operation: Any, topic: str) -> Any:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, topic, literal, principal, "*", operation, allow)


def produced(producer: Producer, topic: str, value: bytes) -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return errors[0]


def first_of(consumer: Consumer, topic: str) -> bytes:
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is None:
                return message.value() or b""
            if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # it asks for its group, though it needs none
                raise KafkaException(error)
    finally:
        consumer.close()


def test_a_client_that_may_write_cannot_read(broker: Broker) -> None:
    assert produced(Producer(settings(broker, "ann")), "orders", b"second") is None
    with pytest.raises(KafkaException) as refused:
        first_of(Consumer({**settings(broker, "ann"), "group.id": "g", "enable.auto.commit": False}), "orders")
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_client_that_may_read_cannot_write(broker: Broker) -> None:
    assert (
        first_of(Consumer({**settings(broker, "bob"), "group.id": "g", "enable.auto.commit": False}), "orders")
        == b"first"
    )
    error = produced(Producer(settings(broker, "bob")), "orders", b"never")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_that_no_rule_names_is_for_super_users(broker: Broker) -> None:
    assert produced(Producer(settings(broker, "admin")), "secrets", b"x") is None
    assert "secrets" not in AdminClient(settings(broker, "ann")).list_topics(timeout=PATIENCE_S).topics
    assert "secrets" in AdminClient(settings(broker, "admin")).list_topics(timeout=PATIENCE_S).topics


def test_rules_need_permission_to_alter_the_cluster(broker: Broker) -> None:
    admin = AdminClient(settings(broker, "ann"))
    (made,) = admin.create_acls([binding("User:ann", AclOperation.ALL, "orders")]).values()
    with pytest.raises(KafkaException) as refused:
        made.result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
