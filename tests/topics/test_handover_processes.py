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

from sawlog.errors import AmbiguousAppend, DirectoryLocked
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
    return DirectoryStore.open(path, maintenance_interval_s=None, handover_timeout_s=timeout_s)


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


def test_every_way_to_append_works_beside_a_process_that_holds_the_partition(nursery: Nursery, path: Path) -> None:
    import pyarrow as pa

    holder = nursery.start("hold", path=path, topic="orders", partitions=[0, 1, 2])
    holder.waits_for("ready")
    with opened(path) as store:
        topic = store["orders"]
        assert topic.append(b"one", partition=0).offset == 1
        assert topic.append_many([b"two", b"three"], partition=0) == {0: range(2, 4)}
        assert topic.append_arrow(pa.table({"value": [b"four"]}), partition=0) == {0: range(4, 5)}
        large = pa.table({"value": [b"%d" % number + bytes(1000) for number in range(5000)]})
        assert topic.append_arrow(large, partition=0) == {0: range(5, 5005)}
        assert topic.append(bytes(5 << 20), partition=0).offset == 5005
        with topic.writer(batch_bytes=1000) as writer:
            for number in range(300):
                writer.append(b"%d" % number, key=b"%d" % number)
        with topic._partition_writer(2) as one:
            one.append(bytes(2 << 20))
            one.append(b"last")
        with store.transaction() as tx:
            tx.append("orders", b"tx", partition=1)
            tx.append("orders", b"tx", partition=2)
        assert [log._lock_note for log in map(topic.partition, range(3))] == [topic.partition(0)._lock_note] * 3
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid}"):
            topic.partition(0).append(b"not by the log itself")
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid}"):
            topic.trim({0: 1})
    assert holder.close() == 0
    seen = found(path)
    assert seen[0][:5] == [b"held", b"one", b"two", b"three", b"four"]
    assert {int(value) for each in seen for value in each if value and value.isdigit()} == set(range(300))
    assert seen[1][-1] == seen[2][-1] == b"tx"
    assert seen[2][-2] == b"last"
    assert staged(path) == []
    with opened(path) as store:
        assert all(store["orders"].partition(number).verify() for number in range(3))


def test_a_transaction_goes_to_partitions_that_two_other_processes_hold_and_to_a_free_one(
    nursery: Nursery, path: Path
) -> None:
    holders = [nursery.start("hold", path=path, topic="orders", partitions=[number]) for number in (0, 1)]
    for holder in holders:
        holder.waits_for("ready")
    with opened(path) as store:
        with store.transaction("query", 1) as tx:
            for number in range(3):
                tx.append("orders", b"all", partition=number)
        assert {key: list(value) for key, value in tx.commit().items()} == {
            ("orders", 0): [1],
            ("orders", 1): [1],
            ("orders", 2): [0],
        }
        with store.transaction("query", 1) as again:
            for number in range(3):
                again.append("orders", b"twice", partition=number)
        assert again.replayed
        assert again.commit() == tx.commit()
    assert times(path, b"all") == [1, 1, 1]
    assert times(path, b"twice") == [0, 0, 0]
    assert staged(path) == []
    for holder in holders:
        assert holder.close() == 0


def test_two_services_that_hold_different_partitions_write_to_all_of_them(nursery: Nursery, path: Path) -> None:
    services = [
        nursery.start("stream", path=path, topic="orders", tag=tag, form=form, count=30)
        for tag, form in (("a", "append"), ("b", "many"), ("c", "writer"), ("d", "named"))
    ]
    for service in services:
        assert service.wait() == 0, service.heard()
    seen = found(path)
    for tag in "ac":
        for number in range(3):
            mine = [value for value in seen[number] if value and value.startswith(b"%s." % tag.encode())]
            assert mine == [b"%s.%d" % (tag.encode(), each) for each in range(number, 30, 3)]
    for number in range(3):
        assert [value for value in seen[number] if value and value.startswith(b"d.")] == [
            b"d.%d" % n for n in range(30)
        ]
    assert sum(value.startswith(b"b.") for each in seen for value in each if value) == 60
    assert staged(path) == []


