"""`sawlog read`: print a range of records to stdout or a file, and optionally follow new ones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..batch.kernel import Record
from ..display import counted
from ..errors import CorruptBatch
from .codes import CORRUPT
from .formats import RecordFormat, compile_format
from .offsets import EVERYTHING, Span, parse, resolve
from .options import BrokerAt, LogDir, MaybeData, Partitions, complete_group, complete_topic, parsed, read_as
from .output import Column, OutputFormat, Printer, note
from .places import open_logs
from .reading import (
    GroupReader,
    PartitionRecord,
    ReadablePartition,
    Start,
    committing,
    open_group_reader,
    readable,
    records,
)
from .units import format_time

if TYPE_CHECKING:
    import pyarrow as pa


class IsolationLevel(StrEnum):
    """Visibility of transactional records."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"


#: The option --isolation of `read` and `sql`.
IsolationOption = Annotated[
    IsolationLevel,
    typer.Option(
        "--isolation",
        metavar="committed|uncommitted",
        help="Whether to leave out records of open and aborted Kafka transactions.",
    ),
]


#: Start position of a new group, by the value of --offset.
_STARTS: dict[str, Start] = {"start": "earliest", "end": "latest"}

_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("offset"),
    Column("timestamp", "time", format_time),
    Column("key"),
    Column("value"),
    Column(
        "headers",
        shown=lambda pairs: ", ".join(
            f"{each['key']}={(each['value'] or b'').decode(errors='backslashreplace')}" for each in pairs or ()
        ),
    ),
]


def read(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)
    ] = None,
    data: MaybeData = None,
    broker: BrokerAt = None,
    log: LogDir = None,
    offset: Annotated[
        str, typer.Option("--offset", "-o", metavar="OFFSET", help="The range to read from each partition, see above.")
    ] = "start",
    partition: Partitions = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=0, max=2**62, metavar="N", help="Stop after N records.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", "-f", metavar="FORMAT", help="The format of each record, see above.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the values only, with nothing between them.")] = False,
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep", metavar="REGEX", help="Print only records whose value, key or headers match; (?i) ignores case."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            autocompletion=complete_group,
            help="Print only records that this consumer group has not read yet, and commit them.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for new records until Ctrl-C.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to this file; .parquet writes Parquet.")
    ] = None,
    isolation: IsolationOption = IsolationLevel.COMMITTED,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Continue after damage; still exits with 4.")
    ] = False,
    output: Annotated[
        OutputFormat | None,
        typer.Option(
            "--output",
            metavar="table|json|ndjson|csv",
            help="Print whole records in this format.  [default: values only, one per line]",
            case_sensitive=False,
        ),
    ] = None,
) -> None:
    """Print the records of a topic: all, the last N, a range, or everything since a time.

    \b
    Which records (-o):
      start, end        all records; new records only (with --follow)
      500, +10, -100    from offset 500; from the 10th after the start; the last 100
      100:200, :500     from 100 up to, not including, 200; from the start up to 500
      @-1h, @-2h:-1h    records with timestamps of the last hour; of the hour before it
      @2026-11-01T08:30 of a time and later; local time unless it has a zone (Z, +02:00)
      @1793520000000:   the same in milliseconds since 1970

    \b
    What to print (-f):
      %t topic  %p partition  %o offset  %k key  %v value (or %s)  %h headers
      %T timestamp in ms  %d{%H:%M:%S} timestamp by strftime  %K %V lengths of key and value  %H number of headers
      %v{hex} %v{base64} %v{json}, the same for %k;  \\n \\t \\xNN %%

    A time selects records by timestamp. Timestamps need not follow the order of the offsets: the command finds the
    first matching record in the time index, then compares every record up to the end of the log.

    The command takes no lock and can run next to a writer. It reads partitions one after the other; there is no order
    between them. A damaged batch stops the command, and the message names the offset at which to continue. Reading
    stops at the first open Kafka transaction and skips aborted ones; --isolation uncommitted prints everything.

    With --group, the command reads as a member of a consumer group: it starts at the committed offsets and commits the
    records that it has printed, so the next run continues there. A new group begins at the start, or with -o end at the
    end. If the command is killed, the next run may print some records again, but it never skips one. With -b, the group
    must have no other members.

    \b
    Examples:
      sawlog read orders -d data -o -100
      sawlog read orders -d data -o @-1h: --grep '"status": *"failed"' --output ndjson
      sawlog read orders -d data -f '%d %p/%o %k: %v\\n' --follow -o end
      sawlog read orders -d data -o @2026-11-01:2026-11-02 --out orders.parquet
      sawlog read orders -d data -p 0 -n 1 --raw > first.bin
      sawlog read orders -d data --group billing -n 100
      sawlog read orders -b 127.0.0.1:9092 -o -100
    """
    if topic is None and log is None:
        raise typer.BadParameter("give a topic, or the directory of one partition with --log", param_hint="TOPIC")
    if group is not None:
        _check_group(log, offset, partition, out, skip_damage)
    span = read_as(parse, offset, "--offset")
    pattern = parsed("--grep", grep, _pattern)
    printing = _format(form, raw, output, out)
    if group is not None and topic is not None:
        reader = open_group_reader(data, broker, topic, group, _STARTS[offset], isolation.value)
        with reader as opened_group, _printer(output, out) as printer:
            _print_as_group(opened_group, pattern, count, printer, printing, follow)
        return
    damage: list[str] = []
    with open_logs(data, log, topic, partition, broker) as opened:
        places = readable(opened, isolation.value)
        found = partial(records, opened, places, partial(resolve, span), damage=damage if skip_damage else None)
        if out is not None and out.suffix == ".parquet":
            if follow:
                raise typer.BadParameter("a Parquet file cannot be followed: leave out --follow", param_hint="--out")
            if pattern is None and not skip_damage:
                batches = _stored_batches(places, span)
            else:
                batches = _built_batches(_chosen(found(), span, pattern, count))
            _write_parquet(out, batches, count)
        else:
            with _printer(output, out) as printer:
                idle = printer.flush if follow and span.end is None else None
                _print(_chosen(found(idle), span, pattern, count), printer, printing, follow)
    if damage:
        raise typer.Exit(CORRUPT)


