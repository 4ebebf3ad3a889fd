"""Producers and transactions seen from outside."""

from __future__ import annotations

from ..keys import Key
from ..schema import ALWAYS, INT32, INT64, STRING, Api, array, int16, int32, int64, string

DESCRIBE_PRODUCERS = Api(
    Key.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        array("topics").of(
            string("name"),
            array("partition_indexes").of(INT32),
        ),
    ],
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
        array("transaction_states").of(
            string("transactional_id"),
            int64("producer_id"),
            string("transaction_state"),
        ),
    ],
)

DESCRIBE_TRANSACTIONS = Api(
    Key.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    flexible_from=0,
    request=[
        array("transactional_ids").of(STRING),
    ],
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
            array("topics").of(
                string("topic"),
                array("partitions").of(INT32),
            ),
        ),
    ],
)
