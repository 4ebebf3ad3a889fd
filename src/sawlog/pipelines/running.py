"""What the jobs share: a session, a streaming query that is watched until it ends, and errors in our words.

A streaming job has a directory of its own for its checkpoint and its notes; it is locked while the job runs, because
two queries on one checkpoint spoil it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DirectoryLocked, SawlogError
from ..spark import register
from ..spark import session as local_session
from ..storage import FileDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Called with how much more is done.
Progress = Callable[[int], None]

CHECKPOINT = "checkpoint"
_LOCK = "LOCK"
_POLL_S = 0.25
#: How errors of ours look inside a message of Spark's.
_OURS = re.compile(r"^(?:[\w.]+\.)?sawlog(?:\.\w+)+\.(\w+): (.+)$", re.MULTILINE)


class PipelineFailed(SawlogError):
    """A job ended with an error; the message says why. What was committed before stays, and a new run goes on there."""


def session() -> SparkSession:
    """The session that is active, or that spark-submit asks for, else a local one; it knows `format("sawlog")`."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is None:
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then master and settings are spark-submit's
        found = SparkSession.builder.getOrCreate() if submitted else local_session()
    register(found)
    return found


@contextmanager
def alone(path: Path) -> Iterator[FileDirectory]:
    """The directory of a job, made if it is missing, for one run at a time."""
    directory = FileDirectory(path)
    try:
        try:
            held = directory.lock(_LOCK)
        except DirectoryLocked as error:
            raise DirectoryLocked(error.path, f"{error.holder or 'another run'}, the same job") from error
        try:
            yield directory
        finally:
            held.release()
    finally:
        directory.close()


@dataclass(slots=True)
class Flow:
    """What a streaming query has done."""

    batches: int = 0
    records: int = 0
    #: Whether somebody ended it (Ctrl-C), rather than that there was nothing more.
    stopped: bool = False
    #: Sums of what the query observes, by name.
    observed: dict[str, int] = field(default_factory=dict)


def trigger(every_s: float | None) -> dict[str, Any]:
    """What is there now, or again and again."""
    return {"availableNow": True} if every_s is None else {"processingTime": f"{round(every_s * 1000)} milliseconds"}


def watch(query: StreamingQuery, progress: Progress | None) -> Flow:
    """Wait until a query ends, or until somebody presses Ctrl-C; tell how far it is."""
    from pyspark.errors import StreamingQueryException

    seen: set[int] = set()
    flow = Flow()
    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
            _note(query, seen, flow, progress)
    except KeyboardInterrupt:
        query.stop()
        flow.stopped = True
    except StreamingQueryException as error:
        _note(query, seen, flow, progress)
        raise failure(error) from error
    _note(query, seen, flow, progress)
    return flow


def _note(query: StreamingQuery, seen: set[int], flow: Flow, progress: Progress | None) -> None:
    """Count micro-batches that are new since the last look."""
    for each in query.recentProgress:
        batch, records = each["batchId"], each["numInputRows"]
        if batch in seen or not records:
            continue  # counted, or a look that found nothing
        seen.add(batch)
        flow.batches += 1
        flow.records += records
        for metrics in (each["observedMetrics"] or {}).values():
            for name, value in metrics.asDict().items():
                flow.observed[name] = flow.observed.get(name, 0) + (value or 0)
        if progress is not None:
            progress(records)


def failure(error: Exception) -> PipelineFailed:
    """An error of Spark's as one line: ours if there is one inside it, else its first."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return PipelineFailed(ours[-1][1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    inner = [line for line in lines if re.match(r"^(?:Caused by: )?[\w.]*(?:Error|Exception): ", line)]
    return PipelineFailed(inner[-1] if inner else lines[0] if lines else type(error).__name__)


@contextmanager
def explained() -> Iterator[None]:
    """What a batch job of Spark's raises, in our words."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise failure(error) from error
