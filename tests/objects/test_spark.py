"""Spark over a bucket reads all records and stores each one once, whatever is killed in the middle.

Most tests play Spark's part themselves, with a store in memory. Tests with a server use moto, and slow tests run real
drivers, which are killed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.documents import run_program, steps
from tests.processes.launch import ROOT
from tests.spark.test_streaming import Query

import sawlog
from pyspark_sawlog import DefaultSource
from sawlog.batch.build import encode
from sawlog.errors import AmbiguousAppend, DataLoss, InvalidConfig, ReplayMismatch, StoreNotFound
from sawlog.spark import commit
from sawlog.spark.options import WriteOptions, read_options, write_options
from sawlog.spark.planning import Task
from sawlog.spark.reading import BatchReader
from sawlog.spark.writing import TaskCommit, stage
from sawlog.store.objects.bucket import Bucket
from sawlog.store.objects.slices import ObjectSlice
from sawlog.store.objects.store import ObjectStore
from sawlog.store.objects.topic import ObjectTopic

from . import servers

QUERY = "5e0e3a9c-6c58-4d43-9d2b-7f6d5e4f3a2b"
T = 1_700_000_000_000
PATIENCE_S = 240.0
PAGE = ROOT / "docs" / "object-storage.md"


@pytest.fixture
def url() -> str:
    """Return an address in memory."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    """Return a store without maintenance."""
    with ObjectStore.open(url, maintenance_interval_s=None) as made:
        yield made


def append(topic: ObjectTopic, *values: int) -> None:
    """Append each value in a commit of its own, in the partition of its remainder."""
    for value in values:
        record = (b"%d" % value, None, (), T + value * 1000)
        topic.partition(value % topic.partitions).append_batches(encode([record]))


@pytest.fixture
def orders(store: ObjectStore) -> ObjectTopic:
    topic = store.create_topic("orders", 2)
    append(topic, *range(20))
    return topic


def reader(url: str, **options: Any) -> BatchReader:
    given = {"path": url, "topic": "orders", **{name: str(each) for name, each in options.items()}}
    return BatchReader(read_options(given, streaming=False), ("partition", "offset", "value"))


def read(reader: BatchReader) -> list[int]:
    """Read like tasks, from pickled slices."""
    planned = pickle.loads(pickle.dumps(reader.partitions()))
    copy: BatchReader = pickle.loads(pickle.dumps(reader))
    return sorted(int(value) for task in planned for each in copy.read(task) for value in each.column(2).to_pylist())


def extents(reader: BatchReader) -> int:
    """Return the number of extents that a job reads."""
    pieces = [piece.what for task in reader.partitions() if isinstance(task, Task) for piece in task.pieces]
    return sum(len(each.extents) for each in pieces if isinstance(each, ObjectSlice))


# --- reading


def test_a_batch_read_returns_all_records(url: str, orders: ObjectTopic) -> None:
    assert read(reader(url)) == list(range(20))
    assert read(reader(url, minPartitions=7)) == list(range(20))
    assert read(reader(url, maxRecordsPerPartition=3)) == list(range(20))


def test_only_requested_records_are_planned(url: str, orders: ObjectTopic) -> None:
    """Planning uses the extents alone and reads no object."""
    some = reader(url, startingOffsets='{"orders": {"0": 7, "1": 9}}', endingOffsets='{"orders": {"0": 9, "1": 10}}')
    assert (read(some), extents(some)) == ([14, 16, 19], 3)
    late = reader(url, startingTimestamp=T + 15_000)
    assert (read(late), extents(late)) == ([15, 16, 17, 18, 19], 5)
    between = reader(url, startingTimestamp=T + 4_000, endingTimestamp=T + 7_000)
    assert (read(between), extents(between)) == ([4, 5, 6], 3)


def test_records_consolidated_and_removed_after_planning_are_found_again(
    url: str, store: ObjectStore, orders: ObjectTopic
) -> None:
    for first in range(20, 60):
        append(orders, first)
    job = reader(url)
    planned = job.partitions()
    assert store.maintain()
    collect(store)
    found = [int(value) for task in planned for each in job.read(task) for value in each.column(2).to_pylist()]
    assert sorted(found) == list(range(60))


def collect(store: ObjectStore) -> None:
    """Delete commits behind a checkpoint, as a collector does after a week."""
    number = store._session.known()
    store._session.checkpoint()
    store.create_topic(f"after-{number}")
    bucket = Bucket(store.path)
    for entry in list(bucket.list("commits/"))[:number]:
        bucket.delete(entry.key)


@pytest.mark.parametrize("fail", [True, False])
def test_reading_trimmed_and_removed_records_is_data_loss(
    url: str, store: ObjectStore, orders: ObjectTopic, *, fail: bool
) -> None:
    job = reader(url, failOnDataLoss=str(fail).lower())
    planned = job.partitions()
    for number in range(2):
        orders.partition(number).trim(5)
    for first in range(20, 60):
        append(orders, first)
    assert store.maintain()
    collect(store)

    def values() -> list[int]:
        found = [int(value) for task in planned for each in job.read(task) for value in each.column(2).to_pylist()]
        return sorted(found)

    if fail:
        with pytest.raises(DataLoss, match="are gone"):
            values()
    else:
        assert values() == list(range(10, 20))


def test_another_store_at_the_same_address_is_refused(url: str, orders: ObjectTopic) -> None:
    job = reader(url)
    [first, *_] = job.partitions()
    assert isinstance(first, Task)
    with pytest.raises(DataLoss, match="another store"):
        list(job.read(Task(first.path, "another", first.pieces)))


def test_a_restarted_stream_gets_every_record_once(url: str, orders: ObjectTopic) -> None:
    query = Query(url, maxOffsetsPerTrigger=7)
    found: list[tuple[Any, ...]] = []
    for number in range(20, 26):
        query.restart()
        query.construct()
        query.restart()  # planned, and not read
        append(orders, number)
        query.read()
        query.restart()  # read, and not noted
        found += query.trigger() or []
    found += query.drain()
    assert sorted(int(row[3]) for row in found) == list(range(26))


def test_a_stream_that_starts_at_the_end_keeps_its_start_in_the_store(
    url: str, store: ObjectStore, orders: ObjectTopic
) -> None:
    query = Query(url, startingOffsets="latest", groupId="spark")
    query.reader.initialOffset()
    append(orders, 20, 21)
    assert [int(row[3]) for row in query.restart().drain()] == [20, 21]
    query.restart().construct()
    rows = store.groups.describe("spark").rows
    assert [(row.committed, row.lag) for row in rows] == [(11, 0), (11, 0)]


# --- writing


@pytest.fixture(params=["in messages", "in objects"])
def options(request: pytest.FixtureRequest, url: str, store: ObjectStore) -> Iterator[WriteOptions]:
    """Return options of a sink with two partitions, for tasks that send batches to the driver or stage them."""
    store.create_topic("copies", 2)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in objects":
            patch.setattr("sawlog.spark.writing.INLINE_BYTES", -1)
        yield write_options({"path": url, "topic": "copies"})


def tasks(options: WriteOptions, number: int) -> list[TaskCommit]:
    """Run the tasks of a micro-batch: two, with two rows each."""
    name = commit.stage_name(QUERY, number)
    parts = [pa.RecordBatch.from_pydict({"value": [b"%d" % (number * 10 + n + i) for i in (0, 1)]}) for n in (0, 2)]
    return [stage(iter([part]), options, name, QUERY) for part in parts]


def publish(options: WriteOptions, number: int, staged: list[TaskCommit]) -> None:
    commit.publish(options, commit.stage_name(QUERY, number), staged, name=QUERY, sequence=number)


def copies(store: ObjectStore) -> list[int]:
    with ObjectStore.open(store.path, "r") as now:
        return sorted(int(record.value or b"") for record in now.topic("copies").scan())


def rows(*numbers: int) -> list[int]:
    return [number * 10 + n for number in numbers for n in range(4)]


def test_a_repeated_micro_batch_is_stored_once(store: ObjectStore, options: WriteOptions) -> None:
    for number in (0, 0, 1, 1, 1, 2):
        publish(options, number, tasks(options, number))
    assert copies(store) == rows(0, 1, 2)


def test_an_aborted_micro_batch_is_stored_when_it_is_repeated(store: ObjectStore, options: WriteOptions) -> None:
    """The output of the first try is void, although its driver may be about to commit it."""
    first = tasks(options, 0)
    commit.discard(options, commit.stage_name(QUERY, 0))
    publish(options, 0, tasks(options, 0))
    assert copies(store) == rows(0)
    publish(options, 0, first)
    assert copies(store) == rows(0)


def test_the_late_commit_of_a_stalled_driver_changes_nothing(store: ObjectStore, options: WriteOptions) -> None:
    """Another driver has repeated the micro-batch and continued."""
    stalled = tasks(options, 0)
    for number in (0, 1):
        publish(options, number, tasks(options, number))
    with pytest.raises(ReplayMismatch, match="up to 1"):
        publish(options, 0, stalled)
    assert copies(store) == rows(0, 1)


def test_an_abort_after_the_commit_removes_nothing(store: ObjectStore, options: WriteOptions) -> None:
    publish(options, 0, tasks(options, 0))
    commit.discard(options, commit.stage_name(QUERY, 0))
    assert copies(store) == rows(0)


def test_the_driver_does_not_read_staged_batches(
    store: ObjectStore, options: WriteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = tasks(options, 0)
    read: list[str] = []
    real = Bucket.get_range
    monkeypatch.setattr(Bucket, "get_range", lambda *given: (read.append(given[1]), real(*given))[1])
    publish(options, 0, staged)
    assert read == []
    assert copies(store) == rows(0)


def test_a_task_uploads_in_the_background(url: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task does not keep everything in memory, and large partitions get objects of their own."""
    store.create_topic("copies", 2)
    monkeypatch.setattr("sawlog.store.objects.transaction._OBJECT_BYTES", 1000)
    monkeypatch.setattr("sawlog.store.objects.transaction._EXTENT_BYTES", 700)
    monkeypatch.setattr("sawlog.spark.writing._HELD_BYTES", 500)
    given = write_options({"path": url, "topic": "copies", "batchBytes": "300"})
    parts = [pa.RecordBatch.from_pydict({"value": [b"%d" % (n * 50 + i) for i in range(50)]}) for n in range(40)]
    staged = stage(iter(parts), given, "job", None)
    keys = [entry.key for entry in Bucket(url).list("staged/")]
    assert len(keys) > 5
    commit.publish(given, "job", [staged])
    assert copies(store) == list(range(2000))


