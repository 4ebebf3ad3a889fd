"""Merging, recompression and scrubbing: fewer files, fewer bytes, and every bit looked at; no record changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from sawlog import Log, LogConfig, MaintenanceConfig, Producer
from sawlog.batch.compression import CODECS
from sawlog.errors import CorruptBatch, InvalidConfig, LogClosed, ReadOnlyLog
from sawlog.log import maintenance, maintenance_state, rewrite
from sawlog.log.maintenance_state import MaintenanceState, load_state

from ..keyed import Filling, appender, check_everything
from ..places import FilePlace, MemoryPlace, Place, fill, named, now_ms, values


def in_segments(place: Place, *counts: int, **settings: Any) -> Log:
    """Create a log with these numbers of records in its sealed segments."""
    log = place.open(**settings)
    for count in counts:
        fill(log, count, start=log.next_offset)
        log.seal()
    return log


def bases(log: Log) -> list[int]:
    return [each.base_offset for each in log.segments]


# --- merging


def test_merging_joins_small_segments_byte_for_byte(place: Place) -> None:
    log = in_segments(place, 3, 4, 5)
    log.append(b"active")
    before = place.files()
    expected = values(log)
    report = log._merge_segments()
    assert (report.segments_before, report.segments_after) == (3, 1)
    assert bases(log) == [0, 12]
    assert place.files()[named(0)] == before[named(0)] + before[named(3)] + before[named(7)]
    assert report.bytes_copied == len(place.files()[named(0)])
    assert values(log) == expected
    assert log.verify()


def test_merged_segments_are_found_by_every_kind_of_reading(memory_place: MemoryPlace) -> None:
    log = memory_place.open(LogConfig(segment_bytes=9000, index_interval_bytes=300, compression="lz4", durability="os"))
    filling = Filling(log, random.Random(2))
    filling.fill(300)
    assert log._merge_segments()
    check_everything(log, filling.entries)
    log.close()
    check_everything(memory_place.open(), filling.entries)


def test_merging_stops_at_the_size_of_a_segment(place: Place) -> None:
    log = in_segments(place, 5, 5, 5, 5, segment_bytes=1000)
    size = log.segments[0].size_bytes
    assert 2 * size <= 1000 < 3 * size
    assert log._merge_segments()
    assert bases(log) == [0, 10, 20]


def test_merging_leaves_segments_alone_that_are_large_enough(place: Place) -> None:
    log = in_segments(place, 5, 50, 5, 5)
    assert log._merge_segments(below_bytes=2000)
    assert bases(log) == [0, 5, 55, 65]


def test_merging_keeps_what_is_far_apart_in_time_apart(place: Place) -> None:
    log = place.open(segment_age_ms=10_000)
    for timestamp in (1000, 5000, 50_000, 51_000):
        log.append(b"x", timestamp=timestamp)
        log.seal()
    assert log._merge_segments()
    assert bases(log) == [0, 2, 4]


def test_a_damaged_segment_is_not_merged(place: Place) -> None:
    log = in_segments(place, 2, 2, 2)
    log.close()
    place.flip(named(2), 65)
    log = place.open()
    before = place.files()[named(2)]
    log._merge_segments()
    assert place.files()[named(2)] == before
    assert [log.read(offset).offset for offset in (0, 1, 3, 4, 5)] == [0, 1, 3, 4, 5]
    with pytest.raises(CorruptBatch):
        log.read(2)


def test_one_damaged_segment_does_not_keep_the_others_from_being_merged(place: Place) -> None:
    log = in_segments(place, 2, 2, 2, 2, 2)
    log.close()
    place.flip(named(0), 65)
    log = place.open()
    log._merge_segments()
    assert len(log.segments) < 6


def test_maintenance_merges_only_when_many_are_small(place: Place) -> None:
    log = in_segments(place, 2, 2, 2)
    assert log.maintain(MaintenanceConfig(merge_bytes=10_000)).merge is None
    fill(log, 2, start=6)
    log.seal()
    report = log.maintain(MaintenanceConfig(merge_bytes=10_000))
    assert report.merge is not None
    assert str(report.merge) == "merged 4 segments into 1"


def test_a_merged_log_recognises_its_producers(place: Place) -> None:
    log = place.open()
    for i in range(3):
        log.append_many([b"%d" % i], producer=Producer(5, 0, i))
        log.seal()
    assert log._merge_segments()
    log.close()
    place.remove("producers")
    log = place.open()
    assert log.append_many([b"2"], producer=Producer(5, 0, 2)) == range(2, 3)


def test_a_trimmed_beginning_stays_trimmed_after_merging(place: Place) -> None:
    log = in_segments(place, 4, 4)
    log.trim(2)
    log._merge_segments()
    assert (log.lowest_offset, len(list(log))) == (2, 6)
    log.close()
    log = place.open()
    assert (log.lowest_offset, len(list(log))) == (2, 6)


# --- recompression


@pytest.mark.alternating
@pytest.mark.sampled(6)  # 0.1 s each
@pytest.mark.parametrize("before", sorted(CODECS))
@pytest.mark.parametrize("after", sorted(set(CODECS) - {"none"}))
def test_recompression_changes_no_record(memory_place: MemoryPlace, before: str, after: str) -> None:
    log = memory_place.open(LogConfig(segment_bytes=9000, compression=before, durability="os"))
    filling = Filling(log, random.Random(f"{before} {after}"))
    filling.fill(150)
    log._recompress(after)
    check_everything(log, filling.entries)


def test_recompression_makes_smaller_what_can_be(place: Place) -> None:
    log = in_segments(place, 200, 200)
    before = log.size_bytes
    report = log._recompress("zstd")
    assert report.segments == 2
    assert report.bytes_before - report.bytes_after == before - log.size_bytes > before // 2
    assert {header.compression for header in place.batches(0)} == {4}
    assert log.verify()


def test_what_was_recompressed_is_not_looked_at_again(place: Place) -> None:
    log = in_segments(place, 200)
    assert log._recompress("zstd")
    assert not log._recompress("zstd")
    log.close()
    assert not place.open()._recompress("zstd")


def test_segments_that_would_not_become_smaller_stay(place: Place) -> None:
    log = place.open()
    log.append_many([random.Random(1).randbytes(5000)])
    log.seal()
    before = place.files()[named(0)]
    assert not log._recompress("zstd")
    assert place.files()[named(0)] == before
    assert not [name for name in place.names() if name.endswith(".tmp")]


def test_maintenance_recompresses_what_is_old(place: Place) -> None:
    log = place.open()
    for timestamp in (now_ms() - 100_000, now_ms()):
        log.append_many([(b"same" * 10, None, (), timestamp)] * 100)
        log.seal()
    report = log.maintain(MaintenanceConfig(recompress_after_ms=50_000))
    assert report.recompression is not None
    assert report.recompression.segments == 1
    assert place.batches(0)[0].compression == 4
    assert place.batches(100)[0].compression == 0


def test_recompression_needs_a_codec(place: Place) -> None:
    log = in_segments(place, 2)
    for name in ("none", "zip"):
        with pytest.raises(InvalidConfig):
            log._recompress(name)


def test_a_damaged_segment_is_not_recompressed(place: Place) -> None:
    log = in_segments(place, 50, 50)
    log.close()
    place.flip(named(0), 65)
    log = place.open()
    before = place.files()[named(0)]
    assert log._recompress().segments == 1
    assert place.files()[named(0)] == before


def test_recompression_keeps_the_times_that_the_log_gave(place: Place) -> None:
    log = place.open(timestamp_type="append")
    for _ in range(30):
        log.append_many([b"same" * 20] * 10)
    log.seal()
    before = [(r.offset, r.timestamp, r.timestamp_type) for r in log]
    assert log._recompress()
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in log] == before


# --- scrubbing


def test_scrubbing_reads_every_sealed_segment(place: Place) -> None:
    log = in_segments(place, 3, 4)
    report = log._scrub()
    assert report.ok
    assert (report.segments, report.size_bytes) == (2, log.size_bytes)
    assert str(report) == "scrubbed 2 segments: all good"


def test_scrubbing_finds_a_flipped_bit(place: Place) -> None:
    log = in_segments(place, 3, 4)
    log.close()
    place.flip(named(3), place.batches(3)[1].position + 65, 1)
    log = place.open()
    report = log._scrub()
    assert not report.ok
    assert [(p.path.rpartition("/")[2], p.next_offset) for p in report.problems] == [(named(3), 5)]


def test_maintenance_scrubs_again_only_after_a_while(place: Place) -> None:
    log = in_segments(place, 3, 4)
    often = MaintenanceConfig(scrub_interval_ms=0)
    rarely = MaintenanceConfig(scrub_interval_ms=10**9)
    first = log.maintain(rarely).scrub
    assert first is not None
    assert first.segments == 2
    assert log.maintain(rarely).scrub is None
    log.close()
    log = place.open()
    assert log.maintain(rarely).scrub is None
    assert log.maintain(often).scrub is not None


def test_a_segment_that_was_found_damaged_is_scrubbed_again(place: Place) -> None:
    log = in_segments(place, 3, 4)
    log.close()
    place.flip(named(0), 65)
    log = place.open()
    for _ in range(2):
        report = log.maintain(MaintenanceConfig(scrub_interval_ms=10**9)).scrub
        assert report is not None
        assert not report.ok


def test_a_new_segment_at_a_truncated_offset_is_scrubbed(place: Place) -> None:
    log = in_segments(place, 3, 4)
    rarely = MaintenanceConfig(scrub_interval_ms=10**9)
    log.maintain(rarely)
    log.truncate(3)
    fill(log, 4, start=3)
    log.seal()
    report = log.maintain(rarely).scrub
    assert report is not None
    assert report.segments >= 1


def test_a_segment_that_was_cut_and_filled_again_is_scrubbed(place: Place) -> None:
    log = in_segments(place, 10)
    rarely = MaintenanceConfig(scrub_interval_ms=10**9)
    log.maintain(rarely)
    log.truncate(5)
    fill(log, 50, start=5)
    log.seal()
    report = log.maintain(rarely).scrub
    assert report is not None
    assert report.segments == 1


# --- truncation in the middle of it


def interrupted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, what: Callable[[], object]) -> None:
    """Do something once, right after a call of that function."""
    real = getattr(module, name)
    left = [what]

    def called(*arguments: Any, **settings: Any) -> Any:
        done = real(*arguments, **settings)
        if left:
            left.pop()()
        return done

    monkeypatch.setattr(module, name, called)


def compacted_and_sealed(place: Place) -> Log:
    """a and b in one segment, c in the next; compacted, and long ago."""
    log = place.open(segment_bytes=400)
    for key in (b"a", b"b"):
        log.append(b"1" * 100, key)
    log.seal()
    log.append(b"2" * 300, b"c")
    log.seal()
    log.append(None, b"gone")
    log.seal()
    log.compact()
    return log


@pytest.mark.parametrize("work", ["_recompress", "_scrub"])
def test_what_is_truncated_meanwhile_is_not_taken_for_compacted(
    place: Place, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    log = compacted_and_sealed(place)
    where = (rewrite, "replace_run") if work == "_recompress" else (maintenance, "verify_segment")
    interrupted(monkeypatch, *where, lambda: log.truncate(2))
    getattr(log, work)()
    monkeypatch.undo()
    assert load_state(appender(log).directory).clean_offset <= 2
    log.append(None, b"a")
    log.seal()
    log.compact(delete_retention_ms=0)
    log.compact(delete_retention_ms=0)
    assert [record.offset for record in log if record.key == b"a"] == []
    assert [record.offset for record in log if record.key == b"b"] == [1]


@pytest.mark.parametrize("work", ["_merge_segments", "_recompress", "compact"])
@pytest.mark.parametrize("change", ["trim", "truncate", "remove_expired"])
def test_work_on_segments_that_go_meanwhile_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, work: str, change: str
) -> None:
    log = place.open(LogConfig(segment_bytes=100_000, durability="os"))
    for i in range(4):
        log.append_many([(b"same" * 10, b"%d" % (n % 5), (), 1000 + i) for n in range(50)])
        log.seal()
    log.append(b"active", b"x", timestamp=now_ms())
    changes: dict[str, Callable[[], object]] = {
        "trim": lambda: log.trim(120),
        "truncate": lambda: log.truncate(120),
        "remove_expired": lambda: log.remove_expired(1000),
    }
    name = "merge_run" if work == "_merge_segments" else "replace_run"
    interrupted(monkeypatch, rewrite, name, changes[change])
    getattr(log, work)()
    monkeypatch.undo()
    expected = {"trim": (120, 201), "truncate": (0, 120), "remove_expired": (200, 201)}[change]
    assert (log.lowest_offset, log.next_offset) == expected
    found = [record.offset for record in log]
    assert set(found) <= set(range(*expected))
    if work != "compact":
        assert found == list(range(*expected))
    assert log.verify()
    assert not [name for name in place.names() if name.endswith((".tmp", ".swap"))]
    log.close()
    log = place.open()
    assert not log.recovery.findings
    assert [record.offset for record in log] == found


# --- the notes


def test_the_notes_survive_a_round_trip() -> None:
    made = MaintenanceState([(5, 100), (9, 200)], True, 3, 7, {0: 1, 5: 2})
    assert MaintenanceState.decode(made.encode()) == made


@pytest.mark.parametrize("position", range(0, len(MaintenanceState([(5, 100)]).encode()), 7))
def test_a_flipped_bit_in_the_notes_is_noticed(position: int) -> None:
    data = bytearray(MaintenanceState([(5, 100)]).encode())
    data[position] ^= 4
    with pytest.raises(maintenance_state.CorruptFile):
        MaintenanceState.decode(bytes(data))


def test_notes_do_not_grow_without_end() -> None:
    made = MaintenanceState()
    for offset in range(1, 10_000):
        made.note_clean(offset, offset)
    assert len(made.encode()) < 5000
    assert made.clean_offset == 9999
    assert made.forget_below(9990) == 9990


def test_retreating_notes_say_nothing_about_what_is_cut_off() -> None:
    made = MaintenanceState([(5, 100), (9, 200)], False, 3, 8, {0: 1, 5: 2, 7: 3})
    assert made.truncate(6)
    assert (made.clean_offset, made.recompressed_offset) == (6, 6)
    assert made.forget_below(150) == 5
    assert set(made.scrubbed) <= {0, 5}
    assert not MaintenanceState([(5, 100)]).truncate(5)


# --- who may


@pytest.mark.parametrize("work", ["compact", "_merge_segments", "_recompress", "_scrub", "maintain"])
def test_maintenance_is_refused_by_a_reader_and_by_a_closed_log(file_place: FilePlace, work: str) -> None:
    log = in_segments(file_place, 2)
    with pytest.raises(ReadOnlyLog):
        getattr(file_place.open(mode="r"), work)()
    log.close()
    with pytest.raises(LogClosed):
        getattr(log, work)()


@pytest.mark.parametrize("work", ["compact", "_merge_segments", "_recompress", "_scrub", "maintain"])
def test_maintenance_of_an_empty_log_does_nothing(place: Place, work: str) -> None:
    log = place.open()
    before = place.files()
    assert not getattr(log, work)()
    assert place.files() == before


def test_a_report_of_maintenance_lists_what_was_done(place: Place) -> None:
    log = in_segments(place, 2, 2, 2, 2)
    report = log.maintain(MaintenanceConfig(scrub_interval_ms=0))
    assert [type(each).__name__ for each in report.actions] == ["MergeReport", "ScrubReport"]
    assert str(report).endswith("merged 4 segments into 1; scrubbed 1 segment: all good")
    assert str(log.maintain()).endswith("nothing to do")


def test_maintenance_applies_retention(place: Place) -> None:
    log = place.open(retention_ms=1000)
    log.append(b"old", timestamp=1)
    log.seal()
    log.append(b"new")
    assert log.maintain(MaintenanceConfig(delete=False)).retention is None
    report = log.maintain().retention
    assert report is not None
    assert (report.removed_records, log.lowest_offset) == (1, 1)
