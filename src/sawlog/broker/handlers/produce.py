"""Produce: check batches, append them with patched offsets, and acknowledge them when the log does.

Batches are appended immediately, in the order of the requests of a connection. The response waits as `acks` requires:

- all (-1): as durable as the topic's policy promises; with "always", the shared fdatasync;
- 1: written. A sync starts in the background;
- 0: there is no response.

A connection may therefore have many requests in flight, and one fdatasync acknowledges all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from struct import Struct
from typing import Any

from ...batch.header import HEADER_BYTES
from ...batch.kernel import Record
from ...clock import now_ms
from ...errors import CorruptBatch, DirectoryLocked, InvalidRecord, RecordTooLarge, SawlogError, StorageFull
from ...log.open import without_blocking
from ..partitions import ServedPartition, TopicLimits
from ..security.acls import Operation, Resource
from ..wire import Body, ErrorCode, Key
from ..wire.schema import NO_ID
from . import WRITE_TRANSACTION, Answer, Context, KafkaError, handles, known_code_of, message_of

#: Of a batch's header: length, magic, attributes, last offset delta, first and largest timestamp, the producer's id,
#: epoch and sequence number, and the number of records.
_HEADER = Struct(">8x i 4x b 4x h i q q q h i i")
_LENGTH_END = 12
_COMPRESSION, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_ZSTD = 4
#: From this version on, a client can read zstd.
_ZSTD_FROM = 7


@handles(Key.PRODUCE, WRITE_TRANSACTION)
def produce(context: Context, request: Body) -> Answer:
    """Append batches. Answer immediately if nothing has to be opened or awaited. Needs WRITE on each topic."""
    acks = request["acks"]
    if acks not in (-1, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}")
    pending = _Pending(context, request, acks)
    missing = pending.place_known()
    if missing:
        return pending.place_missing(missing)
    return pending.answer()


class _BadRecords(KafkaError):
    """Invalid records, because of which the whole batch is refused. Clients learn which ones, and can resend the
    others."""

    def __init__(self, code: ErrorCode, message: str, indexes: list[int]) -> None:
        super().__init__(code, message)
        self.indexes = indexes


class _Pending:
    """A produce request with batches that are not acknowledged yet."""

    def __init__(self, context: Context, request: Body, acks: int) -> None:
        self._context = context
        self._request = request
        self._acks = acks
        self._waits = 0
        self._done: asyncio.Future[Body | None] | None = None
        self._topics: list[Body] = []

    # --- appending

    def place_known(self) -> list[tuple[Body, Body, Body]]:
        """Append batches to partitions that are open, and in which this process has its turn or gets it at once; return
        the others."""
        known = self._context.broker.partitions.known
        is_open = self._context.broker.authorizer.is_open
        missing: list[tuple[Body, Body, Body]] = []
        for topic in self._request["topic_data"]:
            parts: list[Body] = []
            answer = {"name": topic["name"], "topic_id": topic["topic_id"], "partition_responses": parts}
            self._topics.append(answer)
            name = self._name_of(topic)
            denied = None if is_open or name is None else self._context.denial(Operation.WRITE, Resource.TOPIC, name)
            for part in topic["partition_data"]:
                made: Body = {"index": part["index"], "error_code": ErrorCode.NONE, "base_offset": -1}
                parts.append(made)
                if denied is not None:
                    self._refuse(made, denied)
                    continue
                found = None if name is None else known(name, part["index"])
                # After one that is missing, all are: to keep the order of a producer's batches.
                if missing or found is None or not found.log._is_writable or not self._place(found, part, made):
                    missing.append((topic, part, made))
        return missing

    def _name_of(self, topic: Body) -> str | None:
        if topic["topic_id"] == NO_ID:
            return str(topic["name"])
        return self._context.broker.partitions.name_of(topic["topic_id"])

    async def place_missing(self, missing: list[tuple[Body, Body, Body]]) -> Body | None:
        """Open partitions or wait for the turn in them, and append the rest of the batches."""
        for topic, part, made in missing:
            try:
                await self._place_in_thread(await self._open(topic, part["index"]), part, made)
            except (SawlogError, OSError) as error:
                self._refuse(made, error)
        waits = self.answer()
        return await waits if isinstance(waits, asyncio.Future) else waits  # type: ignore[return-value]

    async def _open(self, topic: Body, index: int) -> ServedPartition:
        broker, name = self._context.broker, self._name_of(topic)
        if name is None:
            name = await broker.partitions.find_name(topic["topic_id"])
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            self._context.require(Operation.WRITE, Resource.TOPIC, name)
        return await broker.partitions.partition(name, index)

    def _place(self, found: ServedPartition, part: Body, made: Body) -> bool:
        """Append a batch and return True; False if that takes a turn that another process has."""
        try:
            data = self._checked(found, part["records"])
            with without_blocking():
                self._accept(found, self._submit(found, data), data, made)
        except DirectoryLocked:
            return False
        except (SawlogError, OSError) as error:
            self._fail(found, made, error)
        return True

    async def _place_in_thread(self, found: ServedPartition, part: Body, made: Body) -> None:
        """Append a batch in a thread, which may wait for the turn, or recover the partition."""
        try:
            data = self._checked(found, part["records"])
            placed = await self._context.broker.ask(self._submit, found, data)
        except (SawlogError, OSError) as error:
            self._fail(found, made, error)
        else:
            self._accept(found, placed, data, made)

    def _submit(self, found: ServedPartition, data: memoryview) -> range | Future[range]:
        config = self._context.broker.config
        trusted = not (config.check_records or found.limits.compacted)
        return found.log._submit(data, trusted=trusted, max_decompressed_bytes=config.max_decompressed_bytes)

    def _fail(self, found: ServedPartition, made: Body, error: BaseException) -> None:
        if isinstance(error, StorageFull):
            self._context.broker.disk_space.lacks(_name(found), error)
        self._refuse(made, error)

    def _accept(self, found: ServedPartition, placed: range | Future[range], data: memoryview, made: Body) -> None:
        """Record what became of a batch, now or when its commit is known."""
        if isinstance(placed, Future):
            self._promise(found, placed, data, made)
            return
        self._stored(found, placed, data, made)
        self._settle(found, placed.stop, made)

    def _promise(self, found: ServedPartition, placed: Future[range], data: memoryview, made: Body) -> None:
        """Wait for the commit that determines the offset. The batch is then durable, whatever `acks` says."""
        self._waits += self._acks != 0
        later = self._context.broker.later
        placed.add_done_callback(lambda done: later(self._kept, found, done, data, made))

    def _kept(self, found: ServedPartition, placed: Future[range], data: memoryview, made: Body) -> None:
        """Handle the outcome of a commit. In the event loop."""
        error = placed.exception()
        if error is None:
            self._stored(found, placed.result(), data, made)
        if self._acks != 0:
            self._settled(made, error)

    def _stored(self, found: ServedPartition, placed: range, data: memoryview, made: Body) -> None:
        """Record a batch that is in the log."""
        broker = self._context.broker
        broker.metrics.records_in[found.name] += len(placed)
        broker.metrics.bytes_in[found.name] += len(data)
        if broker.disk_space.failing:
            broker.disk_space.found(_name(found))
        made["base_offset"] = placed.start
        made["log_append_time_ms"] = -1 if found.limits.stamped else int.from_bytes(data[35:43], "big")
        made["log_start_offset"] = found.log.lowest_offset

    def _checked(self, found: ServedPartition, records: Any) -> memoryview:
        """Return the batch if its header is valid; the log checks the rest."""
        limits, context = found.limits, self._context
        size = 0 if records is None else len(records)
        if size < HEADER_BYTES:
            raise CorruptBatch("no complete batch")
        data = memoryview(records)
        length, magic, attributes, delta, first, last, producer, epoch, sequence, count = _HEADER.unpack_from(data)
        if magic != 2:
            raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "only the record format of version 2 is taken")
        if size > limits.max_message_bytes:
            raise RecordTooLarge(f"a batch of {size:,} bytes; max.message.bytes is {limits.max_message_bytes:,}")
        if _LENGTH_END + length != size:
            raise InvalidRecord("a request has one batch for each partition")
        if attributes & _CONTROL:
            raise InvalidRecord("clients cannot write control batches")
        if count < 1 or delta != count - 1:
            raise InvalidRecord("the offsets of a batch must be consecutive")
        if producer >= 0 and sequence < 0:
            raise InvalidRecord("a producer's batch has no sequence number")
        if attributes & _COMPRESSION == _ZSTD and context.header.version < _ZSTD_FROM:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs a newer version of Produce")
        room = context.broker.config.max_decompressed_bytes
        if limits.stamped:
            _check_times(limits, data, first, last, room)
        if limits.compacted:
            _check_keys(data, room)
        if attributes & _TRANSACTIONAL:
            context.broker.transactions.check_produce(
                self._request["transactional_id"], producer, epoch, found.name, found.index
            )
        return data

    def _refuse(self, made: Body, error: BaseException) -> None:
        made["error_code"] = known_code_of(error, self._context.header)
        made["base_offset"] = -1
        made["error_message"] = message_of(error)
        if isinstance(error, _BadRecords):
            made["record_errors"] = [{"batch_index": index} for index in error.indexes]

    # --- acknowledging

    def _settle(self, found: ServedPartition, offset: int, made: Body) -> None:
        """Wait for a batch as `acks` requires."""
        if self._acks != -1:
            found.log._when_settled(offset, _nothing)  # starts a sync in the background
            return
        self._waits += 1
        later = self._context.broker.later
        found.log._when_settled(offset, lambda error: later(self._settled, made, error))

    def _settled(self, made: Body, error: BaseException | None) -> None:
        """Handle the outcome of a sync. In the event loop."""
        if error is not None:
            self._refuse(made, error)
        self._waits -= 1
        if not self._waits and self._done is not None and not self._done.done():
            self._done.set_result(self._response())

    def answer(self) -> Answer:
        """Return the response, or an awaitable of it."""
        if self._acks == 0:
            self._check_unanswered()
            return None
        if not self._waits:
            return self._response()
        self._done = self._context.broker.loop.create_future()
        return self._done

    def _check_unanswered(self) -> None:
        """Close the connection after an error with acks=0, as Kafka does: the client has no other way to notice."""
        for topic in self._topics:
            for part in topic["partition_responses"]:
                if part["error_code"] != ErrorCode.NONE:
                    raise KafkaError(part["error_code"], f"{part['error_code'].name}: {part['error_message']}")

    def _response(self) -> Body:
        return {"responses": self._topics, "throttle_time_ms": 0}


def _name(found: ServedPartition) -> str:
    return f"{found.name}/{found.index}"


def _check_times(limits: TopicLimits, data: memoryview, first: int, last: int, max_bytes: int) -> None:
    """Refuse timestamps far from now, which are usually a mistake in the unit."""
    now = now_ms()
    lowest, highest = now - limits.timestamp_before_max_ms, now + limits.timestamp_after_max_ms
    if last > highest or 0 <= first < lowest:
        raise _BadRecords(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps from {first} to {last} are out of the range that message.timestamp.*.max.ms allows",
            _indexes(data, lambda record: record.timestamp > highest or 0 <= record.timestamp < lowest, max_bytes),
        )


def _check_keys(data: memoryview, max_bytes: int) -> None:
    indexes = _indexes(data, lambda record: record.key is None, max_bytes)
    if indexes:
        why = "the topic keeps the last record of each key (cleanup.policy), so a record needs a key"
        raise _BadRecords(ErrorCode.INVALID_RECORD, why, indexes)


def _indexes(data: memoryview, is_bad: Callable[[Record], bool], max_bytes: int) -> list[int]:
    """Return the indexes of the records in a batch that match."""
    from ...batch.read import decode

    return [index for index, record in enumerate(decode(data, max_bytes=max_bytes)) if is_bad(record)]


def _nothing(error: BaseException | None) -> None:
    """Ignore the outcome of a sync that no request waits for. If it fails, the log refuses later appends."""
