"""Reading: Fetch, and the offsets of partitions (ListOffsets, OffsetForLeaderEpoch, DeleteRecords).

A fetch that finds too little data waits until the visible end of one of its partitions moves, or until its timeout.
Nothing polls. It returns at least one whole batch, however large; the first one may begin before the requested offset.
There are no fetch sessions: each request names all of its partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...config import Isolation
from ...errors import CorruptBatch, OffsetOutOfRange, SawlogError
from ...log.reader import Fetched
from ...storage.counters import count_damage
from ...storage.mapped import copied_bytes
from ...store import base
from ..partitions import ServedPartition
from ..security.acls import Operation, Resource
from ..wire import Body, ErrorCode, Key
from . import Answer, Context, KafkaError, answer_partitions, code_of, handles

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: From this version on, topics are named by id.
_BY_ID_FROM = 13
#: Minimum size limit of a response.
_LEAST_BYTES = 64 << 10


@handles(Key.FETCH)
def fetch(context: Context, request: Body) -> Answer:
    """Read available batches; wait if there are too few. Needs READ on each topic."""
    if request["session_id"] != 0 and request["session_epoch"] > 0:
        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "there are no fetch sessions here")
    asked = _Fetch(context, request)
    if asked.is_open():
        answer = asked.read()
        if answer is not None:
            return answer
    return asked.wait()


def _max_bytes(broker: Broker, asked: int) -> int:
    """Return the maximum size of a response, which shrinks as unread responses fill the memory budget."""
    return min(asked, broker.config.max_fetch_bytes, max(broker.limits.budget.available_bytes() >> 2, _LEAST_BYTES))


class _Fetch:
    """One fetch request."""

    def __init__(self, context: Context, request: Body) -> None:
        self._context = context
        self._request = request
        self._committed = request["isolation_level"] == 1
        self._deadline = context.broker.loop.time() + max(request["max_wait_ms"], 0) / 1000
        self._min_bytes = request["min_bytes"]
        self._max_bytes = _max_bytes(context.broker, request["max_bytes"])
        #: Memory occupied by the last read.
        self._copied_bytes = 0
        #: Pending and completed reads of remote data.
        self._loads: dict[ServedPartition, asyncio.Future[Fetched]] = {}
        #: For each topic and partition of the request, in order.
        self._places: list[tuple[Body, list[tuple[Body, ServedPartition | ErrorCode]]]] = []
        #: Answers about topics that the client may not read, by name. The fetch does not return early because of them.
        self._denied: dict[str, Body] = {}

    # --- the partitions

    def is_open(self) -> bool:
        """Return whether all partitions are open; otherwise call `_open`."""
        known, by_id = self._context.broker.partitions, self._context.header.version >= _BY_ID_FROM
        is_open = self._context.broker.authorizer.is_open
        for topic in self._request["topics"]:
            name = known.name_of(topic["topic_id"]) if by_id else topic["topic"]
            if not (is_open or name is None or self._may_read(name, topic)):
                continue
            places: list[tuple[Body, ServedPartition | ErrorCode]] = []
            for part in topic["partitions"]:
                found = None if name is None else known.known(name, part["partition"])
                if found is None:
                    self._places.clear()
                    return False
                places.append((part, found))
            self._places.append((topic, places))
        return True

    async def _open(self) -> None:
        """Open the partitions that are not open yet."""
        partitions, by_id = self._context.broker.partitions, self._context.header.version >= _BY_ID_FROM
        self._places.clear()
        for topic in self._request["topics"]:
            name = await partitions.find_name(topic["topic_id"]) if by_id else topic["topic"]
            if name is None or self._may_read(name, topic):
                found = [(part, await self._find(name, part["partition"])) for part in topic["partitions"]]
                self._places.append((topic, found))

    async def _find(self, name: str | None, number: int) -> ServedPartition | ErrorCode:
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        try:
            return await self._context.broker.partitions.partition(name, number)
        except SawlogError as error:
            return code_of(error)

    def _may_read(self, name: str, topic: Body) -> bool:
        """Return whether the client may read a topic; note the answer if not."""
        denied = self._context.denial(Operation.READ, Resource.TOPIC, name)
        if denied is None:
            return True
        parts = [self._read_one(part, denied.code, 0, first=False) for part in topic["partitions"]]
        self._denied[name] = {"topic": topic["topic"], "topic_id": topic["topic_id"], "partitions": parts}
        return False

    # --- reading

    def read(self, *, enough: int | None = None) -> Body | None:
        """Return the response; None if there is too little data and time is left."""
        enough = self._min_bytes if enough is None else enough
        left, size, copied, failed = self._max_bytes, 0, 0, False
        topics: list[Body] = []
        for topic, places in self._places:
            parts: list[Body] = []
            for part, found in places:
                made = self._read_one(part, found, left, first=size == 0)
                bytes_read = sum(map(len, made["records"]))
                left -= bytes_read
                size += bytes_read
                copied += copied_bytes(made["records"])
                failed = failed or made["error_code"] != ErrorCode.NONE
                parts.append(made)
            topics.append({"topic": topic["topic"], "topic_id": topic["topic_id"], "partitions": parts})
        self._copied_bytes = copied
        if self._denied:
            topics += self._denied.values()
        if self._loads and self._is_loading:
            return None  # otherwise a client with a shorter timeout would never get anything
        if size >= enough or failed or not self._places:
            return {"error_code": ErrorCode.NONE, "session_id": 0, "responses": topics}
        return None

    def _read_one(self, part: Body, found: ServedPartition | ErrorCode, left: int, *, first: bool) -> Body:
        made: dict[str, Any] = {
            "partition_index": part["partition"],
            "error_code": ErrorCode.NONE,
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted_transactions": [] if self._committed else None,
            "records": (),
        }
        if isinstance(found, ErrorCode) or found.is_gone:
            made["error_code"] = found if isinstance(found, ErrorCode) else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return made
        log, start = found.log, part["fetch_offset"]
        try:
            check_epoch(part["current_leader_epoch"], log.leader_epoch)
            made["high_watermark"] = end = log.visible_offset
            made["last_stable_offset"] = log.last_stable_offset
            made["log_start_offset"] = log.lowest_offset
            if self._diverges(part, found, made):
                return made
            if start < 0 or (start > end and log._current):
                raise OffsetOutOfRange(start, log.lowest_offset, end)
            room = min(part["partition_max_bytes"], left)
            if room > 0 or first:
                self._fill(made, found, start, max(room, 1), first=first)
        except SawlogError as error:
            made["error_code"] = code_of(error)
            if isinstance(error, CorruptBatch) and count_damage(error.path, error.position):
                _logger.error("%s/%s cannot be read from offset %s on: %s", found.name, found.index, start, error)
        return made

    def _fill(self, made: Body, found: ServedPartition, start: int, room: int, *, first: bool) -> None:
        page = self._page(found, start, room)
        if page is None:
            return
        if page.size_bytes > room and not first:
            return  # a large batch does not fit; the next fetch begins with it
        made["records"] = page.buffers
        # The data read may extend beyond the end determined before.
        made["high_watermark"] = max(made["high_watermark"], found.log.visible_offset)
        made["last_stable_offset"] = page.last_stable_offset
        if self._committed:
            made["aborted_transactions"] = [
                {"producer_id": producer, "first_offset": offset} for producer, offset in page.aborted
            ]
        self._context.broker.metrics.bytes_out[found.name] += page.size_bytes

    def _page(self, found: ServedPartition, start: int, room: int) -> Fetched | None:
        """Return the available batches; None if they must be loaded first."""
        load = self._loads.get(found) if self._loads else None
        if load is not None:
            return load.result() if load.done() else None
        isolation: Isolation = "committed" if self._committed else "uncommitted"
        if found.log._is_tiered and start < found.log._local_offset:  # only in the replica, which may be slow
            self._loads[found] = self._context.broker.run(found.log.fetch, start, room, isolation=isolation)
            return None
        page = found.log._peek(start, room, isolation=isolation)
        if not isinstance(page, Future):
            return page
        self._loads[found] = asyncio.wrap_future(page)
        return None

    @property
    def _is_loading(self) -> bool:
        return not all(each.done() for each in self._loads.values())

    def _diverges(self, part: Body, found: ServedPartition, made: Body) -> bool:
        """Return whether the client has read records that the log no longer has. It truncates to where they agree."""
        epoch = part["last_fetched_epoch"]
        if epoch < 0:
            return False
        end = found.log.epoch_end(epoch)
        if end >= part["fetch_offset"]:
            return False
        made["diverging_epoch"] = {"epoch": epoch, "end_offset": end}
        return True

    # --- waiting

    async def wait(self) -> Body | None:
        """Wait until there is enough, or the time is over."""
        if not self._places:
            await self._open()
        woken = asyncio.Event()
        broker, budget = self._context.broker, self._context.broker.limits.budget
        found = [place for _, places in self._places for _, place in places if isinstance(place, ServedPartition)]
        for partition in found:
            partition.wait(woken.set)
        try:
            while True:
                while budget.is_overdrawn and not broker.is_stopping:
                    await budget.wait_for_room()
                self._max_bytes = _max_bytes(broker, self._request["max_bytes"])
                rest = self._deadline - broker.loop.time()
                answer = self.read(enough=0 if rest <= 0 or broker.is_stopping else None)
                if answer is not None:
                    budget.promise(self._copied_bytes)
                    return answer
                if self._is_loading:
                    await asyncio.wait(self._loads.values())
                    continue
                self._loads.clear()  # too little data
                woken.clear()
                try:
                    async with asyncio.timeout(rest):
                        await woken.wait()
                except TimeoutError:
                    continue
        finally:
            for partition in found:
                partition.forget(woken.set)
            for load in self._loads.values():
                load.add_done_callback(_retrieved)  # the request may be gone


def _retrieved(load: asyncio.Future[Fetched]) -> None:
    if not load.cancelled():
        load.exception()


def check_epoch(given: int, current: int) -> None:
    """Raise if the client's leader epoch is newer or older than the current one, so that it refreshes its metadata."""
    if given < 0 or given == max(current, 0):
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if given < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise KafkaError(code, f"the leader epoch is {current}, not {given}")


