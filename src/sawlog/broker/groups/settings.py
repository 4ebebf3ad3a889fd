"""`GroupConfig`, the limits of groups, and `DeadlineTimer`, their timers.

The comment of each setting gives Kafka's name for it, where Kafka has one. Time comes from an event loop's clock, or
from one that a test drives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Limits on members, and timeouts of the coordinator."""

    #: group.min.session.timeout.ms
    group_min_session_timeout_ms: int = 6_000
    #: group.max.session.timeout.ms
    group_max_session_timeout_ms: int = 1_800_000
    #: group.initial.rebalance.delay.ms: how long the first members of a group wait for others. Kafka waits 3 s, which
    #: every test and every start of a single consumer pays for.
    group_initial_rebalance_delay_ms: int = 0
    #: group.max.size
    group_max_size: int = 10_000
    #: Maximum time that a new member waits for its first generation. It sends no heartbeats meanwhile, so without a
    #: limit the group would wait for a client that has given up.
    group_new_member_timeout_ms: int = 300_000
    #: offsets.retention.check.interval.ms: how long a group without members and offsets is kept.
    group_empty_ms: int = 600_000
    #: offset.metadata.max.bytes: maximum length of the text committed with an offset.
    offset_metadata_max_bytes: int = 4_096
    #: group.consumer.session.timeout.ms: for members of the KIP-848 protocol.
    group_consumer_session_timeout_ms: int = 45_000
    #: group.consumer.heartbeat.interval.ms: for members of the KIP-848 protocol.
    group_consumer_heartbeat_interval_ms: int = 5_000

    @classmethod
    def of(cls, config: object) -> GroupConfig:
        """Copy the fields of the same name from a larger configuration; the others keep their defaults."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls) if hasattr(config, each.name)})


class DeadlineTimer:
    """Calls a function when the deadline set last has passed.

    Moving the deadline later is cheap, because heartbeats do it many times a second: the running timer notices that it
    fired too early and waits for the rest.
    """

    __slots__ = ("_callback", "_due_s", "_fires_s", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due_s = 0.0
        self._fires_s = 0.0
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """Whether the timer will fire."""
        return self._handle is not None

    def set(self, delay_ms: float) -> None:
        """Fire after `delay_ms` milliseconds, and not before."""
        self._due_s = self._loop.time() + delay_ms / 1000
        if self._handle is not None and self._fires_s > self._due_s:
            self.stop()
        if self._handle is None:
            self._wait()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        self._fires_s = self._due_s
        self._handle = self._loop.call_later(max(self._due_s - self._loop.time(), 0.0), self._fired)

    def _fired(self) -> None:
        self._handle = None
        if self._loop.time() < self._due_s:
            self._wait()
        else:
            self._callback()
