"""`PeerConnections`: client connections to the processes that hold partitions.

The note in a partition's LOCK file contains the address of its holder. A commit opens its own connections, because
closing one has a meaning (see `PeerConnection`). Appends share a pool: one request at a time per connection, and one
connection per concurrent append.

Thread-safe, except that a `PeerConnection` is for one thread.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

from ....clock import Deadline
from ....log.log import Log
from ....storage.forking import forkable, notify_after_fork
from ....storage.interface import Buffer
from ....storage.sockets import Channel
from ..transactions.completion import PeerLost
from . import frames
from .frames import Head
from .listener import PeerListener

#: Prefix of the address in the note of a LOCK file.
_LISTENS = b"listens "
#: Maximum number of idle connections kept per process.
_KEPT = 16
#: Maximum time between getting the lock and writing the note.
_NOTE_S = 0.1


def note_of(address: str) -> bytes:
    """Return the note for the LOCK file of a partition whose holder listens at this address."""
    return _LISTENS + address.encode() if address else b""


class PeerConnection:
    """Connection to a process that holds partitions. Not thread-safe.

    When the connection closes, the other process looks for the intents that were prepared on it, and places and
    completes those that exist. Errors that it reports are raised unchanged.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def ask(self, head: Head, body: Buffer = b"", *, deadline: Deadline) -> Head:
        """Send a request and return the answer, or raise the error it contains."""
        self._send(head, body, deadline)
        return self._answer(deadline)

    def _send(self, head: Head, body: Buffer, deadline: Deadline) -> None:
        frames.send(self._channel, head, body, deadline=deadline)

    def _answer(self, deadline: Deadline) -> Head:
        head, _ = frames.receive(self._channel, deadline)
        frames.raise_error(head)
        return head

    def prepare(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> Sequence[int]:
        """Ask the peer to check that it can place these parts of a proposal; return those whose partitions it does not
        hold."""
        return _elsewhere(self.ask({"request": "prepare", "id": id_, "parts": list(numbers)}, deadline=deadline))

    def ask_to_place(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> None:
        """Ask the peer to place these parts of an intent; `placed` waits for the answer."""
        self._send({"request": "place", "id": id_, "parts": list(numbers)}, b"", deadline)

    def placed(self, deadline: Deadline) -> Sequence[int]:
        """Wait for the answer; return the parts whose partitions the peer does not hold."""
        return _elsewhere(self._answer(deadline))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _elsewhere(head: Head) -> list[int]:
    found = head.get("elsewhere")
    if not isinstance(found, list):
        raise PeerLost(f"an answer that is none: {head}")
    return found


class PeerConnections:
    """Connections of one store to the processes that hold its partitions."""

    def __init__(self, peer_listener: PeerListener) -> None:
        self._peer_listener = peer_listener
        self._lock = forkable(threading.Lock())
        self._idle: defaultdict[str, list[PeerConnection]] = defaultdict(list)
        notify_after_fork(self)

    def after_fork(self) -> None:
        """Drop the connections in a forked child: they are the parent's and already closed here."""
        self._idle = defaultdict(list)

    def address(self, log: Log) -> str | None:
        """Return the address of the process that holds the lock of a log; None if it is unknown or accepts no
        requests."""
        note = log._lock_note
        if not note.startswith(_LISTENS):
            return None
        found = note.removeprefix(_LISTENS).decode("utf-8", "replace")
        return None if "/" in found or not found else found

    def address_soon(self, log: Log) -> str | None:
        """Like `address`, but wait briefly for the note of a process that has just taken the lock."""
        if not self._peer_listener.address:
            return None
        deadline = Deadline(_NOTE_S)
        while (found := self.address(log)) is None and not log._lock_note and deadline.retry():
            pass
        return found

    def call(self, address: str, deadline: Deadline) -> PeerConnection:
        """Connect to a process; `PeerLost` if it is gone."""
        return PeerConnection(self._peer_listener.connect(address, deadline))

    # --- for appends

    def take(self, address: str, deadline: Deadline) -> PeerConnection:
        """Return a connection to the process at an address. The caller gives it back or closes it."""
        with self._lock:
            idle = self._idle[address]
            if idle:
                return idle.pop()
        return self.call(address, deadline)

    def give_back(self, address: str, connection: PeerConnection) -> None:
        """Return a connection to the pool once its last request was answered."""
        with self._lock:
            idle = self._idle[address]
            if len(idle) < _KEPT:
                idle.append(connection)
                return
        connection.close()

    def drop(self, address: str) -> None:
        """Close the pooled connections to a process that is gone."""
        with self._lock:
            gone = self._idle.pop(address, [])
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """Close all pooled connections."""
        for address in list(self._idle):
            self.drop(address)
