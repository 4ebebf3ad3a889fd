"""Repeated kill -9 during every kind of work: `python -m tests.faults kills --kills 1000 --seed S`.

This process imports everything, opens nothing, and forks a victim (`victims.Work.work`) that reports its
acknowledgements through a pipe; after a moment the victim is killed; then a second process checks the directory
(`Work.check`) and exits, cleanly or not; then the next victim continues in the same directory. Some victims are killed
while they are still opening, and some directories are not checked between two victims. Forking instead of starting
Python allows some twenty kills a second on a busy machine.

The seed decides on the work and on the moment of each kill; the machine decides how far a victim has come, so no two
runs are the same. A violation keeps the directory and prints its path.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from .report import Tally, say
from .victims import WORKS, Round, Work, prepare

#: Victims per directory: the check of a large directory takes long.
VICTIMS_A_DIRECTORY = 12
#: Limit for anything that normally takes milliseconds.
PATIENCE_S = 60.0
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which `fcntl` has no name for


class Ended(AssertionError):
    """A victim or a checker exited without being killed."""


class Pipe:
    """The output of a forked process, by line or as a whole."""

    def __init__(self, work: Callable[[], None], errors: str) -> None:
        self.read_fd, write_fd = os.pipe()
        with_room(write_fd)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.read_fd)
            _run(work, write_fd, errors)
        os.close(write_fd)
        self.said = bytearray()

    def listen(self, seconds: float, until: bytes | None = None) -> bool:
        """Read output for some seconds, or until it contains `until`; return False if the process has ended."""
        deadline = time.monotonic() + seconds
        while until is None or until not in self.said:
            rest = deadline - time.monotonic()
            if rest <= 0:
                return True
            if select.select([self.read_fd], [], [], rest)[0]:
                more = os.read(self.read_fd, _PIPE_BYTES)
                if not more:
                    return False
                self.said += more
        return True

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Return the exit code and the output."""
        alive = self.listen(PATIENCE_S)
        if alive:
            self.kill()
        os.close(self.read_fd)
        _, status = os.waitpid(self.pid, 0)
        if alive:
            raise Ended("hangs")
        return os.waitstatus_to_exitcode(status)


def with_room(fd: int) -> None:
    """Enlarge the pipe to hold some milliseconds of output."""
    import fcntl

    try:
        fcntl.fcntl(fd, _SET_PIPE_SIZE, _PIPE_BYTES)
    except OSError:
        pass  # this user has too many large pipes: a small one works as well


def _run(work: Callable[[], None], write_fd: int, errors: str) -> NoReturn:
    """Run in the forked process: its output goes to the pipe, its errors to a file."""
    try:
        os.dup2(write_fd, 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        prepare()
        work()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        try:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)


class Killer:
    """Kills victims of one kind of work."""

    def __init__(self, work: Work, root: str, chance: random.Random, tally: Tally) -> None:
        self.work = work
        self.root = root
        self.chance = chance
        self.tally = tally
        self.numbers = 0
        self.begin()

    def begin(self) -> None:
        """Start with a new directory."""
        self.place = tempfile.mkdtemp(prefix=self.work.name.replace(" ", "-") + "-", dir=self.root)
        self.state: Any = None
        self.waiting: list[Round] = []
        self.victims = 0

    def step(self) -> None:
        """Kill a victim and check the directory, unless the next victim is to be killed first."""
        if self.victims == VICTIMS_A_DIRECTORY:
            shutil.rmtree(self.place)
            self.begin()
        self.victims += 1
        self.waiting.append(self.kill())
        self.tally.advance(what=f"kills: {self.work.name}")
        last = self.victims == VICTIMS_A_DIRECTORY
        if self.work.chained and not last and self.chance.random() < 0.25:
            return
        self.check()

    def kill(self) -> Round:
        """Kill one victim and return its output."""
        self.numbers += 1
        number = self.numbers
        errors = f"{self.root}/errors"
        victim = Pipe(lambda: self.work.work(self.place, number, self.state), errors)
        early = self.chance.random() < 0.25
        pause_s = self.chance.uniform(0, 0.008 if early else 0.025)
        alive = victim.listen(PATIENCE_S, b"ready\n") if not early else True
        alive = alive and victim.listen(pause_s)
        if alive:
            victim.kill()
        code = victim.end()
        if code != -signal.SIGKILL:
            with open(errors, encoding="utf-8") as file:
                raise Ended(f"the victim exited with {code}:\n{file.read()}")
        lines = victim.said[: victim.said.rfind(b"\n") + 1].decode().splitlines()
        if "ready" not in lines:
            self.tally.counts["killed while opening"] += 1
        return Round(number, [line.split() for line in lines])

    def check(self) -> None:
        """Check in another process, so that this one never has threads or open files."""
        errors = f"{self.root}/errors"

        def checking() -> None:
            found: Counter[str] = Counter()
            state = self.work.check(self.place, self.state, self.waiting, found)
            sys.stdout.buffer.write(pickle.dumps((state, found)))

        checker = Pipe(checking, errors)
        code = checker.end()
        if code:
            with open(errors, encoding="utf-8") as file:
                raise AssertionError(f"the check ended with {code}:\n{file.read()}")
        self.state, found = pickle.loads(bytes(checker.said))
        self.tally.counts.update(found)
        self.waiting = []


def kill_many(kills: int, seed: int, works: list[str], root: str, tally: Tally) -> None:
    """Make `kills` kills, taking turns among the kinds of work."""
    gc.collect()
    gc.freeze()  # gc.freeze()  # otherwise every fork would copy the memory that the collector touches
    killers = [Killer(WORKS[name], root, random.Random(f"{seed} {name}"), tally) for name in works]
    for number in range(kills):
        killer = killers[number % len(killers)]
        try:
            killer.step()
        except AssertionError as error:
            said = "\n".join(" ".join(line) for round_ in killer.waiting for line in round_.lines[-5:])
            again = f'python -m tests.faults kills --seed {seed} --kills {kills} --work "{killer.work.name}"'
            tally.violation(
                f"{killer.work.name}, kill {number}, directory {killer.place}\n{error}\n"
                f"it had said last:\n{said}\nagain, with luck: {again}"
            )
            killer.begin()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--work", choices=list(WORKS), action="append", help="only this kind; may be repeated")
    parser.add_argument("--directory", help="where to work (default: a temporary directory)")


def run(options: argparse.Namespace) -> int:
    tally = Tally("kill -9", options.kills, "kills")  # a progress bar has a thread, and this process forks
    root = tempfile.mkdtemp(prefix="sawlog-kills-", dir=options.directory)
    kill_many(options.kills, options.seed, options.work or list(WORKS), root, tally)
    if not tally.failed:
        shutil.rmtree(root)
    say(f"seed {options.seed}")
    return tally.finish()
