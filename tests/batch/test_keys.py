"""Key functions of the kernel: the partition of a key, its last offset, and the records that compaction keeps.

The packaged kernel and the interpreted one agree on everything; both agree with Kafka's own numbers, with a plain
dict, and with SipHash as it is described. Whatever bytes and rows they are given, they refuse or stay inside.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import build
from sawlog.batch import kernel as packaged
from sawlog.batch.build import encode
from sawlog.batch.header import new_rows
from sawlog.batch.read import decode
from sawlog.errors import SawlogError

from ..log.sampling import some_of, some_or_all
from .strategies import record_lists, share
from .test_hostile import SMALL, flips
from .twins import BOTH, interpreted, outcome, scan
from .wire import CONTROL, TRANSACTIONAL, Header, around, batch, record, with_right_crc

T = 1_700_000_000_000
SECRET = bytes(range(16))

#: From the tests of Kafka's own client.
KAFKAS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


# --- partitions


@pytest.mark.parametrize("kernel", BOTH)
def test_a_key_has_the_number_that_kafka_gives_it(kernel: Any) -> None:
    assert {key: kernel.murmur2(key) for key in KAFKAS} == KAFKAS


@given(key=st.binary(max_size=40))
def test_both_kernels_and_aiokafka_agree_on_every_key(key: bytes) -> None:
    number = packaged.murmur2(key)
    assert number == interpreted.murmur2(key)
    assert -(2**31) <= number < 2**31
    assert number % 2**32 == aiokafka_murmur2(key) % 2**32
    for partitions in (1, 2, 7, 1000, 2**31 - 1, 2**31):
        at = packaged.partition_of(key, partitions)
        assert at == interpreted.partition_of(key, partitions) == (number & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("kernel", BOTH)
def test_a_key_may_be_any_buffer(kernel: Any) -> None:
    for key in (bytearray(b"foobar"), memoryview(b"foobar"), memoryview(b"xfoobarx")[1:7]):
        assert kernel.murmur2(key) == KAFKAS[b"foobar"]
        assert kernel.partition_of(key, 10) == kernel.partition_of(b"foobar", 10)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("partitions", [0, -1, -(2**31)])
def test_there_is_at_least_one_partition(kernel: Any, partitions: int) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        kernel.partition_of(b"k", partitions)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("key", [None, "text", 5])
def test_a_key_that_is_no_buffer_is_refused(kernel: Any, key: Any) -> None:
    with pytest.raises(TypeError):
        kernel.murmur2(key)
    with pytest.raises(TypeError):
        kernel.partition_of(key, 3)


def of_column(kernel: Any, keys: list[bytes | None], first: int, partitions: int) -> list[int]:
    """Return the partitions of the keys from `first` on, computed from an Arrow column."""
    column = pa.array(keys, pa.large_binary())
    valid, offsets, data = column.buffers()
    found = np.full(len(keys) - first, -7, np.int32)
    kernel.partitions_of(
        memoryview(np.frombuffer(offsets, np.int64, len(keys) + 1)[first:].copy()),
        memoryview(data if data is not None else b"").cast("B"),
        memoryview(valid if valid is not None else b"").cast("B"),
        first,
        partitions,
        -1,
        memoryview(found),
    )
    return found.tolist()


@given(
    keys=st.lists(st.none() | st.binary(max_size=12), min_size=1, max_size=20),
    first=st.integers(0, 9),
    partitions=st.integers(1, 50),
)
def test_a_column_of_keys_goes_where_each_key_goes(keys: list[bytes | None], first: int, partitions: int) -> None:
    first = min(first, len(keys) - 1)
    expected = [-1 if key is None else packaged.partition_of(key, partitions) for key in keys[first:]]
    assert of_column(packaged, keys, first, partitions) == expected
    assert of_column(interpreted, keys, first, partitions) == expected


@given(
    offsets=st.lists(st.integers(-3, 12) | st.sampled_from([2**62, -(2**62), 2**63 - 1]), max_size=6),
    size=st.integers(0, 10),
    bits=st.integers(0, 2),
    first_bit=st.integers(-2, 20),
    partitions=st.integers(-1, 3),
    rows=st.integers(0, 7),
)
def test_a_column_that_lies_is_refused_by_both_kernels(
    offsets: list[int], size: int, bits: int, first_bit: int, partitions: int, rows: int
) -> None:
    said = []
    for kernel in (packaged, interpreted):
        room = np.full(rows + 2, -7, np.int32)
        result = outcome(
            kernel.partitions_of,
            memoryview(np.array(offsets, np.int64)),
            memoryview(bytes(size)),
            memoryview(b"\x55" * bits),
            first_bit,
            partitions,
            -1,
            memoryview(room)[1 : rows + 1],
        )
        assert room[0] == room[-1] == -7
        said.append((result, room.tolist()))
    assert said[0] == said[1]
    right = len(offsets) > rows and all(0 <= a <= b <= size for a, b in pairwise(offsets[: rows + 1]))
    right = right and partitions >= 1 and first_bit >= 0 and (bits == 0 or first_bit + rows <= 8 * bits)
    assert (said[0][0] != "refused") == right


# --- the dispatcher


def builders(kernel: Any, count: int, **settings: Any) -> list[Any]:
    return [kernel.BatchBuilder(build.record_error, **settings) for _ in range(count)]


def contents(kernel: Any, built: list[Any]) -> list[Any]:
    """Return the records in each builder."""
    found = []
    for builder in built:
        data = memoryview(bytearray(builder.buffer[: builder.position]))
        kernel.write_header(
            data, 0, 0, len(data), 0, 0, max(builder.count - 1, 0), builder.base_timestamp, builder.max_timestamp,
            -1, -1, -1, builder.count,
        )  # fmt: skip
        records = decode(with_right_crc(bytes(data))) if builder.count else []
        found.append([(r.value, r.key, r.headers, r.timestamp) for r in records])
    return found


@share(0.5)
@given(records=record_lists, partitions=st.integers(1, 5), sticky_bytes=st.integers(0, 30))
def test_both_kernels_give_each_record_to_its_partition(records: Any, partitions: int, sticky_bytes: int) -> None:
    seen = []
    for kernel in (packaged, interpreted):
        built = builders(kernel, partitions)
        chosen = iter(range(10_000))
        dispatcher = kernel.Dispatcher(built, sticky_bytes, lambda: next(chosen) % partitions)  # noqa: B023
        for value, key, headers, timestamp in records:
            dispatcher.add(value, key, headers, timestamp)
        seen.append((contents(kernel, built), next(chosen)))
    assert seen[0] == seen[1]
    found, _ = seen[0]
    assert sum(map(len, found)) == len(records)
    for at, partition in enumerate(found):
        assert all(key is None or packaged.partition_of(key, partitions) == at for _, key, _, _ in partition)
        mine = [tuple(r) for r in records if r[1] is not None and packaged.partition_of(r[1], partitions) == at]
        assert [r for r in partition if r[1] is not None] == mine


@pytest.mark.parametrize("kernel", BOTH)
def test_records_without_a_key_stay_together_for_a_while(kernel: Any) -> None:
    built = builders(kernel, 3)
    chosen = iter([2, 0, 1, 2, 0])
    dispatcher = kernel.Dispatcher(built, 10, lambda: next(chosen))
    for _ in range(6):
        dispatcher.add(b"12345")
    assert [builder.count for builder in built] == [2, 2, 2]
    for _ in range(10):
        dispatcher.add(None)
    assert built[2].count == 12


@pytest.mark.parametrize("kernel", BOTH)
def test_a_topic_with_keys_refuses_records_without_one(kernel: Any) -> None:
    built = builders(kernel, 2)
    dispatcher = kernel.Dispatcher(built, 10, lambda: 0, True)
    dispatcher.add(b"v", b"k")
    with pytest.raises(SawlogError):
        dispatcher.add(b"v")
    assert sum(builder.count for builder in built) == 1


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(
    "bad", [(5, b"k"), (b"v", 5), (b"v", b"k", 7), (b"v", b"k", (), -5), (b"v", None, 7), (5, None)]
)
def test_a_bad_record_leaves_all_batches_as_they_were(kernel: Any, bad: tuple[Any, ...]) -> None:
    built = builders(kernel, 3)
    dispatcher = kernel.Dispatcher(built, 10, lambda: 1)
    dispatcher.add(b"v", b"k", (), T)
    before = contents(kernel, built)
    with pytest.raises(SawlogError):
        dispatcher.add(*bad)
    assert contents(kernel, built) == before
    dispatcher.add(b"v", b"k", (), T)
    assert sum(builder.count for builder in built) == 2


@pytest.mark.parametrize("kernel", BOTH)
def test_a_full_batch_is_told_of(kernel: Any) -> None:
    told: list[int] = []
    built = [kernel.BatchBuilder(build.record_error, limit=150, on_full=lambda: told.append(1)) for _ in range(2)]
    dispatcher = kernel.Dispatcher(built, 10**9, lambda: 0)
    dispatcher.add(b"v" * 200, b"k")
    dispatcher.add(b"v" * 200)
    assert len(told) == 2


@pytest.mark.parametrize("kernel", BOTH)
def test_a_dispatcher_needs_builders_and_a_choice_among_them(kernel: Any) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        kernel.Dispatcher([], 10, lambda: 0)
    with pytest.raises(TypeError):
        kernel.Dispatcher([object()], 10, lambda: 0)
    for wrong in (-1, 2, 2**40):
        with pytest.raises(ValueError, match="no such partition"):
            kernel.Dispatcher(builders(kernel, 2), 10, lambda: wrong)  # noqa: B023
    choices = iter([0, 5])
    dispatcher = kernel.Dispatcher(builders(kernel, 2), 1, lambda: next(choices))
    with pytest.raises(ValueError, match="no such partition"):
        dispatcher.add(b"v")


@pytest.mark.parametrize("kernel", BOTH)
def test_the_list_of_builders_is_the_dispatchers_own(kernel: Any) -> None:
    built = builders(kernel, 2)
    dispatcher = kernel.Dispatcher(built, 10, lambda: 1)
    first = list(built)
    built.clear()
    dispatcher.add(b"v")
    assert first[1].count == 1


# --- the last offset of every key

MASK = 2**64 - 1


def sip_128(key: bytes, secret: bytes) -> tuple[int, int]:
    """Compute SipHash-1-3 with 128 bits of output, directly from its specification."""
    low, high = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    v = [0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573]
    v = [word ^ half for word, half in zip(v, (low, high, low, high), strict=True)]

    def turn(x: int, n: int) -> int:
        return (x << n | x >> 64 - n) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    whole = len(key) // 8 * 8
    words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(key[whole:].ljust(7, b"\0"), "little") | (len(key) & 255) << 56)
    for word in words:
        v[3] ^= word
        rounds(1)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(3)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(3)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def table(slots: int = 64) -> np.ndarray:
    return np.zeros((slots, 3), np.uint64)


def noted(kernel: Any, data: bytes, slots: int = 64) -> tuple[Any, Any, list[list[int]]]:
    """Record the keys of batches with one kernel: (result, map, table)."""
    room = table(slots)
    keys = kernel.KeyMap(room, SECRET)
    _, rows = scan(kernel, memoryview(data), room=64)
    said = outcome(keys.note, memoryview(data), memoryview(rows))
    return said, keys, room.tolist()


@given(key=st.binary(max_size=40) | st.integers(0, 600).map(lambda n: b"x" * n))
def test_a_key_is_known_by_its_siphash(key: bytes) -> None:
    data = batch([(0, 0, key, b"v", ())], Header(base_offset=41))
    for kernel in (packaged, interpreted):
        said, keys, found = noted(kernel, data)
        assert said == (1, False)
        assert [row for row in found if row[2]] == [[*sip_128(key, SECRET), 42]]
        assert keys.last(key) == 41
        assert keys.last(key + b"x") == -1


@share(0.5)
@given(
    batches=st.lists(st.lists(st.none() | st.binary(max_size=2), min_size=1, max_size=8), min_size=1, max_size=6),
    first=st.integers(0, 2**40),
)
def test_the_map_agrees_with_a_dict(batches: list[list[bytes | None]], first: int) -> None:
    data, expected, offset = b"", {}, first
    for keys in batches:
        parts = [(i, 0, key, b"v", ()) for i, key in enumerate(keys)]
        data += batch(parts, Header(base_offset=offset))
        expected.update({key: offset + i for i, key in enumerate(keys) if key is not None})
        offset += len(keys)
    said, tables = [], []
    for kernel in (packaged, interpreted):
        done, found, room = noted(kernel, data)
        said.append(done)
        tables.append(room)
        assert {key: found.last(key) for key in expected} == expected
        assert found.count == len(expected)
    assert said == [(len(batches), False)] * 2
    assert tables[0] == tables[1]


@pytest.mark.parametrize("kernel", BOTH)
def test_a_full_table_takes_no_more_batches(kernel: Any) -> None:
    data = b"".join(batch([(0, 0, b"%d" % i, b"v", ())], Header(base_offset=i)) for i in range(20))
    said, keys, _ = noted(kernel, data, slots=8)
    assert said == (7, False)
    assert [keys.last(b"%d" % i) for i in range(9)] == [0, 1, 2, 3, 4, 5, 6, -1, -1]


@pytest.mark.parametrize("kernel", BOTH)
def test_a_batch_whose_keys_might_not_fit_is_not_begun(kernel: Any) -> None:
    data = batch([(i, 0, b"same", b"v", ()) for i in range(8)])
    said, keys, _ = noted(kernel, data, slots=8)
    assert (said, keys.count) == ((0, False), 0)


@pytest.mark.parametrize("kernel", BOTH)
def test_markers_of_transactions_have_no_keys(kernel: Any) -> None:
    marker = batch([(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\0", ())], Header(attributes=CONTROL | TRANSACTIONAL))
    said, keys, _ = noted(kernel, marker)
    assert (said, keys.count) == ((1, False), 0)


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("shape", [(0, 3), (4, 3), (12, 3), (16, 2), (16, 4)])
def test_a_table_of_another_shape_is_refused(kernel: Any, shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="power of two"):
        kernel.KeyMap(np.zeros(shape, np.uint64), SECRET)


@pytest.mark.parametrize("kernel", BOTH)
def test_keys_with_a_common_slot_are_distinguished(kernel: Any) -> None:
    rng = random.Random(3)
    crowd = [key for key in (rng.randbytes(6) for _ in range(3000)) if sip_128(key, SECRET)[0] & 63 == 63][:20]
    data = b"".join(batch([(0, 0, key, b"v", ())], Header(base_offset=i)) for i, key in enumerate(crowd))
    said, keys, _ = noted(kernel, data)
    assert said == (20, False)
    assert [keys.last(key) for key in crowd] == list(range(20))


# --- what is kept


def kept(
    kernel: Any, data: bytes, superseding: bytes = b"", *, floor: int = 0, forget: int = 0, **settings: Any
) -> Any:
    """Return the result of `keep_records` and its records as a batch; check that it writes only into its buffer."""
    view = memoryview(data)
    _, rows = scan(kernel, view, room=64)
    return kept_of_rows(kernel, view, rows, superseding, floor=floor, forget=forget, **settings)


def kept_of_rows(
    kernel: Any,
    view: memoryview,
    rows: np.ndarray,
    superseding: bytes = b"",
    *,
    floor: int = 0,
    forget: int = 0,
    first: int = 0,
    last: int | None = None,
    room: int | None = None,
    limit: int = 2**40,
    fresh: bool = True,
) -> Any:
    keys = noted(kernel, superseding)[1] if superseding else None
    size = int((rows[:, 13] - rows[:, 12]).sum() + 24 * rows[:, 4].sum()) if room is None else room
    space = bytearray(b"\xaa" * (max(size, 0) + 200))
    out = memoryview(space)[100 : 100 + max(size, 0)]
    base = int(rows[0, 2]) if len(rows) else 0
    said = outcome(
        kernel.keep_records,
        view,
        memoryview(rows),
        first,
        len(rows) if last is None else last,
        keys,
        floor,
        forget,
        out,
        0,
        limit,
        base,
        T,
        fresh,
    )
    assert space[:100] == space[-100:] == b"\xaa" * 100
    return said, (b"" if said == "refused" else bytes(out[: said[2]])), base


def records_of(result: Any, last: int) -> list[Any]:
    """Read the remaining records."""
    said, body, base = result
    head = Header(base_offset=base, base_timestamp=said[3], last_delta=last - base, count=said[1])
    return decode(around(body, head))


@share(0.5)
@given(
    records=st.lists(record_lists, min_size=1, max_size=4),
    superseded=st.lists(st.integers(0, 47), max_size=6),
    floor=st.integers(0, 12),
    forget=st.integers(0, 30),
)
def test_both_kernels_keep_exactly_what_is_wanted(
    records: list[Any], superseded: list[int], floor: int, forget: int
) -> None:
    data, everything, offset = b"", [], 0
    for group in records:
        made = bytearray(encode(group))
        made[:8] = offset.to_bytes(8, "big")
        data += bytes(made)
        offset += len(group)
    everything = decode(data)
    again = {everything[n].key for n in superseded if n < len(everything) and everything[n].key is not None}
    later = b"".join(batch([(0, 0, key, b"", ())], Header(base_offset=1000 + i)) for i, key in enumerate(sorted(again)))  # type: ignore[type-var]
    wanted = [
        r
        for r in everything
        if r.offset >= floor
        and r.key not in again
        and not (r.key is not None and r.value is None and r.offset < forget)
    ]
    results = [kept(kernel, data, later, floor=floor, forget=forget) for kernel in (packaged, interpreted)]
    assert results[0] == results[1]
    said = results[0][0]
    assert (said[0], said[1], said[7]) == (len(records), len(wanted), False)
    assert records_of(results[0], offset - 1) == wanted
    assert said[4] == max((r.timestamp for r in wanted), default=-1)
    tombstones = [r for r in everything if r.key is not None and r.value is None]
    tombstones = [r for r in tombstones if r.offset >= floor and r.key not in again]
    assert said[5:7] == (sum(r.offset < forget for r in tombstones), sum(r.offset >= forget for r in tombstones))


@pytest.mark.parametrize("kernel", BOTH)
def test_records_behind_the_limit_wait_for_the_next_batch(kernel: Any) -> None:
    data = b"".join(batch([(0, 0, b"k%d" % i, b"v" * 50, ())], Header(base_offset=i)) for i in range(6))
    said, body, _ = kept(kernel, data, limit=100)
    assert (said[0], said[1]) == (2, 2)
    assert len(body) >= 100


@pytest.mark.parametrize("kernel", BOTH)
def test_a_batch_that_has_no_room_is_not_begun(kernel: Any) -> None:
    data = b"".join(batch([(0, 0, b"k%d" % i, b"v" * 50, ())], Header(base_offset=i)) for i in range(6))
    one = kept(kernel, data, last=1)
    for room in (0, 10, 60, len(one[1]) + 23):
        said, _, _ = kept(kernel, data, room=room)
        assert (said[0], said[1], said[7]) == (0, 0, False)
    said, _, _ = kept(kernel, data, room=len(one[1]) + 24)
    assert said[:2] == (1, 1)


@pytest.mark.parametrize("kernel", BOTH)
def test_times_and_offsets_may_grow_to_their_longest(kernel: Any) -> None:
    """A new base turns numbers of one byte into numbers of ten; the required space suffices."""
    far = 9_000_000_000_000_000
    data = b"".join(
        batch([(i, 0, b"", b"", ()) for i in range(20)], Header(base_offset=at, base_timestamp=time))
        for at, time in ((0, 0), (2**31 - 50, far))
    )
    said, _, _ = result = kept(kernel, data)
    assert (said[0], said[1], said[3], said[4]) == (2, 40, 0, far)
    assert [r.timestamp for r in records_of(result, 2**31 - 31)] == [0] * 20 + [far] * 20


def test_streamed_records_with_padded_numbers_are_kept_as_any() -> None:
    body = record((0, 0, b"k", b"value", ()))
    padded = bytes([body[0] | 0x80, 0x80, 0x80, 0x80, 0]) + body[1:]
    data = around(padded, Header(count=1, last_delta=0, base_timestamp=T))
    results = [kept(kernel, data) for kernel in (packaged, interpreted)]
    assert results[0] == results[1]
    assert [r.value for r in records_of(results[0], 0)] == [b"value"]


# --- bytes from an enemy


def observed(kernel: Any, data: bytes) -> list[Any]:
    """Return the results of all key functions for some bytes."""
    view = memoryview(data)
    _, rows = scan(kernel, view)
    if not len(rows):
        return []
    said, _, room = noted(kernel, data)
    return [said, room, kept(kernel, data), kept(kernel, data, SMALL[0], forget=5, floor=1), kept(kernel, data, data)]


@pytest.mark.alternating
@some_or_all(150)
@pytest.mark.parametrize("data", SMALL, ids=len)
def test_every_flipped_bit_under_a_right_checksum_is_taken_or_refused(data: bytes, most: int | None) -> None:
    for flipped in some_of(flips(data), most):
        bent = with_right_crc(flipped)
        assert observed(packaged, bent) == observed(interpreted, bent)


@pytest.mark.parametrize("data", SMALL[:3], ids=len)
def test_records_cut_short_anywhere_do_not_parse(data: bytes) -> None:
    for size in range(61, len(data)):
        cut = with_right_crc(data[:8] + (size - 12).to_bytes(4, "big") + data[12:size])
        assert observed(packaged, cut) == observed(interpreted, cut)
        if len(scan(packaged, memoryview(cut))[1]):  # otherwise the header alone is inconsistent
            said = kept(packaged, cut)[0]
            assert said == "refused" or said[7]


@given(noise=st.binary(min_size=1, max_size=60), count=st.integers(0, 9), last=st.integers(0, 2**31 - 1))
def test_noise_is_taken_or_refused_alike(noise: bytes, count: int, last: int) -> None:
    data = around(noise, Header(base_offset=5, count=count, last_delta=last))
    assert observed(packaged, data) == observed(interpreted, data)


@given(
    where=st.sampled_from([4, 12, 13]),
    lie=st.integers(-5, 300) | st.sampled_from([2**31, 2**62, -(2**62), 2**63 - 1]),
    row=st.integers(0, 1),
)
def test_rows_that_point_elsewhere_are_refused_or_read_inside(where: int, lie: int, row: int) -> None:
    data = SMALL[0] + with_right_crc(SMALL[1])
    view = memoryview(data)
    said = []
    for kernel in (packaged, interpreted):
        _, rows = scan(kernel, view)
        rows = rows.copy()
        rows[row, where] = lie
        room = table()
        told = outcome(kernel.KeyMap(room, SECRET).note, view, memoryview(rows))
        said.append((told, room.tolist(), kept_of_rows(kernel, view, rows, room=400)))
    assert said[0] == said[1]


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize(("first", "last"), [(-1, 1), (0, 3), (2, 1), (5, 5), (0, 2**40)])
def test_a_span_outside_the_rows_is_refused(kernel: Any, first: int, last: int) -> None:
    data = SMALL[0] + SMALL[1]
    assert kept(kernel, data, first=first, last=last)[0] == "refused"


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("at", [-1, 301, 2**40])
def test_a_place_outside_the_room_is_refused(kernel: Any, at: int) -> None:
    data = memoryview(SMALL[0])
    _, rows = scan(kernel, data)
    arguments = (data, memoryview(rows), 0, 1, None, 0, 0, memoryview(bytearray(300)), at, 2**30, 0, T, True)
    assert outcome(kernel.keep_records, *arguments) == "refused"


@pytest.mark.parametrize("kernel", BOTH)
def test_rows_of_another_shape_are_refused(kernel: Any) -> None:
    rows = new_rows(1)[:, :10].copy()
    assert outcome(kernel.KeyMap(table(), SECRET).note, memoryview(SMALL[0]), memoryview(rows)) == "refused"


@pytest.mark.parametrize("kernel", BOTH)
def test_a_batch_that_does_not_parse_at_its_end_adds_nothing(kernel: Any) -> None:
    good = batch([(0, 0, b"a", b"1", ())])
    broken = batch([(0, 0, b"b", b"2", ()), (1, 0, b"c", b"3", ())], Header(base_offset=1))
    broken = with_right_crc(broken[:-1] + b"\x55")
    said, body, base = kept(kernel, good + broken)
    assert (said[0], said[1], said[7]) == (1, 1, True)
    head = Header(base_offset=base, base_timestamp=said[3], last_delta=0, count=1)
    assert [r.key for r in decode(around(body, head))] == [b"a"]
