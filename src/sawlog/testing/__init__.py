"""For those who build on sawlog: suites that a storage of your own has to pass, and a disk that fails on demand.

```python
import pytest
from sawlog.testing import DirectorySuite, StorageSuite

class TestMyDirectory(DirectorySuite):
    @pytest.fixture
    def directory(self):
        return MyDirectory(...)          # new and empty for each test

class TestMyStorage(StorageSuite):
    @pytest.fixture
    def directory(self):
        return MyDirectory(...)
```

Whatever passes both can hold a log: `Log.open(MyDirectory(...))`. Our own storages are held to the same suites.
`FaultyDirectory` wraps a directory and makes chosen calls fail, see `sawlog.testing.faulty`. `FaultyStorage` is one
that simulates its disk, power cuts included, see `sawlog.testing.disk`. `enumerate_crashes` lets work of your own crash
on such a disk at every moment, see `sawlog.testing.crashes`.

Nothing here imports pytest: a suite is a plain class whose test methods take the directory as their argument.
"""

from .crashes import Scenario, Workload, enumerate_crashes
from .device import Step
from .disk import MODES, FaultyStorage, Mode
from .faulty import Call, Fault, FaultyDirectory
from .suites import DirectorySuite, StorageSuite

__all__ = [
    "MODES",
    "Call",
    "DirectorySuite",
    "Fault",
    "FaultyDirectory",
    "FaultyStorage",
    "Mode",
    "Scenario",
    "Step",
    "StorageSuite",
    "Workload",
    "enumerate_crashes",
]
