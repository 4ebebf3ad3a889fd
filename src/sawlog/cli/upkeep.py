"""`sawlog upkeep`: do now what a running writer does from time to time: retention, compaction, merging, scrubbing."""

from __future__ import annotations

import dataclasses
from typing import Any

from .options import Data, MaybeTopic, Output
from .output import Column, Format
from .output import Output as Printer
from .places import open_store


def upkeep(data: Data, topic: MaybeTopic = None, output: Output = Format.TABLE) -> None:
    """Do now what the topics' settings ask for: retention, compaction, merging, scrubbing.

    A writer does this by itself from time to time. It needs the partitions' locks, so it says who has them if somebody
    else is writing.

    \b
    Examples:
      sawlog upkeep -d data
      sawlog upkeep orders -d data --output json
    """
    with open_store(data, "w") as store:
        reports = store.topic(topic).upkeep() if topic is not None else store.upkeep()
        rows = [_row(report) for report in reports]
    columns = [Column("what"), Column("detail", shown=_detail)]
    Printer(output).rows(rows, columns, empty="nothing was to be done")


def _row(report: Any) -> dict[str, Any]:
    what = type(report).__name__.removesuffix("Report").lower()
    detail = (
        dataclasses.asdict(report) if dataclasses.is_dataclass(report) and not isinstance(report, type) else str(report)
    )
    return {"what": what, "detail": detail}


def _detail(detail: Any) -> str:
    if not isinstance(detail, dict):
        return str(detail)
    return ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in detail.items())


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
