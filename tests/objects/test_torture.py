"""Nothing acknowledged is lost, doubled or reordered, whatever is done to the processes of a store; and a process that
breaks a rule is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .model import search
from .planted import BUGS
from .scenario import run

#: So many seeds, each a longer story, until a bug must be found; most are found with the first.
_SEEDS = 12


def _check(seed: int, steps: int) -> None:
    result = run(seed, steps=steps)
    assert result.wrong == []
    assert result.acked > 100
    assert result.changes > 10
    assert result.removed > 100


def test_simulated_processes_lose_double_and_reorder_nothing() -> None:
    _check(seed=1, steps=6000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 30))
def test_simulated_processes_lose_double_and_reorder_nothing_for_long(seed: int) -> None:
    _check(seed, steps=10_000)


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug != "believed late"])
def test_a_planted_bug_is_found(bug: str) -> None:
    assert _is_found(bug)


@pytest.mark.slow
def test_answers_that_are_believed_too_late_are_found() -> None:
    assert _is_found("believed late")


def _is_found(bug: str) -> bool:
    return any(run(seed, steps=3000 * seed, bug=bug).wrong for seed in range(1, _SEEDS))


def _torture(*options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it forks, and this one has threads."""
    command = [sys.executable, "-m", "tests.objects.torture", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


@needs_fork
def test_killed_and_stopped_processes_lose_nothing() -> None:
    done = _torture("--seconds", "1.5", "--seed", "1", "--grace", "0.6", "--no-leftovers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout


@needs_fork
@pytest.mark.slow
def test_killed_and_stopped_processes_lose_nothing_for_long() -> None:
    done = _torture("--seconds", "60", "--seed", "2")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_real_processes(bug: str) -> None:
    done = _torture("--seconds", "120", "--seed", "3", "--bug", bug)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 0 wrong" not in done.stdout


@pytest.mark.slow
def test_a_grace_period_from_when_a_checkpoint_was_made_is_too_short() -> None:
    _, story = search("made")
    assert story[-1].endswith("commit 0 is writer 0's")


@pytest.mark.slow
def test_a_grace_period_from_when_it_was_confirmed_is_safe_in_every_order_of_events() -> None:
    states, story = search("noted")
    assert story == []
    assert states > 100_000