def _print_as_group(
    group: GroupReader,
    pattern: re.Pattern[bytes] | None,
    count: int | None,
    printer: Printer,
    printing: RecordFormat | None,
    follow: bool,
) -> None:
    """Print the records that the group has not read yet, and commit them."""

    def settle() -> None:
        printer.flush()
        group.commit()

    found = committing(group.found(settle if follow else None), settle)
    try:
        _print(_chosen(found, EVERYTHING, pattern, count), printer, printing, follow)
    except CorruptBatch:
        settle()  # everything before the error was printed
        raise
    settle()


def _chosen(
    found: Iterator[PartitionRecord], span: Span, pattern: re.Pattern[bytes] | None, count: int | None
) -> Iterator[PartitionRecord]:
    """Keep the first records that are in the span's range of times, if it has one, and match the pattern."""
    if span.times is not None:
        found = (each for each in found if span.has(each[1].timestamp))
    if pattern is not None:
        found = (each for each in found if _matches(each[1], pattern))
    return found if count is None else islice(found, count)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


def _check_group(
    log: Path | None, offset: str, partition: list[int] | None, out: Path | None, skip_damage: bool
) -> None:
    """Refuse options that select partitions or offsets: the group determines both."""
    if log is not None:
        raise typer.BadParameter("a group needs a store: give -d DIR and a topic", param_hint="--group")
    if offset not in _STARTS:
        raise typer.BadParameter(
            "with --group, only start or end is allowed, for a new group; `sawlog groups seek` moves a group",
            param_hint="--offset",
        )
    if partition:
        raise typer.BadParameter("a group reads all partitions of a topic", param_hint="--partition")
    if skip_damage or (out is not None and out.suffix == ".parquet"):
        raise typer.BadParameter("leave out --skip-damage and Parquet files with --group", param_hint="--group")


