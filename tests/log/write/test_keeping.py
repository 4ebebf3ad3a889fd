"""Batches that keep their offsets (`_append_at_offsets`), and logs that begin or continue later (`_advance`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.batch import kernel
from sawlog.batch.header import scan
from sawlog.errors import CorruptBatch, InvalidRecord, OffsetMismatch, RecordRemoved, SawlogError
from sawlog.storage import MemoryDirectory
from sawlog.testing.faulty import Fault, FaultyDirectory

from ..places import Place, fill, named, values


def foreign(*placed: tuple[int, list[bytes]], epoch: int = 3, **options: Any) -> bytes:
    """Batches as another log would have them: each at its own offset, with a leader epoch."""
    made = bytearray()
    with Log.in_memory(LogConfig(**options)) as log:
        for offset, records in placed:
            log.append_many(records)
            batch = bytearray(log.fetch(log.next_offset - 1).raw)
            kernel.patch_place(memoryview(batch), 0, offset, epoch)
            made += batch
    return bytes(made)


# --- append_kept


def test_batches_keep_every_byte(place: Place) -> None:
    raw = foreign((0, [b"a", b"b"]), (2, [b"c"]))
    log = place.open()
    assert log._append_at_offsets(raw) == range(3)
    assert place.files()[named(0)] == raw
    assert [each.leader_epoch for each in place.batches()] == [3, 3]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_missing_offsets_are_covered_by_batches_without_records(place: Place, compression: str) -> None:
    raw = foreign((2, [b"a" * 50, b"b"]), (9, [b"c"]), (10, [b"d"]), (14, [b"e"]), compression=compression)
    log = place.open()
    log.append(b"first")
    assert log._append_at_offsets(raw) == range(1, 15)
    assert [record.offset for record in log] == [0, 2, 3, 9, 10, 14]
    assert [(each.base_offset, each.last_offset) for each in place.batches() if not each.count] == [
        (1, 1),
        (4, 8),
        (11, 13),
    ]
    assert raw[:61] in place.files()[named(0)]
    with pytest.raises(RecordRemoved, match="the next is at 9"):
        log.read(5)
    assert log.verify()
    log.close()
    log = place.open()
    assert log.recovery.findings == []
    assert [record.offset for record in log] == [0, 2, 3, 9, 10, 14]
    assert log.append(b"next") == 15


def test_a_batch_below_the_end_is_refused_and_nothing_is_stored(place: Place) -> None:
    log = place.open()
    fill(log, 5)
    before = place.files()[named(0)]
    for raw in (foreign((4, [b"x"])), foreign((7, [b"x"]), (6, [b"y"])), foreign((5, [b"x", b"y"]), (6, [b"z"]))):
        with pytest.raises(InvalidRecord, match="nothing was stored"):
            log._append_at_offsets(raw)
    assert place.files()[named(0)] == before
    assert log.append(b"next") == 5


def test_a_batch_that_reaches_over_the_beginning_of_an_empty_log_is_taken_whole(place: Place) -> None:
    raw = foreign((40, [b"a", b"b", b"c"]), (43, [b"d"]))
    log = place.open()
    log._advance(42)
    assert log._append_at_offsets(raw) == range(42, 44)
    assert place.files()[named(40)] == raw
    assert (log.lowest_offset, log.next_offset) == (42, 44)
    assert values(log) == [b"c", b"d"]
    log.close()
    log = place.open()
    assert log.recovery.findings == []
    assert (log.lowest_offset, values(log)) == (42, [b"c", b"d"])


def test_fillers_have_the_leader_epoch_of_their_neighbour(place: Place) -> None:
    log = place.open()
    log._append_at_offsets(foreign((0, [b"a"])) + foreign((5, [b"b"]), epoch=7))
    log._advance(9, leader_epoch=8)
    assert [each.leader_epoch for each in place.batches()] == [3, 3, 7, 8]


def test_a_wrong_checksum_is_refused(place: Place) -> None:
    raw = bytearray(foreign((0, [b"a"])))
    raw[-1] ^= 1
    log = place.open()
    with pytest.raises(CorruptBatch, match="checksum"):
        log._append_at_offsets(raw)
    assert log.next_offset == 0


def test_segments_are_not_cut_by_the_age_of_what_is_kept(place: Place) -> None:
    with Log.in_memory() as source:
        source.append(b"old", timestamp=0)
        source.append(b"young", timestamp=10**12)
        raw = source.fetch(0).raw
    log = place.open(segment_age_ms=1000)
    log._append_at_offsets(raw)
    assert place.bases() == [0]


def test_what_does_not_fit_goes_to_the_next_segment(place: Place) -> None:
    raw = foreign(*((2 * number, [b"x" * 100]) for number in range(40)))
    log = place.open(segment_bytes=1000)
    assert log._append_at_offsets(raw) == range(79)
    assert len(place.bases()) > 4
    assert all(segment.size_bytes <= 1000 for segment in log.segments)
    assert [record.offset for record in log] == list(range(0, 80, 2))
    assert log.verify()


def test_offsets_farther_apart_than_an_index_can_tell_are_kept(place: Place) -> None:
    log = place.open()
    log._append_at_offsets(foreign((0, [b"a"]), (5 * 2**31, [b"b"])))
    assert [(record.offset, record.value) for record in log] == [(0, b"a"), (5 * 2**31, b"b")]
    assert log.verify()
    log.close()
    log = place.open()
    assert log.recovery.findings == []
    assert log.read(5 * 2**31).value == b"b"


def test_producers_of_kept_batches_are_known(place: Place) -> None:
    with Log.in_memory() as source:
        source.append_many([b"a", b"b"], producer=Producer(7, 0, 0))
        raw = source.fetch(0).raw
    log = place.open()
    log._append_at_offsets(raw)
    assert log.append_many([b"a", b"b"], producer=Producer(7, 0, 0)) == range(2)
    assert log.next_offset == 2


def test_a_failing_write_leaves_nothing_of_what_was_to_be_kept() -> None:
    raw = foreign(*((number, [b"x" * 100]) for number in range(40)))
    directory = FaultyDirectory(MemoryDirectory())
    with Log.open(directory, LogConfig(segment_bytes=1000, durability="os")) as log:
        fill(log, 3)
        directory.arm(Fault(4, operations={"append"}))
        with pytest.raises(SawlogError):
            log._append_at_offsets(raw[len(raw) // 40 * 3 :])
        directory.disarm()
        assert values(log) == [b"0.........", b"1.........", b"2........."]
        assert log.verify()


# --- advance


def test_an_empty_log_begins_where_it_is_told(place: Place) -> None:
    log = place.open()
    assert log._advance(1000) == 1000
    assert (log.lowest_offset, log.next_offset, len(log), place.bases()) == (1000, 1000, 0, [1000])
    assert log.append(b"a") == 1000
    log.close()
    log = place.open()
    assert log.recovery.findings == []
    assert (log.lowest_offset, log.next_offset) == (1000, 1001)


def test_an_empty_log_that_began_elsewhere_is_empty_after_it_is_opened_again(place: Place) -> None:
    place.open()._advance(1000)
    copy = place.copy()
    log = copy.open()
    assert log.recovery
    assert (log.lowest_offset, log.next_offset) == (1000, 1000)


def test_a_log_with_records_passes_over_offsets(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    assert log._advance(10) == 7
    assert (log.lowest_offset, log.next_offset) == (0, 10)
    assert log.append(b"a") == 10
    assert [record.offset for record in log] == [0, 1, 2, 10]
    assert log.verify()


def test_a_log_does_not_go_back(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    assert log._advance(3) == 0
    with pytest.raises(OffsetMismatch):
        log._advance(2)
    assert len(scan(place.files()[named(0)])) == 3


def test_readers_see_an_advance(file_place: Place) -> None:
    log = file_place.open()
    reader = file_place.open(mode="r")
    assert reader.next_offset == 0
    log._advance(1000)
    log.append(b"a")
    assert (reader.next_offset, reader.lowest_offset) == (1001, 1000)
    assert values(reader) == [b"a"]


def failing_at_every_step(before: Callable[[Log], object], work: Callable[[Log], object]) -> Iterator[tuple[bool, Log]]:
    """Do `work` on a new log with each I/O call failing in turn, with and without effect; whether it said that it was
    done, and the log as it is when it is opened again."""
    for number in range(1, 100):
        for effect in ("nothing", "all"):
            inner = MemoryDirectory()
            with Log.open(inner) as log:
                before(log)
            directory = FaultyDirectory(inner)
            log = Log.open(directory)
            directory.arm(Fault(number, effect=effect))  # type: ignore[arg-type]
            try:
                work(log)
                done = True
            except SawlogError:
                done = False
            failed = bool(directory.failed)
            directory.disarm()
            log.close()
            with Log.open(inner) as log:
                assert log.recovery, f"call {number}: {log.recovery}"
                yield done, log
                assert log.verify()
        if not failed:
            assert number > 5
            return


def test_an_advance_that_fails_at_any_step_leaves_an_empty_log() -> None:
    for done, log in failing_at_every_step(lambda log: None, lambda log: log._advance(1000)):
        assert log.lowest_offset == log.next_offset
        assert log.next_offset == 1000 if done else log.next_offset in (0, 1000)
        assert log.append(b"a") in (0, 1000)


def test_a_batch_over_the_beginning_is_there_or_not_whatever_fails() -> None:
    raw = foreign((40, [b"a", b"b", b"c"]))
    for done, log in failing_at_every_step(lambda log: log._advance(42), lambda log: log._append_at_offsets(raw)):
        assert log.lowest_offset == 42
        assert values(log) == [b"c"] if done else values(log) in ([], [b"c"])
        assert log.append(b"x") == (43 if values(log)[:1] == [b"c"] else 42)
