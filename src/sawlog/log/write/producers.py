"""Idempotent producers: who has written what, so that a batch sent twice is stored once.

A producer stamps its batches with an id, an epoch and the sequence number of the first record. The log remembers the
last five batches of each producer, as Kafka does. A batch that repeats one of them is recognised and answered with the
offsets it got the first time; one that leaves a gap, or comes from an older epoch, is refused.

All of it is in the batch headers, so the state is a cache. It is written to `producers` when a segment is sealed and
when the log is closed, and brought up to date from the headers after that point:

```
sawlog producers 1 <offset up to which it is valid>
leader epoch <of that offset>
<id> <epoch> <first sequence> <last sequence> <first offset> <last offset> <timestamp>      one line per batch
crc32c 1c291ca3
```

So the file is a position, and is checked as one: if its epoch has ended before that offset, the records that it
describes are gone (see epochs.py). Version 0.2 wrote no epoch; such a file is checked against the end of the log only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from ...batch.header import BASE, BASE_SEQUENCE, LAST, PRODUCER_EPOCH, PRODUCER_ID, Rows
from ...batch.read import first_bad_crc
from ...clock import now_ms
from ...errors import CorruptBatch, OutOfOrderSequence, ProducerFenced
from ...storage.checked import TitledFile, parsing
from ..segment.batches import Chunk
from ..segment.segment import Segment

#: Kafka's producers have at most five batches in flight.
REMEMBERED = 5
#: Sequence numbers are 31-bit and start again at 0.
_WRAP = 2**31

_FILE = TitledFile("the producer file", "sawlog producers 1 ")
_EPOCH = "leader epoch "


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


class ProducerState:
    """What each producer wrote last. Changed only under the log's lock."""

    def __init__(self, expiry_ms: int) -> None:
        self._expiry_ms = expiry_ms
        self._producers: dict[int, deque[ProducerBatch]] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerBatch]:
        """What is remembered, by producer, oldest first."""
        for _, batches in sorted(self._producers.items()):
            yield from batches

    def duplicate(self, producer_id: int, epoch: int, sequence: int, count: int) -> range | None:
        """The offsets of this batch if it is already stored; None if it is the expected next one; or an error."""
        batches = self._producers.get(producer_id)
        if not batches:
            return None  # never seen, or forgotten: any sequence is accepted
        last = batches[-1]
        if epoch < last.epoch:
            raise ProducerFenced(
                f"producer {producer_id} has written with epoch {last.epoch}; a batch of epoch {epoch} is refused"
            )
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
        return None

    def note(
        self, producer_id: int, epoch: int, sequence: int, first_offset: int, last_offset: int, timestamp: int
    ) -> None:
        """Remember a batch that was placed."""
        batches = self._producers.setdefault(producer_id, deque(maxlen=REMEMBERED))
        if batches and batches[-1].epoch != epoch:
            batches.clear()
        end = (sequence + last_offset - first_offset) % _WRAP
        batches.append(ProducerBatch(producer_id, epoch, sequence, end, first_offset, last_offset, timestamp))

    def note_rows(self, rows: Rows, now_ms: int) -> None:
        """Remember many placed batches, from their headers. A producer's inactivity is counted from now."""
        for row in rows[(rows[:, PRODUCER_ID] >= 0) & (rows[:, BASE_SEQUENCE] >= 0)].tolist():
            self.note(row[PRODUCER_ID], row[PRODUCER_EPOCH], row[BASE_SEQUENCE], row[BASE], row[LAST], now_ms)

    def remembers(self, producer_id: int, last_offset: int) -> bool:
        """Whether the producer's batch that ends there is among those that are remembered."""
        return any(batch.last_offset == last_offset for batch in list(self._producers.get(producer_id, ())))

    def reaches(self, offset: int) -> bool:
        """Whether it remembers a batch that extends to `offset` or beyond."""
        return any(batches[-1].last_offset >= offset for batches in self._producers.values())

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been inactive for long."""
        oldest = now_ms - self._expiry_ms
        for producer_id in [p for p, batches in self._producers.items() if batches[-1].timestamp < oldest]:
            del self._producers[producer_id]

    # --- the file

    def encode(self, offset: int, leader_epoch: int) -> bytes:
        """The file's bytes: the state as of `offset`, which is in that leader epoch."""
        lines = [str(offset), f"{_EPOCH}{leader_epoch}"]
        lines.extend(" ".join(map(str, astuple(batch))) for batch in self)
        return _FILE.encode("\n".join(lines) + "\n")

    @classmethod
    def decode(cls, data: bytes, expiry_ms: int) -> tuple[ProducerState, int, int]:
        """The state, the offset up to which it is valid, and the leader epoch of that, or -1; `CorruptFile` unless
        every byte is right."""
        body, made = _FILE.decode(data), cls(expiry_ms)
        with parsing(_FILE.what):
            head, *lines = body.decode().splitlines()
            offset, epoch = int(head), -1
            if lines and lines[0].startswith(_EPOCH):
                epoch = int(lines.pop(0)[len(_EPOCH) :])
            for line in lines:
                batch = ProducerBatch(*map(int, line.split()))
                made._producers.setdefault(batch.producer, deque(maxlen=REMEMBERED)).append(batch)
        return made, offset, epoch


# --- from the batches


def replayed(
    segments: list[Segment], expiry_ms: int, state: ProducerState | None = None, start: int = 0
) -> ProducerState:
    """The producers' state from the batch headers of these segments, added to what was known at `start`."""
    state = ProducerState(expiry_ms) if state is None else state
    now = now_ms()
    for segment in segments:
        if segment.next_offset > start and segment.size:
            _replay(segment, max(start, segment.base_offset), state, now)
        if segment.sealed:
            segment.unload()
    return state


def _replay(segment: Segment, offset: int, state: ProducerState, now_ms: int) -> None:
    """Record what producers have written from `offset` on; damage is skipped, and reported when it is read."""
    try:
        found = [_good_of_producers(chunk) for chunk in segment.chunks(offset, segment.next_offset, check=False)]
    except CorruptBatch:
        found = list(segment.rows_around_damage(offset))
    for rows in found:
        state.note_rows(rows, now_ms)


def _good_of_producers(chunk: Chunk) -> Rows:
    """The checksum is verified only for producers' batches: a damaged header would cause valid batches to be
    refused."""
    rows = chunk.rows[chunk.rows[:, PRODUCER_ID] >= 0]
    while (bad := first_bad_crc(chunk.view, rows)) >= 0:
        rows = np.delete(rows, bad, axis=0)
    return rows
