"""Shared parts of the jobs: a session, a watched streaming query, and error messages.

A streaming job has its own directory for its checkpoint and its state. It is locked while the job runs, because two
queries would corrupt one checkpoint.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DirectoryLocked, InvalidConfig, SawlogError
from ..spark import register
from ..spark import session as local_session
from ..spark.session import find_java
from ..storage import FileDirectory
from ..store.directory.store import DirectoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


#: Called with the progress since the last call.
Advance = Callable[[int], None]

#: Directory for the state of a job in its target.
STATE_DIRECTORY = "_sawlog"
CHECKPOINT = "checkpoint"
_LOCK = "LOCK"
_POLL_S = 0.25
#: Environment variable with Spark's log level, for sessions from sawlog.spark.session.
_LOG_LEVEL = "SAWLOG_SPARK_LOG"
#: A sawlog error in a message from Spark.
_OURS = re.compile(r"^(?:[\w.]+\.)?sawlog(?:\.\w+)+\.\w+: (.+)$", re.MULTILINE)
#: An error of `raise_error` in a message from Spark.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


class PipelineFailed(SawlogError):
    """A job failed. Commits before the failure are kept, and a new run continues there."""


def session() -> SparkSession:
    """Return the active session, or the one of spark-submit, else a local one; `format("sawlog")` is registered."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is None and "PYSPARK_GATEWAY_PORT" in os.environ:  # then master and settings come from spark-submit
        found = SparkSession.builder.getOrCreate()
    elif found is None:
        found = _quiet_session()
    register(found)
    return found


def _quiet_session() -> SparkSession:
    """Return a local session that prints nothing to stderr, unless SAWLOG_SPARK_LOG asks for it.

    A job's error is one line: stack traces of Java and of its Python workers would hide it.
    """
    if _LOG_LEVEL in os.environ:
        return local_session()
    with _stderr_aside():
        made = local_session()
    made.sparkContext.setLogLevel("OFF")
    return made


@contextmanager
def _stderr_aside() -> Iterator[None]:
    """Redirect the stderr of processes started here to an unnamed file; show it if the block fails."""
    try:
        kept = os.dup(2)
    except OSError:  # stderr is closed, so nothing can be shown
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
    """Raise if a package that Spark needs is missing, before a minute is spent on starting it."""
    if importlib.util.find_spec("pyspark") is None:
        raise PipelineFailed(
            "pipelines need pyspark, which is not installed: run pip install '.[spark]' in a clone of sawlog"
        )
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java()


def check_topic(data: str, topic: str | None) -> None:
    """Raise if the store, or the topic if one is given, does not exist."""
    with DirectoryStore.open(data, "r") as store:
        if topic is not None:
            store.topic(topic)


def check_interval(name: str, seconds: float | None) -> None:
    """Raise unless an interval is positive or None."""
    if seconds is not None and seconds <= 0:
        raise InvalidConfig(f"{name} must be a number of seconds above 0, not {seconds}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise for a value that is not one of the choices."""
    if value not in choices:
        raise InvalidConfig(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_least(params: object, **least: int) -> None:
    """Raise for parameters below their minimum; None is allowed."""
    for name, minimum in least.items():
        value = getattr(params, name)
        if value is not None and value < minimum:
            raise InvalidConfig(f"{name} must be at least {minimum}, not {value}")


def check_target(target: Path, what: str) -> None:
    """Raise if a directory has files but no state of a job: a mistyped path must not mix a job's files with others."""
    if target.is_dir() and not (target / STATE_DIRECTORY).is_dir() and any(target.iterdir()):
        raise InvalidConfig(f"{target} is neither empty nor {what}; choose another directory")


@contextmanager
def exclusive_directory(path: Path) -> Iterator[FileDirectory]:
    """Open the directory of a job, created if missing, locked for one run at a time."""
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
class StreamProgress:
    """Progress of a streaming query."""

    batches: int = 0
    records: int = 0
    #: Stopped by Ctrl-C rather than finished.
    stopped: bool = False


def trigger(every_s: float | None) -> dict[str, Any]:
    """Return the trigger: once, or repeatedly."""
    return {"availableNow": True} if every_s is None else {"processingTime": f"{round(every_s * 1000)} milliseconds"}


def watch(
    query: StreamingQuery, progress: Advance | None = None, *, look: Callable[[], None] | None = None
) -> StreamProgress:
    """Wait until a query ends or is stopped with Ctrl-C, and report progress. Calls `look` regularly."""
    from pyspark.errors import StreamingQueryException

    seen: set[int] = set()
    flow = StreamProgress()
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


def _note(query: StreamingQuery, seen: set[int], flow: StreamProgress, progress: Advance | None) -> None:
    """Count the micro-batches that are new since the last call."""
    for each in query.recentProgress:
        batch, records = each["batchId"], each["numInputRows"]
        if batch in seen or not records:
            continue  # already counted, or an empty micro-batch
        seen.add(batch)
        flow.batches += 1
        flow.records += records
        if progress is not None:
            progress(records)


def failure(error: Exception) -> PipelineFailed:
    """Reduce an error from Spark to one line: a sawlog error if it contains one, else its first line."""
    text = str(error)
    ours = _OURS.findall(text) or _RAISED.findall(text)
    if ours:
        return PipelineFailed(ours[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    inner = [line for line in lines if re.match(r"^(?:Caused by: )?[\w.]*(?:Error|Exception): ", line)]
    return PipelineFailed(inner[-1] if inner else lines[0] if lines else type(error).__name__)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors of a Spark batch job into a one-line `PipelineFailed`."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise failure(error) from error


def parsed_schema(text: str) -> StructType:
    """Parse a schema given as DDL."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except ParseException as error:
        raise InvalidConfig(f"{text!r} is not a schema such as 'id int, name string': {failure(error)}") from error
    if not isinstance(found, StructType):
        raise InvalidConfig(f"{text!r} is not a schema such as 'id int, name string'")
    return found
