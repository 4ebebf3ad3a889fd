"""Segments are removed here because a replica has them: the log is the same as before, whatever fails and when.

The replica is a `Mirror` in memory. Tests with a real one, on object storage, are in tests/replicas.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.config import MaintenanceConfig
from sawlog.errors import InvalidConfig, OffsetOutOfRange, RemoteUnavailable
from sawlog.log.epochs import Epochs
from sawlog.log.recovery_report import Where
from sawlog.log.remote import UNKNOWN, RemoteRun, RemoteSegments, load_remote
from sawlog.log.tiering import TieringReport
from sawlog.log.verify import missing_ends
from sawlog.storage import MemoryDirectory

from ...faults.disk import FaultyStorage
from ...faults.enumeration import Workload
from ..mirrors import Mirror
from ..sampling import crashed_at_some, some_or_all
from ..transactional import send

CONFIG = LogConfig(segment_bytes=500, local_retention_bytes=1000)
KEEP = MaintenanceConfig(merge_bytes=0)


def opened(directory: Any, mirror: Mirror | None, mode: Any = "w", **changes: Any) -> Log:
    return Log.open(directory, CONFIG.with_(**changes), mode=mode, remote=mirror)


def fill(log: Log, count: int) -> None:
    for _ in range(count):
        offset = log.next_offset
        log.append(b"value %d" % offset, key=b"%d" % (offset % 3), timestamp=1000 + offset)


def values(log: Log, start: int | None = None) -> list[bytes | None]:
    return [each.value for each in log.scan(start)]


def expected(start: int, end: int) -> list[bytes]:
    return [b"value %d" % number for number in range(start, end)]


def tier(log: Log) -> TieringReport | None:
    return log.maintain(KEEP, log._shipped()).tiering


def unproven(log: Log) -> str:
    """Why the replica is not proven to have anything."""
    found = log._shipped()
    assert found is not None
    assert not found.segments
    return found.problem


def tiered(directory: Any, count: int = 60, **changes: Any) -> tuple[Log, Mirror]:
    """A log of which most is only in the mirror."""
    mirror = Mirror()
    log = opened(directory, mirror, **changes)
    fill(log, count)
    mirror.copy(log)
    assert tier(log)
    assert 0 < log._local_offset < count
    return log, mirror


# --- the log is the same


def test_the_start_stays_and_the_files_are_gone() -> None:
    directory = MemoryDirectory()
    log, _ = tiered(directory)
    assert (log.lowest_offset, log.next_offset, len(log)) == (0, 60, 60)
    assert log.segments[0].base_offset == log._local_offset
    assert sum(name.endswith(".log") for name in directory.names()) == len(log.segments)
    assert log.size_bytes < 2000
    assert log._remote_bytes > 2000


@pytest.mark.parametrize("mode", ["w", "r"])
def test_everything_is_read_as_before(mode: str) -> None:
    directory = MemoryDirectory()
    log, mirror = tiered(directory)
    if mode == "r":
        log = opened(directory, mirror, "r")
    here = log._local_offset
    assert values(log) == expected(0, 60)
    for start in (0, 1, here - 1, here, here + 1, 59, 60):
        assert values(log, start) == expected(start, 60)
        assert [each.offset for each in log.scan(start, here + 2)] == list(range(start, here + 2))
    for offset in (0, 17, here - 1, here, 59):
        record = log.read(offset)
        assert (record.offset, record.value, record.timestamp) == (offset, b"value %d" % offset, 1000 + offset)
    assert log[-1].value == b"value 59"
    assert log[3:5] == [log[3], log[4]]
    assert [at for batch in log.scan_arrow() for at in batch.column("offset").to_pylist()] == list(range(60))
    assert [each.offset for each in log.follow(5, timeout=0)] == list(range(5, 60))


def test_pages_follow_each_other_and_are_what_was_written() -> None:
    directory = MemoryDirectory()
    mirror = Mirror()
    log = opened(directory, mirror)
    fill(log, 60)
    mirror.copy(log)
    before = log.fetch(0, 1 << 20).raw + log.fetch(log.fetch(0, 1 << 20).next_offset, 1 << 20).raw
    whole = mirror.raw
    assert whole.startswith(before[:100])
    assert tier(log)
    for size in (1, 300, 1 << 20):
        at, found = 0, b""
        while at < 60:
            page = log.fetch(at, size)
            assert page.next_offset > at
            assert page.last_stable_offset == 60
            found, at = found + page.raw, page.next_offset
        assert found == whole


def test_times_are_found_wherever_they_are() -> None:
    log, mirror = tiered(MemoryDirectory())
    asked = mirror.asked
    assert log.offset_at(1059) == 59
    assert log._newest() == (59, 1059)
    assert mirror.asked == asked  # the recorded state of the mirror says that the segment is missing
    assert [log.offset_at(each) for each in (0, 1000, 1007, 1059, 1060)] == [0, 0, 7, 59, 60]
    log.append(b"old", timestamp=5)
    assert log.offset_at(3) == 0


def test_local_reads_do_not_ask_the_replica() -> None:
    log, mirror = tiered(MemoryDirectory())
    asked = mirror.asked
    here = log._local_offset
    assert values(log, here) == expected(here, 60)
    log.read(here)
    log.fetch(here, 100)
    assert log[-1].offset == 59
    fill(log, 1)
    assert log.lowest_offset == 0
    assert mirror.asked == asked


def test_a_replica_that_is_away_is_an_error_and_what_is_here_can_be_read() -> None:
    log, mirror = tiered(MemoryDirectory())
    mirror.is_reachable = False
    here = log._local_offset
    assert values(log, here) == expected(here, 60)
    calls: list[Any] = [
        lambda: list(log.scan()),
        lambda: log.read(0),
        lambda: log.fetch(3, 1),
        lambda: log.offset_at(0),
    ]
    for call in calls:
        with pytest.raises(RemoteUnavailable):
            call()
    assert log.lowest_offset == 0
    with pytest.raises(OffsetOutOfRange):
        log.read(60)


def test_without_a_store_the_error_says_what_to_do() -> None:
    directory = MemoryDirectory()
    log, _ = tiered(directory)
    log.close()
    with Log.open(directory, CONFIG) as alone:
        assert alone.lowest_offset == 0
        with pytest.raises(RemoteUnavailable, match=r"sawlog\.open"):
            values(alone)
        assert values(alone, alone._local_offset) == expected(alone._local_offset, 60)


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_scan_goes_on_while_segments_are_removed(mode: str) -> None:
    directory, mirror = MemoryDirectory(), Mirror()
    log = opened(directory, mirror)
    fill(log, 60)
    mirror.copy(log)
    reader = log if mode == "w" else opened(directory, mirror, "r")
    scan, pages = reader.scan(), reader.fetch(0, 1)
    assert [next(scan).offset for _ in range(5)] == list(range(5))
    assert tier(log)
    assert [each.offset for each in scan] == list(range(5, 60))
    assert reader.fetch(pages.next_offset, 1).next_offset == pages.next_offset + 1
    assert reader.read(3).value == b"value 3"


def test_restarts_change_nothing() -> None:
    directory = MemoryDirectory()
    log, mirror = tiered(directory)
    here, epochs = log._local_offset, log._leader_epochs
    for _ in range(3):
        log.close()
        log = opened(directory, mirror)
        assert (log.lowest_offset, log._local_offset, log._leader_epochs) == (0, here, epochs)
        assert not log.recovery.findings
        assert values(log) == expected(0, 60)


# --- what is proven


def test_nothing_is_removed_that_the_replica_does_not_have() -> None:
    mirror = Mirror()
    log = opened(MemoryDirectory(), mirror)
    fill(log, 30)
    assert unproven(log) == "the replica does not have offsets 0 to 5, or not as a whole: it has none"
    assert "nothing was removed" in str(tier(log))
    mirror.copy(log)
    fill(log, 60)
    report = tier(log)
    assert report
    assert report.segments
    assert "are only in the replica now" in str(report)
    assert f"the rest stays here: the replica does not have offsets {log._local_offset} to " in str(report)
    assert "it has 0 to 29" in str(report)
    assert log._local_offset <= 30
    assert values(log) == expected(0, 90)


def test_other_records_at_the_same_offsets_are_not_taken_for_ours() -> None:
    mirror = Mirror()
    log = opened(MemoryDirectory(), mirror)
    fill(log, 60)
    for offset in range(60):
        mirror.log.append(b"other %d" % offset, key=b"%d" % (offset % 3), timestamp=1000 + offset)
    mirror.raw = b"".join(mirror.log.fetch(at, 1).raw for at in range(60))
    assert unproven(log) == "the replica has other records at offsets 0 to 5"
    assert log._local_offset == 0


def test_another_history_is_not_taken_for_ours() -> None:
    directory, mirror = MemoryDirectory(), Mirror()
    log = opened(directory, mirror)
    fill(log, 60)
    mirror.copy(log)
    log.truncate(5)
    fill(log, 55)  # the same records again, in a later epoch
    assert values(log) == expected(0, 60)
    assert unproven(log) == "the replica has offsets 0 to 5 in other leader epochs, of another history"


def test_the_last_segment_stays() -> None:
    mirror = Mirror()
    log = opened(MemoryDirectory(), mirror, local_retention_bytes=0)
    fill(log, 20)
    mirror.copy(log)
    tier(log)
    assert [each.sealed for each in log.segments] == [False]
    assert values(log) == expected(0, 20)
    log.seal()
    mirror.copy(log)
    tier(log)
    assert (len(log.segments), log._local_offset, log.size_bytes) == (1, 20, 0)
    assert values(log) == expected(0, 20)
    assert log[-1].value == b"value 19"
    fill(log, 5)
    assert values(log) == expected(0, 25)


def test_an_open_transaction_keeps_its_segments_here() -> None:
    mirror = Mirror()
    log = opened(MemoryDirectory(), mirror, local_retention_bytes=0)
    fill(log, 5)
    send(log, [b"mine"], 7)
    fill(log, 40)
    mirror.copy(log)
    tier(log)
    assert log._local_offset <= 5
    log.append_marker(7, 0, commit=False)
    fill(log, 40)
    mirror.copy(log)
    tier(log)
    assert log._local_offset > 46
    assert [each.value for each in log.scan() if each.value == b"mine"] == []
    assert [each.value for each in log.scan(isolation="uncommitted") if each.value == b"mine"] == [b"mine"]
    assert (7, 5) in log.fetch(5, 1).aborted


def test_a_recompressed_segment_is_removed_if_its_records_are_the_same() -> None:
    mirror = Mirror()
    log = opened(MemoryDirectory(), mirror, segment_bytes=2000, local_retention_bytes=2000)
    fill(log, 120)
    mirror.copy(log)
    before = log.size_bytes
    log._recompress("gzip")
    assert log.size_bytes < before
    assert tier(log)
    assert log._local_offset > 0
    assert values(log) == expected(0, 120)


def test_a_replica_that_does_not_answer_is_reported_and_the_rest_of_maintenance_is_done() -> None:
    log, mirror = tiered(MemoryDirectory())
    fill(log, 60)
    mirror.copy(log)
    mirror.is_reachable = False
    report = log.maintain(KEEP, log._shipped())
    assert report.tiering is not None
    assert "the mirror is away" in str(report)


# --- the start


def test_trim_in_the_remote_part_moves_only_the_start() -> None:
    directory = MemoryDirectory()
    log, mirror = tiered(directory)
    here, segments = log._local_offset, log.segments
    assert log.trim(7) == 7
    assert (log.lowest_offset, log._local_offset, log.segments) == (7, here, segments)
    assert values(log) == expected(7, 60)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(6)
    assert caught.value.lowest == 7
    assert log.trim(3) == 0
    assert opened(directory, mirror, "r").lowest_offset == 7
    log.close()
    log = opened(directory, mirror)
    assert values(log) == expected(7, 60)
    assert log.trim(here + 1) == here + 1 - 7
    assert load_remote(directory) is None
    assert (log.lowest_offset, log._local_offset) == (here + 1, here + 1)
    assert values(log) == expected(here + 1, 60)


def test_retention_by_size_counts_what_is_only_in_the_replica() -> None:
    log, mirror = tiered(MemoryDirectory())
    whole, here = log.size_bytes + log._remote_bytes, log._local_offset
    log.close()
    log = opened(log._access.directory, mirror, retention_bytes=whole - 600)
    report = log.apply_retention()
    assert 0 < report.lowest_offset < here
    assert log._local_offset == here
    assert values(log) == expected(log.lowest_offset, 60)
    assert not report.removed_segments


def test_retention_by_age_moves_the_start_through_the_remote_part(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = MemoryDirectory()
    log, mirror = tiered(directory)
    here = log._local_offset
    log.close()
    monkeypatch.setattr("sawlog.log.retention.now_ms", lambda: 1020 + 100)
    log = opened(directory, mirror, retention_ms=100)
    log.apply_retention()
    assert 10 < log.lowest_offset <= 21
    assert log._local_offset == here
    assert values(log) == expected(log.lowest_offset, 60)


def test_truncate_below_what_is_here_is_refused() -> None:
    log, _ = tiered(MemoryDirectory())
    here = log._local_offset
    with pytest.raises(InvalidConfig, match="only in its replica"):
        log.truncate(here - 1)
    log.truncate(here)
    assert values(log) == expected(0, here)
    fill(log, 5)
    assert values(log) == expected(0, here + 5)


def test_compaction_of_a_tiered_log_is_refused() -> None:
    log, _ = tiered(MemoryDirectory())
    with pytest.raises(InvalidConfig, match="only in the replica"):
        log.compact()
    assert log.maintain(MaintenanceConfig(compact=True, merge_bytes=0)).compaction is None


def test_an_empty_segment_here_is_no_empty_log() -> None:
    mirror = Mirror()
    log = opened(MemoryDirectory(), mirror, local_retention_bytes=0)
    fill(log, 20)
    log.seal()
    mirror.copy(log)
    tier(log)
    assert log.size_bytes == 0
    log._advance(30)
    assert log.lowest_offset == 0
    fill(log, 1)
    assert [each.offset for each in log.scan(15)] == [15, 16, 17, 18, 19, 30]


# --- epochs


def test_epochs_of_the_remote_part_stay_known_even_if_their_list_is_lost() -> None:
    directory, mirror = MemoryDirectory(), Mirror()
    log = opened(directory, mirror)
    fill(log, 20)
    log.truncate(15)
    fill(log, 45)
    mirror.copy(log)
    tier(log)
    assert log._local_offset > 15
    assert log._leader_epochs == ((0, 0), (1, 15))
    assert (log.epoch_end(0), log.epoch_end(1)) == (15, 60)
    log.close()
    for name in ("leader-epoch-checkpoint", "checkpoint"):
        directory.remove(name)
        if name == "leader-epoch-checkpoint":
            assert opened(directory, mirror, "r").epoch_end(0) == 15
        log = opened(directory, mirror)
        assert log.epoch_end(0) == 15, name
        assert values(log) == expected(0, 60)
        log.close()


# --- damage


def test_without_a_checkpoint_nothing_is_lost() -> None:
    directory = MemoryDirectory()
    log, mirror = tiered(directory)
    log.close()
    directory.replace("checkpoint", b"damaged")
    log = opened(directory, mirror)
    assert log.lowest_offset == 0
    assert values(log) == expected(0, 60)


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_lost_list_of_what_is_remote_is_reported_and_taken_from_the_replica(how: str) -> None:
    directory = MemoryDirectory()
    log, mirror = tiered(directory)
    here = log._local_offset
    log.close()
    if how == "damaged":
        directory.replace("remote", b"damaged")
    else:
        directory.remove("remote")
    reader = opened(directory, mirror, "r")
    assert values(reader) == expected(0, 60)
    for _ in range(2):  # a log that was opened once still knows it
        log = opened(directory, mirror)
        assert [each.where for each in log.recovery.findings] == [Where.REMOTE]
        for each in (reader, log):
            assert each._segment_set.remote is UNKNOWN
            (problem,) = each.verify().problems
            assert missing_ends(each._segment_set) == [problem]
            assert "/remote at byte 0: the list of segments that are only in the replica is missing" in str(problem)
        log.close()
    log = opened(directory, mirror)
    assert (log.lowest_offset, log._local_offset) == (0, here)
    assert values(log) == expected(0, 60)
    with pytest.raises(RemoteUnavailable, match="maintenance"):
        log.trim(5)
    mirror.is_reachable = False
    assert values(log, here) == expected(here, 60)
    with pytest.raises(RemoteUnavailable):
        values(opened(directory, mirror, "r"))
    mirror.is_reachable = True
    log.maintain(KEEP, log._shipped())
    found = load_remote(directory)
    assert found is not None
    assert (found.log_start, found.end) == (0, here)
    log.trim(5)
    for each in (log, opened(directory, mirror, "r")):
        assert each.verify().ok
        assert values(each) == expected(5, 60)


def test_a_log_that_is_here_as_a_whole_again_needs_no_list_of_what_is_remote() -> None:
    directory = MemoryDirectory()
    log, _ = tiered(directory)
    log.trim(log._local_offset + 1)
    start = log.lowest_offset
    log.close()
    assert not directory.exists("remote")
    for mode in ("r", "w"):
        log = opened(directory, None, mode)
        assert not log.recovery.findings
        assert log.verify().ok
        assert values(log) == expected(start, 60)


def test_a_reader_is_not_misled_while_the_list_of_what_is_remote_appears_and_goes() -> None:
    directory = MemoryDirectory()
    mirror = Mirror()
    log = opened(directory, mirror)
    fill(log, 60)
    reader = opened(directory, mirror, "r")
    mirror.copy(log)
    assert tier(log)
    reader._segment_set.refresh()
    assert reader._segment_set.remote == log._segment_set.remote
    log.trim(log._local_offset + 1)
    reader._segment_set.refresh()
    assert reader._segment_set.remote is None


def test_many_runs_are_joined() -> None:
    part = RemoteSegments(0, (), ())
    for number in range(5000):
        part = part.grown([RemoteRun(number * 10, number * 10 + 10, 7, number)], Epochs())
    assert len(part.runs) <= 1000
    assert (part.log_start, part.end, sum(run.size_bytes for run in part.runs)) == (0, 50_000, 35_000)
    assert RemoteSegments.decode(part.encode()) == part
    assert part.trimmed(42_000).runs[0].next_offset > 42_000


# --- crashes


class Tiering(Workload):
    """Appends, copies, removes here, trims: at every change of the disk a crash leaves exactly the records."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.promise = {"raw": b"", "written": 0, "start": 0, "wanted": 0}

    def work(self, disk: FaultyStorage) -> None:
        mirror = Mirror()
        with opened(disk.plain, mirror, local_retention_bytes=0) as log:
            for _ in range(3):
                self._step(log, mirror, self.promise, self.random)
            assert log.lowest_offset < log._local_offset

    @staticmethod
    def _step(log: Log, mirror: Mirror, promise: Any, chosen: random.Random) -> None:
        for _ in range(chosen.randrange(3, 7)):
            log.append_many([(value, None, (), 1000) for value in expected(log.next_offset, log.next_offset + 3)])
            promise["written"] = log.next_offset
        mirror.copy(log)
        promise["raw"] = mirror.raw
        log.maintain(KEEP, log._shipped())
        if chosen.random() < 0.7:
            promise["wanted"] = chosen.randrange(log.lowest_offset, min(log._local_offset + 3, log.next_offset + 1))
            log.trim(promise["wanted"])
            promise["start"] = promise["wanted"]

    def recover(self, disk: FaultyStorage, promise: Any, *, power_cut: bool) -> None:
        mirror = Mirror(promise["raw"])
        if promise["written"]:
            with opened(disk.plain, mirror, "r") as log:
                self._check(log, promise)
        with opened(disk.plain, mirror, local_retention_bytes=0) as log:
            self._check(log, promise)
            mirror.copy(log)
            self._step(log, mirror, promise, random.Random(disk.seed))
            self._check(log, promise)

    @staticmethod
    def _check(log: Log, promise: Any) -> None:
        assert promise["start"] <= log.lowest_offset <= max(promise["wanted"], promise["start"])
        assert log.next_offset >= promise["written"]
        assert values(log) == expected(log.lowest_offset, log.next_offset)
        remote = log._segment_set.remote
        assert remote is None or remote.is_known, "the list of what is remote is taken for lost"
        promise["start"] = log.lowest_offset


@pytest.mark.alternating
@some_or_all(40)
def test_crashes_at_every_step(most: int | None) -> None:
    outcome = crashed_at_some(Tiering, 3, most)
    assert not outcome.violations, outcome


class TieringOnce(Tiering):
    """Removes segments here once, then trims everything that is only in the replica."""

    def work(self, disk: FaultyStorage) -> None:
        mirror = Mirror()
        with opened(disk.plain, mirror, local_retention_bytes=0) as log:
            log.append_many([(value, None, (), 1000) for value in expected(0, 3)])
            log.seal()
            log.append_many([(value, None, (), 1000) for value in expected(3, 6)])
            self.promise["written"] = 6
            mirror.copy(log)
            self.promise["raw"] = mirror.raw
            log.maintain(KEEP, log._shipped())
            assert log._local_offset == 3
            self.promise["wanted"] = 4
            log.trim(4)
            self.promise["start"] = 4


@pytest.mark.alternating
@some_or_all(40)
def test_no_crash_leaves_a_checkpoint_that_requires_a_list_which_is_not_there(most: int | None) -> None:
    outcome = crashed_at_some(TieringOnce, 1, most)
    assert not outcome.violations, outcome
