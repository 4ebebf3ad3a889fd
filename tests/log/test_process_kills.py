"""kill -9 at random moments: what was acknowledged is there, what is there was sent, in order, and the log goes on.

A killed process loses nothing that it has written, whatever the durability policy: this finds torn appends, wrong
recovery and locks that stay. It cannot find a missing fsync, because the page cache survives.

A few kills by default; `SAWLOG_KILLS=200` does as many for each policy. `SAWLOG_SEED` changes the moments.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from sawlog import Log

from ..processes import content
from ..processes.acknowledging import SETTINGS
from ..processes.launch import finish, ready, start

KILLS = int(os.environ.get("SAWLOG_KILLS", "4"))
SEED = int(os.environ.get("SAWLOG_SEED", "11"))
FORMS = ["append", "append_many", "writer", "append_stream", "append_async", "append_arrow"]


def run_until_killed(directory: Path, round_: int, form: str, durability: str, after_s: float) -> dict[int, str]:
    """What a process had acknowledged when it was killed: offset -> name."""
    process = ready(start("acknowledging", directory, round_, form, durability))
    assert process.stdout is not None
    lines: list[str] = []
    stdout = process.stdout
    thread = threading.Thread(target=lambda: lines.extend(stdout))  # it must not wait for us with a full pipe
    thread.start()
    time.sleep(after_s)
    process.kill()
    thread.join()
    process.wait()
    if process.returncode != -signal.SIGKILL:
        finish(process)
    process.stdout.close()
    for pipe in (process.stdin, process.stderr):
        assert pipe is not None
        pipe.close()
    whole = [line for line in lines if line.endswith("\n")]
    return {int(offset): name for offset, name in (line.split() for line in whole)}


def check_sent(names: list[str], round_: int) -> None:
    """What one process left behind: the first so many of its records, in order, and no half batch."""
    parts = [name.split(".") for name in names]
    assert {int(part[0]) for part in parts} <= {round_}
    assert [int(part[1]) for part in parts] == list(range(len(parts)))
    if parts:
        assert int(parts[-1][1]) == int(parts[-1][2].partition("-")[2]), "half a batch"


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, durability: str) -> None:
    rng = random.Random(f"{SEED} {durability}")
    forms = itertools.cycle(rng.sample(FORMS, len(FORMS)))
    kept: list[bytes] = []
    for round_ in range(KILLS):
        form, after_s = next(forms), rng.uniform(0, 0.15)
        told = f"seed {SEED}, kill {round_}, {form}, {durability}, after {after_s:.3f} s"
        acknowledged = run_until_killed(tmp_path, round_, form, durability, after_s)
        with Log.open(tmp_path, SETTINGS) as log:
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
            following = log.append(b"between")
            assert following == len(found)
            kept = [*found, b"between"]
