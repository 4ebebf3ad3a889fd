"""`PeerListener`: how the processes of a store reach each other. `SocketListener` uses sockets in `holders/`.

```
holders/<process>-<random>     socket of a store that is open in a process and holds partitions
```

One thread per process waits on all connections (`sawlog.storage.sockets`). The workers of `background` answer requests,
so a request that blocks on a disk, or on a log that is being streamed to, delays only its own connection. A worker
stays with a connection for a moment, because a caller that appends usually appends again.

None of this keeps the store alive: if the store is dropped without being closed, the socket is closed with it.
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
from ..transactions.completion import PeerLost
from . import frames
from .frames import lost
from .server import ForwardServer, ForwardSession

#: Time limit for the rest of a message, and how long a worker stays with an idle connection.
_MESSAGE_S, _LINGER_S = 30.0, 0.02
#: Maximum time that `close` waits for requests in progress.
_CLOSING_S = 5.0

_logger = logging.getLogger("sawlog")


class PeerListener(Protocol):
    """Endpoint through which the processes of a store reach each other."""

    #: Address of this store; empty if it accepts no requests.
    address: str

    def open(self, server: ForwardServer) -> bool:
        """Start accepting requests, unless already open; return whether it does."""

    def connect(self, address: str, deadline: Deadline) -> Channel:
        """Connect to the store at an address; `PeerLost` if there is none."""

    def close(self) -> None:
        """Accept no more requests. Safe to call twice."""


class NoListener:
    """Endpoint of a store in memory, which no other process shares."""

    address = ""

    def open(self, server: ForwardServer) -> bool:
        """Return False: there are no peers."""
        return False

    def connect(self, address: str, deadline: Deadline) -> Channel:
        """Raise `PeerLost`: there are no peers."""
        raise PeerLost(f"no process listens on {address}")

    def close(self) -> None:
        """No-op."""


class SocketListener:
    """Endpoint on sockets in `holders/`. Thread-safe."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self.address = f"{this_process()}-{uuid.uuid4().hex[:16]}"
        self._lock = forkable(threading.RLock())
        self._directory: Directory | None = None
        self._listener: Listener | None = None
        self._server: ForwardServer | None = None
        self._connections: dict[Channel, Connection] = {}
        self._closed = False

    def open(self, server: ForwardServer) -> bool:
        """Start listening, unless it does already."""
        with self._lock:
            if self._listener is not None or self._closed or not self.address:
                return self._listener is not None
            try:
                directory = self._holders(create=True)
                remove_dead(directory)
                self._server = server
                self._listener = listen(directory, self.address, self._arrived)
            except (StorageError, OSError) as error:
                # Peers get DirectoryLocked, as they would without forwarding.
                _logger.info("%s: other processes cannot hand over to this one: %s", self._root.path, error)
                self.address = ""
                return False
            return True

    def _holders(self, *, create: bool = False) -> Directory:
        if self._directory is None:
            self._directory = open_private(self._root, HOLDERS) if create else self._root.child(HOLDERS)
        return self._directory

    def connect(self, address: str, deadline: Deadline) -> Channel:
        """Connect to another store."""
        try:
            with self._lock:
                directory = self._holders()
            return connect(directory, address, deadline)
        except StorageError as error:
            raise lost(error) from error

    def _arrived(self, channel: Channel) -> None:
        """Hand a readable connection to a worker."""
        with self._lock:
            connection = self._connections.get(channel)
            if connection is None:
                assert self._listener is not None
                assert self._server is not None
                connection = Connection(channel, self._server.session(), self._listener, self._forget)
                self._connections[channel] = connection
            connection.busy()
        background.soon(connection.serve)

    def _forget(self, channel: Channel) -> None:
        with self._lock:
            self._connections.pop(channel, None)

    def close(self) -> None:
        """Close all connections, after answering the requests in progress."""
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
    """Incoming connection from another process."""

    def __init__(
        self, channel: Channel, session: ForwardSession, listener: Listener, forget: Callable[[Channel], None]
    ) -> None:
        self._channel = channel
        self._session = session
        self._listener = listener
        self._forget = forget
        self._idle = forkable(threading.Event())

    def busy(self) -> None:
        """Mark the connection as taken by a worker."""
        self._idle.clear()

    def serve(self) -> None:
        """Answer requests as long as they keep coming. Runs in a worker."""
        try:
            self._answer()
            while self._channel.has_more(_LINGER_S):
                self._answer()
            self._listener.watch(self._channel)
        except (PeerLost, StorageError):
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
        """Block until no worker uses the connection."""
        self._idle.wait(deadline.at_most(_CLOSING_S))


def listener_for(root: Directory) -> PeerListener:
    """Return the endpoint for a store in this directory."""
    return SocketListener(root) if isinstance(root, FileDirectory) else NoListener()
