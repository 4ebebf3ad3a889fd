"""`ObjectService`: the broker's view of a store on object storage, for an event loop.

A `ServingTopic` and its `ServingPartition`s describe the last folded state (`StoreSession.peek`): true, but perhaps
outdated. `ServingPartition.peek` returns batches at once if they are in a recently folded commit, which is where
followers of the end find them; otherwise a thread reads them. An append is part of the next commit, which assigns its
offsets. The appends of one process to a partition stay in order.

Brokers that share a store agree in its commits. A silent broker is removed by the others (`ObjectBrokers`), each by its
own clock alone: a broker requests the removal after it has seen the same beat for the whole timeout, and the fold
rejects the request if there was another beat meanwhile. A broker that restarts after a crash need not wait for that: it
listens at the address, so the earlier one is gone. A broker that was removed by mistake registers again.

The coordinator of a group has a *claim* to it (`ObjectClaim`), with an epoch; see state/groups.py. A broker's commits
for members carry its claim, so that a broker that has lost it commits nothing: `NotCoordinator`. Any broker may change
a transactional id (`ObjectTransactionalIds`); the version decides. A transaction ends in one commit: see
state/partitions.py.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from ...batch.header import ATTRIBUTES, CONTROL_BIT, PRODUCER_EPOCH, PRODUCER_ID, TRANSACTIONAL_BIT, Rows
from ...clock import Stopwatch, now_ms
from ...config import Isolation, LogConfig, is_committed
from ...errors import Conflict, GroupActive, GroupError, LogClosed, NotCoordinator, TopicNotFound
from ...log.ingest import checked_rows, rows_of, stamp_batches
from ...log.producers import ProducerInfo
from ...log.reader import Fetched
from ...log.transactions import marker
from ...storage.forking import forkable
from ..base import Store, TopicPartition
from ..groups import CoordinatorClaim, Member, OffsetChange
from ..names import check_group_name
from ..serving import BrokerRegistry, Node, StagedOffset, StoreService, TransactionalIds, TransactionMarker
from ..settings import log_config
from .membership import members_of, remove_member
from .partition import ObjectPartition, page_of
from .session import StoreSession, results
from .state import Outcome, State
from .state.commit import INLINE, Action, Extent, Request, append_action, described, epoch_end
from .state.entries import quoted
from .topic import ObjectTopic

_T = TypeVar("_T")
_logger = logging.getLogger("sawlog.broker")

#: Number of threads for reads and uploads.
_THREADS = 16
#: Producer ids are allocated in blocks of this size. Unused ids are lost when the broker stops.
_BLOCK = 1000

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
        #: Appends, perhaps still being uploaded, and the futures of their offsets, in order of arrival: a producer's
        #: batches have sequence numbers, so a small batch must not overtake a large one.
        self._waiting: deque[tuple[Future[Ready], Future[range]]] = deque()
        self._submitting = forkable(threading.RLock())
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
        """Add batches to the next commit, and return a future of their offsets. Never blocks."""
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

        def prepare() -> Ready:
            action, inline = self._session.append_action(self._id, self._number, kept, rows)
            return [*conditions, action], inline

        request: Future[Ready] = Future()
        if self._session.is_inline(kept):
            request.set_result(prepare())
        else:
            request = self._threads.submit(prepare)
        placed: Future[range] = Future()
        with self._submitting:
            self._waiting.append((request, placed))
        request.add_done_callback(lambda _: self._submit_ready())
        return placed

    def _submit_ready(self) -> None:
        with self._submitting:
            while self._waiting and self._waiting[0][0].done():
                _commit(self._session, *self._waiting.popleft())

    def _conditions(self, rows: Rows) -> list[Action]:
        """Return the conditions of transactional batches: their transaction must include the partition."""
        special = rows[(rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT]
        wanted = {(int(row[PRODUCER_ID]), int(row[PRODUCER_EPOCH])) for row in special}
        return [
            {"do": "in transaction", "producer": producer, "epoch": epoch, "topic": self._id, "partition": self._number}
            for producer, epoch in sorted(wanted)
        ]


def _commit(session: StoreSession, request: Future[Ready], placed: Future[range]) -> None:
    try:
        outcome = session.submit(*request.result())
    except BaseException as error:
        placed.set_exception(error)
        return
    outcome.add_done_callback(lambda done: _settle(placed, done))


def _settle(placed: Future[range], done: Future[Outcome]) -> None:
    try:
        found = results(done.result())[-1]
        assert isinstance(found, list)
        placed.set_result(range(found[0], found[1]))
    except BaseException as error:
        placed.set_exception(error)


# --- coordination


class ObjectBrokers(BrokerRegistry):
    """The brokers of one store, as one of them sees them. `nodes` is thread-safe, the rest is not."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        #: Identifies this run of this process's broker.
        self.run = uuid.uuid4().hex
        #: The run and the beat of each other broker, and since when they were seen.
        self._seen: dict[int, tuple[str, int, Stopwatch]] = {}
        #: The epochs of this broker's claims, by group.
        self.claims: dict[str, int] = {}

    def join(self, node_id: int | None, host: str, port: int) -> int:
        action = {"do": "register broker", "id": node_id, "run": self.run, "host": host, "port": port}
        (found,) = self._session.commit([action])
        assert isinstance(found, int)
        self.node = Node(found, host, port)
        return found

    def listens(self) -> None:
        node = self.node
        if node is None:
            return
        for each in self._session.look(_registered):
            if each.run != self.run and (each.node.host, each.node.port) == (node.host, node.port):
                _logger.info("broker %d was at this address before, and is removed", each.node.id)
                self._remove(each.node.id, each.run, None)

    def nodes(self) -> Sequence[Node]:
        found = {each.node.id: each.node for each in self._session.peek(_registered)}
        if self.node is not None:
            found[self.node.id] = self.node
        return [found[each] for each in sorted(found)]

    def beat(self, timeout_s: float) -> None:
        node = self.node
        if node is None:
            return
        try:
            self._session.commit([{"do": "beat", "id": node.id, "run": self.run}])
        except Conflict:
            others = self._session.peek(lambda state: state.entries.get(f"broker/{node.id}"))
            if others is not None:
                _logger.error("another broker has the node id %d: each needs its own (node_id)", node.id)
                return
            _logger.warning("broker %d was removed by another one, and registers again", node.id)
            self.join(node.id, node.host, node.port)
        self._remove_silent(timeout_s)

    def _remove_silent(self, timeout_s: float) -> None:
        seen = {}
        for node, run, beat in self._session.peek(_registered):
            before = self._seen.get(node.id)
            since = before[2] if before is not None and before[:2] == (run, beat) else Stopwatch()
            seen[node.id] = run, beat, since
            if run != self.run and since.elapsed_s >= timeout_s and self._remove(node.id, run, beat):
                _logger.warning("broker %d gives no sign of life, and is removed", node.id)
        self._seen = seen

    def _remove(self, node_id: int, run: str, beat: int | None) -> bool:
        """Remove a broker, with that beat if one is given, and return whether it was removed."""
        try:
            self._session.commit([{"do": "remove broker", "id": node_id, "run": run, "beat": beat}])
        except Conflict:
            return False  # it has sent another heartbeat, or is gone
        return True

    def leave(self) -> None:
        node, self.node = self.node, None
        if node is not None:
            try:
                self._remove(node.id, self.run, None)
            except LogClosed:
                pass

    # --- groups

    def commit_offsets(self, changes: Sequence[OffsetChange]) -> Sequence[GroupError | None]:
        """Commit for several groups, usually in one commit."""
        waiting = [(change, self._session.submit([self._action(change)])) for change in changes]
        return [self._result(change, outcome) for change, outcome in waiting]

    def _action(self, change: OffsetChange) -> dict[str, Any]:
        rows: list[list[object]] = []
        known = self._session.peek(lambda state: {topic: state.topic(topic) for topic, _ in change.offsets})
        names: dict[str, str] = {}
        for (topic, partition), new in change.offsets.items():
            entry = known[topic]
            topic_id = new.topic_id if new is not None else (entry or {}).get("id")
            if entry is None or entry["id"] != topic_id:
                continue  # deleted meanwhile
            names[topic_id] = topic
            if new is None:
                rows.append([topic_id, partition, None, "", -1])
                continue
            epoch = new.leader_epoch if new.told_epoch is None else new.told_epoch
            rows.append([topic_id, partition, new.offset, new.metadata, epoch])
        action: dict[str, Any] = {"do": "commit offsets", "group": change.group, "offsets": rows, "topics": names}
        if not change.by_server:
            action["outside"] = True
        else:
            action["claim"] = [self.run, self.claims.get(change.group, 0)]
        return action

    def _result(self, change: OffsetChange, outcome: Future[Outcome]) -> GroupError | None:
        try:
            results(outcome.result())
        except TopicNotFound:  # deleted after the lookup: the others are committed without it
            self._session.look(lambda state: None, fresh=True)
            return self._result(change, self._session.submit([self._action(change)]))
        except (GroupActive, NotCoordinator) as error:
            return error
        return None


