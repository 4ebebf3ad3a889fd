"""What every storage and every directory must do, as tests to inherit.

Subclass a suite, give it one fixture called `directory` that returns a new, empty `Directory`, and each promise of
`sawlog.storage.interface` is checked on it. A method's name is the promise. They use only the interface.

A directory need not have `published`: the log then uses `replace` and `read` instead, and its tests are skipped.
"""

from __future__ import annotations

from .directory_suite import DirectorySuite
from .promises import refused
from .storage_suite import StorageSuite

__all__ = ["DirectorySuite", "StorageSuite", "refused"]
