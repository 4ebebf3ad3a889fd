"""Compaction against a model: the last record of every key stays where it was, and nothing else of that key does.

Random logs hold everything that a log can hold: all codecs, both kinds of time, producers, transactions, headers,
records without a key, tombstones. They are compacted whole and in many small rounds, between appends, trims and
truncations, and read in every way afterwards.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from sawlog import Log, LogConfig, MaintenanceConfig, Producer
from sawlog.batch.compression import CODECS
from sawlog.batch.header import scan
from sawlog.errors import CorruptBatch, OutOfOrderSequence, RecordRemoved
from sawlog.log import compaction, maintenance_state, rebatch, rewrite
from sawlog.log.compaction import CompactionReport
from sawlog.log.maintenance_state import load_state

from ...batch import wire
from ...batch.twins import interpreted
from ..keyed import LONG_MS, Entry, Filling, T, appender, check_everything, compacted, entry
from ..places import FilePlace, MemoryPlace, Place, named, now_ms
from ..transactional import batch

#: The smallest table: 896 keys a round.
SMALL_TABLE = 1


def compact(log: Log, delete_retention_ms: int = LONG_MS, key_bytes: int = compaction.KEY_BYTES) -> CompactionReport:
    return compaction.compact(appender(log), delete_retention_ms=delete_retention_ms, key_bytes=key_bytes)


def active_base(log: Log) -> int:
    return log.segments[-1].base_offset


def kept(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.scan()]


def written(log: Log, *records: tuple[bytes | None, bytes | None]) -> None:
    """(key, value), a batch each."""
    for key, value in records:
        log.append(value, key)


# --- the model


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.8 s each
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("timestamps", ["create", pytest.param("append", marks=pytest.mark.slow)])
def test_the_last_record_of_every_key_stays_and_nothing_else_of_it(
    memory_place: MemoryPlace, codec: str, timestamps: Any
) -> None:
    settings = LogConfig(
        segment_bytes=9000, index_interval_bytes=300, compression=codec, timestamp_type=timestamps, durability="os"
    )
    log = memory_place.open(settings)
    filling = Filling(log, random.Random(f"{codec} {timestamps}"))
    for _ in range(3):
        filling.fill(150)
        end, following = active_base(log), log.next_offset
        before = len(list(log.scan(isolation="uncommitted")))
        report = compact(log)
        filling.leave(compacted(filling.entries, end))
        assert log.next_offset == following
        assert report.records_removed == before - len(list(log.scan(isolation="uncommitted"))) > 0
        assert report.clean_offset == end
        check_everything(log, filling.entries)
    log.close()
    log = memory_place.open(settings)
    assert not log.recovery.findings
    check_everything(log, filling.entries)
    again = compact(log)
    assert not again.records_removed
    check_everything(log, filling.entries)


@pytest.mark.alternating
@pytest.mark.parametrize("seed", range(1))
def test_many_small_rounds_come_to_the_same(memory_place: MemoryPlace, seed: int) -> None:
    log = memory_place.open(segment_bytes=200_000, durability="os")
    filling = Filling(log, random.Random(seed), keys=3000, sizes=(0, 5))
    for _ in range(2):
        filling.fill(3500)
        log.seal()
        end = active_base(log)
        report = compact(log, key_bytes=SMALL_TABLE)
        filling.leave(compacted(filling.entries, end))
        assert report.clean_offset == end
        assert [entry(r).fields for r in log.scan()] == [e.fields for e in filling.entries]
        assert log.verify()


@pytest.mark.alternating
def test_a_segment_with_more_keys_than_the_table_is_compacted_to_its_end(memory_place: MemoryPlace) -> None:
    log = memory_place.open(durability="os")
    for turn in range(2):
        for at in range(0, 5000, 100):
            log.append_many([(b"%d" % turn * 200, b"key %d" % i) for i in range(at, at + 100)])
    log.seal()
    report = compact(log, key_bytes=SMALL_TABLE)
    assert report.clean_offset == 10_000
    assert [(r.offset, r.value) for r in log.scan()] == [(5000 + i, b"1" * 200) for i in range(5000)]


@pytest.mark.alternating
@pytest.mark.sampled(1)  # over a second each
@pytest.mark.parametrize("seed", range(4))
def test_compaction_between_trims_and_truncations(memory_place: MemoryPlace, seed: int) -> None:
    rng = random.Random(seed)
    settings = LogConfig(segment_bytes=8000, index_interval_bytes=200, compression=rng.choice(sorted(CODECS)))
    log = memory_place.open(settings.with_(durability="os"))
    filling = Filling(log, rng, keys=15)
    for _ in range(8):
        filling.fill(rng.choice([20, 80, 200]))
        what = rng.choice(["trim", "truncate", "reopen", "nothing"])
        offset = rng.randrange(log.lowest_offset, log.next_offset + 1)
        if what == "trim":
            offset = min(offset, log.lowest_offset + 100)
            log.trim(offset)
            filling.leave(e for e in filling.entries if e.offset >= offset)
        elif what == "truncate":
            filling.truncate(max(offset, log.next_offset - 100))
        elif what == "reopen":
            log.close()
            log = filling.log = memory_place.open(settings.with_(durability="os"))
        if rng.random() < 0.7:
            compact(log, key_bytes=rng.choice([SMALL_TABLE, 1 << 20]))
            filling.leave(compacted(filling.entries, active_base(log)))
        check_everything(log, filling.entries)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_compaction_between_trims_and_truncations_at_length(memory_place: MemoryPlace, seed: int) -> None:
    test_compaction_between_trims_and_truncations(memory_place, seed)


# --- what stays


def test_records_without_a_key_stay(place: Place) -> None:
    log = place.open()
    written(log, (None, b"1"), (None, b"1"), (b"", b"1"), (None, None), (b"", b"2"))
    log.seal()
    compact(log)
    assert kept(log) == [(0, None, b"1"), (1, None, b"1"), (3, None, None), (4, b"", b"2")]


def test_the_active_segment_is_left_alone(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"))
    log.seal()
    written(log, (b"a", b"2"), (b"a", b"3"))
    assert not compact(log)
    assert kept(log) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_a_removed_record_names_the_next_one_across_segments(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"))
    log.seal()
    written(log, (b"b", b"2"), (b"a", b"3"))
    log.seal()
    written(log, (b"b", b"4"))
    log.seal()
    compact(log)
    for offset, following in ((0, 2), (1, 2)):
        with pytest.raises(RecordRemoved) as raised:
            log.read(offset)
        assert raised.value.following == following


def test_a_removed_record_before_an_emptied_segment_names_the_record_behind_it(place: Place) -> None:
    """Segments so full that they are not joined: one of them ends up without any record."""
    log = place.open(segment_bytes=3000, compression="none")
    log.append_many([(b"x" * 1200, b"a"), (b"x" * 1200, b"b")])
    log.seal()
    log.append_many([(b"y" * 1200, b"a"), (b"y" * 1200, b"b")])
    log.seal()
    log.append_many([(b"z" * 1200, b"a"), (b"z" * 1200, b"b")])
    log.seal()
    compact(log)
    for offset in range(4):
        with pytest.raises(RecordRemoved) as raised:
            log.read(offset)
        assert raised.value.following == 4


def test_the_end_of_the_log_stays_where_it_is_if_its_last_records_go(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"b", None))
    log.seal()
    compact(log)
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(0, b"a", b"1")]
    assert (log.lowest_offset, log.next_offset) == (0, 2)
    log.close()
    log = place.open()
    assert (log.lowest_offset, log.next_offset) == (0, 2)
    assert log.append(b"2", b"a") == 2


def test_a_log_of_which_nothing_is_left_reads_as_empty_and_goes_on(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"a", None))
    log.seal()
    compact(log)
    compact(log, delete_retention_ms=0)
    assert list(log) == list(log.scan_arrow()) == []
    assert list(log.follow(0, timeout=0)) == []
    assert log.fetch(0).next_offset == 2
    assert log.offset_at(0) == 2
    assert log.append(b"1", b"b") == 2
    assert kept(log) == [(2, b"b", b"1")]
    assert [r.offset for r in log.follow(0, timeout=0)] == [2]


def test_compaction_joins_small_segments_but_not_beyond_their_limit(place: Place) -> None:
    log = place.open(segment_bytes=1000)
    for i in range(60):
        log.append(b"v" * 60, b"%d" % (i % 30))
    before = len(log.segments)
    report = compact(log)
    assert report.segments_before == before - 1
    assert report.segments_after == len(log.segments) - 1 < before - 1
    assert all(each.size_bytes <= 1000 for each in log.segments)


def markers(log: Log) -> int:
    return sum(header.is_control for header in scan(log.fetch(log.lowest_offset).raw))


def test_a_marker_stays_as_long_as_a_batch_of_its_transaction_does(memory_place: MemoryPlace) -> None:
    log = memory_place.open(producer_expiry_ms=1)
    filling = Filling(log, random.Random(1), keys=1)
    for commit in (True, True, False, True):
        filling.transact(commit=commit)
    log.append(b"last", b"k0")
    log.seal()
    filling.took(range(log.next_offset - 1, log.next_offset))
    appender(log).producers.expire(now_ms() + 10)
    compact(log)
    filling.leave(compacted(filling.entries, active_base(log)))
    assert len(filling.entries) == 1
    assert markers(log) == 0
    check_everything(log, filling.entries)


def test_the_markers_of_what_is_kept_are_kept(memory_place: MemoryPlace) -> None:
    log = memory_place.open(producer_expiry_ms=1)
    for number, commit in enumerate((True, False, True)):
        log.append_batches(batch([b"v"], 7, keys=[b"k%d" % number]))
        log.seal()  # the marker is in the next segment
        log.append_marker(7, 0, commit=commit)
    log.seal()
    appender(log).producers.expire(now_ms() + 10)
    compact(log)
    assert [record.offset for record in log] == [0, 4]
    assert markers(log) == 2
    log.append(b"w", b"k0")
    log.seal()
    compact(log)
    assert [record.offset for record in log] == [4, 6]
    assert markers(log) == 1


def test_nothing_from_the_last_stable_offset_on_is_compacted(memory_place: MemoryPlace) -> None:
    log = memory_place.open()
    log.append(b"1", b"k")
    log.seal()
    log.append_batches(batch([b"2"], 7, keys=[b"k"]))
    log.seal()
    log.append(b"3", b"k")
    log.seal()
    compact(log)
    assert [record.value for record in log] == [b"1"]
    log.append_marker(7, 0, commit=False)
    log.seal()
    compact(log)
    assert [record.value for record in log] == [b"3"]


def test_an_aborted_record_supersedes_nothing_and_goes(memory_place: MemoryPlace) -> None:
    log = memory_place.open()
    log.append(b"1", b"k")
    log.append_batches(batch([b"2"], 7, keys=[b"k"]))
    log.append_marker(7, 0, commit=False)
    log.seal()
    compact(log)
    assert [record.value for record in log] == [b"1"]
    assert [record.value for record in log.scan(isolation="uncommitted")] == [b"1"]


def test_young_segments_wait_for_the_lag(place: Place) -> None:
    log = place.open()
    old, young = now_ms() - 100_000, now_ms()
    log.append_many([(b"1", b"a", (), old), (b"2", b"a", (), old)])
    log.seal()
    log.append_many([(b"3", b"a", (), young), (b"4", b"a", (), young)])
    log.seal()
    compaction.compact(appender(log), delete_retention_ms=LONG_MS, min_lag_ms=50_000)
    assert kept(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]


# --- tombstones


def with_tombstone(place: Place, **settings: Any) -> Log:
    log = place.open(**settings)
    written(log, (b"a", b"1"), (b"b", b"1"), (b"a", None))
    log.seal()
    return log


def test_a_tombstone_outlives_the_compaction_that_meets_it_first(place: Place) -> None:
    log = with_tombstone(place)
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"b", b"1"), (2, b"a", None)]


def test_a_tombstone_goes_when_it_is_old_enough(place: Place) -> None:
    log = with_tombstone(place)
    compact(log)
    assert not compact(log)
    report = compact(log, delete_retention_ms=0)
    assert report.tombstones_removed == 1
    assert kept(log) == [(1, b"b", b"1")]


def test_a_tombstones_age_is_counted_over_a_restart(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = with_tombstone(place)
    compact(log)
    log.close()
    log = place.open()
    later = now_ms() + 5000
    monkeypatch.setattr(compaction, "now_ms", lambda: later)
    assert not compact(log, delete_retention_ms=6000)
    assert compact(log, delete_retention_ms=4000).tombstones_removed == 1


def test_a_tombstone_that_is_written_later_has_its_own_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = with_tombstone(place)
    compact(log)
    later = now_ms() + 5000
    monkeypatch.setattr(compaction, "now_ms", lambda: later)
    written(log, (b"b", None))
    log.seal()
    compact(log, delete_retention_ms=4000)
    compact(log, delete_retention_ms=4000)
    assert kept(log) == [(3, b"b", None)]


def test_without_its_notes_compaction_keeps_tombstones_longer_and_nothing_comes_back(place: Place) -> None:
    log = with_tombstone(place)
    compact(log)
    log.close()
    place.remove("maintenance")
    log = place.open()
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"b", b"1"), (2, b"a", None)]
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"b", b"1")]


@pytest.mark.parametrize(
    "damage", [b"", b"junk", b"sawlog maintenance 1\n{}\ncrc32c 00000000\n"], ids=["empty", "junk", "crc"]
)
def test_damaged_notes_are_as_good_as_none(place: Place, damage: bytes) -> None:
    log = with_tombstone(place)
    compact(log)
    log.close()
    place.write("maintenance", damage)
    log = place.open()
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"b", b"1"), (2, b"a", None)]


def test_a_deleted_key_that_is_written_again_is_there(place: Place) -> None:
    log = with_tombstone(place)
    compact(log)
    written(log, (b"a", b"again"))
    log.seal()
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"b", b"1"), (3, b"a", b"again")]


# --- damage


def damaged_in_the_middle(place: Place) -> Log:
    """a=1, b=1 | a=2 (damaged), c=1 | a deleted, b=2; three segments and an active one."""
    log = place.open()
    written(log, (b"a", b"1"), (b"b", b"1"))
    log.seal()
    written(log, (b"a", b"2"), (b"c", b"1"))
    log.seal()
    written(log, (b"a", None), (b"b", b"2"))
    log.seal()
    log.close()
    place.flip(named(2), place.batches(2)[0].position + 65)
    return place.open()


def test_a_damaged_segment_is_left_as_it_is_and_named(place: Place) -> None:
    log = damaged_in_the_middle(place)
    before = place.files()[named(2)]
    report = compact(log)
    assert [path.rpartition("/")[2] for path in report.damaged] == [named(2)]
    assert place.files()[named(2)] == before
    with pytest.raises(CorruptBatch):
        log.read(2)
    assert log.read(3).value == b"1"
    assert [(r.offset, r.key) for r in log.scan(4)] == [(4, b"a"), (5, b"b")]
    with pytest.raises(RecordRemoved):
        log.read(1)


def test_no_tombstone_goes_while_there_is_damage(place: Place) -> None:
    log = damaged_in_the_middle(place)
    for _ in range(3):
        compact(log, delete_retention_ms=0)
        assert log.read(4).value is None
    log.close()
    log = place.open()
    compact(log, delete_retention_ms=0)
    assert log.read(4).value is None


def test_tombstones_go_again_once_the_damage_is_trimmed_away(place: Place) -> None:
    log = damaged_in_the_middle(place)
    compact(log, delete_retention_ms=0)
    log.trim(4)
    compact(log, delete_retention_ms=0)
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(5, b"b", b"2")]


def test_damage_that_is_met_only_while_rewriting_keeps_later_tombstones(place: Place) -> None:
    """The segment was intact at the first compaction and is damaged now. A tombstone may refer to records in it."""
    log = place.open(segment_bytes=400)
    written(log, (b"x", b"1" * 300))
    log.seal()
    written(log, (b"a", b"2" * 300))
    log.seal()
    written(log, (b"c", b"3" * 300))
    log.seal()
    compact(log)
    log.close()
    place.flip(named(1), place.batches(1)[0].position + 65)
    log = place.open(segment_bytes=400)
    written(log, (b"a", None))
    log.seal()
    for _ in range(3):
        compact(log, delete_retention_ms=0)
    assert log.read(3).value is None


def test_no_tombstone_goes_while_a_segment_cannot_be_rewritten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompressed, a segment of almost the largest size may be too large."""
    log = place.open(segment_bytes=830)
    log.append_many([(b"1" * 300, b"a"), (b"1" * 420, b"b")])
    log.seal()
    written(log, (b"a", None), (b"c", b"1" * 330))
    log.seal()
    with monkeypatch.context() as patched:
        patched.setattr(rewrite, "MAX_SEGMENT_BYTES", 475)
        for _ in range(3):
            assert [path.rpartition("/")[2] for path in compact(log, delete_retention_ms=0).damaged] == [named(0)]
        assert [offset for offset, _, _ in kept(log)] == [0, 1, 2, 3]
    for _ in range(2):
        compact(log, delete_retention_ms=0)
    assert [offset for offset, _, _ in kept(log)] == [1, 3]


