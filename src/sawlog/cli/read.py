"""`sawlog read`: print a range of records to stdout or a file, and optionally follow new ones.

With --group, the command reads the records that a group has not consumed yet, and commits the printed ones. With -d it
joins the group and shares the partitions with the other members. Through a broker it does not join: it reads all
partitions from the committed offsets, and refuses a group that has members. It commits about once a second, whenever it
runs out of records, and at the end, each time after flushing its output. If it is killed or interrupted, the next run
may print some records again, but it never skips one.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from ..batch.kernel import Record
from ..clock import Deadline
from ..config import Isolation
from ..display import counted, time_text
from ..errors import CorruptBatch, GroupActive, GroupNotFound, OffsetOutOfRange
from . import CORRUPT
from .formats import RecordFormat, compile_format
from .options import (
    BrokerAt,
    IsolationLevel,
    LogDir,
    MaybeData,
    Partitions,
    argument,
    complete_group,
    complete_topic,
    flag,
    option,
    parsed,
)
from .output import Column, OutputFormat, Printer, columns, note
from .parsing import EVERYTHING, Anchor, Span, parse, resolve
from .stores import NamedLog, OpenLogs, open_any, open_logs

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.consumer import Consumer

#: Poll interval of a follower: doubled up to the second value while no records arrive.
_POLL_S, _POLL_MOST_S = 0.005, 0.1

Start = Literal["earliest", "latest"]
#: Start position of a new group, by the value of --offset.
_STARTS: dict[str, Start] = {"start": "earliest", "end": "latest"}

#: Returns the half-open range of offsets to read from a partition.
Range = Callable[[NamedLog], tuple[int, int]]

_COLUMNS = columns(
    "topic partition offset",
    Column("timestamp", "time", time_text),
    "key value",
    Column(
        "headers",
        shown=lambda pairs: ", ".join(
            f"{each['key']}={(each['value'] or b'').decode(errors='backslashreplace')}" for each in pairs or ()
        ),
    ),
)


def read(
    topic: str | None = argument("TOPIC", "The topic.", autocompletion=complete_topic),
    data: MaybeData = None,
    broker: BrokerAt = None,
    log: LogDir = None,
    offset: str = option("--offset -o OFFSET", "Which records of each partition to read, see above.", "start"),
    tail: int | None = option(
        "--tail N", "Only the last N records of all partitions together, oldest first.", min=1, max=10**6
    ),
    partition: Partitions = None,
    count: int | None = option("--count -n N", "Stop after N records.", min=0, max=2**62),
    form: str | None = option("--format -f FORMAT", "The format of each record, see above."),
    raw: bool = flag("--raw", "Print the values only, with nothing between them."),
    grep: str | None = option(
        "--grep REGEX", "Print only records whose value, key or headers match; (?i) ignores case."
    ),
    group: str | None = option(
        "--group -g GROUP",
        "Print only records that this consumer group has not read yet, and commit them.",
        autocompletion=complete_group,
    ),
    follow: bool = flag("--follow -F", "Wait for new records until Ctrl-C."),
    out: Path | None = option("--out FILE", "Write to this file; .parquet writes Parquet."),
    isolation: IsolationLevel = "committed",
    skip_damage: bool = flag(
        "--skip-damage", "Skip damaged batches instead of stopping at the first; exits with 4 all the same."
    ),
    output: OutputFormat | None = option(
        "--output table|json|ndjson|csv",
        "Print whole records in this format.  [default: values only, one per line]",
        case_sensitive=False,
    ),
) -> None:
    """Print the records of a topic: all, the last N, a range, or everything since a time.

    \b
    Which records (-o):
      start               all records
      end                 none of the existing ones: with --follow, only new ones
      500                 from offset 500 on
      +10                 all but the first 10
      -100                the last 100 of each partition; --tail 100 prints the last 100 of all partitions
      100:200             offsets 100 to 199
      :500                offsets below 500
      @-1h                timestamps of the last hour
      @-2h:-1h            timestamps of the hour before it
      @2026-11-01T08:30   timestamps from this local time on; for another zone, append Z or +02:00
      @1793520000000      timestamps from this number of milliseconds since 1970 on

    \b
    What to print (-f):
      %t topic  %p partition  %o offset  %k key  %v value (or %s)  %h headers
      %T timestamp in ms since 1970  %d timestamp in ISO format  %d{%H:%M:%S} timestamp by strftime
      %K length of the key  %V length of the value (or %S)  %H number of headers
      %v{hex} %v{base64} %v{json} encode the value; the same for %k and %h
      \\n newline  \\t tab  \\xNN any byte  %% a percent sign

    --tail compares the timestamps of the last records of the partitions. --grep then searches only these N records.

    A time selects records by timestamp. Timestamps need not follow the order of the offsets: the command finds the
    first matching record in the time index, then compares every record up to the end of the log.

    The command takes no lock and can run next to a writer. It reads the partitions one after the other, so records of
    different partitions are not in the order of time. A damaged batch stops the command, and the message names the
    offset at which to continue. Reading stops at the first open Kafka transaction and skips aborted ones; --isolation
    uncommitted prints everything.

    With --group, the command reads as a member of a consumer group: it starts at the committed offsets and commits the
    records that it has printed, so the next run continues there. A new group begins at the start, or with -o end at the
    end. If the command is killed, the next run may print some records again, but it never skips one. With -b, the group
    must have no other members.

    \b
    Examples:
      sawlog read orders -d data --tail 10
      sawlog read orders -d data --tail 10 --follow
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
        _check_group(log, offset, tail, partition, out, skip_damage)
    if tail is not None and offset != "start":
        raise typer.BadParameter("give --tail or --offset, not both", param_hint="--tail")
    span = parsed("--offset", offset, parse)
    pattern = parsed("--grep", grep, _pattern)
    printing = _format(form, raw, output, out)
    if group is not None and topic is not None:
        reader = _open_group_reader(data, broker, topic, group, _STARTS[offset], isolation)
        with reader as member, _printer(output, out) as printer:
            _print_as_group(member, pattern, count, printer, printing, follow)
        return
    with open_logs(data, log, topic, partition, broker, isolation=isolation) as opened:
        reading = RangeReader(opened, skip_damage=skip_damage)
        found = partial(reading.records, partial(resolve, span)) if tail is None else partial(reading.newest, tail)
        last = -span.start.number if span.start.anchor is Anchor.END and span.end is None else 0
        if last > 0 and len(opened.logs) > 1 and output in (None, "table") and not follow:
            note(f"-o {offset} is per partition, and {topic} has several; --tail {last} prints the last {last} of all")
        if out is not None and out.suffix == ".parquet":
            if follow:
                raise typer.BadParameter("a Parquet file cannot be followed: leave out --follow", param_hint="--out")
            if pattern is None and not skip_damage and tail is None:
                batches = _stored_batches(opened.logs, span)
            else:
                batches = _built_batches(_chosen(found(), span, pattern, count))
            _write_parquet(out, batches, count)
        else:
            with _printer(output, out) as printer:
                idle = printer.flush if follow and span.end is None else None
                _print(_chosen(found(idle), span, pattern, count), printer, printing, follow)
    if reading.has_skipped:
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

    found = _committing(group.found(settle if follow else None), settle)
    try:
        _print(_chosen(found, EVERYTHING, pattern, count), printer, printing, follow)
    except CorruptBatch:
        settle()  # everything before the error was printed
        raise
    settle()


