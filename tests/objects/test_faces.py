"""A store on object storage is used like one in a directory: reading, writing, consuming and querying are the same."""

from __future__ import annotations

import asyncio
import errno
import re
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog.batch.compression import CODECS
from sawlog.batch.header import scan
from sawlog.errors import (
    CorruptData,
    GroupActive,
    GroupFenced,
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    OffsetMismatch,
    OffsetOutOfRange,
    RecordTooLarge,
    SawlogError,
    StorageError,
    StreamAborted,
    StreamTooLong,
    TopicNotFound,
)
from sawlog.store.objects.bucket import Bucket, Unanswered
from sawlog.store.objects.partition import ObjectPartition
from sawlog.store.objects.store import ObjectStore
from sawlog.store.objects.topic import ObjectTopic

from .. import warm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=[pytest.param("directory", marks=pytest.mark.slow), "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(place: str) -> Iterator[Any]:
    with sawlog.open(place, maintenance_interval_s=None) as store:
        yield store


@pytest.fixture
def objects() -> Iterator[ObjectStore]:
    with ObjectStore.open(f"memory://{uuid.uuid4().hex}", maintenance_interval_s=None) as store:
        yield store


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# --- writing and reading


def test_records_are_read_at_the_positions_returned_by_append(store: Any) -> None:
    topic = store.create_topic("orders", partitions=3)
    at = topic.append(b"one", key=b"a", headers=[("h", b"1")], timestamp=1000)
    assert topic.append(b"two", partition=2).partition == 2
    record = topic.partition(at.partition).read(at.offset)
    assert (record.value, record.key, record.headers, record.timestamp) == (b"one", b"a", (("h", b"1"),), 1000)
    assert (record.topic, record.partition) == ("orders", at.partition)
    with pytest.raises(TopicNotFound):
        topic.append(b"no", partition=3)
    with pytest.raises(TopicNotFound):
        topic.partition(3)


def test_records_with_one_key_are_in_one_partition(store: Any) -> None:
    topic = store.create_topic("orders", partitions=4)
    placed = topic.append_many([(b"v%d" % n, b"k%d" % n) for n in range(100)])
    assert sum(map(len, placed.values())) == 100
    for number in placed:
        assert {record.key for record in topic.partition(number)} == {
            record.key for record in topic.scan(partitions=[number])
        }
    assert sorted(record.value for record in topic.scan()) == sorted(b"v%d" % n for n in range(100))
    again = topic.append(b"x", key=b"k7")
    assert any(record.key == b"k7" for record in topic.partition(again.partition))


def test_an_append_at_another_than_the_expected_offset_stores_nothing(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    assert topic.append(b"a", partition=0, expect_offset=0).offset == 0
    with pytest.raises(OffsetMismatch):
        topic.append(b"b", partition=0, expect_offset=0)
    with pytest.raises(OffsetMismatch):
        topic.append_many([b"b", b"c"], partition=0, expect_offset=5)
    with pytest.raises(InvalidRecord):
        topic.append_many([(b"b", b"%d" % n) for n in range(20)], expect_offset=1)
    assert [record.value for record in topic.scan()] == [b"a"]
    assert topic.partition(0).append(b"d", expect_offset=1) == 1


def test_a_partition_is_a_sequence(store: Any) -> None:
    log = store.create_topic("orders").partition(0)
    log.append_many([b"%d" % n for n in range(10)])
    assert len(log) == 10
    assert bool(log)
    assert log[3].value == b"3"
    assert log[-1].value == b"9"
    assert [record.value for record in log[2:4]] == [b"2", b"3"]
    assert [record.value for record in log[-2:]] == [b"8", b"9"]
    assert 9 in log
    assert 10 not in log
    assert [record.offset for record in log] == list(range(10))
    with pytest.raises(OffsetOutOfRange):
        log.read(10)
    with pytest.raises(OffsetOutOfRange):
        log.scan(11)
    assert [record.value for record in log.scan(8, 100)] == [b"8", b"9"]


def test_offset_at_finds_records_by_time(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    for number, stamp in enumerate([1000, 3000, 2000, 5000]):
        topic.append(b"%d" % number, timestamp=stamp, partition=0)
    log = topic.partition(0)
    assert log.offset_at(2500) == 1
    assert log.offset_at(datetime.fromtimestamp(4, UTC)) == 3
    assert log.offset_at(9000) == 4
    assert topic.offset_at(2500) == {0: 1, 1: 0}
    assert log._newest() == (3, 5000)
    assert topic.partition(1)._newest() is None
    log.trim(2)
    assert log.offset_at(0) == 2
    assert (log.lowest_offset, log.next_offset) == (2, 4)


def test_a_writer_batches_records_and_appends_them(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    with topic.writer() as writer:
        for number in range(1000):
            writer.append(b"%d" % number, key=b"%d" % (number % 7))
        writer.flush()
    with topic.partition(1).writer(batch_bytes=100) as single:
        for _ in range(50):
            single.append(b"x")
    with topic._packer("gzip", partition=0) as packer:
        packer.append(b"packed")
    values = [record.value for record in topic.scan()]
    assert len(values) == 1051
    assert b"packed" in values


def test_a_compacted_topic_refuses_records_without_keys(store: Any) -> None:
    topic = store.create_topic("state", cleanup_policy="compact")
    with pytest.raises(InvalidRecord):
        topic.append(b"no key")
    assert topic.append(b"v", key=b"k").offset == 0


def test_a_stream_is_appended_as_one_record(store: Any) -> None:
    topic = store.create_topic("files")
    assert topic.append_stream([b"ab", b"cd"], key=b"k") == (0, 0)
    assert topic.partition(0)[0].value == b"abcd"
    with pytest.raises(SawlogError):
        topic.append_stream([b"x" * 100], max_bytes=10)

    def failing() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("broken")

    with pytest.raises(sawlog.errors.StreamAborted):
        topic.partition(0).append_stream(failing())
    assert len(topic.partition(0)) == 1


def test_a_follower_gets_later_records(place: str) -> None:
    with sawlog.open(place, maintenance_interval_s=None) as writer, sawlog.open(place, "r") as reader:
        log = writer.create_topic("orders").partition(0)
        log.append(b"first")
        found = reader.topic("orders").partition(0).follow(timeout=60)
        assert next(found).value == b"first"
        log.append(b"second")
        assert next(found).value == b"second"


def test_transactions_and_the_registry_work(store: Any) -> None:
    store.create_topic("orders")
    with store.transaction() as transaction:
        transaction.append("orders", b"a")
    assert store._registry.read("users").version == 0
    changed = store._registry.change("users", lambda fields: {**fields, "me": 1})
    assert (changed.version, store._registry.read("users").fields) == (1, {"me": 1})
    assert store._registry.change("users", dict).version == 1


def test_a_transaction_follows_the_settings_of_its_topic(store: Any) -> None:
    topic = store.create_topic(
        "orders", compression_type="zstd", message_timestamp_type="LogAppendTime", max_record_bytes=10_000
    )
    with store.transaction() as transaction:
        transaction.append_many("orders", [b"a" * 1000 for _ in range(100)], partition=0)
        with pytest.raises(RecordTooLarge):
            transaction.append("orders", b"b" * 20_000)
    [batch] = scan(topic.partition(0).fetch(0).buffers[0])
    assert (batch.compression, batch.timestamp_type, batch.count) == (CODECS["zstd"], 1, 100)


def test_typed_views_work(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    typed = topic.typed(value=sawlog.JSON(), key=sawlog.Utf8(), errors_to="bad")
    typed.append({"a": 1}, key="k")
    topic.append(b"{", key=b"k")
    assert [record.value for record in typed.scan()] == [{"a": 1}]
    assert [record.value for record in store.topic("bad").scan()] == [b"{"]
    log = topic.partition(0).typed(value=sawlog.Utf8())
    assert log.append("text") >= 0


# --- tables


def test_a_topic_can_be_queried_as_a_table(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2, sawlog_schema="amount BIGINT, who STRING")
    for number in range(50):
        topic.append(b'{"amount": %d, "who": "w%d"}' % (number, number % 3), key=b"%d" % number, timestamp=number + 1)
    table = topic.arrow()
    assert table.num_rows == 50
    assert sorted(row["amount"] for row in table.column("value").to_pylist()) == list(range(50))
    assert topic.arrow(start={0: 1}).num_rows == 49
    assert topic.arrow(start=datetime.fromtimestamp(0.041, UTC)).num_rows == 10
    assert store.sql("select count(*) as n, max(timestamp) as t from orders").to_pylist()[0]["n"] == 50
    sums = store.sql("select value.who as who, sum(value.amount) as s from orders group by 1 order by 1").to_pylist()
    assert sums == [{"who": "w0", "s": 408}, {"who": "w1", "s": 425}, {"who": "w2", "s": 392}]
    keys = store.sql("select key, count(*) as n from orders group by key").num_rows
    assert keys == 50
    assert sum(batch.num_rows for batch in topic.scan_arrow()) == 50
    topic.append_arrow(table.select(["key"]).append_column("value", table.column("key")))
    assert topic.describe().records == 100


@pytest.mark.slow  # importing them takes seconds
def test_a_topic_can_be_read_as_a_data_frame(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    topic.append_many([(b"%d" % number, b"%d" % number) for number in range(50)])
    assert len(topic.to_pandas()) == 50
    assert topic.polars().collect().height == 50


# --- descriptions


def test_descriptions_and_reprs_show_topics_and_partitions(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2, retention_ms=1000)
    topic.append_many([b"a", b"b"], partition=1)
    about = topic.describe()
    assert (about.records, about.partitions, about.rows[1].next_offset) == (2, 2, 2)
    assert about.size_bytes > 0
    assert abs(about.created_ms - time.time() * 1000) < 60_000
    assert "orders" in store
    assert [each.name for each in store] == ["orders"]
    assert topic.offsets()[1] == (0, 2)
    assert "2 partitions" in repr(topic)
    assert "offsets 0..2" in repr(topic.partition(1))
    assert "1 topic" in repr(store)
    for shown in (store._repr_html_(), topic._repr_html_(), topic.partition(1)._repr_html_()):
        assert "orders" in shown or "offsets 0..2" in shown
    assert topic.partition(1).verify().records == 2


class _Counting:
    """A bucket that counts its requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("get", "get_range", "create", "put", "list", "delete"):
            monkeypatch.setattr(Bucket, name, self._counted(getattr(Bucket, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return call(*arguments, **options)

        return counted


def test_a_repr_sends_no_request(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = objects.create_topic("orders")
    log = topic.partition(0)
    time.sleep(0.1)  # the known state is old by now
    counting = _Counting(monkeypatch)
    assert repr(objects).startswith("<ObjectStore memory://")
    assert repr(topic).startswith("<ObjectTopic orders: 1 partition")
    assert "offsets 0..0" in repr(log)
    assert counting.count == 0


def test_redriving_requires_a_directory(objects: ObjectStore) -> None:
    objects.create_topic("orders")
    for attempt in (
        lambda: sawlog.redrive(objects, "orders"),  # type: ignore[arg-type]
        lambda: sawlog.redrive(objects, "orders", dry_run=True),  # type: ignore[arg-type]
    ):
        with pytest.raises(StorageError, match="object storage"):
            attempt()


# --- replacing


def test_a_topic_takes_the_name_of_another(store: Any) -> None:
    old, new = store.create_topic("orders", 2), store.create_topic("next", 3)
    old.append(b"old", partition=0)
    new.append(b"new", partition=2)
    store.groups.commit("billing", {("orders", 0): 1})
    replaced = store.replace_topic("orders", "next")
    assert (store.topics(), replaced.name, replaced.id, replaced.partitions) == (["orders"], "orders", new.id, 3)
    assert [record.value for record in store.topic("orders").scan()] == [b"new"]
    replaced.append(b"more", partition=2)
    with store.consumer("billing", ["orders"]) as consumer:  # its commits belong to another topic
        assert [record.value for record in consumer.drain()] == [b"new", b"more"]
    with pytest.raises(TopicNotFound):
        store.replace_topic("orders", "next")
    with pytest.raises(InvalidConfig, match="itself"):
        store.replace_topic("orders", "orders")


def test_a_topic_that_was_written_to_since_is_not_replaced(objects: ObjectStore) -> None:
    old = objects.create_topic("orders", 2)
    objects.create_topic("next")
    old.append(b"one", partition=1)
    ends = {0: 0, 1: 1}
    old.append(b"two", partition=1)
    with pytest.raises(OffsetMismatch):
        objects.replace_topic("orders", "next", ends=ends)
    with pytest.raises(OffsetMismatch):
        objects.replace_topic("orders", "next", ends={0: 0})
    assert objects.topics() == ["next", "orders"]
    assert [record.value for record in objects.topic("orders").scan()] == [b"one", b"two"]
    objects.replace_topic("orders", "next", ends={1: 2})
    assert objects.topics() == ["orders"]
    with pytest.raises(TopicNotFound):
        old.append(b"three", partition=1)


def test_replacing_a_topic_drops_its_entries(objects: ObjectStore) -> None:
    """Entries of the topic that has its name now are kept."""
    old, new = objects.create_topic("orders"), objects.create_topic("next")
    old.append(b"old")
    new.append(b"new")
    objects.groups.commit("billing", {("orders", 0): 1})
    objects.groups.commit("billing", {("next", 0): 1})
    objects.replace_topic("orders", "next")
    names = objects._session.look(lambda state: [name for name, _ in state.entries])
    assert not [name for name in names if old.id in name]
    assert {name.partition("/")[0] for name in names if new.id in name} == {"end", "extent", "offset"}


# --- consumers


def test_a_group_continues_at_its_committed_offsets(place: str) -> None:
    with sawlog.open(place, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", partitions=3)
        topic.append_many([(b"%d" % n, b"%d" % n) for n in range(30)])
        with store.consumer("billing", ["orders"]) as consumer:
            assert len(list(consumer.drain())) == 30
            assert consumer.assignment == {("orders", n) for n in range(3)}
            assert consumer.lag() == {("orders", n): 0 for n in range(3)}
        topic.append(b"new", key=b"k")
    with sawlog.open(place, maintenance_interval_s=None) as store, store.consumer("billing", ["orders"]) as consumer:
        assert [record.value for record in consumer.drain()] == [b"new"]
        about = store.groups.describe("billing")
        assert [member.topics for member in about.members] == [("orders",)]
        assert {row.owner for row in about.rows} == {about.members[0].id}
        with pytest.raises(GroupActive):
            store.groups.commit("billing", {("orders", 0): 0})
        consumer.close()
        assert store.groups.describe("billing").members == ()
        store.groups.seek("billing", {("orders", n): "earliest" for n in range(3)})
        with store.consumer("billing", ["orders"]) as again:
            assert len(list(again.drain())) == 31
        store.groups.delete("billing")
        assert store.groups.list() == []


def test_members_divide_partitions_and_rebalance(place: str) -> None:
    with (
        sawlog.open(place, maintenance_interval_s=None) as store,
        sawlog.open(place, maintenance_interval_s=None) as other,
    ):
        store.create_topic("orders", partitions=4)
        gone: list[set[tuple[str, int]]] = []
        first = store.consumer("billing", ["orders"], on_revoked=gone.append)
        assert len(first.assignment) == 4
        second = other.consumer("billing", ["orders"], member="two")

        def polled() -> bool:
            first.poll(0.01)
            second.poll(0.01)
            return len(first.assignment) == len(second.assignment) == 2

        _wait(polled)
        assert not first.assignment & second.assignment
        assert sum(map(len, gone)) == 2
        second.close()
        _wait(lambda: first.poll(0.01) == [] and len(first.assignment) == 4)
        first.close()


def test_a_group_with_start_latest_begins_at_the_end(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    topic.append_many([b"old"], partition=0)
    with store.consumer("late", ["orders"], start="latest") as consumer:
        assert consumer.poll(0.05) == []
        topic.append(b"new", partition=1)
        found: list[Any] = []
        _wait(lambda: bool(found.extend(consumer.poll(0.1)) or found))
        assert [record.value for record in found] == [b"new"]
    with store.consumer("late", ["orders"]) as consumer:
        assert list(consumer.drain()) == []
    with store.consumer(None, ["orders"]) as alone:
        assert len(list(alone.drain())) == 2


@pytest.mark.slow
def test_a_consumer_continues_in_a_recreated_or_enlarged_topic(place: str) -> None:
    with (
        sawlog.open(place, maintenance_interval_s=None) as store,
        sawlog.open(place, maintenance_interval_s=None) as other,
    ):
        store.create_topic("orders").append(b"old")
        with other.consumer("g", ["orders"]) as consumer:
            assert [record.value for record in consumer.poll(20.0)] == [b"old"]
            consumer.commit()
            store.delete_topic("orders")
            store.create_topic("orders").append(b"new")
            found: list[Any] = []
            _wait(lambda: bool(found.extend(consumer.poll(0.1)) or found))
            assert [record.value for record in found] == [b"new"]
            store.alter_topic("orders", 2)
            store.topic("orders").append(b"more", partition=1)
            found.clear()
            _wait(lambda: bool(found.extend(consumer.poll(0.1)) or found))
            assert [(record.partition, record.value) for record in found] == [(1, b"more")]


def test_paused_partitions_are_not_read(store: Any) -> None:
    topic = store.create_topic("orders", partitions=2)
    topic.append(b"a", partition=0)
    topic.append(b"b", partition=1)
    with store.consumer("g", ["orders"]) as consumer:
        consumer.pause(("orders", 0))
        assert [record.value for record in consumer.drain()] == [b"b"]
        consumer.resume(("orders", 0))
        assert [record.value for record in consumer.drain()] == [b"a"]
        consumer.seek("orders", 1, 0)
        assert [record.value for record in consumer.drain()] == [b"b"]
        consumer.commit()
        assert consumer.committed("orders", 1) == 1


@pytest.mark.slow
def test_a_busy_member_keeps_its_partitions_beyond_its_session_timeout(objects: ObjectStore) -> None:
    objects.create_topic("orders")
    with (
        ObjectStore.open(objects.path, maintenance_interval_s=None) as other,
        objects.consumer("g", ["orders"], session_timeout_ms=1500) as worker,
        other.consumer("g", ["orders"], session_timeout_ms=1500) as waiting,
    ):
        member = worker._membership.id  # type: ignore[union-attr]
        end = time.monotonic() + 5.0  # several session timeouts
        while time.monotonic() < end:
            assert worker.poll(0.02) == waiting.poll(0.02) == []
        assert worker._membership.id == member  # type: ignore[union-attr]
        assert (len(worker.assignment), len(waiting.assignment)) == (1, 0)


def test_a_silent_member_loses_its_partitions_and_cannot_commit(objects: ObjectStore) -> None:
    objects.create_topic("orders").append_many([b"a", b"b"])
    with ObjectStore.open(objects.path, maintenance_interval_s=None) as other:
        stuck = objects.consumer("g", ["orders"], session_timeout_ms=300)
        assert len(stuck.poll(5.0)) == 2
        stuck._membership._asked._began_s -= 1000  # type: ignore[union-attr] # no poll for a long time
        taker = other.consumer("g", ["orders"])
        found: list[Any] = []
        _wait(lambda: bool(found.extend(taker.poll(0.05)) or found))
        assert [record.value for record in found] == [b"a", b"b"]
        taker.commit()
        with pytest.raises(GroupFenced):
            stuck.commit()
        assert {share: each.offset for share, each in objects.groups.committed("g").items()} == {("orders", 0): 2}
        assert stuck.poll(0.01) == []  # joins again
        stuck.close()
        taker.close()


_MEMBER = """
import sys, time, sawlog
with sawlog.open(sys.argv[1]) as store:
    consumer = store.consumer("g", ["orders"], session_timeout_ms=3000)
    print(len(consumer.poll(20.0, 2)), flush=True)
    consumer.commit()
    print("committed", flush=True)
    while True:
        consumer.poll(0.1, 1)
"""


def test_another_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/store"
    with sawlog.open(place, maintenance_interval_s=None) as store:
        store.create_topic("orders").append_many([b"%d" % number for number in range(2)])
        with warm.start(["-c", _MEMBER, place], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert [process.stdout.readline(), process.stdout.readline()] == ["2\n", "committed\n"]
            with store.consumer("g", ["orders"]) as consumer:
                assert consumer.assignment == set()  # the other one has the only partition
                process.kill()
                store.topic("orders").append(b"new")
                found: list[Any] = []
                _wait(lambda: bool(found.extend(consumer.poll(0.1)) or found))
                assert [record.value for record in found] == [b"new"]


def test_a_group_with_a_dead_member_can_be_deleted(objects: ObjectStore) -> None:
    objects.create_topic("orders").append(b"a")
    with ObjectStore.open(objects.path, maintenance_interval_s=None) as other:
        dead = other.consumer("g", ["orders"], session_timeout_ms=2000)
        assert dead.poll(5.0)
        dead.commit()
        dead._membership._closed = True  # type: ignore[union-attr] # no heartbeat any more
        with pytest.raises(GroupActive):
            objects.groups.delete("g")
        _wait(lambda: objects.groups.describe("g").members == ())
        objects.groups.delete("g")
        assert objects.groups.list() == []
        with pytest.raises(GroupFenced):
            dead.close()
        alive = other.consumer("h", ["orders"])
        alive.poll(5.0)
        alive.commit()
        with pytest.raises(GroupActive):
            objects.groups.delete("h")
        alive.close()


@pytest.mark.slow  # a commit is tried for seconds
def test_a_consumer_continues_once_the_bucket_answers_again(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: Any, **__: Any) -> None:
        raise Unanswered(errno.EIO, "no answer")

    topic = objects.create_topic("orders", partitions=2)
    topic.append(b"a", partition=0)
    with objects.consumer("g", ["orders"]) as consumer:
        assert [record.value for record in consumer.poll(20.0)] == [b"a"]
        with monkeypatch.context() as outage:
            for name in ("get", "create", "get_range", "list"):
                outage.setattr(Bucket, name, unanswered)
            with pytest.raises(StorageError):
                consumer.commit()
            with pytest.raises(StorageError):
                objects.topics()
        topic.append(b"b", partition=1)
        found: list[Any] = []
        _wait(lambda: bool(found.extend(consumer.poll(0.1)) or found))
        assert [record.value for record in found] == [b"b"]
        consumer.commit()
    committed = {share: each.offset for share, each in objects.groups.committed("g").items()}
    assert committed == {("orders", 0): 1, ("orders", 1): 1}


def test_an_idle_consumer_polls_about_once_a_second(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    objects.create_topic("orders", partitions=4)
    with objects.consumer("g", ["orders"]) as consumer:
        _wait(lambda: objects._session._shared.pause_s >= 0.8 or consumer.poll(0.1) != [])
        counting = _Counting(monkeypatch)
        assert consumer.poll(1.2) == []
        assert counting.count <= 3


# --- names

#: Maintenance of one log in files, and its removal. On object storage `topic.maintain()` and `store.delete_topic()` do
#: it for a whole topic.
FILES_ONLY = {"compact", "apply_retention", "remove", "remove_expired", "maintain", "reader", "seal"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(sawlog.Store, ObjectStore), (sawlog.Topic, ObjectTopic), (sawlog.Log, ObjectPartition)],
    ids=["store", "topic", "partition"],
)
def test_every_method_in_the_guide_exists_on_object_storage(ours: type, theirs: type) -> None:
    """Every method in the documents exists on object storage, unless it is about files."""
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    called = set(re.findall(r"\b(?:store|topic|log|orders|partition)\.(\w+)\(", text))
    missing = {name for name in called if hasattr(ours, name) and not hasattr(theirs, name)}
    assert missing <= {"append_marker", "close", *FILES_ONLY}


def test_a_partition_on_object_storage_cannot_be_truncated(objects: ObjectStore) -> None:
    partition = objects.create_topic("orders").partition(0)
    assert not objects.supports_truncation
    with pytest.raises(StorageError, match=r"does not support truncate") as caught:
        partition.truncate(0)
    assert caught.value.errno == errno.ENOTSUP


def test_tasks_append_records_and_streams(store: Any) -> None:
    partition = store.create_topic("orders").partition(0)

    async def chunks(fails: bool = False) -> AsyncIterator[bytes]:
        yield b"one "
        if fails:
            raise OSError("gone")
        yield b"two"

    async def run() -> list[int]:
        made = await asyncio.gather(*(partition.append_async(b"%d" % n) for n in range(10)))
        with pytest.raises(StreamAborted):
            await partition.append_stream_async(chunks(fails=True))
        with pytest.raises(StreamTooLong):
            await partition.append_stream_async(chunks(), max_bytes=5)
        with pytest.raises(OffsetMismatch):
            await partition.append_async(b"x", expect_offset=5)
        return [*made, await partition.append_stream_async(chunks(), b"key")]

    offsets = asyncio.run(run())
    assert sorted(offsets) == list(range(11))
    assert partition.read(10).value == b"one two"
    assert {partition.read(offset).value for offset in offsets[:10]} == {b"%d" % n for n in range(10)}


# --- invalid input and missing objects


@pytest.mark.parametrize("given", ["a", 1.5, True, [1], b"1"])
def test_an_invalid_expected_offset_is_refused_before_anything_is_stored(objects: ObjectStore, given: Any) -> None:
    partition = objects.create_topic("orders").partition(0)
    before = objects._session.known()
    with pytest.raises(InvalidRecordType, match="expect_offset"):
        partition.append(b"x", expect_offset=given)
    assert objects._session.known() == before


def test_trimming_beyond_the_end_drops_nothing(store: Any) -> None:
    partition = store.create_topic("orders").partition(0)
    partition.append_many([b"a", b"b"])
    for offset in (3, 2**70):
        with pytest.raises(OffsetOutOfRange):
            partition.trim(offset)
    assert (partition.lowest_offset, len(list(partition.scan()))) == (0, 2)
    assert partition.trim(2) == 2


@pytest.mark.parametrize(
    "options",
    [{"endpoint": "nonsense"}, {"timeout": 30}, ["a"], "region=x", {1: "x"}],
    ids=["no scheme", "a number", "a list", "a text", "no name"],
)
def test_invalid_options_raise_errors_of_sawlog(options: Any) -> None:
    with pytest.raises(InvalidConfig):
        ObjectStore.open("s3://bucket/store", options=options)


def test_an_endpoint_in_the_environment_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(InvalidConfig, match="must begin with http"):
        ObjectStore.open("s3://bucket/store")


@pytest.mark.parametrize("missing", [1, 3])
def test_a_missing_commit_before_others_is_damage_and_not_the_end(tmp_path: Path, missing: int) -> None:
    place = f"file://{tmp_path}/bucket"
    with sawlog.open(place, maintenance_interval_s=None) as store:
        partition = store.create_topic("orders").partition(0)
        for number in range(6):
            partition.append(b"%d" % number)
    lost = tmp_path / f"bucket/commits/{missing:020}"
    content = lost.read_bytes()
    lost.unlink()
    for mode in ("r", "w"):
        with pytest.raises(CorruptData, match=f"{missing:020} is missing"):
            sawlog.open(place, mode, maintenance_interval_s=None)  # type: ignore[call-overload]
    lost.write_bytes(content)
    with sawlog.open(place, maintenance_interval_s=None) as store:
        assert len(list(store.topic("orders").partition(0).scan())) == 6


@pytest.mark.parametrize("what", ["consumer", "queue"])
def test_a_program_that_closes_nothing_exits(tmp_path: Path, what: str) -> None:
    program = """
import sys, sawlog
store = sawlog.open(sys.argv[1])
store.create_topic("orders").append(b"x")
if sys.argv[2] == "consumer":
    kept = store.consumer("group", ["orders"])
else:
    kept = store.queue("orders", group="group")
next(iter(kept))
"""
    ended = warm.run(["-c", program, f"file://{tmp_path}/bucket", what], timeout=60)
    assert ended.returncode == 0, ended.stderr
