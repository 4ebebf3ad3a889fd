"""verify lists all damage, with its place and the next readable offset, and changes nothing."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log
from sawlog.batch.checksum import crc32c
from sawlog.errors import CorruptBatch, DecompressionLimit
from sawlog.log import verify as verifying
from sawlog.log.verify import VerifyReport

from ...cli.damage import flip_bit
from ..places import INDEX, Place, fill, named, values


def sound(place: Place, **settings: Any) -> Log:
    """Three segments; batches of one, three, one ... records."""
    log = place.open(**settings)
    for i in range(12):
        if i % 2:
            log.append_many([b"%d-%d" % (i, j) for j in range(3)])
        else:
            log.append(b"%d" % i)
        if i in (3, 7):
            log.seal()
    return log


def patched(batch: bytes, at: int, data: bytes) -> bytes:
    """Return the batch with some bytes replaced and a matching CRC."""
    made = bytearray(batch)
    made[at : at + len(data)] = data
    made[17:21] = struct.pack(">I", crc32c(bytes(made[21:])))
    return bytes(made)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_sound_log_has_nothing_to_report(place: Place, compression: str) -> None:
    log = sound(place, compression=compression)
    log.append_stream([b"x" * 100, b"y"])
    for _ in range(2):
        report = log.verify()
        assert report.ok
        assert bool(report)
        assert (report.segments, report.batches, report.records) == (3, 13, 25)
        assert report.size_bytes == log.size_bytes
        assert "all good" in str(report)
        log.close()
        log = place.open()


def test_empty_log_is_sound(place: Place) -> None:
    report = place.open().verify()
    assert (report.ok, report.segments, report.records) == (True, 1, 0)


@pytest.mark.alternating
def test_each_flipped_byte_is_found_in_its_batch(memory_place: Place) -> None:
    """Every byte of a sealed segment: the batch it lies in is reported, with the offset after it."""
    log = sound(memory_place)
    log.close()
    whole = memory_place.files()[named(0)]
    batches = memory_place.batches()
    for position in range(len(whole)):
        batch = next(b for b in batches if b.position <= position < b.position + b.size_bytes)
        if 12 <= position - batch.position < 16:
            continue  # the leader epoch: no CRC covers it, and nothing here depends on it
        place = memory_place.copy()
        place.flip(named(0), position, 0x08)
        log = place.open()
        report = log.verify()
        assert [(problem.position, problem.next_offset) for problem in report.problems] == [
            (batch.position, batch.last_offset + 1)
        ], position
        assert report.problems[0].path.endswith(named(0))
        assert not report
        assert str(batch.position) in str(report)
        assert report.records == 24 - batch.count
        place.close()


def test_all_damage_is_listed_in_one_report(place: Place) -> None:
    log = sound(place)
    log.close()
    first, second = place.batches(0), place.batches(8)
    for name, batch in ((named(0), first[0]), (named(0), first[3]), (named(8), second[1]), (named(8), second[2])):
        place.flip(name, batch.position + batch.size_bytes - 1)
    log = place.open()
    before = place.files()
    report = log.verify()
    assert [(p.path[-24:], p.position, p.next_offset) for p in report.problems] == [
        (named(0), first[0].position, first[0].last_offset + 1),
        (named(0), first[3].position, 8),
        (named(8), second[1].position, second[2].last_offset + 1),  # two neighbours are one hole
    ]
    assert report.batches == 8
    assert place.files() == before
    assert log.append(b"still writable") == 24


def test_missing_batch_is_noticed(place: Place) -> None:
    """Taken out so that everything else is whole: only the offsets tell."""
    log = sound(place)
    log.close()
    whole, batches = place.files()[named(0)], place.batches()
    place.write(named(0), whole[: batches[1].position] + whole[batches[2].position :])
    log = place.open()
    report = log.verify()
    assert [(p.position, p.next_offset) for p in report.problems] == [(batches[1].position, batches[2].base_offset)]
    with pytest.raises(CorruptBatch) as caught:
        list(log.scan())
    assert caught.value.next_offset == batches[2].base_offset
    with pytest.raises(CorruptBatch):
        log.read(batches[1].base_offset)
    assert values(log.scan(batches[2].base_offset))[0] == b"2"


def test_swapped_batches_are_noticed(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    log.seal()
    log.append(b"x")
    log.close()
    whole = place.files()[named(0)]
    size = len(whole) // 5
    parts = [whole[i * size : (i + 1) * size] for i in range(5)]
    place.write(named(0), b"".join([parts[0], parts[2], parts[1], parts[3], parts[4]]))
    log = place.open()
    assert not log.verify()
    with pytest.raises(CorruptBatch):
        list(log.scan())


def test_repeated_batch_is_noticed_and_served_once(place: Place) -> None:
    log = place.open()
    expected = fill(log, 3)
    log.seal()
    log.append(b"x")
    log.close()
    whole = place.files()[named(0)]
    size = len(whole) // 3
    place.write(named(0), whole[: 2 * size] + whole[size:])
    log = place.open()
    assert not log.verify()
    assert [log.read(i).value for i in range(3)] == expected
    assert values(log.scan(2)) == [expected[2], b"x"]
    assert values(log.scan(end=2)) == expected[:2]


def test_segment_cut_short_is_noticed(place: Place) -> None:
    log = sound(place)
    log.close()
    batches = place.batches()
    place.cut(named(0), batches[3].position)
    log = place.open()
    report = log.verify()
    assert len(report.problems) == 1
    assert report.problems[0].next_offset == 8
    with pytest.raises(CorruptBatch) as caught:
        list(log.scan())
    assert caught.value.next_offset == 8
    assert values(log.scan(8))[0] == b"4"


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (61, b"\x40"),
        (57, struct.pack(">i", 2)),
        (57, struct.pack(">i", 4)),
        (23, struct.pack(">i", 1)),
        (21, struct.pack(">h", 1)),
        (21, struct.pack(">h", 5)),
    ],
    ids=["record length", "count too small", "count too large", "last delta too small", "not packed", "no such codec"],
)
def test_batch_that_does_not_parse_is_reported_although_its_crc_is_right(place: Place, at: int, data: bytes) -> None:
    log = place.open()
    log.append(b"before")
    log.append_many([b"one", b"two", b"three"])
    log.append(b"after")
    log.seal()
    log.append(b"active")
    log.close()
    whole, batch = place.files()[named(0)], place.batches()[1]
    end = batch.position + batch.size_bytes
    bad = patched(whole[batch.position : end], at, data)
    place.write(named(0), whole[: batch.position] + bad + whole[end:])
    log = place.open()
    report = log.verify()
    assert [(p.position, p.next_offset) for p in report.problems] == [(batch.position, 4)]
    with pytest.raises(CorruptBatch) as caught:
        list(log.scan())
    assert (caught.value.position, caught.value.next_offset) == (batch.position, 4)
    with pytest.raises(CorruptBatch):
        log.read(3)
    with pytest.raises(CorruptBatch):
        list(log.scan_arrow())
    assert values(log.scan(4)) == [b"after", b"active"]
    assert log.read(4).value == b"after"
    assert log.read(0).value == b"before"


def test_index_that_contradicts_the_log_is_reported_or_repaired(place: Place) -> None:
    log = place.open(index_interval_bytes=0)
    expected = fill(log, 10)
    log.seal()
    log.append(b"x")
    log.close()
    entries = bytearray(place.files()[named(0, INDEX)])
    entries[-1] ^= 1
    place.write(named(0, INDEX), bytes(entries))
    log = place.open(index_interval_bytes=0)
    log.verify()
    assert [log.read(i).value for i in range(10)] == expected


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_batch_that_would_unpack_to_too_much_is_reported_not_unpacked(place: Place, compression: str) -> None:
    log = place.open(compression=compression)
    log.append(b"small")
    log.append(b"\0" * 200_000)
    log.append(b"small")
    log.close()
    log = place.open(max_decompressed_bytes=10_000)
    with pytest.raises(DecompressionLimit) as caught:
        log.read(1)
    assert caught.value.next_offset == 2
    with pytest.raises(DecompressionLimit):
        list(log.scan())
    with pytest.raises(DecompressionLimit):
        list(log.scan_arrow())
    report = log.verify()
    assert [problem.next_offset for problem in report.problems] == [2]
    assert log.read(2).value == b"small"
    assert values(log.scan(2)) == [b"small"]


def test_verify_beside_the_writer(place: Place) -> None:
    log = sound(place)
    beside = place.open(mode="r")
    assert beside.verify().records == 24
    log.append(b"x")
    len(beside)
    assert beside.verify().records == 25


def test_verify_of_a_trimmed_log(place: Place) -> None:
    log = sound(place)
    log.trim(9)
    report = log.verify()
    assert report.ok
    assert report.segments == 2


@pytest.mark.parametrize("size", [100, 10_000], ids=["small batches", "large batches"])
def test_a_batch_that_was_read_is_checked_again_by_scan_verify_and_scrub(tmp_path: Path, size: int) -> None:
    """`read` and `fetch` remember that its checksum was right (ADR 17); the others do not believe that."""
    with Log.open(tmp_path) as log:
        for _ in range(100):
            log.append(bytes(size))
        log.seal()
        before = log.fetch(0, 1 << 30)
        file = tmp_path / "00000000000000000000.log"
        flip_bit(file, file.stat().st_size // 2 + 70)  # within a value
        assert log.fetch(0, 1 << 30).next_offset == before.next_offset == 100
        with pytest.raises(CorruptBatch):
            list(log.scan())
        assert not log.verify()
        assert not log._scrub().ok
    with Log.open(tmp_path) as again:
        assert again.fetch(0, 1 << 30).next_offset < 100


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small segments are cut into parts as large ones are; how many parts there were."""
    counts: list[int] = []
    parts = verifying._parts

    def counted(*given: Any) -> Any:
        found = parts(*given)
        counts.append(len(found))
        return found

    monkeypatch.setattr(verifying, "_PART_BYTES", 256)
    monkeypatch.setattr(verifying, "cores", lambda: 3)
    monkeypatch.setattr(verifying, "_parts", counted)
    return counts


