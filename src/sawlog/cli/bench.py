"""`sawlog bench`: measure this machine and disk in a few seconds, to compare settings.

The benchmark creates a log in a temporary directory (next to the store if `-d` is given, so on the same disk), writes
and reads it in each way that a program would, and removes it. Each step runs for about `--seconds`.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import kernel_info
from ..config import Interval, LogConfig
from ..log.log import Log
from .doctor import file_system_of
from .options import MaybeDirectoryData, Output, read_as
from .output import Column, OutputFormat, note
from .output import Output as Printer
from .produce import Compression
from .units import format_count, format_duration, format_size, size_bytes

_MANY = 1000

_COLUMNS = [
    Column("step"),
    Column("records", shown=format_count),
    Column("records_per_second", "records/s", format_count),
    Column("bytes_per_second", "bytes/s", format_size),
    Column("median_ms", "median", format_duration),
    Column("p99_ms", "p99", format_duration),
]


def bench(
    data: MaybeDirectoryData = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.05, max=60, metavar="S", help="Run each step for S seconds.")
    ] = 1.0,
    size: Annotated[
        str, typer.Option("--size", metavar="BYTES", help="The size of a value, such as 100 or 4KiB.")
    ] = "100",
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = Compression.NONE,
    durability: Annotated[
        str,
        typer.Option("--durability", metavar="POLICY", help="When an append is acknowledged: always, os or interval."),
    ] = "always",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Measure writing and reading on this machine: single appends, batches, a buffered writer, scans, Arrow.

    The benchmark writes to a temporary log on the store's disk (or in the system's temporary directory), then removes
    it.

    \b
    Examples:
      sawlog bench -d data
      sawlog bench --durability os --compression zstd --size 1KiB
    """
    length = read_as(size_bytes, size, "--size")
    config = LogConfig(durability=read_as(_durability, durability, "--durability"), compression=compression.value)
    beside = None if data is None else data.resolve().parent
    with tempfile.TemporaryDirectory(prefix=".sawlog-bench-", dir=beside) as place:
        if output is OutputFormat.TABLE:
            note(_machine(Path(place), durability, length, compression))
        with Log.open(Path(place) / "log", config) as log:
            Printer(output).rows(list(_steps(log, length, seconds)), _COLUMNS)


def _durability(text: str) -> Any:
    if text not in ("always", "os", "interval"):
        raise ValueError(f"{text!r} is not one of always, os, interval")
    return Interval() if text == "interval" else text


def _machine(place: Path, durability: str, length: int, compression: str) -> str:
    kernel = "compiled" if kernel_info().compiled else "interpreted"
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {file_system_of(place) or 'unknown file system'}, "
        f"Python {platform.python_version()}, kernel {kernel}; durability {durability}, values of {length:,} bytes, "
        f"compression {compression}"
    )


def _steps(log: Log, length: int, seconds: float) -> Iterator[dict[str, Any]]:
    values = [os.urandom(length // 2) + bytes(length - length // 2) for _ in range(_MANY)]
    yield _timed("append, one by one", lambda: log.append(values[0]), 1, length, seconds)
    yield _timed("append_many, 1,000 at once", lambda: log.append_many(values), _MANY, length, seconds)
    with log.writer() as writer:

        def write() -> None:
            for value in values:
                writer.append(value)

        yield _timed("writer, one by one", write, _MANY, length, seconds)
    yield _drained("scan, as records", lambda: (1 for _ in log.scan()), length, seconds)
    yield _drained("scan_arrow", lambda: (batch.num_rows for batch in log.scan_arrow()), length, seconds)
    first, total = log.lowest_offset, len(log)
    picked = iter(range(0, 2**62, 7919))
    yield _timed("read, by offset", lambda: log.read(first + next(picked) % total), 1, length, seconds)


def _timed(step: str, call: Callable[[], Any], records: int, length: int, seconds: float) -> dict[str, Any]:
    """Call repeatedly for `seconds`; return the rate and the duration of one call."""
    took: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds or not took:
        before = now
        call()
        now = time.perf_counter()
        took.append(now - before)
    took.sort()
    return _row(step, len(took) * records, length, now - began) | {
        "median_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[len(took) * 99 // 100] * 1000,
    }


def _drained(step: str, scan: Callable[[], Iterator[int]], length: int, seconds: float) -> dict[str, Any]:
    """Scan from the start again and again for `seconds`, and count the records."""
    count, began = 0, time.perf_counter()
    while True:
        for rows in scan():
            count += rows
            if time.perf_counter() - began >= seconds:
                return _row(step, count, length, time.perf_counter() - began)


def _row(step: str, records: int, length: int, seconds: float) -> dict[str, Any]:
    return {
        "step": step,
        "records": records,
        "records_per_second": round(records / seconds),
        "bytes_per_second": round(records * length / seconds),
        "median_ms": None,
        "p99_ms": None,
    }