def test_a_damaged_segment_does_not_end_compaction_behind_it(place: Place) -> None:
    log = place.open(segment_bytes=400)
    written(log, (b"x", b"1" * 300))
    log.seal()
    log.close()
    place.flip(named(0), 65)
    log = place.open(segment_bytes=400)
    written(log, (b"a", b"1"), (b"a", b"2"))
    log.seal()
    assert compact(log).records_removed == 1
    written(log, (b"a", b"3"))
    log.seal()
    assert compact(log).records_removed == 1
    assert [r.offset for r in log.scan(1)] == [3]


def test_a_record_in_a_batch_that_does_not_parse_supersedes_none(place: Place) -> None:
    """Its checksum is right, so it was written like that. Its first record parses, but nobody gets the batch."""
    log = place.open()
    written(log, (b"a", b"1"), (b"b", b"1"))
    log.seal()
    written(log, (b"c", b"1"), (b"c", b"1"))
    log.seal()
    written(log, (b"b", b"2"))
    log.seal()
    log.close()
    broken = wire.batch([(0, 0, b"a", b"2", ()), (1, 0, b"zz", b"3", ())], wire.Header(base_offset=2))
    place.write(named(2), wire.with_right_crc(broken[:-2] + b"\x55\x55"))
    for suffix in (".index", ".timeindex"):
        place.remove(named(2, suffix))
    log = place.open()
    report = compact(log)
    assert [path.rpartition("/")[2] for path in report.damaged] == [named(2)]
    assert log.read(0).value == b"1"
    with pytest.raises(RecordRemoved):
        log.read(1)


