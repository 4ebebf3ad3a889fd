"""Shared parts of the jobs: parameters, a session, a watched streaming query, and error messages.

The parameters of a job are a frozen dataclass whose fields have help texts; it is also the job's command line. `parse`
is for `python -m` and `spark-submit`; the program `sawlog` has its own command line. A field `every_s` becomes
`--every-s`; a tuple of names is separated by commas; a flag has a `--no-` form.

A streaming job has its own directory for its checkpoint and its state. It is locked while the job runs, because two
queries would corrupt one checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DirectoryLocked, SawlogError
from ..spark import register
from ..spark import session as local_session
from ..spark.session import find_java
from ..storage import FileDirectory
from ..store.directory.store import DirectoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


P = TypeVar("P")


def option(help: str, default: Any = dataclasses.MISSING) -> Any:
    """Declare a parameter with its help text."""
    return dataclasses.field(default=default, metadata={"help": help})


def parse(kind: type[P], arguments: Sequence[str], about: str) -> P:
    """Parse the parameters from a command line."""
    parser = argparse.ArgumentParser(prog=kind.__module__.rpartition(".")[2], description=about)
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        _add(parser, field, _plain(hints[field.name]))
    return kind(**vars(parser.parse_args(arguments)))


def _add(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], kind: Any) -> None:
    name, about = f"--{field.name.replace('_', '-')}", field.metadata["help"]
    required = field.default is dataclasses.MISSING
    if kind is bool:
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default, help=about)
        return
    reader: Callable[[str], Any] = _names if typing.get_origin(kind) is tuple else kind
    default = None if required else field.default
    parser.add_argument(name, type=reader, required=required, default=default, help=about)


def _plain(kind: Any) -> Any:
    """Return the type of a field without `| None`."""
    if isinstance(kind, types.UnionType):
        [kind] = [each for each in typing.get_args(kind) if each is not type(None)]
    return str if typing.get_origin(kind) is typing.Literal else kind


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def run_main(
    kind: type[P],
    run: Callable[..., Any],
    about: str,
    arguments: Sequence[str],
    *,
    check: Callable[[P], object] | None = None,
    needs_spark: bool = True,
) -> int:
    """Run a job from a command line in the active session or a new one, and print the report as JSON on stdout.

    `check` raises errors in the parameters that can be detected before Spark is started.
    """
    params = parse(kind, arguments, about)
    try:
        if check is not None:
            check(params)
        if needs_spark:
            check_packages()
        report = run(session(), params) if needs_spark else run(params)
    except SawlogError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(dataclasses.asdict(report), default=str) + "\n")
    return 0 if getattr(report, "ok", True) else 4


#: Called with the progress since the last call.
Advance = Callable[[int], None]

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
