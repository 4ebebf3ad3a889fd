"""Act four: kill a writer in the middle of an append, and recover."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from sawlog import Log

from . import doomed
from .screen import Screen, duration, size

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Killed:
    """The writer's output when it died, and how it died."""

    acknowledged: list[int]
    exit_code: int
    errors: str


def play(screen: Screen, path: Path) -> None:
    """Kill, reopen, compare."""
    screen.act(
        "Kill",
        "Another process appends durably and reports each acknowledged offset through a pipe. In the middle of a "
        "long record that it streams, it gets SIGKILL: no handler, no farewell.",
    )
    with screen.waiting("   a writer is at work, not knowing ..."):
        killed = _kill_a_writer(path)
    said = len(killed.acknowledged)
    screen.check(
        killed.exit_code == -signal.SIGKILL and said > 0,
        f"the writer had acknowledged {said:,} records when SIGKILL ended it"
        if killed.exit_code == -signal.SIGKILL
        else f"the writer ended by itself with {killed.exit_code}: {killed.errors}",
    )
    began = perf_counter()
    with Log.open(path) as log:
        screen.result("recover after SIGKILL", len(log), "records", perf_counter() - began)
        _explain(screen, log)
        there = [offset for offset in killed.acknowledged if _holds(log, offset)]
        screen.check(
            there == killed.acknowledged == list(range(said)),
            f"all {len(there):,} acknowledged records are there, byte for byte",
        )
        screen.check(bool(log.recovery), "recovery found no corruption: nothing that was promised is lost")
        offset = log.append(b"life goes on")
        screen.check(log.read(offset).value == b"life goes on", f"and the log goes on at offset {offset:,}")


def _kill_a_writer(path: Path) -> Killed:
    """Start the writer, kill it in the middle of a long record, and read the rest of its output."""
    command = [sys.executable, "-W", "ignore::RuntimeWarning", doomed.__file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stderr is not None
            heard: list[str] = []
            for line in writer.stdout:
                heard.append(line)
                if line == "stream\n" and heard.count(line) > doomed.FINISHED:
                    _wait_for_half_a_record(path, writer)
                    break
        finally:
            writer.kill()
        heard += writer.stdout.readlines()
        errors = writer.stderr.read().strip().rpartition("\n")[2]
    acknowledged = [int(line.split()[1]) for line in heard if line.startswith("ack ") and line.endswith("\n")]
    return Killed(acknowledged, writer.returncode, errors)


def _wait_for_half_a_record(path: Path, writer: subprocess.Popen[str]) -> None:
    """Wait until a good part of the long record is in the file."""
    before = _log_bytes(path)
    enough = before + len(doomed.CHUNK) * doomed.CHUNKS // 3
    give_up = time.monotonic() + _PATIENCE_S
    while _log_bytes(path) < enough and writer.poll() is None and time.monotonic() < give_up:
        time.sleep(0.001)


def _log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.log"))


def _holds(log: Log, offset: int) -> bool:
    return offset < log.next_offset and log.read(offset).value == doomed.value_at(offset)


def _explain(screen: Screen, log: Log) -> None:
    """Show `log.recovery` as a table."""
    report = log.recovery
    facts = [("closed cleanly", "yes" if report.clean else "no")]
    for finding in report.findings:
        facts.append(("found", f"{finding.detail.replace(f'{log.path}/', '')}, {finding.where.value}"))
        facts.append(("done", finding.action.value))
    facts.append(("cut", f"{size(report.truncated_bytes)} of a record that nobody was told about"))
    facts.append(("kept aside", ", ".join(report.torn_files) or "nothing"))
    facts.append(("kept", f"offsets {log.lowest_offset} to {log.next_offset - 1}, {size(log.size_bytes)}"))
    facts.append(("took", duration(report.duration_ms / 1000)))
    screen.line()
    screen.facts(*facts)
