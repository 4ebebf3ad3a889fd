"""A source and sink like `sawlog`, in which a process dies at a chosen moment.

Options, at both ends:

    fault    POINT or POINT@NUMBER: the number of the micro-batch at the sink, of the call at the source
    how      raise: an exception; die: the Python process that does this work gets a SIGKILL; kill: everything that
             belongs to the program (driver, JVM, Python workers) gets one
    mark     a file that is made when it happens; it does not happen if the file is there

Points, in the order of a micro-batch:

    latest      the source has been asked for the end of the micro-batch
    plan        and for its tasks: Spark has written it to its checkpoint
    reading     a task has read some records
    staging     a task has written some, but not finished
    staged      a task has staged its records
    commit      all tasks are done; nothing is published
    intent      the intent is written: it is published, and nothing is placed
    placed      everything is placed, the intent not removed
    published   everything is done; Spark has not noted it
    abort       Spark calls abort
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pyspark_sawlog import DefaultSource

NAME = "sawlog-faulty"
OPTIONS = ("fault", "how", "mark")


def register(spark: Any) -> None:
    """Make it known to a session, also where its Python workers cannot import this module."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FaultySource)


class InjectedFault(Exception):
    """Raised by a fault with `how=raise`."""


@dataclass(frozen=True)
class Fault:
    """A fault and the point at which it happens."""

    point: str
    number: int | None
    how: str
    mark: str

    def at(self, point: str, number: int | None = None) -> None:
        """This is the moment, if it is."""
        if point != self.point or (self.number is not None and number is not None and number != self.number):
            return
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.how == "raise":
            raise InjectedFault(f"at {point}")
        if self.how == "kill":
            for other in processes_of(os.getsid(0)):
                if other != os.getpid():
                    os.kill(other, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def processes_of(session: int, *, of: str = "") -> list[int]:
    """Return the processes of a session, oldest first, or only those that run one program."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.getsid(int(name)) == session:
                with open(f"/proc/{name}/comm") as running:
                    if running.read().strip() == of or not of:
                        found.append(int(name))
        except OSError:
            continue
    return sorted(found)


class FaultySource(DefaultSource):
    """`sawlog`, with a fault."""

    def __init__(self, options: Any) -> None:
        given = {name: options.get(name, "") for name in OPTIONS}
        super().__init__({name: value for name, value in options.items() if name.lower() not in OPTIONS})
        point, _, number = given["fault"].partition("@")
        self.fault = Fault(point, int(number) if number else None, given["how"], given["mark"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: Any) -> Any:
        return FaultyReader(super().streamReader(schema), self.fault)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return FaultyWriter(super().streamWriter(schema, overwrite), self.fault)


class FaultyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader; calls are counted from 0."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self.inner, self.fault = inner, fault
        self.asked = self.planned = 0

    def initialOffset(self) -> Any:
        return self.inner.initialOffset()

    def getDefaultReadLimit(self) -> Any:
        return self.inner.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self.inner.prepareForTriggerAvailableNow()

    def latestOffset(self, start: Any, limit: Any) -> Any:
        found = self.inner.latestOffset(start, limit)
        self.fault.at("latest", self.asked)
        self.asked += 1
        return found

    def reportLatestOffset(self) -> Any:
        return self.inner.reportLatestOffset()

    def partitions(self, start: Any, end: Any) -> Any:
        self.fault.at("plan", self.planned)
        self.planned += 1
        return self.inner.partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in self.inner.read(partition):
            yield batch
            self.fault.at("reading")

    def commit(self, end: Any) -> None:
        self.inner.commit(end)

    def stop(self) -> None:
        self.inner.stop()


class FaultyWriter(DataSourceStreamArrowWriter):
    """A writer; its number is that of the micro-batch."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self.inner, self.fault = inner, fault

    def write(self, iterator: Iterator[Any]) -> Any:
        from sawlog.spark.writing import _query

        _, batch = _query()
        staged = self.inner.write(self._watched(iterator, batch))
        self.fault.at("staged", batch)
        return staged

    def _watched(self, iterator: Iterator[Any], batch: int) -> Iterator[Any]:
        for each in iterator:
            yield each
            self.fault.at("staging", batch)

    def commit(self, messages: Any, batchId: int) -> None:
        from sawlog.store.directory.transactions.pending import PendingTransactions
        from sawlog.store.directory.transactions.placement import Placement

        place, complete = Placement.place, PendingTransactions.complete

        def placing(*arguments: Any) -> None:
            self.fault.at("intent", batchId)
            place(*arguments)

        def completing(*arguments: Any) -> None:
            self.fault.at("placed", batchId)
            complete(*arguments)

        self.fault.at("commit", batchId)
        Placement.place, PendingTransactions.complete = placing, completing  # type: ignore[method-assign, assignment]
        try:
            self.inner.commit(messages, batchId)
        finally:  # this process is used for the next micro-batch, too
            Placement.place, PendingTransactions.complete = place, complete  # type: ignore[method-assign]
        self.fault.at("published", batchId)

    def abort(self, messages: Any, batchId: int) -> None:
        self.fault.at("abort", batchId)
        self.inner.abort(messages, batchId)
