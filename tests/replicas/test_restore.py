"""Restoring a directory from a replica: completely or not at all, at the end or at an earlier time, once or
following."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import sawlog
from sawlog import Store
from sawlog.errors import DirectoryLocked, ImportMismatch, InvalidConfig, StorageError, StoreIncomplete
from sawlog.store.objects import extent_reader
from sawlog.store.objects.collect import Collector
from sawlog.store.objects.extent_reader import ExtentReader
from sawlog.store.objects.journal import StoreParameters
from sawlog.store.objects.store import ObjectStore
from sawlog.store.replica import Points, Restorer, restore
from sawlog.store.replica import replicator as shipping

from .pairs import address, assert_comes_back, assert_same, eventually, ship

EAGER = StoreParameters(belief_s=0.05, grace_s=0.1, readers_s=0.05, checkpoint_every=4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Iterator[Store]:
    with sawlog.open(data, maintenance_interval_s=None) as made:
        yield made


@pytest.fixture
def url() -> str:
    return address()


def fill(store: Store, count: int = 20) -> None:
    for number in range(count):
        store["orders"].append(b"value %d" % number, key=b"%d" % number)


def commits(url: str) -> int:
    with ObjectStore.open(url, "r") as there:
        return there._session.known()


class Broken(Exception):
    """Raised by an interruption."""


def test_an_interrupted_restore_is_not_opened_and_continues(
    data: Path, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, 100)
    store.groups.commit("billing", {("orders", 0): 3})
    ship(data, url)
    to = tmp_path / "again"
    real, calls = ExtentReader._get, iter(range(100))

    def interrupted(*given: Any) -> Any:
        if next(calls) == 1:
            raise Broken
        return real(*given)

    monkeypatch.setattr(ExtentReader, "_get", interrupted)
    monkeypatch.setattr(extent_reader, "REQUEST_BYTES", 256)
    with pytest.raises(Broken):
        restore(url, to)
    for mode in ("w", "r"):
        with pytest.raises(StoreIncomplete, match=r"is not complete.*continues it"):
            sawlog.open(to, mode)  # type: ignore[call-overload]
    assert_comes_back(store, url, to)


def test_a_directory_is_filled_by_one_from_one_place_at_one_moment(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    store.create_topic("orders")
    fill(store)
    ship(data, url)
    to = tmp_path / "again"
    with Restorer(url, to):
        with pytest.raises(DirectoryLocked):
            Restorer(url, to)
        with pytest.raises(StoreIncomplete):
            sawlog.open(to)
    with pytest.raises(ImportMismatch, match=r"is being restored from .* \(now\), not from .* \(commit 2\)"):
        Restorer(url, to, at_commit=2)
    restore(url, to)
    with pytest.raises(ImportMismatch, match="is a store of its own"):
        restore(url, to)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "file").write_text("mine")
    with pytest.raises(InvalidConfig, match="is not empty"):
        restore(url, tmp_path / "strange")


def test_a_followed_directory_is_read_meanwhile_and_written_afterwards(
    data: Path, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sawlog.store.replica.restorer.POLL_S", 0.02)
    store.create_topic("orders", partitions=2)
    fill(store)
    ship(data, url)
    to, stopped, rounds = tmp_path / "standby", threading.Event(), threading.Event()

    def run() -> None:
        restore(url, to, follow=True, stopped=stopped, on_round=lambda _: rounds.set())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert rounds.wait(60)
        with pytest.raises(DirectoryLocked, match="keeps it up to date"):
            sawlog.open(to)
        fill(store)
        store.create_topic("later").append(b"x")
        store.alter_topic("orders", partitions=3)
        store["orders"].trim({0: 4})
        store.groups.commit("billing", {("orders", 1): 2})
        ship(data, url, mirror_retention=True)
        with sawlog.open(to, "r") as standby:
            eventually(lambda: standby.topics() == ["later", "orders"] and standby.groups.list() == ["billing"])
        store.delete_topic("later")
        ship(data, url, delete=True)
        with sawlog.open(to, "r") as standby:
            eventually(lambda: standby.topics() == ["orders"])
    finally:
        stopped.set()
        thread.join()
    with sawlog.open(to, "r") as standby:
        assert_same(store, standby)
    with Restorer(url, to) as again:  # it may be followed again
        again.run(follow=True, stopped=stopped)
    with sawlog.open(to) as standby:
        standby["orders"].append(b"mine")
    with pytest.raises(ImportMismatch, match="is a store of its own"):
        restore(url, to, follow=True)


def test_a_moment_is_restored_by_its_commit(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    store.create_topic("orders", partitions=2)
    fill(store)
    store.groups.commit("billing", {("orders", 0): 3})
    ship(data, url)
    moment = commits(url)
    ends = {number: each.next for number, each in store["orders"].offsets().items()}
    fill(store, 30)
    store.groups.commit("billing", {("orders", 0): 9})
    store.create_topic("later")
    ship(data, url)
    restore(url, tmp_path / "then", at_commit=moment)
    with sawlog.open(tmp_path / "then", "r") as then:
        assert then.topics() == ["orders"]
        assert {number: each.next for number, each in then["orders"].offsets().items()} == ends
        assert then.groups.describe("billing").rows[0].committed == 3
        assert not then["orders"].partition(0).verify().problems
    with pytest.raises(InvalidConfig, match="so there was no moment after 99"):
        restore(url, tmp_path / "never", at_commit=99)
    with pytest.raises(InvalidConfig, match="cannot be followed"):
        restore(url, tmp_path / "both", at_commit=moment, follow=True)


def stepping(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """A clock for commits and points, in ms."""
    clock = mock.Mock(return_value=1_000_000)
    monkeypatch.setattr("sawlog.store.objects.journal.now_ms", clock)
    monkeypatch.setattr("sawlog.store.replica.points.now_ms", clock)
    return clock


def test_a_moment_is_restored_by_its_time(
    data: Path, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stepping(monkeypatch)
    store.create_topic("orders")
    for minute in range(1, 6):
        clock.return_value = 1_000_000 + 60_000 * minute
        fill(store, 10)
        ship(data, url)
    for until, end in ((1_060_000, 10), (1_179_999, 20), (1_180_000, 30), (9_999_999, 50)):
        restore(url, tmp_path / f"{until}", until_ms=until)
        with sawlog.open(tmp_path / f"{until}", "r") as then:
            assert then["orders"].partition(0).visible_offset == end
    with pytest.raises(InvalidConfig, match=r"at 1970-01-01T00:17:39.999Z .* the oldest moment is 1970-01-01T00:17:40"):
        restore(url, tmp_path / "before", until_ms=1_059_999)


@pytest.mark.alternating
def test_what_was_collected_is_found_by_points_and_what_has_none_is_an_error(
    data: Path, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stepping(monkeypatch)
    store.create_topic("orders")
    with ObjectStore.open(url, parameters=EAGER, maintenance_interval_s=None) as there:
        monkeypatch.setattr(shipping, "LOOK_S", 0.0)
        for minute in range(1, 30):
            clock.return_value = 1_000_000 + 60_000 * minute
            fill(store, 2)
            store.groups.commit("billing", {("orders", 0): 2 * minute - 1})
            ship(data, url)

        def is_collected() -> bool:
            there.maintain()
            Collector(there._session).run()
            return there._session.bucket.get("commits/00000000000000000001") is None

        eventually(is_collected)
        points = Points(there._session)
        assert len(points.listed()) == 29
        restore(url, tmp_path / "then", until_ms=1_000_000 + 60_000 * 3 + 1)
        with sawlog.open(tmp_path / "then", "r") as then:
            assert then["orders"].partition(0).visible_offset == 6
            assert then.groups.describe("billing").rows[0].committed == 5
        for point in points.listed()[:10]:
            there._session.bucket.delete(point.key)
        oldest = points.listed()[0]
        for moment in ({"until_ms": 1_000_000 + 60_000 * 3}, {"at_commit": 3}):
            with pytest.raises(InvalidConfig, match=rf"the oldest moment is 1970.* \(commit {oldest.commits}\)"):
                restore(url, tmp_path / "gone", **moment)  # type: ignore[arg-type]
        assert not (tmp_path / "gone").exists()


def test_old_points_are_thinned(data: Path, store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hour, day = 3_600_000, 86_400_000
    ship(data, url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        for number, age in enumerate((40 * day, 40 * day - 1, 2 * day, 2 * day - 1, 2 * day - hour, 5, 4, 3)):
            there._session.bucket.put(f"points/{number:020}-{100 * day - age:015}", b"")
        left = Points(there._session).thin(100 * day)
    assert [point.commits for point in left if point.time_ms <= 100 * day] == [0, 2, 4, 5, 6, 7]


def test_a_topic_that_was_deleted_since_is_named(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    for name in ("orders", "old"):
        store.create_topic(name).append(b"x")
    ship(data, url)
    moment = commits(url)
    store.delete_topic("old")
    ship(data, url, delete=True)
    with pytest.raises(ImportMismatch, match="old was deleted since"):
        restore(url, tmp_path / "then", at_commit=moment)
    restore(url, tmp_path / "part", at_commit=moment, topics=["orders"])
    with sawlog.open(tmp_path / "part", "r") as then:
        assert then.topics() == ["orders"]


def test_any_store_on_object_storage_can_be_brought_into_a_directory(url: str, tmp_path: Path) -> None:
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        topic = there.create_topic("orders", 2)
        for number in range(40):
            topic.append(b"%d" % number, key=b"%d" % number)
        there.groups.commit("billing", {("orders", 0): 3})
        there.maintain()
        restore(url, tmp_path / "again")
        with sawlog.open(tmp_path / "again") as again:
            for number in range(2):
                mine, theirs = again["orders"].partition(number), topic.partition(number)
                assert [(r.offset, r.value) for r in mine.scan()] == [(r.offset, r.value) for r in theirs.scan()]
            assert again.groups.describe("billing").rows[0].committed == 3
            again["orders"].append(b"more")


def test_batches_that_are_larger_than_segments_may_be_by_now_are_restored(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    store.create_topic("orders", partitions=2)
    for number in range(3):
        store["orders"].append(b"x" * 50_000, partition=number % 2)
        store["orders"].append(b"small", partition=number % 2)
    store["orders"].trim({1: 1})
    store.alter_topic("orders", segment_bytes=20_000)
    ship(data, url)
    assert_comes_back(store, url, tmp_path / "again")
    with sawlog.open(tmp_path / "again") as again:
        again["orders"].append(b"more", partition=0)
        assert again["orders"].partition(0)[-1].value == b"more"


def test_extents_that_were_consolidated_meanwhile_are_looked_up_again(
    data: Path, store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("orders")
    fill(store)
    ship(data, url)
    real, calls = ExtentReader._get, iter(range(100))

    def gone(*given: Any) -> Any:
        if next(calls) == 0:
            raise StorageError(2, "no such object")
        return real(*given)

    monkeypatch.setattr(ExtentReader, "_get", gone)
    assert_comes_back(store, url, tmp_path / "again")


def test_a_restore_never_continues_with_the_records_of_another_history(tmp_path: Path) -> None:
    """The bucket is rolled back and continues between two runs of a standby."""
    bucket, to = tmp_path / "bucket", tmp_path / "to"
    url = f"file://{bucket}"
    stopped = threading.Event()
    stopped.set()
    with ObjectStore.open(url, maintenance_interval_s=None) as store:
        store.create_topic("orders").append(b"0 kept")
    shutil.copytree(bucket, tmp_path / "backup")
    with ObjectStore.open(url, maintenance_interval_s=None) as store:
        store.topic("orders").append(b"1 of the first history")
    restore(url, to, follow=True, stopped=stopped)
    restore(url, to, follow=True, stopped=stopped)
    shutil.rmtree(bucket)
    shutil.copytree(tmp_path / "backup", bucket)
    with ObjectStore.open(url, maintenance_interval_s=None) as store:
        for number in (1, 2):
            store.topic("orders").append(b"%d of the other history" % number)
    with pytest.raises(ImportMismatch, match="another record at offset 1"):
        restore(url, to, follow=True, stopped=stopped)
    with sawlog.open(to, "r") as again:
        assert [each.value for each in again["orders"].scan()] == [b"0 kept", b"1 of the first history"]
