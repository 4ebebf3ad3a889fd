"""GUMLOG's own test list, on our log (its servers, membership and replication are no business of a log)."""

from __future__ import annotations

import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.batch.read import decode
from sawlog.errors import OffsetOutOfRange

from .places import Place, fill, named, values

HELLO = b"hello world"
WIDTH = len(encode([(HELLO, None, (), 1000)]))


def test_store_appends_at_multiples_of_the_width_and_reads_back(place: Place) -> None:
    log = place.open()
    for i in range(1, 4):
        log.append(HELLO, timestamp=1000)
        assert log.size_bytes == i * WIDTH
    assert [batch.position for batch in place.batches()] == [0, WIDTH, 2 * WIDTH]
    assert values(log) == [HELLO] * 3
    log.close()
    assert values(place.open()) == [HELLO] * 3


def test_appended_bytes_are_in_the_file_before_it_is_closed(place: Place) -> None:
    """GUMLOG's TestStoreClose is the opposite: there the size grows at close, and a kill loses the buffer."""
    log = place.open()
    log.append(HELLO)
    before = len(place.files()[named(0)])
    log.close()
    assert len(place.files()[named(0)]) == before > 0


def test_last_record_has_the_index_minus_one(place: Place) -> None:
    log = place.open()
    with pytest.raises(OffsetOutOfRange):
        log[-1]
    log.append(b"first")
    log.append(b"second")
    assert (log[-1].value, log[-2].value) == (b"second", b"first")
    with pytest.raises(OffsetOutOfRange):
        log[-3]
    log.close()
    log = place.open()
    assert log[-1].value == b"second"
    assert log[-1].offset == 1


def test_segment_is_full_by_size_or_by_index(place: Place) -> None:
    """A base offset of 16, three records a segment: once because of the log's size, once because of the index's."""
    by_size = place.open(initial_offset=16, segment_bytes=3 * WIDTH)
    for i in range(7):
        assert by_size.append(HELLO, timestamp=1000) == 16 + i
    assert [s.base_offset for s in by_size.segments] == [16, 19, 22]
    by_size.close()
    # reopened with a smaller bound, the segment that is over it takes no more
    log = place.open(segment_bytes=WIDTH)
    log.append(HELLO, timestamp=1000)
    assert [s.base_offset for s in log.segments] == [16, 19, 22, 23]


def test_segment_is_full_when_its_index_is(place: Place) -> None:
    log = place.open(initial_offset=16, max_index_bytes=36, index_interval_bytes=0)
    for _ in range(12):
        log.append(HELLO)
    assert len(log.segments) > 2
    log.close()
    for name, data in place.files().items():
        if name.endswith(("index", "timeindex")):
            assert len(data) <= 36
    assert values(place.open()) == [HELLO] * 12


def test_append_and_read(place: Place) -> None:
    log = place.open()
    offset = log.append(HELLO)
    assert offset == 0
    assert log.read(offset).value == HELLO


@pytest.mark.parametrize("offset", [1, 2, -1, 10**18, -(10**18)])
def test_offset_out_of_range_carries_the_offset_and_the_range(place: Place, offset: int) -> None:
    log = place.open()
    log.append(HELLO)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(offset)
    assert (caught.value.requested, caught.value.lowest, caught.value.next) == (offset, 0, 1)
    assert (caught.value.lowest_offset, caught.value.next_offset) == (0, 1)
    assert isinstance(caught.value, IndexError)
    assert str(offset) in str(caught.value)


def test_empty_log_and_log_with_one_record_can_be_distinguished(place: Place) -> None:
    """GUMLOG's HighestOffset is 0 for both."""
    log = place.open()
    assert (log.next_offset, len(log), bool(log)) == (0, 0, True)
    log.append(HELLO)
    assert (log.next_offset, len(log)) == (1, 1)


def test_log_starts_with_the_segments_that_are_there(place: Place) -> None:
    log = place.open(segment_bytes=WIDTH)
    for _ in range(3):
        log.append(HELLO, timestamp=1000)
    log.close()
    log = place.open(segment_bytes=WIDTH)
    assert (log.lowest_offset, log.next_offset - 1) == (0, 2)
    assert [s.base_offset for s in log.segments] == [0, 1, 2]
    assert log.append(HELLO) == 3


def test_raw_bytes_of_the_log_parse_as_records(place: Place) -> None:
    log = place.open(segment_bytes=2 * WIDTH)
    for _ in range(5):
        log.append(HELLO, timestamp=1000)
    raw = log.reader().read()
    assert values(decode(raw)) == [HELLO] * 5
    assert b"".join(place.files()[named(base)] for base in place.bases()) == raw == log.fetch(0, 10**6).raw


def test_trim_makes_the_head_unreadable(place: Place) -> None:
    """GUMLOG calls it Truncate(lowest), and it drops whole segments only."""
    log = place.open(segment_bytes=WIDTH)
    for _ in range(3):
        log.append(HELLO, timestamp=1000)
    assert log.trim(1) == 1
    with pytest.raises(OffsetOutOfRange):
        log.read(0)
    assert log.read(1).value == HELLO
    assert place.bases() == [1, 2]


def test_active_segment_outlives_any_trim(place: Place) -> None:
    """GUMLOG may be left without a segment (G5)."""
    log = place.open(LogConfig(durability="os"))
    for _ in range(3):
        fill(log, 3)
        assert log.trim(log.next_offset) == 3
        assert len(log) == 0
        assert len(log.segments) == 1
    assert log.append(b"x") == 9
    assert isinstance(log, Log)