# --- the interpreted kernel


def test_compaction_works_without_a_compiler(memory_place: MemoryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebatch, "kernel", interpreted)
    monkeypatch.setattr(compaction, "KeyMap", interpreted.KeyMap)
    log = memory_place.open(compression="zstd")
    filling = Filling(log, random.Random(8), keys=10)
    filling.fill(60)
    log.seal()
    compact(log)
    filling.leave(compacted(filling.entries, active_base(log)))
    check_everything(log, filling.entries)


# --- truncation


def test_new_records_at_truncated_offsets_are_compacted_like_any_other(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    log.seal()
    compact(log)
    log.truncate(1)
    written(log, (b"a", b"2"), (b"a", b"3"))
    log.seal()
    compact(log)
    assert kept(log) == [(2, b"a", b"3")]


def test_a_new_tombstone_at_a_truncated_offset_has_its_own_time(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"b", b"1"), (b"b", None))
    log.seal()
    compact(log)
    log.truncate(1)
    written(log, (b"a", None), (b"c", b"1"))
    log.seal()
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"a", None), (2, b"c", b"1")]


def test_truncation_into_a_hole_gives_the_next_record_that_offset(place: Place) -> None:
    log = place.open()
    written(log, *[(b"a", b"%d" % i) for i in range(10)])
    log.seal()
    compact(log)
    log.truncate(4)
    assert (kept(log), log.next_offset) == ([], 4)
    assert log.append(b"new", b"b") == 4
    log.close()
    log = place.open()
    assert kept(log) == [(4, b"b", b"new")]
    assert log.verify()


