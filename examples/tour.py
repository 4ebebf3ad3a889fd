"""See sawlog work on this machine, in five acts. Run it with `make tour`, or directly; see `--help`.

Every number on the screen was measured in this run, and every tick is a check that could have failed. The acts are in
`tour_parts`, one per file.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

# The tour reports this in its second line.
warnings.filterwarnings("ignore", "sawlog: interpreted kernel", RuntimeWarning)

try:
    from tour_parts import acknowledging, damaging, killing, reading, writing
    from tour_parts.orders import ORDER_BYTES
    from tour_parts.screen import Screen, duration, size

    import sawlog
except ModuleNotFoundError as error:
    sys.exit(f"the tour needs {error.name}: run make setup, or pip install '.[cli]', in a clone of sawlog")

#: With the compiled kernel, and without it.
EVENTS, EVENTS_INTERPRETED, EVENTS_LEAST = 1_000_000, 20_000, 1_000
LOOKUPS, LOOKUPS_INTERPRETED = 20_000, 1_000

_DESCRIPTION = """\
Shows what sawlog does, on this machine, in five acts:

  1  Write        JSON orders one by one through a buffered writer, durable batch by batch
  2  Read         them back as records, as Arrow (with charts), and at random by offset
  3  Acknowledge  durable appends: one caller, then 256 asyncio tasks that share each fdatasync
  4  Kill         a writer process, with SIGKILL, in the middle of an append; reopen, and compare
  5  Damage       one byte of a copy; verify() finds it, and reading continues after it

Every number is measured in this run. Every tick is a check: if one fails, the exit code is 1."""

_EPILOG = """\
examples:
  python examples/tour.py                     a million orders in a temporary directory
  python examples/tour.py --events 50000      a short one
  python examples/tour.py --keep tour-data    and look at the files afterwards (ls -l tour-data/*)

It needs no network and writes nowhere but into that directory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every check holds, 1 if one fails, 2 if the tour cannot run as requested."""
    asked = _parse(arguments)
    compiled = sawlog.kernel_info().compiled
    events = asked.events or (EVENTS if compiled else EVENTS_INTERPRETED)
    screen = Screen()
    try:
        with _place(asked.keep, events) as place:
            _introduce(screen, place, events, compiled, lowered=asked.events is None and not compiled)
            began = perf_counter()
            _play(screen, place, events, LOOKUPS if compiled else LOOKUPS_INTERPRETED)
            _sum_up(screen, perf_counter() - began, asked.keep)
    except KeyboardInterrupt:
        screen.print("interrupted", "red")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 1 if screen.failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tour.py",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--events",
        type=int,
        metavar="N",
        help=f"how many orders to write: {EVENTS:,} by default ({EVENTS_INTERPRETED:,} where the kernel is not "
        f"compiled), at least {EVENTS_LEAST:,}",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write to this new or empty directory and leave it")
    asked = parser.parse_args(arguments)
    if asked.events is not None and asked.events < EVENTS_LEAST:
        parser.error(f"--events must be at least {EVENTS_LEAST:,}, not {asked.events:,}")
    if asked.keep is not None and asked.keep.exists() and (not asked.keep.is_dir() or any(asked.keep.iterdir())):
        parser.error(f"--keep: {asked.keep} is there and not an empty directory")
    return asked


@contextmanager
def _place(keep: Path | None, events: int) -> Iterator[Path]:
    """Yield the directory to write to: the requested one, or a temporary one."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        _check_room(keep, events)
        yield keep
        return
    with TemporaryDirectory(prefix="sawlog-tour-") as made:
        _check_room(Path(made), events)
        yield Path(made)


def _check_room(place: Path, events: int) -> None:
    """Return the disk space needed: the log, its copy, and some room for the other acts."""
    needed, free = 2 * events * ORDER_BYTES + (100 << 20), shutil.disk_usage(place).free
    if free < needed:
        print(f"{place} has {size(free)} free; this needs {size(needed)}: try fewer --events", file=sys.stderr)
        sys.exit(2)


def _introduce(screen: Screen, place: Path, events: int, compiled: bool, *, lowered: bool) -> None:
    kernel = "compiled kernel" if compiled else "interpreted kernel"
    screen.head(
        f"sawlog {sawlog.__version__}",
        f"{kernel} · Python {platform.python_version()} · {os.cpu_count()} processors\n{place}",
    )
    if _in_memory(place):
        screen.print(
            "This directory lives in memory, where fdatasync costs nothing: --keep DIR on a disk shows real rates.",
            "yellow",
        )
    if not compiled:
        screen.print(
            f"The kernel runs interpreted here, 20 to 200 times slower: "
            f"{f'{events:,} orders instead of {EVENTS:,}. ' if lowered else ''}With a C compiler, make setup "
            "compiles it.",
            "yellow",
        )


def _in_memory(place: Path) -> bool:
    """Return whether the directory is on an in-memory file system, as far as Linux reports it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    inside = [mount for mount in mounts if place.resolve().is_relative_to(mount[0])]
    return max(inside, key=lambda mount: len(mount[0]), default=["/", ""])[1] in ("tmpfs", "ramfs")


def _play(screen: Screen, place: Path, events: int, lookups: int) -> None:
    written = writing.play(screen, place / "orders", events)
    reading.play(screen, place / "orders", written, lookups)
    acknowledging.play(screen, place / "receipts")
    killing.play(screen, place / "killed")
    damaging.play(screen, place / "orders", place / "damaged")


def _sum_up(screen: Screen, seconds: float, keep: Path | None) -> None:
    screen.act("Summary", f"{duration(seconds)} in all.")
    screen.summary()
    if screen.failed:
        screen.print(f"{len(screen.failed)} of {screen.checks} checks FAILED:", "bold red")
        for text in screen.failed:
            screen.print(text, "red")
    else:
        screen.print(f"All {screen.checks} checks held.", "bold green")
    screen.line()
    where = f"ls -l {keep}/*" if keep else "make tour ARGS='--keep tour-data'"
    screen.facts(
        ("see the files", where),
        ("go on", "examples/append_and_read.py and six more, one idea each"),
    )


if __name__ == "__main__":
    # Removes the temporary directory in that case too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
