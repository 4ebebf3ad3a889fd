"""Encodes records as batches.

`encode` makes one batch of Python objects, `encode_table` makes batches of an Arrow table. Both use the buffers of an
`Encoder`, which is kept and reused: on the machines that we measured, touching fresh memory costs more than encoding
into it. What an encoder returns is valid until it is used again.

Bad input raises `InvalidRecord` or a related error before anything is encoded or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..clock import now_ms
from ..errors import InvalidRecord, InvalidRecordType
from . import kernel
from .checksum import crc32c
from .compression import DEFAULT_MAX, codec_id, compress
from .header import HEADER_BYTES, TIMESTAMP_TYPE_BIT
from .inputs import GivenRecord, refuse

if TYPE_CHECKING:
    import pyarrow as pa

    from .arrow import RecordColumns

#: Kafka stores a batch's length as a signed 32-bit number.
MAX_BATCH_BYTES = 2**31 - 1
#: A larger buffer is released instead of being kept for the next batch.
KEEP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of an idempotent batch: id, epoch and the sequence number of its first record."""

    id: int = -1
    epoch: int = -1
    sequence: int = -1

    def __post_init__(self) -> None:
        for name, most in (("id", 2**63 - 1), ("epoch", 2**15 - 1), ("sequence", 2**31 - 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= most:
                raise InvalidRecord(f"a producer's {name} must be an integer from -1 (none) to {most}, not {value!r}")
        if len({self.id < 0, self.epoch < 0, self.sequence < 0}) > 1:
            raise InvalidRecord(f"a producer needs id, epoch and sequence, or none of them, not {self}")


NOBODY = Producer()


#: A finished batch without its place in a log: `data`, `count`, `base_timestamp`, `max_timestamp`.
Encoded = kernel.Encoded


@dataclass(frozen=True, slots=True)
class Recipe:
    """How batches are made: codec, its level, who sets the timestamp, and size limits."""

    codec: int = 0
    level: int | None = None
    append_time: bool = False
    max_record_bytes: int = 0
    max_batch_bytes: int = MAX_BATCH_BYTES
    #: The maximum that readers will decompress: a batch that would be larger is stored uncompressed.
    max_unpacked_bytes: int = DEFAULT_MAX


class Encoder:
    """Encodes batch after batch in one buffer that it keeps. Not thread-safe."""

    __slots__ = ("_builder", "_recipe", "_scratch")

    def __init__(self, recipe: Recipe = Recipe()) -> None:
        self._recipe = recipe
        self._builder = kernel.BatchBuilder(
            refuse, max_record=recipe.max_record_bytes, max_total=recipe.max_batch_bytes, capacity=64 << 10
        )
        self._scratch = bytearray()

    def one(self, value: Any, key: Any, headers: Any, timestamp: Any, producer: Producer = NOBODY) -> Encoded:
        """A batch of one record."""
        builder = self._builder
        builder.reset(KEEP_BYTES)
        builder.add(value, key, headers, timestamp)
        return finish(builder, self._recipe, producer)

    def many(self, records: Iterable[GivenRecord], producer: Producer = NOBODY) -> Encoded:
        """One batch of all the records (at least one)."""
        builder = self._builder
        builder.reset(KEEP_BYTES)
        try:
            source = iter(records)
        except TypeError as error:
            raise InvalidRecordType(f"records must be an iterable of records: {error}") from error
        builder.extend(source)
        if builder.count == 0:
            raise InvalidRecord("no record to append")
        return finish(builder, self._recipe, producer)

    def table(self, table: pa.Table | pa.RecordBatch, batch_bytes: int) -> Iterator[Encoded]:
        """Batches of about `batch_bytes` with the rows of an Arrow table, in order. Each is valid until the next."""
        from .arrow import record_columns

        now = now_ms()
        return self._table(record_columns(table, now, self._recipe.max_record_bytes), batch_bytes, now)

    def _table(self, chunks: Iterator[RecordColumns], batch_bytes: int, now: int) -> Iterator[Encoded]:
        usual = HEADER_BYTES + batch_bytes + 4096  # space for the record that crosses the limit
        for columns in chunks:
            row = 0
            while row < columns.rows:
                if not usual <= len(self._scratch) <= max(usual, KEEP_BYTES):
                    self._scratch = bytearray(usual)
                first = row
                row, end, base, top = self._encode(columns, first, batch_bytes, now)
                if row == first:  # one record larger than batch_bytes
                    self._scratch = bytearray(HEADER_BYTES + columns.bound(row))
                    row, end, base, top = self._encode(columns, first, batch_bytes, now)
                while end > self._recipe.max_batch_bytes and row - first > 1:  # the last one goes into the next batch
                    row, end, base, top = self._encode(columns, first, batch_bytes, now, row - 1)
                if end > self._recipe.max_batch_bytes:
                    raise refuse("batch_too_large", end, self._recipe.max_batch_bytes)
                yield seal(self._scratch, end, row - first, base, top, self._recipe)

    def _encode(
        self, columns: RecordColumns, first: int, batch_bytes: int, now: int, last: int | None = None
    ) -> tuple[int, int, int, int]:
        last = columns.rows if last is None else last
        try:
            made: tuple[int, int, int, int] = kernel.encode_arrow(
                memoryview(self._scratch), HEADER_BYTES, first, last, batch_bytes, now, *columns.buffers
            )
            return made
        except ValueError as error:
            raise InvalidRecord(f"the table is damaged: {error}; nothing was stored") from error


def finish(builder: kernel.BatchBuilder, recipe: Recipe, producer: Producer = NOBODY) -> Encoded:
    """Finish a builder's batch: compress, write the header, compute the CRC."""
    if recipe.codec == 0:
        attributes, newest = (TIMESTAMP_TYPE_BIT, now_ms()) if recipe.append_time else (0, -1)
        made: Encoded = builder.finish(attributes, newest, producer.id, producer.epoch, producer.sequence, crc32c)
        return made
    return seal(
        builder.buffer,
        builder.position,
        builder.count,
        builder.base_timestamp,
        builder.max_timestamp,
        recipe,
        producer,
    )


def seal(
    buffer: bytearray,
    end: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    recipe: Recipe,
    producer: Producer = NOBODY,
) -> Encoded:
    """Turn records at 61 to `end` of a buffer into a batch that starts at 0 of a buffer."""
    codec = recipe.codec
    if codec:
        packed = compress(
            codec, memoryview(buffer)[HEADER_BYTES:end], recipe.level, max_bytes=recipe.max_unpacked_bytes
        )
        if packed is None:  # it would not be smaller, or could not be read again
            codec = 0
        else:
            buffer = bytearray(HEADER_BYTES + len(packed))
            buffer[HEADER_BYTES:] = packed
            end = len(buffer)
    attributes = codec
    if recipe.append_time:
        attributes |= TIMESTAMP_TYPE_BIT
        max_timestamp = now_ms()
    data = memoryview(buffer)[:end]
    kernel.write_header(
        data,
        0,
        0,
        end,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer.id,
        producer.epoch,
        producer.sequence,
        count,
    )
    kernel.patch_crc(data, 0, crc32c(data[21:]))
    return Encoded(data, count, base_timestamp, max_timestamp)


def encode(
    records: Iterable[GivenRecord],
    *,
    compression: str = "none",
    base_offset: int = 0,
    producer: Producer = NOBODY,
    append_time: bool = False,
) -> bytes:
    """One batch of records: bytes, `Record`s, dicts, or (value, key, headers, timestamp) tuples."""
    if not 0 <= base_offset < 2**62:
        raise InvalidRecord(f"a base offset must be an integer from 0 to 2**62 - 1, not {base_offset}")
    encoder = Encoder(Recipe(codec_id(compression), append_time=append_time))
    batch = encoder.many(records, producer).data
    kernel.patch_place(batch, 0, base_offset, 0)
    return bytes(batch)
