"""The controllers of a cluster: who votes, and who leads."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, Api, Field, array, int16, int32, int64, string, uint16, uuid


def _replicas(name: str) -> Field:
    return array(name).of(
        int32("replica_id"),
        uuid("replica_directory_id", since=2),
        int64("log_end_offset"),
        int64("last_fetch_timestamp", since=1, default=-1),
        int64("last_caught_up_timestamp", since=1, default=-1),
    )


DESCRIBE_QUORUM = Api(
    Key.DESCRIBE_QUORUM,
    versions=(0, 2),
    flexible_from=0,
    request=[
        array("topics").of(
            string("topic_name"),
            array("partitions").of(
                int32("partition_index"),
            ),
        ),
    ],
    response=[
        int16("error_code"),
        string("error_message", since=2, nullable=ALWAYS, default=None),
        array("topics").of(
            string("topic_name"),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
                string("error_message", since=2, nullable=ALWAYS, default=None),
                int32("leader_id"),
                int32("leader_epoch"),
                int64("high_watermark"),
                _replicas("current_voters"),
                _replicas("observers"),
            ),
        ),
        array("nodes", since=2).of(
            int32("node_id"),
            array("listeners").of(
                string("name"),
                string("host"),
                uint16("port"),
            ),
        ),
    ],
)