def test_a_failed_attempt_leaves_no_objects(url: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("copies", 2)
    monkeypatch.setattr("sawlog.spark.writing._HELD_BYTES", 10)

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [b"1"] * 100})
        raise RuntimeError("the rows end here")

    with pytest.raises(RuntimeError, match="end here"):
        stage(failing(), write_options({"path": url, "topic": "copies"}), "job", None)
    assert list(Bucket(url).list("staged/")) == []


def test_an_upload_that_waited_too_long_for_its_commit_is_refused(store: ObjectStore, options: WriteOptions) -> None:
    """The uploads may be deleted, so nothing is stored."""
    staged = tasks(options, 0)
    number = store.create_topic("other") and 2
    store._session.commit([{"do": "raise floor", "number": number}])
    if any(part.pieces for task in staged for part in task.parts):
        with pytest.raises(AmbiguousAppend):
            publish(options, 0, staged)
        assert copies(store) == []


# --- options


def test_options_of_the_connection_are_passed_on_and_not_shown() -> None:
    given = {"path": "s3://bucket/store", "topic": "orders", "endpoint": "http://here", "secret_access_key": "geheim"}
    for found in (read_options(given, streaming=False), write_options(given)):
        assert found.where.options == {"endpoint": "http://here", "secret_access_key": "geheim"}
        assert "geheim" not in f"{found!r} {found.where!r} {found.where}"
        assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(InvalidConfig, match="no option endpoint"):
        read_options({**given, "path": "data"}, streaming=False)
    with pytest.raises(InvalidConfig, match="no option startingoffset;"):
        read_options({**given, "startingOffset": "earliest"}, streaming=False)


