"""Brokers under measurement: sawlog and Apache Kafka, each with synced and unsynced topics; and servers of other kinds.

Kafka acknowledges from the page cache, and so does sawlog with `durability=os`. Synced means sawlog's default, which
acknowledges after fdatasync, and a Kafka topic with `flush.messages=1`.
"""

from __future__ import annotations

import compileall
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from bench import Bench
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rounds import Sample
from servers import JetStream, Redis, Server, running

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 4
PATIENCE_S = 120.0


@dataclass(slots=True)
class Rival:
    """A running broker."""

    name: str
    serving: Any
    config: dict[str, str]
    start_s: float
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def address(self) -> str:
        """Bootstrap address for clients."""
        return str(self.serving.address)

    @property
    def process(self) -> psutil.Process:
        """Whose CPU time counts."""
        return psutil.Process(self.serving.pid)

    @contextmanager
    def topic(self) -> Iterator[str]:
        """A new topic, which is deleted afterwards."""
        name, admin = f"measured-{next(self._numbers)}", AdminClient(common(self.address))
        admin.create_topics([NewTopic(name, PARTITIONS, 1, config=self.config)])[name].result(PATIENCE_S)
        ends(self.address, name)  # its partitions are open
        yield name
        admin.delete_topics([name])[name].result(PATIENCE_S)

    def measured(self, work: Callable[[], object]) -> Sample:
        """Wall time, and CPU time of the broker."""
        before, began = self.process.cpu_times(), time.perf_counter()
        work()
        wall, after = time.perf_counter() - began, self.process.cpu_times()
        return Sample(wall, max(after.user + after.system - before.user - before.system, 1e-3))


PLAIN, SYNCED = "sawlog", "sawlog, synced"
KAFKA, KAFKA_SYNCED = "Kafka", "Kafka, synced"


class Rivals:
    """The brokers, started when they are first needed, and gone at the end."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stack = ExitStack()
        self._made: dict[str, Rival] | None = None
        self._others: dict[str, Server] | None = None

    def all(self) -> dict[str, Rival]:
        """Ours, and Kafka if it is here."""
        if self._made is None:
            self._made = {}
            sys.path.insert(0, str(ROOT))
            from tests.broker.oracle import Oracle
            from tests.broker.serving import Serving
            from tests.interop.brokers import JARS, JAVA

            sys.path.remove(str(ROOT))
            compileall.compile_dir(ROOT / "src", quiet=1)  # as an installation does
            ours = self._started(PLAIN, Serving(self._bench.path() / "data"), {"durability": "os"})
            self._made = {PLAIN: ours, SYNCED: Rival(SYNCED, ours.serving, {}, ours.start_s, ours._numbers)}
            if JAVA is None or not any(JARS.glob("kafka_*.jar")):
                print("Kafka is left out: no Java, or no jars (python tools/fetch_kafka.py)", file=sys.stderr)
            else:
                path = self._bench.path()
                path.mkdir()
                kafka = self._started(KAFKA, Oracle(path), {})
                synced = {"flush.messages": "1"}
                self._made[KAFKA] = kafka
                self._made[KAFKA_SYNCED] = Rival(KAFKA_SYNCED, kafka.serving, synced, kafka.start_s, kafka._numbers)
        return self._made

    def others(self) -> dict[str, Server]:
        """Servers of other kinds, by their names: not synced, and synced."""
        if self._others is None:
            directory = self._bench.path()
            self._others = {}
            for synced in (False, True):
                found = running((Redis, JetStream), directory, self._stack, synced=synced)
                self._others |= {f"{name}, synced" if synced else name: each for name, each in found.items()}
        return self._others

    def _started(self, name: str, serving: Any, config: dict[str, str]) -> Rival:
        began = time.perf_counter()
        self._stack.enter_context(serving)
        AdminClient(common(serving.address)).list_topics(timeout=PATIENCE_S)
        return Rival(name, serving, config, time.perf_counter() - began)

    def close(self) -> None:
        """End them."""
        self._stack.close()


def common(address: str) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: None}


def rivals_of(bench: Bench) -> Rivals:
    """The brokers of this run."""
    shelf = bench._shelf
    if "rivals" not in shelf:
        shelf["rivals"] = Rivals(bench)
    made: Rivals = shelf["rivals"]
    return made


def ends(address: str, topic: str) -> dict[int, int]:
    """The end of each partition; asking for it opens them."""
    consumer = Consumer({**common(address), "group.id": "measured"})
    ends = {number: _end(consumer, topic, number) for number in range(PARTITIONS)}
    consumer.close()
    return ends


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    """The end of a partition; Kafka says of a new one, for a while, that it does not lead it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            return int(high)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
