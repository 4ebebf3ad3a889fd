"""`spark.read.format("sawlog")` without Spark: the tests call the reader as Spark would, on PySpark's base classes.

Options become a reader, a reader plans tasks, and tasks, as they would arrive at a worker, give Arrow batches.
"""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_sawlog import DefaultSource
from sawlog.errors import CorruptBatch, DataLoss, InvalidConfig, SawlogError, StoreNotFound
from sawlog.spark.options import read_options
from sawlog.spark.reading import BatchReader
from sawlog.store.directory.store import DirectoryStore

from ..looping import for_each
from .test_batch import UNREADABLE, T, filled, records


def given(data: Path, subscribe: str | None = "orders", **options: Any) -> dict[str, str]:
    chosen = {} if subscribe is None else {"subscribe": subscribe}
    return {"path": str(data), **chosen, **{name: str(value) for name, value in options.items()}}


def reader(data: Path, subscribe: str | None = "orders", **options: Any) -> BatchReader:
    found = read_options(given(data, subscribe, **options), streaming=False)
    return BatchReader(found, found.columns)


def rows(reader: BatchReader, tasks: Any = None) -> list[dict[str, Any]]:
    """Run the tasks, pickled as they would be sent to a worker."""
    copy, planned = pickle.loads(pickle.dumps((reader, reader.partitions() if tasks is None else tasks)))
    return [row for task in planned for batch in copy.read(task) for row in batch.to_pylist()]


def contents(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in found)


def counts(found: list[dict[str, Any]], *columns: str) -> dict[tuple[Any, ...], int]:
    return dict(Counter(tuple(row[name] for name in columns) for row in found))


# --- what is read


def test_all_records_with_all_columns(data: Path, store: DirectoryStore) -> None:
    topic = filled(store, count=30)
    found = rows(reader(data))
    assert contents(found) == records(topic)
    [one] = [row for row in found if (row["partition"], row["offset"]) == (1, 2)]
    moment = one.pop("timestamp")
    assert moment.replace(tzinfo=UTC) == datetime.fromtimestamp((T + 7000) / 1000, UTC)
    assert one == {
        "key": b"key 7",
        "value": b"value 7",
        "topic": "orders",
        "partition": 1,
        "offset": 2,
        "timestampType": 0,
    }


def test_headers_are_read_if_they_are_asked_for(data: Path, store: DirectoryStore) -> None:
    filled(store, count=20)
    found = {row["value"]: row["headers"] for row in rows(reader(data, includeHeaders=True))}
    assert found[b"value 14"] == [{"key": "h", "value": b"14"}]
    assert found[b"value 15"] is None  # as Kafka's source has it
    assert "headers" not in rows(reader(data))[0]


def test_topics_are_read_however_they_are_compressed(data: Path, store: DirectoryStore) -> None:
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = store.create_topic(compression, 2, compression_type=compression, durability="os")
        topic.append_many([(b"the same value, number %d" % n, b"key %d" % n) for n in range(100)])
        assert contents(rows(reader(data, compression))) == records(topic), compression


def test_a_compacted_topic_is_read_without_what_was_removed(data: Path, store: DirectoryStore) -> None:
    topic = filled(store, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    assert any(report.compaction for report in topic.maintain())
    assert len(records(topic)) < 300
    assert contents(rows(reader(data))) == records(topic)


def test_an_empty_topic_has_no_rows_and_null_stays_null(data: Path, store: DirectoryStore) -> None:
    topic = store.create_topic("orders")
    assert rows(reader(data)) == []
    topic.append(None, key=b"deleted")
    topic.append(b"without key")
    assert [(row["key"], row["value"]) for row in rows(reader(data))] == [(b"deleted", None), (None, b"without key")]


# --- which partitions and offsets


def test_a_reader_selects_topics_by_list_by_pattern_or_by_partition(data: Path, store: DirectoryStore) -> None:
    for name in ("orders", "orders-eu", "clicks"):
        filled(store, name, 30)
    assert counts(rows(reader(data, "orders,clicks")), "topic") == {("orders",): 30, ("clicks",): 30}
    pattern = reader(data, None, subscribePattern="orders.*")
    assert counts(rows(pattern), "topic") == {("orders",): 30, ("orders-eu",): 30}
    assert rows(reader(data, None, subscribePattern="nothing")) == []
    assigned = reader(data, None, assign=json.dumps({"orders": [0, 2], "clicks": [1]}))
    assert counts(rows(assigned), "topic", "partition") == {("orders", 0): 10, ("orders", 2): 10, ("clicks", 1): 10}


@for_each(("options", "said"), UNREADABLE)
def test_what_cannot_be_read_is_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], said: str
) -> None:
    data = tmp_path_factory.mktemp("unreadable") / "data"
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        filled(store, count=30)
    with pytest.raises(SawlogError, match=re.escape(said)):
        rows(reader(data, **{"subscribe": "orders", **options}))


