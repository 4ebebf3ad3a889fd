"""`spark.readStream.format("sawlog")`: every record once, from where the query started, whatever happens between.

Most tests play Spark's part themselves (`Query`): they call the reader as Spark 4.3 does, in its order, with a
checkpoint that keeps what Spark's would. So a crash is a reader that is thrown away between any two calls. A few run a
real query.
"""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

import sawlog
from sawlog import Store, Topic
from sawlog.errors import GroupNotFound, StoreNotFound
from sawlog.spark.options import read_options
from sawlog.spark.reading import DataLoss
from sawlog.spark.streaming import StreamReader

from .jobs.copying import copy

T = 1_700_000_000_000


class Query:
    """A streaming query as Spark runs it: a checkpoint, and a reader that is recreated at every start."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        given = {
            "path": str(path),
            "startingOffsets": "earliest",
            **{name: str(each) for name, each in options.items()},
        }
        if not {"subscribePattern", "assign", "subscribe"} & given.keys():
            given["subscribe"] = "orders"
        self._options = read_options(given, streaming=True)
        self.offsets: list[dict[str, Any]] = []
        self.done = 0
        self.restart()

    def restart(self, *, available_now: bool = False) -> Query:
        """Restart the query, which loses its memory."""
        self.reader = StreamReader(self._options, ("topic", "partition", "offset", "value"))
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        return self

    def construct(self) -> bool:
        """Plan and record the next micro-batch, unless one is planned. Return whether there is one."""
        if len(self.offsets) > self.done:
            return True
        limit = self.reader.getDefaultReadLimit()
        start = self.offsets[-1] if self.offsets else self.reader.initialOffset()
        end = self.reader.latestOffset(start, limit)
        self.reader.reportLatestOffset()
        if json.dumps(end) == json.dumps(start):  # Spark compares the text
            return False
        self.offsets.append(json.loads(json.dumps(end)))
        if self.done:
            self.reader.commit(self.offsets[self.done - 1])
        return True

    def read(self) -> list[tuple[Any, ...]]:
        """Return the rows of the planned micro-batch, which is not committed yet."""
        start = self.offsets[self.done - 1] if self.done else self.reader.initialOffset()
        tasks = self.reader.partitions(start, self.offsets[self.done])
        copy = pickle.loads(pickle.dumps(self.reader))  # a task has one
        return [
            tuple(row.values())
            for task in pickle.loads(pickle.dumps(tasks))
            for b in copy.read(task)
            for row in rows(b)
        ]

    def trigger(self) -> list[tuple[Any, ...]] | None:
        """Run one whole micro-batch and return its rows; None if there is none."""
        if not self.construct():
            return None
        found = self.read()
        self.done += 1
        return found

    def drain(self) -> list[tuple[Any, ...]]:
        """Run micro-batches until no records are left."""
        found: list[tuple[Any, ...]] = []
        while (more := self.trigger()) is not None:
            found += more
        return found


def rows(batch: Any) -> list[dict[str, Any]]:
    return list(batch.to_pylist())


def append(topic: Topic, *values: int, partition: int | None = None) -> None:
    for value in values:
        number = value % topic.partitions if partition is None else partition
        topic.append(b"%d" % value, timestamp=T + value * 1000, partition=number)


def values(found: list[tuple[Any, ...]]) -> list[int]:
    return sorted(int(row[3]) for row in found)


@pytest.fixture
def orders(store: Store) -> Topic:
    """Ten records in two partitions."""
    topic = store.create_topic("orders", 2, segment_bytes=300, durability="os")
    append(topic, *range(10))
    return topic


# --- where it starts


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": -1, "1": -1}}'},
        {"startingTimestamp": T + 10_000, "startingOffsetsByTimestampStrategy": "latest"},
        {
            "startingOffsetsByTimestamp": json.dumps({"orders": {"0": T + 10_000, "1": T + 10_000}}),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ],
)
def test_a_start_that_moves_is_looked_up_once_for_a_group(data: Path, orders: Topic, start: dict[str, Any]) -> None:
    """Records arrive before each call of Spark, and the query is killed before and after planning."""
    query = Query(data, groupId="spark", **start)
    query.reader.initialOffset()
    append(orders, 10, 11)
    query.restart().reader.initialOffset()
    append(orders, 12)
    assert query.construct()
    append(orders, 13)
    query.restart()
    append(orders, 14)
    assert values(query.read()) == [10, 11, 12]
    query.restart()
    assert values(query.drain()) == [10, 11, 12, 13, 14]


def test_a_start_that_moves_is_the_same_for_a_whole_run_without_a_group(data: Path, orders: Topic) -> None:
    query = Query(data, startingOffsets="latest")
    query.reader.initialOffset()
    append(orders, 10)
    assert query.construct()
    append(orders, 11)
    assert values(query.drain()) == [10, 11]


def test_a_start_that_moved_because_of_a_crash_is_refused_and_not_passed_over(data: Path, orders: Topic) -> None:
    query = Query(data, startingOffsets="latest")
    query.reader.initialOffset()
    append(orders, 10, 11)
    assert query.construct()
    append(orders, 12, 13)
    query.restart()
    with pytest.raises(DataLoss, match="groupId"):
        query.read()


def test_a_start_that_moved_because_of_a_crash_is_passed_over_if_data_loss_is_no_failure(
    data: Path, orders: Topic
) -> None:
    query = Query(data, startingOffsets="latest", failOnDataLoss=False)
    query.reader.initialOffset()
    append(orders, 10, 11)
    assert query.construct()
    append(orders, 12, 13)
    query.restart()
    assert values(query.drain()) == [12, 13]


def test_a_group_whose_query_has_begun_can_be_used_by_a_new_query(data: Path, orders: Topic) -> None:
    """A query that starts later with a new checkpoint does not find the start position of the first micro-batch."""
    first = Query(data, groupId="spark", startingOffsets="latest")
    first.reader.initialOffset()
    append(orders, 10)
    assert values(first.drain()) == [10]
    assert values(Query(data, groupId="spark", startingOffsets="latest").drain()) == []


def test_each_source_of_a_group_has_its_own_start(data: Path, store: Store, orders: Topic) -> None:
    """A join of two topics, or of a topic with itself from its beginning; two queries of an application."""
    clicks = store.create_topic("clicks", durability="os")
    append(clicks, *range(10))
    both: dict[str, Any] = {"groupId": "app", "startingOffsets": "latest"}
    queries = [
        Query(data, **both),
        Query(data, **both, subscribe="clicks"),
        Query(data, **{**both, "startingOffsets": "earliest"}),
    ]
    for query in queries:
        query.reader.initialOffset()
    append(orders, 10)
    append(clicks, 11)
    found = [values(query.restart().drain()) for query in queries]
    assert found == [[10], [11], list(range(11))]
    described = store.groups.describe("app")
    assert {row.topic for row in described.rows} == {"orders", "clicks"}


def test_a_path_without_a_store_is_an_error_also_with_a_group(data: Path) -> None:
    with pytest.raises(StoreNotFound):
        Query(data, groupId="app", startingOffsets="latest").reader.initialOffset()
    assert not data.exists()


def test_the_first_record_that_there_was_stays_the_start_when_retention_drops_it(data: Path, orders: Topic) -> None:
    query = Query(data, groupId="spark")
    assert query.construct()
    orders.trim({0: 2})
    query.restart()
    with pytest.raises(DataLoss, match="records 0 to 1 of partition 0"):
        query.read()


def test_offsets_are_kept_as_the_kafka_source_keeps_them_and_the_rest_under_one_key(
    data: Path, store: Store, orders: Topic
) -> None:
    query = Query(data)
    query.drain()
    more = {"store": store.id, "topics": {"orders": orders.id}, "epochs": {"orders": {"0": 0, "1": 0}}}
    assert query.offsets == [{"orders": {"0": 5, "1": 5}, "$sawlog": more}]


# --- how much at a time


def test_a_micro_batch_has_no_more_than_it_should_and_every_partition_its_share(data: Path, orders: Topic) -> None:
    append(orders, *range(10, 40), partition=0)
    query = Query(data, maxOffsetsPerTrigger=8)
    found = [query.trigger() for _ in range(5)]
    assert [len(each or ()) for each in found] == [8] * 5
    assert [sum(row[1] == 1 for row in each or ()) for each in found] == [1] * 5
    assert query.trigger() is None
    assert values([row for each in found for row in each or ()]) == list(range(40))


def test_a_limit_below_the_number_of_partitions_makes_progress_in_all_of_them(data: Path, store: Store) -> None:
    append(store.create_topic("orders", 5, durability="os"), *range(20))
    query = Query(data, maxOffsetsPerTrigger=1)
    assert [len(query.trigger() or []) for _ in range(4)] == [5] * 4
    assert query.trigger() is None


def test_no_partition_is_starved_by_a_large_one(data: Path, store: Store) -> None:
    topic = store.create_topic("orders", 4, durability="os")
    topic.append_many([b"%d" % number for number in range(1000)], partition=0)
    append(topic, 1001, 1002, 1003)
    query = Query(data, maxOffsetsPerTrigger=10)
    found = query.trigger() or []
    assert len(found) == 10
    assert {row[1] for row in found} == {0, 1, 2, 3}


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": 100}])
def test_it_waits_for_enough_records_except_in_the_first_micro_batch(
    data: Path, orders: Topic, more: dict[str, Any]
) -> None:
    query = Query(data, minOffsetsPerTrigger=15, maxTriggerDelay="1h", **more)
    assert values(query.trigger() or []) == list(range(10))
    append(orders, *range(10, 20))
    assert query.trigger() is None
    append(orders, *range(20, 25))
    assert values(query.trigger() or []) == list(range(10, 25))
    append(orders, 25)
    assert query.trigger() is None
    assert values(query.restart().trigger() or []) == [25]


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": 100}])
def test_a_trigger_that_asks_for_everything_does_not_wait(data: Path, orders: Topic, more: dict[str, Any]) -> None:
    """With `trigger(once=True)` Spark passes its own limit."""
    query = Query(data, minOffsetsPerTrigger=15, maxTriggerDelay="1h", **more)
    query.drain()
    append(orders, 10)
    start = query.offsets[-1]
    assert query.reader.latestOffset(start, query.reader.getDefaultReadLimit()) == start
    assert query.reader.latestOffset(start, ReadAllAvailable()) != start


def test_it_does_not_wait_for_longer_than_it_should(data: Path, orders: Topic) -> None:
    query = Query(data, minOffsetsPerTrigger=15, maxTriggerDelay="0s")
    query.drain()
    append(orders, 10)
    assert values(query.trigger() or []) == [10]


def test_what_is_available_now_is_read_and_what_comes_later_is_not(data: Path, orders: Topic) -> None:
    query = Query(data, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=4).restart(available_now=True)
    append(orders, 10, 11)
    assert values(query.drain()) == list(range(10))
    assert len(query.offsets) == 3
    assert values(query.restart(available_now=True).drain()) == [10, 11]


# --- concurrent changes


def test_new_partitions_are_found_and_read_from_their_first_record(data: Path, store: Store, orders: Topic) -> None:
    query = Query(data, startingOffsets="latest", maxOffsetsPerTrigger=2)
    assert query.trigger() is None
    append(store.alter_topic("orders", partitions=4), *range(10, 20))
    assert values(query.drain()) == list(range(10, 20))


def test_new_topics_of_a_pattern_are_found_and_read_from_their_first_record(data: Path, store: Store) -> None:
    query = Query(data, subscribePattern="order.*", startingOffsets="latest")
    assert query.trigger() is None
    append(store.create_topic("orders"), 1, 2)
    append(store.create_topic("others"), 3)
    assert values(query.drain()) == [1, 2]
    append(store.create_topic("orders-eu"), 4)
    assert values(query.drain()) == [4]


def test_only_the_assigned_partitions_are_read(data: Path, orders: Topic) -> None:
    query = Query(data, assign='{"orders": [1]}')
    assert values(query.drain()) == [1, 3, 5, 7, 9]
    assert query.reader.reportLatestOffset() == {"orders": {"1": 5}}


def test_records_that_retention_dropped_are_an_error(data: Path, orders: Topic) -> None:
    query = Query(data)
    query.drain()
    append(orders, *range(10, 20))
    orders.trim({0: 7})
    with pytest.raises(DataLoss, match="records 5 to 6 of partition 0 of 'orders' are gone"):
        query.drain()


def test_records_that_retention_dropped_are_left_out_if_data_loss_is_no_failure(data: Path, orders: Topic) -> None:
    query = Query(data, failOnDataLoss=False, maxOffsetsPerTrigger=3)
    query.drain()
    append(orders, *range(10, 20))
    orders.trim({0: 7})
    assert values(query.drain()) == [11, 13, 14, 15, 16, 17, 18, 19]


def test_a_topic_that_is_gone_is_an_error(data: Path, store: Store, orders: Topic) -> None:
    query = Query(data)
    query.drain()
    store.delete_topic("orders")
    with pytest.raises(DataLoss, match="'orders'"):
        query.trigger()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_is_gone_is_left_out_and_the_others_are_read_if_data_loss_is_no_failure(
    data: Path, store: Store, orders: Topic, available_now: bool
) -> None:
    other = store.create_topic("clicks")
    query = Query(data, subscribe="clicks,orders", failOnDataLoss=False, groupId="spark")
    assert len(query.drain()) == 10
    store.delete_topic("orders")
    append(other, 100)
    assert values(query.restart(available_now=available_now).drain()) == [100]
    assert [(row.topic, row.lag) for row in store.groups.describe("spark").rows] == [("clicks", 0)]


def test_a_topic_that_goes_between_planning_and_reading_is_left_out_if_data_loss_is_no_failure(
    data: Path, store: Store, orders: Topic
) -> None:
    query = Query(data, failOnDataLoss=False)
    assert query.construct()
    store.delete_topic("orders")
    assert query.drain() == []


def test_a_recreated_topic_is_not_mistaken_for_the_old_one(data: Path, store: Store, orders: Topic) -> None:
    """Otherwise its records would be skipped until it is as long as the old one."""
    query = Query(data)
    query.drain()
    store.delete_topic("orders")
    append(store.create_topic("orders", 2), 100, 101)
    with pytest.raises(DataLoss, match=r"'orders' .* was deleted and recreated"):
        query.trigger()


def test_a_recreated_topic_is_read_from_its_first_record_if_data_loss_is_no_failure(
    data: Path, store: Store, orders: Topic
) -> None:
    query = Query(data, failOnDataLoss=False, maxOffsetsPerTrigger=3)
    query.drain()
    store.delete_topic("orders")
    anew = store.create_topic("orders", 2)
    append(anew, 100, 101, 102, 103)
    assert query.construct()
    append(anew, *range(104, 120))
    query.restart()
    assert values(query.drain()) == list(range(100, 120))


# --- progress and metrics


def lags(store: Store, group: str) -> dict[int, int]:
    return {row.partition: row.lag for row in store.groups.describe(group).rows}


def test_the_lag_of_a_query_is_that_of_its_group(data: Path, store: Store, orders: Topic) -> None:
    query = Query(data, groupId="spark", maxOffsetsPerTrigger=4)
    query.trigger()
    with pytest.raises(GroupNotFound):
        store.groups.describe("spark")
    query.trigger()
    assert lags(store, "spark") == {0: 3, 1: 3}
    query.drain()
    assert lags(store, "spark") == {0: 0, 1: 0}
    append(orders, 10)
    assert lags(store, "spark") == {0: 1, 1: 0}


def test_what_is_only_planned_is_not_shown_as_done(data: Path, store: Store, orders: Topic) -> None:
    query = Query(data, groupId="spark")
    query.trigger()
    append(orders, 10, 11)
    assert query.construct()
    query.restart()
    query.read()
    assert lags(store, "spark") == {0: 1, 1: 1}


def test_a_group_with_live_members_does_not_stop_the_query(data: Path, store: Store, orders: Topic) -> None:
    with store.consumer("spark", "orders") as consumer:
        consumer.poll(0.1)
        query = Query(data, groupId="spark", maxOffsetsPerTrigger=4)
        assert values(query.drain()) == list(range(10))


def test_a_query_without_a_group_leaves_nothing_in_the_store(data: Path, orders: Topic) -> None:
    before = {path for path in data.rglob("*") if "orders" not in path.parts}
    Query(data, startingOffsets="latest").drain()
    assert {path for path in data.rglob("*") if "orders" not in path.parts} == before


def test_nothing_is_open_after_the_end(data: Path, orders: Topic) -> None:
    query = Query(data, groupId="spark", startingOffsets="latest")
    append(orders, 10)
    query.drain()
    before = len(list(Path("/proc/self/fd").iterdir()))
    query.reader.stop()
    query.reader.stop()
    assert len(list(Path("/proc/self/fd").iterdir())) < before


# --- everything together

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.sampled_from([("partition", 0), ("plan", 0), ("read", 0), ("trigger", 0), ("kill", 0)]),
    ),
    max_size=25,
)


@pytest.mark.costly  # a store for each example
@settings(max_examples=25)
@given(steps=STEPS, limit=st.one_of(st.none(), st.integers(1, 7)), latest=st.booleans())
def test_every_record_is_delivered_once_whatever_happens_between(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], limit: int | None, latest: bool
) -> None:
    data = tmp_path_factory.mktemp("stream") / "data"
    with sawlog.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 2, segment_bytes=200, durability="os")
        append(topic, *range(5))
        options = {} if limit is None else {"maxOffsetsPerTrigger": limit}
        query = Query(data, groupId="spark", startingOffsets="latest" if latest else "earliest", **options)
        query.reader.initialOffset()
        count, found = 5, []
        for step, number in steps:
            if step == "append":
                append(topic, *range(count, count + number))
                count += number
            elif step == "partition" and topic.partitions < 5:
                topic = store.alter_topic("orders", partitions=topic.partitions + 1)
            elif step == "plan":
                query.construct()
            elif step == "read" and len(query.offsets) > query.done:
                query.read()
            elif step == "trigger":
                found += query.trigger() or []
            elif step == "kill":
                query.restart()
        found += query.drain()
        assert values(found) == list(range(5 if latest else 0, count))
        assert len({row[:3] for row in found}) == len(found)


# --- with Spark


def test_a_query_reads_all_there_is_then_what_is_new(spark: Any, data: Path, store: Store, orders: Topic) -> None:
    store.create_topic("copies", 3)
    checkpoint = data.parent / "checkpoint"
    options: dict[str, Any] = {"maxOffsetsPerTrigger": 6, "groupId": "spark"}
    first = copy(spark, data, checkpoint, **options)
    first.awaitTermination()
    assert copied(store) == list(range(10))
    [source] = [progress["sources"][0] for progress in first.recentProgress if progress["batchId"] == 0]
    assert source["numInputRows"] == 6
    assert json.loads(source["endOffset"])["orders"] == {"0": 3, "1": 3}
    assert json.loads(source["latestOffset"]) == {"orders": {"0": 5, "1": 5}}
    assert lags(store, "spark") == {0: 0, 1: 0}
    append(store.alter_topic("orders", partitions=4), *range(10, 20))
    assert lags(store, "spark") == {0: 2, 1: 2, 2: 3, 3: 3}
    copy(spark, data, checkpoint, groupId="spark").awaitTermination()
    assert copied(store) == list(range(20))


@pytest.mark.slow  # two runs of a query; by hand above
def test_a_query_from_the_end_misses_nothing_between_its_runs(
    spark: Any, data: Path, store: Store, orders: Topic
) -> None:
    store.create_topic("copies")
    options: dict[str, Any] = {"startingOffsets": "latest", "groupId": "spark"}
    copy(spark, data, data.parent / "checkpoint", **options).awaitTermination()
    append(orders, 10, 11)
    copy(spark, data, data.parent / "checkpoint", **options).awaitTermination()
    assert copied(store) == [10, 11]


@pytest.mark.slow  # 8 s; by hand above, growing and trimmed
def test_a_query_follows_a_topic_that_grows_and_is_trimmed(spark: Any, data: Path, store: Store, orders: Topic) -> None:
    """Dropped records may be missing; all others are delivered once and in order."""
    store.create_topic("copies")
    query = copy(
        spark, data, data.parent / "checkpoint", trigger={"processingTime": "0 seconds"}, failOnDataLoss="false"
    )
    try:
        written, dropped = 10, 0
        while len(query.recentProgress) < 5 and query.isActive:
            append(orders, *range(written, written + 20))
            written += 20
            dropped = (written - 60) // 2
            orders.trim({0: max(dropped, 0), 1: max(dropped, 0)})
            time.sleep(0.05)
        query.processAllAvailable()
    finally:
        query.stop()
    found = copied(store)
    assert len(set(found)) == len(found)
    assert set(range(max(dropped, 0) * 2, written)) <= set(found) <= set(range(written))


@pytest.mark.slow  # two runs of a query; by hand above
def test_records_that_are_gone_end_the_query_with_a_clear_error(
    spark: Any, data: Path, store: Store, orders: Topic
) -> None:
    store.create_topic("copies")
    copy(spark, data, data.parent / "checkpoint").awaitTermination()
    append(orders, *range(10, 20))
    orders.trim({0: 7})
    query = copy(spark, data, data.parent / "checkpoint")
    with pytest.raises(Exception, match="records 5 to 6 of partition 0 of 'orders' are gone"):
        query.awaitTermination()


def copied(store: Store) -> list[int]:
    return sorted(int(record.value or b"") for record in store["copies"].scan())
