"""Topics, groups, users and access rules behind a broker: `sawlog serve`, or Apache Kafka.

```python
from sawlog.broker.remote import connect

with connect("127.0.0.1:9092") as store:
    orders = store.create_topic("orders", partitions=4)
    orders.append(b'{"id": 1}', key=b"customer-7")          # returns once the broker has stored it
    for record in orders.partition(0).scan(): ...
    print(store.groups.describe("billing").rows[0])
```

The command line uses it for `-b HOST:PORT`. A partition is a `Partition` as in any other store. `RemoteStore` and
`RemoteTopic` have the methods and errors of `Store` and `Topic` that Kafka's protocol can serve; they do not inherit
from them, because half of the abstract methods (plans for Spark, staging, documents, maintenance, serving) would only
raise. Values that the protocol does not carry, such as the creation time of a topic, are None.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from struct import Struct
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ..batch import kernel
from ..batch.build import Encoder, EncoderOptions
from ..batch.checksum import crc32c
from ..batch.header import LAST, POSITION, SIZE, Rows, scan_rows
from ..batch.inputs import HeadersInput, RecordInput
from ..clock import Deadline, milliseconds
from ..config import Isolation, LogConfig, is_committed
from ..errors import (
    BrokerTimeout,
    BrokerUnavailable,
    CorruptBatch,
    InvalidConfig,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicExists,
    TopicNotFound,
)
from ..log.ingest import rows_of
from ..log.reader import Fetched
from ..log.verify import VerifyReport
from ..log.writer import BATCH_BYTES, recipe_of
from ..store import settings
from ..store.base import Partition, Position, SegmentInfo, TopicPartition
from ..store.base.partition import unsupported
from ..store.names import did_you_mean
from ..store.partitioner import Router
from ..store.writer import Packer
from .client import EARLIEST, LATEST, Access, Cluster, admin, by_topic, check, consumer, producer
from .config import Address
from .remote_admin import RemoteAcls, RemoteGroup, RemoteGroups, RemoteMember, RemoteUsers
from .wire import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "RemoteAcls",
    "RemoteGroup",
    "RemoteGroups",
    "RemoteMember",
    "RemotePartition",
    "RemotePartitionDescription",
    "RemoteStore",
    "RemoteTopic",
    "RemoteTopicDescription",
    "RemoteUsers",
    "connect",
]

_PORT: Final = 9092
#: Asks for the record with the largest timestamp (KIP-734).
_MAX_TIMESTAMP = -3
#: Newest versions that name topics instead of using their ids.
_FETCH_VERSION = _PRODUCE_VERSION = 12
#: Time that a broker may take to return the first batch of a page.
_WAIT_MS = 500
_PAUSE_S = 0.05
_TOPIC_RESOURCE, _SET_BY_TOPIC, _SET, _DELETE = 2, 1, 0, 1
_ALL_REPLICAS = -1
_KEYWORDS: Final = {each.keyword: each.name for each in settings.SETTINGS.values()}
#: Producer id, epoch and sequence in a batch header; the checksum covers everything from `_CHECKED_FROM` on.
_PRODUCER_AT, _PRODUCER, _CHECKED_FROM = 43, Struct(">qhi"), 21
#: Sequence numbers wrap around.
_SEQUENCES: Final = 1 << 31


def connect(
    address: str | Address, *, client_id: str = "sawlog", timeout_s: float = 30.0, access: Access | None = None
) -> RemoteStore:
    """Connect to the broker at `HOST:PORT`, or to a cluster by several addresses separated by commas."""
    texts = [address] if isinstance(address, Address) else address.split(",")
    parsed = [each if isinstance(each, Address) else Address.parse(each.strip(), default_port=_PORT) for each in texts]
    return RemoteStore(Cluster(parsed, client_id=client_id, timeout_s=timeout_s, access=access or Access()))


# --- the store


class RemoteStore:
    """A broker, or a cluster of them. Use it as a context manager. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sender = _Sender(cluster)
        self.groups = RemoteGroups(cluster)
        self.acls = RemoteAcls(cluster)
        self.users = RemoteUsers(cluster)

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteStore {self.path}>"

    @property
    def path(self) -> str:
        return self._cluster.name

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        found = self._cluster.retry(lambda: self._cluster.metadata(None))
        return sorted(each.name for each in found.topics if not each.is_internal)

    def __iter__(self) -> Iterator[RemoteTopic]:
        for name in self.topics():
            try:
                yield self.topic(name)
            except TopicNotFound:
                continue  # deleted meanwhile

    def topic(self, name: str) -> RemoteTopic:
        """Return the topic with that name; `TopicNotFound`."""

        def attempt() -> Any:
            [found] = self._cluster.metadata([name]).topics
            if found.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                raise TopicNotFound(f"no topic {name!r} at {self.path}{did_you_mean(name, self.topics())}")
            check(found.error_code, f"the topic {name!r} at {self.path}")
            return found

        found = self._cluster.retry(attempt, topics=[name])
        topic_id = found.topic_id
        known = None if topic_id is None or topic_id == uuid.UUID(int=0) else str(topic_id)
        return RemoteTopic(self._cluster, self._sender, name, known, len(found.partitions), self._settings(name))

    def _settings(self, name: str) -> dict[str, settings.Value]:
        """Return the settings that were given for a topic; none if this user may not see them."""
        if not self._cluster.supports(admin.DescribeConfigsRequest):
            return {}
        wanted = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
        [found] = self._cluster.call(admin.DescribeConfigsRequest, resources=[wanted]).results
        if found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return {}
        check(found.error_code, f"the settings of {name!r} at {self.path}", found.error_message)
        given = {each.name: each.value for each in found.configs if each.config_source == _SET_BY_TOPIC}
        try:
            return settings.check(given)
        except InvalidConfig:  # another broker has other settings
            return dict(sorted(given.items()))

    def create_topic(self, name: str, partitions: int = 1, *, exist_ok: bool = False, **given: object) -> RemoteTopic:
        """Create a topic; `TopicExists`. With `exist_ok` an existing one is returned, whatever its settings."""
        configs = [{"name": key, "value": str(value)} for key, value in _named(given).items()]
        wanted = {"name": name, "num_partitions": partitions, "replication_factor": -1, "configs": configs}
        try:
            self._change_topics(admin.CreateTopicsRequest, name, "topics", {**wanted, "assignments": []})
        except TopicExists:
            if not exist_ok or name not in self.topics():
                raise
        return self._when_known(name, 1)

    def alter_topic(self, name: str, partitions: int | None = None, **given: object) -> RemoteTopic:
        """Add partitions or change settings; None resets a setting to its default. Both are validated first, but they
        are two requests: a broker that stops in between has changed only the settings."""
        added = {"name": name, "count": partitions, "assignments": None}
        more = partitions is not None and partitions != self.topic(name).partitions
        if more:
            self._change_topics(admin.CreatePartitionsRequest, name, "results", added, validate_only=True)
        if given:
            self._change_settings(name, _named(given))
        if more:
            self._change_topics(admin.CreatePartitionsRequest, name, "results", added, validate_only=False)
        return self._when_known(name, partitions or 1)

    def _change_settings(self, name: str, changes: Mapping[str, object]) -> None:
        configs = [
            {"name": key, "config_operation": _DELETE, "value": None}
            if value is None
            else {"name": key, "config_operation": _SET, "value": str(value)}
            for key, value in changes.items()
        ]
        resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configs": configs}
        request = admin.IncrementalAlterConfigsRequest
        [found] = self._cluster.call(request, self._cluster.controller(), resources=[resource]).responses
        check(found.error_code, f"the topic {name!r} at {self.path}", found.error_message)

    def delete_topic(self, name: str) -> None:
        self._change_topics(admin.DeleteTopicsRequest, name, "responses", {"name": name})

    def _change_topics(self, kind: Any, name: str, results: str, topic: dict[str, Any], **more: Any) -> None:
        timeout_ms = round(self._cluster.timeout_s * 1000)
        answer = self._cluster.call(kind, self._cluster.controller(), topics=[topic], timeout_ms=timeout_ms, **more)
        [found] = getattr(answer, results)
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicNotFound(f"no topic {name!r} at {self.path}")
        check(found.error_code, f"the topic {name!r} at {self.path}", found.error_message)

    def _when_known(self, name: str, partitions: int) -> RemoteTopic:
        """Return a topic that was just changed, once a broker shows the change: a cluster learns of it gradually."""
        deadline = Deadline(self._cluster.timeout_s, first_pause_s=_PAUSE_S, longest_pause_s=_PAUSE_S)
        while True:
            try:
                topic = self.topic(name)
                if topic.partitions >= partitions:
                    return topic
                late: Exception = BrokerTimeout(f"{self.path} does not show the new partitions of {name!r}")
            except TopicNotFound as error:
                late = error
            deadline.pause(or_raise=late)

    def wait(self, positions: Mapping[TopicPartition, int], seconds: float) -> None:
        """Return when one of the partitions has a record at its position, or the time is over."""
        try:
            _fetch(self._cluster, positions, max_bytes=1, wait_ms=round(seconds * 1000), committed=True)
        except OffsetOutOfRange:
            pass  # the partition was truncated or trimmed, which is news as well


