"""`df.write` and `df.writeStream` with `format("sawlog")`: records are stored once, and no files are left behind.

The first half runs Spark's part by hand: tasks stage, the driver publishes or discards. The second half is Spark.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.processes.launch import finish, ready, start

import sawlog
from pyspark_sawlog import DefaultSource
from sawlog import Store, Topic
from sawlog.batch.header import scan
from sawlog.errors import DirectoryLocked, InvalidConfig, InvalidRecord, StoreNotFound, TopicNotFound
from sawlog.spark import commit
from sawlog.spark.options import WriteOptions, write_options
from sawlog.spark.writing import TaskCommit, stage
from sawlog.storage import FileDirectory
from sawlog.store.directory.transactions.staging_directory import StagingDirectory

from ..looping import for_each
from .jobs.copying import copy

T = 1_700_000_000_000


@pytest.fixture
def orders(store: Store) -> Topic:
    """A topic with two partitions."""
    return store.create_topic("orders", 2)


def options(data: Path, **given: Any) -> WriteOptions:
    return write_options({"path": str(data), "topic": "orders", **{name: str(each) for name, each in given.items()}})


def batch(*values: int, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % each for each in values], pa.binary()), **columns})


def columns(text: str) -> StructType:
    """Return a schema of one column."""
    name, kind = text.split()
    return StructType([StructField(name, {"bigint": LongType(), "string": StringType()}[kind])])


def staged(data: Path, name: str, *batches: pa.RecordBatch, **given: Any) -> TaskCommit:
    """Stage batches like a task."""
    return stage(iter(batches), options(data, **given), name, None)


def values(topic: Topic) -> list[int]:
    return sorted(int(record.value or b"") for record in topic.scan())


def left(data: Path) -> list[str]:
    """Return the names in the staging directory, without the notes of queries."""
    found = data / "staging"
    return sorted(path.name for path in found.iterdir() if not path.name.startswith("=")) if found.exists() else []


# --- tasks


def test_what_tasks_have_staged_is_placed_together(data: Path, orders: Topic) -> None:
    tasks = [staged(data, "job", batch(*range(n * 10, n * 10 + 10))) for n in range(3)]
    assert values(orders) == []
    commit.publish(options(data), "job", tasks)
    assert values(orders) == list(range(30))
    assert left(data) == []


def test_rows_of_a_task_keep_their_order_in_a_partition(data: Path, orders: Topic) -> None:
    rows = [batch(*range(n, n + 10), partition=pa.array([1] * 10, pa.int32())) for n in (0, 10)]
    commit.publish(options(data), "job", [staged(data, "job", *rows), staged(data, "job", *rows)])
    assert [int(record.value or b"") for record in orders.partition(1).scan()] == [*range(20), *range(20)]


def test_only_attempts_that_were_reported_to_the_driver_count(data: Path, orders: Topic) -> None:
    """A speculative attempt that lost, and one whose worker died: both have staged, neither is reported."""
    staged(data, "job", batch(1, 2))
    told = staged(data, "job", batch(1, 2))
    staged(data, "job", batch(1, 2))
    commit.publish(options(data), "job", [told])
    assert values(orders) == [1, 2]
    assert left(data) == []


@pytest.mark.parametrize("own", [1, 8 << 20], ids=["in own files", "in one file"])
def test_an_attempt_that_fails_takes_what_it_staged_with_it(data: Path, orders: Topic, own: int) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield batch(*range(100))
        raise RuntimeError("as a task of the user's")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sawlog.spark.writing._HELD_BYTES", 1)
        patch.setattr("sawlog.store.directory.transactions.staging.ADOPT_BYTES", own)
        with pytest.raises(RuntimeError, match="as a task"):
            stage(rows(), options(data), "job", None)
    assert left(data) == []


@pytest.fixture
def files() -> Iterator[None]:
    """Let tasks stage any amount in files, however small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sawlog.spark.writing.INLINE_BYTES", -1)
        yield


