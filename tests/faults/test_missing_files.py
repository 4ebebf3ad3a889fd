"""Every tool reports a file that is missing or too short; see missing.py for the expected loss.

Some files of logs and stores, chosen by the seed of the run (see seeds.py), within the time box; `-m slow` has all of
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from .bits import Violation
from .missing import Fixture, Loss, fixtures, meaning
from .seeds import Box, in_turn, shuffled

#: All tests of this module share fixtures that take a second to make: one worker makes them.
pytestmark = pytest.mark.group("missing")

LOGS = ["log, closed", "log, killed", "log, restarted"]
STORES = ["store, closed", "store, killed"]


def named(name: str) -> Fixture:
    """A fixture by its name."""
    return next(each for each in fixtures() if each.name == name)


def check_some(names: list[str], cpu_s: float) -> None:
    box = Box(cpu_s, 3 * len(names))
    losses = [[(named(name), loss) for loss in shuffled(named(name).losses(), name)] for name in names]
    for fixture, loss in box.fill(in_turn(losses)):
        fixture.try_loss(loss)
    box.check()


@pytest.mark.costly  # a time box
def test_what_a_log_loses_is_reported_by_readers_verify_doctor_and_the_next_writer() -> None:
    check_some(LOGS, cpu_s=0.7)


@pytest.mark.costly  # a time box
def test_what_a_store_loses_is_reported_and_the_rest_is_served() -> None:
    check_some(STORES, cpu_s=0.7)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOGS, *STORES])
def test_whatever_is_lost_is_reported(name: str) -> None:
    for loss in named(name).losses():
        named(name).try_loss(loss)


# --- the engine itself


def test_every_fixture_is_tried_and_every_kind_of_loss_occurs() -> None:
    assert [each.name for each in fixtures()] == [*LOGS, *STORES]
    seen = {meaning(loss.path) for name in STORES for loss in named(name).losses()}
    assert {"the store is refused", "the topic is refused", "the partition is refused", "records are lost"} <= seen
    assert {"commits are lost", "costs nothing", "nothing records it"} <= seen
    for name in LOGS:
        cuts = [loss for loss in named(name).losses() if loss.path.endswith(".log")]
        assert len(cuts) > 20
        assert {loss.path for loss in cuts if loss.size == -1} == {loss.path for loss in cuts if loss.size == 0}


def test_a_violation_says_how_to_replay_it() -> None:
    def lies(fixture: Fixture, loss: Loss) -> str:
        raise AssertionError("not as promised")

    loss = Loss("checkpoint", 3)
    with pytest.raises(Violation, match="not as promised") as found:
        replace(named("log, killed"), judge=lies).try_loss(loss)
    assert f"python -m tests.faults missing --fixture 'log, killed' --loss '{loss}'" in str(found.value)
    assert Loss.parse(str(loss)) == loss