def _named(given: Mapping[str, object]) -> dict[str, object]:
    """Return settings by Kafka's names."""
    return {_KEYWORDS.get(name, name): value for name, value in given.items()}


# --- topics


@dataclass(frozen=True, slots=True)
class RemotePartitionDescription:
    """Information about one partition."""

    partition: int
    lowest_offset: int
    next_offset: int
    records: int
    size_bytes: int | None
    segments: None = None
    path: None = None


@dataclass(frozen=True, slots=True)
class RemoteTopicDescription:
    """Information about a topic."""

    name: str
    id: str | None
    partitions: int
    settings: dict[str, settings.Value]
    created_ms: None
    records: int
    size_bytes: int | None
    rows: tuple[RemotePartitionDescription, ...]


class RemoteTopic:
    """A topic, with the partitions and settings that it had when it was opened. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        sender: _Sender,
        name: str,
        id: str | None,
        partitions: int,
        given: dict[str, settings.Value],
    ) -> None:
        self._cluster, self._sender = cluster, sender
        self.name = name
        #: Unique id; None if the broker is too old to have one.
        self.id = id
        self.partitions = partitions
        #: The settings that differ from their defaults, by Kafka's names.
        self.settings = given
        self.config = settings.log_config({key: value for key, value in given.items() if key in settings.SETTINGS})
        self.keyed = settings.is_compacted(given)
        self._recipe = self._limited(self.config)
        self._router = Router(self)

    def __repr__(self) -> str:
        return f"<RemoteTopic {self.name} partitions={self.partitions} at {self._cluster.name}>"

    def _limited(self, config: LogConfig) -> EncoderOptions:
        """Return how to encode batches: not larger than the broker accepts, and with the records' own timestamps."""
        largest = int(settings.serving(self.settings)["max.message.bytes"])
        return replace(recipe_of(config), append_time=False, max_batch_bytes=largest)

    def check_number(self, number: Any) -> None:
        """Raise `TopicNotFound` unless there is a partition with this number."""
        if not 0 <= number < self.partitions:
            raise TopicNotFound(f"the topic {self.name!r} has partitions 0 to {self.partitions - 1}, not {number}")

    def partition(self, number: int) -> RemotePartition:
        return RemotePartition(self._cluster, self._sender, (self.name, number), self.config, self._recipe)

    def describe(self) -> RemoteTopicDescription:
        """Return the settings, and how much the topic contains."""
        places = [(self.name, number) for number in range(self.partitions)]
        lowest, ends = self._cluster.list_offsets(places, EARLIEST), self._cluster.list_offsets(places, LATEST)
        sizes = _sizes(self._cluster, places)
        rows = []
        for place in places:
            start, end = lowest[place].offset, ends[place].offset
            rows.append(RemotePartitionDescription(place[1], start, end, end - start, sizes.get(place)))
        records, size = sum(row.records for row in rows), sum(sizes.values()) if sizes else None
        return RemoteTopicDescription(
            self.name, self.id, self.partitions, self.settings, None, records, size, tuple(rows)
        )

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
    ) -> Position:
        """Append one record and return its position. The key chooses the partition unless it is given."""
        number = self._router.place_for(value, key, partition)
        return Position(number, self.partition(number).append(value, key, headers, timestamp))

    def append_many(self, records: Iterable[RecordInput], *, partition: int | None = None) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets."""
        parts = self._router.split(list(records), partition)
        return {number: self.partition(number).append_many(some) for number, some in sorted(parts.items())}

    def append_arrow(self, table: pa.Table | pa.RecordBatch, *, partition: int | None = None) -> dict[int, range]:
        """Append the rows of an Arrow table, by their keys, and return their offsets."""
        parts = self._router.split_table(table, partition)
        return {number: self.partition(number).append_arrow(each) for number, each in parts.items()}

    def writer(self, *, linger_ms: float | None = None) -> Packer:
        """Return a buffered writer over all partitions."""
        return self._packer(linger_ms=linger_ms)

    def _partition_writer(self, partition: int, *, linger_ms: float | None = None) -> Packer:
        return self._packer(partition=partition, linger_ms=linger_ms)

    def _packer(
        self, compression: str | None = None, *, partition: int | None = None, linger_ms: float | None = None
    ) -> Packer:
        """Return a buffered writer for all partitions or for one, with the topic's compression or with another one."""
        recipe = self._recipe
        if compression is not None:
            recipe = self._limited(self.config.with_(compression=compression, compression_level=None))
        return Packer(
            self.partitions,
            lambda number, batch: self._sender.send((self.name, number), batch.data),
            recipe,
            partition=partition,
            linger_ms=linger_ms,
        )

    def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets and return the number of offsets dropped."""
        return sum(self.partition(number).trim(offset) for number, offset in sorted(offsets.items()))


# --- partitions


class RemotePartition(Partition):
    """One partition behind a broker. Offsets are requests, so that they are current."""

    def __init__(
        self, cluster: Cluster, sender: _Sender, place: TopicPartition, config: LogConfig, recipe: EncoderOptions
    ) -> None:
        self._cluster, self._sender = cluster, sender
        self._place, self._config, self._encoding = place, config, recipe

    def __repr__(self) -> str:
        return f"<RemotePartition {self.path}>"

    @property
    def path(self) -> str:
        return f"{self._place[0]}/{self._place[1]} at {self._cluster.name}"

    @property
    def config(self) -> LogConfig:
        return self._config

    @property
    def _recipe(self) -> EncoderOptions:
        return self._encoding

    @property
    def _origin(self) -> tuple[str | None, int]:
        return self._place

    @property
    def _is_closed(self) -> bool:
        return False

    # --- offsets

    def _offset(self, timestamp: int, *, committed: bool = False) -> Any:
        return self._cluster.list_offsets([self._place], timestamp, committed=committed)[self._place]

    @property
    def lowest_offset(self) -> int:
        return int(self._offset(EARLIEST).offset)

    def _newest(self) -> tuple[int, int] | None:
        found = self._offset(_MAX_TIMESTAMP)
        return None if found.offset < 0 else (found.offset, found.timestamp)

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        found = self._offset(LATEST, committed=is_committed(isolation))
        return found.offset, found.leader_epoch

    def offset_at(self, timestamp: int | datetime) -> int:
        found = int(self._offset(max(milliseconds(timestamp) or 0, 0)).offset)
        return self.visible_offset if found < 0 else found

    def epoch_end(self, leader_epoch: int) -> int:
        """Return the first offset after an epoch, or the end if the broker does not know the epoch."""

        def attempt() -> int:
            if leader_epoch < 0 or not self._cluster.supports(consumer.OffsetForLeaderEpochRequest):
                return -1
            parts = [{"partition": self._place[1], "current_leader_epoch": -1, "leader_epoch": leader_epoch}]
            topics = [{"topic": self._place[0], "partitions": parts}]
            node = self._cluster.leader(self._place)
            answer = self._cluster.call(consumer.OffsetForLeaderEpochRequest, node, replica_id=-1, topics=topics)
            part = answer.topics[0].partitions[0]
            check(part.error_code, self.path)
            return int(part.end_offset)

        found = self._cluster.retry(attempt, topics=[self._place[0]])
        return self.visible_offset if found < 0 else found

    @property
    def size_bytes(self) -> int:
        """Size of all batches; 0 if the broker does not tell."""
        return _sizes(self._cluster, [self._place]).get(self._place, 0)

    @property
    def segments(self) -> Sequence[SegmentInfo]:
        """Empty: the protocol has no segments."""
        return ()

    # --- reading

    def fetch(
        self,
        start: int,
        max_bytes: int = 1 << 20,
        *,
        min_bytes: int = 0,
        timeout: float | None = 0.0,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """Return whole batches as stored, from the one that contains `start`. `BrokerTimeout` if the broker withholds
        batches that exist."""
        if min_bytes or timeout:
            raise unsupported(self.path, "fetch() with min_bytes or timeout; RemoteStore.wait() waits for records")
        committed, patience = is_committed(isolation), Deadline(self._cluster.timeout_s)
        wait_ms = 0
        while True:
            try:
                found = _fetch(
                    self._cluster, {self._place: start}, max_bytes=max_bytes, wait_ms=wait_ms, committed=committed
                )
            except OffsetOutOfRange as error:  # the response may lack the ends
                raise OffsetOutOfRange(start, self.lowest_offset, self.visible_offset, self.path) from error
            part = found[self._place]
            data = memoryview(part.records or b"")
            rows = whole_batches(data)
            stable = part.last_stable_offset
            if len(rows):
                end, following = int(rows[-1, POSITION] + rows[-1, SIZE]), int(rows[-1, LAST]) + 1
                return Fetched((data[:end],), following, stable, _aborted(part), start, self._place)
            if start >= (stable if committed else part.high_watermark):
                return Fetched((), start, stable)
            if patience.passed:
                raise BrokerTimeout(f"{self.path}: the broker sends nothing from offset {start} on")
            wait_ms = _WAIT_MS

    def _watch(self, call: Callable[[], None]) -> Callable[[], None]:
        raise unsupported(self.path, "watch(); RemoteStore.wait() waits for records")

    # --- writing

    def append_batches(
        self,
        raw: bytes | bytearray | memoryview,
        *,
        trusted: bool = False,
        wait: bool = True,
        expect_offset: int | None = None,
    ) -> range:
        """Append encoded batches, one request each, and return their offsets. Every append waits until it is stored."""
        if expect_offset is not None:
            raise unsupported(self.path, "expect_offset: Kafka's protocol has no conditional append")
        data = memoryview(bytearray(raw))
        first = following = -1
        for row in rows_of(data):
            batch = data[row[POSITION] : row[POSITION] + row[SIZE]]
            offset = self._sender.send(self._place, batch)
            first, following = offset if first < 0 else first, offset + _count(batch)
        return range(first, following)

    def append_arrow(self, table: Any, expect_offset: int | None = None) -> range:
        if expect_offset is not None:
            raise unsupported(self.path, "expect_offset: Kafka's protocol has no conditional append")
        first = following = -1
        for batch in Encoder(self._recipe).table(table, min(BATCH_BYTES, self._recipe.max_batch_bytes)):
            offset = self._sender.send(self._place, batch.data)
            first, following = offset if first < 0 else first, offset + batch.count
        return range(first, following)

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record whose value comes in chunks. It is collected in memory and must fit into one batch."""
        value, largest = bytearray(), self._recipe.max_batch_bytes
        for chunk in chunks:
            value += chunk
            if len(value) > largest:
                raise RecordTooLarge(f"the record is larger than {largest:,} bytes, the largest that {self.path} takes")
        return super().append_stream(
            [bytes(value)], key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
        )

    def _when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back at once: appends over the network are acknowledged before they return."""
        call(None)

    def sync(self) -> None:
        """No-op: every append has waited for the durability that the topic is configured with."""

    def trim(self, offset: int) -> int:
        before = self.lowest_offset
        parts = [{"partition_index": self._place[1], "offset": offset}]
        topics = [{"name": self._place[0], "partitions": parts}]

        def attempt() -> int:
            node = self._cluster.leader(self._place)
            answer = self._cluster.call(admin.DeleteRecordsRequest, node, topics=topics, timeout_ms=30_000)
            [part] = answer.topics[0].partitions
            check(part.error_code, self.path)
            return int(part.low_watermark)

        return self._cluster.retry(attempt, topics=[self._place[0]]) - before

    def verify(self) -> VerifyReport:
        raise unsupported(self.path, "verify(); run `sawlog verify -d DIR` where the files are")


class _Sender:
    """Idempotent producer: it numbers batches, so that a batch whose acknowledgement was lost can be sent again and is
    stored once. A broker without producer ids gets each batch once, and an error says that its outcome is unknown.
    Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.RLock()
        self._producer: tuple[int, int] | None = None
        self._sequences: defaultdict[TopicPartition, int] = defaultdict(int)

    def send(self, place: TopicPartition, batch: memoryview) -> int:
        """Store a batch and return its first offset. Numbers the batch in place."""
        with self._lock:
            ours = self._number(place, batch)
            try:
                offset = self._cluster.retry(lambda: self._place(place, batch), topics=[place[0]], once=not ours)
            except (BrokerUnavailable, BrokerTimeout):
                # Its outcome is unknown and the caller may send it again, unchanged. Another batch must not get its
                # number: the broker would take it for a repetition and drop it.
                self._producer = None
                self._sequences.clear()
                raise
            if ours and _PRODUCER.unpack_from(batch, _PRODUCER_AT)[0] == (self._producer or (-1,))[0]:
                self._sequences[place] = (self._sequences[place] + _count(batch)) % _SEQUENCES
            return offset

    def _number(self, place: TopicPartition, batch: memoryview) -> bool:
        """Give a batch the next sequence number if it has none; return whether it may be sent again."""
        if _PRODUCER.unpack_from(batch, _PRODUCER_AT)[0] >= 0:
            return True
        if self._producer is None:
            self._producer = self._cluster.retry(self._new_producer)
        if self._producer[0] < 0:
            return False
        _PRODUCER.pack_into(batch, _PRODUCER_AT, *self._producer, self._sequences[place])
        kernel.patch_crc(batch, 0, crc32c(batch[_CHECKED_FROM:]))
        return True

    def _new_producer(self) -> tuple[int, int]:
        if not self._cluster.supports(producer.InitProducerIdRequest):
            return -1, -1
        found = self._cluster.call(producer.InitProducerIdRequest, transactional_id=None, transaction_timeout_ms=60_000)
        check(found.error_code, f"a producer id from {self._cluster.name}")
        return found.producer_id, found.producer_epoch

    def _place(self, place: TopicPartition, batch: memoryview) -> int:
        topic, number = place
        answer = self._cluster.call(
            producer.ProduceRequest,
            self._cluster.leader(place),
            max_version=_PRODUCE_VERSION,
            transactional_id=None,
            acks=_ALL_REPLICAS,
            timeout_ms=round(self._cluster.timeout_s * 1000),
            topic_data=[{"name": topic, "partition_data": [{"index": number, "records": bytes(batch)}]}],
        )
        part = answer.responses[0].partition_responses[0]
        if part.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # stored before
            check(part.error_code, f"partition {number} of {topic!r} at {self._cluster.name}", part.error_message)
        return int(part.base_offset)


