"""Offsets of a partition: by time, by epoch, and where its log starts."""

from __future__ import annotations

from ..keys import Key
from ..schema import INT64, Api, array, int8, int16, int32, int64, string

LIST_OFFSETS = Api(
    Key.LIST_OFFSETS,
    versions=(0, 11),
    flexible_from=6,
    request=[
        int32("replica_id"),
        int8("isolation_level", since=2),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int32("current_leader_epoch", since=4, default=-1),
                # -1: the end, -2: the start, -3: the newest record, -4: the start on this disk, -5: the end of what
                # lies elsewhere.
                int64("timestamp"),
                int32("max_num_offsets", until=0, default=1),
            ),
        ),
        int32("timeout_ms", since=10),
    ],
    response=[
        int32("throttle_time_ms", since=2),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
                array("old_style_offsets", until=0).of(INT64),
                int64("timestamp", since=1, default=-1),
                int64("offset", since=1, default=-1),
                int32("leader_epoch", since=4, default=-1),
            ),
        ),
    ],
)

OFFSET_FOR_LEADER_EPOCH = Api(
    Key.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    flexible_from=4,
    request=[
        int32("replica_id", since=3, default=-2),
        array("topics").of(
            string("topic"),
            array("partitions").of(
                int32("partition"),
                int32("current_leader_epoch", default=-1),
                int32("leader_epoch"),
            ),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(
            string("topic"),
            array("partitions").of(
                int16("error_code"),
                int32("partition"),
                int32("leader_epoch", default=-1),
                int64("end_offset", default=-1),
            ),
        ),
    ],
)

DELETE_RECORDS = Api(
    Key.DELETE_RECORDS,
    versions=(0, 2),
    flexible_from=2,
    request=[
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int64("offset"),
            ),
        ),
        int32("timeout_ms"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int64("low_watermark"),
                int16("error_code"),
            ),
        ),
    ],
)
