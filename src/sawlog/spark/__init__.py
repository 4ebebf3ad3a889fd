"""Spark reads and writes sawlog stores: `format("sawlog")`, in batch and streaming, exactly once.

```python
import sawlog.spark

spark = sawlog.spark.session()          # a local session with suitable settings; your own session also works
events = spark.read.format("sawlog").option("path", "data").option("subscribe", "orders").load()
```

No jar and no `register` call: the wheel contains a module `pyspark_sawlog`, which Spark finds by name. Call
`register(spark)` where that lookup fails (some editable installs). The options are those of Spark's Kafka source: see
options.py.

A topic that has a table (`sawlog pipeline table`) is read at the table's speed, together with the log's tail:

```python
orders = sawlog.spark.table(spark, "data", "orders")
```

`planning` and `commit` run in Python processes beside the driver, `reading` and `writing` in the tasks. Nothing here
runs in the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .tables import quarantined, table

__all__ = ["quarantined", "register", "session", "table"]


def register(spark: SparkSession) -> None:
    """Register `format("sawlog")` with a session that does not discover it automatically."""
    from pyspark_sawlog import DefaultSource

    spark.dataSource.register(DefaultSource)


def __getattr__(name: str) -> object:
    """Import `tables`, which needs Arrow, on first use: every Python worker of Spark imports this package."""
    if name in ("quarantined", "table"):
        from . import tables

        return getattr(tables, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