def _chosen(
    found: Iterator[Record], span: Span, pattern: re.Pattern[bytes] | None, count: int | None
) -> Iterator[Record]:
    """Keep the first records that are in the span's range of times, if it has one, and match the pattern."""
    if span.times is not None:
        found = (each for each in found if span.has(each.timestamp))
    if pattern is not None:
        found = (each for each in found if _matches(each, pattern))
    return found if count is None else islice(found, count)


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error


def _check_group(
    log: Path | None,
    offset: str,
    tail: int | None,
    partition: list[int] | None,
    out: Path | None,
    skip_damage: bool,
) -> None:
    """Refuse options that select partitions or offsets: the group determines both."""
    only_ends = "with --group, only start or end is allowed, for a new group; `sawlog groups seek` moves a group"
    to_parquet = out is not None and out.suffix == ".parquet"
    for refused, hint, reason in (
        (log is not None, "--group", "a group needs a store: give -d DIR and a topic"),
        (offset not in _STARTS, "--offset", only_ends),
        (tail is not None, "--tail", "the group determines which records are read"),
        (bool(partition), "--partition", "a group reads all partitions of a topic"),
        (skip_damage or to_parquet, "--group", "leave out --skip-damage and Parquet files with --group"),
    ):
        if refused:
            raise typer.BadParameter(reason, param_hint=hint)


def _format(form: str | None, raw: bool, output: OutputFormat | None, out: Path | None) -> RecordFormat | None:
    """Return the function that formats a record, or None if the output is rows."""
    if sum((form is not None, raw, output is not None)) > 1:
        raise typer.BadParameter("--format, --raw and --output exclude each other")
    if out is not None and out.suffix == ".parquet" and (form is not None or raw or output is not None):
        raise typer.BadParameter("a Parquet file has its own format: leave out --format, --raw and --output")
    if output is not None:
        return None
    return parsed("--format", "%v" if raw else "%v\\n" if form is None else form, compile_format)


