"""`Replica`: the replica of a store, from which tiered records are read.

```
replica.json     address and options of the store on object storage; format: sawlog.storage.checksummed
```

`sawlog replicate` writes the file. It never contains credentials, which come from the environment as for every address.
The replica is opened when a reader needs records that are only there, or when maintenance checks its content, and
is closed with the store.

The modules for object storage are imported when a replica is first opened.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ...config import LogConfig
from ...errors import CorruptFile, LogClosed, RemoteUnavailable, SawlogError
from ...log.remote import RemoteLog
from ...storage import Directory, checksummed
from ...storage.forking import forkable
from ..names import REPLICA

if TYPE_CHECKING:
    from ..objects.store import ObjectStore


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


class Replica:
    """Replica of one store. Thread-safe."""

    def __init__(self, directory: Directory, store_id: str) -> None:
        self._directory = directory
        self._id = store_id
        self._lock = forkable(threading.Lock())
        #: Open replicas by URL: the recorded address may change.
        self._opened: dict[str, ObjectStore] = {}
        self._closed = False

    @property
    def address(self) -> ReplicaAddress | None:
        """Recorded address; None if there is none."""
        return ReplicaAddress.load(self._directory)

    def partition(self, topic: str, topic_id: str, partition: int, config: LogConfig) -> RemoteLog:
        """Open a partition in the replica."""
        from ..objects.tiered import TieredLog

        return TieredLog(self.open()._session, self._id, topic, topic_id, partition, config)

    def open(self) -> ObjectStore:
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

    def _open(self, address: ReplicaAddress) -> ObjectStore:
        from ..objects.store import ObjectStore

        try:
            return ObjectStore.open(address.url, "r", options=address.options, lazily=True)
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
        """True if an address is recorded, even a damaged one: `open` then reports the damage."""
        try:
            return self.replica.address is not None
        except CorruptFile:
            return True

    def open(self) -> RemoteLog:
        """Open the partition in the replica."""
        return self.replica.partition(self.topic, self.topic_id, self.partition, self.config)
