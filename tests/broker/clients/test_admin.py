"""Topics, partitions, settings, records and groups, as the admin clients see and change them."""

from __future__ import annotations

from .adapter import Sent, last_offsets
from .conftest import Hands, refusal, take, wait_for


def values(count: int, start: int = 0) -> list[Sent]:
    """Some records."""
    return [Sent(b"%d" % number, b"k", timestamp=1_700_000_000_000) for number in range(start, start + count)]


# --- topics


def test_topics_are_created_listed_and_deleted(hands: Hands, topic: str) -> None:
    admin = hands.admin()
    admin.create_topic(topic, 3)
    assert admin.topics()[topic] == 3
    assert refusal(lambda: admin.create_topic(topic, 3)) == "TOPIC_ALREADY_EXISTS"
    admin.delete_topic(topic)
    wait_for(lambda: topic not in admin.topics(), "the topic to be gone")
    assert refusal(lambda: admin.delete_topic(topic)) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_topic_that_is_created_again_is_empty(hands: Hands, topic: str) -> None:
    admin, producer = hands.admin(), hands.producer()
    admin.create_topic(topic)
    producer.send(topic, values(5))
    hands.close(producer)
    admin.delete_topic(topic)
    admin.create_topic(topic)
    assert hands.consumer().ends(topic, 0) == (0, 0)
    assert hands.producer().send(topic, values(1)) == [0]


def test_topics_that_cannot_be_are_refused(hands: Hands, topic: str) -> None:
    admin = hands.admin()
    assert refusal(lambda: admin.create_topic("no/such name")) == "INVALID_TOPIC"
    assert refusal(lambda: admin.create_topic(topic, 0)) == "INVALID_PARTITIONS"
    assert refusal(lambda: admin.create_topic(topic, config={"retention.ms": "soon"})) == "INVALID_CONFIG"
    assert refusal(lambda: admin.create_topic(topic, config={"no.such.setting": "1"})) == "INVALID_CONFIG"
    assert topic not in admin.topics()


def test_partitions_are_added_and_used_at_once(hands: Hands, topic: str) -> None:
    admin = hands.admin()
    admin.create_topic(topic, 1)
    admin.add_partitions(topic, 3)
    assert admin.topics()[topic] == 3
    assert hands.producer().send(topic, [Sent(b"x", partition=2)]) == [0]
    assert refusal(lambda: admin.add_partitions(topic, 2)) == "INVALID_PARTITIONS"


# --- settings


def test_settings_are_described_with_their_defaults_and_changed(hands: Hands, topic: str) -> None:
    admin = hands.admin()
    admin.create_topic(topic, config={"retention.ms": "3600000"})
    found = admin.config(topic)
    assert found["retention.ms"] == "3600000"
    assert found["cleanup.policy"] == "delete"
    assert found["max.message.bytes"] == "1048588"
    admin.configure(topic, {"retention.ms": "7200000", "max.message.bytes": "2000"})
    found = admin.config(topic)
    assert (found["retention.ms"], found["max.message.bytes"]) == ("7200000", "2000")
    assert refusal(lambda: hands.producer().send(topic, [Sent(bytes(3000))])) == "MESSAGE_TOO_LARGE"


def test_a_change_that_is_no_good_changes_nothing(hands: Hands, topic: str) -> None:
    admin = hands.admin()
    admin.create_topic(topic)
    assert refusal(lambda: admin.configure(topic, {"retention.ms": "x", "max.message.bytes": "9"})) == "INVALID_CONFIG"
    assert admin.config(topic)["max.message.bytes"] == "1048588"
    name = refusal(lambda: admin.configure(f"{topic}-none", {"retention.ms": "1"}))
    assert name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_producer_goes_on_while_settings_change(hands: Hands, topic: str) -> None:
    admin, producer = hands.admin(), hands.producer(idempotent=True)
    admin.create_topic(topic)
    for number in range(5):
        assert producer.send(topic, values(3, 3 * number)) == [3 * number + each for each in range(3)]
        admin.configure(topic, {"segment.bytes": str(2_000_000 + number)})
    assert [each.value for each in hands.read(topic, 15)] == [each.value for each in values(15)]


# --- records


def test_the_beginning_of_a_partition_is_deleted(hands: Hands, topic: str) -> None:
    hands.producer().send(topic, values(20))
    admin = hands.admin()
    assert admin.delete_records(topic, 0, 13) == 13
    assert hands.consumer().ends(topic, 0) == (13, 20)
    assert [each.offset for each in hands.read(topic, 7)] == list(range(13, 20))
    assert refusal(lambda: admin.delete_records(topic, 0, 21)) == "OFFSET_OUT_OF_RANGE"


# --- groups


def test_groups_are_listed_described_and_deleted(hands: Hands, topic: str) -> None:
    group = f"g-{topic}"
    hands.producer().send(topic, values(10))
    admin, consumer = hands.admin(), hands.consumer(group=group)
    consumer.subscribe(topic)
    read = take(consumer, 10)
    consumer.commit(last_offsets(read, topic))
    assert group in admin.groups()
    found = admin.group(group)
    assert (found.state, found.members) == ("Stable", ((None, 1),))
    assert admin.offsets(group) == {(topic, 0): 10}
    hands.close(consumer)
    wait_for(lambda: admin.group(group).state == "Empty", "the member to be gone")
    admin.delete_group(group)
    assert group not in admin.groups()


def test_a_group_with_members_is_not_deleted(hands: Hands, topic: str) -> None:
    group = f"g-{topic}"
    hands.producer().send(topic, values(1))
    consumer = hands.consumer(group=group)
    consumer.subscribe(topic)
    take(consumer, 1)
    admin = hands.admin()
    assert refusal(lambda: admin.delete_group(group)) == "NON_EMPTY_GROUP"


def test_the_offsets_of_a_group_are_set_from_outside(hands: Hands, topic: str) -> None:
    group = f"g-{topic}"
    hands.producer().send(topic, values(10))
    admin = hands.admin()
    admin.set_offsets(group, {(topic, 0): 7})
    assert admin.offsets(group) == {(topic, 0): 7}
    consumer = hands.consumer(group=group)
    consumer.subscribe(topic)
    assert [each.offset for each in take(consumer, 3)] == [7, 8, 9]
