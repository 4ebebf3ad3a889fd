"""Replacing a topic is atomic and loses nothing, also beside readers and writers."""

from __future__ import annotations

import pytest

from sawlog.errors import DirectoryLocked, InvalidConfig, OffsetMismatch, SyncFailed, TopicNotFound
from sawlog.storage import MemoryDirectory, checksummed
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Fault

from ..faults.disk import FaultyStorage
from .stores import FilePlace, StorePlace, copied, values


def laid_out(store: DirectoryStore) -> None:
    """`orders` with two partitions and three records; `next` with one partition and one."""
    orders = store.create_topic("orders", partitions=2)
    orders.append_many([b"a", b"b"], partition=0)
    orders.append(b"c", partition=1)
    store.create_topic("next", segment_bytes=5000).append(b"new")


def test_the_new_topic_has_the_name_and_the_old_one_is_gone(place: StorePlace) -> None:
    store = place.open()
    laid_out(store)
    new = store["next"].id
    replaced = store.replace_topic("orders", "next")
    assert store.topics() == ["orders"]
    assert (replaced.id, replaced.partitions, replaced.settings) == (new, 1, {"segment.bytes": 5000})
    assert values(store["orders"].scan()) == [b"new"]
    assert place.raw().child("topics").children() == ["orders"]


def test_the_replaced_topic_can_be_written_to_at_once(place: StorePlace) -> None:
    store = place.open()
    laid_out(store)
    store.replace_topic("orders", "next").append(b"more")
    store.close()
    assert values(place.open()["orders"].scan()) == [b"new", b"more"]


def test_a_client_of_the_old_topic_gets_an_error_and_refreshes(place: StorePlace) -> None:
    store, other = place.open(), place.open()
    laid_out(store)
    old, elsewhere = store["orders"], other["orders"]
    assert len(elsewhere.partition(0)) == 2
    store.replace_topic("orders", "next")
    for topic in (old, elsewhere):
        with pytest.raises(TopicNotFound, match="ask the store for it again"):
            topic.append(b"lost", partition=0)
    assert values(other["orders"].scan()) == [b"new"]


def test_an_old_topic_does_not_open_partitions_of_the_new_one(place: StorePlace) -> None:
    store, other = place.open(), place.open("w")
    laid_out(store)
    elsewhere = other["orders"]
    store.replace_topic("orders", "next")
    with pytest.raises(TopicNotFound, match="recreated"):
        elsewhere.partition(0)


@pytest.mark.parametrize("held", ["orders", "next"])
def test_nothing_is_replaced_under_a_writer(place: StorePlace, held: str) -> None:
    store, other = place.open(), place.open()
    laid_out(store)
    store.close()
    again = place.open(lock_timeout=0.1)
    with other[held].partition(0)._hold(), pytest.raises(DirectoryLocked):
        again.replace_topic("orders", "next")
    assert again.topics() == ["next", "orders"]


@pytest.mark.parametrize("known", ["orders", "next"])
def test_who_knows_a_topic_from_before_does_not_write_to_it_once_it_is_replaced(place: StorePlace, known: str) -> None:
    store, other = place.open(), place.open()
    laid_out(store)
    topic = other[known]
    topic.append(b"mine", partition=0)
    store.replace_topic("orders", "next")
    with pytest.raises(TopicNotFound):
        topic.append(b"lost", partition=0)
    assert b"lost" not in values(store["orders"].scan())


def test_records_that_came_since_are_not_lost(place: StorePlace) -> None:
    store = place.open()
    laid_out(store)
    with pytest.raises(OffsetMismatch):
        store.replace_topic("orders", "next", ends={0: 2, 1: 0})
    assert store.topics() == ["next", "orders"]
    store.replace_topic("orders", "next", ends={0: 2, 1: 1})
    assert store.topics() == ["orders"]


def test_committed_offsets_of_the_old_topic_do_not_count(place: StorePlace) -> None:
    store = place.open()
    laid_out(store)
    store.groups.commit("billing", {("orders", 0): 2})
    store.replace_topic("orders", "next")
    [row] = store.groups.describe("billing").rows
    assert row.committed is None


