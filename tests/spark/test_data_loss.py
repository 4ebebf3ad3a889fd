"""A planned range is read completely, or `DataLoss` is raised.

Logs are cut off and grow again, topics and stores are recreated, between any two steps of a query (`Query` plays
Spark's part). With failOnDataLoss=true that is an error; with false every record that is in the log is still delivered.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from errno import EMFILE, ENOSPC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sawlog
from sawlog import Topic
from sawlog.errors import DataLoss, SawlogError, StorageError, StoreNotFound
from sawlog.spark import commit, reading, subscription, writing
from sawlog.spark.options import read_options, write_options
from sawlog.spark.reading import BatchReader, Task
from sawlog.storage import FileDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Call, Fault, FaultyDirectory

from .jobs.copying import copy
from .test_streaming import Query, append, values


@pytest.fixture
def orders(store: DirectoryStore) -> Topic:
    """Ten records in one partition."""
    topic = store.create_topic("orders", segment_bytes=300, durability="os")
    append(topic, *range(10))
    return topic


def stored(topic: Topic) -> list[int]:
    return sorted(int(record.value or b"") for record in topic.scan())


def cut(topic: Topic, offset: int, *more: int) -> None:
    """Cut a partition off at `offset`, and append these."""
    topic.partition(0).truncate(offset)
    append(topic, *more)


def recreated(store: DirectoryStore, *more: int, partitions: int = 1) -> Topic:
    store.delete_topic("orders")
    topic = store.create_topic("orders", partitions, durability="os")
    append(topic, *more)
    return topic


def batch_reader(data: Path, **options: Any) -> BatchReader:
    given = {"path": str(data), "subscribe": "orders", **{name: str(value) for name, value in options.items()}}
    return BatchReader(read_options(given, streaming=False), ("topic", "partition", "offset", "value"))


def read(reader: BatchReader, tasks: Any) -> list[int]:
    """Run the tasks, each pickled as it would be sent to a worker, and return their values."""
    copied = pickle.loads(pickle.dumps(tasks))
    return sorted(int(value) for task in copied for b in reader.read(task) for value in b.column("value").to_pylist())


# --- the start of a micro-batch


@pytest.mark.parametrize("more", [range(100, 101), range(100, 105), range(100, 120)])
def test_a_log_that_was_cut_off_below_what_was_read_is_data_loss(data: Path, orders: Topic, more: range) -> None:
    """However far it has grown since: shorter than before, as long, or longer."""
    query = Query(data)
    query.drain()
    cut(orders, 5, *more)
    with pytest.raises(DataLoss, match=r"partition 0 of 'orders' was read up to offset 10.*from offset 5 on"):
        query.restart().trigger()


@pytest.mark.parametrize("more", [range(100, 101), range(100, 105), range(100, 120)])
@pytest.mark.parametrize("limit", [None, 2])
def test_what_replaced_records_that_were_read_is_read_if_data_loss_is_no_failure(
    data: Path, orders: Topic, more: range, limit: int | None
) -> None:
    query = Query(data, failOnDataLoss=False, **({} if limit is None else {"maxOffsetsPerTrigger": limit}))
    query.drain()
    cut(orders, 5, *more)
    assert values(query.restart().drain()) == list(more)


def test_a_loss_is_said_and_counted_once_however_often_spark_asks(
    data: Path, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(data, failOnDataLoss=False)
    query.drain()
    cut(orders, 5)
    with caplog.at_level(logging.WARNING, "sawlog.spark"):
        assert [query.trigger() for _ in range(3)] == [None, None, None]
    assert query.reader.positions_lost == 1
    assert ["continuing at offset 5" in record.getMessage() for record in caplog.records] == [True]


def test_an_epoch_that_begins_where_a_query_is_makes_no_empty_micro_batch(data: Path, orders: Topic) -> None:
    query = Query(data)
    query.drain()
    append(orders, 100)
    cut(orders, 10)
    assert orders.partition(0).leader_epoch == 1
    assert query.restart().trigger() is None
    append(orders, 101)
    assert values(query.drain()) == [101]
    assert query.offsets[-1]["$sawlog"]["epochs"] == {"orders": {"0": 1}}


# --- the end of a micro-batch


@pytest.mark.parametrize("more", [(), (100,), tuple(range(100, 120))])
def test_a_planned_end_that_is_not_there_any_more_is_data_loss(
    data: Path, orders: Topic, more: tuple[int, ...]
) -> None:
    """Spark would take it as read."""
    query = Query(data)
    assert query.construct()
    cut(orders, 5, *more)
    with pytest.raises(DataLoss, match="records 5 to 9 of partition 0 of 'orders' are gone"):
        query.restart().read()


@pytest.mark.parametrize("more", [(), (100,), tuple(range(100, 120))])
def test_what_is_left_of_a_planned_range_is_read_and_then_what_follows_if_data_loss_is_no_failure(
    data: Path, orders: Topic, more: tuple[int, ...]
) -> None:
    query = Query(data, failOnDataLoss=False)
    assert query.construct()
    cut(orders, 5, *more)
    assert values(query.restart().trigger() or []) == list(range(5))
    append(orders, 200)
    assert values(query.drain()) == [*more, 200]


def test_a_range_whose_beginning_is_gone_is_data_loss(data: Path, orders: Topic) -> None:
    query = Query(data, groupId="spark")
    assert query.construct()
    orders.trim({0: 4})
    with pytest.raises(DataLoss, match="records 0 to 3 of partition 0"):
        query.restart().read()


def test_what_is_available_now_has_to_be_there_when_it_is_read(data: Path, orders: Topic) -> None:
    query = Query(data, maxOffsetsPerTrigger=4).restart(available_now=True)
    assert values(query.trigger() or []) == [0, 1, 2, 3]
    cut(orders, 6, *range(100, 120))
    with pytest.raises(DataLoss, match="records 6 to 9"):
        query.trigger()


def test_what_was_available_is_read_as_far_as_it_is_there_if_data_loss_is_no_failure(data: Path, orders: Topic) -> None:
    query = Query(data, maxOffsetsPerTrigger=4, failOnDataLoss=False).restart(available_now=True)
    query.trigger()
    cut(orders, 6, *range(100, 120))
    assert values(query.drain()) == [4, 5]
    assert values(query.restart(available_now=True).drain()) == list(range(100, 120))


# --- topics and stores


@pytest.mark.parametrize("count", [1, 10, 30])
def test_a_topic_that_was_recreated_is_data_loss_however_long_it_is(
    data: Path, store: DirectoryStore, orders: Topic, count: int
) -> None:
    query = Query(data)
    query.drain()
    recreated(store, *range(100, 100 + count))
    with pytest.raises(DataLoss, match=r"'orders' in .* was deleted and recreated"):
        query.restart().trigger()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("count", [1, 10, 30])
def test_a_topic_that_was_recreated_is_read_from_its_first_record_if_data_loss_is_no_failure(
    data: Path, store: DirectoryStore, count: int, partitions: int
) -> None:
    """Also if its partitions take turns, because a micro-batch may have one record only."""
    append(store.create_topic("orders", 2, durability="os"), *range(10))
    query = Query(data, failOnDataLoss=False, maxOffsetsPerTrigger=1)
    query.drain()
    recreated(store, *range(100, 100 + count), partitions=partitions)
    assert values(query.restart().drain()) == list(range(100, 100 + count))


def test_a_topic_that_was_recreated_and_is_empty_makes_no_empty_micro_batch(
    data: Path, store: DirectoryStore, orders: Topic
) -> None:
    query = Query(data, failOnDataLoss=False)
    query.drain()
    anew = recreated(store)
    assert query.restart().trigger() is None
    append(anew, *range(100, 110))
    assert values(query.drain()) == list(range(100, 110))


@pytest.mark.parametrize("fail", [True, False])
def test_a_range_that_was_planned_for_the_old_topic_is_not_read_from_the_new_one(
    data: Path, store: DirectoryStore, orders: Topic, fail: bool
) -> None:
    query = Query(data, failOnDataLoss=fail)
    assert query.construct()
    recreated(store, *range(100, 130))
    query.restart()
    if fail:
        with pytest.raises(DataLoss, match="was deleted and recreated"):
            query.read()
        return
    assert query.trigger() == []
    assert values(query.drain()) == list(range(100, 130))


@pytest.mark.parametrize("fail", [True, False])
def test_a_planned_range_of_a_topic_that_was_deleted_is_data_loss_also_under_a_pattern(
    data: Path, store: DirectoryStore, orders: Topic, fail: bool
) -> None:
    query = Query(data, subscribePattern="ord.*", failOnDataLoss=fail)
    assert query.construct()
    store.delete_topic("orders")
    query.restart()
    if fail:
        with pytest.raises(DataLoss, match="records up to 9 of partition 0 of 'orders' are gone"):
            query.read()
    else:
        assert query.trigger() == []


def replace_store(data: Path) -> None:
    """Another process puts another store at the same path."""
    program = (
        "import os, sys, sawlog\n"
        "os.rename(sys.argv[1], sys.argv[1] + '.before')\n"
        "with sawlog.open(sys.argv[1], maintenance_interval_s=None) as store:\n"
        "    store.create_topic('orders').append_many([b'%d' % n for n in range(100, 130)])\n"
    )
    subprocess.run([sys.executable, "-c", program, str(data)], check=True)


@pytest.mark.parametrize("fail", [True, False])
def test_a_task_that_finds_another_store_at_its_path_fails(
    data: Path, store: DirectoryStore, orders: Topic, fail: bool
) -> None:
    """A worker with another mount: the records are not gone, and must not be left out."""
    reader = batch_reader(data, failOnDataLoss=fail)
    tasks = reader.partitions()
    store.close()
    replace_store(data)
    with pytest.raises(DataLoss, match="is another store here"):
        read(reader, tasks)


def test_a_query_notices_another_store_at_its_path(data: Path, store: DirectoryStore, orders: Topic) -> None:
    strict, lax = Query(data), Query(data, failOnDataLoss=False)
    strict.drain()
    lax.drain()
    store.close()
    replace_store(data)
    with pytest.raises(DataLoss, match="is another store than the one that was read"):
        strict.restart().trigger()
    assert values(lax.restart().drain()) == list(range(100, 130))


# --- checkpoints without epochs


def old(offsets: dict[str, Any]) -> dict[str, Any]:
    return {topic: each for topic, each in offsets.items() if topic != "$sawlog"}


def test_a_checkpoint_of_version_0_2_goes_on_and_makes_no_empty_micro_batch(data: Path, orders: Topic) -> None:
    query = Query(data)
    query.drain()
    query.offsets = [old(each) for each in query.offsets]
    assert query.restart().trigger() is None
    append(orders, 100)
    assert values(query.drain()) == [100]
    assert query.offsets[-1]["$sawlog"]["epochs"] == {"orders": {"0": 0}}


def test_a_planned_micro_batch_of_version_0_2_is_read_or_data_loss(data: Path, orders: Topic) -> None:
    query = Query(data)
    assert query.construct()
    query.offsets = [old(each) for each in query.offsets]
    assert values(query.restart().read()) == list(range(10))
    cut(orders, 8)
    with pytest.raises(DataLoss, match="records 8 to 9"):
        query.restart().read()


def test_a_position_of_version_0_2_is_checked_against_the_end(data: Path, orders: Topic) -> None:
    strict, lax = Query(data), Query(data, failOnDataLoss=False)
    for query in (strict, lax):
        query.drain()
        query.offsets = [old(each) for each in query.offsets]
        query.restart()
    cut(orders, 5, 100)
    with pytest.raises(DataLoss, match="was read up to offset 10, but now ends at 6"):
        strict.trigger()
    assert values(lax.drain()) == [0, 1, 2, 3, 4, 100]


def test_the_offsets_of_a_checkpoint_can_be_given_as_a_start_and_an_end(data: Path, orders: Topic) -> None:
    query = Query(data, maxOffsetsPerTrigger=4)
    query.drain()
    start, end = (json.dumps(each) for each in query.offsets[:2])
    reader = batch_reader(data, startingOffsets=start, endingOffsets=end)
    assert read(reader, reader.partitions()) == [4, 5, 6, 7]
    assert values(Query(data, startingOffsets=end).drain()) == [8, 9]


# --- between planning and reading


@pytest.mark.parametrize("more", [(), (100,), tuple(range(100, 120))])
def test_a_log_that_is_cut_off_between_planning_and_reading_is_data_loss(
    data: Path, orders: Topic, more: tuple[int, ...]
) -> None:
    reader, lax = batch_reader(data), batch_reader(data, failOnDataLoss=False)
    tasks = reader.partitions()
    cut(orders, 5, *more)
    with pytest.raises(DataLoss, match=r"offsets \d to \d of .*/orders/partition-0 are gone"):
        read(reader, tasks)
    assert read(lax, tasks) == list(range(5))


def test_a_topic_that_is_recreated_between_planning_and_reading_is_data_loss(data: Path, store: DirectoryStore) -> None:
    append(store.create_topic("orders", 2, segment_bytes=300, durability="os"), *range(20))
    reader, lax = batch_reader(data), batch_reader(data, failOnDataLoss=False)
    tasks = reader.partitions()
    recreated(store, *range(100, 130), partitions=2)
    with pytest.raises(DataLoss, match="'orders' was deleted and recreated since this job was planned"):
        read(reader, tasks)
    assert read(lax, tasks) == []


def test_what_is_left_of_a_slice_is_read_if_data_loss_is_no_failure(data: Path, store: DirectoryStore) -> None:
    """Its file was merged away, and its first records were trimmed."""
    topic = store.create_topic("orders", durability="os")
    for number in range(4):
        append(topic, *range(number * 10, number * 10 + 10))
        topic.partition(0).seal()
    reader = batch_reader(data, failOnDataLoss=False)
    tasks = reader.partitions()
    assert topic.partition(0)._merge_segments()
    topic.trim({0: 15})
    assert set(range(15, 40)) <= set(read(reader, tasks))


def test_segments_that_are_rewritten_between_planning_and_reading_are_read_completely(
    data: Path, store: DirectoryStore
) -> None:
    topic = store.create_topic("orders", durability="os")
    for number in range(4):
        append(topic, *range(number * 10, number * 10 + 10))
        topic.partition(0).seal()
    append(topic, 40)
    reader = batch_reader(data)
    tasks = reader.partitions()
    assert topic.partition(0)._merge_segments()
    assert read(reader, tasks) == list(range(41))
    tasks = reader.partitions()
    topic.partition(0)._recompress()
    assert read(reader, tasks) == list(range(41))


def test_a_compacted_log_with_holes_is_read_completely(data: Path, store: DirectoryStore) -> None:
    topic = store.create_topic("orders", segment_bytes=300, durability="os", cleanup_policy="compact")
    for number in range(60):
        topic.append(b"%d" % number, key=b"%d" % (number % 4))
    reader = batch_reader(data)
    before = reader.partitions()
    topic.partition(0).compact()
    left = stored(topic)
    assert len(left) < 60
    assert set(left) <= set(read(reader, before))
    assert read(reader, reader.partitions()) == left
    assert values(Query(data, maxOffsetsPerTrigger=7).drain()) == left


@pytest.mark.parametrize("fail", [True, False])
def test_errors_of_the_storage_are_raised_and_not_taken_for_data_loss(data: Path, orders: Topic, fail: bool) -> None:
    reader = batch_reader(data, failOnDataLoss=fail)
    tasks = reader.partitions()
    assert read(reader, tasks) == list(range(10))
    os.rename(data, f"{data}.away")
    with pytest.raises(StoreNotFound):
        read(reader, tasks)
    os.rename(f"{data}.away", data)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        with pytest.raises(OSError, match=os.strerror(EMFILE)):
            read(reader, tasks)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read(reader, tasks) == list(range(10))


def test_errors_after_the_store_was_opened_are_raised_too(
    data: Path, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = FaultyDirectory(FileDirectory(data))
    monkeypatch.setattr(subscription, "open_for_task", lambda path: DirectoryStore.open(directory, "r"))
    reader = batch_reader(data, failOnDataLoss=False)
    tasks = reader.partitions()
    directory.arm(Fault(errno=EMFILE, operations={"open_sealed", "open_shared"}, names="*.log", forever=True))
    with pytest.raises(StorageError) as caught:
        read(reader, tasks)
    assert caught.value.errno == EMFILE
    directory.disarm()
    assert read(reader, tasks) == list(range(10))


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_deleted_while_a_task_reads_it_is_data_loss(
    data: Path, store: DirectoryStore, orders: Topic, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    directory = FaultyDirectory(FileDirectory(data))
    monkeypatch.setattr(subscription, "open_for_task", lambda path: DirectoryStore.open(directory, "r"))
    reader = batch_reader(data, failOnDataLoss=fail)
    tasks = reader.partitions()

    def delete(call: Call) -> None:
        if call.name.endswith(".log"):
            directory.before = None
            store.delete_topic("orders")

    directory.before = delete
    if fail:
        with pytest.raises(DataLoss, match="of partition 0 of 'orders' are gone"):
            read(reader, tasks)
    else:
        assert read(reader, tasks) == []
    assert directory.before is None


def test_a_task_opens_the_store_once(data: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = store.create_topic("orders", segment_bytes=300, durability="os")
    append(orders, *range(60))
    orders.partition(0)._end_turn()  # which happens by itself sooner or later, and closes files
    reader = batch_reader(data)
    [task] = reader.partitions()
    assert isinstance(task, Task)
    assert len(task.pieces) > 6
    opened: list[str] = []
    real = subscription.open_for_task
    monkeypatch.setattr(subscription, "open_for_task", lambda where: [opened.append(where.path), real(where)][1])
    before = open_below(data)
    assert read(reader, [task]) == list(range(60))
    assert opened == [str(data)]
    assert open_below(data) == before


def open_below(directory: Path) -> list[str]:
    """The files of a directory that this process has open; other threads may open and close others meanwhile."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in found if name.startswith(str(directory)))


