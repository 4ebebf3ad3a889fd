"""`diagnose` finds lost objects of a store, and `repair` returns it to the last consistent state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sawlog.errors import CorruptData, SawlogError, StoreNotFound
from sawlog.store.objects.checkpoints import listed
from sawlog.store.objects.collect import Collector
from sawlog.store.objects.journal import STORE, STORE_COPY, StoreParameters
from sawlog.store.objects.repair import Diagnosis, diagnose, repair
from sawlog.store.objects.state.commit import COMMITS, commit_key
from sawlog.store.objects.store import ObjectStore

from .simulated import SimulatedBucket, SimulatedClocks, World

PARAMETERS = StoreParameters(belief_s=20, grace_s=60, readers_s=5, checkpoint_every=4)
_FOLDER = "before-repair-1"


@pytest.fixture
def world() -> World:
    return World(0)


def opened(world: World) -> ObjectStore:
    clocks = SimulatedClocks(world)
    return ObjectStore.open(SimulatedBucket(world), parameters=PARAMETERS, maintenance_interval_s=None, clocks=clocks)


def filled(world: World, appends: int) -> None:
    """Create a store whose topic has a record for each commit after the first."""
    with opened(world) as store:
        topic = store.create_topic("t")
        for number in range(appends):
            topic.append(b"%d" % number)


def values(world: World) -> list[int]:
    return [int(each.value or b"") for each in opened(world).topic("t").scan()]


def repaired(world: World) -> Diagnosis:
    """Repair a store that cannot be opened or lacks its end, and check that nothing is wrong afterwards."""
    found = diagnose(SimulatedBucket(world))
    before = dict(world.objects)
    assert found.is_repairable
    repair(SimulatedBucket(world), found, _FOLDER)
    moved = {key for key in before if key not in world.objects}
    assert moved == set(found.stray)
    assert all(world.objects[f"{_FOLDER}/{key}"][0] == before[key][0] for key in moved)  # everything is kept
    again = diagnose(SimulatedBucket(world))
    assert not again.is_repairable
    return found


def test_an_intact_store_has_no_findings(world: World) -> None:
    with pytest.raises(StoreNotFound):
        diagnose(SimulatedBucket(world))
    filled(world, 9)
    store = opened(world)
    for _ in range(6):
        store._session.commit([{"do": "forget names", "names": []}])
        store.maintain()
        world.now_s += PARAMETERS.grace_s
        Collector(store._session, workers=1).run()
    found = diagnose(SimulatedBucket(world))
    assert not found.findings
    assert found.state.digest == store._session.look(lambda state: state.digest, fresh=True)


def drop(*numbers: int) -> Callable[[World], None]:
    def do(world: World) -> None:
        for number in numbers:
            del world.objects[commit_key(number)]

    return do


def damage(number: int) -> Callable[[World], None]:
    def do(world: World) -> None:
        data, time_s = world.objects[commit_key(number)]
        world.objects[commit_key(number)] = (data[:-1] + bytes([data[-1] ^ 1]), time_s)

    return do


def rolled_back_under_a_writer(world: World) -> None:
    """Lose commits 6 and 7, and let a writer that has folded them make commit 8."""
    writer = opened(world)
    topic = writer.topic("t")
    topic.append(b"7")
    drop(6, 7, 8)(world)
    for key in [key for key in world.objects if key.startswith(f"checkpoints/{8:020}")]:
        del world.objects[key]
    topic.append(b"8")


CASES: dict[str, tuple[Callable[[World], None], int, str]] = {
    "the last commit, which a checkpoint records": (drop(7), 6, "commits/00000000000000000007 is missing"),
    "a commit before others": (drop(6), 5, "commits/00000000000000000006 is missing"),
    "several commits": (drop(5, 6), 4, "commits/00000000000000000005 is missing"),
    "a damaged commit": (damage(6), 5, "commits/00000000000000000006 is damaged"),
    "a damaged last commit": (damage(7), 6, "commits/00000000000000000007 is damaged"),
    "rolled back under a writer": (rolled_back_under_a_writer, 5, "commits/00000000000000000006 is missing"),
}


@pytest.mark.alternating
@pytest.mark.parametrize(("lose", "left", "what"), CASES.values(), ids=CASES.keys())
def test_a_store_that_lost_commits_returns_to_the_state_before_them(
    world: World, lose: Callable[[World], None], left: int, what: str
) -> None:
    filled(world, 7)
    lose(world)
    with pytest.raises(CorruptData):
        opened(world)
    found = repaired(world)
    assert found.findings[0].what.startswith(what)
    assert f"is that after {left + 1} commits" in found.findings[0].detail
    assert values(world) == list(range(left))
    for number in range(left, left + 9):
        opened(world).topic("t").append(b"%d" % number)
    assert values(world) == list(range(left + 9))
    store = opened(world)
    for _ in range(6):  # maintenance works despite remains of the old history
        world.now_s += PARAMETERS.grace_s
        store.maintain()
        Collector(store._session, workers=1).run()
    assert values(world) == list(range(left + 9))


def test_lost_records_are_listed_as_far_as_known(world: World) -> None:
    filled(world, 7)
    drop(6)(world)
    found = diagnose(SimulatedBucket(world))
    rows = [(each.what, each.detail.partition(", of")[0], each.topic, each.partition) for each in found.findings[1:]]
    assert rows == [
        ("records are lost", "offsets 5 to 6", "t", 0),
        ("records cannot be placed", "1 record in commits/00000000000000000007", "t", 0),
    ]


def test_a_lost_end_that_only_the_collector_or_an_upload_has_recorded_is_found(world: World) -> None:
    filled(world, 5)
    store = opened(world)
    store.maintain()
    drop(5)(world)
    assert values(world) == [0, 1, 2, 3]  # no object that a reader uses records it
    assert "at least 1 commit lost" in repaired(world).findings[0].detail
    store = opened(world)
    store._session.upload(b"")
    drop(4)(world)
    assert "at least 1 commit lost" in diagnose(SimulatedBucket(world)).findings[0].detail


@pytest.mark.parametrize("beside", [True, False])
def test_a_checkpoint_of_another_history_is_set_aside_and_no_record_is_lost(world: World, beside: bool) -> None:
    """The last commit was lost, a process of an earlier version continued, and its next commit contradicts the
    checkpoint."""
    filled(world, 7)
    (checkpoint,) = [each for each in listed(SimulatedBucket(world)) if each.number == 8]
    kept = world.objects.pop(checkpoint.key)
    drop(7)(world)
    for number in (6, 7, 8):
        opened(world).topic("t").append(b"%d" % number)
    if not beside:
        for each in listed(SimulatedBucket(world)):
            if each.number == checkpoint.number:
                del world.objects[each.key]
    world.objects[checkpoint.key] = kept
    if not beside:
        with pytest.raises(CorruptData):
            opened(world)
    assert repaired(world).stray == [checkpoint.key]
    assert values(world) == list(range(9))


@pytest.mark.parametrize("damaged", [True, False])
def test_a_lost_sawlog_json_is_restored_with_its_parameters(world: World, damaged: bool) -> None:
    filled(world, 3)
    before = world.objects.pop(STORE)[0]
    if damaged:
        world.objects[STORE] = (b"{", world.now_s)
    with pytest.raises((CorruptData, SawlogError)):
        opened(world)
    found = repaired(world)
    assert "with the same id and parameters" in found.findings[0].detail
    assert world.objects[STORE][0] == before
    assert values(world) == [0, 1, 2]


def test_a_lost_sawlog_json_without_a_copy_gets_default_parameters_and_a_finding(world: World) -> None:
    filled(world, 3)
    del world.objects[STORE], world.objects[STORE_COPY]
    assert "default parameters" in repaired(world).findings[0].detail
    assert values(world) == [0, 1, 2]
    assert opened(world)._session.parameters == StoreParameters()


def test_a_store_without_any_commit_returns_to_its_last_checkpoint(world: World) -> None:
    filled(world, 11)
    store = opened(world)
    store.maintain()
    for key in [key for key in world.objects if key.startswith(COMMITS)]:
        del world.objects[key]
    with pytest.raises(CorruptData):
        opened(world)
    found = diagnose(SimulatedBucket(world))
    repair(SimulatedBucket(world), found, _FOLDER)
    after = diagnose(SimulatedBucket(world))
    assert not after.is_repairable
    assert found.is_missing_objects
    assert after.is_missing_objects  # batches in commits are lost and stay reported
    assert opened(world).topics() == ["t"]


def test_a_repair_that_was_interrupted_is_refused_when_opened_and_can_be_repeated(world: World) -> None:
    filled(world, 7)
    drop(5)(world)
    total = len(diagnose(SimulatedBucket(world)).stray)
    assert total == 3
    for _ in range(1, total):
        found = diagnose(SimulatedBucket(world))
        found.stray = found.stray[:1]
        repair(SimulatedBucket(world), found, _FOLDER)
        with pytest.raises(CorruptData):
            opened(world)
    repaired(world)
    assert values(world) == [0, 1, 2, 3]


def test_a_lost_commit_behind_a_confirmed_checkpoint_costs_only_its_batches(world: World) -> None:
    filled(world, 9)
    drop(6)(world)
    found = diagnose(SimulatedBucket(world))
    assert not found.is_repairable
    assert [each.detail for each in found.findings] == ["offsets 5 to 5 are in commits/00000000000000000006"]
    assert opened(world).topic("t").partition(0).read(8).value == b"8"
