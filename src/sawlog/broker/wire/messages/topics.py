"""Topics and settings: creating and deleting topics, adding partitions, describing and altering settings.

Resource types: 2 topic, 4 broker, 8 broker loggers, 16 client metrics, 32 group.
"""

from __future__ import annotations

from ..errors import Key
from ..schema import ALWAYS, INT8, INT32, STRING, Api, array, boolean, int8, int16, int32, string, uuid

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
            array("assignments").of(int32("partition_index"), array("broker_ids").of(INT32)),
            array("configs").of(string("name"), string("value", nullable=ALWAYS)),
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
        array("topics", since=6).of(string("name", nullable=ALWAYS, default=None), uuid("topic_id")),
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
            string("name"), int32("count"), array("assignments", nullable=ALWAYS).of(array("broker_ids").of(INT32))
        ),
        int32("timeout_ms"),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            string("name"), int16("error_code"), string("error_message", nullable=ALWAYS, default=None)
        ),
    ],
)


DESCRIBE_CONFIGS = Api(
    Key.DESCRIBE_CONFIGS,
    versions=(1, 4),
    flexible_from=4,
    request=[
        array("resources").of(
            int8("resource_type"),
            string("resource_name"),
            # Null: all.
            array("configuration_keys", nullable=ALWAYS).of(STRING),
        ),
        boolean("include_synonyms"),
        boolean("include_documentation", since=3),
    ],
    response=[
        int32("throttle_time_ms"),
        array("results").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            int8("resource_type"),
            string("resource_name"),
            array("configs").of(
                string("name"),
                string("value", nullable=ALWAYS),
                boolean("read_only"),
                # 1: the topic, 2 and 3: the brokers while they run, 4: the broker's file, 5: the default.
                int8("config_source", default=-1),
                boolean("is_sensitive"),
                array("synonyms").of(string("name"), string("value", nullable=ALWAYS), int8("source")),
                # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
                int8("config_type", since=3),
                string("documentation", since=3, nullable=ALWAYS),
            ),
        ),
    ],
)

ALTER_CONFIGS = Api(
    Key.ALTER_CONFIGS,
    versions=(0, 2),
    flexible_from=2,
    request=[
        array("resources").of(
            int8("resource_type"),
            string("resource_name"),
            array("configs").of(string("name"), string("value", nullable=ALWAYS)),
        ),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("responses").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            int8("resource_type"),
            string("resource_name"),
        ),
    ],
)

INCREMENTAL_ALTER_CONFIGS = Api(
    Key.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    flexible_from=1,
    request=[
        array("resources").of(
            int8("resource_type"),
            string("resource_name"),
            array("configs").of(
                string("name"),
                # 0: set, 1: delete, 2: append, 3: subtract.
                int8("config_operation"),
                string("value", nullable=ALWAYS),
            ),
        ),
        boolean("validate_only"),
    ],
    response=[
        int32("throttle_time_ms"),
        array("responses").of(
            int16("error_code"),
            string("error_message", nullable=ALWAYS, default=None),
            int8("resource_type"),
            string("resource_name"),
        ),
    ],
)

LIST_CONFIG_RESOURCES = Api(
    Key.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    flexible_from=0,
    request=[array("resource_types", since=1).of(INT8)],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        array("config_resources").of(string("resource_name"), int8("resource_type", since=1, default=16)),
    ],
)
