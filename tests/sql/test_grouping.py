"""Queries that need only keys are answered without a column of them, and get the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Store, Topic
from sawlog.errors import CorruptBatch, DataLoss, StorageError
from sawlog.log import slices
from sawlog.sql import engine, grouping

from ..looping import for_each
from .conftest import COUNT, T, filled

KEYED = [
    "select key, count(*) from orders group by key",
    "select key, count(*) as n from orders group by key having n > 55 order by n desc, key limit 3",
    "select decode(key) as k, min(offset), max(offset), min(timestamp), max(timestamp) from orders group by k",
    "select orders.key, partition, count(offset) from orders group by 1, 2 order by count(*) desc, 1, 2",
    "select partition, count(distinct key) from orders where partition <> 1 group by partition",
    "select distinct key from orders",
    "select count(key), count(*), min(key), max(octet_length(key)) from orders where key is not null",
    "select count(*) from orders where key = 'customer-3'::blob",
    "select count(*) from orders where key = 'nobody'::blob",
    "select key, count(*) from orders where partition = 7 group by key",
    "select KEY, 100 * count(*) / 600 as share from Orders where decode(key) like '%7' group by all",
    "select key from orders group by key order by max(timestamp) limit 2 offset 1",
    "select case when key is null then 'none' else 'some' end as c, count(*) from orders group by c",
]
OTHERS = [
    "select key from orders",
    "select key, offset from orders group by key, offset",
    "select key, count(*) from orders where offset > 100 group by key",
    "select key, count(*) from orders where timestamp > '2023-11-14 22:13:20+00' group by key",
    "select key, sum(octet_length(value)) from orders group by key",
    "select key, count(*) filter (offset > 3) from orders group by key",
    "select key, count(*) as records from orders group by key having records > 3",
    "select key as partition, count(*) from orders group by 1",
    "select key, count(*) from orders group by rollup (key)",
    "select key, count(*) over () from orders group by key",
    "select key, count(*) from (from orders limit 9) group by key",
    "select o.key, count(*) from orders o group by o.key",
    "select key, list(offset order by offset)[1] from orders group by key",
    "select key, (select max(offset) from orders) from orders group by key",
    "with k as (select key from orders) select key, count(*) from k group by key",
    "select distinct on (partition) partition, min(key) from orders group by all",
    "select key, max(offset, 2) from orders group by key",
]


def values(table: pa.Table) -> list[tuple[Any, ...]]:
    found = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return sorted(found, key=repr)


def plainly(store: Store, query: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> pa.Table:
    """The answer from records."""
    with monkeypatch.context() as without:
        without.setattr(engine._Session, "_rewritten", lambda self, text, name, dataset: None)
        return store.sql(query, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The orders, some more without a key and with long ones, and compressed ones."""
    import sawlog

    with sawlog.open(tmp_path_factory.mktemp("mixed") / "data", maintenance_interval_s=None) as store:
        topic = filled(store)
        topic.partition(0).append_many([(b"v", None, (), T + n) for n in range(5)])
        topic.partition(1).append_many([(b"v", b"a rather long key %d" % (n % 2), (), T - n) for n in range(9)])
        yield store


