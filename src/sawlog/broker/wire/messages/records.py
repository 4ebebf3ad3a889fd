"""Records and offsets: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from ..errors import Key
from ..schema import (
    ALWAYS,
    INT32,
    INT32_MAX,
    INT64,
    INT64_MAX,
    Api,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)

PRODUCE = Api(
    Key.PRODUCE,
    versions=(0, 13),
    flexible_from=9,
    request=[
        string("transactional_id", since=3, nullable=ALWAYS, default=None),
        # 0: there is no response, 1: written, -1: by all replicas that are in sync.
        int16("acks"),
        int32("timeout_ms"),
        array("topic_data").of(
            string("name", until=12),
            uuid("topic_id", since=13),
            array("partition_data").of(
                int32("index"),
                # One batch.
                records("records", nullable=ALWAYS),
            ),
        ),
    ],
    response=[
        array("responses").of(
            string("name", until=12),
            uuid("topic_id", since=13),
            array("partition_responses").of(
                int32("index"),
                int16("error_code"),
                int64("base_offset"),
                # Only if the broker sets the time of the records.
                int64("log_append_time_ms", since=2, default=-1),
                int64("log_start_offset", since=5, default=-1),
                array("record_errors", since=8).of(
                    int32("batch_index"), string("batch_index_error_message", nullable=ALWAYS, default=None)
                ),
                string("error_message", since=8, nullable=ALWAYS, default=None),
                struct("current_leader", since=10, tag=0).of(
                    int32("leader_id", default=-1), int32("leader_epoch", default=-1)
                ),
            ),
        ),
        int32("throttle_time_ms", since=1),
        array("node_endpoints", since=10, tag=0).of(
            int32("node_id"), string("host"), int32("port"), string("rack", nullable=ALWAYS, default=None)
        ),
    ],
)


FETCH = Api(
    Key.FETCH,
    versions=(4, 18),
    flexible_from=12,
    request=[
        string("cluster_id", since=12, nullable=ALWAYS, default=None, tag=0),
        int32("replica_id", until=14, default=-1),
        struct("replica_state", since=15, tag=1).of(
            int32("replica_id", default=-1), int64("replica_epoch", default=-1)
        ),
        int32("max_wait_ms"),
        int32("min_bytes"),
        int32("max_bytes", default=INT32_MAX),
        # 0: all records, 1: those of committed transactions.
        int8("isolation_level"),
        # A session names only the partitions that changed since the last request; -1 as epoch means none.
        int32("session_id", since=7),
        int32("session_epoch", since=7, default=-1),
        array("topics").of(
            string("topic", until=12),
            uuid("topic_id", since=13),
            array("partitions").of(
                int32("partition"),
                int32("current_leader_epoch", since=9, default=-1),
                int64("fetch_offset"),
                int32("last_fetched_epoch", since=12, default=-1),
                int64("log_start_offset", since=5, default=-1),
                int32("partition_max_bytes"),
                # From here on for brokers that follow another one.
                uuid("replica_directory_id", since=17, tag=0),
                int64("high_watermark", since=18, default=INT64_MAX, tag=1),
            ),
        ),
        array("forgotten_topics_data", since=7).of(
            string("topic", until=12), uuid("topic_id", since=13), array("partitions").of(INT32)
        ),
        string("rack_id", since=11),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code", since=7),
        int32("session_id", since=7),
        array("responses").of(
            string("topic", until=12),
            uuid("topic_id", since=13),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
                int64("high_watermark"),
                int64("last_stable_offset", default=-1),
                int64("log_start_offset", since=5, default=-1),
                struct("diverging_epoch", since=12, tag=0).of(
                    int32("epoch", default=-1), int64("end_offset", default=-1)
                ),
                struct("current_leader", since=12, tag=1).of(
                    int32("leader_id", default=-1), int32("leader_epoch", default=-1)
                ),
                struct("snapshot_id", since=12, tag=2).of(int64("end_offset", default=-1), int32("epoch", default=-1)),
                # By offset: clients rely on it.
                array("aborted_transactions", nullable=ALWAYS).of(int64("producer_id"), int64("first_offset")),
                int32("preferred_read_replica", since=11, default=-1),
                records("records", nullable=ALWAYS),
            ),
        ),
        array("node_endpoints", since=16, tag=0).of(
            int32("node_id"), string("host"), int32("port"), string("rack", nullable=ALWAYS, default=None)
        ),
    ],
)


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
                int32("partition"), int32("current_leader_epoch", default=-1), int32("leader_epoch")
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
        array("topics").of(string("name"), array("partitions").of(int32("partition_index"), int64("offset"))),
        int32("timeout_ms"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(
            string("name"),
            array("partitions").of(int32("partition_index"), int64("low_watermark"), int16("error_code")),
        ),
    ],
)
