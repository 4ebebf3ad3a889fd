"""The client against Apache Kafka, which must understand its requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sawlog
from sawlog.broker.remote import RemoteStore, connect
from sawlog.errors import BrokerError, BrokerRefused

from ...interop.brokers import Broker as Kafka
from ...interop.brokers import needs_kafka

pytestmark = [pytest.mark.slow, needs_kafka]

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteStore]:
    path: Path = tmp_path_factory.mktemp("kafka")
    broker = Kafka(path)
    with broker.running(), _when_ready(broker.address) as store:
        yield store


def _when_ready(address: str) -> RemoteStore:
    """Connected as soon as it answers and creates topics."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            store = connect(address)
            store.create_topic("ready", exist_ok=True)
            return store
        except (BrokerError, sawlog.errors.SawlogError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_topics(kafka: RemoteStore) -> None:
    topic = kafka.create_topic("orders", 3, retention_ms=10**9)
    assert (topic.partitions, topic.settings) == (3, {"retention.ms": 10**9})
    assert topic.id is not None
    assert "orders" in kafka.topics()
    changed = kafka.alter_topic("orders", 5, retention_ms=None, compression_type="zstd")
    assert (changed.partitions, changed.settings) == (5, {"compression.type": "zstd"})
    kafka.delete_topic("orders")
    deadline = time.monotonic() + PATIENCE_S  # the metadata follow
    while "orders" in kafka.topics() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "orders" not in kafka.topics()


def test_records(kafka: RemoteStore) -> None:
    topic = kafka.create_topic("records", 2)
    with topic.writer(linger_ms=20) as writer:
        for number in range(5000):
            writer.append(b"value %d" % number, b"key %d" % (number % 7), {"n": b"%d" % number})
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        with topic._packer(codec) as packer:
            for number in range(100):
                packer.append(b"%s %d" % (codec.encode(), number), b"key %d" % (number % 7))
    about = topic.describe()
    assert about.records == 5400
    assert about.size_bytes
    found = [record for number in range(2) for record in topic.partition(number).scan()]
    assert len(found) == 5400
    assert sorted(record.value for record in found if record.headers) == sorted(b"value %d" % n for n in range(5000))
    assert sum(page.num_rows for page in topic.partition(0).scan_arrow()) == about.rows[0].records


def test_offsets(kafka: RemoteStore) -> None:
    topic = kafka.create_topic("offsets")
    topic.append_many([(b"%d" % number, None, {}, 1_700_000_000_000 + number) for number in range(100)])
    log = topic.partition(0)
    assert (log.lowest_offset, log.visible_offset, log.last_stable_offset) == (0, 100, 100)
    assert log.offset_at(1_700_000_000_050) == 50
    assert log.offset_at(1_800_000_000_000) == 100
    assert log.epoch_end(log.leader_epoch) == 100
    assert topic.trim({0: 10}) == 10
    assert log.lowest_offset == 10
    with pytest.raises(sawlog.errors.OffsetOutOfRange):
        list(log.scan(3))


def test_groups(kafka: RemoteStore) -> None:
    topic = kafka.create_topic("grouped", 2)
    topic.append_many([b"x"] * 10, partition=0)
    kafka.groups.commit("billing", {("grouped", 0): 4})
    assert "billing" in kafka.groups.list()
    rows = kafka.groups.describe("billing").rows
    assert [(row.partition, row.committed, row.lag) for row in rows] == [(0, 4, 6), (1, None, 0)]
    kafka.groups.seek("billing", {("grouped", 0): 9})
    assert kafka.groups.describe("billing").rows[0].committed == 9
    kafka.groups.delete("billing")
    assert "billing" not in kafka.groups.list()


def test_errors(kafka: RemoteStore) -> None:
    kafka.create_topic("there", 2)
    for work, error in (
        (lambda: kafka.topic("nope"), sawlog.errors.TopicNotFound),
        (lambda: kafka.create_topic("there"), sawlog.errors.TopicExists),
        (lambda: kafka.create_topic("a/b"), sawlog.errors.InvalidTopicName),
        (lambda: kafka.create_topic("x", nonsense=1), sawlog.errors.InvalidConfig),
        (lambda: kafka.alter_topic("there", 1), sawlog.errors.InvalidConfig),
        (lambda: kafka.delete_topic("nope"), sawlog.errors.TopicNotFound),
        (lambda: kafka.groups.describe("nobody"), sawlog.errors.GroupNotFound),
        (lambda: kafka.groups.delete("nobody"), sawlog.errors.GroupNotFound),
        (lambda: kafka.create_topic("y", 0), (sawlog.errors.InvalidConfig, BrokerRefused)),
    ):
        with pytest.raises(error):
            work()
