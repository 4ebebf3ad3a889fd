"""`make bench-broker`: `sawlog serve` beside Apache Kafka, both asked by the same client in one run.

    python benchmarks/broker.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

- *produce*: records of 100 bytes and of 1 KiB, confluent-kafka, acks=all, librdkafka's own batches.
- *consume*: the same records, by a consumer without a group.
- *requests*: Produce requests with one batch of 16 KB, or of one record of 100 bytes, five on their way on each of two
  connections, as fast as the broker answers; sent by a small client of ours, because librdkafka is busier with them
  than a broker.
- *latency*: from `produce()` to the consumer that waits for it, one record of 100 bytes every other millisecond.
- *footprint*: start until a client is answered, and memory at the end.

Durability is not the same, so it is in the name of each row that writes. Kafka acknowledges what is in the system's
page cache; so does sawlog with `durability=os`. With its default, *synced*, sawlog acknowledges after fdatasync.

CPU time is that of the broker's process alone. The rows *CPU per GB* are the same rounds, by that clock. Everybody has
topics of four partitions, and a quiet neighbour: all brokers run at the same time, and one is asked.

Without Java or Kafka's jars (tools/fetch_kafka.py) the column of Kafka stays empty.
"""

from __future__ import annotations

import itertools
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import command
import psutil
from bench import Bench, Case
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from dataset import Dataset
from rounds import Candidate, Sample, Trial, best_of, expect
from rows import Figure, Row, Unit, rate

import sawlog
from sawlog.batch.build import encode
from sawlog.broker.wire.apis import Key
from sawlog.broker.wire.frames import decode_response, encode_request

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 4
GB = 1e9
#: Connections, and requests on their way on each, as a Java producer has them.
CONNECTIONS, IN_FLIGHT = 2, 5
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
        """Where clients connect."""
        return str(self.serving.address)

    @property
    def process(self) -> psutil.Process:
        """Whose CPU time counts."""
        return psutil.Process(self.serving.pid)

    @contextmanager
    def topic(self) -> Iterator[str]:
        """A new topic, which is deleted afterwards."""
        name, admin = f"measured-{next(self._numbers)}", AdminClient(_common(self.address))
        admin.create_topics([NewTopic(name, PARTITIONS, 1, config=self.config)])[name].result(PATIENCE_S)
        _ends(self.address, name)  # its partitions are open
        yield name
        admin.delete_topics([name])[name].result(PATIENCE_S)

    def measured(self, work: Callable[[], object]) -> Sample:
        """Wall time, and CPU time of the broker."""
        before, began = self.process.cpu_times(), time.perf_counter()
        work()
        wall, after = time.perf_counter() - began, self.process.cpu_times()
        return Sample(wall, max(after.user + after.system - before.user - before.system, 1e-3))


KAFKA, SYNCED, PLAIN = "Kafka", "sawlog, synced", "sawlog"


