"""Output of a benchmark: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rows import Figure, Row, shown_ratio

_WIDTH = 132


def show(rows: Sequence[Row], machine: dict[str, str]) -> None:
    """Everything to standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_WIDTH, highlight=False)
    for name, text in machine.items():
        console.print(f"{name:10} {text}", style="dim")
    console.print(_table(rows))
    for note in notes(rows):
        console.print(f"note: {note}")
    console.print(summary(rows))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    table.add_column("ours", justify="right")
    table.add_column("against")
    table.add_column("rival", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("by CPU", justify="right")
    table.add_column("bar", justify="right")
    table.add_column("verdict")
    for row in rows:
        table.add_row(
            row.what,
            str(row.ours),
            row.against,
            "" if row.rival is None else str(row.rival),
            _ratio(row.ratio, row),
            _ratio(row.cpu_ratio, row),
            "" if row.bar is None else str(row.bar),
            _verdict(row),
        )
    return table


def _ratio(ratio: float | None, row: Row) -> str:
    return "" if ratio is None else shown_ratio(ratio, percent=row.percent)


def _verdict(row: Row) -> str:
    if row.met is None:
        return ""
    return "[green]met[/]" if row.met else "[red]missed[/]"


def notes(rows: Sequence[Row]) -> list[str]:
    """List the rows for which wall time and CPU time give different verdicts."""
    return [
        f"{row.what}{f' against {row.against}' if row.against else ''}: {_word(row.met)} by the wall clock, "
        f"{_word(row.met_by_cpu)} by CPU time; the machine may have been busy"
        for row in rows
        if row.met_by_cpu is not None and row.met != row.met_by_cpu
    ]


def _word(met: bool | None) -> str:
    return "met" if met else "missed"


def summary(rows: Sequence[Row]) -> str:
    """Count the targets that are met, by either clock."""
    judged = [row for row in rows if row.met is not None]
    by_cpu = [row for row in judged if row.met_by_cpu is not None]
    text = f"{sum(bool(row.met) for row in judged)} of {len(judged)} bars met"
    if by_cpu:
        text += f"; by CPU time {sum(bool(row.met_by_cpu) for row in by_cpu)} of the {len(by_cpu)} that it can judge"
    return text


def save(path: Path, rows: Sequence[Row], machine: dict[str, str]) -> None:
    """Save all rows as JSON in plain units: records or bytes per second, seconds, bytes."""
    document = {"machine": machine, "rows": [_as_dict(row) for row in rows], "summary": summary(rows)}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _as_dict(row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        "against": row.against or None,
        "unit": row.ours.unit.value,
        "ours": _numbers(row.ours),
        "rival": None if row.rival is None else _numbers(row.rival),
        "ratio": row.ratio,
        "cpu_ratio": row.cpu_ratio,
        "bar": None if row.bar is None else str(row.bar),
        "met": row.met,
        "met_by_cpu": row.met_by_cpu,
    }


def _numbers(figure: Figure) -> dict[str, float | None]:
    return {"wall": figure.wall, "cpu": figure.cpu}
