"""`make bench-broker`: `sawlog serve` next to Apache Kafka, driven by the same client in one run; and next to Redis
Streams and NATS JetStream, if they are installed (servers.py).

    python benchmarks/broker.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

- *produce*: records of 100 bytes and of 1 KiB, confluent-kafka, librdkafka's own batches.
- *consume*: the same records, by a consumer without a group.
- *requests*: Produce requests with one batch of 16 KB, or of one record of 100 bytes, five on their way on each of two
  connections, as fast as the broker answers; sent by a minimal client, because librdkafka would be the bottleneck.
- *latency*: from `produce()` to a waiting consumer, one record of 100 bytes every other millisecond.
- *footprint*: time from start to the first response, memory after that, and memory at the end of the run.

Two guarantees are compared, each with its equivalent. *Not synced*: acks=1, sawlog with `durability=os` and Kafka's
defaults; both acknowledge from the page cache. *Synced*: acks=all, sawlog's default and Kafka with `flush.messages=1`;
both acknowledge after fdatasync.

CPU time is that of the broker process alone. The rows *CPU per GB* are the same rounds, by that clock. All brokers have
topics of four partitions and run at the same time; one of them is measured, the others are idle.

Without Java or Kafka's jars (`make kafka-jars`) Kafka's column stays empty.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import command
from bench import Bench, Case
from broker_rivals import KAFKA, KAFKA_SYNCED, PARTITIONS, PATIENCE_S, PLAIN, SYNCED, Rival, common, ends, rivals_of
from confluent_kafka import Consumer, Producer, TopicPartition
from dataset import Dataset
from rounds import Candidate, Sample, Trial, best_of, expect
from rows import Bar, Figure, Row, Unit, rate, times
from servers import Server

import sawlog
from sawlog.batch.build import encode
from sawlog.broker.wire import Key, decode_response, encode_request

GB = 1e9
#: Connections, and requests on their way on each, as a Java producer has them.
CONNECTIONS, IN_FLIGHT = 2, 5
#: Ours and its like: what each promises is the same.
LIKES = {PLAIN: KAFKA, SYNCED: KAFKA_SYNCED}
#: Target: sawlog's rate as a multiple of Kafka's, by the size of a value.
BARS = {100: 0.7, 1024: 1.0}
BAR_SYNCED = 3.0


# --- produce and consume


def _produce_all(address: str, topic: str, data: Dataset, acks: str = "1") -> None:
    """Produce all records as fast as the client accepts them."""
    producer = Producer(
        {**common(address), "acks": acks, "queue.buffering.max.messages": 1_000_000, "message.timeout.ms": 120_000}
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


def _consume_all(address: str, topic: str, count: int) -> int:
    """Consume `count` records and return the total bytes of their values."""
    consumer = Consumer(
        {
            **common(address),
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
                lambda: rival.measured(lambda: _produce_all(rival.address, topic, data, _acks(rival.name))),
                lambda: expect(sum(ends(rival.address, topic).values()), data.count, "records produced"),
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


def _acks(name: str) -> str:
    return "all" if name in (SYNCED, KAFKA_SYNCED) else "1"


def _other(name: str, server: Server, data: Dataset, *, reads: bool) -> Candidate:
    """A server of another kind that stores the records, or gives them out. Synced, some of them sync each record by
    itself: a few thousand say how fast."""
    some = Dataset(data.value_bytes, 3_000) if name.endswith("synced") else data
    part = data.count / some.count

    @contextmanager
    def trial() -> Iterator[Trial]:
        if reads:
            server.produce(some)
        before = server.cpu()
        yield Trial(
            lambda: server.measured(server.consume(some) if reads else server.produce(some), before).scaled(part),
            lambda: None,  # each looks at the answers itself
        )
        server.empty()

    return Candidate(name, trial)


def _others(bench: Bench, data: Dataset, *, reads: bool) -> list[Candidate]:
    return [
        _other(name, server, data, reads=reads)
        for name, server in rivals_of(bench).others().items()
        if not (reads and name.endswith("synced"))
    ]


def _produce(bench: Bench) -> list[Row]:
    rows = []
    for value_bytes in (100, 1024):
        data = _data(bench, value_bytes)
        candidates = [_producing(each, data) for each in rivals_of(bench).all().values()]
        best = best_of(candidates + _others(bench, data, reads=False), bench.effort)
        for name in LIKES:
            bar = times(BAR_SYNCED if name == SYNCED else BARS[value_bytes])
            rows += _both(f"produce {data.size}, {_promise(name)}", best, name, data, bar)
    return rows


def _consume(bench: Bench) -> list[Row]:
    rivals, rows = {name: each for name, each in rivals_of(bench).all().items() if name in (PLAIN, KAFKA)}, []
    for value_bytes in (100, 1024):
        data = _data(bench, value_bytes)
        with ExitStack() as stack:
            topics = {name: stack.enter_context(each.topic()) for name, each in rivals.items()}
            for name, each in rivals.items():
                _produce_all(each.address, topics[name], data)
            candidates = [_consuming(each, data, topics[name]) for name, each in rivals.items()]
            best = best_of(candidates + _others(bench, data, reads=True), bench.effort)
        rows += _both(f"consume {data.size}", best, PLAIN, data, times(BARS[value_bytes]))
    return rows


def _promise(name: str) -> str:
    return "synced" if name == SYNCED else "not synced"


def _both(what: str, best: dict[str, Sample], name: str, data: Dataset, bar: Bar) -> list[Row]:
    """Records a second, and the broker's CPU time."""
    return [
        *_against(what, best, name, lambda sample: rate(Unit.RECORDS, sample, data.count, waits=True), bar),
        *_against(
            f"CPU per GB: {what}",
            best,
            name,
            lambda sample: Figure(Unit.SECONDS, sample.cpu_s / data.payload_bytes * GB),
        ),
    ]


