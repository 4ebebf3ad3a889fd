"""Power cuts over recorded system calls: real files keep the promises that the simulated disk makes for them.

A few power cuts, of workloads and at moments that the seed of the run chooses (see seeds.py), within the time box; `-m
slow` has all workloads, `python -m tests.faults recorded` more seeds.

The method itself is tested, too: the recorder sees every change, the model knows what is durable, and a missing fsync
is found.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sawlog.batch import kernel
from sawlog.log.appender import Appender
from sawlog.storage import FileDirectory, open_published

from .__main__ import main
from .bugs import MUTANTS
from .mutants import Edit, Mutant, planted
from .powercuts import DATA, NAMES, History, PowerCut, Tree, tree_of
from .recorded import STATES, WORKLOADS, Run, Scenario, Violated, scratch
from .seeds import Box, in_turn, seed_of_this_run, shuffled
from .syscalls import recording
from .workloads import LOGS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorded calls are those of Linux")


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as made:
        yield made


@pytest.mark.costly  # a time box
def test_what_files_promise_survives_power_cuts(place: Path) -> None:
    box = Box(1.2, 4)
    logs, others = ([name for name in WORKLOADS if (name in LOGS) is is_log] for is_log in (True, False))
    for name in box.fill(in_turn([shuffled(logs, "recorded"), shuffled(others, "recorded")])):
        run = Run(name, seed_of_this_run(), place)
        for scenario in run.sample(2):
            run.cut(scenario)
    box.check()


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_files_promise_survives_many_power_cuts(name: str, place: Path) -> None:
    for seed in (101, 102):
        run = Run(name, seed, place)
        for scenario in run.sample(150):
            run.cut(scenario)


# --- an fsync that is left out is found

_FILE = "FileDirectory"
_BY_NAME = {each.name: each for each in MUTANTS}
#: Planted omissions, and the workloads that reveal them.
LEFT_OUT = {
    "fsync before an acknowledgement": (_BY_NAME["ack before fsync"], "appending_always"),
    "fsync of all directories": (_BY_NAME["no directory fsync"], "appending_always"),
    "fsync before a rename": (_BY_NAME["replaced without fsync"], "trimming_always"),
    "fsync of the directory after a rename": (_BY_NAME["replaced without directory fsync"], "store_replacing"),
    "fsync of the directory after mkdir": (
        Mutant("", "", (Edit(f"{_FILE}.child", "self.sync()", "pass"),), ""),
        "store_commits",
    ),
    "fsync of the directory above a new log": (
        Mutant("", "", (Edit(f"{_FILE}._make", "_sync_names(path)", "pass"),), ""),
        "appending_always",
    ),
}


def first_violation(name: str, place: Path) -> tuple[Scenario, str]:
    for seed in range(1, 5):
        run = Run(name, seed, place)
        for scenario in run.sample(40):
            try:
                run.cut(scenario)
            except Violated as error:
                return scenario, str(error)
    raise AssertionError("nothing was found")


#: The quick form: one fsync of a file and one of a directory. The slow form leaves out each of them.
QUICK = ("fsync before a rename", "fsync of the directory above a new log")


@pytest.mark.costly  # records a workload, and recovers from power cuts until one shows the bug
@pytest.mark.parametrize(
    "what", [what if what in QUICK else pytest.param(what, marks=pytest.mark.slow) for what in LEFT_OUT]
)
def test_what_is_left_out_is_found(what: str, place: Path) -> None:
    mutant, name = LEFT_OUT[what]
    with planted(mutant):
        first_violation(name, place)


def test_the_line_that_is_printed_replays_the_violation(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mutant, name = LEFT_OUT["fsync of all directories"]
    with planted(mutant):
        _, said = first_violation(name, place)
        line = said.splitlines()[-1].split()
        assert line[:3] == ["python", "-m", "tests.faults"]
        assert main(line[3:]) == 1
    assert f"VIOLATION {said}\n" in capsys.readouterr().out
    assert main(line[3:]) == 0, "without the planted bug, nothing is wrong with it"


# Two of these: what differs between two runs of a log, or of a store, differs in its largest workload.
@pytest.mark.parametrize(
    "name",
    [
        "mixed_always",
        pytest.param("compaction_os", marks=pytest.mark.slow),
        "store_everything",
        pytest.param("store_spark", marks=pytest.mark.slow),
    ],
)
def test_a_seed_makes_the_same_calls_each_time(name: str, place: Path) -> None:
    calls = [Run(name, 3, place).recording.history.calls for _ in range(2)]
    # Files into which streams are collected are numbered by the process.
    first, second = ([re.sub(r"1\d{19}", "N", call) for call in each] for each in calls)
    assert first == second


# --- the recorder


def test_a_change_that_is_not_recorded_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"not recorded.*secretly"), recording(tmp_path):
        (tmp_path / "secretly").write_bytes(b"x")


def test_a_call_that_nobody_makes_yet_is_refused(tmp_path: Path) -> None:
    with recording(tmp_path), pytest.raises(AssertionError, match="link is not recorded"):
        os.symlink(tmp_path / "a", tmp_path / "b")


def test_what_is_stored_through_a_mapping_is_recorded(tmp_path: Path) -> None:
    with recording(tmp_path) as history:
        directory = FileDirectory(tmp_path)
        numbers = open_published(directory, "visible", create=True)
        assert numbers is not None
        numbers.store(7, 8)
        numbers.store(9, 10)
        directory.sync()
        directory.close()
    assert "store visible" in history.calls


@pytest.mark.skipif(not kernel.COMPILED, reason="only the compiled kernel places batches in one call")
@pytest.mark.parametrize("durability", ["os", "interval"])
def test_batches_that_the_kernel_places_in_one_call_are_recorded(
    durability: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = Appender._new_placer

    def noted(self: Appender) -> Any:
        made.append(real(self))
        return made[-1]

    monkeypatch.setattr(Appender, "_new_placer", noted)
    run = Run(f"growing_{durability}", 1, place)
    written = [call for call in run.recording.history.calls if call.startswith("pwrite 0")]
    assert 5 < sum(placer.placed for placer in made) <= len(written)


def test_what_existed_before_is_durable(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/old").write_bytes(b"old")
    with recording(tmp_path) as history:
        pass
    assert all(tree == {"below/": b"", "below/old": b"old"} for tree in found(history))


def test_calls_elsewhere_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with recording(tmp_path / "here") as history:
        FileDirectory(tmp_path / "elsewhere").replace("a", b"x")
    assert history.calls == []
    assert tree_of(tmp_path) == {"elsewhere/": b"", "elsewhere/a": b"x", "here/": b""}


# --- the power cut


def found(history: History, call: int | None = None) -> list[Tree]:
    """Return the results of power cuts before a call, or at the end: some of every state."""
    at = len(history.calls) + 1 if call is None else call
    return [
        PowerCut(history, at, names, data, random.Random(seed)).tree()
        for names, data, seed in product(NAMES, DATA, range(8))
    ]


def test_what_was_not_synced_may_be_there_or_not(tmp_path: Path) -> None:
    with recording(tmp_path) as history:
        directory = FileDirectory(tmp_path)
        directory.replace("a", b"x" * 700, durable=False)
        directory.close()
    assert history.calls == ["create a.tmp", "write a.tmp", "rename a.tmp"]
    states = {tuple(tree.items()) for tree in found(history)}
    assert {(), (("a", b""),), (("a", b"x" * 700),), (("a", bytes(700)),), (("a.tmp", b""),)} <= states
    assert any(dict(state).get("a") == b"x" * 512 + bytes(188) for state in states)
    assert all(len(state) <= 1 for state in states), "a file has one name"


def test_what_was_synced_stays_in_all_states(tmp_path: Path) -> None:
    with recording(tmp_path) as history:
        directory = FileDirectory(tmp_path)
        directory.replace("a", b"first")
        directory.replace("a", b"second", durable=False)
        storage = directory.create("b")
        storage.append(b"durable")
        storage.sync()
        synced = len(history.calls)
        storage.append(b", or not")
        storage.truncate(3)
        directory.close()
    assert all(tree["b"] == b"durable" for tree in found(history, synced + 1))
    assert {tree["b"] for tree in found(history)} >= {b"durable", b"durable, or not", b"dur"}
    assert all("a" in tree for tree in found(history)), "the directory was synced when b was created"


def test_a_synced_file_may_lose_its_name_and_a_name_its_bytes(tmp_path: Path) -> None:
    with recording(tmp_path) as history:
        fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"bytes", 0)
        os.fdatasync(fd)
        os.close(fd)
        after_the_file = len(history.calls) + 1
        fd = os.open(tmp_path / "b", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"bytes", 0)
        os.close(fd)
        fd = os.open(tmp_path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    assert {tuple(tree.items()) for tree in found(history, after_the_file)} == {(), (("a", b"bytes"),)}
    assert {tree["a"] for tree in found(history)} == {b"bytes"}
    assert {tree["b"] for tree in found(history)} >= {b"", b"bytes", bytes(5)}


def test_a_directory_that_is_lost_takes_along_what_is_in_it(tmp_path: Path) -> None:
    with recording(tmp_path) as history:
        os.mkdir(tmp_path / "below")
        FileDirectory._of(str(tmp_path / "below"), os.open(tmp_path / "below", os.O_RDONLY)).replace("a", b"x")
    assert {tuple(tree.items()) for tree in found(history)} == {(), (("below/", b""), ("below/a", b"x"))}


# --- the command


def test_the_command_counts_and_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recorded", "--scenarios", "8", "--each", "8", "--workload", "appending_os", "--seed", "5"]) == 0
    said = capsys.readouterr().out
    assert "0 violations" in said
    assert "calls recorded" in said
    assert any(state in said for state in STATES)
