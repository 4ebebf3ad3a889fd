"""`Router`: which partition of a topic a record goes to, and batches for each of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

from ..batch.build import Encoder
from ..batch.kernel import Record
from ..config import LogConfig
from ..errors import InvalidRecord
from ..log.write.encoders import recipe_of
from .partitioner import Sticky, partition_for


def key_of(record: Any) -> Any:
    """The key of a record in any of the forms that `append_many` accepts."""
    if isinstance(record, Record):
        return record.key
    if isinstance(record, dict):
        return record.get("key")
    return record[1] if isinstance(record, tuple) and len(record) > 1 else None


class Routed(Protocol):
    """A topic, as its router sees it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def partitions(self) -> int:
        """How many there are now."""

    @property
    def keyed(self) -> bool:
        """Whether every record needs a key."""

    @property
    def config(self) -> LogConfig:
        """How batches are made."""

    def check_number(self, number: object) -> None:
        """Raise `TopicNotFound` if there is no such partition."""


class Router:
    """Routes the records of a topic."""

    def __init__(self, topic: Routed) -> None:
        self._topic = topic
        self._sticky = Sticky(topic.partitions)

    def together(self, size_bytes: int) -> int:
        """The partition for records without a key, which stay together until they are enough for a batch."""
        if self._sticky.partitions != self._topic.partitions:  # some were added
            self._sticky = Sticky(self._topic.partitions)
        return self._sticky.take(size_bytes)

    def place_for(self, value: bytes | None, key: bytes | None, partition: int | None = None) -> int:
        """The partition that a record goes to."""
        if key is None:
            self.refuse_keyless()
        if partition is not None:
            self._topic.check_number(partition)
            return partition
        if key is not None:
            return partition_for(key, self._topic.partitions)
        return self.together(len(value) if isinstance(value, (bytes, bytearray, memoryview)) else 0)

    def refuse_keyless(self) -> None:
        """Raise if a record without a key cannot be accepted."""
        if self._topic.keyed:
            raise InvalidRecord(
                f"the topic {self._topic.name!r} keeps the last record of each key (cleanup.policy), so a record needs "
                "a key"
            )

    def split(self, records: list[Any], partition: int | None = None) -> dict[int, list[Any]]:
        """Which records go where; those without a key stay together."""
        if not records:
            raise InvalidRecord("no record to append")
        if self._topic.keyed and any(key_of(record) is None for record in records):
            self.refuse_keyless()
        if partition is not None or self._topic.partitions == 1:
            return {0 if partition is None else partition: records}
        partitions, together = self._topic.partitions, self.together(0)
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record in records:
            key = record[1] if type(record) is tuple and len(record) > 1 else key_of(record)
            parts[together if key is None else partition_for(key, partitions)].append(record)
        return parts

    def encoded(self, records: list[Any], partition: int | None = None) -> dict[int, bytearray]:
        """One batch for each partition that records go to."""
        parts = self.split(records, partition)
        return {number: bytearray(self.encode(each)) for number, each in sorted(parts.items())}

    def encode(self, records: list[Any]) -> bytes:
        """One batch of these records."""
        return bytes(Encoder(recipe_of(self._topic.config)).many(records).data)
