"""State of idempotent and transactional producers, so that a batch sent twice is stored once.

A producer stamps its batches with an id, an epoch and the sequence number of the first record. The log remembers the
last five batches of each producer, as Kafka does. A batch that repeats one of them is answered with its original
offsets; one that leaves a gap or comes from an older epoch is refused. The marker that ends a transaction carries an
epoch too and fences older ones as a batch does. The state includes the open and the aborted transactions (see
transactions.py).

Everything is in the batch headers, so the state is a cache. It is written to the file `producers` when a segment is
sealed and when the log is closed, and updated from the later headers when it is loaded:

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
epochs.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from ..batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    CONTROL_BIT,
    LAST,
    MARKER,
    MARKER_SHIFT,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
    Rows,
)
from ..errors import CorruptBatch, OutOfOrderSequence, ProducerFenced, ProducerInTransaction
from ..storage.checksummed import TitledFile, parsing
from .segment import Segment
from .transactions import ALL_VISIBLE, AbortedTransaction, OpenTransaction, Transactions

#: Kafka's producers have at most five batches in flight.
REMEMBERED = 5
#: Sequence numbers are 31-bit and start again at 0.
_WRAP = 2**31
_SPECIAL = TRANSACTIONAL_BIT | CONTROL_BIT
_FILE = TitledFile("the producer file", "sawlog producers 2 ")
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


@dataclass(slots=True)
class ProducersFile:
    """Content of the file `producers`."""

    offset: int
    leader_epoch: int
    #: First offset of the active segment.
    segment: int
    batches: list[ProducerBatch] = field(default_factory=list)
    markers: list[ProducerMarker] = field(default_factory=list)
    open: list[OpenTransaction] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def encode(self) -> bytes:
        """Encode the file."""
        lines = [str(self.offset), f"{_EPOCH}{self.leader_epoch}", f"{_SEGMENT}{self.segment}"]
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
            offset, epoch, segment, *lines = body.decode().splitlines()
            if not epoch.startswith(_EPOCH) or not segment.startswith(_SEGMENT):
                raise ValueError("the leader epoch or the active segment is missing")
            made = cls(int(offset), int(epoch[len(_EPOCH) :]), int(segment[len(_SEGMENT) :]))
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


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """State of one producer; -1 for unknown values."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    #: First offset of its open transaction.
    transaction_offset: int


