"""Topics: routing, reading, and arguments that are refused before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from sawlog import Record
from sawlog.errors import (
    DirectoryLocked,
    InvalidRecord,
    InvalidRecordType,
    OffsetOutOfRange,
    RecordTooLarge,
    TopicNotFound,
)
from sawlog.store.base import Offsets, Position
from sawlog.store.directory.topic import DirectoryTopic
from sawlog.store.partitioner import partition_for

from ..looping import for_each
from .stores import StorePlace, values

KEYS = [b"%d" % number for number in range(20)]


@pytest.fixture
def topic(place: StorePlace) -> DirectoryTopic:
    """One with three partitions."""
    return place.open().create_topic("orders", partitions=3)


def by_partition(keys: list[bytes], partitions: int = 3) -> dict[int, list[bytes]]:
    """Return the keys of each partition, in order."""
    parts: dict[int, list[bytes]] = {}
    for key in keys:
        parts.setdefault(partition_for(key, partitions), []).append(key)
    return dict(sorted(parts.items()))


# --- appending


def test_a_record_goes_to_the_partition_of_its_key(topic: DirectoryTopic) -> None:
    for key in KEYS:
        position = topic.append(b"v" + key, key)
        assert position.partition == partition_for(key, 3)
        assert topic.partition(position.partition).read(position.offset).key == key


def test_a_position_is_a_partition_and_an_offset(topic: DirectoryTopic) -> None:
    assert topic.append(b"one", partition=1) == Position(1, 0) == (1, 0)
    assert topic.append(b"two", key=b"k", partition=1) == (1, 1)


def test_an_empty_key_is_a_key_and_none_is_not(topic: DirectoryTopic) -> None:
    assert {topic.append(b"v", b"").partition for _ in range(5)} == {partition_for(b"", 3)}


def test_all_of_a_record_comes_back_and_says_where_it_was(topic: DirectoryTopic) -> None:
    when = datetime(2026, 11, 1, tzinfo=UTC)
    topic.append(b"value", b"key", [("h", b"1")], when, partition=2)
    assert list(topic.scan()) == [
        Record(b"value", b"key", (("h", b"1"),), 1793491200000, 0, topic="orders", partition=2)
    ]


@for_each("number", [3, -1, 100, True, "0", None.__class__])
def test_a_partition_that_is_not_there_is_said_so(topic: DirectoryTopic, number: object) -> None:
    with pytest.raises(TopicNotFound, match="partition"):
        topic.append(b"v", partition=number)  # type: ignore[arg-type]
    if number is not True:
        with pytest.raises(TopicNotFound, match="partition"):
            topic.partition(number)  # type: ignore[arg-type]


@for_each("bad", [{"value": "text"}, {"value": b"", "key": "text"}, {"value": 7}, {"value": b"", "timestamp": "now"}])
def test_a_bad_record_is_refused(topic: DirectoryTopic, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidRecordType):
        topic.append(**bad)  # type: ignore[arg-type]
    assert topic.describe().records == 0


def test_many_records_go_each_to_its_partition_in_order(topic: DirectoryTopic) -> None:
    topic.append(b"before", partition=0)
    placed = topic.append_many([(b"v" + key, key) for key in KEYS])
    expected = by_partition(KEYS)
    assert {number: len(offsets) for number, offsets in placed.items()} == {
        n: len(keys) for n, keys in expected.items()
    }
    assert placed[0].start == 1
    for number, keys in expected.items():
        assert [topic.partition(number).read(offset).key for offset in placed[number]] == keys


@pytest.mark.parametrize("form", ["tuple", "dict", "record"])
def test_a_record_of_many_has_any_form(topic: DirectoryTopic, form: str) -> None:
    made = {
        "tuple": [(b"v", key, [("h", b"x")], 5) for key in KEYS],
        "dict": [{"value": b"v", "key": key, "headers": [("h", b"x")], "timestamp": 5} for key in KEYS],
        "record": [Record(b"v", key, (("h", b"x"),), 5) for key in KEYS],
    }[form]
    topic.append_many(made)
    assert [(r.partition, r.key, r.headers, r.timestamp) for r in topic.scan()] == [
        (number, key, (("h", b"x"),), 5) for number, keys in by_partition(KEYS).items() for key in keys
    ]


def test_records_without_a_key_stay_together(topic: DirectoryTopic) -> None:
    placed = topic.append_many([b"%d" % number for number in range(100)])
    assert [len(offsets) for offsets in placed.values()] == [100]


def test_many_records_may_be_sent_to_one_partition(topic: DirectoryTopic) -> None:
    assert topic.append_many([(b"v", key) for key in KEYS], partition=1) == {1: range(20)}


def test_one_bad_record_of_many_and_nothing_is_written(topic: DirectoryTopic) -> None:
    for bad in ("text", (b"v", "text"), (b"v", b"k", "headers"), {"vlaue": b""}):
        with pytest.raises(InvalidRecord):
            topic.append_many([*((b"v", key) for key in KEYS), bad])
    assert topic.describe().records == 0


def test_no_record_is_refused(topic: DirectoryTopic) -> None:
    with pytest.raises(InvalidRecord):
        topic.append_many([])


def test_nothing_is_written_if_the_holder_of_one_partition_accepts_no_requests(place: StorePlace) -> None:
    topic = place.open(lock_timeout=0).create_topic("orders", partitions=3)
    place.occupy("orders", 2).append(b"theirs")
    records = [(b"v", key) for key in KEYS]
    table = pa.table({"value": [b"v"] * 20, "key": KEYS})
    for write in (lambda: topic.append_many(records), lambda: topic.append_arrow(table), topic.writer):
        with pytest.raises(DirectoryLocked):
            write()
    assert values(topic.scan()) == [b"theirs"]


def test_a_record_above_the_topics_limit_is_refused(place: StorePlace) -> None:
    topic = place.open().create_topic("orders", partitions=2, max_record_bytes=100)
    for write in (
        lambda: topic.append(b"x" * 101),
        lambda: topic.append_many([(b"x", b"0"), (b"x", b"1"), (b"x" * 101, b"2")]),
        lambda: topic.writer().append(b"x" * 101),
    ):
        with pytest.raises(RecordTooLarge):
            write()
    assert topic.describe().records == 0


# --- Arrow


def test_rows_of_a_table_go_each_to_its_partition_in_order(topic: DirectoryTopic) -> None:
    table = pa.table({"value": [b"v" + key for key in KEYS], "key": KEYS, "timestamp": list(range(20))})
    placed = topic.append_arrow(table)
    assert {number: len(offsets) for number, offsets in placed.items()} == {
        number: len(keys) for number, keys in by_partition(KEYS).items()
    }
    assert [(r.partition, r.key, r.value, r.timestamp) for r in topic.scan()] == [
        (number, key, b"v" + key, int(key)) for number, keys in by_partition(KEYS).items() for key in keys
    ]


def test_a_record_batch_with_text_is_as_good_as_a_table(topic: DirectoryTopic) -> None:
    batch = pa.record_batch({"value": ["a", "b"], "key": ["0", "1"]})
    topic.append_arrow(batch)
    assert sorted((r.key, r.value, r.partition) for r in topic.scan()) == [
        (b"0", b"a", partition_for(b"0", 3)),
        (b"1", b"b", partition_for(b"1", 3)),
    ]


def test_rows_without_a_key_stay_together(topic: DirectoryTopic) -> None:
    assert [len(placed) for placed in topic.append_arrow(pa.table({"value": [b"v"] * 9})).values()] == [9]
    topic.append_arrow(pa.table({"value": [b"w"] * 9, "key": pa.array([None] * 9, pa.binary())}))
    assert len({r.partition for r in topic.scan() if r.value == b"w"}) == 1


def test_a_table_may_be_sent_to_one_partition(topic: DirectoryTopic) -> None:
    assert topic.append_arrow(pa.table({"value": [b"v"] * 20, "key": KEYS}), partition=2) == {2: range(20)}


def test_columns_that_cannot_be_stored_are_refused(topic: DirectoryTopic) -> None:
    with pytest.raises(InvalidRecord):
        topic.append_arrow(pa.table({"value": [b"v"], "key": [7]}))
    assert topic.describe().records == 0


# --- topics that keep the last record of a key


def test_a_compacted_topic_takes_no_record_without_a_key(place: StorePlace) -> None:
    store = place.open()
    topic = store.create_topic("state", partitions=2, cleanup_policy="compact")
    table = pa.table({"value": [b"v", b"w"], "key": pa.array([b"k", None])})
    for write in (
        lambda: topic.append(b"v"),
        lambda: topic.append(b"v", partition=1),
        lambda: topic.append_many([(b"v", b"k"), b"w"]),
        lambda: topic.append_many([b"w"], partition=0),
        lambda: topic.append_arrow(table),
        lambda: topic.append_arrow(pa.table({"value": [b"v"]}), partition=0),
        lambda: topic.writer().append(b"v"),
        lambda: store.transaction().append("state", b"v"),
        lambda: store.transaction().append_many("state", [b"v"]),
    ):
        with pytest.raises(InvalidRecord, match="key"):
            write()
    assert topic.describe().records == 0
    topic.append(b"v", b"k")
    topic.append(None, b"k")
    assert topic.describe().records == 2


# --- reading


def test_a_scan_goes_partition_after_partition(topic: DirectoryTopic) -> None:
    for number in (2, 0, 1, 0):
        topic.append(b"%d" % number, partition=number)
    assert [(r.partition, r.offset, r.value) for r in topic.scan()] == [
        (0, 0, b"0"),
        (0, 1, b"0"),
        (1, 0, b"1"),
        (2, 0, b"2"),
    ]


def test_a_scan_is_bounded_partition_by_partition(topic: DirectoryTopic) -> None:
    for number in range(3):
        topic.append_many([b"%d%d" % (number, i) for i in range(5)], partition=number)
    assert values(topic.scan({0: 3, 1: 5}, {2: 1})) == [b"03", b"04", b"20"]
    assert values(topic.scan(partitions=[2, 1], end={1: 1, 2: 2})) == [b"10", b"20", b"21"]


def test_a_scan_ends_where_the_topic_ended_when_the_scan_was_created(topic: DirectoryTopic) -> None:
    topic.append(b"before", partition=0)
    scan = topic.scan()
    topic.append(b"after", partition=2)
    assert values(scan) == [b"before"]


def test_a_scan_from_what_is_not_there_is_refused_at_once(topic: DirectoryTopic) -> None:
    with pytest.raises(OffsetOutOfRange):
        topic.scan({0: 1})
    with pytest.raises(TopicNotFound):
        topic.scan({3: 0})
    with pytest.raises(TopicNotFound):
        topic.scan(partitions=[7])


def test_an_arrow_scan_gives_the_same_with_the_partition(topic: DirectoryTopic) -> None:
    topic.append_many([(b"v" + key, key) for key in KEYS])
    found = pa.Table.from_batches(topic.scan_arrow())
    assert found.column_names == ["partition", "offset", "timestamp", "key", "value"]
    assert found.select(["partition", "offset", "key", "value"]).to_pylist() == [
        {"partition": r.partition, "offset": r.offset, "key": r.key, "value": r.value} for r in topic.scan()
    ]


def test_an_arrow_scan_gives_the_columns_that_are_asked_for(topic: DirectoryTopic) -> None:
    topic.append(b"v", b"k", [("h", b"1")], partition=1)
    [batch] = topic.scan_arrow(columns=["headers", "partition", "value"])
    assert batch.schema.names == ["headers", "partition", "value"]
    assert batch.to_pylist() == [{"headers": [{"key": "h", "value": b"1"}], "partition": 1, "value": b"v"}]
    [batch] = topic.scan_arrow(columns=["value"], partitions=[1])
    assert batch.schema.names == ["value"]
    with pytest.raises(InvalidRecord, match="nonsense"):
        topic.scan_arrow(columns=["nonsense"])


def test_offsets_say_what_is_there(topic: DirectoryTopic) -> None:
    topic.append_many([b"v"] * 5, partition=1)
    topic.trim({1: 2})
    assert topic.offsets() == {0: Offsets(0, 0), 1: Offsets(2, 5), 2: Offsets(0, 0)}


def test_offsets_by_time(topic: DirectoryTopic) -> None:
    for number, stamp in ((0, 10), (0, 20), (1, 5), (1, 30), (1, 40)):
        topic.append(b"v", timestamp=stamp, partition=number)
    assert topic.offset_at(20) == {0: 1, 1: 1, 2: 0}
    assert topic.offset_at(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == {0: 2, 1: 3, 2: 0}


def test_trimming_drops_what_is_below_and_says_how_much(topic: DirectoryTopic) -> None:
    for number in range(3):
        topic.append_many([b"%d%d" % (number, i) for i in range(4)], partition=number)
    assert topic.trim({0: 4, 2: 1}) == 5
    assert values(topic.scan()) == [b"10", b"11", b"12", b"13", b"21", b"22", b"23"]


def test_a_description_adds_up(topic: DirectoryTopic) -> None:
    topic.append_many([b"v"] * 3, partition=0)
    topic.append_many([b"v"] * 4, partition=2)
    found = topic.describe()
    assert (found.name, found.id, found.partitions, found.settings) == ("orders", topic.id, 3, {})
    assert (found.records, [row.records for row in found.rows]) == (7, [3, 0, 4])
    assert found.size_bytes == sum(row.size_bytes for row in found.rows) > 0
    assert [(row.partition, row.lowest_offset, row.next_offset, row.segments) for row in found.rows] == [
        (0, 0, 3, 1),
        (1, 0, 0, 1),
        (2, 0, 4, 1),
    ]


def test_a_reader_sees_what_the_writer_appends(place: StorePlace) -> None:
    topic = place.open().create_topic("orders", partitions=2)
    seen = place.open("r")["orders"]
    assert values(seen.scan()) == []
    topic.append(b"one", partition=1)
    assert values(seen.scan()) == [b"one"]
    assert seen.offsets() == {0: Offsets(0, 0), 1: Offsets(0, 1)}


# --- maintenance


def test_maintenance_drops_what_the_settings_say_and_gives_back_the_locks(place: StorePlace) -> None:
    store, other = place.open(), place.open()
    topic = store.create_topic("orders", partitions=2, retention_ms=1000, segment_bytes=200)
    for number in range(2):
        for i in range(10):
            topic.append(b"x" * 50, timestamp=i + 1, partition=number)
    store.close()
    reports = other.maintain()
    assert [report.retention.removed_records for report in reports if report.retention] == [10, 10]
    assert other["orders"].describe().records == 0
    assert place.open()["orders"].append(b"free").offset == 10


def test_maintenance_skips_partitions_of_other_processes(place: StorePlace) -> None:
    store, other = place.open(), place.open()
    topic = store.create_topic("orders", retention_ms=1000)
    topic.append(b"old", timestamp=1)
    with topic.partition(0)._hold():
        assert other.maintain() == []
    assert topic.describe().records == 1
    assert [report.retention is not None for report in store.maintain()] == [True]
    assert topic.describe().records == 0
