"""Idempotent producers and transactions, and their administration."""

from __future__ import annotations

from ..errors import Key
from ..schema import ALWAYS, INT32, INT64, STRING, Api, array, boolean, int16, int32, int64, string

INIT_PRODUCER_ID = Api(
    Key.INIT_PRODUCER_ID,
    versions=(0, 5),
    flexible_from=2,
    request=[
        # Null: idempotent, without transactions.
        string("transactional_id", nullable=ALWAYS),
        int32("transaction_timeout_ms"),
        int64("producer_id", since=3, default=-1),
        int16("producer_epoch", since=3, default=-1),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        int64("producer_id", default=-1),
        int16("producer_epoch"),
    ],
)

ADD_PARTITIONS_TO_TXN = Api(
    Key.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    flexible_from=3,
    request=[
        # From version 4 on, for brokers only; clients stay with version 3.
        array("transactions", since=4).of(
            string("transactional_id"),
            int64("producer_id"),
            int16("producer_epoch"),
            boolean("verify_only"),
            array("topics").of(string("name"), array("partitions").of(INT32)),
        ),
        string("v3_and_below_transactional_id", until=3),
        int64("v3_and_below_producer_id", until=3),
        int16("v3_and_below_producer_epoch", until=3),
        array("v3_and_below_topics", until=3).of(string("name"), array("partitions").of(INT32)),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code", since=4),
        array("results_by_transaction", since=4).of(
            string("transactional_id"),
            array("topic_results").of(
                string("name"),
                array("results_by_partition").of(int32("partition_index"), int16("partition_error_code")),
            ),
        ),
        array("results_by_topic_v3_and_below", until=3).of(
            string("name"), array("results_by_partition").of(int32("partition_index"), int16("partition_error_code"))
        ),
    ],
)

ADD_OFFSETS_TO_TXN = Api(
    Key.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    flexible_from=3,
    request=[string("transactional_id"), int64("producer_id"), int16("producer_epoch"), string("group_id")],
    response=[int32("throttle_time_ms"), int16("error_code")],
)

TXN_OFFSET_COMMIT = Api(
    Key.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    flexible_from=3,
    request=[
        string("transactional_id"),
        string("group_id"),
        int64("producer_id"),
        int16("producer_epoch"),
        int32("generation_id", since=3, default=-1),
        string("member_id", since=3),
        string("group_instance_id", since=3, nullable=ALWAYS, default=None),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int64("committed_offset"),
                int32("committed_leader_epoch", since=2, default=-1),
                string("committed_metadata", nullable=ALWAYS),
            ),
        ),
    ],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(string("name"), array("partitions").of(int32("partition_index"), int16("error_code"))),
    ],
)

END_TXN = Api(
    Key.END_TXN,
    versions=(0, 5),
    flexible_from=3,
    request=[string("transactional_id"), int64("producer_id"), int16("producer_epoch"), boolean("committed")],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        # Producer id and epoch of the next transaction: with transaction.version 2, each has its own epoch.
        int64("producer_id", since=5, default=-1),
        int16("producer_epoch", since=5, default=-1),
    ],
)


DESCRIBE_PRODUCERS = Api(
    Key.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    flexible_from=0,
    request=[array("topics").of(string("name"), array("partition_indexes").of(INT32))],
    response=[
        int32("throttle_time_ms"),
        array("topics").of(
            string("name"),
            array("partitions").of(
                int32("partition_index"),
                int16("error_code"),
                string("error_message", nullable=ALWAYS, default=None),
                array("active_producers").of(
                    int64("producer_id"),
                    int32("producer_epoch"),
                    int32("last_sequence", default=-1),
                    int64("last_timestamp", default=-1),
                    int32("coordinator_epoch"),
                    int64("current_txn_start_offset", default=-1),
                ),
            ),
        ),
    ],
)

LIST_TRANSACTIONS = Api(
    Key.LIST_TRANSACTIONS,
    versions=(0, 2),
    flexible_from=0,
    request=[
        array("state_filters").of(STRING),
        array("producer_id_filters").of(INT64),
        int64("duration_filter", since=1, default=-1),
        string("transactional_id_pattern", since=2, nullable=ALWAYS, default=None),
    ],
    response=[
        int32("throttle_time_ms"),
        int16("error_code"),
        array("unknown_state_filters").of(STRING),
        array("transaction_states").of(string("transactional_id"), int64("producer_id"), string("transaction_state")),
    ],
)

DESCRIBE_TRANSACTIONS = Api(
    Key.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    flexible_from=0,
    request=[array("transactional_ids").of(STRING)],
    response=[
        int32("throttle_time_ms"),
        array("transaction_states").of(
            int16("error_code"),
            string("transactional_id"),
            string("transaction_state"),
            int32("transaction_timeout_ms"),
            int64("transaction_start_time_ms"),
            int64("producer_id"),
            int16("producer_epoch"),
            array("topics").of(string("topic"), array("partitions").of(INT32)),
        ),
    ],
)
