"""Where partitions lie, and who leads them."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, INT32, Api, array, boolean, int8, int16, int32, int64, string

ALTER_REPLICA_LOG_DIRS = Api(
    Key.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    flexible_from=2,
    request=[
        array("dirs").of(
            string("path"),
            array("topics").of(
                string("name"),
                array("partitions").of(INT32),
            ),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("topic_name"),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
            ),
        ),
    ],
)

DESCRIBE_LOG_DIRS = Api(
    Key.DESCRIBE_LOG_DIRS,
    versions=(0, 5),
    flexible_from=2,
    request=[
        # Null: all.
        array("topics", nullable=ALWAYS).of(
            string("topic"),
            array("partitions").of(INT32),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code", since=3),
        array("results").of(
            int16("error_code"),
            string("log_dir"),
            array("topics").of(
                string("name"),
                array("partitions").of(
                    int32("partition_index"),
                    int64("partition_size"),
                    int64("offset_lag"),
                    boolean("is_future_key"),
                ),
            ),
            int64("total_bytes", since=4, default=-1),
            int64("usable_bytes", since=4, default=-1),
            # Whether no new replica may be placed there.
            boolean("is_cordoned", since=5),
        ),
    ],
)

ELECT_LEADERS = Api(
    Key.ELECT_LEADERS,
    versions=(0, 2),
    flexible_from=2,
    request=[
        # 0: the preferred leader, 1: any, even if records are lost.
        int8("election_type", since=1),
        array("topic_partitions", nullable=ALWAYS).of(
            string("topic"),
            array("partitions").of(INT32),
        ),
        int32("timeout_ms", default=60000),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code", since=1),
        array("replica_election_results").of(
            string("topic"),
            array("partition_result").of(
                int32("partition_id"),
                int16("error_code"),
                string("error_message", nullable=ALWAYS, default=None),
            ),
        ),
    ],
)

ALTER_PARTITION_REASSIGNMENTS = Api(
    Key.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    flexible_from=0,
    request=[
        int32("timeout_ms", default=60000),
        boolean("allow_replication_factor_change", since=1, default=True),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                # Null: stay as it is, and end what is going on.
                array("replicas", nullable=ALWAYS, default=None).of(INT32),
            ),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        boolean("allow_replication_factor_change", since=1, default=True),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("responses").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
                string("error_message", nullable=ALWAYS, default=None),
            ),
        ),
    ],
)

LIST_PARTITION_REASSIGNMENTS = Api(
    Key.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        int32("timeout_ms", default=60000),
        array("topics", nullable=ALWAYS, default=None).of(
            string("name"),
            array("partition_indexes").of(INT32),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                array("replicas").of(INT32),
                array("adding_replicas").of(INT32),
                array("removing_replicas").of(INT32),
            ),
        ),
    ],
)
