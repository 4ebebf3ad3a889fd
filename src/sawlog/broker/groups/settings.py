"""`GroupConfig`: the limits of groups. A comment has Kafka's name of each, where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """What members may ask for, and how long the coordinator waits."""

    #: group.min.session.timeout.ms
    group_min_session_timeout_ms: int = 6_000
    #: group.max.session.timeout.ms
    group_max_session_timeout_ms: int = 1_800_000
    #: group.initial.rebalance.delay.ms: how long the first members of a group wait for others. Kafka waits 3 s, which
    #: every test and every start of a single consumer pays for.
    group_initial_rebalance_delay_ms: int = 0
    #: group.max.size
    group_max_size: int = 10_000
    #: How long a new member may wait for its first generation. It sends no heartbeats meanwhile, and a client that has
    #: given up would be waited for.
    group_new_member_timeout_ms: int = 300_000
    #: How long a group without members and without offsets is remembered: offsets.retention.check.interval.ms
    group_empty_ms: int = 600_000
    #: offset.metadata.max.bytes: the longest text that can be committed with an offset.
    offset_metadata_max_bytes: int = 4_096
    #: group.consumer.session.timeout.ms: of members whose partitions the broker assigns (KIP-848).
    group_consumer_session_timeout_ms: int = 45_000
    #: group.consumer.heartbeat.interval.ms: the same.
    group_consumer_heartbeat_interval_ms: int = 5_000

    @classmethod
    def of(cls, config: object) -> GroupConfig:
        """The fields of the same name of a larger config; the default of those that it does not have."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls) if hasattr(config, each.name)})
