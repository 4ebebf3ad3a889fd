"""`sawlog pipeline`: run jobs on Spark, with progress on stderr and a summary on stdout.

Each command takes the parameters of a job (`sawlog.pipelines`), runs it in the active session or in a new local one,
and prints its report. Spark is imported only when a job starts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..display import count_text, size_text, time_text
from ..units import duration_ms, size_bytes
from . import CORRUPT, INTERRUPTED
from .charts import BarChart, Chart, NoPlot, Plot, TimeChart, check_plot, show_charts
from .options import DirectoryData, MaybeTopic, Output, Topic, argument, flag, option, parsed
from .output import Column, OutputFormat, Printer, ProgressBar, columns, note
from .program import Command, command_group
from .stores import open_directory

if TYPE_CHECKING:
    from ..pipelines.stats import StatsReport


Every = Annotated[
    str | None,
    option("--every TIME", "Repeat at this interval, such as 30s or 5m, until Ctrl-C.  [default: run once]", ...),
]


def _run(job: Any, params: Any, title: str, total: int | None = None, unit: str = "records") -> Any:
    """Run a job of `sawlog.pipelines` and return its report. Errors that can be found without Spark, which is slow to
    start, are raised first."""
    from ..pipelines import running

    job.check_params(params)
    running.check_packages()
    if sys.stderr.isatty():
        note("starting Spark")
    spark = running.session()
    with ProgressBar(title, total, unit) as progress:
        return job.run(spark, params, progress.advance)


def seconds(given: str | None, hint: str = "--every") -> float | None:
    """Parse a duration, such as the interval of --every, to seconds."""
    found = parsed(hint, given, duration_ms)
    return None if found is None else found / 1000


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


pipelines = command_group("Run jobs on Spark: ingest, export, table, verify, repartition, stats.")


#: Columns of the counts and sizes in a report.
_REPORT_COLUMNS = columns(
    "records size_bytes",
    Column("size_bytes_before", "size before", size_text),
    Column("followed", "added meanwhile", count_text),
)
_SEGMENT_COLUMNS = columns("topic partition segment batches records size_bytes problems")


def _show(report: Any, output: OutputFormat) -> None:
    Printer(output).item(report, _REPORT_COLUMNS)
    if getattr(report, "stopped", False):
        raise typer.Exit(INTERRUPTED)


@pipelines.command(cls=Command)
def ingest(
    topic: Topic,
    data: DirectoryData,
    source: str = argument("SOURCE", "A directory, a file, or a pattern such as 'in/*.csv'.", ...),
    form: Literal["auto", "text", "json", "csv", "parquet"] = option(
        "--format auto|text|json|csv|parquet", "The files' format; auto decides by suffix.", "auto"
    ),
    key: str | None = option("--key -k COLUMN", "The column or field with the key."),
    timestamp: str | None = option("--timestamp COLUMN", "The column or field with the timestamp."),
    value: str | None = option("--value COLUMN", "CSV, Parquet: store this column instead of the whole row as JSON."),
    schema: str | None = option(
        "--schema DDL", "CSV, Parquet: such as 'id int, name string'.  [default: inferred once]"
    ),
    no_header: bool = flag("--no-header", "CSV: the first line is a row, not a header."),
    partitions: int = option("--partitions -P N", "The number of partitions, if the topic is created.", 1, min=1),
    compression: str | None = option(
        "--compression CODEC", "none, gzip, snappy, lz4 or zstd.  [default: the topic's setting]"
    ),
    files: int = option("--files N", "Store at most N files per transaction.", 1000, min=1),
    every: Every = None,
    output: Output = "table",
) -> None:
    """Copy files into a topic, each file exactly once: text, JSON lines, CSV or Parquet.

    Lines of text and JSON are stored unchanged, rows of CSV and Parquet as JSON. New files are read in the order of
    their names, so the records of a key keep that order. A key is the text of its cell: 01234 stays 01234. Run the
    command again to store new files, even after it was killed. Files must be complete when they appear: write them to
    another directory and move them here.

    \b
    Examples:
      sawlog pipeline ingest orders incoming -d data --key customer.id --timestamp placed_at
      sawlog pipeline ingest prices 'prices/*.csv' -d data --key symbol --partitions 4
      sawlog pipeline ingest logs /var/log/app -d data --format text --every 30s
    """
    from ..pipelines import ingest as job

    params = job.IngestParams(
        data=str(data),
        topic=topic,
        source=source,
        format=form,
        key=key,
        timestamp=timestamp,
        value=value,
        schema=schema,
        header=not no_header,
        partitions=partitions,
        compression=compression,
        every_s=seconds(every),
        files=files,
    )
    _show(_run(job, params, "ingesting"), output)


@pipelines.command(cls=Command)
def export(
    topic: Topic,
    data: DirectoryData,
    target: str = argument("TARGET", "The directory to write to.", ...),
    form: Literal["parquet", "delta"] = option("--format parquet|delta", "Parquet files or a Delta table.", "parquet"),
    by: str = option("--by NAMES", "Directory levels: topic, partition, date, hour.", "date"),
    json: bool = flag("--json", "Parse values as JSON into the fields of the column value."),
    schema: str | None = option("--schema DDL", "With --json: such as 'id int, name string'.  [default: inferred]"),
    headers: bool = flag("--headers", "Also write the headers."),
    max_records: int = option("--max-records N", "At most N records per micro-batch.", 500_000, min=1),
    no_compact: bool = flag("--no-compact", "Do not merge small files."),
    file_size: str = option("--file-size SIZE", "Merge small files up to this size.", "128MiB"),
    every: Every = None,
    output: Output = "table",
) -> None:
    """Write a topic to Parquet files or to a Delta table, each record exactly once.

    Run the command again to add new records, even after it was killed. Its progress is stored in the target, in
    _sawlog.

    \b
    Examples:
      sawlog pipeline export orders lake/orders -d data
      sawlog pipeline export orders lake/orders -d data --json --by date,hour --every 1m
      sawlog pipeline export orders lake/orders_delta -d data --format delta
    """
    from ..pipelines import export as job

    params = job.ExportParams(
        data=str(data),
        topic=topic,
        target=target,
        format=form,
        by=_names(by),
        json=json,
        schema=schema,
        headers=headers,
        every_s=seconds(every),
        max_records=max_records,
        compact=not no_compact,
        file_bytes=parsed("--file-size", file_size, size_bytes),
    )
    _show(_run(job, params, "exporting"), output)


@pipelines.command(cls=Command)
def table(
    topic: Topic,
    data: DirectoryData,
    to: str = option("--to LAKE", "The directory for tables; the table gets the topic's name.", ...),
    form: Literal["delta", "iceberg", "parquet"] = option(
        "--format delta|iceberg|parquet", "The format of the table.", "delta"
    ),
    schema: str | None = option(
        "--schema SCHEMA",
        "Fields of JSON values as columns: 'inferred', DDL such as 'id int, name string', or a file with "
        "DDL, JSON schema or Avro.",
    ),
    by: str = option("--by NAMES", "Partition the table by date or by date,hour.", ""),
    drop_value: bool = flag("--drop-value", "With --schema: leave out the column value."),
    freshness: str | None = option(
        "--freshness TIME", "Continue until Ctrl-C; every record is in the table within this time.  [default: run once]"
    ),
    max_records: int = option("--max-records N", "At most N records per commit.", 5_000_000, min=1),
    file_size: str = option("--file-size SIZE", "Split files above this size, merge smaller ones.", "128MiB"),
    merge_from: int = option("--merge-from N", "Merge N small files of a partition; 0: never merge.", 8, min=0),
    keep: str = option("--keep TIME", "Keep merged files for readers of older versions.", "7d"),
    catalog: str | None = option(
        "--catalog NAME",
        "Iceberg: a catalog from the pyiceberg configuration, or 'key=value,…'.  [default: LAKE/catalog.db]",
    ),
    allow_loss: bool = flag("--allow-loss", "Continue even if retention has removed records before they were added."),
    output: Output = "table",
) -> None:
    """Keep a table of a topic up to date, each record exactly once: Delta, Iceberg or Parquet.

    Run the command again to add new records, even after it was killed, or keep it running with --freshness. Values that
    do not fit the schema go to the table TOPIC_quarantine, with the reason. The store records the table's location.

    \b
    Examples:
      sawlog pipeline table orders -d data --to lake
      sawlog pipeline table orders -d data --to lake --schema 'id bigint, amount double' --by date
      sawlog pipeline table orders -d data --to lake --format iceberg --schema @orders.avsc --freshness 1m
    """
    from ..pipelines import table as job

    params = job.TableParams(
        data=str(data),
        topic=topic,
        to=to,
        format=form,
        schema=schema,
        by=_names(by),
        drop_value=drop_value,
        freshness_s=seconds(freshness, "--freshness"),
        max_records=max_records,
        file_bytes=parsed("--file-size", file_size, size_bytes),
        merge_from=merge_from,
        keep_s=seconds(keep, "--keep") or 0.0,
        catalog=catalog,
        fail_on_data_loss=not allow_loss,
    )
    _show(_run(job, params, "adding to the table"), output)


@pipelines.command(cls=Command)
def verify(data: DirectoryData, topic: MaybeTopic = None, output: Output = "table") -> None:
    """Check every batch of every segment, in parallel.

    This is `sawlog verify` for stores that are too large for one process. Exits with 4 if there is damage.

    \b
    Examples:
      sawlog pipeline verify -d data
      sawlog pipeline verify orders -d data --output ndjson
    """
    from ..pipelines import verify as job

    with open_directory(data) as store:
        topics = [store.topic(topic)] if topic is not None else list(store)
        total = sum(each.describe().size_bytes for each in topics)
    report = _run(job, job.VerifyParams(str(data), topic), "verifying", total, "bytes")
    Printer(output).rows(report.segments, _SEGMENT_COLUMNS, empty="nothing to verify")
    for segment in report.segments:
        for problem in segment.problems:
            note(f"!! {problem}")
    if not report.ok:
        note("`sawlog inspect FILE` shows the damaged bytes, `sawlog repair --plan` what can be repaired")
        raise typer.Exit(CORRUPT)


@pipelines.command(cls=Command)
def repartition(
    topic: Topic,
    data: DirectoryData,
    partitions: int = option("--partitions -P N", "The new number of partitions; more or fewer.", ..., min=1),
    output: Output = "table",
) -> None:
    """Rewrite a topic with a different number of partitions; the records of each key keep their order.

    The new topic replaces the old one atomically. Its offsets start at 0, so consumer groups start over. No process may
    be writing to the topic.

    \b
    Examples:
      sawlog pipeline repartition orders -d data --partitions 16
      sawlog pipeline repartition orders -d data -P 2 --output json
    """
    from ..pipelines import repartition as job

    params = job.RepartitionParams(str(data), topic, partitions)
    job.check_params(params)
    with open_directory(data) as store:
        total = store.topic(topic).describe().records
    _show(_run(job, params, "repartitioning", total), output)


@pipelines.command(cls=Command)
def init(
    topic: Topic,
    data: DirectoryData,
    target: str = argument("PROJECT", "The project's directory; must be new or empty.", ...),
    to: str | None = option("--to TOPIC", "Also write the results to this topic."),
    partitions: int = option(
        "--partitions -P N", "The number of partitions, if the topic of --to is created.", 1, min=1
    ),
    output: Output = "table",
) -> None:
    """Create a project for Spark's declarative pipelines that reads a topic.

    The project has tables over the topic and a script that runs them; each run processes the new records.

    \b
    Examples:
      sawlog pipeline init orders order-tables -d data
      sawlog pipeline init orders shouting -d data --to loud-orders
    """
    from ..pipelines import scaffold as job

    report = job.run(job.ScaffoldParams(target, str(data), topic, to, partitions))
    Printer(output).item(report)
    note(f"run it with {Path(report.target) / 'run'}")


@pipelines.command(cls=Command)
def script(output: Output = "table") -> None:
    """Print the path of the script for spark-submit; its arguments are those of `sawlog pipeline`.

    \b
    Examples:
      sawlog pipeline script
      spark-submit --master local[4] $(sawlog pipeline script) ingest --help
    """
    path, printer = str(Path(__file__).with_name("__main__.py")), Printer(output)
    if printer.for_people:
        printer.line(path)
        printer.flush()
    else:
        printer.item({"script": path})


_STATS_COLUMNS = columns(
    "topic",
    Column("partition", shown=lambda number: "all" if number is None else str(number)),
    "records",
    Column("bytes", "keys and values", size_text),
    Column("size_bytes", "on disk", size_text),
    Column("keys", "keys (approx.)", count_text),
    Column("without_key", shown=count_text),
    Column("oldest", shown=time_text),
    Column("newest", shown=time_text),
)


@pipelines.command(cls=Command)
def stats(
    data: DirectoryData,
    topic: MaybeTopic = None,
    every: str | None = option(
        "--every TIME", "The step of the rates, such as 1m or 1h.  [default: chosen by the time span]"
    ),
    parquet: Path | None = option("--parquet DIR", "Write partitions.parquet and rates.parquet to this directory."),
    plot: Plot = None,
    no_plot: NoPlot = False,
    output: Output = "table",
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
    report: StatsReport = _run(job, params, "counting")
    printer = Printer(output)
    printer.object_or_rows(report, report.partitions, _STATS_COLUMNS, empty="nothing to count: no topics")
    show_charts(_charts(report, topic), printer, plot, no_plot=no_plot)


def _charts(report: StatsReport, topic: str | None) -> list[Chart]:
    """Return charts of the rate over time and of the records per partition."""
    each = [row for row in report.partitions if row.partition is not None]
    if not each:
        return []
    one = len({row.topic for row in each}) == 1
    names = [f"partition {row.partition}" if one else f"{row.topic}/{row.partition}" for row in each]
    bars = BarChart("Records by partition", "records", names, [float(row.records) for row in each], count_text)
    if not report.rates:
        return [bars]
    first, step = min(rate.time for rate in report.rates), report.step_ms
    values = [0.0] * ((max(rate.time for rate in report.rates) - first) // step + 1)
    for rate in report.rates:
        values[(rate.time - first) // step] += rate.records / step * 1000
    title = f"Records of {topic or 'all topics'} over time"
    return [TimeChart(title, "records/s", first, step, values), bars]
