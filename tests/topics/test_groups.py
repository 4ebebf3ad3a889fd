"""Committed offsets, and looking at and moving groups from outside."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sawlog.errors import GroupActive, GroupNotFound, InvalidConfig, LogClosed, ReadOnlyLog, TopicNotFound
from sawlog.storage import MemoryDirectory
from sawlog.store.directory import offsets as module
from sawlog.store.directory.offsets import OffsetStore
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.groups import Committed
from sawlog.testing import Fault, FaultyDirectory

from ..faults.seeds import repeat, seed_of_this_run, shuffled, some_of
from ..looping import for_each
from ..processes.launch import run


@pytest.fixture
def store(medium: str, tmp_path: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore.open(tmp_path if medium == "files" else MemoryDirectory()) as made:
        topic = made.create_topic("orders", partitions=2)
        topic.partition(0).append_many([b"x"] * 10)
        topic.partition(1).append_many([b"x"] * 5)
        yield made


def rows(store: DirectoryStore, name: str = "billing") -> dict[int, tuple[int | None, int]]:
    """Committed offset and lag of each partition of `orders`."""
    return {row.partition: (row.committed, row.lag) for row in store.groups.describe(name).rows}


# --- looking


def test_a_store_without_consumers_has_no_groups(store: DirectoryStore) -> None:
    assert store.groups.list() == []
    with pytest.raises(GroupNotFound, match="billing"):
        store.groups.describe("billing")


def test_a_group_is_listed_from_its_first_member_on(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"], auto_commit_ms=None), store.consumer("accounts", ["orders"]):
        assert store.groups.list() == ["accounts", "billing"]
    assert store.groups.list() == ["accounts"], "the other one has committed nothing"


def test_describing_a_group_tells_members_owners_and_lag(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"], member="worker 7", auto_commit_ms=None) as consumer:
        consumer.commit({("orders", 0): 4})
        found = store.groups.describe("billing")
        (member,) = found.members
        assert (member.name, member.topics) == ("worker 7", ("orders",))
        assert [(row.partition, row.committed, row.lowest, row.end, row.lag) for row in found.rows] == [
            (0, 4, 0, 10, 6),
            (1, None, 0, 5, 5),
        ]
        assert {row.owner for row in found.rows} == {member.id}
    found = store.groups.describe("billing")
    assert found.members == ()
    assert {row.owner for row in found.rows} == {None}


def test_lag_counts_only_what_is_still_there(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 2})
    store.topic("orders").partition(0).trim(7)
    assert rows(store)[0] == (2, 3)


def test_a_reader_of_the_store_sees_groups_and_touches_nothing(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders").partition(0).append(b"x")
        with store.consumer("billing", ["orders"], member="seen"), DirectoryStore.open(tmp_path, mode="r") as reader:
            (member,) = reader.groups.describe("billing").members
            assert member.name == "seen"
        before = sorted(str(path) for path in tmp_path.rglob("*"))
        with DirectoryStore.open(tmp_path, mode="r") as reader:
            store.groups.commit("billing", {("orders", 0): 1})
            assert rows(reader) == {0: (1, 0)}
            assert reader.groups.list() == ["billing"]
            for change in (
                lambda: reader.groups.commit("billing", {("orders", 0): 0}),
                lambda: reader.groups.seek("billing", {("orders", 0): 0}),
                lambda: reader.groups.delete("billing"),
            ):
                with pytest.raises(ReadOnlyLog):
                    change()
        assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_reader_of_a_store_without_groups_finds_none(tmp_path: Path) -> None:
    DirectoryStore.open(tmp_path).close()
    with DirectoryStore.open(tmp_path, mode="r") as reader:
        assert reader.groups.list() == []
        with pytest.raises(GroupNotFound):
            reader.groups.describe("billing")


def test_two_stores_see_each_others_commits(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path) as one, DirectoryStore.open(tmp_path) as two:
        one.create_topic("orders").partition(0).append_many([b"x"] * 10)
        for offset in range(1, 6):
            (one, two)[offset % 2].groups.commit("billing", {("orders", 0): offset})
            assert rows(one) == rows(two) == {0: (offset, 10 - offset)}


# --- moving


def test_offsets_can_be_committed_without_being_a_member(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 3, ("orders", 1): 5})
    assert rows(store) == {0: (3, 7), 1: (5, 0)}
    with store.consumer("billing", ["orders"]) as consumer:
        assert [record.offset for record in consumer.drain()] == [3, 4, 5, 6, 7, 8, 9]


def test_offsets_that_a_live_member_owns_are_not_committed_from_outside(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]):
        with pytest.raises(GroupActive, match="partition 1"):
            store.groups.commit("billing", {("orders", 1): 3})
        store.groups.commit("accounts", {("orders", 1): 3})
    store.groups.commit("billing", {("orders", 1): 3})
    assert rows(store)[1] == (3, 2)


def test_a_partial_refusal_writes_nothing(store: DirectoryStore) -> None:
    store.create_topic("totals")
    with store.consumer("billing", ["orders"]):
        with pytest.raises(GroupActive):
            store.groups.commit("billing", {("totals", 0): 3, ("orders", 1): 3})
        assert [row.committed for row in store.groups.describe("billing").rows] == [None, None]
        store.groups.commit("billing", {("totals", 0): 3})


def test_a_group_without_members_can_be_moved(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 3, ("orders", 1): 3})
    moved = store.groups.seek("billing", {("orders", 0): "earliest", ("orders", 1): "latest"})
    assert moved == {("orders", 0): 0, ("orders", 1): 5}
    assert rows(store) == {0: (0, 10), 1: (5, 0)}
    assert store.groups.seek("billing", {("orders", 0): 7}) == {("orders", 0): 7}
    assert rows(store)[0] == (7, 3)


def test_a_group_can_be_moved_to_a_time(store: DirectoryStore) -> None:
    log = store.topic("orders").partition(0)
    noon = datetime(2036, 11, 1, 12, tzinfo=UTC)
    log.append(b"later", timestamp=noon)
    store.groups.commit("billing", {("orders", 0): 0})
    assert store.groups.seek("billing", {("orders", 0): noon}) == {("orders", 0): 10}


def test_a_group_with_members_is_neither_moved_nor_deleted(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"], member="worker 7"):
        with pytest.raises(GroupActive, match="worker 7"):
            store.groups.seek("billing", {("orders", 0): 1})
        with pytest.raises(GroupActive, match="worker 7"):
            store.groups.delete("billing")


def test_a_group_that_is_not_there_is_neither_moved_nor_deleted(store: DirectoryStore) -> None:
    with pytest.raises(GroupNotFound):
        store.groups.seek("billing", {("orders", 0): 1})
    with pytest.raises(GroupNotFound):
        store.groups.delete("billing")
    assert store.groups.list() == []


def test_a_deleted_group_starts_over(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"]) as consumer:
        assert len(list(consumer.drain())) == 15
    store.groups.delete("billing")
    assert store.groups.list() == []
    assert store._directory.child("members").children() == []
    with store.consumer("billing", ["orders"]) as consumer:
        assert len(list(consumer.drain())) == 15


@for_each(
    ("positions", "error"),
    [
        ({("nothing", 0): 1}, TopicNotFound),
        ({("orders", 2): 1}, TopicNotFound),
        ({("orders", 0): -1}, InvalidConfig),
        ({("orders", 0): True}, InvalidConfig),
        ({("orders", 0): None}, InvalidConfig),
    ],
)
def test_what_cannot_be_committed_is_refused(store: DirectoryStore, positions: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.groups.commit("billing", positions)
    with pytest.raises(error):
        store.groups.seek("billing", positions)
    assert store.groups.list() == []


def test_offsets_of_a_deleted_topic_do_not_count_for_a_new_one(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 3})
    store.delete_topic("orders")
    assert store.groups.describe("billing").rows == ()
    store.create_topic("orders").partition(0).append(b"x")
    assert rows(store) == {0: (None, 1)}


# --- how they are stored


def test_metadata_and_time_are_kept(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 3}, metadata="batch 17")
    found = store.groups._offsets.of("billing")["orders", 0]
    assert (found.offset, found.metadata, found.member) == (3, "batch 17", "")
    assert found.time_ms > 0


def test_closed_groups_say_so(store: DirectoryStore) -> None:
    groups = store.groups
    groups.commit("billing", {("orders", 0): 3})
    store.close()
    with pytest.raises(LogClosed):
        groups._offsets.of("billing")


def test_a_record_that_is_no_offset_is_reported_and_skipped(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with store.groups._offsets.turn() as turn:
        turn._log.append(b"value", key=b"no json")
    store.groups.commit("billing", {("orders", 0): 3})
    assert rows(store)[0] == (3, 7)
    assert "no json" in caplog.text


def test_damage_costs_a_group_a_repetition_and_stops_no_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DirectoryStore.open(tmp_path) as store:
        store.create_topic("orders", partitions=3).partition(0).append_many([b"x"] * 10)
        sizes = []
        for partition, offset in ((0, 1), (1, 1), (0, 2), (2, 1)):
            store.groups.commit("billing", {("orders", partition): offset})
            with store.groups._offsets.turn() as turn:
                sizes.append(turn._log.size_bytes)
        with store.groups._offsets.turn() as turn:
            turn._log.seal()
    name = tmp_path / "groups" / f"{0:020d}.log"
    data = bytearray(name.read_bytes())
    data[sizes[2] - 1] ^= 1  # in the third commit
    name.write_bytes(data)
    with DirectoryStore.open(tmp_path) as store:
        assert {n: committed for n, (committed, _) in rows(store).items()} == {0: 1, 1: 1, 2: 1}
        assert "fall back to an earlier offset" in caplog.text
        with store.consumer("billing", ["orders"]) as consumer:
            assert [record.offset for record in consumer.drain()] == list(range(1, 10))
        assert rows(store)[0] == (10, 0)


def test_records_of_another_kind_are_left_alone(store: DirectoryStore) -> None:
    with store.groups._offsets.turn() as turn:
        turn._log.append(b"{}", key=b'["member", "billing", "orders", 0]')
    assert store.groups._offsets.of("billing") == {}


@pytest.mark.alternating
def test_many_commits_take_little_room(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is compacted as it grows, and keeps the last offset of every group."""
    monkeypatch.setattr(module, "_CONFIG", module._CONFIG.with_(segment_bytes=4096))
    one, two = (OffsetStore(store._directory, writable=True) for _ in range(2))
    for number in range(600):
        with (one, two)[number // 3 % 2].turn() as turn:
            turn.write(f"group {number % 5}", {("orders", 0): Committed(number, "id", "", 0, "")})
            size = turn._log.size_bytes
            count = len(turn._log.segments)
        if number % 40 == 0:  # one reads occasionally, across compacted records
            assert one.of(f"group {number % 5}")["orders", 0].offset == number
    assert size < 10 * 4096
    assert count <= 10
    for reader in (one, two, OffsetStore(store._directory, writable=False)):
        assert {reader.of(f"group {n}")["orders", 0].offset for n in range(5)} == set(range(595, 600))
        reader.close()


def test_a_commit_that_is_durable_does_not_fail_because_compaction_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CONFIG", module._CONFIG.with_(segment_bytes=1024))
    watched = FaultyDirectory(MemoryDirectory())
    offsets = OffsetStore(watched, writable=True)
    watched.arm(Fault(operations={"create"}, names="*.tmp*", forever=True))
    for number in range(60):
        with offsets.turn() as turn:
            turn.write("billing", {("orders", 0): Committed(number, "id", "", 0, "")})
        assert offsets.of("billing")["orders", 0].offset == number
    assert "could not be compacted" in caplog.text
    offsets.close()


def test_a_stale_list_of_groups_is_read_again(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion may have been compacted away before this process came to see it."""
    store.groups.commit("billing", {("orders", 0): 3})
    reader = store.groups._offsets
    reader.of("billing")
    reader._groups["gone"] = {("orders", 0): Committed(1, "id", "", 0, "")}
    assert reader.groups() == ["billing", "gone"]
    monkeypatch.setattr(module, "_STALE_S", 0.0)
    assert reader.groups() == ["billing"]


# --- crashes


def committed_with(fault: Fault | None) -> tuple[int, bool]:
    """Commit while a call fails. Returns how many calls there were, and whether the commit was acknowledged."""
    inner = MemoryDirectory()
    with DirectoryStore.open(inner, maintenance_interval_s=None) as store:
        store.create_topic("orders", partitions=2)
        store.groups.commit("billing", {("orders", 0): 1, ("orders", 1): 1})
    watched = FaultyDirectory(inner)
    failing = DirectoryStore.open(watched, maintenance_interval_s=None)
    failing.topic("orders")
    watched.calls.clear()
    if fault is not None:
        watched.arm(fault)
    acknowledged = True
    try:
        failing.groups.commit("billing", {("orders", 0): 2, ("orders", 1): 2})
    except OSError:
        acknowledged = False
    calls = len(watched.calls)
    watched.disarm()
    with DirectoryStore.open(inner, maintenance_interval_s=None) as store:
        found = {row.committed for row in store.groups.describe("billing").rows}
        assert found == {2} if acknowledged else found in ({1}, {2}), f"{fault}: {found}; {repeat()}"
        store.groups.commit("billing", {("orders", 0): 3, ("orders", 1): 3})
        assert {row.committed for row in store.groups.describe("billing").rows} == {3}
    failing.close()
    return calls, acknowledged


# The quick form takes some of the calls and one effect; the seed chooses.
@pytest.mark.usefixtures("no_background")
@pytest.mark.parametrize("count", [pytest.param(8, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_a_commit_is_there_as_a_whole_or_not_at_all_whatever_fails(count: int | None) -> None:
    effects: list[Any] = ["nothing", "part", "all"]
    calls, acknowledged = committed_with(None)
    assert acknowledged
    for effect in effects if count is None else shuffled(effects, "effect on a commit")[:1]:
        numbers = some_of(range(1, calls + 1), count, "calls of a commit")
        failures = [number for number in numbers if not committed_with(Fault(number, effect=effect))[1]]
        assert len(failures) > (10 if count is None else 0)


@pytest.mark.alternating
@pytest.mark.costly  # an interpreter that forks for every death
@pytest.mark.parametrize("step", [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_process_may_be_killed_at_any_call_of_joining_and_committing(tmp_path: Path, step: int) -> None:
    with DirectoryStore.open(tmp_path) as store:
        for partition in (0, 1):
            topic = store.create_topic("orders", partitions=2, exist_ok=True)
            topic.partition(partition).append_many([b"x"] * 1000)
    first = 1 + seed_of_this_run() % step
    assert run("consuming", "die-in-commits", tmp_path, first, step).endswith("good\n"), repeat()


def test_documents_beside_a_group_are_found_by_name_and_go_with_it(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 1})
    with store.groups._documents("billing") as documents:
        assert documents.find("start") is None
        documents.keep("start", {"orders": {"0": 7}})
    with store.groups._documents("billing") as documents:
        assert documents.find("start") == {"orders": {"0": 7}}
        documents.keep("other", {"a": 1})
        documents.remove("start")
        documents.remove("start")
        documents.sync()
        assert documents.find("start") is None
    store.groups.delete("billing")
    with store.groups._documents("billing") as documents:
        assert documents.find("other") is None
