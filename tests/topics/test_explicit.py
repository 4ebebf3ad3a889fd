"""Explicit options by name, expected offsets and pauses, and their types for a type checker."""

from __future__ import annotations

import inspect
import pydoc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sawlog
from sawlog import Consumer, Log, Record, Store, Topic, Writer
from sawlog.aio.store import AsyncStore
from sawlog.errors import (
    DirectoryLocked,
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    OffsetMismatch,
    StoreNotFound,
    StreamTooLong,
)
from sawlog.store.base import TopicPartition
from sawlog.store.writer import TopicWriter
from sawlog.typed.views import ConsumerOptions

from .stores import FilePlace, StorePlace, values

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(place: StorePlace) -> Store:
    """A store with ten records in each of two partitions."""
    store = place.open()
    topic = store.create_topic("orders", partitions=2)
    for number in range(2):
        topic.append_many([b"%d" % i for i in range(10)], partition=number)
    return store


# --- options of a consumer


def test_a_consumer_has_its_options_by_name() -> None:
    own, made = (inspect.signature(each).parameters for each in (Store.consumer, Consumer.__init__))
    assert [name for name, each in made.items() if each.kind is each.KEYWORD_ONLY] == [
        name for name, each in own.items() if each.kind is each.KEYWORD_ONLY
    ]


@pytest.mark.parametrize(
    ("kafka", "ours"),
    [
        ({"auto_offset_reset": "latest"}, "start='latest', on_lost='latest'"),
        ({"auto_offset_reset": "none"}, "on_lost='error'"),
        ({"enable_auto_commit": False}, "auto_commit_ms=None"),
        ({"enable_auto_commit": True}, "nothing: it is the default"),
        ({"auto_commit_interval_ms": 7}, "auto_commit_ms=7"),
        ({"isolation_level": "read_uncommitted"}, "isolation='uncommitted'"),
        ({"client_id": "me"}, "member='me'"),
    ],
)
def test_kafkas_names_are_understood_with_a_hint(store: Store, kafka: dict[str, Any], ours: str) -> None:
    with pytest.warns(UserWarning, match="Kafka's name") as caught:
        made = store.consumer("billing", "orders", **kafka)
    assert ours in str(caught[0].message)
    assert caught[0].filename == __file__
    assert len(list(made.drain())) == (0 if ours.startswith("start='latest'") else 20)
    made.close()


def test_automatic_commits_that_are_switched_off_stay_off(store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        options: dict[str, Any] = {"enable_auto_commit": False, "auto_commit_interval_ms": 1}
        with store.consumer("billing", "orders", **options) as consumer:
            assert len(list(consumer.drain())) == 20
    assert store.consumer("billing", "orders").committed("orders", 0) is None


@pytest.mark.parametrize("kafka", [{"auto_offset_reset": "soon"}, {"isolation_level": "snapshot"}])
def test_a_value_that_kafka_would_refuse_is_refused(store: Store, kafka: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(kafka))):
        store.consumer("billing", "orders", **kafka)


def test_an_unknown_option_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'auto_offset'"):
        store.consumer("billing", "orders", auto_offset="latest")  # type: ignore[call-arg] # that is the point


# --- pausing, rebalancing


def test_a_paused_partition_is_not_read_until_it_is_resumed(store: Store) -> None:
    with store.consumer("billing", "orders") as consumer:
        consumer.pause(("orders", 1))
        assert consumer.paused == {("orders", 1)}
        assert {record.partition for record in consumer.drain()} == {0}
        assert consumer.assignment == {("orders", 0), ("orders", 1)}
        consumer.resume()
        assert [record.offset for record in consumer.drain()] == list(range(10))
        assert consumer.paused == set()


def test_pausing_between_two_records_loses_none(store: Store) -> None:
    seen: list[tuple[int, int]] = []
    with store.consumer("billing", "orders") as consumer:
        for record in consumer.drain():
            seen.append((record.partition, record.offset))
            if len(seen) == 3:
                consumer.pause((str(record.topic), record.partition))
        assert len(seen) == 13
        consumer.resume()
        consumer.pause()
        assert consumer.poll(0.0) == []
        consumer.resume(*consumer.paused)
        seen += [(record.partition, record.offset) for record in consumer.poll()]
    assert sorted(seen) == [(number, offset) for number in range(2) for offset in range(10)]


