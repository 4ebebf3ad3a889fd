"""`ObjectService`: the broker's view of a store on object storage, for an event loop.

A `ServingTopic` and its `ServingPartition`s describe the last folded state (`StoreSession.peek`): true, but perhaps
outdated. `ServingPartition.peek` returns batches at once if they are in a recently folded commit, which is where
followers of the end find them; otherwise a thread reads them. An append is part of the next commit, which assigns its
offsets. `AppendQueue` keeps the appends to a partition in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...batch.header import ATTRIBUTES, CONTROL_BIT, PRODUCER_EPOCH, PRODUCER_ID, TRANSACTIONAL_BIT, Rows
from ...config import Isolation, LogConfig, is_committed
from ...errors import GroupError, TopicNotFound
from ...log.ingest import checked_rows, rows_of, stamp_batches
from ...log.producers import ProducerInfo
from ...log.reader import Fetched
from ...storage.forking import forkable
from ..base import Store
from ..groups import OffsetChange, check_group_name
from ..serving import StoreService
from ..settings import log_config
from .coordination import ObjectBrokers, ObjectClaim, ObjectTransactionalIds
from .partition import ObjectPartition, page_of
from .session import StoreSession, results
from .state import Outcome, State
from .state.commit import Action, Extent, Request, epoch_end
from .topic import ObjectTopic

_T = TypeVar("_T")

#: Number of threads for reads and uploads.
_THREADS = 16

#: The request of an append, and the batches to store in its commit.
Ready = tuple[Request, Sequence[bytes]]


class ObjectService(StoreService):
    """Broker's view of one open store. Commits of other processes are discovered by polling."""

    is_current = False
    brokers: ObjectBrokers

    def __init__(self, store: Store, session: StoreSession) -> None:
        super().__init__(store, ObjectBrokers(session))
        self._session = session
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-objects")
        self._topics: dict[str, ServingTopic] = {}

    def close(self) -> None:
        """Wait for running reads and uploads."""
        self._threads.shutdown(wait=True)

    def catch_up(self) -> None:
        self._session.look(lambda state: None, fresh=True)

    def topic(self, name: str) -> ObjectTopic:
        entry = self._session.find(lambda state: state.topic(name))
        if entry is None:
            raise TopicNotFound(f"no topic {name!r} in {self.path}")
        found = self._topics.get(name)
        if found is None or found.id != entry["id"]:
            found = self._topics[name] = ServingTopic(self._session, self._threads, name, entry)
        return found

    def claim_group(self, name: str, address: str) -> ObjectClaim:
        return ObjectClaim(self._session, self.brokers, check_group_name(name), address)

    def commit_offsets(self, changes: Sequence[OffsetChange]) -> Sequence[GroupError | None]:
        return self.brokers.commit_offsets(changes)

    def transactional_ids(self) -> ObjectTransactionalIds:
        return ObjectTransactionalIds(self._session)


class ServingTopic(ObjectTopic):
    """A topic as of the last folded commit: its properties and partitions never send a request."""

    def __init__(self, session: StoreSession, threads: Executor, name: str, entry: Mapping[str, Any]) -> None:
        super().__init__(session, name, str(entry["id"]))
        self._threads = threads
        self._last_entry = entry
        self._partitions: dict[int, ServingPartition] = {}

    def _entry(self) -> Mapping[str, Any]:
        """Return the entry of the topic; the last known one if the topic was deleted."""
        found = self._session.peek(lambda state: state.topic(self._name))
        if found is not None and found["id"] == self._id:
            self._last_entry = found
        return self._last_entry

    def partition(self, number: int) -> ServingPartition:
        found = self._partitions.get(number)
        if found is None:
            self._check_number(number)
            found = self._partitions.setdefault(number, ServingPartition(self, number, self._threads))
        return found


class ServingPartition(ObjectPartition):
    """One partition, for an event loop. Thread-safe."""

    def __init__(self, topic: ObjectTopic, number: int, threads: Executor) -> None:
        super().__init__(topic._session, topic.name, topic.id, number, topic.config)
        self._of = topic
        self._threads = threads
        self._queue = AppendQueue(self._session, threads)
        #: The settings from which the config was computed.
        self._settings: object = None

    def _look(self, read: Callable[[State], _T]) -> _T:
        """Read from the last folded state, without a request."""
        return self._session.peek(read)

    @property
    def _current(self) -> bool:
        """Always false: commits of other processes are discovered later."""
        return False

    @property
    def config(self) -> LogConfig:
        """Settings of the topic, recomputed when they change: every batch needs them."""
        now = self._of._entry()["settings"]
        if now is not self._settings:
            self._settings, self._config = now, log_config(now)
        return self._config

    def epoch_end(self, leader_epoch: int) -> int:
        """Return the first offset after an epoch. The current one has no limit: a client may have read records that are
        not known here yet, and nothing is ever truncated."""
        epochs = self._leader_epochs
        if leader_epoch == epochs[-1][0]:
            return max(self.visible_offset, 2**62)
        return epoch_end(epochs, leader_epoch, self.visible_offset)

    @property
    def _producer_states(self) -> list[ProducerInfo]:
        return self._look(self._producers)

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

    def _peek(
        self, start: int, max_bytes: int = 1 << 20, *, isolation: Isolation = "committed"
    ) -> Fetched | Future[Fetched]:
        """Return batches of recent commits from memory; otherwise a thread fetches them."""
        committed = is_committed(isolation)

        lowest, end, stable, extents = self._look(
            lambda state: self._page_extents(state, start, max_bytes, committed=committed)
        )
        if lowest <= start <= end:
            stop = stable if committed else end
            if start >= stop or not extents:
                return Fetched((), start, stable)
            buffers, after = page_of(self._kept(extents), start, stop, max_bytes)
            if buffers:
                return self._fetched(buffers, start, after, stable, committed=committed)
        return self._threads.submit(self.fetch, start, max_bytes, isolation=isolation)

    def _kept(self, extents: list[Extent]) -> Iterator[tuple[Extent, bytearray]]:
        """Yield the extents that are in memory, up to the first that is not."""
        for extent in extents:
            found = self._session.extents.in_memory(extent)
            if found is None:
                return
            yield extent, bytearray(found)

    # --- appending

    def _submit(
        self, raw: bytearray | memoryview, *, trusted: bool = True, max_decompressed_bytes: int | None = None
    ) -> Future[range]:
        """Add batches to the next commit, and return a future of their offsets."""
        data, config = memoryview(raw), self.config
        allowed = config.max_decompressed_bytes
        rows = checked_rows(
            data, max_unpacked_bytes=None if trusted else min(allowed, max_decompressed_bytes or allowed)
        )
        if config.timestamp_type == "append":
            stamp_batches(data, rows)
            rows = rows_of(data)  # their checksums have changed
        conditions = self._conditions(rows)
        kept = bytes(data)

        def request() -> Ready:
            action, inline = self._session.append_action(self._id, self._number, kept, rows)
            return [*conditions, action], inline

        return self._queue.append(request()) if self._session.is_inline(kept) else self._queue.prepare(request)

    def _conditions(self, rows: Rows) -> list[Action]:
        """Return the conditions of transactional batches: their transaction must include the partition."""
        special = rows[(rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT]
        wanted = {(int(row[PRODUCER_ID]), int(row[PRODUCER_EPOCH])) for row in special}
        return [
            {"do": "in transaction", "producer": producer, "epoch": epoch, "topic": self._id, "partition": self._number}
            for producer, epoch in sorted(wanted)
        ]


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
