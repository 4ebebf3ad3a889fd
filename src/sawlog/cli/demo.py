"""`sawlog demo`: a first look at sawlog, in a few seconds and without Java.

A process appends orders and reports each acknowledgement through a pipe, until it is killed. This process then reopens
the store, which recovers it, compares it with the acknowledgements, and has a second process append the rest. The
orders are queried with SQL, or with Arrow where DuckDB is not installed. An order follows from its number, so every
record can be compared with the one that was appended.
"""

from __future__ import annotations

import os
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import typer

from .. import __version__, kernel_info
from ..clock import now_ms
from ..display import count_text, counted, duration_text, size_text
from ..errors import MissingPackage, SawlogError
from ..store.base import Topic
from . import FAILED
from .charts import BarChart, TimeChart, columns_wanted, show_charts, terminal_columns
from .doctor import file_system_of
from .options import Output, option
from .output import Column, Printer, ProgressBar
from .stats import spread
from .stores import check_directory, open_directory

_RECORDS, _RECORDS_INTERPRETED, _RECORDS_LEAST = 1_000_000, 20_000, 1_000
#: Records in one append.
_BATCH = 2_000
_COUNTRIES = b"US US US US US DE DE DE DE GB GB GB FR FR JP JP IN".split()
#: The writer is killed at a random moment of this time, so that an append is often not finished.
_KILL_WITHIN_S = 0.02
_SCHEMA = "id BIGINT, customer STRING, country STRING, cents BIGINT"
_QUERY = (
    "select value.country as country, count(*) as orders, sum(value.cents) as cents "
    "from orders group by all order by cents desc"
)
_COLUMNS = [
    Column("acknowledged", "acknowledged before kill -9", count_text),
    Column("recovered", "in the log after recovery", count_text),
    Column("lost", "acknowledged, but missing or different", count_text),
]
_COMMANDS = {
    "sawlog read orders -o -3": "the last three orders",
    "sawlog read orders --group billing -n 5": "five for a group; again: the next five",
    "sawlog read orders --grep '\"JP\"' -n 3": "search",
    "sawlog stats orders": "sizes, and the rate over time",
    "sawlog verify": "read and check every batch",
}


def demo(
    data: Path | None = option(
        "--data -d DIR", "Write to this new or empty directory, and keep it.  [default: a temporary directory]"
    ),
    records: int | None = option(
        "--records N",
        f"How many records to write.  [default: {_RECORDS:,}; {_RECORDS_INTERPRETED:,} if the kernel is not compiled]",
        min=_RECORDS_LEAST,
    ),
    output: Output = "table",
) -> None:
    """Write a million records, kill the writer with kill -9, and check that nothing acknowledged is lost.

    A process appends orders to a topic, and reports each acknowledgement through a pipe. In the middle it is killed.
    The store is reopened and compared with the acknowledgements, and another process appends the rest. Then the demo
    queries the orders, draws the results, and suggests what to try next. Every number is measured in this run.

    It takes about 10 seconds and 100 MB of disk, and needs no Java, no server and no network. Without -d everything
    happens in a temporary directory, which is removed at the end. Exits with 1 if an acknowledged record is lost.

    \b
    Examples:
      sawlog demo
      sawlog demo -d demo-data
      sawlog demo --records 100000 --output json
    """
    compiled = kernel_info().compiled
    count = records or (_RECORDS if compiled else _RECORDS_INTERPRETED)
    printer = Printer(output)
    with _directory(data) as place:
        result = _Demo(printer, place, count, compiled).run()
        if printer.for_people:
            _suggest(printer, data)
        else:
            printer.item({**result, "data": data})
        printer.flush()
    if result["lost"]:
        raise typer.Exit(FAILED)


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    """Yield the directory to write to. Remove it afterwards if it is temporary, or if the demo does not finish."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix="sawlog-demo-") as made:
            yield Path(made)
        return
    check_directory(data)
    existed = data.is_dir()
    if existed and any(data.iterdir()):
        raise typer.BadParameter(f"{data} is not empty: name a new directory", param_hint="-d")
    try:
        yield data
    except BaseException:
        for each in data.iterdir() if data.is_dir() else ():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if not existed and data.is_dir():
            data.rmdir()
        raise


# --- the writer


def order(number: int) -> bytes:
    """Return the order with this number, as JSON."""
    mixed = number * 2_654_435_761 % 2**32
    country = _COUNTRIES[mixed % len(_COUNTRIES)]
    return b'{"id": %d, "customer": "c%d", "country": "%s", "cents": %d}' % (
        number,
        mixed >> 18,
        country,
        mixed // 97 % 20_000,
    )


def append_orders(path: str, end: int | None, batch: int) -> None:
    """Append durably up to order number `end`, or until this process is killed. Print the next offset: once at the
    start, then after each acknowledgement."""
    with open_directory(path, "w") as store:
        topic = store.topic("orders")
        acknowledged = topic.partition(0).next_offset
        print(acknowledged, flush=True)
        while end is None or acknowledged < end:
            last = acknowledged + batch if end is None else min(acknowledged + batch, end)
            acknowledged = topic.append_many(map(order, range(acknowledged, last)))[0].stop
            print(acknowledged, flush=True)


@dataclass(slots=True)
class _Acknowledgements:
    """Reports of the writers."""

    end: int = 0
    #: (time in ms since the start, of this acknowledgement and the one before it; records in between).
    appends: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The time in which a writer was appending."""
        return sum(end - begin for begin, end, _ in self.appends) / 1000


