"""Leader epochs of deleted topics are remembered: a recreated topic begins in a later one."""

from __future__ import annotations

from errno import ENOSPC

import pytest

from sawlog.storage import MemoryDirectory
from sawlog.store.directory import topic_entry
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing.faulty import Fault, FaultyDirectory

from .stores import StorePlace


def epochs(place: StorePlace, name: str = "orders") -> list[int]:
    """The leader epochs of a topic's partitions, read by another store and without a lock."""
    with place.open("r") as store:
        topic = store.topic(name)
        return [topic.partition(number).leader_epoch for number in range(topic.partitions)]


def test_a_recreated_topic_begins_in_a_later_epoch_each_time(place: StorePlace) -> None:
    store = place.open()
    for expected in range(4):
        topic = store.create_topic("orders", 2)
        assert epochs(place) == [expected, expected]
        topic.partition(0).append_many([b"x"])
        assert topic.partition(0)._leader_epochs == ((expected, 0),)
        store.delete_topic("orders")
    assert store.create_topic("clicks").partition(0).leader_epoch == 0


def test_it_is_later_than_those_that_the_deleted_topic_came_to(place: StorePlace) -> None:
    store = place.open()
    topic = store.create_topic("orders", 2)
    topic.partition(1).append_many([b"a", b"b", b"c"])
    for _ in range(3):
        topic.partition(1).append_many([b"d"])
        topic.partition(1).truncate(3)
    last = topic.partition(1).leader_epoch
    assert last > 1
    store.delete_topic("orders")
    store.close()
    store = place.open()
    store.create_topic("orders")
    store.alter_topic("orders", partitions=3)
    assert epochs(place) == [last + 1] * 3
    log = store.topic("orders").partition(2)
    log.append_many([b"x"])
    store.close()
    with place.open() as store, store.topic("orders").partition(2)._hold():
        assert store.topic("orders").partition(2)._leader_epochs == ((last + 1, 0),)
        assert store.topic("orders").partition(2).epoch_end(last) == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 40])
def test_a_damaged_note_does_not_prevent_creating_and_deleting(place: StorePlace, content: bytes) -> None:
    store = place.open()
    store.create_topic("orders")
    store.delete_topic("orders")
    place.raw().replace("deleted.json", content)
    store.create_topic("orders")
    assert epochs(place) == [0]
    store.delete_topic("orders")
    store.create_topic("orders")
    assert epochs(place) == [1]


def test_a_topic_can_be_deleted_from_a_full_disk() -> None:
    directory = FaultyDirectory(MemoryDirectory())
    with DirectoryStore.open(directory, maintenance_interval_s=None) as store:
        store.create_topic("orders")
        directory.arm(Fault(operations={"replace"}, errno=ENOSPC, names="deleted.json", forever=True))
        store.delete_topic("orders")
        assert store.topics() == []


def test_the_last_names_are_kept(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_entry, "_MOST", 3)
    root = place.raw()
    for name in ("a", "b", "c", "a", "d"):
        topic_entry.remember(root, name, 0)
    topic_entry.remember(root, "a", 4)
    assert [topic_entry.first_epoch(root, name) for name in "abcd"] == [5, 0, 1, 1]
