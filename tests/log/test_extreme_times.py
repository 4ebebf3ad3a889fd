"""Batches with a right CRC and timestamps at the limits of 64 bits: every call works or raises a `SawlogError`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import InvalidConfig, InvalidRecord, SawlogError

from ..batch.wire import Header, batch

LOW, HIGH = -(2**63), 2**63 - 1
#: The first timestamp of a batch, and how far the others are from it.
TIMES = [(7, LOW), (7, HIGH), (LOW, LOW), (HIGH, HIGH), (-1, LOW), (HIGH, LOW), (LOW, HIGH), (0, 0)]


def hostile(base: int, delta: int, *, top: int = 0, attributes: int = 0) -> bytes:
    records = [(0, 0, b"k", b"a", ()), (1, delta, b"k", b"b", ()), (2, 1, b"l", None, ())]
    return batch(records, Header(base_timestamp=base, max_timestamp=top, attributes=attributes))


def fill(log: Log) -> None:
    """Seal the segment."""
    for _ in range(3):
        log.append(b"." * 1000, key=b"k")


CALLS: dict[str, Callable[[Log], Any]] = {
    "scan": lambda log: list(log.scan()),
    "read": lambda log: log.read(1),
    "scan_arrow": lambda log: [batch.num_rows for batch in log.scan_arrow()],
    "offset_at": lambda log: [log.offset_at(at) for at in (0, 8, 2**62, HIGH)],
    "newest": lambda log: log._newest(),
    "verify": lambda log: log.verify(),
    "truncate": lambda log: [log.truncate(to) for to in range(log.next_offset - 1, log.lowest_offset, -1)],
    "trim": lambda log: log.trim(1),
    "compact": lambda log: (fill(log), log.compact()),
    "retain": lambda log: (fill(log), log.remove_expired(timedelta(days=1))),
}


@pytest.mark.alternating
@pytest.mark.sampled(4)  # 0.1 s each
@pytest.mark.parametrize("call", CALLS)
def test_extreme_timestamps_raise_nothing_but_sawlogs_own_errors(call: str) -> None:
    for base, delta in TIMES:
        for top in (0, LOW, HIGH):
            for attributes in (0, 8):  # 8: the log's own time, which is the largest one
                with Log.in_memory(LogConfig(segment_bytes=1024)) as log:
                    try:
                        log.append_batches(hostile(base, delta, top=top, attributes=attributes))
                    except SawlogError:
                        continue
                    log.append(b"x", key=b"k")
                    try:
                        CALLS[call](log)
                    except SawlogError:
                        pass
                    assert log.append(b"after") >= 1


def test_a_truncated_batch_has_the_largest_timestamp_of_its_records() -> None:
    with Log.in_memory() as log:
        log.append_batches(hostile(7, LOW))
        log.truncate(2)
        assert [record.timestamp for record in log] == [7, 7 + LOW]
        assert log._newest() == (0, 7)


@pytest.mark.parametrize("time", ["0001-01-01", "9999-12-31T23:59:59", "0001-01-01T00:00:00Z"])
def test_a_datetime_at_the_limit_of_the_calendar_is_a_time_or_is_refused_clearly(time: str) -> None:
    """One without a zone is local, and local times at the limits have no equivalent in UTC everywhere."""
    with Log.in_memory() as log:
        for call in (log.offset_at, lambda at: log.append(b"x", timestamp=at)):
            try:
                call(datetime.fromisoformat(time))
            except (InvalidConfig, InvalidRecord) as error:
                assert "calendar" in str(error) or "out of range" in str(error)
