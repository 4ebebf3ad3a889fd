"""A partition through a broker is read as the log is read."""

from __future__ import annotations

import threading

import pytest

import sawlog
from sawlog.batch.build import Producer, encode
from sawlog.batch.header import scan, visible_batches
from sawlog.broker.remote import RemotePartition, RemoteStore, RemoteTopic, whole_batches
from sawlog.config import Isolation
from sawlog.log.reader import Fetched
from sawlog.testing import Broker


@pytest.fixture
def topic(store: RemoteStore) -> RemoteTopic:
    made = store.create_topic("orders")
    for first in range(0, 1000, 100):
        made.append_many([(b"%d" % number, b"k", {}, 1000 + number) for number in range(first, first + 100)])
    return made


def test_offsets_are_those_of_the_log(broker: Broker, topic: RemoteTopic) -> None:
    remote, here = topic.partition(0), broker.store.topic("orders").partition(0)
    assert remote.lowest_offset == here.lowest_offset == 0
    assert remote.visible_offset == remote.next_offset == here.visible_offset == 1000
    assert remote.position() == here.position()
    assert remote.leader_epoch == here.leader_epoch
    assert remote.epoch_end(here.leader_epoch) == here.epoch_end(here.leader_epoch)
    assert remote.size_bytes == here.size_bytes
    for timestamp in (0, 1000, 1500, 1999, 5000):
        assert remote.offset_at(timestamp) == here.offset_at(timestamp)


@pytest.mark.alternating
@pytest.mark.parametrize(("start", "end"), [(None, None), (0, 1), (150, 151), (155, 845), (999, None), (1000, None)])
def test_scans_are_those_of_the_log(broker: Broker, topic: RemoteTopic, start: int | None, end: int | None) -> None:
    remote, here = topic.partition(0), broker.store.topic("orders").partition(0)
    expected = [(record.offset, record.timestamp, record.key, record.value) for record in here.scan(start, end)]
    found = [(record.offset, record.timestamp, record.key, record.value) for record in remote.scan(start, end)]
    assert found == expected
    columns = ("offset", "timestamp", "key", "value", "headers")
    rows = [row for batch in remote.scan_arrow(start, end, columns=columns) for row in batch.to_pylist()]
    assert rows == [row for batch in here.scan_arrow(start, end, columns=columns) for row in batch.to_pylist()]


def test_records_know_where_they_are_from(topic: RemoteTopic) -> None:
    record = next(topic.partition(0).scan())
    assert (record.topic, record.partition) == ("orders", 0)


def test_pages_are_complete_batches(broker: Broker, topic: RemoteTopic) -> None:
    here = broker.store.topic("orders").partition(0)
    page = topic.partition(0).fetch(250, 4000)
    (buffer,) = page.buffers
    headers = scan(buffer)
    assert headers[0].base_offset <= 250 <= headers[0].last_offset
    assert page.next_offset == headers[-1].last_offset + 1
    assert page.raw == here.fetch(250, page.size_bytes).raw
    assert topic.partition(0).fetch(1000, 4000).buffers == ()


def test_an_offset_that_is_gone_is_out_of_range(topic: RemoteTopic) -> None:
    topic.trim({0: 500})
    with pytest.raises(sawlog.errors.OffsetOutOfRange) as caught:
        list(topic.partition(0).scan(10))
    assert (caught.value.lowest, caught.value.next) == (500, 1000)
    with pytest.raises(sawlog.errors.OffsetOutOfRange):
        topic.partition(0).fetch(2000, 100)


def test_waiting_ends_when_a_record_comes(store: RemoteStore, topic: RemoteTopic) -> None:
    done = threading.Event()

    def wait() -> None:
        store.wait({("orders", 0): 1000}, 60)
        done.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not done.wait(0.1)
    with_another_connection(store, topic)
    waiter.join(60)
    assert done.is_set()


def with_another_connection(store: RemoteStore, topic: RemoteTopic) -> None:
    """A connection answers in order, so the one that waits cannot produce."""
    from sawlog.broker.remote import connect

    with connect(store.path) as other:
        other.topic(topic.name).append(b"news")


def test_waiting_ends_with_its_time(store: RemoteStore, topic: RemoteTopic) -> None:
    store.wait({("orders", 0): 1000}, 0.05)


# --- transactions

