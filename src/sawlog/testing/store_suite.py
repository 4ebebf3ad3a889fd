"""What every store must do, as tests to inherit. See `suites`."""

from __future__ import annotations

from ..batch.build import encode
from ..batch.read import decode
from ..errors import GroupNotFound, InvalidConfig, SawlogError, TopicExists, TopicNotFound
from ..log.protocols import PartitionWriter
from ..topics.protocols import JobStaging, StoredGroups, StoredTopic, StoreTransaction, StoreWriter
from ..topics.transactions.staging import Part
from .promises import refused


def _append(topic: StoredTopic, number: int, *values: bytes) -> range:
    return topic.partition(number).append_batches(encode(values))


def _values(topic: StoredTopic, number: int = 0) -> list[bytes | None]:
    """Everything that can be read of a partition."""
    log = topic.partition(number)
    found: list[bytes | None] = []
    position = log.lowest_offset
    while position < log.visible_offset:
        page = log.fetch(position, 1 << 20)
        found.extend(record.value for record in decode(page.raw) if record.offset >= position)
        position = page.next_offset
    return found


def _staged(store: StoreWriter, job: str, topic: StoredTopic, *values: bytes) -> Part:
    """Values that a task has staged for partition 0, durably."""
    task = store.staging.task(job)
    piece = task.write(encode(values))
    task.sync()
    task.close()
    return Part(topic.name, topic.id, 0, len(values), (piece,))


class StoreSuite:
    """The promises of `sawlog.topics.protocols.StoreWriter`."""

    # --- topics

    def test_a_store_and_its_parts_have_all_methods(self, store: StoreWriter) -> None:
        """What a broker, Spark and the command line call is there."""
        topic = store.create_topic("orders")
        assert isinstance(store, StoreWriter)
        assert isinstance(topic, StoredTopic)
        assert isinstance(topic.partition(0), PartitionWriter)
        assert isinstance(store.groups, StoredGroups)
        assert isinstance(store.staging, JobStaging)
        transaction = store.transaction()
        assert isinstance(transaction, StoreTransaction)
        transaction.abort()

    def test_topics_are_listed_by_name(self, store: StoreWriter) -> None:
        """A new store has none; those that are created are listed in order."""
        assert store.topics() == []
        for name in ("stock", "orders", "a.b_c-D"):
            store.create_topic(name)
        assert store.topics() == ["a.b_c-D", "orders", "stock"]

    def test_a_topic_has_what_it_was_created_with(self, store: StoreWriter) -> None:
        """Partitions and settings, also when it is asked for again."""
        store.create_topic("orders", 3, retention_ms=1000)
        topic = store.topic("orders")
        assert (topic.name, topic.partitions, topic.settings["retention.ms"]) == ("orders", 3, 1000)

    def test_a_name_is_given_once(self, store: StoreWriter) -> None:
        """A second topic of that name is refused, or the first one is returned."""
        first = store.create_topic("orders", 2)
        with refused(TopicExists):
            store.create_topic("orders")
        again = store.create_topic("orders", 5, exist_ok=True)
        assert (again.id, again.partitions) == (first.id, 2)

    def test_a_topic_that_does_not_exist_is_refused(self, store: StoreWriter) -> None:
        """Whatever is asked of it."""
        with refused(TopicNotFound):
            store.topic("orders")
        with refused(TopicNotFound):
            store.alter_topic("orders", 2)
        with refused(TopicNotFound):
            store.delete_topic("orders")

    def test_partitions_are_added_and_never_removed(self, store: StoreWriter) -> None:
        """Those that exist keep their records."""
        _append(store.create_topic("orders", 2), 1, b"kept")
        topic = store.alter_topic("orders", 4)
        assert topic.partitions == 4
        assert _values(topic, 1) == [b"kept"]
        assert _values(topic, 3) == []
        with refused(InvalidConfig):
            store.alter_topic("orders", 1)

    def test_a_setting_is_changed_and_reset(self, store: StoreWriter) -> None:
        """None is the default again."""
        store.create_topic("orders", retention_ms=1000)
        assert store.alter_topic("orders", retention_ms=2000).settings["retention.ms"] == 2000
        assert "retention.ms" not in store.alter_topic("orders", retention_ms=None).settings

    def test_a_topic_that_was_recreated_is_another_one(self, store: StoreWriter) -> None:
        """It has another id, and none of the records."""
        first = store.create_topic("orders")
        _append(first, 0, b"gone")
        before = first.id
        store.delete_topic("orders")
        assert store.topics() == []
        second = store.create_topic("orders")
        assert second.id != before
        assert _values(second) == []

    def test_partitions_count_their_own_offsets(self, store: StoreWriter) -> None:
        """What is appended to one is in that one, in order."""
        topic = store.create_topic("orders", 2)
        assert _append(topic, 0, b"a", b"b") == range(2)
        assert _append(topic, 1, b"c") == range(1)
        assert _append(topic, 0, b"d") == range(2, 3)
        assert (_values(topic, 0), _values(topic, 1)) == ([b"a", b"b", b"d"], [b"c"])

    # --- groups

    def test_a_group_continues_where_it_committed(self, store: StoreWriter) -> None:
        """Groups are listed, described and deleted."""
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

    def test_an_offset_is_of_one_topic(self, store: StoreWriter) -> None:
        """A group starts again in a topic that was recreated."""
        _append(store.create_topic("orders"), 0, b"a")
        store.groups.commit("billing", {("orders", 0): 1})
        store.delete_topic("orders")
        store.create_topic("orders")
        assert [row.committed for row in store.groups.describe("billing").rows] == [None]

    # --- all or nothing

    def test_a_transaction_is_in_all_partitions_or_in_none(self, store: StoreWriter) -> None:
        """Nothing of it is visible before the commit, and nothing after it was aborted."""
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

    def test_a_number_is_stored_once_under_a_name(self, store: StoreWriter) -> None:
        """A transaction that is repeated stores nothing."""
        topic = store.create_topic("orders")
        for sequence in (0, 1, 1, 0, 2):
            with store.transaction("query", sequence) as transaction:
                transaction.append("orders", b"%d" % sequence)
        assert _values(topic) == [b"0", b"1", b"2"]

    def test_what_tasks_stage_is_published_together(self, store: StoreWriter) -> None:
        """In the order of the parts, and once."""
        topic = store.create_topic("orders")
        parts = [_staged(store, "job1", topic, b"a", b"b"), _staged(store, "job1", topic, b"c")]
        assert _values(topic) == []
        assert store.staging.publish("job1", parts, name="query", sequence=7) == {("orders", 0): range(3)}
        assert _values(topic) == [b"a", b"b", b"c"]
        again = [_staged(store, "job2", topic, b"twice")]
        store.staging.publish("job2", again, name="query", sequence=7)
        assert _values(topic) == [b"a", b"b", b"c"]

    def test_what_is_discarded_is_never_stored(self, store: StoreWriter) -> None:
        """Neither a job that was given up, nor an attempt of a task that failed."""
        topic = store.create_topic("orders")
        part = _staged(store, "job1", topic, b"a")
        store.staging.discard("job1")
        with refused(SawlogError):
            store.staging.publish("job1", [part])
        task = store.staging.task("job2")
        before = task.is_empty
        task.write(encode([b"b"]))
        assert (before, task.is_empty) == (True, False)
        task.abandon()
        task.close()
        assert _values(topic) == []
