"""Fuzzing: `python -m tests.faults fuzz --executions N [--target T]`.

There are three modes, which share a corpus:

    (default)     mutation: seeds and corpus are changed with knowledge of their format (`mutate`) and passed to the
                  compiled kernel, thousands a second. The long form runs millions of them.
    --coverage    atheris: coverage of the Python code decides which inputs are kept and changed further. The kernel
                  is interpreted in this mode. The inputs that it keeps can be added to the corpus.
    --replay      run the seeds and the corpus once.

A worker writes each input to shared memory before running it, so that an input that kills or hangs the process is
known. Failing inputs are saved below `--keep`, with a printed command that replays them. Memory is limited
(`--memory-mb` more than at the start of the process), and so is the time of one input (SLOW_S).
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import hashlib
import importlib.util
import mmap
import os
import random
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ..report import Tally, say
from . import corpus
from .targets import TARGETS, Target

#: Time limit for one input of a few kilobytes. Generous, because the machines that run this are shared.
SLOW_S = 10.0
#: A process that shows no progress for this long is ended, and its current input is saved.
HANG_S = 30
#: Number of inputs made from one seed before the next is chosen.
_BLOCK = 64
_LONGEST = 1 << 16
#: Header of the shared memory: executions so far, number of the target, length of the input. The input follows.
_HEAD = struct.Struct("<qqq")
#: glibc's mallopt parameter for the maximum number of arenas.
_M_ARENA_MAX = -8


def names(chosen: list[str] | None) -> list[str]:
    return chosen or list(TARGETS)


def attempt(target: Target, data: bytes) -> str | None:
    """Run one input. Return the failure, or None."""
    started = time.monotonic()
    try:
        target.call(data)
    except MemoryError:
        return f"{target.name}: exceeded the memory limit"
    except Exception:
        return f"{target.name}: {traceback.format_exc(limit=-6)}"
    if time.monotonic() - started > SLOW_S:
        return f"{target.name}: took {time.monotonic() - started:.1f} s"
    return None


def _limit_arenas() -> None:
    """Reduce the address space that threads reserve. RLIMIT_AS limits addresses, and each background thread would
    reserve 64 MiB for an arena and 8 MiB for its stack, so a few idle threads would exhaust the limit."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    threading.stack_size(1 << 20)


