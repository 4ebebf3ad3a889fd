"""The bugs that mutants.py plants can still be planted; and, slowly, each of them is found."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sawlog.batch import read
from sawlog.batch.build import encode
from sawlog.errors import CorruptBatch

from .. import warm
from ..looping import for_each
from .__main__ import main
from .bugs import CONTROL, MUTANTS
from .mutants import FINDERS, Edit, Mutant, Stale, find, function_of, planted, written
from .promised import TESTS

BY_NAME = {each.name: each for each in MUTANTS}


@for_each("mutant", MUTANTS)
def test_a_mutant_can_be_planted_and_is_taken_back(mutant: Mutant) -> None:
    functions = [function_of(edit.function) for edit in mutant.edits]
    before = [function.__code__ for function in functions]
    with planted(mutant):
        for function, code in zip(functions, before, strict=True):
            assert function.__code__.co_code != code.co_code or function.__code__.co_consts != code.co_consts
    assert [function.__code__ for function in functions] == before


def test_a_planted_bug_is_in_the_running_code() -> None:
    damaged = bytearray(encode([b"value"]))
    damaged[-2] ^= 1
    with pytest.raises(CorruptBatch):
        read.decode(bytes(damaged))
    with planted(BY_NAME["no CRC check"]):
        assert [record.value for record in read.decode(bytes(damaged))] != [b"value"]
    with pytest.raises(CorruptBatch):
        read.decode(bytes(damaged))


@pytest.mark.parametrize(
    "edit",
    [
        Edit("ActiveSegment._sync", "what is not there", "pass"),
        Edit("ActiveSegment._sync", "s", "t"),
        Edit("Appender.gone", "pass", "return"),
    ],
    ids=["fragment gone", "fragment not unique", "function gone"],
)
def test_a_mutant_of_other_code_is_stale(edit: Edit) -> None:
    with pytest.raises(Stale), planted(Mutant("stale", "", (edit,), "crashes")):
        pass


def test_mutant_names_are_unique_and_every_mutant_has_a_story() -> None:
    assert len(BY_NAME) == len(MUTANTS)
    assert all(len(each.story) > 20 for each in MUTANTS)


def test_the_page_about_testing_has_a_row_for_every_mutant_and_each_was_found() -> None:
    cells = written()
    assert list(dict.fromkeys(name for name, _ in cells)) == [CONTROL.name, *BY_NAME]
    assert [name for name in BY_NAME if not any(cells[name, finder] for finder in FINDERS)] == []
    assert not any(cells[CONTROL.name, finder] for finder in FINDERS), "something is found where nothing was planted"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    finding = find(mutant, mutant.by, patience_s=120.0)
    assert finding.tries is not None, f"{mutant.by} has not found {mutant.name!r}: {finding.what}"


@pytest.mark.slow  # collects the quick tests
def test_the_quick_tests_find_a_planted_bug(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--quick", "1", "--mutant", "no CRC check"]) == 0
    printed = capfd.readouterr().out
    assert "1 runs of the quick tests found 1 of 1 bugs" in printed, printed


def test_the_tests_that_are_to_find_bugs_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    assert [each for each in TESTS if not (root / each).is_file()] == []


@pytest.mark.costly  # an interpreter that runs tests
def test_a_finder_can_run_tests_in_its_process() -> None:
    code = "from tests.faults.promised import tests_pass; assert tests_pass(['tests/test_background.py'], object())"
    root = Path(__file__).resolve().parents[2]
    with warm.start(["-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert "passed" in printed
