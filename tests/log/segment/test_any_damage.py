"""Any damage to any files: a log opens, tells no lie, ends every call, and continues.

A log with known records is damaged at random: bytes flipped, files cut, padded, emptied, deleted, swapped, parts of
one copied into another, several times over. Then it is opened and read in every way. Whatever is left:

- opening raises nothing, and neither does reading but `CorruptBatch` and `OffsetOutOfRange`;
- each record that comes back is the one that was stored at that offset, byte for byte;
- continuing at `next_offset` after each `CorruptBatch` gets to the end;
- a new record gets an offset that no record had which is still there, and is there after a restart.

A failure carries its seed as a note.
"""

from __future__ import annotations

import random

import pytest

from sawlog import Log, Producer, Record
from sawlog.batch.build import encode
from sawlog.errors import CorruptBatch, OffsetOutOfRange

from ..places import MemoryPlace, Place

SEEDS = 700


def build(chance: random.Random) -> tuple[MemoryPlace, dict[int, Record]]:
    place = MemoryPlace()
    log = place.open(
        segment_bytes=chance.choice([300, 700, 5000]),
        index_interval_bytes=chance.choice([0, 200, 4096]),
        compression=chance.choice(["none", "none", "gzip", "zstd", "lz4", "snappy"]),
        initial_offset=chance.choice([0, 1000]),
    )
    for i in range(chance.randrange(1, 40)):
        kind = chance.randrange(5)
        rows = [
            (b"%d-%d" % (i, j) * chance.choice([1, 1, 8]), None, (), 1000 + i) for j in range(chance.choice([1, 1, 3]))
        ]
        if kind == 0:
            log.append_stream([rows[0][0][:2], rows[0][0][2:]], timestamp=1000 + i)
        elif kind == 1:
            log.append_many(rows[:1], producer=Producer(1, i, 0))
        elif kind == 2:  # a value that looks like a batch with a likely offset
            log.append(encode([b"inner"], base_offset=log.next_offset + chance.randrange(3)), timestamp=1000 + i)
        else:
            log.append_many(rows)
        if chance.random() < 0.1:
            log.seal()
    records = {record.offset: record for record in log}
    if chance.random() < 0.3:
        log.trim(chance.choice(list(records)))
    if chance.random() < 0.6:
        log.close()
        return place, records
    return place.copy(), records  # type: ignore[return-value]


def damage(place: Place, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 2, 5])):
        names = place.names()
        if not names:
            return
        likely = [name for name in names if name.endswith(".log")] or names
        name = chance.choice(likely if chance.random() < 0.7 else names)
        data = bytearray(place.files()[name])
        kind = chance.randrange(9)
        at = chance.randrange(len(data) + 1)
        if kind <= 2 and data:
            data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data += chance.choice([bytes(chance.randrange(1, 200)), chance.randbytes(chance.randrange(1, 200))])
        elif kind == 5:
            end = min(len(data), at + chance.randrange(1, 300))
            data[at:end] = chance.choice([bytes(end - at), chance.randbytes(end - at), b""])
        elif kind == 6:
            other = place.files()[chance.choice(names)]
            start = chance.randrange(len(other) + 1)
            data[at:at] = other[start : start + chance.randrange(1, 400)]
        elif kind == 7:
            other = chance.choice(names)
            place.write(name, place.files()[other])
            place.write(other, bytes(data))
            continue
        else:
            place.remove(name)
            continue
        place.write(name, bytes(data))


def read_in_order(log: Log, records: dict[int, Record]) -> set[int]:
    """Scan over all damage; the offsets that were seen."""
    seen: set[int] = set()
    offset = log.lowest_offset
    for _ in range(len(records) + 10):
        try:
            for record in log.scan(offset):
                assert record.offset >= offset, "a scan goes back"
                assert record == records[record.offset], "a record that was never stored"
                seen.add(record.offset)
                offset = record.offset + 1
            return seen
        except CorruptBatch as error:
            if error.next_offset is None:
                return seen
            assert error.next_offset > offset, "the next readable offset is no further on"
            offset = error.next_offset
            if offset >= log.next_offset:
                return seen
    raise AssertionError("a scan that does not end")


def check(log: Log, records: dict[int, Record]) -> None:
    lowest, following = log.lowest_offset, log.next_offset
    assert lowest <= log.durable_offset <= following
    seen = read_in_order(log, records)
    for offset in {*range(lowest, min(following, lowest + 300)), *records}:
        try:
            record = log.read(offset)
        except (CorruptBatch, OffsetOutOfRange):
            assert offset not in seen, "scanned, but cannot be read by its offset"
        else:
            assert record == records[offset]
            assert offset in seen, "read by its offset, but missing from a scan"
    for stamp in (0, 1010, 1020, 2000):
        try:
            assert lowest <= log.offset_at(stamp) <= following
        except CorruptBatch:
            pass
    try:
        arrow = [offset for batch in log.scan_arrow() for offset in batch["offset"].to_pylist()]
        assert set(arrow) <= seen
        assert len(list(log.follow(timeout=0))) == len(arrow)
    except CorruptBatch:
        pass
    report = log.verify()
    assert report.ok or report.problems


@pytest.mark.sampled(1)  # a second each
@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_any_damage(first: int) -> None:
    for seed in range(first, first + 25):
        try:
            survive(random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def survive(chance: random.Random) -> None:
    place, records = build(chance)
    damage(place, chance)
    if place.bases():
        beside = place.open(mode="r")  # a reader sees nothing wrong either
        read_in_order(beside, records)
        beside.close()
    log = place.open()
    check(log, records)
    assert str(log.recovery)
    new = log.read(log.append(b"new"))
    check(log, {**records, new.offset: new})
    assert new.offset == max(read_in_order(log, {**records, new.offset: new}))
    log.close()
    log = place.open()
    assert log.recovery.clean
    check(log, {**records, new.offset: new})
    assert log.read(new.offset) == new
    log.truncate(new.offset)
    check(log, records)
    place.close()
