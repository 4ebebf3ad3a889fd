"""Power cuts while a transaction is forwarded, on the simulated disk: it is stored once or not at all.

Three stores on one disk: two hold a partition each, the third commits, to both and to a free one. Before each change of
the disk the power is cut, or all processes die; then the next process opens what is left, and the power may be cut
again, before each of its changes. `test_handover_processes.py` kills one process at a time.

The quick form takes some of these moments, chosen by the seed of the run (`SAWLOG_FAULT_SEED` repeats it).
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from sawlog import Log
from sawlog.errors import LogFailed, SawlogError, StorageError, TransactionAborted, TransactionError, TransactionPending
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ..faults.disk import FaultyStorage
from ..faults.seeds import repeat, shuffled, some_of
from .hall import Hall
from .nursery import until
from .stores import values

#: Three of these do not go into an intent.
LARGE = b"x" * (INLINE_BYTES // 2)


class Scene:
    """A disk with a store, two holders and a caller."""

    def __init__(self, value: bytes, disk: FaultyDirectory | None = None) -> None:
        self.disk = FaultyStorage() if disk is None else disk
        self.value = value
        self.hall = Hall()
        self.caller = self.hall.store(self.disk)
        self.caller.create_topic("orders", partitions=3)
        self.holders = [self.hall.store(self.disk) for _ in range(2)]
        for number, holder in enumerate(self.holders):
            holder["orders"].append(b"before", partition=number)

    def commit(self) -> None:
        """A transaction of two batches for each partition."""
        with self.caller.transaction("query", 1) as tx:
            for number in range(3):
                tx.append("orders", self.value, partition=number)
                tx.append_many("orders", [b"more", b"more"], partition=number)
        assert not tx.replayed

    @property
    def part(self) -> list[bytes]:
        return [self.value, b"more", b"more"]


def moments(scene: Scene, act: Callable[[], None]) -> list[FaultyStorage]:
    """Run `act`; return copies of the disk as the next process finds it if all processes die before each change, or at
    the end."""
    disk = scene.disk
    assert isinstance(disk, FaultyStorage)
    left: list[FaultyStorage] = []
    disk.watch = lambda step: left.append(disk.process_dies())
    act()
    disk.watch = None
    left.append(disk.process_dies())
    return left


def traces(disk: FaultyStorage) -> list[str]:
    """Return the files that prove that a transaction is or was committed."""
    names = disk.child("staging").names()
    return [name for name in names if name.endswith(".intent") or ".at." in name or ".applied." in name]


def cuts(left: FaultyStorage, seeds: int = 2) -> Iterator[FaultyStorage]:
    """After a power cut."""
    yield left.crash("lose")
    yield left.crash("keep")
    yield left.crash("prefix")
    for seed in range(seeds):
        yield left.crash("reorder", seed)


def check(disk: FaultyStorage, part: list[bytes]) -> bool:
    """Check that the transaction is stored completely, in order, or not at all; return which."""
    with DirectoryStore.open(disk, maintenance_interval_s=None) as store:
        seen = [values(store["orders"].partition(number).scan()) for number in range(3)]
        kept = [each[1:] if each[:1] == [b"before"] else each for each in seen]
        assert kept in ([[]] * 3, [part] * 3), repeat()
        assert all(store["orders"].partition(number).verify() for number in range(3))
        assert store.transaction("query", 1).replayed == (kept[0] == part)
        left = store._directory.child("staging").names()
        assert [name for name in left if not name.startswith("=")] == []
        for number in range(3):
            store["orders"].append(b"after", partition=number)
        return kept[0] == part


#: Number of moments between the first and the last; None for all.
FORMS = pytest.mark.parametrize(
    "count", [pytest.param(2, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)]
)


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_after_a_power_cut_at_any_moment_it_is_stored_completely_or_not_at_all(value: bytes, count: int | None) -> None:
    scene = Scene(value)
    found = []
    left = moments(scene, scene.commit)
    assert len(left) > 40
    for moment in some_of(left, count and 3 * count, "power cuts"):
        outcomes = [check(cut, scene.part) for cut in (moment.process_dies(), *cuts(moment))]
        found.append(outcomes)
    assert not any(found[0])
    assert all(found[-1])  # it was acknowledged


@pytest.mark.alternating
@pytest.mark.costly  # some fifty recoveries
@FORMS
def test_whoever_completes_it_after_the_deaths_of_all_may_lose_its_power_as_well(count: int | None) -> None:
    scene = Scene(b"small")
    left = moments(scene, scene.commit)
    begun = [moment for moment in left if traces(moment)]
    assert len(begun) > 20
    gone = [moment for moment in begun if not any(name.endswith(".intent") for name in traces(moment))]
    assert len(gone) > 2  # the intent was removed, perhaps not durably, and the remains are swept
    for moment in [*some_of(begun, count and 1, "begun"), gone[-1]] if count else [*begun, *gone]:
        second = moment.process_dies()
        again: list[FaultyStorage] = []
        second.watch = lambda _, second=second, again=again: again.append(second.process_dies())
        DirectoryStore.open(second, maintenance_interval_s=None).close()
        second.watch = None
        for each in some_of(again, count and 1, "again"):
            for cut in cuts(each, seeds=count or 2):
                check(cut, scene.part)


# --- calls that fail


def commits_with(fault: Fault, who: int, value: bytes = b"small") -> tuple[Scene, FaultyDirectory, SawlogError | None]:
    """A call of one holder's directory fails while it is handed a part."""
    disk = FaultyStorage()
    scene = Scene(value, disk)
    failing = FaultyDirectory(disk.plain)
    holder = scene.hall.store(failing)
    scene.holders[who].close()
    scene.holders[who] = holder
    holder["orders"].append(b"before", partition=who)
    failing.arm(fault)
    raised: SawlogError | None = None
    try:
        scene.commit()
    except SawlogError as error:
        raised = error
    return scene, failing, raised