def test_a_task_carries_ids_epoch_and_both_ends(data: Path, store: DirectoryStore, orders: Topic) -> None:
    cut(orders, 5, 100)
    [task] = batch_reader(data).partitions()
    assert isinstance(task, Task)
    assert (task.path, task.store) == (str(data), store.id)
    assert {(piece.topic, piece.topic_id, piece.what.epoch) for piece in task.pieces} == {("orders", orders.id, 1)}
    assert (task.pieces[0].what.start_offset, task.pieces[-1].what.end_offset) == (0, 6)


# --- what is shown of it


def test_the_progress_that_is_shown_has_epochs(data: Path, store: DirectoryStore, orders: Topic) -> None:
    cut(orders, 5, 100)
    query = Query(data, groupId="spark")
    query.drain()
    committed = store.groups._offsets.of("spark")["orders", 0]
    assert (committed.offset, committed.leader_epoch, committed.topic_id) == (6, 1, orders.id)


def test_the_progress_in_an_old_topic_is_not_shown_for_a_new_one(
    data: Path, store: DirectoryStore, orders: Topic
) -> None:
    query = Query(data, groupId="spark", failOnDataLoss=False)
    query.trigger()
    anew = recreated(store)
    query.trigger()
    assert [each.topic_id for each in store.groups._offsets.of("spark").values()] == []
    append(anew, 100)
    assert values(query.drain()) == [100]
    assert [each.topic_id for each in store.groups._offsets.of("spark").values()] == [anew.id]


