"""What a client asks first: which APIs there are, and who it is."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, STRING, Api, array, binary, boolean, int16, int32, int64, string

API_VERSIONS = Api(
    Key.API_VERSIONS,
    versions=(0, 4),
    flexible_from=3,
    request=[
        string("client_software_name", since=3),
        string("client_software_version", since=3),
    ],
    response=[
        int16("error_code"),
        array("api_keys").of(
            int16("api_key"),
            int16("min_version"),
            int16("max_version"),
        ),
        int32("throttle_time_ms", since=1),
        # Features tell clients which protocols to use: with transaction.version 2 they expect an epoch per transaction.
        array("supported_features", since=3, tag=0).of(
            string("name"),
            int16("min_version"),
            int16("max_version"),
        ),
        int64("finalized_features_epoch", since=3, default=-1, tag=1),
        array("finalized_features", since=3, tag=2).of(
            string("name"),
            int16("max_version_level"),
            int16("min_version_level"),
        ),
        boolean("zk_migration_ready", since=3, tag=3),
    ],
)

SASL_HANDSHAKE = Api(
    Key.SASL_HANDSHAKE,
    versions=(0, 1),
    flexible_from=None,
    request=[
        string("mechanism"),
    ],
    response=[
        int16("error_code"),
        array("mechanisms").of(STRING),
    ],
)

SASL_AUTHENTICATE = Api(
    Key.SASL_AUTHENTICATE,
    versions=(0, 2),
    flexible_from=2,
    request=[
        binary("auth_bytes"),
    ],
    response=[
        int16("error_code"),
        string("error_message", nullable=ALWAYS, default=None),
        binary("auth_bytes"),
        int64("session_lifetime_ms", since=1),
    ],
)
