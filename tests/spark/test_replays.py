"""Replays: the same name, number and sink. Anything else is stored, a replay with other rows is refused, and every skip
is logged."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sawlog
from sawlog.errors import InvalidConfig, ReplayMismatch
from sawlog.spark import commit
from sawlog.spark.options import WriteOptions, write_options
from sawlog.spark.writing import BatchWriter, TaskCommit, stage
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.objects.store import ObjectStore

from .test_writing import batch, left, values

QUERY = "5e0e3a9c-6c58-4d43-9d2b-7f6d5e4f3a2b"


@pytest.fixture
def topics(store: DirectoryStore) -> DirectoryStore:
    """A store with two topics."""
    for name in ("one", "two"):
        store.create_topic(name, durability="os")
    return store


def sink(data: Path, topic: str | None = None, **given: Any) -> WriteOptions:
    chosen = {} if topic is None else {"topic": topic}
    return write_options({"path": str(data), **chosen, **{name: str(each) for name, each in given.items()}})


def staged(options: WriteOptions, number: int, *rows: pa.RecordBatch, query: str = QUERY) -> list[TaskCommit]:
    return [stage(iter(rows), options, commit.stage_name(query, number), query)]


def publish(options: WriteOptions, number: int, *rows: pa.RecordBatch, query: str = QUERY) -> None:
    told = staged(options, number, *rows, query=query)
    commit.publish(options, commit.stage_name(query, number), told, name=query, sequence=number)


def write(options: WriteOptions, *rows: pa.RecordBatch) -> None:
    """`frame.write.save()`."""
    writer = BatchWriter(options, ("value",))
    writer.commit([writer.write(iter(rows))])


def test_one_name_for_two_topics_stores_both(data: Path, topics: DirectoryStore) -> None:
    """Delta's documented idiom for `foreachBatch` with two targets."""
    for number in (0, 0, 1):
        for topic in ("one", "two"):
            write(sink(data, topic, txnAppId="app", txnVersion=number), batch(number))
    assert (values(topics["one"]), values(topics["two"])) == ([0, 1], [0, 1])


def test_a_copied_checkpoint_with_another_sink_stores_its_micro_batches(data: Path, topics: DirectoryStore) -> None:
    """Spark's query id is in the copy, which is behind the first job."""
    for number in range(3):
        publish(sink(data, "one"), number, batch(number))
    publish(sink(data, "two"), 1, batch(11))
    publish(sink(data, "two"), 1, batch(11))
    publish(sink(data, "two"), 2, batch(12))
    assert (values(topics["one"]), values(topics["two"])) == ([0, 1, 2], [11, 12])


def test_a_job_that_routes_by_a_column_stores_each_micro_batch_once(data: Path, topics: DirectoryStore) -> None:
    """Whichever topics a micro-batch has rows for."""
    for number, to in enumerate((["one", "one"], ["two", "one"], ["two", "two"], ["one", "one"])):
        for _ in range(2):
            publish(sink(data), number, batch(2 * number, 2 * number + 1, topic=to))
    assert (values(topics["one"]), values(topics["two"])) == ([0, 1, 3, 6, 7], [2, 4, 5])


def test_a_replay_that_routes_to_another_topic_is_refused(data: Path, topics: DirectoryStore) -> None:
    publish(sink(data), 0, batch(1, topic=["one"]))
    with pytest.raises(ReplayMismatch, match=r"1 record in 'one' .* Now: 1 record in 'two'"):
        publish(sink(data), 0, batch(1, topic=["two"]))
    assert (values(topics["one"]), values(topics["two"])) == ([1], [])


@pytest.mark.parametrize("where", ["directory", "bucket"])
def test_a_job_that_routes_by_a_column_leaves_one_record_for_all_its_micro_batches(tmp_path: Path, where: str) -> None:
    place = str(tmp_path / "data") if where == "directory" else f"file://{tmp_path}/bucket"
    with sawlog.open(place) as store:
        for name in "abcd":
            store.create_topic(name)
    options = write_options({"path": place})
    for number in range(15):  # each with another set of topics
        to = [name for bit, name in enumerate("abcd") if (number + 1) >> bit & 1]
        publish(options, number, batch(*range(len(to)), topic=to))
    if where == "directory":
        assert [name.rpartition(".")[2] for name in sorted(os.listdir(tmp_path / "data" / "staging"))] == ["committed"]
        return
    with sawlog.open(place, "r") as store:
        assert isinstance(store, ObjectStore)
        names = store._staging._session.look(lambda state: list(state.entries.names("named/")), fresh=True)
        assert names == [f"named/{QUERY}-column"]


