"""Bugs that were mended and that no crash, error or wrong bit brings to light: each has a test here, or one that
`promised` lists, so that it is found when it is planted again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from sawlog import InvalidConfig, Log, LogConfig
from sawlog.log import rewrite
from sawlog.topics.store import Store


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_upkeep_leaves_no_partition_open(tmp_path: Path) -> None:
    with Store.open(tmp_path, upkeep_interval_s=None) as store:
        topic = store.create_topic("many", 24)
        before = _descriptors()
        store.upkeep()
        assert _descriptors() <= before + 2
        assert not topic._logs, "upkeep has opened partitions that stay open"


@pytest.mark.parametrize("work", ["merge_segments", "compact"])
def test_no_more_segments_are_open_at_once_than_may_be(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "MOST_SEGMENTS", 4)
    runs: list[int] = []
    swap = rewrite._swap

    def noted(log: Any, made: rewrite.Rewritten, cuts: int | None) -> bool:
        runs.append(len(made.run))
        return swap(log, made, cuts)

    monkeypatch.setattr(rewrite, "_swap", noted)
    with Log.in_memory(LogConfig(segment_bytes=10_000)) as log:
        for number in range(20):
            log.append(b"%d" % number, b"key %d" % (number % 3))
            log.seal()
        getattr(log, work)()
        found = [record.value for record in log]
        assert found == [b"%d" % number for number in (range(20) if work == "merge_segments" else (17, 18, 19))]
    assert runs
    assert max(runs) <= 4, f"{max(runs)} segments at once"


@pytest.mark.parametrize("mode", ["w", "r", "a"])
def test_a_store_is_not_opened_as_a_log(tmp_path: Path, mode: Literal["w", "r", "a"]) -> None:
    Store.open(tmp_path).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InvalidConfig, match="is a store"):
        Log.open(tmp_path, mode=mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
