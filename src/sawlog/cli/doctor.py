"""`sawlog doctor` and `sawlog bench`: whether this machine and disk suit a store, and how fast they are.

Each check of the doctor is a function that returns a `CheckResult`: ok, warning or bad, with advice if there is
something to do. The only file written is a temporary one to measure fsync, and only if the directory is writable.

The benchmark creates a log in a temporary directory (next to the store if `-d` is given, so on the same disk), writes
and reads it in each way that a program would, and removes it. Each step runs for about `--seconds`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from .. import __version__, kernel_info
from ..addresses import is_address
from ..clock import now_ms
from ..config import Interval, LogConfig
from ..display import count_text, counted, duration_text, size_text
from ..errors import CorruptBatch, OffsetOutOfRange, SawlogError
from ..log.log import Log
from ..log.verify import missing_ends
from ..storage.system import sync_data
from ..units import size_bytes
from . import FAILED
from .options import MaybeData, MaybeDirectoryData, Output, option, parsed
from .output import Column, Printer, columns
from .produce import Compression
from .stores import open_directory, open_groups_log

OK, WARNING, BAD = "ok", "warning", "bad"

#: File systems that are known to lose data, to lack locks, or not to be durable.
_ODD_FILE_SYSTEMS = {
    "tmpfs": "is memory: all data is lost at a restart",
    "ramfs": "is memory: all data is lost at a restart",
    "nfs": "does not keep locks and mappings reliable between machines",
    "nfs4": "does not keep locks and mappings reliable between machines",
    "cifs": "does not keep locks and mappings reliable between machines",
    "smb3": "does not keep locks and mappings reliable between machines",
    "9p": "does not keep mappings reliable for files that another system changes",
    "vboxsf": "does not keep mappings reliable for files that another system changes",
}
_SYNCS, _SYNC_MOST_S, _SYNC_BYTES = 64, 1.0, 4096
#: Faster than any disk: fsync must be disabled.
_TOO_QUICK_MS = 0.01
_SLOW_MS = 50
_FILES_WANTED = 1024
_FREE_LEAST_BYTES, _FREE_LEAST_SHARE = 1 << 30, 0.05
_FUTURE_MS = 60_000


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    check: str
    state: str
    detail: str
    advice: str = ""


#: State, detail and advice of a check.
Finding = tuple[str, str] | tuple[str, str, str]


def doctor(
    data: MaybeData = None,
    directory: Path | None = option("--dir DIR", "Check a directory that holds no store yet."),
    output: Output = "table",
) -> None:
    """Check this machine and the store's directory: file system, fsync, free space, limits, kernel, clock.

    For a store in a directory, it also checks that every log starts and ends where it should and that no segment is
    missing or truncated. It does not read every record; `sawlog verify` does. For a store on object storage, it tests
    the bucket with about thirty requests in a folder of its own, and checks whether commits were lost.

    Exits with 1 if a check is bad; warnings do not change the exit code.

    \b
    Examples:
      sawlog doctor -d data
      sawlog doctor -d s3://bucket/store
      sawlog doctor --dir /mnt/disk
    """
    place = directory or Path(data or "")
    if directory is None and data is not None and is_address(data):
        found = list(examine_bucket(data))
    elif not place.is_dir():
        raise FileNotFoundError(f"{place} is not a directory; create it first, or give an existing one")
    else:
        found = list(examine(place, data if directory is None else None))
    printer = Printer(output)
    printer.rows(found, columns("state check detail", "" if printer.for_people else "advice"))
    for each in found:
        if each.advice:
            printer.remark(f"{each.check}: {each.advice}")
    if any(each.state == BAD for each in found):
        raise typer.Exit(FAILED)


def examine(place: Path, data: str | None) -> Iterator[CheckResult]:
    """Run all checks."""
    checks: dict[str, Callable[[], Finding]] = {
        "versions": _versions,
        "kernel": _kernel,
        "file system": lambda: _file_system(place),
        "free space": lambda: _free_space(place),
        "locks": lambda: _lock(place),
        "fsync": lambda: _sync(place),
        "open files": _open_files,
        "file size": _file_size,
        "mappings": _maps,
    }
    for name, check in checks.items():
        yield CheckResult(name, *check())
    if data is not None:
        yield from _store(data)


def examine_bucket(url: str) -> Iterator[CheckResult]:
    """Run the checks for a store on object storage."""
    from ..store.objects import (
        repair,
        selftest,  # slow to import
    )
    from ..store.objects.bucket import Bucket

    yield CheckResult("versions", *_versions())
    yield CheckResult("kernel", *_kernel())
    bucket = Bucket(url)
    try:
        tried = selftest.run(bucket, selftest.BRIEF_SCALE, names=selftest.BRIEF)
        selftest.refuse(bucket, tried)
    except SawlogError as error:
        yield CheckResult("bucket", BAD, str(error), f"run `sawlog store test {url}`")
        return
    yield CheckResult("bucket", OK, f"passed all checks in {sum(each.requests for each in tried)} requests")
    try:
        found = repair.diagnose(bucket)
    except SawlogError as error:
        yield CheckResult("store", BAD, str(error))
        return
    for each in found.findings:
        yield CheckResult("store", BAD, str(each), f"`sawlog repair -d {url}` shows how to repair it")
    if not found.findings:
        yield CheckResult("store", OK, f"{counted(found.state.number, 'commit')}, none missing")


# --- the program


def _versions() -> Finding:
    return OK, f"sawlog {__version__}, Python {platform.python_version()}, {platform.system()}"


def _kernel() -> Finding:
    if kernel_info().compiled:
        return OK, "compiled"
    return (
        WARNING,
        "interpreted: 20 to 200 times slower",
        "install a C compiler, then run `make kernel` or `pip install .` in the clone",
    )


# --- the directory


def _file_system(place: Path) -> Finding:
    kind = file_system_of(place.resolve())
    if kind is None:
        return OK, "unknown: this system does not report it"
    name = kind.removeprefix("fuse.")
    if kind in _ODD_FILE_SYSTEMS:
        return WARNING, f"{kind} {_ODD_FILE_SYSTEMS[kind]}", "use a local disk with ext4 or xfs"
    if kind.startswith("fuse"):
        return WARNING, f"{name} through FUSE", "make sure that fsync, flock and mmap work on it, or use ext4"
    return OK, kind


def file_system_of(path: Path) -> str | None:
    """Return the type of the file system that holds a path, if the system lists its mounts."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best, kind = -1, None
    for line in mounts:
        _, target, found, *_ = line.split(" ")
        mounted = Path(target.replace("\\040", " "))
        if path.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), found
    return kind


