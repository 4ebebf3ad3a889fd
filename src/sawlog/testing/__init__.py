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

A suite checks each guarantee of an interface, using only the interface; the name of a test is the guarantee. The
fixture is a new, empty `Directory` or, for `StoreSuite`, a new `sawlog.store.base.Store` (`store`). A directory that
passes both suites can hold a log: `Log.open(MyDirectory(...))`. It need not have `published`: the log then uses
`replace` and `read` instead, and those tests are skipped. A store that passes `StoreSuite` can be served by a broker
and written by Spark. sawlog's own storages and stores pass the same suites.

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
