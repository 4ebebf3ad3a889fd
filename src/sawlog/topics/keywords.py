"""The settings of topics as keywords, for type checkers and editors: `create_topic("orders", retention_ms=...)`.

One line per setting of `settings.SETTINGS`, which says what each of them means; a test compares the two. Calls also
accept names with dots, and numbers as text, for what comes from a command line; a checked program passes these as a
`dict[str, Any]`.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from ..config import Interval


class TopicSettings(TypedDict, total=False):
    """For `create_topic`."""

    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact", ""]
    retention_ms: int
    retention_bytes: int
    local_retention_ms: int
    local_retention_bytes: int
    segment_bytes: int
    segment_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    compression_type: Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"]
    compression_level: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    durability: str | Interval
    max_record_bytes: int
    segment_overflow_bytes: int
    max_mapped_segments: int
    merge_bytes: int
    recompress_after_ms: int
    scrub_interval_ms: int
    sawlog_schema: str
    max_message_bytes: int
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: str
    leader_replication_throttled_replicas: str
    max_compaction_lag_ms: int
    message_downconversion_enable: bool
    message_format_version: str
    min_insync_replicas: int
    preallocate: bool
    remote_storage_enable: bool
    segment_jitter_ms: int
    unclean_leader_election_enable: bool


class TopicChanges(TypedDict, total=False):
    """For `alter_topic`: None resets a setting to its default."""

    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact", ""] | None
    retention_ms: int | None
    retention_bytes: int | None
    local_retention_ms: int | None
    local_retention_bytes: int | None
    segment_bytes: int | None
    segment_ms: int | None
    segment_index_bytes: int | None
    index_interval_bytes: int | None
    delete_retention_ms: int | None
    min_cleanable_dirty_ratio: float | None
    min_compaction_lag_ms: int | None
    compression_type: Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_level: int | None
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] | None
    durability: str | Interval | None
    max_record_bytes: int | None
    segment_overflow_bytes: int | None
    max_mapped_segments: int | None
    merge_bytes: int | None
    recompress_after_ms: int | None
    scrub_interval_ms: int | None
    sawlog_schema: str | None
    max_message_bytes: int | None
    message_timestamp_before_max_ms: int | None
    message_timestamp_after_max_ms: int | None
    file_delete_delay_ms: int | None
    flush_messages: int | None
    flush_ms: int | None
    follower_replication_throttled_replicas: str | None
    leader_replication_throttled_replicas: str | None
    max_compaction_lag_ms: int | None
    message_downconversion_enable: bool | None
    message_format_version: str | None
    min_insync_replicas: int | None
    preallocate: bool | None
    remote_storage_enable: bool | None
    segment_jitter_ms: int | None
    unclean_leader_election_enable: bool | None