class ObjectClaim(CoordinatorClaim):
    """Claim to coordinate one group. Consumers that opened the store directly keep brokers out. A consumer that is
    silent for its session timeout, by the clock of this process, is removed."""

    def __init__(self, session: StoreSession, brokers: ObjectBrokers, group: str, address: str) -> None:
        self._session = session
        self._brokers = brokers
        self._group = group
        self._address = address
        #: Epoch of the claim, once it was taken.
        self._epoch = -1
        #: The beat of each consumer, and since when it was seen.
        self._seen: dict[str, tuple[int, Stopwatch]] = {}

    @property
    def may_succeed(self) -> bool:
        return all(self._seen.get(each.id, (each.beat,))[0] == each.beat for each in self._members())

    def _members(self) -> Iterable[Member]:
        return self._session.look(lambda state: members_of(state, self._group), fresh=True).values()

    def _remove_silent(self) -> None:
        for each in self._members():
            beat, since = self._seen.setdefault(each.id, (each.beat, Stopwatch()))
            if beat == each.beat and since.elapsed_ms >= each.session_timeout_ms:
                remove_member(self._session, self._group, each)

    def take(self) -> None:
        self._remove_silent()
        node = self._brokers.node
        action = {
            "do": "claim group",
            "group": self._group,
            "id": -1 if node is None else node.id,
            "run": self._brokers.run,
            "address": self._address,
            "epoch": None,
        }
        (epoch,) = self._session.commit([action])
        assert isinstance(epoch, int)
        self._epoch = self._brokers.claims[self._group] = epoch

    @property
    def current(self) -> bool:
        served = self._session.peek(lambda state: state.entries.get(f"served/{quoted(self._group)}"))
        return served is not None and [served[2], served[0]] == [self._brokers.run, self._epoch]

    def release(self) -> None:
        claims = self._brokers.claims
        if claims.get(self._group) != self._epoch:
            return
        del claims[self._group]
        claim = [self._brokers.run, self._epoch]
        with suppress(NotCoordinator, Conflict):  # another broker coordinates it
            self._session.commit([{"do": "release group", "group": self._group, "claim": claim}])