TRANSACTIONAL, CONTROL = 0x10, 0x20


def batch(offset: int, producer_id: int = -1, attributes: int = 0) -> bytes:
    """One record at an offset; the checksum is computed again."""
    from sawlog.batch import kernel
    from sawlog.batch.checksum import crc32c

    producer = Producer() if producer_id < 0 else Producer(producer_id, 0, 0)
    data = bytearray(encode([b"value"], base_offset=offset, producer=producer))
    data[21:23] = attributes.to_bytes(2)
    kernel.patch_crc(memoryview(data), 0, crc32c(memoryview(data)[21:]))
    return bytes(data)


@pytest.mark.parametrize(
    ("aborted", "seen"),
    [
        ([], [0, 1, 2, 3, 5, 6, 8]),
        ([(7, 1)], [0, 2, 3, 5, 6, 8]),  # ends with the marker at 4
        ([(7, 5)], [0, 1, 2, 3, 6, 8]),
        ([(8, 2)], [0, 1, 3, 5, 8]),  # 2 and 6, up to the marker at 7
        ([(7, 1), (8, 2)], [0, 3, 5, 8]),
        ([(7, 1), (8, 2), (7, 5)], [0, 3, 8]),
    ],
)
def test_markers_and_what_was_aborted_are_not_seen(aborted: list[tuple[int, int]], seen: list[int]) -> None:
    raw = b"".join(
        [
            batch(0),
            batch(1, 7, TRANSACTIONAL),
            batch(2, 8, TRANSACTIONAL),
            batch(3, 7),  # of the same producer, but not in a transaction
            batch(4, 7, TRANSACTIONAL | CONTROL),
            batch(5, 7, TRANSACTIONAL),
            batch(6, 8, TRANSACTIONAL),
            batch(7, 8, TRANSACTIONAL | CONTROL),
            batch(8),
        ]
    )
    rows = whole_batches(memoryview(raw))
    from sawlog.batch.header import BASE

    if (7, 1) in aborted:  # an idempotent batch of that producer between is not in the transaction
        assert 3 in seen
    assert visible_batches(rows, aborted)[:, BASE].tolist() == seen


def test_a_transaction_is_seen_when_it_is_committed(broker: Broker, store: RemoteStore) -> None:
    remote, here = store.create_topic("txn").partition(0), broker.store.topic("txn").partition(0)
    here.append(b"before")
    here.append_batches(batch(0, 7, TRANSACTIONAL))
    here.append_batches(batch(0, 8, TRANSACTIONAL))
    here.append(b"after")

    def seen(isolation: Isolation = "committed") -> list[int]:
        return [record.offset for record in remote.scan(isolation=isolation)]

    assert (remote.last_stable_offset, remote.visible_offset) == (1, 4)
    assert (seen(), seen("uncommitted")) == ([0], [0, 1, 2, 3])
    assert remote.offset_at(0) == 0
    here.append_marker(7, 0, commit=False)
    assert seen() == [0]
    here.append_marker(8, 0, commit=True)
    assert (seen(), seen("uncommitted")) == ([0, 2, 3], [0, 1, 2, 3])
    assert remote.position() == here.position()
    columns = [column for page in remote.scan_arrow(columns=["offset"]) for column in page["offset"].to_pylist()]
    assert columns == [0, 2, 3]
    assert remote.fetch(0, 1 << 20).aborted == here.fetch(0, 1 << 20).aborted == ((7, 1),)


def test_a_response_may_end_within_a_batch() -> None:
    raw = batch(0) + batch(1)
    assert len(whole_batches(memoryview(raw)[:-1])) == 1
    assert len(whole_batches(memoryview(raw)[:20])) == 0
    assert len(whole_batches(memoryview(b""))) == 0


def test_damage_on_the_way_is_noticed(topic: RemoteTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(batch(0))
    raw[-1] ^= 1
    damaged = Fetched((memoryview(raw),), 1, 1)
    monkeypatch.setattr(RemotePartition, "fetch", lambda self, start, *most, **more: damaged)
    with pytest.raises(sawlog.errors.CorruptBatch, match="checksum"):
        list(topic.partition(0).scan(0, 1))
    with pytest.raises(sawlog.errors.CorruptBatch, match="no batch"):
        whole_batches(memoryview(bytes(200)))
