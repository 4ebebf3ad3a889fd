"""All users of a bucket at once, killed and stopped behind a network that loses requests: see `together`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .. import warm
from .acting import Cast, Diary, Forked, last_told, told
from .planted import BUGS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def _together(*options: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own, because it forks and this process has threads."""
    return warm.run(["-m", "tests.objects.together", *options], timeout=900)


@pytest.mark.slow  # minutes of CPU; each role has a quick test in test_torture.py or test_brokers.py
@pytest.mark.group("together")
def test_all_roles_at_once_lose_nothing() -> None:
    done = _together("--minutes", "0.05", "--seed", "1", "--no-leftovers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout


@pytest.mark.slow
@pytest.mark.group("together")
@pytest.mark.parametrize("server", ["moto", "seaweedfs"])
def test_all_roles_at_once_lose_nothing_for_long(server: str) -> None:
    done = _together("--minutes", "2", "--seed", "2", "--server", server)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.group("together")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_with_all_roles_at_once(bug: str) -> None:
    done = _together("--minutes", "5", "--seed", "3", "--bug", bug)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 0 wrong" not in done.stdout


# --- actors, in processes of their own as well


def _acted(folder: Path, program: str) -> str:
    script = f"import itertools, random, sys, time\nfrom pathlib import Path\nfrom {__name__} import *\n{program}"
    done = warm.run(["-c", script, str(folder)], timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def count(diary: Diary, seed: int) -> None:
    """Write numbers to a diary forever."""
    number = 0
    while True:
        number += 1
        diary.say(number)


def fail(diary: Diary, seed: int) -> None:
    """Raise an error."""
    raise ValueError(f"{diary.name} has had enough")


def cast_of(folder: Path, work: object = count) -> Cast:
    """Return a cast with one actor that counts."""
    import itertools
    import random

    made = Cast()
    made.add(Forked("count", folder, work, random.Random(1), itertools.count(1)))  # type: ignore[arg-type]
    return made


def wait_for(folder: Path, name: str) -> None:
    """Wait until this actor has made the latest entry."""
    import time

    while last_told(folder, "count") != name:
        time.sleep(0.01)


@pytest.mark.slow  # of the tool that the slow tests above use; one such test is quick
def test_a_diary_survives_the_kill_of_its_process_and_its_successor_continues(tmp_path: Path) -> None:
    _acted(
        tmp_path,
        """
folder = Path(sys.argv[1])
cast = cast_of(folder)
wait_for(folder, "count-1")
cast.kill(*cast.running())
wait_for(folder, "count-2")
cast.end()
""",
    )
    noted = [number for (number,) in told(tmp_path, "count")]
    again = noted.index(1, 1)
    assert noted[:again] == list(range(1, again + 1))
    assert noted[again:] == list(range(1, len(noted) - again + 1))


@pytest.mark.alternating
def test_a_replaced_actor_resumes_beside_its_successor_and_ends(tmp_path: Path) -> None:
    said = _acted(
        tmp_path,
        """
folder = Path(sys.argv[1])
cast = cast_of(folder)
wait_for(folder, "count-1")
cast.split(*cast.running(), 0.5, beside_s=0.5)
before = (folder / "count-1.told").stat().st_size
wait_for(folder, "count-2")
assert (folder / "count-1.told").stat().st_size == before, "it was stopped"
assert [each.name for each in cast.running()] == ["count-2"]
while len(cast.running()) < 2:
    cast.go_on()
wait_for(folder, "count-1")
while len(cast.running()) > 1:
    cast.go_on()
print(cast.running()[0].name, cast.deaths(), cast.stops, cast.splits)
cast.end()
""",
    )
    assert said.split() == ["count-2", "[]", "1", "1"]


@pytest.mark.slow  # of the tool that the slow tests above use; one such test is quick
def test_a_replaced_actor_gets_no_second_successor(tmp_path: Path) -> None:
    said = _acted(
        tmp_path,
        """
cast = cast_of(Path(sys.argv[1]))
first, = cast.running()
cast.split(first, 0.0, beside_s=60)
while first not in cast.running():
    cast.go_on()
cast.split(first, 0.0, beside_s=60)
while first not in cast.running():
    cast.go_on()
print(*sorted(each.name for each in cast.running()), cast.stops, cast.splits)
cast.resume_all()
print(*(each.name for each in cast.running()))
cast.end()
""",
    )
    assert said.splitlines() == ["count-1 count-2 2 1", "count-2"]


@pytest.mark.slow  # of the tool that the slow tests above use; one such test is quick
def test_an_actor_that_ends_by_itself_is_reported(tmp_path: Path) -> None:
    said = _acted(
        tmp_path,
        """
cast, found = cast_of(Path(sys.argv[1]), fail), []
while not found:
    found = cast.deaths()
print(found[0])
""",
    )
    assert said == "count-1 ended by itself: ValueError: count-1 has had enough\n"
