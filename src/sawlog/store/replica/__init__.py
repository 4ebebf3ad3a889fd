"""Replicas: copies on object storage of a store in a directory, and restoring from them.

```python
from sawlog.store.replica import replicate, restore

replicate("data", "s3://bucket/store")        # copy everything, then follow new records until stopped
restore("s3://bucket/store", "data-again")    # a directory with the same topics, offsets and groups
```

docs/replicas.md describes what a replica contains and what happens when a part fails. `sawlog replicate` and `sawlog
restore` call these functions.
"""

from __future__ import annotations

from .metadata import promote
from .points import Point, Points
from .replicator import Lag, Progress, Replicator, replicate
from .restorer import Restorer, restore

__all__ = ["Lag", "Point", "Points", "Progress", "Replicator", "Restorer", "promote", "replicate", "restore"]
