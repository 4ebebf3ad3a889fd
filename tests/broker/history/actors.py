"""The actors of a history, each a process: `python -m tests.broker.history.actors KIND NAME ADDRESS DATA FILE SEED`.

Producers, copiers and readers are Kafka clients: they use confluent-kafka as it documents exactly-once processing.
Appenders and writers use the library, on the broker's own directory, while the broker serves it.

An actor writes each intention and each response to its file at once, one JSON object per line, so that a kill -9 leaves
them. SIGTERM lets it complete its current work.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ...processes.ending import Ending

INPUT, OUTPUT, MIRROR = "in", "out", "mirror"
PARTITIONS = 3
KEYS = 6
COPIERS, READERS = "copiers", "readers"
SESSION_MS = 3000
TRANSACTION_MS = 10_000

_ended = Ending()


class Diary:
    """Notes of an actor: one line per event, written before the event."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **event: Any) -> None:
        """Write one line."""
        os.write(self._fd, json.dumps(event).encode() + b"\n")


def common(address: str) -> dict[str, Any]:
    """Settings that reconnect soon after the broker is gone. `SAWLOG_CLIENT_DEBUG=eos,protocol`: with debug output."""
    debug = os.environ.get("SAWLOG_CLIENT_DEBUG")
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        "socket.timeout.ms": 10_000,
        # By default it begins again with the bootstrap servers when all brokers are gone. Doing that, librdkafka 2.16
        # loses its transaction coordinator, sometimes forever.
        "metadata.recovery.strategy": "none",
        **({"log_level": 0} if debug is None else {"debug": debug}),
        "error_cb": lambda error: None,
    }


def produce(name: str, address: str, diary: Diary, rng: random.Random) -> None:
    """Produce numbers for each key, in order, idempotently, a few hundred a second."""
    producer = Producer(
        {
            **common(address),
            "enable.idempotence": True,
            "linger.ms": rng.choice([0, 1, 5]),
            "compression.type": rng.choice(["none", "gzip", "snappy", "lz4", "zstd"]),
            "message.timeout.ms": 0,  # retries forever: the broker comes back
        }
    )
    numbers: dict[str, int] = defaultdict(int)
    try:
        while not _ended.is_set():
            pause_end = time.monotonic() + 0.03
            for _ in range(rng.randrange(1, 30)):
                _send_next(producer, name, numbers, diary, rng)
            # `poll` returns as soon as there is an event. Producing faster than copiers can copy would only prolong the
            # end of a run.
            while (left := pause_end - time.monotonic()) > 0:
                producer.poll(left)
            while len(producer) > 2000 and not _ended.is_set():
                producer.poll(0.1)
        producer.flush(60)
    except KafkaException as error:  # fatal for the producer
        diary.write(refused=f"{name}: {error}")
        _ended.wait()


def _send_next(producer: Producer, name: str, numbers: dict[str, int], diary: Diary, rng: random.Random) -> None:
    """Send the next number of a random key."""
    index = rng.randrange(KEYS)
    key = f"{name}/{index}"
    number = numbers[key]
    numbers[key] += 1

    def told(error: Any, message: Any) -> None:
        if error is None:
            diary.write(ack=key, number=number, partition=message.partition(), offset=message.offset())
        else:
            diary.write(refused=f"{key} {number}: {error}")

    diary.write(send=key, below=number + 1)
    value = f"{key}/{number}/".encode() + bytes(rng.randrange(200))
    producer.produce(INPUT, value, key, partition=index % PARTITIONS, on_delivery=told)
    producer.poll(0)


