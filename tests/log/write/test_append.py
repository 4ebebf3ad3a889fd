"""Every form of append stores the right records and returns their offsets, and a rejected one writes nothing."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import Log, LogConfig, Record
from sawlog.batch.build import encode
from sawlog.batch.header import scan
from sawlog.batch.read import decode
from sawlog.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidRecordType,
    LogClosed,
    OffsetMismatch,
    RecordTooLarge,
    SawlogError,
)
from sawlog.log import ingest

from ...looping import for_each
from ..places import Place, fill, named, now_ms, values

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


def fields(record: Record) -> tuple[Any, ...]:
    return record.offset, record.value, record.key, record.headers, record.timestamp


# --- append


def test_append_stores_all_fields(place: Place) -> None:
    log = place.open()
    assert log.append(b"value", b"key", [("h", b"1"), ("h", None)], 1234) == 0
    assert log.append(None, key=None, headers={"a": b""}, timestamp=0) == 1
    assert [fields(record) for record in log] == [
        (0, b"value", b"key", (("h", b"1"), ("h", None)), 1234),
        (1, None, None, (("a", b""),), 0),
    ]


def test_append_takes_any_bytes(place: Place) -> None:
    log = place.open()
    for value in (b"bytes", bytearray(b"bytearray"), memoryview(b"xviewx")[1:5]):
        log.append(value)
    assert values(log) == [b"bytes", b"bytearray", b"view"]


def test_record_without_a_timestamp_gets_the_time_of_its_append(place: Place) -> None:
    log = place.open()
    before = now_ms()
    log.append(b"x")
    log.append_many([b"y", Record(b"z")])
    assert all(before <= record.timestamp <= now_ms() for record in log)
    assert {record.timestamp_type for record in log} == {0}


def test_datetime_is_stored_to_the_millisecond(place: Place) -> None:
    log = place.open()
    for moment, expected in [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2024, 2, 29, 12, 0, 0, 999_000, tzinfo=UTC), 1709208000999),
        (datetime(2024, 2, 29, 14, 0, tzinfo=timezone(timedelta(hours=2))), 1709208000000),
    ]:
        offset = log.append(b"x", timestamp=moment)
        assert log.read(offset).timestamp == expected
        assert log.offset_at(moment) <= offset


@given(ms=st.integers(0, 253402300799999))
def test_datetime_loses_no_millisecond(ms: int) -> None:
    """Floating-point seconds would, for some."""
    log = Log.in_memory(LogConfig(durability="os"))
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    log.append(b"x", timestamp=moment)
    assert log.read(0).timestamp == ms


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, InvalidRecordType),
        ({"value": 5}, InvalidRecordType),
        ({"value": b"", "key": "text"}, InvalidRecordType),
        ({"value": b"", "headers": [("a", "text")]}, InvalidRecordType),
        ({"value": b"", "headers": [(b"a", b"")]}, InvalidRecordType),
        ({"value": b"", "headers": 5}, InvalidRecordType),
        ({"value": b"", "headers": ["ab"]}, InvalidRecordType),
        ({"value": b"", "timestamp": "now"}, InvalidRecordType),
        ({"value": b"", "timestamp": 1.5}, InvalidRecordType),
        ({"value": b"", "timestamp": True}, InvalidRecordType),
        ({"value": b"", "timestamp": -1}, InvalidRecord),
        ({"value": b"", "timestamp": 2**63}, InvalidRecord),
        ({"value": b"", "timestamp": datetime(1969, 12, 31, tzinfo=UTC)}, InvalidRecord),
        ({"value": b"x" * 2000}, RecordTooLarge),
    ],
)
def test_bad_record_is_refused_by_every_append_and_nothing_is_written(
    place: Place, arguments: dict[str, Any], error: type[Exception]
) -> None:
    log = place.open(segment_bytes=1500)
    log.append(b"before")
    before = place.files()
    writer = log.writer()
    # a datetime is for the calls that take one record; the others take milliseconds
    one_by_one = isinstance(arguments.get("timestamp"), datetime)
    attempts = [lambda: log.append(**arguments), lambda: asyncio.run(log.append_async(**arguments))]
    if not one_by_one:
        attempts += [lambda: log.append_many([b"good", arguments]), lambda: writer.append(**arguments)]
    for attempt in attempts:
        with pytest.raises(error):
            attempt()
        with pytest.raises(SawlogError):
            attempt()
    writer.close()
    assert place.files() == before
    assert log.append(b"after") == 1


def test_expected_offset_that_is_right_changes_nothing(place: Place) -> None:
    log = place.open(initial_offset=5)
    assert log.append(b"a", expect_offset=5) == 5
    assert log.append_many([b"b", b"c"], expect_offset=6) == range(6, 8)
    assert log.append_arrow(pa.table({"value": [b"d"]}), expect_offset=8) == range(8, 9)
    assert log.append_stream([b"e"], expect_offset=9) == 9
    assert values(log) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("wrong", [0, 2, 4, 10**6, -1])
def test_expected_offset_that_is_wrong_writes_not_a_byte(place: Place, wrong: int, full: bool) -> None:
    """Not even a new segment where the next append would have started one."""
    log = place.open(segment_bytes=3 * len(encode([b"0..."])) + 4 if full else 10_000)
    fill(log, 3, size=4)
    before = place.files()
    for attempt in (
        lambda: log.append(b"x", expect_offset=wrong),
        lambda: log.append_many([b"x"], expect_offset=wrong),
        lambda: log.append_arrow(pa.table({"value": [b"x"]}), expect_offset=wrong),
        lambda: log.append_stream([b"x"], expect_offset=wrong),
    ):
        with pytest.raises(OffsetMismatch) as caught:
            attempt()
        assert (caught.value.expected, caught.value.actual) == (wrong, 3)
        assert place.files() == before
    assert log.append(b"x", expect_offset=3) == 3


def test_stream_with_a_wrong_expected_offset_does_not_start_a_segment(place: Place) -> None:
    log = place.open(segment_bytes=300, segment_overflow_bytes=100)
    log.append_stream([b"x" * 250])
    assert log.size_bytes >= 300
    before = place.files()
    with pytest.raises(OffsetMismatch):
        log.append_stream([b"x"], expect_offset=0)
    assert place.files() == before


def test_one_of_many_who_expect_the_same_offset_wins(place: Place) -> None:
    """Optimistic concurrency: all threads read, then append at the offset that they saw."""
    log = place.open()
    won: list[tuple[int, int]] = []

    def contend(who: int) -> None:
        for _ in range(30):
            expected = log.next_offset
            try:
                won.append((log.append(b"%d" % who, expect_offset=expected), who))
            except OffsetMismatch as error:
                assert error.expected == expected
                assert error.actual > expected

    threads = [threading.Thread(target=contend, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offset for offset, _ in won) == list(range(len(log)))
    assert values(log) == [b"%d" % who for _, who in sorted(won)]


# --- append_many


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_append_many_is_one_batch(place: Place, compression: str) -> None:
    log = place.open(compression=compression, initial_offset=10)
    records = [
        b"value",
        None,
        bytearray(b"bytearray"),
        (b"tuple", b"key", [("h", b"v")], 5),
        (b"short tuple",),
        {"value": b"dict", "timestamp": 7},
        Record(b"record", b"k", (("a", None),), 9, offset=99),
    ]
    assert log.append_many(records) == range(10, 17)
    assert [batch.count for batch in place.batches(10)] == [7]
    stored = list(log)
    assert values(stored) == [b"value", None, b"bytearray", b"tuple", b"short tuple", b"dict", b"record"]
    assert [record.offset for record in stored] == list(range(10, 17))
    assert fields(stored[3])[1:] == (b"tuple", b"key", (("h", b"v"),), 5)
    assert stored[5].timestamp == 7
    assert fields(stored[6])[1:] == (b"record", b"k", (("a", None),), 9)


def test_append_many_takes_a_generator(place: Place) -> None:
    log = place.open()
    assert log.append_many(b"%d" % i for i in range(1000)) == range(1000)
    assert values(log) == [b"%d" % i for i in range(1000)]


def test_append_many_of_nothing_is_refused(place: Place) -> None:
    log = place.open()
    for nothing in ([], (), iter(())):
        with pytest.raises(InvalidRecord):
            log.append_many(nothing)
    assert len(log) == 0


def test_append_many_whose_source_raises_writes_nothing(place: Place) -> None:
    log = place.open()
    log.append(b"before")
    before = place.files()

    def source() -> Any:
        yield b"good"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        log.append_many(source())
    assert place.files() == before
    assert log.append(b"after") == 1


@pytest.mark.parametrize("bad", [5, "text", object()])
def test_append_many_of_what_is_not_records_is_refused(place: Place, bad: Any) -> None:
    log = place.open()
    with pytest.raises(InvalidRecordType):
        log.append_many(bad)
    with pytest.raises(InvalidRecordType):
        log.append_many([b"good", bad])
    assert len(log) == 0


def test_scanned_records_can_be_appended_again(place: Place) -> None:
    log = place.open()
    log.append(b"v", b"k", [("h", b"x")], 77)
    log.append_many(log.scan())
    assert fields(log[0])[1:] == fields(log[1])[1:]


# --- append_arrow


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_append_arrow_stores_each_row(place: Place, compression: str) -> None:
    table = pa.table(
        {
            "key": pa.array([b"a", None, b"c"], pa.binary()),
            "value": pa.array([b"1", b"2", None], pa.binary()),
            "timestamp": pa.array([5, 6, None], pa.timestamp("ms", tz="UTC")),
            "headers": pa.array(
                [[("h", b"x")], [], [("i", None)]],
                pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
            ),
        }
    )
    log = place.open(compression=compression)
    before = now_ms()
    assert log.append_arrow(table) == range(3)
    assert log.append_arrow(table.to_batches()[0]) == range(3, 6)
    stored = list(log)
    assert [fields(record)[:4] for record in stored[:3]] == [
        (0, b"1", b"a", (("h", b"x"),)),
        (1, b"2", None, ()),
        (2, None, b"c", (("i", None),)),
    ]
    assert [record.timestamp for record in stored[:2]] == [5, 6]
    assert stored[2].timestamp >= before
    assert [fields(a)[1:4] for a in stored[:3]] == [fields(b)[1:4] for b in stored[3:]]


def test_append_arrow_of_a_large_table_spans_batches_and_segments(place: Place) -> None:
    log = place.open(segment_bytes=50_000)
    payload = [b"%06d" % i * 10 for i in range(5000)]
    assert log.append_arrow(pa.table({"value": payload})) == range(5000)
    assert len(log.segments) > 5
    assert all(segment.size_bytes <= 50_000 for segment in log.segments)
    assert values(log) == payload


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"value": pa.array([], pa.binary())}),
        pa.table({"key": [b"a"]}),
        pa.table({"value": [1, 2]}),
        pa.table({"value": [b"a"], "timestamp": [-5]}),
        pa.table({"value": [b"small", b"x" * 5000]}),
    ],
    ids=["empty", "no value", "numbers", "bad time", "too large"],
)
def test_bad_table_is_refused_and_nothing_is_written(place: Place, table: pa.Table) -> None:
    log = place.open(segment_bytes=2000)
    log.append(b"before")
    before = place.files()
    with pytest.raises(InvalidRecord):
        log.append_arrow(table)
    assert place.files() == before
    assert log.append(b"after") == 1


def test_table_that_turns_out_bad_late_is_taken_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table is placed in groups; if a later one fails, the earlier ones go."""
    monkeypatch.setattr(ingest, "_GROUP_BYTES", 1000)
    log = place.open(segment_bytes=2000)
    fill(log, 3)
    rows = [b"%d" % i * 20 for i in range(500)] + [b"x" * 5000]
    with pytest.raises(RecordTooLarge):
        log.append_arrow(pa.table({"value": rows}))
    assert (log.next_offset, len(list(log))) == (3, 3)
    assert log.verify()
    log.close()
    assert values(place.open()) == [b"0" + b"." * 9, b"1" + b"." * 9, b"2" + b"." * 9]


