"""Repartitioning a topic: no record is lost, each key keeps its order, and the swap is atomic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from sawlog import Record
from sawlog.errors import InvalidConfig, StoreNotFound, TopicNotFound
from sawlog.pipelines import repartition
from sawlog.pipelines.repartition import RepartitionParams, RepartitionReport
from sawlog.store.directory.store import DirectoryStore

from .conftest import NoSpark, moment

Fill = Callable[..., Path]
Contents = Callable[..., list[Record]]


@pytest.fixture
def spread(spark: Any, data: Path) -> Callable[..., RepartitionReport]:
    """Repartition the topic `orders`."""
    return lambda partitions, progress=None: repartition.run(
        spark, RepartitionParams(str(data), "orders", partitions), progress
    )


@pytest.fixture
def refused(data: Path) -> Callable[..., RepartitionReport]:
    """Run the job, which must refuse before it uses Spark."""
    return lambda partitions: repartition.run(NoSpark(), RepartitionParams(str(data), "orders", partitions), None)  # type: ignore[arg-type]


Spread = Callable[..., RepartitionReport]


def by_key(records: Iterable[Record]) -> dict[bytes | None, list[tuple[Any, ...]]]:
    found = defaultdict(list)
    for record in records:
        found[record.key].append((record.value, record.timestamp, tuple(record.headers)))
    return dict(found)


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_every_record_of_a_key_is_there_in_its_order(
    spread: Spread, filled: Fill, data: Path, contents: Contents, partitions: int
) -> None:
    """In the partition where other writers would send it, with its time; the topic keeps its settings."""
    settings = {"segment_bytes": 2000, "retention_bytes": 10**12, "message_timestamp_type": "LogAppendTime"}
    filled(100, partitions=2, **settings)
    before = by_key(contents())
    with DirectoryStore.open(data, "r") as store:
        set_before = store["orders"].settings
    report = spread(partitions)
    assert (report.records, report.partitions_before, report.partitions) == (100, 2, partitions)
    assert by_key(contents()) == before
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        orders = store["orders"]
        assert store.topics() == ["orders"]
        assert orders.settings == set_before
        assert all(orders._router.place_for(None, record.key) == record.partition for record in orders.scan())


@pytest.mark.slow  # the quick tier keeps the order of keys in five partitions
def test_a_key_that_lies_in_several_partitions_is_merged_by_time(
    spread: Spread, filled: Fill, data: Path, contents: Contents
) -> None:
    filled(50, partitions=5)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.alter_topic("orders", 7)
    filled(50, first=50)
    with DirectoryStore.open(data, "r") as store:
        assert any(len({r.partition for r in store["orders"].scan() if r.key == b"k%d" % k}) == 2 for k in range(5))
    spread(3)
    for key, records in by_key(contents()).items():
        assert [when for _, when, _ in records] == [moment(n) for n in range(100) if b"k%d" % (n % 5) == key]


@pytest.mark.slow
def test_clocks_that_go_back_do_not_mix_a_partition_up(spread: Spread, data: Path, contents: Contents) -> None:
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 2)
        for number, when in enumerate([900, 100, 500, 200]):
            topic.append(b"%d" % number, b"key", (), when)
    spread(1)
    assert [record.value for record in contents()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow  # ten thousand records; the quick tier has records with keys
def test_records_without_a_key_are_all_there(spread: Spread, data: Path, contents: Contents) -> None:
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.create_topic("orders", 1).append_many([b"%d" % number for number in range(10_000)])
    spread(3)
    assert sorted(int(record.value) for record in contents()) == list(range(10_000))
    assert {record.partition for record in contents()} == {0, 1, 2}


def test_records_that_come_meanwhile_follow(spread: Spread, filled: Fill, contents: Contents) -> None:
    filled(20)
    came: list[int] = []

    def progress(count: int) -> None:
        if not came:
            filled(7, first=20)
        came.append(count)

    report = spread(3, progress)
    assert (came, report.followed, report.records) == ([20, 7], 7, 27)
    for key, records in by_key(contents()).items():
        assert [when for _, when, _ in records] == [moment(n) for n in range(27) if b"k%d" % (n % 5) == key]


def test_a_writer_meanwhile_loses_nothing_and_learns_that_its_topic_was_replaced(
    spread: Spread, filled: Fill, data: Path
) -> None:
    filled(20)
    came: list[int] = []
    with DirectoryStore.open(data, maintenance_interval_s=None) as writer:
        old = writer["orders"]
        old.append(b"mine", b"k0")

        def progress(count: int) -> None:
            if not came:
                old.append(b"meanwhile", b"k0")
            came.append(count)

        report = spread(3, progress)
        assert (came, report.followed) == ([21, 1], 1)
        with pytest.raises(TopicNotFound):
            old.append(b"late", b"k0")
        assert writer["orders"].partitions == 3
        writer["orders"].append(b"again", b"k0")
        found = [record.value for record in writer["orders"].scan() if record.key == b"k0"]
        assert found[-3:] == [b"mine", b"meanwhile", b"again"]


@pytest.mark.slow
def test_what_a_run_that_died_has_left_is_removed(spread: Spread, filled: Fill, data: Path) -> None:
    filled(20)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.create_topic("orders--repartition-0123abcd", 3).append(b"half")
    spread(3)
    with DirectoryStore.open(data, "r") as store:
        assert store.topics() == ["orders"]


@pytest.mark.slow
def test_groups_start_over(spread: Spread, filled: Fill, data: Path) -> None:
    filled(20)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.groups.commit("billing", {("orders", 0): 3})
    spread(3)
    with DirectoryStore.open(data, "r") as store:
        assert all(row.committed is None for row in store.groups.describe("billing").rows)


def test_what_cannot_be_is_said(refused: Spread, filled: Fill, data: Path) -> None:
    with pytest.raises(StoreNotFound):
        refused(3)
    filled(1)
    with pytest.raises(InvalidConfig):
        refused(0)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        refused(3)