def test_a_holder_that_closes_its_store_loses_nothing_of_what_others_append(nursery: Nursery, path: Path) -> None:
    writers = [
        nursery.start("stream", path=path, topic="orders", tag=f"w{number}", form="append") for number in range(2)
    ]
    for _ in range(3):
        holder = nursery.start("hold", path=path, topic="orders", partitions=[0, 1, 2])
        holder.waits_for("ready")
        assert holder.close() == 0
    for writer in writers:
        writer.kill()
    seen = Counter(value for each in found(path) for value in each if value and value != b"held")
    for writer in writers:
        said = [line for line in writer.heard() if isinstance(line, str)]
        assert not [line for line in said if line.startswith("failed")]
        stored = [line.split()[2].encode() for line in said if line.startswith("stored")]
        assert len(stored) > 10
        assert {seen[value] for value in stored} == {1}
    assert set(seen.values()) == {1}


def test_a_forked_child_hands_over_with_a_store_of_its_own_and_not_with_its_parents(
    nursery: Nursery, path: Path
) -> None:
    holder = nursery.start("hold", path=path, topic="orders", partitions=[0])
    holder.waits_for("ready")
    forking = nursery.start("fork", path=path, topic="orders", partition=0)
    assert forking.hears() == "done"
    assert forking.wait() == 0
    assert found(path)[0] == [b"held", b"parent", b"child", b"parent again"]
    assert holder.close() == 0


# --- somebody stands still


def test_a_stopped_holder_leaves_an_append_in_doubt_and_a_transaction_undone(nursery: Nursery, path: Path) -> None:
    holder = nursery.start("hold", path=path, topic="orders", partitions=[0])
    holder.waits_for("ready")
    with opened(path, timeout_s=0.4) as store:
        assert store["orders"].append(b"before", partition=0).offset == 1
        holder.signal(signal.SIGSTOP)
        with pytest.raises(AmbiguousAppend, match="may be stored"):
            store["orders"].append(b"in doubt", partition=0)
        tx = store.transaction(lock_timeout_s=0.4)
        for number in (0, 1):
            tx.append("orders", b"withdrawn", partition=number)
        with pytest.raises(DirectoryLocked, match="does not answer"):
            tx.commit()
        assert times(path, b"withdrawn") == [0, 0, 0]
        holder.signal(signal.SIGCONT)
        assert store["orders"].append(b"after", partition=0).offset >= 2
    assert holder.close() == 0
    assert times(path, b"in doubt")[0] <= 1
    assert times(path, b"withdrawn") == [0, 0, 0]
    assert (times(path, b"before"), times(path, b"after")) == ([1, 0, 0], [1, 0, 0])
    assert staged(path) == []


def test_a_writer_repeats_a_batch_in_doubt_without_doubling_it(nursery: Nursery, path: Path) -> None:
    holder = nursery.start("hold", path=path, topic="orders", partitions=[0])
    holder.waits_for("ready")
    with opened(path, timeout_s=0.4) as store:
        writer = store["orders"]._partition_writer(0)
        for number in range(3):
            writer.append(b"%d" % number)
            holder.signal(signal.SIGSTOP)
            with pytest.raises(AmbiguousAppend):
                writer.flush()
            holder.signal(signal.SIGCONT)
            writer.flush()
        writer.close()
    assert found(path)[0] == [b"held", b"0", b"1", b"2"]
    assert holder.close() == 0


