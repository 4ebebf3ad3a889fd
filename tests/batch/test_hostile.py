"""Hostile batches: flipped, truncated and invented bytes, wrong lengths with a matching CRC.

Readers return records or raise a `SawlogError`: no other error, no crash, no read outside the buffer, no more work
than the size of the input justifies. The kernel's functions return what they document, or raise `ValueError` for a
range outside the buffer.

Three checks: the interpreted kernel, which cannot read outside a buffer and whose integers do not overflow, returns the
same as the packaged one; `decode` and `to_arrow` agree on whether a batch is valid and on its records; undamaged
batches can always be read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sawlog.batch import kernel as packaged
from sawlog.batch.arrow import COLUMNS, to_arrow
from sawlog.batch.compression import CODECS, compress
from sawlog.batch.header import scan as scan_headers
from sawlog.batch.read import decode, first_bad_crc
from sawlog.errors import CorruptBatch, SawlogError

from ..log.sampling import some_of, some_or_all
from ..looping import for_each
from .strategies import record_lists, share
from .twins import BOTH, FOR_EVER, columns, interpreted, outcome, plain, scan
from .wire import Header, around, batch, record, varint, with_right_crc

T = 1_700_000_000_000

#: Small enough to flip every bit, and together with all the features of a batch.
SMALL = [
    batch([(0, 0, b"k", b"value", ())]),
    batch(
        [
            (0, 0, None, b"first", ()),
            (1, -1, b"", None, ()),
            (2, 300, b"k", b"", [(b"h", b"1"), (b"n", None)]),
        ],
        Header(base_offset=7),
    ),
    batch([(2, 0, b"a", b"1", ()), (5, 5, b"b", None, [(b"", b"")])], Header(base_offset=20, last_delta=9)),
    batch([], Header(last_delta=3)),
]


# --- reading -------------------------------------------------------------------------------------------------


def observed(kernel: Any, data: bytes) -> list[Any]:
    """Return the results of all reading functions of one kernel for some bytes."""
    view = memoryview(data)
    said, rows = scan(kernel, view)
    seen: list[Any] = [said, rows.tolist()]
    seen += [kernel.find_batch(view, 0, len(view), offset) for offset in (0, 8, FOR_EVER)]
    seen += [kernel.find_header(view, start, len(view), 0) for start in (0, 1)]
    if len(rows):
        found: list[Any] = []
        seen.append(outcome(kernel.decode_records, view, memoryview(rows), 0, len(rows), 0, FOR_EVER, found))
        seen.append([plain(r) for r in found])
        seen.append(one_by_one(kernel, view, rows))
        assert seen[-1] == "refused" or seen[-1][:2] == (seen[-3], seen[-2])
        seen.append(columns(kernel, view, rows))
        seen.append(columns(kernel, view, rows, views=True))
    for row in rows.tolist():
        for offset in (row[2], row[2] + 1, row[3]):
            seen.append(plain(outcome(kernel.record_at, view, *body_of(row), row[2], row[3], *row[5:8], offset)))
        seen.append(outcome(kernel.record_after, view, *body_of(row), row[2], row[6], row[2], row[6]))
        seen.append(outcome(kernel.head_of, view, *body_of(row), 2))
        marks = np.zeros((row[13] - row[12]) // 14 + 2, np.int32)
        seen.append(outcome(kernel.landmarks, view, *body_of(row), 2, memoryview(marks)))
        seen.append(marks.tolist())
    return seen


def one_by_one(kernel: Any, view: memoryview, rows: np.ndarray, start: int = 0, end: int = FOR_EVER) -> Any:
    """Return the result of a cursor: the bad row or -1, the records, and the offset after the last one."""
    cursor = outcome(kernel.RecordCursor, view, memoryview(rows), start, end)
    if cursor == "refused":
        return cursor
    found = [plain(r) for r in cursor]
    assert list(cursor) == []  # nothing follows
    return cursor.bad, found, cursor.next_offset


def body_of(row: list[int]) -> tuple[int, int, int]:
    return row[12], row[13], row[4]


def read_both_ways(data: bytes) -> Any:
    """Return the records that `decode` reads, or None if it rejects the batches; `to_arrow` must agree."""
    try:
        records = decode(data, max_bytes=1 << 20)
    except SawlogError:
        records = None
    view = memoryview(data)
    said, rows = scan(packaged, view)
    if said[2] == packaged.SCAN_MORE or not len(rows):
        return records
    bad = first_bad_crc(view, rows)
    rows = rows if bad < 0 else rows[:bad]
    for views in (False, True):
        try:
            made = to_arrow(view, rows, 0, FOR_EVER, columns=COLUMNS, views=views, max_bytes=1 << 20)
        except SawlogError:
            assert records is None
            continue
        made.validate(full=True)
        if records is not None:
            assert made.column(0).to_pylist() == [r.offset for r in records]
            assert made.column(3).to_pylist() == [r.key for r in records]
            assert made.column(4).to_pylist() == [r.value for r in records]
        elif bad < 0 and said[2] == packaged.SCAN_END:
            raise AssertionError("decode refuses what to_arrow takes")
    return records


def check(data: bytes) -> None:
    """Check that both kernels give the same results, and that both readers either read or reject the bytes."""
    assert observed(packaged, data) == observed(interpreted, data)
    read_both_ways(data)


# --- every bit and every length -----------------------------------------------------------------------------


def flips(data: bytes) -> Iterator[bytes]:
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        yield bytes(flipped)


@pytest.mark.parametrize("data", SMALL, ids=len)
def test_no_flipped_bit_goes_unnoticed(data: bytes) -> None:
    clean = decode(data)
    for position, flipped in enumerate(flips(data)):
        byte = position >> 3
        if 12 <= byte < 16:  # the leader epoch: not covered by the CRC, and part of no record
            assert decode(flipped) == clean
        elif byte < 8:  # the base offset: not covered by the CRC; the log knows the right one
            assert position == 0 or not clean or decode_or_none(flipped) != clean
        else:
            with pytest.raises(CorruptBatch):
                decode(flipped)


def decode_or_none(data: bytes) -> Any:
    try:
        return decode(data)
    except CorruptBatch:
        return None


@pytest.mark.alternating
@some_or_all(150)
@pytest.mark.parametrize("data", SMALL, ids=len)
def test_every_flipped_bit_under_a_right_checksum_is_read_or_refused(data: bytes, most: int | None) -> None:
    for flipped in some_of(flips(data), most):
        check(with_right_crc(flipped))


@pytest.mark.parametrize("data", [*SMALL, SMALL[0] + SMALL[1]], ids=len)
def test_a_batch_cut_short_anywhere_is_refused(data: bytes) -> None:
    ends = [header.position for header in scan_headers(data)] + [len(data)]
    for size in range(len(data)):
        assert observed(packaged, data[:size]) == observed(interpreted, data[:size])
        if size in ends:
            assert decode(data[:size]) == [r for r in decode(data) if r.offset < 7] * (size > 0)
        else:
            with pytest.raises(CorruptBatch):
                decode(data[:size])


@pytest.mark.parametrize("data", SMALL[:3], ids=len)
def test_records_cut_short_anywhere_are_refused_under_a_right_checksum_too(data: bytes) -> None:
    for size in range(61, len(data)):
        cut = with_right_crc(data[:8] + (size - 12).to_bytes(4, "big") + data[12:size])
        check(cut)
        with pytest.raises(CorruptBatch):
            decode(cut)


@pytest.mark.parametrize("data", SMALL, ids=len)
def test_bytes_behind_the_last_record_are_refused(data: bytes) -> None:
    longer = with_right_crc(data[:8] + (len(data) - 11).to_bytes(4, "big") + data[12:] + b"\0")
    check(longer)
    with pytest.raises(CorruptBatch):
        decode(longer)


# --- lies ---------------------------------------------------------------------------------------------------

TEN = b"\xff" * 9
#: Valid and invalid varints.
LIES = [
    varint(0, 10),
    varint(2**31 - 1),
    varint(2**31),
    varint(2**32),
    varint(2**62),
    varint(2**63 - 1),
    varint(-1),
    varint(-2),
    varint(-(2**31)),
    varint(-(2**63)),
    TEN + b"\x00",  # 63 bits and a padding byte
    TEN + b"\x01",  # all 64
    TEN + b"\x02",  # a 65th
    TEN + b"\x7f",
    TEN + b"\xff\x00",  # eleven bytes
    TEN + b"\xff\x01",
    b"\xff" * 20,  # never ends
    b"\x80" * 20,
    b"\x80" * 9 + b"\x00",  # zero, at full length
    b"\x80",
    b"",
]


def lying_records(lie: bytes, *, bare: bool = False) -> Iterator[bytes]:
    """Yield records with one number replaced, with or without the bytes whose length it is."""
    fields = [
        b"\0",
        b"\0",
        varint(1) + b"k",
        varint(2) + b"vv",
        varint(1),
        varint(1) + b"h",
        varint(1) + b"c",
    ]
    for at in range(len(fields)):
        content = b"" if bare else {2: b"k", 3: b"vv", 5: b"h", 6: b"c"}.get(at, b"")
        body = b"\0" + b"".join(lie + content if i == at else field for i, field in enumerate(fields))
        yield varint(len(body)) + body
    yield lie + record((0, 0, None, b"x", ()))[1:]


@pytest.mark.alternating
@pytest.mark.sampled(8)
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.hex()[:24] or "nothing")
def test_a_number_that_lies_is_read_or_refused_wherever_it_stands(lie: bytes) -> None:
    honest = record((1, 0, None, b"honest", ()))
    for lying in (*lying_records(lie), *lying_records(lie, bare=True)):
        for header in (Header(count=1), Header(count=2, last_delta=1), Header(count=1, last_delta=2**31 - 1)):
            check(around(lying + (honest if header.count == 2 else b""), header))


#: Places in `lying_records` where a length or a count stands: key, value, header count, name, content, record.
LENGTHS = {2: -1, 3: -1, 4: 0, 5: 0, 6: -1, 7: 6}


@pytest.mark.parametrize("place", LENGTHS)
def test_a_length_that_cannot_be_is_refused_wherever_it_stands(place: int) -> None:
    least = LENGTHS[place]
    impossible = [least - 1, least - 2, -(2**31), -(2**63), 1000, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1]
    for number in [varint(n) for n in impossible] + [TEN + b"\x02", b"\xff" * 11, b"\x80" * 20]:
        for bare in (False, True):
            lying = around(list(lying_records(number, bare=bare))[place], Header(count=1))
            check(lying)
            with pytest.raises(CorruptBatch):
                decode(lying)


@pytest.mark.parametrize("kernel", BOTH)
def test_a_varint_may_be_padded_to_ten_bytes_and_not_to_eleven(kernel: Any) -> None:
    for size in range(1, 12):
        body = b"\0" + b"".join(varint(n, size) for n in (0, 0, -1, -1, 0))
        data = memoryview(around(varint(len(body), size) + body, Header(count=1)))
        found: list[Any] = []
        bad = kernel.decode_records(data, memoryview(scan(kernel, data)[1]), 0, 1, 0, FOR_EVER, found)
        assert (bad, len(found)) == ((-1, 1) if size <= 10 else (0, 0))


@pytest.mark.parametrize(
    "header",
    [
        {"count": 2**31 - 1},
        {"count": 2**31 - 1, "last_delta": 2**31 - 1},
        {"count": -1},
        {"count": -(2**31)},
        {"count": 0},
        {"count": 4},
        {"count": 2},
        {"last_delta": -1},
        {"last_delta": 1},
        {"last_delta": 2**31 - 1},
        {"length": 0},
        {"length": -1},
        {"length": -(2**31)},
        {"length": 2**31 - 1},
        {"length": 48},
        {"length": 49},
        {"magic": 0},
        {"magic": 1},
        {"magic": 3},
        {"magic": -126},
        {"base_offset": -1},
        {"base_offset": -(2**63)},
        {"base_offset": 2**63 - 1},
        {"base_offset": 2**62},
        {"base_offset": 2**62 - 1},
        {"base_timestamp": -(2**63)},
        {"base_timestamp": 2**63 - 1, "max_timestamp": 0},
        {"max_timestamp": -(2**63), "attributes": 8},
        *({"attributes": number} for number in (1, 2, 3, 4, 5, 6, 7, 0x7FFF, -1, -32768)),
        *({"attributes": number, "count": 2**31 - 1, "last_delta": 2**31 - 1} for number in (1, 2, 3, 4)),
    ],
    ids=str,
)
def test_a_header_that_lies_is_read_or_refused(header: dict[str, int]) -> None:
    parts = [(0, 0, None, b"a", ()), (1, 1, b"k", b"b", ()), (2, -1, b"k", b"c", [(b"h", None)])]
    lying = batch(parts, replace(Header(), **header))
    check(lying)
    check(SMALL[0] + lying)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2, 1), (-1, 0), (0, 5), (0, 2**31), (0, 2**62), (0, 2**63 - 1)])
def test_offsets_that_do_not_go_up_inside_their_batch_are_refused(deltas: tuple[int, ...]) -> None:
    lying = batch([(d, 0, None, b"x", ()) for d in deltas], Header(last_delta=3))
    check(lying)
    with pytest.raises(CorruptBatch):
        decode(lying)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (2, 1, 0), (0, 2, 1), (1, 2, 3), (-1, 0, 1), (0, 1, 2**63 - 1)])
@pytest.mark.parametrize("last", [2, 5])
@pytest.mark.parametrize("kernel", BOTH)
def test_a_record_is_never_given_at_an_offset_that_its_batch_cannot_have(
    kernel: Any, last: int, deltas: tuple[int, ...]
) -> None:
    view = memoryview(batch([(d, 0, None, b"%d" % d, ()) for d in deltas], Header(base_offset=10, last_delta=last)))
    for offset in range(10, 17):
        found = kernel.record_at(view, 61, len(view), len(deltas), 10, 10 + last, 0, T, T, offset)
        assert found is None or found is False or offset <= found.offset <= 10 + last
        if last == len(deltas) - 1 and found:  # no gaps: the record at an offset has that offset
            assert found.offset == offset


# --- compressed lies ----------------------------------------------------------------------------------------


def packed(codec: str, body: bytes, header: Header) -> bytes:
    content = compress(CODECS[codec], body)
    assert content is not None
    return around(bytes(content), replace(header, attributes=CODECS[codec]))


BODY = b"".join(record((i, i, b"key", b"value " * 20, ())) for i in range(8))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
@pytest.mark.parametrize("count", [0, 7, 9, 1000, 2**31 - 1])
def test_a_compressed_batch_with_a_wrong_count_is_refused_before_room_is_made_for_it(codec: str, count: int) -> None:
    lying = packed(codec, BODY, Header(count=count, last_delta=2**31 - 1))
    with pytest.raises(CorruptBatch):
        decode(lying)
    rows = scan(packaged, memoryview(lying))[1]
    for views in (False, True):
        with pytest.raises(CorruptBatch):
            to_arrow(memoryview(lying), rows, 0, FOR_EVER, views=views)


@pytest.mark.alternating
@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_compressed_batches_are_read_or_refused_whatever_their_bytes(codec: str) -> None:
    chance = random.Random(codec)
    sound = packed(codec, BODY, Header(count=8, last_delta=7))
    assert len(decode(sound)) == 8
    for _ in range(300):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(61, len(damaged))] = chance.choice([0, 255, chance.randrange(256)])
        read_both_ways(with_right_crc(damaged))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_records_that_do_not_parse_are_refused_behind_a_compression_as_well(codec: str) -> None:
    for body in (BODY[:-1], BODY + b"\0", b"\xff" * 200, bytes(200), BODY[1:]):
        lying = packed(codec, body, Header(count=8, last_delta=7))
        assert read_both_ways(lying) is None


# --- chance -------------------------------------------------------------------------------------------------


def test_garbage_is_refused() -> None:
    chance = random.Random(1)
    for _ in range(400):
        garbage = chance.randbytes(chance.randrange(200))
        check(garbage)
        assert not garbage or decode_or_none(garbage) is None


@pytest.mark.alternating
def test_garbage_behind_a_sound_header_is_read_or_refused() -> None:
    chance = random.Random(2)
    for _ in range(600):
        # Small numbers, so that some of the bytes nearly parse.
        size = chance.randrange(60)
        body = bytes(chance.choice([0, 1, 2, 4, 12, 14, 16, chance.randrange(256)]) for _ in range(size))
        check(around(body, Header(count=chance.randrange(size // 7 + 1), last_delta=chance.randrange(10))))


@share(0.5)
@given(records=record_lists, seed=st.integers(0, 2**32))
def test_a_changed_batch_under_a_right_checksum_is_read_or_refused(records: Any, seed: int) -> None:
    chance = random.Random(seed)
    parts = [
        (i, t - records[0][3], k and k[:100], v and v[:100], [(n.encode(), c) for n, c in h])
        for i, (v, k, h, t) in enumerate(records)
    ]
    sound = batch(parts, Header(base_timestamp=records[0][3]))
    assert read_both_ways(sound) is not None
    for _ in range(10):
        changed = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(61, len(changed))
            kind = chance.randrange(4)
            if kind == 0:
                changed[at] = chance.choice([0, 1, 2, 127, 128, 254, 255])
            elif kind == 1:
                changed[at : at + 1] = chance.choice(LIES)
            elif kind == 2:
                del changed[at : at + chance.randint(1, 4)]
            else:
                changed[at:at] = chance.randbytes(chance.randint(1, 4))
            if len(changed) <= 61:
                break
        changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
        check(with_right_crc(changed))


@given(
    data=st.binary(max_size=120),
    start=st.integers(-3, 130),
    end=st.integers(-3, 130),
    offset=st.integers(-2, 9),
)
@example(data=b"", start=0, end=0, offset=0)
@example(data=SMALL[0], start=1, end=-(2**63), offset=0)
@example(data=SMALL[0], start=2**63 - 1, end=0, offset=0)
@example(data=SMALL[0], start=0, end=2**63 - 1, offset=0)
@example(data=SMALL[0], start=61, end=-1, offset=0)
def test_a_range_outside_the_buffer_is_refused_and_one_inside_is_not(
    data: bytes, start: int, end: int, offset: int
) -> None:
    seen = []
    for kernel in (packaged, interpreted):
        view = memoryview(SMALL[1] + data)
        rows = np.zeros((2, 16), np.int64)
        seen.append(
            [
                outcome(kernel.scan_batches, view, start, end, end, 0, memoryview(rows)),
                outcome(kernel.find_batch, view, start, end, offset),
                outcome(kernel.find_header, view, start, end, offset),
                plain(outcome(kernel.record_at, view, start, end, 3, 7, 9, 0, T, T, offset)),
                outcome(kernel.record_after, view, start, end, 3, 7, T, offset, T),
                outcome(kernel.head_of, view, start, end, 3, offset),
                outcome(kernel.landmarks, view, start, end, 3, 1, memoryview(np.zeros(4, np.int32))),
            ]
        )
        for result in seen[-1]:
            assert result == "refused" or (start >= 0 and end <= len(view))
    assert seen[0] == seen[1]


# --- rows that do not belong to the buffer ------------------------------------------------------------------


def decoders(kernel: Any, view: memoryview, rows: np.ndarray, batches: int, room: int = 3, content: int = 64) -> Any:
    """Return the four functions that take rows, with buffers for `room` records and `content` bytes."""

    def longs() -> memoryview:
        return memoryview(np.zeros(room, np.int64))

    def ints() -> memoryview:
        return memoryview(np.zeros(room + 1, np.int32))

    def raw(size: int) -> memoryview:
        return memoryview(bytearray(size))

    bits, table = (room + 7) // 8, memoryview(rows)
    found: list[Any] = []
    return {
        "decode_records": lambda: kernel.decode_records(view, table, 0, batches, 0, FOR_EVER, found),
        "decode_columns": lambda: kernel.decode_columns(
            view,
            table,
            batches,
            -1,
            longs(),
            longs(),
            ints(),
            raw(content),
            raw(bits),
            ints(),
            raw(content),
            raw(bits),
            True,
            True,
        ),
        "decode_columns, views": lambda: kernel.decode_columns(
            view,
            table,
            batches,
            61,
            longs(),
            longs(),
            ints(),
            raw(room * 16),
            raw(bits),
            ints(),
            raw(room * 16),
            raw(bits),
            True,
            True,
        ),
        "decode_headers": lambda: kernel.decode_headers(
            view, table, batches, ints(), ints(), raw(content), ints(), raw(content), raw(bits)
        ),
    }


DECODERS = ["decode_records", "decode_columns", "decode_columns, views", "decode_headers"]


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("function", DECODERS)
def test_rows_that_fit_are_decoded(kernel: Any, function: str) -> None:
    view = memoryview(SMALL[1])
    said = decoders(kernel, view, scan(kernel, view)[1], 1)[function]()
    assert (said if isinstance(said, int) else said[0]) == -1


@pytest.mark.parametrize("kernel", BOTH)
@for_each("function", DECODERS)
@for_each(
    ("column", "value"),
    [
        (12, -1),
        (12, -(10**12)),
        (12, 10**12),
        (13, 10**12),
        (13, 2**63 - 1),
        (13, 118),
        (13, 60),
        (13, -1),
        (4, 10**9),
        (4, 2**63 - 1),
    ],
)
def test_rows_that_point_outside_the_buffer_are_refused(kernel: Any, function: str, column: int, value: int) -> None:
    view = memoryview(SMALL[1])
    rows = scan(kernel, view)[1].copy()
    rows[0, column] = value
    with pytest.raises(ValueError, match="outside"):
        decoders(kernel, view, rows, 1)[function]()


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("function", DECODERS)
@pytest.mark.parametrize("batches", [2, 10**9])
def test_more_batches_than_rows_are_refused(kernel: Any, function: str, batches: int) -> None:
    view = memoryview(SMALL[1])
    with pytest.raises(ValueError, match="outside"):
        decoders(kernel, view, scan(kernel, view)[1], batches)[function]()


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("function", DECODERS)
def test_rows_with_too_few_columns_are_refused(kernel: Any, function: str) -> None:
    view = memoryview(SMALL[1])
    rows = np.ascontiguousarray(scan(kernel, view)[1][:, :13])
    with pytest.raises(ValueError, match="outside"):
        decoders(kernel, view, rows, 1)[function]()
    with pytest.raises(ValueError, match="outside"):
        kernel.scan_batches(view, 0, len(view), len(view), 0, memoryview(np.zeros((4, 13), np.int64)))


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    ("function", "room", "content"),
    [
        *((function, room, 64) for function in DECODERS[1:] for room in (0, 2)),
        ("decode_columns", 3, 5),
        ("decode_headers", 3, 5),
    ],
)
def test_buffers_too_small_for_the_rows_are_refused(kernel: Any, function: str, room: int, content: int) -> None:
    view = memoryview(SMALL[1])
    with pytest.raises(ValueError, match="outside"):
        decoders(kernel, view, scan(kernel, view)[1], 1, room, content)[function]()


@pytest.mark.parametrize("kernel", BOTH)
def test_a_cursor_does_not_trust_rows_that_change_under_it(kernel: Any) -> None:
    view = memoryview(SMALL[0] + SMALL[1])
    for column, value in ((12, -(10**12)), (12, 10**12), (13, 10**12), (13, 2**63 - 1), (4, 2**63 - 1)):
        rows = scan(kernel, view)[1].copy()
        cursor = kernel.RecordCursor(view, memoryview(rows), 0, FOR_EVER)
        assert next(cursor).value == b"value"
        rows[1, column] = value
        assert len(list(cursor)) <= 3
        assert cursor.bad == 1


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(("column", "value"), [(0, -1), (0, 10**12), (0, 2**63 - 1), (1, 60), (1, -1), (1, 118)])
def test_a_checksum_of_bytes_that_are_not_there_is_wrong(kernel: Any, column: int, value: int) -> None:
    view = memoryview(SMALL[1])
    rows = scan(kernel, view)[1].copy()
    assert kernel.check_small(view, memoryview(rows), 0, 512) == (1, False)
    rows[0, column] = value
    assert kernel.check_small(view, memoryview(rows), 0, 512) == (0, True)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(("batches", "room"), [(-1, 4), (2, 4), (10**9, 4), (1, 0)])
def test_index_entries_go_only_where_there_is_room(kernel: Any, batches: int, room: int) -> None:
    rows = scan(kernel, memoryview(SMALL[1]))[1]
    with pytest.raises(ValueError, match="outside"):
        kernel.select_entries(memoryview(rows), batches, 0, 1, memoryview(np.zeros(room, np.int64)))


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(("count", "step", "room"), [(3, 0, 9), (3, -1, 9), (3, 1, 3), (2**31 - 1, 2, 9)])
def test_landmarks_go_only_where_there_is_room(kernel: Any, count: int, step: int, room: int) -> None:
    view = memoryview(SMALL[1])
    with pytest.raises(ValueError, match="outside"):
        kernel.landmarks(view, 61, len(view), count, step, memoryview(np.zeros(room, np.int32)))


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("position", [-1, 1, 117, 2**62])
def test_a_header_is_never_written_outside_its_buffer(kernel: Any, position: int) -> None:
    view = memoryview(bytearray(61))
    for write in (
        lambda: kernel.write_header(view, position, 0, 61, 0, 0, 0, 0, 0, -1, -1, -1, 0),
        lambda: kernel.patch_crc(view, position, 0),
        lambda: kernel.patch_place(view, position, 0, 0),
    ):
        with pytest.raises(ValueError, match="outside"):
            write()
    assert bytes(view) == bytes(61)