# --- append_batches


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_encoded_batches_are_placed_as_they_are(place: Place, compression: str) -> None:
    one = encode([(b"a" * 100, b"k", [("h", b"v")], 5), (b"b" * 100, None, (), 3)], compression=compression)
    two = encode([(b"c" * 100, None, (), 9)], compression=compression, base_offset=777)
    log = place.open(initial_offset=50)
    log.append(b"before")
    assert log.append_batches(one + two) == range(51, 54)
    assert log.append_batches(bytearray(one)) == range(54, 56)
    assert log.append_batches(memoryview(two)) == range(56, 57)
    assert [record.value[:1] for record in log.scan(51) if record.value] == [b"a", b"b", b"c", b"a", b"b", b"c"]
    raw = log.fetch(51, 10**6).raw
    sizes = (len(one), len(two), len(one), len(two))
    position = 0
    for source, size, base in zip((one, two, one, two), sizes, (51, 53, 54, 56), strict=True):
        placed = raw[position : position + size]
        assert int.from_bytes(placed[:8], "big") == base
        assert placed[8:12] + placed[16:] == source[8:12] + source[16:]
        position += size


def test_callers_buffer_is_not_changed(place: Place) -> None:
    log = place.open()
    log.append(b"before")
    raw = bytearray(encode([b"x"]) * 2)
    copy = bytes(raw)
    log.append_batches(raw)
    assert raw == copy


