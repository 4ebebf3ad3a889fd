"""`Partition`, `Topic` and `Store`: one interface for all backends.

Each class has a small abstract core and implements everything else on top of it, once. `Log` is a partition in files,
`ObjectPartition` one on object storage; `DirectoryStore` and `DirectoryTopic` keep their partitions in a directory,
`ObjectStore` and `ObjectTopic` in a bucket. A backend overrides an implemented method only where it is faster.

Backends differ in their capabilities, which programs can query: `store.supports_snapshots`, `store.supports_tables`,
`store.supports_truncation`. A call that a backend does not support raises `StorageError` with `ENOTSUP`.

Typed views, SQL, data frames and consumers are built on these classes. The methods that return them import them on
first use; the layer contract in pyproject.toml lists these imports by name.
"""

from __future__ import annotations

from .partition import PAGE_BYTES, Partition, SegmentInfo, collected, encoded_table, sleep_until_growth, unsupported
from .store import Document, DocumentRegistry, JobStaging, Store, TaskStaging, Transaction, check_seconds
from .topic import Offsets, PlannedSlice, Position, SliceReader, TableEnd, Topic, TopicPartition, check_sole

__all__ = [
    "PAGE_BYTES",
    "Document",
    "DocumentRegistry",
    "JobStaging",
    "Offsets",
    "Partition",
    "PlannedSlice",
    "Position",
    "SegmentInfo",
    "SliceReader",
    "Store",
    "TableEnd",
    "TaskStaging",
    "Topic",
    "TopicPartition",
    "Transaction",
    "check_seconds",
    "check_sole",
    "collected",
    "encoded_table",
    "sleep_until_growth",
    "unsupported",
]
