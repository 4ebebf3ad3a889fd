"""A topic of which a part is only in the replica, as others read it: Kafka's clients, and from a server of S3's
protocol. Spark's test is in tests/spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import sawlog
from sawlog.testing import Broker

from ..objects import servers
from .pairs import ship
from .test_tiering import SETTINGS, Tiered, expected, values

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def moto() -> Iterator[servers.Server]:
    with servers.moto() as server:
        yield server


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Tiered]:
    made = Tiered(tmp_path)
    yield made
    made.store.close()


def consumed(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None:
            assert not message.error(), message.error()
            found.append(message.value())
    return found


def test_a_kafka_client_fetches_it_and_finds_its_times(tiered: Tiered) -> None:
    here = tiered.log._local_offset
    tiered.store.close()
    with Broker(directory=str(tiered.data)) as broker:
        settings = {"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False}
        consumer = Consumer({**settings, "auto.offset.reset": "error", "isolation.level": "read_committed"})
        try:
            assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=PATIENCE_S) == (0, 200)
            asked = [TopicPartition("orders", 0, 1000 + at) for at in (here - 5,)]
            assert [each.offset for each in consumer.offsets_for_times(asked, timeout=PATIENCE_S)] == [here - 5]
            for start in (0, here - 3):
                consumer.assign([TopicPartition("orders", 0, start)])
                assert consumed(consumer, 200 - start) == expected(start, 200)
        finally:
            consumer.close()


@pytest.mark.costly  # a server of S3's protocol starts and ends here
def test_a_bucket_with_credentials(moto: servers.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto.variables.items():
        if "ENDPOINT" not in name:
            monkeypatch.setenv(name, value)
    url, data = moto.new_url(), tmp_path / "data"
    with sawlog.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", **SETTINGS)
        for number in range(200):
            topic.append(b"value %d" % number)
        ship(data, url, options=moto.options)
        recorded = store.replica
        assert recorded is not None
        assert (recorded.url, recorded.options["endpoint"]) == (url, moto.endpoint)
        assert servers.SECRET not in (data / "replica.json").read_text()
        assert any(store.maintain())
        assert topic.partition(0)._local_offset > 0
        assert values(topic.partition(0)) == expected(0, 200)
