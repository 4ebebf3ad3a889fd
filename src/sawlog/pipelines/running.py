"""What the jobs share: a session, a streaming query that is watched until it ends, and errors in our words.

A streaming job has a directory of its own for its checkpoint and its notes; it is locked while the job runs, because
two queries on one checkpoint spoil it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DirectoryLocked, SawlogError
from ..spark import register
from ..spark import session as local_session
from ..spark.java import find_java
from ..storage import FileDirectory
from ..topics.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Called with how much more is done.
Progress = Callable[[int], None]

CHECKPOINT = "checkpoint"
_LOCK = "LOCK"
_POLL_S = 0.25
#: What Spark logs, in a session of ours (see sawlog.spark.session).
_LOG_LEVEL = "SAWLOG_SPARK_LOG"
#: How errors of ours look inside a message of Spark's.
_OURS = re.compile(r"^(?:[\w.]+\.)?sawlog(?:\.\w+)+\.\w+: (.+)$", re.MULTILINE)
#: What a query of ours complains of with `raise_error`.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


class PipelineFailed(SawlogError):
    """A job ended with an error; the message says why. What was committed before stays, and a new run goes on there."""


def session() -> SparkSession:
    """The session that is active, or that spark-submit asks for, else a local one; it knows `format("sawlog")`."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is None and "PYSPARK_GATEWAY_PORT" in os.environ:  # then master and settings are spark-submit's
        found = SparkSession.builder.getOrCreate()
    elif found is None:
        found = _quiet_session()
    register(found)
    return found


def _quiet_session() -> SparkSession:
    """A local session that says nothing on stderr, unless SAWLOG_SPARK_LOG asks for it.

    A job's error is one line of ours: traces of Java and of its Python workers would bury it.
    """
    if _LOG_LEVEL in os.environ:
        return local_session()
    with _stderr_aside():
        made = local_session()
    made.sparkContext.setLogLevel("OFF")
    return made


@contextmanager
def _stderr_aside() -> Iterator[None]:
    """Processes that are started here have a nameless file for their stderr; what is in it is shown if this fails."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed, so nothing can be shown
        yield
        return
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except Exception:
            aside.seek(0)
            os.write(kept, aside.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def check_packages() -> None:
    """What Spark needs is installed: found out before a minute is spent on starting it."""
    if importlib.util.find_spec("pyspark") is None:
        raise PipelineFailed(
            "pipelines need pyspark, which is not installed: run pip install '.[spark]' in a clone of sawlog"
        )
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java()


def check_topic(data: str, topic: str | None) -> None:
    """The store is there, and the topic, if one is named."""
    with Store.open(data, "r") as store:
        if topic is not None:
            store.topic(topic)


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


def trigger(every_s: float | None) -> dict[str, Any]:
    """What is there now, or again and again."""
    return {"availableNow": True} if every_s is None else {"processingTime": f"{round(every_s * 1000)} milliseconds"}


def watch(query: StreamingQuery, progress: Progress | None = None, *, look: Callable[[], None] | None = None) -> Flow:
    """Wait until a query ends, or until somebody presses Ctrl-C; tell how far it is. `look` is called now and then."""
    from pyspark.errors import StreamingQueryException

    seen: set[int] = set()
    flow = Flow()
    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
            _note(query, seen, flow, progress)
            if look is not None:
                look()
    except KeyboardInterrupt:
        query.stop()
        flow.stopped = True
    except StreamingQueryException as error:
        _note(query, seen, flow, progress)
        raise failure(error) from error
    _note(query, seen, flow, progress)
    if look is not None:
        look()
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
        if progress is not None:
            progress(records)


def failure(error: Exception) -> PipelineFailed:
    """An error of Spark's as one line: ours if there is one inside it, else its first."""
    text = str(error)
    ours = _OURS.findall(text) or _RAISED.findall(text)
    if ours:
        return PipelineFailed(ours[-1])
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
