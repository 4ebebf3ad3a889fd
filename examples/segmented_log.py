"""A segmented log in about 300 lines, for reading. docs/how-a-segmented-log-works.md explains it step by step.

It has what every segmented log has: a store and an index per segment, rotation, streams with a threshold and rollback,
retention, truncation, recovery, fetch, and a service. It leaves out what makes sawlog fast and safe with many writers.
"""

from __future__ import annotations

import http.client
import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

HEADER = struct.Struct(">II")  # of a record in a store: the CRC-32 and the length of its value
ENTRY = struct.Struct(">Q")  # of an index: the position of a record in the store
CRC_SEED = 1  # not 0, so that a header of zeros is never valid


class OutOfRange(IndexError):
    """The log has no record at this offset."""


class StreamTooLong(ValueError):
    """The chunks of a record exceed the append threshold; the log is as it was before."""


class Storage:
    """A file that is appended to, read at positions, and truncated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.size = os.fstat(self.descriptor).st_size

    def append(self, data: bytes) -> int:
        """Write at the end, and return the position of the first byte."""
        position = self.size
        self.write(data, position)
        self.size += len(data)
        return position

    def write(self, data: bytes, position: int) -> None:
        while data:
            written = os.pwrite(self.descriptor, data, position)
            data, position = data[written:], position + written

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self.size = size

    def sync(self) -> None:
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def remove(self) -> None:
        self.close()
        self.path.unlink()


class Store(Storage):
    """Records one after the other: header, value, header, value."""

    def append_record(self, chunks: Iterable[bytes], threshold: int) -> int:
        """Write a value that arrives in chunks, and return its position; roll back if it is too long or fails."""
        position = self.append(bytes(HEADER.size))  # length and checksum are known at the end
        checksum, length = CRC_SEED, 0
        try:
            for chunk in chunks:
                length += len(chunk)
                if length > threshold:
                    raise StreamTooLong(f"the record is longer than {threshold} bytes")
                checksum = zlib.crc32(chunk, checksum)
                self.append(chunk)
        except BaseException:
            self.truncate(position)
            raise
        self.write(HEADER.pack(checksum, length), position)
        return position

    def read_record(self, position: int) -> bytes | None:
        """Return the value at `position`, or None if there is no complete, undamaged record."""
        header = self.read(position, HEADER.size)
        if len(header) < HEADER.size:
            return None
        checksum, length = HEADER.unpack(header)
        value = self.read(position + HEADER.size, length)
        return value if len(value) == length and zlib.crc32(value, CRC_SEED) == checksum else None


class Index(Storage):
    """The position of each record. An entry takes 8 bytes, so that of record `i` is at `8 * i`."""

    cached: list[int] | None = None

    def __len__(self) -> int:
        return self.size // ENTRY.size

    def __getitem__(self, number: int) -> int:
        if self.cached is not None:
            return self.cached[number]
        (position,) = ENTRY.unpack(self.read(number * ENTRY.size, ENTRY.size))
        return int(position)

    def add(self, position: int) -> None:
        self.append(ENTRY.pack(position))
        if self.cached is not None:
            self.cached.append(position)

    def cache(self) -> None:
        """Keep the entries in memory, so that a lookup reads no file."""
        data = self.read(0, self.size)
        self.cached = [position for (position,) in ENTRY.iter_unpack(data)]


class Segment:
    """The records from `base` on, in one store with one index. Only the last segment of a log is written."""

    def __init__(self, directory: Path, base: int) -> None:
        self.base = base
        self.store = Store(directory / f"{base:020}.store")
        self.index = Index(directory / f"{base:020}.index")

    @property
    def next_offset(self) -> int:
        return self.base + len(self.index)

    @property
    def size(self) -> int:
        return self.store.size

    def append(self, chunks: Iterable[bytes], threshold: int) -> int:
        offset = self.next_offset
        self.index.add(self.store.append_record(chunks, threshold))
        return offset

    def read(self, offset: int) -> bytes:
        value = self.store.read_record(self.index[offset - self.base])
        if value is None:
            raise OSError(f"the record at offset {offset} is damaged")
        return value

    def truncate(self, offset: int) -> None:
        """Remove the records from `offset` on."""
        if offset < self.next_offset:
            self.store.truncate(self.index[offset - self.base])
            self.index.truncate((offset - self.base) * ENTRY.size)
            self.index.cached = None

    def recover(self) -> None:
        """Keep the complete records at the start of the store, and rebuild the index from them.

        A crash leaves part of a record at the end, or a header of zeros in front of part of a stream.
        """
        self.index.truncate(0)
        position = 0
        while position < self.store.size:
            value = self.store.read_record(position)
            if value is None:
                break
            self.index.add(position)
            position += HEADER.size + len(value)
        self.store.truncate(position)

    def close(self) -> None:
        self.store.close()
        self.index.close()

    def remove(self) -> None:
        self.store.remove()
        self.index.remove()


@dataclass(frozen=True)
class Config:
    segment_bytes: int = 1 << 20
    overflow_bytes: int = 1 << 19  # how far the last record may exceed `segment_bytes`
    retention_s: float = 7 * 24 * 3600.0
    cached_indexes: int = 2  # of segments that were read last


class SegmentedLog:
    """Segments in the order of their offsets: read segments, and the write segment at the end."""

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        self.directory, self.config = directory, config or Config()
        self.lock = threading.RLock()
        directory.mkdir(parents=True, exist_ok=True)
        self.recently_read: list[Segment] = []
        self.segments = [Segment(directory, int(path.stem)) for path in sorted(directory.glob("*.store"))]
        if not self.segments:
            self.begin_segment(0)
        self.write_segment.recover()

    @property
    def write_segment(self) -> Segment:
        return self.segments[-1]

    @property
    def start_offset(self) -> int:
        return self.segments[0].base

    @property
    def next_offset(self) -> int:
        return self.write_segment.next_offset

    def append(self, value: bytes) -> int:
        """Append a record, and return its offset when it would survive a power cut."""
        return self.append_stream([value])

    def append_stream(self, chunks: Iterable[bytes]) -> int:
        """Append one record whose value arrives in chunks."""
        with self.lock:
            if self.write_segment.size >= self.config.segment_bytes:
                self.rotate()
            threshold = self.config.segment_bytes - self.write_segment.size + self.config.overflow_bytes
            offset = self.write_segment.append(chunks, threshold)
            self.write_segment.store.sync()  # the index needs no sync: recovery rebuilds it
            return offset

    def rotate(self) -> None:
        """Make the write segment a read segment, and begin the next one where it ends."""
        self.write_segment.index.sync()  # recovery rebuilds only the index of the last segment
        self.begin_segment(self.next_offset)

    def begin_segment(self, base: int) -> None:
        self.segments.append(Segment(self.directory, base))
        directory = os.open(self.directory, os.O_RDONLY)
        os.fsync(directory)  # the names of new files are durable, too
        os.close(directory)

    def segment_of(self, offset: int) -> Segment:
        if not self.start_offset <= offset < self.next_offset:
            raise OutOfRange(f"no offset {offset}: there are {self.start_offset} to {self.next_offset - 1}")
        return next(segment for segment in reversed(self.segments) if segment.base <= offset)

    def read(self, offset: int) -> bytes:
        with self.lock:
            segment = self.segment_of(offset)
            self.keep_cached(segment)
            return segment.read(offset)

    def keep_cached(self, segment: Segment) -> None:
        """Cache the indexes of the segments that were read last, and only theirs."""
        if segment.index.cached is None:
            segment.index.cache()
        self.recently_read = [each for each in self.recently_read if each is not segment] + [segment]
        while len(self.recently_read) > self.config.cached_indexes:
            self.recently_read.pop(0).index.cached = None

    def fetch(self, offset: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Return records from `offset` on, at least one and about `max_bytes`; none at the end of the log."""
        found: list[tuple[int, bytes]] = []
        while max_bytes > 0 and offset < self.next_offset:
            value = self.read(offset)
            found.append((offset, value))
            offset, max_bytes = offset + 1, max_bytes - len(value)
        return found

    def scan(self) -> Iterator[tuple[int, bytes]]:
        offset = self.start_offset
        while records := self.fetch(offset, 1 << 16):
            yield from records
            offset = records[-1][0] + 1

    def truncate(self, offset: int) -> None:
        """Remove the records from `offset` on."""
        with self.lock:
            while len(self.segments) > 1 and self.write_segment.base >= offset:
                self.segments.pop().remove()
            self.write_segment.truncate(max(offset, self.start_offset))

    def remove_expired(self, now: float) -> int:
        """Remove whole read segments whose last record is too old, oldest first. Return their number."""
        with self.lock:
            removed = 0
            while len(self.segments) > 1:
                last_written = os.fstat(self.segments[0].store.descriptor).st_mtime
                if now - last_written < self.config.retention_s:
                    break
                self.segments.pop(0).remove()
                removed += 1
            return removed

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


