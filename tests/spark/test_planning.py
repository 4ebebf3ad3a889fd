"""Ranges of offsets become enough tasks, which together cover all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sawlog import Store, Topic
from sawlog.spark import planning
from sawlog.spark.options import read_options
from sawlog.spark.planning import Task
from sawlog.spark.reading import BatchReader


def reader(data: Path, **options: Any) -> BatchReader:
    given = {"path": str(data), "subscribe": "orders", **{name: str(value) for name, value in options.items()}}
    return BatchReader(read_options(given, streaming=False), ("partition", "offset"))


def planned(data: Path, **options: Any) -> list[list[tuple[int, int]]]:
    """The records of each task, as (partition, offset)."""
    source = reader(data, **options)
    return [
        [(row["partition"], row["offset"]) for b in source.read(task) for row in b.to_pylist()]
        for task in source.partitions()
    ]


def everything(tasks: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return sorted(each for task in tasks for each in task)


def filled(store: Store, partitions: int, count: int, size: int = 10, **settings: Any) -> Topic:
    """A topic with that many records in each partition, in one batch."""
    topic = store.create_topic("orders", partitions, durability="os", **settings)
    for number in range(partitions):
        topic.append_many([bytes(size)] * count, partition=number)
    return topic


def test_each_partition_with_data_has_a_task(data: Path, store: Store) -> None:
    topic = filled(store, 8, 100)
    store.alter_topic("orders", partitions=10)  # two without data
    tasks = planned(data)
    assert len(tasks) == 8
    assert everything(tasks) == [(number, offset) for number in range(8) for offset in range(100)]
    assert topic.name == "orders"


def test_very_many_small_partitions_share_tasks(data: Path, store: Store) -> None:
    filled(store, 200, 3)
    tasks = planned(data)
    assert planning.SHARED_FROM <= len(tasks) < 100
    assert len(everything(tasks)) == 600


def test_a_large_partition_has_a_task_for_each_core(data: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("orders", durability="os")
    for _ in range(100):
        topic.append_many([bytes(100)] * 10)
    monkeypatch.setattr(planning, "LEAST_TASK_BYTES", 1000)
    monkeypatch.setattr(planning, "machine_cores", lambda: 5)
    tasks = planned(data)
    assert 5 <= len(tasks) <= 7
    assert everything(tasks) == [(0, offset) for offset in range(1000)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("least", [1, 2, 3, 7, 50, 100])
def test_min_partitions_cuts_inside_batches(data: Path, store: Store, compression: str, least: int) -> None:
    filled(store, 1, 100, compression_type=compression)
    tasks = planned(data, minPartitions=least)
    assert least <= len(tasks) <= 2 * least
    assert everything(tasks) == [(0, offset) for offset in range(100)]
    assert max(map(len, tasks)) == 100 // least


def test_min_partitions_is_at_most_a_task_for_each_record(data: Path, store: Store) -> None:
    filled(store, 2, 10)
    assert [len(task) for task in planned(data, minPartitions=1000)] == [1] * 20


def test_min_partitions_counts_over_all_partitions(data: Path, store: Store) -> None:
    topic = filled(store, 3, 10)
    topic.append_many([b"x"] * 970, partition=0)
    tasks = planned(data, minPartitions=20)
    assert 20 <= len(tasks) <= 24
    assert len(everything(tasks)) == 1000


def test_a_task_has_slices_of_one_partition_of_many_segments(data: Path, store: Store) -> None:
    topic = store.create_topic("orders", 2, segment_bytes=300, durability="os")
    for number in range(100):
        topic.append(b"%d" % number, partition=number % 2)
    tasks = reader(data).partitions()
    assert len(tasks) == 2
    for task in tasks:
        assert isinstance(task, Task)
        assert len(task.pieces) > 3
        assert len({piece.partition for piece in task.pieces}) == 1


def test_no_task_has_more_records_than_it_should(data: Path, store: Store) -> None:
    filled(store, 2, 100)
    tasks = planned(data, maxRecordsPerPartition=7)
    assert max(map(len, tasks)) == 7
    assert len(everything(tasks)) == 200