def _count(batch: memoryview) -> int:
    """Return the number of offsets of a batch."""
    return int.from_bytes(batch[23:27]) + 1


def whole_batches(data: memoryview) -> Rows:
    """Return the headers of the complete batches in a response, which may end within a batch."""
    rows, stopped, why = scan_rows(data)
    if why not in (kernel.SCAN_END, kernel.SCAN_SHORT):
        raise CorruptBatch(f"the broker sent something that is no batch, at byte {stopped} of its answer")
    return rows


def _aborted(part: Any) -> tuple[tuple[int, int], ...]:
    """Return (producer id, first offset) of the aborted transactions in a response, by offset."""
    found = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
    return tuple(sorted(found, key=lambda each: each[1]))


# --- requests to the leaders of several partitions


def _sizes(cluster: Cluster, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the size of each partition in bytes, as far as the brokers tell it."""

    def ask(leader: int, led: list[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = by_topic(led, lambda place: place[1])
        topics = [{"topic": name, "partitions": numbers} for name, numbers in wanted.items()]
        results = cluster.call(admin.DescribeLogDirsRequest, leader, topics=topics).results
        for result in results:
            check(result.error_code, f"the sizes at {cluster.name}")
        return {
            (topic.name, part.partition_index): part.partition_size
            for result in results
            for topic in result.topics
            for part in topic.partitions
            if not part.is_future_key
        }

    return cluster.ask_leaders(places, ask) if cluster.supports(admin.DescribeLogDirsRequest) else {}


def _fetch(
    cluster: Cluster, starts: Mapping[TopicPartition, int], *, max_bytes: int, wait_ms: int, committed: bool
) -> dict[TopicPartition, Any]:
    """Fetch from these offsets on; blocks for up to `wait_ms` at each leader. `OffsetOutOfRange`."""

    def wanted(place: TopicPartition) -> dict[str, int]:
        return {"partition": place[1], "fetch_offset": starts[place], "partition_max_bytes": max_bytes}

    def ask(leader: int, led: list[TopicPartition]) -> dict[TopicPartition, Any]:
        answer = cluster.call(
            consumer.FetchRequest,
            leader,
            wait_s=wait_ms / 1000,
            max_version=_FETCH_VERSION,
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[{"topic": name, "partitions": parts} for name, parts in by_topic(led, wanted).items()],
        )
        check(answer.error_code, f"a fetch from {cluster.name}")
        found = {(each.topic, part.partition_index): part for each in answer.responses for part in each.partitions}
        for place, part in found.items():
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                lowest = max(part.log_start_offset, 0)
                raise OffsetOutOfRange(starts[place], lowest, part.high_watermark, f"{place[0]}/{place[1]}")
            check(part.error_code, f"offset {starts[place]} of partition {place[1]} of {place[0]!r}")
        return found

    return cluster.ask_leaders(starts, ask)
