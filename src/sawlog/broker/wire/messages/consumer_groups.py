"""The group protocol of KIP-848, in which the broker assigns the partitions."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, INT32, NOT_ASKED, STRING, Api, array, boolean, int8, int16, int32, string, struct, uuid

CONSUMER_GROUP_HEARTBEAT = Api(
    Key.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    flexible_from=0,
    request=[
        string("group_id"),
        string("member_id"),
        # 0 joins, -1 leaves, -2 leaves for a while (a static member).
        int32("member_epoch"),
        # From here on, null and -1 mean: as in the last heartbeat.
        string("instance_id", nullable=ALWAYS, default=None),
        string("rack_id", nullable=ALWAYS, default=None),
        int32("rebalance_timeout_ms", default=-1),
        array("subscribed_topic_names", nullable=ALWAYS, default=None).of(STRING),
        string("subscribed_topic_regex", since=1, nullable=ALWAYS, default=None),
        string("server_assignor", nullable=ALWAYS, default=None),
        array("topic_partitions", nullable=ALWAYS, default=None).of(
            uuid("topic_id"),
            array("partitions").of(INT32),
        ),
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
            array("topic_partitions").of(
                uuid("topic_id"),
                array("partitions").of(INT32),
            ),
        ),
    ],
)

_ASSIGNED = array("topic_partitions").of(
    uuid("topic_id"),
    string("topic_name"),
    array("partitions").of(INT32),
)

CONSUMER_GROUP_DESCRIBE = Api(
    Key.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    flexible_from=0,
    request=[
        array("group_ids").of(STRING),
        boolean("include_authorized_operations"),
    ],
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