class _Registered(NamedTuple):
    """A registered broker."""

    node: Node
    run: str
    beat: int


def _registered(state: State) -> list[_Registered]:
    found = []
    for name in state.entries.names("broker/"):
        entry = state.entries.get(name)
        node = Node(int(name.partition("/")[2]), entry["host"], entry["port"])
        found.append(_Registered(node, entry["run"], entry["beat"]))
    return found


class ObjectTransactionalIds(TransactionalIds):
    """The transactional ids of one store. Thread-safe."""

    is_shared = True

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        self._lock = forkable(threading.Lock())
        self._ids = iter(range(0))

    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        """Return version and fields, as of the last folded commit."""
        found = self._session.peek(lambda state: state.entries.get(f"transaction/{quoted(name)}"))
        return None if found is None else (found[0], found[1])

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        return self._session.peek(_transactional_ids)

    def pending(self, group: str) -> frozenset[TopicPartition]:
        found = self._session.peek(lambda state: state.entries.get(f"pending/{quoted(group)}", {}))
        return frozenset((topic, partition) for shares in found.values() for topic, partition in shares)

    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[TransactionMarker] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        saving = {"do": "save transaction", "name": name, "version": version, "fields": fields}
        while True:
            actions, inline = self._session.peek(lambda state: _ending(state, markers, offsets or {}))
            try:
                self._session.commit([saving, *actions], inline)
                return
            except TopicNotFound:  # deleted meanwhile: the next attempt leaves it out
                self.refresh()

    def refresh(self) -> None:
        self._session.look(lambda state: None, fresh=True)

    def new_producer_id(self) -> int:
        with self._lock:
            found = next(self._ids, None)
            if found is None:
                (first,) = self._session.commit([{"do": "take numbers", "name": "producer", "count": _BLOCK}])
                assert isinstance(first, int)
                self._ids = iter(range(first, first + _BLOCK))
                found = next(self._ids)
            return found


def _transactional_ids(state: State) -> dict[str, tuple[int, Mapping[str, Any]]]:
    found = {name: state.entries.get(name) for name in state.entries.names("transaction/")}
    return {unquote(name.partition("/")[2]): (version, fields) for name, (version, fields) in found.items()}


def _ending(
    state: State, markers: Sequence[TransactionMarker], offsets: Mapping[str, Sequence[StagedOffset]]
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the actions that end a transaction in those of its topics that still exist."""
    actions: list[dict[str, Any]] = []
    inline: list[bytes] = []
    for each in markers:
        if state.entries.get(f"end/{each.topic_id}/{each.partition}") is None:
            continue
        data = bytes(marker(each.producer_id, each.epoch, 0, now_ms(), commit=each.commit))
        what = described(rows_of(memoryview(data)))
        actions.append(append_action(each.topic_id, each.partition, INLINE, what, None))
        inline.append(data)
    for group, staged in offsets.items():
        rows, names = [], {}
        for topic, partition, offset, epoch, metadata in staged:
            entry = state.topic(topic)
            if entry is not None and partition < entry["partitions"]:
                rows.append([entry["id"], partition, offset, metadata, epoch])
                names[entry["id"]] = topic
        if rows:
            actions.append({"do": "commit offsets", "group": group, "offsets": rows, "topics": names, "decided": True})
    return actions, inline
