"""`sawlog verify`, `sawlog repair` and `sawlog maintenance`: find damage, repair it, and clean up.

The plan of a repair opens the log for writing on top of an `Overlay`: recovery itself runs on the real bytes, and
nothing is written. `--apply` takes the lock, copies the whole directory, opens the log for writing and
verifies it. Data around damage is kept, damaged bytes stay in place, and unreadable offsets are reported.

A store on object storage returns to its last consistent state (`sawlog.store.objects.repair`); unusable
objects move to a separate folder of the bucket.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from ..addresses import is_address
from ..config import LogConfig
from ..display import count_text, counted
from ..errors import ReadBeyondEnd, StorageError
from ..log.files import LOCK, LOG
from ..log.log import Log
from ..log.recovery_report import Action, RecoveryReport
from ..log.verify import Problem, VerifyReport
from ..storage import Directory, FileDirectory, Published, Storage, open_published
from ..storage.interface import Buffer
from ..storage.memory import MemoryDirectory, MemoryStorage, PublishedMemory
from ..store.names import TOPICS, partition_name
from ..store.settings import log_config
from . import CORRUPT
from .options import Data, LogDir, MaybeData, MaybeTopic, Output, Partitions, flag, option
from .output import Column, Printer, ProgressBar, columns, note
from .stores import (
    GROUPS_LOG,
    MissingPartition,
    NamedLog,
    check_store_or_log,
    chosen,
    note_remote,
    open_any,
    open_directory,
    open_groups_log,
    open_logs,
)

_VERIFY_COUNTS = ("segments", "batches", "records", "size_bytes")
_VERIFY_COLUMNS = columns(
    "topic partition", Column("segments", shown=count_text), "batches records size_bytes problems"
)


def verify(
    topic: MaybeTopic = None,
    data: MaybeData = None,
    log: LogDir = None,
    partition: Partitions = None,
    output: Output = "table",
) -> None:
    """Read and check every batch, record and index entry, and for a whole store also the groups' offsets.

    The command changes nothing and takes no lock, so it can run next to a writer. On object storage, it checks that
    every batch is intact and no offset is missing between them; for a whole store, it also checks that no commit is
    missing. Segments that are only in the replica are not read: verify the replica itself. Exits with 4 if there is
    damage.

    \b
    Examples:
      sawlog verify -d data
      sawlog verify orders -d data -p 3
      sawlog verify --log data/topics/orders/partition-3 --output json
    """
    printer = Printer(output)
    check_store_or_log(data, log, topic)
    if is_address(data) and not (log or topic or partition):
        _check_whole(data, printer)
    problems: list[Problem] = []
    missing: list[MissingPartition] = []
    whole = None if log or topic or partition else data
    with (
        open_logs(data, log, topic, partition, missing=missing) as topics,
        open_groups_log(whole) as offsets,
    ):
        logs = [*topics.logs, *([NamedLog(GROUPS_LOG, 0, offsets)] if offsets is not None else [])]
        total = sum(place.log.size_bytes for place in logs)
        with ProgressBar("verifying", total, "bytes") as progress:
            rows = list(_checked(logs, problems, progress))
        note_remote(logs)
    for each in missing:
        problem = Problem(f"topics/{each.topic}/partition-{each.partition}", 0, str(each), None)
        counts = dict.fromkeys(_VERIFY_COUNTS, 0)
        rows.append({"topic": each.topic, "partition": each.partition, **counts, "problems": [problem]})
    printer.rows(rows, _VERIFY_COLUMNS, empty="nothing to verify: no topics")
    if problems or missing:
        for each in missing:
            note(f"!! {each}")
        for problem in problems:
            after = problem.next_offset
            note(f"!! {problem}" if after is None else f"!! {problem}; reading continues at offset {after}")
        if not is_address(data):
            note("`sawlog inspect FILE` shows the damaged bytes, `sawlog repair --plan` what can be repaired")
        raise typer.Exit(CORRUPT)


def _check_whole(data: str, printer: Printer) -> None:
    """Exit if a store on object storage has lost commits or its `sawlog.json`: it may not open, or lack its end."""
    from ..store.objects.bucket import Bucket  # slow to import
    from ..store.objects.repair import diagnose

    found = diagnose(Bucket(data))
    if not found.is_repairable:
        return
    wrong = [str(each) for each in found.findings]
    row = {"topic": "(store)", "partition": None, **dict.fromkeys(_VERIFY_COUNTS, 0)}
    printer.rows([{**row, "problems": wrong}], _VERIFY_COLUMNS)
    for each in wrong:
        note(f"!! {each}")
    note(f"`sawlog repair -d {data}` shows how to return to the last consistent state")
    raise typer.Exit(CORRUPT)


def _checked(logs: Sequence[NamedLog], problems: list[Problem], progress: ProgressBar) -> Iterator[dict[str, Any]]:
    for place in logs:
        report = place.log.verify()
        problems += report.problems
        progress.advance(report.size_bytes)
        row = {"topic": place.topic, "partition": place.partition}
        yield row | {name: getattr(report, name) for name in _VERIFY_COUNTS} | {"problems": report.problems}


_REPAIR_COLUMNS = columns("topic partition what action detail")


def repair(
    topic: MaybeTopic = None,
    data: MaybeData = None,
    log: LogDir = None,
    partition: Partitions = None,
    apply: bool = flag("--apply/--plan", "Repair after making a copy, or only show the plan."),
    backup: Path | None = option("--backup DIR", "Where --apply puts the copies.  [default: next to the store]"),
    output: Output = "table",
) -> None:
    """Show what opening a log for writing would repair (--plan), or do it after making a copy (--apply).

    A torn tail, the incomplete end of a file that a crash can leave, is saved to a separate file and truncated. Indexes
    and checkpoints are rebuilt. Where segments or their ends are missing, the offsets of the lost records stay
    reserved, and `sawlog verify` lists them from then on. Damaged data is never deleted: its bytes stay in place, the
    records around it stay readable, and new records are appended after it. --plan is the default and writes nothing.
    Exits with 4 if damage remains, or would remain, after the repair.

    A store on object storage that has lost commits or its sawlog.json returns to the last consistent state before the
    loss. The plan lists what is lost, and exits with 4 if there is anything to repair. --apply moves unusable objects
    to the folder before-repair-TIME of the bucket; no process may use the store meanwhile.

    \b
    Examples:
      sawlog repair -d data
      sawlog repair -d s3://bucket/store
      sawlog repair orders -d data -p 0 --apply
      sawlog repair --log data/topics/orders/partition-0 --apply --backup /mnt/spare
    """
    printer = Printer(output)
    if is_address(data) and log is None:
        if topic or partition or backup:
            raise typer.BadParameter(f"{data} is repaired as a whole, without a topic, -p or --backup")
        _repair_bucket(data, printer, apply=apply)
        return
    left = 0
    rows: list[dict[str, Any]] = []
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    for name, number, path, config in _wanted(data, log, topic, partition):
        recovery, checked = _recover(Overlay(str(path)), config)
        changes = any(each.action not in (Action.IGNORE, Action.REPORT) for each in recovery.findings)
        if apply and (changes or not list(path.glob(f"*{LOG}"))):  # nothing to repair: change nothing
            recovery, checked = _apply(path, config, _copy_of(path, data, log, backup, stamp))
        rows += _repair_rows({"topic": name, "partition": number}, recovery, checked)
        left += len(recovery.corruption) + len(checked.problems)
    verb = "repaired" if apply else "to repair"
    printer.rows(rows, _REPAIR_COLUMNS, empty=f"nothing {verb}: no problems found")
    if left:
        note("damaged data remains; reading it reports where to continue, and `sawlog inspect FILE` shows the bytes")
        raise typer.Exit(CORRUPT)
    if rows and not apply and printer.for_people:
        note("this is the plan; --apply carries it out, after copying the directory. If a process is writing there")
        note("now, a torn end may be its unfinished write: run the command again to check")


def _repair_bucket(data: str, printer: Printer, *, apply: bool) -> None:
    from ..store.objects import repair as objects  # slow to import
    from ..store.objects.bucket import Bucket

    bucket = Bucket(data)
    found = objects.diagnose(bucket)
    findings = found.findings
    if apply and found.is_repairable:
        folder = f"before-repair-{datetime.now().astimezone().strftime('%Y%m%d-%H%M%S')}"
        objects.repair(bucket, found, folder)
        if found.stray:
            note(f"{counted(len(found.stray), 'object')} moved to {data}/{folder}")
        found = objects.diagnose(bucket)
    printer.rows(findings, _REPAIR_COLUMNS, empty=f"nothing {'repaired' if apply else 'to repair'}: no problems found")
    if found.is_missing_objects:
        note("records remain whose objects are gone; reading them raises an error")
    if found.is_repairable and printer.for_people:
        note("this is the plan; --apply carries it out. Stop every process that uses the store first, and bring back")
        note("what is missing from a version or a copy of the bucket if there is one: then nothing is lost")
    if found.is_missing_objects or found.is_repairable:
        raise typer.Exit(CORRUPT)


def _wanted(
    data: str | None, log: Path | None, topic: str | None, partitions: list[int] | None
) -> list[tuple[str, int, Path, LogConfig]]:
    """Return (topic, partition, directory, settings) of each selected log. Nothing stays open."""
    check_store_or_log(data, log, topic)
    if log is not None:
        with Log.open(log, mode="r") as found:
            return [(log.resolve().name, 0, Path(found.path), found.config)]
    assert data is not None
    wanted = []
    with open_directory(data) as store:
        for name in store.topics() if topic is None else [topic]:
            one = store.topic(name)
            for number in chosen(one, partitions):
                path = Path(data) / TOPICS / name / partition_name(number)  # it may be too damaged to open
                wanted.append((name, number, path.absolute(), log_config(one.settings)))
    with open_groups_log(None if topic or partitions else data) as groups:
        if groups is not None:
            wanted.append((GROUPS_LOG, 0, Path(groups.path).absolute(), LogConfig()))
    return wanted


def _copy_of(path: Path, data: str | None, log: Path | None, backup: Path | None, stamp: str) -> Path:
    """Return the directory to copy a log to: below --backup, or next to the store or log."""
    whole = Path(log or data or "").resolve()
    inside = path.resolve().name if log is not None else path.resolve().relative_to(whole)
    return (backup or whole.parent / f"{whole.name}.before-repair-{stamp}") / inside


def _apply(path: Path, config: LogConfig, target: Path) -> tuple[RecoveryReport, VerifyReport]:
    """Copy, then recover. The lock is held while copying, so that the files do not change."""
    directory = FileDirectory(str(path), create=False)
    held = directory.lock(LOCK)
    try:
        held.leave(held.found)  # the last turn's note, for the recovery that follows and for the copy
        shutil.copytree(path, target, symlinks=True)
    finally:
        held.release()
        directory.close()
    note(f"{path}: copied to {target}")
    return _recover(path, config)


def _recover(place: Path | Overlay, config: LogConfig) -> tuple[RecoveryReport, VerifyReport]:
    with Log.open(place, config) as log:
        return log.recovery, log.verify()


def _repair_rows(place: dict[str, Any], recovery: RecoveryReport, checked: VerifyReport) -> Iterator[dict[str, Any]]:
    for finding in recovery.findings:
        if finding.action is not Action.IGNORE:  # not a file of sawlog
            yield {**place, "what": finding.where.value, "action": finding.action.value, "detail": finding.detail}
    reported = "\n".join(each.detail for each in recovery.findings)
    for problem in checked.problems:
        if f"{problem.path} at byte {problem.position}" not in reported:
            after = problem.next_offset
            on = "nothing readable follows" if after is None else f"reading continues at {after}"
            action = Action.REPORT.value
            yield {**place, "what": "damage found by verify", "action": action, "detail": f"{problem}; {on}"}


# --- the overlay


class Overlay(MemoryDirectory):
    """A directory that reads from disk and writes to memory. Writes, truncations, renames and deletions stay in
    memory and are discarded; no lock is taken on disk and no file changes."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._below = FileDirectory(path, create=False)
        self._gone: set[str] = set()

    def names(self) -> list[str]:
        return sorted((set(self._below.names()) - self._gone) | self._files.keys())

    def exists(self, name: str) -> bool:
        return name in self._files or (name not in self._gone and self._below.exists(name))

    def _find(self, name: str) -> MemoryStorage:
        if name not in self._files and name not in self._gone:
            self._files[name] = ScratchStorage(self, name, self._below.open_shared(name))
        return super()._find(name)

    def identity(self, name: str) -> object:
        return self._find(name) if self.exists(name) else None

    def create(self, name: str) -> Storage:
        if self.exists(name):
            raise StorageError(errno.EEXIST, f"{self.path}/{name} already exists")
        return super().create(name)

    def move(self, name: str, target: Directory, new: str) -> None:
        super().move(name, target, new)
        self._gone.add(name)

    def remove(self, name: str) -> None:
        super().remove(name)
        self._gone.add(name)

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Return the value published on disk; new values stay in memory."""
        if name not in self._published:
            made = self._published[name] = PublishedMemory()
            found = open_published(self._below, name)
            if found is not None and (numbers := found.load()) is not None:
                made.store(*numbers)
        return self._published[name]

    def close(self) -> None:
        self._below.close()


class ScratchStorage(MemoryStorage):
    """The first bytes of a file on disk, followed by bytes in memory."""

    views_are_free = False

    def __init__(self, directory: Overlay, name: str, below: Storage) -> None:
        super().__init__(directory, name)
        self._below = below
        self._kept = below.size

    def _second(self, directory: MemoryDirectory, name: str) -> MemoryStorage:
        raise StorageError(errno.EXDEV, f"{self.name} cannot have a second name in an overlay")

    @property
    def size(self) -> int:
        return self._kept + self._size

    def append(self, data: Buffer) -> int:
        return self._kept + super().append(data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in memory, after copying everything from `position` on into memory."""
        rest = bytearray(self.read(position, self.size - position))
        rest[: len(data)] = data
        self.truncate(position)
        self.append(rest)

    def view(self, position: int, size: int) -> memoryview:
        if position < 0 or size < 0 or position + size > self.size:
            raise ReadBeyondEnd(f"{self.name} has {self.size} bytes; cannot read {size} bytes at {position}")
        if position >= self._kept:
            return super().view(position - self._kept, size)
        if position + size <= self._kept:
            return self._below.view(position, size)
        head = self._below.read(position, self._kept - position)
        return memoryview(head + bytes(super().view(0, size - len(head))))

    def truncate(self, size: int) -> None:
        super().truncate(max(size - self._kept, 0))
        self._kept = min(self._kept, size)


