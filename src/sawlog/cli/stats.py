"""`sawlog stats`: show sizes, counts and rates of partitions, as rows and as charts.

Sizes and counts are those of whole batches. A range of times counts the batches that have records in it. For the rate,
the records of a batch are spread evenly from its oldest timestamp to its newest, so the resolution is that of batches.
"""

from __future__ import annotations

from collections import Counter
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
class Tally:
    """The totals of one partition."""

    place: NamedLog
    #: For each batch: oldest and newest timestamp, number of records, size in bytes.
    begins: Any
    times: Any
    counts: Any
    sizes: Any
    oldest: int | None
    codecs: Counter[str]


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
        tallies = [_tally(place, span) for place in opened.logs]
        rows = [_row(each, has_segments=not opened.is_remote) for each in tallies]
        note_remote(opened.logs)
    rate = _rate(tallies, _FILE_STEPS if plot is not None else columns_wanted(terminal_columns()), topic)
    whole = {"partitions": rows, "rate": _rate_rows(rate)}
    printer.object_or_rows(whole, rows, _COLUMNS, empty="nothing to count: no topics")
    charts: list[Chart] = [chart for chart in (rate, _sizes(tallies)) if chart is not None]
    show_charts(charts, printer, plot, no_plot=no_plot)


def _tally(place: NamedLog, span: Span) -> Tally:
    start, end = resolve(span, place.log)
    since, until = span.times or (-1, 2**63)
    begins, times, counts, sizes, oldest, codecs = [], [], [], [], [], Counter[str]()
    while start < end:
        try:
            fetched = place.log.fetch(start, _FETCH_BYTES, isolation="uncommitted")
        except RemoteUnavailable as error:
            note(f"{place.name}: not counted: {error}")
            start = max(getattr(place.log, "_local_offset", end), start + 1)
            continue
        except CorruptBatch as error:
            note(f"{place.name}: {error}")
            if error.next_offset is None or error.next_offset <= start:
                break
            start = error.next_offset
            continue
        if fetched.next_offset <= start:
            break
        for buffer in fetched.buffers:
            rows = rows_of(buffer)
            rows = rows[(rows[:, BASE] < end) & (rows[:, LAST] >= start)]
            first = _oldest(buffer, rows)
            if span.times is not None:
                inside = (rows[:, MAX_TIME] >= since) & (first < until)
                rows, first = rows[inside], first[inside]
            begins.append(_begins(rows, first))
            times.append(rows[:, MAX_TIME])
            counts.append(rows[:, COUNT])
            sizes.append(rows[:, SIZE])
            oldest.append(first[(first >= 0) & (rows[:, COUNT] > 0)])
            numbers, found = np.unique(rows[:, ATTRIBUTES] & COMPRESSION_MASK, return_counts=True)
            for number, count in zip(numbers.tolist(), found.tolist(), strict=True):
                codecs[codec_name(number)] += count
        start = fetched.next_offset
    least = [int(each.min()) for each in oldest if len(each)]
    starts, ends = _joined(begins), _joined(times)
    return Tally(place, starts, ends, _joined(counts), _joined(sizes), min(least) if least else None, codecs)


def _oldest(buffer: memoryview, rows: Rows) -> Any:
    """Return the smallest timestamp of each batch, or the first record's if a batch cannot be read."""
    try:
        return oldest_times(buffer, rows, LogConfig().max_decompressed_bytes)
    except CorruptBatch:
        return rows[:, BASE_TIME].copy()


def _begins(rows: Rows, first: Any) -> Any:
    """Return the oldest timestamp of each batch; its newest if the log set the timestamp or the oldest is unknown."""
    newest = rows[:, MAX_TIME]
    stamped = (rows[:, ATTRIBUTES] & TIMESTAMP_TYPE_BIT) != 0
    return np.where(stamped | (first < 0) | (first > newest), newest, first)


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _row(tally: Tally, *, has_segments: bool) -> dict[str, Any]:
    records, size = int(tally.counts.sum()), int(tally.sizes.sum())
    newest = int(tally.times.max()) if len(tally.times) else None
    return {
        "topic": tally.place.topic,
        "partition": tally.place.partition,
        "records": records,
        "batches": len(tally.times),
        "size_bytes": size,
        "segments": len(tally.place.log.segments) if has_segments else None,
        "record_bytes": round(size / records, 1) if records else None,
        "codecs": " ".join(sorted(tally.codecs)),
        "oldest": tally.oldest,
        "newest": newest,
    }


def _rate(tallies: list[Tally], steps: int, topic: str | None) -> TimeChart | None:
    """Return the records per second over time, or None if there are no timestamps. Timestamps beyond the range of the
    calendar are ignored."""
    begins, times, counts = (
        _joined([getattr(each, name) for each in tallies]) for name in ("begins", "times", "counts")
    )
    timed = (times >= 0) & (times <= LATEST_MS)
    begins, times, counts = begins[timed], times[timed], counts[timed]
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


def _sizes(tallies: list[Tally]) -> BarChart | None:
    if not tallies:
        return None
    one_topic = len({each.place.topic for each in tallies}) == 1
    names = [f"partition {each.place.partition}" if one_topic else each.place.name for each in tallies]
    sizes = [float(each.sizes.sum()) for each in tallies]
    return BarChart("Size by partition", "bytes", names, sizes, size_text, binary=True)
