"""Decoding returns the encoded records: all, some, one at a time, with and without gaps.

A plain Python list is the judge. What holds for one kernel has to hold for the other (`BOTH`).
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import read
from sawlog.batch.build import Encoder, EncoderOptions, encode
from sawlog.batch.compression import CODECS
from sawlog.batch.header import crc_matches, new_rows, scan
from sawlog.batch.kernel import Record
from sawlog.batch.read import decode

from .strategies import headers, payloads, record_lists, share, small, timestamps
from .strategies import records as single_records
from .twins import BOTH, FOR_EVER, plain
from .twins import scan as scan_rows
from .wire import APPEND_TIME, Header, batch, crc32c

T = 1_700_000_000_000


def expected(records: list[tuple[Any, ...]], base_offset: int = 0) -> list[Record]:
    return [
        Record(value, key, tuple(headers), timestamp, base_offset + i)
        for i, (value, key, headers, timestamp) in enumerate(records)
    ]


# --- a batch and back ---------------------------------------------------------------------------------------


@given(records=record_lists, codec=st.sampled_from(list(CODECS)), base=st.integers(0, 2**61))
def test_records_come_back_as_they_went_in(records: list[tuple[Any, ...]], codec: str, base: int) -> None:
    assert decode(encode(records, compression=codec, base_offset=base)) == expected(records, base)


@share(0.5)
@given(records=record_lists)
def test_every_way_to_say_a_record_makes_the_same_batch(records: list[tuple[Any, ...]]) -> None:
    as_tuples = encode(records)
    names = ("value", "key", "headers", "timestamp")
    assert encode([dict(zip(names, record, strict=True)) for record in records]) == as_tuples
    assert encode(expected(records, 99)) == as_tuples
    assert encode(iter(records)) == as_tuples
    assert encode((v and bytearray(v), k and memoryview(k), list(h), t) for v, k, h, t in records) == as_tuples


@given(record=single_records)
def test_one_record_is_a_batch_of_one(record: tuple[Any, ...]) -> None:
    assert bytes(Encoder().one(*record).data) == encode([record])


@given(value=st.binary(max_size=30))
def test_bare_values_get_the_time_of_the_call(value: bytes) -> None:
    first, second, third = decode(encode([value, bytearray(value), None]))
    assert (first.value, second.value, third.value) == (value, value, None)
    assert first.timestamp == second.timestamp == third.timestamp > T


@share(0.5)
@given(lists=st.lists(record_lists, min_size=1, max_size=4), codec=st.sampled_from(list(CODECS)))
def test_an_encoder_remembers_nothing_of_earlier_batches(lists: list[list[Any]], codec: str) -> None:
    encoder = Encoder(EncoderOptions(CODECS[codec]))
    for records in lists:
        assert bytes(encoder.many(records).data) == encode(records, compression=codec)


@given(headers=headers, names=st.dictionaries(st.text(max_size=5), st.none() | st.binary(max_size=5), max_size=3))
def test_headers_may_be_pairs_a_dict_or_an_iterator(headers: Any, names: dict[str, bytes | None]) -> None:
    def stored(headers: Any) -> Any:
        return decode(encode([(b"", None, headers, T)]))[0].headers

    assert stored(headers) == stored(list(headers)) == stored(iter(headers)) == headers
    assert stored(names) == tuple(names.items())


def test_header_keys_that_are_not_utf_8_come_back_byte_for_byte() -> None:
    strange = batch([(0, 0, None, b"", [(b"\xff\xfe", b"1"), (b"caf\xe9", None)])], Header(base_timestamp=T))
    (record,) = decode(strange)
    assert record.headers == (("\udcff\udcfe", b"1"), ("caf\udce9", None))
    assert encode([record])[61:] == strange[61:]


def test_a_batch_grows_far_beyond_the_encoders_first_buffer() -> None:
    records = [(b"%d" % i * 1000, None, (), T) for i in range(2000)]
    encoder = Encoder()
    large = bytes(encoder.many(records).data)
    assert [record.value for record in decode(large)] == [record[0] for record in records]
    assert bytes(encoder.many([(b"small", None, (), T)]).data) == encode([(b"small", None, (), T)])


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    for codec in CODECS:
        (header,) = scan(encode([(b"!", None, (), T)], compression=codec))
        assert header.compression == 0


# --- parts of batches ---------------------------------------------------------------------------------------


#: One such record makes a batch too large for `check_small`.
pieces = st.none() | small | st.sampled_from([b"x" * 64, b"y" * 600])


@st.composite
def logs(draw: st.DrawFn, compacted: bool = True) -> tuple[bytes, list[tuple[Any, ...]]]:
    """Draw consecutive batches, with gaps inside, after and between them, and the fields of their records."""
    data, found, offset = b"", [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 4))):
        steps = draw(st.lists(st.integers(1, 3 if compacted else 1), min_size=0 if compacted else 1, max_size=8))
        deltas = [sum(steps[: i + 1]) - 1 for i in range(len(steps))]
        appended = draw(st.booleans())
        contents = draw(st.lists(st.tuples(pieces, pieces), min_size=len(deltas), max_size=len(deltas)))
        times = draw(st.lists(st.integers(-50, 50), min_size=len(deltas), max_size=len(deltas)))
        last = (deltas[-1] if deltas else 0) + (draw(st.integers(0, 2)) if compacted else 0)
        data += batch(
            [(d, t, k, v, ()) for d, t, (k, v) in zip(deltas, times, contents, strict=True)],
            Header(
                base_offset=offset,
                attributes=APPEND_TIME if appended else 0,
                last_delta=last,
                base_timestamp=T,
                max_timestamp=T + 60,
            ),
        )
        for d, t, (k, v) in zip(deltas, times, contents, strict=True):
            found.append((v, k, (), T + 60 if appended else T + t, offset + d, int(appended)))
        offset += last + 1 + (draw(st.integers(0, 3)) if compacted else 0)
    return data, found


@share(0.5)
@given(log=logs(), start=st.integers(-1, 60), end=st.integers(-1, 60))
def test_a_range_of_offsets_gives_the_records_in_it(log: Any, start: int, end: int) -> None:
    data, records = log
    assert [plain(r) for r in decode(data)] == records
    assert [plain(r) for r in decode(data, start, end)] == [r for r in records if start <= r[4] < end]


@share(0.25)
@given(log=logs())
@pytest.mark.parametrize("kernel", BOTH)
def test_record_at_gives_the_first_record_at_or_above_each_offset(kernel: Any, log: Any) -> None:
    data, records = log
    view = memoryview(data)
    _, rows = scan_rows(kernel, view)
    for row in rows.tolist():
        here = [r for r in records if row[2] <= r[4] <= row[3]]
        for offset in range(row[2] - 1, row[3] + 2):
            found = kernel.record_at(view, row[12], row[13], row[4], row[2], row[3], row[5], row[6], row[7], offset)
            assert plain(found) == next((r for r in here if r[4] >= offset), None)


@share(0.25)
@given(log=logs(), step=st.integers(1, 4))
@pytest.mark.parametrize("kernel", BOTH)
def test_record_at_may_start_from_a_landmark(kernel: Any, log: Any, step: int) -> None:
    data, records = log
    view = memoryview(data)
    for row in scan_rows(kernel, view)[1].tolist():
        body, end, count, base, last = row[12], row[13], row[4], row[2], row[3]
        marks = np.full(count // step + 1, -1, np.int32)
        assert kernel.landmarks(view, body, end, count, step, memoryview(marks)) is True
        starts = marks[: (count + step - 1) // step].tolist()
        here = [r for r in records if base <= r[4] <= last]
        for number, start in enumerate(starts):
            first = number * step
            for wanted in here[first:]:
                found = kernel.record_at(view, start, end, count, base, last, *row[5:8], wanted[4], first)
                assert plain(found) == wanted


@share(0.25)
@given(log=logs(), timestamp=st.integers(T - 60, T + 70), start=st.integers(0, 40))
@pytest.mark.parametrize("kernel", BOTH)
def test_record_after_gives_the_first_record_not_older(kernel: Any, log: Any, timestamp: int, start: int) -> None:
    data, records = log
    view = memoryview(data)
    _, rows = scan_rows(kernel, view)
    for row in rows[(rows[:, 5] & APPEND_TIME) == 0].tolist():
        here = [r for r in records if max(start, row[2]) <= r[4] <= row[3] and r[3] >= timestamp]
        found = kernel.record_after(view, row[12], row[13], row[4], row[2], row[6], start, timestamp)
        assert found == (here[0][4] if here else -1)


@share(0.25)
@given(log=logs(), offset=st.integers(-1, 60))
@pytest.mark.parametrize("kernel", BOTH)
def test_find_batch_gives_the_first_batch_that_reaches_an_offset(kernel: Any, log: Any, offset: int) -> None:
    data, _ = log
    headers = scan(data)
    wanted = next((h.position for h in headers if h.last_offset >= offset), -1)
    assert kernel.find_batch(memoryview(data), 0, len(data), offset) == wanted


@share(0.25)
@given(log=logs(), cut=st.integers(1, 60))
@pytest.mark.parametrize("kernel", BOTH)
def test_find_batch_says_where_something_is_no_whole_batch(kernel: Any, log: Any, cut: int) -> None:
    data, _ = log
    last = scan(data)[-1]
    assert kernel.find_batch(memoryview(data), 0, len(data) - cut, last.last_offset) == -2 - last.position


@share(0.25)
@given(log=logs(compacted=False), gap=st.integers(-1, 2))
@pytest.mark.parametrize("kernel", BOTH)
def test_find_batch_never_goes_past_offsets_that_cannot_be(kernel: Any, log: Any, gap: int) -> None:
    data, records = log
    following = records[-1][4] + 1
    last = batch([(0, 0, None, b"", ())], Header(base_offset=following + gap))
    both = memoryview(data + last)
    broken, found = -2 - len(data), len(data)
    first, wanted = records[0][4], following + 2
    assert kernel.find_batch(both, 0, len(both), following, first, True) == (broken if gap else found)
    assert kernel.find_batch(both, 0, len(both), following, 0, False) == (broken if gap < 0 else found)
    assert kernel.find_batch(both, 0, len(both), wanted) == (broken if gap < 0 else found if gap == 2 else -1)
    assert kernel.find_batch(both, 0, len(both), 0, first + 1) == -2


@share(0.25)
@given(log=logs(), start=st.integers(-1, 40), end=st.integers(-1, 40))
@pytest.mark.parametrize("kernel", BOTH)
def test_a_cursor_gives_the_same_records_one_by_one(kernel: Any, log: Any, start: int, end: int) -> None:
    data, records = log
    view = memoryview(data)
    cursor = kernel.RecordCursor(view, memoryview(scan_rows(kernel, view)[1]), start, end)
    expected = [r for r in records if start <= r[4] < end]
    assert [plain(r) for r in cursor] == expected
    assert (cursor.bad, next(cursor, None)) == (-1, None)
    assert cursor.next_offset == (expected[-1][4] + 1 if expected else start)


@share(0.25)
@given(log=logs(), limit=st.sampled_from([0, 61, 100, 512, 2**40]), bit=st.integers(0, 2**20), data=st.data())
@pytest.mark.parametrize("kernel", BOTH)
def test_checksums_of_small_batches_are_the_right_ones(
    kernel: Any, log: Any, limit: int, bit: int, data: st.DataObject
) -> None:
    damaged = bytearray(log[0])
    _, rows = scan_rows(kernel, memoryview(log[0]))
    if data.draw(st.booleans()):
        bit %= len(damaged) * 8
        damaged[bit >> 3] ^= 1 << (bit & 7)
    view = memoryview(damaged)
    first = data.draw(st.integers(0, len(rows)))
    stop, wrong = len(rows), False
    for i in range(first, len(rows)):
        position, size, crc = rows[i, [0, 1, 11]].tolist()
        wrong = size <= limit and crc32c(bytes(view[position + 21 : position + size])) != crc
        if wrong or size > limit:
            stop = i
            break
    assert kernel.check_small(view, memoryview(rows), first, limit) == (stop, wrong)
    bad = [i for i, row in enumerate(rows.tolist()) if not crc_matches(view, row[0], row[1], row[11])]
    assert read.first_bad_crc(view, rows) == (bad[0] if bad else -1)


# --- scanning headers ---------------------------------------------------------------------------------------


@share(0.25)
@given(log=logs(), room=st.integers(1, 5), soft_end=st.integers(0, 800), end=st.integers(0, 800))
@pytest.mark.parametrize("kernel", BOTH)
def test_a_scan_goes_as_far_as_it_is_told(kernel: Any, log: Any, room: int, soft_end: int, end: int) -> None:
    view = memoryview(log[0])
    headers = scan(log[0])
    end = min(end, len(view))
    rows = np.full((room, 16), -7, np.int64)
    count, position, why, _ = kernel.scan_batches(view, 0, soft_end, end, 0, memoryview(rows))
    whole = [h for h in headers if h.position + h.size_bytes <= end and h.position < soft_end][:room]
    assert rows[:count, 0].tolist() == [h.position for h in whole]
    assert position == sum(h.size_bytes for h in whole)
    assert (rows[count:] == -7).all()
    if count == room or (position < end and position >= soft_end):
        assert why == kernel.SCAN_MORE
    else:
        assert why == (kernel.SCAN_END if position == end else kernel.SCAN_SHORT)


@share(0.25)
@given(log=logs(), least=st.integers(0, 40))
@pytest.mark.parametrize("kernel", BOTH)
def test_a_scan_refuses_offsets_that_go_back(kernel: Any, log: Any, least: int) -> None:
    first = scan(log[0])[0]
    (count, position, why, _), _ = scan_rows(kernel, memoryview(log[0]), least)
    if first.base_offset < least:
        assert (count, position, why) == (0, 0, kernel.SCAN_BAD)
    else:
        assert why == kernel.SCAN_END
    twice = log[0] + log[0]
    (_, position, why, _), _ = scan_rows(kernel, memoryview(twice))
    assert (position, why) == (len(log[0]), kernel.SCAN_BAD)


@share(0.25)
@given(log=logs(compacted=False), gap=st.integers(-2, 2), least=st.integers(-1, 4))
@pytest.mark.parametrize("kernel", BOTH)
def test_a_dense_scan_refuses_every_gap(kernel: Any, log: Any, gap: int, least: int) -> None:
    data, records = log
    base, following = records[0][4], records[-1][4] + 1
    both = memoryview(data + batch([(0, 0, None, b"", ())], Header(base_offset=max(following + gap, 0))))
    rows = new_rows(8)
    count, position, why, _ = kernel.scan_batches(both, 0, len(both), len(both), least, memoryview(rows), True)
    if least not in (-1, base):
        assert (count, position, why) == (0, 0, kernel.SCAN_BAD)
    elif gap:
        assert (position, why) == (len(data), kernel.SCAN_BAD)
    else:
        assert (position, why) == (len(both), kernel.SCAN_END)


@share(0.25)
@given(log=logs(), wanted=st.integers(-1, 12))
@pytest.mark.parametrize("kernel", BOTH)
def test_head_of_gives_the_records_below_an_offset(kernel: Any, log: Any, wanted: int) -> None:
    data, _ = log
    view = memoryview(data)
    for row in scan_rows(kernel, view)[1].tolist():
        count, end, newest = kernel.head_of(view, row[12], row[13], row[4], wanted)
        found: list[Any] = []
        plain_row = np.array([[*row[:4], count, 0, *row[6:13], end, 0, 0]], np.int64)
        assert kernel.decode_records(view, memoryview(plain_row), 0, 1, 0, FOR_EVER, found) == -1
        here = [r[4] for r in log[1] if row[2] <= r[4] < min(row[2] + wanted, row[3] + 1)]
        assert [r.offset for r in found] == here
        assert not found or newest == max(r.timestamp for r in found) - row[6]


@share(0.25)
@given(
    sizes=st.lists(st.integers(61, 500), max_size=30),
    interval=st.integers(0, 1000),
    since=st.integers(0, 1000),
)
@pytest.mark.parametrize("kernel", BOTH)
def test_index_entries_are_made_as_kafka_makes_them(kernel: Any, sizes: list[int], interval: int, since: int) -> None:
    rows = new_rows(len(sizes))
    rows[:, 1] = sizes
    chosen = np.full(len(sizes), -1, np.int64)
    expected, left = [], since
    for i, size in enumerate(sizes):
        if left > interval:
            expected.append(i)
            left = 0
        left += size
    count, said = kernel.select_entries(memoryview(rows), len(sizes), interval, since, memoryview(chosen))
    assert (chosen[:count].tolist(), said) == (expected, left)
    assert (chosen[count:] == -1).all()


@share(0.25)
@given(log=logs(), junk=st.binary(max_size=80).filter(lambda junk: 2 not in junk))
@pytest.mark.parametrize("kernel", BOTH)
def test_after_damage_the_next_batch_is_found(kernel: Any, log: Any, junk: bytes) -> None:
    data, _ = log
    first = scan(data)[0]
    damaged = memoryview(junk + data)
    assert kernel.find_header(damaged, 0, len(damaged), 0) <= len(junk)
    assert kernel.find_header(damaged, len(junk), len(damaged), first.base_offset) == len(junk)
    assert kernel.find_header(damaged, len(junk), len(junk) + first.size_bytes - 1, 0) != len(junk)


# --- compressed batches among plain ones --------------------------------------------------------------------


@share(0.5)
@given(
    lists=st.lists(st.tuples(record_lists, st.sampled_from(list(CODECS))), min_size=1, max_size=5),
    start=st.integers(0, 40),
    end=st.integers(0, 60),
)
def test_plain_and_compressed_batches_mix(lists: list[Any], start: int, end: int) -> None:
    data, records = b"", []
    for some, codec in lists:
        data += encode(some, compression=codec, base_offset=len(records))
        records += expected(some, len(records))
    assert decode(data) == records
    assert decode(data, start, end) == records[start:end]


def test_unpacking_gives_what_precedes_a_bad_batch_first() -> None:
    good = encode([(b"good" * 100, None, (), T)])
    bad = bytearray(encode([(b"bad " * 100, None, (), T)], compression="zstd", base_offset=1))
    bad[61:65] = b"\0\0\0\0"
    view = memoryview(good + bad)
    rows = scan_rows(BOTH[0].values[0], view)[1]
    found: list[Record] = []
    with pytest.raises(read.CorruptBatch):
        read.records(view, rows, 0, FOR_EVER, found, 1 << 20)
    assert [record.value for record in found] == [b"good" * 100]


# --- the record itself --------------------------------------------------------------------------------------


@share(0.5)
@given(value=payloads, key=payloads, headers=headers, timestamp=timestamps, offset=st.integers(0, 2**62))
def test_a_record_is_a_value(value: Any, key: Any, headers: Any, timestamp: int, offset: int) -> None:
    record = Record(value, key, headers, timestamp, offset)
    same = pickle.loads(pickle.dumps(record))
    assert same == record
    assert hash(same) == hash(record)
    assert record != Record(value, key, headers, timestamp, offset + 1)
    assert record != plain(record)
    assert str(offset) in repr(record)
