"""API versions, authentication, access control lists, users and quotas.

Access control lists use these numbers. Resource types: 1 any, 2 topic, 3 group, 4 cluster, 5 transactional id, 6
delegation token, 7 user. Patterns: 1 any, 2 match, 3 literal, 4 prefixed. Operations: 1 any, 2 all, 3 read, 4 write, 5
create, 6 delete, 7 alter, 8 describe, and more. Permissions: 1 any, 2 deny, 3 allow.

SCRAM mechanisms: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512. Match types of quotas: 0 the name, 1 the default, 2 any.
"""

from __future__ import annotations

from ..errors import Key
from ..schema import ALWAYS, STRING, Api, array, binary, boolean, float64, int8, int16, int32, int64, string

API_VERSIONS = Api(
    Key.API_VERSIONS,
    versions=(0, 4),
    flexible_from=3,
    request=[string("client_software_name", since=3), string("client_software_version", since=3)],
    response=[
        int16("error_code"),
        array("api_keys").of(int16("api_key"), int16("min_version"), int16("max_version")),
        int32("throttle_time_ms", since=1),
        # Features tell clients which protocols to use: with transaction.version 2 they expect an epoch per transaction.
        array("supported_features", since=3, tag=0).of(string("name"), int16("min_version"), int16("max_version")),
        int64("finalized_features_epoch", since=3, default=-1, tag=1),
        array("finalized_features", since=3, tag=2).of(
            string("name"), int16("max_version_level"), int16("min_version_level")
        ),
        boolean("zk_migration_ready", since=3, tag=3),
    ],
)

SASL_HANDSHAKE = Api(
    Key.SASL_HANDSHAKE,
    versions=(0, 1),
    flexible_from=None,
    request=[string("mechanism")],
    response=[int16("error_code"), array("mechanisms").of(STRING)],
)

SASL_AUTHENTICATE = Api(
    Key.SASL_AUTHENTICATE,
    versions=(0, 2),
    flexible_from=2,
    request=[binary("auth_bytes")],
    response=[
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        binary("auth_bytes"),
        int64("session_lifetime_ms", since=1),
    ],
)


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
            array("acls").of(string("principal"), string("host"), int8("operation"), int8("permission_type")),
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
        )
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(int16("error_code"), string("error_message", nullable=ALWAYS, default=None)),
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
        )
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


DESCRIBE_USER_SCRAM_CREDENTIALS = Api(
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    flexible_from=0,
    request=[array("users", nullable=ALWAYS).of(string("name"))],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("results").of(
            string("user"),
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            array("credential_infos").of(int8("mechanism"), int32("iterations")),
        ),
    ],
)

ALTER_USER_SCRAM_CREDENTIALS = Api(
    Key.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        array("deletions").of(string("name"), int8("mechanism")),
        array("upsertions").of(
            string("name"), int8("mechanism"), int32("iterations"), binary("salt"), binary("salted_password")
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("user"), int16("error_code"), string("error_message", nullable=ALWAYS, default=None)
        ),
    ],
)

DESCRIBE_CLIENT_QUOTAS = Api(
    Key.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    flexible_from=1,
    request=[
        array("components").of(string("entity_type"), int8("match_type"), string("match", nullable=ALWAYS)),
        boolean("strict"),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("entries", nullable=ALWAYS).of(
            array("entity").of(string("entity_type"), string("entity_name", nullable=ALWAYS)),
            array("values").of(string("key"), float64("value")),
        ),
    ],
)

ALTER_CLIENT_QUOTAS = Api(
    Key.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    flexible_from=1,
    request=[
        array("entries").of(
            array("entity").of(string("entity_type"), string("entity_name", nullable=ALWAYS)),
            array("ops").of(string("key"), float64("value"), boolean("remove")),
        ),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("entries").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            array("entity").of(string("entity_type"), string("entity_name", nullable=ALWAYS)),
        ),
    ],
)
