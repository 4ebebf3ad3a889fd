"""What a commit needs of other processes that hold partitions. `sawlog.topics.handover` provides it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...clock import Deadline
from ...log.log import Log


class Lost(Exception):
    """The connection ended before the answer came, or there is nobody. Whether it was done is not known."""


class Silent(Lost):
    """The other process is there and did not answer in time."""


class Refused(Lost):
    """The other process belongs to another user: asking again does not help."""


class Neighbour(Protocol):
    """A process that holds partitions, as long as the connection to it is open.

    If it ends, the other process looks for the intents that were prepared, and places and completes those that exist.
    Errors that the other process reports are raised as they are.
    """

    def prepare(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> Sequence[int]:
        """Let it check that it can place these parts of a proposal; returns those whose partitions it does not hold."""

    def ask_to_place(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> None:
        """Let it place these parts of an intent; `placed` waits until it has."""

    def placed(self, deadline: Deadline) -> Sequence[int]:
        """Wait for it; returns those parts whose partitions it does not hold."""

    def close(self) -> None:
        """End the connection."""


class Neighbours(Protocol):
    """The processes that hold partitions of a store."""

    def address(self, log: Log) -> str | None:
        """Of the process that holds the lock of a log; None if that is not known, or it takes no requests."""

    def call(self, address: str, deadline: Deadline) -> Neighbour:
        """Connect to it; `Lost` if it is not there."""


class Nobody:
    """There are none: a store in memory."""

    def address(self, log: Log) -> str | None:
        """Unknown."""
        return None

    def call(self, address: str, deadline: Deadline) -> Neighbour:
        """Nobody is there."""
        raise Lost(f"nobody listens on {address}")
