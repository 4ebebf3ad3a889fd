"""Processes die at any call to the disk, while topics are created, changed and deleted and while transactions commit.

For each operation the process dies at its first call, at its second, its third... until it gets through. It dies before
the call took effect, after it, or during a write. Then another process opens what is left:

- it finds what was there before the operation, or what is there after it, never anything else;
- if the operation had returned, it finds what is there after it;
- nothing half-done is left, every log verifies, and the operation can be done (again).

The process that opens it may die as well: whoever comes after that finds the same.

The quick form takes the first and the last call, and a few between them, with one effect on that call; the seed of the
run chooses. The slow form takes all of them. `SAWLOG_FAULT_SEED` repeats a quick run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import pytest

from sawlog.errors import SawlogError, TransactionAborted, TransactionError, TransactionPending
from sawlog.storage import MemoryDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.testing.faulty import Fault, FaultyDirectory

from ..faults.disk import FaultyStorage
from ..faults.seeds import repeat, shuffled, some_of
from .stores import copied

pytestmark = pytest.mark.usefixtures("no_background")

State = dict[str, Any]
Effect = Literal["nothing", "part", "all"]
EFFECTS: list[Effect] = ["nothing", "part", "all"]
#: At how many calls between the first and the last somebody dies; None for all.
FORMS = pytest.mark.parametrize(
    "count", [pytest.param(3, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)]
)


def effects_of(what: str, count: int | None) -> list[Effect]:
    """All effects in the slow form, one in the quick form."""
    return EFFECTS if count is None else shuffled(EFFECTS, what)[:1]


@dataclass(frozen=True)
class Operation:
    """Something that is done to a store which has the topics `orders`, with three partitions, and `stock`."""

    name: str
    act: Callable[[DirectoryStore], object]
    #: Preparation by the process that dies, before its calls are counted.
    prepare: Callable[[DirectoryStore], object] = lambda store: None


def transact(store: DirectoryStore, *name: Any, value: bytes = b"new") -> None:
    with store.transaction(*name) as tx:
        for number in range(3):
            tx.append("orders", value, partition=number)
            tx.append_many("orders", [b"more"] * 2, partition=number)
        tx.append("stock", value)


#: Four of these do not go into an intent.
LARGE = b"x" * (INLINE_BYTES // 4)


def write_everywhere(store: DirectoryStore) -> None:
    for topic in store:
        for number in range(topic.partitions):
            topic.append(b"mine", partition=number)


def make_another(store: DirectoryStore) -> None:
    another = store.create_topic("another", partitions=2, retention_ms=5_000_000_000_000)
    another.append_many([b"other"] * 3, partition=1)


OPERATIONS = [
    Operation("create", lambda store: store.create_topic("more", partitions=2, segment_bytes=1000)),
    Operation("more partitions", lambda store: store.alter_topic("orders", partitions=5)),
    Operation("other settings", lambda store: store.alter_topic("orders", retention_ms=5)),
    Operation("both", lambda store: store.alter_topic("orders", partitions=4, retention_ms=5)),
    Operation("delete", lambda store: store.delete_topic("orders")),
    Operation("delete what was written to", lambda store: store.delete_topic("orders"), write_everywhere),
    Operation("replace", lambda store: store.replace_topic("orders", "another"), make_another),
    Operation("transaction", transact),
    Operation("transaction of a writer", transact, write_everywhere),
    Operation("large transaction", lambda store: transact(store, value=LARGE), write_everywhere),
    Operation(
        "named transaction", lambda store: transact(store, "query", 2), lambda store: transact(store, "query", 1)
    ),
]
TRANSACTIONS = [operation for operation in OPERATIONS if "transaction" in operation.name]
CHANGES = [operation for operation in OPERATIONS if operation not in TRANSACTIONS]
SMALL, LARGE_ONE, NAMED = TRANSACTIONS[1:]


def state(store: DirectoryStore) -> State:
    """Everything that is promised about a store."""
    return {
        topic.name: (topic.partitions, topic.settings, [(r.partition, r.offset, r.value) for r in topic.scan()])
        for topic in store
    }


def made() -> MemoryDirectory:
    """A store as it lies on disk before the operation."""
    directory = MemoryDirectory()
    with DirectoryStore.open(directory, maintenance_interval_s=None) as store:
        store.create_topic("orders", partitions=3)
        store.create_topic("stock")
        store["orders"].append(b"old", partition=1)
        store["orders"].append_many([b"old"] * 2, partition=2)
    return directory


def opened(directory: Any) -> DirectoryStore:
    return DirectoryStore.open(directory, maintenance_interval_s=None)


@dataclass(frozen=True)
class Death:
    """The state left by a process that died during an operation."""

    left: MemoryDirectory
    before: State
    after: State
    returned: bool
    #: The call at which it died.
    call: int

    def __str__(self) -> str:
        return f"call {self.call}; {repeat()}"


def deaths(operation: Operation, effect: Effect, count: int | None = None, *, in_order: bool = True) -> Iterator[Death]:
    """One for every call that the operation makes, or for some of them; and one after all calls."""
    start = made()
    after, calls = undisturbed(operation, start)
    what = f"{operation.name} {effect}"
    numbers = [*some_of(range(1, calls + 1), count, what), calls + 1]
    for number in numbers if in_order else shuffled(numbers, what):
        inner = copied(start)
        directory = FaultyDirectory(inner)
        store = opened(directory)
        operation.prepare(store)
        before = state(store)
        directory.arm(Fault(number, forever=True, effect=effect, undo=False))
        try:
            operation.act(store)
            returned = True
        except SawlogError:
            returned = False
        left = copied(inner)
        survived = not directory.failed
        directory.disarm()
        yield Death(left, before, after, returned, number)
        assert survived == (number > calls), f"{calls} calls"
        if survived:
            store.close()


def undisturbed(operation: Operation, start: MemoryDirectory) -> tuple[State, int]:
    """Return the state after the operation and the number of its calls."""
    directory = FaultyDirectory(copied(start))
    with opened(directory) as store:
        operation.prepare(store)
        before = state(store)
        directory.calls.clear()
        operation.act(store)
        calls = len(directory.calls)
        assert state(store) != before
        return state(store), calls


def check(death: Death, found: DirectoryStore) -> None:
    """Check the store that another process opens after the death."""
    allowed = [death.after] if death.returned else [death.before, death.after]
    assert state(found) in allowed, death
    topics = found._directory.child("topics")
    assert topics.children() == found.topics()
    for topic in found:
        assert len(topics.child(topic.name).children()) == topic.partitions
        for number in range(topic.partitions):
            assert topic.partition(number).verify()
    if "staging" in found._directory.children():
        left = found._directory.child("staging").names()
        assert [name for name in left if not name.startswith("=")] == []


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_crash_at_any_call_leaves_the_old_state_or_the_new_one(operation: Operation, count: int | None) -> None:
    for effect in effects_of(f"crash in {operation.name}", count):
        seen = []
        for death in deaths(operation, effect, count):
            with opened(death.left) as store:
                check(death, store)
                seen.append(state(store) == death.after)
                if not seen[-1]:
                    operation.act(store)
                    assert state(store) == death.after, death
        assert set(seen) == {False, True}, effect


# --- errors that pass


def mishaps(
    operation: Operation, effect: Effect, count: int | None
) -> Iterator[tuple[Death, DirectoryStore, SawlogError | None]]:
    """One for every call that the operation makes, or for some: the call fails, and the device works again."""
    start = made()
    after, calls = undisturbed(operation, start)
    for number in [*some_of(range(1, calls + 1), count, f"{operation.name} {effect}"), calls + 1]:
        inner = copied(start)
        directory = FaultyDirectory(inner)
        store = opened(directory)
        operation.prepare(store)
        before = state(store)
        directory.arm(Fault(number, effect=effect, undo=True))
        raised: SawlogError | None = None
        try:
            operation.act(store)
        except SawlogError as error:
            raised = error
        survived = not directory.failed
        directory.disarm()
        yield Death(copied(inner), before, after, raised is None, number), store, raised
        with suppress(SawlogError):  # a log that has failed says so again when it is closed
            store.close()
        assert survived == (number > calls), f"{calls} calls"


def every_mishap(operation: Operation, count: int | None) -> Iterator[tuple[Death, DirectoryStore, SawlogError | None]]:
    """The cases with each effect, or with the effect of the quick form."""
    for effect in effects_of(f"mishap in {operation.name}", count):
        yield from mishaps(operation, effect, count)


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize("operation", CHANGES, ids=lambda operation: operation.name)
def test_a_change_that_failed_can_be_tried_again_at_once(operation: Operation, count: int | None) -> None:
    for death, store, raised in every_mishap(operation, count):
        if state(store) != death.after:
            assert raised is not None, death
            assert state(store) == death.before, death
            operation.act(store)
        assert state(store) == death.after, death
        store.close()
        with opened(store._directory) as again:
            check(replace(death, returned=True), again)


@FORMS
def test_a_topic_that_could_not_be_made_leaves_nothing_behind(count: int | None) -> None:
    [create] = [operation for operation in CHANGES if operation.name == "create"]
    for death, store, _ in every_mishap(create, count):
        assert store._directory.child("topics").children() == store.topics(), death


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize("operation", TRANSACTIONS, ids=lambda operation: operation.name)
def test_what_a_transaction_says_of_itself_is_true(operation: Operation, count: int | None) -> None:
    for effect in effects_of(f"mishap in {operation.name}", count):
        said = set()
        for death, _, raised in mishaps(operation, effect, count):
            said.add(type(raised))
            with opened(death.left) as store:
                check(death, store)
                if isinstance(raised, TransactionPending):
                    assert state(store) == death.after, death
                elif raised is not None and type(raised) is not TransactionError:  # outcome unknown
                    assert state(store) == death.before, death
        assert type(None) in said
        assert len(said) > 1
        assert count is not None or {TransactionAborted, TransactionPending} <= said


# --- promised records that are not placed yet


def staged(directory: MemoryDirectory) -> list[str]:
    return directory.child("staging").names() if "staging" in directory.children() else []


def pending(operation: Operation, effect: Effect, count: int | None) -> list[Death]:
    """Return deaths that left an intent, by their calls: all of them, or `count` and the first and last."""
    all_deaths = deaths(operation, effect, in_order=False)
    left = (death for death in all_deaths if any(name.endswith(".intent") for name in staged(death.left)))
    found = sorted(islice(left, None if count is None else count + 2), key=lambda death: death.call)
    assert len(found) > (7 if count is None else count)
    return found


def opened_before(death: Death) -> DirectoryStore:
    """A store that was open already when the other process died: opening it has completed nothing."""
    staging = death.left.child("staging")
    hidden = {name: staging.read(name) for name in staging.names()}
    for name in hidden:
        staging.remove(name)
    store = opened(death.left)
    for name, data in hidden.items():
        staging.replace(name, data)
    return store


def values(found: State, topic: str) -> list[bytes]:
    return [value for *_, value in found[topic][2]]


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize("operation", TRANSACTIONS, ids=lambda operation: operation.name)
def test_the_first_writer_places_committed_batches_before_its_own(operation: Operation, count: int | None) -> None:
    for death in pending(operation, "all", count):
        with opened_before(death) as store:
            for partition in (2, 0, 1):
                store["orders"].append(b"last", partition=partition)
            store["stock"].append(b"last")
            found = state(store)
            assert [value for value in values(found, "orders") if value != b"last"] == values(death.after, "orders")
            assert values(found, "stock") == [*values(death.after, "stock"), b"last"]
            assert [n for n in staged(death.left) if not n.startswith("=")] == []


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize(
    "effect", [pytest.param(each, marks=pytest.mark.slow) for each in EFFECTS[:-1]] + [EFFECTS[-1]]
)
def test_a_process_that_rolls_forward_may_die_as_well(effect: Effect, count: int | None) -> None:
    """A process dies at any call while it opens a store that was left by a death during placement, or at its end."""
    left = pending(LARGE_ONE, effect, count)
    for death in (left[len(left) // 2], left[-1]):
        counting = FaultyDirectory(copied(death.left))
        with opened(counting):
            calls = len(counting.calls)
        for number in some_of(range(1, calls + 1), count, f"roll forward {death.call}"):
            inner = copied(death.left)
            directory = FaultyDirectory(inner)
            directory.arm(Fault(number, forever=True, effect=effect, undo=False))
            with suppress(SawlogError):
                opened(directory)
            assert directory.failed, f"it makes less than {number} calls"
            with opened(copied(inner)) as store:
                check(death, store)
                assert state(store) == death.after, f"{death}, then call {number}"


@FORMS
def test_a_promise_to_a_topic_that_is_gone_is_forgotten(count: int | None) -> None:
    for death in pending(SMALL, "nothing", count):
        death.left.child("topics").remove_child("orders")
        with opened(death.left) as store:
            assert store.topics() == ["stock"]
            assert values(state(store), "stock") == [b"mine", b"new"]
            assert staged(death.left) == []


@FORMS
def test_a_promise_is_kept_once_even_if_what_was_placed_is_truncated(count: int | None) -> None:
    for death in pending(SMALL, "nothing", count):
        with opened_before(death) as store:
            store["orders"].partition(0).truncate(0)
            assert any(
                name.endswith(".intent") for name in staged(death.left)
            )  # the other partitions have not got theirs
        with opened(death.left) as store:
            assert store["orders"].partition(0).next_offset == 0
            assert values(state(store), "stock") == values(death.after, "stock")
            assert staged(death.left) == []


@FORMS
def test_a_sequence_that_is_completed_late_does_not_hide_a_later_one(count: int | None) -> None:
    for death in pending(NAMED, "nothing", count):
        with opened_before(death) as store:
            assert store.transaction("query", 2).replayed  # committed, though not completed
            with store.transaction("query", 3) as tx:
                tx.append("stock", b"three")
            assert not tx.replayed
        with opened(death.left) as store:
            assert store.transaction("query", 3).replayed
            assert not store.transaction("query", 4).replayed
            assert values(state(store), "stock") == [*values(death.after, "stock"), b"three"]
            assert staged(death.left) == ["=query.committed"]


# --- a process dies, and then the power is cut


def left_by_each_death(disk: FaultyStorage, act: Callable[[], object]) -> list[FaultyStorage]:
    """Return the state that the next process finds if the acting one dies before any of its changes of the disk."""
    left: list[FaultyStorage] = []
    disk.watch = lambda step: left.append(disk.process_dies())
    act()
    disk.watch = None
    assert len(left) > 5
    return left


def check_power_cut_after_writing(left: FaultyStorage) -> None:
    """The next process writes and is acknowledged; everything that it read and wrote survives the power cut."""
    with opened(left) as store:
        write_everywhere(store)
        expected = state(store)
        cuts = [left.crash("lose"), *(left.crash("reorder", seed) for seed in range(5))]
    for cut in cuts:
        with opened(cut) as store:
            assert state(store) == expected


def test_a_store_whose_maker_died_survives_a_power_cut_with_what_was_written_since() -> None:
    disk = FaultyStorage()
    for left in left_by_each_death(disk, lambda: opened(disk).close()):
        with opened(left) as store:
            store.create_topic("orders").append(b"acknowledged")
            cut = left.crash("lose")
        with opened(cut) as store:
            assert values(state(store), "orders") == [b"acknowledged"]


@pytest.mark.alternating
@FORMS
@pytest.mark.parametrize("operation", CHANGES, ids=lambda operation: operation.name)
def test_a_topic_whose_maker_died_survives_a_power_cut_with_what_was_written_since(
    operation: Operation, count: int | None
) -> None:
    """A name that can be seen need not be durable."""
    disk = FaultyStorage()
    store = opened(disk)
    store.create_topic("orders", partitions=3)
    store.create_topic("stock")
    store["orders"].append(b"old", partition=1)
    operation.prepare(store)
    for left in some_of(left_by_each_death(disk, lambda: operation.act(store)), count, operation.name):
        check_power_cut_after_writing(left)