def interrupting(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object], number: int = 1) -> None:
    """Do something when a replacement is written and not yet swapped in."""
    made = rewrite.replace_run
    calls = iter(range(1, 1000))

    def replace(*arguments: Any) -> Any:
        done = made(*arguments)
        if next(calls) == number:
            what()
        return done

    monkeypatch.setattr(rewrite, "replace_run", replace)


def test_a_record_whose_successor_is_truncated_during_compaction_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.open(segment_bytes=400)
    written(log, (b"a", b"1" * 200), (b"b", b"1"))
    log.seal()
    written(log, (b"c", b"2" * 300))
    log.seal()
    written(log, (b"a", b"3" * 300))
    log.seal()
    interrupting(monkeypatch, lambda: log.truncate(3))
    compact(log)
    assert kept(log)[0] == (0, b"a", b"1" * 200)
    assert log.next_offset == 3
    monkeypatch.undo()
    written(log, (b"b", b"4"))
    log.seal()
    compact(log)
    assert [offset for offset, _, _ in kept(log)] == [0, 2, 3]


def test_a_trim_during_compaction_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = place.open()
    written(log, (b"a", b"1"))
    log.seal()
    written(log, (b"a", b"2"), (b"b", b"1"))
    log.seal()
    interrupting(monkeypatch, lambda: log.trim(1))
    compact(log)
    assert (log.lowest_offset, log.next_offset) == (1, 3)
    assert kept(log)[-1] == (2, b"b", b"1")
    assert log.verify()


