"""A second implementation of RecordBatch v2: slow, and written directly from the specification.

`batch` and `record` encode any batch, valid or not, without using the package; `crc32c` works bit by bit;
`hex_bytes` parses hexadecimal text with comments. Tests use them for the expected bytes, and for invalid batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

HEADER = struct.Struct(">qiibIhiqqqhii")

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20

#: (offset delta, timestamp delta, key, value, headers)
Parts = tuple[int, int, bytes | None, bytes | None, Sequence[tuple[bytes, bytes | None]]]


def hex_bytes(drawing: str) -> bytes:
    """Parse a drawing of bytes: each line has hexadecimal digits, and possibly a comment after `#`."""
    return bytes.fromhex("".join(line.partition("#")[0] for line in drawing.splitlines()))


def crc32c(data: bytes) -> int:
    """Compute CRC-32C one bit at a time: slow, short, and independent of any library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def varint(number: int, size_bytes: int = 1) -> bytes:
    """Encode a zig-zag varint, padded to at least that many bytes, as in a streamed record."""
    z = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while z >= 128 or len(out) + 1 < size_bytes:
        out.append(z & 127 | 128)
        z >>= 7
    out.append(z)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    """Return a length (-1 for null) followed by the bytes."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(parts: Parts) -> bytes:
    """Encode one record."""
    delta, ts, key, value, headers = parts
    body = b"\0" + varint(ts) + varint(delta) + sized(key) + sized(value) + varint(len(headers))
    body += b"".join(varint(len(name)) + name + sized(content) for name, content in headers)
    return varint(len(body)) + body


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a batch's header; None is computed from the records."""

    base_offset: int = 0
    length: int | None = None
    leader_epoch: int = 0
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_delta: int | None = None
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int | None = None


def batch(records: Iterable[Parts], header: Header = Header()) -> bytes:
    """Encode one batch. `last_delta` is that of the last record unless the header has another."""
    parts = list(records)
    latest = header.base_timestamp + max((part[1] for part in parts), default=0)
    known = {"last_delta": parts[-1][0] if parts else 0, "max_timestamp": latest, "count": len(parts)}
    left_out = {name: value for name, value in known.items() if getattr(header, name) is None}
    return around(b"".join(map(record, parts)), replace(header, **left_out))


def around(body: bytes, header: Header) -> bytes:
    """Return a header followed by any bytes as its records."""
    raw = HEADER.pack(
        header.base_offset,
        len(body) + 49 if header.length is None else header.length,
        header.leader_epoch,
        header.magic,
        header.crc or 0,
        header.attributes,
        header.last_delta or 0,
        header.base_timestamp,
        header.base_timestamp if header.max_timestamp is None else header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.count or 0,
    )
    whole = raw + body
    return whole if header.crc is not None else with_right_crc(whole)


def with_right_crc(data: bytes | bytearray) -> bytes:
    """Return the same batch with a matching CRC, so that readers must check more than the CRC."""
    from crc32c import crc32c as fast

    return bytes(data[:17]) + struct.pack(">I", fast(bytes(data[21:]))) + bytes(data[21:])
