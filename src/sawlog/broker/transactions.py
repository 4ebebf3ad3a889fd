"""Transactions of Kafka clients: who may write in which, how they end, and that they end the same after a kill.

A transactional id has a producer id and an epoch. Its transaction collects partitions and committed offsets, and ends
with a marker in every partition (`Log.append_marker`); what the markers mean to readers is the log's business.

Ending has three steps:

1. *Decide*: "PrepareCommit" or "PrepareAbort" is durable in the ledger. This is the commit point.
2. *Tell*: a marker goes to each partition, and the offsets to the groups.
3. *Complete*: "CompleteCommit" or "CompleteAbort" is durable in the ledger.

A broker that dies before 1 leaves a transaction that its client ends, or that is aborted when its time is over. One
that dies after 1 repeats 2 when it starts again. A marker that is written twice is harmless: until step 3 the producer
cannot begin another transaction. Offsets carry the transaction's name, so that they are committed once.

A client that begins again under the same transactional id gets the next epoch, and what the earlier one left is
aborted; the marker has the new epoch, so that the log itself refuses batches of the earlier one, also those that are
still on their way (a zombie). A transaction that takes longer than its timeout is aborted in the same way.

A partition that another process holds cannot be part of such a transaction: the markers must follow the batches.

Everything here belongs to the event loop's thread; what waits for the disk runs in threads. Requests for one
transactional id wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..clock import now_ms
from ..errors import DirectoryLocked, SawlogError, StorageFull, TopicNotFound
from ..topics.groups.assignment import Share
from .groups.commits import NewOffset
from .handlers import KafkaError
from .ledger import Entry, Ledger, Place, State
from .wire.errors import ErrorCode

if TYPE_CHECKING:
    from .broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: How often transactions are looked at whose time may be over, or that could not be completed.
_LOOK_S = 0.5
_LAST_EPOCH = 2**15 - 2


def new_producer_id() -> int:
    """An id that nobody has: 61 random bits, so that nothing has to be remembered for it."""
    return secrets.randbits(61)


class TransactionCoordinator:
    """The transactional ids of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ledger: Ledger | None = None
        self._entries: dict[str, Entry] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._looking: asyncio.Task[None] | None = None

    # --- life

    async def start(self) -> None:
        """Load what is known, and complete what was decided. Before clients are served."""
        broker = self._broker
        try:
            self._ledger = await broker.run(Ledger, broker.store.directory)
        except DirectoryLocked as error:
            _logger.warning("another broker serves this store: this one has no transactions (%s)", error)
            return
        self._entries = await broker.run(self._ledger.load)
        for name, entry in self._entries.items():
            for group, staged in entry.offsets.items():
                broker.groups.restage_offsets(entry.producer_id, group, _offsets_of(staged))
            if entry.state.is_decided:
                await self._try_to_complete(name, entry)
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        """End; what is going on stays as it is in the ledger."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        if self._ledger is not None:
            await self._broker.run(self._ledger.close)
            self._ledger = None

    async def _look(self) -> None:
        """Abort what takes too long, complete what could not be completed, forget what nobody uses."""
        while True:
            await asyncio.sleep(_LOOK_S)
            now, expiry_ms = now_ms(), self._broker.config.transactional_id_expiration_ms
            for name, entry in list(self._entries.items()):
                late = entry.state is State.ONGOING and now > entry.started_ms + entry.timeout_ms
                unused = entry.state is not State.ONGOING and now > entry.changed_ms + expiry_ms
                if not (late or unused or entry.state.is_decided):
                    continue
                async with self._lock(name):
                    if self._entries.get(name) is not entry:
                        continue  # changed while we waited
                    try:
                        if entry.state.is_decided:
                            await self._complete(name, entry)
                        elif late:
                            _logger.info("transaction %s is aborted: it took longer than %s ms", name, entry.timeout_ms)
                            await self._end(name, entry, commit=False, fences=True)
                        elif unused:
                            await self._save(name, None)
                    except StorageFull:
                        continue  # which the broker logs, once; tried again
                    except (SawlogError, OSError) as error:
                        _logger.warning("transaction %s is tried again: %s", name, error)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _save(self, name: str, entry: Entry | None) -> None:
        """Make an entry durable, then use it."""
        if self._ledger is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no transactions")
        await self._broker.run(self._ledger.save, name, None if entry is None else entry.encode())
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry

    # --- producers

    async def init_producer(self, name: str | None, timeout_ms: int, known: tuple[int, int]) -> tuple[int, int]:
        """The producer id and epoch with which a client may write from now on; `known` is what it has, or (-1, -1)."""
        if name is None:
            return new_producer_id(), 0
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id must not be empty")
        if not 0 < timeout_ms <= self._broker.config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, f"a timeout of {timeout_ms} ms is not allowed")
        async with self._lock(name):
            entry = self._entries.get(name)
            if entry is None:
                made = Entry(new_producer_id(), 0, timeout_ms, changed_ms=now_ms())
                await self._save(name, made)
                return made.producer_id, made.epoch
            asks_again = known == (entry.producer_id, entry.last_epoch)
            if not asks_again and known not in ((-1, -1), (entry.producer_id, entry.epoch)):
                raise KafkaError(ErrorCode.PRODUCER_FENCED, "another producer with this transactional id has begun")
            if asks_again and entry.state is State.EMPTY:
                return entry.producer_id, entry.epoch  # the answer was lost
            entry = replace(entry, last_epoch=known[1])
            if entry.state is State.ONGOING:
                entry = await self._end(name, entry, commit=False, fences=True)
            if entry.state.is_decided:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is not complete yet")
            made = _next_epoch(replace(entry, state=State.EMPTY, timeout_ms=timeout_ms, changed_ms=now_ms()))
            await self._save(name, made)
            return made.producer_id, made.epoch

    def _found(self, name: str, producer_id: int, epoch: int) -> Entry:
        """The entry of a producer that may use it."""
        entry = self._entries.get(name)
        if entry is None or entry.producer_id != producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "this producer id is not the transactional id's")
        if entry.epoch != epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"the epoch is {entry.epoch}, not {epoch}")
        return entry

    def check_produce(self, name: str | None, producer_id: int, epoch: int, topic: str, partition: int) -> None:
        """Raise unless this batch belongs to a transaction that its partition was added to."""
        entry = self._entries.get(name or "")
        if entry is None or entry.producer_id != producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "this producer id is not the transactional id's")
        if entry.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, f"the epoch is {entry.epoch}, not {epoch}")
        if entry.state is not State.ONGOING or not entry.includes(topic, partition):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{topic}/{partition} was not added to the transaction")

    # --- a transaction

    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, shares: Iterable[Share]
    ) -> dict[Share, ErrorCode]:
        """Let a transaction write to partitions: to all of them, or to none."""
        wanted = list(shares)
        async with self._lock(name):
            entry = self._open(name, producer_id, epoch)
            places: list[Place] = []
            codes: dict[Share, ErrorCode] = {}
            for topic, number in wanted:
                place = await self._place(topic, number)
                if place is None:
                    codes[topic, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    places.append(place)
            if codes:
                return {share: codes.get(share, ErrorCode.OPERATION_NOT_ATTEMPTED) for share in wanted}
            new = [place for place in places if place not in entry.partitions]
            if new or entry.state is not State.ONGOING:
                await self._save(name, replace(_begun(entry), partitions=[*_begun(entry).partitions, *new]))
            return dict.fromkeys(wanted, ErrorCode.NONE)

    async def _place(self, topic: str, number: int) -> Place | None:
        """A partition that this broker can end a transaction in; None if there is none."""
        try:
            found = await self._broker.partitions.partition(topic, number)
        except TopicNotFound:
            return None
        if not found.log.locked:
            await self._broker.partitions.lock(found)
        if found.forwarded:
            _logger.warning("%s/%s cannot be part of a transaction: another process writes to it", topic, number)
            return None
        return topic, found.topic.id, number

    def _open(self, name: str, producer_id: int, epoch: int) -> Entry:
        """An entry whose transaction can be extended, or begun."""
        entry = self._found(name, producer_id, epoch)
        if entry.state.is_decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is not complete yet")
        return entry

    async def add_offsets(self, name: str, producer_id: int, epoch: int, group: str) -> None:
        """Let a transaction commit offsets of a group."""
        async with self._lock(name):
            entry = self._open(name, producer_id, epoch)
            if group not in entry.offsets or entry.state is not State.ONGOING:
                begun = _begun(entry)
                await self._save(name, replace(begun, offsets={group: [], **begun.offsets}))

    async def commit_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        group: str,
        offsets: Mapping[Share, NewOffset],
        stage: Callable[[], asyncio.Future[dict[Share, ErrorCode]]],
    ) -> dict[Share, ErrorCode]:
        """Commit offsets when the transaction is committed. `stage` has the group check and keep them."""
        async with self._lock(name):
            entry = self._open(name, producer_id, epoch)
            if entry.state is not State.ONGOING or group not in entry.offsets:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the group was not added to the transaction")
            codes = await stage()
            kept = {(topic, number): each for each in entry.offsets[group] for topic, number in [each[:2]]}
            for share, code in codes.items():
                if code is ErrorCode.NONE:
                    new = offsets[share]
                    kept[share] = (*share, new.offset, new.leader_epoch, new.metadata)
            made = replace(entry, offsets={**entry.offsets, group: list(kept.values())}, changed_ms=now_ms())
            await self._save(name, made)
            return codes

    async def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Commit or abort. When this returns it will be so, whatever happens."""
        async with self._lock(name):
            entry = self._found(name, producer_id, epoch)
            decided, done = _states(commit=commit)
            if entry.state is done:
                return  # it is asked again because the answer was lost
            if entry.state is decided:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "it is not complete yet")
            if entry.state is not State.ONGOING:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"the transaction is {entry.state}")
            await self._end(name, entry, commit=commit, fences=False)

    async def _end(self, name: str, entry: Entry, *, commit: bool, fences: bool) -> Entry:
        """Decide, tell, complete. With `fences` the producer's epoch is over. The caller has the lock."""
        decided, _ = _states(commit=commit)
        made = replace(entry, state=decided, changed_ms=now_ms())
        if fences:
            made = replace(made, epoch=entry.epoch + 1)
        await self._save(name, made)
        return await self._try_to_complete(name, made)

    async def _try_to_complete(self, name: str, entry: Entry) -> Entry:
        """It is decided: if it cannot be completed now, it is later."""
        try:
            return await self._complete(name, entry)
        except (SawlogError, OSError) as error:
            _logger.warning("transaction %s is decided and will be completed: %s", name, error)
            return entry

    async def _complete(self, name: str, entry: Entry) -> Entry:
        commit = entry.state is State.PREPARE_COMMIT
        await asyncio.gather(*(self._mark(entry, place, commit) for place in entry.partitions))
        mark = f"{entry.producer_id}-{entry.number}"
        await self._broker.groups.complete_offsets(entry.producer_id, commit, transaction=(name, mark))
        _, done = _states(commit=commit)
        made = replace(entry, state=done, partitions=[], offsets={}, changed_ms=now_ms())
        await self._save(name, made)
        return made

    async def _mark(self, entry: Entry, place: Place, commit: bool) -> None:
        """Write the marker of one partition, durably; not if its topic is gone."""
        topic, topic_id, number = place
        try:
            found = await self._broker.partitions.partition(topic, number)
        except TopicNotFound:
            return
        if found.topic.id == topic_id:
            await self._broker.run(found.log.append_marker, entry.producer_id, entry.epoch, commit=commit)

    # --- looking

    def entries(self) -> dict[str, Entry]:
        """All transactional ids, by name."""
        return dict(self._entries)


def _states(*, commit: bool) -> tuple[State, State]:
    """Decided, and complete."""
    if commit:
        return State.PREPARE_COMMIT, State.COMPLETE_COMMIT
    return State.PREPARE_ABORT, State.COMPLETE_ABORT


def _begun(entry: Entry) -> Entry:
    """The entry with a transaction that has begun."""
    now = now_ms()
    if entry.state is State.ONGOING:
        return replace(entry, changed_ms=now)
    return replace(
        entry,
        state=State.ONGOING,
        last_epoch=-1,
        number=entry.number + 1,
        started_ms=now,
        changed_ms=now,
        partitions=[],
        offsets={},
    )


def _next_epoch(entry: Entry) -> Entry:
    """The epoch of the next producer; after the last one, another producer id."""
    if entry.epoch >= _LAST_EPOCH:
        return replace(entry, producer_id=new_producer_id(), epoch=0)
    return replace(entry, epoch=entry.epoch + 1)


def _offsets_of(staged: Iterable[tuple[str, int, int, int, str]]) -> dict[Share, NewOffset]:
    return {(topic, number): NewOffset(offset, epoch, text) for topic, number, offset, epoch, text in staged}