def test_members_are_told_which_partitions_they_get_and_lose(store: Store) -> None:
    told: list[tuple[str, set[TopicPartition]]] = []
    both = {("orders", 0), ("orders", 1)}
    first = store.consumer(
        "billing",
        "orders",
        auto_commit_ms=None,
        on_assigned=lambda partitions: told.append(("got", partitions)),
        on_revoked=lambda partitions: (told.append(("loses", partitions)), first.commit())[0],
    )
    assert told == []
    assert len(first.poll()) == 20
    assert told == [("got", both)]
    with store.consumer("billing", "orders") as second:
        while len(told) == 1:
            first.poll(0.01)
        [(what, lost)] = told[1:]
        assert what == "loses"
        assert len(lost) == 1
        [(topic, number)] = lost
        assert second.committed(topic, number) == 10
        while not second.assignment:
            second.poll(0.01)
        assert second.assignment == lost
    while len(told) == 2:
        first.poll(0.01)
    assert told[2] == ("got", lost)
    first.close()
    assert told[3] == ("loses", both)


def test_a_consumer_may_seek_in_the_callback_for_assigned_partitions(store: Store) -> None:
    def skip(partitions: set[TopicPartition]) -> None:
        for topic, number in partitions:
            made[0].seek(topic, number, 8)

    made = [store.consumer("billing", "orders", on_assigned=skip)]
    assert sorted(record.offset for record in made[0].drain()) == [8, 8, 9, 9]
    made[0].close()


# --- expectations


@pytest.mark.parametrize("elsewhere", [False, True])
def test_every_append_of_a_topic_can_expect_an_offset(file_place: FilePlace, elsewhere: bool) -> None:
    holder = file_place.open()
    topic = holder.create_topic("orders", partitions=2)
    topic.partition(0).append(b"0")
    if elsewhere:
        topic = file_place.open()["orders"]
    batch = topic._router.encoded([b"4"], 0)[0]
    assert topic.append(b"1", partition=0, expect_offset=1) == (0, 1)
    assert topic.append_many([b"2"], partition=0, expect_offset=2) == {0: range(2, 3)}
    assert topic.append_arrow(pa.table({"value": [b"3"]}), partition=0, expect_offset=3) == {0: range(3, 4)}
    assert topic.append_batches(batch, 0, expect_offset=4) == range(4, 5)
    for wrong in (4, 6):
        for write in (
            lambda wrong=wrong: topic.append(b"x", partition=0, expect_offset=wrong),
            lambda wrong=wrong: topic.append_many([b"x"], partition=0, expect_offset=wrong),
            lambda wrong=wrong: topic.append_arrow(pa.table({"value": [b"x"]}), partition=0, expect_offset=wrong),
            lambda wrong=wrong: topic.append_batches(batch, 0, expect_offset=wrong),
        ):
            with pytest.raises(OffsetMismatch):
                write()
    assert values(topic.partition(0).scan()) == [b"%d" % i for i in range(5)]
    assert topic.append(b"5", partition=0) == (0, 5)  # a lane that was refused goes on


def test_a_stream_to_a_topic_goes_where_its_key_goes_and_can_expect_an_offset(store: Store) -> None:
    topic = store["orders"]
    number, offset = topic.append_stream([b"a", b"b"], b"key", headers=[("h", b"1")])
    assert number == topic.append(b"same key", b"key")[0]
    found = topic.partition(number).read(offset)
    assert (found.value, found.key, found.headers) == (b"ab", b"key", (("h", b"1"),))
    end = topic.partition(0).next_offset
    assert topic.append_stream([b"c"], partition=0, expect_offset=end) == (0, end)
    with pytest.raises(OffsetMismatch):
        topic.append_stream([b"d"], partition=0, expect_offset=end)
    with pytest.raises(StreamTooLong):
        topic.append_stream([b"e" * 10], partition=0, max_bytes=9)
    assert topic.partition(0).next_offset == end + 1