@contextmanager
def _printer(output: OutputFormat | None, out: Path | None) -> Iterator[Printer]:
    if out is None:
        yield Printer(output or "ndjson")
        return
    with out.open("wb") as stream:
        yield Printer(output or "ndjson", stream)


def _print(found: Iterator[Record], printer: Printer, printing: RecordFormat | None, follow: bool) -> None:
    if printing is None:
        rows = ({"topic": record.topic, **_arrow_row(record)} for record in found)
        printer.rows(rows, _COLUMNS, live=follow)
        return
    for record in found:
        printer.write(printing(record))
    printer.flush()


def _matches(record: Record, pattern: re.Pattern[bytes]) -> bool:
    if pattern.search(record.value or b"") or pattern.search(record.key or b""):
        return True
    return any(pattern.search(key.encode()) or pattern.search(value or b"") for key, value in record.headers)


# --- records of ranges, and new ones


class RangeReader:
    """Reads ranges of the selected partitions."""

    def __init__(self, opened: OpenLogs, *, skip_damage: bool = False) -> None:
        self._opened, self._skip_damage = opened, skip_damage
        #: True if damaged batches were skipped.
        self.has_skipped = False

    def records(self, wanted: Range, idle: Callable[[], None] | None = None) -> Iterator[Record]:
        """Yield the records of a range, partition by partition. If `idle` is given, then yield new records as they
        arrive, calling `idle` before each wait."""
        positions: list[tuple[int, int]] = []  # next offset and leader epoch of each partition
        for log in self._opened.logs:
            epoch = log.log.leader_epoch
            start, end = wanted(log)
            end = max(start, min(end, log.next_offset))  # an open transaction ends the range; a follower waits for it
            yield from self._scan(log, start, end)
            positions.append((end, epoch))
        if idle is None:
            return
        wait = _POLL_S
        while True:
            came = False
            for number, log in enumerate(self._opened.logs):
                now = log.log.position(isolation=log.isolation)
                reached = positions[number][0]
                kept = log.log.epoch_end(positions[number][1])
                if kept < reached:
                    note(f"{log.name}: offsets from {kept} on were truncated; continuing there")
                    reached = kept
                if now[0] > reached:
                    came = True
                    yield from self._scan(log, reached, now[0])
                if now[0] != reached or kept < positions[number][0]:
                    positions[number] = now
            if came:
                wait = _POLL_S
                continue
            idle()
            self._opened.wait([offset for offset, _ in positions], wait)
            wait = min(2 * wait, _POLL_MOST_S)

    def newest(self, count: int, idle: Callable[[], None] | None = None) -> Iterator[Record]:
        """Yield the last records of all partitions together, in the order of time as far as the partitions are; if
        `idle` is given, then new records as `records` does."""
        ends = {log.name: log.next_offset for log in self._opened.logs}
        tails = [self._tail(log, ends[log.name], count) for log in self._opened.logs]
        newest: deque[Record] = deque()
        while any(tails) and len(newest) < count:
            newest.appendleft(max(filter(None, tails), key=lambda tail: tail[-1].timestamp).pop())
        yield from newest
        if idle is not None:
            yield from self.records(lambda log: (ends[log.name], ends[log.name]), idle)

    def _tail(self, log: NamedLog, end: int, count: int) -> list[Record]:
        """Return the last records of a partition. Compaction and transactions leave offsets without a record."""
        span, lowest = count, log.lowest_offset
        while True:
            found = deque(self._scan(log, max(lowest, end - span), end), maxlen=count)
            if len(found) == count or end - span <= lowest:
                return list(found)
            span *= 4

    def _scan(self, log: NamedLog, start: int, end: int) -> Iterator[Record]:
        """Yield the records of one partition."""
        while start < end:
            try:
                for record in log.log.scan(start, end, isolation=log.isolation):
                    yield record
                    start = record.offset + 1
                return
            except OffsetOutOfRange as error:
                if error.lowest <= start:
                    raise
                note(f"{log.name}: offsets {start} to {error.lowest - 1} were removed before they could be read")
                start = error.lowest
            except CorruptBatch as error:
                if not self._skip_damage or error.next_offset is None or error.next_offset <= start:
                    raise
                self.has_skipped = True
                note(f"{log.name}: {error}")
                start = error.next_offset


