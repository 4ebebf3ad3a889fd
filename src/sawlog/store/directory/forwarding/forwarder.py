"""`Forwarder`: the append methods of a `Log` for a partition that another process holds. `Forwarding`: a store's entry
point to this package, which also serves the appends of other processes.

A batch is sent in one message. It carries a producer id and a sequence number (a *lane*), so that it can be sent again
if no answer arrives: to the same process, to the next holder, or to the log itself if this process gets the lock. A
batch that is already stored is recognised. A lane has one append at a time, so the log always remembers its last batch.
The remaining case is a process that has received the request, holds the lock and does not answer: `AmbiguousAppend`.
Its lane is not reused.

Several batches, or a large one, are forwarded as a transaction with one part: all or nothing, and never in doubt after
the commit.

Thread-safe. A forked child accepts no requests and keeps no connections.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from ....batch import kernel
from ....batch.build import NO_PRODUCER, Encoded, EncoderOptions, Producer
from ....batch.checksum import crc32c
from ....batch.header import BASE, LAST, POSITION, PRODUCER_ID, SIZE, Rows
from ....batch.inputs import HeadersInput, RecordInput
from ....clock import Deadline, milliseconds
from ....errors import (
    AmbiguousAppend,
    CorruptBatch,
    DirectoryLocked,
    InvalidRecord,
    InvalidRecordType,
    LogClosed,
    OffsetMismatch,
    OutOfOrderSequence,
    ProducerError,
    SawlogError,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from ....log.ingest import checked_rows
from ....log.log import Log
from ....log.writer import BATCH_BYTES, EncoderPool, Placement, Writer, recipe_of
from ....storage.forking import this_process
from ....storage.interface import Buffer
from ..open_partitions import OpenPartitions
from ..transactions.commits import Intents
from ..transactions.completion import PeerLost, PeerTimeout
from ..transactions.intent import Part
from .connections import PeerConnections, note_of
from .frames import MOST_BODY_BYTES
from .listener import PeerListener
from .server import ForwardServer, GiveBack, Held

if TYPE_CHECKING:
    import pyarrow as pa

#: A larger batch is staged in a file instead of being sent in a message.
_MESSAGE_BYTES = 1 << 20
#: Producer ids of lanes are random numbers in this range; a broker assigns ids counting from 0.
_FIRST_LANE, _LAST_LANE = 2**62, 2**63 - 1
#: Producer id, epoch and first sequence in the header of a batch.
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_WRAP = 2**31

#: Errors that mean nothing was stored. After any other, such as a failed fsync, the batch may be there when the log is
#: reopened.
_NOT_STORED = InvalidRecord, ProducerError, CorruptBatch, TopicNotFound, DirectoryLocked, LogClosed, OffsetMismatch

#: Stores batches in one partition as a transaction and returns their offsets.
Commit = Callable[[OpenPartitions, int, Iterable[tuple[Buffer, int]]], range]


@dataclass(slots=True)
class _Lane:
    """Producer id of this process, with one append at a time."""

    id: int
    sequence: int = 0
    #: True if the fate of the last batch is unknown.
    in_doubt: bool = False

    @classmethod
    def new(cls) -> _Lane:
        """Return a lane with a unique id."""
        return cls(_random_id())

    def renew(self) -> None:
        """Start over as a new producer."""
        self.id, self.sequence = _random_id(), 0

    def stamp(self, data: memoryview) -> None:
        """Write the lane's id and sequence into a batch."""
        _PRODUCER.pack_into(data, _PRODUCER_AT, self.id, 0, self.sequence)
        kernel.patch_crc(data, 0, crc32c(data[21:]))

    def advance(self, count: int) -> None:
        """Account for a stored batch."""
        self.sequence = (self.sequence + count) % _WRAP
        self.in_doubt = False


def _random_id() -> int:
    return random.SystemRandom().randint(_FIRST_LANE, _LAST_LANE)