def _against(
    what: str, best: dict[str, Sample], name: str, figure: Callable[[Sample], Figure], bar: Bar | None = None
) -> list[Row]:
    """Ours beside each that promises the same; the bar is about Kafka."""
    is_synced = name == SYNCED
    ours = figure(best[name])
    rivals = [each for each in best if each not in LIKES and each.endswith("synced") == is_synced]
    if not rivals:
        return [Row(what, ours)]
    return [Row(what, ours, each, figure(best[each]), bar if each == LIKES[name] else None) for each in rivals]


# --- requests


#: Kinds of requests: (record size in bytes, records per request).
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
                lambda: expect(sum(ends(rival.address, topic).values()), REQUESTS[kind][1] * count, "records produced"),
            )

    return Candidate(rival.name, trial)


def _requests(bench: Bench) -> list[Row]:
    return [row for kind in REQUESTS for row in _requests_of(bench, kind)]


def _requests_of(bench: Bench, kind: str) -> list[Row]:
    count = bench.scaled(20_000, 4_000)
    best = best_of([_pushing(each, kind, count) for each in rivals_of(bench).all().values()], bench.effort)
    rows = []
    for name in LIKES:
        what = f"produce requests of {kind}, {_promise(name)}"
        rows += _against(what, best, name, lambda sample: rate(Unit.RECORDS, sample, count, waits=True))
        rows += _against(
            f"CPU: a {what.replace('requests', 'request')}",
            best,
            name,
            lambda sample: Figure(Unit.SECONDS, sample.cpu_s / count),
        )
    return rows


# --- latency


def _latencies(rival: Rival, topic: str, count: int) -> list[float]:
    """From `produce()` to the consumer, for each record."""
    consumer = Consumer({**common(rival.address), "group.id": "measured", "fetch.wait.max.ms": 500})
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
    producer = Producer({**common(rival.address), "acks": "all", "linger.ms": 0})
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
    rivals, count = rivals_of(bench).all(), bench.scaled(2000, 500)
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
    for name, like in LIKES.items():
        for word in shares:
            ours = Figure(Unit.SECONDS, found[name][word])
            what = f"produce to consumer, {word}, {_promise(name)}"
            if like in found:
                rows.append(Row(what, ours, like, Figure(Unit.SECONDS, found[like][word])))
            else:
                rows.append(Row(what, ours))
    return rows


# --- footprint


def _footprint(bench: Bench) -> list[Row]:
    made = rivals_of(bench)
    brokers = {name: each for name, each in made.all().items() if name in LIKES or name == KAFKA}
    others = {name: each for name, each in made.others().items() if not name.endswith("synced")}
    starts = {name: each.start_s for name, each in (brokers | others).items()}
    memory: dict[str, float] = {name: float(each.process.memory_info().rss) for name, each in brokers.items()}
    memory |= {name: float(each.memory_bytes) for name, each in others.items()}
    return [
        *_sized("start until it answers", Unit.SECONDS, starts, times(10)),
        *_sized("memory at the end", Unit.MEMORY, memory, times(5)),
    ]


def _sized(what: str, unit: Unit, found: dict[str, float], bar: Bar) -> list[Row]:
    ours = Figure(unit, found[PLAIN])
    rivals = [name for name in found if name not in LIKES]
    if not rivals:
        return [Row(what, ours)]
    return [Row(what, ours, name, Figure(unit, found[name]), bar if name == KAFKA else None) for name in rivals]


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
