"""Two file formats: `.txnindex`, the aborted transactions of a sealed segment, and `producers`, the producer state.

`.txnindex` has Kafka's layout, big endian:

```
entries of 34 bytes:  [version i16 = 0][producer id i64][first offset i64][last offset i64][last stable offset i64]
```

There is one entry per transaction that a marker in the segment aborted, in marker order. Its first offset may be in an
earlier segment, its last offset is that of the marker, and the last stable offset is the first offset of the earliest
transaction that was still open then (or the offset after the marker). The file ends with an entry of producer -1, which
proves that the file is complete and belongs to this segment:

```
[0][-1][size of the segment in bytes << 32 | CRC-32C of the entries and the rest][last offset of the segment]
[the first offset of the earliest transaction that is open at the end of the segment, or the offset after it]
```

A segment has this file if it contains a transactional batch, or if a transaction is open at its end. It is a cache: a
file that is missing, short, padded, or that belongs to another segment is rebuilt from the batches.

`producers` is the state of idempotent and transactional producers at an offset:

```
sawlog producers 2 <offset up to which it is valid>
leader epoch <of that offset>
segment <first offset of the active segment>
<id> <epoch> <first sequence> <last sequence> <first offset> <last offset> <timestamp>      one line per batch
marker <id> <epoch> <coordinator epoch> <offset> <timestamp>                                 the last one of a producer
open <id> <epoch> <first offset> <last offset> <timestamp>                                   an open transaction
aborted <id> <first offset> <last offset> <last stable offset>                               in the active segment
crc32c 1c291ca3
```

The file is checked like a position: if its epoch ended before its offset, the records that it describes are gone (see
epochs.py). Format version 1 has no transactions, and sawlog 0.2 wrote no epoch; such a file is checked only against the
end of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from ..batch.checksum import crc32c
from ..storage.checksummed import TitledFile, parsing

ENTRY = struct.Struct(">hqqqq")
_ENDS = struct.Struct(">qq")
_NO_PRODUCER = -1


class AbortedTransaction(NamedTuple):
    """An aborted transaction, within one partition."""

    producer_id: int
    #: Offset of its first record.
    first_offset: int
    #: Offset of its marker.
    last_offset: int
    #: The last stable offset after the abort.
    last_stable_offset: int

    def encode(self) -> bytes:
        """Encode the entry of the file."""
        return ENTRY.pack(0, *self)


@dataclass(frozen=True, slots=True)
class TransactionIndex:
    """The transaction index of a segment."""

    #: In marker order.
    aborted: tuple[AbortedTransaction, ...]
    #: The last stable offset at the end of the segment.
    stable_end: int

    def encode(self, next_offset: int, size_bytes: int) -> bytes:
        """Encode the file for a segment with this end and size."""
        entries = encode_kafka_index(self.aborted)
        end = next_offset - 1, self.stable_end
        return entries + ENTRY.pack(0, _NO_PRODUCER, _trailer_checksum(entries, size_bytes, *end), *end)

    @classmethod
    def decode(cls, data: bytes, base_offset: int, next_offset: int, size_bytes: int) -> TransactionIndex | None:
        """Decode the file; None unless it certainly belongs to this segment."""
        if not data or len(data) % ENTRY.size:
            return None
        entries, last = data[: -ENTRY.size], ENTRY.unpack(data[-ENTRY.size :])
        stable_end = last[4]
        if last[:4] != (0, _NO_PRODUCER, _trailer_checksum(entries, size_bytes, *last[3:]), next_offset - 1):
            return None
        found = tuple(_entries(entries))
        if any(not base_offset <= each.last_offset < next_offset for each in found):
            return None
        return cls(found, stable_end)


def _trailer_checksum(entries: bytes, size_bytes: int, last_offset: int, stable_end: int) -> int:
    return size_bytes << 32 | crc32c(entries + _ENDS.pack(last_offset, stable_end))


def _entries(data: bytes) -> Iterator[AbortedTransaction]:
    for _, *fields in ENTRY.iter_unpack(data):
        yield AbortedTransaction(*fields)


def encode_kafka_index(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Encode the file as Kafka does, without the last entry."""
    return b"".join(each.encode() for each in aborted)


_FILE = TitledFile("the producer file", "sawlog producers ")
#: Versions of the format.
_VERSIONS = ("1", "2")
_EPOCH, _SEGMENT = "leader epoch ", "segment "


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """A recent batch of a producer, kept for deduplication."""

    producer: int
    epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerMarker(NamedTuple):
    """The last marker of a producer, which ended its last transaction."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    offset: int
    timestamp: int


class OpenTransaction(NamedTuple):
    """A transaction without a marker so far."""

    producer_id: int
    epoch: int
    #: Offsets of its first record, and of its last one so far.
    first_offset: int
    last_offset: int
    #: Timestamp of its first batch, ms since 1970.
    started_ms: int


@dataclass(slots=True)
class ProducersFile:
    """Content of the file `producers`."""

    offset: int
    #: -1 if unknown.
    leader_epoch: int
    #: First offset of the active segment; -1 if an earlier version wrote the file, without transactions.
    segment: int
    batches: list[ProducerBatch] = field(default_factory=list)
    markers: list[ProducerMarker] = field(default_factory=list)
    open: list[OpenTransaction] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    @property
    def knows_transactions(self) -> bool:
        """True if the file records transactions."""
        return self.segment >= 0

    def encode(self) -> bytes:
        """Encode the file."""
        lines = [f"{_VERSIONS[-1]} {self.offset}", f"{_EPOCH}{self.leader_epoch}", f"{_SEGMENT}{self.segment}"]
        lines.extend(_line(*astuple(batch)) for batch in self.batches)
        lines.extend(_line("marker", *each) for each in self.markers)
        lines.extend(_line("open", *each) for each in self.open)
        lines.extend(_line("aborted", *each) for each in self.aborted)
        return _FILE.encode("\n".join(lines) + "\n")

    @classmethod
    def decode(cls, data: bytes) -> ProducersFile:
        """Decode the file; raise `CorruptFile` unless every byte is right."""
        body = _FILE.decode(data)
        with parsing(_FILE.what):
            head, *lines = body.decode().splitlines()
            version, offset = head.split()
            if version not in _VERSIONS:
                raise ValueError(f"version {version} is unknown")
            made = cls(int(offset), -1, -1)
            if lines and lines[0].startswith(_EPOCH):
                made.leader_epoch = int(lines.pop(0)[len(_EPOCH) :])
            if lines and lines[0].startswith(_SEGMENT):
                made.segment = int(lines.pop(0)[len(_SEGMENT) :])
            for line in lines:
                made._add(line.split())
        return made

    def _add(self, words: list[str]) -> None:
        if not words:
            raise ValueError("a line is empty")
        if words[0] == "marker":
            self.markers.append(ProducerMarker(*map(int, words[1:])))
        elif words[0] == "open":
            self.open.append(OpenTransaction(*map(int, words[1:])))
        elif words[0] == "aborted":
            self.aborted.append(AbortedTransaction(*map(int, words[1:])))
        else:
            self.batches.append(ProducerBatch(*map(int, words)))


def _line(*words: object) -> str:
    return " ".join(map(str, words))
