"""kill -9 at random moments: acknowledged records are there, existing records were sent, in order, and the log
continues.

A killed process loses none of its writes, whatever the durability policy: this finds torn appends, wrong recovery and
locks that stay. It cannot find a missing fsync, because the page cache survives.

Six kills for each policy by default; `SAWLOG_KILLS=200` makes more. `SAWLOG_SEED` changes the moments.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sawlog import Log

from ..processes import content
from ..processes.acknowledging import SETTINGS
from ..processes.launch import PATIENCE_S, start

KILLS = int(os.environ.get("SAWLOG_KILLS", "6"))
SEED = int(os.environ.get("SAWLOG_SEED", "11"))
FORMS = ["append", "append_many", "writer", "append_stream", "append_async", "append_arrow"]


class Victims:
    """Starts writers and kills them."""

    def __init__(self, directory: Path, durability: str) -> None:
        self.server = start("acknowledging", directory, durability)
        assert self.server.stdout is not None
        assert self.server.stdin is not None
        self.stdin, stdout = self.server.stdin, self.server.stdout
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A thread reads all the time, or the writer would block on a full pipe.
        self.reader = threading.Thread(target=lambda: [self.lines.put(line) for line in stdout])
        self.reader.start()

    def acknowledged(self, round_: int, form: str, after_s: float) -> dict[int, str]:
        """Return the acknowledgements of one writer before it was killed: offset -> name."""
        self.stdin.write(f"{round_} {form}\n")
        self.stdin.flush()
        said, pid = self.lines.get(timeout=PATIENCE_S).split()
        assert said == "ready"
        time.sleep(after_s)
        with suppress(ProcessLookupError):  # it has exited: reported below
            os.kill(int(pid), signal.SIGKILL)
        found = {}
        while True:
            first, second = self.lines.get(timeout=PATIENCE_S).split()
            if first == "dead":
                if int(second) != -signal.SIGKILL:
                    self.stdin.close()
                    raise AssertionError(f"the writer exited:\n{self.server.stderr.read()}")  # type: ignore[union-attr]
                return found
            found[int(first)] = second

    def close(self) -> None:
        self.stdin.close()
        self.reader.join(PATIENCE_S)
        errors = self.server.stderr.read() if self.server.stderr is not None else ""
        assert self.server.wait(PATIENCE_S) == 0, errors
        for pipe in (self.server.stdout, self.server.stderr):
            if pipe is not None:
                pipe.close()


def check_sent(names: list[str], round_: int) -> None:
    """Check the records of one process: a prefix, in order, without half a batch."""
    parts = [name.split(".") for name in names]
    assert {int(part[0]) for part in parts} <= {round_}
    assert [int(part[1]) for part in parts] == list(range(len(parts)))
    if parts:
        assert int(parts[-1][1]) == int(parts[-1][2].partition("-")[2]), "half a batch"


@pytest.mark.costly  # starts a process that forks one for each kill
@pytest.mark.sampled(1)  # over a second each
@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, durability: str) -> None:
    rng = random.Random(f"{SEED} {durability}")
    forms = itertools.cycle(rng.sample(FORMS, len(FORMS)))
    kept: list[bytes] = []
    victims = Victims(tmp_path, durability)
    try:
        for round_ in range(KILLS):
            form, after_s = next(forms), rng.uniform(0, 0.1)
            told = f"seed {SEED}, kill {round_}, {form}, {durability}, after {after_s:.3f} s"
            acknowledged = victims.acknowledged(round_, form, after_s)
            kept = check_log(tmp_path, kept, acknowledged, round_, told)
    finally:
        victims.close()


def check_log(directory: Path, kept: list[bytes], acknowledged: dict[int, str], round_: int, told: str) -> list[bytes]:
    """Reopen the log after a kill and return its records."""
    with Log.open(directory, SETTINGS) as log:
        assert log.recovery, f"{told}: {log.recovery}"
        report = log.verify()
        assert report, f"{told}: {report}"
        found = [record.value or b"" for record in log.scan()]
        assert log.lowest_offset == 0
        assert len(found) == log.next_offset
        assert found[: len(kept)] == kept, f"{told}: a record from before has changed"
        for offset, name in acknowledged.items():
            assert offset < len(found), f"{told}: the acknowledged offset {offset} is gone"
            assert content.name_of(found[offset]) == name, told
        check_sent([content.name_of(value) for value in found[len(kept) :]], round_)
        assert log.append(b"between") == len(found)
        return [*found, b"between"]
