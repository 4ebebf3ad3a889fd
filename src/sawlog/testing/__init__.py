"""Test tools for code that builds on sawlog: a broker, conformance suites, and a directory that fails on demand.

```python
import pytest
from sawlog.testing import DirectorySuite, StorageSuite

class TestMyDirectory(DirectorySuite):
    @pytest.fixture
    def directory(self):
        return MyDirectory(...)          # a new, empty one for each test

class TestMyStorage(StorageSuite):
    @pytest.fixture
    def directory(self):
        return MyDirectory(...)
```

A directory that passes both can hold a log: `Log.open(MyDirectory(...))`. sawlog's own storages pass the same suites.
A store that passes `StoreSuite` can be served by a broker and written by Spark.

`FaultyDirectory` wraps a directory and makes chosen calls fail (`sawlog.testing.faulty`).

`Broker` is a broker for tests of programs that use Kafka (`sawlog.testing.broker`).

Nothing here imports pytest: a suite is a plain class whose test methods take the directory as an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .directory_suite import DirectorySuite
from .faulty import Call, Fault, FaultyDirectory
from .storage_suite import StorageSuite
from .store_suite import StoreSuite

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["Broker", "Call", "DirectorySuite", "Fault", "FaultyDirectory", "StorageSuite", "StoreSuite"]


def __getattr__(name: str) -> Any:
    """Import the broker on first use: it is slow to import."""
    if name == "Broker":
        from .broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
