"""The history checker: it finds every kind of violation, it finds bugs in a real broker, and there are none in ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ..faults.seeds import repeat, seed_of_this_run
from .history.checker import Copied, History, Numbered, mirrored, violations
from .history.planted import BUGS, served_with
from .history.run import play


def fine() -> tuple[History, list[Numbered], list[Copied]]:
    """A history without fault: six records of two keys, copied in three transactions, one of them aborted."""
    inputs = [Numbered(key, number, (0, 2 * number + at)) for number in range(3) for at, key in enumerate("ab")]
    history = History(
        sent={"a": 4, "b": 3},  # the last of a was not acknowledged
        acknowledged={(each.key, each.number): each.place for each in inputs},
        attempts={
            "t1": [(0, offset) for offset in range(3)],
            "t2": [(0, offset) for offset in range(3, 6)],
            "t3": [(0, offset) for offset in range(3, 6)],
        },
        committed={"t1", "t3"},
        aborted={"t2"},
    )
    outputs = [Copied("t1", (0, offset), (0, offset)) for offset in range(3)]
    outputs += [Copied("t3", (0, offset), (0, 5 + offset)) for offset in range(3, 6)]
    history.sessions = [outputs[:2], outputs[1:]]
    return history, inputs, outputs


def test_a_history_without_fault_has_no_violations() -> None:
    assert violations(*fine()) == []


Change = Callable[[History, list[Numbered], list[Copied]], object]

CHANGES: dict[str, tuple[str, Change]] = {
    "an acknowledged record is gone": ("lost", lambda _, inputs, __: inputs.pop()),
    "an acknowledged record is elsewhere": (
        "lost",
        lambda history, _, __: history.acknowledged.update({("a", 0): (1, 0)}),
    ),
    "a record is there twice": ("duplicated", lambda _, inputs, __: inputs.append(replace(inputs[0], place=(0, 9)))),
    "an unacknowledged record is there twice": (
        "duplicated",
        lambda _, inputs, __: inputs.extend(Numbered("a", 3, (0, offset)) for offset in (6, 7)),
    ),
    "two records of a key are exchanged": (
        "reordered",
        lambda _, inputs, __: inputs.append(Numbered("a", 3, (0, -1))),
    ),
    "a record that nobody sent": ("phantom", lambda _, inputs, __: inputs.append(Numbered("a", 4, (0, 9)))),
    "a key that nobody has": ("phantom", lambda _, inputs, __: inputs.append(Numbered("c", 0, (0, 9)))),
    "a committed transaction is gone": (
        "lost",
        lambda _, __, outputs: [outputs.remove(each) for each in list(outputs) if each.attempt == "t3"],
    ),
    "an input that was never copied": (
        "lost",
        lambda _, inputs, __: inputs.append(Numbered("a", 3, (0, 6))),
    ),
    "an input that was copied twice": (
        "duplicated",
        lambda history, _, outputs: (
            history.attempts.update(t4=[(0, 5)]),
            outputs.append(Copied("t4", (0, 5), (0, 12))),
        ),
    ),
    "half of a transaction": ("torn", lambda _, __, outputs: outputs.pop()),
    "an aborted transaction that can be seen": (
        "aborted",
        lambda _, __, outputs: outputs.append(Copied("t2", (0, 3), (0, 4))),
    ),
    "a transaction that nobody began": (
        "phantom",
        lambda _, __, outputs: outputs.append(Copied("t9", (0, 3), (0, 4))),
    ),
    "copies out of order": (
        "reordered",
        lambda history, _, outputs: outputs.insert(0, replace(outputs.pop(), place=(0, -1))),
    ),
    "a reader that saw what was aborted": (
        "aborted",
        lambda history, _, __: history.sessions.append([Copied("t2", (0, 3), (0, 4))]),
    ),
    "a reader that saw what is not there": (
        "phantom",
        lambda history, _, __: history.sessions.append([Copied("t1", (0, 3), (0, 44))]),
    ),
    "a reader that went back": ("reordered", lambda history, _, __: history.sessions[1].reverse()),
    "a record that no reader saw": ("lost", lambda history, _, __: history.sessions[1].pop()),
    "half of a library transaction": (
        "torn",
        lambda history, inputs, _: (history.united.append([("a", 2), ("b", 2)]), inputs.pop()),
    ),
    "a producer that was refused": ("refused", lambda history, _, __: history.refused.append("out of order")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_kind_of_violation_is_found(name: str) -> None:
    kind, change = CHANGES[name]
    history, inputs, outputs = fine()
    change(history, inputs, outputs)
    assert kind in {each.kind for each in violations(history, inputs, outputs)}


def test_a_mirror_has_every_input_once() -> None:
    _, inputs, outputs = fine()
    assert mirrored(inputs, outputs) == []
    assert {each.kind for each in mirrored(inputs, outputs[1:])} == {"lost"}
    assert {each.kind for each in mirrored(inputs, [*outputs, outputs[0]])} == {"duplicated"}
    assert {each.kind for each in mirrored(inputs[1:], outputs)} == {"phantom"}


@pytest.mark.slow  # half a minute and more
def test_clients_of_a_broker_that_is_killed_see_no_violation(tmp_path: Path) -> None:
    outcome = play(tmp_path / "run", kills=4, seed=seed_of_this_run())
    assert not outcome.violations, f"{repeat()} {outcome}\n" + "\n".join(map(str, outcome.violations[:20]))
    assert outcome.counts["acknowledged"] > 0
    assert outcome.counts["copied"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    outcome = play(directory, kills=3, seed=seed_of_this_run(), broker=served_with(bug, directory / "data"))
    assert {each.kind for each in outcome.violations} & BUGS[bug].shown_as, str(outcome)