def _free_space(place: Path) -> Finding:
    usage = shutil.disk_usage(place)
    detail = f"{size_text(usage.free)} of {size_text(usage.total)} free"
    if usage.free < _FREE_LEAST_BYTES or usage.free < usage.total * _FREE_LEAST_SHARE:
        return WARNING, detail, "free some space, or set retention.bytes: writing stops when the disk is full"
    return OK, detail


def _lock(place: Path) -> Finding:
    """Check that flock works. Uses an open directory, so that nothing has to be written."""
    with contextlib.ExitStack() as last:
        first, second = os.open(place, os.O_RDONLY), os.open(place, os.O_RDONLY)
        last.callback(os.close, first)
        last.callback(os.close, second)
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return WARNING, f"not tested: {error.strerror}"
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return OK, "flock excludes other processes"
    return BAD, "flock grants the same lock twice", "two writers could write at once here: use a local disk"


def _sync(place: Path) -> Finding:
    """Measure fdatasync, the cost of durability."""
    file = place / f".sawlog-doctor-{os.getpid()}"
    try:
        times_ms = measure_sync(file)
    except OSError as error:
        return WARNING, f"not measured: {error.strerror}", "run it as a user with write permission there"
    median, worst = times_ms[len(times_ms) // 2], times_ms[min(len(times_ms) * 99 // 100, len(times_ms) - 1)]
    detail = f"{duration_text(median)} (median), {duration_text(worst)} (p99) of {len(times_ms)}"
    if median < _TOO_QUICK_MS:
        return WARNING, detail, "too fast for any disk: acknowledged records may not survive a power cut"
    if median > _SLOW_MS:
        return WARNING, detail, "slow: write in batches or from many threads, or use durability=interval"
    return OK, detail


def measure_sync(file: Path) -> list[float]:
    """Return the sorted times, in ms, of appending 4 KiB and making it durable in a temporary file."""
    times_ms: list[float] = []
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.perf_counter() + _SYNC_MOST_S
        while len(times_ms) < _SYNCS and (time.perf_counter() < deadline or not times_ms):
            began = time.perf_counter()
            os.write(fd, b"\xa5" * _SYNC_BYTES)
            sync_data(fd, str(file))
            times_ms.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(fd)
        file.unlink()
    return sorted(times_ms)


# --- limits


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"at most {_limit(soft)} open files (hard limit: {_limit(hard)})"
    if 0 <= soft < _FILES_WANTED:
        return WARNING, detail, f"`ulimit -n {_FILES_WANTED}` or more: each mapped segment needs one"
    return OK, detail


def _file_size() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or soft >= 2**31:
        return OK, f"at most {_limit(soft)} bytes"
    return WARNING, f"at most {soft:,} bytes", "`ulimit -f unlimited`, or set segment.bytes below that"


def _maps() -> Finding:
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return OK, "no limit known"
    if most < 4096:
        return WARNING, f"at most {most:,} mappings", "`sysctl vm.max_map_count=65530`"
    return OK, f"at most {most:,} mappings"


def _limit(number: int) -> str:
    return "unlimited" if number in (resource.RLIM_INFINITY, -1) or number >= sys.maxsize else f"{number:,}"


# --- the store


def _store(data: str) -> Iterator[CheckResult]:
    """Check whether the store can be opened, whether its logs are complete, and whether its timestamps agree with this
    clock."""
    problems: list[str] = []
    newest = -1
    try:
        with open_directory(data) as store:
            names = store.topics()
            partitions = 0
            for name in names:
                topic = store.topic(name)
                partitions += topic.partitions
                for number in range(topic.partitions):
                    try:
                        log = topic.partition(number)
                        problems += map(str, missing_ends(log._segment_set))
                        newest = max(newest, _newest(log)) if number == 0 else newest
                    except SawlogError as error:
                        problems.append(str(error))
    except SawlogError as error:
        yield CheckResult("store", BAD, str(error), "run `sawlog verify`, then `sawlog repair`")
        return
    yield CheckResult("store", OK, f"{counted(len(names), 'topic')}, {counted(partitions, 'partition')}")
    with open_groups_log(data) as groups:
        if groups is not None:
            problems += map(str, missing_ends(groups._segment_set))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        yield CheckResult("logs", BAD, f"{problems[0]}{more}", "run `sawlog verify`, then `sawlog repair`")
    else:
        yield CheckResult("logs", OK, "no segment is missing or cut short")
    ahead = newest - now_ms()
    if ahead > _FUTURE_MS:
        detail = f"the newest record is {duration_text(ahead)} ahead of this clock"
        yield CheckResult("clock", WARNING, detail, "set the clock: retention by age and reading by time depend on it")
    else:
        yield CheckResult("clock", OK, "no record has a timestamp in the future")


def _newest(log: Log) -> int:
    """Return the last record's timestamp, or -1 if the record does not exist, is damaged or was compacted away."""
    try:
        return log[-1].timestamp if len(log) else -1
    except (CorruptBatch, OffsetOutOfRange):
        return -1


_MANY = 1000

_BENCH_COLUMNS = columns(
    "step records",
    Column("records_per_second", "records/s", count_text),
    Column("bytes_per_second", "bytes/s", size_text),
    Column("median_ms", "median", duration_text),
    Column("p99_ms", "p99", duration_text),
)


def bench(
    data: MaybeDirectoryData = None,
    seconds: float = option("--seconds S", "Run each step for S seconds.", 1.0, min=0.05, max=60),
    size: str = option("--size BYTES", "The size of a value, such as 100 or 4KiB.", "100"),
    compression: Compression = option("--compression -z CODEC", "none, gzip, snappy, lz4 or zstd.", "none"),
    durability: str = option(
        "--durability POLICY", "When an append is acknowledged: always, os or interval.", "always"
    ),
    output: Output = "table",
) -> None:
    """Measure writing and reading on this machine: single appends, batches, a buffered writer, scans, Arrow.

    The benchmark writes to a temporary log on the store's disk (or in the system's temporary directory), then removes
    it.

    \b
    Examples:
      sawlog bench -d data
      sawlog bench --durability os --compression zstd --size 1KiB
    """
    length = parsed("--size", size, size_bytes)
    config = LogConfig(durability=parsed("--durability", durability, _durability), compression=compression)
    beside = None if data is None else data.resolve().parent
    with tempfile.TemporaryDirectory(prefix=".sawlog-bench-", dir=beside) as place:
        printer = Printer(output)
        printer.remark(_machine(Path(place), durability, length, compression))
        with Log.open(Path(place) / "log", config) as log:
            printer.rows(list(_steps(log, length, seconds)), _BENCH_COLUMNS)


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
    return _bench_row(step, len(took) * records, length, now - began) | {
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
                return _bench_row(step, count, length, time.perf_counter() - began)


def _bench_row(step: str, records: int, length: int, seconds: float) -> dict[str, Any]:
    return {
        "step": step,
        "records": records,
        "records_per_second": round(records / seconds),
        "bytes_per_second": round(records * length / seconds),
        "median_ms": None,
        "p99_ms": None,
    }