def test_a_trim_during_compaction_does_not_keep_the_rest_from_being_compacted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would count as compacted, and a removed tombstone's record would reappear."""
    log = place.open()
    for record in ((b"x", b"1"), (b"a", b"1"), (b"a", None), (b"b", b"1")):
        written(log, record)
        log.seal()
    interrupting(monkeypatch, lambda: log.trim(1))
    report = compact(log)
    assert report.records_removed == 1
    assert kept(log) == [(2, b"a", None), (3, b"b", b"1")]
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(3, b"b", b"1")]


def test_a_truncation_during_compaction_is_not_forgotten_by_its_notes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"b", b"1"), (b"b", b"2"))
    log.seal()
    interrupting(monkeypatch, lambda: log.truncate(1))
    compact(log)
    monkeypatch.undo()
    assert load_state(appender(log).directory).clean_offset <= 1
    written(log, (b"a", None))
    log.seal()
    compact(log, delete_retention_ms=0)
    assert kept(log) == [(1, b"a", None)]


def test_compaction_that_begins_during_a_truncation_knows_of_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    log.seal()
    compact(log)
    written(log, (b"d", b"1"), (b"e", b"1"))
    log.seal()
    real = maintenance_state.store_state
    with ThreadPoolExecutor(1) as pool:
        begun = []

        def store(*arguments: Any) -> None:
            begun.append(pool.submit(compact, log))
            with suppress(TimeoutError):
                begun[0].result(timeout=0.1)  # it may wait for us
            real(*arguments)

        monkeypatch.setattr(maintenance_state, "store_state", store)
        log.truncate(1)
        begun[0].result(timeout=60)
    assert load_state(appender(log).directory).clean_offset <= 1
    written(log, (b"a", b"2"))
    log.seal()
    compact(log)
    assert kept(log) == [(1, b"a", b"2")]


