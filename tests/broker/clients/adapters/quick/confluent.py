"""confluent-kafka: librdkafka for Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ...adapter import PATIENCE_S, Group, NotOffered, Refused, Seen, Sent, kafka_name


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise _refused(error.args[0]) from error


def _refused(error: KafkaError) -> Refused:
    return Refused(kafka_name(error.name()), error)


class _Producer:
    def __init__(self, made: confluent_kafka.Producer) -> None:
        self._made = made
        self._posted: list[list[Any]] = []

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        self.post(topic, records)
        return self.flush()

    def post(self, topic: str, records: Sequence[Sent]) -> None:
        with _named():
            for each in records:
                told: list[Any] = []
                self._posted.append(told)
                stamped = {} if each.timestamp is None else {"timestamp": each.timestamp}
                self._made.produce(
                    topic,
                    each.value,
                    each.key,
                    partition=each.partition,
                    headers=list(each.headers),
                    on_delivery=lambda error, message, told=told: told.append(error or message.offset()),
                    **stamped,
                )

    def flush(self) -> list[int]:
        posted, self._posted = self._posted, []
        with _named():
            self._made.flush(PATIENCE_S)
        offsets: list[int] = []
        for told in posted:
            if not told:
                raise Refused("MSG_TIMED_OUT", "nothing was said about a record")
            if isinstance(told[0], KafkaError):
                raise _refused(told[0])
            offsets.append(told[0])
        return offsets

    def begin(self) -> None:
        with _named():
            self._made.begin_transaction()

    def send_offsets(self, consumer: _Consumer, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        with _named():
            self._made.send_offsets_to_transaction(
                _places(offsets), consumer.made.consumer_group_metadata(), PATIENCE_S
            )

    def commit(self) -> None:
        with _named():
            self._made.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        with _named():
            self._made.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        self._made.purge()
        self._made.flush(0)


class _Consumer:
    def __init__(self, made: confluent_kafka.Consumer) -> None:
        self.made = made

    def assign(self, places: Mapping[tuple[str, int], int]) -> None:
        self.made.assign(_places(places))

    def subscribe(self, *topics: str) -> None:
        self.made.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        self.made.subscribe([pattern])

    def poll(self, timeout_s: float = 0.2) -> list[Seen]:
        with _named():
            first = self.made.poll(timeout_s)
            found = [] if first is None else [first, *self.made.consume(1000, 0)]
        return [_seen(message) for message in found]

    def assignment(self) -> set[int]:
        return {place.partition for place in self.made.assignment()}

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        with _named():
            if offsets is not None:
                self.made.commit(offsets=_places(offsets), asynchronous=False)
                return
            try:
                self.made.commit(asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._NO_OFFSET:  # nothing new, which is no error elsewhere
                    raise

    def committed(self, topic: str, partition: int) -> int | None:
        with _named():
            [found] = self.made.committed([TopicPartition(topic, partition)], PATIENCE_S)
        return None if found.offset < 0 else int(found.offset)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        with _named():
            [found] = self.made.offsets_for_times([TopicPartition(topic, partition, timestamp)], PATIENCE_S)
        return None if found.offset < 0 else int(found.offset)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        with _named():
            low, high = self.made.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)
        return int(low), int(high)

    def close(self) -> None:
        self.made.close()


def _places(offsets: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
    return [TopicPartition(*place, offset) for place, offset in offsets.items()]


def _seen(message: Any) -> Seen:
    if message.error() is not None:
        raise _refused(message.error())
    return Seen(
        message.partition(),
        message.offset(),
        message.value(),
        message.key(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )


class _Admin:
    def __init__(self, made: AdminClient) -> None:
        self._made = made

    def _do(self, call: Callable[[], Mapping[Any, Any]]) -> Any:
        with _named():
            [future] = call().values()
            return future.result(PATIENCE_S)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._do(lambda: self._made.create_topics([wanted]))

    def delete_topic(self, name: str) -> None:
        self._do(lambda: self._made.delete_topics([name]))

    def topics(self) -> dict[str, int]:
        with _named():
            return {name: len(each.partitions) for name, each in self._made.list_topics(timeout=30).topics.items()}

    def add_partitions(self, name: str, total: int) -> None:
        self._do(lambda: self._made.create_partitions([NewPartitions(name, total)]))

    def config(self, name: str) -> dict[str, str]:
        found = self._do(lambda: self._made.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
        return {key: each.value for key, each in found.items()}

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        asked = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self._do(lambda: self._made.incremental_alter_configs([asked]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        found = self._do(lambda: self._made.delete_records([TopicPartition(topic, partition, before)]))
        return int(found.low_watermark)

    def groups(self) -> set[str]:
        with _named():
            found = self._made.list_consumer_groups().result(PATIENCE_S)
        return {each.group_id for each in found.valid}

    def group(self, name: str) -> Group:
        found = self._do(lambda: self._made.describe_consumer_groups([name]))
        members = [(each.group_instance_id, len(each.assignment.topic_partitions)) for each in found.members]
        return Group(_STATES.get(found.state.name, found.state.name), tuple(members))

    def delete_group(self, name: str) -> None:
        self._do(lambda: self._made.delete_consumer_groups([name]))

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        asked = ConsumerGroupTopicPartitions(group, _places(offsets))
        for place in self._do(lambda: self._made.alter_consumer_group_offsets([asked])).topic_partitions:
            if place.error is not None:
                raise _refused(place.error)

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        asked = ConsumerGroupTopicPartitions(group)
        found = self._do(lambda: self._made.list_consumer_group_offsets([asked]))
        return {(place.topic, place.partition): place.offset for place in found.topic_partitions}

    def transactions(self) -> dict[str, str]:
        raise NotOffered

    def close(self) -> None:
        self._made.poll(0)


_STATES = {"STABLE": "Stable", "EMPTY": "Empty", "DEAD": "Dead"}


class Confluent:
    """https://github.com/confluentinc/confluent-kafka-python"""

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
        given: dict[str, Any] = {}
        if transactional_id is not None:
            given = {"transactional.id": transactional_id, "transaction.timeout.ms": transaction_timeout_ms}
        made = confluent_kafka.Producer(
            {
                **_common(address),
                "compression.type": compression,
                "acks": acks,
                "enable.idempotence": idempotent or transactional_id is not None,
                "linger.ms": linger_ms,
                "message.max.bytes": max_request_bytes,
                "message.timeout.ms": min(timeout_ms, transaction_timeout_ms if transactional_id else timeout_ms),
                # Time that it waits for a topic to exist: by default 30 s, even if messages time out before.
                "topic.metadata.propagation.max.ms": timeout_ms // 2,
                **given,
            }
        )
        if transactional_id is not None:
            with _named():
                made.init_transactions(PATIENCE_S)
        return _Producer(made)

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
        """A consumer. It wants a group even if it does without."""
        given: dict[str, Any] = {} if instance is None else {"group.instance.id": instance}
        if protocol == "classic":
            given |= {"session.timeout.ms": session_ms, "heartbeat.interval.ms": max(session_ms // 20, 100)}
        else:
            given["group.protocol"] = protocol
        made = confluent_kafka.Consumer(
            {
                **_common(address),
                "group.id": f"none-{time.monotonic_ns()}" if group is None else group,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "error" if reset == "none" else reset,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 5000,
                **given,
            }
        )
        return _Consumer(made)

    def admin(self, address: str) -> _Admin:
        """An admin client."""
        return _Admin(AdminClient(_common(address)))


def _common(address: str) -> dict[str, Any]:
    """Reconnects soon after the broker was gone, and reports errors to its callers only."""
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        # By default librdkafka 2.16 loses the transaction coordinator of a broker that was gone, sometimes for ever.
        "metadata.recovery.strategy": "none",
        "log_level": 0,
        "error_cb": lambda error: None,
    }


CLIENT = Confluent()
