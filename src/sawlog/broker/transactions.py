"""`TransactionCoordinator`: transactions of Kafka clients, and their completion after a crash.

A transactional id has a producer id and an epoch. Its transaction collects partitions and committed offsets, and ends
with a marker in every partition (`Log.append_marker`). The log defines the effect of markers on readers.

Ending a transaction takes three steps:

1. *Decide*: "PrepareCommit" or "PrepareAbort" is stored durably. This is the commit point.
2. *Mark*: a marker is written to each partition, and the offsets to the groups.
3. *Complete*: "CompleteCommit" or "CompleteAbort" is stored durably.

A broker that dies before step 1 leaves a transaction that its client ends, or that is aborted after its timeout. A
broker that dies after step 1 repeats step 2 when it restarts. A duplicate marker is harmless: until step 3 the producer
cannot begin another transaction. Offsets carry the transaction's name, so they are committed once.

A client that starts again with the same transactional id gets the next epoch, and the transaction of its predecessor is
aborted. The marker has the new epoch, so the log itself refuses batches of the predecessor, including those still in
flight (a zombie). A transaction that exceeds its timeout is aborted in the same way.

`TransactionEntry` is the state of a transactional id, as brokers store it (`TransactionalIds`). It is durable before a
broker acts on it:

```
{"producer_id": 7, "epoch": 3, "timeout_ms": 60000, "state": "Ongoing", "number": 12, "started_ms": …,
 "changed_ms": …, "partitions": [["orders", "5f0c…", 0]], "offsets": {"billing": [["orders", 0, 120, 4, ""]]}}
```

A partition that another process has locked cannot be part of such a transaction: the markers must follow the batches.

Where several brokers serve a store (`TransactionalIds.is_shared`), the three steps are one commit, conditional on the
version of the entry: if two brokers both believe to be the coordinator, one of them gets a conflict and reads the entry
again. The store itself then checks that a batch belongs to a transaction that its partition was added to, because the
broker that receives it may not know that yet.

Everything here belongs to the event loop's thread; blocking calls run in threads. Requests for one transactional id are
serialized.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..clock import now_ms
from ..errors import Conflict, DirectoryLocked, SawlogError, StorageFull, TopicNotFound
from ..store.base import TopicPartition
from ..store.serving import StagedOffset, TransactionalIds, TransactionMarker
from .groups.members import Sender
from .groups.stored import NewOffset
from .handlers import KafkaError
from .wire import ErrorCode

if TYPE_CHECKING:
    from .broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: Interval between checks for transactions that have timed out or could not be completed.
_SWEEP_S = 0.5
_LAST_EPOCH = 2**15 - 2
#: Number of attempts after conflicts with other brokers.
_ATTEMPTS = 10


class TransactionState(StrEnum):
    """The state of a transaction, by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_decided(self) -> bool:
        """True if the outcome is durable but not complete."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


#: Topic, topic id, partition.
Place = tuple[str, str, int]


@dataclass(slots=True)
class TransactionEntry:
    """One transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    #: Epoch with which the producer requested the current one; it retries if the response is lost. -1 if none.
    last_epoch: int = -1
    state: TransactionState = TransactionState.EMPTY
    #: Number of transactions begun; with the id, it identifies each.
    number: int = 0
    started_ms: int = -1
    changed_ms: int = -1
    partitions: list[Place] = field(default_factory=list)
    #: By group.
    offsets: dict[str, list[StagedOffset]] = field(default_factory=dict)

    #: Version of the stored entry; 0 if there is none.
    version: int = 0

    def fields(self) -> dict[str, Any]:
        made = asdict(self)
        del made["version"]
        made["state"] = self.state.value
        return made

    @classmethod
    def of(cls, version: int, found: Mapping[str, Any]) -> TransactionEntry:
        made = cls(**{name: found[name] for name in found if name in cls.__dataclass_fields__})
        made.version, made.state = version, TransactionState(made.state)
        made.partitions = [(str(topic), str(topic_id), int(number)) for topic, topic_id, number in made.partitions]
        made.offsets = {
            group: [(str(t), int(p), int(o), int(e), str(m)) for t, p, o, e, m in offsets]
            for group, offsets in made.offsets.items()
        }
        return made

    def includes(self, topic: str, partition: int) -> bool:
        """Return whether a partition was added to the transaction."""
        return any((name, number) == (topic, partition) for name, _, number in self.partitions)


_P = ParamSpec("_P")
_T = TypeVar("_T")
_Method = Callable[Concatenate["TransactionCoordinator", _P], Awaitable[_T]]


