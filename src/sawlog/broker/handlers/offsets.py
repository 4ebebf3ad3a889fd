"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio

from ...errors import OffsetOutOfRange, SawlogError
from ...store import base
from ..error_responses import code_of
from ..partitions import Partition
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context, KafkaError
from .fetch import check_epoch

#: Special timestamps of ListOffsets.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_BEGINNINGS = (_EARLIEST, _EARLIEST_LOCAL)


async def list_offsets(context: Context, request: Body) -> Body:
    """Return the offset at a timestamp, or at either end, of each partition."""
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


async def _settle(context: Context, log: base.Partition) -> None:
    """Wait until everything written so far is visible. With acks=1, records are acknowledged before that, and a client
    that then asks for the end expects them to be included. If the sync fails, the visible end counts."""
    written = log.written_offset
    if not log.locked or log.visible_offset >= written:
        return
    broker = context.broker
    settled: asyncio.Future[None] = broker.loop.create_future()
    log.when_settled(written, lambda _: broker.later(_end, settled))
    await settled


def _end(settled: asyncio.Future[None]) -> None:
    if not settled.done():  # done already if the connection is gone
        settled.set_result(None)


async def _find(context: Context, found: Partition, wanted: int, *, committed: bool) -> tuple[int, int, int]:
    """Return offset, timestamp and leader epoch."""
    log = found.log
    if wanted == _LATEST:
        end, epoch = log.position(isolation="committed" if committed else "uncommitted")
        return end, -1, epoch
    if wanted in _BEGINNINGS:
        lowest = log.lowest_offset if wanted == _EARLIEST else log.local_offset
        return lowest, -1, _epoch_at(log, lowest)
    if wanted == _LATEST_TIERED:
        last = log.local_offset - 1  # the last offset that exists only in the replica
        return (last, -1, _epoch_at(log, last)) if last >= log.lowest_offset else (-1, -1, -1)
    if wanted == _MAX_TIMESTAMP:
        newest = await context.broker.run(log.newest)
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
    """Return the leader epoch of an offset."""
    epochs = [epoch for epoch, first in log.leader_epochs if first <= offset]
    return epochs[-1] if epochs else max(log.leader_epoch, 0)


async def offset_for_leader_epoch(context: Context, request: Body) -> Body:
    """Return the end of a leader epoch. A client that has read beyond it truncates."""
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


def _end_of(log: base.Partition, epoch: int) -> tuple[int, int]:
    """Return the largest epoch up to the given one, and its end. An epoch without remaining records ends at the start
    of the log; a future epoch gives (-1, -1)."""
    end, current = log.position(isolation="uncommitted")
    if epoch == current:
        return current, end
    if epoch > current or epoch < 0:
        return -1, -1
    known = [each for each, _ in log.leader_epochs if each <= epoch]
    return (known[-1], log.epoch_end(known[-1])) if known else (epoch, log.epoch_end(epoch))


async def delete_records(context: Context, request: Body) -> Body:
    """Delete the beginning of partitions."""
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
    """Delete the records below an offset, or all with -1; return the new start."""
    if found.topic.settings.get("cleanup.policy") == "compact":
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted by offset")
    log = found.log
    if log.locked and log.visible_offset < log.written_offset and not 0 <= offset <= log.visible_offset:
        log.sync()  # records acknowledged with acks=1 may not be visible yet, but can be deleted
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