def test_batches_of_one_call_are_spread_over_segments(place: Place) -> None:
    batch = encode([(b"x" * 50, None, (), 1000)])
    log = place.open(segment_bytes=3 * len(batch))
    assert log.append_batches(batch * 10) == range(10)
    assert [s.base_offset for s in log.segments] == [0, 3, 6, 9]
    assert values(log) == [b"x" * 50] * 10


def test_fetched_batches_go_from_one_log_to_another(place: Place) -> None:
    log = place.open(compression="zstd")
    for i in range(20):
        log.append_many([b"%d" % (i * 10 + j) for j in range(10)])
    other = Log.in_memory(LogConfig(durability="os", initial_offset=1000))
    assert other.append_batches(log.fetch(0, 10**6).raw) == range(1000, 1200)
    assert values(other) == values(log)


GOOD = encode([(b"good" * 10, b"key", [("h", b"v")], 1000)] * 3)


@for_each("position", range(8, len(GOOD)))
def test_batch_with_any_byte_flipped_is_refused(position: int) -> None:
    """Except in the twelve bytes that are rewritten when a batch is placed."""
    if 12 <= position < 16:
        return
    log = Log.in_memory(LogConfig(durability="os"))
    bad = bytearray(GOOD)
    bad[position] ^= 0x10
    with pytest.raises(CorruptBatch):
        log.append_batches(bad)
    with pytest.raises(CorruptBatch):
        log.append_batches(GOOD + bad)
    assert (len(log), log.size_bytes) == (0, 0)


