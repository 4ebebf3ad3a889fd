"""Users and quotas.

Mechanisms: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512. Types of match: 0 the name, 1 the default, 2 any.
"""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, Api, array, binary, boolean, float64, int8, int16, int32, string

DESCRIBE_USER_SCRAM_CREDENTIALS = Api(
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        array("users", nullable=ALWAYS).of(
            string("name"),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("results").of(
            string("user"),
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            array("credential_infos").of(
                int8("mechanism"),
                int32("iterations"),
            ),
        ),
    ],
)

ALTER_USER_SCRAM_CREDENTIALS = Api(
    Key.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        array("deletions").of(
            string("name"),
            int8("mechanism"),
        ),
        array("upsertions").of(
            string("name"),
            int8("mechanism"),
            int32("iterations"),
            binary("salt"),
            binary("salted_password"),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("user"),
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
        ),
    ],
)

DESCRIBE_CLIENT_QUOTAS = Api(
    Key.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    flexible_from=1,
    request=[
        array("components").of(
            string("entity_type"),
            int8("match_type"),
            string("match", nullable=ALWAYS),
        ),
        boolean("strict"),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        array("entries", nullable=ALWAYS).of(
            array("entity").of(
                string("entity_type"),
                string("entity_name", nullable=ALWAYS),
            ),
            array("values").of(
                string("key"),
                float64("value"),
            ),
        ),
    ],
)

ALTER_CLIENT_QUOTAS = Api(
    Key.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    flexible_from=1,
    request=[
        array("entries").of(
            array("entity").of(
                string("entity_type"),
                string("entity_name", nullable=ALWAYS),
            ),
            array("ops").of(
                string("key"),
                float64("value"),
                boolean("remove"),
            ),
        ),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("entries").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            array("entity").of(
                string("entity_type"),
                string("entity_name", nullable=ALWAYS),
            ),
        ),
    ],
)
