"""No acknowledged record is lost, duplicated or reordered, whatever happens to the processes of a store, and a process
that breaks a rule is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from .. import warm
from .model import search
from .planted import BUGS, CACHE_BUGS, SIMULATED_ONLY
from .scenario import run

#: Number of seeds, each a longer story, after which a bug must be found. Most are found with the first.
_SEEDS = 12


_TELL = """
import sys
from tests.objects.test_torture import tell
print(tell(sys.argv[1]))
"""


def tell(how: str) -> str:
    """Return a story, line by line."""
    return "\n".join(run(5, steps=400, roll_back=how == "rolled back").trace)


def some(bugs: Iterable[str]) -> list[Any]:
    """Mark all bugs but every third as slow. Finding bugs proves that the stories are good."""
    return [bug if n % 3 == 2 else pytest.param(bug, marks=pytest.mark.slow) for n, bug in enumerate(bugs)]


@pytest.mark.alternating
@pytest.mark.parametrize("how", [pytest.param("onward", marks=pytest.mark.slow), "rolled back"])
def test_equal_seeds_give_equal_stories(how: str) -> None:
    """Compare with a process whose hashes of strings differ."""
    variables = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    command = [sys.executable, "-c", _TELL, how]
    there = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert there.splitlines() == tell(how).splitlines()
    assert there.count("\n") > 500


def _check(seed: int, steps: int) -> None:
    result = run(seed, steps=steps)
    assert result.wrong == []
    assert result.acked > 100
    assert result.changes > 10
    assert result.removed > 100


@pytest.mark.alternating
def test_simulated_processes_lose_duplicate_and_reorder_nothing() -> None:
    _check(seed=1, steps=3000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 30))
def test_simulated_processes_lose_duplicate_and_reorder_nothing_for_long(seed: int) -> None:
    _check(seed, steps=10_000)


def _check_rolled_back(seed: int, steps: int) -> None:
    result = run(seed, steps=steps, roll_back=True)
    assert result.wrong == []
    assert result.repeated > 10
    assert result.removed > 50


@pytest.mark.alternating
def test_simulated_processes_use_a_rolled_back_bucket_with_the_cache_of_the_lost_history() -> None:
    _check_rolled_back(seed=1, steps=2000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 20))
def test_simulated_processes_use_a_rolled_back_bucket_for_long(seed: int) -> None:
    _check_rolled_back(seed, steps=10_000)


@pytest.mark.alternating
@pytest.mark.parametrize("bug", some(CACHE_BUGS))
def test_a_planted_bug_of_caches_is_found(bug: str) -> None:
    assert any(run(seed, steps=3000 * seed, bug=bug, roll_back=True).wrong for seed in range(1, _SEEDS))


@pytest.mark.alternating
@pytest.mark.parametrize("bug", some([bug for bug in BUGS if bug != "believed late"]))
def test_a_planted_bug_is_found(bug: str) -> None:
    assert _is_found(bug)


@pytest.mark.slow
def test_answers_that_are_believed_too_late_are_found() -> None:
    assert _is_found("believed late")


def _is_found(bug: str) -> bool:
    return any(run(seed, steps=3000 * seed, bug=bug).wrong for seed in range(1, _SEEDS))


def _torture(*options: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own, because it forks and this process has threads."""
    return warm.run(["-m", "tests.objects.torture", *options], timeout=600)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


@pytest.mark.costly  # several processes that use the store for a second and a half
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
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in SIMULATED_ONLY])
def test_a_planted_bug_is_found_by_real_processes(bug: str) -> None:
    done = _torture("--seconds", "120", "--seed", "3", "--bug", bug)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 0 wrong" not in done.stdout


@pytest.mark.slow
def test_a_grace_period_from_the_creation_of_a_checkpoint_is_too_short() -> None:
    _, story = search("made")
    assert story[-1].endswith("commit 0 is writer 0's")


@pytest.mark.slow
def test_a_grace_period_from_the_confirmation_of_a_checkpoint_is_safe_in_every_interleaving() -> None:
    states, story = search("noted")
    assert story == []
    assert states > 100_000


def test_a_refused_create_is_no_failure_until_its_number_has_another_owner() -> None:
    _, story = search("refused")
    assert story[-1].endswith("is stored twice")
    states, story = search("owned")
    assert story == []
    assert states > 500


def test_collected_commits_are_taken_for_lost_only_if_that_is_decided_before_the_last_answer() -> None:
    _, story = search("before")
    assert story[-1].endswith("it was collected")
    states, story = search("after")
    assert story == []
    assert states > 500
