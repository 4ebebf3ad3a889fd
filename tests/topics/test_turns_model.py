"""The protocol of writers that take turns: all its interleavings, and every mistake is noticed (see ADR 33)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..faults.seeds import repeat, shuffled
from . import turns_model, turns_transactions_model
from .turns_model import Violation

#: The plans of the processes, and the disturbances, that show the mistake.
MISTAKES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "cut before the end is lowered": (("at", "a"), {"kills": 1}),
    "durable end without its generation": (("at", "aa"), {}),
    "end read after the fsync": (("a", "a"), {}),
    "failure told to no process": (("a", "a"), {"faults": 1}),
    "mark removed before the failure is told": (("a", "a"), {"kills": 1, "faults": 1}),
    "named process ignored": (("aaaa", "a"), {"policy": "os"}),
    "no catch-up": (("aa", "a"), {}),
    "no grace period": (("a", "a", "a"), {"kills": 1}),
    "no process named": (("aaaa", "a"), {"policy": "os"}),
    "rotation not noticed": (("aa", "r"), {}),
    "syncs not looked at": (("a", "a"), {"kills": 1, "faults": 1}),
    "unfinished turn ignored": (("r", "a"), {"kills": 1}),
    "unlocked before it is published": (("a", "a"), {}),
    "visible before it is durable": (("a", "a"), {}),
    "withdrawn process still named": (("aa", "a"), {"stops": 1}),
}
#: Mistakes in the protocol of transactions.
TRANSACTION_MISTAKES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "completed after one part": (("01", "0"), {"kills": 1}),
    "found intent not synced": (("01", "0"), {"kills": 1, "cuts": 1}),
    "intent not synced": (("01", "0"), {"cuts": 1}),
    "intents not looked for": (("01", "0"), {"kills": 1}),
    "locked in the order of the caller": (("01", "10"), {}),
    "logs not synced before the intent": (("01", "0"), {"cuts": 2}),
    "part visible when it is placed": (("01",), {"full": 1}),
    "parts not synced": (("01",), {"cuts": 1}),
    "placed without a comparison": (("01", "0"), {"kills": 1}),
    "turn finished before all is placed": (("01", "0"), {"kills": 1}),
}


def _slow(*plans: str, **disturbances: Any) -> Any:
    return pytest.param(plans, disturbances, marks=pytest.mark.slow, id=_named(plans, disturbances))


def _quick(*plans: str, **disturbances: Any) -> Any:
    return pytest.param(plans, disturbances, id=_named(plans, disturbances))


def _named(plans: tuple[str, ...], disturbances: dict[str, Any]) -> str:
    return " ".join([*plans, *(f"{count}-{name}" for name, count in disturbances.items())])


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("plans", "disturbances"),
    [
        _quick("aa", "aa", policy="os"),
        _quick("aa", "aa", kills=1),
        _quick("a", "a", "a"),
        _quick("at", "ar", stops=1),
        _quick("aa", "a", kills=1, faults=1),
        _slow("aa", "aa", kills=1, faults=1),
        _slow("ar", "aa", kills=1, faults=1),
        _slow("at", "aa", kills=1, faults=1),
        _slow("at", "ar", policy="os", kills=2),
        _slow("aa", "ar", policy="os", kills=1, stops=1, faults=1),
        _slow("aa", "aa", kills=1, stops=1),
        _slow("a", "a", "a", kills=1),
        _slow("a", "a", "a", stops=1),
        _slow("aa", "a", "a", faults=1),
        _slow("aaa", "aa", "a", policy="os", kills=1),
    ],
)
def test_acknowledged_records_stay_at_their_offsets_whichever_process_appends_in_between(
    plans: tuple[str, ...], disturbances: dict[str, Any]
) -> None:
    assert turns_model.explore(*plans, **disturbances) > 500


@pytest.mark.parametrize("mistake", ["named process ignored", "no process named"])
def test_the_order_of_turns_matters_for_fairness_only(mistake: str) -> None:
    assert turns_model.explore("aa", "a", kills=1, fair=False, mistakes=frozenset({mistake})) > 500


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("plans", "disturbances"),
    [
        _quick("01", "0", kills=1),
        _quick("01", "10", kills=1),
        _quick("01", "0", cuts=1),
        _quick("01", "10", "1"),
        _quick("01", "0", full=1, kills=1),
        _slow("01", "10", kills=2),
        _slow("01", "0", "1", kills=1),
        _slow("01", "0", kills=1, cuts=1),
        _slow("01", "10", kills=1, cuts=1),
        _slow("01", "0", kills=1, cuts=2),
        _slow("01", "10", full=1, kills=1, cuts=1),
    ],
)
def test_a_transaction_of_a_process_in_its_turn_is_stored_once_or_not_at_all(
    plans: tuple[str, ...], disturbances: dict[str, Any]
) -> None:
    assert turns_transactions_model.explore(*plans, **disturbances) > 300


# The seed chooses the mistakes of the quick form.
@pytest.mark.alternating
@pytest.mark.parametrize("count", [pytest.param(4, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("explore", "mistakes"),
    [(turns_model.explore, MISTAKES), (turns_transactions_model.explore, TRANSACTION_MISTAKES)],
    ids=["appends", "transactions"],
)
def test_the_models_notice_each_mistake(
    explore: Callable[..., int], mistakes: dict[str, Any], count: int | None
) -> None:
    for mistake in shuffled(mistakes, "mistakes")[:count]:
        plans, disturbances = mistakes[mistake]
        try:
            explore(*plans, **disturbances, mistakes=frozenset({mistake}))
        except Violation:
            continue
        pytest.fail(f"{mistake!r} is not noticed; {repeat()}")
