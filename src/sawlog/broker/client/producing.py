"""Sends batches to partitions and waits until they are stored.

With an idempotent producer: each batch has a sequence number, so one whose answer was lost is sent again, and the
broker stores it once. A batch without one, or for a broker that does not offer that, is sent once; if its answer is
lost, the error says so.
"""

from __future__ import annotations

import threading
from typing import Final

from ...batch.build import NO_PRODUCER, Encoded, Producer
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from ..wire.schema import Body
from .cluster import Cluster
from .refusals import check

_ALL_REPLICAS: Final = -1
#: Where a batch has the id of its producer.
_PRODUCER_ID: Final = slice(43, 51)
#: Sequence numbers start again at 0 after the largest int32.
_SEQUENCES: Final = 1 << 31


class Sender:
    """Stores batches in the partitions of one topic, in order. Thread-safe."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.RLock()
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    def producer(self, number: int) -> Producer:
        """Who the next batch for a partition comes from."""
        with self._lock:
            if self._identity is None:
                self._identity = self._new_identity()
            if self._identity[0] < 0:
                return NO_PRODUCER
            return Producer(*self._identity, self._sequences.get(number, 0))

    def _new_identity(self) -> tuple[int, int]:
        """An id from the broker; (-1, -1) if it does not give any."""

        def attempt() -> tuple[int, int]:
            broker = self._cluster.any()
            if not broker.knows(Key.INIT_PRODUCER_ID):
                return -1, -1
            found = broker.call(Key.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout_ms": 60_000})
            check(found["error_code"], f"a producer id from {broker.address}")
            return found["producer_id"], found["producer_epoch"]

        return self._cluster.patiently(attempt)

    def place(self, number: int, batch: Encoded) -> int:
        """Store a batch and return its first offset."""
        with self._lock:
            numbered = int.from_bytes(batch.data[_PRODUCER_ID], signed=True) >= 0
            offset = self._cluster.patiently(
                lambda: self._send(number, batch.data), topics=[self._topic], once=not numbered
            )
            if numbered:
                self._sequences[number] = (self._sequences.get(number, 0) + batch.count) % _SEQUENCES
            return offset

    def _send(self, number: int, data: memoryview) -> int:
        place = self._topic, number
        leader = self._cluster.leader(place)
        request: Body = {
            "acks": _ALL_REPLICAS,
            "timeout_ms": round(self._cluster.timeout_s * 1000),
            "topic_data": [{"name": self._topic, "partition_data": [{"index": number, "records": data}]}],
        }
        answer = leader.call(Key.PRODUCE, request)
        part = answer["responses"][0]["partition_responses"][0]
        if part["error_code"] == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return int(part["base_offset"])  # it was stored before
        check(part["error_code"], f"partition {number} of {self._topic!r} at {leader.address}", part["error_message"])
        return int(part["base_offset"])
