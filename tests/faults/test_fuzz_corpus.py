"""Replay every input that fuzzing has kept: fixed bugs stay fixed, covered code stays covered.

`python -m tests.faults fuzz` makes new inputs, `--coverage --grow` adds to the corpus.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

import sawlog

from ..processes.launch import ROOT
from .fuzz import corpus, run
from .fuzz.targets import TARGETS


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of regular expressions that somebody typed
@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_and_every_kept_input_is_read_or_refused(name: str) -> None:
    inputs = [*TARGETS[name].seeds(), *corpus.load(name)]
    assert inputs
    for data in inputs:
        assert run.attempt(TARGETS[name], data) is None, data


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.quick])
def test_inputs_that_are_made_now_are_read_or_refused(name: str) -> None:
    """A few, the same every time: that the mutations still fit their target."""
    target, chance = TARGETS[name], random.Random(name)
    seeds = [*target.seeds(), *corpus.load(name)]
    made = {target.mutate(chance.choice(seeds), seeds, chance) for _ in range(100)}
    assert len(made) > 20, "the mutations change nothing"
    for data in made:
        assert run.attempt(target, data) is None, data


def options(**changes: object) -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    run.add_options(parser)
    found = parser.parse_args([])
    vars(found).update(changes)
    return found


PLANTED = """
import ctypes, sys, time
from tests.faults.fuzz import run, targets
from tests.faults.fuzz.targets import Target
from tests.faults.test_fuzz_corpus import options
def broken(data):
    if data[:1] != b"\\0":
        WHAT
made = lambda seed, others, chance: bytes([chance.randrange(9)]) * 8
targets.TARGETS["planted"] = Target("planted", broken, lambda: [bytes(8)], made)
run.HANG_S = 1
sys.exit(run.run(options(target=["planted"], executions=2000, keep=sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        # Each starts a program for a second. A death is the hardest to notice; the others are slow.
        pytest.param("raise KeyError(data)", "KeyError", marks=pytest.mark.slow),
        pytest.param("bytearray(1 << 34)", "more memory than is allowed", marks=pytest.mark.slow),
        ("ctypes.string_at(0)", "SIGSEGV"),
        pytest.param("time.sleep(60)", "ended the process with code 1", marks=pytest.mark.slow),
    ],
    ids=["another error", "memory", "crash", "hang"],
)
def test_what_an_input_breaks_is_found_and_kept(tmp_path: Path, what: str, said: str) -> None:
    """The driver can find something: each kind of trouble, planted."""
    program = PLANTED.replace("WHAT", what)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert said in done.stdout
    kept = list(tmp_path.glob("planted-*"))
    assert kept
    assert all(path.read_bytes()[:1] != b"\0" for path in kept)
