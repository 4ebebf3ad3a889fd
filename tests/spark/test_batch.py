"""`spark.read.format("sawlog")`: the records of a topic, with the columns and options of Spark's Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Store, Topic
from sawlog.spark.options import read_options
from sawlog.spark.reading import BatchReader, Task

T = 1_700_000_000_000
Load = Callable[..., Any]


def filled(store: Store, name: str = "orders", count: int = 300, partitions: int = 3, **settings: Any) -> Topic:
    topic = store.create_topic(name, partitions, segment_bytes=2000, durability="os", **settings)
    for number in range(count):
        topic.append(
            b"value %d" % number,
            key=b"key %d" % (number % 10),
            headers=(("h", b"%d" % number),) if number % 7 == 0 else (),
            timestamp=T + number * 1000,
            partition=number % partitions,
        )
    return topic


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def records(topic: Topic) -> list[tuple[Any, ...]]:
    return sorted((r.partition, r.offset, r.key, r.value) for r in topic.scan())


def tasks(data: Path, **options: Any) -> list[Task]:
    """Return the tasks that the driver would plan."""
    given = {"path": str(data), "subscribe": "orders", **{name: str(value) for name, value in options.items()}}
    found = read_options(given, streaming=False)
    return list(BatchReader(found, found.columns).partitions())  # type: ignore[arg-type]


# --- what is read


def test_all_records_with_all_columns(store: Store, load: Load) -> None:
    topic = filled(store)
    frame = load()
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert rows(frame, "partition", "offset", "key", "value") == records(topic)
    [one] = frame.filter("partition = 1 AND offset = 2").collect()
    assert one.asDict() == {
        "key": b"key 7",
        "value": b"value 7",
        "topic": "orders",
        "partition": 1,
        "offset": 2,
        "timestamp": datetime.fromtimestamp((T + 7000) / 1000, UTC).replace(tzinfo=None),
        "timestampType": 0,
    }


@pytest.mark.slow  # by hand in test_reading.py
def test_headers_are_read_if_they_are_asked_for(store: Store, load: Load) -> None:
    filled(store, count=20)
    found = {row.value: row.headers for row in load(includeHeaders=True).collect()}
    assert [(h.key, h.value) for h in found[b"value 14"]] == [("h", b"14")]
    assert found[b"value 15"] is None  # as Kafka's source has it


@pytest.mark.slow  # by hand in test_reading.py
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_topics_are_read_like_others(store: Store, load: Load, compression: str) -> None:
    topic = store.create_topic("orders", 2, compression_type=compression)
    topic.append_many([(b"the same value, number %d" % n, b"key %d" % n) for n in range(500)])
    assert rows(load(), "partition", "offset", "key", "value") == records(topic)


@pytest.mark.slow  # by hand in test_reading.py
def test_a_compacted_topic_is_read_without_what_was_removed(store: Store, load: Load) -> None:
    topic = filled(store, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    assert any(report.compaction for report in topic.maintain())
    assert len(records(topic)) < 300
    assert rows(load(), "partition", "offset", "key", "value") == records(topic)


@pytest.mark.slow  # by hand in test_reading.py
def test_an_empty_topic_has_no_rows(store: Store, load: Load) -> None:
    store.create_topic("orders", 2)
    assert load().count() == 0


@pytest.mark.slow  # by hand in test_reading.py
def test_null_keys_and_values_stay_null(store: Store, load: Load) -> None:
    topic = store.create_topic("orders")
    topic.append(None, key=b"deleted")
    topic.append(b"without key")
    assert [tuple(row) for row in load().orderBy("offset").select("key", "value").collect()] == [
        (b"deleted", None),
        (None, b"without key"),
    ]


# --- which partitions


@pytest.mark.slow  # by hand in test_reading.py
def test_several_topics_a_pattern_and_partitions(store: Store, load: Load) -> None:
    for name in ("orders", "orders-eu", "clicks"):
        filled(store, name, 30)
    count = lambda frame: {tuple(row) for row in frame.groupBy("topic").count().collect()}  # noqa: E731
    assert count(load("orders,clicks")) == {("orders", 30), ("clicks", 30)}
    assert count(load(None, subscribePattern="orders.*")) == {("orders", 30), ("orders-eu", 30)}
    assert count(load(None, subscribePattern="nothing")) == set()
    assigned = load(None, assign=json.dumps({"orders": [0, 2], "clicks": [1]}))
    assert {tuple(row) for row in assigned.groupBy("topic", "partition").count().collect()} == {
        ("orders", 0, 10),
        ("orders", 2, 10),
        ("clicks", 1, 10),
    }


#: Invalid options, each with a part of the error message.
UNREADABLE: list[tuple[dict[str, Any], str]] = [
    ({"subscribe": "nothing"}, "nothing"),
    ({"subscribe": None, "assign": '{"orders": [7]}'}, "partitions 0 to 2, not 7"),
    ({"startingOffsets": '{"orders": {"0": 1000}}'}, "does not exist yet"),
    ({"startingOffsets": '{"other": {"0": 1}}'}, "is not among the partitions read"),
    ({"startingOffsets": "latest"}, "would read nothing in a batch"),
    ({"startingOffsets": '{"orders": {"0": 5}}', "endingTimestamp": str(T + 1000)}, "offset 5 > 1"),
    ({"startingTimestamp": str(T + 10**9)}, "startingOffsetsByTimestampStrategy"),
    ({"columns": "size"}, "is not a selection of"),
    ({"minPartitions": "none"}, "minpartitions"),
    ({"startingOffset": "earliest"}, "did you mean startingoffsets"),
]


@pytest.mark.parametrize(
    ("options", "said"),
    [UNREADABLE[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in UNREADABLE[1:])],  # test_reading.py: all
)
def test_what_cannot_be_read_is_a_clear_error(store: Store, load: Load, options: dict[str, Any], said: str) -> None:
    filled(store, count=30)
    with pytest.raises(Exception, match=re.escape(said)):
        load(**options).count()


@pytest.mark.slow  # by hand in test_reading.py
def test_a_store_that_is_not_there_is_a_clear_error(load: Load) -> None:
    with pytest.raises(Exception, match="no store in"):
        load().count()


# --- which offsets


@pytest.mark.slow  # by hand in test_reading.py
def test_ranges_of_offsets(store: Store, load: Load) -> None:
    filled(store, count=90)
    frame = load(
        startingOffsets=json.dumps({"orders": {"0": 5, "1": 30}}),
        endingOffsets=json.dumps({"orders": {"0": 8, "1": -1}}),
    )
    counted = {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()}
    assert counted == {0: 3, 2: 30}


@pytest.mark.slow  # by hand in test_reading.py
def test_ranges_of_time(store: Store, load: Load) -> None:
    filled(store, count=90)
    begin, end = T + 30_000, T + 60_000
    found = rows(load(startingTimestamp=begin, endingTimestamp=end), "value")
    assert found == sorted((b"value %d" % number,) for number in range(30, 60))
    iso = datetime.fromtimestamp(begin / 1000, UTC).isoformat()
    assert load(startingTimestamp=iso, endingTimestamp=end).count() == 30
    each = load(startingOffsetsByTimestamp=json.dumps({"orders": {"0": T + 80_000}}))
    assert {row["partition"]: row["count"] for row in each.groupBy("partition").count().collect()} == {
        0: 3,
        1: 30,
        2: 30,
    }
    assert load(startingTimestamp=T + 10**9, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_a_frame_is_a_snapshot(store: Store, load: Load) -> None:
    """However often it is used, and whatever filters it is used with, it gives the records of its first use."""
    topic = filled(store, count=30)
    frame = load()
    assert frame.count() == 30
    topic.append(b"later")
    assert frame.count() == 30
    assert frame.filter("offset = 3").count() == 3
    assert frame.filter("offset = 3").union(frame.filter("offset = 4")).count() == 6
    assert frame.count() == 30
    assert load().count() == 31


# --- how it is cut


def test_time_and_offsets_prune_segments(store: Store, data: Path) -> None:
    filled(store)
    everything = {(piece.partition, piece.what.name) for task in tasks(data) for piece in task.pieces}
    some = {
        (piece.partition, piece.what.name)
        for task in tasks(data, startingTimestamp=T + 100_000, endingTimestamp=T + 130_000)
        for piece in task.pieces
    }
    one = {
        (piece.partition, piece.what.name)
        for task in tasks(
            data,
            startingOffsets='{"orders": {"0": 5, "1": 0, "2": 0}}',
            endingOffsets='{"orders": {"0": 6, "1": 0, "2": 0}}',
        )
        for piece in task.pieces
    }
    assert len(everything) > 12
    assert len(some) <= 6
    assert some < everything
    assert len(one) == 1


@pytest.mark.slow  # by hand in test_reading.py
def test_large_partitions_are_split_however_it_is_asked_for(store: Store, data: Path, load: Load) -> None:
    filled(store)
    assert len(tasks(data)) == 3
    assert len(tasks(data, minPartitions=8)) >= 8
    assert len(tasks(data, maxPartitionBytes=3000)) > 5
    assert all(
        piece.what.end_offset - piece.what.start_offset <= 7
        for task in tasks(data, maxRecordsPerPartition=7)
        for piece in task.pieces
    )
    expected = rows(load(), "partition", "offset")
    for options in ({"minPartitions": 8}, {"maxPartitionBytes": 3000}, {"maxRecordsPerPartition": 7}):
        assert rows(load(**options), "partition", "offset") == expected


@pytest.mark.slow  # by hand in test_reading.py
def test_only_the_columns_that_are_asked_for_are_read(store: Store, load: Load) -> None:
    filled(store, count=30)
    frame = load(columns="offset,topic")
    assert frame.columns == ["offset", "topic"]
    assert frame.count() == 30
    assert load(columns="topic").distinct().collect()[0].topic == "orders"


@pytest.mark.slow  # by hand in test_reading.py
def test_a_schema_of_the_users_chooses_columns(spark: Any, store: Store, data: Path) -> None:
    filled(store, count=30)
    reader = spark.read.format("sawlog").option("path", str(data)).option("subscribe", "orders")
    assert reader.schema("offset bigint, key binary").load().columns == ["offset", "key"]
    with pytest.raises(Exception, match="unknown column size"):
        reader.schema("size int").load().count()
    with pytest.raises(Exception, match="must be bigint, not string"):
        reader.schema("offset string").load().count()


@pytest.mark.slow  # a view is also read in test_tables.py
def test_it_works_in_sql(spark: Any, store: Store, data: Path) -> None:
    filled(store, count=30)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING sawlog OPTIONS (path '{data}', subscribe 'orders')")
    assert spark.sql("SELECT count(*) FROM v WHERE partition = 1").collect()[0][0] == 10


# --- beside a writer


@pytest.mark.slow  # by hand in test_reading.py
def test_records_that_retention_dropped_are_an_error_or_left_out(store: Store, load: Load) -> None:
    topic = filled(store, count=90)
    topic.trim({0: 10})
    start = '{"orders": {"0": 4, "1": 30, "2": 30}}'
    with pytest.raises(Exception, match="records 4 to 9 of partition 0 of 'orders' are gone"):
        load(startingOffsets=start).count()
    assert load(startingOffsets=start, failOnDataLoss=False).count() == 20


@pytest.mark.slow  # 7 s; by hand in test_reading.py
def test_records_that_go_between_planning_and_reading_are_an_error_or_left_out(store: Store, load: Load) -> None:
    topic = filled(store, count=90)
    strict, lax = load(), load(failOnDataLoss=False)
    assert (strict.count(), lax.count()) == (90, 90)
    topic.trim(dict.fromkeys(range(3), 30))
    with pytest.raises(Exception, match="are gone"):
        strict.count()
    assert lax.count() == 0


@pytest.mark.slow  # 5 s; by hand in test_reading.py
def test_a_topic_that_vanishes_is_an_error(store: Store, load: Load) -> None:
    filled(store, count=30)
    frame = load()
    assert frame.count() == 30
    store.delete_topic("orders")
    with pytest.raises(Exception, match="are gone"):
        frame.count()


@pytest.mark.slow  # by hand in test_data_loss.py
def test_segments_that_are_rewritten_between_planning_and_reading_are_read_all_the_same(
    store: Store, load: Load
) -> None:
    topic = filled(store)
    frame = load(maxPartitionBytes=1500)
    expected = rows(frame, "partition", "offset")
    for number in range(3):
        topic.partition(number)._merge_segments()
        topic.partition(number)._recompress()
    assert rows(frame, "partition", "offset") == expected


@pytest.mark.slow  # by hand in test_reading.py
def test_damage_is_an_error(store: Store, data: Path, load: Load) -> None:
    filled(store, count=90)
    store.close()
    victim = min((data / "topics/orders/partition-1").glob("*.log"))
    content = bytearray(victim.read_bytes())
    content[200] ^= 1
    victim.write_bytes(content)
    with pytest.raises(Exception, match="CorruptBatch"):
        load().count()


@pytest.mark.slow  # by hand in test_reading.py
def test_it_reads_during_writes(data: Path, load: Load) -> None:
    with sawlog.open(data, maintenance_interval_s=None) as writing:
        topic = filled(writing, count=30)
        assert load().count() == 30
        topic.append(b"more")
        assert load().count() == 31
