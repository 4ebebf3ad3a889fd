"""Conformance suites for storages, directories and stores, to inherit.

Subclass a suite and define a fixture `directory` that returns a new, empty `Directory`. The suite then checks each
guarantee of `sawlog.storage.interface` on it, using only the interface. The name of a test is the guarantee.

For your own subclass of `sawlog.store.base.Store`, use `StoreSuite` with a fixture `store` that returns a new store.

A directory need not have `published`: the log then uses `replace` and `read` instead, and its tests are skipped.
"""

from __future__ import annotations

from .directory_suite import DirectorySuite
from .promises import refused
from .storage_suite import StorageSuite
from .store_suite import StoreSuite

__all__ = ["DirectorySuite", "StorageSuite", "StoreSuite", "refused"]
