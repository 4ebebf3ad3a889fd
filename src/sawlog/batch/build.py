"""Encode records as batches.

`Encoder.many` makes one batch from Python objects, `Encoder.table` makes batches from an Arrow table. An encoder reuses
its buffers: on the machines we measured, touching fresh memory costs more than encoding into it. So each result is
valid only until the encoder's next use. `encode` is the simple form that returns bytes.

Invalid input raises `InvalidRecord` or a subclass before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..clock import now_ms
from ..errors import CorruptBatch, InvalidRecord, InvalidRecordType
from . import kernel
from .checksum import crc32c
from .codecs import DEFAULT_MAX
from .compression import codec_id, compress, decompress
from .header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    BASE_TIME,
    BODY,
    BODY_END,
    COMPRESSION_MASK,
    COUNT,
    HEADER_BYTES,
    LEADER_EPOCH,
    MAX_TIME,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    Rows,
)
from .inputs import RecordInput, record_error
from .read import MALFORMED

if TYPE_CHECKING:
    import pyarrow as pa

    from .arrow import RecordColumns

#: Kafka stores a batch's length as a signed 32-bit number.
MAX_BATCH_BYTES = 2**31 - 1
#: A larger buffer is released instead of being kept for the next batch.
KEEP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Producer:
    """Producer of an idempotent batch: id, epoch, and the sequence number of the batch's first record."""

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


NO_PRODUCER = Producer()


#: A finished batch without an offset: `data`, `count`, `base_timestamp`, `max_timestamp`.
Encoded = kernel.Encoded


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of an encoder: codec and level, log-append or producer timestamps, and size limits."""

    codec: int = 0
    level: int | None = None
    append_time: bool = False
    max_record_bytes: int = 0
    max_batch_bytes: int = MAX_BATCH_BYTES
    #: Limit on the decompressed size for readers; a larger batch is stored uncompressed.
    max_unpacked_bytes: int = DEFAULT_MAX


class Encoder:
    """Encodes batches in a buffer that it reuses. Not thread-safe."""

    __slots__ = ("_builder", "_recipe", "_scratch")

    def __init__(self, recipe: EncoderOptions = EncoderOptions()) -> None:
        self._recipe = recipe
        self._builder = kernel.BatchBuilder(
            record_error, max_record=recipe.max_record_bytes, max_total=recipe.max_batch_bytes, capacity=64 << 10
        )
        self._scratch = bytearray()

    def one(self, value: Any, key: Any, headers: Any, timestamp: Any) -> Encoded:
        builder = self._builder
        builder.reset(KEEP_BYTES)
        builder.add(value, key, headers, timestamp)
        return finish(builder, self._recipe)

    def many(self, records: Iterable[RecordInput], producer: Producer = NO_PRODUCER) -> Encoded:
        """Encode all records, at least one, as one batch."""
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
        """Yield batches of about `batch_bytes` with the rows of a table, in order. Each is valid until the next."""
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
                while end > self._recipe.max_batch_bytes and row - first > 1:  # move the last record to the next batch
                    row, end, base, top = self._encode(columns, first, batch_bytes, now, row - 1)
                if end > self._recipe.max_batch_bytes:
                    raise record_error("batch_too_large", end, self._recipe.max_batch_bytes)
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


def finish(builder: kernel.BatchBuilder, recipe: EncoderOptions, producer: Producer = NO_PRODUCER) -> Encoded:
    """Finish a builder's batch: compress it, write the header, compute the CRC."""
    if recipe.codec == 0:
        attributes, newest = (TIMESTAMP_TYPE_BIT, now_ms()) if recipe.append_time else (0, -1)
        made: Encoded = builder.finish(attributes, newest, producer.id, producer.epoch, producer.sequence, crc32c)
        return made
    times = builder.base_timestamp, builder.max_timestamp
    return seal(builder.buffer, builder.position, builder.count, *times, recipe, producer)


def seal(
    buffer: bytearray,
    end: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    recipe: EncoderOptions,
    producer: Producer = NO_PRODUCER,
) -> Encoded:
    """Turn the encoded records at positions 61 to `end` of a buffer into a complete batch, compressed if configured."""
    codec = recipe.codec
    if codec:
        packed = compress(
            codec, memoryview(buffer)[HEADER_BYTES:end], recipe.level, max_bytes=recipe.max_unpacked_bytes
        )
        if packed is None:  # not smaller, or readers would reject it
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
    numbers = (attributes, count - 1, base_timestamp, max_timestamp, producer.id, producer.epoch, producer.sequence)
    kernel.write_header(data, 0, 0, end, 0, *numbers, count)
    kernel.patch_crc(data, 0, crc32c(data[21:]))
    return Encoded(data, count, base_timestamp, max_timestamp)


def encode(
    records: Iterable[RecordInput],
    *,
    compression: str = "none",
    base_offset: int = 0,
    producer: Producer = NO_PRODUCER,
    append_time: bool = False,
) -> bytes:
    """Encode records as one batch: bytes, `Record`s, dicts, or (value, key, headers, timestamp) tuples."""
    if not 0 <= base_offset < 2**62:
        raise InvalidRecord(f"a base offset must be an integer from 0 to 2**62 - 1, not {base_offset}")
    encoder = Encoder(EncoderOptions(codec_id(compression), append_time=append_time))
    batch = encoder.many(records, producer).data
    kernel.patch_place(batch, 0, base_offset, 0)
    return bytes(batch)


def head_of(
    view: memoryview, row: Rows, offset: int, compression: str, compression_level: int | None, max_bytes: int
) -> bytes:
    """Rebuild the batch of a header row with only its records below `offset`, byte for byte unchanged. A batch that is
    compressed with `compression` gets that level, others the default. `CorruptBatch` if it cannot be read."""
    base, attributes = int(row[BASE]), int(row[ATTRIBUTES])
    body, start, end = view, int(row[BODY]), int(row[BODY_END])
    codec = attributes & COMPRESSION_MASK
    if codec:
        body = decompress(codec, view[start:end], max_bytes=max_bytes)
        start, end = 0, len(body)
    count, end, newest = kernel.head_of(body, start, end, int(row[COUNT]), offset - base, int(row[BASE_TIME]))
    if count < 0:
        raise CorruptBatch(MALFORMED)
    level = compression_level if codec == codec_id(compression) else None
    packed = compress(codec, body[start:end], level, max_bytes=max_bytes) if codec else None
    if packed is None:
        attributes, packed = attributes & ~COMPRESSION_MASK, body[start:end]
    made = bytearray(HEADER_BYTES + len(packed))
    made[HEADER_BYTES:] = packed
    base_time, epoch, *producer = row[[BASE_TIME, LEADER_EPOCH, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE]].tolist()
    newest = int(row[MAX_TIME]) if attributes & TIMESTAMP_TYPE_BIT else newest
    data = memoryview(made)
    kernel.write_header(
        data, 0, base, len(made), epoch, attributes, offset - 1 - base, base_time, newest, *producer, count
    )
    kernel.patch_crc(data, 0, crc32c(data[21:]))
    return bytes(made)
