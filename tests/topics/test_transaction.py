"""Transactions: all or nothing, seen when committed, stored once however often they are tried."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from sawlog.errors import (
    CorruptFile,
    DirectoryLocked,
    InvalidConfig,
    InvalidRecord,
    LogClosed,
    LogFailed,
    RecordTooLarge,
    StorageFull,
    TopicNotFound,
    TransactionAborted,
    TransactionError,
    TransactionPending,
)
from sawlog.storage import MemoryDirectory
from sawlog.store.base import Transaction
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions.placement import Placement
from sawlog.store.directory.transactions.staging_directory import StagedTransaction
from sawlog.store.directory.transactions.transaction import INLINE_BYTES, SPILL_BYTES
from sawlog.store.partitioner import partition_for
from sawlog.testing.faulty import Fault, FaultyDirectory

from ..looping import for_each
from .stores import StorePlace, copied, values


@pytest.fixture
def store(place: StorePlace) -> DirectoryStore:
    """One with two topics."""
    made = place.open()
    made.create_topic("orders", partitions=3)
    made.create_topic("stock")
    return made


def staged(store: DirectoryStore) -> list[str]:
    """The files in staging/ that are not there to stay."""
    if "staging" not in store._directory.children():
        return []
    return [name for name in store._directory.child("staging").names() if not name.startswith("=")]


def contents(store: DirectoryStore) -> dict[str, list[bytes | None]]:
    """The values of all topics."""
    return {topic.name: values(topic.scan()) for topic in store}


EMPTY: dict[str, list[bytes | None]] = {"orders": [], "stock": []}


# --- committing


def test_no_part_is_visible_before_all_are_placed(
    place: StorePlace, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, placed, visible = place.open("r"), Placement.place, []

    def place_and_look(*arguments: Any) -> None:
        placed(*arguments)
        visible.append(contents(reader))

    monkeypatch.setattr(Placement, "place", place_and_look)
    with store.transaction() as tx:
        tx.append("orders", b"o", partition=0)
        tx.append("stock", b"s")
    assert visible == [EMPTY, EMPTY]
    assert contents(reader) == {"orders": [b"o"], "stock": [b"s"]}


def test_what_was_collected_is_stored_at_the_end_of_the_block(store: DirectoryStore) -> None:
    with store.transaction() as tx:
        for number in range(10):
            tx.append("orders", b"o%d" % number, key=b"%d" % number)
        tx.append("stock", b"s")
        assert contents(store) == EMPTY
    offsets = tx.commit()
    assert sum(map(len, offsets.values())) == 11
    assert offsets["stock", 0] == range(1)
    for record in store["orders"].scan():
        assert record.value == b"o" + (record.key or b"")
        assert record.partition == partition_for(record.key or b"", 3)
    assert len(contents(store)["orders"]) == 10
    assert staged(store) == []


def test_all_of_a_record_is_kept_and_the_order_within_a_partition(store: DirectoryStore) -> None:
    when = datetime(2026, 11, 1, tzinfo=UTC)
    with store.transaction() as tx:
        tx.append("stock", b"1", b"k", [("h", b"x")], when)
        tx.append_many("stock", [b"2", (b"3", b"k")])
        tx.append(store["stock"], b"4", partition=0)
        tx.append_many(store["orders"], [b"5", b"6"], partition=2)
    first = next(store["stock"].scan())
    assert (first.key, first.headers, first.timestamp) == (b"k", (("h", b"x"),), 1793491200000)
    assert contents(store) == {"stock": [b"1", b"2", b"3", b"4"], "orders": [b"5", b"6"]}
    assert values(store["orders"].partition(2).scan()) == [b"5", b"6"]


def test_offsets_go_on_behind_what_is_there(store: DirectoryStore) -> None:
    store["stock"].append_many([b"a", b"b"])
    tx = store.transaction()
    tx.append("stock", b"c")
    store["stock"].append(b"between")
    assert tx.commit() == {("stock", 0): range(3, 4)}
    assert tx.commit() == {("stock", 0): range(3, 4)}
    assert contents(store)["stock"] == [b"a", b"b", b"between", b"c"]


def test_an_exception_stores_nothing(store: DirectoryStore) -> None:
    def fail() -> None:
        with store.transaction() as tx:
            tx.append("orders", b"x" * (2 * SPILL_BYTES))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert contents(store) == EMPTY
    assert staged(store) == []


def test_an_empty_transaction_does_nothing(store: DirectoryStore) -> None:
    with store.transaction() as tx:
        pass
    assert tx.commit() == {}
    assert staged(store) == []


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_after_its_end_nothing_is_taken(store: DirectoryStore, end: str) -> None:
    tx = store.transaction()
    tx.append("stock", b"v")
    getattr(tx, end)()
    with pytest.raises(LogClosed):
        tx.append("stock", b"late")
    with pytest.raises(LogClosed):
        tx.append_many("stock", [b"late"])
    tx.abort()
    assert contents(store)["stock"] == ([b"v"] if end == "commit" else [])


def test_an_aborted_transaction_cannot_be_committed(store: DirectoryStore) -> None:
    tx = store.transaction()
    tx.append("stock", b"v")
    tx.abort()
    with pytest.raises(LogClosed, match="aborted"):
        tx.commit()


def test_large_transactions_wait_in_one_file(store: DirectoryStore) -> None:
    with store.transaction() as tx:
        for number in range(3000):
            tx.append("orders", b"%04d" % number + b"." * 1000, key=b"%d" % number)
        assert len([name for name in staged(store) if name.endswith(".batches")]) == 1
        assert contents(store) == EMPTY
    found = {int(value[:4]) for value in contents(store)["orders"] if value}
    assert found == set(range(3000))
    for number in range(3):
        in_order = values(store["orders"].partition(number).scan())
        assert in_order == sorted(in_order)
    assert staged(store) == []


def test_small_transactions_need_no_file(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StagedTransaction, "file", None)
    with store.transaction() as tx:
        tx.append("orders", b"x" * (INLINE_BYTES // 2))
        tx.append("stock", b"y")
    assert contents(store) == {"orders": [b"x" * (INLINE_BYTES // 2)], "stock": [b"y"]}


@pytest.mark.parametrize(
    "settings", [{"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}, {"segment_bytes": 3000}]
)
def test_the_topics_settings_hold(place: StorePlace, settings: dict[str, object]) -> None:
    store = place.open()
    topic = store.create_topic("orders", **settings)
    with store.transaction() as tx:
        for number in range(100):
            tx.append("orders", b"%d" % number + b"." * 100, timestamp=number)
    assert len(values(topic.scan())) == 100
    stamps = {record.timestamp_type for record in topic.scan()}
    assert stamps == ({1} if "message_timestamp_type" in settings else {0})
    if "segment_bytes" in settings:
        assert topic.describe().rows[0].segments > 3
    if "compression_type" in settings:
        assert topic.describe().size_bytes < 5000


# --- what is refused


def test_a_bad_record_is_refused_at_once_and_the_rest_goes_on(store: DirectoryStore) -> None:
    with store.transaction() as tx:
        tx.append("stock", b"good")
        with pytest.raises(InvalidRecord):
            tx.append("stock", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRecord):
            tx.append_many("orders", [(b"v", b"0"), (b"v", b"1"), (b"v", b"2"), "text"])
        with pytest.raises(TopicNotFound):
            tx.append("nothing", b"v")
        with pytest.raises(TopicNotFound):
            tx.append("orders", b"v", partition=3)
    assert contents(store) == {"orders": [], "stock": [b"good"]}


def test_what_no_segment_can_take_is_refused_before_the_commit(place: StorePlace) -> None:
    store = place.open()
    store.create_topic("orders", segment_bytes=1000)
    tx = store.transaction()
    with pytest.raises(RecordTooLarge):
        tx.append("orders", b"x" * 2000)
    with pytest.raises(RecordTooLarge):
        tx.append_many("orders", [b"x" * 100] * 50)
    tx.append("orders", b"fits")
    assert tx.commit() == {("orders", 0): range(1)}


@for_each(
    ("name", "sequence"), [("q", None), (None, 5), ("", 1), ("x" * 300, 1), (7, 1), ("q", -1), ("q", True), ("q", "5")]
)
def test_a_name_and_a_sequence_belong_together(store: DirectoryStore, name: object, sequence: object) -> None:
    with pytest.raises(InvalidConfig):
        store.transaction(name, sequence)  # type: ignore[arg-type]


def test_a_partition_whose_holder_accepts_no_requests_refuses_the_whole(
    place: StorePlace, store: DirectoryStore
) -> None:
    place.occupy("orders", 1).append(b"theirs")
    tx = store.transaction(lock_timeout_s=0.02)
    for number in range(3):
        tx.append("orders", b"ours", partition=number)
    tx.append("stock", b"ours")
    with pytest.raises(DirectoryLocked):
        tx.commit()
    assert contents(store) == {"orders": [b"theirs"], "stock": []}
    assert staged(store) == []


def test_a_partition_that_becomes_free_is_waited_for(place: StorePlace, store: DirectoryStore) -> None:
    other = place.occupy("stock", 0)
    other.append(b"theirs")
    tx = store.transaction(lock_timeout_s=60)
    tx.append("stock", b"ours")
    waiting = threading.Timer(0.05, other.close)
    waiting.start()
    assert tx.commit() == {("stock", 0): range(1, 2)}
    waiting.join()


def test_a_topic_that_was_deleted_meanwhile_refuses_the_whole(store: DirectoryStore) -> None:
    tx = store.transaction()
    tx.append("orders", b"v")
    tx.append("stock", b"v")
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(TopicNotFound):
        tx.commit()
    assert contents(store) == EMPTY


def test_a_topic_that_is_made_anew_meanwhile_is_another_one(store: DirectoryStore) -> None:
    tx = store.transaction()
    tx.append(store["stock"], b"v")
    store.delete_topic("stock")
    with pytest.raises(TopicNotFound):
        tx.append(store.create_topic("stock"), b"w")
    with pytest.raises(TopicNotFound):
        tx.commit()
    assert contents(store) == EMPTY


def test_what_does_not_shrink_still_fits_into_small_segments(place: StorePlace) -> None:
    store = place.open()
    topic = store.create_topic("orders", segment_bytes=4000, compression_type="zstd")
    noise = [random.Random(number).randbytes(700) for number in range(40)]
    with store.transaction() as tx:
        for value in noise:
            tx.append("orders", value)
    assert values(topic.scan()) == noise


def test_closing_the_store_aborts_what_is_open(place: StorePlace, store: DirectoryStore) -> None:
    tx = store.transaction()
    tx.append("stock", b"x" * (2 * SPILL_BYTES))
    store.close()
    with pytest.raises(LogClosed):
        tx.commit()
    again = place.open()
    assert contents(again) == EMPTY
    assert staged(again) == []


def test_what_another_process_is_collecting_is_not_swept(place: StorePlace, store: DirectoryStore) -> None:
    tx = store.transaction()
    tx.append("stock", b"x" * (2 * SPILL_BYTES))
    before = staged(store)
    other = place.open()
    assert staged(other) == before != []
    tx.commit()
    assert len(contents(other)["stock"]) == 1


def test_threads_commit_at_once(store: DirectoryStore) -> None:
    problems: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for number in range(10):
                with store.transaction() as tx:
                    for partition in range(3):
                        tx.append("orders", b"%d-%d" % (name, number), partition=partition)
                    tx.append("stock", b"%d-%d" % (name, number))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    logs = [values(store["orders"].partition(number).scan()) for number in range(3)]
    assert logs == [contents(store)["stock"]] * 3  # transactions do not overlap: the same order everywhere
    assert len(logs[0]) == 40


# --- once


def test_a_named_transaction_is_stored_once(store: DirectoryStore) -> None:
    for _ in range(3):
        with store.transaction("query", 5) as tx:
            tx.append("stock", b"five")
        assert tx.commit() == {("stock", 0): range(1)}
    assert tx.replayed
    assert contents(store)["stock"] == [b"five"]


def test_a_sequence_below_the_last_is_a_replay_and_one_above_is_not(store: DirectoryStore) -> None:
    for sequence, expected in ((5, False), (4, True), (6, False), (5, True), (0, True), (100, False)):
        tx = store.transaction("query", sequence)
        tx.append("stock", b"%d" % sequence)
        tx.commit()
        assert tx.replayed == expected
    assert contents(store)["stock"] == [b"5", b"6", b"100"]


def test_names_do_not_meet(store: DirectoryStore) -> None:
    names = ["a", "A", "a/b", "../a", "a.committed", "ä", "a b", "=a", "%61"]
    for name in names:
        with store.transaction(name, 1) as tx:
            tx.append("stock", name.encode())
        assert not tx.replayed
    assert contents(store)["stock"] == [name.encode() for name in names]


def test_a_replay_is_recognised_after_reopening_and_by_others(place: StorePlace, store: DirectoryStore) -> None:
    with store.transaction("query", 5) as tx:
        tx.append("stock", b"five")
    assert place.open().transaction("query", 5).replayed
    store.close()
    assert place.open().transaction("query", 5).replayed
    assert not place.open().transaction("query", 6).replayed


def test_a_sequence_without_records_is_remembered_too(store: DirectoryStore) -> None:
    store.transaction("query", 5).commit()
    assert store.transaction("query", 5).replayed


def test_of_two_with_the_same_sequence_the_first_to_commit_counts(place: StorePlace, store: DirectoryStore) -> None:
    other = place.open()
    first, second = store.transaction("query", 5), other.transaction("query", 5)
    first.append("stock", b"first")
    second.append("stock", b"second")
    assert first.commit() == second.commit() == {("stock", 0): range(1)}
    assert not first.replayed
    assert second.replayed
    assert contents(store)["stock"] == [b"first"]
    assert staged(store) == []


def test_an_aborted_sequence_can_be_tried_again(store: DirectoryStore) -> None:
    tx = store.transaction("query", 5)
    tx.append("stock", b"first try")
    tx.abort()
    with store.transaction("query", 5) as tx:
        tx.append("stock", b"second try")
    assert not tx.replayed
    assert contents(store)["stock"] == [b"second try"]


# --- when the disk is in the way


class Broken:
    """A store over a directory that can be told to fail."""

    def __init__(self, **settings: object) -> None:
        self.inner = MemoryDirectory()
        self.directory = FaultyDirectory(self.inner)
        self.store = DirectoryStore.open(self.directory, maintenance_interval_s=None)
        self.store.create_topic("orders", partitions=3, **settings)
        self.store.create_topic("stock", **settings)
        for number in range(3):
            self.store["orders"].append(b"before", partition=number)
        self.store["stock"].append(b"before")

    def filled(self, *name: Any, value: bytes = b"new") -> Transaction:
        """A transaction that goes everywhere."""
        tx = self.store.transaction(*name)
        for number in range(3):
            tx.append("orders", value, partition=number)
        tx.append("stock", value)
        return tx

    def reopened(self) -> DirectoryStore:
        """Return the store that the next process finds."""
        return DirectoryStore.open(copied(self.inner), maintenance_interval_s=None)


#: Four of these do not go into an intent.
LARGE = b"x" * (INLINE_BYTES // 4)
BEFORE = {"orders": [b"before"] * 3, "stock": [b"before"]}
AFTER = {"orders": [b"before", b"new"] * 3, "stock": [b"before", b"new"]}


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_full_disk_while_placing_takes_everything_back_and_the_store_goes_on(number: int) -> None:
    import errno

    broken = Broken()
    tx = broken.filled("query", 1)
    broken.directory.arm(Fault(number, errno.ENOSPC, operations={"append"}, names="*.log"))
    with pytest.raises(TransactionAborted) as caught:
        tx.commit()
    broken.directory.disarm()
    assert isinstance(caught.value.__cause__, StorageFull)
    assert contents(broken.store) == BEFORE
    assert staged(broken.store) == []
    assert contents(broken.reopened()) == BEFORE
    again = broken.filled("query", 1)
    again.commit()
    assert contents(broken.store) == AFTER
    assert contents(broken.reopened()) == AFTER


def test_a_full_disk_while_staging_stores_nothing() -> None:
    broken = Broken()
    tx = broken.filled(value=LARGE)
    broken.directory.arm(Fault(operations={"append"}, names="*.batches"))
    with pytest.raises(OSError, match="injected"):
        tx.commit()
    assert contents(broken.store) == BEFORE
    assert staged(broken.store) == []


def test_a_disk_that_is_full_while_records_are_collected_ends_the_transaction() -> None:
    broken = Broken()
    tx = broken.store.transaction()
    broken.directory.arm(Fault(operations={"append"}, names="*.batches"))
    with pytest.raises(OSError, match="injected"):
        tx.append("stock", b"x" * (2 * SPILL_BYTES))
    with pytest.raises(LogClosed, match="aborted"):
        tx.append("stock", b"more")
    assert contents(broken.store) == BEFORE
    assert staged(broken.store) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_failed_fsync_while_placing_leaves_it_to_the_next_open(number: int) -> None:
    broken = Broken()
    broken.store.close()  # so that only the writes of the transaction need a sync
    broken.store = DirectoryStore.open(broken.directory, maintenance_interval_s=None)
    for topic in broken.store:
        for partition in range(topic.partitions):
            with topic.partition(partition)._hold():
                pass
    tx = broken.filled("query", 1)
    broken.directory.arm(Fault(number, operations={"sync"}, names="*.log"))
    with pytest.raises(TransactionPending):
        tx.commit()
    broken.directory.disarm()
    for partition in range(3):  # no process may write at promised offsets
        with pytest.raises(LogFailed):
            broken.store["orders"].append(b"no", partition=partition)
    with pytest.raises(LogFailed):
        broken.store["stock"].append(b"no")
    assert broken.store.transaction("query", 1).replayed
    again = broken.reopened()
    assert contents(again) == AFTER
    assert again.transaction("query", 1).replayed
    assert staged(again) == []


def test_an_intent_that_cannot_be_written_stores_nothing() -> None:
    for effect in ("nothing", "all"):
        broken = Broken()
        tx = broken.filled()
        broken.directory.arm(Fault(operations={"replace"}, names="*.intent", effect=effect))  # type: ignore[arg-type]
        with pytest.raises(TransactionAborted):
            tx.commit()
        assert contents(broken.store) == BEFORE
        assert contents(broken.reopened()) == BEFORE


def test_an_intent_that_can_neither_be_completed_nor_removed_is_pending() -> None:
    broken = Broken()
    tx = broken.filled()
    broken.directory.arm(Fault(operations={"remove"}, names="staging/*.intent"))
    with pytest.raises(TransactionPending):
        tx.commit()
    broken.directory.disarm()
    with pytest.raises(LogFailed):
        broken.store["stock"].append(b"no")
    assert contents(broken.reopened()) == AFTER


def test_the_error_says_that_the_outcome_is_unknown() -> None:
    broken = Broken()
    tx = broken.filled()
    broken.directory.arm(Fault(operations={"replace", "remove"}, names="staging/*.intent", forever=True))
    with pytest.raises(TransactionError, match="neither"):
        tx.commit()
    assert contents(broken.reopened()) in (BEFORE, AFTER)


def test_a_damaged_intent_is_not_passed_over() -> None:
    broken = Broken()
    tx = broken.filled()
    broken.directory.arm(Fault(operations={"sync"}, names="*.log"))
    with pytest.raises(TransactionPending):
        tx.commit()
    left = copied(broken.inner)
    staging = left.child("staging")
    [name] = [name for name in staging.names() if name.endswith(".intent")]
    staging.replace(name, staging.read(name).replace(b"orders", b"others", 1))
    with DirectoryStore.open(left, maintenance_interval_s=None) as store:
        with pytest.raises(CorruptFile, match=name):
            store["stock"].append(b"no")
        assert len(contents(store)["orders"]) >= 3
    assert staging.exists(name)


def test_what_is_staged_is_durable_before_the_intent_and_the_logs_before_it_goes() -> None:
    broken = Broken(durability="os")
    tx = broken.filled("query", 1, value=LARGE)
    broken.directory.calls.clear()
    tx.commit()
    calls = [(call.operation, call.name.partition("/")[2]) for call in broken.directory.calls]
    [committed] = [
        n for n, (operation, name) in enumerate(calls) if operation == "replace" and name.endswith(".intent")
    ]
    [completed] = [n for n, (operation, name) in enumerate(calls) if operation == "rename" and name.endswith(".intent")]
    logs = {f"orders/partition-{number}/{'0' * 20}.log" for number in range(3)} | {f"stock/partition-0/{'0' * 20}.log"}
    synced_before = {name for operation, name in calls[:committed] if operation == "sync"}
    assert synced_before >= logs  # what precedes the part
    assert any(name.endswith(".batches") for name in synced_before)
    written = [n for n, (operation, name) in enumerate(calls) if operation == "append" and name in logs]
    assert committed < min(written) < max(written) < completed
    assert {name for operation, name in calls[committed:completed] if operation == "sync"} >= logs
    assert ("sync", "") in calls[completed:]
