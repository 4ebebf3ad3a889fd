"""Records become batches: each of them in one, in order, and none is lost while a batch is not stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch.build import EncoderOptions
from sawlog.batch.compression import codec_id
from sawlog.batch.read import decode
from sawlog.errors import LogClosed, RecordTooLarge
from sawlog.log.writer import Batcher


def values_of(batch: Any) -> list[bytes | None]:
    """The values in a finished batch."""
    return [record.value for record in decode(batch.data)]


@given(st.lists(st.binary(max_size=60), max_size=40), st.integers(1, 400), st.sampled_from(["none", "zstd"]))
def test_every_record_is_in_one_batch_in_order(values: list[bytes], limit: int, compression: str) -> None:
    stored: list[bytes | None] = []

    def store() -> None:
        while (batch := batcher.ended()) is not None:
            stored.extend(values_of(batch))
            batcher.release()

    batcher = Batcher(EncoderOptions(codec_id(compression)), limit=limit, on_full=store, keep=1)
    for value in values:
        batcher.add(value)
        assert batcher.count == 0 or batcher.size_bytes < limit
    store()
    assert stored == values
    assert batcher.is_empty


def test_the_same_batch_is_returned_until_it_is_released() -> None:
    batcher = Batcher(EncoderOptions(), keep=1)
    assert batcher.is_empty
    assert batcher.ended() is None
    batcher.add(b"one")
    batch = batcher.ended()
    batcher.add(b"two")
    assert batcher.ended() is batch
    assert values_of(batch) == [b"one"]
    assert not batcher.is_empty
    batcher.release()
    assert values_of(batcher.ended()) == [b"two"]
    batcher.release()
    assert batcher.is_empty
    batcher.release()
    assert batcher.ended() is None


def test_a_batch_that_was_taken_by_an_interrupted_call_is_not_lost() -> None:
    batcher = Batcher(EncoderOptions())
    batcher.add(b"one")
    batcher.builder.take(bytearray(100))  # as in `ended`, which an interrupt has ended before it returned
    assert not batcher.is_empty
    batcher.add(b"two")
    assert values_of(batcher.ended()) == [b"one"]
    batcher.release()
    assert values_of(batcher.ended()) == [b"two"]


def test_several_batches_may_be_on_their_way() -> None:
    batcher = Batcher(EncoderOptions(), keep=1)
    taken = []
    for value in (b"one", b"two", b"three"):
        batcher.add(value)
        taken.append(batcher.take())
    assert [values_of(batcher.sealed(each)) for each in taken] == [[b"one"], [b"two"], [b"three"]]
    for each in taken:
        batcher.give_back(each[0])
    batcher.add(b"four")
    batcher.take()
    batcher.add(b"five")
    assert batcher.builder.buffer is taken[0][0], "one buffer is kept, and used again"


def test_after_the_end_no_record_is_accepted() -> None:
    batcher = Batcher(EncoderOptions())
    batcher.add(b"one")
    assert values_of(batcher.ended(close=True)) == [b"one"]
    with pytest.raises(LogClosed):
        batcher.add(b"two")
    batcher.close()
    assert batcher.is_empty


def test_a_limit_of_its_own_refuses_a_record() -> None:
    batcher = Batcher(EncoderOptions(max_batch_bytes=1000), max_bytes=300)
    batcher.add(b"x" * 100)
    with pytest.raises(RecordTooLarge):
        batcher.add(b"x" * 200)
    assert batcher.count == 1
