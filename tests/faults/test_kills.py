"""kill -9 of real processes, over every kind of work: acknowledged records are there, whole and in order.

A few kills of each kind; `python -m tests.faults kills --kills 1000` makes more.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

import sawlog

from .. import warm
from .victims import WORKS, Round

SEED = int(os.environ.get("SAWLOG_SEED", "1"))


def kill(directory: Path, kills: int, seed: int) -> dict[str, int]:
    """The counts that the command gives; it has to find nothing."""
    done = warm.run(
        ["-m", "tests.faults", "kills", f"--kills={kills}", f"--seed={seed}", f"--directory={directory}"],
        timeout=600,
        environment={**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.findall(r"^  (\S.*?) +([\d,]+)$", done.stdout, re.MULTILINE)
    return {what: int(count.replace(",", "")) for what, count in found}


@pytest.mark.costly  # a new interpreter, and a process for every victim and every check
def test_what_was_acknowledged_survives_kill_9_whatever_was_done(tmp_path: Path) -> None:
    counts = kill(tmp_path, 2 * len(WORKS), SEED)
    assert {name: counts[f"kills: {name}"] for name in WORKS} == dict.fromkeys(WORKS, 2)
    assert counts["acknowledged"] > 0
    assert list(tmp_path.iterdir()) == [], "what was looked at and found good is removed"


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_thousand_kills(tmp_path: Path) -> None:
    counts = kill(tmp_path, 1000, SEED + 1)
    assert sum(counts[f"kills: {name}"] for name in WORKS) == 1000
    assert counts["torn tails cut"] > 0, "no write was ever interrupted: the kills come at the wrong moments"
    assert counts["killed while opening"] > 0


#: False claims of a victim about an empty directory.
LIES = {
    "truncate and trim": ["at", "0", "1.0"],
    "maintenance": ["7", "0", "0"],
    "producer": ["done", "3"],
    "transactions": ["done", "1000000"],
    "staging": ["done", "0"],
    "group commits": ["done", "1000000"],
    "watched always": ["saw", "0", "1.0.0"],
    "watched os": ["got", "0", "1.0.0"],
    "catalogue": ["done", "create", "t1-0", "2"],
}


@pytest.mark.parametrize("name", WORKS)
def test_a_record_that_was_acknowledged_and_is_not_there_is_missed(tmp_path: Path, name: str) -> None:
    """The checks can fail: each gets an acknowledgement of a record that was never written."""
    honest = Round(1, [["ready"]])
    state = WORKS[name].check(str(tmp_path / "honest"), None, [honest], Counter())
    WORKS[name].check(str(tmp_path / "honest"), state, [Round(2, [["ready"]])], Counter())
    lying = Round(1, [["ready"], LIES.get(name, ["0", "1.0.0-0"])])
    with pytest.raises(AssertionError):
        WORKS[name].check(str(tmp_path / "lying"), None, [lying], Counter())
