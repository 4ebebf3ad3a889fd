"""Several writers of one partition that are killed and stopped, and whose fsyncs fail.

Two or three processes append numbered records (tests/processes/numbering.py) and print the acknowledged ones. Meanwhile
processes are killed and replaced, or stopped for a while, or one of their fsyncs fails. Afterwards every acknowledged
record is stored exactly once, every other record at most once, and the records of each process are in order. A reader
that follows the partition has seen a prefix of it, and every process makes progress again.

The seed of the run (tests/faults/seeds.py), which pytest's header shows, determines the plan but not the interleaving
of the processes.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import sawlog

from ..faults.seeds import seed_of_this_run
from ..processes.launch import PATIENCE_S, ready, start

TOPIC = "numbered"
#: Weights of the disturbances.
ACTS = {"nothing": 2, "kill": 3, "stop": 3, "fail an fsync": 2, "end": 1}


class Writer:
    """An appending process and its answers."""

    def __init__(self, path: Path, tag: str, seed: str) -> None:
        self.tag = tag
        self.process = ready(start("numbering", path, TOPIC, tag, seed))
        self.acknowledged: list[int] = []
        self.said: list[str] = []
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # it was killed while printing this line
            word, first, end, *_ = line.split()
            if word == "stored":
                self.acknowledged += range(int(first), int(end))
            else:
                self.said.append(line)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self._reap()

    def end(self) -> None:
        """Close the store and wait for the exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        errors = self._reap()
        assert self.process.returncode == 0, errors

    def dump(self) -> str:
        """End the process and return the stacks of its threads, which faulthandler prints."""
        self.process.send_signal(signal.SIGABRT)
        return self._reap()

    def _reap(self) -> str:
        """Wait for the exit and return the output on stderr."""
        self._listening.join(PATIENCE_S)
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = process.stderr.read()
        process.wait(PATIENCE_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        return errors


class History:
    """Processes that write one partition, and a reader that follows it."""

    def __init__(self, path: Path, seed: str, durability: str, processes: int) -> None:
        self._path, self._seed = path, seed
        self._chance = random.Random(seed)
        with sawlog.open(path) as store:
            store.create_topic(TOPIC, partitions=1, durability=durability, segment_bytes=20_000)
        self.writers: list[Writer] = []
        self._running: list[Writer] = []
        self.seen: list[bytes | None] = []
        self._over = threading.Event()
        self._following = threading.Thread(target=self._follow)
        self._following.start()
        for _ in range(processes):
            self._start()

    def _start(self) -> None:
        made = Writer(self._path, f"w{len(self.writers)}", self._seed)
        self.writers.append(made)
        self._running.append(made)

    def _follow(self) -> None:
        with sawlog.open(self._path, mode="r") as store:
            while not self._over.is_set():
                for record in store[TOPIC].partition(0).follow(len(self.seen), timeout=0.1):
                    self.seen.append(record.value)
                    if self._over.is_set():
                        break

    def act(self) -> None:
        """Disturb one of the processes."""
        writer = self._chance.choice(self._running)
        what = self._chance.choices(list(ACTS), list(ACTS.values()))[0]
        pause_s = self._chance.choice([0.001, 0.01, 0.05, 0.2])
        if what == "stop":
            writer.process.send_signal(signal.SIGSTOP)
            time.sleep(pause_s)
            writer.process.send_signal(signal.SIGCONT)
        elif what == "fail an fsync":
            writer.process.send_signal(signal.SIGUSR1)
        elif what in ("kill", "end"):
            self._running.remove(writer)
            writer.kill() if what == "kill" else writer.end()
            self._start()
        time.sleep(self._chance.random() * 0.1)

    def calm_down(self) -> None:
        """Check that every undisturbed process makes progress again."""
        for writer in self._running:
            before, deadline = len(writer.acknowledged), time.monotonic() + PATIENCE_S
            while len(writer.acknowledged) == before:
                if time.monotonic() > deadline or writer.process.poll() is not None:
                    self._running.remove(writer)
                    pytest.fail(f"{writer.tag} has stopped:\n{writer.said[-3:]}\n{writer.dump()}")
                time.sleep(0.01)

    def end(self) -> None:
        """End the processes and the reader, whatever their state."""
        for writer in self._running:
            if self._chance.random() < 0.5:
                writer.kill()
            else:
                writer.end()
        self._running.clear()
        self._over.set()
        self._following.join()

    def abandon(self) -> None:
        """Kill the remaining processes after a failure."""
        for writer in self._running:
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                writer.kill()
        self._over.set()
        self._following.join()

    def check(self) -> None:
        """Compare the partition with the acknowledged records and those that were read."""
        with sawlog.open(self._path) as store:
            assert store[TOPIC].partition(0).verify()
            found = [record.value for record in store[TOPIC].partition(0).scan()]
        assert self.seen == found[: len(self.seen)], "a record that was read has changed or gone"
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for value in found:
            assert value is not None
            tag, number = value.decode().split()
            numbers[tag].append(int(number))
        for writer in self.writers:
            there = numbers.pop(writer.tag, [])
            twice = [number for number, count in Counter(there).items() if count > 1]
            assert not twice, f"{writer.tag}: stored twice: {twice[:5]}"
            assert all(one < other for one, other in pairwise(there)), f"{writer.tag}: out of order"
            lost = sorted(set(writer.acknowledged) - set(there))
            assert not lost, f"{writer.tag}: {len(lost)} acknowledged records are lost, first {lost[:5]}"
        assert not numbers


@contextlib.contextmanager
def history(path: Path, seed: str, durability: str, processes: int) -> Iterator[History]:
    made = History(path, seed, durability, processes)
    try:
        yield made
    finally:
        made.abandon()


def disturb(path: Path, seed: str, durability: str, processes: int, acts: int) -> None:
    with history(path, seed, durability, processes) as disturbed:
        for _ in range(acts):
            disturbed.act()
        disturbed.calm_down()
        disturbed.end()
        disturbed.check()
        assert sum(len(writer.acknowledged) for writer in disturbed.writers) > acts


@pytest.mark.costly  # several processes that append without a pause
def test_acknowledged_records_survive_kills_stops_and_failed_fsyncs(tmp_path: Path) -> None:
    seed = f"history {seed_of_this_run()}"
    chance = random.Random(seed)
    disturb(tmp_path / "store", seed, chance.choice(["os", "always"]), chance.randint(2, 3), acts=8)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("durability", ["os", "always"])
def test_acknowledged_records_survive_long_disturbances(
    tmp_path: Path, durability: str, processes: int, number: int
) -> None:
    disturb(tmp_path / "store", f"long {seed_of_this_run()} {number}", durability, processes, acts=250)
