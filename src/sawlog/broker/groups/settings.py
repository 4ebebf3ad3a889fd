"""`GroupConfig`: the limits of groups. A comment has Kafka's name of each, where Kafka has one.

Time for groups: an event loop's clock, or one that a test drives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol


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


class Handle(Protocol):
    """A call that is due at some time."""

    def cancel(self) -> None:
        """Do not call it."""


class Timers(Protocol):
    """The part of an event loop that groups need."""

    def time(self) -> float:
        """Seconds, by a clock that never goes back."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        """Call a function when that many seconds have passed."""


class Alarm:
    """Calls a function when the time that was set last has come.

    Setting it to a later time costs nothing: a heartbeat does it, many times a second. The timer that is running then
    finds that it is too early, and waits for the rest.
    """

    __slots__ = ("_due_s", "_handle", "_ring", "_rings_s", "_timers")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._due_s = 0.0
        self._rings_s = 0.0
        self._handle: Handle | None = None

    @property
    def is_set(self) -> bool:
        """Whether it will ring."""
        return self._handle is not None

    def set(self, delay_ms: float) -> None:
        """Ring after that many milliseconds, and not before."""
        self._due_s = self._timers.time() + delay_ms / 1000
        if self._handle is not None and self._rings_s > self._due_s:
            self.stop()
        if self._handle is None:
            self._wait()

    def stop(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        self._rings_s = self._due_s
        self._handle = self._timers.call_later(max(self._due_s - self._timers.time(), 0.0), self._come)

    def _come(self) -> None:
        self._handle = None
        if self._timers.time() < self._due_s:
            self._wait()
        else:
            self._ring()
