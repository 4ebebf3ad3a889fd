"""Groups seen from outside: list, describe, delete."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, NOT_ASKED, STRING, Api, array, binary, boolean, int16, int32, string

LIST_GROUPS = Api(
    Key.LIST_GROUPS,
    versions=(0, 5),
    flexible_from=3,
    request=[
        array("states_filter", since=4).of(STRING),
        array("types_filter", since=5).of(STRING),
    ],
    response=[
        int32("throttle_time_ms", since=1),
        int16("error_code"),
        array("groups").of(
            string("group_id"),
            string("protocol_type"),
            string("group_state", since=4),
            string("group_type", since=5),
        ),
    ],
)

DESCRIBE_GROUPS = Api(
    Key.DESCRIBE_GROUPS,
    versions=(0, 6),
    flexible_from=5,
    request=[
        array("groups").of(STRING),
        boolean("include_authorized_operations", since=3),
    ],
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
    request=[
        array("groups_names").of(STRING),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("group_id"),
            int16("error_code"),
        ),
    ],
)
