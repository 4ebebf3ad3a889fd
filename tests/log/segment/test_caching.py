"""The caching policy, whatever it is, decides which segments stay mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog import LRU, Log, LogConfig
from sawlog.config import CachedSegment
from sawlog.errors import InvalidConfig


class Recorded:
    """Records its calls; with `gives_up`, every third use evicts the previously used segment."""

    def __init__(self, *, gives_up: bool = False) -> None:
        self.gives_up = gives_up
        self.used: list[int] = []
        self.forgotten: list[int] = []
        self.to_give_up: list[CachedSegment] = []

    def use(self, segment: CachedSegment) -> list[CachedSegment]:
        self.used.append(segment.base_offset)
        assert segment.size > 0
        given, self.to_give_up = self.to_give_up, [segment]
        return given if self.gives_up and len(self.used) % 3 == 0 else []

    def forget(self, segment: CachedSegment) -> None:
        self.forgotten.append(segment.base_offset)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of ten segments, ten records each."""
    with Log.open(tmp_path / "log", LogConfig(segment_bytes=1100, durability="os")) as log:
        for number in range(100):
            log.append(b"%03d" % number * 12)
        assert len(log.segments) == 10
    return tmp_path / "log"


def mapped(log: Log) -> list[int]:
    return [each.base_offset for each in log.segments[:-1] if each.mapped]


def bases(log: Log) -> list[int]:
    return [each.base_offset for each in log.segments]


def test_a_policy_is_notified_of_each_use_once(path: Path) -> None:
    policy = Recorded()
    with Log.open(path, LogConfig(segment_cache=lambda: policy), mode="r") as log:
        first, second = bases(log)[:2]
        for offset in (first, first + 1, second, second + 1, first):
            log.read(offset)
        assert policy.used == [first, second, first]


def test_what_a_policy_gives_up_is_unmapped_and_can_be_read_again(path: Path) -> None:
    policy = Recorded(gives_up=True)
    with Log.open(path, LogConfig(segment_cache=lambda: policy), mode="r") as log:
        first, second, third = bases(log)[:3]
        for offset in (first, second, third):
            log.read(offset)
        assert mapped(log) == [first, third]
        assert log.read(second).value == b"%03d" % second * 12


def test_a_policy_forgets_what_is_gone(path: Path) -> None:
    policy = Recorded()
    with Log.open(path, LogConfig(segment_cache=lambda: policy, durability="os")) as log:
        starts = bases(log)
        list(log.scan())
        log.trim(starts[4])
        assert sorted(policy.forgotten) == starts[:4]
        log.truncate(starts[7])
        assert starts[8] in policy.forgotten
        assert not set(starts[4:7]) & set(policy.forgotten)
        assert [record.offset for record in log] == list(range(starts[4], starts[7]))


def test_a_policy_that_gives_up_nonsense_does_no_harm(path: Path) -> None:
    class Nonsense:
        def use(self, segment: CachedSegment) -> Iterator[CachedSegment]:
            yield segment  # the one that is about to be read
            yield segment

        def forget(self, segment: CachedSegment) -> None:
            pass

    with Log.open(path, LogConfig(segment_cache=Nonsense), mode="r") as log:
        assert [record.offset for record in log] == list(range(100))


def test_each_log_has_its_own_policy(path: Path, tmp_path: Path) -> None:
    made: list[LRU] = []

    def make() -> LRU:
        made.append(LRU(2))
        return made[-1]

    config = LogConfig(segment_cache=make, durability="os")
    with Log.open(path, config) as one, Log.open(tmp_path / "other", config):
        list(one.scan())
        assert len(mapped(one)) == 2
    assert len(made) == 2


@pytest.mark.parametrize(("most", "kept"), [(1, 1), (3, 3), (None, 9), (0, 1)])
def test_lru_keeps_those_that_were_used_last(path: Path, most: int | None, kept: int) -> None:
    with Log.open(path, LogConfig(segment_cache=lambda: LRU(most)), mode="r") as log:
        list(log.scan())
        assert mapped(log) == bases(log)[9 - kept : 9]


def test_a_policy_is_made_by_a_function() -> None:
    with pytest.raises(InvalidConfig, match="segment_cache must be a function"):
        LogConfig(segment_cache=LRU(3))  # type: ignore[arg-type]
