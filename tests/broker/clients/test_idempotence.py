"""A producer whose broker is killed loses nothing and doubles nothing."""

from __future__ import annotations

import threading

import pytest

from ..serving import Serving
from .adapter import COMPRESSIONS, Sent
from .conftest import Hands, one_client


def numbered(count: int, start: int = 0) -> list[Sent]:
    """Records that say which they are."""
    return [Sent(b"%d" % number, b"key", timestamp=1_700_000_000_000) for number in range(start, start + count)]


@pytest.mark.costly  # ends the broker that the tests of clients share, so that its CPU time counts here
@one_client("confluent")
def test_a_producer_goes_on_after_its_broker_was_killed(hands: Hands, broker: Serving, topic: str) -> None:
    producer = hands.producer(idempotent=True)
    assert producer.send(topic, numbered(50)) == list(range(50))
    broker.kill()
    broker.start()
    assert producer.send(topic, numbered(50, 50)) == list(range(50, 100))
    assert [each.value for each in hands.read(topic, 100)] == [each.value for each in numbered(100)]
    assert hands.consumer().ends(topic, 0) == (0, 100)


@one_client("confluent")
def test_records_in_flight_when_the_broker_is_killed_arrive_once(hands: Hands, broker: Serving, topic: str) -> None:
    producer = hands.producer(idempotent=True, linger_ms=0)
    producer.send(topic, numbered(1))
    for first in range(1, 400, 20):
        producer.post(topic, numbered(20, first))
        if first == 201:
            broker.kill()
            back = threading.Timer(0.3, broker.start)  # Java's client waits for it before it takes more
            back.start()
    back.join()
    assert producer.flush() == list(range(1, 401))
    assert [each.value for each in hands.read(topic, 401)] == [each.value for each in numbered(401)]
    assert hands.consumer().ends(topic, 0) == (0, 401)


@pytest.mark.slow
def test_a_clean_stop_is_no_different(hands: Hands, broker: Serving, topic: str) -> None:
    producer = hands.producer(idempotent=True)
    producer.send(topic, numbered(10))
    broker.restart()
    producer.send(topic, numbered(10, 10))
    assert [each.value for each in hands.read(topic, 20)] == [each.value for each in numbered(20)]


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_many_kills_in_a_row(hands: Hands, broker: Serving, topic: str, compression: str) -> None:
    # A busy machine takes a minute for eight starts: no record may be given up meanwhile.
    producer = hands.producer(idempotent=True, linger_ms=0, compression=compression, timeout_ms=600_000)
    total = 0
    for _ in range(8):
        for _ in range(10):
            producer.post(topic, numbered(25, total))
            total += 25
        broker.kill()
        broker.start()
    assert producer.flush() == list(range(total))
    assert [each.value for each in hands.read(topic, total)] == [each.value for each in numbered(total)]
