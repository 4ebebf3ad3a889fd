"""A group has members over the network or consumers that open the store themselves, never both."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sawlog import clock as clock_module
from sawlog.errors import GroupActive, ReadOnlyLog
from sawlog.store.directory import members as members_module
from sawlog.store.directory.membership import DirectoryClaim
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.groups import Committed, OffsetChange

from ..processes.launch import finish, ready, start
from .stores import StorePlace

ADDRESS = "127.0.0.1:9092"
PLACES = {("orders", 0): 4, ("orders", 1): 2}


@pytest.fixture
def store(place: StorePlace) -> DirectoryStore:
    made = place.open()
    topic = made.create_topic("orders", partitions=2)
    topic.partition(0).append_many([b"x"] * 10)
    topic.partition(1).append_many([b"x"] * 5)
    return made


def serve(store: DirectoryStore, group: str = "billing", address: str = ADDRESS) -> DirectoryClaim:
    claim = store.groups._claim(group, address)
    claim.take()
    return claim


def committed(store: DirectoryStore, offset: int, member: str = "m") -> Committed:
    return Committed.by_member(member, store.topic("orders").id, offset, 0)


# --- who may join


def test_a_consumer_is_refused_while_a_broker_serves_the_group_with_its_address(store: DirectoryStore) -> None:
    served = serve(store)
    with pytest.raises(GroupActive, match=f"connect to {ADDRESS}"):
        store.consumer("billing", ["orders"])
    store.consumer("accounts", ["orders"]).close()
    served.release()
    store.consumer("billing", ["orders"]).close()


def test_a_broker_is_refused_while_a_consumer_is_in_the_group(store: DirectoryStore) -> None:
    with (
        store.consumer("billing", ["orders"], member="worker 7"),
        pytest.raises(GroupActive, match=r"opened the store themselves \(worker 7\)"),
    ):
        serve(store)
    serve(store).release()


def test_a_second_broker_is_refused(store: DirectoryStore) -> None:
    served = serve(store)
    with pytest.raises(GroupActive, match=ADDRESS):
        serve(store, address="127.0.0.1:9093")
    assert served.current
    served.release()
    served.release()
    serve(store, address="127.0.0.1:9093").release()


def test_nothing_is_left_of_a_broker_that_released_its_group(store: DirectoryStore) -> None:
    before = store.groups.list()
    serve(store).release()
    assert store.groups.list() == before == []
    assert store.groups._served_at("billing") is None


def test_a_store_that_is_only_read_serves_no_group(place: StorePlace) -> None:
    place.open().create_topic("orders")
    with pytest.raises(ReadOnlyLog):
        serve(place.open("r"))


# --- who may move it


def test_a_served_group_is_not_moved_committed_or_deleted_by_others(store: DirectoryStore) -> None:
    store.groups.commit("billing", PLACES)
    served = serve(store)
    for change in (
        lambda: store.groups.commit("billing", {("orders", 0): 1}),
        lambda: store.groups.seek("billing", {("orders", 0): 1}),
        lambda: store.groups.delete("billing"),
    ):
        with pytest.raises(GroupActive, match=f"connect to {ADDRESS}"):
            change()
    assert {partition: each.offset for partition, each in store.groups._offsets.of("billing").items()} == PLACES
    served.release()
    store.groups.seek("billing", {("orders", 0): 1})
    store.groups.delete("billing")


def test_a_served_group_is_listed_and_described_with_its_broker(place: StorePlace, store: DirectoryStore) -> None:
    served = serve(store)
    for seen in (store, place.open("r")):
        assert seen.groups.list() == ["billing"]
        assert seen.groups.describe("billing").served_at == ADDRESS
    served.release()
    store.groups.commit("billing", PLACES)
    assert store.groups.describe("billing").served_at is None


# --- commits of several groups


def test_commits_of_several_groups_are_one_batch(store: DirectoryStore) -> None:
    store.groups.commit("billing", {("orders", 0): 1})
    with store.groups._offsets.turn() as turn:
        batches = turn._log.verify().batches
    changes = [OffsetChange(f"group {n}", {("orders", 0): committed(store, n)}, by_server=True) for n in range(5)]
    assert store.groups._commit_together(changes) == [None] * 5
    assert [store.groups._offsets.of(f"group {n}")["orders", 0].offset for n in range(5)] == list(range(5))
    with store.groups._offsets.turn() as turn:
        assert turn._log.verify().batches == batches + 1


def test_a_refused_change_does_not_hold_up_the_others(store: DirectoryStore) -> None:
    with store.consumer("billing", ["orders"], auto_commit_ms=None):
        refused, accepted = store.groups._commit_together(
            [OffsetChange(name, {("orders", 0): committed(store, 3)}) for name in ("billing", "accounts")]
        )
    assert isinstance(refused, GroupActive)
    assert accepted is None
    assert store.groups._offsets.of("billing") == {}
    assert store.groups._offsets.of("accounts")["orders", 0].offset == 3


def test_the_later_of_two_commits_counts(store: DirectoryStore) -> None:
    changes = [OffsetChange("billing", {("orders", 0): committed(store, offset)}, by_server=True) for offset in (3, 4)]
    store.groups._commit_together(changes)
    assert store.groups._offsets.of("billing")["orders", 0].offset == 4


def test_a_transaction_is_applied_once_also_by_another_process(place: StorePlace, store: DirectoryStore) -> None:
    def apply(opened: DirectoryStore, offset: int, mark: str) -> None:
        change = OffsetChange("billing", {("orders", 0): committed(opened, offset)}, True, ("payments", mark))
        assert opened.groups._commit_together([change]) == [None]

    apply(store, 3, "first")
    store.groups.commit("billing", {("orders", 0): 7})
    other = place.open()
    apply(other, 3, "first")
    assert other.groups._offsets.of("billing")["orders", 0].offset == 7
    apply(other, 8, "second")
    assert store.groups._offsets.of("billing")["orders", 0].offset == 8
    assert store.groups._offsets.mark("payments") == "second"


def test_what_a_client_said_about_the_epoch_is_kept_beside_the_one_it_read_in(
    place: StorePlace, store: DirectoryStore
) -> None:
    said = Committed(3, store.topic("orders").id, "", 0, "m", leader_epoch=2, told_epoch=-1)
    store.groups._commit_together([OffsetChange("billing", {("orders", 0): said}, by_server=True)])
    assert place.open().groups._offsets.of("billing")["orders", 0] == said


# --- members that hang


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


def test_a_silent_member_is_fenced_and_a_live_one_keeps_the_broker_out(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(clock_module, "time", clock)
    directory = members_module.group_directory(store._directory, "billing", create=True)
    group = members_module.Members(directory)
    silent, live = group.join("silent", ["orders"], 2000), group.join("live", ["orders"], 2000)
    claim = store.groups._claim("billing", ADDRESS)
    with pytest.raises(GroupActive, match="live, silent"):
        claim.take()
    assert claim.may_succeed
    for _ in range(10):
        clock.now += 0.25
        live.beat()
        with pytest.raises(GroupActive):
            claim.take()
        assert not claim.may_succeed
    with pytest.raises(GroupActive, match=r"themselves \(live\)"):
        claim.take()
    assert not silent.current
    live.leave()
    claim.take()
    claim.release()
    silent.leave()
    directory.close()


# --- other processes


def test_the_broker_may_be_another_process(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "store", maintenance_interval_s=None) as store:
        store.create_topic("orders")
        broker = ready(start("serving", "serve", tmp_path / "store", "billing", ADDRESS))
        with pytest.raises(GroupActive, match=f"connect to {ADDRESS}"):
            store.consumer("billing", ["orders"])
        finish(broker)
        store.consumer("billing", ["orders"]).close()


def test_a_killed_broker_does_not_block_the_next_one(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "store", maintenance_interval_s=None) as store:
        store.create_topic("orders")
        broker = ready(start("serving", "serve", tmp_path / "store", "billing", ADDRESS))
        assert store.groups.describe("billing").served_at == ADDRESS
        broker.kill()
        broker.communicate()
        with store.consumer("billing", ["orders"]), pytest.raises(GroupActive):
            serve(store)
        serve(store).release()


def test_those_who_look_do_not_disturb_those_who_take(tmp_path: Path) -> None:
    """Looking at a group takes the lock for a moment, to see whether its broker is dead."""
    done = threading.Event()
    with (
        DirectoryStore.open(tmp_path, maintenance_interval_s=None) as store,
        DirectoryStore.open(tmp_path, maintenance_interval_s=None) as other,
    ):
        store.create_topic("orders")
        looking = threading.Thread(target=lambda: [other.groups.list() for _ in iter(done.is_set, True)])
        looking.start()
        try:
            for _ in range(40):
                served = serve(store)
                assert served.current
                # The state after kill -9: the file exists, the lock is free.
                assert served._held is not None
                served._held.release()
            serve(store).release()
        finally:
            done.set()
            looking.join()