# --- as a member of a group

#: Interval of commits while records keep coming.
_COMMIT_S = 1.0


class MemberReader:
    """Reads the records that a group has not consumed, as a member of the group."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def found(self, idle: Callable[[], None] | None) -> Iterator[Record]:
        """Yield the records up to the end. With `idle`, also yield later records, and call `idle` before each wait."""
        wait = _POLL_S
        for cursor in self._consumer._feed(drain=idle is None):
            if cursor is not None:
                wait = _POLL_S
                yield from cursor
            elif idle is not None:
                idle()
                time.sleep(wait)
                wait = min(2 * wait, _POLL_MOST_S)
        if not self._consumer.assignment:
            note("other members of the group have all partitions; --follow waits until one leaves")

    def commit(self) -> None:
        """Commit every record that was yielded."""
        self._consumer.commit()


class BrokerReader:
    """Reads the records that a group has not consumed, through a broker and without joining the group."""

    def __init__(self, opened: OpenLogs, topic: str, group: str, start: Start) -> None:
        self._opened, self._topic, self._group, self._start = opened, topic, group, start
        self._groups = opened.groups
        #: Committed and reached offsets by partition.
        self._committed = self._look()
        self._reached: dict[int, int] = {}

    def _look(self) -> dict[int, int]:
        """Return the group's committed offsets in the topic. Raises `GroupActive` if the group has members."""
        try:
            about = self._groups.describe(self._group)
        except GroupNotFound:
            return {}
        if about.members:
            raise GroupActive(
                f"the group {self._group!r} has {counted(len(about.members), 'member')} reading its partitions; with "
                "-b a group can be read only while it has none"
            )
        rows = [row for row in about.rows if row.topic == self._topic]
        return {row.partition: row.committed for row in rows if row.committed is not None}

    def found(self, idle: Callable[[], None] | None) -> Iterator[Record]:
        for record in RangeReader(self._opened).records(self._range, idle):
            self._reached[record.partition] = record.offset + 1
            yield record

    def _range(self, place: NamedLog) -> tuple[int, int]:
        end = place.next_offset
        start = self._committed.get(place.partition)
        if start is None:
            start = place.lowest_offset if self._start == "earliest" else end
            self._reached[place.partition] = start  # committed even if no record is read
        return start, max(start, end)

    def commit(self) -> None:
        if self._reached:
            self._groups.commit(self._group, {(self._topic, number): to for number, to in self._reached.items()})
            self._reached = {}


GroupReader = MemberReader | BrokerReader


@contextmanager
def _open_group_reader(
    data: str | None, broker: str | None, topic: str, group: str, start: Start, isolation: Isolation
) -> Iterator[GroupReader]:
    """Read a topic as this group. A group without committed offsets begins at `start`."""
    if broker is None and data is not None:
        with (
            open_any(data, "w") as store,
            store.consumer(
                group, topic, start=start, auto_commit_ms=None, isolation=isolation, member="sawlog read"
            ) as consumer,
        ):
            yield MemberReader(consumer)
        return
    with open_logs(data, None, topic, None, broker, isolation=isolation) as opened:
        yield BrokerReader(opened, topic, group, start)


def _committing(found: Iterator[Record], settle: Callable[[], None]) -> Iterator[Record]:
    """Pass the records through, and flush and commit the printed ones about once a second."""
    due = Deadline(_COMMIT_S)
    for each in found:
        yield each
        if due.passed:
            settle()
            due = Deadline(_COMMIT_S)


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


def _stored_batches(logs: Sequence[NamedLog], span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the records as Arrow batches without decoding them one by one, with `partition` as the first column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole, times = _parquet_schema(), span.times
    for place in logs:
        start, end = resolve(span, place)
        for batch in place.log.scan_arrow(start, end, columns=_ARROW_COLUMNS, isolation=place.isolation):
            if times is not None:
                stamps = batch.column("timestamp").cast(pa.int64())
                wanted = pc.and_(pc.greater_equal(stamps, times[0]), pc.less_equal(stamps, times[1] - 1))
                batch = batch.filter(wanted)  # noqa: PLW2901
            number = pa.repeat(pa.scalar(place.partition, pa.int32()), batch.num_rows)
            yield pa.RecordBatch.from_arrays([number, *batch.columns], schema=whole)


def _built_batches(found: Iterator[Record]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    whole = _parquet_schema()
    while rows := list(islice(found, 65_536)):
        yield pa.RecordBatch.from_pylist(list(map(_arrow_row, rows)), schema=whole)


def _arrow_row(record: Record) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in record.headers]
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": headers,
    }