@pytest.fixture
def adopting() -> Iterator[None]:
    """Let every staged file of one partition become a segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sawlog.store.directory.transactions.staging.ADOPT_BYTES", 1)
        patch.setattr("sawlog.store.directory.transactions.placement.ADOPT_BYTES", 1)
        patch.setattr("sawlog.spark.writing._OWN_BYTES", 1)
        yield


@pytest.mark.usefixtures("adopting")
def test_a_partition_with_enough_gets_segments_as_they_were_staged(data: Path, orders: Topic) -> None:
    told = [staged(data, "job", batch(*range(100 * task, 100 * task + 100))) for task in range(3)]
    files = [piece for each in told for part in each.parts for piece in part.pieces]
    assert all(piece.count for piece in files)
    inodes = {(data / "staging" / piece.file).stat().st_ino for piece in files}
    commit.publish(options(data), "job", told)
    assert values(orders) == list(range(300))
    assert {path.stat().st_ino for path in data.glob("topics/*/*/*.log")} >= inodes
    assert left(data) == []
    assert all(orders.partition(number).verify().ok for number in range(2))


@pytest.mark.usefixtures("adopting")
def test_a_file_is_never_larger_than_a_segment(data: Path, store: Store) -> None:
    topic = store.create_topic("small", segment_bytes=4096)
    told = staged(data, "job", batch(*range(2000)), topic="small", batchBytes=500)
    sizes = [piece.size_bytes for part in told.parts for piece in part.pieces]
    assert len(sizes) > 2
    assert max(sizes) <= 4096
    commit.publish(options(data, topic="small"), "job", [told])
    assert values(topic) == list(range(2000))


def test_a_few_rows_need_no_file(data: Path, orders: Topic) -> None:
    told = staged(data, "job", batch(1, 2))
    assert left(data) == []
    commit.publish(options(data), "job", [told])
    assert values(orders) == [1, 2]
    assert left(data) == []


@pytest.mark.usefixtures("files")
def test_a_job_that_fails_leaves_nothing(data: Path, orders: Topic) -> None:
    staged(data, "job", batch(1))
    staged(data, "another", batch(2))
    commit.discard(options(data), "job")
    assert {name.partition(".")[0] for name in left(data)} == {"another"}
    assert values(orders) == []


@pytest.mark.usefixtures("files")
def test_what_a_job_has_staged_is_not_swept_while_it_may_still_commit(data: Path, orders: Topic) -> None:
    told = staged(data, "job", batch(1))
    with sawlog.open(data, maintenance_interval_s=None):
        pass
    commit.publish(options(data), "job", [told])
    assert values(orders) == [1]


@pytest.mark.usefixtures("files")
def test_what_a_dead_job_has_staged_is_swept_when_its_time_is_over(
    data: Path, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend = StagingDirectory.lend
    monkeypatch.setattr(StagingDirectory, "lend", lambda self, id_, label: lend(self, id_, label, -1.0))
    staged(data, "dead", batch(1))
    monkeypatch.undo()
    staged(data, "alive", batch(2))
    with sawlog.open(data, maintenance_interval_s=None):
        pass
    assert {name.partition(".")[0] for name in left(data)} == {"alive"}


def test_a_task_without_rows_stages_nothing(data: Path, orders: Topic) -> None:
    told = staged(data, "job")
    assert told.parts == ()
    assert left(data) == []
    commit.publish(options(data), "job", [told])
    assert values(orders) == []


def test_a_topic_that_was_made_anew_under_a_job_is_not_written_to(data: Path, store: Store, orders: Topic) -> None:
    told = staged(data, "job", batch(1))
    store.delete_topic("orders")
    anew = store.create_topic("orders", 2)
    with pytest.raises(TopicNotFound, match="recreated"):
        commit.publish(options(data), "job", [told])
    assert values(anew) == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"partition": [2]}, "partitions 0 to 1"),
        ({"partition": [-2]}, "partitions 0 to 1"),
        ({"topic": ["nothing"]}, "nothing"),
    ],
)
def test_a_row_that_belongs_nowhere_fails_the_task(
    data: Path, orders: Topic, columns: dict[str, list[Any]], said: str
) -> None:
    given = write_options({"path": str(data), **({} if "topic" in columns else {"topic": "orders"})})
    with pytest.raises((InvalidRecord, TopicNotFound), match=said):
        stage(iter([batch(1, **columns)]), given, "job", None)


def test_the_option_topic_comes_before_the_column(data: Path, store: Store, orders: Topic) -> None:
    """Like Kafka's sink: otherwise a copy job that keeps the column would write to the topic it reads."""
    clicks = store.create_topic("clicks")
    told = staged(data, "job", batch(1, 2, 3, topic=["clicks", None, "orders"]))
    commit.publish(options(data), "job", [told])
    assert (values(clicks), values(orders)) == ([], [1, 2, 3])


