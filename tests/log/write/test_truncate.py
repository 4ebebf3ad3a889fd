"""Dropping the end (truncate) and the beginning (trim): at every offset, through every kind of batch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sawlog import Log, LogConfig, Producer, Record
from sawlog.batch.build import encode
from sawlog.batch.header import BatchHeader
from sawlog.errors import CorruptBatch, OffsetOutOfRange

from ...faults.device import Step
from ...faults.disk import MODES, FaultyStorage, Mode
from ..places import Place, fill, named, values

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


def build(place: Place, **settings: Any) -> tuple[Log, list[Record]]:
    """Single records, batches, a producer's batches, streams, over three segments from offset 5 on."""
    chance = random.Random(5)
    log = place.open(initial_offset=5, segment_age_ms=None, **settings)
    sequence = 0
    for i in range(14):
        count = chance.choice([1, 2, 4])
        records = [
            (b"%d-%d" % (i, j) * 10, b"k%d" % j, [("h", b"%d" % i)], 1000 + chance.randrange(50)) for j in range(count)
        ]
        if i % 4 == 1:
            log.append_stream([records[0][0][:3], records[0][0][3:]], key=b"s", timestamp=1000 + i)
        elif i % 4 == 2:
            log.append_many(records, producer=Producer(7, 2, sequence))
            sequence += count
        else:
            log.append_many(records)
        if i in (4, 9):
            log.seal()
    return log, list(log)


@pytest.mark.alternating
@pytest.mark.sampled(2)  # 0.4 s each
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_truncate_at_every_offset_keeps_exactly_the_records_below(place: Place, compression: str) -> None:
    log, records = build(place, compression=compression)
    log.close()
    for offset in range(5, 5 + len(records) + 1):
        cut = place.copy()
        log = cut.open(compression=compression)
        kept = records[: offset - 5]
        assert log.truncate(offset) == len(records) - len(kept)
        assert (log.lowest_offset, log.next_offset) == (5, offset)
        assert list(log) == kept
        assert [log.read(5 + i) for i in range(len(kept))] == kept
        assert log.verify()
        assert log.durable_offset == log.next_offset
        assert log.append(b"next") == offset
        log.close()
        log = cut.open()
        assert log.recovery.clean
        assert log.recovery.findings == []
        assert list(log)[:-1] == kept
        assert log[-1].value == b"next"
        cut.close()


