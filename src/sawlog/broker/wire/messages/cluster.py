"""Brokers, partitions, coordinators and replicas: metadata, the controller quorum, and partition placement."""

from __future__ import annotations

from ..errors import Key
from ..schema import (
    ALWAYS,
    INT32,
    NOT_ASKED,
    STRING,
    Api,
    Field,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uint16,
    uuid,
)

METADATA = Api(
    Key.METADATA,
    versions=(0, 13),
    flexible_from=9,
    request=[
        # Null is all topics; in version 0 an empty list is.
        array("topics", nullable=1).of(
            uuid("topic_id", since=10),
            # Null: the topic is given by id.
            string("name", nullable=10),
        ),
        boolean("allow_auto_topic_creation", since=4, default=True),
        boolean("include_cluster_authorized_operations", since=8, until=10),
        boolean("include_topic_authorized_operations", since=8),
    ],
    response=[
        int32("throttle_time_ms", since=3),
        array("brokers").of(
            int32("node_id"), string("host"), int32("port"), string("rack", since=1, nullable=ALWAYS, default=None)
        ),
        string("cluster_id", since=2, nullable=ALWAYS, default=None),
        int32("controller_id", since=1, default=-1),
        array("topics").of(
            int16("error_code"),
            string("name", nullable=12),
            uuid("topic_id", since=10),
            boolean("is_internal", since=1),
            array("partitions").of(
                int16("error_code"),
                int32("partition_index"),
                int32("leader_id"),
                int32("leader_epoch", since=7, default=-1),
                array("replica_nodes").of(INT32),
                array("isr_nodes").of(INT32),
                array("offline_replicas", since=5).of(INT32),
            ),
            int32("topic_authorized_operations", since=8, default=NOT_ASKED),
        ),
        int32("cluster_authorized_operations", since=8, until=10, default=NOT_ASKED),
        int16("error_code", since=13),
    ],
)

DESCRIBE_TOPIC_PARTITIONS = Api(
    Key.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        array("topics").of(string("name")),
        int32("response_partition_limit", default=2000),
        struct("cursor", nullable=ALWAYS, default=None).of(string("topic_name"), int32("partition_index")),
    ],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(
            int16("error_code"),
            string("name", nullable=ALWAYS),
            uuid("topic_id"),
            boolean("is_internal"),
            array("partitions").of(
                int16("error_code"),
                int32("partition_index"),
                int32("leader_id"),
                int32("leader_epoch", default=-1),
                array("replica_nodes").of(INT32),
                array("isr_nodes").of(INT32),
                array("eligible_leader_replicas", nullable=ALWAYS, default=None).of(INT32),
                array("last_known_elr", nullable=ALWAYS, default=None).of(INT32),
                array("offline_replicas").of(INT32),
            ),
            int32("topic_authorized_operations", default=NOT_ASKED),
        ),
        struct("next_cursor", nullable=ALWAYS, default=None).of(string("topic_name"), int32("partition_index")),
    ],
)

DESCRIBE_CLUSTER = Api(
    Key.DESCRIBE_CLUSTER,
    versions=(0, 2),
    flexible_from=0,
    request=[
        boolean("include_cluster_authorized_operations"),
        # 1: brokers, 2: controllers.
        int8("endpoint_type", since=1, default=1),
        boolean("include_fenced_brokers", since=2),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        int8("endpoint_type", since=1, default=1),
        string("cluster_id"),
        int32("controller_id", default=-1),
        array("brokers").of(
            int32("broker_id"),
            string("host"),
            int32("port"),
            string("rack", nullable=ALWAYS, default=None),
            boolean("is_fenced", since=2),
        ),
        int32("cluster_authorized_operations", default=NOT_ASKED),
    ],
)

FIND_COORDINATOR = Api(
    Key.FIND_COORDINATOR,
    versions=(0, 6),
    flexible_from=3,
    request=[
        string("key", until=3),
        # 0: a group, 1: a transactional id, 2: a share group.
        int8("key_type", since=1),
        array("coordinator_keys", since=4).of(STRING),
    ],
    response=[
        int32("throttle_time_ms", since=1),
        int16("error_code", until=3),
        string("error_message", since=1, until=3, nullable=ALWAYS, default=None),
        int32("node_id", until=3),
        string("host", until=3),
        int32("port", until=3),
        array("coordinators", since=4).of(
            string("key"),
            int32("node_id"),
            string("host"),
            int32("port"),
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
        ),
    ],
)


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
    request=[array("topics").of(string("topic_name"), array("partitions").of(int32("partition_index")))],
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
            int32("node_id"), array("listeners").of(string("name"), string("host"), uint16("port"))
        ),
    ],
)


ALTER_REPLICA_LOG_DIRS = Api(
    Key.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    flexible_from=2,
    request=[array("dirs").of(string("path"), array("topics").of(string("name"), array("partitions").of(INT32)))],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("topic_name"), array("partitions").of(int32("partition_index"), int16("error_code"))
        ),
    ],
)

DESCRIBE_LOG_DIRS = Api(
    Key.DESCRIBE_LOG_DIRS,
    versions=(0, 5),
    flexible_from=2,
    request=[
        # Null: all.
        array("topics", nullable=ALWAYS).of(string("topic"), array("partitions").of(INT32))
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
                    int32("partition_index"), int64("partition_size"), int64("offset_lag"), boolean("is_future_key")
                ),
            ),
            int64("total_bytes", since=4, default=-1),
            int64("usable_bytes", since=4, default=-1),
            # True if no new replicas may be placed there.
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
        array("topic_partitions", nullable=ALWAYS).of(string("topic"), array("partitions").of(INT32)),
        int32("timeout_ms", default=60000),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code", since=1),
        array("replica_election_results").of(
            string("topic"),
            array("partition_result").of(
                int32("partition_id"), int16("error_code"), string("error_message", nullable=ALWAYS, default=None)
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
                # Null: cancel the pending reassignment.
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
                int32("partition_index"), int16("error_code"), string("error_message", nullable=ALWAYS, default=None)
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
        array("topics", nullable=ALWAYS, default=None).of(string("name"), array("partition_indexes").of(INT32)),
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
