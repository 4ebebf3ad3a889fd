"""Transactions that involve other processes: `Completion` gets the parts of committed intents placed, `ForwardedCommit`
commits when other processes hold some of the partitions.

**Completion.** For each part that is not marked: if its topic is deleted, there is nothing to do. If this process holds
the partition, it places the part; if no process does, taking the lock places it. If another process holds the
partition, it is asked to place the part. An intent that names offsets was already placed by the holder when it took the
lock.

**A forwarded commit.**

1. The intent is proposed. Each holder, including this process, checks that it can place its parts.
2. The proposal becomes the intent: the commit point. Nothing is rolled back after it.
3. All holders place their parts concurrently. If a holder is gone, the process that has the lock now does it.
4. The intent is completed.

`commits` and docs/adr/0018-the-holder-places.md argue why no part is lost or placed twice.
`sawlog.store.directory.forwarding` connects the processes.

`Completion` is thread-safe, a `ForwardedCommit` is for one thread. Neither holds a log lock while it waits for another
process.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....clock import Deadline
from ....errors import (
    DirectoryLocked,
    SawlogError,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from ....log.log import Log
from ..topic import DirectoryTopic
from .intent import Intent, Part
from .pending import PendingTransactions
from .placement import Placement

if TYPE_CHECKING:
    from ..forwarding.connections import PeerConnection, PeerConnections


class PeerLost(Exception):
    """The connection closed before the answer arrived, or there is no peer. The outcome is unknown."""


class PeerTimeout(PeerLost):
    """The peer is connected and did not answer in time."""


class PeerRefused(PeerLost):
    """The peer belongs to another user: retrying does not help."""


#: Maximum wait for a peer to place a part that another process has committed.
_PATIENCE_S = 1.0

_logger = logging.getLogger("sawlog")


class Completion:
    """Completes the committed transactions of a store."""

    def __init__(
        self,
        pending: PendingTransactions,
        placement: Placement,
        peers: PeerConnections,
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
        try:
            with topic._partitions.using_held(part.partition) as ours:
                if ours is not None:
                    self._placement.carry_out(part, ours)
                    return None
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


#: Address of this process, for parts whose partitions it holds.
_HERE = ""


class ForwardedCommit:
    """One forwarded commit. Used once."""

    def __init__(
        self,
        intent: Intent,
        log_of: Callable[[Part], Log],
        *,
        pending: PendingTransactions,
        placement: Placement,
        peers: PeerConnections,
        completion: Completion,
    ) -> None:
        self._intent = intent
        self._log_of = log_of
        self._pending = pending
        self._placement = placement
        self._peers = peers
        self._completion = completion
        #: Open connections by address.
        self._connections: dict[str, PeerConnection] = {}
        #: Parts that each process has agreed to place, by address.
        self._placers: defaultdict[str, list[int]] = defaultdict(list)

    def run(self, lock_timeout_s: float) -> Intent:
        """Commit, complete, and return the intent with the offsets. If this raises, nothing is stored, unless the error
        is `TransactionPending`, or a `TransactionError` that says the outcome is unknown."""
        try:
            self._commit(Deadline(lock_timeout_s))
            return self._complete(Deadline(lock_timeout_s))
        finally:
            for connection in self._connections.values():
                connection.close()

    # --- before the commit point

    def _commit(self, deadline: Deadline) -> None:
        accepting = False
        try:
            self._pending.propose(self._intent)
            self._prepare(deadline)
            accepting = True
            self._pending.accept(self._intent)
        except BaseException as error:
            if accepting:
                self._raise_if_committed(error)
            if isinstance(error, DirectoryLocked) or not isinstance(error, Exception):
                raise  # an interrupt is re-raised unchanged
            raise TransactionAborted(f"nothing was stored: {error}") from error

    def _raise_if_committed(self, why: BaseException) -> None:
        """Raise if the intent may already have its name: other processes can then find and place it."""
        try:
            committed = self._pending.is_pending(self._intent)
        except BaseException:
            committed = True
        if committed:
            raise TransactionError(
                f"whether the transaction is stored is not known ({why}): it is if "
                f"{self._pending.path}/{self._intent.file} exists, or has existed"
            ) from why

    def _prepare(self, deadline: Deadline) -> None:
        waiting = dict(enumerate(self._intent.parts))
        while waiting:
            locked: DirectoryLocked | None = None
            elsewhere: defaultdict[str, list[int]] = defaultdict(list)
            for number, part in list(waiting.items()):
                log = self._log_of(part)
                try:
                    self._placement.prepare(self._intent, number, log)
                except DirectoryLocked as error:
                    locked = error
                    if (address := self._peers.address(log)) is not None:
                        elsewhere[address].append(number)
                else:
                    self._placers[_HERE].append(number)
                    del waiting[number]
            for address, numbers in elsewhere.items():
                assert locked is not None
                for number in self._prepared(address, numbers, locked, deadline):
                    del waiting[number]
            if locked is not None and waiting:
                deadline.pause(or_raise=locked)

    def _prepared(self, address: str, numbers: list[int], locked: DirectoryLocked, deadline: Deadline) -> list[int]:
        """Return which of these parts the process at an address has agreed to place."""
        try:
            connection = self._line(address, deadline)
            elsewhere = connection.prepare(self._intent.id, numbers, deadline)
        except PeerTimeout as error:
            raise DirectoryLocked(locked.path, f"{locked.holder}, which does not answer") from error
        except PeerRefused as error:
            raise locked from error
        except PeerLost:
            self._drop(address)
            return []
        agreed = [number for number in numbers if number not in elsewhere]
        self._placers[address] += agreed
        return agreed

    def _line(self, address: str, deadline: Deadline) -> PeerConnection:
        if address not in self._connections:
            self._connections[address] = self._peers.call(address, deadline)
        return self._connections[address]

    def _drop(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    # --- after it

    def _complete(self, deadline: Deadline) -> Intent:
        try:
            self._place(deadline)
            placed = self._intent.at(self._pending.progress(self._intent).applied)
            self._pending.complete(self._intent)
        except BaseException as error:
            path = f"{self._pending.path}/{self._intent.file}"
            raise TransactionPending(
                f"committed; the processes that hold the partitions complete it, or the next one that opens the store "
                f"for writing ({path}): {error}"
            ) from error
        return placed

    def _place(self, deadline: Deadline) -> None:
        asked = [address for address in self._placers if address != _HERE and self._is_asked(address, deadline)]
        for number in self._placers[_HERE]:
            part = self._intent.parts[number]
            self._completion.bring(self._intent, number, part, deadline)
        for address in asked:
            try:
                self._connections[address].placed(deadline)
            except PeerTimeout:
                raise
            except PeerLost:
                self._drop(address)
        while owed := self._pending.unmarked(self._intent):
            locked: Exception = TransactionError(f"parts are not placed: {[number for number, _ in owed]}")
            for number, part in owed:
                locked = self._completion.bring(self._intent, number, part, deadline) or locked
            if self._pending.unmarked(self._intent):
                deadline.pause(or_raise=locked)

    def _is_asked(self, address: str, deadline: Deadline) -> bool:
        connection = self._connections.get(address)
        if connection is None:
            return False  # it agreed, then disconnected before the commit point
        try:
            connection.ask_to_place(self._intent.id, self._placers[address], deadline)
        except PeerLost:
            self._drop(address)
            return False
        return True