class Rivals:
    """The brokers, started when they are first needed, and gone at the end."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stack = ExitStack()
        self._made: dict[str, Rival] | None = None

    def all(self) -> dict[str, Rival]:
        """Ours, and Kafka if it is here."""
        if self._made is None:
            self._made = {}
            sys.path.insert(0, str(ROOT))
            from tests.broker.oracle import Oracle
            from tests.broker.serving import Serving
            from tests.interop.brokers import JARS, JAVA

            sys.path.remove(str(ROOT))
            ours = self._started(PLAIN, Serving(self._bench.path() / "data"), {"durability": "os"})
            self._made = {PLAIN: ours, SYNCED: Rival(SYNCED, ours.serving, {}, ours.start_s, ours._numbers)}
            if JAVA is None or not any(JARS.glob("kafka_*.jar")):
                print("Kafka is left out: no Java, or no jars (python tools/fetch_kafka.py)", file=sys.stderr)
            else:
                path = self._bench.path()
                path.mkdir()
                self._made[KAFKA] = self._started(KAFKA, Oracle(path), {})
        return self._made

    def _started(self, name: str, serving: Any, config: dict[str, str]) -> Rival:
        began = time.perf_counter()
        self._stack.enter_context(serving)
        AdminClient(_common(serving.address)).list_topics(timeout=PATIENCE_S)
        return Rival(name, serving, config, time.perf_counter() - began)

    def close(self) -> None:
        """End them."""
        self._stack.close()


def _common(address: str) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: None}


def _rivals(bench: Bench) -> dict[str, Rival]:
    shelf = bench._shelf
    if "rivals" not in shelf:
        shelf["rivals"] = Rivals(bench)
    made: Rivals = shelf["rivals"]
    return made.all()


# --- produce and consume


def _produce_all(address: str, topic: str, data: Dataset) -> None:
    """As fast as the client takes them."""
    producer = Producer(
        {**_common(address), "acks": "all", "queue.buffering.max.messages": 1_000_000, "message.timeout.ms": 120_000}
    )
    produce, batch = producer.produce, data.batch
    for number in range(data.batches):
        for key, value in batch:
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        if number % 8 == 7:
            producer.poll(0)
    expect(producer.flush(PATIENCE_S), 0, "records left in the client")


def _ends(address: str, topic: str) -> dict[int, int]:
    consumer = Consumer({**_common(address), "group.id": "measured"})
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


def _consume_all(address: str, topic: str, count: int) -> int:
    """Read so many; the bytes of the values."""
    consumer = Consumer(
        {
            **_common(address),
            "group.id": "measured",
            "enable.auto.commit": False,
            "check.crcs": False,  # the default
            "queued.max.messages.kbytes": 1 << 17,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    size, left = 0, count
    deadline = time.monotonic() + PATIENCE_S
    while left:
        found = consumer.consume(min(left, 10_000), 1.0)
        size += sum(len(each.value()) for each in found)
        left -= len(found)
        expect(time.monotonic() < deadline, True, "reading in time")
    consumer.close()
    return size


def _producing(rival: Rival, data: Dataset) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        with rival.topic() as topic:
            yield Trial(
                lambda: rival.measured(lambda: _produce_all(rival.address, topic, data)),
                lambda: expect(sum(_ends(rival.address, topic).values()), data.count, "records produced"),
            )

    return Candidate(rival.name, trial)


def _consuming(rival: Rival, data: Dataset, topic: str) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        sizes: list[int] = []
        yield Trial(
            lambda: rival.measured(lambda: sizes.append(_consume_all(rival.address, topic, data.count))),
            lambda: expect(sizes, [data.count * data.value_bytes], "bytes consumed"),
        )

    return Candidate(rival.name, trial)


def _data(bench: Bench, value_bytes: int) -> Dataset:
    count = {100: bench.scaled(1_000_000, 200_000), 1024: bench.scaled(300_000, 60_000)}[value_bytes]
    return Dataset(value_bytes, count)


def _produce(bench: Bench) -> list[Row]:
    rivals, rows = _rivals(bench), []
    for value_bytes in (100, 1024):
        data = _data(bench, value_bytes)
        best = best_of([_producing(each, data) for each in rivals.values()], bench.effort)
        for name in (PLAIN, SYNCED):
            what = f"produce {data.size}, {'synced' if name == SYNCED else 'not synced'}"
            rows += _both(what, best, name, data)
    return rows


def _consume(bench: Bench) -> list[Row]:
    rivals, rows = {name: each for name, each in _rivals(bench).items() if name != SYNCED}, []
    for value_bytes in (100, 1024):
        data = _data(bench, value_bytes)
        with ExitStack() as stack:
            topics = {name: stack.enter_context(each.topic()) for name, each in rivals.items()}
            for name, each in rivals.items():
                _produce_all(each.address, topics[name], data)
            best = best_of([_consuming(each, data, topics[name]) for name, each in rivals.items()], bench.effort)
        what = f"consume {data.size}"
        rows += _both(what, best, PLAIN, data)
    return rows


def _both(what: str, best: dict[str, Sample], name: str, data: Dataset) -> list[Row]:
    """Records a second, and the broker's CPU time."""
    return [
        _against(what, best, name, lambda sample: rate(Unit.RECORDS, sample, data.count, waits=True)),
        _against(
            f"CPU per GB: {what}",
            best,
            name,
            lambda sample: Figure(Unit.SECONDS, sample.cpu_s / data.payload_bytes * GB),
        ),
    ]


def _against(what: str, best: dict[str, Sample], name: str, figure: Callable[[Sample], Figure]) -> Row:
    if KAFKA not in best:
        return Row(what, figure(best[name]))
    return Row(what, figure(best[name]), "Kafka, not synced" if "produce" in what else KAFKA, figure(best[KAFKA]))


# --- requests


#: What a request has, by its name: the size of a record, and how many.
REQUESTS = {"16 KB": (1024, 15), "one record": (100, 1)}


def _frames(topic: str, partition: int, kind: str) -> list[bytes]:
    """A Produce request with one batch, for each place in a connection's window."""
    value_bytes, count = REQUESTS[kind]
    rows = Dataset(value_bytes, 1000).batch[:count]
    batch = encode([(value, key) for key, value in rows])
    body = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }
    return [b"".join(encode_request(Key.PRODUCE, 9, number, "bench", body)) for number in range(IN_FLIGHT)]


class _Pusher(threading.Thread):
    """One connection that always has some requests on their way."""

    def __init__(self, address: str, topic: str, partition: int, kind: str, count: int) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = _frames(topic, partition, kind)
        self._count = count
        self.answers = 0

    def run(self) -> None:
        """Send and receive."""
        push, frames, stream = self._socket.sendall, self._frames, self._socket.makefile("rb")
        for number in range(min(IN_FLIGHT, self._count)):
            push(frames[number])
        for number in range(self._count):
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
            if number == 0:  # one is looked at, the number of records at the end says the rest
                _, body = decode_response(Key.PRODUCE, 9, memoryview(answer))
                expect(body["responses"][0]["partition_responses"][0]["error_code"], 0, "error code")
            self.answers += 1
            if number + IN_FLIGHT < self._count:
                push(frames[number % IN_FLIGHT])
        self._socket.close()


