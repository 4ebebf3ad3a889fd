"""Commands for object storage: `sawlog store test`, `sawlog replicate`, `sawlog restore` and `sawlog promote`."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..clock import Stopwatch, now_ms
from ..display import count_text, counted, duration_text, size_text
from ..store.objects.bucket import Bucket
from ..store.objects.selftest import BRIEF, BRIEF_SCALE, TRIALS, Scale, refuse, run
from . import FAILED
from .options import Output, argument, flag, option, parsed
from .output import Column, Printer, ProgressBar, columns, note
from .parsing import time_ms
from .program import Command, command_group

if TYPE_CHECKING:
    from ..store.replica.replicator import Progress


stores = command_group("Test whether object storage is safe for a store.")

_TRIAL_COLUMNS = columns(
    "state check requests", Column("elapsed_ms", "time", duration_text), Column("evidence", cut=False)
)


@stores.callback()
def _store() -> None:
    """Test whether object storage is safe for a store."""


@stores.command("test", cls=Command)
def try_bucket(
    url: str = argument("URL", "The bucket: s3://, gs://, az://, file:// or memory://.", ...),
    brief: bool = flag("--brief", "Send only about thirty requests."),
    threads: int = option("--threads N", "The number of racing threads.", 8, min=2, max=256),
    options: list[str] | None = option(
        "--option NAME=VALUE",
        "A storage option such as endpoint=http://127.0.0.1:8333 or timeout=10s; can be repeated. Pass "
        "credentials in environment variables such as AWS_ACCESS_KEY_ID.",
    ),
    output: Output = "table",
) -> None:
    """Test whether object storage gives the guarantees that a store depends on.

    Threads race to create the same objects, each over its own connections, requests are abandoned halfway, and new
    objects are read and listed immediately. The test sends about 2,300 requests, works in a folder of its own,
    sawlog-selftest/, and deletes everything it creates. Exits with 1 if requests fail or a guarantee is broken: on a
    server that ignores preconditions, for instance, a store would lose data.

    \b
    Examples:
      sawlog store test s3://bucket/store
      sawlog store test file:///tmp/bucket --output json
      sawlog store test s3://bucket --brief --option endpoint=http://127.0.0.1:8333
    """
    bucket = Bucket(url, parse_options(options))
    names: Sequence[str] = BRIEF if brief else list(TRIALS)
    scale = BRIEF_SCALE if brief else Scale(threads=threads)
    with ProgressBar("testing", len(names), "checks") as progress:
        found = run(bucket, scale, names=names, on_found=lambda _: progress.advance(1))
    printer = Printer(output)
    printer.rows(
        [{**dataclasses.asdict(each), "elapsed_ms": round(each.elapsed_s * 1000, 1)} for each in found], _TRIAL_COLUMNS
    )
    refuse(bucket, found)
    printer.remark(f"{bucket.url} passed all checks")


def parse_options(options: Sequence[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE pairs. The error does not quote an invalid one, which may be a secret."""
    pairs = [each.partition("=") for each in options or ()]
    if not all(name and sign for name, sign, _ in pairs):
        raise typer.BadParameter("an option is NAME=VALUE", param_hint="--option")
    return {name: value for name, _, value in pairs}


#: Interval of progress lines when stderr is not a terminal.
_EVERY_S = 10.0
_LAG_COLUMNS = columns(
    "topic",
    Column("records", "records behind", count_text),
    Column("size_bytes", "bytes behind", size_text),
    Column("lag_ms", "time behind", duration_text),
)

Url = Annotated[str, argument("URL", "The store on object storage: s3://, gs://, az:// or file://.", ...)]
Directory = Annotated[Path, argument("DIR", "The data directory.", ..., file_okay=False)]
Options = Annotated[
    list[str] | None,
    option("--option NAME=VALUE", "A storage option such as endpoint=URL; can be repeated.", ...),
]
Topics = Annotated[list[str] | None, option("--topic -t TOPIC", "Only this topic; can be repeated.", ...)]


def replicate(
    data: Directory,
    url: Url,
    once: bool = flag("--once", "Copy what is there now, and exit."),
    topics: Topics = None,
    mirror_retention: bool = flag("--mirror-retention", "Also apply the directory's retention to the replica."),
    delete: bool = flag("--delete", "Also delete topics and groups from the replica when they are deleted here."),
    registry: bool = flag("--registry", "Also copy access control rules and users, with their password hashes."),
    options: Options = None,
    output: Output = "table",
) -> None:
    """Replicate a store to object storage with about a second of lag, until SIGTERM or Ctrl-C.

    The replica has the topics with their ids and settings, the records with their offsets, and the groups' committed
    offsets. The command reads the directory, next to a writer or a broker, and records the replica's URL in it. It can
    be killed at any time; the next run continues where the replica ends. Exits with 1 if something could not be
    copied, for instance a topic that was truncated.

    \b
    Examples:
      sawlog replicate data s3://bucket/store
      sawlog replicate data s3://bucket/store --once --output json
      sawlog replicate data s3://bucket/store --mirror-retention --delete
    """
    from ..store.replica import replicate as run

    if url.startswith("memory://"):
        raise typer.BadParameter("a replica in memory ends with this command: give another address", param_hint="URL")
    shown = _ProgressReport(Printer(output), "shipped", is_brief=once)
    with _until_signal() as stopped:
        done = run(
            data,
            url,
            once=once,
            topics=topics or (),
            mirror_retention=mirror_retention,
            delete=delete,
            registry=registry,
            options=parse_options(options),
            stopped=stopped,
            on_round=shown.round,
        )
    shown.end(done)
    if done.problems:
        raise typer.Exit(FAILED)


