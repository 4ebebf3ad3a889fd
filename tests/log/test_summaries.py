"""Summaries made from headers and lengths agree with the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.log import summaries
from sawlog.log.summaries import LogSummary, summarise

from ..batch.twins import BOTH, scan

T = 1_700_000_000_000


@given(
    times=st.lists(st.lists(st.integers(0, 2**40), min_size=1, max_size=4), min_size=1, max_size=6),
    codec=st.sampled_from(["none", "zstd"]),
)
def test_a_summary_has_the_counts_and_times_of_the_records(times: list[list[int]], codec: str) -> None:
    with Log.in_memory(LogConfig(compression=codec)) as log:
        for batch in times:
            log.append_many([(b"x", None, (), time) for time in batch])
        found = list(LogSummary.of(log).blocks(log, 0, log.next_offset, with_oldest=True))
    everything = [time for batch in times for time in batch]
    assert sum(blocks.count.sum() for blocks in found) == len(everything)
    assert (found[0].first[0], found[-1].last[-1]) == (0, len(everything) - 1)
    assert min(blocks.oldest.min() for blocks in found if blocks.oldest is not None) == min(everything)
    assert max(blocks.newest.max() for blocks in found) == max(everything)


def test_blocks_are_about_a_megabyte_and_know_their_own_times(tmp_path: Path) -> None:
    with Log.open(tmp_path, LogConfig(durability="os")) as log:
        for number in range(40):
            log.append_many([(bytes(100_000), None, (), T + number)])
        [blocks] = LogSummary.of(log).blocks(log, 0, 40, with_oldest=True)
    assert len(blocks) == 4
    assert blocks.oldest is not None
    assert (np.diff(blocks.oldest) > 0).all()
    assert (blocks.last[:-1] + 1 == blocks.first[1:]).all()
    assert (blocks.newest == T + blocks.last).all()
    assert (blocks.oldest == T + blocks.first).all()


def test_a_summary_is_kept_for_a_sealed_segment_and_made_again_for_one_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(segment: summaries.Segment, max_bytes: int | None = None) -> summaries.Blocks:
        made.append(segment.base_offset)
        return summarise(segment, max_bytes)

    monkeypatch.setattr(summaries, "summarise", counted)
    with Log.open(tmp_path, LogConfig(durability="os")) as log:
        log.append(b"a")
        log.seal()
        log.append(b"b")

        def total() -> int:
            return sum(int(blocks.count.sum()) for blocks in LogSummary.of(log).blocks(log, 0, log.next_offset))

        assert [total(), total()] == [2, 2]
        assert made == [0, 1]
        log.append(b"c")
        assert total() == 3
        assert made == [0, 1, 1]
        log.trim(1)
        log.compact()
        assert total() == 2


def test_a_log_that_was_truncated_and_has_grown_to_the_same_size_is_summarised_again(tmp_path: Path) -> None:
    with Log.open(tmp_path, LogConfig(durability="os")) as log:

        def newest() -> int:
            found = LogSummary.of(log).blocks(log, 0, log.next_offset)
            return max(int(blocks.newest.max()) for blocks in found)

        for seal in (False, True):
            for time in (T + 5, T + 3):
                log.truncate(0)
                log.append(b"x", timestamp=time)
                if seal:
                    log.seal()
                assert newest() == time


@pytest.mark.parametrize("kernel", BOTH)
def test_the_smallest_time_of_a_batch_is_found_wherever_it_is(kernel: object) -> None:
    data = encode([(b"v", b"k" * n, (("h", b"x"),), T + delta) for n, delta in ((0, 5), (3, -9), (70, 2))])
    _, rows = scan(kernel, memoryview(data))
    oldest = np.zeros(1, np.int64)
    assert kernel.oldest_times(memoryview(data), memoryview(rows), 1, memoryview(oldest)) == -1  # type: ignore[attr-defined]
    assert oldest[0] == T - 9
    rows[0, 13] -= 1  # its last record now ends after the batch
    assert kernel.oldest_times(memoryview(data), memoryview(rows), 1, memoryview(oldest)) == 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="outside"):
        kernel.oldest_times(memoryview(data)[:-9], memoryview(rows), 1, memoryview(oldest))  # type: ignore[attr-defined]
