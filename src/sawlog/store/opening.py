"""`open_store`, exported as `sawlog.open`: opens a store by its path or address.

```
data, /var/lib/data, Path("data")    a directory
s3://bucket/store  (also s3a://)     Amazon S3, and servers that speak its protocol
gs://bucket/store                    Google Cloud Storage
az://container/store                 Azure (also abfs://, abfss://)
memory://name                        this process: every open of the same name returns the same store
file:///path                         the objects of such a store as files in a directory
```

A directory that contains one kind of store cannot be opened as the other kind. An option that applies to one kind only
is refused for the other, so that no setting is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from ..addresses import is_address
from ..errors import InvalidConfig
from ..storage import Directory
from .base import Store
from .directory.store import DirectoryStore

if TYPE_CHECKING:
    from .objects.journal import StoreParameters

#: Options that apply to one kind of store only, and are refused for the other.
_OF_DIRECTORIES = ("lock_timeout",)
_OF_ADDRESSES = "options", "parameters"


def open_store(
    path: str | PathLike[str] | Directory,
    mode: Literal["w", "r"] = "w",
    *,
    options: Mapping[str, str] | None = None,
    parameters: StoreParameters | None = None,
    maintenance_interval_s: float | None = 60.0,
    lock_timeout: float | None = None,
) -> Store:
    """Open the store in a directory or at an address; with mode "w" (the default) create a missing one.

    For a directory: while other processes write to a partition, a write waits up to `lock_timeout` seconds for its
    turn, then raises `DirectoryLocked`; with 0 it does not wait.

    For an address: `options` are the endpoint, credentials and timeouts, as text by name; what is not given comes from
    variables such as `AWS_ENDPOINT_URL` and `AWS_ACCESS_KEY_ID`. See docs/object-storage.md.
    """
    given: dict[str, Any] = {
        "options": options,
        "parameters": parameters,
        "lock_timeout": lock_timeout,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not is_address(path):
        _refuse(given, _OF_ADDRESSES, "a store in a directory")
        return DirectoryStore.open(path, mode, maintenance_interval_s=maintenance_interval_s, **given)
    _refuse(given, _OF_DIRECTORIES, "a store on object storage")
    from .objects.store import ObjectStore

    assert isinstance(path, str)
    return ObjectStore.open(path, mode, maintenance_interval_s=maintenance_interval_s, **given)


def open_for_slices(path: str, *, options: Mapping[str, str] | None = None) -> Store:
    """Open a store only to read slices that another process has planned (`slice_reader`). At an address, this looks up
    nothing but the id of the store."""
    if not is_address(path):
        return open_store(path, "r")
    from .objects.store import ObjectStore

    return ObjectStore.open(path, "r", options=options, lazily=True)


def open_existing(path: str, *, options: Mapping[str, str] | None = None) -> Store:
    """Open a store for writing, without background maintenance; `StoreNotFound` instead of creating one."""
    if not is_address(path):
        return DirectoryStore.open(path, "w", maintenance_interval_s=None, create=False)
    from .objects.store import ObjectStore

    return ObjectStore.open(path, "w", options=options, maintenance_interval_s=None, create=False)


def _refuse(given: Mapping[str, object], names: tuple[str, ...], kind: str) -> None:
    for name in names:
        if name in given:
            raise InvalidConfig(f"{name} has no meaning for {kind}")
