"""kafka-python, in its third edition."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from ...adapter import PATIENCE_S, Group, NotOffered, Refused, Seen, Sent, kafka_name


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise _refused(error) from error


def _refused(error: BaseException) -> Refused:
    cause = error if not isinstance(error.args and error.args[0], KafkaError) else error.args[0]
    return Refused(kafka_name(type(cause).__name__), error)


class _Producer:
    def __init__(self, made: KafkaProducer) -> None:
        self._made = made
        self._posted: list[Any] = []

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        self.post(topic, records)
        return self.flush()

    def post(self, topic: str, records: Sequence[Sent]) -> None:
        if any(value is None for each in records for _, value in each.headers):
            raise NotOffered  # a header without a value: it can read it, but not send it
        with _named():
            for each in records:
                self._posted.append(
                    self._made.send(
                        topic,
                        value=each.value,
                        key=each.key,
                        headers=list(each.headers),
                        partition=each.partition,
                        timestamp_ms=each.timestamp,
                    )
                )

    def flush(self) -> list[int]:
        posted, self._posted = self._posted, []
        with _named():
            self._made.flush(PATIENCE_S)
            return [each.get(PATIENCE_S).offset for each in posted]

    def begin(self) -> None:
        with _named():
            self._made.begin_transaction()

    def send_offsets(self, consumer: _Consumer, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        with _named():
            self._made.send_offsets_to_transaction(_places(offsets), consumer.made.group_metadata())

    def commit(self) -> None:
        with _named():
            self._made.commit_transaction()

    def abort(self) -> None:
        with _named():
            self._made.abort_transaction()

    def close(self) -> None:
        with suppress(KafkaError):  # it says so if something was left
            self._made.close(timeout=0)


class _Consumer:
    def __init__(self, made: KafkaConsumer) -> None:
        self.made = made

    def assign(self, places: Mapping[tuple[str, int], int]) -> None:
        self.made.assign([TopicPartition(*place) for place in places])
        for place, offset in places.items():
            self.made.seek(TopicPartition(*place), offset)

    def subscribe(self, *topics: str) -> None:
        # It joins before it knows how many partitions there are. As the leader it then joins again when it does; and if
        # that ends between two polls, version 3.0.12 drops the assignment, joins no more and sends no heartbeats
        # (`need_rejoin` is false as soon as it has assigned). So fetch the metadata first: it compares a copy,
        # which is made when metadata arrives after the subscription.
        known = {topic: self.made.partitions_for_topic(topic) for topic in topics}
        self.made.subscribe(list(topics))
        deadline = time.monotonic() + PATIENCE_S
        while known != self._copy() and time.monotonic() < deadline:
            self.made._coordinator._cluster.request_update()
            time.sleep(0.01)

    def subscribe_pattern(self, pattern: str) -> None:
        self.made.subscribe(pattern=pattern)

    def _copy(self) -> dict[str, set[int] | None]:
        copy = self.made._coordinator._metadata_snapshot
        return {topic: partitions or None for topic, partitions in copy.items()}

    def poll(self, timeout_s: float = 0.2) -> list[Seen]:
        with _named():
            found = self.made.poll(timeout_ms=int(timeout_s * 1000))
        return [_seen(record) for records in found.values() for record in records]

    def assignment(self) -> set[int]:
        return {place.partition for place in self.made.assignment()}

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        with _named():
            self.made.commit(None if offsets is None else _places(offsets))

    def committed(self, topic: str, partition: int) -> int | None:
        with _named():
            found: int | None = self.made.committed(TopicPartition(topic, partition))
        return found

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        place = TopicPartition(topic, partition)
        with _named():
            found = self.made.offsets_for_times({place: timestamp})[place]
        return None if found is None else int(found.offset)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with _named():
            return self.made.beginning_offsets([place])[place], self.made.end_offsets([place])[place]

    def close(self) -> None:
        self.made.close()


def _places(offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}


def _seen(record: Any) -> Seen:
    return Seen(record.partition, record.offset, record.value, record.key, tuple(record.headers), record.timestamp)


class _Admin:
    def __init__(self, made: KafkaAdminClient) -> None:
        self._made = made

    def _do(self, call: Callable[[], Any]) -> Any:
        with _named():
            return call()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        wanted = {name: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}}
        self._do(lambda: self._made.create_topics(wanted))

    def delete_topic(self, name: str) -> None:
        self._do(lambda: self._made.delete_topics([name]))

    def topics(self) -> dict[str, int]:
        found = self._do(lambda: self._made.describe_topics())
        return {each["name"]: len(each["partitions"]) for each in found}

    def add_partitions(self, name: str, total: int) -> None:
        self._do(lambda: self._made.create_partitions({name: total}))

    def config(self, name: str) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, name)
        found = self._do(lambda: self._made.describe_configs([asked], config_filter="all"))
        return {key: each["value"] for key, each in found["topic"][name].items()}

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        asked = ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(config))
        found = self._do(lambda: self._made.alter_configs([asked], raise_on_unknown=False))
        _check(found["topic"][name])

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        found = self._do(lambda: self._made.delete_records({place: before}))
        return int(found[place]["low_watermark"])

    def groups(self) -> set[str]:
        return {each["group_id"] for each in self._do(lambda: self._made.list_groups())}

    def group(self, name: str) -> Group:
        found = self._do(lambda: self._made.describe_groups([name]))[name]
        members = [(each["group_instance_id"], _assigned(each["member_assignment"])) for each in found["members"]]
        return Group(found["group_state"], tuple(members))

    def delete_group(self, name: str) -> None:
        _check(self._do(lambda: self._made.delete_groups([name]))[name])

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        for each in self._do(lambda: self._made.alter_group_offsets(group, _places(offsets))).values():
            _check(each)

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        found = self._do(lambda: self._made.list_group_offsets({group: None}))[group]
        return {(place.topic, place.partition): each.offset for place, each in found.items()}

    def transactions(self) -> dict[str, str]:
        found = self._do(lambda: self._made.list_transactions())
        return {each.transactional_id: each.state.value for listed in found.values() for each in listed}

    def close(self) -> None:
        self._made.close()


def _check(result: Any) -> None:
    """Some of its calls give errors back instead of raising them."""
    if isinstance(result, type) and issubclass(result, KafkaError):
        result = result()
    if isinstance(result, str) and (named := re.match(r"(?:\[Error \d+\] )?(\w+Error)", result)):
        raise Refused(kafka_name(named[1]), result)
    if isinstance(result, KafkaError) and type(result).__name__ != "NoError":
        raise _refused(result)


def _assigned(assignment: Any) -> int:
    return 0 if not assignment else sum(len(each["partitions"]) for each in assignment["assigned_partitions"])


class KafkaPython:
    """https://github.com/dpkp/kafka-python"""

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
        given: dict[str, Any] = {} if transactional_id is None else {"transactional_id": transactional_id}
        with _named():
            made = KafkaProducer(
                bootstrap_servers=address,
                compression_type=None if compression == "none" else compression,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent or transactional_id is not None,
                transaction_timeout_ms=transaction_timeout_ms,
                linger_ms=linger_ms,
                max_request_size=max_request_bytes,
                delivery_timeout_ms=timeout_ms,
                request_timeout_ms=min(timeout_ms // 2, 30_000),
                max_block_ms=timeout_ms,
                **given,
            )
            if transactional_id is not None:
                made.init_transactions()
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
        """A consumer."""
        if protocol != "classic":
            raise NotOffered
        with _named():
            made = KafkaConsumer(
                bootstrap_servers=address,
                group_id=group,
                group_instance_id=instance,
                isolation_level="read_committed" if committed else "read_uncommitted",
                auto_offset_reset=reset,
                enable_auto_commit=False,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(session_ms // 20, 100),
                fetch_max_wait_ms=100,
            )
        return _Consumer(made)

    def admin(self, address: str) -> _Admin:
        """An admin client."""
        with _named():
            return _Admin(KafkaAdminClient(bootstrap_servers=address))


CLIENT = KafkaPython()
