"""Records go where Kafka's Java client would send them."""

from __future__ import annotations

import itertools
import warnings

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import kernel
from sawlog.errors import InvalidRecordType
from sawlog.store.partitioner import Sticky, partition_for, partitions_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in an old way
    from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # the vectors of Kafka's own UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    assert kernel.murmur2(key) == expected


@given(st.binary(max_size=100), st.integers(1, 1000))
def test_a_key_goes_where_another_client_sends_it(key: bytes, partitions: int) -> None:
    assert partition_for(key, partitions) == (murmur2_of_kafka_python(key) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_key_is_its_bytes(kind: type) -> None:
    assert partition_for(kind(b"customer 7"), 100) == partition_for(b"customer 7", 100)


@pytest.mark.parametrize("key", ["text", 7, [1]])
def test_a_key_that_is_no_bytes_is_refused(key: object) -> None:
    with pytest.raises(InvalidRecordType, match="key"):
        partition_for(key, 3)  # type: ignore[arg-type]


@given(st.lists(st.none() | st.binary(max_size=20), max_size=30), st.integers(0, 5), st.integers(1, 50))
def test_a_column_of_keys_goes_where_each_key_goes(keys: list[bytes | None], skip: int, partitions: int) -> None:
    column = pa.array(keys, pa.binary())[skip:]
    expected = [-7 if key is None else partition_for(key, partitions) for key in keys[skip:]]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert partitions_for(column.cast(kind), partitions, -7).tolist() == expected
    chunked = pa.chunked_array([column[:3], column[3:]])
    assert partitions_for(chunked, partitions, -7).tolist() == expected


def test_text_keys_are_their_utf_8() -> None:
    column = pa.array(["ä", None, "b"])
    assert partitions_for(column, 9, 4).tolist() == [partition_for("ä".encode(), 9), 4, partition_for(b"b", 9)]


def test_a_column_that_is_no_key_is_refused() -> None:
    with pytest.raises(InvalidRecordType, match="int64"):
        partitions_for(pa.array([1, 2]), 3, 0)


def test_without_a_key_records_stay_together_until_a_batch_is_full_and_then_go_elsewhere() -> None:
    sticky = Sticky(5, sticky_bytes=1000)
    drawn = [sticky.take(90) for _ in range(100)]  # ten of them make a batch
    runs = [drawn[i : i + 10] for i in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in itertools.pairwise(runs))


def test_without_a_key_all_partitions_get_their_share() -> None:
    sticky = Sticky(4, sticky_bytes=1)
    drawn = [sticky.take(100) for _ in range(4000)]
    assert all(700 < drawn.count(number) < 1300 for number in range(4))


def test_one_partition_is_the_only_choice() -> None:
    assert {Sticky(1, 1).take(100) for _ in range(5)} == {0}