def test_a_holder_that_stands_still_after_the_commit_point_leaves_it_pending_and_its_end_completes_it(
    nursery: Nursery, path: Path
) -> None:
    calls = _calls_of_a_holder(nursery, path)
    for round_, stop_at in enumerate((calls // 2, calls - 2)):
        value = b"pending %d" % round_
        holder = nursery.start("hold", path=path, topic="orders", partitions=[0, 1], stop_at=stop_at)
        holder.waits_for("ready")
        caller = nursery.start(
            "commit", path=path, topic="orders", partitions=[0, 1, 2], value=value.decode(), name="query",
            sequence=round_ + 2, timeout_s=0.5,
        )  # fmt: skip
        holder.waits_for("stopped")
        assert caller.hears() == "TransactionPending"
        assert caller.wait() == 0
        assert times(path, value)[2] == 1  # nothing of it is taken back
        holder.kill()
        with opened(path) as store:
            assert store.transaction("query", round_ + 2).replayed
        assert times(path, value) == [1, 1, 1]
        assert staged(path) == []


def _calls_of_a_holder(nursery: Nursery, path: Path, **options: object) -> int:
    """Return the number of disk calls of a process that places two forwarded parts of a transaction."""
    holder = nursery.start("hold", path=path, topic="orders", partitions=[0, 1], stop_at=0)
    holder.waits_for("ready")
    caller = nursery.start(
        "commit", path=path, topic="orders", partitions=[0, 1, 2], value="counted", name="query", sequence=1, **options
    )
    assert caller.wait() == 0
    holder.signal(signal.SIGTERM)
    [count] = [said for said in (holder.hears(),) if isinstance(said, int)]
    assert holder.wait() == 0
    assert count > 15
    return count


# --- somebody dies


def _every(total: int, request: pytest.FixtureRequest) -> range:
    """All calls in the long form, some in the quick one."""
    return range(1, total + 1, 1 if "slow" in request.node.name else max(total // 6, 1))


FORMS = pytest.mark.parametrize("form", ["quick", pytest.param("slow", marks=pytest.mark.slow)])


@FORMS
def test_a_caller_that_is_killed_at_any_step_has_stored_all_or_nothing_and_can_repeat_it(
    nursery: Nursery, path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    holders = [nursery.start("hold", path=path, topic="orders", partitions=[number]) for number in (0, 1)]
    for holder in holders:
        holder.waits_for("ready")
    common = {"path": path, "topic": "orders", "partitions": [0, 1], "name": "query"}
    counting = nursery.start("commit", **common, value="counted", sequence=1, stop_at=0)
    assert counting.hears() == {"replayed": False, "0": 1, "1": 1}
    total, commit_point = counting.hears()
    outcomes = set()
    steps = sorted({*_every(total, request), commit_point, commit_point + 1, commit_point + 2})
    for sequence, stop_at in enumerate(steps, 2):
        value = b"killed at %d" % stop_at
        caller = nursery.start("commit", **common, value=value.decode(), sequence=sequence, stop_at=stop_at)
        caller.waits_for("stopped")
        committed = any(name.endswith(".intent") for name in staged(path))
        caller.kill()
        if committed:  # the holders notice its end; no other process is needed
            until(lambda value=value: times(path, value) == [1, 1, 0] and not staged(path), f"{value!r} is completed")
        again = nursery.start("commit", **common, value=value.decode(), sequence=sequence)
        outcomes.add((committed, again.hears()["replayed"]))
        assert again.wait() == 0
        assert times(path, value) == [1, 1, 0]
    assert outcomes >= {(False, False), (True, True)}
    for holder in holders:
        assert holder.close() == 0
    with opened(path):
        assert staged(path) == []
    assert all(count == 1 for each in found(path) for value, count in Counter(each).items() if value != b"held")


@FORMS
def test_a_holder_that_is_killed_at_any_step_loses_and_doubles_nothing(
    nursery: Nursery, path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    total = _calls_of_a_holder(nursery, path)
    for sequence, stop_at in enumerate(_every(total, request), 2):
        value = b"held until %d" % stop_at
        holder = nursery.start("hold", path=path, topic="orders", partitions=[0, 1], stop_at=stop_at)
        holder.waits_for("ready")
        caller = nursery.start(
            "commit", path=path, topic="orders", partitions=[0, 1, 2], value=value.decode(), name="query",
            sequence=sequence,
        )  # fmt: skip
        holder.waits_for("stopped")
        holder.kill()
        said = caller.hears()
        assert isinstance(said, dict), said
        assert caller.wait() == 0
        assert times(path, value) == [1, 1, 1]
        seen = found(path)
        assert [seen[number].index(value) for number in range(3)] == [said[str(number)] for number in range(3)]
        assert staged(path) == []


@pytest.mark.costly  # several interpreters
def test_both_are_killed_and_the_next_process_completes_what_was_committed(nursery: Nursery, path: Path) -> None:
    total = _calls_of_a_holder(nursery, path)
    for sequence, stop_at in enumerate(range(total // 3, total, total // 4), 2):
        value = b"both %d" % stop_at
        holder = nursery.start("hold", path=path, topic="orders", partitions=[0, 1], stop_at=stop_at)
        holder.waits_for("ready")
        caller = nursery.start(
            "commit", path=path, topic="orders", partitions=[0, 1, 2], value=value.decode(), name="query",
            sequence=sequence,
        )  # fmt: skip
        holder.waits_for("stopped")
        caller.kill()
        holder.kill()
        with opened(path) as store:
            there = times(path, value)
            assert there in ([0, 0, 0], [1, 1, 1])
            assert store.transaction("query", sequence).replayed == (there[0] == 1)
        assert staged(path) == []


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
        """Kill a process and start its successor."""
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
    """Each of these processes holds partitions at some time, and hands over at others."""
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
        if chance.random() < 0.3:  # it only stands still for a moment, and its partitions with it
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
