"""aiokafka. Its event loop runs in a thread, so that tests need not be coroutines."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError, for_code

from ...adapter import PATIENCE_S, Group, NotOffered, Refused, Seen, Sent, kafka_name


class _Loop:
    """An event loop in a thread, made when it is first needed."""

    def __init__(self) -> None:
        self._made: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._made is None:
            self._made = asyncio.new_event_loop()
            threading.Thread(target=self._made.run_forever, name="aiokafka", daemon=True).start()
        with _named():
            return asyncio.run_coroutine_threadsafe(work, self._made).result(2 * PATIENCE_S)


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise _refused(error) from error


def _refused(error: BaseException) -> Refused:
    return Refused(kafka_name(type(error).__name__), error)


_LOOP = _Loop()


class _Producer:
    def __init__(self, **settings: Any) -> None:
        self._posted: list[Any] = []
        self._made = _LOOP.run(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> AIOKafkaProducer:
        made = AIOKafkaProducer(**settings)
        try:
            await made.start()
        except BaseException:
            await made.stop()
            raise
        return made

    def send(self, topic: str, records: Sequence[Sent]) -> list[int]:
        self.post(topic, records)
        return self.flush()

    def post(self, topic: str, records: Sequence[Sent]) -> None:
        _LOOP.run(self._post(topic, records))

    async def _post(self, topic: str, records: Sequence[Sent]) -> None:
        for each in records:
            self._posted.append(
                await self._made.send(
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
        found: list[int] = _LOOP.run(self._flush(posted))
        return found

    async def _flush(self, posted: list[Any]) -> list[int]:
        told = await asyncio.gather(*posted)
        return [-1 if each is None else each.offset for each in told]

    def begin(self) -> None:
        _LOOP.run(self._made.begin_transaction())

    def send_offsets(self, consumer: Any, offsets: Mapping[tuple[str, int], int], group: str) -> None:
        _LOOP.run(self._made.send_offsets_to_transaction(_places(offsets), group))

    def commit(self) -> None:
        _LOOP.run(self._made.commit_transaction())

    def abort(self) -> None:
        _LOOP.run(self._made.abort_transaction())

    def close(self) -> None:
        _LOOP.run(_quietly(self._made.stop()))


async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
    """Stopping is the end, whatever the broker thinks of it."""
    try:
        await asyncio.wait_for(work, 5)
    except (KafkaError, TimeoutError):
        pass


class _Consumer:
    def __init__(self, **settings: Any) -> None:
        self._made = _LOOP.run(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> AIOKafkaConsumer:
        made = AIOKafkaConsumer(**settings)
        await made.start()
        return made

    def assign(self, places: Mapping[tuple[str, int], int]) -> None:
        _LOOP.run(self._assign(places))

    async def _assign(self, places: Mapping[tuple[str, int], int]) -> None:
        self._made.assign([TopicPartition(*place) for place in places])
        for place, offset in places.items():
            self._made.seek(TopicPartition(*place), offset)

    def subscribe(self, *topics: str) -> None:
        _LOOP.run(self._subscribe(topics))

    async def _subscribe(self, topics: Sequence[str]) -> None:
        self._made.subscribe(list(topics))

    def subscribe_pattern(self, pattern: str) -> None:
        async def subscribe() -> None:
            self._made.subscribe(pattern=pattern)

        _LOOP.run(subscribe())

    def poll(self, timeout_s: float = 0.2) -> list[Seen]:
        found = _LOOP.run(self._made.getmany(timeout_ms=int(timeout_s * 1000)))
        return [_seen(record) for records in found.values() for record in records]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._made.assignment()}

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        _LOOP.run(self._made.commit(None if offsets is None else _places(offsets)))

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = _LOOP.run(self._made.committed(TopicPartition(topic, partition)))
        return found

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        place = TopicPartition(topic, partition)
        found = _LOOP.run(self._made.offsets_for_times({place: timestamp}))[place]
        return None if found is None else int(found.offset)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        low, high = _LOOP.run(self._made.beginning_offsets([place])), _LOOP.run(self._made.end_offsets([place]))
        return low[place], high[place]

    def close(self) -> None:
        _LOOP.run(_quietly(self._made.stop()))


def _places(offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*place): offset for place, offset in offsets.items()}


def _seen(record: Any) -> Seen:
    return Seen(record.partition, record.offset, record.value, record.key, tuple(record.headers), record.timestamp)


class _Admin:
    def __init__(self, address: str) -> None:
        self._made = _LOOP.run(self._start(address))

    async def _start(self, address: str) -> AIOKafkaAdminClient:
        made = AIOKafkaAdminClient(bootstrap_servers=address)
        await made.start()
        return made

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        asked = NewTopic(name, partitions, 1, topic_configs=dict(config or {}))
        _check_each(_LOOP.run(self._made.create_topics([asked])).topic_errors)

    def delete_topic(self, name: str) -> None:
        _check_each(_LOOP.run(self._made.delete_topics([name])).topic_error_codes)

    def topics(self) -> dict[str, int]:
        return {each["topic"]: len(each["partitions"]) for each in _LOOP.run(self._made.describe_topics())}

    def add_partitions(self, name: str, total: int) -> None:
        _check_each(_LOOP.run(self._made.create_partitions({name: NewPartitions(total)})).topic_errors)

    def config(self, name: str) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, name)
        [response] = _LOOP.run(self._made.describe_configs([asked]))
        [(code, message, _, _, rows)] = response.resources
        _check(code, message)
        return {row[0]: row[1] for row in rows}

    def configure(self, name: str, config: Mapping[str, str]) -> None:
        asked = ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(config))
        [response] = _LOOP.run(self._made.alter_configs([asked]))
        [(code, message, *_)] = response.resources
        _check(code, message)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        found = _LOOP.run(self._made.delete_records({place: RecordsToDelete(before)}))
        return int(found[place])

    def groups(self) -> set[str]:
        return {each[0] for each in _LOOP.run(self._made.list_consumer_groups())}

    def group(self, name: str) -> Group:
        [response] = _LOOP.run(self._made.describe_consumer_groups([name]))
        [(code, _, state, _, _, members, *_)] = response.groups
        _check(code, "")
        return Group(state, tuple((None, _assigned(each[-1])) for each in members))

    def delete_group(self, name: str) -> None:
        raise NotOffered

    def set_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        raise NotOffered

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        found = _LOOP.run(self._made.list_consumer_group_offsets(group))
        return {(place.topic, place.partition): each.offset for place, each in found.items()}

    def transactions(self) -> dict[str, str]:
        raise NotOffered

    def close(self) -> None:
        _LOOP.run(self._made.close())


def _check_each(rows: Sequence[Sequence[Any]]) -> None:
    """Raise the first error in a response, which aiokafka returns unchecked."""
    for _, code, *message in rows:
        _check(code, *message)


def _check(code: int, message: object = "") -> None:
    if code != 0:
        raise Refused(kafka_name(for_code(code).__name__), message)


def _assigned(assignment: bytes) -> int:
    """Return the number of partitions in an assignment: version, then topics with their partitions."""
    if not assignment:
        return 0
    (topics,), at, found = struct.unpack_from(">i", assignment, 2), 6, 0
    for _ in range(topics):
        at += 2 + struct.unpack_from(">h", assignment, at)[0]
        (count,) = struct.unpack_from(">i", assignment, at)
        at += 4 + 4 * count
        found += count
    return found


class Aiokafka:
    """https://github.com/aio-libs/aiokafka"""

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
        return _Producer(
            bootstrap_servers=address,
            compression_type=None if compression == "none" else compression,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent or transactional_id is not None,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            linger_ms=linger_ms,
            max_request_size=max_request_bytes,
            request_timeout_ms=timeout_ms,
        )

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
        return _Consumer(
            bootstrap_servers=address,
            group_id=group,
            group_instance_id=instance,
            partition_assignment_strategy=[RangePartitionAssignor],  # which all clients know; its default only some
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset=reset,
            enable_auto_commit=False,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=max(session_ms // 20, 100),
            fetch_max_wait_ms=100,
        )

    def admin(self, address: str) -> _Admin:
        """An admin client."""
        return _Admin(address)


CLIENT = Aiokafka()
