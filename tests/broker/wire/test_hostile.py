"""Bytes that are not a message: only `Malformed`, in bounded time and memory, whatever they are."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.broker import wire
from sawlog.broker.wire import LARGEST_WITHOUT_RECORDS, Api, Key, Malformed

from ...looping import for_each
from .bodies import Drawing

APIS = list(wire.BY_KEY.values())


def request(api: Api, version: int, random: Random) -> bytes:
    body = Drawing(random, version).body(api.request)
    return b"".join(wire.encode_request(api.key, version, 1, "client", body))[4:]


def response(api: Api, version: int, random: Random) -> bytes:
    body = Drawing(random, version).body(api.response)
    header = wire.RequestHeader(api.key, version, 1, None, 0)
    return b"".join(wire.encode_response(header, body))[4:]


def read_request(frame: bytes) -> bool:
    """Return whether it is a message. Any error but `Malformed` fails the test."""
    try:
        wire.decode_request(wire.parse_header(memoryview(frame)), memoryview(frame))
    except Malformed:
        return False
    return True


def read_response(key: int, version: int, frame: bytes) -> bool:
    try:
        wire.decode_response(key, version, memoryview(frame))
    except Malformed:
        return False
    return True


def mutated(frame: bytes, random: Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(8, len(changed)) if len(changed) > 8 else 0
        match random.randrange(4):
            case 0:
                changed[at : at + 1] = random.randbytes(1)
            case 1:
                changed[at : at + 4] = random.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
            case 2:
                del changed[at : at + random.randrange(1, 9)]
            case _:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
    return bytes(changed)


@pytest.mark.alternating
@for_each("api", APIS)
def test_a_message_that_is_cut_is_malformed(api: Api) -> None:
    random = Random(api.name)
    for version in (api.versions[0], api.versions[-1]):
        whole = request(api, version, random)
        assert read_request(whole)
        assert not any(read_request(whole[:end]) for end in ends(len(whole), random))
        answer = response(api, version, random)
        assert read_response(api.key, version, answer)
        assert not any(read_response(api.key, version, answer[:end]) for end in ends(len(answer), random))


def ends(size: int, random: Random) -> list[int]:
    """Return where to cut a message: everywhere in a short one, in some places of a long one."""
    return list(range(size)) if size <= 60 else sorted(random.sample(range(size), 60))


@for_each("api", APIS)
def test_a_damaged_message_is_read_or_malformed(api: Api) -> None:
    random = Random(api.name)
    for version in api.versions:
        whole, answer = request(api, version, random), response(api, version, random)
        for _ in range(6):
            read_request(mutated(whole, random))
            read_response(api.key, version, mutated(answer, random))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(frame: bytes) -> None:
    read_request(frame)


@given(st.sampled_from(APIS), st.data())
def test_any_body_is_read_or_malformed(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(api.versions))
    body = data.draw(st.binary(max_size=100))
    read_request(struct.pack(">hhih", api.key, version, 1, -1) + b"\0" * api.flexible(version) + body)
    read_response(api.key, version, bytes(4) + body)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(9), id="within the header"),
        pytest.param(struct.pack(">hhih", Key.METADATA, 0, 1, 100) + b"short", id="client id too long"),
        pytest.param(struct.pack(">hhih", Key.METADATA, 0, 1, -2), id="client id of negative length"),
        pytest.param(struct.pack(">hhih", Key.METADATA, 0, 1, 2) + b"\xff\xfe", id="client id is no text"),
        pytest.param(struct.pack(">hhih", Key.METADATA, 12, 1, -1) + b"\xff" * 5, id="endless number"),
        pytest.param(struct.pack(">hhihi", Key.METADATA, 1, 1, -1, -2), id="array of negative length"),
        pytest.param(struct.pack(">hhihi", Key.METADATA, 0, 1, -1, -1), id="null array"),
        pytest.param(struct.pack(">hhihih", Key.METADATA, 1, 1, -1, 1, -1), id="null string"),
        pytest.param(struct.pack(">hhihh", Key.HEARTBEAT, 0, 1, -1, -5), id="string of negative length"),
        pytest.param(struct.pack(">hhihb", Key.DESCRIBE_TOPIC_PARTITIONS, 0, 1, -1, 0) + b"\1\0\0\0\0\5", id="marker"),
    ],
)
def test_impossible_messages_are_malformed(frame: bytes) -> None:
    assert not read_request(frame)


@pytest.mark.parametrize("version", [1, 12])
def test_a_huge_claim_allocates_nothing(version: int) -> None:
    claim = b"\xff\xff\xff\xff\x07" if version == 12 else b"\x7f\xff\xff\xff"
    frame = struct.pack(">hhih", Key.METADATA, version, 1, -1) + b"\0" * (version == 12) + claim + bytes(1000)
    read_request(frame)  # compiling and importing do not count
    tracemalloc.start()
    try:
        assert not read_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(("key", "version"), [(Key.DESCRIBE_TOPIC_PARTITIONS, 0), (Key.PRODUCE, 9), (Key.PRODUCE, 7)])
def test_many_empty_structs_are_refused_before_they_fill_the_memory(key: Key, version: int) -> None:
    """Each claim is true, but a struct takes a hundred times the memory of its bytes."""
    flexible = wire.BY_KEY[key].flexible(version)
    count = 2_500_000  # the claim takes four bytes
    head = struct.pack(">hhih", key, version, 1, -1) + b"\0" * flexible
    if key == Key.PRODUCE:
        head += (b"\0" if flexible else b"\xff\xff") + bytes(6)
    element = (b"\1\1\0" if key == Key.PRODUCE else b"\1\0") if flexible else bytes(6)
    claim = bytes(
        [count + 1 & 0x7F | 0x80, count + 1 >> 7 & 0x7F | 0x80, count + 1 >> 14 & 0x7F | 0x80, count + 1 >> 21]
    )
    frame = head + (claim if flexible else struct.pack(">i", count)) + element * count
    tracemalloc.start()
    try:
        assert not read_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("key", "version", "head", "element"),
    [
        (Key.DESCRIBE_TOPIC_PARTITIONS, 0, b"", b"\1\0"),
        (Key.METADATA, 12, b"", bytes(16) + b"\0\0"),
        (Key.FETCH, 12, bytes(25), b"\1\1\0"),
        (Key.DELETE_GROUPS, 2, b"", b"\1"),
        (Key.INCREMENTAL_ALTER_CONFIGS, 1, b"", b"\2\1\1\0"),
    ],
)
def test_a_request_of_an_allowed_size_has_a_limited_number_of_elements(
    key: Key, version: int, head: bytes, element: bytes
) -> None:
    """Decoded without a limit, it would take two hundred times its size."""
    count = 400_000
    claim = bytes([count + 1 & 0x7F | 0x80, count + 1 >> 7 & 0x7F | 0x80, count + 1 >> 14])
    frame = struct.pack(">hhihb", key, version, 1, -1, 0) + head + claim + element * count
    assert len(frame) < LARGEST_WITHOUT_RECORDS
    tracemalloc.start()
    try:
        assert not read_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_elements_are_counted_over_all_arrays_of_a_request_and_for_each_request_again() -> None:
    def frame(topics: int, parts: int) -> bytes:
        topic = struct.pack(">hi", 0, parts) + bytes(4) * parts  # numbers, which are read faster than structs
        return struct.pack(">hhihhi", Key.OFFSET_FETCH, 1, 1, -1, 0, topics) + topic * topics

    for _ in range(2):
        assert read_request(frame(100, 1100))
    assert not read_request(frame(101, 2000))


def test_nested_claims_are_bounded_by_the_frame() -> None:
    """A thousand elements that each claim as many as fit: the sum is bounded, not only each."""
    head = struct.pack(">hhih", Key.DELETE_RECORDS, 0, 1, -1)
    inner = struct.pack(">hi", 0, 0)
    frame = head + struct.pack(">i", 1000) + inner * 999 + struct.pack(">hi", 0, 1 << 20) + bytes(12)
    tracemalloc.start()
    try:
        assert not read_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(frame)
