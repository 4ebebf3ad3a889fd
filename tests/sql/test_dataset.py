"""A topic as a table has the records of a scan, and reads only those that may pass a filter."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog import Topic
from sawlog.errors import DataLoss, InvalidRecord
from sawlog.sql.dataset import dataset_of
from sawlog.sql.filters import Bounds
from sawlog.sql.snapshot import TopicSnapshot
from sawlog.store.directory.store import DirectoryStore

from ..log.transactional import batch
from .conftest import COUNT, SCHEMA, Asked, T, order, rows

COLUMNS = ["partition", "offset", "timestamp", "key", "value"]


def as_rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [table.column(name) for name in COLUMNS]
    columns[2] = columns[2].cast(pa.int64())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_a_table_has_the_records_of_a_scan_in_their_order(orders: Topic) -> None:
    table = orders.arrow()
    assert table.schema.names == [*COLUMNS, "headers"]
    assert as_rows(table) == rows(orders)
    assert {row["headers"][0]["key"] for row in table.to_pylist()} == {"n"}


def test_columns_come_as_they_are_asked_for(orders: Topic) -> None:
    assert orders.arrow(columns=["value", "partition"]).schema.names == ["value", "partition"]
    assert orders.arrow(columns=["partition"]).num_rows == COUNT
    with pytest.raises(InvalidRecord, match="no such column: nope; the columns are partition, offset"):
        orders.arrow(columns=["nope"])


def test_start_and_end_are_offsets_by_partition_or_for_all_or_times(orders: Topic) -> None:
    everything = rows(orders)
    assert as_rows(orders.arrow({0: 5}, {0: 9, 1: 0})) == [
        row for row in everything if (row[0] == 0 and 5 <= row[1] < 9) or row[0] == 2
    ]
    assert as_rows(orders.arrow(3, 7)) == [row for row in everything if 3 <= row[1] < 7]
    since, until = T + 100, T + 200
    found = orders.arrow(datetime.fromtimestamp(since / 1000, UTC), datetime.fromtimestamp(until / 1000, UTC))
    assert as_rows(found) == [row for row in everything if since <= row[2] < until]


@settings(max_examples=30)
@given(low=st.integers(-10, COUNT + 10), width=st.integers(0, 300), by=st.sampled_from(["offset", "timestamp"]))
def test_a_range_leaves_the_same_records_as_a_list_would(low: int, width: int, by: str) -> None:
    topic = _ranges()
    column = pc.field(by)
    if by == "timestamp":
        limits = [pa.scalar(T + n, pa.timestamp("ms", tz="UTC")) for n in (low, low + width)]
    else:
        limits = [pa.scalar(n) for n in (low, low + width)]
    at = COLUMNS.index(by)
    first = T + low if by == "timestamp" else low
    found = topic.dataset().to_table(filter=(column >= limits[0]) & (column < limits[1]))
    assert as_rows(found) == [row for row in rows(topic) if first <= row[at] < first + width]


_KEPT: list[DirectoryStore] = []


def _ranges() -> Topic:
    """Return a topic in memory for many examples, with segments that overlap in time."""
    if not _KEPT:
        from sawlog.storage import MemoryDirectory

        store = DirectoryStore.open(MemoryDirectory(), maintenance_interval_s=None)
        topic = store.create_topic("t", partitions=2, segment_bytes=1500)
        generator = np.random.default_rng(7)
        for number in range(60):
            times = T + number * 10 + generator.integers(-40, 40, 5)
            topic.append_many([(b"x" * 100, None, (), int(time)) for time in times], partition=number % 2)
        _KEPT.append(store)
    return _KEPT[0].topic("t")


def test_a_filter_reads_only_the_segments_that_it_needs(orders: Topic, asked: Asked) -> None:
    read = asked.pieces
    dataset = orders.dataset()
    assert dataset.count_rows(pc.field("offset") == 5) == 3
    assert read == [(("offset",), 5, 6)] * 3
    read.clear()
    assert dataset.count_rows((pc.field("offset") == 5) & (pc.field("partition") == 1)) == 1
    assert read == [(("offset",), 5, 6)]
    read.clear()
    newest = pa.scalar((T + COUNT - 20) * 1000, pa.timestamp("us", tz="UTC"))
    assert dataset.count_rows(pc.field("timestamp") >= newest) == 20
    assert all(first > 100 for _, first, _ in read)
    read.clear()
    assert dataset.count_rows(pc.field("timestamp") < pa.scalar(T, pa.timestamp("ms", tz="UTC"))) == 0
    assert read == []


def test_a_snapshot_does_not_see_what_is_appended_later(orders: Topic) -> None:
    dataset = orders.dataset()
    orders.append(b"later", key=b"k")
    assert dataset.count_rows() == COUNT
    assert orders.dataset().count_rows() == COUNT + 1


def test_what_is_dropped_while_a_query_runs_is_an_error_and_not_a_gap(orders: Topic) -> None:
    dataset = orders.dataset()
    orders.trim({0: 50})
    with pytest.raises(DataLoss, match="retention or trim"):
        dataset.count_rows()


def test_records_of_open_and_aborted_transactions_are_left_out_unless_they_are_asked_for(store: DirectoryStore) -> None:
    topic = store.create_topic("t")
    log = topic.partition(0)
    topic.append(b"plain")
    for producer, commit in ((1, True), (2, False)):
        log.append_batches(batch([b"of %d" % producer], producer, sequence=0))
        log.append_marker(producer, 0, commit=commit)
    log.append_batches(batch([b"open"], 3, sequence=0))
    assert topic.arrow(columns=["value"]).column(0).to_pylist() == [b"plain", b"of 1"]
    everything = topic.arrow(columns=["value"], isolation="uncommitted").column(0).to_pylist()
    assert everything == [b"plain", b"of 1", b"of 2", b"open"]


def test_values_are_structs_with_a_schema_that_is_asked_for_or_declared(store: DirectoryStore, orders: Topic) -> None:
    asked = orders.arrow(columns=["value"], schema=SCHEMA).column(0).to_pylist()
    assert sorted(each["id"] for each in asked) == list(range(COUNT))
    assert asked[0] == order(asked[0]["id"])
    store.alter_topic("orders", sawlog_schema=SCHEMA)
    assert orders.arrow(columns=["value"]).column(0).to_pylist() == asked
    assert json.loads(orders.arrow(columns=["value"], schema=None).column(0)[0].as_py()) == asked[0]
    failed = orders.dataset().to_table(["offset"], pc.field("value", "status") == "failed")
    assert failed.num_rows == len([each for each in asked if each["status"] == "failed"])


def test_a_value_that_does_not_match_the_schema_is_null(store: DirectoryStore) -> None:
    topic = store.create_topic("t")
    topic.append_many([b'{"id": 1}', b"junk", b'{"id": "x"}', None, b'{"id": 2}'])
    assert topic.arrow(columns=["value"], schema="id INT").column(0).to_pylist() == [
        {"id": 1},
        None,
        None,
        None,
        {"id": 2},
    ]


def test_an_empty_topic_has_columns_and_no_rows(store: DirectoryStore) -> None:
    topic = store.create_topic("t", partitions=2)
    assert topic.arrow().num_rows == 0
    assert topic.arrow().schema.names == [*COLUMNS, "headers"]


def test_who_stops_early_leaves_nothing_open(orders: Topic) -> None:
    scan = dataset_of(orders).batches(["offset"], None, 5)
    assert next(scan).num_rows == 5
    scan.close()
    assert orders.dataset().head(3, ["offset"]).num_rows == 3


def test_little_of_a_topic_is_in_memory_at_a_time(store: DirectoryStore) -> None:
    topic = store.create_topic("big", durability="os", segment_bytes=16 << 20)
    for _ in range(8):
        topic.append_many([bytes(100_000) for _ in range(80)])
    before = pa.total_allocated_bytes()
    most = 0
    for batch_ in topic.dataset().batches(["value"]):
        most = max(most, pa.total_allocated_bytes() - before)
        assert batch_.num_rows
    assert most < 56 << 20  # a few pieces of 8 MiB


def test_pieces_are_planned_for_the_epoch_of_the_snapshot(orders: Topic) -> None:
    snapshot = TopicSnapshot.of(orders)
    log = orders.partition(0)
    log.truncate(10)
    for _ in range(20):
        orders.append_many([b"new"] * 20, partition=0)
    with pytest.raises(DataLoss, match="lost its records from offset 10"):
        list(snapshot.pieces(Bounds()))
