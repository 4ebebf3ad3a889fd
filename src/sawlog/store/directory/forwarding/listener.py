"""`Doorway`: how the processes of a store reach each other. `SocketDoorway` does it with sockets in `holders/`.

```
holders/<process>-<random>     the socket of a store that is open in a process and holds partitions
```

One thread of the process waits for all connections (`sawlog.storage.sockets`). Requests are answered by the workers of
`background`: a request that has to wait, for a disk or for a log that is being streamed to, delays only its own
connection. A worker stays with a connection for a moment, because callers that append usually do so again.

Nothing of this keeps the store alive: if that is dropped without being closed, the socket is closed with it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Protocol

from .... import background
from ....clock import Deadline
from ....errors import StorageError
from ....storage import Directory, FileDirectory
from ....storage.forking import forkable, this_process
from ....storage.sockets import Channel, Listener, connect, listen, open_private, remove_dead
from ...names import HOLDERS
from ..transactions.completion import Lost
from . import frames
from .frames import Pipe, lost
from .server import Holder, Session

#: How long the rest of a message may take, and how long a worker stays with a connection.
_MESSAGE_S, _LINGER_S = 30.0, 0.02
#: How long closing waits for requests that are being answered.
_CLOSING_S = 5.0

_logger = logging.getLogger("sawlog")


class Doorway(Protocol):
    """How other processes reach this one, and this one others."""

    #: Where this store is reached; empty if it cannot be.
    address: str

    def open(self, holder: Holder) -> bool:
        """Take requests from now on, unless it does; returns whether it can."""

    def connect(self, address: str, deadline: Deadline) -> Pipe:
        """Connect to the store at an address; `Lost` if there is none."""

    def close(self) -> None:
        """Take no more requests. Safe to call twice."""


class NoDoorway:
    """There are no other processes: a store in memory."""

    address = ""

    def open(self, holder: Holder) -> bool:
        """It cannot."""
        return False

    def connect(self, address: str, deadline: Deadline) -> Pipe:
        """Nobody is there."""
        raise Lost(f"nobody listens on {address}")

    def close(self) -> None:
        """Nothing to do."""


class SocketDoorway:
    """See the module's docstring. Thread-safe."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self.address = f"{this_process()}-{uuid.uuid4().hex[:16]}"
        self._lock = forkable(threading.RLock())
        self._directory: Directory | None = None
        self._listener: Listener | None = None
        self._holder: Holder | None = None
        self._connections: dict[Channel, Connection] = {}
        self._closed = False

    def open(self, holder: Holder) -> bool:
        """Listen, if it does not."""
        with self._lock:
            if self._listener is not None or self._closed or not self.address:
                return self._listener is not None
            try:
                directory = self._holders(create=True)
                remove_dead(directory)
                self._holder = holder
                self._listener = listen(directory, self.address, self._arrived)
            except (StorageError, OSError) as error:
                # Others get DirectoryLocked, as without this.
                _logger.info("%s: other processes cannot hand over to this one: %s", self._root.path, error)
                self.address = ""
                return False
            return True

    def _holders(self, *, create: bool = False) -> Directory:
        if self._directory is None:
            self._directory = open_private(self._root, HOLDERS) if create else self._root.child(HOLDERS)
        return self._directory

    def connect(self, address: str, deadline: Deadline) -> Pipe:
        """Connect to another store."""
        try:
            with self._lock:
                directory = self._holders()
            return connect(directory, address, deadline)
        except StorageError as error:
            raise lost(error) from error

    def _arrived(self, channel: Channel) -> None:
        """A connection has something to read: let a worker read it."""
        with self._lock:
            connection = self._connections.get(channel)
            if connection is None:
                assert self._listener is not None
                assert self._holder is not None
                connection = Connection(channel, self._holder.session(), self._listener, self._forget)
                self._connections[channel] = connection
            connection.busy()
        background.soon(connection.serve)

    def _forget(self, channel: Channel) -> None:
        with self._lock:
            self._connections.pop(channel, None)

    def close(self) -> None:
        """End all connections; those that are being answered, after the answer."""
        with self._lock:
            self._closed = True
            listener = self._listener
            connections = list(self._connections.values())
        if listener is not None:
            listener.close()
            deadline = Deadline(_CLOSING_S)
            for connection in connections:
                connection.wait(deadline)
        with self._lock:
            if self._directory is not None:
                self._directory.close()
                self._directory = None


class Connection:
    """A connection of another process to this one."""

    def __init__(
        self, channel: Channel, session: Session, listener: Listener, forget: Callable[[Channel], None]
    ) -> None:
        self._channel = channel
        self._session = session
        self._listener = listener
        self._forget = forget
        self._idle = forkable(threading.Event())

    def busy(self) -> None:
        """A worker is about to read from it."""
        self._idle.clear()

    def serve(self) -> None:
        """Called by a worker: answer requests as long as they come one after the other."""
        try:
            self._answer()
            while self._channel.has_more(_LINGER_S):
                self._answer()
            self._listener.watch(self._channel)
        except (Lost, StorageError):
            self._end()
        except BaseException:
            self._end()
            raise
        finally:
            self._idle.set()

    def _answer(self) -> None:
        head, body = frames.receive(self._channel, Deadline(_MESSAGE_S))
        frames.send(self._channel, self._session.answer(head, body), deadline=Deadline(_MESSAGE_S))

    def _end(self) -> None:
        self._forget(self._channel)
        self._channel.close()
        self._session.end()

    def wait(self, deadline: Deadline) -> None:
        """Wait until no worker reads from it."""
        self._idle.wait(deadline.at_most(_CLOSING_S))


def doorway_of(root: Directory) -> Doorway:
    """How the processes of a store in this directory reach each other."""
    return SocketDoorway(root) if isinstance(root, FileDirectory) else NoDoorway()
