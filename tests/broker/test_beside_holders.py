"""A broker beside a process that holds one of its partitions and stands still: nobody else waits for that."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from sawlog import Store
from sawlog.testing import Broker

from ..topics.nursery import PATIENCE_S, Child, Nursery, until
from .serving import Serving, free_port

#: More than the broker has threads for what waits for the disk.
PRODUCERS = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two topics."""
    with Store.open(tmp_path / "store", upkeep_interval_s=None) as store:
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


def test_others_are_served_while_a_holder_stands_still(path: Path, holder: Child) -> None:
    with Broker(directory=str(path)) as broker:
        holder.signal(signal.SIGSTOP)
        waiting = producers(broker)
        assert set(AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=10).topics) == {
            "free",
            "held",
        }
        other = Producer({"bootstrap.servers": broker.address})
        other.produce("free", b"served")
        assert other.flush(10) == 0
        assert [len(each) for each in waiting] == [1] * PRODUCERS, "they were to wait"
        holder.signal(signal.SIGCONT)
        assert [each.flush(PATIENCE_S) for each in waiting] == [0] * PRODUCERS
    with Store.open(path, "r") as store:
        values = {record.value for record in store["held"].scan()}
    assert values >= {b"%d" % number for number in range(PRODUCERS)}


@pytest.mark.slow
def test_a_broker_stops_although_a_holder_stands_still(path: Path, holder: Child) -> None:
    port = free_port()
    options = ("--set", "stop_timeout_s=0.2", "--metrics", f"127.0.0.1:{port}")
    with Serving(path, *options) as broker:
        holder.signal(signal.SIGSTOP)
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        producer.produce("held", b"in doubt")
        until(lambda: _in_flight(port) >= 1, "a request that waits")
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < 20, "it waited until the append gave up, after 30 seconds"
        holder.signal(signal.SIGCONT)


def _in_flight(port: int) -> float:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).read().decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if re.match(r"sawlog_\w*in_?flight\S* ", line))
