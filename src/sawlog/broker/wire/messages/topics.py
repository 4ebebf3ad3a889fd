"""Topics: create, delete, and more partitions."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, INT32, STRING, Api, array, boolean, int8, int16, int32, string, uuid

CREATE_TOPICS = Api(
    Key.CREATE_TOPICS,
    versions=(2, 7),
    flexible_from=5,
    request=[
        array("topics").of(
            string("name"),
            # -1: as the broker is configured, or as assigned below.
            int32("num_partitions"),
            int16("replication_factor"),
            array("assignments").of(
                int32("partition_index"),
                array("broker_ids").of(INT32),
            ),
            array("configs").of(
                string("name"),
                string("value", nullable=ALWAYS),
            ),
        ),
        int32("timeout_ms", default=60000),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(
            string("name"),
            uuid("topic_id", since=7),
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            int16("topic_config_error_code", since=5, tag=0),
            int32("num_partitions", since=5, default=-1),
            int16("replication_factor", since=5, default=-1),
            array("configs", since=5, nullable=ALWAYS).of(
                string("name"),
                string("value", nullable=ALWAYS),
                boolean("read_only"),
                int8("config_source", default=-1),
                boolean("is_sensitive"),
            ),
        ),
    ],
)

DELETE_TOPICS = Api(
    Key.DELETE_TOPICS,
    versions=(1, 6),
    flexible_from=4,
    request=[
        array("topics", since=6).of(
            string("name", nullable=ALWAYS, default=None),
            uuid("topic_id"),
        ),
        array("topic_names", until=5).of(STRING),
        int32("timeout_ms"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("responses").of(
            string("name", nullable=6),
            uuid("topic_id", since=6),
            int16("error_code"),
            string("error_message", since=5, nullable=ALWAYS, default=None),
        ),
    ],
)

CREATE_PARTITIONS = Api(
    Key.CREATE_PARTITIONS,
    versions=(0, 3),
    flexible_from=2,
    request=[
        array("topics").of(
            string("name"),
            int32("count"),
            array("assignments", nullable=ALWAYS).of(
                array("broker_ids").of(INT32),
            ),
        ),
        int32("timeout_ms"),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("name"),
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
        ),
    ],
)
