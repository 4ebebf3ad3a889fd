"""`ServedPartition`: a partition on object storage for an event loop. `AppendQueue` keeps its appends in order.

Its properties describe the last folded state (`StoreSession.peek`): true, but perhaps outdated. `fetch` returns batches
at once if they are in a recently folded commit, which is where followers of the end find them; otherwise a thread reads
them. An append is part of the next commit, which assigns its offsets.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from ....batch.header import ATTRIBUTES, CONTROL_BIT, PRODUCER_EPOCH, PRODUCER_ID, TRANSACTIONAL_BIT, Rows
from ....batch.kernel import Record
from ....clock import now_ms
from ....config import LogConfig
from ....isolation import Isolation, is_committed
from ....log.ingest import checked_rows, rows_of, stamp_batches
from ....log.markers import marker
from ....log.producers import ProducerInfo
from ....log.reader import Fetched
from ....storage.forking import forkable
from ..extent_reader import append_action, described
from ..partition import INLINE_BATCH_BYTES, ObjectPartition, page_of
from ..session import StoreSession, results
from ..state.commit import Action, Request
from ..state.extents import INLINE, Extent, epoch_end
from ..state.state import Outcome, State

#: The request of an append, and the batches to store in its commit.
Ready = tuple[Request, Sequence[bytes]]


@dataclass(slots=True)
class _Entry:
    """An append that waits for earlier ones, or for its upload."""

    placed: Future[range] = field(default_factory=Future)
    ready: Ready | None = None
    error: BaseException | None = None


class AppendQueue:
    """The appends of one process to one partition, in order of arrival. Thread-safe; never blocks.

    A producer's batches have sequence numbers, so a small batch must not overtake a large one that is still being
    uploaded.
    """

    def __init__(self, session: StoreSession, threads: Executor) -> None:
        self._session = session
        self._threads = threads
        self._lock = forkable(threading.Lock())
        self._waiting: deque[_Entry] = deque()

    def append(self, ready: Ready) -> Future[range]:
        """Submit a request whose last action appends."""
        with self._lock:
            made = _Entry(ready=ready)
            if self._waiting:
                self._waiting.append(made)
            else:
                self._submit(made)
        return made.placed

    def prepare(self, upload: Callable[[], Ready]) -> Future[range]:
        """Submit a request that is complete after an upload."""
        made = _Entry()
        with self._lock:
            self._waiting.append(made)

        def work() -> None:
            try:
                made.ready = upload()
            except BaseException as error:
                made.error = error
            with self._lock:
                self._submit_ready()

        self._threads.submit(work)
        return made.placed

    def _submit_ready(self) -> None:
        while self._waiting and (self._waiting[0].ready is not None or self._waiting[0].error is not None):
            self._submit(self._waiting.popleft())

    def _submit(self, entry: _Entry) -> None:
        if entry.ready is None:
            assert entry.error is not None
            entry.placed.set_exception(entry.error)
            return
        try:
            outcome = self._session.submit(*entry.ready)
        except BaseException as error:
            entry.placed.set_exception(error)
            return
        outcome.add_done_callback(lambda done: _settle(entry.placed, done))


def _settle(placed: Future[range], done: Future[Outcome]) -> None:
    """Pass the offsets, or the error, to the waiting caller."""
    try:
        found = results(done.result())[-1]
        assert isinstance(found, list)
        placed.set_result(range(found[0], found[1]))
    except BaseException as error:
        placed.set_exception(error)


class ServedPartition:
    """One partition. Thread-safe."""

    #: Nothing has to be opened, locked or recovered, and commits of others are discovered later.
    closed, locked, writable, current = False, True, True, False
    durable_lag_bytes = 0

    def __init__(
        self,
        session: StoreSession,
        threads: Executor,
        partition: ObjectPartition,
        name: str,
        topic_id: str,
        number: int,
        config: Callable[[], LogConfig],
    ) -> None:
        self._session = session
        self._threads = threads
        self._partition = partition
        self._id = topic_id
        self._number = number
        self._config = config
        self._queue = AppendQueue(session, threads)
        self.path = f"{session.bucket.url}/{name}/{number}"

    # --- properties

    def _ends(self) -> tuple[int, int]:
        return self._session.peek(lambda state: state.ends(self._id, self._number))

    @property
    def lowest_offset(self) -> int:
        """First offset of the partition."""
        return self._ends()[0]

    is_tiered = False
    local_offset = lowest_offset

    @property
    def visible_offset(self) -> int:
        """End of the readable records. All of them are durable."""
        return self._ends()[1]

    next_offset = written_offset = durable_offset = visible_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest open transaction, or `visible_offset`."""
        return self._session.peek(lambda state: state.stable(self._id, self._number))

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Return the end for a reader, and the leader epoch."""
        return (self.last_stable_offset if is_committed(isolation) else self.visible_offset), self.leader_epoch

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, its first offset), oldest first: (0, 0), unless the partition is a copy of one that had others."""
        found = self._session.peek(lambda state: state.epochs(self._id, self._number))
        return tuple((int(epoch), int(first)) for epoch, first in found) or ((0, 0),)

    @property
    def leader_epoch(self) -> int:
        """Current leader epoch."""
        return self.leader_epochs[-1][0]

    def epoch_end(self, leader_epoch: int) -> int:
        """Return the first offset after an epoch. The current one has no limit: a client may have read records that are
        not known here yet, and nothing is ever truncated."""
        epochs = self.leader_epochs
        if leader_epoch == epochs[-1][0]:
            return max(self.visible_offset, 2**62)
        return epoch_end(epochs, leader_epoch, self.visible_offset)

    @property
    def segments(self) -> Sequence[Extent]:
        return self._session.peek(lambda state: list(state.extents(self._id, self._number, 0)))

    @property
    def size_bytes(self) -> int:
        """Size of all batches."""
        return sum(each.size_bytes for each in self.segments)

    @property
    def producer_states(self) -> list[ProducerInfo]:
        """The state of each known producer."""
        return self._session.peek(self._producers)

    def _producers(self, state: State) -> list[ProducerInfo]:
        prefix, found = f"producer/{self._id}/{self._number}/", []
        opened = state.entries.get(f"open/{self._id}/{self._number}", {})
        for name in state.entries.names(prefix):
            producer = name.removeprefix(prefix)
            epoch, batches, _ = state.entries.get(name)
            begun = opened.get(producer, [-1])[0]
            found.append(ProducerInfo(int(producer), epoch, batches[-1][1] if batches else -1, -1, -1, begun))
        return found

    # --- reading

    def fetch(
        self, start: int, max_bytes: int = 1 << 20, *, isolation: Isolation = "committed"
    ) -> Fetched | Future[Fetched]:
        """Return whole batches from the one that contains `start`, up to `max_bytes` but at least one, or a future of
        them."""
        committed = is_committed(isolation)

        def look(state: State) -> tuple[int, int, int, list[Extent]]:
            lowest, end = state.ends(self._id, self._number)
            stable = state.stable(self._id, self._number)
            chosen: list[Extent] = []
            size = 0
            for extent in state.extents(self._id, self._number, start, stable if committed else None):
                chosen.append(extent)
                size += extent.size_bytes
                if size >= max_bytes:
                    break
            return lowest, end, stable, chosen

        lowest, end, stable, extents = self._session.peek(look)
        if lowest <= start <= end:
            stop = stable if committed else end
            if start >= stop or not extents:
                return Fetched((), start, stable)
            buffers, after = page_of(self._kept(extents), start, stop, max_bytes)
            if buffers:
                return self._fetched(buffers, start, after, stable, committed=committed)
        return self._threads.submit(self._partition.fetch, start, max_bytes, isolation=isolation)

    def _kept(self, extents: list[Extent]) -> Iterator[tuple[Extent, bytearray]]:
        """Yield the extents that are in memory, up to the first that is not."""
        for extent in extents:
            found = self._session.extents.in_memory(extent)
            if found is None:
                return
            yield extent, bytearray(found)

    def _fetched(self, buffers: list[memoryview], start: int, end: int, stable: int, *, committed: bool) -> Fetched:
        aborted: tuple[tuple[int, int], ...] = ()
        if committed and buffers:
            found = self._session.peek(lambda state: state.aborted(self._id, self._number, start, end))
            aborted = tuple((producer, first) for producer, first, _ in found)
        return Fetched(tuple(buffers), end, stable, aborted, start)

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when an end may have moved, until the returned function is called."""

        def seen() -> tuple[int, int]:
            return self._session.peek(lambda state: (state.ends(self._id, self._number)[1], self._stable_of(state)))

        before = seen()

        def look() -> None:
            nonlocal before
            now = seen()
            if now != before:
                before = now
                call()

        return self._session.notifier.watch(look)

    def _stable_of(self, state: State) -> int:
        return state.stable(self._id, self._number)

    def offset_at(self, timestamp: int) -> int:
        """Return the first offset whose record is not older than `timestamp`."""
        return self._partition.offset_at(timestamp)

    def newest(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the largest timestamp."""
        extents = self.segments
        if not extents:
            return None
        largest = max(each.max_timestamp for each in extents)
        found = next(each for each in extents if each.max_timestamp == largest)
        for record in self._partition.scan(
            max(found.base_offset, self.lowest_offset), found.next_offset, isolation="uncommitted"
        ):
            if record.timestamp == largest:
                return record.offset, largest
        return None

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Yield the records of a range."""
        return self._partition.scan(start, end, isolation=isolation)

    # --- appending

    def _place_batches(
        self,
        raw: bytearray | memoryview,
        *,
        trusted: bool = True,
        wait: bool = True,
        max_decompressed_bytes: int | None = None,
    ) -> Future[range]:
        """Add batches to the next commit, and return a future of their offsets."""
        data, config = memoryview(raw), self._config()
        allowed = config.max_decompressed_bytes
        rows = checked_rows(
            data, max_unpacked_bytes=None if trusted else min(allowed, max_decompressed_bytes or allowed)
        )
        if config.timestamp_type == "append":
            stamp_batches(data, rows)
            rows = rows_of(data)  # their checksums have changed
        conditions = self._conditions(rows)
        what, kept = described(rows), bytes(data)
        if len(kept) <= INLINE_BATCH_BYTES:
            action = append_action(self._id, self._number, INLINE, what, None)
            made = self._queue.append(([*conditions, action], [kept]))
        else:

            def upload() -> Ready:
                key = self._session.upload(kept)
                return [*conditions, append_action(self._id, self._number, key, what, None)], []

            made = self._queue.prepare(upload)
        if wait:
            made.result()
        return made

    def _conditions(self, rows: Rows) -> list[Action]:
        """Return the conditions of transactional batches: their transaction must include the partition."""
        special = rows[(rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT]
        wanted = {(int(row[PRODUCER_ID]), int(row[PRODUCER_EPOCH])) for row in special}
        return [
            {"do": "in transaction", "producer": producer, "epoch": epoch, "topic": self._id, "partition": self._number}
            for producer, epoch in sorted(wanted)
        ]

    def _take(self) -> None:
        """No-op: any process may write."""

    def when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back at once: an offset is known only when the append is durable."""
        call(None)

    def append_marker(self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> int:
        """End a producer's transaction in this partition."""
        data = marker(producer_id, epoch, coordinator_epoch, now_ms(), commit=commit)
        return self._place_batches(data).result().start

    def sync(self) -> None:
        """No-op: acknowledged records are visible."""

    def trim(self, offset: int) -> int:
        return self._partition.trim(offset)
