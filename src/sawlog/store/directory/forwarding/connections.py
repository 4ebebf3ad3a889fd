"""`Lines`: connections to the processes that hold partitions, from the side of the one that wants to write.

The address of a holder is in the note of the partition's LOCK file. A commit has connections of its own, because their
end means something (see `Neighbour`). Appends share the others: one request at a time on each, and as many connections
as there are appends at the same time.

Threads: any; a `Line` is for one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

from ....clock import Deadline
from ....log.log import Log
from ....storage.forking import forkable, in_children
from ....storage.interface import Buffer
from ..transactions.completion import Lost
from . import frames
from .frames import Head, Pipe
from .listener import Doorway

#: What precedes the address in the note of a LOCK file.
_LISTENS = b"listens "
#: How many connections to a process are kept for the next append.
_KEPT = 16
#: How long a process may need from getting the lock to leaving its note.
_NOTE_S = 0.1


def note_of(address: str) -> bytes:
    """The note for the LOCK file of a partition whose holder is reached there."""
    return _LISTENS + address.encode() if address else b""


class Line:
    """A connection to a holder. Implements `Neighbour`."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def ask(self, head: Head, body: Buffer = b"", *, deadline: Deadline) -> Head:
        """Send a request and return the answer, or raise the error in it."""
        self._send(head, body, deadline)
        return self._answer(deadline)

    def _send(self, head: Head, body: Buffer, deadline: Deadline) -> None:
        frames.send(self._pipe, head, body, deadline=deadline)

    def _answer(self, deadline: Deadline) -> Head:
        head, _ = frames.receive(self._pipe, deadline)
        frames.raise_error(head)
        return head

    def prepare(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> Sequence[int]:
        """See `Neighbour`."""
        return _elsewhere(self.ask({"request": "prepare", "id": id_, "parts": list(numbers)}, deadline=deadline))

    def ask_to_place(self, id_: str, numbers: Sequence[int], deadline: Deadline) -> None:
        """See `Neighbour`."""
        self._send({"request": "place", "id": id_, "parts": list(numbers)}, b"", deadline)

    def placed(self, deadline: Deadline) -> Sequence[int]:
        """See `Neighbour`."""
        return _elsewhere(self._answer(deadline))

    def close(self) -> None:
        """End the connection."""
        self._pipe.close()


def _elsewhere(head: Head) -> list[int]:
    found = head.get("elsewhere")
    if not isinstance(found, list):
        raise Lost(f"an answer that is none: {head}")
    return found


class Lines:
    """The connections of one store. Implements `Neighbours`."""

    def __init__(self, doorway: Doorway) -> None:
        self._doorway = doorway
        self._lock = forkable(threading.Lock())
        self._idle: defaultdict[str, list[Line]] = defaultdict(list)
        in_children(self)

    def after_fork(self) -> None:
        """In a forked child: the connections are the parent's, and already closed here."""
        self._idle = defaultdict(list)

    def address(self, log: Log) -> str | None:
        """See `Neighbours`."""
        note = log._lock_note
        if not note.startswith(_LISTENS):
            return None
        found = note.removeprefix(_LISTENS).decode("utf-8", "replace")
        return None if "/" in found or not found else found

    def address_soon(self, log: Log) -> str | None:
        """The same; a process that has just got the lock leaves its note a moment later."""
        if not self._doorway.address:
            return None
        deadline = Deadline(_NOTE_S)
        while (found := self.address(log)) is None and not log._lock_note and deadline.retry():
            pass
        return found

    def call(self, address: str, deadline: Deadline) -> Line:
        """See `Neighbours`."""
        return Line(self._doorway.connect(address, deadline))

    # --- for appends

    def take(self, address: str, deadline: Deadline) -> Line:
        """A connection to the process at an address, to be given back or closed."""
        with self._lock:
            idle = self._idle[address]
            if idle:
                return idle.pop()
        return self.call(address, deadline)

    def give_back(self, address: str, line: Line) -> None:
        """Keep a connection whose last request was answered."""
        with self._lock:
            idle = self._idle[address]
            if len(idle) < _KEPT:
                idle.append(line)
                return
        line.close()

    def drop(self, address: str) -> None:
        """The process at an address is gone: close what is kept."""
        with self._lock:
            gone = self._idle.pop(address, [])
        for line in gone:
            line.close()

    def close(self) -> None:
        """Close all that are kept."""
        for address in list(self._idle):
            self.drop(address)
