"""Batches with known bytes: written by hand below, and stored in tests/golden.

A batch written today must be readable in ten years, and by Kafka. Our encoder must produce exactly these bytes;
our decoder and two Kafka clients must read them. Comments in the hexadecimal drawings explain the fields, and
tests/golden/README.md gives the origin of each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sawlog.batch import build
from sawlog.batch import kernel as packaged
from sawlog.batch.build import Producer, encode
from sawlog.batch.header import COUNT, MARKER, SIZE, scan
from sawlog.batch.kernel import Record
from sawlog.batch.read import decode

from .clients import CLIENTS, Client, kafka_python, seen
from .twins import BOTH
from .twins import scan as scan_rows
from .wire import Header, batch, crc32c, hex_bytes, varint, with_right_crc

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
T = 1_700_000_000_000  # 14 November 2023, 22:13:20 UTC; 0x018BCFE56800

ONE_RECORD = hex_bytes(
    """
    00 00 00 00 00 00 00 2a   # base offset 42
    00 00 00 3b               # batch length 59: what follows this field
    00 00 00 00               # partition leader epoch 0
    02                        # magic 2
    cb f3 29 e0               # CRC-32C of everything below
    00 00                     # attributes: not compressed, producer's time, no transaction, data
    00 00 00 00               # last offset delta 0: the last offset is 42, too
    00 00 01 8b cf e5 68 00   # base timestamp T
    00 00 01 8b cf e5 68 00   # max timestamp T
    ff ff ff ff ff ff ff ff   # producer id -1: none
    ff ff                     # producer epoch -1
    ff ff ff ff               # base sequence -1
    00 00 00 01               # one record
    12                        # record length 9 (zig-zag: 9 * 2)
    00                        #   attributes, unused
    00                        #   timestamp delta 0
    00                        #   offset delta 0
    02 6b                     #   key: 1 byte, "k"
    04 68 69                  #   value: 2 bytes, "hi"
    00                        #   no headers
    """
)

MANY_RECORDS = hex_bytes(
    """
    00 00 00 00 00 00 00 07   # base offset 7
    00 00 00 69               # batch length 105
    00 00 00 00               # partition leader epoch 0
    02                        # magic 2
    7b 43 9f 24               # CRC-32C
    00 00                     # attributes
    00 00 00 03               # last offset delta 3: offsets 7 to 10
    00 00 01 8b cf e5 68 00   # base timestamp T, that of the first record
    00 00 01 8b cf e5 69 2c   # max timestamp T + 300
    ff ff ff ff ff ff ff ff   # no producer
    ff ff
    ff ff ff ff
    00 00 00 04               # four records
    16 00 00 00               # length 11, attributes, timestamp delta 0, offset delta 0
    01                        #   key null (-1)
    0a 66 69 72 73 74         #   value "first"
    00                        #   no headers
    0c 00 01 02               # length 6, attributes, timestamp delta -1: older than the first, offset delta 1
    00                        #   key empty
    01                        #   value null: a tombstone
    00
    3a 00 d8 04 04            # length 29, attributes, timestamp delta 300 (two bytes), offset delta 2
    02 6b                     #   key "k"
    00                        #   value empty
    06                        #   three headers
    0a 74 72 61 63 65 02 01   #     "trace": 01
    0a 65 6d 70 74 79 00      #     "empty": empty
    08 6e 75 6c 6c 01         #     "null": null
    0c 00 00 06               # length 6, attributes, timestamp delta 0, offset delta 3
    01                        #   key null
    01                        #   value null
    00
    """
)

PRODUCER = hex_bytes(
    """
    00 00 00 00 00 00 00 00   # base offset 0, as a producer sends it
    00 00 00 43               # batch length 67
    00 00 00 00
    02
    9b 0f a6 a8
    00 00
    00 00 00 01               # last offset delta 1
    00 00 01 8b cf e5 68 00
    00 00 01 8b cf e5 68 01   # max timestamp T + 1
    00 00 00 00 00 00 10 00   # producer id 4096
    00 03                     # producer epoch 3
    00 00 00 0a               # base sequence 10: the records are its 10th and 11th
    00 00 00 02
    10 00 00 00 01 04 76 31 00   # "v1"
    10 00 02 02 01 04 76 32 00   # "v2", one millisecond and one offset further
    """
)

APPEND_TIME = hex_bytes(
    """
    00 00 00 00 00 00 00 05   # base offset 5
    00 00 00 43
    00 00 00 00
    02
    c6 ee b2 62
    00 08                     # attributes: timestamp type 1, set by the log
    00 00 00 01
    00 00 01 8b cf e5 68 00   # base timestamp T, written by the producer
    00 00 01 8b cf e5 6b e8   # max timestamp T + 1000: the time of the append, and so of every record
    ff ff ff ff ff ff ff ff
    ff ff
    ff ff ff ff
    00 00 00 02
    10 00 00 00 01 04 76 31 00
    10 00 02 02 01 04 76 32 00   # its own time delta, 1, is ignored
    """
)


def control(attributes: str, crc: str, kind: str) -> bytes:
    """Return the marker that a broker writes at the end of a transaction."""
    return hex_bytes(
        f"""
        00 00 00 00 00 00 00 64   # base offset 100
        00 00 00 42
        00 00 00 05               # partition leader epoch 5: a broker wrote this
        02
        {crc}
        {attributes}              # control 0x20, transactional 0x10
        00 00 00 00
        00 00 01 8b cf e5 68 00
        00 00 01 8b cf e5 68 00
        00 00 00 00 00 00 10 00   # of producer 4096
        00 03                     # epoch 3
        ff ff ff ff               # markers have no sequence
        00 00 00 01
        20 00 00 00               # length 16
        08 00 00 {kind}           # key: version i16 = 0, type i16: 0 abort, 1 commit
        0c 00 00 00 00 00 07      # value: version i16 = 0, coordinator epoch i32 = 7
        00
        """
    )


COMMIT = control("00 30", "ca 4e a9 63", "00 01")
ABORT = control("00 30", "3e 70 7f 2b", "00 00")
CONTROL_ONLY = control("00 20", "04 6c b7 9a", "00 01")

#: Compaction removed offsets 1, 2 and 5: fewer records than last offset delta + 1.
COMPACTED = batch(
    [(0, 0, b"a", b"1", ()), (3, 5, b"b", b"2", ()), (4, 6, b"c", None, ())],
    Header(base_offset=20, last_delta=5),
)

#: A streamed record: lengths of five bytes, reserved before they were known.
PADDED = with_right_crc(
    batch([(0, 0, None, b"", ())])[:8]
    + (49 + 5 + 10 + 300).to_bytes(4, "big")
    + batch([(0, 0, None, b"", ())])[12:61]
    + varint(10 + 300, 5)
    + bytes.fromhex("00 00 00 01")
    + varint(300, 5)
    + b"s" * 300
    + b"\0"
)


def rec(offset: int, timestamp: int, value: bytes | None, key: bytes | None = None, **more: Any) -> Record:
    return Record(value, key, more.get("headers", ()), timestamp, offset, more.get("timestamp_type", 0))


MANY = [
    rec(7, T, b"first"),
    rec(8, T - 1, None, b""),
    rec(9, T + 300, b"", b"k", headers=(("trace", b"\x01"), ("empty", b""), ("null", None))),
    rec(10, T, None),
]
#: Compressible data: three hundred similar records.
PACKED = [
    rec(i, T + i, b"value %d " % i * 5, b"key %d" % (i % 7), headers=(("n", b"%d" % i),) if i % 3 == 0 else ())
    for i in range(300)
]
PACKED_FILES = [
    f"{codec}-{client}.bin" for codec in ("gzip", "snappy", "lz4", "zstd") for client in ("aiokafka", "kafka-python")
]

CONTENT: dict[str, list[Record]] = {
    "one-record.bin": [rec(42, T, b"hi", b"k")],
    "many-records.bin": MANY,
    "producer.bin": [rec(0, T, b"v1"), rec(1, T + 1, b"v2")],
    "append-time.bin": [rec(5, T + 1000, b"v1", timestamp_type=1), rec(6, T + 1000, b"v2", timestamp_type=1)],
    "control-commit.bin": [],  # the content of a control batch is not a record
    "control-abort.bin": [],
    "control-only.bin": [],
    "compacted.bin": [rec(20, T, b"1", b"a"), rec(23, T + 5, b"2", b"b"), rec(24, T + 6, None, b"c")],
    "padded.bin": [rec(0, T, b"s" * 300)],
    **dict.fromkeys(PACKED_FILES, PACKED),
}
DRAWN = {
    "one-record.bin": ONE_RECORD,
    "many-records.bin": MANY_RECORDS,
    "producer.bin": PRODUCER,
    "append-time.bin": APPEND_TIME,
    "control-commit.bin": COMMIT,
    "control-abort.bin": ABORT,
    "control-only.bin": CONTROL_ONLY,
    "compacted.bin": COMPACTED,
    "padded.bin": PADDED,
}


def given(records: list[Record]) -> list[tuple[Any, ...]]:
    """Return the records as the arguments of the encoder."""
    return [(r.value, r.key, r.headers, r.timestamp) for r in records]


@contextmanager
def clock_at(milliseconds: int) -> Iterator[None]:
    with mock.patch.object(build, "now_ms", return_value=milliseconds):
        yield


def made_with_append_time() -> bytes:
    with clock_at(T + 1000):
        return encode([(b"v1", None, (), T), (b"v2", None, (), T + 1)], base_offset=5, append_time=True)


OURS: dict[str, Callable[[], bytes]] = {
    "one-record.bin": lambda: encode([(b"hi", b"k", (), T)], base_offset=42),
    "many-records.bin": lambda: encode(given(MANY), base_offset=7),
    "producer.bin": lambda: encode([(b"v1", None, (), T), (b"v2", None, (), T + 1)], producer=Producer(4096, 3, 10)),
    "append-time.bin": made_with_append_time,
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_batches_have_the_checksum_they_say(name: str) -> None:
    data = DRAWN[name]
    assert data[17:21].hex(" ") == crc32c(data[21:]).to_bytes(4, "big").hex(" ")
    assert int.from_bytes(data[8:12], "big") == len(data) - 12


@pytest.mark.parametrize("name", DRAWN)
def test_golden_files_are_the_drawn_bytes(name: str) -> None:
    assert (GOLDEN / name).read_bytes() == DRAWN[name]


@pytest.mark.parametrize("name", OURS)
def test_the_encoder_makes_exactly_the_golden_bytes(name: str) -> None:
    assert OURS[name]().hex(" ") == (GOLDEN / name).read_bytes().hex(" ")


@pytest.mark.parametrize("name", CONTENT)
def test_golden_files_are_read_as_what_they_say(name: str) -> None:
    assert decode((GOLDEN / name).read_bytes()) == CONTENT[name]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("name", [name for name in CONTENT if not name.startswith("control")])
def test_kafka_clients_read_the_golden_files_as_we_do(name: str, client: Client) -> None:
    assert client.decode((GOLDEN / name).read_bytes()) == [seen(record) for record in CONTENT[name]]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "one-record.bin",
            {"base_offset": 42, "last_offset": 42, "count": 1, "size_bytes": 71, "producer_id": -1},
        ),
        (
            "many-records.bin",
            {"base_offset": 7, "last_offset": 10, "max_timestamp": T + 300, "base_timestamp": T},
        ),
        ("producer.bin", {"producer_id": 4096, "producer_epoch": 3, "base_sequence": 10}),
        ("append-time.bin", {"timestamp_type": 1, "max_timestamp": T + 1000, "base_timestamp": T}),
        ("control-commit.bin", {"is_control": True, "is_transactional": True, "leader_epoch": 5}),
        ("control-only.bin", {"is_control": True, "is_transactional": False, "attributes": 0x20}),
        ("compacted.bin", {"base_offset": 20, "last_offset": 25, "count": 3}),
        ("gzip-aiokafka.bin", {"compression": 1, "count": 300, "leader_epoch": -1}),
        ("snappy-kafka-python.bin", {"compression": 2, "last_offset": 299}),
        ("lz4-aiokafka.bin", {"compression": 3}),
        ("zstd-kafka-python.bin", {"compression": 4}),
    ],
)
def test_headers_of_golden_files_say(name: str, facts: dict[str, Any]) -> None:
    (header,) = scan((GOLDEN / name).read_bytes())
    assert {field: getattr(header, field) for field in facts} == facts


def test_a_control_record_is_known_as_one_to_kafka_clients() -> None:
    (commit,) = kafka_python.DefaultRecordBatch(COMMIT)
    (abort,) = kafka_python.DefaultRecordBatch(ABORT)
    assert (commit.version, commit.commit, abort.version, abort.abort) == (0, True, 0, True)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    ("data", "kind", "epoch"),
    [
        (COMMIT, packaged.COMMIT_MARKER, 7),
        (ABORT, packaged.ABORT_MARKER, 7),
        (CONTROL_ONLY, packaged.OTHER_MARKER, 0),
        (COMMIT[:61] + b"\x20\0\0\0\x06" + COMMIT[66:], packaged.OTHER_MARKER, 0),  # a key of three bytes
        (COMMIT[:69] + b"\2" + COMMIT[70:], packaged.OTHER_MARKER, 0),  # neither of the two
        (COMMIT[:61] + b"\xff" * 17, packaged.OTHER_MARKER, 0),
        (ONE_RECORD, 0, 0),
    ],
)
def test_the_row_of_a_marker_says_what_it_means(kernel: Any, data: bytes, kind: int, epoch: int) -> None:
    (count, _, _, special), rows = scan_rows(kernel, memoryview(data), 0)
    assert (count, special) == (1, kind > 0)
    assert (rows[0, MARKER] & packaged.MARKER_MASK, rows[0, MARKER] >> packaged.MARKER_SHIFT) == (kind, epoch)
    assert (rows[0, COUNT] == 0) == (kind > 0)
    assert rows[0, SIZE] == len(data)


def test_every_golden_file_is_tested() -> None:
    assert {path.name for path in GOLDEN.glob("*.bin")} == set(CONTENT)
