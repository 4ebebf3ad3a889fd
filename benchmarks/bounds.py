"""Costs that must not grow with the log: memory, and the time to open it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bench import Bench, Case
from dataset import Dataset
from ours import Sawlog
from rounds import Candidate, Trial, best_of, expect, timed
from rows import Bar, Figure, Row, Unit, at_most

import sawlog

PEAK = Path(__file__).with_name("peak.py")
MIB = 1 << 20


def _peak(what: str, path: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PEAK), what, str(path), *more], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _log_on_disk(bench: Bench, data: Dataset, **settings: Any) -> Iterator[Path]:
    """A log with these records, closed cleanly."""
    path = bench.path()
    try:
        store = Sawlog(path, **settings)
        store.append_many(store.prepared(data))
        store.close()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _scans(bench: Bench) -> list[Row]:
    data = Dataset(1024, bench.scaled(2_000_000, 500_000))
    rows: list[Row] = []
    with _log_on_disk(bench, data) as path:
        for what, name in (("records", "records"), ("arrow", "Arrow"), ("views", "Arrow views")):
            found = _peak(what, path)
            expect(found["done"], [list(data.content)] * 2, f"scan to {name} in its own process")
            peak = Figure(Unit.MEMORY, found["peak_bytes"])
            size = data.payload_bytes / 1e9
            rows.append(Row(f"memory: {size:.1f} GB to {name}", peak, bar=at_most(Unit.MEMORY, 150e6)))
    return rows


def _stream(bench: Bench) -> list[Row]:
    mib, path = bench.scaled(1000, 300), bench.path()
    try:
        found = _peak("stream", path, str(mib))
    finally:
        shutil.rmtree(path, ignore_errors=True)
    expect(found["done"], [[1, mib * MIB]], "streamed append in its own process")
    peak = Figure(Unit.MEMORY, found["peak_bytes"])
    return [Row(f"memory: append_stream of {mib} MiB", peak, bar=at_most(Unit.MEMORY, 32e6))]


def _opening(path: Path, mode: Literal["r", "w"], name: str, segments: int) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        opened: list[sawlog.Log] = []

        def work() -> None:
            opened.append(sawlog.Log.open(path, sawlog.LogConfig(durability="os"), mode=mode))

        def check() -> None:
            expect(len(opened[0].segments), segments + 1, "segments")
            expect(opened[0].recovery.clean, True, "orderly close")

        try:
            yield Trial(lambda: timed(work), check)
        finally:
            for log in opened:
                log.close()

    return Candidate(name, trial)


def _opens(bench: Bench) -> list[Row]:
    """Two batches of 1,000 fill a segment, and the last, active one."""
    segments = bench.scaled(200, 50)  # making them takes longer than anything else here
    data = Dataset(100, (segments + 1) * 2000)
    with _log_on_disk(bench, data, segment_bytes=250_000) as path:
        candidates = [_opening(path, "w", "to write", segments), _opening(path, "r", "to read", segments)]
        best = best_of(candidates, bench.effort)
    bars: dict[str, Bar] = {"to write": at_most(Unit.SECONDS, 50e-3)}
    return [
        Row(
            f"open {segments} sealed segments {name}",
            Figure(Unit.SECONDS, sample.wall_s, sample.cpu_s),
            bar=bars.get(name),
        )
        for name, sample in best.items()
    ]


CASES = [Case("memory-scan", _scans), Case("memory-stream", _stream), Case("open", _opens)]