# --- the parts


class _Demo:
    """One run and its output."""

    def __init__(self, printer: Printer, path: Path, records: int, compiled: bool) -> None:
        self._printer, self._path, self._records, self._compiled = printer, path, records, compiled
        self._batch = min(_BATCH, records // 100)
        self._acknowledged = _Acknowledgements()
        self._part = 0
        self._start_ms, self._began = now_ms(), time.monotonic()

    def run(self) -> dict[str, Any]:
        """Run all parts and return the numbers."""
        self._introduce()
        with open_directory(self._path, "w", create=True) as store:
            store.create_topic("orders", sawlog_schema=_SCHEMA)
        found = self._write_and_kill()
        found |= self._query()
        return {"records": self._records, **found, "seconds": round(time.monotonic() - self._began, 3)}

    def _introduce(self) -> None:
        kernel = "compiled kernel" if self._compiled else "interpreted kernel"
        system = file_system_of(self._path.resolve())
        self._say(
            f"sawlog {__version__}, {kernel}, Python {platform.python_version()}, {os.cpu_count()} processors. "
            f"The data is in {self._path}{f' ({system})' if system else ''}."
        )
        if not self._compiled:
            self._say("Without a C compiler sawlog is 20 to 200 times slower, so the demo writes fewer records.")
        if system in ("tmpfs", "ramfs"):
            self._say("That directory is in memory, where fsync costs nothing: -d DIR on a disk shows real rates.")

    def _write_and_kill(self) -> dict[str, Any]:
        self._head("Write, and kill the writer")
        self._say(
            f"A process appends orders, {self._batch:,} at a time. An append is acknowledged once it is on the disk, "
            "and the process reports that through a pipe. In the middle it gets kill -9."
        )
        with ProgressBar("appending", self._records, "orders") as bar:
            self._append(None, bar)
            acknowledged = self._acknowledged.end
            with open_directory(self._path, "w") as store:
                topic = store.topic("orders")
                report = topic._partitions.recover()[0]
                recovered = topic.partition(0).next_offset
                intact = sum(record.value == order(record.offset) for record in topic.scan(end={0: acknowledged}))
            self._append(max(self._records, recovered), bar)
        found = {"acknowledged": acknowledged, "recovered": recovered, "lost": acknowledged - intact}
        if self._printer.for_people:
            self._printer.line()
            self._printer.item(found, _COLUMNS)
        more = recovered - acknowledged
        cut, more = report.truncated_bytes, recovered - acknowledged
        torn = f" and cut off {size_text(cut)} of an unfinished append" if cut else ""
        unsaid = f" The last {more:,} were stored, but the process was killed before it could report them."
        self._say(
            f"Recovery took {duration_text(report.duration_ms)}{torn}.{unsaid if more > 0 else ''} Another process "
            f"continued at offset {recovered:,} and appended the rest."
        )
        with open_directory(self._path) as store:
            total, size = store.topic("orders").describe().records, store.topic("orders").describe().size_bytes
        self._records, seconds = total, self._acknowledged.seconds
        rate = count_text(total / seconds)
        self._say(f"{counted(total, 'order')}, {size_text(size)}, appended at {rate} per second.")
        self._draw(self._rate())
        return {**found, "size_bytes": size, "records_per_second": round(total / seconds)}

    def _append(self, end: int | None, bar: ProgressBar) -> None:
        """Run a writer to its end; without `end`, kill it when it has acknowledged half of the records."""
        root = str(Path(__file__).resolve().parents[2])
        call = f"append_orders({str(self._path)!r}, {end}, {self._batch})"
        code = f"import sys; sys.path.append({root!r}); from {__name__} import append_orders; {call}"
        with subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which kills the writer
        ) as process:
            try:
                self._listen(process, end, bar)
            finally:
                process.kill()
                process.wait()  # after Ctrl-C, Popen would wait for a quarter of a second only
            reason = process.stderr.read().strip().rpartition("\n")[2] if process.stderr is not None else ""
        if process.returncode != (-signal.SIGKILL if end is None else 0):
            raise SawlogError(f"the writer process ended early: {reason or process.returncode}")

    def _listen(self, process: subprocess.Popen[str], end: int | None, bar: ProgressBar) -> None:
        """Read acknowledgements until the pipe ends."""
        assert process.stdout is not None
        before_ms = None
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # cut off by the kill
            now, offset = round((time.monotonic() - self._began) * 1000), int(line)
            if before_ms is not None:
                self._acknowledged.appends.append((before_ms, now, offset - self._acknowledged.end))
            before_ms = now
            bar.reach(offset, self._records)
            self._acknowledged.end = offset
            if end is None and offset >= self._records // 2:
                time.sleep(random.random() * _KILL_WITHIN_S)
                process.kill()
                end = self._records  # killed: the rest of the pipe is still read
        process.wait()

    def _rate(self) -> TimeChart:
        """Return the acknowledged records per second; while no writer was running there are none."""
        begins, ends, counts = np.array(self._acknowledged.appends).T
        first = int(begins.min())
        step = -(-(int(ends.max()) - first + 1) // columns_wanted(terminal_columns()))
        rates = spread(begins - first, ends - first, counts, step) / step * 1000
        unit = "records/s; the gap: kill -9, recovery, a new process"
        return TimeChart("Acknowledged records", unit, self._start_ms + first, step, rates.tolist())

    def _query(self) -> dict[str, Any]:
        self._head("Query")
        with open_directory(self._path) as store:
            began = time.perf_counter()
            try:
                table, engine = store.sql(_QUERY), "sql"
            except MissingPackage as error:
                reason = str(error)
                table, engine = _sums(store.topic("orders")), "arrow"
            seconds = time.perf_counter() - began
        rows = table.to_pylist()
        orders = sum(row["orders"] for row in rows)
        if engine == "sql":
            self._say(f'sawlog sql "{_QUERY}"')
        else:
            self._say(f"{reason}. The same with Arrow, in Python: orders.arrow(columns=['value']), then group_by.")
        self._say(f"{orders:,} orders read, parsed as JSON and added up in {duration_text(seconds * 1000)}.")
        names, euros = [row["country"] for row in rows], [float(row["cents"]) / 100 for row in rows]
        self._draw(BarChart("Revenue by country", "euros", names, euros, lambda value: f"{value:,.0f} €"))
        for row in rows:
            row["cents"] = int(row["cents"])  # SQL adds up integers as decimals
        return {"query_with": engine, "query_seconds": round(seconds, 3), "countries": rows}

    # --- printing

    def _head(self, title: str) -> None:
        self._part += 1
        self._say(f"{self._part}  {title} ".ljust(terminal_columns(), "─"))

    def _say(self, text: str) -> None:
        """Print a paragraph for people."""
        if self._printer.for_people:
            if self._part:
                self._printer.line()
            for line in textwrap.wrap(text, terminal_columns(), break_long_words=False, break_on_hyphens=False):
                self._printer.line(line)
            self._printer.flush()

    def _draw(self, chart: TimeChart | BarChart) -> None:
        show_charts([chart], self._printer, None, no_plot=False)


def _sums(topic: Topic) -> Any:
    """Return the result of the query, computed with Arrow."""
    fields = topic.arrow(columns=["value"]).flatten()
    sums = fields.group_by("value.country").aggregate([("value.cents", "count"), ("value.cents", "sum")])
    return sums.rename_columns(["country", "orders", "cents"]).sort_by([("cents", "descending")])


def _suggest(printer: Printer, data: Path | None) -> None:
    """Print commands to try next."""
    printer.line()
    printer.line("3  Go on ".ljust(terminal_columns(), "─"))
    printer.line()
    program = _program()
    if program != "sawlog":
        printer.line(f"alias sawlog={shlex.quote(program)}")
    if data is None:
        printer.line("sawlog demo -d demo-data  # once more, and keep the data")
    printer.line(f"export SAWLOG_DATA={shlex.quote(str(data or 'demo-data'))}")
    for command, purpose in _COMMANDS.items():
        printer.line(f"{command:<40}# {purpose}")


def _program() -> str:
    """Return the command that starts this program in a shell, which may not have this environment on its path."""
    script = Path(sys.prefix) / "bin" / "sawlog"
    if not script.exists():
        return f"{sys.executable} -m sawlog.cli"
    found = shutil.which("sawlog")
    # The environments of uvx and `pipx run` are on the path only while the program runs.
    kept = ".cache" not in script.parts and "archive-v0" not in script.parts
    return "sawlog" if kept and found is not None and Path(found) == script else str(script)
