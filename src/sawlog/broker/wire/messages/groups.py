"""Groups: the classic protocol, the KIP-848 protocol, administration and committed offsets.

`SUBSCRIPTION` and `ASSIGNMENT` describe the opaque bytes that consumers send in JoinGroup and SyncGroup, each after an
int16 with its version. A broker passes these on unread; it parses them, as tools do, only to describe a group.
"""

from __future__ import annotations

from ..errors import Key
from ..schema import (
    ALWAYS,
    INT32,
    NOT_ASKED,
    STRING,
    Api,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)

JOIN_GROUP = Api(
    Key.JOIN_GROUP,
    versions=(0, 9),
    flexible_from=6,
    request=[
        string("group_id"),
        int32("session_timeout_ms"),
        int32("rebalance_timeout_ms", since=1, default=-1),
        string("member_id"),
        string("group_instance_id", since=5, nullable=ALWAYS, default=None),
        string("protocol_type"),
        array("protocols").of(string("name"), binary("metadata")),
        string("reason", since=8, nullable=ALWAYS, default=None),
    ],
    response=[
        int32("throttle_time_ms", since=2),
        int16("error_code"),
        int32("generation_id", default=-1),
        string("protocol_type", since=7, nullable=ALWAYS, default=None),
        string("protocol_name", nullable=7),
        string("leader"),
        # A leader that rejoins keeps the existing assignment.
        boolean("skip_assignment", since=9),
        string("member_id"),
        # Only the leader gets them.
        array("members").of(
            string("member_id"), string("group_instance_id", since=5, nullable=ALWAYS, default=None), binary("metadata")
        ),
    ],
)

SYNC_GROUP = Api(
    Key.SYNC_GROUP,
    versions=(0, 5),
    flexible_from=4,
    request=[
        string("group_id"),
        int32("generation_id"),
        string("member_id"),
        string("group_instance_id", since=3, nullable=ALWAYS, default=None),
        string("protocol_type", since=5, nullable=ALWAYS, default=None),
        string("protocol_name", since=5, nullable=ALWAYS, default=None),
        array("assignments").of(string("member_id"), binary("assignment")),
    ],
    response=[
        int32("throttle_time_ms", since=1),
        int16("error_code"),
        string("protocol_type", since=5, nullable=ALWAYS, default=None),
        string("protocol_name", since=5, nullable=ALWAYS, default=None),
        binary("assignment"),
    ],
)

HEARTBEAT = Api(
    Key.HEARTBEAT,
    versions=(0, 4),
    flexible_from=4,
    request=[
        string("group_id"),
        int32("generation_id"),
        string("member_id"),
        string("group_instance_id", since=3, nullable=ALWAYS, default=None),
    ],
    response=[int32("throttle_time_ms", since=1), int16("error_code")],
)

LEAVE_GROUP = Api(
    Key.LEAVE_GROUP,
    versions=(0, 5),
    flexible_from=4,
    request=[
        string("group_id"),
        string("member_id", until=2),
        array("members", since=3).of(
            string("member_id"),
            string("group_instance_id", nullable=ALWAYS, default=None),
            string("reason", since=5, nullable=ALWAYS, default=None),
        ),
    ],
    response=[
        int32("throttle_time_ms", since=1),
        int16("error_code"),
        array("members", since=3).of(
            string("member_id"), string("group_instance_id", nullable=ALWAYS), int16("error_code")
        ),
    ],
)


LIST_GROUPS = Api(
    Key.LIST_GROUPS,
    versions=(0, 5),
    flexible_from=3,
    request=[array("states_filter", since=4).of(STRING), array("types_filter", since=5).of(STRING)],
    response=[
        int32("throttle_time_ms", since=1),
        int16("error_code"),
        array("groups").of(
            string("group_id"), string("protocol_type"), string("group_state", since=4), string("group_type", since=5)
        ),
    ],
)

DESCRIBE_GROUPS = Api(
    Key.DESCRIBE_GROUPS,
    versions=(0, 6),
    flexible_from=5,
    request=[array("groups").of(STRING), boolean("include_authorized_operations", since=3)],
    response=[
        int32("throttle_time_ms", since=1),
        array("groups").of(
            int16("error_code"),
            string("error_message", since=6, nullable=ALWAYS, default=None),
            string("group_id"),
            string("group_state"),
            string("protocol_type"),
            string("protocol_data"),
            array("members").of(
                string("member_id"),
                string("group_instance_id", since=4, nullable=ALWAYS, default=None),
                string("client_id"),
                string("client_host"),
                binary("member_metadata"),
                binary("member_assignment"),
            ),
            int32("authorized_operations", since=3, default=NOT_ASKED),
        ),
    ],
)

