"""Fetching and looking for offsets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from time import sleep
from typing import Any

import pytest

from sawlog.batch.read import decode
from sawlog.broker.wire import ErrorCode, Key
from sawlog.store.directory.topic import DirectoryTopic
from sawlog.testing import Broker

from .peers import Peer, batch, fetch_body, produce_body


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.address) as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> DirectoryTopic:
    return broker.create_topic(f"t-{uuid.uuid4().hex}")


def fetched(peer: Peer, topic: DirectoryTopic, offset: int, version: int = 12, **more: Any) -> dict[str, Any]:
    body = peer.ask(Key.FETCH, version, fetch_body(topic.name, offset, **more))
    found: dict[str, Any] = body["responses"][0]["partitions"][0]
    return found


def listed(peer: Peer, topic: DirectoryTopic, timestamp: int, version: int = 7, **more: Any) -> dict[str, Any]:
    part = {"partition_index": 0, "timestamp": timestamp, **more}
    body = peer.ask(
        Key.LIST_OFFSETS, version, {"replica_id": -1, "topics": [{"name": topic.name, "partitions": [part]}]}
    )
    found: dict[str, Any] = body["topics"][0]["partitions"][0]
    return found


def test_a_fetch_in_the_middle_of_a_batch_begins_with_that_batch(peer: Peer, topic: DirectoryTopic) -> None:
    peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(*[b"%d" % n for n in range(10)])))
    found = fetched(peer, topic, 7)
    assert [record.offset for record in decode(found["records"])] == list(range(10))
    assert (found["high_watermark"], found["last_stable_offset"], found["log_start_offset"]) == (10, 10, 0)


def test_offsets_out_of_range(peer: Peer, topic: DirectoryTopic) -> None:
    peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(b"x")))
    assert fetched(peer, topic, 1)["error_code"] == ErrorCode.NONE
    for offset in (2, -1, 2**62):
        assert fetched(peer, topic, offset)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_limits_of_a_fetch_hold_for_all_but_the_first_batch(broker: Broker, peer: Peer) -> None:
    name = broker.create_topic("several", 3).name
    raw = batch(b"x" * 1000)
    for partition in range(3):
        for _ in range(5):
            peer.ask(Key.PRODUCE, 9, produce_body(name, raw, partition=partition))
    parts = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 2 * len(raw) + 1} for n in range(3)]
    body = fetch_body(name, 0)
    body["topics"][0]["partitions"] = parts
    body["max_bytes"] = 3 * len(raw)
    found = peer.ask(Key.FETCH, 12, body)["responses"][0]["partitions"]
    assert [len(part["records"]) // len(raw) for part in found] == [2, 1, 0]


def test_a_position_in_a_deleted_topic_is_none_in_the_next_topic_of_that_name(broker: Broker, peer: Peer) -> None:
    name = f"t-{uuid.uuid4().hex}"
    old = broker.create_topic(name)
    peer.ask(Key.PRODUCE, 9, produce_body(name, batch(*[b"old"] * 5)))
    epoch = fetched(peer, old, 5)["error_code"] or old.partition(0).leader_epoch
    broker.store.delete_topic(name)
    new = broker.create_topic(name)
    raw = batch(*[b"new"] * 10)
    peer.ask(Key.PRODUCE, 9, produce_body(name, raw))
    body = fetch_body(name, 5)
    body["topics"][0]["topic_id"] = uuid.UUID(old.id).bytes
    [part] = peer.ask(Key.FETCH, 13, body)["responses"][0]["partitions"]
    assert part["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert fetched(peer, new, 5, current_leader_epoch=epoch)["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
    assert fetched(peer, new, 5, last_fetched_epoch=epoch)["diverging_epoch"] == {"epoch": epoch, "end_offset": 0}
    asked = {"partition": 0, "current_leader_epoch": epoch + 1, "leader_epoch": epoch}
    body = {"replica_id": -1, "topics": [{"topic": name, "partitions": [asked]}]}
    [part] = peer.ask(Key.OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"]
    assert (part["error_code"], part["leader_epoch"], part["end_offset"]) == (ErrorCode.NONE, epoch, 0)
    assert len(fetched(peer, new, 0, current_leader_epoch=epoch + 1)["records"]) == len(raw)


def test_an_epoch_that_is_not_the_logs_is_refused(peer: Peer, topic: DirectoryTopic) -> None:
    peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(b"x")))
    current = topic.partition(0).leader_epoch
    assert fetched(peer, topic, 0, current_leader_epoch=current)["error_code"] == ErrorCode.NONE
    assert fetched(peer, topic, 0, current_leader_epoch=current + 1)["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH
    topic.partition(0).truncate(0)
    assert fetched(peer, topic, 0, current_leader_epoch=current)["error_code"] == ErrorCode.FENCED_LEADER_EPOCH


def test_a_client_that_read_truncated_records_learns_where_to_continue(peer: Peer, topic: DirectoryTopic) -> None:
    log = topic.partition(0)
    for _ in range(10):
        peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(b"x")))
    before = log.leader_epoch
    log.truncate(4)
    for _ in range(10):
        peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(b"y")))
    found = fetched(peer, topic, 8, last_fetched_epoch=before)
    assert found["diverging_epoch"] == {"epoch": before, "end_offset": 4}
    part = {"partition": 0, "leader_epoch": before, "current_leader_epoch": -1}
    body = {"topics": [{"topic": topic.name, "partitions": [part]}]}
    answer = peer.ask(Key.OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"][0]
    assert (answer["leader_epoch"], answer["end_offset"]) == (before, 4)


def test_an_unknown_fetch_session_is_an_error(peer: Peer, topic: DirectoryTopic) -> None:
    body = peer.ask(Key.FETCH, 12, fetch_body(topic.name, 0, session_id=77, session_epoch=3))
    assert (body["error_code"], body["responses"]) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_offsets_by_time_and_at_the_ends(peer: Peer, topic: DirectoryTopic) -> None:
    assert listed(peer, topic, -1)["offset"] == 0
    assert listed(peer, topic, -3)["offset"] == -1
    for n, time in enumerate((1000, 3000, 2000)):
        peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch((b"%d" % n, None, (), time))))
    assert listed(peer, topic, -2)["offset"] == 0
    assert listed(peer, topic, -1)["offset"] == 3
    assert (listed(peer, topic, -3)["offset"], listed(peer, topic, -3)["timestamp"]) == (1, 3000)
    assert (listed(peer, topic, 1500)["offset"], listed(peer, topic, 1500)["timestamp"]) == (1, 3000)
    assert listed(peer, topic, 3001)["offset"] == -1
    assert listed(peer, topic, 0, version=1)["offset"] == 0
    assert listed(peer, topic, -9)["error_code"] == ErrorCode.INVALID_REQUEST


def test_deleted_records_move_the_beginning(peer: Peer, topic: DirectoryTopic) -> None:
    for _ in range(5):
        peer.ask(Key.PRODUCE, 9, produce_body(topic.name, batch(b"x")))

    def delete(offset: int) -> tuple[int, int]:
        part = {"partition_index": 0, "offset": offset}
        body = {"topics": [{"name": topic.name, "partitions": [part]}], "timeout_ms": 1000}
        found = peer.ask(Key.DELETE_RECORDS, 2, body)["topics"][0]["partitions"][0]
        return found["error_code"], found["low_watermark"]

    assert delete(3) == (ErrorCode.NONE, 3)
    assert delete(9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (ErrorCode.NONE, 5)
    assert fetched(peer, topic, 2)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert listed(peer, topic, -2)["offset"] == 5


def test_a_deleted_topic_wakes_who_waits_for_it(broker: Broker, peer: Peer) -> None:
    topic = broker.create_topic("doomed")
    peer.send(Key.FETCH, 12, fetch_body(topic.name, 0, wait_ms=30_000))
    with Peer(broker.address) as other:
        assert other.ask(Key.METADATA, 9, {"topics": [{"name": "doomed"}]})["topics"][0]["partitions"]
        answer = other.ask(Key.DELETE_TOPICS, 5, {"topic_names": ["doomed"], "timeout_ms": 1000})
        assert answer["responses"][0]["error_code"] == ErrorCode.NONE
    assert peer.receive()[1]["responses"][0]["partitions"][0]["error_code"] != ErrorCode.NONE


@pytest.mark.alternating
@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("asked", ["end", "newest", "time"])
def test_the_end_of_a_partition_includes_records_that_are_written_but_not_durable(
    monkeypatch: pytest.MonkeyPatch, asked: str, acks: int
) -> None:
    """With acks=1, a batch is acknowledged before it is durable, and so before it is visible."""
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (sleep(0.05), real(fd)))
    with Broker(durability="always") as broker, Peer(broker.address) as peer:
        topic = broker.create_topic("orders")
        for count in range(1, 4):
            peer.send_together(
                [
                    (Key.PRODUCE, 9, produce_body(topic.name, batch((b"x", None, (), count)), acks=acks)),
                    (Key.LIST_OFFSETS, 7, _asking(topic, {"end": -1, "newest": -3, "time": count}[asked])),
                ]
            )
            if acks:
                peer.receive()
            (part,) = peer.receive()[1]["topics"][0]["partitions"]
            assert (part["error_code"], part["offset"]) == (ErrorCode.NONE, count if asked == "end" else count - 1)


def _asking(topic: DirectoryTopic, timestamp: int) -> dict[str, Any]:
    part = {"partition_index": 0, "timestamp": timestamp}
    return {"replica_id": -1, "topics": [{"name": topic.name, "partitions": [part]}]}
