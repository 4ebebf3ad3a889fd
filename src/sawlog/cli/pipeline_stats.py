"""`sawlog pipeline stats`: count the records of topics on Spark, as a table and as charts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .charts import BarChart, Chart, NoPlot, Plot, TimeChart, check_plot, show_charts
from .jobs import running_job, seconds
from .options import DirectoryData, MaybeTopic, Output
from .output import Column, OutputFormat
from .output import Output as Printer
from .units import format_count, format_size, format_time

if TYPE_CHECKING:
    from ..pipelines.stats import StatsReport

_COLUMNS = [
    Column("topic"),
    Column("partition", shown=lambda number: "all" if number is None else str(number)),
    Column("records", shown=format_count),
    Column("bytes", "keys and values", format_size),
    Column("size_bytes", "on disk", format_size),
    Column("keys", "keys (approx.)", format_count),
    Column("without_key", shown=format_count),
    Column("oldest", shown=format_time),
    Column("newest", shown=format_time),
]


def stats(
    data: DirectoryData,
    topic: MaybeTopic = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="The step of the rates, such as 1m or 1h.  [default: chosen by the time span]",
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="DIR", help="Write partitions.parquet and rates.parquet to this directory."),
    ] = None,
    plot: Plot = None,
    no_plot: NoPlot = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Count records, bytes and distinct keys, and compute rates over time, record by record and in parallel.

    \b
    Examples:
      sawlog pipeline stats -d data
      sawlog pipeline stats orders -d data --every 1h --plot orders.svg --parquet report
    """
    from ..pipelines import stats as job

    check_plot(plot)
    params = job.StatsParams(str(data), topic, seconds(every), None if parquet is None else str(parquet))
    job.check_params(params)
    with running_job("counting", None, "records") as (spark, advance):
        report = job.run(spark, params, advance)
    printer = Printer(output)
    if output in (OutputFormat.JSON, OutputFormat.NDJSON):
        printer.item(dataclasses.asdict(report))
    else:
        rows = map(dataclasses.asdict, report.partitions)
        printer.rows(rows, _COLUMNS, empty="nothing to count: no topics")
    charts = _charts(report, topic)
    show_charts(charts, printer, plot, no_plot=no_plot)


def _charts(report: StatsReport, topic: str | None) -> list[Chart]:
    """Return charts of the rate over time and of the records per partition."""
    each = [row for row in report.partitions if row.partition is not None]
    if not each:
        return []
    one = len({row.topic for row in each}) == 1
    names = [f"partition {row.partition}" if one else f"{row.topic}/{row.partition}" for row in each]
    bars = BarChart("Records by partition", "records", names, [float(row.records) for row in each], format_count)
    if not report.rates:
        return [bars]
    first, step = min(rate.time for rate in report.rates), report.step_ms
    values = [0.0] * ((max(rate.time for rate in report.rates) - first) // step + 1)
    for rate in report.rates:
        values[(rate.time - first) // step] += rate.records / step * 1000
    title = f"Records of {topic or 'all topics'} over time"
    return [TimeChart(title, "records/s", first, step, values), bars]