@for_each("size", range(len(GOOD)))
def test_batch_cut_anywhere_is_refused(size: int) -> None:
    log = Log.in_memory(LogConfig(durability="os"))
    with pytest.raises(CorruptBatch if size else InvalidRecord):
        log.append_batches(GOOD[:size])
    if size:
        with pytest.raises(CorruptBatch):
            log.append_batches(GOOD + GOOD[:size])
    assert (len(log), log.size_bytes) == (0, 0)


def test_batch_larger_than_a_segment_is_refused(place: Place) -> None:
    log = place.open(segment_bytes=500)
    small, large = encode([b"x"]), encode([b"x" * 1000])
    with pytest.raises(RecordTooLarge):
        log.append_batches(small + large)
    assert len(log) == 0


def test_compacted_and_control_batches_are_kept(place: Place) -> None:
    """Batches written by other Kafka tools are stored and served unchanged; offsets removed by compaction stay gaps."""
    from pathlib import Path

    golden = Path(__file__).resolve().parents[2] / "golden"
    log = place.open()
    for name in ("compacted.bin", "control-commit.bin", "append-time.bin", "padded.bin"):
        raw = (golden / name).read_bytes()
        batch = scan(raw)[0]
        placed = log.append_batches(raw)
        assert len(placed) == batch.last_offset - batch.base_offset + 1
        expected = [record.value for record in decode(raw)]
        assert values(log.scan(placed.start)) == expected
    assert log.verify()
    log.close()
    assert place.open().verify()


# --- placing in general


def test_log_clock_replaces_the_callers_time_if_so_configured(place: Place) -> None:
    log = place.open(timestamp_type="append")
    before = now_ms()
    log.append(b"a", timestamp=5)
    log.append_many([(b"b", None, (), 6), (b"c", None, (), 7)])
    log.append_batches(encode([(b"d", None, (), 8)]))
    log.append_stream([b"e"], timestamp=9)
    log.append_arrow(pa.table({"value": [b"f"], "timestamp": [10]}))
    with log.writer() as writer:
        writer.append(b"g", timestamp=11)
    records = list(log)
    assert values(records) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    assert {record.timestamp_type for record in records} == {1}
    assert all(before <= record.timestamp <= now_ms() for record in records)
    assert records[1].timestamp == records[2].timestamp
    assert [record for offset in range(7) for record in [log.read(offset)]] == records
    assert log.verify()


def test_record_larger_than_what_is_left_goes_to_the_next_segment(place: Place) -> None:
    log = place.open(segment_bytes=1000)
    log.append(b"x" * 600)
    log.append(b"x" * 600)
    assert [s.base_offset for s in log.segments] == [0, 1]


