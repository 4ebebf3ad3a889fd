"""Topics behind a broker equal topics in a store, with the same errors."""

from __future__ import annotations

import pyarrow as pa
import pytest

import sawlog
from sawlog.broker.remote import RemoteStore
from sawlog.testing import Broker


def test_a_topic_is_created_described_changed_and_deleted(broker: Broker, store: RemoteStore) -> None:
    made = store.create_topic("orders", 3, retention_ms=86_400_000, compression_type="zstd")
    here = broker.store.topic("orders")
    assert (made.name, made.id, made.partitions, made.settings) == (here.name, here.id, 3, here.settings)
    assert made.settings["retention.ms"] == 86_400_000
    assert store.topics() == ["orders"]
    assert [topic.name for topic in store] == ["orders"]

    changed = store.alter_topic("orders", 5, retention_ms=None, segment_bytes=1 << 20)
    assert changed.partitions == 5
    assert changed.settings == broker.store.topic("orders").settings
    assert "retention.ms" not in changed.settings

    store.delete_topic("orders")
    assert store.topics() == []
    assert broker.store.topics() == []


def test_a_description_says_what_the_store_says(broker: Broker, store: RemoteStore) -> None:
    topic = store.create_topic("orders", 2)
    topic.append_many([(b"%d" % number, b"key %d" % number) for number in range(100)])
    found, here = topic.describe(), broker.store.topic("orders").describe()
    for name in ("name", "id", "partitions", "settings", "records", "size_bytes"):
        assert getattr(found, name) == getattr(here, name)
    for row, expected in zip(found.rows, here.rows, strict=True):
        for name in ("partition", "lowest_offset", "next_offset", "records", "size_bytes"):
            assert getattr(row, name) == getattr(expected, name)
        assert (row.segments, row.path) == (None, None)


def test_an_existing_topic_is_returned_only_if_that_is_wanted(store: RemoteStore) -> None:
    first = store.create_topic("orders", 2)
    with pytest.raises(sawlog.errors.TopicExists, match="already exists"):
        store.create_topic("orders")
    again = store.create_topic("orders", 5, exist_ok=True)
    assert (again.id, again.partitions) == (first.id, 2)


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("work", "error", "told"),
    [
        (lambda store: store.topic("nope"), sawlog.errors.TopicNotFound, "no topic 'nope' at 127.0.0.1"),
        (lambda store: store.delete_topic("nope"), sawlog.errors.TopicNotFound, "no topic 'nope' at 127.0.0.1"),
        (lambda store: store.alter_topic("nope", 3), sawlog.errors.TopicNotFound, "no topic 'nope'"),
        (lambda store: store.create_topic("a/b"), sawlog.errors.InvalidTopicName, "a/b"),
        (lambda store: store.create_topic("a", retention_ms="soon"), sawlog.errors.InvalidConfig, "retention.ms"),
        (lambda store: store.create_topic("a", nonsense=1), sawlog.errors.InvalidConfig, "nonsense"),
        (lambda store: store.alter_topic("there", 1), sawlog.errors.InvalidConfig, "2 partitions"),
        (lambda store: store.alter_topic("there", segment_bytes=-5), sawlog.errors.InvalidConfig, "segment.bytes"),
        (
            lambda store: store.topic("there").partition(7).lowest_offset,
            sawlog.errors.TopicNotFound,
            "partitions 0 to 1",
        ),
    ],
)
def test_errors_are_those_of_a_store(store: RemoteStore, work, error, told) -> None:
    store.create_topic("there", 2)
    with pytest.raises(error, match=told):
        work(store)


def test_a_refused_change_changes_nothing(broker: Broker, store: RemoteStore) -> None:
    store.create_topic("there", 2)
    with pytest.raises(sawlog.errors.InvalidConfig):
        store.alter_topic("there", 1, retention_ms=5)
    assert "retention.ms" not in broker.store.topic("there").settings


def test_records_go_where_the_store_would_put_them(broker: Broker, store: RemoteStore) -> None:
    remote, here = store.create_topic("remote", 5), broker.create_topic("here", 5)
    keys = [b"customer %d" % number for number in range(50)]
    for key in keys:
        assert remote.append(b"v", key=key).partition == here.append(b"v", key=key).partition
    with remote.writer() as writer:
        for key in keys:
            writer.append(b"w", key)
    remote.append_many([(b"x", key) for key in keys])
    remote.append_arrow(pa.table({"value": [b"y"] * 50, "key": keys}))
    for number in range(5):
        expected = {record.key for record in here.partition(number).scan()}
        found = list(broker.store.topic("remote").partition(number).scan())
        assert {record.key for record in found} == expected
        assert len(found) == 4 * len(expected)


def test_every_way_to_append_returns_the_offsets(store: RemoteStore) -> None:
    topic = store.create_topic("orders")
    assert topic.append(b"0") == (0, 0)
    assert topic.append_many([b"1", (b"2", b"key"), {"value": b"3", "headers": {"a": b"b"}}]) == {0: range(1, 4)}
    assert topic.append_arrow(pa.table({"value": [b"4", b"5"]})) == {0: range(4, 6)}
    assert topic.partition(0).append_stream([b"six", b"th"], key=b"k", headers=[("h", b"v")]) == 6
    found = list(topic.partition(0).scan())
    assert [record.value for record in found] == [b"0", b"1", b"2", b"3", b"4", b"5", b"sixth"]
    assert (found[3].headers, found[6].headers) == ((("a", b"b"),), (("h", b"v"),))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_as_asked_for(broker: Broker, store: RemoteStore, codec: str) -> None:
    topic = store.create_topic("orders")
    with topic._packer(codec, linger_ms=20) as packer:
        for number in range(1000):
            packer.append(b"value %d" % number)
    from sawlog.batch.compression import codec_name
    from sawlog.batch.header import scan

    (buffer,) = broker.store.topic("orders").partition(0).fetch(0, 1 << 20).buffers
    assert {codec_name(header.compression) for header in scan(buffer)} == {codec}
    assert [record.value for record in topic.partition(0).scan()] == [b"value %d" % number for number in range(1000)]


def test_only_a_record_that_is_too_large_is_refused(store: RemoteStore) -> None:
    topic = store.create_topic("orders", max_message_bytes=2000)
    with topic.writer() as writer:
        writer.append(b"fits")
        with pytest.raises(sawlog.errors.RecordTooLarge):
            writer.append(b"x" * 3000)
        writer.append(b"fits too")
    with pytest.raises(sawlog.errors.RecordTooLarge):
        topic.partition(0).append_stream([b"x" * 1500] * 2)
    assert [record.value for record in topic.partition(0).scan()] == [b"fits", b"fits too"]


def test_old_records_are_dropped(broker: Broker, store: RemoteStore) -> None:
    topic = store.create_topic("orders", 2)
    topic.append_many([b"%d" % number for number in range(10)], partition=0)
    topic.append_many([b"%d" % number for number in range(10)], partition=1)
    assert topic.trim({0: 4, 1: 10}) == 14
    assert [topic.partition(number).lowest_offset for number in (0, 1)] == [4, 10]
    assert broker.store.topic("orders").partition(0).lowest_offset == 4
