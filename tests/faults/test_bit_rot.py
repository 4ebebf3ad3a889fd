"""A flipped bit in any file is reported, everything around it is served, and nothing wrong is served. See bits.py for
the promises.

Here: a sample of the bits, chosen by the seed of the run (see seeds.py), within the time box; `-m slow` has a larger
sample, `python -m tests.faults bits` all bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sawlog.storage import FileDirectory

from ..log.places import quick
from .bits import Fixture, Flip, Violation, fixtures, sample, written
from .seeds import Box, in_turn, seed_of_this_run, shuffled

#: All tests of this module share fixtures that take a second to make: one worker makes them.
pytestmark = pytest.mark.group("bits")

NAMES = [
    "closed",
    "killed",
    "killed, stale",
    "killed, bare",
    "swap of a compaction",
    "swap, begun of a compaction",
    "swap of a merge",
    "swap, begun of a merge",
    "store, closed",
    "store, killed",
    "transaction, killed",
    "topic swap, begun",
    "topic swap, decided",
]


def named(name: str) -> Fixture:
    """A fixture by its name."""
    return next(each for each in fixtures() if each.name == name)


def some(fixture: Fixture, count: int) -> list[tuple[Fixture, Flip]]:
    """Flips of this run."""
    return [(fixture, flip) for flip in shuffled(sample(fixture, count, seed_of_this_run()), fixture.name)]


@pytest.mark.costly  # a time box
def test_a_flipped_bit_is_reported_and_affects_as_little_as_possible() -> None:
    box = Box(0.8, 2 * len(NAMES))
    for fixture, flip in box.fill(in_turn(some(named(name), 40) for name in NAMES)):
        fixture.try_flip(flip)
    box.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_flipped_bits_are_reported_and_affect_as_little_as_possible(name: str) -> None:
    for flip in sample(named(name), 2500, seed=2):
        named(name).try_flip(flip)


class Kept(FileDirectory):
    """A directory that stays open when a log in it is closed: the judge opens the next one."""

    def close(self) -> None:
        """At the end of the test."""


@pytest.fixture
def on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Kept]]:
    """Put damaged files on the disk, with fsyncs that do nothing."""
    opened: list[Kept] = []

    def put(files: Mapping[str, bytes]) -> Kept:
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
        opened.append(Kept(tmp_path / "log"))
        return written(opened[-1], files)

    with quick(monkeypatch):
        yield put  # type: ignore[misc]
    for each in opened:
        FileDirectory.close(each)


def test_it_is_the_same_on_files(on_files: type[Kept]) -> None:
    names = ["closed", "killed", "swap, begun of a merge", "store, killed"]
    box = Box(0.5, 2 * len(names))
    for fixture, flip in box.fill(in_turn(some(replace(named(name), disk=on_files), 12) for name in names)):
        fixture.try_flip(flip)
    box.check()


# --- the engine itself


def test_every_kind_of_file_rots() -> None:
    found = {path for fixture in fixtures() for path in fixture.paths if fixture.files[path]}
    kinds = [
        *("0.log", ".index", ".timeindex", "checkpoint", "producers", "maintenance", "LOCK", ".log.swap"),
        *("sawlog.json", "orders/topic.json", ".swap/topic.json"),
        *("groups/00000000000000000000.log", "groups/checkpoint", "groups/LOCK", "/owner-orders-0"),
        *(".intent", ".batches", ".lease", ".owner", ".name", ".committed"),
    ]
    assert [kind for kind in kinds if not any(path.endswith(kind) for path in found)] == []
    assert any("/member-" in path for path in found)
    assert [fixture.name for fixture in fixtures()] == NAMES


def test_fixtures_are_made_of_the_same_bytes_every_time() -> None:
    """Or else a line that replays a flip would flip another bit. Only the times in commits are the kernel's own."""
    first = {fixture.name: fixture.files for fixture in fixtures()}
    fixtures.cache_clear()
    for fixture in fixtures():
        before = first[fixture.name]
        assert {path: len(data) for path, data in fixture.files.items()} == {path: len(before[path]) for path in before}
        assert {path for path in before if fixture.files[path] != before[path]} <= {"groups/00000000000000000000.log"}


def test_a_violation_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    def lies(fixture: Fixture, flip: Flip) -> str:
        raise AssertionError("the promise is broken")

    flip = Flip("checkpoint", 3, 1)
    with pytest.raises(Violation) as found:
        replace(named("killed"), judge=lies).try_flip(flip)
    *_, line = str(found.value).splitlines()
    assert line.split() == ["python", "-m", "tests.faults", "bits", "--fixture", "'killed'", "--flip", f"'{flip}'"]
    assert Flip.parse(str(flip)) == flip


def test_an_error_that_is_not_ours_is_a_violation() -> None:
    def fails(fixture: Fixture, flip: Flip) -> str:
        raise ZeroDivisionError("by chance")

    with pytest.raises(Violation, match="ZeroDivisionError: by chance \\(not an error of ours\\)"):
        replace(named("killed"), judge=fails).try_flip(Flip("checkpoint", 0, 0))


def test_a_sample_takes_something_of_every_file() -> None:
    for fixture in fixtures():
        chosen = sample(fixture, 80, seed=1)
        assert {flip.path for flip in chosen} == {path for path in fixture.paths if fixture.files[path]}
        assert chosen == sample(fixture, 80, seed=1)
        assert chosen != sample(fixture, 80, seed=2)
