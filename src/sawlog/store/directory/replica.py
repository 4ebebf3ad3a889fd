"""`Replica`: where the replica of a directory's store is, and reading from it what was removed here.

```
replica.json     address and options of the store on object storage: see documents.py for the format
```

`sawlog replicate` writes it; it never contains credentials, which come from the environment as for every address. The
replica is opened when somebody reads what is only there, or when upkeep asks what it has, and closed with the store.

This package knows nothing of object storage: `sawlog.store.opening` says how a replica is opened (`opens`). It is
imported by name when that is needed, since a program that opens a directory need not have imported it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Protocol

from ...config import LogConfig
from ...errors import CorruptFile, LogClosed, RemoteUnavailable, SawlogError
from ...log.replica_source import RemoteLog
from ...storage import Directory, checksummed
from ...storage.forking import forkable
from ..names import REPLICA


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where a replica is."""

    url: str
    #: Options of the address that are not secret, such as the endpoint.
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Directory) -> ReplicaAddress | None:
        """What is recorded in a store's directory; None if nothing is, `CorruptFile` if it is damaged."""
        if not directory.exists(REPLICA):
            return None
        fields, path = checksummed.load(directory, REPLICA), f"{directory.path}/{REPLICA}"
        options = checksummed.field(fields, "options", dict, path)
        return cls(
            checksummed.field(fields, "url", str, path), {str(name): str(value) for name, value in options.items()}
        )

    def store(self, directory: Directory) -> None:
        """Record it, durably."""
        checksummed.store(directory, REPLICA, {**asdict(self), "options": dict(self.options)})


class ReplicaStore(Protocol):
    """A replica that is open."""

    def log(self, topic: str, topic_id: str, partition: int, config: LogConfig) -> RemoteLog:
        """One partition of it."""

    def close(self) -> None:
        """Close it."""


#: Opens the replica at an address, of the store with this id.
Opener = Callable[[ReplicaAddress, str], ReplicaStore]
_opener: Opener | None = None


def opens(opener: Opener) -> None:
    """Say how replicas are opened: called by the package above that knows object storage."""
    global _opener  # noqa: PLW0603  one way for a process, and no store below it can know it
    _opener = opener


class Replica:
    """The replica of one store. Safe for threads."""

    def __init__(self, directory: Directory, store_id: str) -> None:
        self._directory = directory
        self._id = store_id
        self._lock = forkable(threading.Lock())
        #: Those that are open; an address that is recorded later is another one.
        self._opened: dict[str, ReplicaStore] = {}
        self._closed = False

    @property
    def address(self) -> ReplicaAddress | None:
        """Where it is; None if nobody has recorded that."""
        return ReplicaAddress.load(self._directory)

    def open(self) -> ReplicaStore:
        """The replica. `RemoteUnavailable` if it is not recorded, or does not answer."""
        path = self._directory.path
        try:
            address = self.address
        except CorruptFile as error:
            raise RemoteUnavailable(
                errno.EIO, f"{error}, or run `sawlog replicate {path} URL` with the address of the replica"
            ) from error
        if address is None:
            raise RemoteUnavailable(
                errno.ENOENT,
                f"{path}/{REPLICA} is missing, which says where the replica of {path} is: run `sawlog replicate {path} "
                "URL` with its address",
            )
        with self._lock:
            if self._closed:
                raise LogClosed(f"the store {path} is closed")
            if address.url not in self._opened:
                self._opened[address.url] = self._open(address)
            return self._opened[address.url]

    def _open(self, address: ReplicaAddress) -> ReplicaStore:
        if _opener is None:
            import_module("sawlog.store.opening")
        assert _opener is not None
        try:
            return _opener(address, self._id)
        except SawlogError as error:
            raise RemoteUnavailable(
                errno.EIO, f"the replica {address.url} of {self._directory.path} cannot be opened: {error}"
            ) from error

    def close(self) -> None:
        """Close what is open."""
        with self._lock, ExitStack() as last:
            self._closed = True
            for each in self._opened.values():
                last.callback(each.close)
            self._opened = {}


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """One partition of a replica, for the log that it is the copy of: a `RemoteSource`."""

    replica: Replica
    topic: str
    topic_id: str
    partition: int
    config: LogConfig

    @property
    def is_recorded(self) -> bool:
        """Whether the store knows of a replica, or has known it: who opens it then is told what is wrong."""
        try:
            return self.replica.address is not None
        except CorruptFile:
            return True

    def open(self) -> RemoteLog:
        """The partition in the replica."""
        return self.replica.open().log(self.topic, self.topic_id, self.partition, self.config)
