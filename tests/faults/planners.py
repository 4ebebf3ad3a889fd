"""Micro-batches on a simulated disk: plan a range, save the plan, read the range, continue after it.

Saved plans (`Witness.plans`) survive every crash, like Spark's checkpoint on another file system. An unfinished plan is
read again, in another process, before the next one is made. Neither planner fails on data loss: it reads the remaining
part of a lost range, and its next plan starts where that history ended.

`Plain` uses `Log.position`, `Log.epoch_end` and slices; `Spark` is the streaming source itself, with the stores of its
driver and its tasks on the simulated disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from sawlog.config import LogConfig
from sawlog.errors import DataLoss
from sawlog.log import slices
from sawlog.log.log import Log
from sawlog.store.directory.store import DirectoryStore

from .disk import FaultyStorage
from .witness import PARTITIONS, Witness

TOPIC = "t"


class Planner(ABC):
    """One query. Recreated whenever its process is."""

    name: ClassVar[str] = ""

    def __init__(self, disk: FaultyStorage, witness: Witness) -> None:
        self._disk = disk
        self._witness = witness

    @property
    def state(self) -> Any:
        """The checkpoint: None, or (where the next one starts, the plan that is not finished)."""
        return self._witness.plans.get(self.name)

    def write(self, start: Any, planned: Any) -> None:
        """Replace the checkpoint."""
        self._witness.plans[self.name] = (start, planned)

    def deliver(self, partition: int, offset: int, value: bytes) -> None:
        """A record goes downstream."""
        self._witness.deliver(self.name, partition, offset, value)

    def plan(self, most: int | None = None) -> bool:
        """Make and write down the next micro-batch, unless there is one; whether there is one then."""
        start, planned = self.state or (None, None)
        if planned is None:
            with self._open() as opened:
                start, planned = self._plan(opened, start, most)
            self.write(start, planned)
        return planned is not None

    def finish(self) -> None:
        """Read the micro-batch that was planned, and commit it."""
        start, planned = self.state
        with self._open() as opened:
            self.write(self._finish(opened, start, planned), None)

    def drain(self) -> None:
        """Until there is nothing to plan."""
        self._witness.got.setdefault(self.name, set())
        for _ in range(20):
            if not self.plan():
                return
            self.finish()
        raise AssertionError(f"{self.name} plans and reads for ever: {self.state}")

    @abstractmethod
    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the resources of one process."""

    @abstractmethod
    def _plan(self, opened: Any, start: Any, most: int | None) -> tuple[Any, Any]:
        """Return the start and the plan; None if there is nothing to read."""

    @abstractmethod
    def _finish(self, opened: Any, start: Any, planned: Any) -> Any:
        """Read it; where the next one starts."""


@dataclass(frozen=True)
class Range:
    """The planned range of one partition: its end, the end's epoch, the tasks, and the expected records."""

    end: int
    epoch: int
    pieces: tuple[slices.Slice, ...]
    values: frozenset[bytes]


class Plain(Planner):
    """Over one log for each partition."""

    name = "planner"

    @contextmanager
    def _open(self) -> Iterator[DirectoryStore]:
        with DirectoryStore.open(self._disk.plain, "r") as store:
            yield store

    def _plan(self, opened: DirectoryStore, start: Any, most: int | None) -> tuple[Any, Any]:
        at = start or dict.fromkeys(range(PARTITIONS), (0, -1))
        planned = {}
        for number, (offset, epoch) in at.items():
            log = opened[TOPIC].partition(number)
            end, now = log.position()
            first = max(min(offset, log.epoch_end(epoch)), log.lowest_offset)
            last = end if most is None else min(end, first + most)
            if first < last:
                pieces = slices.plan(log, first, last, epoch=now, target_bytes=400)
                values = frozenset(record.value or b"" for record in log.scan(first, last))
                planned[number] = Range(last, now, tuple(pieces), values)
        return at, planned or None

    def _finish(self, opened: DirectoryStore, start: Any, planned: Any) -> Any:
        at = dict(start)
        for number, range_ in planned.items():
            log = opened[TOPIC].partition(number)
            left = slices.proven_end(log, range_.epoch, range_.end)
            if self._is_read(number, range_, log.config):
                left = range_.end
            else:
                self._read_what_is_left(log, number, range_, left)
            at[number] = (left, range_.epoch)  # a missing record was not read and may return
        return at

    def _is_read(self, number: int, planned: Range, config: LogConfig) -> bool:
        """Read the pieces as they were planned, each all of it or not: whether nothing is gone."""
        rows: list[tuple[int, bytes]] = []
        try:
            for piece in planned.pieces:
                rows += self._rows(number, piece, config)
        except DataLoss:
            return False
        missing = planned.values - {value for _, value in rows} - self._witness.going
        if missing:
            self._witness.complain("I1", f"a range of {number} was read without {len(missing)} records, and no error")
        for offset, value in rows:
            self.deliver(number, offset, value)
        return True

    def _read_what_is_left(self, log: Log, number: int, planned: Range, left: int) -> None:
        first = max(planned.pieces[0].start_offset, log.lowest_offset)
        try:
            pieces = slices.plan(log, first, left, epoch=planned.epoch, target_bytes=400) if first < left else []
        except DataLoss:
            return
        for piece in pieces:
            for offset, value in self._rows(number, piece, log.config, lambda loss: None):
                self.deliver(number, offset, value)

    def _rows(
        self, number: int, piece: slices.Slice, config: LogConfig, lost: Callable[[DataLoss], None] = slices.fail
    ) -> list[tuple[int, bytes]]:
        directory = self._disk.plain.child("topics").child(TOPIC).child(f"partition-{number}")
        columns = ("offset", "value")
        found: list[tuple[int, bytes]] = []
        for batch in slices.read(directory, piece, config, columns=columns, batch_rows=100, lost=lost):
            found += zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return found


class Spark(Planner):
    """The streaming source."""

    name = "spark"

    @contextmanager
    def _open(self) -> Iterator[Any]:
        from sawlog.spark import subscription
        from sawlog.spark.options import read_options
        from sawlog.spark.streaming import StreamReader

        disk, before = self._disk.plain, (subscription.open_store, subscription.open_for_task)
        subscription.open_store = lambda path, mode="r": DirectoryStore.open(disk, mode, maintenance_interval_s=None)
        subscription.open_for_task = lambda path: DirectoryStore.open(disk, "r")
        given = {
            "path": "/simulated",
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxPartitionBytes": "400",
        }
        reader = StreamReader(read_options(given, streaming=True), ("partition", "offset", "value"))
        try:
            yield reader
        finally:
            reader.stop()
            subscription.open_store, subscription.open_for_task = before

    def _plan(self, opened: Any, start: Any, most: int | None) -> tuple[Any, Any]:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        begin = opened.initialOffset() if start is None else start
        end = opened.latestOffset(begin, ReadAllAvailable() if most is None else ReadMaxRows(most))
        return begin, None if end == begin else end

    def _finish(self, opened: Any, start: Any, planned: Any) -> Any:
        for task in opened.partitions(start, planned):
            for batch in opened.read(task):
                columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
                for partition, offset, value in zip(*columns, strict=True):
                    self.deliver(partition, offset, value)
        opened.commit(planned)
        return planned


PLANNERS: dict[str, type[Planner]] = {each.name: each for each in (Plain, Spark)}
