"""`Replica`: the replica of a store, and reading tiered records from it.

```
replica.json     address and options of the store on object storage; format: sawlog.storage.checksummed
```

`sawlog replicate` writes the file. It never contains credentials, which come from the environment as for every address.
The replica is opened when a reader needs records that are only there, or when maintenance checks what it contains, and
is closed with the store.

This package does not know object storage: `sawlog.store.opening` registers how a replica is opened (`opens`). That
module is imported on demand, because a program that opens a directory need not have imported it.
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
from ...log.remote import RemoteLog
from ...storage import Directory, checksummed
from ...storage.forking import forkable
from ..names import REPLICA


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Address of a replica."""

    url: str
    #: Options of the address that are not secret, such as the endpoint.
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Directory) -> ReplicaAddress | None:
        """Read the address recorded in a store's directory; None if there is none, `CorruptFile` if it is damaged."""
        if not directory.exists(REPLICA):
            return None
        fields, path = checksummed.load(directory, REPLICA), f"{directory.path}/{REPLICA}"
        options = checksummed.field(fields, "options", dict, path)
        return cls(
            checksummed.field(fields, "url", str, path), {str(name): str(value) for name, value in options.items()}
        )

    def store(self, directory: Directory) -> None:
        """Record the address, durably."""
        checksummed.store(directory, REPLICA, {**asdict(self), "options": dict(self.options)})


class ReplicaStore(Protocol):
    """An open replica."""

    def log(self, topic: str, topic_id: str, partition: int, config: LogConfig) -> RemoteLog:
        """Return one partition of the replica."""

    def close(self) -> None:
        """Close the replica."""


#: Opens the replica at an address, given the id of the replicated store.
Opener = Callable[[ReplicaAddress, str], ReplicaStore]
_opener: Opener | None = None


def opens(opener: Opener) -> None:
    """Register the function that opens replicas. `sawlog.store.opening`, which knows object storage, calls it."""
    global _opener  # noqa: PLW0603  one way for a process, and no store below it can know it
    _opener = opener


class Replica:
    """Replica of one store. Thread-safe."""

    def __init__(self, directory: Directory, store_id: str) -> None:
        self._directory = directory
        self._id = store_id
        self._lock = forkable(threading.Lock())
        #: Open replicas by URL: the recorded address may change.
        self._opened: dict[str, ReplicaStore] = {}
        self._closed = False

    @property
    def address(self) -> ReplicaAddress | None:
        """Recorded address; None if there is none."""
        return ReplicaAddress.load(self._directory)

    def open(self) -> ReplicaStore:
        """Return the open replica. `RemoteUnavailable` if no address is recorded or the replica does not answer."""
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
        """Close the open replicas."""
        with self._lock, ExitStack() as last:
            self._closed = True
            for each in self._opened.values():
                last.callback(each.close)
            self._opened = {}


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """One partition of a replica: the `RemoteSource` of the log it is a copy of."""

    replica: Replica
    topic: str
    topic_id: str
    partition: int
    config: LogConfig

    @property
    def is_recorded(self) -> bool:
        """Whether an address is recorded, even a damaged one: `open` then reports what is wrong with it."""
        try:
            return self.replica.address is not None
        except CorruptFile:
            return True

    def open(self) -> RemoteLog:
        """Open the partition in the replica."""
        return self.replica.open().log(self.topic, self.topic_id, self.partition, self.config)