# --- offsets

#: Special timestamps of ListOffsets.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_BEGINNINGS = (_EARLIEST, _EARLIEST_LOCAL)


async def _each_partition(
    context: Context,
    key: Key,
    request: Body,
    operation: Operation | None,
    answer: Callable[[ServedPartition, Body], Awaitable[Body]],
) -> Body:
    """Answer for each partition of a request, on whose topic the client must be allowed to perform `operation`."""
    broker = context.broker
    number = "partition" if key is Key.OFFSET_FOR_LEADER_EPOCH else "partition_index"
    if not broker.store.is_current:
        await broker.run(broker.store.catch_up)  # the end includes what other processes have written

    async def complete(topic: str, asked: Body, made: Body) -> None:
        if operation is not None:
            context.require(operation, Resource.TOPIC, topic)
        made.update(await answer(await broker.partitions.partition(topic, asked[number]), asked))

    return await answer_partitions(key, request, complete)


@handles(Key.LIST_OFFSETS)
async def list_offsets(context: Context, request: Body) -> Body:
    """Return the offset at a timestamp, or at either end, of each partition. Needs DESCRIBE on each topic."""
    committed = request["isolation_level"] == 1

    async def answer(found: ServedPartition, part: Body) -> Body:
        check_epoch(part["current_leader_epoch"], found.log.leader_epoch)
        if part["timestamp"] not in _BEGINNINGS:
            await _settle(context, found.log)
        offset, timestamp, epoch = await _find(context, found, part["timestamp"], committed=committed)
        old = [offset] if context.header.version == 0 else []
        return {"offset": offset, "timestamp": timestamp, "leader_epoch": epoch, "old_style_offsets": old}

    return await _each_partition(context, Key.LIST_OFFSETS, request, Operation.DESCRIBE, answer)


