"""A flipped bit in a small file, or an unexpected file, costs no record and hides none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sawlog import Log, LogConfig
from sawlog.log.recovery import Action, Where

CONFIG = LogConfig(segment_bytes=400)


def lived(path: Path) -> list[bytes | None]:
    """A log with five leader epochs, closed cleanly; its records."""
    for number in range(4):
        with Log.open(path, CONFIG) as log:
            log.append_many([b"%d.%d" % (number, each) for each in range(8)])
            log.truncate(log.next_offset - 2)
    with Log.open(path, CONFIG) as log:
        log.append_many([b"last %d" % each for each in range(6)])
        return [record.value for record in log]


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("name", ["visible", "leader-epoch-checkpoint", "checkpoint"])
def test_no_flipped_bit_hides_a_record_or_moves_the_end_of_an_epoch_up(tmp_path: Path, name: str) -> None:
    records = lived(tmp_path / "log")
    with Log.open(tmp_path / "log", CONFIG, mode="r") as reader:
        ends = [reader.epoch_end(epoch) for epoch in range(5)]
        assert reader._leader_epochs == ((0, 0), (1, 6), (2, 12), (3, 18), (4, 24))
    whole = (tmp_path / "log" / name).read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "log" / name).write_bytes(damaged)
        with Log.open(tmp_path / "log", CONFIG, mode="r") as reader:
            assert [record.value for record in reader] == records, f"bit {bit}"
            for epoch, end in enumerate(ends):
                assert reader.epoch_end(epoch) <= end, f"bit {bit}: a position of epoch {epoch} is believed too far"


@pytest.mark.alternating
@pytest.mark.parametrize("content", [b"", b"junk junk"], ids=["empty", "junk"])
@pytest.mark.parametrize("end", [0, 3, 7, 40])
def test_a_swap_that_is_none_of_ours_replaces_nothing(tmp_path: Path, content: bytes, end: int) -> None:
    records = lived(tmp_path / "log")
    (tmp_path / "log" / f"{0:020d}-{end:020d}.log.swap").write_bytes(content)
    with Log.open(tmp_path / "log", CONFIG) as log:
        assert [record.value for record in log] == records
        found = {(each.where, each.action) for each in log.recovery.findings}
        assert found & {(Where.STRANGER, Action.IGNORE), (Where.DAMAGED_SWAP, Action.SET_ASIDE)}
        kept = [path for path in (tmp_path / "log").iterdir() if path.read_bytes() == content]
        assert kept, "nobody deletes what is not ours"


def test_a_whole_swap_that_ends_within_a_segment_replaces_nothing(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append_many([b"%d" % each for each in range(3)])
        log.append_many([b"%d" % each for each in range(3, 6)])
        log.seal()
        log.append(b"6")
    with Log.open(tmp_path / "other") as other:
        other.append_many([b"other"] * 3)
    shutil.copy(tmp_path / "other" / f"{0:020d}.log", tmp_path / "log" / f"{0:020d}-{3:020d}.log.swap")
    with Log.open(tmp_path / "log") as log:
        assert [record.value for record in log] == [b"%d" % each for each in range(7)]
        assert (Where.DAMAGED_SWAP, Action.SET_ASIDE) in {(each.where, each.action) for each in log.recovery.findings}
