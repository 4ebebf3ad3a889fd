"""Produce: valid and invalid batches, and their responses."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sawlog.batch.build import Producer
from sawlog.batch.checksum import crc32c
from sawlog.broker.wire import ErrorCode, Key
from sawlog.clock import now_ms
from sawlog.testing import Broker

from .peers import Peer, batch, fetch_body, produce_body


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(durability="always") as made:
        yield made


@pytest.fixture
def send(broker: Broker) -> Iterator[Callable[..., dict[str, Any]]]:
    """Send one batch and return the response for its partition."""
    with Peer(broker.address) as peer:

        def ask(topic: str, raw: bytes, version: int = 9, **more: Any) -> dict[str, Any]:
            body = peer.ask(Key.PRODUCE, version, produce_body(topic, raw, **more))
            found: dict[str, Any] = body["responses"][0]["partition_responses"][0]
            return found

        yield ask


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"t-{uuid.uuid4().hex}").name


def changed(raw: bytes, at: int, form: str, value: int, *, sound: bool = True) -> bytes:
    """A batch with another value in its header, with the right checksum or without."""
    made = bytearray(raw)
    struct.pack_into(form, made, at, value)
    if sound:
        struct.pack_into(">I", made, 17, crc32c(memoryview(made)[21:]))
    return bytes(made)


ONE = batch(b"one")

REFUSED = {
    "nothing": (b"", ErrorCode.CORRUPT_MESSAGE),
    "half a header": (ONE[:40], ErrorCode.CORRUPT_MESSAGE),
    "half a batch": (ONE[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (ONE + ONE, ErrorCode.INVALID_RECORD),
    "a flipped bit": (ONE[:-1] + bytes([ONE[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
    "old format": (changed(ONE, 16, ">b", 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "control batch": (changed(ONE, 21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    "no record": (changed(ONE, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "gaps": (changed(ONE, 23, ">i", 5), ErrorCode.INVALID_RECORD),
    "records that do not parse": (changed(changed(ONE, 57, ">i", 2), 23, ">i", 1), ErrorCode.CORRUPT_MESSAGE),
    "producer without sequence": (changed(ONE, 43, ">q", 7), ErrorCode.INVALID_RECORD),
    "unknown compression": (changed(ONE, 21, ">h", 7), ErrorCode.CORRUPT_MESSAGE),
    "transaction that was not begun": (
        changed(batch(b"x", producer=Producer(5, 0, 0)), 21, ">h", 0x10),
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ),
    "tomorrow": (batch((b"x", None, (), now_ms() + 86_400_000)), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.alternating
@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused_and_nothing_is_stored(
    broker: Broker, send: Callable[..., dict[str, Any]], topic: str, name: str
) -> None:
    raw, code = REFUSED[name]
    found = send(topic, raw)
    assert (ErrorCode(found["error_code"]), found["base_offset"]) == (code, -1)
    assert found["error_message"]
    assert broker.records(topic) == []
    assert send(topic, ONE)["base_offset"] == 0


def test_a_batch_above_max_message_bytes_is_refused(broker: Broker, send: Callable[..., dict[str, Any]]) -> None:
    broker.create_topic("small", max_message_bytes=1000)
    assert send("small", batch(b"x" * 2000))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert send("small", batch(b"x" * 500))["error_code"] == ErrorCode.NONE


def test_old_records_are_refused_if_the_topic_says_so(broker: Broker, send: Callable[..., dict[str, Any]]) -> None:
    broker.create_topic("fresh", message_timestamp_before_max_ms=60_000)
    assert send("fresh", batch((b"x", None, (), now_ms() - 120_000)))["error_code"] == ErrorCode.INVALID_TIMESTAMP
    assert send("fresh", batch((b"x", None, (), now_ms() - 1000)))["error_code"] == ErrorCode.NONE


def test_records_with_a_bad_timestamp_are_named(
    broker: Broker, send: Callable[..., dict[str, Any]], topic: str
) -> None:
    now, later = now_ms(), now_ms() + 86_400_000
    found = send(topic, batch((b"1", None, (), now), (b"2", None, (), later), (b"3", None, (), later)))
    assert found["error_code"] == ErrorCode.INVALID_TIMESTAMP
    assert [each["batch_index"] for each in found["record_errors"]] == [1, 2]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_compacted_topic_takes_no_record_without_a_key(
    broker: Broker, send: Callable[..., dict[str, Any]], compression: str
) -> None:
    name = broker.create_topic(f"compacted-{compression}", cleanup_policy="compact").name
    bad = batch((b"1", b"key"), (b"2", None), compression=compression)
    found = send(name, bad)
    assert found["error_code"] == ErrorCode.INVALID_RECORD
    assert [each["batch_index"] for each in found["record_errors"]] == [1]
    good = batch((b"1", b"key"), (b"2", b"other"), compression=compression)
    assert send(name, good)["error_code"] == ErrorCode.NONE


def test_zstd_needs_a_version_that_knows_it(send: Callable[..., dict[str, Any]], topic: str) -> None:
    raw = batch(b"x" * 100, compression="zstd")
    assert send(topic, raw, version=6)["error_code"] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert send(topic, raw, version=7)["error_code"] == ErrorCode.NONE


def test_the_log_stamps_records_if_the_topic_says_so(broker: Broker, send: Callable[..., dict[str, Any]]) -> None:
    broker.create_topic("stamped", message_timestamp_type="LogAppendTime")
    before = now_ms()
    found = send("stamped", batch((b"x", None, (), 12345)))
    [record] = broker.records("stamped")
    assert before <= record.timestamp <= now_ms()
    assert found["log_append_time_ms"] == record.timestamp


def test_unknown_topics_and_partitions(send: Callable[..., dict[str, Any]], topic: str) -> None:
    assert send("nowhere", ONE)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert send(topic, ONE, partition=1)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert send(topic, ONE, partition=-1)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_by_its_id(broker: Broker, topic: str) -> None:
    topic_id = uuid.UUID(broker.store.topic(topic).id).bytes
    with Peer(broker.address) as peer:
        for known, code in ((topic_id, ErrorCode.NONE), (uuid.uuid4().bytes, ErrorCode.UNKNOWN_TOPIC_ID)):
            body = produce_body("", ONE)
            body["topic_data"][0]["topic_id"] = known
            answer = peer.ask(Key.PRODUCE, 13, body)["responses"][0]
            assert (answer["topic_id"], answer["partition_responses"][0]["error_code"]) == (known, code)
        body = fetch_body("", 0)
        body["topics"][0]["topic_id"] = topic_id
        answer = peer.ask(Key.FETCH, 17, body)["responses"][0]
        assert answer["topic_id"] == topic_id
        assert len(answer["partitions"][0]["records"]) == len(ONE)


def test_a_producers_batches_are_recognised_also_after_a_restart(topic: str) -> None:
    with Broker() as broker:
        broker.create_topic("orders")
        for _ in range(2):
            with Peer(broker.address) as peer:
                for sequence in (0, 1, 2, 1, 2):
                    raw = batch(b"%d" % sequence, producer=Producer(9, 0, sequence))
                    [answer] = peer.ask(Key.PRODUCE, 9, produce_body("orders", raw))["responses"]
                    part = answer["partition_responses"][0]
                    assert (part["error_code"], part["base_offset"]) == (ErrorCode.NONE, sequence)
                raw = batch(b"x", producer=Producer(9, 0, 7))
                [answer] = peer.ask(Key.PRODUCE, 9, produce_body("orders", raw))["responses"]
                assert answer["partition_responses"][0]["error_code"] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            broker.restart()
        assert [record.value for record in broker.records("orders")] == [b"0", b"1", b"2"]


def test_an_older_producer_is_fenced(send: Callable[..., dict[str, Any]], topic: str) -> None:
    assert send(topic, batch(b"x", producer=Producer(3, 2, 0)))["error_code"] == ErrorCode.NONE
    found = send(topic, batch(b"x", producer=Producer(3, 1, 0)))
    assert found["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_settings_that_are_changed_apply_at_once(broker: Broker, send: Callable[..., dict[str, Any]]) -> None:
    broker.create_topic("changing")
    assert send("changing", batch(b"x" * 2000))["error_code"] == ErrorCode.NONE
    resource = {"resource_type": 2, "resource_name": "changing"}
    change = {"name": "max.message.bytes", "config_operation": 0, "value": "1000"}
    stamp = {"name": "message.timestamp.type", "config_operation": 0, "value": "LogAppendTime"}
    with Peer(broker.address) as peer:
        body = {"resources": [{**resource, "configs": [change, stamp]}], "validate_only": False}
        assert peer.ask(Key.INCREMENTAL_ALTER_CONFIGS, 1, body)["responses"][0]["error_code"] == ErrorCode.NONE
    assert send("changing", batch(b"x" * 2000))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert send("changing", batch((b"x", None, (), 12345)))["base_offset"] == 1
    assert broker.records("changing")[1].timestamp != 12345


def test_a_batch_without_acknowledgement_that_is_refused_ends_the_connection(broker: Broker) -> None:
    name = broker.create_topic(f"t-{uuid.uuid4().hex}").name
    with Peer(broker.address) as peer:
        peer.send(Key.PRODUCE, 9, produce_body(name, batch(b"kept"), acks=0))
        peer.send(Key.PRODUCE, 9, produce_body(name, batch(b"bad")[:-1], acks=0))
        assert peer.socket.recv(1) == b""
    with Peer(broker.address) as peer:
        [part] = peer.ask(Key.FETCH, 12, fetch_body(name, 0, wait_ms=20_000))["responses"][0]["partitions"]
    assert part["high_watermark"] == 1


def test_acknowledged_records_can_be_deleted_immediately(broker: Broker) -> None:
    """With acks=1 a record is acknowledged before it is durable, and so before it is visible."""
    broker.create_topic("emptied")
    with Peer(broker.address) as peer:
        for count in range(1, 31):
            last = -1 if count % 2 else count
            part = {"name": "emptied", "partitions": [{"partition_index": 0, "offset": last}]}
            peer.ask(Key.PRODUCE, 9, produce_body("emptied", ONE, acks=1))
            (found,) = peer.ask(Key.DELETE_RECORDS, 2, {"topics": [part], "timeout_ms": 5000})["topics"]
            (answer,) = found["partitions"]
            assert (ErrorCode(answer["error_code"]), answer["low_watermark"]) == (ErrorCode.NONE, count)
