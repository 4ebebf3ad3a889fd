"""`RemoteLog`: one partition behind a broker, with those methods of a `Log` that the protocol can serve.

By default the records of transactions that are not finished are not seen, nor those that were aborted: as `Log` reads,
and as a consumer with `isolation.level=read_committed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...batch import kernel
from ...batch import read as batch_read
from ...batch.build import Encoder, EncoderOptions
from ...batch.header import DEFAULT_COLUMNS, LAST, POSITION, SIZE, Rows, visible_batches
from ...batch.kernel import Record
from ...config import MIB, LogConfig
from ...errors import BrokerTimeout, CorruptBatch, OffsetOutOfRange, RecordTooLarge
from ...isolation import Isolation, is_committed
from ...log.reader import Fetched
from ...store.writer import Packer
from . import asking
from .batches import complete
from .cluster import Cluster, Place
from .producing import Sender

if TYPE_CHECKING:
    import pyarrow as pa

#: The size of a page of batches.
_PAGE_BYTES = 4 * MIB
#: How long a broker may take to find the first batch of a page that exists.
_WAIT_MS = 500


class RemoteLog:
    """One partition. `RemoteTopic.partition` returns it."""

    #: Not known: the protocol has no word for them.
    segments: None = None

    def __init__(
        self, cluster: Cluster, place: Place, config: LogConfig, recipe: EncoderOptions, sender: Sender
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._recipe = recipe
        self._sender = sender
        self.config = config

    def __repr__(self) -> str:
        return f"<RemoteLog {self.path}>"

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        return f"{self._place[0]}/{self._place[1]} at {self._cluster.name}"

    # --- offsets

    def _offset(self, timestamp: int, *, committed: bool = False) -> asking.Listed:
        return asking.list_offsets(self._cluster, {self._place: timestamp}, committed=committed)[self._place]

    @property
    def lowest_offset(self) -> int:
        """The first offset that there is."""
        return self._offset(asking.EARLIEST).offset

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read."""
        return self._offset(asking.LATEST).offset

    @property
    def next_offset(self) -> int:
        """The same: what cannot be read yet is not known here."""
        return self.visible_offset

    @property
    def last_stable_offset(self) -> int:
        """Below this every transaction is committed or aborted."""
        return self.position()[0]

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """(`last_stable_offset`, leader epoch), or (`visible_offset`, leader epoch) with isolation "uncommitted"."""
        found = self._offset(asking.LATEST, committed=is_committed(isolation))
        return found.offset, found.leader_epoch

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends belong to; -1 if it is not known."""
        return self.position()[1]

    def epoch_end(self, leader_epoch: int) -> int:
        """The first offset after an epoch; the end of the log, if the broker does not know the epoch."""
        found = asking.epoch_end(self._cluster, self._place, leader_epoch)
        return self.visible_offset if found < 0 else found

    def offset_at(self, timestamp: int) -> int:
        """The first offset whose record is not older than `timestamp`, in milliseconds; the end if there is none."""
        found = self._offset(max(timestamp, 0)).offset
        return self.visible_offset if found < 0 else found

    @property
    def size_bytes(self) -> int | None:
        """The size of its files; None if the broker does not say it."""
        return asking.sizes(self._cluster, [self._place]).get(self._place)

    # --- reading

    def fetch(self, start: int, max_bytes: int, *, isolation: Isolation = "committed") -> Fetched:
        """Complete batches as they are stored, from the one that contains `start` on."""
        answered = self._page(start, max_bytes, is_committed(isolation), wait_ms=0)
        rows, stable = complete(answered.records), answered.last_stable_offset
        if not len(rows):
            return Fetched((), start, stable)
        end = int(rows[-1, POSITION] + rows[-1, SIZE])
        following = int(rows[-1, LAST]) + 1
        return Fetched((answered.records[:end],), following, stable, answered.aborted, start, self._place)

    def _page(self, start: int, max_bytes: int, committed: bool, *, wait_ms: int = _WAIT_MS) -> asking.Answered:
        try:
            answers = asking.fetch(
                self._cluster, {self._place: start}, max_bytes=max_bytes, wait_ms=wait_ms, committed=committed
            )
        except OffsetOutOfRange as error:  # what the answer says about the ends may be missing
            raise OffsetOutOfRange(start, self.lowest_offset, self.visible_offset, self.path) from error
        return answers[self._place]

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Records in order, start <= offset < end."""
        first, last = self._span(start, end, isolation)
        return chain.from_iterable(self._cursors(first, last, is_committed(isolation)))

    def _span(self, start: int | None, end: int | None, isolation: Isolation) -> tuple[int, int]:
        until = self.position(isolation=isolation)[0]
        return self.lowest_offset if start is None else start, until if end is None else min(end, until)

    def _cursors(self, start: int, end: int, committed: bool) -> Iterator[kernel.RecordCursor]:
        topic, number = self._place
        most = self.config.max_decompressed_bytes
        for view, rows in self._pages(start, end, committed):
            for body, run, error in batch_read.unpack(view, rows, most):
                if error is not None:
                    raise error
                cursor = kernel.RecordCursor(body, memoryview(run), start, end, topic, number)
                yield cursor
                if cursor.bad >= 0:
                    raise CorruptBatch(batch_read.MALFORMED)

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches."""
        from ...batch.arrow import schema, to_arrow

        schema(columns)  # refuses unknown columns before anything is read
        first, last = self._span(start, end, isolation)
        most = self.config.max_decompressed_bytes
        for view, rows in self._pages(first, last, is_committed(isolation)):
            yield to_arrow(view, rows, first, last, columns=columns, max_bytes=most)

    def _pages(self, start: int, end: int, committed: bool) -> Iterator[tuple[memoryview, Rows]]:
        """Batches with records for a reader, page by page."""
        position, patience = start, self._cluster.timeout_s * 1000
        while position < end:
            answered = self._page(position, _PAGE_BYTES, committed)
            rows = complete(answered.records)
            if not len(rows):
                patience -= _WAIT_MS
                if patience < 0:
                    raise BrokerTimeout(f"{self.path}: the broker sends nothing from offset {position} on")
                continue
            position = int(rows[-1, LAST]) + 1
            shown = visible_batches(rows, answered.aborted)
            if len(shown):
                yield answered.records, shown

    # --- writing

    def append_batches(self, raw: Any) -> None:
        """Store one finished batch."""
        data = memoryview(raw).cast("B")
        self._sender.place(self._place[1], kernel.Encoded(data, int.from_bytes(data[57:61]), -1, -1))

    def append_stream(
        self, chunks: Iterable[bytes], *, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> int:
        """Store one record whose value comes in pieces. It is collected here, so it has to fit into one batch."""
        value, most = bytearray(), self._recipe.max_batch_bytes
        for chunk in chunks:
            value += chunk
            if len(value) > most:
                raise RecordTooLarge(f"the record is larger than {most:,} bytes, the most that {self.path} takes")
        producer = self._sender.producer(self._place[1])
        batch = Encoder(self._recipe).many([(bytes(value), key, headers)], producer)
        return self._sender.place(self._place[1], batch)

    def writer(self, *, linger_ms: float | None = None) -> Packer:
        """Collects records into batches."""
        sender, number = self._sender, self._place[1]
        return Packer(
            number + 1, sender.place, self._recipe, partition=number, producer=sender.producer, linger_ms=linger_ms
        )


def wait_for_more(cluster: Cluster, positions: Mapping[Place, int], seconds: float) -> None:
    """Return when one of the partitions has a record at its position, or the time is over."""
    try:
        asking.fetch(cluster, positions, max_bytes=1, wait_ms=round(seconds * 1000))
    except OffsetOutOfRange:
        pass  # there is news: the partition was truncated or trimmed