#: Calls of a holder, and the error of the commit if they fail. The first two come before the decision to commit, the
#: others after it, whichever thread is faster.
SAID: list[tuple[str, str, type[SawlogError]]] = [
    ("read", "*.proposal", TransactionAborted),
    ("claim", "*.log", TransactionAborted),
    ("replace", "*.at.*", TransactionPending),
    ("append", "*.log", TransactionPending),
]


@pytest.mark.parametrize(("operation", "names", "said"), SAID, ids=[operation for operation, _, _ in SAID])
def test_what_is_said_of_a_transaction_is_true_if_this_call_of_a_holder_fails(
    operation: str, names: str, said: type[SawlogError]
) -> None:
    effect = shuffled(["nothing", "all"], operation)[0]
    raised, failed = check_what_is_said(Fault(operations={operation}, names=names, effect=effect))  # type: ignore[arg-type]
    assert failed
    assert type(raised) is said, repeat()


@pytest.mark.slow  # some of these calls are in the quick form
@pytest.mark.parametrize("effect", ["nothing", "all"])
def test_what_is_said_of_a_transaction_is_true_whichever_call_of_a_holder_fails(effect: str) -> None:
    said: set[type[SawlogError] | None] = set()
    for number in itertools.count(1):
        raised, failed = check_what_is_said(Fault(number, effect=effect))  # type: ignore[arg-type]
        said.add(None if raised is None else type(raised))
        if not failed:
            break
    assert said >= {None, TransactionAborted, TransactionPending}
    assert TransactionError not in said


def check_what_is_said(fault: Fault) -> tuple[SawlogError | None, bool]:
    """Check that the stored records agree with the error of the commit. Return it, and whether a call failed."""
    scene, failing, raised = commits_with(fault, 0)
    failed = bool(failing.failed)
    failing.disarm()
    for store in (scene.caller, *scene.holders):
        with suppress(SawlogError):  # a log that has failed says so
            store.close()
    disk = scene.disk
    assert isinstance(disk, FaultyStorage)
    for each in (disk.process_dies(), disk.crash("lose"), disk.crash("reorder", 1)):
        with DirectoryStore.open(each, maintenance_interval_s=None) as store:
            seen = [values(store["orders"].partition(at).scan()) for at in range(3)]
            there = [each[-3:] == scene.part for each in seen]
            assert there in ([True] * 3, [False] * 3), seen
            assert all(each.count(b"small") == there[0] for each in seen)
            if raised is None or isinstance(raised, TransactionPending):
                assert there[0]
            elif isinstance(raised, TransactionAborted):
                assert not there[0]
    return raised, failed


def test_a_partition_whose_part_could_not_be_placed_takes_nothing_else_before_it() -> None:
    """After the commit the holder cannot read the staged batches. It releases the lock for another process."""
    fault = Fault(2, operations={"open_shared"}, names="*.batches", forever=True)
    scene, failing, raised = commits_with(fault, 0, LARGE)
    assert isinstance(raised, TransactionPending)
    holder = scene.holders[0]
    for _ in range(2):
        with pytest.raises(SawlogError, match="injected"):
            holder["orders"].append(b"later", partition=0)
    assert values(holder["orders"].partition(0).scan()) == [b"before", b"before"]
    assert values(holder["orders"].partition(1).scan()) == [b"before", *scene.part]
    failing.disarm()
    assert holder["orders"].append(b"later", partition=0).offset == 5
    assert values(holder["orders"].partition(0).scan()) == [b"before", b"before", *scene.part, b"later"]
    scene.caller.maintain()
    assert [name for name in scene.disk.child("staging").names() if not name.startswith("=")] == []


def test_no_append_comes_between_a_failed_part_and_the_release_of_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that waits for the log when placing fails must not append where the part was noted."""
    disk = FaultyStorage()
    scene = Scene(LARGE, disk)
    failing = FaultyDirectory(disk.plain)
    scene.holders[0].close()
    holder = scene.holders[0] = scene.hall.store(failing)
    holder["orders"].append(b"before", partition=0)
    outcome: list[object] = []

    def write() -> None:
        try:
            outcome.append(holder["orders"].append(b"between", partition=0).offset)
        except SawlogError as error:
            outcome.append(error)

    thread = threading.Thread(target=write)
    waited: list[bool] = []
    staged: list[str] = []

    def before(call: Call) -> None:
        if call.operation == "open_shared" and call.name.endswith(".batches"):
            staged.append(call.name)
            if len(staged) == 2:  # once to prepare, once to place
                thread.start()
                until(lambda: is_in(thread, Log.append), "the other thread waits")
                waited.append(not outcome)
                raise StorageError(5, "cannot be read")

    def release_late(log: Log) -> None:
        thread.join()
        release(log)

    release = Log._release
    monkeypatch.setattr(Log, "_release", release_late)
    failing.before = before
    with pytest.raises(TransactionPending):
        scene.commit()
    failing.before = None
    assert waited == [True]
    assert isinstance(outcome[0], LogFailed)
    holder["orders"].append(b"after", partition=0)
    assert values(holder["orders"].partition(0).scan()) == [b"before", b"before", *scene.part, b"after"]


def is_in(thread: threading.Thread, function: Callable[..., object]) -> bool:
    """Return whether a thread is executing a function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False
