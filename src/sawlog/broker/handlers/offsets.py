"""Where a partition begins and ends: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio

from ...errors import OffsetOutOfRange, SawlogError
from ...store.served import ServedLog
from ..partitions import Partition
from ..trouble import code_of
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context, KafkaError
from .fetch import check_epoch

#: What a timestamp in ListOffsets means if it is none.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_BEGINNINGS = (_EARLIEST, _EARLIEST_LOCAL)


async def list_offsets(context: Context, request: Body) -> Body:
    """The offset at a time, or at an end, of each partition."""
    committed = request["isolation_level"] == 1
    await context.broker.catch_up()
    topics: list[Body] = []
    for topic in request["topics"]:
        parts = [await _listed(context, topic["name"], part, committed=committed) for part in topic["partitions"]]
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}


async def _listed(context: Context, name: str, part: Body, *, committed: bool) -> Body:
    made: Body = {"partition_index": part["partition_index"], "error_code": ErrorCode.NONE, "old_style_offsets": []}
    try:
        found = await context.broker.partitions.partition(name, part["partition_index"])
        log = found.log
        check_epoch(part["current_leader_epoch"], log.leader_epoch)
        if part["timestamp"] not in _BEGINNINGS:
            await _settle(context, log)
        offset, timestamp, epoch = await _find(context, found, part["timestamp"], committed=committed)
        made.update(offset=offset, timestamp=timestamp, leader_epoch=epoch)
        if context.header.version == 0:
            made["old_style_offsets"] = [offset]
    except SawlogError as error:
        made["error_code"] = code_of(error)
    return made


async def _settle(context: Context, log: ServedLog) -> None:
    """Wait until what is written now is visible. With acks=1 it is acknowledged before, and who then asks where the
    partition ends expects it to be counted. If it cannot be synced, what is visible counts."""
    written = log.written_offset
    if not log.locked or log.visible_offset >= written:
        return
    broker = context.broker
    settled: asyncio.Future[None] = broker.loop.create_future()
    log.when_settled(written, lambda _: broker.later(_end, settled))
    await settled


def _end(settled: asyncio.Future[None]) -> None:
    if not settled.done():  # nobody waits any more if the connection is gone
        settled.set_result(None)


async def _find(context: Context, found: Partition, wanted: int, *, committed: bool) -> tuple[int, int, int]:
    """Offset, timestamp and leader epoch."""
    log = found.log
    if wanted == _LATEST:
        end, epoch = log.position(isolation="committed" if committed else "uncommitted")
        return end, -1, epoch
    if wanted in _BEGINNINGS:
        lowest = log.lowest_offset if wanted == _EARLIEST else log.local_offset
        return lowest, -1, _epoch_at(log, lowest)
    if wanted == _LATEST_TIERED:
        last = log.local_offset - 1  # the last offset that is only in the replica
        return (last, -1, _epoch_at(log, last)) if last >= log.lowest_offset else (-1, -1, -1)
    if wanted == _MAX_TIMESTAMP:
        newest = await context.broker.run(log.newest)
        return (-1, -1, -1) if newest is None else (*newest, _epoch_at(log, newest[0]))
    if wanted < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{wanted} is no timestamp")
    return await context.broker.run(_at, log, wanted, committed)


def _at(log: ServedLog, timestamp: int, committed: bool) -> tuple[int, int, int]:
    """The first record that is not older; (-1, -1, -1) if there is none."""
    end = log.last_stable_offset if committed else log.visible_offset
    offset = log.offset_at(timestamp)
    record = next(log.scan(offset, end, isolation="uncommitted"), None) if offset < end else None
    if record is None:
        return -1, -1, -1
    return record.offset, record.timestamp, _epoch_at(log, record.offset)


def _epoch_at(log: ServedLog, offset: int) -> int:
    """The leader epoch that an offset belongs to."""
    epochs = [epoch for epoch, first in log.leader_epochs if first <= offset]
    return epochs[-1] if epochs else max(log.leader_epoch, 0)


async def offset_for_leader_epoch(context: Context, request: Body) -> Body:
    """Where a leader epoch ends: a client that has read beyond that goes back."""
    await context.broker.catch_up()
    topics: list[Body] = []
    for topic in request["topics"]:
        parts: list[Body] = []
        for part in topic["partitions"]:
            made: Body = {"partition": part["partition"], "error_code": ErrorCode.NONE}
            try:
                found = await context.broker.partitions.partition(topic["topic"], part["partition"])
                check_epoch(part["current_leader_epoch"], found.log.leader_epoch)
                made["leader_epoch"], made["end_offset"] = _end_of(found.log, part["leader_epoch"])
            except SawlogError as error:
                made["error_code"] = code_of(error)
            parts.append(made)
        topics.append({"topic": topic["topic"], "partitions": parts})
    return {"topics": topics}


def _end_of(log: ServedLog, epoch: int) -> tuple[int, int]:
    """The largest epoch that is not above the given one, and its end. An epoch of which nothing is left ends where the
    log begins; (-1, -1) for one that is yet to come."""
    end, current = log.position(isolation="uncommitted")
    if epoch == current:
        return current, end
    if epoch > current or epoch < 0:
        return -1, -1
    known = [each for each, _ in log.leader_epochs if each <= epoch]
    return (known[-1], log.epoch_end(known[-1])) if known else (epoch, log.epoch_end(epoch))


async def delete_records(context: Context, request: Body) -> Body:
    """Drop the beginning of partitions."""
    await context.broker.catch_up()
    topics: list[Body] = []
    for topic in request["topics"]:
        parts: list[Body] = []
        for part in topic["partitions"]:
            made: Body = {"partition_index": part["partition_index"], "error_code": ErrorCode.NONE, "low_watermark": -1}
            try:
                found = await context.broker.partitions.partition(topic["name"], part["partition_index"])
                made["low_watermark"] = await context.broker.run(_trim, found, part["offset"])
            except SawlogError as error:
                made["error_code"] = code_of(error)
            parts.append(made)
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}


def _trim(found: Partition, offset: int) -> int:
    """Drop what is below an offset, or with -1 everything; the new beginning."""
    if found.topic.settings.get("cleanup.policy") == "compact":
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted by offset")
    log = found.log
    if log.locked and log.visible_offset < log.written_offset and not 0 <= offset <= log.visible_offset:
        log.sync()  # acknowledged with acks=1, and not visible yet: it can be deleted, too
    end = log.visible_offset
    offset = end if offset == -1 else offset
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(offset, log.lowest_offset, end)
    if offset > log.lowest_offset:
        log.trim(offset)
    return log.lowest_offset


HANDLERS = {
    Key.LIST_OFFSETS: list_offsets,
    Key.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    Key.DELETE_RECORDS: delete_records,
}
