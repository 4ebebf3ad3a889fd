"""Access control lists.

Types of resources: 1 any, 2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user. Of patterns:
1 any, 2 match, 3 literal, 4 prefixed. Operations: 1 any, 2 all, 3 read, 4 write, 5 create, 6 delete, 7 alter,
8 describe, and more. Permissions: 1 any, 2 deny, 3 allow.
"""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, Api, array, int8, int16, int32, string

DESCRIBE_ACLS = Api(
    Key.DESCRIBE_ACLS,
    versions=(1, 3),
    flexible_from=2,
    request=[
        int8("resource_type_filter"),
        string("resource_name_filter", nullable=ALWAYS),
        int8("pattern_type_filter", default=3),
        string("principal_filter", nullable=ALWAYS),
        string("host_filter", nullable=ALWAYS),
        int8("operation"),
        int8("permission_type"),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("resources").of(
            int8("resource_type"),
            string("resource_name"),
            int8("pattern_type", default=3),
            array("acls").of(
                string("principal"),
                string("host"),
                int8("operation"),
                int8("permission_type"),
            ),
        ),
    ],
)

CREATE_ACLS = Api(
    Key.CREATE_ACLS,
    versions=(1, 3),
    flexible_from=2,
    request=[
        array("creations").of(
            int8("resource_type"),
            string("resource_name"),
            int8("resource_pattern_type", default=3),
            string("principal"),
            string("host"),
            int8("operation"),
            int8("permission_type"),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
        ),
    ],
)

DELETE_ACLS = Api(
    Key.DELETE_ACLS,
    versions=(1, 3),
    flexible_from=2,
    request=[
        array("filters").of(
            int8("resource_type_filter"),
            string("resource_name_filter", nullable=ALWAYS),
            int8("pattern_type_filter", default=3),
            string("principal_filter", nullable=ALWAYS),
            string("host_filter", nullable=ALWAYS),
            int8("operation"),
            int8("permission_type"),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("filter_results").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            array("matching_acls").of(
                int16("error_code"),
                string("error_message", nullable=ALWAYS, default=None),
                int8("resource_type"),
                string("resource_name"),
                int8("pattern_type", default=3),
                string("principal"),
                string("host"),
                int8("operation"),
                int8("permission_type"),
            ),
        ),
    ],
)