@for_each("query", KEYED)
def test_a_query_for_keys_makes_no_column_of_them(mixed: Store, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plainly(mixed, query, monkeypatch)
    with monkeypatch.context() as unreadable:
        unreadable.setattr(slices, "read", lambda *_, **__: pytest.fail("a column was read"))
        found = mixed.sql(query)
    assert found.schema == expected.schema
    assert values(found) == values(expected)
    if "order by n" in query:
        assert found == expected


@for_each("query", OTHERS)
def test_any_other_query_is_left_as_it_is(mixed: Store, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "_KeyCountScan", lambda *_: pytest.fail("not a query for keys"))
    assert values(mixed.sql(query)) == values(plainly(mixed, query, monkeypatch))


def test_a_filter_on_partitions_reads_no_others(mixed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[int] = set()
    fold = slices.fold

    def noted(directory: Any, *rest: Any, **options: Any) -> None:
        read.add(int(Path(directory.path).name.rpartition("-")[2]))
        fold(directory, *rest, **options)

    monkeypatch.setattr(slices, "fold", noted)
    mixed.sql("select key, count(*) from orders where partition = 2 group by key")
    assert read == {2}


def test_only_what_is_committed_is_counted(store: Store) -> None:
    from ..log.transactional import batch

    topic = store.create_topic("t", durability="os")
    log = topic.partition(0)
    topic.append_many([(b"v", b"k")] * 3)
    log.append_batches(batch([b"gone"] * 2, 1, sequence=0, timestamp=T))
    log.append_marker(1, 0, commit=False)
    log.append_batches(batch([b"kept"], 2, sequence=0, timestamp=T))
    log.append_marker(2, 0, commit=True)
    query = "select key, count(*) from t group by key"
    assert values(store.sql(query)) == [(None, 1), (b"k", 3)]
    assert values(store.sql(query, isolation="uncommitted")) == [(None, 3), (b"k", 3)]


def test_what_compaction_has_left_is_counted(store: Store) -> None:
    topic = store.create_topic("t", cleanup_policy="compact", durability="os")
    for number in range(30):
        topic.append(b"%d" % number, key=b"%d" % (number % 3))
    topic.partition(0).seal()
    topic.append(b"x", key=b"0")
    topic.partition(0).compact()
    left = [record.key for record in topic.scan()]
    expected = sorted((key, left.count(key)) for key in set(left))
    assert values(store.sql("select key, count(*) from t group by key")) == expected


@pytest.mark.parametrize("after", [0, 1])
def test_files_that_are_replaced_meanwhile_count_once(
    store: Store, orders: Topic, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "select key, partition, count(*), min(offset), max(timestamp) from orders group by key, partition"
    expected = plainly(store, query, monkeypatch)
    chunks, lock, broken = slices._chunks, threading.Lock(), [0]

    def failing(directory: Any, piece: slices.Slice, config: Any) -> Any:
        with lock:
            broken[0] += 1
            fails = broken[0] % 2 == 0
        for number, each in enumerate(chunks(directory, piece, config)):
            if fails and number == after:
                raise StorageError("gone")
            yield each
        if fails:
            raise StorageError("gone")

    monkeypatch.setattr(slices, "_chunks", failing)
    assert values(store.sql(query)) == values(expected)
    assert broken[0] > 1


def test_records_that_do_not_parse_are_not_counted_twice(
    store: Store, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(self: Any, chunk: Any, start: int, end: int, max_bytes: int) -> None:
        self._counts.is_spoiled = True
        raise CorruptBatch("the records of a batch do not parse")

    monkeypatch.setattr(grouping._KeyCounter, "add_chunk", spoiled)
    with pytest.raises(CorruptBatch, match="do not parse"):
        store.sql("select key, count(*) from orders group by key")


def test_damage_and_loss_are_reported_as_such(store: Store, orders: Topic) -> None:
    import sawlog

    path = Path(orders.partition(0).path)
    root = path.parents[1] if path.parent.name == "topics" else next(p for p in path.parents if p.name == "data")
    store.close()
    segment = sorted(path.glob("*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    with sawlog.open(root, mode="r") as opened, pytest.raises(CorruptBatch):
        opened.sql("select key, count(*) from orders group by key")


def test_records_that_are_dropped_meanwhile_make_the_query_fail(store: Store, orders: Topic) -> None:
    snapshot = orders.dataset().snapshot
    for number in range(3):
        orders.trim({number: 60})
    raised: list[BaseException] = []
    with pytest.raises(DataLoss):
        list(grouping.KeyDataset(snapshot, raised).batches(["key", "records"]))
    assert isinstance(raised[0], DataLoss)


def test_a_query_that_is_left_early_leaves_no_thread(store: Store, orders: Topic) -> None:
    batches = grouping.KeyDataset(orders.dataset().snapshot, []).batches(["partition", "key", "records"])
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]
    assert not [each for each in threading.enumerate() if each.name.startswith("sawlog-sql") and each.is_alive()]


def test_counts_add_up(mixed: Store) -> None:
    found = mixed.sql("select sum(n) as n from (select key, count(*) as n from orders group by key)")
    assert found.to_pylist() == [{"n": COUNT + 14}]
