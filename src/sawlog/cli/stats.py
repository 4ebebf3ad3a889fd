"""`sawlog stats`: show sizes, counts and rates of partitions, as rows and as charts.

Sizes and counts are those of whole batches. A range of times counts the batches that have records in it. For the rate,
the records of a batch are spread evenly from its oldest timestamp to its newest, so the resolution is that of batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..batch.compression import codec_name
from ..batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_TIME,
    COMPRESSION_MASK,
    COUNT,
    LAST,
    MAX_TIME,
    SIZE,
    TIMESTAMP_TYPE_BIT,
    Rows,
)
from ..config import LogConfig
from ..display import count_text, size_text, time_text
from ..errors import CorruptBatch, RemoteUnavailable
from ..log.ingest import rows_of
from ..log.summaries import oldest_times
from .charts import (
    LATEST_MS,
    BarChart,
    Chart,
    NoPlot,
    Plot,
    TimeChart,
    check_plot,
    columns_wanted,
    show_charts,
    terminal_columns,
)
from .options import BrokerAt, LogDir, MaybeData, MaybeTopic, Output, Partitions, option, parsed
from .output import Column, Printer, columns, note
from .parsing import Span, parse, resolve
from .stores import NamedLog, note_remote, open_logs

_FETCH_BYTES = 8 << 20
_FILE_STEPS = 200


def _to_the_minute(ms: int | None) -> str:
    return time_text(ms)[:16]


_COLUMNS = columns(
    "topic partition records",
    Column("batches", shown=count_text, rank=4),
    "size_bytes",
    Column("segments", rank=5),
    Column("record_bytes", "bytes/record", lambda value: "" if value is None else f"{value:,.0f}", rank=3),
    Column("codecs", rank=6),
    Column("oldest", shown=time_text, brief=_to_the_minute, rank=2),
    Column("newest", shown=time_text, brief=_to_the_minute, rank=1),
)


@dataclass(frozen=True, slots=True)
class PartitionBatches:
    """The batches of one partition: one number per batch in each array."""

    log: NamedLog
    oldest: Any
    newest: Any
    counts: Any
    sizes: Any
    attributes: Any

    @property
    def begins(self) -> Any:
        """The oldest timestamp of each batch; its newest if the log set the timestamp or the oldest is unknown."""
        stamped = (self.attributes & TIMESTAMP_TYPE_BIT) != 0
        return np.where(stamped | (self.oldest < 0) | (self.oldest > self.newest), self.newest, self.oldest)


def stats(
    topic: MaybeTopic = None,
    data: MaybeData = None,
    broker: BrokerAt = None,
    log: LogDir = None,
    partition: Partitions = None,
    offset: str = option("--offset -o OFFSET", "Count only this range; the syntax is that of `sawlog read`.", "start"),
    plot: Plot = None,
    no_plot: NoPlot = False,
    output: Output = "table",
) -> None:
    """Show the size of each partition and the rate over time, with charts in the terminal or in a file.

    SVG needs nothing else installed; PNG needs matplotlib.

    \b
    Examples:
      sawlog stats -d data
      sawlog stats orders -d data -o @-1d: --plot orders.svg
      sawlog stats orders -d data --output json | jq '.rate'
    """
    check_plot(plot)
    span = parsed("--offset", offset, parse)
    printer = Printer(output)
    with open_logs(data, log, topic, partition, broker) as opened:
        partitions = [_batches_of(each, span) for each in opened.logs]
        rows = [_row(each, has_segments=not opened.is_remote) for each in partitions]
        note_remote(opened.logs)
    rate = _rate(partitions, _FILE_STEPS if plot is not None else columns_wanted(terminal_columns()), topic)
    whole = {"partitions": rows, "rate": _rate_rows(rate)}
    printer.object_or_rows(whole, rows, _COLUMNS, empty="nothing to count: no topics")
    charts: list[Chart] = [chart for chart in (rate, _sizes(partitions)) if chart is not None]
    show_charts(charts, printer, plot, no_plot=no_plot)


def _batches_of(log: NamedLog, span: Span) -> PartitionBatches:
    start, end = resolve(span, log.log)
    parts = [np.empty((0, 5), np.int64)]
    while start < end:
        try:
            fetched = log.log.fetch(start, _FETCH_BYTES, isolation="uncommitted")
        except RemoteUnavailable as error:
            note(f"{log.name}: not counted: {error}")
            start = max(getattr(log.log, "_local_offset", end), start + 1)
            continue
        except CorruptBatch as error:
            note(f"{log.name}: {error}")
            if error.next_offset is None or error.next_offset <= start:
                break
            start = error.next_offset
            continue
        if fetched.next_offset <= start:
            break
        for buffer in fetched.buffers:
            rows = rows_of(buffer)
            rows = rows[(rows[:, BASE] < end) & (rows[:, LAST] >= start)]
            oldest = _oldest(buffer, rows)
            if span.times is not None:
                inside = (rows[:, MAX_TIME] >= span.times[0]) & (oldest < span.times[1])
                rows, oldest = rows[inside], oldest[inside]
            parts.append(np.column_stack((oldest, rows[:, (MAX_TIME, COUNT, SIZE, ATTRIBUTES)])))
        start = fetched.next_offset
    return PartitionBatches(log, *np.concatenate(parts).T)


def _oldest(buffer: memoryview, rows: Rows) -> Any:
    """Return the smallest timestamp of each batch, or the first record's if a batch cannot be read."""
    try:
        return oldest_times(buffer, rows, LogConfig().max_decompressed_bytes)
    except CorruptBatch:
        return rows[:, BASE_TIME].copy()