def test_without_the_option_rows_go_to_the_topic_of_the_column(data: Path, store: Store, orders: Topic) -> None:
    clicks, given = store.create_topic("clicks"), write_options({"path": str(data)})
    told = stage(iter([batch(1, 2, 3, topic=["clicks", "orders", "clicks"])]), given, "job", None)
    commit.publish(given, "job", [told])
    assert (values(clicks), values(orders)) == ([1, 3], [2])


def test_topics_of_a_column_that_are_missing_are_made_if_the_options_say_so(
    data: Path, store: Store, orders: Topic
) -> None:
    given = write_options({"path": str(data), "partitions": "3"})
    commit.prepare(given, ["value", "topic"])
    told = stage(iter([batch(1, 2, 3, topic=["new", "orders", "newer"])]), given, "job", None)
    commit.publish(given, "job", [told])
    assert (values(store["new"]), values(orders), values(store["newer"])) == ([1], [2], [3])
    assert (store["new"].partitions, orders.partitions) == (3, 2)


def test_rows_may_have_no_headers_and_headers_no_value(data: Path, orders: Topic) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [], [{"key": "a", "value": None}, {"key": "b", "value": b"x"}]], kind)
    commit.publish(options(data), "job", [staged(data, "job", batch(1, 2, 3, headers=headers))])
    found = {record.value: record.headers for record in orders.scan()}
    assert found == {b"1": (), b"2": (), b"3": (("a", None), ("b", b"x"))}


def test_a_compacted_topic_wants_keys(data: Path, store: Store) -> None:
    store.create_topic("orders", cleanup_policy="compact")
    with pytest.raises(InvalidRecord, match="needs a key"):
        staged(data, "job", batch(1))


def test_rows_with_keys_go_where_other_writers_send_them(data: Path, store: Store, orders: Topic) -> None:
    keys = [b"customer %d" % n for n in range(50)]
    commit.publish(options(data), "job", [staged(data, "job", batch(*range(50), key=pa.array(keys, pa.binary())))])
    other = store.create_topic("others", 2)
    for key in keys:
        other.append(b"", key=key)
    where = [{record.key: record.partition for record in topic.scan()} for topic in (orders, other)]
    assert where[0] == where[1]
    assert set(where[0].values()) == {0, 1}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_packed_as_the_options_say(data: Path, orders: Topic, compression: str) -> None:
    rows = batch(*range(10_000), partition=pa.array([0] * 10_000, pa.int32()))
    given = {"compression": compression, "batchBytes": 10_000}
    commit.publish(options(data), "job", [staged(data, "job", rows, **given)])
    found = [each for path in Path(orders.partition(0).path).glob("*.log") for each in scan(path.read_bytes())]
    assert {each.compression for each in found} == {["none", "gzip", "snappy", "lz4", "zstd"].index(compression)}
    assert len(found) >= 5
    assert values(orders) == list(range(10_000))


# --- locks


def test_a_partition_that_another_process_keeps_is_waited_for_and_then_named(data: Path, orders: Topic) -> None:
    told = staged(data, "job", batch(1))
    other = ready(start("storing", "occupy", data, "orders"))
    try:
        with pytest.raises(DirectoryLocked) as caught:
            commit.publish(options(data, lockTimeout="200ms"), "job", [told])
        assert f"process {other.pid} on" in str(caught.value)
        assert "lockTimeout" in str(caught.value)
        assert "Close the writer there" in str(caught.value)
    finally:
        finish(other)
    commit.publish(options(data), "job", [told])
    assert sum(record.value == b"1" for record in orders.scan()) == 1


