"""`sawlog read`: prints a range of records to stdout or a file, and can follow new ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from ..batch.kernel import Record
from ..errors import CorruptBatch, OffsetOutOfRange
from ..isolation import Isolation
from .codes import CORRUPT
from .completion import complete_topic
from .formats import Printer as RecordPrinter
from .formats import compile_format
from .offsets import Span, parse, resolve
from .options import BrokerAt, LogDir, MaybeData, Partitions, parsed, read_as
from .output import Column, OutputFormat, Row, note
from .output import Output as Printer
from .places import NamedLog, Reading, reading
from .stores import SomeLog
from .units import shown_time

#: How long a follower waits before it checks again; doubled while there are no new records.
_POLL_S, _POLL_MOST_S = 0.005, 0.1


class IsolationLevel(StrEnum):
    """What is read of transactions."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"


#: How `read` and `sql` take it.
IsolationOption = Annotated[
    IsolationLevel,
    typer.Option(
        "--isolation",
        metavar="committed|uncommitted",
        help="Whether to leave out records of open and aborted Kafka transactions.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Place(NamedLog[SomeLog]):
    """A partition, as far as it is read."""

    isolation: Isolation = "committed"

    @property
    def lowest_offset(self) -> int:
        return self.log.lowest_offset

    @property
    def next_offset(self) -> int:
        return self.log.position(isolation=self.isolation)[0]

    def offset_at(self, timestamp: int) -> int:
        return self.log.offset_at(timestamp)


Found = tuple[_Place, Record]

_COLUMNS = [
    Column("topic"),
    Column("partition"),
    Column("offset"),
    Column("timestamp", "time", shown_time),
    Column("key"),
    Column("value"),
    Column("headers", shown=lambda pairs: ", ".join(f"{each['key']}={_text(each['value'])}" for each in pairs or ())),
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
            "--grep", metavar="REGEX", help="Only records whose value, key or headers match; (?i) ignores case."
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
    """Print records of a topic: all, the last N, a range, or everything since a time.

    \b
    Which records (-o):
      start, end        all records; new records only (with --follow)
      500, +10, -100    from offset 500; from the 10th after the start; the last 100
      100:200, :500     from 100 up to, not including, 200; from the start up to 500
      @-1h, @-2h:-1h    the last hour; the hour before it
      @2026-11-01T08:30 from a time on; local time unless it has a zone (Z, +02:00)
      @1793520000000:   the same in milliseconds since 1970

    \b
    What to print (-f):
      %t topic  %p partition  %o offset  %k key  %v value (or %s)  %h headers
      %T timestamp in ms  %d{%H:%M:%S} timestamp by strftime  %K %V lengths of key and value  %H number of headers
      %v{hex} %v{base64} %v{json}, the same for %k;  \\n \\t \\xNN %%

    It takes no lock and can run while a writer is running. Partitions are read one after the other; there is no order
    between them. A damaged batch stops the command, and the message says at which offset to continue. It stops where a
    Kafka transaction is open, and leaves out those that were aborted: --isolation uncommitted prints everything.

    \b
    Examples:
      sawlog read orders -d data -o -100
      sawlog read orders -d data -o @-1h: --grep '"status": *"failed"' --output ndjson
      sawlog read orders -d data -f '%d %p/%o %k: %v\\n' --follow -o end
      sawlog read orders -d data -o @2026-11-01:2026-11-02 --out orders.parquet
      sawlog read orders -d data -p 0 -n 1 --raw > first.bin
      sawlog read orders -b 127.0.0.1:9092 -o -100
    """
    if topic is None and log is None:
        raise typer.BadParameter("give a topic, or the directory of one partition with --log", param_hint="TOPIC")
    span = read_as(parse, offset, "--offset")
    pattern = parsed("--grep", grep, _pattern)
    printing = _format(form, raw, output, out)
    damage: list[str] = []
    with reading(data, log, topic, partition, broker) as opened:
        places = [_Place(each.topic, each.partition, each.log, isolation=isolation.value) for each in opened.places]
        if out is not None and out.suffix == ".parquet":
            if follow:
                raise typer.BadParameter("a Parquet file cannot be followed: leave out --follow", param_hint="--out")
            _write_parquet(out, opened, places, span, pattern, count, damage if skip_damage else None)
        else:
            with _printer(output, out) as printer:
                idle = printer.flush if follow else None
                records = _records(opened, places, span, idle, damage if skip_damage else None)
                if pattern is not None:
                    records = (each for each in records if _matches(each[1], pattern))
                _print(islice(records, count) if count is not None else records, printer, printing, follow)
    if damage:
        raise typer.Exit(CORRUPT)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


def _format(form: str | None, raw: bool, output: OutputFormat | None, out: Path | None) -> RecordPrinter | None:
    """Return the function that prints a record; None if rows are wanted."""
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


def _print(found: Iterator[Found], printer: Printer, printing: RecordPrinter | None, follow: bool) -> None:
    if printing is None:
        printer.rows((_row(place, record) for place, record in found), _COLUMNS, live=follow)
        return
    for place, record in found:
        printer.write(printing(place.topic, place.partition, record))
    printer.flush()


def _row(place: _Place, record: Record) -> Row:
    return {"topic": place.topic, **_arrow_row(place, record)}


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="backslashreplace")


def _matches(record: Record, pattern: re.Pattern[bytes]) -> bool:
    if pattern.search(record.value or b"") or pattern.search(record.key or b""):
        return True
    return any(pattern.search(key.encode()) or pattern.search(value or b"") for key, value in record.headers)


# --- from the logs


def _records(
    opened: Reading, places: list[_Place], span: Span, idle: Callable[[], None] | None, damage: list[str] | None
) -> Iterator[Found]:
    """Yield the records of a span, place by place; then, if `idle` is given, new records as they arrive. `idle` is
    called before each wait."""
    positions: list[tuple[int, int]] = []  # the next offset of each place, and its leader epoch
    for place in places:
        epoch = place.log.leader_epoch
        start, end = resolve(span, place)
        end = max(start, min(end, place.next_offset))  # a transaction that is not finished is waited for
        yield from _scan(place, start, end, damage)
        positions.append((end, epoch))
    if idle is None or span.end is not None:
        return
    wait = _POLL_S
    while True:
        came = False
        for number, place in enumerate(places):
            now = place.log.position(isolation=place.isolation)
            reached = positions[number][0]
            kept = place.log.epoch_end(positions[number][1])
            if kept < reached:
                note(f"{place.name}: offsets from {kept} on were truncated; continuing there")
                reached = kept
            if now[0] > reached:
                came = True
                yield from _scan(place, reached, now[0], damage)
            if now[0] != reached or kept < positions[number][0]:
                positions[number] = now
        if came:
            wait = _POLL_S
            continue
        idle()
        opened.wait([offset for offset, _ in positions], wait)
        wait = min(2 * wait, _POLL_MOST_S)


def _scan(place: _Place, start: int, end: int, damage: list[str] | None) -> Iterator[Found]:
    """Yield the records of one log; continue after damage if that is wanted and something readable follows."""
    while start < end:
        try:
            for record in place.log.scan(start, end, isolation=place.isolation):
                yield place, record
                start = record.offset + 1
            return
        except OffsetOutOfRange as error:
            if error.lowest <= start:
                raise
            note(f"{place.name}: offsets {start} to {error.lowest - 1} were removed before they could be read")
            start = error.lowest
        except CorruptBatch as error:
            if damage is None or error.next_offset is None or error.next_offset <= start:
                raise
            damage.append(str(error))
            note(f"{place.name}: {error}")
            start = error.next_offset


# --- Parquet


def _write_parquet(
    out: Path,
    opened: Reading,
    places: list[_Place],
    span: Span,
    pattern: re.Pattern[bytes] | None,
    count: int | None,
    damage: list[str] | None,
) -> None:
    """Write to a temporary file and rename it, so that the target is always complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ..batch.arrow import schema

    columns = ("offset", "timestamp", "key", "value", "headers")
    whole = pa.schema([pa.field("partition", pa.int32(), nullable=False), *schema(columns)])
    beside = out.with_name(f"{out.name}.tmp")
    written = 0
    try:
        with pq.ParquetWriter(beside, whole, compression="zstd") as writer:
            for batch in _batches(opened, places, span, pattern, damage, whole, columns):
                taken = batch if count is None else batch.slice(0, count - written)
                writer.write_batch(taken)
                written += taken.num_rows
                if count is not None and written >= count:
                    break
        os.replace(beside, out)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    note(f"{out}: {written:,} records")


def _batches(
    opened: Reading,
    places: list[_Place],
    span: Span,
    pattern: re.Pattern[bytes] | None,
    damage: list[str] | None,
    whole: Any,
    columns: tuple[str, ...],
) -> Iterator[Any]:
    """Yield Arrow batches with a column `partition` first: as they are stored, or built from the selected
    records."""
    import pyarrow as pa

    if pattern is None and damage is None:
        for place in places:
            start, end = resolve(span, place)
            for batch in place.log.scan_arrow(start, end, columns=columns, isolation=place.isolation):
                number = pa.repeat(pa.scalar(place.partition, pa.int32()), batch.num_rows)
                yield pa.RecordBatch.from_arrays([number, *batch.columns], schema=whole)
        return
    found = _records(opened, places, span, None, damage)
    if pattern is not None:
        found = (each for each in found if _matches(each[1], pattern))
    while rows := list(islice(found, 65_536)):
        yield pa.RecordBatch.from_pylist([_arrow_row(place, record) for place, record in rows], schema=whole)


def _arrow_row(place: _Place, record: Record) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in record.headers]
    return {
        "partition": place.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": headers,
    }
