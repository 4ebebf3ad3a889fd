"""`log[-1]` and `newest`: records, whatever is around them."""

from __future__ import annotations

import random

import pytest

from sawlog import Log

from ..places import Place
from ..transactional import T, batch


def stamped(log: Log, *times: int, at_once: bool = False) -> None:
    """Records with these timestamps."""
    rows = [(b"%d" % time, b"k", (), T + time) for time in times]
    for each in [rows] if at_once else [[row] for row in rows]:
        log.append_many(each)


@pytest.mark.parametrize("at_once", [False, True], ids=["batches", "one batch"])
def test_the_newest_record_is_one_that_is_not_trimmed(place: Place, at_once: bool) -> None:
    log = place.open()
    stamped(log, 900, 100, 300, 200, 300, at_once=at_once)
    assert log._newest() == (0, T + 900)
    log.trim(1)
    assert log._newest() == (2, T + 300)
    log.trim(3)
    assert log._newest() == (4, T + 300)
    log.seal()
    stamped(log, 50)
    log.trim(5)
    assert log._newest() == (5, T + 50)
    log.trim(6)
    assert log._newest() is None


def test_the_newest_record_is_no_marker(place: Place) -> None:
    log = place.open()
    stamped(log, 100, 200)
    log.append_batches(batch([b"v"], 7, timestamp=T + 150))
    log.append_marker(7, 0, commit=True)  # now, which is long after
    assert log._newest() == (1, T + 200)
    log.seal()
    assert log._newest() == (1, T + 200)


def test_the_newest_record_is_found_among_many_segments(place: Place) -> None:
    chance = random.Random(7)
    log = place.open(segment_bytes=600, index_interval_bytes=100)
    times = [chance.randrange(40) for _ in range(200)]
    for time in times:
        stamped(log, time)
    for start in range(0, 200, 9):
        log.trim(start)
        most = max(times[start:])
        assert log._newest() == (times.index(most, start), T + most)


def test_the_last_record_is_found_before_markers_gaps_and_what_was_aborted(place: Place) -> None:
    log = place.open(segment_bytes=2000)
    with pytest.raises(LookupError):
        log[-1]
    log.append_many([b"a", b"b", b"c"])
    assert log[-1].value == b"c"
    log.append_batches(batch([b"committed"], 7))
    log.append_marker(7, 0, commit=True)
    assert (log[-1].value, log[-1].offset) == (b"committed", 3)
    log.append_batches(batch([b"aborted"] * 50, 7))
    assert log[-1].value == b"committed"  # not decided: the log ends before it
    log.append_marker(7, 0, commit=False)
    assert log[-1].value == b"committed"
    log.seal()
    log._advance(10_000_000)
    assert (log[-1].value, log.next_offset) == (b"committed", 10_000_000)
    log.append(b"last")
    assert log[-1].value == b"last"
    log.trim(10_000_001)
    with pytest.raises(LookupError):
        log[-1]