def test_a_topic_does_not_replace_itself(place: StorePlace) -> None:
    store = place.open()
    laid_out(store)
    with pytest.raises(InvalidConfig):
        store.replace_topic("orders", "orders")


# --- a process died in between


def left_by_a_death(*, renamed_away: bool) -> MemoryDirectory:
    """The new topic has the old one's name in its topic.json, and not on disk."""
    directory = MemoryDirectory()
    with DirectoryStore.open(directory, maintenance_interval_s=None) as store:
        laid_out(store)
        old, new = store["orders"].id, store["next"].id
    topics = directory.child("topics")
    topics.rename("next", f"{new}.swap")
    moved = topics.child(f"{new}.swap")
    checksummed.store(moved, "topic.json", {**checksummed.load(moved, "topic.json"), "name": "orders"})
    if renamed_away:
        topics.rename("orders", f"{old}.deleted")
    return copied(directory)


def test_its_new_name_is_durable_before_its_directory_has_it() -> None:
    """The fsync of its topic.json fails. What can be seen says that it has the new name, so it gets it; then a power
    cut must not bring back a topic.json with the other name."""
    disk = FaultyStorage(1)
    store = DirectoryStore.open(disk, maintenance_interval_s=None)
    laid_out(store)
    disk.arm(Fault(operations={"replace"}, names="*topic.json", effect="all"))
    with pytest.raises(SyncFailed):
        store.replace_topic("orders", "next")
    assert disk.failed
    assert store.topics() == ["orders"], "it was finished all the same"
    with DirectoryStore.open(disk.crash("lose"), maintenance_interval_s=None) as found:
        assert found.topics() == ["orders"]
        assert values(found["orders"].scan()) == [b"new"]


@pytest.mark.parametrize("renamed_away", [False, True])
def test_opening_brings_it_to_its_end(renamed_away: bool) -> None:
    with DirectoryStore.open(left_by_a_death(renamed_away=renamed_away), maintenance_interval_s=None) as store:
        assert store._directory.child("topics").children() == ["orders"]
        assert values(store["orders"].scan()) == [b"new"]


def test_a_reader_finds_the_new_topic_between_two_names() -> None:
    with DirectoryStore.open(left_by_a_death(renamed_away=True), "r") as store:
        assert store.topics() == ["orders"]
        assert values(store["orders"].scan()) == [b"new"]


def test_no_process_writes_to_a_replaced_topic() -> None:
    directory = left_by_a_death(renamed_away=False)
    topics = directory.child("topics")
    [state] = [name for name in topics.children() if name.endswith(".swap")]
    topics.rename(state, "hidden")  # so that opening does not bring it to its end
    hidden = topics.child("hidden")
    fields = checksummed.load(hidden, "topic.json")
    checksummed.store(hidden, "topic.json", {**fields, "name": "hidden"})
    with DirectoryStore.open(directory, maintenance_interval_s=None) as store:
        old = store["orders"]
        assert len(old.partition(0)) == 2
        checksummed.store(hidden, "topic.json", fields)
        topics.rename("hidden", state)
        with pytest.raises(TopicNotFound, match="recreated"):
            old.append(b"lost", partition=0)
        assert values(store["orders"].scan()) == [b"new"]


def test_other_changes_come_after_it() -> None:
    directory = left_by_a_death(renamed_away=True)
    with DirectoryStore.open(directory, "r") as reader:
        assert reader.topics() == ["orders"]
    with DirectoryStore.open(directory, maintenance_interval_s=None) as store:
        store.delete_topic("orders")
        assert store.topics() == []
        assert store._directory.child("topics").children() == []


def test_a_reader_in_files_keeps_what_it_has_open(file_place: FilePlace) -> None:
    store, reader = file_place.open(), file_place.open("r")
    laid_out(store)
    log = reader["orders"].partition(0)
    assert len(log) == 2
    store.replace_topic("orders", "next")
    assert values(log.scan()) == [b"a", b"b"]
    assert values(reader["orders"].scan()) == [b"new"]