async def _settle(context: Context, log: base.Partition) -> None:
    """Wait until everything written so far is visible. With acks=1, records are acknowledged before that, and a client
    that then asks for the end expects them to be included. If the sync fails, the visible end counts."""
    written = log.written_offset
    if log.visible_offset >= written:
        return
    broker = context.broker
    settled: asyncio.Future[None] = broker.loop.create_future()
    log._when_settled(written, lambda _: broker.later(_end, settled))
    await settled


def _end(settled: asyncio.Future[None]) -> None:
    if not settled.done():  # done already if the connection is gone
        settled.set_result(None)


async def _find(context: Context, found: ServedPartition, wanted: int, *, committed: bool) -> tuple[int, int, int]:
    """Return offset, timestamp and leader epoch."""
    log = found.log
    if wanted == _LATEST:
        end, epoch = log.position(isolation="committed" if committed else "uncommitted")
        return end, -1, epoch
    if wanted in _BEGINNINGS:
        lowest = log.lowest_offset if wanted == _EARLIEST else log._local_offset
        return lowest, -1, _epoch_at(log, lowest)
    if wanted == _LATEST_TIERED:
        last = log._local_offset - 1  # the last offset that exists only in the replica
        return (last, -1, _epoch_at(log, last)) if last >= log.lowest_offset else (-1, -1, -1)
    if wanted == _MAX_TIMESTAMP:
        newest = await context.broker.run(log._newest)
        return (-1, -1, -1) if newest is None else (*newest, _epoch_at(log, newest[0]))
    if wanted < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{wanted} is no timestamp")
    return await context.broker.run(_at, log, wanted, committed)