# --- replays that do not repeat


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with a topic, in a directory and on object storage."""
    where = str(tmp_path / "data") if request.param == "directory" else f"file://{tmp_path}/bucket"
    with sawlog.open(where) as store:
        store.create_topic("one", 4)
    return where


def stored(place: str) -> list[int]:
    with sawlog.open(place, "r") as store:
        return sorted(int(record.value) for record in store.topic("one").scan())


@pytest.mark.parametrize("again", [(1, 2, 3, 4), (1, 2), ()])
def test_a_replay_with_another_number_of_rows_is_refused(place: str, again: tuple[int, ...]) -> None:
    """A checkpoint that is older than the sink: skipping the micro-batch would lose its new rows."""
    options = write_options({"path": place, "topic": "one"})
    publish(options, 0, batch(1, 2, 3))
    with pytest.raises(ReplayMismatch) as raised:
        publish(options, 0, *([batch(*again)] if again else []))
    said = str(raised.value)
    assert f"batch 0 of {QUERY!r} was stored before, with different rows. Stored (20" in said
    assert "3 records in 'one' (partition " in said
    assert ("Now: no records." if not again else f"Now: {len(again)} records in 'one' (partition ") in said
    assert "new checkpointLocation" in said
    assert 'option("replayCheck", "off")' in said
    assert stored(place) == [1, 2, 3]
    publish(options, 1, batch(4))
    assert stored(place) == [1, 2, 3, 4]


def test_a_replay_of_an_empty_micro_batch_that_has_rows_now_is_refused(place: str) -> None:
    options = write_options({"path": place, "topic": "one"})
    publish(options, 0)
    publish(options, 0)
    with pytest.raises(ReplayMismatch, match=r"no records\. Now: 1 record in 'one'"):
        publish(options, 0, batch(1))


def test_a_replay_in_another_order_and_other_partitions_is_skipped(place: str) -> None:
    """Rows without a key go to any partition, and Spark may plan other tasks."""
    options = write_options({"path": place, "topic": "one", "replayCheck": "content"})
    publish(options, 0, batch(1, 2, 3, partition=[0, 1, 2]), batch(4, 5, partition=[3, 3]))
    publish(options, 0, batch(5, 3, partition=[0, 0]), batch(2), batch(4, 1, partition=[1, 2]))
    assert stored(place) == [1, 2, 3, 4, 5]


def test_a_replay_with_other_values_is_a_warning_or_an_error(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The number of rows is the same: a query with uuid() does that, and it cannot be distinguished from a loss."""
    options = {"path": place, "topic": "one"}
    publish(write_options(options), 0, batch(1, 2))
    publish(write_options(options), 0, batch(1, 3))
    assert "is skipped, although its keys or values differ from the stored ones" in caplog.text
    with pytest.raises(ReplayMismatch, match="with different keys or values"):
        publish(write_options({**options, "replayCheck": "content"}), 0, batch(1, 3))
    caplog.clear()
    publish(write_options({**options, "replayCheck": "content"}), 0, batch(2, 1))
    assert "although" not in caplog.text
    assert stored(place) == [1, 2]


def test_keys_count_as_content(place: str) -> None:
    options = write_options({"path": place, "topic": "one", "replayCheck": "content"})
    publish(options, 0, batch(1, 2, key=[b"a", b"b"]))
    publish(options, 0, batch(2, 1, key=[b"b", b"a"]))
    for keys in ([b"b", b"a"], [b"a", None], [b"a", b""]):
        with pytest.raises(ReplayMismatch, match="different keys or values"):
            publish(options, 0, batch(1, 2, key=keys))


def test_a_stream_that_repeats_an_earlier_micro_batch_is_refused(place: str) -> None:
    """Spark repeats only the last one: the checkpoint is older than the sink."""
    options = write_options({"path": place, "topic": "one"})
    for number in range(3):
        publish(options, number, batch(number))
    with pytest.raises(ReplayMismatch, match="and so were later ones, up to 2"):
        publish(options, 1, batch(1, 3, 4))
    assert stored(place) == [0, 1, 2]


