"""Slices: parts of a log that other processes read by themselves, however the log changes meanwhile."""

from __future__ import annotations

import pickle
import random
from errno import EMFILE
from itertools import product
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import CorruptBatch, DataLoss, StorageError
from sawlog.log import slices
from sawlog.log.slices import Slice
from sawlog.testing import Fault, FaultyDirectory

from .places import FilePlace, Place
from .sampling import some_of, some_or_all

COLUMNS = ["offset", "key", "value"]


def filled(place: Place, **settings: Any) -> Log:
    log = place.open(LogConfig(segment_bytes=4000, index_interval_bytes=200, **settings))
    chance = random.Random(3)
    for number in range(60):
        log.append_many(
            [(b"value %d.%d" % (number, each), b"key %d" % (each % 3)) for each in range(chance.randrange(1, 9))]
        )
    return log


def offsets(log: Log, pieces: list[Slice]) -> list[int]:
    """Return the offsets read through the slices."""
    found: list[int] = []
    for piece in pieces:
        for batch in slices.read(log._access.directory, piece, log.config, columns=COLUMNS, batch_rows=50):
            assert batch.schema.names == COLUMNS
            found.extend(batch.column("offset").to_pylist())
    return found


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.6 s each
@some_or_all(25)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_slices_cover_a_range_without_gap_or_overlap(place: Place, compression: str, most: int | None) -> None:
    log = filled(place, compression=compression)
    end = log.next_offset
    ranges = ((0, end), (5, end - 5), (17, 18), (end // 2, end), (9, 9))
    cases = product((None, 1, 300, 1500, 1 << 30), (None, 1, 7), ranges)
    for target, records, (start, stop) in some_of(cases, most):
        pieces = slices.plan(log, start, stop, target_bytes=target, max_records=records)
        assert offsets(log, pieces) == list(range(start, stop))
        assert all(records is None or piece.end_offset - piece.start_offset <= records for piece in pieces)


def test_slices_of_a_target_are_of_about_that_size(place: Place) -> None:
    log = filled(place)
    pieces = slices.plan(log, 0, log.next_offset, target_bytes=1000)
    assert len(pieces) > len(log.segments)
    assert all(piece.size_bytes < 2500 for piece in pieces)


def test_a_whole_segment_is_one_slice_and_its_index_is_not_opened(place: Place) -> None:
    log = filled(place)
    for segment in log._segment_set.all[:-1]:
        segment.unload()
    pieces = slices.plan(log, 0, log.next_offset, target_bytes=1 << 30)
    assert len(pieces) == len(log.segments)
    assert not any(segment.is_loaded for segment in log._segment_set.all[:-1])


def test_a_range_touches_only_its_own_segments(place: Place) -> None:
    log = filled(place)
    third = log.segments[2]
    pieces = slices.plan(log, third.base_offset, third.next_offset, target_bytes=500)
    assert {piece.base_offset for piece in pieces} == {third.base_offset}


def test_a_slice_travels_to_another_process(place: Place) -> None:
    log = filled(place)
    pieces = slices.plan(log, 3, 90, target_bytes=700)
    assert pickle.loads(pickle.dumps(pieces)) == pieces


def test_what_is_appended_after_planning_is_not_read(place: Place) -> None:
    log = filled(place)
    pieces = slices.plan(log, 0, log.next_offset)
    end = log.next_offset
    log.append(b"later")
    assert offsets(log, pieces) == list(range(end))


def test_a_reader_beside_the_writer_plans_and_reads_the_active_segment(file_place: FilePlace) -> None:
    log = filled(file_place)
    with Log.open(file_place.path, log.config, mode="r") as reader:
        pieces = slices.plan(reader, 0, reader.next_offset, target_bytes=600)
        log.append(b"later")
        assert offsets(reader, pieces) == list(range(log.next_offset - 1))


@pytest.mark.parametrize("change", ["compact", "_merge_segments", "_recompress"])
def test_segments_that_were_rewritten_since_are_read_as_they_are_now(place: Place, change: str) -> None:
    log = filled(place)
    pieces = slices.plan(log, 10, log.next_offset - 3, target_bytes=700)
    getattr(log, change)()
    expected = [record.offset for record in log.scan(10, log.next_offset - 3)]
    assert offsets(log, pieces) == expected


def test_records_that_were_dropped_since_are_an_error(place: Place) -> None:
    log = filled(place)
    pieces = slices.plan(log, 0, log.next_offset)
    log.trim(log.segments[1].next_offset)
    with pytest.raises(DataLoss, match="retention or trim"):
        offsets(log, pieces)


def test_a_segment_that_goes_while_it_is_planned_is_found_missing_when_it_is_read(file_place: FilePlace) -> None:
    log = filled(file_place)
    with Log.open(file_place.path, log.config, mode="r") as reader:
        end, second = reader.next_offset, log.segments[1]
        seen = reader._segment_set
        log.trim(second.next_offset)
        seen.refresh = lambda: False  # type: ignore[method-assign]
        pieces = slices.plan(reader, second.base_offset + 1, end, target_bytes=500)
    with pytest.raises(DataLoss, match="retention or trim"):
        offsets(log, pieces)
    assert offsets(log, pieces[1:]) == list(range(second.next_offset, end))


def test_damage_is_reported_and_not_passed_over(file_place: FilePlace) -> None:
    log = filled(file_place)
    pieces = slices.plan(log, 0, log.next_offset)
    file_place.flip(log.segments[1].path.rpartition("/")[2], 100)
    with pytest.raises(CorruptBatch):
        offsets(log, pieces)


# --- a range is proven


def in_small_segments(place: Place) -> Log:
    """Segments that `merge_segments` makes one of."""
    log = place.open(LogConfig(segment_bytes=40_000, index_interval_bytes=200))
    for number in range(30):
        log.append_many([b"value %d.%d" % (number, each) for each in range(5)])
        if number % 6 == 5:
            log.seal()
    return log


def regrown(log: Log, offset: int) -> None:
    """Cut the log off, and let it grow beyond where it was."""
    end = log.next_offset
    log.truncate(offset)
    while log.next_offset <= end:
        log.append_many([(b"of a later history", b"key")] * 10)


def test_a_slice_knows_the_leader_epoch_of_its_end(place: Place) -> None:
    log = filled(place)
    log.truncate(100)
    log.append(b"later")
    assert {piece.epoch for piece in slices.plan(log, 0, 101, target_bytes=500)} == {1}
    assert {piece.epoch for piece in slices.plan(log, 0, 100, epoch=0)} == {0}


@pytest.mark.parametrize("target", [None, 700])
@pytest.mark.parametrize("rewrite", [None, "_merge_segments"])
def test_a_log_that_was_cut_off_and_has_grown_again_is_data_loss(
    place: Place, target: int | None, rewrite: str | None
) -> None:
    log = in_small_segments(place)
    pieces = slices.plan(log, 0, log.next_offset, target_bytes=target)
    regrown(log, 105)
    if rewrite is not None:
        assert getattr(log, rewrite)()
    with pytest.raises(DataLoss, match=r"offsets \d+ to \d+ of .* are gone: .* from offset 105 on"):
        offsets(log, pieces)
    # Everything before the cut belongs to the same history.
    assert offsets(log, [piece for piece in pieces if piece.end_offset <= 105]) == list(
        range(max((piece.end_offset for piece in pieces if piece.end_offset <= 105), default=0))
    )


def test_a_log_that_was_cut_off_is_data_loss(place: Place) -> None:
    log = filled(place)
    pieces = slices.plan(log, 0, log.next_offset)
    log.truncate(log.next_offset - 1)
    with pytest.raises(DataLoss):
        offsets(log, pieces)


def test_a_range_that_the_log_does_not_hold_is_not_planned(place: Place) -> None:
    log = filled(place)
    end = log.next_offset
    with pytest.raises(DataLoss, match=f"offsets {end} to {end + 4} "):
        slices.plan(log, 0, end + 5)
    regrown(log, 100)
    with pytest.raises(DataLoss, match=f"offsets 100 to {end - 1} "):
        slices.plan(log, 0, end, epoch=0)
    log.trim(log.segments[1].base_offset)
    with pytest.raises(DataLoss, match="offsets 0 to"):
        slices.plan(log, 0, log.next_offset)


def test_a_log_that_is_cut_off_while_it_is_read_is_data_loss(place: Place) -> None:
    """Its segments were merged, so that it is read as it is now; and cut off after half of it."""
    log = in_small_segments(place)
    second = log.segments[1]
    [piece] = slices.plan(log, second.base_offset, second.next_offset)
    assert log._merge_segments()
    reading = slices.read(log._access.directory, piece, log.config, columns=COLUMNS, batch_rows=5)
    assert next(reading).column("offset").to_pylist() == list(range(second.base_offset, second.base_offset + 5))
    regrown(log, second.base_offset + 20)
    with pytest.raises(DataLoss):
        list(reading)


def test_what_is_left_of_a_slice_is_read_if_the_reader_wants_that(place: Place) -> None:
    log = in_small_segments(place)
    pieces = slices.plan(log, 35, log.next_offset)
    assert log._merge_segments()
    log.trim(40)
    regrown(log, 105)
    said: list[str] = []
    found = [
        offset
        for piece in pieces
        for batch in slices.read(
            log._access.directory,
            piece,
            log.config,
            columns=COLUMNS,
            batch_rows=50,
            lost=lambda loss: said.append(str(loss)),
        )
        for offset in batch.column("offset").to_pylist()
    ]
    assert found == list(range(40, 105))
    assert any("offsets 35 to 39 " in each for each in said)
    assert any("offsets 105 to " in each for each in said)


def test_holes_that_compaction_left_count_as_read(place: Place) -> None:
    log = filled(place)
    log.compact()
    pieces = slices.plan(log, 0, log.next_offset, target_bytes=500)
    found = offsets(log, pieces)
    assert found == [record.offset for record in log.scan()]
    assert len(found) < log.next_offset


def test_errors_of_the_storage_are_not_data_loss(file_place: FilePlace) -> None:
    """Nothing is known about the records then."""
    log = filled(file_place)
    pieces = slices.plan(log, 0, log.next_offset)
    directory = FaultyDirectory(log._access.directory)
    directory.arm(Fault(errno=EMFILE, operations={"open_sealed", "open_shared"}, forever=True))
    with pytest.raises(StorageError) as caught:
        list(slices.read(directory, pieces[0], log.config, columns=COLUMNS, batch_rows=50))
    assert caught.value.errno == EMFILE


def test_an_error_that_passes_is_not_seen(file_place: FilePlace) -> None:
    log = filled(file_place)
    pieces = slices.plan(log, 0, log.next_offset)
    directory = FaultyDirectory(log._access.directory)
    directory.arm(Fault(operations={"view"}))
    found = [
        offset
        for piece in pieces
        for batch in slices.read(directory, piece, log.config, columns=COLUMNS, batch_rows=50)
        for offset in batch.column("offset").to_pylist()
    ]
    assert found == list(range(log.next_offset))
