"""`Packer`: single records become batches that another component stores, once and in order, despite errors between."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from sawlog.batch.build import Encoded, EncoderOptions
from sawlog.batch.read import decode
from sawlog.errors import InvalidRecord, RecordTooLarge, StorageFull
from sawlog.store.partitioner import partition_for
from sawlog.store.writer import Packer


@dataclass
class Shelf:
    """Takes batches, or refuses them as it is told."""

    partitions: int = 3
    placed: list[tuple[int, bytes]] = field(default_factory=list)
    tried: list[bytes] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)

    def place(self, number: int, batch: Encoded) -> None:
        self.tried.append(bytes(batch.data))
        if self.errors:
            raise self.errors.pop(0)
        self.placed.append((number, bytes(batch.data)))
        self.came.set()

    def values(self, number: int | None = None) -> list[bytes | None]:
        return [record.value for at, data in self.placed if number in (None, at) for record in decode(data)]


def packer(shelf: Shelf, *, batch_bytes: int = 1000, partition: int | None = None, **more: float) -> Packer:
    return Packer(
        shelf.partitions,
        shelf.place,
        EncoderOptions(max_batch_bytes=2000),
        partition=partition,
        batch_bytes=batch_bytes,
        **more,
    )


def test_records_are_in_the_partition_of_their_key_in_order() -> None:
    shelf, keys = Shelf(), [b"key %d" % (number % 7) for number in range(200)]
    with packer(shelf) as packing:
        for number, key in enumerate(keys):
            packing.append(b"%d" % number, key)
    for number in range(3):
        expected = [b"%d" % at for at, key in enumerate(keys) if partition_for(key, 3) == number]
        assert shelf.values(number) == expected
    assert len(shelf.placed) > 3
    assert all(len(data) <= 1300 for _, data in shelf.placed)


def test_everything_goes_to_one_partition_if_that_is_wanted() -> None:
    shelf = Shelf()
    with packer(shelf, partition=2) as packing:
        for number in range(10):
            packing.append(b"%d" % number, b"key %d" % number)
    assert shelf.values(2) == [b"%d" % number for number in range(10)]


def test_a_batch_that_failed_is_handed_over_again_as_it_was() -> None:
    shelf = Shelf(errors=[StorageFull(28, "full"), StorageFull(28, "full")])
    packing = packer(shelf, partition=0)
    packing.append(b"first")
    for _ in range(2):
        with pytest.raises(StorageFull):
            packing.flush()
        packing.append(b"later")
    packing.flush()
    assert shelf.tried[0] == shelf.tried[1] == shelf.tried[2]
    assert shelf.values() == [b"first", b"later", b"later"]


def test_a_record_that_is_refused_does_not_affect_the_others() -> None:
    shelf = Shelf()
    with packer(shelf, partition=0) as packing:
        packing.append(b"before")
        with pytest.raises(RecordTooLarge):
            packing.append(b"x" * 5000)
        packing.flush()
        shelf.errors.append(InvalidRecord("not this one"))
        with pytest.raises(InvalidRecord, match="not this one"):
            packing.append(b"y" * 1500)  # fills a batch of its own, which is refused
        packing.append(b"after")
    assert shelf.values() == [b"before", b"after"]


def test_leaving_the_block_stores_everything_also_after_an_error() -> None:
    shelf = Shelf()

    def fail() -> None:
        with packer(shelf) as packing:
            packing.append(b"kept")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert shelf.values() == [b"kept"]


def test_a_record_does_not_wait_for_others() -> None:
    shelf = Shelf()
    with packer(shelf, linger_ms=5) as packing:
        packing.append(b"alone")
        assert shelf.came.wait(60)
    assert shelf.values() == [b"alone"]
