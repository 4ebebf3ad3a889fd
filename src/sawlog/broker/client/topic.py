"""`RemoteTopic`: a topic behind a broker, with those methods of a `Topic` that the protocol can serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...batch.build import Encoder, EncoderOptions
from ...batch.inputs import HeadersInput, RecordInput
from ...errors import InvalidRecord
from ...log.encoding import recipe_of
from ...log.writer import BATCH_BYTES
from ...store import settings
from ...store.base import Position
from ...store.partitioner import Sticky, key_of, partition_for, partitions_for
from ...store.writer import Packer
from ..wire.apis import Key
from . import asking
from .cluster import Cluster, Place
from .log import RemoteLog
from .producing import Sender
from .refusals import check

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """Information about one partition; None is what the protocol does not tell."""

    partition: int
    lowest_offset: int
    next_offset: int
    records: int
    size_bytes: int | None
    segments: int | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteDescription:
    """Information about a topic; None is what the protocol does not tell."""

    name: str
    id: str | None
    partitions: int
    settings: dict[str, settings.Value]
    created_ms: int | None
    records: int
    size_bytes: int | None
    rows: tuple[RemotePartition, ...]


class RemoteTopic:
    """A topic. `RemoteStore.topic` returns it; partitions and settings are as of then."""

    def __init__(
        self, cluster: Cluster, name: str, id: str | None, partitions: int, given: dict[str, settings.Value]
    ) -> None:
        self._cluster = cluster
        self.name = name
        #: The unique id; None if the broker is too old to have one.
        self.id = id
        self.partitions = partitions
        #: The settings that were given, under Kafka's names.
        self.settings = given
        self._sender = Sender(cluster, name)
        self._sticky = Sticky(partitions)
        self._config = settings.log_config(_ours(given))
        self._recipe = self._limited(recipe_of(self._config))

    def __repr__(self) -> str:
        return f"<RemoteTopic {self.name} partitions={self.partitions} at {self._cluster.name}>"

    def partition(self, number: int) -> RemoteLog:
        """One partition."""
        return RemoteLog(self._cluster, (self.name, number), self._config, self._recipe, self._sender)

    def _places(self) -> list[Place]:
        return [(self.name, number) for number in range(self.partitions)]

    def describe(self) -> RemoteDescription:
        """Its settings, and how much it contains."""
        places = self._places()
        lowest = asking.list_offsets(self._cluster, dict.fromkeys(places, asking.EARLIEST))
        ends = asking.list_offsets(self._cluster, dict.fromkeys(places, asking.LATEST))
        sizes = asking.sizes(self._cluster, places)
        rows = tuple(
            RemotePartition(
                place[1],
                lowest[place].offset,
                ends[place].offset,
                ends[place].offset - lowest[place].offset,
                sizes.get(place),
            )
            for place in places
        )
        known = [row.size_bytes for row in rows if row.size_bytes is not None]
        return RemoteDescription(
            self.name,
            self.id,
            self.partitions,
            self.settings,
            None,
            sum(row.records for row in rows),
            sum(known) if known else None,
            rows,
        )

    # --- writing

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: Any = None,
        *,
        partition: int | None = None,
    ) -> Position:
        """Append one record and return its position."""
        number = partition
        if number is None:
            number = self._sticky.take(len(value or b"")) if key is None else partition_for(key, self.partitions)
        batch = Encoder(self._recipe).one(value, key, headers, timestamp, self._sender.producer(number))
        return Position(number, self._sender.place(number, batch))

    def append_many(self, records: Iterable[RecordInput], *, partition: int | None = None) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets."""
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        together = self._sticky.take(0)
        for record in records:
            key = key_of(record)
            number = together if key is None else partition_for(key, self.partitions)
            parts[number if partition is None else partition].append(record)
        if not parts:
            raise InvalidRecord("no record to append")
        placed: dict[int, range] = {}
        for number, some in sorted(parts.items()):
            batch = Encoder(self._recipe).many(some, self._sender.producer(number))
            first = self._sender.place(number, batch)
            placed[number] = range(first, first + batch.count)
        return placed

    def append_arrow(self, table: pa.Table | pa.RecordBatch, *, partition: int | None = None) -> dict[int, range]:
        """Append the rows of an Arrow table, by their keys, and return their offsets."""
        keys = table.column("key") if "key" in table.schema.names else None
        if partition is not None or self.partitions == 1 or keys is None:
            number = self._sticky.take(table.nbytes) if partition is None else partition
            return {number: self._append_rows(number, table)}
        chosen = partitions_for(keys, self.partitions, self._sticky.take(0))
        numbers: list[int] = np.unique(chosen).tolist()
        return {number: self._append_rows(number, table.take(np.flatnonzero(chosen == number))) for number in numbers}

    def _append_rows(self, number: int, table: pa.Table | pa.RecordBatch) -> range:
        first = last = -1
        for batch in Encoder(self._recipe).table(table, min(BATCH_BYTES, self._recipe.max_batch_bytes)):
            at = self._sender.place(number, batch)
            first, last = at if first < 0 else first, at + batch.count
        return range(first, last)

    def writer(self, *, linger_ms: float | None = None) -> Packer:
        """Collects records into batches, per partition."""
        return self._packer(self._recipe, None, linger_ms)

    def partition_writer(self, partition: int, *, linger_ms: float | None = None) -> Packer:
        """The same for one partition."""
        return self._packer(self._recipe, partition, linger_ms)

    def packer(self, compression: str, *, partition: int | None = None, linger_ms: float | None = None) -> Packer:
        """The same with another compression than the topic's, for all partitions or for one."""
        recipe = recipe_of(self._config.with_(compression=compression, compression_level=None))
        return self._packer(self._limited(recipe), partition, linger_ms)

    def _packer(self, recipe: EncoderOptions, partition: int | None, linger_ms: float | None) -> Packer:
        sender = self._sender
        return Packer(
            self.partitions, sender.place, recipe, partition=partition, producer=sender.producer, linger_ms=linger_ms
        )

    def _limited(self, recipe: EncoderOptions) -> EncoderOptions:
        """With the largest batch that the broker takes, and without a time: the broker sets that of the append."""
        largest = int(settings.serving(self.settings)["max.message.bytes"])
        return replace(recipe, append_time=False, max_batch_bytes=largest)

    def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets and return how many."""
        places = {(self.name, number): offset for number, offset in offsets.items()}
        before = asking.list_offsets(self._cluster, dict.fromkeys(places, asking.EARLIEST))
        dropped = 0
        for leader, led in self._cluster.by_leader(places).items():
            parts = [{"partition_index": place[1], "offset": places[place]} for place in led]
            request = {"topics": [{"name": self.name, "partitions": parts}], "timeout_ms": 30_000}
            for part in leader.call(Key.DELETE_RECORDS, request)["topics"][0]["partitions"]:
                number = part["partition_index"]
                check(part["error_code"], f"partition {number} of {self.name!r}")
                dropped += part["low_watermark"] - before[self.name, number].offset
        return dropped


def _ours(given: Mapping[str, settings.Value]) -> dict[str, settings.Value]:
    """The settings that sawlog knows: another broker has others."""
    return {name: value for name, value in given.items() if name in settings.SETTINGS}
