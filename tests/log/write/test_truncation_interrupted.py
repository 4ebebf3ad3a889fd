"""A truncation that is interrupted anywhere, in segments of any size, keeps every record below the cut."""

from __future__ import annotations

from typing import Any

import pytest

from sawlog import Log, LogConfig, Record
from sawlog.log import active_segment, recovery

from ...faults.device import Step
from ...faults.disk import FaultyStorage
from ..sampling import some_of, some_or_all

CONFIG = LogConfig(segment_bytes=100_000, index_interval_bytes=64, checkpoint_interval_ms=3_600_000)
MODES: Any = ("dies", "lose", "keep", "prefix", "tear", "reorder", "garbage")


def rows(records: list[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


@pytest.mark.alternating
@pytest.mark.sampled(6)  # 0.2 s each
@pytest.mark.parametrize("small_bytes", [1, 500, 16 << 20], ids=["split", "some split", "copied"])
@pytest.mark.parametrize("copy_bytes", [64, 8 << 20])
@pytest.mark.parametrize("offset", [*(pytest.param(each, marks=pytest.mark.slow) for each in (7, 13, 27)), 0, 10, 29])
@some_or_all(24)
def test_records_below_the_cut_survive_a_crash_at_every_change(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, copy_bytes: int, offset: int, most: int | None
) -> None:
    monkeypatch.setattr(recovery, "SMALL_BYTES", small_bytes)
    for module in (recovery, active_segment):
        monkeypatch.setattr(module, "_COPY_BYTES", copy_bytes)
    disk = FaultyStorage(seed=offset)
    log = Log.open(disk.plain, CONFIG)
    for first in range(0, 30, 5):  # batches of five records
        log.append_many([b"%d " % number + b"." * 40 for number in range(first, first + 5)])
    kept = rows(list(log.scan(end=offset)))
    whole = rows(list(log.scan()))
    crashed: list[tuple[str, FaultyStorage]] = []

    def watch(step: Step) -> None:
        crashed.extend(
            (f"{mode} before {step}", disk.process_dies() if mode == "dies" else disk.crash(mode)) for mode in MODES
        )

    disk.watch = watch
    log.truncate(offset)
    disk.watch = None
    assert len(crashed) > 20
    ends = set()
    for where, found in some_of(crashed, most):
        seen, epoch = seen_by_a_reader(found)
        again = Log.open(found.plain, CONFIG)
        there = rows(list(again.scan()))
        assert there in (kept, whole), where
        assert seen in (offset, 30), where
        assert seen == 30 or there == kept, f"{where}: a reader was kept from what is still there"
        assert again.epoch_end(epoch) == len(there), f"{where}: who has read {seen} in epoch {epoch} is not told"
        ends.add(len(there))
        assert again.recovery, f"{where}: {again.recovery}"
        assert again.verify(), where
        again.append(b"on")
    assert ends == {offset, 30} or most is not None


def seen_by_a_reader(disk: FaultyStorage) -> tuple[int, int]:
    """Return the end of the log for another process, and its leader epoch."""
    with Log.open(disk.plain, CONFIG, mode="r") as reader:
        assert len(list(reader.scan())) == reader.next_offset
        return reader.position()


def test_a_power_cut_while_recovery_moves_the_end_of_a_segment_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery has copied the records above the watermark to another segment, and truncates the original when the power
    is cut."""
    monkeypatch.setattr(recovery, "SMALL_BYTES", 0)
    disk = FaultyStorage(1)
    log = Log.open(disk.plain, CONFIG)
    log.append(b"one")
    log._writable().checkpoints.save(clean=False)
    log.append(b"two")
    found, caught = disk.crash("lose"), []

    def watch(step: Step) -> None:
        if step.call == "sync" and step.path.endswith("0.log") and len(Log.open(found.plain, mode="r")) == 2:
            caught.extend(found.crash("reorder", seed) for seed in range(40))

    found.watch = watch
    Log.open(found.plain, CONFIG)
    found.watch = None
    assert caught
    for each in caught:
        again = Log.open(each.plain, CONFIG)
        assert again.recovery, str(again.recovery)
        assert [record.value for record in again] == [b"one", b"two"]
        assert again.verify()
