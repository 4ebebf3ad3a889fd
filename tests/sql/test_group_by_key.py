"""Grouping by key counts each committed record once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Store, Topic
from sawlog.errors import CorruptBatch, StorageError
from sawlog.log import slices

from .conftest import T


def values(table: pa.Table) -> list[tuple[Any, ...]]:
    found = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return sorted(found, key=repr)


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
    expected = store.sql(query)
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


def test_damage_is_reported(store: Store, orders: Topic) -> None:
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
