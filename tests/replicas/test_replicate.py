"""A replica has the records of its source at the same offsets, whatever happens to either."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import sawlog
from sawlog import Store
from sawlog.batch.build import Producer
from sawlog.errors import ImportMismatch, InvalidConfig
from sawlog.store.objects.store import ObjectStore
from sawlog.store.replica import Replicator, promote, restore
from sawlog.store.replica.replicator import Options

from ..log.transactional import send
from .pairs import address, assert_comes_back, assert_same, batches, replica, replicator, ship


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Store:
    return sawlog.open(data, maintenance_interval_s=None)


@pytest.fixture
def url() -> str:
    return address()


def fill(store: Store, topic: str = "orders", count: int = 50, *, start: int = 0) -> None:
    for number in range(start, start + count):
        store[topic].append(b"value %d" % number, key=b"key %d" % (number % 7), headers=[("h", b"%d" % number)])


def test_what_comes_back_is_the_same_byte_for_byte(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    store.create_topic("orders", partitions=3, retention_ms=86_400_000, compression_type="zstd")
    store.create_topic("empty")
    fill(store)
    store["orders"].append_many([(None, b"key 1"), (b"", b"key 2")], partition=0)
    store.groups.commit("billing", {("orders", 0): 2, ("orders", 1): 1}, metadata="noted")
    done = ship(data, url)
    assert (done.records, done.lag.records, done.problems) == (52, 0, {})
    assert_comes_back(store, url, tmp_path / "again")


def test_a_replica_continues_where_it_ends_and_ships_nothing_twice(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    store.create_topic("orders", partitions=2)
    for part in range(4):
        fill(store, start=50 * part)
        assert ship(data, url).records == 50
    store.alter_topic("orders", partitions=3, retention_ms=1000)
    store.create_topic("later").append(b"x")
    assert ship(data, url).records == 1
    assert ship(data, url).records == 0
    assert_comes_back(store, url, tmp_path / "again")


def test_a_start_above_0_and_inside_a_batch_is_kept(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    orders = store.create_topic("orders", partitions=2)
    orders.append_many([b"%d" % each for each in range(20)], partition=0)
    orders.append_many([b"%d" % each for each in range(20)], partition=0)
    orders.trim({0: 25})
    orders.partition(1)._advance(1000)
    orders.append(b"first", partition=1)
    ship(data, url)
    with replica(url) as there:
        assert there.topic("orders").partition(0).lowest_offset == 25
        assert [each.offset for each in there.topic("orders").partition(1).scan()] == [1000]
    assert_comes_back(store, url, tmp_path / "again")


def test_what_compaction_left_is_shipped_as_it_is(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    orders = store.create_topic("orders", cleanup_policy="compact")
    fill(store, count=100)
    orders.partition(0).seal()
    orders.partition(0).compact()
    fill(store, count=5, start=100)
    ship(data, url)
    assert_comes_back(store, url, tmp_path / "again")


def test_batches_that_compaction_joins_over_the_end_of_the_replica_are_cut(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    log = store.create_topic("orders").partition(0)
    for number in range(10):
        log.append(b"%d" % number, key=b"%d" % number)
    ship(data, url)
    for number in range(10, 30):
        log.append(b"%d" % number, key=b"%d" % (number % 20))
    log.seal()
    log.compact()
    assert log.fetch(10, 1).raw[:8] != (10).to_bytes(8, "big"), "no batch goes over the end: this tests nothing"
    assert not ship(data, url).problems
    restore(url, tmp_path / "again")
    with sawlog.open(tmp_path / "again", "r") as again:
        found = {each.offset: each.value for each in again["orders"].scan()}
        assert found == {**{n: b"%d" % n for n in range(10)}, **{each.offset: each.value for each in log.scan()}}
        assert not again["orders"].partition(0).verify().problems


def test_leader_epochs_are_kept(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    store.create_topic("orders").append(b"gone")
    store.delete_topic("orders")
    log = store.create_topic("orders").partition(0)
    fill(store, count=10)
    log.truncate(6)
    fill(store, count=5, start=10)
    assert log.leader_epoch > 1
    store.groups.commit("billing", {("orders", 0): 9})
    ship(data, url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        partition = there.topic("orders").partition(0)
        epochs = [epoch for epoch, _ in log._leader_epochs]
        assert [partition.epoch_end(epoch) for epoch in epochs] == [log.epoch_end(epoch) for epoch in epochs]
        assert (partition.leader_epoch, partition.fetch(0, 1 << 20).raw) == (log.leader_epoch, batches(log))
    assert_comes_back(store, url, tmp_path / "again")


@pytest.mark.alternating
def test_epochs_survive_consolidation(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    log = store.create_topic("orders").partition(0)
    for round_ in range(20):
        fill(store, count=3, start=3 * round_)
        if round_ == 10:
            log.truncate(log.next_offset - 1)
            fill(store, count=1, start=1000)
        ship(data, url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        assert any(report.merge for report in there.maintain())
    assert_comes_back(store, url, tmp_path / "again")


def test_records_that_were_truncated_after_they_were_shipped_are_refused(data: Path, store: Store, url: str) -> None:
    log = store.create_topic("orders").partition(0)
    store.create_topic("others")
    fill(store, count=10)
    ship(data, url)
    log.truncate(6)
    assert "was truncated" in ship(data, url).problems["orders/0"]
    fill(store, count=10, start=20)
    fill(store, "others")
    done = ship(data, url)
    assert "was truncated at the source: it continues from offset 6 on" in done.problems["orders/0"]
    assert done.records == 50, "the other topic is shipped"
    with replica(url) as there:
        assert there.topic("orders").partition(0).visible_offset == 10


def test_a_replica_with_records_of_others_is_refused(data: Path, store: Store, url: str) -> None:
    store.create_topic("orders")
    fill(store, count=10)
    ship(data, url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        there.topic("orders").append(b"mine")
    fill(store, count=10)
    assert "has another record at offset 10" in ship(data, url).problems["orders/0"]


def test_what_retention_dropped_before_it_was_shipped_is_a_gap_and_is_counted(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    log = store.create_topic("orders").partition(0)
    fill(store, count=10)
    ship(data, url)
    fill(store, count=10)
    log.trim(15)
    done = ship(data, url)
    assert (done.lost, done.problems) == (5, {})
    restore(url, tmp_path / "again")
    with sawlog.open(tmp_path / "again", "r") as again:
        assert [each.offset for each in again["orders"].scan()] == [*range(10), *range(15, 20)]


def test_a_partition_that_was_emptied_ends_where_its_source_does(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    orders = store.create_topic("orders", partitions=3)
    for number in range(3):
        orders.append_many([b"x"] * 10, partition=number)
    orders.trim({0: 10})
    ship(data, url)
    for number in range(3):
        orders.append_many([b"y"] * 10, partition=number)
    orders.trim({0: 20, 1: 20, 2: 15})
    assert ship(data, url, mirror_retention=True).lost == 15
    assert_comes_back(store, url, tmp_path / "again")


def test_the_start_moves_only_if_it_is_asked_for(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    store.create_topic("orders")
    fill(store, count=20)
    ship(data, url)
    store["orders"].trim({0: 12})
    ship(data, url)
    with replica(url) as there:
        assert there.topic("orders").partition(0).lowest_offset == 0
    ship(data, url, mirror_retention=True)
    assert_comes_back(store, url, tmp_path / "again")


def test_transactions_are_shipped_with_their_markers(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    log = store.create_topic("orders").partition(0)
    send(log, [b"a", b"b"], 7, sequence=0)
    send(log, [b"c"], 8, sequence=0)
    log.append_marker(7, 0, commit=True)
    ship(data, url)
    log.append_marker(8, 0, commit=False)
    log.append_many([b"d"], producer=Producer(9, 0, 0))
    send(log, [b"undecided"], 10, sequence=0)
    ship(data, url)
    with replica(url) as there:
        copied = there.topic("orders").partition(0)
        assert [each.value for each in copied.scan()] == [b"a", b"b", b"d"]
        assert copied.last_stable_offset == log.last_stable_offset
    assert_comes_back(store, url, tmp_path / "again")
    with sawlog.open(tmp_path / "again") as again:
        copy = again["orders"].partition(0)
        assert [each.value for each in copy.scan()] == [b"a", b"b", b"d"]
        assert copy.open_transactions == log.open_transactions
        assert copy.append_many([b"d"], producer=Producer(9, 0, 0)) == range(5, 6), "it is known already"


def test_a_group_is_never_ahead_of_the_records(data: Path, store: Store, url: str) -> None:
    store.create_topic("orders")
    fill(store, count=10)
    with replicator(data, url) as shipping:
        shipping.round()
        real = shipping._source.groups._offsets.of
        fill(store, count=10)
        store.groups.commit("billing", {("orders", 0): 20})
        shipping._take_topic = lambda topic, shipment, taken: None  # type: ignore[method-assign]
        assert real("billing")["orders", 0].offset == 20
        shipping.round()
        with replica(url) as there:
            assert there.groups.list() == []
    ship(data, url)
    with replica(url) as there:
        assert there.groups.describe("billing").rows[0].committed == 20


def test_deleted_topics_and_groups_are_kept_unless_it_is_asked_for(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    for name in ("orders", "old"):
        store.create_topic(name)
        fill(store, name)
        store.groups.commit(f"of-{name}", {(name, 0): 5})
    ship(data, url)
    store.groups.delete("of-old")
    store.delete_topic("old")
    assert not ship(data, url).problems
    with replica(url) as there:
        assert (there.topics(), there.groups.list()) == (["old", "orders"], ["of-old", "of-orders"])
    store.create_topic("old")
    fill(store, "old", 3)
    assert "deleted and recreated" in ship(data, url).problems["old"]
    assert not ship(data, url, delete=True).problems
    assert_comes_back(store, url, tmp_path / "again")


def test_users_and_acls_are_shipped_only_if_it_is_asked_for(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    store._registry.change("users", lambda before: {"alice": {"hash": "x"}})
    ship(data, url)
    with replica(url) as there:
        assert there._session.look(lambda state: state.document("users")) == (0, {})
    ship(data, url, registry=True)
    restore(url, tmp_path / "without")
    restore(url, tmp_path / "again", registry=True)
    for name, expected in (("without", {}), ("again", {"alice": {"hash": "x"}})):
        with sawlog.open(tmp_path / name, "r") as again:
            assert again._registry.read("users").fields == expected


def test_only_the_named_topics_are_shipped(data: Path, store: Store, url: str) -> None:
    for name in ("orders", "others"):
        store.create_topic(name)
        fill(store, name, 3)
    store.groups.commit("billing", {("orders", 0): 1, ("others", 0): 2})
    ship(data, url, topics=["orders"])
    with replica(url) as there:
        assert there.topics() == ["orders"]
        assert [row.topic for row in there.groups.describe("billing").rows] == ["orders"]


def test_two_replicators_at_once_ship_everything_once(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    store.create_topic("orders", partitions=4)
    stopped = threading.Event()
    ship(data, url)
    problems: list[dict[str, str]] = []

    def run() -> None:
        with replicator(data, url) as shipping:
            problems.append(shipping.run(stopped=stopped).problems)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for part in range(20):
        fill(store, count=20, start=20 * part)
    stopped.set()
    for thread in threads:
        thread.join()
    assert problems == [{}, {}]
    ship(data, url)
    assert_comes_back(store, url, tmp_path / "again")


def test_a_replicator_that_was_overtaken_looks_again_and_goes_on(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    store.create_topic("orders", partitions=2)
    with replicator(data, url) as first, replicator(data, url) as second:
        for part in range(6):
            first.round()
            second.round()
            fill(store, count=10, start=10 * part)
            assert first.round()
            assert second.round(), "it has tried"
            assert not second.progress.problems
        assert (first.progress.records, second.progress.records) == (60, 0)
    assert_comes_back(store, url, tmp_path / "again")


def test_large_shipments_are_uploaded_and_restored(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    orders = store.create_topic("orders", partitions=2)
    for number in range(40):
        orders.append_many([b"%d" % number * 2000] * 20, partition=number % 2)
    assert ship(data, url).size_bytes > 2 << 20
    with replica(url) as there:
        assert all(key.startswith("staged/") for key in there._session.look(lambda state: state.referenced()))
    assert_comes_back(store, url, tmp_path / "again")


def test_a_store_of_its_own_is_never_a_replica(data: Path, store: Store, url: str, tmp_path: Path) -> None:
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        there.create_topic("mine")
    with pytest.raises(ImportMismatch, match="is a store of its own with 1 topic,"):
        ship(data, url)
    other = address()
    ship(data, other)
    with sawlog.open(tmp_path / "stranger"), pytest.raises(ImportMismatch, match="is a replica of the store"):
        ship(tmp_path / "stranger", other)
    with pytest.raises(InvalidConfig, match="no replica"):
        promote(url)


def test_a_replica_is_neither_expired_nor_compacted_until_it_is_promoted(data: Path, store: Store, url: str) -> None:
    store.create_topic("orders", retention_ms=1)
    store["orders"].append(b"old", timestamp=1000)
    ship(data, url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        assert not any(report.retention for report in there.maintain())
    promote(url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        assert any(report.retention for report in there.maintain())
    with pytest.raises(ImportMismatch, match="was promoted"):
        ship(data, url)


def test_producer_ids_in_the_records_are_not_handed_out_again_after_a_promotion(
    data: Path, store: Store, url: str
) -> None:
    log = store.create_topic("orders").partition(0)
    log.append_many([b"x"], producer=Producer(2_000_000, 0, 0))
    ship(data, url)
    promote(url)
    with ObjectStore.open(url, maintenance_interval_s=None) as there:
        assert there._session.commit([{"do": "take numbers", "name": "producer", "count": 1}]) == [2_000_001]


def test_a_replicator_notices_that_its_replica_was_promoted(data: Path, store: Store, url: str) -> None:
    store.create_topic("orders")
    with replicator(data, url) as shipping:
        shipping.round()
        promote(url)
        fill(store, count=3)
        assert shipping.round()  # it does not know yet
        with replica(url) as there:
            assert there.topic("orders").partition(0).visible_offset == 0
        with pytest.raises(ImportMismatch, match="is no replica any more"):
            shipping.round()


def test_a_damaged_partition_does_not_stop_the_others(data: Path, store: Store, url: str) -> None:
    for name in ("orders", "others"):
        store.create_topic(name)
        fill(store, name, 3)
    store.close()
    (file,) = (data / "topics" / "orders" / "partition-0").glob("*.log")
    damaged = bytearray(file.read_bytes())
    damaged[70] ^= 1
    file.write_bytes(damaged)
    done = ship(data, url)
    assert "checksum" in done.problems["orders/0"]
    assert done.records == 3


def test_lag_says_what_is_not_shipped(data: Path, store: Store, url: str) -> None:
    store.create_topic("orders")
    with Replicator(data, url, given=Options(), maintenance_interval_s=None) as shipping:
        shipping.round()
        fill(store, count=5)
        lag = shipping.lags()["orders"]
        assert lag.records == 5
        assert lag.size_bytes == store["orders"].partition(0).size_bytes
        assert 0 <= lag.seconds < 60
        assert shipping.round()
        assert not shipping.progress.lag.records


@pytest.mark.alternating
def test_a_writer_beside_it_and_maintenance_of_both_change_nothing(
    data: Path, store: Store, url: str, tmp_path: Path
) -> None:
    store.create_topic("orders", partitions=2)
    stopped, failed = threading.Event(), []

    def run() -> None:
        try:
            with replicator(data, url) as shipping:
                while not stopped.is_set():
                    shipping.round()
                    shipping._store.maintain()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    for part in range(30):
        fill(store, count=20, start=20 * part)
        store.groups.commit("billing", {("orders", 0): part})
        if part % 10 == 9:
            for number in range(2):
                store["orders"].partition(number).seal()
                store["orders"].partition(number)._merge_segments()
    stopped.set()
    thread.join()
    assert not failed
    ship(data, url)
    assert_comes_back(store, url, tmp_path / "again")
    with sawlog.open(data, "r") as source, sawlog.open(tmp_path / "again", "r") as again:
        assert_same(source, again)
