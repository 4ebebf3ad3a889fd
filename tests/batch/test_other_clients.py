"""Kafka clients read our batches, and we read theirs, in every compression.

The clients come with their own gzip, snappy, lz4 and zstd: aiokafka uses zlib and cramjam, kafka-python zlib,
python-snappy, lz4 and zstandard.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch.build import Producer, encode
from sawlog.batch.compression import CODECS
from sawlog.batch.header import scan
from sawlog.batch.read import decode

from .clients import CLIENTS, Client, Seen, seen
from .strategies import record_lists, share

T = 1_700_000_000_000

#: Records of every kind, long enough for every codec to save bytes.
ASSORTED: list[tuple[Any, ...]] = [
    (b"value", b"key", (), T),
    (None, b"key", (), T + 1),
    (b"", b"", (("", b""), ("null", None)), T - 5_000),
    (None, None, (), T),
    (b"x" * 100_000, None, (), T + 86_400_000),
    (bytes(range(256)) * 40, b"k" * 9_000, tuple((f"header {i}", b"%d" % i * 50) for i in range(70)), T),
    ("grüße, 世界".encode(), b"\xff\x00", (("ключ", b"\xff\xfe"),), 0),
    *((b"record %d of many" % i, b"%d" % (i % 10), (), T + i) for i in range(400)),
]

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
every_codec = pytest.mark.parametrize("codec", CODECS)


def expected(records: list[tuple[Any, ...]]) -> list[Seen]:
    return [(i, ts, 0, key, value, tuple(headers)) for i, (value, key, headers, ts) in enumerate(records)]


def without_place(data: bytes) -> bytes:
    """Return a batch without base offset and leader epoch, which the log sets and the CRC does not cover."""
    return data[8:12] + data[16:]


@every_codec
@every_client
def test_clients_read_our_batches(client: Client, codec: str) -> None:
    data = encode(ASSORTED, compression=codec)
    assert scan(data)[0].compression == CODECS[codec]
    assert client.decode(data) == expected(ASSORTED)


@every_codec
@every_client
def test_we_read_the_clients_batches(client: Client, codec: str) -> None:
    data = client.encode(ASSORTED, CODECS[codec])
    assert scan(data)[0].compression == CODECS[codec]
    assert [seen(record) for record in decode(data)] == expected(ASSORTED)


@every_client
def test_our_bytes_are_the_clients_bytes(client: Client) -> None:
    assert without_place(encode(ASSORTED)) == without_place(client.encode(ASSORTED))


@every_client
def test_our_bytes_are_the_clients_bytes_for_a_producer_too(client: Client) -> None:
    ours = encode(ASSORTED, producer=Producer(2**40, 32767, 2**31 - 1))
    assert without_place(ours) == without_place(client.encode(ASSORTED, producer=(2**40, 32767, 2**31 - 1)))


@pytest.mark.sampled(5)  # 0.1 s each
@every_client
@every_codec
@share(0.2)
@given(records=record_lists)
def test_whatever_the_records_both_sides_agree(client: Client, codec: str, records: list[tuple[Any, ...]]) -> None:
    ours, theirs = encode(records, compression=codec), client.encode(records, CODECS[codec])
    assert client.decode(ours) == expected(records)
    assert [seen(record) for record in decode(theirs)] == expected(records)
    if codec == "none":
        assert without_place(ours) == without_place(theirs)


@every_client
def test_a_batch_is_read_at_the_offset_where_it_was_placed(client: Client) -> None:
    data = encode(ASSORTED, base_offset=2**40)
    assert [record[0] for record in client.decode(data)] == list(range(2**40, 2**40 + len(ASSORTED)))


@every_client
def test_time_that_the_log_sets_is_every_records_time(client: Client) -> None:
    data = encode(ASSORTED, append_time=True)
    (header,) = scan(data)
    assert {(record[1], record[2]) for record in client.decode(data)} == {(header.max_timestamp, 1)}
    assert [seen(record) for record in decode(data)] == client.decode(data)


@every_client
def test_transactional_batches_are_read(client: Client) -> None:
    data = client.encode(ASSORTED, producer=(7, 1, 0), transactional=True)
    (header,) = scan(data)
    assert (header.is_transactional, header.is_control, header.producer_id) == (True, False, 7)
    assert [seen(record) for record in decode(data)] == expected(ASSORTED)


@share(0.3)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
def test_batches_of_several_clients_in_a_row_are_one_log(sizes: list[int], data: st.DataObject) -> None:
    log, offset, written = b"", 0, []
    for size in sizes:
        records = [(b"%d" % (offset + i), None, (), T + offset + i) for i in range(size)]
        client = data.draw(st.sampled_from(CLIENTS))
        codec = data.draw(st.sampled_from(list(CODECS.values())))
        log += struct.pack(">q", offset) + client.encode(records, codec)[8:]
        written += [record[0] for record in records]
        offset += size
    assert [record.value for record in decode(log)] == written
    assert [record.offset for record in decode(log)] == list(range(offset))
