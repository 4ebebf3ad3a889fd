"""Consumers of every client get the records of producers of every client: bytes, nulls, headers, times, offsets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sawlog.batch.header import scan
from sawlog.store.directory.store import DirectoryStore

from ...looping import for_each
from ..oracle import ASKS_KAFKA
from ..serving import Serving
from .adapter import COMPRESSIONS, Seen, Sent, load, names
from .conftest import Hands, refusal, take

T = 1_700_000_000_000


def some(count: int, start: int = 0) -> list[Sent]:
    """Records with and without key, value and headers, a second apart."""
    made = []
    for number in range(start, start + count):
        value = None if number % 17 == 3 else b"value %d " % number * (number % 9)
        key = None if number % 5 == 1 else b"" if number % 5 == 2 else b"key %d" % number
        headers = (("name", b"%d" % number), ("empty", b""), ("name", b"again")) if number % 3 == 0 else ()
        made.append(Sent(value, key, headers, T + 1000 * number))
    return made


def as_seen(records: list[Sent], start: int = 0) -> list[Seen]:
    """Return sent records as a consumer must get them."""
    return [
        Seen(each.partition, offset, each.value, each.key, each.headers, each.timestamp or 0)
        for offset, each in enumerate(records, start)
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_record_comes_back_as_it_was_sent(hands: Hands, broker: Serving, topic: str, compression: str) -> None:
    made = some(60)
    assert hands.producer(compression=compression, linger_ms=300).send(topic, made) == list(range(60))
    assert hands.read(topic, 60) == as_seen(made)


@pytest.mark.skipif(ASKS_KAFKA, reason="looks at the files of a sawlog broker")
@for_each("compression", COMPRESSIONS)
def test_batches_are_stored_as_their_client_has_compressed_them(
    hands: Hands, broker: Serving, topic: str, compression: str
) -> None:
    """librdkafka sends plain ones if it mistrusts the broker; all clients do if nothing is saved, as for a batch of a
    few short records."""
    name = f"{topic}-{compression}"
    hands.producer(compression=compression).send(name, [Sent(b"x" * 5000)])
    assert codecs(broker, name) == {compression}


def test_records_of_one_client_are_read_by_the_others(hands: Hands, broker: Serving, topic: str) -> None:
    made = some(60)
    hands.producer(compression="lz4", linger_ms=50).send(topic, made)
    for name in names("quick"):
        assert Hands(load(name), broker.address).read(topic, 60) == as_seen(made), name


def codecs(broker: Serving, topic: str) -> set[str]:
    """Return the codecs of a topic's batches on disk."""
    with DirectoryStore.open(broker.data, mode="r") as store:
        log = store[topic].partition(0)
        data = b"".join(log.fetch(0, 1 << 20).buffers)
    return {COMPRESSIONS[each.attributes & 7] for each in scan(data)}


@pytest.mark.parametrize("acks", ["0", "1"])
def test_producers_that_want_less_are_served_too(hands: Hands, topic: str, acks: str) -> None:
    producer = hands.producer(acks=acks)
    for first in range(0, 40, 10):
        producer.send(topic, some(10, first))
    assert hands.read(topic, 40) == as_seen(some(40))


def test_bytes_of_every_value_survive(hands: Hands, topic: str) -> None:
    made = [Sent(bytes(range(256)), bytes(range(255, -1, -1)), (("ünï", b"\xff\0"),), T)]
    hands.producer().send(topic, made)
    assert hands.read(topic, 1) == as_seen(made)


def test_a_header_without_a_value_survives(hands: Hands, topic: str) -> None:
    made = [Sent(b"x", None, (("null", None), ("empty", b"")), T)]
    hands.producer().send(topic, made)
    assert hands.read(topic, 1) == as_seen(made)


def test_reading_begins_in_the_middle_of_a_batch(hands: Hands, topic: str) -> None:
    made = some(60)
    hands.producer(linger_ms=50, compression="gzip").send(topic, made)
    assert hands.read(topic, 17, start=43) == as_seen(made)[43:]


def test_a_large_record_is_sent_and_read_whole(hands: Hands, topic: str) -> None:
    made = [Sent(b"x", timestamp=T), Sent(bytes(900_000), timestamp=T), Sent(b"y", timestamp=T)]
    hands.producer().send(topic, made)
    assert hands.read(topic, 3) == as_seen(made)


