"""The aborted transactions of a sealed segment: `.txnindex`, in Kafka's bytes, big endian.

```
entries of 34 bytes:  [version i16 = 0][producer id i64][first offset i64][last offset i64][last stable offset i64]
```

One entry for each transaction whose marker, an abort, is in the segment, in the order of the markers: its first offset
may be in an earlier segment, its last offset is that of the marker, and the last stable offset is where the earliest
transaction began that was still open then (or the offset after the marker). The file ends with an entry of producer -1,
which is no transaction. It makes the file recognisable as complete, and as that of this segment:

```
[0][-1][size of the segment in bytes << 32 | CRC-32C of the entries and what follows][last offset of the segment]
[the first offset of the earliest transaction that is open at the end of the segment, or the offset after it]
```

A segment has this file if it contains a batch of a transaction, or if a transaction is open at its end. It is a cache:
if it is missing, short, padded, or of another file than the one that is read, it is rebuilt from the batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...batch.checksum import crc32c

ENTRY = struct.Struct(">hqqqq")
_ENDS = struct.Struct(">qq")
_NOBODY = -1


class Aborted(NamedTuple):
    """A transaction that was aborted, as far as one partition is concerned."""

    producer_id: int
    #: The offset of its first record.
    first_offset: int
    #: The offset of its marker.
    last_offset: int
    #: Everything below this was decided when it was aborted.
    last_stable_offset: int

    def encode(self) -> bytes:
        """As an entry of the file."""
        return ENTRY.pack(0, *self)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a segment says about transactions."""

    #: In the order of their markers.
    aborted: tuple[Aborted, ...]
    #: Everything below this is decided by the markers up to the end of the segment.
    stable_end: int

    def encode(self, next_offset: int, size_bytes: int) -> bytes:
        """The file of a segment that ends there and has that many bytes."""
        entries = kafkas_index(self.aborted)
        end = next_offset - 1, self.stable_end
        return entries + ENTRY.pack(0, _NOBODY, _proof(entries, size_bytes, *end), *end)

    @classmethod
    def decode(cls, data: bytes, base_offset: int, next_offset: int, size_bytes: int) -> Outcomes | None:
        """From the bytes of the file; None unless they are certainly those of this segment."""
        if not data or len(data) % ENTRY.size:
            return None
        entries, last = data[: -ENTRY.size], ENTRY.unpack(data[-ENTRY.size :])
        stable_end = last[4]
        if last[:4] != (0, _NOBODY, _proof(entries, size_bytes, *last[3:]), next_offset - 1):
            return None
        found = tuple(_entries(entries))
        if any(not base_offset <= each.last_offset < next_offset for each in found):
            return None
        return cls(found, stable_end)


def _proof(entries: bytes, size_bytes: int, last_offset: int, stable_end: int) -> int:
    return size_bytes << 32 | crc32c(entries + _ENDS.pack(last_offset, stable_end))


def _entries(data: bytes) -> Iterator[Aborted]:
    for _, *fields in ENTRY.iter_unpack(data):
        yield Aborted(*fields)


def kafkas_index(aborted: Iterable[Aborted]) -> bytes:
    """The file as Kafka has it, without the last entry."""
    return b"".join(each.encode() for each in aborted)