def test_a_partition_that_becomes_free_in_time_is_written_to(data: Path, orders: Topic) -> None:
    told = staged(data, "job", batch(1))
    other = ready(start("storing", "occupy", data, "orders"))
    ending = threading.Timer(0.3, lambda: finish(other))
    ending.start()
    commit.publish(options(data, lockTimeout="60s"), "job", [told])
    ending.join()
    assert sum(record.value == b"1" for record in orders.scan()) == 1


def test_a_commit_gets_its_turn_beside_a_process_that_has_the_topic_open(data: Path, orders: Topic) -> None:
    other = ready(start("storing", "keep", data, "orders"))
    commit.publish(options(data), "job", [staged(data, "job", batch(*range(100)))])
    assert sorted(int(record.value or b"") for record in orders.scan() if record.value != b"held") == list(range(100))
    assert left(data) == []
    finish(other)


def test_a_process_that_writes_another_topic_is_not_in_the_way(data: Path, store: Store, orders: Topic) -> None:
    store.create_topic("clicks")
    other = ready(start("storing", "hold", data, "clicks"))
    try:
        commit.publish(options(data, lockTimeout="0s"), "job", [staged(data, "job", batch(1))])
    finally:
        finish(other)
    assert values(orders) == [1]


def test_nothing_is_locked_while_tasks_stage_nor_after_the_commit(data: Path, orders: Topic) -> None:
    told = staged(data, "job", batch(1))
    finish(start("storing", "append", data, "orders"))
    commit.publish(options(data), "job", [told])
    assert "locked" not in finish(start("storing", "append", data, "orders"))


def test_publishing_waits_for_a_concurrent_sweep(data: Path, orders: Topic) -> None:
    """Opening a store sweeps the staged transactions, and holds the lock of each for a moment."""
    told = staged(data, "job", batch(1))
    directory = FileDirectory(data, create=False)
    sweeping = directory.child("staging").lock("job.owner", alone=False)
    ending = threading.Timer(0.3, sweeping.release)
    ending.start()
    commit.publish(options(data), "job", [told])
    ending.join()
    directory.close()
    assert values(orders) == [1]


# --- options


def test_a_topic_that_is_missing_is_made_if_the_options_say_so(data: Path, store: Store) -> None:
    commit.prepare(options(data, partitions=3), ["value"])
    assert store["orders"].partitions == 3
    commit.prepare(options(data, partitions=5), ["value"])
    assert store["orders"].partitions == 3


def test_a_topic_that_is_missing_is_an_error_before_anything_runs(data: Path, store: Store) -> None:
    with pytest.raises(InvalidConfig, match=r"no topic 'orders'.*partitions"):
        commit.prepare(options(data), ["value"])


@pytest.mark.parametrize("empty", [False, True])
def test_a_path_without_a_store_is_an_error_and_nothing_is_made_there(data: Path, empty: bool) -> None:
    """The path is mistyped, or the disk is not mounted and the directory is empty."""
    if empty:
        data.mkdir()
    for given in (options(data), options(data, partitions=3)):
        with pytest.raises(StoreNotFound, match="createStore"):
            commit.prepare(given, ["value"])
        with pytest.raises(StoreNotFound):
            commit.discard(given, "job")
    assert (list(data.iterdir()) if empty else data.exists()) in ([], False)


def test_a_store_is_made_if_the_options_say_so(data: Path) -> None:
    given = options(data, partitions=3, createStore="true")
    commit.prepare(given, ["value"])
    commit.prepare(given, ["value"])
    commit.publish(given, "job", [staged(data, "job", batch(1))])
    with sawlog.open(data, "r") as made:
        assert made["orders"].partitions == 3
        assert values(made["orders"]) == [1]


def test_text_is_stored_as_utf_8_by_hand(data: Path, orders: Topic) -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["schön"], "key": ["ключ"]})
    commit.publish(options(data), "job", [staged(data, "job", rows)])
    assert [(r.key, r.value) for r in orders.scan()] == [("ключ".encode(), "schön".encode())]


