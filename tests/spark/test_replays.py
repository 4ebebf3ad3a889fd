"""Replays: the same name, number and targets. Anything else is stored, and every skip is seen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Store
from sawlog.errors import InvalidConfig
from sawlog.spark import commit, replays
from sawlog.spark.options import WriteOptions, write_options
from sawlog.spark.writing import BatchWriter, Staged, stage

from .test_writing import batch, left, values

QUERY = "5e0e3a9c-6c58-4d43-9d2b-7f6d5e4f3a2b"


@pytest.fixture
def topics(store: Store) -> Store:
    """A store with two topics."""
    for name in ("one", "two"):
        store.create_topic(name, durability="os")
    return store


def sink(data: Path, topic: str | None = None, **given: Any) -> WriteOptions:
    chosen = {} if topic is None else {"topic": topic}
    return write_options({"path": str(data), **chosen, **{name: str(each) for name, each in given.items()}})


def staged(options: WriteOptions, number: int, *rows: pa.RecordBatch, query: str = QUERY) -> list[Staged]:
    return [stage(iter(rows), options, commit.stage_name(query, number), query)]


def publish(options: WriteOptions, number: int, *rows: pa.RecordBatch, query: str = QUERY) -> None:
    told = staged(options, number, *rows, query=query)
    commit.publish(options, commit.stage_name(query, number), told, name=query, sequence=number)


def write(options: WriteOptions, *rows: pa.RecordBatch) -> None:
    """`frame.write.save()`."""
    writer = BatchWriter(options, ("value",))
    writer.commit([writer.write(iter(rows))])


def test_one_name_for_two_topics_stores_both(data: Path, topics: Store) -> None:
    """Delta's documented idiom for `foreachBatch` with two targets."""
    for number in (0, 0, 1):
        for topic in ("one", "two"):
            write(sink(data, topic, txnAppId="app", txnVersion=number), batch(number))
    assert (values(topics["one"]), values(topics["two"])) == ([0, 1], [0, 1])


def test_a_copied_checkpoint_with_another_sink_stores_its_micro_batches(data: Path, topics: Store) -> None:
    """Spark's query id is in the copy, which is behind the first job."""
    for number in range(3):
        publish(sink(data, "one"), number, batch(number))
    publish(sink(data, "two"), 1, batch(11))
    publish(sink(data, "two"), 1, batch(11))
    publish(sink(data, "two"), 2, batch(12))
    assert (values(topics["one"]), values(topics["two"])) == ([0, 1, 2], [11, 12])


def test_the_topics_of_a_column_are_targets_too(data: Path, topics: Store) -> None:
    publish(sink(data), 0, batch(1, topic=["one"]))
    publish(sink(data), 0, batch(2, topic=["two"]))
    publish(sink(data), 0, batch(2, topic=["two"]))
    publish(sink(data), 1, batch(3, 4, topic=["two", "one"]))
    publish(sink(data), 1, batch(3, 4, topic=["two", "one"]))
    publish(sink(data), 2, batch(5, topic=["one"]))
    publish(sink(data), 2, batch(5, topic=["one"]))
    assert (values(topics["one"]), values(topics["two"])) == ([1, 4, 5], [2, 3])


def test_a_topic_that_was_recreated_is_another_target(data: Path, topics: Store) -> None:
    publish(sink(data, "one"), 0, batch(1))
    topics.delete_topic("one")
    anew = topics.create_topic("one", durability="os")
    publish(sink(data, "one"), 0, batch(1))
    assert values(anew) == [1]


@pytest.mark.parametrize("number", [4, 5])
def test_a_query_that_is_upgraded_does_not_store_its_last_micro_batch_twice(
    data: Path, topics: Store, number: int
) -> None:
    """Version 0.3.0 has noted it under the query's name alone."""
    with Store.open(data, upkeep_interval_s=None) as old, old.transaction(name=QUERY, sequence=5) as tx:
        tx.append("one", b"5")
    publish(sink(data, "one"), number, batch(number))
    assert values(topics["one"]) == [5]
    publish(sink(data, "two"), number, batch(number))  # not what that note speaks of
    publish(sink(data, "one"), 6, batch(6))
    publish(sink(data, "one"), 6, batch(6))
    assert (values(topics["one"]), values(topics["two"])) == ([5, 6], [number])


def test_every_skip_is_logged_and_counted(data: Path, topics: Store, caplog: pytest.LogCaptureFixture) -> None:
    before = replays.SKIPS.count
    with caplog.at_level(logging.INFO, "sawlog.spark"):
        publish(sink(data, "one"), 0, batch(1))
        assert not caplog.records
        publish(sink(data, "one"), 0, batch(1))
        publish(sink(data, "one"), 0, batch(1))
    assert replays.SKIPS.count == before + 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert f"batch 0 of '{QUERY}' was stored before and is skipped" in caplog.text
    assert "'one'" in caplog.text
    assert left(data) == []


def test_a_micro_batch_without_rows_is_a_replay_only_of_its_own_topic(data: Path, topics: Store) -> None:
    publish(sink(data, "one"), 0)
    publish(sink(data, "one"), 0, batch(1))
    publish(sink(data, "two"), 0, batch(2))
    assert (values(topics["one"]), values(topics["two"])) == ([], [2])


@pytest.mark.parametrize("name", ["a" * 200, "ä" * 30, "a/b c@d"])
def test_any_name_that_was_good_before_is_still_good(data: Path, topics: Store, name: str) -> None:
    for topic in ("one", "two"):
        for _ in range(2):
            write(sink(data, topic, txnAppId=name, txnVersion=0), batch(1))
    assert (values(topics["one"]), values(topics["two"])) == ([1], [1])


def test_a_name_that_is_too_long_is_refused(data: Path, topics: Store) -> None:
    with pytest.raises(InvalidConfig, match="name"):
        write(sink(data, "one", txnAppId="a" * 201, txnVersion=0), batch(1))


# --- retention


def test_retention_runs_in_a_store_that_only_spark_writes(data: Path, store: Store) -> None:
    topic = store.create_topic("one", 2, retention_bytes=3000, segment_bytes=1000, durability="os")
    for number in range(40):
        publish(sink(data, "one"), number, batch(*range(20), partition=[0] * 20))
    store.close()
    kept = Store.open(data, "r")["one"].partition(0)
    assert kept.size_bytes < 5000
    assert kept.lowest_offset > 0
    assert kept.next_offset == 800
    assert topic.name == "one"


def test_a_topic_that_keeps_everything_is_not_trimmed_by_a_commit(data: Path, store: Store) -> None:
    store.create_topic("one", cleanup_policy="compact", retention_bytes=1000, segment_bytes=1000, durability="os")
    for number in range(20):
        publish(sink(data, "one"), number, batch(*range(20), key=[b"%d.%d" % (number, n) for n in range(20)]))
    assert len(values(store["one"])) == 400


def test_retention_that_fails_does_not_fail_a_commit(
    data: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("one", retention_bytes=100, segment_bytes=100, durability="os")

    def broken(_: object) -> None:
        raise InvalidConfig("broken")

    monkeypatch.setattr("sawlog.log.log.Log.apply_retention", broken)
    for number in range(3):
        publish(sink(data, "one"), number, batch(*range(20)))
    assert len(values(store["one"])) == 60
    assert "postponed to the next commit" in caplog.text