def test_a_consumer_that_waits_at_the_end_gets_what_comes(hands: Hands, topic: str) -> None:
    producer = hands.producer()
    producer.send(topic, some(3))
    consumer = hands.consumer()
    consumer.assign({(topic, 0): 3})
    assert consumer.poll(0.5) == []
    producer.send(topic, some(3, 3))
    assert take(consumer, 3) == as_seen(some(6))[3:]


def test_partitions_have_offsets_of_their_own(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, 3)
    made = [Sent(b"%d" % number, b"k", (), T, number % 3) for number in range(30)]
    offsets = hands.producer().send(topic, made)
    assert offsets == [number // 3 for number in range(30)]
    consumer = hands.consumer()
    consumer.assign({(topic, number): 0 for number in range(3)})
    found = take(consumer, 30)
    for number in range(3):
        mine = [each for each in found if each.partition == number]
        assert mine == [
            Seen(number, offset, each.value, b"k", (), T)
            for offset, each in enumerate(each for each in made if each.partition == number)
        ]


# --- times and ends


def test_a_consumer_finds_offsets_by_time(hands: Hands, topic: str) -> None:
    hands.producer().send(topic, some(50))
    consumer = hands.consumer()
    assert consumer.offset_at(topic, 0, T + 20_000) == 20
    assert consumer.offset_at(topic, 0, T + 20_001) == 21
    assert consumer.offset_at(topic, 0, 0) == 0
    assert consumer.offset_at(topic, 0, T + 50_000) is None
    assert consumer.ends(topic, 0) == (0, 50)


def test_without_a_timestamp_the_producer_takes_its_clock(hands: Hands, topic: str) -> None:
    before = int(time.time() * 1000)
    hands.producer().send(topic, [Sent(b"now")])
    [found] = hands.read(topic, 1)
    assert before - 1 <= found.timestamp <= int(time.time() * 1000) + 1


def test_a_topic_may_use_the_time_of_the_log(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    hands.producer(compression="lz4").send(topic, some(5))
    found = hands.read(topic, 5)
    assert [(each.value, each.key) for each in found] == [(each.value, each.key) for each in some(5)]
    assert all(before - 1 <= each.timestamp <= int(time.time() * 1000) + 1 for each in found)


# --- errors


def test_a_record_that_is_too_large_for_the_topic_is_refused(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, config={"max.message.bytes": "1000"})
    producer = hands.producer()
    assert refusal(lambda: producer.send(topic, [Sent(bytes(2000))])) == "MESSAGE_TOO_LARGE"
    assert producer.send(topic, [Sent(bytes(500))]) == [0]


def test_a_compacted_topic_refuses_records_without_a_key(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, config={"cleanup.policy": "compact"})
    producer = hands.producer()
    name = refusal(lambda: producer.send(topic, [Sent(b"x")]))
    assert name in {"INVALID_RECORD", "UNKNOWN"}  # aiokafka does not know this one
    assert producer.send(topic, [Sent(b"x", b"key")]) == [0]


def test_an_offset_out_of_range_is_an_error_or_is_reset(hands: Hands, topic: str) -> None:
    hands.producer().send(topic, some(10))
    consumer = hands.consumer(reset="none")
    consumer.assign({(topic, 0): 1000})
    assert refusal(lambda: take(consumer, 1)) == "OFFSET_OUT_OF_RANGE"
    hands.close(consumer)
    assert hands.read(topic, 10, start=1000, reset="earliest") == as_seen(some(10))


def test_a_timestamp_far_in_the_future_is_refused(hands: Hands, topic: str) -> None:
    hands.admin().create_topic(topic, config={"message.timestamp.after.max.ms": "3600000"})
    producer = hands.producer()
    later = int(time.time() * 1000) + 7_200_000
    assert refusal(lambda: producer.send(topic, [Sent(b"x", timestamp=later)])) == "INVALID_TIMESTAMP"


@pytest.mark.slow  # most clients ask again until they give up
def test_unknown_topics_are_created_or_refused_as_configured(hands: Hands, topic: str, tmp_path: Path) -> None:
    hands.producer().send(topic, some(1))
    assert hands.admin().topics()[topic] == 1
    with Serving(tmp_path / "data", "--no-auto-create") as strict:
        there = Hands(hands.client, strict.address)
        producer = there.producer(timeout_ms=2000)
        assert refusal(lambda: producer.send(topic, some(1))) in UNKNOWN
        assert there.admin().topics() == {}
        there.close()


#: librdkafka has learned that there is no such topic; the others have waited for it until they gave up.
UNKNOWN = {"UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC", "UNKNOWN_PARTITION", "KAFKA_TIMEOUT", "TIMEOUT"}
