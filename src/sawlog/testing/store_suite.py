"""`StoreSuite`: tests for every implementation of `Store`, to inherit."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Queue

from ..batch.build import encode
from ..batch.read import decode
from ..clock import Deadline
from ..errors import (
    DataLoss,
    GroupActive,
    GroupNotFound,
    InvalidConfig,
    OffsetMismatch,
    OffsetOutOfRange,
    ReplayMismatch,
    SawlogError,
    TopicExists,
    TopicNotFound,
)
from ..log.slices import fail
from ..store.base import DocumentRegistry, JobStaging, Partition, PlannedSlice, Store, Topic, Transaction
from ..store.directory.transactions.staging import Part
from ..store.groups import Groups
from .storage_suite import refused


def _append(topic: Topic, number: int, *values: bytes) -> range:
    return topic.partition(number).append_batches(encode(values))


def _values(topic: Topic, number: int = 0) -> list[bytes | None]:
    log = topic.partition(number)
    found: list[bytes | None] = []
    position = log.lowest_offset
    while position < log.visible_offset:
        page = log.fetch(position, 1 << 20)
        found.extend(record.value for record in page.records())
        position = page.next_offset
    return found


def _staged(store: Store, job: str, topic: Topic, *values: bytes) -> Part:
    task = store._staging.task(job)
    piece = task.write(encode(values))
    task.sync()
    task.close()
    return Part(topic.name, topic.id, 0, len(values), (piece,))


def _sliced(store: Store, topic: Topic, planned: Sequence[PlannedSlice]) -> list[bytes | None]:
    reader = store._slice_reader(topic.name, topic.id, 0)
    found: list[bytes | None] = []
    for piece in planned:
        for batch in reader.read(piece, columns=["offset", "value"], batch_rows=4, lost=fail):
            found += batch.column(1).to_pylist()
    reader.close()
    return found


def _until(condition: Callable[[], bool]) -> None:
    patience = Deadline(30.0)
    while not condition():
        patience.pause(or_raise=AssertionError("the condition did not hold within 30 s"))


class StoreSuite:
    """Guarantees of `sawlog.store.base.Store`."""

    # --- topics

    def test_a_store_and_its_parts_implement_the_base_classes(self, store: Store) -> None:
        """Every method that a broker, Spark or the command line calls exists."""
        topic = store.create_topic("orders")
        assert isinstance(store, Store)
        assert isinstance(topic, Topic)
        assert isinstance(topic.partition(0), Partition)
        assert isinstance(store.groups, Groups)
        assert isinstance(store._registry, DocumentRegistry)
        assert isinstance(store._staging, JobStaging)
        transaction = store.transaction()
        assert isinstance(transaction, Transaction)
        transaction.abort()

    def test_a_broker_fetches_the_batches_it_appended(self, store: Store) -> None:
        """Immediately or as futures; the broker is notified of new records."""
        service = store._serve()
        log = service.create_topic("orders", 1, {}).partition(0)
        told = threading.Event()
        stop = log._watch(told.set)
        try:
            log._take()
            placed = log._submit(bytearray(encode([b"one", b"two"])))
            offsets = placed.result() if isinstance(placed, Future) else placed
            settled: Queue[BaseException | None] = Queue()
            log._when_settled(offsets.stop, settled.put)
            assert settled.get(timeout=30) is None
            assert told.wait(30)
            found = log._peek(0, isolation="committed")
            page = found.result() if isinstance(found, Future) else found
            assert [record.value for record in decode(page.raw)] == [b"one", b"two"]
            assert (offsets, page.next_offset, log.visible_offset, log.last_stable_offset) == (range(2), 2, 2, 2)
        finally:
            stop()
            service.close()

    def test_fetched_records_begin_at_the_requested_offset(self, store: Store) -> None:
        topic = store.create_topic("orders", partitions=2)
        log = topic.partition(1)
        for compression in ("none", "lz4", "none"):
            log.append_batches(encode([b"value"] * 3, compression=compression))
        for start in range(9):
            found = [(each.offset, each.topic, each.partition) for each in log.fetch(start, 1 << 20).records()]
            assert found == [(offset, "orders", 1) for offset in range(start, 9)]

    def test_a_broker_registers_with_the_store(self, store: Store) -> None:
        service = store._serve()
        assert service.brokers.join(7, "127.0.0.1", 9092) == 7
        assert [(each.id, each.host, each.port) for each in service.brokers.nodes()] == [(7, "127.0.0.1", 9092)]
        service.brokers.beat(60)
        service.brokers.leave()
        service.close()

    def test_topics_are_listed_by_name(self, store: Store) -> None:
        assert store.topics() == []
        for name in ("stock", "orders", "a.b_c-D"):
            store.create_topic(name)
        assert store.topics() == ["a.b_c-D", "orders", "stock"]

    def test_a_topic_keeps_its_partitions_and_settings(self, store: Store) -> None:
        store.create_topic("orders", 3, retention_ms=1000)
        topic = store.topic("orders")
        assert (topic.name, topic.partitions, topic.settings["retention.ms"]) == ("orders", 3, 1000)

    def test_a_topic_name_is_unique(self, store: Store) -> None:
        first = store.create_topic("orders", 2)
        with refused(TopicExists):
            store.create_topic("orders")
        again = store.create_topic("orders", 5, exist_ok=True)
        assert (again.id, again.partitions) == (first.id, 2)

    def test_a_missing_topic_is_refused(self, store: Store) -> None:
        with refused(TopicNotFound):
            store.topic("orders")
        with refused(TopicNotFound):
            store.alter_topic("orders", 2)
        with refused(TopicNotFound):
            store.delete_topic("orders")

    def test_partitions_are_added_and_never_removed(self, store: Store) -> None:
        _append(store.create_topic("orders", 2), 1, b"kept")
        topic = store.alter_topic("orders", 4)
        assert topic.partitions == 4
        assert _values(topic, 1) == [b"kept"]
        assert _values(topic, 3) == []
        with refused(InvalidConfig):
            store.alter_topic("orders", 1)

    def test_a_setting_is_changed_and_reset(self, store: Store) -> None:
        store.create_topic("orders", retention_ms=1000)
        assert store.alter_topic("orders", retention_ms=2000).settings["retention.ms"] == 2000
        assert "retention.ms" not in store.alter_topic("orders", retention_ms=None).settings

    def test_a_recreated_topic_is_a_new_topic(self, store: Store) -> None:
        first = store.create_topic("orders")
        _append(first, 0, b"gone")
        before = first.id
        store.delete_topic("orders")
        assert store.topics() == []
        second = store.create_topic("orders")
        assert second.id != before
        assert _values(second) == []

    def test_each_partition_has_its_own_offsets(self, store: Store) -> None:
        topic = store.create_topic("orders", 2)
        assert _append(topic, 0, b"a", b"b") == range(2)
        assert _append(topic, 1, b"c") == range(1)
        assert _append(topic, 0, b"d") == range(2, 3)
        assert (_values(topic, 0), _values(topic, 1)) == ([b"a", b"b", b"d"], [b"c"])

    # --- records

    def test_a_record_is_at_the_position_that_append_returned(self, store: Store) -> None:
        topic = store.create_topic("orders", 3)
        number, offset = topic.append(b"value", b"key", [("name", b"h")], 1000)
        log = topic.partition(number)
        record = log.read(offset)
        assert (record.value, record.key, record.headers, record.timestamp) == (
            b"value",
            b"key",
            (("name", b"h"),),
            1000,
        )
        assert (record.topic, record.partition, record.offset) == ("orders", number, offset)
        assert [each.value for each in topic.scan()] == [b"value"]
        assert (len(log), offset in log, offset + 1 in log) == (1, True, False)
        with refused(OffsetOutOfRange):
            log.read(offset + 1)
        with refused(TopicNotFound):
            topic.append(b"value", partition=3)

    def test_all_records_of_a_key_are_in_one_partition(self, store: Store) -> None:
        topic = store.create_topic("orders", 4)
        places = {topic.append(b"", b"%d" % key)[0] for key in (1, 1, 1)}
        placed = topic.append_many([(b"", b"%d" % (number % 7)) for number in range(70)])
        with topic.writer() as writer:
            for number in range(70):
                writer.append(b"", b"%d" % (number % 7))
        keys = [{record.key for record in topic.scan(partitions=[number])} for number in range(4)]
        assert len(places) == 1
        assert sum(map(len, placed.values())) == 70
        assert sum(map(len, keys)) == len(set[bytes | None]().union(*keys)) == 7
        assert sum(1 for _ in topic.scan()) == 143

    def test_an_append_is_at_the_expected_offset_or_not_at_all(self, store: Store) -> None:
        topic = store.create_topic("orders")
        assert topic.append(b"a", expect_offset=0) == (0, 0)
        with refused(OffsetMismatch):
            topic.append(b"b", expect_offset=0)
        with refused(OffsetMismatch):
            topic.append_many([b"b"], expect_offset=2)
        assert topic.partition(0).append(b"c", expect_offset=1) == 1
        assert _values(topic) == [b"a", b"c"]

    def test_a_follower_gets_new_records(self, store: Store) -> None:
        log = store.create_topic("orders").partition(0)
        log.append(b"a")
        found = log.follow(timeout=20.0)
        assert next(found).value == b"a"
        log.append(b"b")
        assert next(found).value == b"b"

    def test_reading_begins_at_a_time_or_after_a_trim(self, store: Store) -> None:
        topic = store.create_topic("orders")
        topic.append_many([{"value": b"%d" % stamp, "timestamp": stamp} for stamp in (1000, 2000, 3000)])
        log = topic.partition(0)
        assert (log.offset_at(1500), log.offset_at(3001)) == (1, 3)
        assert topic.trim({0: 2}) == 2
        assert (log.lowest_offset, log.visible_offset, log.offset_at(0)) == (2, 3, 2)
        assert [record.value for record in topic.scan()] == [b"3000"]
        assert (topic.describe().records, log.verify().ok) == (1, True)

    def test_a_topic_is_a_table(self, store: Store) -> None:
        store.create_topic("orders", 2).append_many([(b"%d" % number, b"%d" % number) for number in range(9)])
        assert store.sql("select count(*) as n from orders").to_pylist() == [{"n": 9}]

    def test_a_document_changes_version_by_version(self, store: Store) -> None:
        """A change that alters nothing is not stored."""
        assert store._registry.read("users").version == 0
        assert store._registry.change("users", lambda fields: {**fields, "a": 1}).version == 1
        assert store._registry.change("users", dict).version == 1
        assert store._registry.read("users").fields == {"a": 1}

    # --- groups

    def test_a_consumer_reads_each_record_once(self, store: Store) -> None:
        topic = store.create_topic("orders", 3)
        topic.append_many([(b"%d" % number, b"%d" % number) for number in range(30)])
        with store.consumer("billing", ["orders"]) as consumer:
            assert sorted(int(record.value or b"") for record in consumer.drain()) == list(range(30))
            described = store.groups.describe("billing")
            assert [member.topics for member in described.members] == [("orders",)]
            with refused(GroupActive):
                store.groups.commit("billing", {("orders", 0): 0})
        topic.append(b"new")
        with store.consumer("billing", ["orders"]) as consumer:
            assert [record.value for record in consumer.drain()] == [b"new"]
        assert sum(row.lag for row in store.groups.describe("billing").rows) == 0

    def test_members_share_the_partitions(self, store: Store) -> None:
        """Each partition has one reader; when a member leaves, the other takes over."""
        store.create_topic("orders", 4)
        first, second = store.consumer("billing", "orders"), store.consumer("billing", "orders")
        _until(lambda: (first.poll(0.01), second.poll(0.01)) and len(first.assignment) == len(second.assignment) == 2)
        assert first.assignment | second.assignment == {("orders", number) for number in range(4)}
        first.close()
        _until(lambda: second.poll(0.01) == [] and len(second.assignment) == 4)
        second.close()

    def test_a_group_without_members_can_be_moved(self, store: Store) -> None:
        store.create_topic("orders").append_many([b"a", b"b", b"c"])
        with refused(GroupNotFound):
            store.groups.seek("billing", {("orders", 0): 0})
        with store.consumer("billing", "orders") as consumer:
            assert len(list(consumer.drain())) == 3
            consumer.commit()
            with refused(GroupActive):
                store.groups.seek("billing", {("orders", 0): 0})
        assert store.groups.seek("billing", {("orders", 0): 1}) == {("orders", 0): 1}
        with store.consumer("billing", "orders") as consumer:
            assert [record.value for record in consumer.drain()] == [b"b", b"c"]
        assert store.groups.seek("billing", {("orders", 0): "latest"}) == {("orders", 0): 3}

    def test_a_group_continues_at_its_committed_offsets(self, store: Store) -> None:
        topic = store.create_topic("orders", 2)
        _append(topic, 0, b"a", b"b", b"c")
        with refused(GroupNotFound):
            store.groups.describe("billing")
        store.groups.commit("billing", {("orders", 0): 2})
        assert store.groups.list() == ["billing"]
        rows = {row.partition: (row.committed, row.lag) for row in store.groups.describe("billing").rows}
        assert rows == {0: (2, 1), 1: (None, 0)}
        store.groups.delete("billing")
        assert store.groups.list() == []

    def test_committed_offsets_do_not_apply_to_a_recreated_topic(self, store: Store) -> None:
        _append(store.create_topic("orders"), 0, b"a")
        store.groups.commit("billing", {("orders", 0): 1})
        store.delete_topic("orders")
        store.create_topic("orders")
        assert [row.committed for row in store.groups.describe("billing").rows] == [None]

    # --- all or nothing

    def test_a_transaction_is_in_all_partitions_or_in_none(self, store: Store) -> None:
        """Nothing is visible before the commit, or after an abort."""
        orders, stock = store.create_topic("orders"), store.create_topic("stock")
        with store.transaction() as transaction:
            transaction.append_many("orders", [b"a", b"b"])
            transaction.append("stock", b"c")
            assert (_values(orders), _values(stock)) == ([], [])
        assert (_values(orders), _values(stock)) == ([b"a", b"b"], [b"c"])
        dropped = store.transaction()
        dropped.append("orders", b"never")
        dropped.abort()
        with refused(SawlogError):
            dropped.commit()
        assert _values(orders) == [b"a", b"b"]

    def test_a_named_transaction_is_stored_once_per_number(self, store: Store) -> None:
        topic = store.create_topic("orders")
        for sequence in (0, 1, 1, 0, 2):
            with store.transaction("query", sequence) as transaction:
                transaction.append("orders", b"%d" % sequence)
        assert _values(topic) == [b"0", b"1", b"2"]

    def test_staged_parts_are_published_together(self, store: Store) -> None:
        topic = store.create_topic("orders")
        parts = [_staged(store, "job1", topic, b"a", b"b"), _staged(store, "job1", topic, b"c")]
        assert _values(topic) == []
        assert store._staging.publish("job1", parts, name="query", sequence=7) == {("orders", 0): range(3)}
        assert _values(topic) == [b"a", b"b", b"c"]
        again = [_staged(store, "job2", topic, b"a", b"b", b"c")]
        store._staging.publish("job2", again, name="query", sequence=7)
        assert _values(topic) == [b"a", b"b", b"c"]

    def test_a_replay_with_different_records_is_refused(self, store: Store) -> None:
        """The caller would lose them; a transaction that only asks whether it is stored appends none."""
        topic = store.create_topic("orders")
        with store.transaction("query", 1) as transaction:
            transaction.append_many("orders", [(b"a", None), (b"b", None)])
        with store.transaction("query", 1) as transaction:
            transaction.append_many("orders", [(b"a", None), (b"b", None)])
        with refused(ReplayMismatch), store.transaction("query", 1) as transaction:
            transaction.append_many("orders", [(b"a", None), (b"b", None), (b"c", None)])
        with refused(ReplayMismatch):
            store._staging.publish("job", [_staged(store, "job", topic, b"c")], name="query", sequence=1)
        with store.transaction("query", 1) as transaction:
            assert transaction.replayed
        with store.transaction("query", 2) as transaction:
            assert not transaction.replayed
            transaction.abort()
        last = store._staging.last("query")
        assert last is not None
        assert [(part.topic, part.count) for part in last.parts] == [("orders", 2)]
        assert _values(topic) == [b"a", b"b"]

    def test_discarded_parts_are_never_stored(self, store: Store) -> None:
        """Neither an abandoned job nor a failed attempt of a task."""
        topic = store.create_topic("orders")
        part = _staged(store, "job1", topic, b"a")
        store._staging.discard("job1")
        with refused(SawlogError):
            store._staging.publish("job1", [part])
        task = store._staging.task("job2")
        before = task.is_empty
        task.write(encode([b"b"]))
        assert (before, task.is_empty) == (True, False)
        task.abandon()
        task.close()
        assert _values(topic) == []

    def test_an_abandoned_job_can_be_repeated(self, store: Store) -> None:
        topic = store.create_topic("orders")
        first = _staged(store, "job", topic, b"never")
        store._staging.discard("job")
        again = _staged(store, "job", topic, b"a")
        with refused(SawlogError):
            store._staging.publish("job", [first])
        store._staging.publish("job", [again], name="query", sequence=3)
        assert _values(topic) == [b"a"]

    def test_a_repeated_job_is_recognised_and_its_files_are_removed(self, store: Store) -> None:
        topic = store.create_topic("orders")
        staging = store._staging
        assert staging.last("query") is None
        staging.publish("job", [_staged(store, "job", topic, b"a")], name="query", sequence=3)
        last = staging.last("query")
        assert last is not None
        assert last.sequence == 3
        part = _staged(store, "job", topic, b"a")
        assert staging.replay_of("job", lambda: None) is None
        assert staging.replay_of("job", lambda: staging.last("query")) is not None
        with refused(SawlogError):
            staging.publish("job", [part])
        assert _values(topic) == [b"a"]

    def test_a_group_keeps_documents(self, store: Store) -> None:
        with store.groups._documents("billing") as documents:
            assert documents.find("start") is None
            documents.keep("start", {"orders": 1})
        with store.groups._documents("billing") as documents:
            assert documents.find("start") == {"orders": 1}
            documents.keep("start", {"orders": 2})
            documents.keep("other", {"orders": 3})
        with store.groups._documents("shipping") as documents:
            assert documents.find("start") is None
        with store.groups._documents("billing") as documents:
            assert (documents.find("start"), documents.find("other")) == ({"orders": 2}, {"orders": 3})
            documents.remove("start")
            documents.remove("start")
            documents.sync()
            assert (documents.find("start"), documents.find("other")) == (None, {"orders": 3})

    # --- in other processes

    def test_a_partition_is_read_in_slices(self, store: Store) -> None:
        """Slices can be pickled; together they hold every record once, whatever their size."""
        topic = store.create_topic("orders")
        for first in range(0, 60, 6):
            _append(topic, 0, *(b"%d" % number for number in range(first, first + 6)))
        log = topic.partition(0)
        assert (len(log), log.position()) == (60, (60, log.leader_epoch))
        assert log.size_bytes > 0
        for size, count in ((None, None), (1, None), (None, 7), (None, 1)):
            planned = pickle.loads(pickle.dumps(topic._plan(0, 5, 58, target_bytes=size, max_records=count)))
            assert _sliced(store, topic, planned) == [b"%d" % number for number in range(5, 58)]
        assert len(topic._plan(0, 5, 58, max_records=10)) >= 6
        assert list(topic._plan(0, 8, 8)) == []
        one, two = topic._plan(0, 0, 2, max_records=1)
        joined = one.joined(two)
        assert joined is not None
        assert (joined.start_offset, joined.end_offset, one.joined(one)) == (0, 2, None)
        assert _sliced(store, topic, [joined]) == [b"0", b"1"]

    def test_slices_of_deleted_records_are_refused(self, store: Store) -> None:
        """When planned or when read; no record is skipped silently."""
        topic = store.create_topic("orders")
        _append(topic, 0, b"a", b"b")
        planned = topic._plan(0, 0, 2)
        topic.partition(0).trim(2)
        with refused(DataLoss):
            topic._plan(0, 0, 2)
        with refused(DataLoss):
            topic._plan(0, 2, 3)
        store.delete_topic("orders")
        try:
            assert _sliced(store, topic, planned) == [b"a", b"b"]  # a store may keep records for planned slices
        except (TopicNotFound, DataLoss):
            pass

    def test_expired_records_are_dropped(self, store: Store) -> None:
        topic = store.create_topic("orders", retention_ms=1000)
        topic.partition(0).append_batches(encode([(b"old", None, (), 1)]))
        topic.partition(0).append_batches(encode([(b"older", None, (), 2)]))
        store._expire("orders", 0)
        kept = store.create_topic("kept")
        kept.partition(0).append_batches(encode([(b"old", None, (), 1)]))
        assert store._expire("kept", 0) is None
        assert _values(kept) == [b"old"]
