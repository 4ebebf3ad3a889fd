"""Buffered writing to all partitions of a topic."""

from __future__ import annotations

import threading

import pytest

from sawlog.errors import InvalidConfig, InvalidRecordType, LogClosed
from sawlog.store.directory.topic import DirectoryTopic
from sawlog.store.partitioner import partition_for

from ..log.places import eventually
from .stores import StorePlace, values


@pytest.fixture
def topic(place: StorePlace) -> DirectoryTopic:
    """One with three partitions."""
    return place.open().create_topic("orders", partitions=3)


def test_records_go_where_their_keys_belong_in_order(topic: DirectoryTopic) -> None:
    with topic.writer() as writer:
        for number in range(1000):
            writer.append(b"%d" % number, b"%d" % (number % 10))
    for key in range(10):
        number = partition_for(b"%d" % key, 3)
        of_key = [r.value for r in topic.scan(partitions=[number]) if r.key == b"%d" % key]
        assert of_key == [b"%d" % i for i in range(key, 1000, 10)]


def test_headers_and_timestamps_are_kept(topic: DirectoryTopic) -> None:
    with topic.writer() as writer:
        writer.append(b"v", b"k", [("h", b"1")], 7)
    [record] = topic.scan()
    assert (record.value, record.key, record.headers, record.timestamp) == (b"v", b"k", (("h", b"1"),), 7)


def test_nothing_is_placed_before_it_has_to_and_flush_says_where(topic: DirectoryTopic) -> None:
    writer = topic.writer()
    writer.append(b"v", b"0")
    assert topic.describe().records == 0
    assert writer.flush() == {partition_for(b"0", 3): range(1)}
    assert topic.describe().records == 1
    writer.close()


def test_full_batches_are_placed_by_themselves(topic: DirectoryTopic) -> None:
    writer = topic.writer(batch_bytes=1000)
    for _ in range(100):
        writer.append(b"x" * 100, b"k")
    assert topic.describe().records >= 90
    writer.close()
    assert topic.describe().records == 100


def test_waiting_batches_are_placed_in_time(topic: DirectoryTopic) -> None:
    writer = topic.writer(linger_ms=5)
    writer.append(b"v", b"k")
    assert eventually(lambda: topic.describe().records == 1)
    writer.close()


def test_without_a_key_a_batch_stays_together_and_all_partitions_are_used(topic: DirectoryTopic) -> None:
    with topic.writer(batch_bytes=2000) as writer:
        for _ in range(2000):
            writer.append(b"x" * 100)
    assert all(row.records > 100 for row in topic.describe().rows)


def test_leaving_by_an_exception_keeps_what_was_taken(topic: DirectoryTopic) -> None:
    def fail() -> None:
        with topic.writer() as writer:
            writer.append(b"taken")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert values(topic.scan()) == [b"taken"]


def test_a_closed_writer_takes_nothing_and_closes_twice(topic: DirectoryTopic) -> None:
    writer = topic.writer()
    writer.close()
    writer.close()
    with pytest.raises(LogClosed):
        writer.append(b"late")
    with pytest.raises(LogClosed):
        writer.flush()


def test_a_bad_record_is_refused_and_the_others_stay(topic: DirectoryTopic) -> None:
    with topic.writer() as writer:
        writer.append(b"good", b"k")
        for bad in ({"value": "text"}, {"value": b"v", "key": "text"}):
            with pytest.raises(InvalidRecordType):
                writer.append(**bad)  # type: ignore[arg-type]
    assert values(topic.scan()) == [b"good"]


def test_wrong_sizes_are_refused(topic: DirectoryTopic) -> None:
    with pytest.raises(InvalidConfig):
        topic.writer(batch_bytes=0)
    with pytest.raises(InvalidConfig):
        topic.writer(linger_ms=-1)


def test_threads_share_a_writer(topic: DirectoryTopic) -> None:
    with topic.writer(batch_bytes=500) as writer:

        def work(name: int) -> None:
            for number in range(200):
                writer.append(b"%d" % number, b"%d" % name)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in range(4):
        assert [r.value for r in topic.scan() if r.key == b"%d" % name] == [b"%d" % number for number in range(200)]