DELETE_GROUPS = Api(
    Key.DELETE_GROUPS,
    versions=(0, 2),
    flexible_from=2,
    request=[array("groups_names").of(STRING)],
    response=[int32("throttle_time_ms"), array("results").of(string("group_id"), int16("error_code"))],
)


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
            array("partitions").of(int32("partition_index"), int16("error_code")),
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
        array("topics", until=7, nullable=2).of(string("name"), array("partition_indexes").of(INT32)),
        array("groups", since=8).of(
            string("group_id"),
            string("member_id", since=9, nullable=ALWAYS, default=None),
            int32("member_epoch", since=9, default=-1),
            array("topics", nullable=ALWAYS).of(
                string("name", until=9), uuid("topic_id", since=10), array("partition_indexes").of(INT32)
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
    request=[string("group_id"), array("topics").of(string("name"), array("partitions").of(int32("partition_index")))],
    response=[
        int16("error_code"),
        int32("throttle_time_ms"),
        array("topics").of(string("name"), array("partitions").of(int32("partition_index"), int16("error_code"))),
    ],
)


CONSUMER_GROUP_HEARTBEAT = Api(
    Key.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    flexible_from=0,
    request=[
        string("group_id"),
        string("member_id"),
        # 0 joins, -1 leaves, -2 leaves temporarily (a static member).
        int32("member_epoch"),
        # From here on, null and -1 mean: as in the last heartbeat.
        string("instance_id", nullable=ALWAYS, default=None),
        string("rack_id", nullable=ALWAYS, default=None),
        int32("rebalance_timeout_ms", default=-1),
        array("subscribed_topic_names", nullable=ALWAYS, default=None).of(STRING),
        string("subscribed_topic_regex", since=1, nullable=ALWAYS, default=None),
        string("server_assignor", nullable=ALWAYS, default=None),
        array("topic_partitions", nullable=ALWAYS, default=None).of(uuid("topic_id"), array("partitions").of(INT32)),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        string("member_id", nullable=ALWAYS, default=None),
        int32("member_epoch"),
        int32("heartbeat_interval_ms"),
        # Null: as in the last response.
        struct("assignment", nullable=ALWAYS, default=None).of(
            array("topic_partitions").of(uuid("topic_id"), array("partitions").of(INT32))
        ),
    ],
)

_ASSIGNED = array("topic_partitions").of(uuid("topic_id"), string("topic_name"), array("partitions").of(INT32))

CONSUMER_GROUP_DESCRIBE = Api(
    Key.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    flexible_from=0,
    request=[array("group_ids").of(STRING), boolean("include_authorized_operations")],
    response=[
        int32("throttle_time_ms"),
        array("groups").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            string("group_id"),
            string("group_state"),
            int32("group_epoch"),
            int32("assignment_epoch"),
            string("assignor_name"),
            array("members").of(
                string("member_id"),
                string("instance_id", nullable=ALWAYS, default=None),
                string("rack_id", nullable=ALWAYS, default=None),
                int32("member_epoch"),
                string("client_id"),
                string("client_host"),
                array("subscribed_topic_names").of(STRING),
                string("subscribed_topic_regex", nullable=ALWAYS, default=None),
                struct("assignment").of(_ASSIGNED),
                struct("target_assignment").of(_ASSIGNED),
                # 0: classic, 1: this protocol.
                int8("member_type", since=1, default=-1),
            ),
            int32("authorized_operations", default=NOT_ASKED),
        ),
    ],
)


VERSIONS = range(4)

SUBSCRIPTION = (
    array("topics").of(STRING),
    binary("user_data", nullable=ALWAYS, default=None),
    array("owned_partitions", since=1).of(string("topic"), array("partitions").of(INT32)),
    int32("generation_id", since=2, default=-1),
    string("rack_id", since=3, nullable=ALWAYS, default=None),
)

ASSIGNMENT = (
    array("assigned_partitions").of(string("topic"), array("partitions").of(INT32)),
    binary("user_data", nullable=ALWAYS, default=None),
)
