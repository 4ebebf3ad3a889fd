"""`DirectoryTopic`: partitions in a directory. Each is a `Log`; the topic decides which one a record goes to.

```python
orders = store.create_topic("orders", partitions=4)
orders.append(b"value", key=b"customer 7")            # Position(partition=2, offset=0)
orders.append_many([(b"one", b"a"), (b"two", b"b")])   # {0: range(0, 1), 2: range(1, 2)}
for record in orders.scan(): record.partition, record.offset
```

Records of one partition are ordered; those of different partitions are not. A call that writes to several partitions
checks and encodes everything and takes all locks first, so it is refused as a whole. A crash or a full disk in the
middle may still leave the records of some partitions only: use `Store.transaction` for all or nothing.

A partition is read without a lock. Processes that write to it take turns (`sawlog.log.turns`): a write waits until the
others have had theirs. `DirectoryLocked` after the store's `lock_timeout`, with nothing stored.
Settings apply when a partition is opened; an open log keeps its settings. All methods are thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from ...batch.inputs import HeadersInput, RecordInput, TableInput
from ...config import LogConfig
from ...display import counted, size_text
from ...errors import LogClosed, SawlogError, StorageError
from ...log import slices
from ...log.log import Log
from ...log.maintenance import MaintenanceReport
from ...log.slices import DirectorySlices
from ...log.summaries import Blocks, LogSummary
from ...log.writer import BATCH_BYTES
from ...storage import Directory
from .. import base, settings
from ..base import PlannedSlice, Position, check_sole
from ..descriptions import settings_text
from ..partitioner import Router
from ..table_info import TableInfo
from ..writer import TopicWriter
from .catalog import Catalog
from .open_partitions import OpenPartitions

if TYPE_CHECKING:
    from ...sql.history import History

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


#: Builds a `Position` from a pair in half the time of its constructor, which is a Python function.
_made: Callable[[type[Position], tuple[int, int]], Position] = tuple.__new__


class DirectoryTopic(base.Topic):
    """Partitions under one name. Created by `Store.topic` and `Store.create_topic`."""

    def __init__(self, catalog: Catalog, open_partitions: OpenPartitions, store: base.Store) -> None:
        self._catalog = catalog
        #: The topic's partitions in this process.
        self._partitions = open_partitions
        #: Chooses the partition of a record.
        self._router = Router(open_partitions)
        self._store = store

    # --- properties

    @property
    def name(self) -> str:
        return self._partitions.entry.name

    @property
    def id(self) -> str:
        return self._partitions.entry.id

    @property
    def partitions(self) -> int:
        return self._partitions.entry.partitions

    @property
    def settings(self) -> dict[str, settings.Value]:
        return dict(self._partitions.entry.settings)

    @property
    def table(self) -> TableInfo | None:
        """Location of the topic's table (`sawlog pipeline table`); None if it has none. Assigning one records it,
        durably; the table itself does not change."""
        return self._catalog.table(self._partitions.entry)

    @table.setter
    def table(self, info: TableInfo | None) -> None:
        self._catalog.set_table(self._partitions.entry, info)

    @property
    def config(self) -> LogConfig:
        """Settings that its logs are opened with from now on."""
        return self._partitions.config

    def __repr__(self) -> str:
        facts = [counted(self.partitions, "partition"), *self._amount(), settings_text(self.settings)]
        return f"<Topic {self.name}: {', '.join(filter(None, facts))}>"

    def _amount(self) -> list[str]:
        """Return how much it contains, if its partitions are open; opening them could block on a lock."""
        logs = [self._partitions.logs.get(number) for number in range(self.partitions)]
        known = [log for log in logs if log is not None and not log._is_closed]
        if len(known) < len(logs) or self._partitions.ended is not None:
            return []
        try:
            records = sum(log.visible_offset - log.lowest_offset for log in known)
            return [counted(records, "record"), size_text(sum(log.size_bytes for log in known))]
        except SawlogError as error:
            return [str(error)]

    @property
    def _created_ms(self) -> int:
        return self._partitions.entry.created_ms

    def _check_number(self, number: object) -> None:
        self._partitions.check_number(number)

    def partition(self, number: int) -> Log:
        """Return the log of one partition. It reads without a lock; its first write takes the lock."""
        return self._partitions.partition(number)

    def _directory(self, number: int) -> Directory:
        """Return the directory of one partition, for reading its files directly; `TopicNotFound` if the topic was
        deleted or recreated. The caller closes it."""
        return self._partitions.directory(number)

    def _plan(self, number: int, start: int, end: int, **how: Any) -> list[PlannedSlice]:
        return slices.plan(self.partition(number), start, end, **how)

    def _slices(self, number: int) -> DirectorySlices:
        return DirectorySlices(self._directory(number), self.config, self._partitions.remote(number))

    def _blocks(self, number: int, start: int, end: int, **how: Any) -> Iterator[Blocks]:
        log = self.partition(number)
        return LogSummary.of(log).blocks(log, start, end, **how)

    # --- writing

    def _router_for(self, partition: int | None) -> Router:
        return self._router

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        open_partitions = self._partitions
        if (
            partition is None
            and open_partitions.entry.partitions == 1
            and (key is not None or not open_partitions.keyed)
        ):
            number = 0
        else:
            number = self._router.place_for(value, key, partition)
        while True:
            log = open_partitions.logs.get(number) or open_partitions.partition(number)
            try:
                return _made(Position, (number, log.append(value, key, headers, timestamp, expect_offset)))
            except LogClosed:  # closed at this moment to be opened with other settings: nothing is stored
                if open_partitions.partition(number) is log:
                    raise
            except StorageError:
                open_partitions.refresh()  # raises TopicNotFound if the topic was deleted meanwhile
                raise

    def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        parts = self._router.split(list(records), partition)
        if len(parts) == 1:
            [(number, of_one)] = parts.items()
            with self._partitions.writing():
                return {number: self._partitions.partition(number).append_many(of_one, expect_offset)}
        check_sole(expect_offset)
        return self._append_encoded({number: self._router.encode(each) for number, each in sorted(parts.items())})

    def _append_encoded(self, batches: Mapping[int, bytes], expect_offset: int | None = None) -> dict[int, range]:
        with self._partitions.holding(*batches) as logs:
            placed = {
                number: logs[number].append_batches(batch, trusted=True, wait=False, expect_offset=expect_offset)
                for number, batch in batches.items()
            }
        for number, offsets in placed.items():
            logs[number]._settle(offsets.stop)
        return placed

    def append_arrow(
        self, table: TableInput, *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        parts = self._router.split_table(table, partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        if len(parts) == 1:
            [(number, of_one)] = parts.items()
            with self._partitions.writing():
                return {number: self._partitions.partition(number).append_arrow(of_one, expect_offset)}
        with self._partitions.holding(*parts) as logs:
            return {number: logs[number].append_arrow(of_one, expect_offset) for number, of_one in parts.items()}

    @contextmanager
    def _appends(self, number: int) -> Iterator[Log]:
        with self._partitions.writing():
            yield self._partitions.partition(number)

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> TopicWriter:
        return self._partitions.writer(batch_bytes, linger_ms)

    def trim(self, offsets: Mapping[int, int]) -> int:
        with self._partitions.holding(*offsets) as logs:
            return sum(log.trim(offsets[number]) for number, log in logs.items())

    def maintain(self) -> list[MaintenanceReport]:
        """Run the maintenance that the settings ask for (retention, compaction, merging) and return a report per
        partition.

        Skips partitions that another process writes to. Locks taken for maintenance are released.
        """
        reports = (self._partitions.maintain(number) for number in range(self.partitions))
        return [report for report in reports if report is not None]

    # --- as a table

    def _history(self) -> History | None:
        if self.table is None:
            return None
        from ...sql.history import history_of

        return history_of(self)
