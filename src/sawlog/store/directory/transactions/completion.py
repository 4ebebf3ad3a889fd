"""`Completion`: places the remaining parts of committed intents, and the interface to peers that hold partitions.

For each part that is not marked: if its topic is deleted, there is nothing to do. If this process holds the partition,
it places the part; if no process does, taking the lock places it. If another process holds the partition, it is asked
to place the part. An intent that names offsets was already placed by the holder when it took the lock.

`sawlog.store.directory.forwarding` implements `Peers` and `CommitPeer`.

Thread-safe. Holds no log lock while waiting for another process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ....clock import Deadline
from ....errors import DirectoryLocked, SawlogError, TopicNotFound
from ....log.log import Log
from ..topic import DirectoryTopic
from .intent import Intent, Part
from .pending import PendingTransactions
from .placement import Placement


class PeerLost(Exception):
    """The connection closed before the answer arrived, or there is no peer. The outcome is unknown."""


class PeerTimeout(PeerLost):
    """The peer is connected and did not answer in time."""


class PeerRefused(PeerLost):
    """The peer belongs to another user: retrying does not help."""


class CommitPeer(Protocol):
    """Process that holds partitions, as long as the connection to it is open.

    When the connection closes, the peer looks for the intents that were prepared on it, and places and completes those
    that exist. Errors that the peer reports are raised unchanged.
    """

    def prepare(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> Sequence[int]:
        """Ask the peer to check that it can place these parts of a proposal; return those whose partitions it does not
        hold."""

    def ask_to_place(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> None:
        """Ask the peer to place these parts of an intent; `placed` waits for the answer."""

    def placed(self, deadline: Deadline) -> Sequence[int]:
        """Wait for the answer; return the parts whose partitions the peer does not hold."""

    def close(self) -> None:
        """Close the connection."""


class Peers(Protocol):
    """Processes that hold partitions of a store."""

    def address(self, log: Log) -> str | None:
        """Return the address of the process that holds the lock of a log; None if it is unknown or accepts no
        requests."""

    def call(self, address: str, deadline: Deadline) -> CommitPeer:
        """Connect to a process; `PeerLost` if it is gone."""


class NoPeers:
    """No other processes: a store in memory."""

    def address(self, log: Log) -> str | None:
        """Return None."""
        return None

    def call(self, address: str, deadline: Deadline) -> CommitPeer:
        """Raise `PeerLost`."""
        raise PeerLost(f"nobody listens on {address}")


#: How long to wait for a peer to place a part that another process has committed.
_PATIENCE_S = 1.0

_logger = logging.getLogger("sawlog")


class Completion:
    """Completes the committed transactions of a store."""

    def __init__(
        self,
        pending: PendingTransactions,
        placement: Placement,
        peers: Peers,
        topic_of: Callable[[str], DirectoryTopic],
    ) -> None:
        self._pending = pending
        self._placement = placement
        self._peers = peers
        self._topic_of = topic_of

    def complete_all(self, where: str) -> None:
        """Try to complete all intents. Failures are logged and retried the next time."""
        for intent in self._pending.intents():
            try:
                self.complete(intent, Deadline(_PATIENCE_S))
            except SawlogError as error:
                _logger.warning("%s: a transaction is not completed yet: %s", where, error)

    def complete(self, intent: Intent, deadline: Deadline) -> None:
        """Try to complete one intent."""
        for number, part in self._pending.unmarked(intent):
            self.bring(intent, number, part, deadline)
        self._pending.complete_if_done(intent)

    def bring(self, intent: Intent, number: int, part: Part, deadline: Deadline) -> DirectoryLocked | None:
        """Get a part placed. Return an error if the holder of the partition could not be asked: the caller raises it
        when it is too late to retry."""
        topic = self._topic(part)
        if topic is None:
            self._pending.mark(intent, number)  # its topic is deleted
            return None
        ours = topic._partitions.held(part.partition)
        try:
            if ours is not None:
                self._placement.carry_out(part, ours)
            else:
                topic._partitions.roll_forward(part.partition)
        except DirectoryLocked as error:
            return self._ask(intent, number, topic, error, deadline) if part.offset < 0 else None
        return None

    def _topic(self, part: Part) -> DirectoryTopic | None:
        try:
            topic = self._topic_of(part.topic)
        except TopicNotFound:
            return None
        return topic if topic.id == part.topic_id else None

    def _ask(
        self, intent: Intent, number: int, topic: DirectoryTopic, locked: DirectoryLocked, deadline: Deadline
    ) -> DirectoryLocked | None:
        address = self._peers.address(topic.partition(intent.parts[number].partition))
        if address is None:
            return locked
        try:
            connection = self._peers.call(address, deadline)
            try:
                connection.ask_to_place(intent.id, [number], deadline)
                return locked if connection.placed(deadline) else None
            finally:
                connection.close()
        except PeerTimeout as error:
            raise DirectoryLocked(locked.path, f"{locked.holder}, which does not answer") from error
        except PeerLost:
            return locked