def _pushing(rival: Rival, kind: str, count: int) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        with rival.topic() as topic:
            each = count // CONNECTIONS
            pushers = [_Pusher(rival.address, topic, number, kind, each) for number in range(CONNECTIONS)]

            def work() -> None:
                for each in pushers:
                    each.start()
                for each in pushers:
                    each.join()

            yield Trial(
                lambda: rival.measured(work),
                lambda: expect(
                    sum(_ends(rival.address, topic).values()), REQUESTS[kind][1] * count, "records produced"
                ),
            )

    return Candidate(rival.name, trial)


def _requests(bench: Bench) -> list[Row]:
    return [row for kind in REQUESTS for row in _requests_of(bench, kind)]


def _requests_of(bench: Bench, kind: str) -> list[Row]:
    count = bench.scaled(20_000, 4_000)
    best = best_of([_pushing(each, kind, count) for each in _rivals(bench).values()], bench.effort)
    rows = []
    for name in (PLAIN, SYNCED):
        what = f"produce requests of {kind}, {'synced' if name == SYNCED else 'not synced'}"
        rows.append(_against(what, best, name, lambda sample: rate(Unit.RECORDS, sample, count, waits=True)))
        rows.append(
            _against(
                f"CPU: a {what.replace('requests', 'request')}",
                best,
                name,
                lambda sample: Figure(Unit.SECONDS, sample.cpu_s / count),
            )
        )
    return rows


# --- latency


def _latencies(rival: Rival, topic: str, count: int) -> list[float]:
    """From `produce()` to the consumer, for each record."""
    consumer = Consumer({**_common(rival.address), "group.id": "measured", "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[float] = []

    def read() -> None:
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            now = time.perf_counter_ns()
            if message is None or message.error() is not None:
                return
            found.append((now - struct.unpack_from(">q", message.value())[0]) / 1e9)

    reader = threading.Thread(target=read)
    reader.start()
    producer = Producer({**_common(rival.address), "acks": "all", "linger.ms": 0})
    next_s = time.perf_counter()
    for _ in range(count):
        next_s += 0.002
        time.sleep(max(0.0, next_s - time.perf_counter()))
        producer.produce(topic, struct.pack(">q", time.perf_counter_ns()) + bytes(92), partition=0)
        producer.poll(0)
    producer.flush(PATIENCE_S)
    reader.join()
    consumer.close()
    expect(len(found), count, "records that arrived")
    return found


def _latency(bench: Bench) -> list[Row]:
    """The best of some rounds for each percentile: a neighbour's turn is no property of a broker."""
    rivals, count = _rivals(bench), bench.scaled(2000, 500)
    shares = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999}
    found: dict[str, dict[str, float]] = {name: {} for name in rivals}
    for _ in range(2 if bench.effort.quick else 4):
        for name, rival in rivals.items():
            with rival.topic() as topic:
                ordered = sorted(_latencies(rival, topic, count))
            for word, part in shares.items():
                value = ordered[min(int(part * count), count - 1)]
                found[name][word] = min(value, found[name].get(word, value))
    rows = []
    for name in (PLAIN, SYNCED):
        for word in shares:
            ours = Figure(Unit.SECONDS, found[name][word])
            what = f"produce to consumer, {word}, {'synced' if name == SYNCED else 'not synced'}"
            if KAFKA in found:
                rows.append(Row(what, ours, "Kafka, not synced", Figure(Unit.SECONDS, found[KAFKA][word])))
            else:
                rows.append(Row(what, ours))
    return rows


# --- footprint


def _footprint(bench: Bench) -> list[Row]:
    rivals = _rivals(bench)
    kafka, ours = rivals.get(KAFKA), rivals[PLAIN]
    rows = []
    for what, unit, of in (
        ("start until it answers", Unit.SECONDS, lambda rival: rival.start_s),
        ("memory at the end", Unit.MEMORY, lambda rival: float(rival.process.memory_info().rss)),
    ):
        if kafka is None:
            rows.append(Row(what, Figure(unit, of(ours))))
        else:
            rows.append(Row(what, Figure(unit, of(ours)), KAFKA, Figure(unit, of(kafka))))
    return rows


CASES = [
    Case("produce", _produce),
    Case("consume", _consume),
    Case("requests", _requests),
    Case("latency", _latency),
    Case("footprint", _footprint),
]

if __name__ == "__main__":
    assert sawlog.kernel_info().compiled, "the kernel is not compiled: run `make kernel`"
    command.run(CASES, "Measure sawlog's broker beside Apache Kafka.")
