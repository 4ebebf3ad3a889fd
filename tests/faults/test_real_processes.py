"""Processes that want the same log, that fork, that are stopped, and that die while others read."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sawlog import Log
from sawlog.errors import DirectoryLocked

from ..processes import content
from ..processes.launch import PATIENCE_S, finish, ready, run, start

SEED = int(os.environ.get("SAWLOG_SEED", "5"))


@contextmanager
def never_left(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Kill the processes at the end, stopped ones too."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


# --- two writers


def acknowledged(output: str) -> dict[int, str]:
    """Return the acknowledgements of a writer, without a last line that a kill has cut."""
    lines = [line.split() for line in output[: output.rfind("\n") + 1].splitlines() if line != "ready"]
    return {int(offset): name for offset, name in lines}


# Kills include taking turns; without one, nothing else is checked.
@pytest.mark.costly  # three interpreters
@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=pytest.mark.slow), True], ids=["all live", "all are killed"]
)
def test_two_writers_that_want_one_log_take_turns_and_lose_nothing(tmp_path: Path, killed: bool) -> None:
    names = ("a", "b", "c")
    writers = [start("contending", "write", tmp_path, name, 10_000 if killed else 8) for name in names]
    with never_left(*writers):
        for writer in writers:
            ready(writer)
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        outputs = []
        for writer in writers:
            assert writer.stdout is not None
            first = writer.stdout.readline()  # it has had a turn
            if killed:
                writer.kill()
            output, errors = writer.communicate(timeout=PATIENCE_S)
            assert killed or writer.returncode == 0, errors
            outputs.append(first + output)
    with Log.open(tmp_path) as log:
        assert log.recovery
        assert log.verify()
        found = {record.offset: content.name_of(record.value) for record in log.scan()}
    said = [acknowledged(output) for output in outputs]
    assert all(said)
    for told in said:
        for offset, name in told.items():
            assert found[offset] == name
    assert sorted(found) == list(range(len(found)))
    sessions = [name.rpartition(".")[0] for _, name in sorted(found.items())]
    turns = [name for name, _ in itertools.groupby(sessions)]
    assert len(turns) == len(set(turns)), "two of them wrote at the same time"
    assert len({turn.partition(".")[0] for turn in turns}) == 3


@pytest.mark.costly  # a new interpreter that forks
def test_a_forked_child_leaves_its_parents_consumers_and_readers_alone(tmp_path: Path) -> None:
    assert run("contending", "fork", tmp_path / "store") == "good\n"


# --- stopped


def test_a_stopped_writer_keeps_its_lock_and_readers_continue(tmp_path: Path) -> None:
    """SIGSTOP at any moment of appending, rotating and trimming; then it continues as if nothing had been."""
    chance = random.Random(SEED)
    writer = ready(start("writing", tmp_path, SEED, 0, "wait", "trim"))
    with never_left(writer):
        end = 0
        for _ in range(8):
            time.sleep(chance.uniform(0, 0.03))
            writer.send_signal(signal.SIGSTOP)
            with pytest.raises(DirectoryLocked):
                Log.open(tmp_path)
            with Log.open(tmp_path, mode="r") as reader:
                assert reader.verify(), str(reader.verify())
                offsets = [int(content.name_of(record.value).partition(".")[0]) for record in reader.scan()]
                assert offsets == list(range(reader.lowest_offset, reader.next_offset))
                assert reader.next_offset >= end, "records that were there are gone"
                end = reader.next_offset
            writer.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE_S
        with Log.open(tmp_path, mode="r") as reader:
            while reader.next_offset <= end:
                assert time.monotonic() < deadline, "it has not gone on"
                time.sleep(0.01)
        writer.send_signal(signal.SIGSTOP)
        writer.kill()  # a stopped process dies, too, and releases the lock
        writer.communicate()
    with Log.open(tmp_path) as log:
        assert log.recovery
        assert log.next_offset >= end
        assert log.verify()


# --- readers beside a writer that rewrites, and dies


@pytest.mark.costly  # four interpreters, two of which read all the time
@pytest.mark.parametrize(
    ("trims", "kills"),
    [
        pytest.param(False, 1, id="keeps"),
        pytest.param(False, 6, id="keeps, more kills", marks=pytest.mark.slow),
        pytest.param(True, 3, id="trims", marks=pytest.mark.slow),
    ],
)
def test_readers_follow_a_writer_that_compacts_and_dies(tmp_path: Path, trims: bool, kills: int) -> None:
    """Offsets increase, every record is as written, and no surviving record is skipped, however often the writer is
    killed during a rewrite."""
    chance = random.Random(SEED)
    options = ("fall",) if trims else ()
    writer = ready(start("rewriting", tmp_path, SEED, 10**6, *(["trim"] if trims else [])))
    readers = [
        ready(start("watching", tmp_path, SEED, "follow", *options)),
        ready(start("watching", tmp_path, SEED + 1, *options)),
    ]
    with never_left(writer, *readers):
        for kill in range(1, kills + 1):
            time.sleep(chance.uniform(0.02, 0.15))
            writer.kill()
            writer.communicate()
            steps = 10 if kill == kills else 10**6
            writer = ready(start("rewriting", tmp_path, SEED + kill, steps, *(["trim"] if trims else [])))
        finish(writer)
        for reader in readers:
            assert json.loads(finish(reader).splitlines()[-1])["seen"] > 0