def many(place: Place) -> None:
    with place.open(index_interval_bytes=100) as log:
        for first in range(0, 120, 3):
            log.append_many([b"%d" % number * 20 for number in range(first, first + 3)])
        log.seal()


def in_order(place: Place) -> VerifyReport:
    report = VerifyReport()
    with place.open(mode="r") as log:
        for segment in log._segment_set.all:
            verifying.verify_segment(segment, report, log.config.max_decompressed_bytes, threads=1)
    return report


def test_parts_of_a_segment_that_are_checked_at_the_same_time_add_up(place: Place, in_parts: list[int]) -> None:
    many(place)
    expected = in_order(place)
    in_parts.clear()
    with place.open(mode="r") as log:
        report = log.verify()
    assert max(in_parts) > 3
    assert report == expected
    assert (report.records, report.batches) == (120, 40)


@pytest.mark.alternating
def test_damage_is_reported_the_same_however_a_segment_is_read(memory_place: Place, in_parts: list[int]) -> None:
    many(memory_place)
    noticed = 0
    for at in range(20, len(memory_place.files()[named(0)]), 97):  # not in the leader epoch of the first batch
        place = memory_place.copy()
        place.flip(named(0), at, 0x08)
        with place.open(mode="r") as log:
            report = log.verify()
        assert report == in_order(place)
        noticed += not report.ok
    assert noticed > 50
    assert max(in_parts) > 3