class Copier:
    """Copies `in` to `out` in transactions, each record to the partition of its input."""

    def __init__(self, name: str, address: str, diary: Diary, rng: random.Random) -> None:
        self._name, self._address, self._diary, self._rng = name, address, diary, rng
        self._attempts = 0
        self._rebalanced = False
        self._consumer = Consumer(
            {
                **common(address),
                "group.id": COPIERS,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.subscribe([INPUT], on_assign=self._changed, on_revoke=self._changed, on_lost=self._changed)

    def _changed(self, consumer: Any, places: Any) -> None:
        self._rebalanced = True

    def run(self) -> None:
        """Copy until SIGTERM, with a new producer after a fatal error."""
        while not _ended.is_set():
            # The id belongs to the role, not to the process: the successor fences its predecessor.
            producer = Producer(
                {
                    **common(self._address),
                    "transactional.id": self._name.split(".")[0],
                    "transaction.timeout.ms": TRANSACTION_MS,
                    "linger.ms": 1,
                }
            )
            if _patiently(lambda producer=producer: producer.init_transactions(30)):
                self._rewind()  # this decides the open transaction of the predecessor
                self._copy_with(producer)
        self._consumer.close()

    def _copy_with(self, producer: Producer) -> None:
        while not _ended.is_set():
            gathered = self._gather()
            if not gathered:
                continue
            self._attempts += 1
            attempt = f"{self._name}#{self._attempts}"
            sources = [[each.partition(), each.offset()] for each in gathered]
            self._diary.write(begin=attempt, sources=sources)
            try:
                if not self._transact(producer, attempt, gathered):
                    self._rewind()
            except KafkaException as error:
                self._diary.write(note=f"{attempt}: {error}")
                if not self._undo(producer, attempt, error.args[0]):
                    return
                self._rewind()

    def _gather(self) -> list[Any]:
        """Poll some messages. After a rebalance, the consumer fetches from the committed offsets again, so earlier
        messages are dropped. Messages that a poll returns after the callback belong to the new assignment."""
        gathered: list[Any] = []
        self._rebalanced = False
        deadline = time.monotonic() + 0.1
        most = self._rng.randrange(1, 80)
        while len(gathered) < most and time.monotonic() < deadline:
            message = self._consumer.poll(0.05)
            if self._rebalanced:
                gathered.clear()
                self._rebalanced = False
            if message is not None and message.error() is None:
                gathered.append(message)
        return gathered

    def _transact(self, producer: Producer, attempt: str, gathered: list[Any]) -> bool:
        """Run a transaction; return False if it was aborted on purpose."""
        producer.begin_transaction()
        ends: dict[int, int] = {}
        for each in gathered:
            value = f"{attempt}/{each.partition()}/{each.offset()}".encode()
            producer.produce(OUTPUT, value, each.key(), partition=each.partition())
            ends[each.partition()] = each.offset() + 1
        if self._rng.random() < 0.1:
            producer.flush(5)  # so that the abort concerns records
            _until_done(lambda: producer.abort_transaction(20))
            self._diary.write(aborted=attempt)
            return False
        places = [TopicPartition(INPUT, partition, end) for partition, end in ends.items()]
        metadata = self._consumer.consumer_group_metadata()
        _until_done(lambda: producer.send_offsets_to_transaction(places, metadata, 20))
        _until_done(lambda: producer.commit_transaction(20))
        self._diary.write(committed=attempt)
        return True

    def _undo(self, producer: Producer, attempt: str, error: KafkaError) -> bool:
        """Abort after an error and return whether this producer can continue. A fenced producer cannot abort."""
        if not error.txn_requires_abort():
            return False
        try:
            _until_done(lambda: producer.abort_transaction(20))
        except KafkaException:
            return False
        self._diary.write(aborted=attempt)
        return True

    def _rewind(self) -> None:
        """Seek to the committed offsets."""
        assigned = self._consumer.assignment()
        if not assigned:
            return
        while not _ended.is_set():
            try:
                found = self._consumer.committed(assigned, 5)
                break
            except KafkaException:
                continue
        else:
            return
        for place in found:
            start = max(place.offset, 0)
            try:
                self._consumer.seek(TopicPartition(place.topic, place.partition, start))
            except KafkaException:
                pass  # revoked meanwhile, which the next poll reports


def _until_done(call: Callable[[], object]) -> None:
    """Repeat a call while the client reports its error as retriable."""
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _patiently(call: Callable[[], object]) -> bool:
    """Retry a call that initializes a producer; return False if a new producer is needed."""
    try:
        _until_done(call)
    except KafkaException:
        time.sleep(0.1)
        return False
    return True


def read(name: str, address: str, diary: Diary, rng: random.Random) -> None:
    """Read the committed records of `out` as a member of a group."""
    consumer = Consumer(
        {
            **common(address),
            "group.id": READERS,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
        }
    )

    def changed(consumer: Any, places: Any) -> None:
        diary.write(session=True)

    consumer.subscribe([OUTPUT], on_assign=changed, on_revoke=changed, on_lost=changed)
    unsaid = 0
    while not _ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            value = message.value().decode()
            diary.write(seen=value, partition=message.partition(), offset=message.offset())
            unsaid += 1
        if unsaid and (message is None or unsaid > rng.randrange(20, 400)):
            unsaid = 0
            try:
                consumer.commit(asynchronous=False)
            except KafkaException:
                pass  # nothing to commit, or not a member any more: uncommitted records are read again
    consumer.close()


# --- beside the broker


def append(name: str, data: str, diary: Diary, rng: random.Random) -> None:
    """Append numbers for each key to `in` with the library."""
    from sawlog.errors import AmbiguousAppend, SawlogError
    from sawlog.store.directory.store import DirectoryStore

    numbers: dict[str, int] = defaultdict(int)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        while not _ended.is_set():
            index = rng.randrange(KEYS)
            key = f"{name}/{index}"
            number = numbers[key]
            numbers[key] += 1
            diary.write(send=key, below=number + 1)
            value = f"{key}/{number}/".encode() + bytes(rng.randrange(200))
            try:
                placed = store[INPUT].append(value, key.encode(), partition=index % PARTITIONS)
            except (AmbiguousAppend, SawlogError) as error:  # may be stored or not: continue with the next number
                diary.write(note=f"{key} {number}: {type(error).__name__}: {error}")
                time.sleep(0.05)
                continue
            diary.write(ack=key, number=number, partition=placed.partition, offset=placed.offset)
            time.sleep(rng.choice([0, 0, 0.01, 0.03]))


def write(name: str, data: str, diary: Diary, rng: random.Random) -> None:
    """Run library transactions over all partitions. Their name and sequence survive the process, so each is stored
    once."""
    from sawlog.errors import SawlogError
    from sawlog.store.directory.store import DirectoryStore

    place = name.partition(".")[0]
    keys = [f"{place}/{index}" for index in range(PARTITIONS)]
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        number = _next_number(diary.path, place)
        while not _ended.is_set():
            diary.write(unite=keys, number=number)
            try:
                with store.transaction(place, number) as transaction:
                    if not transaction.replayed:
                        for index, key in enumerate(keys):
                            value = f"{key}/{number}/".encode()
                            transaction.append(INPUT, value, key.encode(), partition=index)
            except SawlogError as error:  # may be stored or not: repeat with the same number
                diary.write(note=f"{place} {number}: {type(error).__name__}: {error}")
                time.sleep(0.05)
                continue
            diary.write(united=place, number=number)
            number += 1
            time.sleep(rng.choice([0, 0.02, 0.1]))


def _next_number(path: str, place: str) -> int:
    """Return the first number whose storage was not acknowledged to an earlier process."""
    numbers = [0]
    for diary in Path(path).parent.glob(f"{place}.*.jsonl"):
        for line in diary.read_bytes().split(b"\n")[:-1]:
            event = json.loads(line)
            if "united" in event:
                numbers.append(event["number"] + 1)
    return max(numbers)


def stream(name: str, data: str, diary: Diary) -> None:
    """Copy `in` to `mirror` with Spark, exactly once, using the library's source and sink next to the broker."""
    from pyspark.sql import functions as f

    import sawlog.spark

    spark = sawlog.spark.session("history", cores=1, memory="1g", spark_ui_enabled="false")
    sawlog.spark.register(spark)
    reading = spark.readStream.format("sawlog").option("path", data).option("subscribe", INPUT)
    value = f.concat_ws("/", f.lit(name), f.col("partition"), f.col("offset")).cast("binary")
    frame = reading.option("startingOffsets", "earliest").load().select("key", value.alias("value"))
    checkpoint = str(Path(diary.path).parent / f"{name.partition('.')[0]}.checkpoint")
    writing = frame.writeStream.format("sawlog").option("path", data).option("topic", MIRROR)
    query = writing.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds").start()
    while not _ended.is_set() and query.isActive:
        query.awaitTermination(0.2)
    if (error := query.exception()) is not None:
        diary.write(note=str(error)[:2000])
        raise SystemExit(f"the query ended: {error}")
    query.stop()
    spark.stop()


def _end_with_parent() -> None:
    """End this process with its parent, so that a killed test leaves no processes."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Run one actor."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kind, name, address, data, path, seed = sys.argv[1:]
    _ended.listen()
    diary, rng = Diary(path), random.Random(int(seed))
    if kind == "producer":
        produce(name, address, diary, rng)
    elif kind == "copier":
        Copier(name, address, diary, rng).run()
    elif kind == "reader":
        read(name, address, diary, rng)
    elif kind == "appender":
        append(name, data, diary, rng)
    elif kind == "spark":
        stream(name, data, diary)
    else:
        write(name, data, diary, rng)


if __name__ == "__main__":
    main()