# --- producers


def test_a_duplicate_is_recognised_after_compaction_and_the_loss_of_the_producers_file(place: Place) -> None:
    log = place.open()
    for i in range(8):
        log.append_many([(b"%d" % i, b"a"), (b"%d" % i, b"b")], producer=Producer(7, 0, 2 * i))
    log.append_many([(b"x", b"a"), (b"x", b"b")])
    log.seal()
    compact(log)
    assert [offset for offset, _, _ in kept(log)] == [16, 17]
    log.close()
    place.remove("producers")
    log = place.open()
    for i in range(3, 8):
        again = log.append_many([(b"%d" % i, b"a"), (b"%d" % i, b"b")], producer=Producer(7, 0, 2 * i))
        assert again == range(2 * i, 2 * i + 2)
    with pytest.raises(OutOfOrderSequence):
        log.append_many([b"gap"], producer=Producer(7, 0, 18))
    assert log.append_many([b"next"], producer=Producer(7, 0, 16)) == range(18, 19)


def test_producers_survive_compaction_and_a_truncation_behind_it(place: Place) -> None:
    log = place.open()
    for i in range(3):
        log.append_many([(b"%d" % i, b"a")], producer=Producer(7, 0, i))
    log.seal()
    compact(log)
    log.append_many([(b"3", b"a")], producer=Producer(7, 0, 3))
    log.truncate(3)
    assert log.append_many([(b"2", b"a")], producer=Producer(7, 0, 2)) == range(2, 3)
    assert log.append_many([(b"3", b"a")], producer=Producer(7, 0, 3)) == range(3, 4)


def test_batches_of_forgotten_producers_do_not_pile_up(place: Place) -> None:
    log = place.open()
    for i in range(100):
        log.append_many([(b"%d" % i, b"a")], producer=Producer(7, 0, i))
    log.seal()
    compact(log)
    assert len(place.batches(0)) <= 7


# --- retention


def test_a_compacted_segment_expires_by_its_newest_record(place: Place) -> None:
    log = place.open(segment_bytes=400)
    old, young = now_ms() - 100_000, now_ms() - 1000
    log.append_many([(b"1" * 100, b"a", (), old), (b"1" * 100, b"b", (), old)])
    log.seal()
    log.append_many([(b"2" * 300, b"a", (), old)])
    log.seal()
    log.append_many([(b"3" * 300, b"c", (), young)])
    log.seal()
    compact(log)
    assert log.remove_expired(50_000) == 3
    assert (log.lowest_offset, log.next_offset) == (3, 4)
    assert [r.offset for r in log] == [3]


def test_a_segment_without_records_expires_like_those_that_were_in_it(place: Place) -> None:
    log = place.open(segment_bytes=400)
    old, young = now_ms() - 100_000, now_ms() - 1000
    log.append_many([(b"1" * 300, b"a", (), old)])
    log.seal()
    log.append_many([(b"2" * 300, b"a", (), young)])
    log.seal()
    log.append_many([(b"3" * 300, b"c", (), young)])
    log.seal()
    compact(log)
    log.remove_expired(50_000)
    assert [r.offset for r in log] == [1, 2]
    log.remove_expired(0)
    assert list(log) == []
    assert log.next_offset == 3


