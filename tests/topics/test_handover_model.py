"""The protocol of the handover, all interleavings of it, and that the model notices each mistake (see ADR 18)."""

from __future__ import annotations

import pytest

from ..faults.seeds import repeat, shuffled
from .handover_model import Violation, explore

#: Disturbances that reveal the mistake.
MISTAKES = {
    "no note": {"deaths": 1},
    "note not synced": {"deaths": 1},
    "found note not synced": {"deaths": 1, "cuts": 1},
    "note ignored": {"deaths": 1},
    "log not synced before the note": {"records": 1, "cuts": 1},
    "appends between note and mark": {"records": 1, "cuts": 1},
    "marked before it is synced": {},
    "intent checked before the mark": {"deaths": 1},
    "completed too soon": {},
    "marks removed first": {"cuts": 1},
    "swept without a sync": {"deaths": 1, "cuts": 1},
    "openers ask nobody": {"deaths": 2},
}


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("disturbances", "least"),
    [
        ({}, 200),
        ({"deaths": 1, "cuts": 1}, 10_000),
        # Half a second each: of the pairs of disturbances the quick form takes the one with the most states.
        pytest.param({"deaths": 1, "records": 1}, 10_000, marks=pytest.mark.slow),
        pytest.param({"cuts": 1, "records": 1}, 5_000, marks=pytest.mark.slow),
        pytest.param({"deaths": 2}, 30_000, marks=pytest.mark.slow),
        pytest.param({"deaths": 1, "releases": 1, "records": 1}, 80_000, marks=pytest.mark.slow),
        pytest.param({"deaths": 2, "cuts": 1}, 50_000, marks=pytest.mark.slow),
        pytest.param({"deaths": 1, "cuts": 2}, 20_000, marks=pytest.mark.slow),
    ],
    ids=lambda value: " ".join(f"{count}-{name}" for name, count in value.items()) if isinstance(value, dict) else None,
)
def test_whatever_happens_a_handed_over_transaction_is_stored_once_or_not_at_all(
    disturbances: dict[str, int], least: int
) -> None:
    assert explore(**disturbances) > least


# The quick form runs the cases that the seed chooses.
@pytest.mark.alternating
@pytest.mark.parametrize("count", [pytest.param(4, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_the_model_notices_each_mistake(count: int | None) -> None:
    for mistake in shuffled(MISTAKES, "mistakes")[:count]:
        try:
            explore(**MISTAKES[mistake], mistakes=frozenset({mistake}))
        except Violation:
            continue
        pytest.fail(f"{mistake!r} is not noticed; {repeat()}")
