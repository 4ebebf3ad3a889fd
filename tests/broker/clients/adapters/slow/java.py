"""The Java client of Apache Kafka, driven through Py4J: no Java is compiled.

Needs a Java, Kafka's jars (tools/fetch_kafka.py) and Py4J, which comes with PySpark. One JVM serves all tests of a
process, and ends with it.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .....interop.brokers import JARS, JAVA
from ...adapter import PATIENCE_S, Group, Missing, Refused, Seen, Sent, kafka_name

_spark = importlib.util.find_spec("pyspark")
_PY4J = [] if _spark is None or _spark.origin is None else [*Path(_spark.origin).parent.glob("jars/py4j-*.jar")]
if JAVA is None or not any(JARS.glob("kafka-clients-*.jar")) or not _PY4J:
    raise Missing("Java, Kafka's jars or PySpark are not here: python tools/fetch_kafka.py")

_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"
#: Py4J sends a smaller number as an Integer.
_LONG = 1 << 31
_DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


@cache
def _gateway() -> Any:
    """A JVM with Kafka's client."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    assert JAVA is not None
    process = subprocess.Popen(
        [
            *(JAVA, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*:{_PY4J[0]}"),
            *("py4j.GatewayServer", "--die-on-broken-pipe", "0"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it says at exit that the JVM is gone
    atexit.register(process.kill)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))


def _kafka() -> Any:
    return _gateway().jvm.org.apache.kafka


def _seconds(number: float) -> Any:
    return _gateway().jvm.java.time.Duration.ofMillis(int(number * 1000))


@contextmanager
def _named() -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise _refused(error.java_exception) from error


def _refused(error: Any) -> Refused:
    """Return an exception by the name of its class, unwrapped."""
    while (cause := error.getCause()) is not None and error.getClass().getSimpleName() in _WRAPPERS:
        error = cause
    return Refused(kafka_name(error.getClass().getSimpleName()), error.getMessage())


_WRAPPERS = {"ExecutionException", "KafkaException", "CompletionException"}


class _Producer:
    def __init__(self, settings: dict[str, str]) -> None:
        self._made = _kafka().clients.producer.KafkaProducer(settings)
        self._posted: list[Any] = []

    def start(self) -> None:
        with _named():
            self._made.initTransactions()

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        self.post(topic, records)
        return self.flush()

    def post(self, topic: str, records: Sequence[Sent]) -> None:
        kafka = _kafka()
        with _named():
            for each in records:
                headers = kafka.common.header.internals.RecordHeaders()
                for key, value in each.headers:
                    headers.add(key, value)
                record = kafka.clients.producer.ProducerRecord(
                    topic, each.partition, each.timestamp, each.key, each.value, headers
                )
                self._posted.append(self._made.send(record))

    def flush(self) -> list[int]:
        posted, self._posted = self._posted, []
        with _named():
            self._made.flush()
            return [int(each.get().offset()) for each in posted]

    def begin(self) -> None:
        with _named():
            self._made.beginTransaction()

    def send_offsets(self, consumer: _Consumer, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        with _named():
            self._made.sendOffsetsToTransaction(_places(offsets), consumer.made.groupMetadata())

    def commit(self) -> None:
        with _named():
            self._made.commitTransaction()

    def abort(self) -> None:
        with _named():
            self._made.abortTransaction()

    def close(self) -> None:
        self._made.close(_seconds(0))


class _Consumer:
    def __init__(self, settings: dict[str, str]) -> None:
        self.made = _kafka().clients.consumer.KafkaConsumer(settings)
        self._protocol = settings["group.protocol"]

    def assign(self, places: Mapping[tuple[str, int], int]) -> None:
        with _named():
            self.made.assign([_place(*place) for place in places])
            for place, offset in places.items():
                self.made.seek(_place(*place), offset)

    def subscribe(self, *topics: str) -> None:
        self.made.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        if self._protocol == "consumer":  # the broker matches the names, and members know the topics' ids
            self.made.subscribe(_kafka().clients.consumer.SubscriptionPattern(pattern))
        else:
            self.made.subscribe(_gateway().jvm.java.util.regex.Pattern.compile(pattern))

    def poll(self, timeout_s: float = 0.2) -> list[Seen]:
        with _named():
            return [_seen(record) for record in _each(self.made.poll(_seconds(timeout_s)))]

    def assignment(self) -> set[int]:
        return {place.partition() for place in self.made.assignment()}

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        with _named():
            if offsets is None:
                self.made.commitSync()
            else:
                self.made.commitSync(_places(offsets))

    def committed(self, topic: str, partition: int) -> int | None:
        with _named():
            found = self.made.committed({_place(topic, partition)}).get(_place(topic, partition))
        return None if found is None else int(found.offset())

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        place = _place(topic, partition)
        with _named():
            found = self.made.offsetsForTimes({place: max(timestamp, _LONG)}).get(place)
        return None if found is None else int(found.offset())

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        place = _place(topic, partition)
        with _named():
            low, high = self.made.beginningOffsets([place]), self.made.endOffsets([place])
        return int(low.get(place)), int(high.get(place))

    def close(self) -> None:
        self.made.close()


def _place(topic: str, partition: int) -> Any:
    return _kafka().common.TopicPartition(topic, partition)


def _each(iterable: Any) -> Iterator[Any]:
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _places(offsets: Mapping[tuple[str, int], int]) -> Any:
    made = _gateway().jvm.java.util.HashMap()
    for place, offset in offsets.items():
        made.put(_place(*place), _kafka().clients.consumer.OffsetAndMetadata(offset))
    return made


def _seen(record: Any) -> Seen:
    headers = tuple((each.key(), each.value()) for each in record.headers().toArray())
    return Seen(record.partition(), record.offset(), record.value(), record.key(), headers, record.timestamp())


class _Admin:
    def __init__(self, address: str) -> None:
        self._made = _kafka().clients.admin.Admin.create({"bootstrap.servers": address})
        self._kinds = _kafka().clients.admin

    def _do(self, call: Callable[[], Any]) -> Any:
        with _named():
            return call().get()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        asked = self._kinds.NewTopic(name, partitions, 1).configs(dict(config or {}))
        self._do(lambda: self._made.createTopics([asked]).all())

    def delete_topic(self, name: str) -> None:
        self._do(lambda: self._made.deleteTopics([name]).all())

    def topics(self) -> dict[str, int]:
        listed = list(self._do(lambda: self._made.listTopics().names()))
        found = self._do(lambda: self._made.describeTopics(listed).allTopicNames())
        return {name: len(found.get(name).partitions()) for name in listed}

    def add_partitions(self, name: str, total: int) -> None:
        asked = {name: self._kinds.NewPartitions.increaseTo(total)}
        self._do(lambda: self._made.createPartitions(asked).all())

    def config(self, name: str) -> dict[str, str]:
        asked = _resource(name)
        found = self._do(lambda: self._made.describeConfigs([asked]).all()).get(asked)
        return {each.name(): each.value() for each in _each(found.entries())}

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        kinds = self._kinds
        to_set = getattr(kinds, "AlterConfigOp$OpType").SET
        changes = [kinds.AlterConfigOp(kinds.ConfigEntry(key, value), to_set) for key, value in config.items()]
        made = _gateway().jvm.java.util.HashMap()
        made.put(_resource(name), changes)
        self._do(lambda: self._made.incrementalAlterConfigs(made).all())

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        made = _gateway().jvm.java.util.HashMap()
        made.put(_place(topic, partition), _before(before))
        found = self._do(lambda: self._made.deleteRecords(made).lowWatermarks().get(_place(topic, partition)))
        return int(found.lowWatermark())

    def groups(self) -> set[str]:
        return {each.groupId() for each in _each(self._do(lambda: self._made.listGroups().all()))}

    def group(self, name: str) -> Group:
        found = self._do(lambda: self._made.describeConsumerGroups([name]).describedGroups().get(name))
        members = [(each.groupInstanceId().orElse(None), each.assignment()) for each in _each(found.members())]
        counted = tuple((instance, len(each.topicPartitions())) for instance, each in members)
        return Group(found.groupState().toString(), counted)

    def delete_group(self, name: str) -> None:
        self._do(lambda: self._made.deleteConsumerGroups([name]).all())

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self._do(lambda: self._made.alterConsumerGroupOffsets(group, _places(offsets)).all())

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        found = self._do(lambda: self._made.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        return {(place.topic(), place.partition()): found.get(place).offset() for place in found.keySet()}

    def transactions(self) -> dict[str, str]:
        found = self._do(lambda: self._made.listTransactions().all())
        return {each.transactionalId(): each.state().toString() for each in _each(found)}

    def close(self) -> None:
        self._made.close(_seconds(1))


def _before(offset: int) -> Any:
    """`RecordsToDelete.beforeOffset`, which Py4J takes for the getter of the same name."""
    jvm = _gateway().jvm
    kinds = _gateway().new_array(jvm.java.lang.Class, 1)
    kinds[0] = jvm.java.lang.Long.TYPE
    given = _gateway().new_array(jvm.java.lang.Object, 1)
    given[0] = offset
    named = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
    return named.getMethod("beforeOffset", kinds).invoke(None, given)


def _resource(name: str) -> Any:
    config = _kafka().common.config
    return config.ConfigResource(getattr(config, "ConfigResource$Type").TOPIC, name)


class Java:
    """org.apache.kafka:kafka-clients"""

    def producer(
        self,
        address: str,
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        linger_ms: int = 5,
        max_request_bytes: int = 1_000_000,
        timeout_ms: int = 60_000,
    ) -> _Producer:
        """A producer."""
        given = {
            "bootstrap.servers": address,
            "key.serializer": _SERIALIZER,
            "value.serializer": _SERIALIZER,
            "compression.type": compression,
            "acks": acks,
            "enable.idempotence": str(idempotent or transactional_id is not None).lower(),
            "linger.ms": str(linger_ms),
            "max.request.size": str(max_request_bytes),
            "delivery.timeout.ms": str(timeout_ms),
            "request.timeout.ms": str(timeout_ms // 2),
            "max.block.ms": str(timeout_ms),
            "reconnect.backoff.max.ms": "500",
        }
        if transactional_id is None:
            return _Producer(given)
        timeout = {"transactional.id": transactional_id, "transaction.timeout.ms": str(transaction_timeout_ms)}
        made = _Producer({**given, **timeout})
        made.start()
        return made

    def consumer(
        self,
        address: str,
        *,
        group: str | None = None,
        instance: str | None = None,
        committed: bool = False,
        reset: str = "earliest",
        session_ms: int = 10_000,
        protocol: str = "classic",
    ) -> _Consumer:
        """A consumer."""
        given = {
            "bootstrap.servers": address,
            "key.deserializer": _DESERIALIZER,
            "value.deserializer": _DESERIALIZER,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": reset,
            "enable.auto.commit": "false",
            "group.protocol": protocol,
            "fetch.max.wait.ms": "100",
            "default.api.timeout.ms": str(int(PATIENCE_S * 1000)),
            "reconnect.backoff.max.ms": "500",
        }
        if protocol == "classic":
            given["session.timeout.ms"] = str(session_ms)
            given["heartbeat.interval.ms"] = str(max(session_ms // 20, 100))
        if group is not None:
            given["group.id"] = group
        if instance is not None:
            given["group.instance.id"] = instance
        return _Consumer(given)

    def admin(self, address: str) -> _Admin:
        """An admin client."""
        return _Admin(address)


CLIENT = Java()