def test_removed_young_records_do_not_make_old_ones_expire_late_for_ever(place: Place) -> None:
    log = place.open()
    old, young = now_ms() - 100_000, now_ms()
    log.append_many([(b"1", b"a", (), young), (b"1", b"b", (), old)])
    log.append_many([(b"2", b"a", (), old)])
    log.seal()
    compact(log)
    assert log.remove_expired(50_000) == 3


# --- times


@pytest.mark.parametrize("timestamps", ["create", "append"])
def test_the_offset_at_a_time_is_that_of_a_record(place: Place, timestamps: Any) -> None:
    log = place.open(timestamp_type=timestamps)
    log.append_many([(b"1", b"a", (), T), (b"1", b"b", (), T + 1), (b"1", b"c", (), T + 2)])
    log.append_many([(b"2", b"a", (), T + 3), (b"2", b"b", (), T + 4)])
    log.seal()
    compact(log)
    assert kept(log) == [(2, b"c", b"1"), (3, b"a", b"2"), (4, b"b", b"2")]
    assert log.offset_at(0) == 2
    assert log.read(log.offset_at(0)).value == b"1"


def test_the_offset_at_a_time_passes_over_an_emptied_batch_of_a_producer(place: Place) -> None:
    log = place.open(timestamp_type="append")
    log.append_many([(b"1", b"a")], producer=Producer(1, 0, 0))
    log.append_many([(b"2", b"a")], producer=Producer(1, 0, 1))
    log.seal()
    compact(log)
    assert log.offset_at(0) == 1


# --- when it is due


def test_maintenance_compacts_when_enough_is_new(place: Place) -> None:
    log = place.open(segment_bytes=2000)
    due = MaintenanceConfig(compact=True, min_dirty_ratio=0.5, merge_bytes=0)
    for i in range(40):
        log.append(b"x" * 100, b"%d" % i)
    assert log.maintain(due).compaction is not None
    assert log.maintain(due).compaction is None
    for _ in range(10):
        log.append(b"x" * 100, b"1")
    log.seal()
    assert log.maintain(due).compaction is None
    for _ in range(40):
        log.append(b"x" * 100, b"1")
    report = log.maintain(due)
    assert report.compaction is not None
    assert report.compaction.records_removed == 50 - len(log[log.segments[-1].base_offset :])


def test_maintenance_removes_tombstones_that_have_become_old(place: Place) -> None:
    log = with_tombstone(place)
    policy = MaintenanceConfig(compact=True, merge_bytes=0)
    assert log.maintain(policy).compaction is not None
    assert log.maintain(policy).compaction is None
    later = log.maintain(MaintenanceConfig(compact=True, merge_bytes=0, delete_retention_ms=0)).compaction
    assert later is not None
    assert later.tombstones_removed == 1
    assert log.maintain(MaintenanceConfig(compact=True, merge_bytes=0, delete_retention_ms=0)).compaction is None


def test_maintenance_that_is_not_asked_to_compact_does_not(place: Place) -> None:
    log = place.open()
    written(log, (b"a", b"1"), (b"a", b"2"))
    log.seal()
    assert not log.maintain()
    assert len(list(log)) == 2


# --- large batches, and files


def test_a_record_is_found_behind_thousands_of_emptied_batches(memory_place: MemoryPlace) -> None:
    """Each producer's last batch keeps its place, also if no record is left in it."""
    log = memory_place.open()
    for number in range(2000):
        log.append_many([(b"%d" % number, b"a")], producer=Producer(number, 0, 0))
    log.seal()
    compact(log)
    with pytest.raises(RecordRemoved) as raised:
        log.read(0)
    assert raised.value.following == 1999
    assert kept(log) == [(1999, b"a", b"1999")]


def test_large_batches_that_stay_whole_are_copied_byte_for_byte(file_place: FilePlace) -> None:
    log = file_place.open(compression="zstd")
    rng = random.Random(0)
    for i in range(6):
        log.append_many([(rng.randbytes(100), b"%d %d" % (i, n)) for n in range(2000)])
    log.append_many([(b"again", b"%d %d" % (3, n)) for n in range(2000)])
    log.seal()
    before = file_place.files()[named(0)]
    headers = file_place.batches(0)
    assert compact(log).records_removed == 2000
    after = file_place.files()[named(0)]
    for header in (h for i, h in enumerate(headers[:6]) if i not in (3, 4)):  # the fourth covers the hole before it
        assert before[header.position : header.position + header.size_bytes] in after
    assert log.verify()
    assert len(list(log)) == 12_000