def test_a_named_batch_that_repeats_an_earlier_one_is_skipped(place: str) -> None:
    """A job that starts over relies on that, as with Delta."""
    for number in (0, 1, 2, 0, 1, 2, 3):
        write(
            write_options({"path": place, "topic": "one", "txnAppId": "app", "txnVersion": str(number)}), batch(number)
        )
    assert stored(place) == [0, 1, 2, 3]


def test_replays_are_not_compared_if_that_is_switched_off(place: str, caplog: pytest.LogCaptureFixture) -> None:
    options = write_options({"path": place, "topic": "one", "replayCheck": "off"})
    publish(options, 1, batch(1))
    for number in (1, 0):
        publish(options, number, batch(2, 3))
    assert caplog.text.count("is skipped") == 2
    assert stored(place) == [1]


def test_what_cannot_be_compared_by_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="replaycheck='rows' is not counts, content or off"):
        write_options({"path": "data", "replayCheck": "rows"})


def test_a_topic_that_was_recreated_is_another_target(data: Path, topics: DirectoryStore) -> None:
    publish(sink(data, "one"), 0, batch(1))
    topics.delete_topic("one")
    anew = topics.create_topic("one", durability="os")
    publish(sink(data, "one"), 0, batch(1))
    assert values(anew) == [1]


def test_every_skip_is_logged_and_counted(data: Path, topics: DirectoryStore, caplog: pytest.LogCaptureFixture) -> None:
    before = commit.REPLAYS.count
    with caplog.at_level(logging.INFO, "sawlog.spark"):
        publish(sink(data, "one"), 0, batch(1))
        assert not caplog.records
        publish(sink(data, "one"), 0, batch(1))
        publish(sink(data, "one"), 0, batch(1))
    assert commit.REPLAYS.count == before + 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert f"batch 0 of '{QUERY}' was stored before and is skipped" in caplog.text
    assert "'one'" in caplog.text
    assert left(data) == []


def test_a_micro_batch_without_rows_is_a_replay_only_of_its_own_topic(data: Path, topics: DirectoryStore) -> None:
    publish(sink(data, "one"), 0)
    publish(sink(data, "one"), 0)
    publish(sink(data, "two"), 0, batch(2))
    assert (values(topics["one"]), values(topics["two"])) == ([], [2])


@pytest.mark.parametrize("name", ["a" * 200, "ä" * 30, "a/b c@d"])
def test_any_name_that_was_good_before_is_still_good(data: Path, topics: DirectoryStore, name: str) -> None:
    for topic in ("one", "two"):
        for _ in range(2):
            write(sink(data, topic, txnAppId=name, txnVersion=0), batch(1))
    assert (values(topics["one"]), values(topics["two"])) == ([1], [1])


def test_a_name_that_is_too_long_is_refused(data: Path, topics: DirectoryStore) -> None:
    with pytest.raises(InvalidConfig, match="name"):
        write(sink(data, "one", txnAppId="a" * 201, txnVersion=0), batch(1))


# --- retention


def test_retention_runs_in_a_store_that_only_spark_writes(data: Path, store: DirectoryStore) -> None:
    topic = store.create_topic("one", 2, retention_bytes=3000, segment_bytes=1000, durability="os")
    for number in range(40):
        publish(sink(data, "one"), number, batch(*range(20), partition=[0] * 20))
    store.close()
    kept = DirectoryStore.open(data, "r")["one"].partition(0)
    assert kept.size_bytes < 5000
    assert kept.lowest_offset > 0
    assert kept.next_offset == 800
    assert topic.name == "one"


def test_a_topic_that_keeps_everything_is_not_trimmed_by_a_commit(data: Path, store: DirectoryStore) -> None:
    store.create_topic("one", cleanup_policy="compact", retention_bytes=1000, segment_bytes=1000, durability="os")
    for number in range(20):
        publish(sink(data, "one"), number, batch(*range(20), key=[b"%d.%d" % (number, n) for n in range(20)]))
    assert len(values(store["one"])) == 400


def test_retention_that_fails_does_not_fail_a_commit(
    data: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("one", retention_bytes=100, segment_bytes=100, durability="os")

    def broken(_: object) -> None:
        raise InvalidConfig("broken")

    monkeypatch.setattr("sawlog.log.log.Log.apply_retention", broken)
    for number in range(3):
        publish(sink(data, "one"), number, batch(*range(20)))
    assert len(values(store["one"])) == 60
    assert "postponed to the next commit" in caplog.text