def test_a_stream_waits_until_another_process_gives_the_lock_back(file_place: FilePlace) -> None:
    first = file_place.open().create_topic("orders")
    first.append(b"0")  # takes the lock, and gives it back when it is asked for
    second = file_place.open()
    assert second["orders"].append_stream([b"1"]) == (0, 1)
    second.close()
    occupied = file_place.occupy("orders", 0)
    with pytest.raises(DirectoryLocked, match="timed out"):
        file_place.open(lock_timeout=0.2)["orders"].append_stream([b"2"])
    assert values(occupied.scan()) == [b"0", b"1"]


def test_what_goes_to_several_partitions_cannot_expect_an_offset(store: Store) -> None:
    keyed = [(b"v", b"%d" % i) for i in range(20)]
    with pytest.raises(InvalidRecord, match="several"):
        store["orders"].append_many(keyed, expect_offset=10)
    table = pa.table({"value": [b"v"] * 20, "key": [key for _, key in keyed]})
    with pytest.raises(InvalidRecord, match="several"):
        store["orders"].append_arrow(table, expect_offset=10)
    assert store["orders"].describe().records == 20


# --- logs


def test_an_offset_is_in_a_log_if_it_has_a_record(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append_many([b"x"] * 10)
        log.trim(3)
        assert [offset for offset in range(-2, 12) if offset in log] == list(range(3, 10))
        assert np.int64(5) in log
        assert np.int64(2) not in log
        for wrong in (b"x", "3", 3.0, True, None):
            with pytest.raises(InvalidRecordType):
                assert wrong in log


# --- what help and type checkers see


@pytest.mark.parametrize("kind", [Writer, TopicWriter])
def test_the_append_of_a_writer_is_a_method_with_a_signature(kind: type[Any], store: Store) -> None:
    assert list(inspect.signature(kind.append).parameters) == ["self", "value", "key", "headers", "timestamp"]
    assert "Add one record" in pydoc.render_doc(kind.append)
    with store["orders"].writer() as writer:
        TopicWriter.append(writer, b"by the class", b"key")  # the same as what instances have
        writer.append(b"by the instance", b"key")
    assert [record.value for record in store["orders"].scan() if record.key] == [b"by the class", b"by the instance"]


def test_help_shows_the_types_of_a_records_fields() -> None:
    shown = pydoc.render_doc(Record)
    for line in ("offset: int", "key: bytes | None", "headers: tuple[tuple[str, bytes | None], ...]"):
        assert line in shown


@pytest.mark.parametrize("kind", [Log, Store, Topic])
def test_attributes_are_found_without_code_of_ours(kind: type) -> None:
    """CPython 3.11 specialises no access to attributes if the class has `__getattr__`, and an append needs several."""
    assert not hasattr(kind, "__getattr__")
    assert kind.__getattribute__ is object.__getattribute__


def test_errors_say_what_is_meant(tmp_path: Path, store: Store) -> None:
    (tmp_path / "file").write_text("")
    for mode in ("w", "r"):
        with pytest.raises(StoreNotFound, match="a file, not a directory"):
            sawlog.open(tmp_path / "file", mode)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=r"did you mean retention\.ms\?"):
        store.create_topic("new", **{"retenton.ms": 1})  # type: ignore[misc]
    with pytest.raises(TypeError, match="the group is the first argument"):
        store.consumer("g", "orders", group_id="g")  # type: ignore[call-arg]
    with pytest.raises(InvalidRecordType, match=r"topic\.typed"):
        store["orders"].append({"id": 7})  # type: ignore[arg-type]


def test_all_kinds_of_consumers_have_the_same_options() -> None:
    places = {"self", "group", "topics", "kafka"}
    of_store = set(inspect.signature(Store.consumer).parameters) - places
    of_async = set(inspect.signature(AsyncStore.consumer).parameters) - places
    of_class = set(inspect.signature(Consumer).parameters) - {"store"} - places
    assert of_store == of_async == of_class == set(ConsumerOptions.__annotations__)