def test_unclean_end_after_truncation_brings_nothing_back(place: Place) -> None:
    log, records = build(place)
    log.truncate(12)
    again = place.copy().open()
    assert list(again) == records[:7]
    log.append(b"next")
    again = place.copy().open()
    assert list(again)[:7] == records[:7]
    assert values(again)[7:] == [b"next"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batch_that_is_cut_through_keeps_its_fields(place: Place, compression: str) -> None:
    batch = encode(
        [(b"v%d" % i * 20, b"k", [("h", b"x")], 1000 + 10 * i) for i in range(6)],
        compression=compression,
        producer=Producer(7, 3, 40),
    )
    log = place.open()
    log.append_batches(batch)
    (before,) = place.batches()
    log.truncate(4)
    (after,) = place.batches()
    assert after == BatchHeader(
        position=0,
        size_bytes=after.size_bytes,
        base_offset=0,
        last_offset=3,
        count=4,
        attributes=before.attributes,
        base_timestamp=1000,
        max_timestamp=1030,
        producer_id=7,
        producer_epoch=3,
        base_sequence=40,
        crc=after.crc,
        leader_epoch=before.leader_epoch,
    )
    assert values(log) == [b"v%d" % i * 20 for i in range(4)]


def test_cut_through_a_batch_with_the_log_clock_keeps_the_time(place: Place) -> None:
    log = place.open(timestamp_type="append")
    log.append_many([b"a", b"b", b"c"])
    before = list(log)
    log.truncate(2)
    assert list(log) == before[:2]


def test_newest_time_of_the_kept_records_is_found(place: Place) -> None:
    """The timestamps decrease, so the largest one is at the beginning."""
    log = place.open()
    log.append_many([(b"x", None, (), stamp) for stamp in (50, 90, 40, 95)])
    log.truncate(3)
    assert place.batches()[0].max_timestamp == 90
    assert (log.offset_at(60), log.offset_at(91)) == (1, 3)


@pytest.mark.parametrize("offset", [4, 0, -1, 41, 10**9])
def test_truncate_outside_the_log_is_refused(place: Place, offset: int) -> None:
    log = place.open(initial_offset=5)
    fill(log, 35)
    before = place.files()
    with pytest.raises(OffsetOutOfRange) as caught:
        log.truncate(offset)
    assert (caught.value.requested, caught.value.lowest, caught.value.next) == (offset, 5, 40)
    assert place.files() == before


def test_truncate_at_the_end_changes_nothing(place: Place) -> None:
    """An error in laminarmq. Here it returns that nothing was dropped."""
    log = place.open()
    fill(log, 5)
    before = place.files()
    assert log.truncate(5) == 0
    assert place.files() == before
    empty = place.copy()
    empty_log = empty.open()
    assert empty_log.truncate(0) == 5
    assert empty_log.truncate(0) == 0


def test_truncate_below_the_log_start_is_refused(place: Place) -> None:
    log = place.open()
    fill(log, 10)
    log.trim(4)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(3)
    assert log.truncate(4) == 6
    assert (log.lowest_offset, log.next_offset, len(log)) == (4, 4, 0)
    assert log.append(b"x") == 4
    log.close()
    log = place.open()
    assert (log.lowest_offset, values(log)) == (4, [b"x"])


def test_truncated_files_hold_nothing_of_what_was_dropped(place: Place) -> None:
    log = place.open(segment_bytes=400)
    for i in range(20):
        log.append(b"secret-%02d" % i)
    log.truncate(7)
    everything = b"".join(place.files().values())
    assert b"secret-06" in everything
    assert b"secret-07" not in everything
    assert b"secret-15" not in everything
    assert place.bases() == [segment.base_offset for segment in log.segments]


def test_truncation_through_a_damaged_batch_changes_nothing(place: Place) -> None:
    log = place.open()
    log.append_many([b"a", b"b", b"c"])
    log.append_many([b"d", b"e", b"f"])
    log.close()
    place.flip(named(0), 70)
    log = place.open()
    before = place.files()
    with pytest.raises(CorruptBatch):
        log.truncate(1)
    assert place.files() == before
    assert log.truncate(4) == 2
    assert log.next_offset == 4
    assert log.read(3).value == b"d"


def test_truncate_again_and_again(place: Place) -> None:
    chance = random.Random(9)
    log = place.open(segment_bytes=500)
    model: list[bytes] = []
    for i in range(150):
        if model and chance.random() < 0.3:
            offset = chance.randrange(len(model) + 1)
            assert log.truncate(offset) == len(model) - offset
            del model[offset:]
        else:
            some = [b"%d.%d" % (i, j) for j in range(chance.choice([1, 1, 5]))]
            log.append_many(some)
            model += some
        assert log.next_offset == len(model)
    assert values(log) == model
    assert log.verify()


# --- trim


def test_trim_hides_records_at_once_and_deletes_whole_segments(place: Place) -> None:
    log = place.open()
    for start in (0, 5, 10):
        fill(log, 5, start=start)
        log.seal()
    expected = values(log)
    lowest = 0
    for offset, bases in [(0, 4), (3, 4), (5, 3), (9, 3), (9, 3), (10, 2), (14, 2), (15, 1)]:
        assert log.trim(offset) == offset - lowest
        lowest = offset
        assert (log.lowest_offset, len(log)) == (offset, 15 - offset)
        assert values(log) == expected[offset:]
        assert len(place.bases()) == len(log.segments) == bases
        if offset:
            with pytest.raises(OffsetOutOfRange):
                log.read(offset - 1)
        again = place.copy().open()
        assert (again.lowest_offset, values(again)) == (offset, expected[offset:])
    assert log.append(b"next") == 15


@pytest.mark.parametrize("clean", [True, False])
def test_trim_in_the_middle_of_a_batch_survives_a_restart(place: Place, clean: bool) -> None:
    log = place.open()
    log.append_many([b"%d" % i for i in range(10)])
    log.trim(4)
    if clean:
        log.close()
    log = (place if clean else place.copy()).open()
    assert (log.lowest_offset, len(log)) == (4, 6)
    assert values(log) == [b"%d" % i for i in range(4, 10)]
    assert values(log.scan(4)) == values(log[4:]) == values(log[:])
    assert [row for batch in log.scan_arrow() for row in batch["offset"].to_pylist()] == list(range(4, 10))
    for call in (lambda: log.read(3), lambda: log.scan(3), lambda: log.fetch(3)):
        with pytest.raises(OffsetOutOfRange):
            call()


def test_trim_below_the_beginning_does_nothing(place: Place) -> None:
    log = place.open(initial_offset=10)
    fill(log, 5)
    for offset in (0, -5, 9, 10):
        assert log.trim(offset) == 0
    assert log.lowest_offset == 10


def test_trim_beyond_the_end_is_refused(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    with pytest.raises(OffsetOutOfRange):
        log.trim(6)
    assert len(log) == 5


def test_trim_of_everything_goes_on_at_the_next_offset(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    assert log.trim(5) == 5
    assert (log.lowest_offset, log.next_offset, log.size_bytes) == (5, 5, 0)
    assert place.bases() == [5]
    log.close()
    log = place.open()
    assert (log.lowest_offset, log.next_offset) == (5, 5)
    assert log.append(b"x") == 5


def test_interrupted_trim_is_finished_by_the_next_open(place: Place) -> None:
    """The new log start is recorded before files are deleted; here none has been deleted yet."""
    log = place.open()
    for start in (0, 5, 10):
        fill(log, 5, start=start)
        log.seal()
    left_behind = place.copy()
    log.trim(11)
    left_behind.write("checkpoint", place.files()["checkpoint"])
    again = left_behind.open()
    assert (again.lowest_offset, len(again)) == (11, 4)
    assert left_behind.bases() == [10, 15]


def test_iterators_and_truncation_share_nothing_by_accident(place: Place) -> None:
    """A record that was returned does not change."""
    log = place.open()
    log.append_many([b"%d" % i * 100 for i in range(10)])
    held = list(log)
    fetched = log.fetch(0)
    raw = fetched.raw
    log.truncate(3)
    log.append_many([b"z" * 300 for _ in range(10)])
    assert values(held) == [b"%d" % i * 100 for i in range(10)]
    assert b"".join(fetched.buffers) == raw


@pytest.mark.alternating
def test_power_cut_during_truncation_leaves_no_gap_in_whatever_order_names_reach_the_disk() -> None:
    disk = FaultyStorage()
    log = Log.open(disk)
    for number in range(6):
        log.append(b"%d" % number)
        log.seal()
    found: dict[tuple[str, ...], FaultyStorage] = {}

    def cut(step: Step) -> None:
        for seed in range(40):
            left = disk.crash("reorder", seed)
            found.setdefault(tuple(left.names()), left)

    disk.watch = cut
    log.truncate(1)
    assert len(found) > 5
    for left in found.values():
        for mode in ("r", "w"):
            again = Log.open(left, mode=mode)
            assert values(again) == [b"%d" % number for number in range(again.next_offset)]
            assert again.recovery


@pytest.mark.parametrize("mode", MODES)
def test_power_cut_after_trim_leaves_a_log_that_ends_where_it_starts_or_later(mode: Mode) -> None:
    """Even if no other data was durable."""
    disk = FaultyStorage()
    log = Log.open(disk, LogConfig(durability="os"))
    log.append_many([b"0", b"1", b"2"])
    log.append(b"3")
    log.trim(2)
    left = disk.crash(mode)
    with Log.open(left, mode="r") as reader:
        seen = reader.lowest_offset, values(reader)
    again = Log.open(left)
    assert (again.lowest_offset, values(again)) == seen
    assert seen in [(2, [b"2"]), (2, [b"2", b"3"])]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_pages_end_at_the_visible_end_while_a_batch_is_cut_through(compression: str) -> None:
    disk = FaultyStorage()
    log = Log.open(disk.plain, LogConfig(compression=compression, segment_age_ms=None))
    for i in range(4):
        log.append_many([b"%d-%d" % (i, j) for j in range(3)])
    seen: list[int] = []

    def look(step: Step) -> None:
        for reader in (log, Log.open(disk.plain, mode="r")):
            records, paged, at = list(reader.scan()), [], 0
            while (page := reader.fetch(at, 1)).next_offset > at:
                paged += page.records()
                at = page.next_offset
            seen.append(at)
            assert paged == records

    disk.watch = look
    log.truncate(7)
    disk.watch = None
    assert set(seen) == {12, 7}
