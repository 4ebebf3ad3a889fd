"""Threads that share an fsync are acknowledged only for records that it has made durable."""

from __future__ import annotations

from .threads import APPENDS, THREADS, SlowToReturn, found_after_a_power_cut, play, play_cutting


def test_what_a_thread_is_told_to_be_durable_survives_a_power_cut_at_that_moment() -> None:
    appended: list[int] = []
    for seed in range(4):
        assert play(seed, lambda: appended.append(1)) == []
    assert len(appended) == 4 * THREADS * APPENDS


def test_beside_a_truncation_nothing_is_announced_or_shown_that_a_power_cut_takes() -> None:
    appended: list[int] = []
    for seed in range(3):
        assert play_cutting(seed, lambda: appended.append(1)) == []
    assert len(appended) == 3 * 3 * APPENDS


def test_a_record_that_was_not_synced_is_seen_to_be_lost() -> None:
    """The check of this module can fail."""
    from sawlog import Log, LogConfig

    disk = SlowToReturn(1)
    log = Log.open(disk, LogConfig(durability="os"))
    offset = log.append(b"value")
    assert found_after_a_power_cut(disk, offset) is None
    log.sync()
    assert found_after_a_power_cut(disk, offset) == b"value"
    log.close()
