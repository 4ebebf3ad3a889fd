"""What docs/how-a-segmented-log-works.md says about differences to other segmented logs holds."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import RecordTooLarge

from .places import INDEX, TIME_INDEX, FilePlace, Place, fill, now_ms, values


def test_only_a_stream_may_exceed_a_segment(place: Place) -> None:
    log = place.open(segment_bytes=1000, segment_overflow_bytes=1000)
    for append in (log.append, lambda value: log.append_many([value])):
        with pytest.raises(RecordTooLarge, match="append_stream"):
            append(b"x" * 1500)
    assert log.append_stream([b"x" * 1500]) == 0
    assert log.segments[0].size_bytes > 1500


def test_a_second_seal_does_nothing(place: Place) -> None:
    log = place.open()
    log.seal()
    assert len(log.segments) == 1
    fill(log, 3)
    log.seal()
    before, segments = place.files(), log.segments
    log.seal()
    assert (place.files(), log.segments) == (before, segments)
    assert [segment.sealed for segment in segments] == [True, False]


def test_records_in_the_buffer_of_a_writer_are_invisible_and_reading_does_not_flush_them(place: Place) -> None:
    log = place.open()
    before = place.files()
    with log.writer() as writer:
        writer.append(b"one")
        assert (list(log), log.fetch(0).buffers, log.next_offset, 0 in log) == ([], (), 0, False)
        assert place.files() == before
        assert writer.flush() == range(1)
        assert values(log) == [b"one"]


def test_a_writer_takes_no_expected_offset(place: Place) -> None:
    with place.open().writer() as writer, pytest.raises(TypeError):
        writer.append(b"one", expect_offset=0)  # type: ignore[call-arg]


def test_a_log_without_a_store_removes_nothing_by_itself(place: Place) -> None:
    config = LogConfig(durability="os", segment_bytes=300, retention_ms=1, retention_bytes=1)
    for _ in range(2):
        log = place.open(config)
        fill(log, 20, timestamp=now_ms() - 1_000_000)
        log.sync()
        log.close()
    log = place.open(config)
    assert (log.lowest_offset, len(log)) == (0, 40)
    assert bool(log.apply_retention())
    assert len(log) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists what is mapped")
def test_segments_are_mapped_and_their_indexes_are_not(file_place: FilePlace) -> None:
    log = file_place.open(segment_bytes=500, index_interval_bytes=0)
    fill(log, 30)
    assert len(list(log)) == 30
    assert sum(segment.mapped for segment in log.segments) > 3
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(file_place.path) in line]
    assert any(line.endswith(".log") for line in mapped)
    assert not [line for line in mapped if line.endswith((INDEX, TIME_INDEX))]


@pytest.mark.parametrize("size", [10, 1000, 10_000])
def test_an_index_takes_at_most_20_bytes_per_4_kib(place: Place, size: int) -> None:
    log = place.open()
    for i in range(300):
        log.append(b"x" * size, timestamp=i)
    log.seal()
    taken = sum(len(data) for name, data in place.files().items() if name.endswith((INDEX, TIME_INDEX)))
    assert taken <= 20 * (log.size_bytes / 4096 + 1)


def test_the_position_of_a_record_in_the_log_is_its_offset_minus_the_lowest(place: Place) -> None:
    log = place.open(segment_bytes=300, initial_offset=42)
    fill(log, 20)
    log.trim(45)
    assert [log[log.lowest_offset + n].offset for n in range(len(log))] == list(range(45, 62))
    assert all(b - a == 1 for a, b in pairwise(record.offset for record in log))


def test_reading_a_record_loads_the_index_of_its_segment_and_no_other(place: Place) -> None:
    log = place.open(segment_bytes=300)
    fill(log, 20)
    log.close()
    log = place.open(segment_bytes=300)
    log.read(log.segments[2].base_offset)
    assert [i for i, segment in enumerate(log.segments) if segment.mapped] == [2, len(log.segments) - 1]
    assert isinstance(log, Log)
