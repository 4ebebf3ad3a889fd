"""Transactions: all or nothing, for readers that ask for it; offsets with them; zombies refused; kills survived."""

from __future__ import annotations

import pytest

from ..serving import Serving
from .adapter import Seen, Sent, last_offsets
from .conftest import Hands, one_client, refusal, take, wait_for

FENCED = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "FENCED_INSTANCE_ID"}


def sent(*values: str, partition: int = 0) -> list[Sent]:
    """Records with these values."""
    return [Sent(value.encode(), partition=partition) for value in values]


def values(records: list[Seen]) -> list[str]:
    """Their values."""
    return [(each.value or b"").decode() for each in records]


def committed(hands: Hands, topic: str, *wanted: str, partition: int = 0) -> None:
    """Readers of committed records see these, and no others before the end."""
    consumer = hands.consumer(committed=True)
    consumer.assign({(topic, partition): 0})
    assert values(take(consumer, len(wanted))) == list(wanted)
    assert consumer.poll(0.1) == []
    hands.close(consumer)


def test_committed_records_are_seen_and_aborted_ones_are_not(hands: Hands, topic: str) -> None:
    producer = hands.producer(transactional_id=topic)
    producer.begin()
    producer.send(topic, sent("a", "b"))
    producer.commit()
    producer.begin()
    producer.send(topic, sent("x", "y"))
    producer.abort()
    producer.begin()
    producer.send(topic, sent("c"))
    producer.commit()
    committed(hands, topic, "a", "b", "c")
    assert values(hands.read(topic, 5)) == ["a", "b", "x", "y", "c"]


def test_an_open_transaction_is_not_seen_nor_what_comes_after_it(hands: Hands, topic: str) -> None:
    producer, other = hands.producer(transactional_id=topic), hands.producer()
    producer.begin()
    producer.send(topic, sent("a"))
    other.send(topic, sent("plain"))
    consumer = hands.consumer(committed=True)
    consumer.assign({(topic, 0): 0})
    assert consumer.poll(0.2) == []
    assert consumer.ends(topic, 0)[0] == 0
    producer.commit()
    assert values(take(consumer, 2)) == ["a", "plain"]


def test_a_transaction_over_many_partitions_is_one(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, 3)
    producer = hands.producer(transactional_id=topic)
    for word, end in (("kept", producer.commit), ("dropped", producer.abort), ("last", producer.commit)):
        producer.begin()
        for number in range(3):
            producer.send(topic, sent(word, partition=number))
        end()
    for number in range(3):
        committed(hands, topic, "kept", "last", partition=number)


def test_offsets_are_committed_with_the_records_or_not_at_all(hands: Hands, topic: str) -> None:
    source, target = topic, f"{topic}-out"
    hands.producer().send(source, sent(*"abcdef"))
    consumer = hands.consumer(group=topic, committed=True)
    consumer.subscribe(source)
    found: list[Seen] = []
    wait_for(lambda: found.extend(consumer.poll()) or len(found) >= 6, "the input")
    producer = hands.producer(transactional_id=topic)
    producer.begin()
    producer.send(target, sent(*(each.upper() for each in values(found[:2]))))
    producer.send_offsets(consumer, last_offsets(found[:2], source), topic)
    producer.commit()
    producer.begin()
    producer.send(target, sent(*(each.upper() for each in values(found[2:]))))
    producer.send_offsets(consumer, last_offsets(found[2:], source), topic)
    producer.abort()
    assert consumer.committed(source, 0) == 2
    committed(hands, target, "A", "B")


def test_the_states_of_transactions_are_listed(hands: Hands, topic: str) -> None:
    admin, producer = hands.admin(), hands.producer(transactional_id=topic)
    assert admin.transactions()[topic] == "Empty"
    producer.begin()
    producer.send(topic, sent("a"))
    assert admin.transactions()[topic] == "Ongoing"
    producer.commit()
    assert admin.transactions()[topic] == "CompleteCommit"


def test_a_second_producer_of_the_same_id_fences_the_first(hands: Hands, topic: str) -> None:
    first = hands.producer(transactional_id=topic)
    first.begin()
    first.send(topic, sent("zombie"))
    second = hands.producer(transactional_id=topic)  # aborts the transaction of the first
    second.begin()
    second.send(topic, sent("alive"))
    second.commit()

    def go_on() -> None:
        first.send(topic, sent("late"))
        first.commit()

    assert refusal(go_on) in FENCED
    committed(hands, topic, "alive")


@pytest.mark.costly  # ends the broker that the tests of clients share, so that its CPU time counts here
@one_client("confluent")
def test_a_transaction_goes_on_after_the_broker_was_killed(hands: Hands, broker: Serving, topic: str) -> None:
    producer = hands.producer(transactional_id=topic)
    producer.begin()
    producer.send(topic, sent("dropped"))
    producer.abort()
    producer.begin()
    producer.send(topic, sent("a"))
    broker.kill()
    broker.start()
    producer.send(topic, sent("b"))
    producer.commit()
    producer.begin()
    producer.send(topic, sent("x"))
    broker.kill()
    broker.start()
    producer.abort()
    committed(hands, topic, "a", "b")


@pytest.mark.slow  # what ended before the kills of the test above stays so, too
def test_committed_and_aborted_transactions_stay_so_after_a_kill(hands: Hands, broker: Serving, topic: str) -> None:
    producer = hands.producer(transactional_id=topic)
    producer.begin()
    producer.send(topic, sent("kept"))
    producer.commit()
    producer.begin()
    producer.send(topic, sent("dropped"))
    producer.abort()
    broker.kill()
    broker.start()
    committed(hands, topic, "kept")


@pytest.mark.slow
def test_a_transaction_that_nobody_ends_is_aborted_in_time(hands: Hands, topic: str) -> None:
    producer, other = hands.producer(transactional_id=topic, transaction_timeout_ms=2000), hands.producer()
    producer.begin()
    producer.send(topic, sent("late"))
    other.send(topic, sent("plain"))
    committed(hands, topic, "plain")


@pytest.mark.slow
def test_readers_of_committed_records_see_them_in_every_mixture(hands: Hands, topic: str) -> None:
    """Two transactional producers and a plain one, interleaved; every fourth transaction is aborted."""
    first, second = (hands.producer(transactional_id=f"{topic}-{number}") for number in range(2))
    plain, wanted = hands.producer(), []
    for number in range(24):
        producer = (first, second)[number % 2]
        producer.begin()
        producer.send(topic, sent(f"{number}a"))
        plain.send(topic, sent(f"{number}p"))
        producer.send(topic, sent(f"{number}b"))
        if number % 4 == 3:
            producer.abort()
            wanted += [f"{number}p"]
        else:
            producer.commit()
            wanted += [f"{number}a", f"{number}p", f"{number}b"]
    committed(hands, topic, *wanted)