def restore(
    url: Url,
    data: Directory,
    until: str | None = option("--until TIME", "Restore the state at this time, such as 2026-11-17T12:00:00Z."),
    at_commit: int | None = option("--at-commit N", "Restore the state after N commits.", min=0),
    follow: bool = flag("--follow", "Keep the directory up to date until SIGTERM or Ctrl-C, as a warm standby."),
    topics: Topics = None,
    registry: bool = flag("--registry", "Also restore users and access control rules, if the replica has them."),
    options: Options = None,
    output: Output = "table",
) -> None:
    """Restore a store from object storage to a new directory, with the same topics, offsets, settings and groups.

    To resume an interrupted restore, run the same command again. Until it is complete, no other command can open the
    directory. With --follow, the directory can be read while the command runs, and written after it has ended.

    \b
    Examples:
      sawlog restore s3://bucket/store data
      sawlog restore s3://bucket/store data --until 2026-11-17T12:00:00Z
      sawlog restore s3://bucket/store standby --follow
    """
    from ..store.replica import restore as run

    shown = _ProgressReport(Printer(output), "restored", is_brief=not follow)
    with _until_signal() as stopped:
        done = run(
            url,
            data,
            at_commit=at_commit,
            until_ms=parsed("--until", until, time_ms),
            topics=topics or (),
            registry=registry,
            follow=follow,
            options=parse_options(options),
            stopped=stopped,
            on_round=shown.round,
        )
    shown.end(done)


def promote(url: Url, options: Options = None, output: Output = "table") -> None:
    """Turn a replica on object storage into an independent store, because its source is lost or abandoned.

    From then on the store accepts writes and runs its own retention and compaction, and `sawlog replicate` refuses to
    copy to it. A directory that `sawlog restore --follow` has filled needs no promotion: open it for writing.

    \b
    Examples:
      sawlog promote s3://bucket/store
      sawlog promote s3://bucket/store --output json
    """
    from ..store.replica import promote as run

    run(url, options=parse_options(options))
    Printer(output).outcome(f"{url} is now an independent store", {"url": url, "promoted": True})


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Yield an event that is set on SIGTERM or SIGINT, so that the current round completes."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _ProgressReport:
    """Reports progress: in place on a terminal, else as occasional lines; and a table of all topics at the end."""

    def __init__(self, printer: Printer, verb: str, *, is_brief: bool) -> None:
        self._printer = printer
        self._verb = verb
        self._is_brief = is_brief
        self._is_live = sys.stderr.isatty() and printer.for_people
        self._since: Stopwatch | None = None
        self._problems: dict[str, str] = {}

    def round(self, progress: Progress) -> None:
        """Report the progress after a round."""
        for where, why in progress.problems.items():
            if self._problems.get(where) != why:
                note(f"!! {why if why.startswith(where) else f'{where}: {why}'}")
        self._problems = dict(progress.problems)
        if self._is_live:
            print(f"\r\x1b[K{self._line(progress)}", end="", file=sys.stderr, flush=True)
        elif self._since is None or self._since.elapsed_s >= _EVERY_S:
            self._since = Stopwatch()
            if self._is_brief:
                return
            if self._printer.for_people:
                note(self._line(progress))
            else:
                self._printer.rows(_lag_rows(progress), _LAG_COLUMNS, live=True)

    def _line(self, progress: Progress) -> str:
        lag = progress.lag
        total = progress.records + lag.records
        share = f" ({100 * progress.records // total} %)" if lag.records and total else ""
        done = f"{self._verb} {counted(progress.records, 'record')}, {size_text(progress.size_bytes)}{share}"
        if not lag.records:
            stuck = f"{len(progress.problems)} not shipped: see above" if progress.problems else "nothing is behind"
            return f"{done}; {stuck}"
        slowest = max(progress.lags.values(), key=lambda each: each.seconds)
        return (
            f"{done}; behind: {counted(lag.records, 'record')}, {size_text(lag.size_bytes)}, {lag.seconds:.1f} s "
            f"({slowest.topic})"
        )

    def end(self, progress: Progress) -> None:
        """Print all topics and the totals."""
        if self._is_live:
            print(file=sys.stderr)
        self._printer.rows(_lag_rows(progress), _LAG_COLUMNS)
        if progress.lost:
            note(f"{counted(progress.lost, 'offset')} deleted at the source before being shipped")
        if self._printer.for_people:
            note(self._line(progress))


def _lag_rows(progress: Progress) -> Sequence[dict[str, Any]]:
    return [
        {
            "topic": lag.topic,
            "records": lag.records,
            "size_bytes": lag.size_bytes,
            "lag_ms": round(lag.seconds * 1000),
            "time_ms": now_ms(),
        }
        for lag in progress.lags.values()
    ]
