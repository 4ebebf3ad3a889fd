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

`producers`: what the log knows of idempotent and transactional producers at an offset.

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

So the file is a position, and is checked as one: if its epoch has ended before that offset, the records that it
describes are gone (see epochs.py). Version 1 knew nothing of transactions, and version 0.2 wrote it without an epoch;
such a file is checked against the end of the log only.
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


_FILE = TitledFile("the producer file", "sawlog producers ")
#: The versions of the format.
_VERSIONS = ("1", "2")
_EPOCH, _SEGMENT = "leader epoch ", "segment "


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """A batch of a producer that the log remembers."""

    producer: int
    epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Marked(NamedTuple):
    """The last marker of a producer: the end of its last transaction."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    offset: int
    timestamp: int


class OpenTransaction(NamedTuple):
    """A transaction without a marker so far."""

    producer_id: int
    epoch: int
    #: The offsets of its first record, and of its last one so far.
    first_offset: int
    last_offset: int
    #: The timestamp of its first batch, ms since 1970.
    started_ms: int


@dataclass(slots=True)
class ProducersFile:
    """The content of the file."""

    offset: int
    #: -1: unknown.
    leader_epoch: int
    #: The first offset of the segment that was active; -1: transactions are unknown, an earlier version wrote it.
    segment: int
    batches: list[ProducerBatch] = field(default_factory=list)
    markers: list[Marked] = field(default_factory=list)
    open: list[OpenTransaction] = field(default_factory=list)
    aborted: list[Aborted] = field(default_factory=list)

    @property
    def knows_transactions(self) -> bool:
        """Whether it says what transactions there were."""
        return self.segment >= 0

    def encode(self) -> bytes:
        """The file's bytes."""
        lines = [f"{_VERSIONS[-1]} {self.offset}", f"{_EPOCH}{self.leader_epoch}", f"{_SEGMENT}{self.segment}"]
        lines.extend(_line(*astuple(batch)) for batch in self.batches)
        lines.extend(_line("marker", *each) for each in self.markers)
        lines.extend(_line("open", *each) for each in self.open)
        lines.extend(_line("aborted", *each) for each in self.aborted)
        return _FILE.encode("\n".join(lines) + "\n")

    @classmethod
    def decode(cls, data: bytes) -> ProducersFile:
        """From the file's bytes; `CorruptFile` unless every byte is right."""
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
            self.markers.append(Marked(*map(int, words[1:])))
        elif words[0] == "open":
            self.open.append(OpenTransaction(*map(int, words[1:])))
        elif words[0] == "aborted":
            self.aborted.append(Aborted(*map(int, words[1:])))
        else:
            self.batches.append(ProducerBatch(*map(int, words)))


def _line(*words: object) -> str:
    return " ".join(map(str, words))