def bound_memory(megabytes: int) -> None:
    """Limit the memory of this process to its current size plus `megabytes`. Not under AddressSanitizer, which maps
    terabytes."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    _limit_arenas()
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


# --- mutation


class Worker:
    """A process that mutates inputs and runs them."""

    def __init__(self, number: int, options: argparse.Namespace, executions: int) -> None:
        self.options = options
        self.executions = executions
        self.chance = random.Random(f"{options.seed} {number}")
        self.chosen = [TARGETS[name] for name in names(options.target)]
        self.seeds = [[*target.seeds(), *corpus.load(target.name)] for target in self.chosen]
        self.shared = mmap.mmap(-1, _HEAD.size + _LONGEST)
        self.read_fd, self.write_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run()
        os.close(self.write_fd)

    # --- in the worker

    def _run(self) -> NoReturn:
        code = 1
        try:
            os.close(self.read_fd)
            warnings.simplefilter("ignore")
            bound_memory(self.options.memory_mb)
            self._work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)

    def _work(self) -> None:
        weights = [target.weight for target in self.chosen]
        seen: set[str] = set()
        done = 0
        while done < self.executions:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            which = self.chance.choices(range(len(self.chosen)), weights)[0]
            for data in self._inputs(which, min(_BLOCK, self.executions - done)):
                done += 1
                _HEAD.pack_into(self.shared, 0, done, which, len(data))
                self.shared[_HEAD.size : _HEAD.size + len(data)] = data
                wrong = attempt(self.chosen[which], data)
                if wrong is not None and (place := wrong[-300:]) not in seen and len(seen) < 20:
                    seen.add(place)
                    self._tell(which, data, wrong)
        faulthandler.cancel_dump_traceback_later()

    def _inputs(self, which: int, count: int) -> Iterator[bytes]:
        """Yield mutations of one seed. Sometimes a mutation becomes the seed of the next ones."""
        target, seeds = self.chosen[which], self.seeds[which]
        seed = self.chance.choice(seeds)
        for _ in range(count):
            made = target.mutate(seed, seeds, self.chance)[:_LONGEST]
            yield made
            if self.chance.random() < 0.05:
                seed = made

    def _tell(self, which: int, data: bytes, wrong: str) -> None:
        kept = keep(self.options.keep, self.chosen[which].name, data)
        os.write(self.write_fd, f"{kept}\n{wrong}\0".encode()[-60_000:])

    # --- in the parent

    @property
    def done(self) -> int:
        return int(_HEAD.unpack_from(self.shared)[0])

    def last(self) -> tuple[Target, bytes]:
        """Return the current or last target and input."""
        _, which, size = _HEAD.unpack_from(self.shared)
        return self.chosen[which], bytes(self.shared[_HEAD.size : _HEAD.size + size])


def keep(folder: str, name: str, data: bytes) -> str:
    """Save a failing input and return its path."""
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    Path(path).write_bytes(data)
    return path


def mutate_many(options: argparse.Namespace, tally: Tally) -> None:
    """Distribute the executions among the processes."""
    share = -(-options.executions // options.processes)
    workers = [Worker(number, options, share) for number in range(options.processes)]
    known = 0
    while workers:
        ready, _, _ = select.select([worker.read_fd for worker in workers], [], [], 0.5)
        done = sum(worker.done for worker in workers)
        tally.advance(max(done - known, 0))
        known = max(done, known)
        for worker in [each for each in workers if each.read_fd in ready]:
            said = os.read(worker.read_fd, 1 << 16)
            for text in filter(None, said.decode(errors="replace").split("\0")):
                path, _, wrong = text.partition("\n")
                tally.violation(f"{wrong}\n{_again(worker.last()[0].name, path)}")
            if said:
                continue
            os.close(worker.read_fd)
            _, status = os.waitpid(worker.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            known -= worker.done
            workers.remove(worker)
            if code:
                target, data = worker.last()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code} (a hang, if shown above)"
                again = _again(target.name, keep(options.keep, target.name, data))
                tally.violation(f"{target.name}: ended the process with {how}\n{again}")


def _again(name: str, path: str) -> str:
    return f"again: python -m tests.faults fuzz --target {name} --input {path}"


# --- replay


def replay(inputs: Iterator[tuple[Target, bytes]], tally: Tally) -> None:
    for target, data in inputs:
        wrong = attempt(target, data)
        tally.advance(what=target.name)
        if wrong is not None:
            tally.violation(f"{wrong}\ninput: {data[:200]!r}")


def kept(chosen: list[str] | None) -> Iterator[tuple[Target, bytes]]:
    """Yield seeds and corpus of the targets."""
    for name in names(chosen):
        for data in [*TARGETS[name].seeds(), *corpus.load(name)]:
            yield TARGETS[name], data


# --- coverage


def cover(options: argparse.Namespace, tally: Tally) -> None:
    """Run one atheris process per target, with the interpreted kernel. With `--grow`, add its inputs to the corpus."""
    if importlib.util.find_spec("atheris") is None:
        say("atheris is not installed (python tools/install.py --group fuzz, CPython 3.11 to 3.14): no coverage")
        tally.violations.append("no atheris")
        return
    from .. import shadow

    chosen = names(options.target)
    with tempfile.TemporaryDirectory() as work:
        package = shadow.make(Path(work, "package"))
        for name in chosen:
            started = len(corpus.load(name))
            done = _cover_one(options, name, work, package, options.executions // len(chosen))
            for path in sorted(Path(work, f"crashers-{name}").glob("*")):
                if path.name.startswith(("crash-", "timeout-", "oom-")):
                    again = _again(name, keep(options.keep, name, path.read_bytes()))
                    tally.violation(f"{name}: {path.name.partition('-')[0]}\n{done[-3000:]}\n{again}")
            found = [path.read_bytes() for path in sorted(Path(work, f"corpus-{name}").iterdir())]
            found = [data for data in found if len(data) <= options.longest]
            new = corpus.add(name, found) if options.grow else 0
            count = re.search(r"stat::number_of_executed_units: (\d+)", done)
            tally.advance(int(count[1]) if count else 0, what=name)
            say(f"{name}: {len(found)} inputs with coverage of their own; corpus {started} + {new}")


def _cover_one(options: argparse.Namespace, name: str, work: str, package: Path, executions: int) -> str:
    folders = [Path(work, f"{what}-{name}") for what in ("corpus", "crashers", "seeds")]
    for folder in folders:
        folder.mkdir()
    for number, data in enumerate([*TARGETS[name].seeds(), *corpus.load(name)]):
        (folders[2] / str(number)).write_bytes(data)
    command = [sys.executable, "-m", "tests.faults.fuzz.covering", name, str(folders[0]), str(folders[2])]
    limits = [
        f"-runs={executions}",
        f"-seed={options.seed}",
        f"-max_len={options.longest}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={options.memory_mb + 512}",
        f"-max_total_time={options.seconds}",
        f"-artifact_prefix={folders[1]}/",
        "-reduce_inputs=1",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    path = os.pathsep.join([str(package), str(corpus.PLACE.parents[3])])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*command, *limits], env=env, capture_output=True, text=True, check=False)
    if done.returncode and not any(folders[1].iterdir()):
        raise RuntimeError(f"atheris ended with {done.returncode}: {done.stderr[-3000:]}")
    return done.stderr


# --- the command


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executions", type=int, default=1_000_000, help="number of inputs (default: a million)")
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="only this one; may be repeated")
    parser.add_argument("--processes", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--memory-mb", type=int, default=512, help="memory that a process may allocate after its start")
    parser.add_argument("--keep", default="build/fuzz", help="directory for failing inputs")
    parser.add_argument("--replay", action="store_true", help="run seeds and corpus once")
    parser.add_argument("--input", help="run the bytes in this file; with one --target")
    parser.add_argument(
        "--coverage", action="store_true", help="guided by coverage (atheris), with the interpreted kernel"
    )
    parser.add_argument("--seconds", type=int, default=0, help="with --coverage: time limit per target")
    parser.add_argument("--longest", type=int, default=600, help="with --coverage: maximum length of an input in bytes")
    parser.add_argument("--grow", action="store_true", help="with --coverage: add the inputs found to the corpus")


def run(options: argparse.Namespace) -> int:
    title, total, way = _way(options)
    tally = Tally(title, total, "executions")
    way(tally)
    return tally.finish()


def _way(options: argparse.Namespace) -> tuple[str, int | None, Callable[[Tally], None]]:
    if options.input is not None:
        [name] = options.target
        data = Path(options.input).read_bytes()
        return "fuzz", 1, lambda tally: replay(iter([(TARGETS[name], data)]), tally)
    if options.replay:
        return "fuzz, replay", None, lambda tally: replay(kept(options.target), tally)
    if options.coverage:
        return "fuzz, coverage", options.executions, lambda tally: cover(options, tally)
    return "fuzz", options.executions, lambda tally: mutate_many(options, tally)
