"""`LogSource`: a log as a table is made from it: in slices of its files, planned by the sparse index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from ..config import LogConfig
from ..isolation import Isolation
from ..log import slices
from ..log.log import Log
from ..log.read.remote import RemoteSource
from ..log.slices import Folding
from ..log.summaries import Blocks, LogSummary
from ..storage import Directory
from ..topics.base import PlannedSlice


class LogSource:
    """One partition in a directory, which is opened again for each scan."""

    def __init__(self, log: Log, directory: Callable[[], Directory]) -> None:
        self._log = log
        self._directory = directory

    def plan(
        self, start: int, end: int, *, epoch: int, target_bytes: int | None = None, isolation: Isolation = "committed"
    ) -> list[PlannedSlice]:
        """Slices, in order."""
        return slices.plan(self._log, start, end, epoch=epoch, target_bytes=target_bytes, isolation=isolation)

    def blocks(
        self, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks]:
        """What the headers of batches say; it is always exact."""
        summary = LogSummary.of(self._log)
        return summary.blocks(self._log, start, end, since=since, with_oldest=with_oldest, exact=exact)

    def proven_end(self, epoch: int, end: int) -> int:
        """How far the offsets below `end` are still those of a leader epoch."""
        return slices.proven_end(self._log, epoch, end)

    def open(self) -> LogReading:
        """Begin to read."""
        return LogReading(self._directory(), self._log.config, self._log._remote)


class LogReading:
    """Reads slices of one log. Safe for threads."""

    def __init__(self, directory: Directory, config: LogConfig, remote: RemoteSource | None = None) -> None:
        self._directory = directory
        self._config = config
        self._remote = remote

    def read(self, part: PlannedSlice, *, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The records of a slice."""
        remote = self._remote
        return slices.read(self._directory, part, self._config, columns=columns, batch_rows=batch_rows, remote=remote)

    def fold(self, part: PlannedSlice, into: Folding, *, columns: Sequence[str], batch_rows: int) -> None:
        """Add each record of a slice to something."""
        remote = self._remote
        slices.fold(self._directory, part, self._config, into, columns=columns, batch_rows=batch_rows, remote=remote)

    def close(self) -> None:
        """Close the directory."""
        self._directory.close()
