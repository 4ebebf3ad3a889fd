"""Appending a record of unknown length without holding it in memory.

Chunks are gathered in a buffer. A stream that ends within 16 KiB is stored as `append` stores the same value, at the
same cost, except that streams are never compressed and `max_record_bytes` does not apply. A longer stream that ends
before the buffer is full is written at once. Beyond that, the value goes directly into the active segment: first a hole
for the batch header, then block after block, with a running CRC and length; at the end the hole is filled. The two
lengths before the value are varints padded to five bytes, so that their positions are fixed. The CRC of the patched
part and that of the streamed part are combined.

Until the header is written, the hole reads as zeros: for a reader in another process, and for recovery after a crash,
the log ends before it. Whatever fails (the stream is too long or raises, the disk is full, an interrupt), the segment
is truncated to its previous end. The stream holds the log's lock: other appends block, reads do not.

A value that is too long for the rest of the segment goes to the next one. What has been written of it is moved to a
file, and the segment is sealed only when the whole value is known to fit into an empty one.

An async stream may be slow and must not hold a lock across an await. It is collected in memory up to 16 KiB, beyond
that in a file of its own (`Spool`), and streamed from there once it is complete. Other appends continue meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from ..batch import kernel
from ..batch.checksum import combine, crc32c
from ..batch.header import HEADER_BYTES, TIMESTAMP_TYPE_BIT
from ..batch.inputs import HeadersInput, record_error
from ..clock import now_ms
from ..config import MAX_SEGMENT_BYTES, checked_count
from ..errors import InvalidRecordType, LogClosed, StorageError, StreamAborted, StreamTooLong
from ..storage import Storage
from ..storage.forking import this_process
from ..storage.interface import Buffer
from .appender import Appender, check_expected
from .files import TMP, file_name
from .segment import Segment

_COPY_BYTES = 1 << 20
#: Result of `kernel.gather_chunks`.
_Taken = tuple[list[bytes], tuple[object] | None, bool]
#: Record without key and headers: the bytes from its attributes to its key, and those after its value.
_PLAIN_BEFORE, _PLAIN_AFTER = b"\x00\x00\x00\x01", b"\x00"
#: Streams up to this length are appended like any other record, unless segments are small.
_SHORT_BYTES = 16 << 10
#: Chunks are gathered until there are this many bytes to write.
_BLOCK_BYTES = 256 << 10


class StreamedBatch:
    """Bytes around a streamed value, and the length and CRC of the value so far."""

    def __init__(self, key: Any, headers: Any, timestamp: Any, *, append_time: bool) -> None:
        self._before, self._after, self.timestamp = _around(key, headers, timestamp)
        self._append_time = append_time
        if append_time:
            self.timestamp = now_ms()
        self.prefix_bytes = HEADER_BYTES + 5 + len(self._before) + 5
        self.value_bytes = 0
        self._value_crc = 0

    @property
    def overhead_bytes(self) -> int:
        """Size of everything but the value."""
        return self.prefix_bytes + len(self._after)

    def take(self, chunk: bytes | bytearray | memoryview) -> None:
        """Count a chunk that is being written."""
        self._value_crc = crc32c(chunk, self._value_crc)
        self.value_bytes += len(chunk)

    @property
    def suffix(self) -> bytes:
        """Bytes after the value."""
        return self._after

    def prefix(self, base_offset: int, epoch: int) -> bytes:
        """Return the bytes before the value, once the value is complete."""
        length = len(self._before) + 5 + self.value_bytes + len(self._after)
        made = bytearray(HEADER_BYTES)
        stamp = now_ms() if self._append_time else self.timestamp
        attributes = TIMESTAMP_TYPE_BIT if self._append_time else 0
        self.max_timestamp = stamp
        size = self.overhead_bytes + self.value_bytes
        kernel.write_header(
            memoryview(made), 0, base_offset, size, epoch, attributes, 0, self.timestamp, stamp, -1, -1, -1, 1
        )
        made += _padded(length) + self._before + _padded(self.value_bytes)
        head = crc32c(memoryview(made)[21:])
        head = combine(head, self._value_crc, self.value_bytes)
        kernel.patch_crc(memoryview(made), 0, crc32c(self._after, head))
        return bytes(made)


def _around(key: Any, headers: Any, timestamp: Any) -> tuple[bytes, bytes, int]:
    """Return the bytes before a value in its record (without the two lengths), those after it, and the timestamp."""
    if key is None and not headers and timestamp is None:
        return _PLAIN_BEFORE, _PLAIN_AFTER, now_ms()
    # An ordinary batch with an empty value is the template.
    builder = kernel.BatchBuilder(record_error)
    builder.add(b"", key, headers, timestamp)
    record = bytes(memoryview(builder.buffer)[HEADER_BYTES : builder.position])
    key_bytes = b"" if key is None else bytes(key)
    _, at = _varint(record, 0)
    # attributes, timestamp delta 0 and offset delta 0 are one byte each
    _, key_at = _varint(record, at + 3)
    value_at = key_at + len(key_bytes)
    return record[at:value_at], record[value_at + 1 :], int(builder.base_timestamp)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _padded(number: int) -> bytes:
    """Encode a zig-zag varint in exactly five bytes, which every Kafka client tested accepts."""
    shifted = number << 1
    return bytes(((shifted >> 7 * i) & 127) | (128 if i < 4 else 0) for i in range(5))


def _check_chunk(chunk: object) -> bytes | bytearray | memoryview:
    if isinstance(chunk, (bytes, bytearray)):
        return chunk
    if isinstance(chunk, memoryview) and chunk.contiguous:
        return chunk.cast("B")
    raise InvalidRecordType(f"a stream must yield bytes, not {type(chunk).__name__}; nothing was stored")


def _check_length(value_bytes: int, bound: int, max_bytes: int | None) -> None:
    """Raise `StreamTooLong` if a value exceeds `max_bytes` or the space in an empty segment."""
    if max_bytes is not None and value_bytes > max_bytes:
        raise StreamTooLong(f"the stream exceeds max_bytes={max_bytes:,}; nothing was stored")
    if value_bytes > bound:
        raise StreamTooLong(
            f"the stream exceeds the {bound:,} bytes that fit into a segment; nothing was stored; raise "
            "segment_bytes or segment_overflow_bytes for longer records"
        )


def append_stream(
    appender: Appender,
    chunks: Iterable[bytes],
    key: Any,
    max_bytes: int | None,
    headers: HeadersInput,
    timestamp: int | None,
    expect_offset: int | None,
) -> int:
    """Append one record from an iterable of chunks and return its offset."""
    try:
        source = iter(chunks)
    except TypeError as error:
        raise InvalidRecordType(f"append_stream expects an iterable of bytes, not {type(chunks).__name__}") from error
    found = appender.placer.append_stream(source, _SHORT_BYTES, max_bytes, key, headers, timestamp, expect_offset)
    if type(found) is int:
        return found
    taken: _Taken | None = found
    most = (
        _short_bytes(appender)
        if max_bytes is None
        else min(_short_bytes(appender), checked_count("max_bytes", max_bytes, 0, "a number of bytes"))
    )
    with appender.hold():
        if expect_offset is not None:
            check_expected(expect_offset, appender.segments.next_offset)
        with appender.streaming:
            if taken is None:
                taken = kernel.gather_chunks(source, most + 1)
            if taken[2]:
                first: Buffer = b"".join(taken[0])
            else:
                blocks = Blocks(source, max_bytes, taken)
                first = blocks.take()
        if taken[2] or (blocks.ended and len(first) <= most):  # complete: a batch like any other
            offset = _append_short(appender, first, key, headers, timestamp)
        else:
            append_time = appender.encoders.recipe.append_time
            batch = StreamedBatch(key, headers, timestamp, append_time=append_time)
            offset = _append_long(appender, batch, first, blocks)
    appender.settle(offset + 1)
    return offset


def _short_bytes(appender: Appender) -> int:
    return min(_SHORT_BYTES, appender.config.segment_bytes // 4)


def _append_short(appender: Appender, value: Buffer, key: Any, headers: Any, timestamp: int | None) -> int:
    """Append a value as `Log.append` does, but uncompressed and without the limit `max_record_bytes`."""
    encoder = appender.stream_encoders.take()
    try:
        return appender.place(encoder.one(value, key, headers, timestamp)).start
    finally:
        appender.stream_encoders.give_back(encoder)


def _append_long(appender: Appender, batch: StreamedBatch, first: Buffer, blocks: Blocks) -> int:
    """Append the value that begins with the block `first`. The caller holds the lock."""
    active = appender.active
    blocks.bound = active.most_bytes - batch.overhead_bytes
    blocks.check()
    segment = active.segment_for_stream(batch.overhead_bytes + len(first) if blocks.ended else 1, batch.timestamp)
    with appender.appending() as offset, appender.streaming:
        if blocks.ended:
            batch.take(first)
            size = segment.size
            whole = b"".join((batch.prefix(offset, appender.durability.epoch), first, batch.suffix))
            active.write(memoryview(whole), offset + 1)
            segment.index.add(offset, size, len(whole), batch.max_timestamp)
        else:
            _stream(appender, segment, batch, first, blocks)
    return offset


def _stream(appender: Appender, segment: Segment, batch: StreamedBatch, first: Buffer, blocks: Blocks) -> None:
    """Write a value into the active segment block by block, then its header."""
    active, storage = appender.active, segment.storage
    active.truncate_leftover()
    storage.append(bytes(batch.prefix_bytes))
    block = first
    while block:
        batch.take(block)
        if segment.size + batch.overhead_bytes + batch.value_bytes > active.most_bytes:
            segment = _move(appender, segment, batch, block, blocks)
            storage = segment.storage
            break
        storage.reserve(len(block))
        storage.append(block)
        block = blocks.take()
    offset, size = segment.tail
    storage.append(batch.suffix)
    storage.write_at(size, batch.prefix(offset, appender.durability.epoch))
    segment.reach(offset + 1, storage.size)
    segment.index.add(offset, size, storage.size - size, batch.max_timestamp)


def _move(appender: Appender, segment: Segment, batch: StreamedBatch, block: Buffer, blocks: Blocks) -> Segment:
    """Move a value, of which `block` is next, to a new segment: it is too long for the rest of this one. It is
    collected in a file until its length is known, so that a stream that is too long for any segment changes nothing."""
    file = _new_file(appender)
    try:
        source = segment.storage
        for data in _portions(source.read, segment.size + batch.prefix_bytes, source.size):
            file.append(data)
        file.append(block)
        while block := blocks.take():
            batch.take(block)
            file.append(block)
        made = appender.active.rotate()
        made.storage.append(bytes(batch.prefix_bytes))
        for data in _portions(file.view, 0, file.size):
            made.storage.append(data)
        return made
    finally:
        with suppress(StorageError):  # the next open removes it
            file.remove()


_numbers = count(1)


def _new_file(appender: Appender) -> Storage:
    """Create a temporary file. Its name, which no segment and no other process uses, marks it as disposable after a
    crash."""
    name = file_name(10**19 + this_process() * 10**6 + next(_numbers)) + TMP
    appender.directory.remove(name)
    return appender.directory.create(name)


def _portions(read: Callable[[int, int], Buffer], start: int, end: int) -> Iterator[Buffer]:
    """Read the bytes from `start` to `end`, a megabyte at a time."""
    for position in range(start, end, _COPY_BYTES):
        yield read(position, min(_COPY_BYTES, end - position))


class Blocks:
    """Chunks of a stream, gathered into blocks: copying small chunks costs less than writing each of them."""

    def __init__(self, source: Iterator[Buffer], max_bytes: int | None, taken: _Taken) -> None:
        """`taken` holds the chunks already taken from the source."""
        self._source = source
        self._taken: _Taken | None = taken
        self._max_bytes = max_bytes
        #: Most bytes that fit into the segment.
        self.bound = MAX_SEGMENT_BYTES
        self._total = 0
        #: A large chunk to return without copying, after the chunks gathered before it.
        self._large: Buffer | None = None
        self.ended = False

    def check(self) -> None:
        """Raise `StreamTooLong` if the stream exceeds its limits."""
        _check_length(self._total, self.bound, self._max_bytes)

    def take(self) -> Buffer:
        """Return the next block, at least 256 KiB except at the end of the stream. Valid until the next call."""
        if self._large is not None:
            large, self._large = self._large, None
            return large
        held: bytes | bytearray = bytearray()
        total = self._total
        most = self.bound if self._max_bytes is None else min(self.bound, self._max_bytes)
        while not self.ended and self._large is None and len(held) < _BLOCK_BYTES:
            # One byte more than allowed is enough to detect an overlong stream.
            wanted = min(_BLOCK_BYTES - len(held), max(most - total - len(held), 0) + 1)
            chunks, other, self.ended = self._taken or kernel.gather_chunks(self._source, wanted)
            self._taken = None
            if self.ended and not held:
                held = b"".join(chunks)
            else:
                held += b"".join(chunks)
            if other is not None:
                data = _check_chunk(other[0])
                if len(data) >= _BLOCK_BYTES:  # no need to copy it
                    self._large = data
                else:
                    held += data
            self._total = total + len(held) + (0 if self._large is None else len(self._large))
            if self._total > most:
                self.check()
        return held if held or self._large is None else self.take()


# --- async


class Spool:
    """Buffer of an async stream until it is complete: in memory, or in a file next to the segments if it is long."""

    def __init__(
        self, appender: Appender, key: Any, headers: HeadersInput, timestamp: int | None, max_bytes: int | None
    ) -> None:
        if max_bytes is not None:
            checked_count("max_bytes", max_bytes, 0, "a number of bytes")
        self._appender = appender
        self._key = key
        self._headers = tuple(headers) if isinstance(headers, Iterator) else headers  # they are encoded twice
        append_time = appender.encoders.recipe.append_time
        self._batch = StreamedBatch(key, self._headers, timestamp, append_time=append_time)
        self._max_bytes = max_bytes
        self._value_bytes = 0
        self._bound = appender.active.most_bytes - self._batch.overhead_bytes
        self._storage: Storage | None = None
        #: The value while there is no file.
        self._held = bytearray()
        self._most_held = _short_bytes(appender)

    def open(self) -> None:
        """Register the stream with the log. Closing the log from now on discards it."""
        appender = self._appender
        with appender.lock:
            appender.check_open()
            _check_length(0, self._bound, self._max_bytes)
            appender.spools.add(self)

    def _check_kept(self) -> None:
        if self not in self._appender.spools:
            raise LogClosed(f"the log {self._appender.directory.path} was closed before the stream ended")

    def _file(self) -> Storage:
        """Return the file; created if missing."""
        with self._appender.lock:
            self._check_kept()
            if self._storage is None:
                self._storage = _new_file(self._appender)
                self._storage.append(self._held)
            return self._storage

    def hold(self, chunk: object) -> bool:
        """Add a chunk in memory, without blocking, and return True; False if it has to be written to the file."""
        data = _check_chunk(chunk)
        if self._storage is not None or len(self._held) + len(data) > self._most_held:
            return False
        self._check_kept()
        self._take(data)
        self._held += data
        return True

    def write(self, chunk: object) -> None:
        """Add a chunk to the file."""
        data = _check_chunk(chunk)
        file = self._file()
        self._take(data)
        file.append(data)

    def _take(self, data: Buffer) -> None:
        _check_length(self._value_bytes + len(data), self._bound, self._max_bytes)
        self._value_bytes += len(data)

    def place(self, expect_offset: int | None = None) -> int:
        """Append the collected value as one record and return its offset; `OffsetMismatch` if that is not the expected
        one."""
        appender = self._appender
        with appender.hold():
            if expect_offset is not None:
                check_expected(expect_offset, appender.active.segment.tail[0])
            if self._storage is None:
                self._check_kept()
                offset = _append_short(appender, self._held, self._key, self._headers, self._batch.timestamp)
            else:
                offset = self._copy()
        appender.settle(offset + 1)
        return offset

    def _copy(self) -> int:
        """Stream the file into the log. The caller holds the lock."""
        batch = self._batch
        self._appender.active.segment_for_stream(batch.overhead_bytes + self._value_bytes, batch.timestamp)
        blocks = Blocks(_portions(self._file().view, 0, self._value_bytes), self._max_bytes, ([], None, False))
        return _append_long(self._appender, batch, blocks.take(), blocks)

    def discard(self) -> None:
        """Delete the file."""
        with self._appender.lock:
            self._appender.spools.discard(self)
            storage, self._storage = self._storage, None
            if storage is not None:
                try:
                    storage.remove()
                except StorageError:
                    pass  # the next open removes it; the append is done or has already failed


async def append_stream_async(
    appender: Appender,
    chunks: AsyncIterable[bytes],
    run: Callable[..., Any],
    run_to_end: Callable[..., Any],
    *,
    key: Any = None,
    headers: HeadersInput = (),
    timestamp: int | None = None,
    max_bytes: int | None = None,
    expect_offset: int | None = None,
) -> int:
    """Append one record from an async iterable of chunks and return its offset. `run` runs a blocking call in a thread;
    `run_to_end` does too, and a cancellation cannot undo it."""
    spool = Spool(appender, key, headers, timestamp, max_bytes)
    if not hasattr(chunks, "__aiter__"):
        raise InvalidRecordType(f"append_stream_async expects an async iterable, not {type(chunks).__name__}")
    try:
        await run(spool.open)
        source = chunks.__aiter__()
        while True:
            try:
                chunk = await source.__anext__()
            except StopAsyncIteration:
                break
            except Exception as error:
                raise StreamAborted(f"the stream raised {type(error).__name__}: {error}; nothing was stored") from error
            if not spool.hold(chunk):
                await run(spool.write, chunk)
        offset: int = await run_to_end(spool.place, expect_offset)
        return offset
    finally:
        spool.discard()
