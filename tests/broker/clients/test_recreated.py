"""A topic that is deleted and recreated is a new topic, also for a consumer that was reading the old one.

In Apache Kafka 4.3 the new topic begins in the epoch of the old one, so every client continues at its old offset and
skips the records before it.
"""

from __future__ import annotations

import pytest

from ..oracle import ASKS_KAFKA
from .adapter import NotOffered, Refused, Sent, load
from .conftest import Hands, take


def values(word: bytes, count: int) -> list[Sent]:
    """Some records."""
    return [Sent(b"%s %d" % (word, number)) for number in range(count)]


@pytest.mark.skipif(ASKS_KAFKA, reason="Kafka's clients continue at the old offset")
@pytest.mark.parametrize("count", [5, 100])
def test_a_consumer_reads_a_recreated_topic_from_its_beginning(hands: Hands, topic: str, count: int) -> None:
    if hands.client is load("aiokafka"):
        raise NotOffered  # it knows no leader epochs: it continues at its offset, or resets if that is beyond the end
    admin, producer = hands.admin(), hands.producer()
    admin.create_topic(topic)
    producer.send(topic, values(b"old", 50))
    hands.close(producer)
    consumer = hands.consumer(reset="earliest")
    consumer.assign({(topic, 0): 0})  # without a group: a topic that is gone makes its members join again
    take(consumer, 50)
    admin.delete_topic(topic)
    try:
        admin.create_topic(topic)
    except Refused as error:  # the consumer has asked for the topic meanwhile, which creates it
        assert error.name == "TOPIC_ALREADY_EXISTS"
    hands.producer().send(topic, values(b"new", count))
    found = take(consumer, count)
    assert [each.offset for each in found] == list(range(count))
    assert [each.value for each in found] == [each.value for each in values(b"new", count)]
