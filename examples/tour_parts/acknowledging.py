"""Act three: the cost of durable appends, by one caller and by many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

from sawlog import Log

from .disk import CountingDirectory
from .screen import Screen, duration

TASKS, EACH, ALONE = 256, 40, 100


def play(screen: Screen, path: Path) -> None:
    """Append durably, record by record: from one caller, then from many."""
    screen.act(
        "Acknowledge",
        f"Each append returns only when its record survives a power cut. First one caller, then {TASKS} asyncio "
        "tasks that share each fdatasync (group commit).",
    )
    directory = CountingDirectory(path)
    with Log.open(directory) as log:
        before, began = directory.syncs, perf_counter()
        acknowledged = [_now_durable(log, log.append(b"receipt %d" % number)) for number in range(ALONE)]
        alone = screen.result("durable append, one caller", ALONE, "records", perf_counter() - began)
        alone_syncs = directory.syncs - before

        before, began = directory.syncs, perf_counter()
        acknowledged += asyncio.run(_together(log))
        together = screen.result(f"durable append, {TASKS} tasks", TASKS * EACH, "records", perf_counter() - began)
        together_syncs = directory.syncs - before

    rows = [
        (who, f"{each.count:,}", f"{syncs:,}", f"{each.count / max(syncs, 1):,.0f}", duration(each.seconds),
         f"{each.per_second:,.0f}")
        for who, each, syncs in (("one caller", alone, alone_syncs), (f"{TASKS} tasks", together, together_syncs))
    ]  # fmt: skip
    screen.table(("", "acknowledged", "fdatasyncs", "per sync", "time", "per second"), rows)
    offsets = sorted(offset for offset, _ in acknowledged)
    screen.check(
        offsets == list(range(ALONE + TASKS * EACH)),
        f"{len(offsets):,} acknowledgements: offsets 0 to {offsets[-1]:,}, each of them once",
    )
    screen.check(
        all(durable > offset for offset, durable in acknowledged) and alone_syncs >= ALONE,
        "at each acknowledgement the durable watermark was past the record",
    )


def _now_durable(log: Log, offset: int) -> tuple[int, int]:
    """A record's offset, and the durable offset of the log when the record was acknowledged."""
    return offset, log.durable_offset


async def _together(log: Log) -> list[tuple[int, int]]:
    async def task(number: int) -> list[tuple[int, int]]:
        texts = [b"task %d, receipt %d" % (number, turn) for turn in range(EACH)]
        return [_now_durable(log, await log.append_async(text)) for text in texts]

    return [each for of_task in await asyncio.gather(*map(task, range(TASKS))) for each in of_task]