@for_each(
    ("shape", "given", "said"),
    [
        ("size bigint", {"topic": "orders"}, "cannot store a column size"),
        ("value bigint", {"topic": "orders"}, "must be binary or string, not bigint"),
        ("key string", {"topic": "orders"}, "a column value is required"),
        ("value string", {}, "no topic: give"),
        ("value string", {"topic": "nothing"}, "no topic 'nothing'"),
        ("value string", {"topic": "orders", "compresion": "zstd"}, "did you mean compression"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_job_runs(
    data: Path, orders: Topic, shape: str, given: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        DefaultSource({"path": str(data), **given}).writer(columns(shape), overwrite=False)


def test_a_writer_that_overwrites_is_refused(data: Path, orders: Topic) -> None:
    orders.append(b"1")
    sink = DefaultSource({"path": str(data), "topic": "orders"})
    for make in (sink.writer, sink.streamWriter):
        with pytest.raises(InvalidConfig, match="only be appended to"):
            make(columns("value string"), overwrite=True)
    assert values(orders) == [1]


# --- with Spark


def write(frame: Any, data: Path, **given: Any) -> None:
    writer = frame.write.format("sawlog").mode("append").option("path", str(data))
    for name, value in given.items():
        writer = writer.option(name, str(value))
    writer.save()


def test_all_columns_are_stored(spark: Any, data: Path, store: Store) -> None:
    for name in ("orders", "clicks"):
        store.create_topic(name, 3)
    moment = datetime.fromtimestamp(T / 1000, UTC)
    rows = [
        (b"one", b"k", "orders", 2, moment, [("h", b"1"), ("h", None)]),
        (None, b"deleted", "clicks", 0, moment, []),
        (b"plain", None, "orders", 1, moment, None),
    ]
    shape = "value binary, key binary, topic string, partition int, timestamp timestamp, " + (
        "headers array<struct<key: string, value: binary>>"
    )
    write(spark.createDataFrame(rows, shape), data)
    found = [
        (r.topic, r.partition, r.key, r.value, r.timestamp, list(r.headers))
        for topic in (store["clicks"], store["orders"])
        for r in topic.scan()
    ]
    assert found == [
        ("clicks", 0, b"deleted", None, T, []),
        ("orders", 1, None, b"plain", T, []),
        ("orders", 2, b"k", b"one", T, [("h", b"1"), ("h", None)]),
    ]


@pytest.mark.slow  # by hand above
def test_text_is_stored_as_utf_8(spark: Any, data: Path, orders: Topic) -> None:
    write(spark.createDataFrame([("schön", "ключ")], "value string, key string"), data, topic="orders")
    assert [(r.key, r.value) for r in orders.scan()] == [("ключ".encode(), "schön".encode())]


def test_parallel_tasks_write_everything_once(spark: Any, data: Path, orders: Topic) -> None:
    frame = spark.range(200).repartition(3).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 97 AS STRING) AS key")
    write(frame, data, topic="orders", compression="zstd")
    assert values(orders) == list(range(200))
    assert left(data) == []


@pytest.mark.slow  # by hand above
@pytest.mark.parametrize(
    ("shape", "given", "said"),
    [
        ("id AS size", {"topic": "orders"}, "cannot store a column size"),
        ("id AS value", {"topic": "orders"}, "must be binary or string, not bigint"),
        ("'k' AS key", {"topic": "orders"}, "a column value is required"),
        ("'v' AS value", {}, "no topic: give"),
        ("'v' AS value", {"topic": "nothing"}, "no topic 'nothing'"),
        ("'v' AS value", {"topic": "orders", "compresion": "zstd"}, "did you mean compression"),
    ],
)
def test_what_cannot_be_written_is_a_clear_error(
    spark: Any, data: Path, orders: Topic, shape: str, given: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=re.escape(said)):
        write(spark.range(1).selectExpr(shape), data, **given)


@pytest.mark.slow  # by hand above
def test_a_log_is_not_overwritten(spark: Any, data: Path, orders: Topic) -> None:
    orders.append(b"1")
    writer = spark.range(1).selectExpr("'2' AS value").write.format("sawlog").option("path", str(data))
    with pytest.raises(Exception, match="only be appended to"):
        writer.option("topic", "orders").mode("overwrite").save()
    assert values(orders) == [1]


def failing(batches: Any, mark: str, times: int) -> Iterator[pa.RecordBatch]:
    """A user function that fails a number of times after its rows have reached the writer."""
    yield from batches
    for attempt in range(times):
        try:
            Path(f"{mark}{attempt}").touch(exist_ok=False)
        except FileExistsError:
            continue
        raise RuntimeError("a task that fails")


def test_tasks_that_fail_and_are_tried_again_write_once(spark: Any, data: Path, orders: Topic) -> None:
    mark = str(data.parent / "failed-")
    frame = spark.range(300).repartition(2).selectExpr("CAST(id AS STRING) AS value")
    write(frame.mapInArrow(lambda batches: failing(batches, mark, 1), "value string"), data, topic="orders")
    assert Path(f"{mark}0").exists()
    assert values(orders) == list(range(300))
    assert left(data) == []


@pytest.mark.slow  # all attempts of a task fail, 13 s; by hand above
def test_a_job_that_fails_stores_nothing_and_leaves_nothing(spark: Any, data: Path, orders: Topic) -> None:
    mark = str(data.parent / "failed-")
    frame = spark.range(3000).repartition(2).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match="a task that fails"):
        write(frame.mapInArrow(lambda batches: failing(batches, mark, 1000), "value string"), data, topic="orders")
    assert values(orders) == []
    assert left(data) == []


@pytest.mark.slow
def test_queries_that_write_one_topic_at_the_same_time_take_turns(spark: Any, data: Path, store: Store) -> None:
    for name in ("one", "two"):
        store.create_topic(name, 2).append_many([b"%d" % n for n in range(200)])
    store.create_topic("copies", 2)
    queries = [
        copy(spark, data, data.parent / f"checkpoint-{name}", source=name, maxOffsetsPerTrigger=100)
        for name in ("one", "two")
    ]
    for query in queries:
        query.awaitTermination()
    assert values(store["copies"]) == sorted([*range(200), *range(200)])


@pytest.mark.slow  # two runs of a query; by hand above
def test_a_locked_partition_fails_a_query_with_nothing_stored_and_its_restart_stores_it_once(
    spark: Any, data: Path, store: Store, orders: Topic
) -> None:
    orders.append_many([b"%d" % n for n in range(20)])
    store.create_topic("copies")
    other = ready(start("storing", "occupy", data, "copies"))
    checkpoint = data.parent / "checkpoint"
    query = copy(spark, data, checkpoint, lockTimeout="100ms")
    with pytest.raises(Exception, match=rf"process {other.pid} on .*option lockTimeout"):
        query.awaitTermination()
    finish(other)
    assert [record.value for record in store["copies"].scan()] == []
    copy(spark, data, checkpoint, lockTimeout="100ms").awaitTermination()
    assert sorted(int(r.value or b"") for r in store["copies"].scan()) == list(range(20))
    assert left(data) == []


@pytest.mark.slow  # 7 s; the sink sees rows like any others
def test_a_stream_with_state_is_written_like_any_other(spark: Any, data: Path, store: Store, orders: Topic) -> None:
    orders.append_many([(b"%d" % (n % 7), b"k%d" % n) for n in range(40)])
    store.create_topic("distinct", 2)
    stream = spark.readStream.format("sawlog").option("path", str(data)).option("subscribe", "orders")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20").load()
    query = stream.select("value").dropDuplicates().writeStream.format("sawlog").option("path", str(data))
    query = query.option("topic", "distinct").option("checkpointLocation", str(data.parent / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert values(store["distinct"]) == list(range(7))


@pytest.mark.slow  # four jobs; by hand in test_replays.py
def test_a_batch_with_a_name_and_a_number_is_stored_once(spark: Any, data: Path, orders: Topic) -> None:
    """`foreachBatch` needs this: Spark repeats a micro-batch, and with it the job inside."""
    frame = spark.range(10).selectExpr("CAST(id AS string) AS value")
    for version in (0, 0, 1, 0):
        writer = frame.write.format("sawlog").mode("append").option("path", str(data)).option("topic", "orders")
        writer.option("txnAppId", "job").option("txnVersion", version).save()
    assert orders.describe().records == 20
    assert left(data) == []
