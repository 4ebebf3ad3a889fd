"""What every storage, every directory and every store must do, as tests to inherit.

Subclass a suite, give it one fixture called `directory` that returns a new, empty `Directory`, and each promise of
`sawlog.storage.interface` is checked on it. A method's name is the promise. They use only the interface.

A store of your own, a subclass of `sawlog.store.base.Store`, has `StoreSuite`, with a fixture `store` that returns a
new one.

A directory need not have `published`: the log then uses `replace` and `read` instead, and its tests are skipped.
"""

from __future__ import annotations

from .directory_suite import DirectorySuite
from .promises import refused
from .storage_suite import StorageSuite
from .store_suite import StoreSuite

__all__ = ["DirectorySuite", "StorageSuite", "StoreSuite", "refused"]
