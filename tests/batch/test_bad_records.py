"""Invalid records are rejected with an error that gives the reason, and leave nothing in the batch.

After every refusal the encoder must make exactly the bytes that a fresh one makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from sawlog.batch import build
from sawlog.batch.build import Encoder, EncoderOptions, encode
from sawlog.batch.header import scan
from sawlog.batch.read import decode
from sawlog.errors import InvalidConfig, InvalidRecord, InvalidRecordType, RecordTooLarge

from .twins import BOTH

T = 1_700_000_000_000
GOOD = [(b"value", b"key", (("header", b"content"),), T), (None, None, (), T + 1)]


class Text(str):
    """A str whose `encode` returns other bytes."""

    def encode(self, *_: Any) -> Any:
        return 7


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


NOT_BYTES: list[Any] = [
    "text",
    "",
    7,
    1.5,
    True,
    [b"a"],
    (b"a",),
    {"a": b"b"},
    object(),
    bytes,
    10**5000,
    released(),
]
NOT_HEADERS: list[Any] = [
    7,
    "text",
    b"bytes",
    [b"a"],
    [("a",)],
    [("a", b"b", b"c")],
    [(b"a", b"b")],
    [(7, b"b")],
    [(None, b"b")],
    [("a", "b")],
    [("a", 7)],
    [("a", [b"b"])],
    [("good", b"b"), ("bad", 7)],
    {b"a": b"b"},
    {"a": "b"},
    [("\ud800", b"b")],
    [("a\udbff", b"b")],
    [("a", released())],
    np.arange(4),
    np.array([["a", "b"]]),
]
NOT_TIMES: list[tuple[Any, type[InvalidRecord]]] = [
    (-1, InvalidRecord),
    (-(2**63), InvalidRecord),
    (build.kernel.MAX_TIMESTAMP + 1, InvalidRecord),
    (2**63, InvalidRecord),
    (2**64 + 1, InvalidRecord),
    (10**5000, InvalidRecord),
    (1.5, InvalidRecordType),
    (float("nan"), InvalidRecordType),
    (True, InvalidRecordType),
    ("2023-11-14", InvalidRecordType),
    (b"0", InvalidRecordType),
    (object(), InvalidRecordType),
]

BAD_RECORDS: list[tuple[Any, type[InvalidRecord]]] = [
    *(((value, None, (), T), InvalidRecordType) for value in NOT_BYTES),
    *(((b"", key, (), T), InvalidRecordType) for key in NOT_BYTES),
    *(((b"", None, headers, T), InvalidRecordType) for headers in NOT_HEADERS),
    *(((b"", None, (), timestamp), error) for timestamp, error in NOT_TIMES),
    *(({"value": b"", "timestamp": timestamp}, error) for timestamp, error in NOT_TIMES),
    ("text", InvalidRecordType),
    (7, InvalidRecordType),
    (object(), InvalidRecordType),
    ([b"a"], InvalidRecordType),
    ((), InvalidRecordType),
    ((b"", None, (), T, 5), InvalidRecordType),
    ({"value": b"", "offset": 3}, InvalidRecordType),
    ({"Value": b""}, InvalidRecordType),
    ({b"value": b""}, InvalidRecordType),
    ({"value": "text"}, InvalidRecordType),
    ({"value": b"", "headers": 7}, InvalidRecordType),
]


def name(case: Any) -> str:
    """Return the name of a test: the same in every process, so without addresses."""
    if isinstance(case, type):
        return case.__name__
    try:
        text = repr(case)
    except ValueError:  # a number with more digits than Python prints
        text = "0x"
    return type(case).__name__ if "0x" in text else text[:40]


@pytest.mark.parametrize(("bad", "error"), BAD_RECORDS, ids=name)
def test_a_bad_record_is_refused_and_leaves_nothing_behind(bad: Any, error: type[InvalidRecord]) -> None:
    encoder = Encoder()
    for records in ([bad], [GOOD[0], bad, GOOD[1]], [*GOOD * 100, bad]):
        with pytest.raises(InvalidRecord) as raised:
            encoder.many(records)
        assert type(raised.value) is error
        assert bytes(encoder.many(GOOD).data) == encode(GOOD)


@pytest.mark.parametrize("bad", NOT_BYTES[:-2], ids=name)
def test_the_message_names_what_was_given(bad: Any) -> None:
    with pytest.raises(InvalidRecordType, match=type(bad).__name__):
        Encoder().one(bad, None, (), None)


def test_the_hint_says_which_unit_a_time_has_to_have() -> None:
    with pytest.raises(InvalidRecord, match="microseconds or nanoseconds"):
        encode([(b"", None, (), T * 1_000_000)])


@pytest.mark.parametrize("empty", [[], (), iter(()), {}, b""], ids=name)
def test_a_batch_of_nothing_is_refused(empty: Iterable[Any]) -> None:
    encoder = Encoder()
    with pytest.raises(InvalidRecord, match="no record"):
        encoder.many(empty)
    assert bytes(encoder.many(GOOD).data) == encode(GOOD)


@pytest.mark.parametrize("nothing", [None, 7, 1.5, object()], ids=name)
def test_what_cannot_be_iterated_is_refused(nothing: Any) -> None:
    with pytest.raises(InvalidRecordType, match="iterable"):
        encode(nothing)


@pytest.mark.parametrize("one", ["text", b"bytes", {"value": b""}], ids=name)
def test_one_record_where_many_belong_is_refused(one: Any) -> None:
    with pytest.raises(InvalidRecordType):
        encode(one)


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError, KeyboardInterrupt, GeneratorExit])
def test_the_error_of_a_generator_reaches_its_owner_as_it_is(error: type[BaseException]) -> None:
    mine = error("mine")

    def records() -> Iterator[Any]:
        yield from GOOD
        raise mine

    encoder = Encoder()
    with pytest.raises(error) as raised:
        encoder.many(records())
    assert raised.value is mine
    assert bytes(encoder.many(GOOD).data) == encode(GOOD)


def test_bytes_and_strings_that_lie_about_their_size_are_stored_as_they_are() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 1 << 20

    class Short(bytes):
        def __len__(self) -> int:
            return 0

    class Other(bytes):
        def __bytes__(self) -> bytes:
            return Long(b"other")

    for kind in (Long, Short, Other):
        odd = kind(b"abc")
        (record,) = decode(encode([(odd, odd, [("h", odd)], T)]))
        assert (record.value, record.key, record.headers) == (b"abc", b"abc", (("h", b"abc"),))
        assert [type(x) for x in (record.value, record.key)] == [bytes, bytes]
    assert decode(encode([(b"", None, [(Text("name"), b"")], T)]))[0].headers == (("name", b""),)


# --- limits -------------------------------------------------------------------------------------------------


def test_a_record_may_be_as_large_as_the_limit_and_no_larger() -> None:
    encoder = Encoder(EncoderOptions(max_record_bytes=20))
    fits = (b"v" * 8, b"k" * 4, (("h" * 4, b"c" * 4),), T)
    assert bytes(encoder.one(*fits).data) == encode([fits])
    for more in (
        (b"v" * 9, *fits[1:]),
        (fits[0], b"k" * 5, *fits[2:]),
        (*fits[:2], (("h" * 5, b"c" * 4),), T),
    ):
        with pytest.raises(RecordTooLarge, match="21 bytes"):
            encoder.one(*more)
    assert bytes(encoder.many(GOOD[1:]).data) == encode(GOOD[1:])


def test_a_batch_larger_than_the_limit_is_refused_whole() -> None:
    encoder = Encoder(EncoderOptions(max_batch_bytes=1000))
    with pytest.raises(RecordTooLarge, match="fewer records"):
        encoder.many([(b"x" * 100, None, (), T)] * 10)
    assert len(encoder.many([(b"x" * 100, None, (), T)] * 8).data) <= 1000
    assert bytes(encoder.many(GOOD).data) == encode(GOOD)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="brotli"):
        encode(GOOD, compression="brotli")


@pytest.mark.parametrize(
    "numbers",
    [
        (-2, 0, 0),
        (2**63, 0, 0),
        (1, -2, 0),
        (1, 2**15, 0),
        (1, 0, 2**31),
        (1, 0, -1),
        (1, -1, 0),
        (-1, 0, 0),
        (1.5, 0, 0),
    ],
    ids=str,
)
def test_a_producer_that_the_header_cannot_hold_is_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRecord, match="producer"):
        build.Producer(*numbers)


@pytest.mark.parametrize("offset", [-1, 2**62, 2**63])
def test_a_base_offset_that_no_log_reaches_is_refused(offset: int) -> None:
    with pytest.raises(InvalidRecord, match="offset"):
        encode(GOOD, base_offset=offset)


# --- the builder beneath ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", BOTH)
def test_a_refused_record_leaves_the_builder_as_it_was(kernel: Any) -> None:
    builder = kernel.BatchBuilder(build.record_error, max_record=100)
    builder.add(b"first", timestamp=T)
    before = (
        bytes(builder.buffer[61 : builder.position]),
        builder.count,
        builder.base_timestamp,
        builder.max_timestamp,
    )
    for bad in (
        ("text",),
        (b"", 7),
        (b"", None, 7),
        (b"", None, (), -1),
        (b"x" * 101,),
        (b"", None, [("a", b"b"), 7]),
    ):
        with pytest.raises(InvalidRecord):
            builder.add(*bad)
        now = (
            bytes(builder.buffer[61 : builder.position]),
            builder.count,
            builder.base_timestamp,
            builder.max_timestamp,
        )
        assert now == before


@pytest.mark.parametrize("kernel", BOTH)
def test_a_full_builder_calls_and_goes_on_in_another_buffer(kernel: Any) -> None:
    closed: list[tuple[Any, ...]] = []
    builder = kernel.BatchBuilder(
        build.record_error, limit=161, on_full=lambda: closed.append(builder.take(bytearray(61))), capacity=0
    )
    for i in range(30):
        builder.add(b"%02d" % i * 10, timestamp=T + i)
    assert len(closed) == 7
    for number, (buffer, end, count, base, newest) in enumerate(closed):
        assert (count, base, newest) == (4, T + 4 * number, T + 4 * number + 3)
        assert [b"%02d" % (4 * number + i) * 10 in buffer[61:end] for i in range(4)] == [True] * 4
    assert (builder.count, builder.base_timestamp) == (2, T + 28)


@pytest.mark.parametrize("kernel", BOTH)
def test_a_record_that_a_batch_has_no_room_for_goes_to_the_next(kernel: Any) -> None:
    closed: list[tuple[Any, ...]] = []
    builder = kernel.BatchBuilder(
        build.record_error, on_full=lambda: closed.append(builder.take(bytearray(61))), max_total=161
    )
    for i in range(8):
        builder.add(b"%02d" % i * 10, timestamp=T + i)
    assert [count for _, _, count, _, _ in closed] == [3, 3]
    assert all(end <= 161 for _, end, _, _, _ in closed)
    assert (builder.count, builder.base_timestamp) == (2, T + 6)
    with pytest.raises(RecordTooLarge):
        builder.add(b"x" * 200, timestamp=T)


@pytest.mark.parametrize("kernel", BOTH)
def test_a_record_beyond_a_full_batch_that_stays_is_refused(kernel: Any) -> None:
    calls: list[int] = []

    def on_full() -> None:
        calls.append(builder.count)
        assert len(calls) < 100, "asked for ever"

    builder = kernel.BatchBuilder(build.record_error, on_full=on_full, max_total=161)
    for i in range(3):
        builder.add(b"%02d" % i * 10, timestamp=T)
    with pytest.raises(RecordTooLarge):
        builder.add(b"03" * 10, timestamp=T)
    assert builder.count == 3


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("buffer", [bytearray(0), bytearray(60), b"x" * 100, None, "text", np.zeros(100)], ids=name)
def test_a_buffer_that_cannot_hold_a_batch_is_refused_and_the_old_one_kept(kernel: Any, buffer: Any) -> None:
    builder = kernel.BatchBuilder(build.record_error)
    builder.add(b"kept", timestamp=T)
    if kernel.COMPILED or buffer is None or len(buffer) < 61:  # the interpreter checks the rest when it writes
        with pytest.raises((ValueError, TypeError, BufferError)):
            builder.take(buffer)
    for i in range(200):
        builder.add(b"x" * 1000, timestamp=T + i)
    records = decode(bytes(build.finish(builder, EncoderOptions()).data))
    assert [record.value for record in records] == [b"kept", *[b"x" * 1000] * 200]


@pytest.mark.parametrize("kernel", BOTH)
def test_headers_that_add_records_while_they_are_read_spoil_nothing(kernel: Any) -> None:
    builder = kernel.BatchBuilder(build.record_error)

    def headers() -> Iterator[tuple[str, bytes]]:
        for i in range(100):
            builder.add(b"inner %d" % i, timestamp=T - i)
        yield "name", b"content"

    builder.add(b"outer", headers=headers(), timestamp=T + 5)
    data = bytes(build.finish(builder, EncoderOptions()).data)
    assert scan(data)[0].max_timestamp == T + 5
    records = decode(data)
    assert [r.value for r in records] == [*(b"inner %d" % i for i in range(100)), b"outer"]
    assert [r.timestamp for r in records] == [*(T - i for i in range(100)), T + 5]
    assert records[-1].headers == (("name", b"content"),)