@pytest.mark.parametrize("extra", [0, 1])
def test_record_may_fill_a_segment_and_no_more(place: Place, extra: int) -> None:
    size = len(encode([b"x" * 500]))
    log = place.open(segment_bytes=size)
    if extra:
        with pytest.raises(RecordTooLarge):
            log.append(b"x" * 501)
        assert len(log) == 0
    else:
        assert [log.append(b"x" * 500) for _ in range(3)] == [0, 1, 2]
        assert [s.size_bytes for s in log.segments] == [size] * 3


def test_segment_is_sealed_when_its_first_record_is_old(place: Place) -> None:
    log = place.open(segment_age_ms=1000)
    for stamp in (10_000, 10_500, 11_000, 11_001, 12_001, 12_002, 5_000):
        log.append(b"x", timestamp=stamp)
    assert [s.base_offset for s in log.segments] == [0, 3, 5]
    log.close()
    log = place.open(segment_age_ms=1000)
    log.append(b"x", timestamp=12_003)
    assert [s.base_offset for s in log.segments] == [0, 3, 5]
    log.append(b"x", timestamp=13_003)
    assert [s.base_offset for s in log.segments] == [0, 3, 5, 8]


def test_appends_from_many_threads_all_get_their_own_offsets(place: Place) -> None:
    log = place.open(segment_bytes=5000)
    given: dict[int, bytes] = {}

    def work(who: int) -> None:
        chance = random.Random(who)
        for i in range(40):
            value = b"%d-%d" % (who, i)
            if chance.random() < 0.5:
                given[log.append(value)] = value
            else:
                for offset in log.append_many([value, value]):
                    given[offset] = value

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [given[record.offset] for record in log] == values(log)
    assert sorted(given) == list(range(len(log)))
    assert log.verify()


def test_closed_log_refuses_every_call(place: Place) -> None:
    log = place.open()
    log.append(b"x")
    writer = log.writer()
    log.close()
    table = pa.table({"value": [b"x"]})

    async def chunks() -> Any:
        yield b"x"

    for call in (
        lambda: log.append(b"x"),
        lambda: log.append_many([b"x"]),
        lambda: log.append_arrow(table),
        lambda: log.append_batches(encode([b"x"])),
        lambda: log.append_stream([b"x"]),
        lambda: asyncio.run(log.append_async(b"x")),
        lambda: asyncio.run(log.append_stream_async(chunks())),
        lambda: log.writer(),
        lambda: writer.append(b"x"),
        lambda: log.read(0),
        lambda: log[0],
        lambda: log[-1],
        lambda: log[0:1],
        lambda: log.scan(),
        lambda: iter(log),
        lambda: log.scan_arrow(),
        lambda: log.fetch(0),
        lambda: log.follow(),
        lambda: log.offset_at(0),
        lambda: log.truncate(0),
        lambda: log.trim(0),
        lambda: log.remove_expired(0),
        lambda: log.apply_retention(),
        lambda: log.sync(),
        lambda: log.seal(),
        lambda: log.verify(),
        lambda: log.remove(),
    ):
        with pytest.raises(LogClosed):
            call()
    assert not log._is_writable
    assert "closed" in repr(log)
    assert values(place.open()) == [b"x"]


def test_bytes_on_disk_are_those_that_other_clients_read(place: Place) -> None:
    """Kafka's own format: aiokafka takes the segment file apart."""
    from aiokafka.record.memory_records import MemoryRecords

    for compression in COMPRESSIONS:
        log = place.open(compression=compression)
        log.append(b"one", b"k", [("h", b"v")], 1000)
        log.append_many([(b"%d" % i * 50, None, (), 2000 + i) for i in range(20)])
        log.append_stream([b"str", b"eam"], key=b"s", headers=[("x", None)], timestamp=3000)
        expected = [(r.offset, r.timestamp, r.key, r.value, [(k, v) for k, v in r.headers]) for r in log]
        log.close()
        found = []
        reader = MemoryRecords(place.files()[named(0)])
        while reader.has_next():
            batch = reader.next_batch()
            assert batch.validate_crc()
            found += [(r.offset, r.timestamp, r.key, r.value, [(k, v) for k, v in r.headers]) for r in batch]
        assert found == expected
        place.open().remove()


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_table_whose_rows_fit_one_by_one_is_never_refused(place: Place, first: int) -> None:
    """However they would share a batch."""
    log = place.open(segment_bytes=200)
    rows = [b"x" * first, b"y" * 110, b"z" * (120 - first), b"w" * 110]
    assert log.append_arrow(pa.table({"value": rows})) == range(4)
    assert values(log) == rows
    assert all(segment.size_bytes <= 200 for segment in log.segments)
