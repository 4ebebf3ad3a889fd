"""`sawlog maintenance`: run retention, compaction, merging, recompression and scrubbing now."""

from __future__ import annotations

from typing import Any

import typer

from ..log.maintenance import MaintenanceReport
from .codes import CORRUPT
from .options import Data, MaybeTopic, Output
from .output import Column, OutputFormat, note
from .output import Output as Printer
from .places import Address, open_any

_ACTIONS = ("retention", "compaction", "merge", "recompression", "scrub", "tiering")


def maintenance(data: Data, topic: MaybeTopic = None, output: Output = OutputFormat.TABLE) -> None:
    """Run retention, compaction, merging, recompression and scrubbing now, according to the topics' settings.

    Segments that the replica holds are removed locally once they exceed local.retention.ms or local.retention.bytes. A
    process that keeps the store open does all of this in the background. Partitions that another process is writing to
    are skipped. Exits with 4 if scrubbing finds damage.

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
            if not isinstance(data, Address) and len(reports) < one.partitions:
                left = one.partitions - len(reports)
                note(f"{one.name}: skipped {left} of {one.partitions} partitions: another process is writing to them")
            rows += [_row(one.name, report) for report in reports if report or output is not OutputFormat.TABLE]
            damage += [str(each) for report in reports if report.scrub for each in report.scrub.problems]
    columns = [Column("topic"), Column("path", cut=False), *map(Column, _ACTIONS), Column("duration_ms")]
    if output is OutputFormat.TABLE:
        columns = [Column("topic"), Column("done", cut=False)]
    Printer(output).rows(rows, columns, empty="nothing to do")
    for each in damage:
        note(f"!! {each}")
    if damage:
        raise typer.Exit(CORRUPT)


def _row(topic: str, report: MaintenanceReport) -> dict[str, Any]:
    actions = {name: getattr(report, name) for name in _ACTIONS}
    return {"topic": topic, "path": report.path, "done": str(report), **actions, "duration_ms": report.duration_ms}
