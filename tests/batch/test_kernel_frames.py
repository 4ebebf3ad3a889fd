"""Frames of other systems: the compiled kernel and the interpreted one see the same, and nothing leaves its buffer."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import kernel as packaged

from .strategies import share
from .twins import BOTH, interpreted

KERNELS = (packaged, interpreted)
longs = st.integers(-(2**63), 2**63 - 1)


def both(name: str, *arguments: Any, outputs: list[np.ndarray]) -> Any:
    """Call a function of both kernels, check that results and buffers are the same, and return them."""
    seen = []
    for kernel in KERNELS:
        made = [output.copy() for output in outputs]
        try:
            views = [memoryview(each) if isinstance(each, bytes) else each for each in arguments]
            said = getattr(kernel, name)(*views, *map(memoryview, made))
        except ValueError as error:
            assert any(word in str(error) for word in ("outside", "too small")), error
            said = "refused"
        seen.append((said, [output.tolist() for output in made]))
    assert seen[0] == seen[1]
    return seen[0]


@share(0.5)
@given(
    data=st.binary(max_size=60),
    head=st.sampled_from([(12, 0, 4, True), (8, 0, 8, True), (16, 8, 8, False), (8, 4, 4, False)]),
    most=st.sampled_from([3, 100, 2**40]),
    room=st.integers(0, 4),
)
def test_frames_are_walked_alike(data: bytes, head: tuple[int, int, int, bool], most: int, room: int) -> None:
    (count, position, why), (starts, lengths) = both(
        "walk_frames", data, 0, len(data), *head, most, outputs=[np.zeros(room, np.int64), np.zeros(room, np.int64)]
    )
    assert 0 <= count <= room
    assert position == (starts[count - 1] + lengths[count - 1] if count else 0) <= len(data)
    if why == packaged.WALK_END:
        assert position == len(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes.fromhex("00000001 61 00000000"), (2, 9, 1)),
        (bytes.fromhex("00000001 61 000000"), (1, 5, 2)),
        (bytes.fromhex("00000001 61 00000002 61"), (1, 5, 2)),
        (bytes.fromhex("00000001 61 ffffffff"), (1, 5, 3)),
        (b"", (0, 0, 1)),
    ],
)
def test_it_is_said_why_a_walk_ended(data: bytes, expected: tuple[int, int, int]) -> None:
    outputs = [np.zeros(9, np.int64), np.zeros(9, np.int64)]
    said, _ = both("walk_frames", data, 0, len(data), 4, 0, 4, True, 1000, outputs=outputs)
    assert said == expected


@given(number=st.integers(0, 2**64 - 1), size=st.sampled_from([4, 8]), big=st.booleans(), delta=st.integers(-3, 3))
def test_numbers_are_read_alike(number: int, size: int, big: bool, delta: int) -> None:
    number %= 1 << 8 * size
    data = b"abc" + number.to_bytes(size, "big" if big else "little")
    at = np.array([3 - delta], np.int64)
    _, ((found,),) = both("numbers_at", data, memoryview(at), delta, size, big, outputs=[np.zeros(1, np.int64)])
    assert found % 2**64 == number


@given(data=st.binary(max_size=40), pieces=st.lists(st.tuples(st.integers(-2, 45), st.integers(-2, 45)), max_size=4))
def test_checksums_are_those_of_zlib_and_bytes_are_gathered(data: bytes, pieces: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in pieces], np.int64)
    lengths = np.array([length for _, length in pieces], np.int64)
    arguments = data, memoryview(starts), memoryview(lengths)
    said, (found,) = both("crc32_of", *arguments, outputs=[np.zeros(len(pieces), np.int64)])
    size, (ends, out) = both(
        "gather", *arguments, outputs=[np.zeros(len(pieces) + 1, np.int32), np.zeros(200, np.uint8)]
    )
    inside = all(start >= 0 and length >= 0 and start + length <= len(data) for start, length in pieces)
    assert (said == "refused") == (size == "refused") == (not inside)
    if inside:
        parts = [data[start : start + length] for start, length in pieces]
        assert found == [zlib.crc32(part) for part in parts]
        assert bytes(out[:size]) == b"".join(parts)
        assert [bytes(out[a:b]) for a, b in pairwise(ends)] == parts


@given(rows=st.lists(st.tuples(st.binary(max_size=200), longs, longs, longs), max_size=5))
def test_messages_come_back_as_they_were(rows: list[tuple[bytes, int, int, int]]) -> None:
    ends = np.cumsum([0, *(len(row[0]) for row in rows)]).astype(np.int32)
    data = b"".join(row[0] for row in rows)
    numbers = np.array([row[1:] for row in rows], np.int64).reshape(-1, 3)
    made = []
    for kernel in KERNELS:
        out, positions = np.zeros(len(data) + 60 * len(rows), np.uint8), np.zeros(len(rows), np.int64)
        arguments = memoryview(ends), 0, memoryview(data), memoryview(numbers), memoryview(positions)
        size = kernel.put_messages(memoryview(out), *arguments)
        made.append((bytes(out[:size]), positions.tolist()))
    assert made[0] == made[1]
    framed, positions_ = memoryview(made[0][0]), made[0][1]
    starts, lengths = np.zeros(9, np.int64), np.zeros(9, np.int64)
    walked = packaged.walk_frames(framed, 0, len(framed), 8, 0, 8, True, 2**40, memoryview(starts), memoryview(lengths))
    assert walked == (len(rows), len(framed), packaged.WALK_END)
    assert (starts[: len(rows)] - 8).tolist() == positions_
    good, (value_starts, value_lengths, found) = both(
        "parse_messages",
        framed,
        memoryview(starts[: len(rows)]),
        memoryview(lengths[: len(rows)]),
        outputs=[np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64), np.zeros((len(rows), 3), np.int64)],
    )
    assert good == len(rows)
    assert found == numbers.tolist()
    assert [framed[s : s + n] for s, n in zip(value_starts, value_lengths, strict=True)] == [row[0] for row in rows]


@given(data=st.binary(max_size=30))
def test_messages_are_taken_apart_alike_whatever_they_are(data: bytes) -> None:
    both(
        "parse_messages",
        data,
        memoryview(np.zeros(1, np.int64)),
        memoryview(np.array([len(data)], np.int64)),
        outputs=[np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 3), np.int64)],
    )


def test_protobuf_agrees() -> None:
    """The bytes are the same as those of protobuf's own encoder."""
    pytest.importorskip("google.protobuf", reason="protobuf comes with the extra [spark]")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="record.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="Record")
    kinds = descriptor_pb2.FieldDescriptorProto
    types = {
        "value": kinds.TYPE_BYTES,
        "offset": kinds.TYPE_UINT64,
        "term": kinds.TYPE_UINT64,
        "type": kinds.TYPE_UINT32,
    }
    for number, (name, kind) in enumerate(types.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    record = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Record"))
    for value, offset, term, type_ in ((b"", 0, 0, 0), (b"a", 300, 2**64 - 1, 2**32 - 1), (b"x" * 200, 1, 0, 5)):
        theirs = record(value=value, offset=offset, term=term, type=type_).SerializeToString()
        out, positions = np.zeros(300, np.uint8), np.zeros(1, np.int64)
        numbers = np.array([[offset, term - 2**64 if term >= 2**63 else term, type_]], np.int64)
        ends = np.array([0, len(value)], np.int32)
        size = packaged.put_messages(
            memoryview(out), memoryview(ends), 0, memoryview(value), memoryview(numbers), memoryview(positions)
        )
        assert bytes(out[:size]) == len(theirs).to_bytes(8, "big") + theirs


@pytest.mark.parametrize("kernel", BOTH)
def test_buffers_that_are_too_small_are_refused(kernel: Any) -> None:
    one, none = memoryview(np.zeros(1, np.int64)), memoryview(np.zeros(0, np.int64))
    ends, far = memoryview(np.array([0, 3], np.int32)), memoryview(np.array([0, 9], np.int32))
    room, large = memoryview(bytearray(4)), memoryview(bytearray(99))
    three, four = memoryview(b"abc"), memoryview(b"abcd")
    numbers = memoryview(np.ones((1, 3), np.int64))
    for call in (
        lambda: kernel.walk_frames(four, 0, 5, 4, 0, 4, True, 9, one, one),
        lambda: kernel.walk_frames(four, -1, 4, 4, 0, 4, True, 9, one, one),
        lambda: kernel.walk_frames(four, 0, 4, 4, 1, 4, True, 9, one, one),
        lambda: kernel.walk_frames(four, 0, 4, 4, 0, 3, True, 9, one, one),
        lambda: kernel.numbers_at(four, one, 1, 4, True, memoryview(np.zeros(1, np.int64))),
        lambda: kernel.numbers_at(four, one, 0, 4, True, none),
        lambda: kernel.numbers_at(four, one, 0, 5, True, one),
        lambda: kernel.crc32_of(four, one, none, one),
        lambda: kernel.gather(four, one, memoryview(np.array([4], np.int64)), ends, memoryview(bytearray(3))),
        lambda: kernel.gather(four, one, one, memoryview(np.zeros(1, np.int32)), room),
        lambda: kernel.parse_messages(four, one, one, none, one, numbers),
        lambda: kernel.put_messages(room, ends, 0, three, numbers, one),
        lambda: kernel.put_messages(large, far, 0, three, numbers, one),
        lambda: kernel.put_messages(large, ends, -1, three, numbers, one),
        lambda: kernel.weave(room, four, 4, ends, 0, three, 1),
        lambda: kernel.weave(large, three, 4, ends, 0, three, 1),
        lambda: kernel.weave(large, four, 4, far, 0, three, 1),
        lambda: kernel.weave(large, four, 4, ends, 0, three, 2),
    ):
        with pytest.raises(ValueError, match=r"outside|too small"):
            call()


@given(values=st.lists(st.binary(max_size=20), max_size=5), head=st.integers(0, 16))
def test_heads_and_values_are_woven_alike(values: list[bytes], head: int) -> None:
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    heads = bytes(i % 256 for i in range(head * len(values)))
    seen = []
    for kernel in KERNELS:
        out = bytearray(400)
        size = kernel.weave(
            memoryview(out), memoryview(heads), head, memoryview(ends), 0, memoryview(b"".join(values)), len(values)
        )
        seen.append(bytes(out[:size]))
    expected = b"".join(heads[i * head : (i + 1) * head] + value for i, value in enumerate(values))
    assert seen == [expected, expected]