def _at(log: base.Partition, timestamp: int, committed: bool) -> tuple[int, int, int]:
    """Return the first record at or after a timestamp; (-1, -1, -1) if there is none."""
    end = log.last_stable_offset if committed else log.visible_offset
    offset = log.offset_at(timestamp)
    record = next(log.scan(offset, end, isolation="uncommitted"), None) if offset < end else None
    if record is None:
        return -1, -1, -1
    return record.offset, record.timestamp, _epoch_at(log, record.offset)


def _epoch_at(log: base.Partition, offset: int) -> int:
    epochs = [epoch for epoch, first in log._leader_epochs if first <= offset]
    return epochs[-1] if epochs else max(log.leader_epoch, 0)


@handles(Key.OFFSET_FOR_LEADER_EPOCH)
async def offset_for_leader_epoch(context: Context, request: Body) -> Body:
    """Return the end of a leader epoch; a client that has read beyond it truncates. Needs DESCRIBE on each topic, or
    CLUSTER_ACTION on the cluster."""

    async def answer(found: ServedPartition, part: Body) -> Body:
        check_epoch(part["current_leader_epoch"], found.log.leader_epoch)
        epoch, end = _end_of(found.log, part["leader_epoch"])
        return {"leader_epoch": epoch, "end_offset": end}

    is_broker = context.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    operation = None if is_broker else Operation.DESCRIBE
    return await _each_partition(context, Key.OFFSET_FOR_LEADER_EPOCH, request, operation, answer)


def _end_of(log: base.Partition, epoch: int) -> tuple[int, int]:
    """Return the largest epoch up to the given one, and its end. An epoch without remaining records ends at the start
    of the log; a future epoch gives (-1, -1)."""
    end, current = log.position(isolation="uncommitted")
    if epoch == current:
        return current, end
    if epoch > current or epoch < 0:
        return -1, -1
    known = [each for each, _ in log._leader_epochs if each <= epoch]
    return (known[-1], log.epoch_end(known[-1])) if known else (epoch, log.epoch_end(epoch))


@handles(Key.DELETE_RECORDS)
async def delete_records(context: Context, request: Body) -> Body:
    """Delete the beginning of partitions. Needs DELETE on each topic."""

    async def answer(found: ServedPartition, part: Body) -> Body:
        return {"low_watermark": await context.broker.run(_trim, found, part["offset"])}

    return await _each_partition(context, Key.DELETE_RECORDS, request, Operation.DELETE, answer)


def _trim(found: ServedPartition, offset: int) -> int:
    """Delete the records below an offset, or all with -1; return the new start."""
    if found.topic.settings.get("cleanup.policy") == "compact":
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted by offset")
    log = found.log
    if log.visible_offset < log.written_offset and not 0 <= offset <= log.visible_offset:
        log.sync()  # records acknowledged with acks=1 may not be visible yet, but can be deleted
    end = log.visible_offset
    offset = end if offset == -1 else offset
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(offset, log.lowest_offset, end)
    if offset > log.lowest_offset:
        log.trim(offset)
    return log.lowest_offset