def test_compaction_leaves_no_file_behind(file_place: FilePlace) -> None:
    log = file_place.open(segment_bytes=1000)
    for i in range(100):
        log.append(b"v" * 50, b"%d" % (i % 5))
    compact(log)
    compact(log)
    bases = file_place.bases()
    assert bases == [each.base_offset for each in log.segments]
    logs = {named(base) for base in bases}
    indexes = {named(base, suffix) for base in bases[:-1] for suffix in (".index", ".timeindex")}
    assert set(file_place.names()) == logs | indexes | {"checkpoint", "producers", "maintenance", "visible"}


def test_a_compacted_log_may_be_opened_without_its_indexes(file_place: FilePlace) -> None:
    log = file_place.open(index_interval_bytes=50)
    filling = Filling(log, random.Random(3))
    filling.fill(300)
    log.seal()
    end = active_base(log)
    compact(log)
    filling.leave(compacted(filling.entries, end))
    log.close()
    for name in file_place.names():
        if name.endswith("index"):
            file_place.remove(name)
    log = file_place.open(index_interval_bytes=50)
    check_everything(log, filling.entries)


def test_a_reader_sees_the_same(file_place: FilePlace) -> None:
    log = file_place.open(segment_bytes=9000)
    filling = Filling(log, random.Random(4))
    filling.fill(300)
    end = active_base(log)
    compact(log)
    filling.leave(compacted(filling.entries, end))
    check_everything(file_place.open(mode="r"), filling.entries)


def test_a_report_reads_well(place: Place) -> None:
    log = damaged_in_the_middle(place)
    text = str(compact(log))
    assert text.startswith("compaction removed 2 records and ")
    assert text.endswith(f"{named(2)} is damaged and was not changed")


# --- all at once


def changed_beside_maintenance(log: Log, seed: int, steps: int) -> list[Entry]:
    """Appends, trims and truncations in this thread, all kinds of maintenance in another one; the model of it."""
    rng = random.Random(seed)
    filling = Filling(log, rng, keys=12)
    done = threading.Event()

    def keep_up() -> None:
        chance = random.Random(seed + 1)
        while not done.is_set():
            work = chance.choice([log._merge_segments, log._recompress, log._scrub, None, None])
            work() if work else compact(log, chance.choice([0, LONG_MS]), chance.choice([SMALL_TABLE, 1 << 20]))

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(keep_up)
        try:
            for _ in range(steps):
                filling.fill(rng.choice([5, 30]))
                what = rng.random()
                if what < 0.15:
                    start = rng.randrange(log.lowest_offset, log.next_offset)
                    start = min(start, log.lowest_offset + 60)
                    log.trim(start)
                    filling.leave(e for e in filling.entries if e.offset >= start)
                elif what < 0.4:
                    filling.truncate(max(log.lowest_offset, log.next_offset - rng.choice([1, 10, 80])))
        finally:
            done.set()
        beside.result(timeout=60)
    return filling.entries


def check_against(log: Log, entries: list[Entry]) -> None:
    """Every keyless record is there; of each key nothing but the last, or nothing. (A record that was superseded goes
    for good: if what superseded it is truncated later, none of that key is left.)"""
    log.seal()
    compact(log)
    last = {e.key: e for e in entries}
    found = {record.offset: entry(record).fields for record in log}
    for each in entries:
        if each.key is None:
            assert found.pop(each.offset) == each.fields
    assert all(last[fields[3]].fields == fields for fields in found.values())
    assert log.verify()


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("seed", range(2))
def test_compaction_beside_appends_trims_and_truncations(place: Place, seed: int) -> None:
    log = place.open(segment_bytes=8000, index_interval_bytes=300, durability="os")
    entries = changed_beside_maintenance(log, seed, 40)
    check_against(log, entries)
    log.close()
    log = place.open(segment_bytes=8000, durability="os")
    assert not log.recovery.findings
    check_against(log, entries)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 30))
def test_compaction_beside_appends_trims_and_truncations_at_length(file_place: FilePlace, seed: int) -> None:
    log = file_place.open(segment_bytes=8000, index_interval_bytes=300, durability="os")
    check_against(log, changed_beside_maintenance(log, seed, 200))
