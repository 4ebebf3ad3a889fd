"""Several processes write to one topic: real ones, that are stopped and killed.

Names of steps are calls to the disk: a process stands still before one, and is killed there.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.errors import DirectoryLocked
from sawlog.store.directory.store import DirectoryStore

from .nursery import Child, Nursery, until
from .stores import values


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The parent of the other processes."""
    with Nursery() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a topic of three partitions."""
    with DirectoryStore.open(tmp_path / "store", maintenance_interval_s=None) as store:
        store.create_topic("orders", partitions=3)
    return tmp_path / "store"


def opened(path: Path, timeout_s: float = 20.0) -> DirectoryStore:
    return DirectoryStore.open(path, maintenance_interval_s=None, lock_timeout=timeout_s)


def found(path: Path) -> list[list[bytes | None]]:
    """Return the values in each partition."""
    with DirectoryStore.open(path, "r") as store:
        return [values(store["orders"].partition(number).scan()) for number in range(3)]


def times(path: Path, value: bytes) -> list[int]:
    """Return the number of copies of a record in each partition."""
    return [each.count(value) for each in found(path)]


def staged(path: Path) -> list[str]:
    """Return the files of transactions that are left."""
    return [each.name for each in (path / "staging").iterdir() if not each.name.startswith("=")]


# --- nobody dies


def test_a_process_that_is_stopped_in_its_turn_leaves_nothing_in_doubt(nursery: Nursery, path: Path) -> None:
    holder = nursery.start("hold", path=path, topic="orders", partitions=[0])
    holder.waits_for("ready")
    with opened(path, timeout_s=0.4) as store:
        holder.signal(signal.SIGSTOP)
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid}"):
            store["orders"].append(b"withdrawn", partition=0)
        tx = store.transaction(lock_timeout_s=0.4)
        for number in (0, 1):
            tx.append("orders", b"withdrawn", partition=number)
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid}"):
            tx.commit()
        assert store["orders"].append(b"elsewhere", partition=1).offset == 0
        holder.signal(signal.SIGCONT)
        assert holder.close() == 0
        assert store["orders"].append(b"after", partition=0).offset == 1
    assert times(path, b"withdrawn") == [0, 0, 0]
    assert staged(path) == []


def test_a_process_that_is_stopped_between_two_turns_keeps_nobody_from_writing(nursery: Nursery, path: Path) -> None:
    writer = nursery.start("stream", path=path, topic="orders", tag="x", form="append", count=30)
    writer.waits_for("stored 2 x.29")
    with opened(path, timeout_s=5.0) as store, opened(path, timeout_s=5.0) as other:
        for number in range(3):
            assert store["orders"].append(b"asks for the turn", partition=number).offset == 10
        writer.signal(signal.SIGSTOP)
        for number in range(3):
            assert other["orders"].append(b"beside it", partition=number).offset == 11


# --- somebody dies


def _every(total: int, request: pytest.FixtureRequest) -> range:
    """All calls in the long form, some in the quick one."""
    return range(1, total + 1, 1 if "slow" in request.node.name else max(total // 6, 1))


FORMS = pytest.mark.parametrize("form", ["quick", pytest.param("slow", marks=pytest.mark.slow)])


@FORMS
def test_a_commit_that_is_killed_at_any_step_has_stored_all_or_nothing_and_can_be_repeated(
    nursery: Nursery, path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    """Beside a process that goes on writing to the same partitions, and places what the dead one has promised."""
    beside = opened(path)
    common = {"path": path, "topic": "orders", "partitions": [0, 1], "name": "query"}
    counting = nursery.start("commit", **common, value="counted", sequence=1, stop_at=0)
    assert counting.hears() == {"replayed": False, "0": 0, "1": 0}
    total, commit_point = counting.hears()
    assert 0 < commit_point < total
    outcomes = set()
    moments = [(stop_at, 0) for stop_at in _every(total // 2, request)]
    moments += [(0, after) for after in _every(total - commit_point - 2, request)]
    for sequence, (stop_at, after) in enumerate(moments, 2):
        value = b"killed at %d, %d after the commit" % (stop_at, after)
        beside["orders"].append(b"before %d" % sequence, partition=0)
        caller = nursery.start(
            "commit", **common, value=value.decode(), sequence=sequence, stop_at=stop_at, after_commit=after
        )
        caller.waits_for("stopped")
        committed = any(name.endswith(".intent") for name in staged(path))
        caller.kill()
        for number in (0, 1):
            beside["orders"].append(b"after %d" % sequence, partition=number)
        if committed:
            assert times(path, value) == [1, 1, 0]
        again = nursery.start("commit", **common, value=value.decode(), sequence=sequence)
        outcomes.add((committed, again.hears()["replayed"]))
        assert again.wait() == 0
        assert times(path, value) == [1, 1, 0]
    assert outcomes >= {(False, False), (True, True)}
    beside.close()
    with opened(path):
        assert staged(path) == []
    assert all(count == 1 for each in found(path) for count in Counter(each).values())


# --- a history


class Writer:
    """A process that appends in one way, with its successors when it is killed."""

    def __init__(self, nursery: Nursery, path: Path, form: str) -> None:
        self._nursery, self._path = nursery, path
        self.form = form
        self.generation = 0
        #: Attempted values by partition, in order, and the acknowledged ones.
        self.tried: list[tuple[int, bytes]] = []
        self.stored: list[tuple[int, bytes]] = []
        self.child = self._start(0)

    def _start(self, first: int) -> Child:
        # A name goes on where its last process ended; the others begin again.
        tag = self.form if self.form == "named" else f"{self.form}{self.generation}"
        return self._nursery.start("stream", path=self._path, topic="orders", tag=tag, form=self.form, first=first)

    def listen(self) -> None:
        """Read the output so far."""
        for said in self.child.heard():
            assert not str(said).startswith("failed"), said
            what, *rest = str(said).split()
            if what in ("trying", "stored"):
                known = self.tried if what == "trying" else self.stored
                entry = int(rest[0]), rest[1].encode()
                if entry not in known[-1:]:
                    known.append(entry)

    def kill(self) -> None:
        self.child.kill()
        self.listen()

    def restart(self) -> None:
        """Kill it, and let another process go on."""
        self.kill()
        self.generation += 1
        last = int(self.tried[-1][1].rpartition(b".")[2]) if self.tried else 0
        self.child = self._start(last if self.form == "named" else 0)


def check(writers: list[Writer], seen: list[list[bytes | None]]) -> None:
    """Acknowledged records are there once, others at most once; named ones in all partitions; each in order."""
    counts = [Counter(each) for each in seen]
    for writer in writers:
        stored = set(writer.stored)
        for partition, value in writer.tried:
            everywhere = range(3) if writer.form == "named" else [partition]
            there = [counts[number][value] for number in everywhere]
            if writer.form == "many":
                assert counts[partition][value + b"'"] == there[0], value
            if (partition, value) in stored:
                assert set(there) == {1}, (value, there)
            assert there in ([0] * len(there), [1] * len(there)), (value, there)
        order = {value: at for at, (_, value) in enumerate(writer.tried)}
        for each in seen:
            mine = [order[value] for value in each if value in order]
            assert mine == sorted(mine), writer.form


@pytest.mark.costly  # several interpreters
@FORMS
def test_whatever_is_killed_acknowledged_records_are_there_once_and_named_ones_everywhere(
    nursery: Nursery, path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(7)
    writers = [Writer(nursery, path, each) for each in ("append", "many", "writer", "named")]
    for _ in range(12 if "quick" in request.node.name else 200):
        before = [len(writer.stored) for writer in writers]

        def moved(before: list[int] = before) -> bool:
            for writer in writers:
                writer.listen()
            return sum(len(writer.stored) > count for writer, count in zip(writers, before, strict=True)) >= 3

        until(moved, "progress")
        victim = chance.choice(writers)
        if chance.random() < 0.3:  # it only stands still for a moment, perhaps in its turn
            victim.child.signal(signal.SIGSTOP)
            time.sleep(0.03)
            victim.child.signal(signal.SIGCONT)
        else:
            victim.restart()
    for writer in writers:
        writer.kill()
    with opened(path) as store:  # completes the committed transactions
        assert all(store["orders"].partition(number).verify() for number in range(3))
    assert staged(path) == []
    check(writers, found(path))
    assert sum(len(writer.stored) for writer in writers) > 50