def _retry_if_stale(work: _Method[_P, _T]) -> _Method[_P, _T]:
    """Retry a method that failed because of stale entries, if brokers share the stored entries."""

    @wraps(work)
    async def call(self: TransactionCoordinator, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        is_fresh = not self.is_shared
        for _ in range(_ATTEMPTS):
            try:
                return await work(self, *args, **kwargs)
            except KafkaError:
                if is_fresh:
                    raise
            except Conflict:
                pass
            is_fresh = True
            await self.refresh()
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "other brokers change this transactional id")

    return call


class TransactionCoordinator:
    """The transactional ids of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stored: TransactionalIds | None = None
        #: Decoded entries, with the fields they were decoded from.
        self._decoded: dict[str, tuple[Mapping[str, object], TransactionEntry]] = {}
        #: Names of the entries with offsets, unless the store has an index of them.
        self._with_offsets: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._sweeping: asyncio.Task[None] | None = None

    # --- lifecycle

    async def start(self) -> None:
        """Load the entries and complete decided transactions. Call this before clients are served."""
        broker = self._broker
        try:
            self._stored = await broker.run(broker.store.transactional_ids)
        except DirectoryLocked as error:
            _logger.warning("another broker serves this store: this one has no transactions (%s)", error)
            return
        for name, entry in {} if self._stored.is_shared else self.entries().items():
            if entry.offsets:
                self._with_offsets.add(name)
            for group in entry.offsets:
                broker.groups.hold(group)
            if entry.state.is_decided:
                await self._try_to_complete(name, entry)
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop. Pending transactions remain as they are stored."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping
        if self._stored is not None:
            await self._broker.run(self._stored.close)
            self._stored = None

    async def _sweep(self) -> None:
        """Periodically abort transactions that time out, complete decided ones, and drop unused ids."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now, expiry_ms = now_ms(), self._broker.config.transactional_id_expiration_ms
            for name, entry in self.entries().items():
                late = entry.state is TransactionState.ONGOING and now > entry.started_ms + entry.timeout_ms
                unused = entry.state is not TransactionState.ONGOING and now > entry.changed_ms + expiry_ms
                if not (late or unused or entry.state.is_decided):
                    continue
                if not self._broker.nodes.coordinates("transaction", name):
                    continue  # its coordinator does this
                async with self._lock(name):
                    if self._get(name) is not entry:
                        continue  # changed while we waited
                    try:
                        if entry.state.is_decided:
                            await self._complete(name, entry)
                        elif late:
                            _logger.info("transaction %s is aborted: it took longer than %s ms", name, entry.timeout_ms)
                            await self._end(name, entry, commit=False, fences=True)
                        elif unused:
                            await self._save(name, entry, forget=True)
                    except Conflict:
                        continue  # another broker was faster
                    except StorageFull:
                        continue  # logged once by the broker; retried
                    except (SawlogError, OSError) as error:
                        _logger.warning("transaction %s will be retried: %s", name, error)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    @property
    def is_shared(self) -> bool:
        """True if other brokers change the same entries."""
        return self._stored is not None and self._stored.is_shared

    async def refresh(self) -> None:
        """Read what other brokers have stored."""
        if self._stored is not None:
            await self._broker.run(self._stored.refresh)

    def _get(self, name: str) -> TransactionEntry | None:
        """Return an entry; the same object as long as it does not change."""
        found = None if self._stored is None else self._stored.get(name)
        if found is None:
            self._decoded.pop(name, None)
            return None
        version, fields = found
        known = self._decoded.get(name)
        if known is None or known[0] is not fields:
            known = self._decoded[name] = fields, TransactionEntry.of(version, fields)
        return known[1]

    async def _save(self, name: str, entry: TransactionEntry, *, forget: bool = False) -> TransactionEntry:
        """Store an entry durably; return it as stored."""
        if self._stored is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no transactions")
        await self._broker.run(self._stored.save, name, entry.version, None if forget else entry.fields())
        (self._with_offsets.discard if forget or not entry.offsets else self._with_offsets.add)(name)
        return self._get(name) or entry

    def _check_coordinator(self, name: str) -> None:
        """Send clients to the coordinator. Another broker would work as well, but with conflicts."""
        if not self._broker.nodes.coordinates("transaction", name):
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "another broker coordinates this transactional id")

    async def _new_producer_id(self) -> int:
        if self._stored is None:
            return secrets.randbits(61)  # idempotence alone needs no storage
        return await self._broker.run(self._stored.new_producer_id)

    # --- producers

    @_retry_if_stale
    async def init_producer(self, name: str | None, timeout_ms: int, known: tuple[int, int]) -> tuple[int, int]:
        """Return the producer id and epoch for a client. `known` is the pair it has, or (-1, -1)."""
        if name is None:
            return await self._new_producer_id(), 0
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        if not 0 < timeout_ms <= self._broker.config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"a timeout of {timeout_ms} ms is not allowed")
        self._check_coordinator(name)
        async with self._lock(name):
            entry = self._get(name)
            if entry is None:
                made = TransactionEntry(await self._new_producer_id(), 0, timeout_ms, changed_ms=now_ms())
                await self._save(name, made)
                return made.producer_id, made.epoch
            asks_again = known == (entry.producer_id, entry.last_epoch)
            if not asks_again and known not in ((-1, -1), (entry.producer_id, entry.epoch)):
                raise KafkaError(ErrorCode.PRODUCER_FENCED, "another producer with this transactional id has begun")
            if asks_again and entry.state is TransactionState.EMPTY:
                return entry.producer_id, entry.epoch  # the response was lost
            entry = replace(entry, last_epoch=known[1])
            if entry.state is TransactionState.ONGOING:
                entry = await self._end(name, entry, commit=False, fences=True)
            if entry.state.is_decided:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is not complete yet")
            made = replace(entry, state=TransactionState.EMPTY, timeout_ms=timeout_ms, changed_ms=now_ms())
            if entry.epoch >= _LAST_EPOCH:
                made = replace(made, producer_id=await self._new_producer_id(), epoch=-1)
            made = replace(made, epoch=made.epoch + 1)
            await self._save(name, made)
            return made.producer_id, made.epoch

    def _found(self, name: str, producer_id: int, epoch: int) -> TransactionEntry:
        """Return the entry of a producer that may use it."""
        entry = self._get(name)
        if entry is None or entry.producer_id != producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "this producer id is not the transactional id's")
        if entry.epoch != epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"the epoch is {entry.epoch}, not {epoch}")
        return entry

    def check_produce(self, name: str | None, producer_id: int, epoch: int, topic: str, partition: int) -> None:
        """Raise unless the batch belongs to a transaction that, as far as known, has its partition."""
        if self.is_shared:
            return
        entry = self._found(name or "", producer_id, epoch)
        if entry.state is not TransactionState.ONGOING or not entry.includes(topic, partition):
            raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, f"{topic}/{partition} was not added to the transaction")

    # --- a transaction

    @_retry_if_stale
    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Add partitions to a transaction: all of them or none."""
        wanted = list(partitions)
        self._check_coordinator(name)
        async with self._lock(name):
            entry = self._open(name, producer_id, epoch)
            places: list[Place] = []
            codes: dict[TopicPartition, ErrorCode] = {}
            for topic, number in wanted:
                place = await self._place(topic, number)
                if place is None:
                    codes[topic, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    places.append(place)
            if codes:
                return {partition: codes.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED) for partition in wanted}
            new = [place for place in places if place not in entry.partitions]
            if new or entry.state is not TransactionState.ONGOING:
                await self._save(name, replace(_begun(entry), partitions=[*_begun(entry).partitions, *new]))
            return dict.fromkeys(wanted, ErrorCode.NONE)

    async def _place(self, topic: str, number: int) -> Place | None:
        """Return a partition in which this broker can end a transaction; None if it cannot."""
        try:
            found = await self._broker.partitions.partition(topic, number)
        except TopicNotFound:
            return None
        return topic, found.topic.id, number

    def _open(self, name: str, producer_id: int, epoch: int) -> TransactionEntry:
        """Return an entry whose transaction can be extended or begun."""
        entry = self._found(name, producer_id, epoch)
        if entry.state.is_decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is not complete yet")
        return entry

    @_retry_if_stale
    async def add_offsets(self, name: str, producer_id: int, epoch: int, group: str) -> None:
        """Allow a transaction to commit offsets of a group."""
        self._check_coordinator(name)
        async with self._lock(name):
            entry = self._open(name, producer_id, epoch)
            if group not in entry.offsets or entry.state is not TransactionState.ONGOING:
                begun = _begun(entry)
                await self._save(name, replace(begun, offsets={group: [], **begun.offsets}))

    @_retry_if_stale
    async def commit_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        group: str,
        offsets: Mapping[TopicPartition, NewOffset],
        sender: Sender,
    ) -> dict[TopicPartition, ErrorCode]:
        """Add offsets to commit with the transaction, and return their error codes."""
        async with self._lock(name):
            entry = self._open(name, producer_id, epoch)
            if entry.state is not TransactionState.ONGOING or group not in entry.offsets:
                raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "the group was not added to the transaction")
            async with self._broker.groups.staging(group, offsets, sender) as codes:
                kept = {(topic, number): each for each in entry.offsets[group] for topic, number in [each[:2]]}
                for partition, code in codes.items():
                    if code is ErrorCode.NONE:
                        new = offsets[partition]
                        kept[partition] = (*partition, new.offset, new.leader_epoch, new.metadata)
                made = replace(entry, offsets={**entry.offsets, group: list(kept.values())}, changed_ms=now_ms())
                await self._save(name, made)
            return codes

    @_retry_if_stale
    async def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Commit or abort. The outcome is durable on return."""
        self._check_coordinator(name)
        async with self._lock(name):
            entry = self._found(name, producer_id, epoch)
            decided, done = _states(commit=commit)
            if entry.state is done:
                return  # a retry: the response was lost
            if entry.state is decided:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "it is not complete yet")
            if entry.state is not TransactionState.ONGOING:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"the transaction is {entry.state}")
            await self._end(name, entry, commit=commit, fences=False)

    async def _end(self, name: str, entry: TransactionEntry, *, commit: bool, fences: bool) -> TransactionEntry:
        """Decide, mark and complete. `fences` invalidates the producer's epoch. The caller holds the lock."""
        decided, done = _states(commit=commit)
        made = replace(entry, state=decided, changed_ms=now_ms())
        if fences:
            made = replace(made, epoch=entry.epoch + 1)
        if self.is_shared:
            return await self._end_at_once(name, made, done, commit=commit)
        return await self._try_to_complete(name, await self._save(name, made))

    async def _end_at_once(
        self, name: str, entry: TransactionEntry, done: TransactionState, *, commit: bool
    ) -> TransactionEntry:
        """Perform the three steps as one commit."""
        assert self._stored is not None
        markers = [
            TransactionMarker(topic_id, number, entry.producer_id, entry.epoch, commit)
            for _, topic_id, number in entry.partitions
        ]
        fields = replace(entry, state=done, partitions=[], offsets={}).fields()
        save, offsets = self._stored.save, entry.offsets if commit else {}
        await self._broker.run(save, name, entry.version, fields, markers=markers, offsets=offsets)
        for group in entry.offsets:
            self._broker.groups.release(group)
        return self._get(name) or entry

    async def _try_to_complete(self, name: str, entry: TransactionEntry) -> TransactionEntry:
        """Complete a decided transaction, or leave it to a later attempt."""
        try:
            return await self._complete(name, entry)
        except (SawlogError, OSError) as error:
            _logger.warning("transaction %s is decided and will be completed: %s", name, error)
            return entry

    async def _complete(self, name: str, entry: TransactionEntry) -> TransactionEntry:
        commit = entry.state is TransactionState.PREPARE_COMMIT
        await asyncio.gather(*(self._mark(entry, place, commit) for place in entry.partitions))
        if commit:
            offsets = {group: _offsets_of(staged) for group, staged in entry.offsets.items()}
            mark = f"{entry.producer_id}-{entry.number}"
            await self._broker.groups.commit_transaction(offsets, transaction=(name, mark))
        _, done = _states(commit=commit)
        made = await self._save(name, replace(entry, state=done, partitions=[], offsets={}, changed_ms=now_ms()))
        for group in entry.offsets:
            self._broker.groups.release(group)
        return made

    async def _mark(self, entry: TransactionEntry, place: Place, commit: bool) -> None:
        """Write the marker of one partition durably, unless its topic is gone."""
        topic, topic_id, number = place
        try:
            found = await self._broker.partitions.partition(topic, number)
        except TopicNotFound:
            return
        if found.topic.id == topic_id:
            await self._broker.run(found.log.append_marker, entry.producer_id, entry.epoch, commit=commit)

    # --- inspection

    def pending(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions of a group whose offsets a pending transaction will change."""
        if self._stored is not None and self._stored.is_shared:
            return self._stored.pending(group)
        entries = filter(None, map(self._get, self._with_offsets))
        return frozenset((topic, number) for each in entries for topic, number, *_ in each.offsets.get(group, ()))

    def entries(self) -> dict[str, TransactionEntry]:
        """Return all transactional ids, by name."""
        names = () if self._stored is None else self._stored.all()
        return {name: entry for name in names if (entry := self._get(name)) is not None}


def _states(*, commit: bool) -> tuple[TransactionState, TransactionState]:
    """Return the decided and the complete state."""
    if commit:
        return TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT
    return TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT


def _begun(entry: TransactionEntry) -> TransactionEntry:
    """Return the entry with a transaction begun."""
    now = now_ms()
    if entry.state is TransactionState.ONGOING:
        return replace(entry, changed_ms=now)
    return replace(
        entry,
        state=TransactionState.ONGOING,
        last_epoch=-1,
        number=entry.number + 1,
        started_ms=now,
        changed_ms=now,
        partitions=[],
        offsets={},
    )


def _offsets_of(staged: Iterable[tuple[str, int, int, int, str]]) -> dict[TopicPartition, NewOffset]:
    return {(topic, number): NewOffset(offset, epoch, text) for topic, number, offset, epoch, text in staged}
