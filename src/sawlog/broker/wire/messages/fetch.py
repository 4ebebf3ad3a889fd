"""Fetch: batches of records of partitions, from an offset."""

from __future__ import annotations

from ..keys import Key
from ..schema import (
    ALWAYS,
    INT32,
    INT32_MAX,
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

FETCH = Api(
    Key.FETCH,
    versions=(4, 18),
    flexible_from=12,
    request=[
        string("cluster_id", since=12, nullable=ALWAYS, default=None, tag=0),
        int32("replica_id", until=14, default=-1),
        struct("replica_state", since=15, tag=1).of(
            int32("replica_id", default=-1),
            int64("replica_epoch", default=-1),
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
            string("topic", until=12),
            uuid("topic_id", since=13),
            array("partitions").of(INT32),
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
                    int32("epoch", default=-1),
                    int64("end_offset", default=-1),
                ),
                struct("current_leader", since=12, tag=1).of(
                    int32("leader_id", default=-1),
                    int32("leader_epoch", default=-1),
                ),
                struct("snapshot_id", since=12, tag=2).of(
                    int64("end_offset", default=-1),
                    int32("epoch", default=-1),
                ),
                # By offset: clients rely on it.
                array("aborted_transactions", nullable=ALWAYS).of(
                    int64("producer_id"),
                    int64("first_offset"),
                ),
                int32("preferred_read_replica", since=11, default=-1),
                records("records", nullable=ALWAYS),
            ),
        ),
        array("node_endpoints", since=16, tag=0).of(
            int32("node_id"),
            string("host"),
            int32("port"),
            string("rack", nullable=ALWAYS, default=None),
        ),
    ],
)