# --- a job that reads what another one writes to a full disk


@pytest.mark.parametrize("operation", ["claim", "append"])
def test_a_commit_that_fails_in_its_second_partition_loses_nothing_for_who_reads_it(
    data: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Job A commits to two partitions, and the disk is full when the second one is placed. Job B asks for more before
    every single call that A makes; whatever it is told, it gets every record once in the end."""
    store.create_topic("orders", 2)
    store.close()
    directory = FaultyDirectory(FileDirectory(data))
    monkeypatch.setattr(commit, "open_store", lambda path: DirectoryStore.open(directory, maintenance_interval_s=None))
    options = write_options({"path": str(data), "topic": "orders"})

    def publish() -> None:
        stage = commit.stage_name("a", 0)
        staged = []
        for number in range(2):
            rows = {
                "value": pa.array([b"%d" % (number * 1000 + n) for n in range(1000)]),
                "partition": pa.array([number] * 1000, pa.int32()),
            }
            staged.append(writing.stage(iter([pa.RecordBatch.from_pydict(rows)]), options, stage, "a"))
        commit.publish(options, stage, staged, name="a", sequence=0)

    query, found = Query(data), []

    def look(call: Call) -> None:
        directory.before = None
        found.extend(query.drain())
        directory.before = look

    directory.before = look
    directory.arm(Fault(errno=ENOSPC, operations={operation}, names="*partition-1/*.log"))
    with pytest.raises(SawlogError):
        publish()
    assert directory.failed
    directory.disarm()
    publish()
    directory.before = None
    found += query.restart().drain()
    assert values(found) == list(range(2000))


# --- everything together

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("cut"), st.integers(1, 9)),
        st.sampled_from([("recreate", 0), ("plan", 0), ("read", 0), ("trigger", 0), ("kill", 0), ("now", 0)]),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(steps=STEPS, limit=st.one_of(st.none(), st.integers(1, 5)))
def test_every_record_that_is_in_the_log_is_delivered_once_if_data_loss_is_no_failure(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], limit: int | None
) -> None:
    data = tmp_path_factory.mktemp("stream") / "data"
    with sawlog.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 2, segment_bytes=200, durability="os")
        options = {} if limit is None else {"maxOffsetsPerTrigger": limit}
        query = Query(data, failOnDataLoss=False, **options)
        query.reader.initialOffset()
        count, found = 0, []
        for step, number in steps:
            if step == "append":
                append(topic, *range(count, count + number))
                count += number
            elif step == "cut":
                log = topic.partition(number % 2)
                log.truncate(max(log.next_offset - number, 0))
            elif step == "recreate":
                topic = recreated(store, partitions=2)
            elif step == "plan":
                query.construct()
            elif step == "read" and len(query.offsets) > query.done:
                query.read()
            elif step == "trigger":
                found += query.trigger() or []
            elif step in ("kill", "now"):
                query.restart(available_now=step == "now")
        found += query.restart().drain()
        assert len(set(values(found))) == len(found)
        assert set(stored(topic)) <= set(values(found))


# --- with Spark


@pytest.mark.slow  # three runs of a query; by hand above
def test_a_query_whose_topic_was_cut_off_and_has_grown_fails_or_delivers_every_record(
    spark: Any, data: Path, store: DirectoryStore, orders: Topic
) -> None:
    copies, checkpoint = store.create_topic("copies"), data.parent / "checkpoint"
    copy(spark, data, checkpoint).awaitTermination()
    assert stored(copies) == list(range(10))
    cut(orders, 6, *range(100, 120))
    with pytest.raises(Exception, match=r"DataLoss.*partition 0 of 'orders' was read up to offset 10"):
        copy(spark, data, checkpoint).awaitTermination()
    assert stored(copies) == list(range(10))
    copy(spark, data, checkpoint, failOnDataLoss="false").awaitTermination()
    assert stored(copies) == [*range(10), *range(100, 120)]
    assert reading.DataLoss is DataLoss


# --- partitions and topics that come and go


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": 2}])
@pytest.mark.parametrize("kind", ["partition", "topic"])
def test_what_is_new_and_was_trimmed_before_it_was_seen_is_data_loss(
    data: Path, store: DirectoryStore, orders: Topic, kind: str, more: dict[str, Any]
) -> None:
    query = Query(data, subscribePattern="orders.*", **more)
    query.drain()
    _new_and_trimmed(store, kind)
    with pytest.raises(DataLoss, match="is new to the query and starts at offset 4 instead of 0"):
        query.trigger()
    with pytest.raises(DataLoss, match="is new to the query"):  # not only the first time
        query.restart().trigger()


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": 2}])
@pytest.mark.parametrize("kind", ["partition", "topic"])
def test_what_is_new_and_was_trimmed_is_read_from_its_first_record_if_data_loss_is_no_failure(
    data: Path, store: DirectoryStore, orders: Topic, caplog: pytest.LogCaptureFixture, kind: str, more: dict[str, Any]
) -> None:
    query = Query(data, subscribePattern="orders.*", failOnDataLoss="false", **more)
    query.drain()
    topic, number = _new_and_trimmed(store, kind)
    assert values(query.drain()) == list(range(104, 110))
    assert caplog.text.count("is new to the query and starts at offset 4 instead of 0") == 1
    query._options = replace(query._options, fail_on_data_loss=True)  # from here on it is known
    query.restart()
    append(topic, 200, partition=number)
    assert values(query.drain()) == [200]


def _new_and_trimmed(store: DirectoryStore, kind: str) -> tuple[Topic, int]:
    if kind == "topic":
        topic, number = store.create_topic("orders-2", durability="os"), 0
    else:
        topic, number = store.alter_topic("orders", partitions=2), 1
    append(topic, *range(100, 110), partition=number)
    topic.trim({number: 4})
    return topic, number


def test_a_new_partition_that_is_trimmed_after_it_was_planned_is_data_loss(
    data: Path, store: DirectoryStore, orders: Topic
) -> None:
    query = Query(data)
    query.drain()
    topic = store.alter_topic("orders", partitions=2)
    append(topic, *range(100, 110), partition=1)
    assert query.construct()
    topic.trim({1: 10})
    with pytest.raises(DataLoss, match="instead of 0"):
        query.restart().read()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_of_a_pattern_that_is_deleted_is_data_loss(
    data: Path, store: DirectoryStore, orders: Topic, available_now: bool
) -> None:
    append(store.create_topic("orders-2", durability="os"), *range(100, 110))
    query = Query(data, subscribePattern="orders.*", maxOffsetsPerTrigger=4)
    if available_now:
        query.restart(available_now=True)
    query.trigger()
    store.delete_topic("orders-2")
    with pytest.raises(DataLoss, match=r"the topic 'orders-2' in .* no longer exists"):
        query.trigger()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_of_a_pattern_that_is_deleted_is_left_out_if_data_loss_is_no_failure(
    data: Path, store: DirectoryStore, orders: Topic, caplog: pytest.LogCaptureFixture, available_now: bool
) -> None:
    append(store.create_topic("orders-2", durability="os"), *range(100, 110))
    query = Query(data, subscribePattern="orders.*", maxOffsetsPerTrigger=4, failOnDataLoss="false")
    query.restart(available_now=available_now)
    found = values(query.trigger() or [])
    store.delete_topic("orders-2")
    found += values(query.drain())
    assert [each for each in sorted(found) if each < 100] == list(range(10))
    assert "the topic 'orders-2'" in caplog.text
    query._options = replace(query._options, fail_on_data_loss=True)  # the missing topic is not reported again
    append(orders, 10)
    assert values(query.restart().drain()) == [10]


def test_a_topic_that_is_not_subscribed_to_any_more_is_no_loss(
    data: Path, store: DirectoryStore, orders: Topic
) -> None:
    append(store.create_topic("clicks", durability="os"), 100)
    query = Query(data, subscribe="orders,clicks")
    query.drain()
    query._options = replace(query._options, subscription=replace(query._options.subscription, topics=("orders",)))
    append(orders, 10)
    assert values(query.restart().drain()) == [10]
