"""The committed offsets of groups."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, INT32, Api, array, boolean, int16, int32, int64, string, uuid

OFFSET_COMMIT = Api(
    Key.OFFSET_COMMIT,
    versions=(0, 10),
    flexible_from=8,
    request=[
        string("group_id"),
        # -1 and no member: a program that is not in the group.
        int32("generation_id_or_member_epoch", since=1, default=-1),
        string("member_id", since=1),
        string("group_instance_id", since=7, nullable=ALWAYS, default=None),
        int64("retention_time_ms", since=2, until=4, default=-1),
        array("topics").of(
            string("name", until=9),
            uuid("topic_id", since=10),
            array("partitions").of(
                int32("partition_index"),
                int64("committed_offset"),
                int32("committed_leader_epoch", since=6, default=-1),
                int64("commit_timestamp", since=1, until=1, default=-1),
                string("committed_metadata", nullable=ALWAYS),
            ),
        ),
    ],
    response=[
        int32("throttle_time_ms", since=3),
        array("topics").of(
            string("name", until=9),
            uuid("topic_id", since=10),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
            ),
        ),
    ],
)

OFFSET_FETCH = Api(
    Key.OFFSET_FETCH,
    versions=(0, 10),
    flexible_from=6,
    request=[
        string("group_id", until=7),
        # Null: all.
        array("topics", until=7, nullable=2).of(
            string("name"),
            array("partition_indexes").of(INT32),
        ),
        array("groups", since=8).of(
            string("group_id"),
            string("member_id", since=9, nullable=ALWAYS, default=None),
            int32("member_epoch", since=9, default=-1),
            array("topics", nullable=ALWAYS).of(
                string("name", until=9),
                uuid("topic_id", since=10),
                array("partition_indexes").of(INT32),
            ),
        ),
        boolean("require_stable", since=7),
    ],
    response=[
        int32("throttle_time_ms", since=3),
        array("topics", until=7).of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int64("committed_offset"),
                int32("committed_leader_epoch", since=5, default=-1),
                string("metadata", nullable=ALWAYS),
                int16("error_code"),
            ),
        ),
        int16("error_code", since=2, until=7),
        array("groups", since=8).of(
            string("group_id"),
            array("topics").of(
                string("name", until=9),
                uuid("topic_id", since=10),
                array("partitions").of(
                    int32("partition_index"),
                    int64("committed_offset"),
                    int32("committed_leader_epoch", default=-1),
                    string("metadata", nullable=ALWAYS),
                    int16("error_code"),
                ),
            ),
            int16("error_code"),
        ),
    ],
)

OFFSET_DELETE = Api(
    Key.OFFSET_DELETE,
    versions=(0, 0),
    flexible_from=None,
    request=[
        string("group_id"),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
            ),
        ),
    ],
    response=[
        int16("error_code"),
        int32("throttle_time_ms"),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
            ),
        ),
    ],
)