# --- maintenance

_ACTIONS = ("retention", "compaction", "merge", "recompression", "scrub", "tiering")


def maintenance(data: Data, topic: MaybeTopic = None, output: Output = "table") -> None:
    """Run retention, compaction, merging, recompression and scrubbing now, according to the topics' settings.

    Retention deletes segments that are too old or exceed the size limit. Compaction keeps the last record of each key,
    in topics with cleanup.policy=compact. Merging joins small segments, and recompression rewrites old ones with
    zstd. Scrubbing reads old segments again to find damage; the command exits with 4 if there is any.
    Segments that the replica holds are removed locally once they exceed local.retention.ms or local.retention.bytes.

    A process that keeps the store open for writing does all of this in the background. Partitions that another process
    is writing to are skipped.

    \b
    Examples:
      sawlog maintenance -d data
      sawlog maintenance orders -d data --output json
    """
    rows: list[dict[str, Any]] = []
    damage: list[str] = []
    with open_any(data, "w") as store:
        names = [topic] if topic is not None else store.topics()
        for name in names:
            one = store.topic(name)
            reports = one.maintain()
            if not is_address(data) and len(reports) < one.partitions:
                left = one.partitions - len(reports)
                note(f"{one.name}: skipped {left} of {one.partitions} partitions: another process is writing to them")
            for report in reports:
                if report or output != "table":
                    actions = {name: getattr(report, name) for name in ("path", *_ACTIONS, "duration_ms")}
                    rows.append({"topic": one.name, "done": str(report), **actions})
            damage += [str(each) for report in reports if report.scrub for each in report.scrub.problems]
    shown = columns("topic", Column("done", cut=False))
    if output != "table":
        shown = columns("topic path", *_ACTIONS, "duration_ms")
    Printer(output).rows(rows, shown, empty="nothing to do")
    for each in damage:
        note(f"!! {each}")
    if damage:
        raise typer.Exit(CORRUPT)
