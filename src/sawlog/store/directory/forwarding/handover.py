"""`Forwarding`: a store's entry point to this package. It forwards appends and serves the appends of other processes.

Thread-safe. In a forked child it accepts no requests and keeps no connections.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ....errors import SawlogError, TransactionAborted, TransactionError
from ....log.log import Log
from ....storage.interface import Buffer
from ..open_partitions import OpenPartitions
from ..transactions.commits import Intents
from ..transactions.intent import Part
from .connections import PeerConnections, note_of
from .forwarder import Forwarder
from .listener import PeerListener
from .server import ForwardServer, GiveBack, Held


class Forwarding:
    """Forwards appends to other processes and serves those that they forward."""

    def __init__(
        self,
        peer_listener: PeerListener,
        connections: PeerConnections,
        intents: Intents,
        held: Held,
        committing: threading.RLock,
        give_back: GiveBack,
        *,
        timeout_s: float,
    ) -> None:
        self._peer_listener = peer_listener
        self._connections = connections
        self._intents = intents
        self._server = ForwardServer(intents, held, give_back)
        self._committing = committing
        self._timeout_s = timeout_s

    @property
    def note(self) -> bytes:
        """Note for the LOCK files of this process, with its address."""
        return note_of(self._peer_listener.address)

    def locked(self, log: Log) -> None:
        """Start accepting requests: this process has taken the lock of a partition."""
        if not self._peer_listener.address or not self._peer_listener.open(self._server):
            log._leave_note(self.note)  # the note that the log left claims the opposite

    def forwarder(self, topic: OpenPartitions, number: int, log: Log) -> Forwarder | None:
        """Return a forwarder to the process that holds the lock of a partition; None if it accepts no requests."""
        made = Forwarder(topic, number, log, self._connections, self._commit, self._timeout_s)
        return made if made.is_reached else None

    def _commit(self, topic: OpenPartitions, number: int, batches: Iterable[tuple[Buffer, int]]) -> range:
        """Store batches as a transaction with one part."""
        with self._committing:
            stage = self._intents.staging.begin()
            try:
                file = stage.file()
                try:
                    written = [(file.write(data), count) for data, count in batches]
                    file.sync()
                finally:
                    file.close()
                part = Part(
                    topic.name,
                    topic.id,
                    number,
                    sum(count for _, count in written),
                    tuple(piece for piece, _ in written),
                )
                with topic.lending(number):
                    intent = self._intents.commit(
                        stage, [part], lambda part: topic.partition(part.partition), lock_timeout_s=self._timeout_s
                    )
            except TransactionAborted as error:
                stage.end()
                raise error.__cause__ if isinstance(error.__cause__, SawlogError) else error from None
            except TransactionError:
                stage.leave()
                raise
            except BaseException:
                stage.end()
                raise
            stage.end()
        return intent.parts[0].offsets

    def stop(self) -> None:
        """Accept no more requests."""
        self._peer_listener.close()

    def close(self) -> None:
        """Close all connections."""
        self._peer_listener.close()
        self._connections.close()