class Forwarder:
    """Appends to a partition that another process holds. Created by `Forwarding.forwarder`."""

    def __init__(
        self,
        topic: OpenPartitions,
        number: int,
        log: Log,
        connections: PeerConnections,
        commit: Commit,
        timeout_s: float,
    ) -> None:
        self._topic, self._number = topic, number
        self._log = log
        self._connections = connections
        self._commit = commit
        self._timeout_s = timeout_s
        self._process = this_process()
        self._encoders = EncoderPool(recipe_of(topic.config))
        self._lanes: list[_Lane] = []
        #: Open writers.
        self.writers: set[Writer] = set()
        #: Last known address of the holder.
        self._address = connections.address_soon(log)

    @property
    def is_reached(self) -> bool:
        """True if the address of a process that accepts appends is known."""
        return self._address is not None

    @property
    def recipe(self) -> EncoderOptions:
        """Encoding parameters of batches."""
        return self._encoders.recipe

    # --- as a log

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset."""
        encoder = self._encoders.take()
        try:
            data = bytearray(encoder.one(value, key, headers, milliseconds(timestamp)).data)
        finally:
            self._encoders.give_back(encoder)
        return self._store(memoryview(data), 1, expect_offset).start

    def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as one batch and return their offsets."""
        encoder = self._encoders.take()
        try:
            batch = encoder.many(records)
            data, count = bytearray(batch.data), batch.count
        finally:
            self._encoders.give_back(encoder)
        return self._store(memoryview(data), count, expect_offset)

    def append_arrow(self, table: pa.Table | pa.RecordBatch, expect_offset: int | None = None) -> range:
        """Append the rows of an Arrow table and return their offsets."""
        encoder = self._encoders.take()
        try:
            limit = min(BATCH_BYTES, self._topic.config.segment_bytes // 2 + 1)
            batches = ((bytearray(batch.data), batch.count) for batch in encoder.table(table, limit))
            first, second = next(batches, None), next(batches, None)
            if first is None:
                raise InvalidRecord("no record to append")
            if second is None:
                return self._store(memoryview(first[0]), first[1], expect_offset)
            _refuse_expectation(expect_offset)
            return self._commit(self._topic, self._number, chain([first, second], batches))
        finally:
            self._encoders.give_back(encoder)

    def append_batches(
        self, raw: bytes | bytearray | memoryview, *, trusted: bool = False, expect_offset: int | None = None
    ) -> range:
        """Append encoded batches, all or none, and return their offsets. Validates them like `Log.append_batches`."""
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"append_batches expects encoded batches as bytes, not {type(raw).__name__}")
        data = memoryview(bytearray(raw))
        rows = checked_rows(data, max_unpacked_bytes=None if trusted else self._topic.config.max_decompressed_bytes)
        of_producers = rows[:, PRODUCER_ID] >= 0
        if of_producers.all():
            return self._send(data, expect_offset)  # not staged: the log filters duplicates
        if of_producers.any():
            raise InvalidRecord("batches with and without a producer cannot be appended together")
        if len(rows) > 1:
            _refuse_expectation(expect_offset)
            return self._commit(self._topic, self._number, _split(data, rows))
        return self._store(data, int(rows[0, LAST] - rows[0, BASE]) + 1, expect_offset)

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        """Return a buffered writer. Unlike a single append, a batch in doubt is sent again by the next flush, without
        duplicates."""
        return Writer(_Target(self), batch_bytes, linger_ms)

    def close_writers(self) -> None:
        """Flush and close all open writers."""
        with ExitStack() as last:
            for writer in list(self.writers):
                last.callback(writer.close)

    # --- one batch

    def _store(self, data: memoryview, count: int, expect_offset: int | None = None) -> range:
        """Store a batch without a producer."""
        if len(data) > _MESSAGE_BYTES:
            _refuse_expectation(expect_offset)
            return self.commit(data, count)
        lane = self._lanes.pop() if self._lanes else _Lane.new()
        try:
            placed = self.store_on(lane, data, count, expect_offset)
        finally:
            if not lane.in_doubt:
                self._lanes.append(lane)
        return placed

    def commit(self, data: Buffer, count: int) -> range:
        """Store a large batch through a staged file."""
        return self._commit(self._topic, self._number, [(data, count)])

    def store_on(self, lane: _Lane, data: memoryview, count: int, expect_offset: int | None = None) -> range:
        """Store a batch on a lane. If the lane is in doubt, the batch must be the same as before."""
        again, lane.in_doubt = lane.in_doubt, True  # until the outcome is known, whatever is raised
        lane.stamp(data)
        try:
            with self._topic.using(self._number):
                placed = self._send(data, expect_offset)
        except OutOfOrderSequence as error:
            # The log was truncated and no longer has the lane's last batch.
            if again:
                raise AmbiguousAppend(
                    f"{self._log.path} was truncated while an append was in doubt: {error}"
                ) from error
            lane.renew()
            lane.stamp(data)
            with self._topic.using(self._number):
                placed = self._send(data, expect_offset)
        except _NOT_STORED:
            lane.in_doubt = again
            raise
        lane.advance(count)
        return placed

    def _send(self, data: memoryview, expect_offset: int | None = None) -> range:
        """Have the current holder append batches that carry a producer id."""
        if self._process != this_process():
            raise LogClosed(f"the store of {self._log.path} was opened by the parent process, before the fork")
        if len(data) > MOST_BODY_BYTES:
            raise InvalidRecord(f"{len(data):,} bytes of batches with a producer are too many for one append")
        deadline = Deadline(self._timeout_s)
        sent = False
        while not self._log._locked:
            try:
                placed = None if self._address is None else self._ask(self._address, data, deadline, expect_offset)
            except _Unsent:  # another user's process, or one that no longer accepts requests
                self._log._want_lock()
            except PeerLost as error:
                sent = True
                if isinstance(error, PeerTimeout):
                    raise self._in_doubt(error) from error
            else:
                if placed is not None:
                    return placed
            self._look_again(deadline, sent=sent)
        return self._log._place_batches(bytearray(data), expect_offset=expect_offset)

    def _ask(
        self, address: str, data: memoryview, deadline: Deadline, expect_offset: int | None = None
    ) -> range | None:
        """Send batches and return their offsets; None if the peer no longer holds the partition."""
        try:
            connection = self._connections.take(address, deadline)
        except PeerLost as error:
            raise _Unsent from error
        head = {
            "request": "append" if expect_offset is None else "append_at",
            "topic": self._topic.name,
            "topic_id": self._topic.id,
            "partition": self._number,
            "until_ns": deadline.until_ns,
        }
        if expect_offset is not None:
            head["offset"] = expect_offset
        try:
            answer = connection.ask(head, data, deadline=deadline)
        except SawlogError:  # reported by the holder
            self._connections.give_back(address, connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._connections.give_back(address, connection)
        return range(answer["first"], answer["first"] + answer["count"]) if "first" in answer else None

    def _look_again(self, deadline: Deadline, *, sent: bool) -> None:
        """Look up the holder again and take the lock if it is free. Raises once the deadline has passed."""
        if self._address is not None:
            self._connections.drop(self._address)
        try:
            self._topic.take(self._number)
        except DirectoryLocked as error:
            self._address = self._connections.address_soon(self._log)
            if self._address is None:
                self._log._want_lock()
            try:
                deadline.pause(or_raise=error.after(self._timeout_s))
            except DirectoryLocked:
                if sent:
                    raise self._in_doubt(error) from error
                raise

    def _in_doubt(self, why: BaseException) -> AmbiguousAppend:
        self._address = None
        return AmbiguousAppend(
            f"the process that holds {self._log.path} was asked to append and did not answer (timeout "
            f"{self._timeout_s:g} s): the records may be stored, now or when it continues, or not. A transaction with "
            f"a name and a sequence can be repeated without doubt. {why}"
        )


def _refuse_expectation(expect_offset: int | None) -> None:
    """Refuse `expect_offset` for staged batches, whose offsets are assigned after the commit."""
    if expect_offset is not None:
        raise InvalidRecord(
            f"another process holds the partition: several batches, or one above {_MESSAGE_BYTES:,} bytes, cannot be "
            "handed over with expect_offset"
        )


class _Unsent(PeerLost):
    """The request was not sent."""


class _Target:
    """Destination of a writer's batches. A batch in doubt is sent again by the next flush, with the same sequence."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._lane = _Lane.new()
        self.writers = forwarder.writers

    @property
    def recipe(self) -> EncoderOptions:
        """Encoding parameters of batches."""
        return self._forwarder.recipe

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NO_PRODUCER,
        placement: Placement | None = None,
    ) -> range:
        """Store a batch."""
        placement = Placement() if placement is None else placement
        if placement.placed is not None:
            return placement.placed
        data = memoryview(bytearray(batch.data))
        if len(data) <= _MESSAGE_BYTES:
            return placement.give(self._forwarder.store_on(self._lane, data, batch.count))
        try:
            return placement.give(self._forwarder.commit(data, batch.count))
        except TransactionPending:
            placement.give(range(0))  # committed: must not be retried
            raise

    def settle(self, offset: int) -> None:
        """No-op: the holder has already applied the durability policy."""

    def check_failure(self) -> None:
        """No-op: errors were raised when they happened."""


def _split(data: memoryview, rows: Rows) -> Iterator[tuple[Buffer, int]]:
    """Yield each batch with its number of offsets."""
    for position, size, base, last in rows[:, (POSITION, SIZE, BASE, LAST)].tolist():
        yield data[position : position + size], last - base + 1


class Forwarding:
    """Forwards appends to other processes and serves their forwarded appends."""

    def __init__(
        self,
        peer_listener: PeerListener,
        connections: PeerConnections,
        intents: Intents,
        held: Held,
        committing: threading.RLock,
        give_back: GiveBack,
        *,
        timeout_s: float,
    ) -> None:
        self._peer_listener = peer_listener
        self._connections = connections
        self._intents = intents
        self._server = ForwardServer(intents, held, give_back)
        self._committing = committing
        self._timeout_s = timeout_s

    @property
    def note(self) -> bytes:
        """Note for the LOCK files of this process, with its address."""
        return note_of(self._peer_listener.address)

    def locked(self, log: Log) -> None:
        """Start accepting requests: this process has taken the lock of a partition."""
        if not self._peer_listener.address or not self._peer_listener.open(self._server):
            log._leave_note(self.note)  # the note that the log left claims the opposite

    def forwarder(self, topic: OpenPartitions, number: int, log: Log) -> Forwarder | None:
        """Return a forwarder to the process that holds the lock of a partition; None if it accepts no requests."""
        made = Forwarder(topic, number, log, self._connections, self._commit, self._timeout_s)
        return made if made.is_reached else None

    def _commit(self, topic: OpenPartitions, number: int, batches: Iterable[tuple[Buffer, int]]) -> range:
        """Store batches as a transaction with one part."""
        with self._committing:
            stage = self._intents.staging.begin()
            try:
                file = stage.file()
                try:
                    written = [(file.write(data), count) for data, count in batches]
                    file.sync()
                finally:
                    file.close()
                part = Part(
                    topic.name,
                    topic.id,
                    number,
                    sum(count for _, count in written),
                    tuple(piece for piece, _ in written),
                )
                with topic.lending(number):
                    intent = self._intents.commit(
                        stage, [part], lambda part: topic.partition(part.partition), lock_timeout_s=self._timeout_s
                    )
            except TransactionAborted as error:
                stage.end()
                raise error.__cause__ if isinstance(error.__cause__, SawlogError) else error from None
            except TransactionError:
                stage.leave()
                raise
            except BaseException:
                stage.end()
                raise
            stage.end()
        return intent.parts[0].offsets

    def stop(self) -> None:
        """Accept no more requests."""
        self._peer_listener.close()

    def close(self) -> None:
        """Close all connections."""
        self._peer_listener.close()
        self._connections.close()
