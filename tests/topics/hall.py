"""Stores in one process that forward appends to each other by direct calls instead of sockets.

For directories without sockets: the simulated disk, and directories whose calls fail. The store of a process that is
assumed dead is removed from the hall.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sawlog.clock import Deadline
from sawlog.errors import StorageError
from sawlog.storage.interface import Buffer
from sawlog.store.directory.forwarding import frames
from sawlog.store.directory.forwarding.server import ForwardServer, ForwardSession
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.completion import PeerLost


class Hall:
    """The reachable processes, by address."""

    def __init__(self) -> None:
        self.holders: dict[str, ForwardServer] = {}
        self._numbers = itertools.count()

    def peer_listener(self, root: object = None) -> HallListener:
        """Return the listener of one store."""
        return HallListener(self, f"store-{next(self._numbers)}")

    @contextmanager
    def opens(self) -> Iterator[None]:
        """Add the stores that are opened in this block to the hall."""
        with patch("sawlog.store.directory.store.listener_for", self.peer_listener):
            yield

    def store(self, directory: Any, **options: Any) -> DirectoryStore:
        """Open a store in the hall."""
        with self.opens():
            return DirectoryStore.open(directory, maintenance_interval_s=None, **options)


class HallListener:
    """See `PeerListener`."""

    def __init__(self, hall: Hall, address: str) -> None:
        self._hall = hall
        self.address = address

    def open(self, holder: ForwardServer) -> bool:
        self._hall.holders[self.address] = holder
        return True

    def connect(self, address: str, deadline: Deadline) -> Call:
        holder = self._hall.holders.get(address)
        if holder is None:
            raise PeerLost(f"no process at {address}")
        return Call(self._hall, address, holder.session())

    def close(self) -> None:
        self._hall.holders.pop(self.address, None)


class Call:
    """A connection that answers each request at once."""

    def __init__(self, hall: Hall, address: str, session: ForwardSession) -> None:
        self._hall, self._address = hall, address
        self._session = session
        self._sent = bytearray()
        self._answers = bytearray()

    def send(self, *parts: Buffer, deadline: Deadline) -> None:
        self._sent += b"".join(parts)
        head, body = frames.receive(Bytes(self._sent), deadline)
        self._sent.clear()
        if self._address in self._hall.holders:
            frames.send(Bytes(self._answers), self._session.answer(head, body), deadline=deadline)

    def receive(self, size_bytes: int, deadline: Deadline) -> bytearray:
        if len(self._answers) < size_bytes:
            raise StorageError(errno.ECONNRESET, f"{self._address} has ended")
        found = self._answers[:size_bytes]
        del self._answers[:size_bytes]
        return found

    def close(self) -> None:
        if self._address in self._hall.holders:
            self._session.end()


class Bytes:
    """A pipe in memory."""

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def send(self, *parts: Buffer, deadline: Deadline) -> None:
        self._data += b"".join(parts)

    def receive(self, size_bytes: int, deadline: Deadline) -> bytearray:
        found = self._data[:size_bytes]
        del self._data[:size_bytes]
        return found

    def close(self) -> None:
        """No-op."""
