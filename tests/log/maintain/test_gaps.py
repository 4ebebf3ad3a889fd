"""A gap in the offsets costs next to nothing, however long it is, and is read, rewritten and recovered as the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.config import MAX_OFFSET
from sawlog.errors import InvalidConfig, InvalidRecord, OffsetMismatch

CONFIG = LogConfig(durability="os", segment_bytes=1 << 20)
GAPS = (1, 2**31 - 2, 2**31, 2**31 + 5, 10**10, 10**12, 2**44)


def filled(path: Path, gap: int) -> Log:
    log = Log.open(path, CONFIG)
    for number in range(20):
        log.append(b"a%d" % number, b"k%d" % (number % 3))
    assert log._advance(20 + gap) == gap
    for number in range(20):
        log.append(b"b%d" % number, b"k%d" % (number % 3))
    return log


VALUES = [b"a%d" % i for i in range(20)] + [b"b%d" % i for i in range(20)]


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_costs_some_files_at_most(tmp_path: Path, gap: int) -> None:
    with filled(tmp_path / "log", gap) as log:
        assert len(os.listdir(tmp_path / "log")) <= 8
        assert log.size_bytes < 10_000 + gap // 30_000_000
        assert [record.value for record in log] == VALUES
        assert log.read(20 + gap).value == b"b0"
        assert log.next_offset == 40 + gap
        assert log.verify()
    with Log.open(tmp_path / "log", CONFIG) as log:
        assert log.recovery.clean
        assert [record.value for record in log] == VALUES


@pytest.mark.sampled(3)  # 0.2 s each
@pytest.mark.parametrize("gap", GAPS)
def test_a_log_with_a_gap_is_compacted_and_recompressed(tmp_path: Path, gap: int) -> None:
    with filled(tmp_path / "log", gap) as log:
        log.seal()
        log._recompress()
        assert [record.value for record in log] == VALUES
        report = log.compact()
        assert not report.damaged
        assert [record.value for record in log] == [b"b17", b"b18", b"b19"]
        assert [record.offset for record in log] == [20 + gap + n for n in (17, 18, 19)]
        log._merge_segments()
        assert log.verify()
        assert [record.value for record in log] == [b"b17", b"b18", b"b19"]


@pytest.mark.parametrize("gap", GAPS)
def test_a_log_with_a_gap_is_recovered_after_a_kill(tmp_path: Path, gap: int) -> None:
    import shutil

    log = filled(tmp_path / "log", gap)
    log.sync()
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    log.close()
    with Log.open(tmp_path / "killed", CONFIG) as again:
        assert again.recovery, str(again.recovery)
        assert [record.value for record in again] == VALUES
        again.truncate(20 + gap + 3)
        assert [record.value for record in again] == VALUES[:23]
        again.truncate(21 if gap > 1 else 20)
        assert [record.value for record in again] == VALUES[:20]


def test_batches_that_keep_their_offsets_leave_a_gap_of_any_length(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", CONFIG) as log:
        log._append_at_offsets(encode([b"first"], base_offset=0))
        log._append_at_offsets(encode([b"second"], base_offset=10**12))
        assert [(record.offset, record.value) for record in log] == [(0, b"first"), (10**12, b"second")]
        assert len(log.segments) <= 3
        with pytest.raises(InvalidRecord, match="the gap is too large for a log"):
            log._append_at_offsets(encode([b"a damaged offset"], base_offset=2**60))
        assert log.next_offset == 10**12 + 1


@pytest.mark.parametrize("offset", [1.5, True, "7", None, 10**20, 2**62, MAX_OFFSET + 1])
def test_an_offset_that_no_log_has_is_refused(tmp_path: Path, offset: object) -> None:
    with Log.open(tmp_path / "log", CONFIG) as log:
        log.append(b"x")
        with pytest.raises((InvalidConfig, InvalidRecord)):
            log._advance(offset)  # type: ignore[arg-type]
        assert log.next_offset == 1


def test_going_back_is_refused(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", CONFIG) as log:
        log.append_many([b"x", b"y"])
        with pytest.raises(OffsetMismatch):
            log._advance(1)


@pytest.mark.parametrize("offset", [2.5, True, "1", None])
def test_truncating_and_trimming_take_whole_numbers_only(tmp_path: Path, offset: object) -> None:
    with Log.open(tmp_path / "log", CONFIG) as log:
        log.append_many([b"x", b"y", b"z"])
        for call in (log.truncate, log.trim):
            with pytest.raises(InvalidConfig):
                call(offset)  # type: ignore[arg-type]
        assert len(log) == 3


def test_a_log_begins_where_its_records_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        LogConfig(initial_offset=2**62)
    with Log.open(tmp_path / "log", LogConfig(initial_offset=MAX_OFFSET)) as log:
        offset = log.append(b"late")
        assert log.read(offset).value == b"late"
    with Log.open(tmp_path / "log", LogConfig(initial_offset=MAX_OFFSET)) as log:
        assert [record.offset for record in log] == [MAX_OFFSET]


@pytest.mark.parametrize("name", ["٠" * 20 + ".log", f"{2**62:020d}.log", "9" * 20 + ".log"])
def test_a_file_whose_name_no_segment_has_is_left_alone(tmp_path: Path, name: str) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append(b"x")
    (tmp_path / "log" / name).write_bytes(b"somebody's")
    with Log.open(tmp_path / "log") as log:
        assert [record.value for record in log] == [b"x"]
        assert log.recovery
    assert (tmp_path / "log" / name).read_bytes() == b"somebody's"
