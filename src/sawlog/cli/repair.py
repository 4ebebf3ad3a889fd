"""`sawlog repair`: what opening a log for writing would change (`--plan`), and doing it (`--apply`), copies first.

The plan is not a guess: the log is opened for writing on top of an overlay (overlay.py), so recovery itself decides,
on the real bytes, and nothing is written. `--apply` takes the lock, copies the whole directory aside, then opens the
log for writing and checks everything again. Data below damage is kept, damaged bytes stay where they are for a better
tool to look at, and what cannot be read is said, offset by offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import LogConfig
from ..log.files.names import LOCK, LOG
from ..log.log import Log
from ..log.maintain.recovery import Action, Finding, RecoveryReport
from ..log.read.verify import Problem, VerifyReport
from ..storage import FileDirectory
from ..topics.names import TOPICS, partition_name
from ..topics.settings import log_config
from . import CORRUPT
from .options import LogDir, MaybeData, MaybeTopic, Output, Partitions
from .output import Column, Format, note
from .output import Output as Printer
from .overlay import Overlay
from .places import check_place, chosen, open_store

_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("what"),
    Column("action"),
    Column("detail", cut=False),
]


def repair(
    topic: MaybeTopic = None,
    data: MaybeData = None,
    log: LogDir = None,
    partition: Partitions = None,
    apply: Annotated[
        bool, typer.Option("--apply/--plan", help="Do it, after copying; or only say what would be done.")
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option("--backup", metavar="DIR", help="Where copies go with --apply.  [default: beside the store]"),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Say what opening a log for writing would put right (--plan), or do it (--apply), copies first.

    A torn tail, which a crash leaves behind, is cut off after it was copied aside. Indexes and checkpoints are made
    anew. Damaged data is never dropped: everything readable around it is served, new records go behind it, and its
    bytes stay where they are. With --plan nothing is written; that is the default. Exits with 4 if damage is left.

    \b
    Examples:
      sawlog repair -d data
      sawlog repair orders -d data -p 0 --apply
      sawlog repair --log data/topics/orders/partition-0 --apply --backup /mnt/spare
    """
    printer = Printer(output)
    left = 0
    rows: list[dict[str, Any]] = []
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    for name, number, path, config in _wanted(data, log, topic, partition):
        found = _plan(path, config)
        if apply and (found.changes or not list(path.glob(f"*{LOG}"))):  # where nothing can be done, nothing is touched
            found = _apply(path, config, (backup or _beside(data, log, stamp)) / _relative(path, data, log))
        rows += _rows(name, number, found)
        left += len(found.recovery.corruption) + len(found.checked.problems)
    verb = "was done" if apply else "would be done"
    printer.rows(rows, _COLUMNS, empty=f"nothing {verb}: everything is as it should be")
    if left:
        note("damaged data is left: reading it says so and where to go on; `sawlog inspect FILE` shows the bytes")
        raise typer.Exit(CORRUPT)
    if rows and not apply and printer.for_people:
        note("this is the plan; `--apply` does it, after copying the directory aside. If a process is writing there")
        note("right now, a torn end may be what it is just writing: look again")


def _wanted(
    data: Path | None, log: Path | None, topic: str | None, partitions: list[int] | None
) -> list[tuple[str, int, Path, LogConfig]]:
    """(topic, partition, directory, settings) of each log that is meant. Nothing stays open."""
    check_place(data, log, topic)
    if log is not None:
        with Log.open(log, mode="r") as found:
            return [(log.resolve().name, 0, Path(found.path), found.config)]
    assert data is not None
    wanted = []
    with open_store(data) as store:
        for name in store.topics() if topic is None else [topic]:
            one = store.topic(name)
            for number in chosen(one, partitions):
                path = data / TOPICS / name / partition_name(number)  # it may be too broken to be asked
                wanted.append((name, number, path.absolute(), log_config(one.settings)))
    return wanted


def _beside(data: Path | None, log: Path | None, stamp: str) -> Path:
    """Where copies go if nobody said: next to the store or log, under a name that says what it is."""
    of = (log or data or Path()).resolve()
    return of.parent / f"{of.name}.before-repair-{stamp}"


def _relative(path: Path, data: Path | None, log: Path | None) -> Path:
    """Where a copy lies below that."""
    if log is not None or data is None:
        return Path(path.resolve().name)
    return path.resolve().relative_to(data.resolve())


@dataclass(frozen=True, slots=True)
class Repaired:
    """What opening a log for writing did, or would do."""

    recovery: RecoveryReport
    checked: VerifyReport

    @property
    def changes(self) -> bool:
        """Whether anything is put right."""
        passive = (Action.IGNORE, Action.REPORT)
        return any(each.action not in passive for each in self.recovery.findings)


def _plan(path: Path, config: LogConfig) -> Repaired:
    return _recover(Overlay(str(path)), config)


def _apply(path: Path, config: LogConfig, target: Path) -> Repaired:
    """Copy, then recover. The lock is held while copying: what is copied must not change."""
    directory = FileDirectory(str(path), create=False)
    held = directory.lock(LOCK)
    try:
        shutil.copytree(path, target, symlinks=True)
    finally:
        held.release()
        directory.close()
    note(f"{path}: copied to {target}")
    return _recover(path, config)


def _recover(place: Path | Overlay, config: LogConfig) -> Repaired:
    with Log.open(place, config) as log:
        return Repaired(log.recovery, log.verify())


def _rows(topic: str, partition: int, found: Repaired) -> Iterator[dict[str, Any]]:
    place = {"topic": topic, "partition": partition}
    reported = "\n".join(each.detail for each in found.recovery.corruption)
    for finding in found.recovery.findings:
        if finding.action is not Action.IGNORE:  # a file that is not ours
            yield {**place, **_finding_row(finding)}
    for problem in found.checked.problems:
        if f"{problem.path} at byte {problem.position}" not in reported:
            yield {**place, **_problem_row(problem)}


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {"what": finding.where.value, "action": finding.action.value, "detail": finding.detail}


def _problem_row(problem: Problem) -> dict[str, Any]:
    on = "nothing readable follows" if problem.next_offset is None else f"reading goes on at {problem.next_offset}"
    return {"what": "damage that verify finds", "action": Action.REPORT.value, "detail": f"{problem}; {on}"}
