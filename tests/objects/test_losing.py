"""Processes notice the loss of their store, and `repair` restores it as far as possible."""

from __future__ import annotations

import pytest

from .losing import KINDS, run
from .planted import LOSS_BUGS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_the_loss_of_a_store_is_noticed_and_repaired(kind: str, seed: int) -> None:
    assert run(seed, kind) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_store_is_noticed_and_repaired_in_many_stories(kind: str) -> None:
    assert {seed: wrong for seed in range(4, 80) if (wrong := run(seed, kind))} == {}


# One of them in the quick tests: finding bugs proves that the stories are good.
@pytest.mark.parametrize(
    "bug", [bug if not n else pytest.param(bug, marks=pytest.mark.slow) for n, bug in enumerate(LOSS_BUGS)]
)
def test_a_process_that_does_not_notice_the_loss_of_a_store_is_found(bug: str) -> None:
    assert any(run(seed, kind, bug) for seed in range(1, 4) for kind in KINDS)
