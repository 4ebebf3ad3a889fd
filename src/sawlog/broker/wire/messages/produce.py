"""Produce: batches of records for partitions."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, Api, array, int16, int32, int64, records, string, struct, uuid

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
                    int32("batch_index"),
                    string("batch_index_error_message", nullable=ALWAYS, default=None),
                ),
                string("error_message", since=8, nullable=ALWAYS, default=None),
                struct("current_leader", since=10, tag=0).of(
                    int32("leader_id", default=-1),
                    int32("leader_epoch", default=-1),
                ),
            ),
        ),
        int32("throttle_time_ms", since=1),
        array("node_endpoints", since=10, tag=0).of(
            int32("node_id"),
            string("host"),
            int32("port"),
            string("rack", nullable=ALWAYS, default=None),
        ),
    ],
)
