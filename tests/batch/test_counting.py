"""Records are counted by key as a plain dict counts them: whatever the keys, however little room the tables have.

The packaged kernel and the interpreted one agree on everything, and stay inside their tables.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import counting
from sawlog.batch import kernel as packaged
from sawlog.batch.build import encode
from sawlog.batch.counting import KeyCounts
from sawlog.batch.header import Rows
from sawlog.batch.read import decode
from sawlog.errors import CorruptBatch

from .strategies import share
from .test_hostile import SMALL, flips
from .twins import BOTH, interpreted, outcome, scan
from .wire import Header, around, record

T = 1_700_000_000_000
SEED = 0x0123456789ABCDEF
FOR_EVER = 2**63 - 1

#: Around the lengths at which a key is stored in another way, and with equal beginnings.
keys = st.none() | st.binary(max_size=3) | st.integers(0, 18).map(lambda size: b"k" * size) | st.binary(max_size=40)
Found = dict[bytes | None, tuple[int, int, int, int, int]]


def batches_of(found: list[bytes | None], many: int = 7) -> memoryview:
    """Records with these keys, in batches of so many; their times go up and down."""
    data = bytearray()
    for first in range(0, len(found), many):
        part = found[first : first + many]
        data += encode([(b"v", key, (), T + ((first + at) ^ 5)) for at, key in enumerate(part)], base_offset=first)
    return memoryview(bytes(data))


def expected(found: list[bytes | None], start: int = 0, end: int = FOR_EVER) -> Found:
    made: Found = {}
    for offset, key in enumerate(found):
        if start <= offset < end:
            n, first, _, oldest, newest = made.get(key, (0, offset, offset, FOR_EVER, 0))
            time = T + (offset ^ 5)
            made[key] = n + 1, first, offset, min(oldest, time), max(newest, time)
    return made


class Tables:
    """What a kernel counts into."""

    def __init__(self, slots: int = 8, store_bytes: int = 40, seed: int = SEED) -> None:
        self.table = np.zeros((slots + 1, 4), np.uint64)
        self.ranges = np.zeros((slots + 1, 4), np.int64)
        self.store = bytearray(store_bytes)
        self.used = self.stored = 0
        self.seed = seed

    def count(self, kernel: Any, view: memoryview, rows: Rows, place: Any = (0, 0), limits: Any = (0, FOR_EVER)) -> Any:
        *stopped, self.used, self.stored, bad = kernel.count_keys(
            view,
            memoryview(rows),
            tuple(place),
            limits,
            memoryview(self.table),
            memoryview(self.ranges),
            memoryview(self.store),
            self.used,
            self.stored,
            self.seed,
        )
        return stopped, bad

    def found(self, kernel: Any) -> Found:
        offsets, data = np.zeros(len(self.table) + 1, np.int32), bytearray(4000)
        count, _ = kernel.counted_keys(
            memoryview(self.table), memoryview(self.store), memoryview(offsets), memoryview(data)
        )
        names = [bytes(data[offsets[at] : offsets[at + 1]]) for at in range(count)]
        used = np.flatnonzero(self.table[:, 2])
        lines = {
            name: (int(self.table[at, 3]), *self.ranges[at].tolist()) for name, at in zip(names, used, strict=True)
        }
        null = int(self.table[-1, 3])
        return lines if not null else {**lines, None: (null, *self.ranges[-1].tolist())}


def added(one: Found, other: Found) -> Found:
    made = dict(one)
    for key, (n, first, last, oldest, newest) in other.items():
        m, *limits = made.get(key, (0, first, last, oldest, newest))
        made[key] = n + m, min(first, limits[0]), max(last, limits[1]), min(oldest, limits[2]), max(newest, limits[3])
    return made


def counted(kernel: Any, view: memoryview, limits: tuple[int, int] = (0, FOR_EVER), **sizes: int) -> tuple[Found, int]:
    """All counts, with new tables whenever the old ones are full; and how often they were."""
    _, rows = scan(kernel, view, room=200)
    total: Found = {}
    place, tables, times = [0, 0], Tables(**sizes), 0
    while True:
        before = list(place)
        place, bad = tables.count(kernel, view, rows, place, limits)
        assert not bad
        if place[0] == len(rows):
            return added(total, tables.found(kernel)), times
        assert tables.used or place != before
        total, tables, times = added(total, tables.found(kernel)), Tables(**sizes), times + 1


@share(0.5)
@given(found=st.lists(keys, min_size=1, max_size=30), limits=st.tuples(st.integers(0, 15), st.integers(10, 40)))
def test_both_kernels_count_as_a_dict_does(found: list[bytes | None], limits: tuple[int, int]) -> None:
    view = batches_of(found)
    for kernel in (packaged, interpreted):
        assert counted(kernel, view)[0] == expected(found)
        assert counted(kernel, view, limits)[0] == expected(found, *limits)
    assert counted(packaged, view, slots=64, store_bytes=4000) == (expected(found), 0)


@share(0.5)
@given(found=st.lists(keys, min_size=1, max_size=30))
def test_counts_are_the_same_in_larger_tables(found: list[bytes | None]) -> None:
    view = batches_of(found)
    _, rows = scan(packaged, view, room=40)
    for kernel in (packaged, interpreted):
        small, large = Tables(64, 2000), Tables(256, 2000)
        small.count(kernel, view, rows)
        assert kernel.move_counts(
            memoryview(small.table), memoryview(small.ranges), memoryview(large.table), memoryview(large.ranges), SEED
        )
        large.store, large.used, large.stored = small.store, small.used, small.stored
        assert large.found(kernel) == expected(found)
        large.count(kernel, view, rows)  # and every key is found there
        assert {key: line[0] for key, line in large.found(kernel).items()} == {
            key: 2 * line[0] for key, line in expected(found).items()
        }


@pytest.mark.parametrize("kernel", BOTH)
def test_keys_that_are_chosen_for_their_hashes_do_not_slow_it_down(kernel: Any) -> None:
    def slot(key: bytes) -> int:
        word = int.from_bytes(key.ljust(8, b"\0"), "big")
        return int(interpreted.counting.mixed(interpreted.counting.mixed(SEED, word), len(key)) >> 56)

    bad = [key for key in (b"%d" % number for number in range(20_000)) if slot(key) == 7][:70]
    assert len(bad) == 70
    found, times = counted(kernel, batches_of([*bad, *bad]), slots=256)
    assert {key: line[0] for key, line in found.items()} == dict.fromkeys(bad, 2)
    assert times, "more than 64 keys had the same slot"


@pytest.mark.parametrize("data", SMALL, ids=len)
def test_damaged_batches_are_refused_by_both_kernels_alike(data: bytes) -> None:
    def count(kernel: Any, view: memoryview, rows: Rows) -> Any:
        tables = Tables(32, 500)
        stopped, bad = tables.count(kernel, view, rows)
        return bad or (stopped, tables.found(kernel))

    for flipped in flips(data):
        view = memoryview(flipped)
        _, rows = scan(packaged, view)
        assert outcome(count, packaged, view, rows) == outcome(count, interpreted, view, rows)


@pytest.mark.parametrize("kernel", BOTH)
def test_tables_of_a_wrong_shape_are_refused(kernel: Any) -> None:
    view = batches_of([b"a", b"b"])
    _, rows = scan(packaged, view)
    for change in (
        {"table": np.zeros((8, 4), np.uint64)},
        {"table": np.zeros((9, 3), np.uint64)},
        {"table": np.zeros((5, 4), np.uint64)},
        {"ranges": np.zeros((8, 4), np.int64)},
        {"ranges": np.zeros((0, 3), np.int64)},
        {"used": 5},
        {"used": -1},
        {"stored": 41},
    ):
        tables = Tables()
        for name, value in change.items():
            setattr(tables, name, value)
        with pytest.raises(ValueError, match="outside"):
            tables.count(kernel, view, rows)
    for place in ((2, 0), (-1, 0)):
        with pytest.raises(ValueError, match="outside"):
            Tables().count(kernel, view, rows, place)


@pytest.mark.parametrize("kernel", BOTH)
def test_a_store_that_a_table_leads_out_of_is_not_read(kernel: Any) -> None:
    view = batches_of([b"x" * 20])
    _, rows = scan(packaged, view)
    for where in (21, 2**62, 2**63 + 5):
        tables = Tables()
        tables.count(kernel, view, rows)
        at = int(np.flatnonzero(tables.table[:, 2])[0])
        tables.table[at, 1] = where
        with pytest.raises(ValueError, match="outside"):
            tables.found(kernel)
        tables.count(kernel, view, rows)  # as another key
        assert tables.table[at, 3] == 1


# --- in Python


def rows_of(counts: KeyCounts) -> Found:
    total: Found = {}
    for each in counts.take():
        lines = zip(*(column.cast("int64").to_pylist() for column in each.columns[1:]), strict=True)
        for key, line in zip(each.column(0).to_pylist(), lines, strict=True):
            total = added(total, {key: line})  # type: ignore[dict-item]
    return total


def add(counts: KeyCounts, view: memoryview) -> None:
    _, rows = scan(packaged, view, room=2000)
    counts.add(view, rows, 0, FOR_EVER, 1 << 20)


@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("most", [1 << 12, 1 << 14, 1 << 17])
def test_more_keys_than_fit_are_counted_all_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MOST_SLOTS", most)
    monkeypatch.setattr(counting, "_MOST_STORE_BYTES", 1 << 17)
    found: list[bytes | None] = [b"key-%d" % (number % 9000) for number in range(10_000)]
    found[500::1000] = [b"long " * 2000 + b"%d" % (number % 3) for number in range(10)]
    found[700::1000] = [None] * 10
    found[900] = b"x" * 200_000
    counts = KeyCounts(ranges=True)
    add(counts, batches_of(found, 100))
    counts.flush()
    assert rows_of(counts) == expected(found)
    add(counts, batches_of(found[:50]))  # it begins again
    counts.flush()
    assert rows_of(counts) == expected(found[:50])


def test_counting_is_given_up_where_nearly_every_record_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MOST_SLOTS", 1 << 12)
    found: list[bytes | None] = [b"key-%d" % (number % 4000) for number in range(5000)]
    counts = KeyCounts(ranges=True)
    add(counts, batches_of(found[:2500], 100))
    assert counts.is_sparse
    later = batches_of(found, 100)
    _, rows = scan(packaged, later, room=100)
    counts.add(later, rows, 2500, FOR_EVER, 1 << 20)
    assert counts.rows[-1].num_rows == 2500
    counts.flush()
    assert rows_of(counts) == expected(found)
    often = KeyCounts(ranges=False)
    add(often, batches_of([b"key-%d" % (number % 2100) for number in range(2040)] * 3 + found[:2100], 100))
    assert not often.is_sparse


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_batches_are_counted(compression: str) -> None:
    data = encode([(b"v" * 50, b"%d" % (n % 5), (), T) for n in range(100)], compression=compression)
    counts = KeyCounts(ranges=False)
    add(counts, memoryview(data))
    counts.flush()
    [rows] = counts.take()
    assert rows.schema.names == ["key", "records"]
    assert dict(zip(*(column.to_pylist() for column in rows.columns), strict=True)) == Counter(
        each.key for each in decode(data)
    )


def test_records_that_do_not_parse_spoil_the_counts() -> None:
    body = record((0, 0, b"k", b"v", ())) + record((1, 0, b"k", b"v", ()))[:-1] + b"\x7e"
    view = memoryview(around(body, Header(count=2, last_delta=1)))
    counts = KeyCounts(ranges=False)
    with pytest.raises(CorruptBatch, match="do not parse"):
        add(counts, view)
    assert counts.is_spoiled