def test_a_store_that_is_not_there_is_a_clear_error(data: Path) -> None:
    with pytest.raises(StoreNotFound, match="no store in"):
        rows(reader(data))


def test_ranges_of_offsets(data: Path, store: DirectoryStore) -> None:
    filled(store, count=90)
    some = reader(
        data,
        startingOffsets=json.dumps({"orders": {"0": 5, "1": 30}}),
        endingOffsets=json.dumps({"orders": {"0": 8, "1": -1}}),
    )
    assert counts(rows(some), "partition") == {(0,): 3, (2,): 30}


def test_ranges_of_time(data: Path, store: DirectoryStore) -> None:
    filled(store, count=90)
    begin, end = T + 30_000, T + 60_000
    found = {row["value"] for row in rows(reader(data, startingTimestamp=begin, endingTimestamp=end))}
    assert found == {b"value %d" % number for number in range(30, 60)}
    iso = datetime.fromtimestamp(begin / 1000, UTC).isoformat()
    assert len(rows(reader(data, startingTimestamp=iso, endingTimestamp=end))) == 30
    each = reader(data, startingOffsetsByTimestamp=json.dumps({"orders": {"0": T + 80_000}}))
    assert counts(rows(each), "partition") == {(0,): 3, (1,): 30, (2,): 30}
    late = reader(data, startingTimestamp=T + 10**9, startingOffsetsByTimestampStrategy="latest")
    assert rows(late) == []


def test_large_partitions_are_split_however_it_is_asked_for(data: Path, store: DirectoryStore) -> None:
    topic = filled(store)
    assert len(reader(data).partitions()) == 3
    for options, least in (
        ({"minPartitions": 8}, 8),
        ({"maxPartitionBytes": 3000}, 6),
        ({"maxRecordsPerPartition": 7}, 42),
    ):
        split = reader(data, **options)
        assert len(split.partitions()) >= least, options
        assert contents(rows(split)) == records(topic), options


# --- which columns


def test_only_the_columns_that_are_asked_for_are_read(data: Path, store: DirectoryStore) -> None:
    filled(store, count=30)
    found = rows(reader(data, columns="offset,topic"))
    assert [list(row) for row in found] == [["offset", "topic"]] * 30
    assert DefaultSource(given(data, columns="offset,topic")).schema() == "offset bigint, topic string"


def test_a_schema_of_the_users_chooses_columns(data: Path, store: DirectoryStore) -> None:
    filled(store, count=30)
    shape = StructType([StructField("offset", LongType()), StructField("key", BinaryType())])
    chosen = DefaultSource(given(data)).reader(shape)
    assert isinstance(chosen, BatchReader)
    assert [list(row) for row in rows(chosen)] == [["offset", "key"]] * 30
    for column, said in (
        (StructField("size", IntegerType()), "unknown column size"),
        (StructField("offset", StringType()), "must be bigint, not string"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            DefaultSource(given(data)).reader(StructType([column]))


# --- beside a writer


def test_records_that_retention_dropped_are_an_error_or_left_out(data: Path, store: DirectoryStore) -> None:
    topic = filled(store, count=90)
    topic.trim({0: 10})
    start = '{"orders": {"0": 4, "1": 30, "2": 30}}'
    with pytest.raises(DataLoss, match="records 4 to 9 of partition 0 of 'orders' are gone"):
        rows(reader(data, startingOffsets=start))
    assert len(rows(reader(data, startingOffsets=start, failOnDataLoss=False))) == 20


@pytest.mark.parametrize("deleted", [False, True])
def test_what_goes_between_planning_and_reading_is_an_error_or_left_out(
    data: Path, store: DirectoryStore, deleted: bool
) -> None:
    topic = filled(store, count=90)
    strict, lax = reader(data), reader(data, failOnDataLoss=False)
    tasks = strict.partitions(), lax.partitions()
    assert (len(rows(strict, tasks[0])), len(rows(lax, tasks[1]))) == (90, 90)
    if deleted:
        store.delete_topic("orders")
    else:
        topic.trim(dict.fromkeys(range(3), 30))
    with pytest.raises(DataLoss, match="are gone"):
        rows(strict, tasks[0])
    assert rows(lax, tasks[1]) == []


def test_a_plan_is_a_snapshot_and_a_new_one_has_what_came_later(data: Path, store: DirectoryStore) -> None:
    topic = filled(store, count=30)
    planned = reader(data)
    tasks = planned.partitions()
    topic.append(b"later")
    assert len(rows(planned, tasks)) == 30
    assert len(rows(reader(data))) == 31


def test_damage_is_an_error(data: Path, store: DirectoryStore) -> None:
    filled(store, count=90)
    store.close()
    victim = min((data / "topics/orders/partition-1").glob("*.log"))
    content = bytearray(victim.read_bytes())
    content[200] ^= 1
    victim.write_bytes(content)
    with pytest.raises(CorruptBatch):
        rows(reader(data))
