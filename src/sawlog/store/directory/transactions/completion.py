"""What a commit needs of other processes that hold partitions. `sawlog.store.directory.forwarding` provides it.

`Completion`: gets the parts of committed intents placed, by whom it may be, and completes the intents.

For each part that is not marked: if the topic is deleted, the part is gone with it. If this process holds the
partition, it places the part; if nobody does, it takes the lock, which places it. If another process holds it, that one
is asked to. An intent that names offsets was placed by the holder already, when it got the lock.

Threads: any. No lock of a log is held while another process is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ....clock import Deadline
from ....errors import DirectoryLocked, SawlogError, TopicNotFound
from ....log.log import Log
from ..topic import Topic
from .intent import Intent, Part
from .pending import Ledger
from .placement import Placing


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


#: How long another process is waited for that has to place what somebody else has committed.
_PATIENCE_S = 1.0

_logger = logging.getLogger("sawlog")


class Completion:
    """See the module's docstring."""

    def __init__(
        self, ledger: Ledger, placing: Placing, neighbours: Neighbours, topic_of: Callable[[str], Topic]
    ) -> None:
        self._ledger = ledger
        self._placing = placing
        self._neighbours = neighbours
        self._topic_of = topic_of

    def complete_all(self, where: str) -> None:
        """Try it for all intents. What cannot be completed now is logged, and postponed to the next time."""
        for intent in self._ledger.pending():
            try:
                self.complete(intent, Deadline(_PATIENCE_S))
            except SawlogError as error:
                _logger.warning("%s: a transaction is not completed yet: %s", where, error)

    def complete(self, intent: Intent, deadline: Deadline) -> None:
        """Try it for one."""
        for number, part in self._ledger.unmarked(intent):
            self.bring(intent, number, part, deadline)
        self._ledger.complete_if_done(intent)

    def bring(self, intent: Intent, number: int, part: Part, deadline: Deadline) -> DirectoryLocked | None:
        """Get a part placed. If the process that holds the partition could not be asked, that is returned as an error
        to raise if it is too late to try again."""
        topic = self._topic(part)
        if topic is None:
            self._ledger.mark(intent, number)  # the topic is deleted, and its part with it
            return None
        ours = topic.holdings.held(part.partition)
        try:
            if ours is not None:
                self._placing.carry_out(part, ours)
            else:
                topic.holdings.roll_forward(part.partition)
        except DirectoryLocked as error:
            return self._ask(intent, number, topic, error, deadline) if part.offset < 0 else None
        return None

    def _topic(self, part: Part) -> Topic | None:
        try:
            topic = self._topic_of(part.topic)
        except TopicNotFound:
            return None
        return topic if topic.id == part.topic_id else None

    def _ask(
        self, intent: Intent, number: int, topic: Topic, locked: DirectoryLocked, deadline: Deadline
    ) -> DirectoryLocked | None:
        address = self._neighbours.address(topic.partition(intent.parts[number].partition))
        if address is None:
            return locked
        try:
            line = self._neighbours.call(address, deadline)
            try:
                line.ask_to_place(intent.id, [number], deadline)
                return locked if line.placed(deadline) else None
            finally:
                line.close()
        except Silent as error:
            raise DirectoryLocked(locked.path, f"{locked.holder}, which does not answer") from error
        except Lost:
            return locked
