"""Transactions in one partition: batches as producers send them, and a Kafka consumer's view of a page.

`Model` is a plain list of appended batches: a batch is committed if the next marker of its producer commits, aborted if
that marker aborts, and undecided if there is none.

`KafkaConsumer` is the rule of Kafka's clients for reading committed records: the fetch response lists aborted
transactions by their first offset; a producer's batches are dropped from there to its next abort marker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sawlog import Log
from sawlog.batch.header import BatchHeader, scan
from sawlog.batch.kernel import Record
from sawlog.batch.read import decode
from sawlog.log.reader import Fetched

from ..batch import wire
from ..batch.clients import kafka_python

T = 1_700_000_000_000


def batch(
    values: Sequence[bytes],
    producer: int,
    *,
    epoch: int = 0,
    sequence: int = -1,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int = T,
) -> bytes:
    """A batch of a transaction."""
    parts: list[wire.Parts] = [(i, 0, None if keys is None else keys[i], value, ()) for i, value in enumerate(values)]
    return wire.batch(
        parts,
        wire.Header(
            attributes=wire.TRANSACTIONAL,
            base_timestamp=timestamp,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        ),
    )


def send(log: Log, values: Sequence[bytes], producer: int, *, epoch: int = 0, sequence: int = -1) -> range:
    """Append a batch of a transaction."""
    return log.append_batches(batch(values, producer, epoch=epoch, sequence=sequence))


def both(log: Log) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return the values for readers of committed records, and the values for other readers."""
    return [r.value for r in log.scan()], [r.value for r in log.scan(isolation="uncommitted")]


class KafkaConsumer:
    """Returns the records that a consumer with `isolation.level=read_committed` extracts from its pages."""

    def records(self, page: Fetched) -> Iterable[Record]:
        waiting = deque(page.aborted)
        assert list(waiting) == sorted(waiting, key=lambda each: each[1])
        aborted: set[int] = set()
        raw = page.raw
        for header in scan(raw):
            while waiting and waiting[0][1] <= header.last_offset:
                aborted.add(waiting.popleft()[0])
            if header.is_control:
                if self._aborts(raw, header):
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                yield from decode(raw[header.position : header.position + header.size_bytes])

    @staticmethod
    def _aborts(raw: bytes, header: BatchHeader) -> bool:
        (found,) = kafka_python.DefaultRecordBatch(raw[header.position : header.position + header.size_bytes])
        return bool(found.abort)


def fetched(log: Log, max_bytes: int, start: int | None = None) -> list[Record]:
    """Return all committed records as a Kafka consumer reads them, in pages."""
    at = log.lowest_offset if start is None else start
    found: list[Record] = []
    while True:
        page = log.fetch(at, max_bytes)
        if page.next_offset == at:
            return found
        found += [record for record in KafkaConsumer().records(page) if record.offset >= at]
        at = page.next_offset


@dataclass(frozen=True)
class Entry:
    """A batch: its first offset and its values; `producer` is that of its transaction; a marker has no values."""

    base: int
    values: tuple[bytes, ...]
    producer: int = -1
    #: Of a marker: whether it commits.
    commits: bool | None = None

    @property
    def end(self) -> int:
        return self.base + (len(self.values) if self.commits is None else 1)


class Model:
    """The appended batches, in order."""

    def __init__(self, entries: list[Entry], lowest: int) -> None:
        self.entries = entries
        self.lowest = lowest

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else 0

    def outcome(self, at: int) -> bool | None:
        """Return True if the batch with that number is committed; None if it is undecided."""
        one = self.entries[at]
        if one.producer < 0:
            return True
        return next(
            (e.commits for e in self.entries[at:] if e.producer == one.producer and e.commits is not None), None
        )

    @property
    def stable(self) -> set[int]:
        """Return the possible last stable offsets: an open transaction whose beginning was trimmed may still count."""
        undecided = [e for at, e in enumerate(self.entries) if self.outcome(at) is None]
        left = [e for e in undecided if e.end > self.lowest]
        began = [e for e in undecided if any(e.producer == each.producer for each in left)]
        return {max(min((e.base for e in each), default=self.end), self.lowest) for each in (left, began)}

    def records(self) -> list[tuple[int, bytes]]:
        """Return all records."""
        found = [(e.base + i, value) for e in self.entries for i, value in enumerate(e.values)]
        return [each for each in found if each[0] >= self.lowest]

    def committed(self, stable: int) -> list[tuple[int, bytes]]:
        """Return the committed records below an offset."""
        shown = [e for at, e in enumerate(self.entries) if self.outcome(at)]
        return [each for each in Model(shown, self.lowest).records() if each[0] < stable]

    def truncated(self, offset: int) -> list[Entry]:
        kept = [e for e in self.entries if e.base < offset]
        return [replace(e, values=e.values[: offset - e.base]) if e.commits is None else e for e in kept]
