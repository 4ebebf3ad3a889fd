"""A broker next to a hung process that holds one of its partitions: clients of other partitions are served."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from sawlog.broker.wire import ErrorCode, Key
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from ..topics.nursery import PATIENCE_S, Child, Nursery, until
from .peers import Peer, batch, produce_body
from .serving import Serving, free_port

#: More than the broker has threads for what waits for the disk.
PRODUCERS = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two topics."""
    with DirectoryStore.open(tmp_path / "store", maintenance_interval_s=None) as store:
        store.create_topic("held")
        store.create_topic("free")
    return tmp_path / "store"


@pytest.fixture
def holder(path: Path) -> Iterator[Child]:
    """A process that holds the only partition of one of them."""
    with Nursery() as nursery:
        child = nursery.start("hold", path=path, topic="held", partitions=[0])
        child.waits_for("ready")
        yield child


def producers(broker: Broker) -> list[Producer]:
    """Each has sent a record to the topic that is held, and waits."""
    made = [Producer({"bootstrap.servers": broker.address, "linger.ms": 0}) for _ in range(PRODUCERS)]
    for number, each in enumerate(made):
        each.produce("held", b"%d" % number)
    until(lambda: sum(request.api == "Produce" for request in list(broker.requests)) >= PRODUCERS)
    return made


@pytest.mark.alternating
def test_others_are_served_while_a_holder_stands_still(path: Path, holder: Child) -> None:
    with Broker(directory=str(path)) as broker:
        holder.signal(signal.SIGSTOP)
        waiting = producers(broker)
        assert set(AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=60).topics) == {
            "free",
            "held",
        }
        other = Producer({"bootstrap.servers": broker.address})
        other.produce("free", b"served")
        assert other.flush(10) == 0
        assert [len(each) for each in waiting] == [1] * PRODUCERS, "they were to wait"
        holder.signal(signal.SIGCONT)
        assert holder.close() == 0
        assert [each.flush(PATIENCE_S) for each in waiting] == [0] * PRODUCERS
    with DirectoryStore.open(path, "r") as store:
        values = {record.value for record in store["held"].scan()}
    assert values >= {b"%d" % number for number in range(PRODUCERS)}


def test_others_are_served_while_a_process_has_stopped_in_a_partition_that_the_broker_has_written(path: Path) -> None:
    """The broker then tries to take its turn in the event loop, which must not wait."""
    with Broker(directory=str(path)) as broker, Nursery() as nursery:
        client = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        client.produce("held", b"first")
        assert client.flush(PATIENCE_S) == 0
        child = nursery.start("hold", path=path, topic="held", partitions=[0])
        child.waits_for("ready")
        child.signal(signal.SIGSTOP)
        client.produce("held", b"second")
        until(lambda: sum(request.api == "Produce" for request in list(broker.requests)) >= 2)
        other = Producer({"bootstrap.servers": broker.address})
        other.produce("free", b"served")
        assert other.flush(10) == 0
        assert len(client) == 1, "it was to wait"
        child.signal(signal.SIGCONT)
        assert child.close() == 0
        assert client.flush(PATIENCE_S) == 0
    with DirectoryStore.open(path, "r") as store:
        assert [record.value for record in store["held"].scan()] == [b"first", b"held", b"second"]


@pytest.mark.slow
def test_a_broker_stops_although_a_holder_stands_still(path: Path, holder: Child) -> None:
    port = free_port()
    with Serving(path, "--set", "stop_timeout_s=3600", "--metrics", f"127.0.0.1:{port}") as broker:
        with ExitStack() as stack:
            peers = [stack.enter_context(Peer(broker.address)) for _ in range(6)]
            peers[0].ask(Key.PRODUCE, 9, produce_body("free", batch(b"acknowledged")))
            holder.signal(signal.SIGSTOP)
            for each in peers:
                each.send(Key.PRODUCE, 9, produce_body("held", batch(b"refused")))
            until(lambda: _in_flight(port) >= len(peers), "requests that wait")
            assert broker.stop() == 0, "it was to give up long before stop_timeout_s"
            codes = [each.receive()[1]["responses"][0]["partition_responses"][0]["error_code"] for each in peers]
        assert Counter(codes) == {ErrorCode.NOT_LEADER_OR_FOLLOWER: 6}
        holder.signal(signal.SIGCONT)
    with DirectoryStore.open(path, "r") as store:
        assert [record.value for record in store["free"].scan()] == [b"acknowledged"]
        assert store["free"].partition(0)._was_closed_cleanly


@pytest.mark.slow
def test_a_second_broker_of_a_store_appends_and_has_no_transactions(path: Path) -> None:
    with Serving(path) as first, Serving(path) as second:
        with Peer(first.address) as one, Peer(second.address) as other:
            for number in range(4):
                peer = (one, other)[number % 2]
                [answer] = peer.ask(Key.PRODUCE, 9, produce_body("free", batch(b"%d" % number)))["responses"]
                assert answer["partition_responses"][0]["base_offset"] == number
            body = {"transactional_id": "t", "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
            assert one.ask(Key.INIT_PRODUCER_ID, 4, body)["error_code"] == ErrorCode.NONE
            code = other.ask(Key.INIT_PRODUCER_ID, 4, body)["error_code"]
            assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "another broker serves this store" in second.said
        assert (second.stop(), first.stop()) == (0, 0)


def _in_flight(port: int) -> float:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read().decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if re.match(r"sawlog_\w*in_?flight\S* ", line))
