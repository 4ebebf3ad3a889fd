"""The classic group protocol: join, synchronise, stay, leave."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, Api, array, binary, boolean, int16, int32, string

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
        array("protocols").of(
            string("name"),
            binary("metadata"),
        ),
        string("reason", since=8, nullable=ALWAYS, default=None),
    ],
    response=[
        int32("throttle_time_ms", since=2),
        int16("error_code"),
        int32("generation_id", default=-1),
        string("protocol_type", since=7, nullable=ALWAYS, default=None),
        string("protocol_name", nullable=7),
        string("leader"),
        # A leader that joins again keeps the assignment that there is.
        boolean("skip_assignment", since=9),
        string("member_id"),
        # Only the leader gets them.
        array("members").of(
            string("member_id"),
            string("group_instance_id", since=5, nullable=ALWAYS, default=None),
            binary("metadata"),
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
        array("assignments").of(
            string("member_id"),
            binary("assignment"),
        ),
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
    response=[
        int32("throttle_time_ms", since=1),
        int16("error_code"),
    ],
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
            string("member_id"),
            string("group_instance_id", nullable=ALWAYS),
            int16("error_code"),
        ),
    ],
)