def test_a_store_is_created_only_on_request(url: str) -> None:
    shape = StructType([StructField("value", BinaryType())])
    with pytest.raises(StoreNotFound, match="createStore"):
        DefaultSource({"path": url, "topic": "a", "partitions": "1"}).writer(shape, overwrite=False)
    created = {"path": url, "topic": "a", "partitions": "1", "createStore": "true"}
    DefaultSource(created).writer(shape, overwrite=False)
    with ObjectStore.open(url, "r") as store:
        assert store.topics() == ["a"]


# --- with Spark, over a server


def over(frame: Any, server: servers.Server, url: str) -> Any:
    """Return a reader or writer with the options of a bucket."""
    made = frame.format("sawlog").option("path", url).option("cache_bytes", "0")
    for name, value in server.options.items():
        made = made.option(name, value)
    return made


def numbers(topic: ObjectTopic) -> list[int]:
    return sorted(int(record.value or b"") for record in topic.scan())


def test_spark_reads_and_writes_a_bucket(spark: Any, moto: servers.Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = moto.new_url()
    with ObjectStore.open(url, options=moto.options, maintenance_interval_s=None) as store:
        store.create_topic("orders", 2).append_many([b"%d" % number for number in range(10)])
        store.topic("orders").append_many([(b"%d" % number, b"%d" % number) for number in range(10, 30)])
        found = over(spark.read, moto, url).option("topic", "orders").load()
        found.explain(True)
        assert servers.SECRET not in capsys.readouterr().out
        writer = over(found.select("key", "value").write, moto, url).option("topic", "copies").option("partitions", 3)
        writer.mode("append").save()
        assert numbers(store.topic("copies")) == list(range(30))


def test_the_program_in_the_documents_prints_what_they_show(spark: Any, moto: servers.Server) -> None:
    url = moto.new_url()
    [step] = [each for each in steps(PAGE.read_text(encoding="utf-8")) if each.text.startswith("import sawlog.spark")]
    shown = 'master="spark://spark-master:7077"', "s3://bucket/shop", '.format("sawlog")'
    assert all(each in step.text for each in shown)
    # As options, because Spark is running already, with its own environment.
    given = "", url, f'.format("sawlog").options(**{dict(moto.options)!r})'
    code = step.text
    for old, new in zip(shown, given, strict=True):
        code = code.replace(old, new)
    with ObjectStore.open(url, options=moto.options, maintenance_interval_s=None) as store:
        customers = [(b"coffee", b"customer %d" % number) for number in (7, 8, 9, 7)]
        store.create_topic("orders", 3).append_many(customers)
    assert run_program(code) == step.shown


@pytest.mark.slow
def test_a_stream_over_a_bucket_is_exact_across_restarts(spark: Any, moto: servers.Server, tmp_path: Path) -> None:
    url = moto.new_url()
    with ObjectStore.open(url, options=moto.options, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 2)
        for run in range(3):
            topic.append_many([b"%d" % (run * 100 + number) for number in range(100)])
            rows_ = over(spark.readStream, moto, url).option("topic", "orders").option("startingOffsets", "earliest")
            rows_ = rows_.option("maxOffsetsPerTrigger", 30).option("groupId", "spark").load().select("key", "value")
            sink = over(rows_.writeStream, moto, url).option("topic", "copies").option("partitions", 2)
            query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            query.awaitTermination()
        assert numbers(store.topic("copies")) == list(range(300))


def drive(server: servers.Server, url: str, scratch: Path, **options: str) -> subprocess.CompletedProcess[str]:
    """Start a driver that copies `orders` to `copies`, with credentials in its environment."""
    given = [f"{name}={value}" for name, value in options.items()]
    environment = {**os.environ, **server.variables, "XDG_CACHE_HOME": str(scratch)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])
    command = [sys.executable, "-m", "tests.spark.jobs.copying", url, str(scratch / "checkpoint"), *given]
    return subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.group("spark")
@pytest.mark.parametrize("point", ["staged@1", "commit@1", "published@1"])
def test_a_killed_driver_continues_from_its_checkpoint(moto: servers.Server, tmp_path: Path, point: str) -> None:
    """Killed before anything is committed, and when everything is stored without Spark knowing it."""
    url = moto.new_url()
    with ObjectStore.open(url, options=moto.options, maintenance_interval_s=None) as store:
        store.create_topic("copies", 2)
        store.create_topic("orders", 2).append_many([b"%d" % number for number in range(200)])
        mark = tmp_path / "mark"
        first = drive(moto, url, tmp_path, fault=point, how="kill", mark=str(mark), maxOffsetsPerTrigger="50")
        assert mark.exists(), first.stdout + first.stderr
        assert first.returncode != 0
        for _ in range(2):
            done = drive(moto, url, tmp_path, maxOffsetsPerTrigger="50")
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert numbers(store.topic("copies")) == list(range(200))