def _row(found: PartitionBatches, *, has_segments: bool) -> dict[str, Any]:
    records, size = int(found.counts.sum()), int(found.sizes.sum())
    known = found.oldest[(found.oldest >= 0) & (found.counts > 0)]
    return {
        "topic": found.log.topic,
        "partition": found.log.partition,
        "records": records,
        "batches": len(found.newest),
        "size_bytes": size,
        "segments": len(found.log.log.segments) if has_segments else None,
        "record_bytes": round(size / records, 1) if records else None,
        "codecs": " ".join(sorted(map(codec_name, np.unique(found.attributes & COMPRESSION_MASK).tolist()))),
        "oldest": int(known.min()) if len(known) else None,
        "newest": int(found.newest.max()) if len(found.newest) else None,
    }


def _rate(partitions: list[PartitionBatches], steps: int, topic: str | None) -> TimeChart | None:
    """Return the records per second over time, or None if there are no timestamps. Timestamps beyond the range of the
    calendar are ignored."""
    if not partitions:
        return None
    batches = np.concatenate([np.column_stack((each.begins, each.newest, each.counts)) for each in partitions])
    begins, times, counts = batches[(batches[:, 1] >= 0) & (batches[:, 1] <= LATEST_MS)].T
    if not len(times):
        return None
    first, last = int(begins.min()), int(times.max())
    step = max(-(-(last - first + 1) // steps), 1)
    sums = spread(begins - first, times - first, counts, step)
    name = topic or "all topics"
    return TimeChart(f"Records of {name} over time", "records/s", first, step, (sums / step * 1000).tolist())


def spread(begins: Any, ends: Any, counts: Any, step: int) -> Any:
    """Return the records in each time step. The records of a batch are spread evenly over the milliseconds from its
    start to its end, inclusive."""
    size = int(ends.max()) // step + 1
    low, high = begins // step, ends // step
    each_ms = counts / (ends - begins + 1)
    inside = low == high
    sums = np.zeros(size)
    sums += np.bincount(low[inside], weights=counts[inside], minlength=size)
    low, high, each_ms = low[~inside], high[~inside], each_ms[~inside]
    sums += np.bincount(low, weights=each_ms * ((low + 1) * step - begins[~inside]), minlength=size)
    sums += np.bincount(high, weights=each_ms * (ends[~inside] + 1 - high * step), minlength=size)
    going, gone = (np.bincount(at, weights=each_ms, minlength=size + 1) for at in (low + 1, high))
    return np.maximum(sums + np.cumsum(going - gone)[:size] * step, 0)  # the steps that a batch covers completely


def _rate_rows(rate: TimeChart | None) -> list[dict[str, Any]]:
    if rate is None:
        return []
    return [
        {
            "time": rate.start_ms + number * rate.step_ms,
            "step_ms": rate.step_ms,
            "records_per_second": float(f"{value:.6g}"),  # one record per minute is 0.0167, not 0.017
        }
        for number, value in enumerate(rate.values)
    ]


def _sizes(partitions: list[PartitionBatches]) -> BarChart | None:
    if not partitions:
        return None
    one_topic = len({each.log.topic for each in partitions}) == 1
    names = [f"partition {each.log.partition}" if one_topic else each.log.name for each in partitions]
    sizes = [float(each.sizes.sum()) for each in partitions]
    return BarChart("Size by partition", "bytes", names, sizes, size_text, binary=True)