class ProducerState:
    """Last batches and transactions of each producer. Changed only under the log's lock."""

    def __init__(self, expiry_ms: int, transactions: Transactions | None = None) -> None:
        self._expiry_ms = expiry_ms
        self._producers: dict[int, deque[ProducerBatch]] = {}
        self._markers: dict[int, ProducerMarker] = {}
        self.transactions = Transactions() if transactions is None else transactions

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerBatch]:
        """Remembered batches by producer, oldest first."""
        for _, batches in sorted(self._producers.items()):
            yield from batches

    def describe(self) -> list[ProducerInfo]:
        """Return the state of every known producer, by id."""
        return [self._describe(each) for each in sorted({*self._producers, *self._markers, *self.transactions.open})]

    def _describe(self, producer_id: int) -> ProducerInfo:
        batches, marker = self._producers.get(producer_id), self._markers.get(producer_id)
        last = batches[-1] if batches else None
        opened = self.transactions.open.get(producer_id)
        bumped = last is not None and marker is not None and marker.epoch > last.epoch
        return ProducerInfo(
            producer_id,
            max(self.epoch_of(producer_id), -1 if opened is None else opened.epoch),
            -1 if last is None or bumped else last.last_sequence,
            max(-1 if last is None else last.timestamp, -1 if marker is None else marker.timestamp),
            -1 if marker is None else marker.coordinator_epoch,
            -1 if opened is None else opened.first_offset,
        )

    def epoch_of(self, producer_id: int) -> int:
        """Return the newest epoch in which a producer has written or was fenced by a marker; -1 if unknown."""
        batches, marker = self._producers.get(producer_id), self._markers.get(producer_id)
        return max(batches[-1].epoch if batches else -1, -1 if marker is None else marker.epoch)

    def duplicate(
        self, producer_id: int, epoch: int, sequence: int, count: int, *, transactional: bool = False
    ) -> range | None:
        """Return the offsets of this batch if it is already stored, None if it is the next one; raise otherwise."""
        if self._markers:
            self.check_epoch(producer_id, epoch)
        batches = self._producers.get(producer_id)
        if not batches:
            return None  # unknown or expired: any sequence is accepted
        last = batches[-1]
        if epoch < last.epoch:
            self.check_epoch(producer_id, epoch)
        end = (sequence + count - 1) % _WRAP
        if epoch > last.epoch:
            if sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {producer_id} must start epoch {epoch} at sequence 0, not {sequence}"
                )
            return None
        for batch in batches:
            if batch.epoch == epoch and (batch.first_sequence, batch.last_sequence) == (sequence, end):
                return range(batch.first_offset, batch.last_offset + 1)
        expected = (last.last_sequence + 1) % _WRAP
        if sequence != expected:
            raise OutOfOrderSequence(
                f"producer {producer_id} is at sequence {expected}; a batch that starts at {sequence} is refused"
            )
        if not transactional and producer_id in self.transactions.open:
            raise ProducerInTransaction(
                f"producer {producer_id} has an open transaction; a batch that is not part of it is refused"
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise `ProducerFenced` if a newer epoch of the producer is known."""
        known = self.epoch_of(producer_id)
        if epoch < known:
            raise ProducerFenced(
                f"producer {producer_id} has written with epoch {known}; a batch of epoch {epoch} is refused"
            )

    def note(
        self, producer_id: int, epoch: int, sequence: int, first_offset: int, last_offset: int, timestamp: int
    ) -> None:
        """Record a placed batch. An interrupt leaves it recorded or unknown, and `reaches` tells which."""
        end = (sequence + last_offset - first_offset) % _WRAP
        batch = ProducerBatch(producer_id, epoch, sequence, end, first_offset, last_offset, timestamp)
        batches = self._producers.get(producer_id)
        if batches and batches[-1].epoch == epoch:
            batches.append(batch)
        else:
            self._producers[producer_id] = deque((batch,), maxlen=REMEMBERED)

    def note_rows(self, rows: Rows, now_ms: int) -> None:
        """Record placed batches from their headers. A producer's inactivity counts from now."""
        for row in rows[rows[:, PRODUCER_ID] >= 0].tolist():
            if row[ATTRIBUTES] & _SPECIAL:
                self.transactions.note(row)
                if row[MARKER]:
                    self._note_marker(row, now_ms)
            if row[BASE_SEQUENCE] >= 0:
                self.note(row[PRODUCER_ID], row[PRODUCER_EPOCH], row[BASE_SEQUENCE], row[BASE], row[LAST], now_ms)

    def _note_marker(self, row: list[int], now_ms: int) -> None:
        producer, epoch, coordinator = row[PRODUCER_ID], row[PRODUCER_EPOCH], row[MARKER] >> MARKER_SHIFT
        before = self._markers.get(producer)
        epoch = epoch if before is None else max(epoch, before.epoch)
        self._markers[producer] = ProducerMarker(producer, epoch, coordinator, row[LAST], now_ms)

    def remembers(self, producer_id: int, last_offset: int) -> bool:
        """Return True if the producer's batch or marker that ends at this offset is remembered."""
        marker = self._markers.get(producer_id)
        if marker is not None and marker.offset == last_offset:
            return True
        return any(batch.last_offset == last_offset for batch in list(self._producers.get(producer_id, ())))

    def reaches(self, offset: int) -> bool:
        """Return True if a remembered batch extends to `offset` or beyond."""
        if self.transactions.reached >= offset or any(each.offset >= offset for each in self._markers.values()):
            return True
        return any(batches[-1].last_offset >= offset for batches in self._producers.values())

    def expire(self, now_ms: int) -> None:
        """Drop producers that have been inactive for too long, unless they have an open transaction."""
        oldest, opened = now_ms - self._expiry_ms, self.transactions.open
        for producer_id in [p for p, batches in self._producers.items() if batches[-1].timestamp < oldest]:
            if producer_id not in opened:
                del self._producers[producer_id]
        for producer_id in [p for p, marker in self._markers.items() if marker.timestamp < oldest]:
            if producer_id not in opened and producer_id not in self._producers:
                del self._markers[producer_id]

    # --- the file

    def encode(self, offset: int, leader_epoch: int) -> bytes:
        """Return the contents of the file: the state as of `offset` in this leader epoch."""
        known = self.transactions
        return ProducersFile(
            offset,
            leader_epoch,
            known.since,
            list(self),
            [marker for _, marker in sorted(self._markers.items())],
            list(known.open.values()),
            list(known.aborted),
        ).encode()

    @classmethod
    def decode(cls, data: bytes, expiry_ms: int) -> tuple[ProducerState, int, int]:
        """Return the state, the offset up to which it is valid, and the leader epoch there; `CorruptFile` unless every
        byte is valid."""
        found = ProducersFile.decode(data)
        return cls.of(found, expiry_ms), found.offset, found.leader_epoch

    @classmethod
    def of(cls, found: ProducersFile, expiry_ms: int, visible: int = ALL_VISIBLE, *, lowest: int = 0) -> ProducerState:
        """Return the state that a file describes."""
        known = Transactions(found.segment, visible, lowest)
        known.load(found.open, found.aborted, found.offset - 1)
        made = cls(expiry_ms, known)
        for batch in found.batches:
            made._producers.setdefault(batch.producer, deque(maxlen=REMEMBERED)).append(batch)
        made._markers = {marker.producer_id: marker for marker in found.markers}
        return made


def has_transactions(segment: Segment, end: int) -> bool:
    """Return True if the batches of a sealed segment below `end` belong to transactions."""
    if segment.transaction_index is not None or segment.load_transaction_index() is not None:
        return True
    try:
        return any(chunk.special for chunk in segment.chunks(segment.base_offset, end, check=False))
    except CorruptBatch:
        return True  # unknown: assume so
