"""Start and end of a log are compared with the files that record them. A loss is reported until it is trimmed; the
traces of a crash or of a running writer are no loss. Every file: tests/faults/test_missing_files.py."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import CorruptBatch, StorageFull
from sawlog.log.checkpoint import Checkpoint
from sawlog.log.files import CHECKPOINT, LOCK
from sawlog.log.recovery_report import Where
from sawlog.log.shared import SharedLog
from sawlog.log.verify import missing_ends
from sawlog.storage import FileDirectory, MemoryDirectory
from sawlog.storage.published import PublishedByReplacing
from sawlog.testing import Call, Fault, FaultyDirectory

from ...faults.bits import disk, files_of
from ..places import INDEX, TIME_INDEX, Place, fill, named, values


def built(place: Place) -> Place:
    """Segments 0 to 4, 5 to 9, 10 to 12; closed."""
    log = place.open()
    for start, count in ((0, 5), (5, 5), (10, 3)):
        if start:
            log.seal()
        fill(log, count, start=start)
    log.close()
    return place


def lose(place: Place, base: int) -> None:
    for name in (named(base), named(base, INDEX), named(base, TIME_INDEX)):
        if name in place.names():
            place.remove(name)


# --- readers


def test_a_reader_gets_what_is_there_and_an_error_where_the_end_is_missing(place: Place) -> None:
    built(place)
    place.cut(named(10), place.batches(10)[1].position)
    with place.open(mode="r") as log:
        assert (log.lowest_offset, log.next_offset) == (0, 13)
        seen: list[int] = []
        with pytest.raises(CorruptBatch) as lost:
            seen.extend(record.offset for record in log.scan())
        assert seen == list(range(11))
        assert lost.value.next_offset == 13
        assert list(log.scan(13)) == []
        page = log.fetch(10, 1000)
        assert page.next_offset == 11
        with pytest.raises(CorruptBatch):
            log.fetch(11, 1000)


def test_a_reader_continues_after_a_missing_beginning(place: Place) -> None:
    built(place)
    lose(place, 0)
    with place.open(mode="r") as log:
        with pytest.raises(CorruptBatch) as lost:
            list(log.scan())
        assert lost.value.next_offset == 5
        assert [record.offset for record in log.scan(5)] == list(range(5, 13))


@pytest.mark.alternating
@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize(
    ("loss", "lost"),
    [
        ("flipped", {6}),
        ("cut between batches", {7, 8, 9}),
        ("cut within a batch", {6, 7, 8, 9}),
        ("emptied", {5, 6, 7, 8, 9}),
        ("the next one deleted", {10, 11, 12}),
    ],
)
def test_damage_to_a_sealed_segment_is_reported_also_if_its_index_is_missing(
    place: Place, loss: str, lost: set[int], checkpoint: bool
) -> None:
    built(place)
    with place.open() as log:
        log.seal()
        log.append(b"last")
    batches = place.batches(5)
    match loss:
        case "flipped":
            place.flip(named(5), batches[1].position + batches[1].size_bytes - 1)
        case "the next one deleted":
            lose(place, 10)
        case _:
            at = {"cut between batches": batches[2].position, "cut within a batch": batches[1].position + 30}
            place.cut(named(5), at.get(loss, 0))
    place.remove(named(5, INDEX))
    if not checkpoint:
        place.remove(CHECKPOINT)
    with place.open(mode="r") as log:
        assert missing_ends(log._segment_set) or loss == "flipped"  # which only reading finds
    with place.open(mode="r") as log:
        report = log.verify()
        assert len(report.problems) == 1
        assert report.records == 14 - len(lost)
        for offset in range(14):
            if offset in lost:
                with pytest.raises(CorruptBatch):
                    log.read(offset)
            else:
                assert log.read(offset).offset == offset


def test_a_reader_that_is_open_notices_that_a_sealed_segment_without_an_index_was_restored(place: Place) -> None:
    built(place)
    whole = place.files()[named(5)]
    place.remove(named(5, INDEX))
    place.cut(named(5), place.batches(5)[1].position)
    with place.open(mode="r") as log:
        assert not log.verify()
        place.write(named(5), whole)
        assert log.read(8).offset == 8
        assert log.verify()


def test_a_reader_that_is_open_notices_that_the_end_was_restored(place: Place) -> None:
    built(place)
    whole = place.files()[named(10)]
    place.cut(named(10), place.batches(10)[1].position)
    with place.open(mode="r") as log:
        with pytest.raises(CorruptBatch):
            log.read(12)
        place.write(named(10), whole)
        assert log.read(12).offset == 12
        assert log.verify()


@pytest.mark.alternating
def test_a_reader_is_not_alarmed_by_a_writer_that_truncates_trims_and_rotates(tmp_path: Path) -> None:
    """Before every change of the disk, a reader looks at it."""
    inner = FileDirectory(tmp_path / "log")
    directory = FaultyDirectory(inner)
    reader: list[Log] = []

    def look(call: Call) -> None:
        directory.before = None
        fresh = Log.open(tmp_path / "log", mode="r")
        for each in [*reader, fresh]:
            assert each.verify(), str(call)
        fresh.close()
        directory.before = look

    with Log.open(directory, LogConfig(durability="os", segment_bytes=300)) as log:
        fill(log, 12)
        reader.append(Log.open(tmp_path / "log", mode="r"))
        directory.before = look
        fill(log, 3)
        log.truncate(9)
        fill(log, 6)
        log.trim(7)
        log._merge_segments(below_bytes=1000)
        log.truncate(8)
        fill(log, 2)
        log.trim(log.next_offset)
        log.append(b"last")
        directory.before = None
        reader[0].close()


# --- the next writer


def test_a_lost_beginning_is_reported_until_it_is_trimmed(place: Place) -> None:
    built(place)
    lose(place, 0)
    with place.open() as log:
        assert [each.where for each in log.recovery.corruption] == [Where.BEGINNING]
        assert log.recovery.clean
        assert log.append(b"next") == 13
    for _ in range(2):
        with place.open() as log:
            assert not log.verify()
            assert log.lowest_offset == 0
    with place.open() as log:
        log.trim(5)
        assert log.verify()
    assert place.open(mode="r").verify()


def test_retention_keeps_the_report_of_a_loss_as_long_as_the_records_after_it(place: Place) -> None:
    built(place)
    lose(place, 0)
    with place.open() as log:
        assert log.remove_expired(3_600_000) == 0
        assert log.lowest_offset == 0
    with place.open(retention_bytes=10) as log:
        assert log.apply_retention().lowest_offset == 10


@pytest.mark.parametrize("base", [0, 5])
def test_a_missing_or_shorter_segment_in_a_closed_log_is_found_without_reading_it(place: Place, base: int) -> None:
    built(place)
    whole = place.files()[named(base)]
    place.cut(named(base), place.batches(base)[-1].position)
    with place.open() as log:
        assert [each.where for each in log.recovery.corruption] == [Where.GAP_BETWEEN_SEGMENTS]
    place.write(named(base), whole)
    with place.open() as log:
        assert log.recovery


def test_segments_that_a_rewrite_has_replaced_are_no_loss(place: Place) -> None:
    """The checkpoint is older than the rewrite: the number of segments and their sizes differ."""
    built(place)
    before = place.files()[CHECKPOINT]
    with place.open() as log:
        log._merge_segments(below_bytes=100_000)
    place.write(CHECKPOINT, before)
    with place.open() as log:
        assert log.recovery
        assert len(values(log)) == 13


def test_a_checkpoint_of_an_earlier_version_says_nothing_about_sealed_segments(place: Place) -> None:
    built(place)
    saved = replace(Checkpoint.decode(place.files()[CHECKPOINT]), sealed=None)
    assert b"sealed" not in saved.encode()
    place.write(CHECKPOINT, saved.encode())
    with place.open() as log:
        assert log.recovery.findings == []


def test_a_log_that_loses_its_newest_files_to_an_older_copy_does_not_use_offsets_again(place: Place) -> None:
    """A backup was restored over a log whose readers had seen more, and the machine was not restarted."""
    log = place.open()
    fill(log, 5)
    log.close()
    older = place.files()
    log = place.open()
    fill(log, 5, start=5)
    log.close()
    for name, data in older.items():
        if name != "visible":
            place.write(name, data)
    with place.open(mode="r") as reader:
        assert not reader.verify()
    log = place.open()
    assert [each.where for each in log.recovery.corruption] == [Where.TAIL_BELOW_VISIBLE]
    assert log.append(b"next") == 10


# --- no loss


def test_a_trim_on_a_full_disk_that_was_interrupted_is_no_loss() -> None:
    """There was no space for the checkpoint with the new start until segments were deleted."""
    inner = MemoryDirectory()
    directory = FaultyDirectory(inner)
    log = Log.open(directory, LogConfig(durability="os", segment_bytes=300))
    fill(log, 12)
    states: list[dict[str, bytes]] = []
    directory.arm(Fault(errno=errno.ENOSPC, operations={"replace"}, names=CHECKPOINT, forever=True))
    directory.before = lambda call: states.append(files_of(inner))
    with pytest.raises(StorageFull):
        log.trim(8)
    directory.before = None
    directory.disarm()
    kept = log.lowest_offset
    assert any(named(0) not in files for files in states)
    for files in [*states, files_of(inner)]:
        for _ in range(2):
            crashed = disk(files)
            with Log.open(crashed, mode="r") as reader:
                assert reader.verify()
                assert values(reader)[-1] == b"11........"
            with Log.open(crashed) as again:
                assert again.recovery, f"{again.recovery}"
                assert 0 <= again.lowest_offset <= kept
            files = files_of(crashed)  # noqa: PLW2901 - and once more
            assert not [name for name in files if name.endswith(".deleted")]
    log.close()


def test_removing_a_log_leaves_no_state_that_looks_like_a_loss() -> None:
    inner = MemoryDirectory()
    directory = FaultyDirectory(inner)
    log = Log.open(directory, LogConfig(durability="os", segment_bytes=300))
    fill(log, 12)
    states: list[dict[str, bytes]] = []
    directory.before = lambda call: states.append(files_of(inner))
    log.remove()
    directory.before = None
    for files in states:
        with Log.open(disk(files)) as again:
            assert again.recovery, f"{again.recovery}"


def test_a_published_end_that_cannot_be_lowered_is_withdrawn() -> None:
    """Before a truncation: otherwise the truncated records would look lost."""
    directory = FaultyDirectory(MemoryDirectory())
    published = PublishedByReplacing(directory, "visible")
    published.store(10, 1)
    directory.arm(Fault(errno=errno.ENOSPC, operations={"replace"}, forever=True))
    published.store(12, 1)
    assert published.load() == (10, 1)
    published.store(5, 2)
    assert published.load() is None


# --- logs that are written in turns


def test_the_note_of_the_last_turn_says_where_a_shared_log_ends_also_after_a_restart() -> None:
    directory = MemoryDirectory()
    shared = SharedLog(directory)
    for _ in range(3):
        with shared.turn() as log:
            log.append(b"value")
    shared.close()
    files = files_of(directory)
    assert files[LOCK]
    end = len(files[named(0)])
    crashed = disk({**files, named(0): files[named(0)][: end // 3]})
    shared = SharedLog(crashed)
    with shared.turn() as log:
        assert log.recovery.corruption
        assert log.append(b"next") == 3
    shared.close()


@pytest.mark.parametrize("left", [0, 1])
def test_a_reader_and_the_next_writer_compare_a_shared_log_with_the_note(left: int) -> None:
    """After a restart, when nothing is published, and with a checkpoint that is older than the last turns."""
    directory = MemoryDirectory()
    shared = SharedLog(directory)
    for _ in range(3):
        with shared.turn() as log:
            log.append(b"value")
    shared.close()
    files = files_of(directory)
    first = files.pop(named(0))
    if left:
        files[named(0)] = first[: len(first) // 3]
    crashed = disk(files)
    with Log.open(crashed, mode="r") as log:
        assert [each.next_offset for each in log.verify().problems] == [3]
        assert missing_ends(log._segment_set)
    with Log.open(crashed) as log:
        assert log.recovery.corruption
        assert log.append(b"next") == 3


# --- the segment that the checkpoint names


@pytest.mark.parametrize("end", ["killed", "restarted"])
def test_a_log_without_a_segment_is_reported_although_nothing_else_records_its_end(end: str) -> None:
    directory = MemoryDirectory()
    log = Log.open(directory, LogConfig(durability="os"))
    fill(log, 3)
    files = files_of(directory)
    log.close()
    del files[named(0)]
    assert not Checkpoint.decode(files[CHECKPOINT]).durable_offset
    crashed = disk(files)
    if end == "killed":
        crashed.published("visible", create=True).store(3, 0)
    else:
        files.pop("visible", None)
    for _ in range(2):
        with Log.open(crashed, mode="r") as reader:
            assert not reader.verify()
            assert missing_ends(reader._segment_set)
            assert reader.next_offset == (3 if end == "killed" else 1)
    with Log.open(crashed) as again:
        assert [each.where for each in again.recovery.corruption] == [Where.ALL_SEGMENTS]
        assert again.append(b"next") == (3 if end == "killed" else 1)


@pytest.mark.parametrize("closed", [True, False])
def test_everyone_judges_a_missing_last_segment_alike(closed: bool) -> None:
    """The checkpoint names it, and was written when it was empty: a clean one says that it stayed empty."""
    directory = MemoryDirectory()
    log = Log.open(directory, LogConfig(durability="os"))
    fill(log, 3)
    log.seal()
    log.sync()
    files = files_of(directory)
    saved = Checkpoint.decode(files[CHECKPOINT])
    assert (saved.segment, saved.position, saved.durable_offset) == (3, 0, 3)
    log.close()
    del files[named(3)]
    files[CHECKPOINT] = replace(saved, clean=closed).encode()
    crashed = disk(files)
    for _ in range(2):
        with Log.open(crashed, mode="r") as reader:
            assert bool(reader.verify()) is closed
            assert bool(missing_ends(reader._segment_set)) is not closed
            assert [record.offset for record in reader.scan(0, 3)] == [0, 1, 2]
        with Log.open(crashed) as again:
            assert bool(again.recovery.corruption) is not closed
            assert bool(again.verify()) is closed
            assert again.next_offset == (3 if closed else 4)
        if not closed:
            break  # the gap is in the log now