def _format(form: str | None, raw: bool, output: OutputFormat | None, out: Path | None) -> RecordFormat | None:
    """Return the function that formats a record, or None if the output is rows."""
    if sum((form is not None, raw, output is not None)) > 1:
        raise typer.BadParameter("--format, --raw and --output exclude each other")
    if out is not None and out.suffix == ".parquet" and (form is not None or raw or output is not None):
        raise typer.BadParameter("a Parquet file has its own format: leave out --format, --raw and --output")
    if output is not None:
        return None
    return read_as(compile_format, "%v" if raw else "%v\\n" if form is None else form, "--format")


@contextmanager
def _printer(output: OutputFormat | None, out: Path | None) -> Iterator[Printer]:
    if out is None:
        yield Printer(output or OutputFormat.NDJSON)
        return
    with out.open("wb") as stream:
        yield Printer(output or OutputFormat.NDJSON, stream)


def _print(found: Iterator[PartitionRecord], printer: Printer, printing: RecordFormat | None, follow: bool) -> None:
    if printing is None:
        rows = ({"topic": place.topic, **_arrow_row(place, record)} for place, record in found)
        printer.rows(rows, _COLUMNS, live=follow)
        return
    for place, record in found:
        printer.write(printing(place.topic, place.partition, record))
    printer.flush()


def _matches(record: Record, pattern: re.Pattern[bytes]) -> bool:
    if pattern.search(record.value or b"") or pattern.search(record.key or b""):
        return True
    return any(pattern.search(key.encode()) or pattern.search(value or b"") for key, value in record.headers)


# --- Parquet


_ARROW_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def _parquet_schema() -> pa.Schema:
    import pyarrow as pa

    from ..batch.arrow import schema

    return pa.schema([pa.field("partition", pa.int32(), nullable=False), *schema(_ARROW_COLUMNS)])


def _write_parquet(out: Path, batches: Iterator[pa.RecordBatch], count: int | None) -> None:
    """Write to a temporary file and rename it, so that the target is always complete."""
    import pyarrow.parquet as pq

    beside = out.with_name(f"{out.name}.tmp")
    written = 0
    try:
        with pq.ParquetWriter(beside, _parquet_schema(), compression="zstd") as writer:
            for batch in batches:
                taken = batch if count is None else batch.slice(0, count - written)
                writer.write_batch(taken)
                written += taken.num_rows
                if count is not None and written >= count:
                    break
        os.replace(beside, out)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    note(f"{out}: {counted(written, 'record')}")


def _stored_batches(places: list[ReadablePartition], span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the records as Arrow batches without decoding them one by one, with `partition` as the first column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole, times = _parquet_schema(), span.times
    for place in places:
        start, end = resolve(span, place)
        for batch in place.log.scan_arrow(start, end, columns=_ARROW_COLUMNS, isolation=place.isolation):
            if times is not None:
                stamps = batch.column("timestamp").cast(pa.int64())
                wanted = pc.and_(pc.greater_equal(stamps, times[0]), pc.less_equal(stamps, times[1] - 1))
                batch = batch.filter(wanted)  # noqa: PLW2901
            number = pa.repeat(pa.scalar(place.partition, pa.int32()), batch.num_rows)
            yield pa.RecordBatch.from_arrays([number, *batch.columns], schema=whole)


def _built_batches(found: Iterator[PartitionRecord]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    whole = _parquet_schema()
    while rows := list(islice(found, 65_536)):
        yield pa.RecordBatch.from_pylist([_arrow_row(place, record) for place, record in rows], schema=whole)


def _arrow_row(place: ReadablePartition, record: Record) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in record.headers]
    return {
        "partition": place.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": headers,
    }