def serve(log: SegmentedLog) -> ThreadingHTTPServer:
    """Return a service: POST / appends the body, GET /OFFSET fetches records from there on as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer({"offset": log.append(body)})

        def do_GET(self) -> None:
            records = log.fetch(int(self.path[1:]), max_bytes=1 << 16)
            self.answer([{"offset": offset, "value": value.decode()} for offset, value in records])

        def answer(self, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def main() -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory)
        log = SegmentedLog(path, Config(segment_bytes=1000, overflow_bytes=500))
        for number in range(100):
            log.append(b"record %d" % number)
        print(f"offsets {log.start_offset} to {log.next_offset - 1} in {len(log.segments)} segments")
        print("read(57):", log.read(57).decode())

        try:
            log.append_stream(bytes(100) for _ in range(100))
        except StreamTooLong as error:
            print(f"rolled back: {error}; the next offset is still {log.next_offset}")
        log.close()

        with open(log.write_segment.store.path, "ab") as file:
            file.write(bytes(HEADER.size) + b"half a str")  # the remains of an append that a crash interrupted
        log = SegmentedLog(path, log.config)
        print("recovered: the next offset is", log.next_offset)

        server = serve(log)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = http.client.HTTPConnection("127.0.0.1", server.server_port)
        client.request("POST", "/", b"by HTTP")
        print("appended:", client.getresponse().read().decode())
        client.request("GET", "/99")
        print("fetched:", client.getresponse().read().decode())
        client.close()
        server.shutdown()
        server.server_close()

        print("expired segments:", log.remove_expired(time.time() + 8 * 24 * 3600), "- start:", log.start_offset)
        log.truncate(98)
        print("truncated:", [offset for offset, _ in log.scan()][-1], "is the last offset")
        log.close()


if __name__ == "__main__":
    main()
