"""Short scans and pages return the same as the general path, for any segment boundaries and batch contents.

A reader whose fast paths answer nothing is the judge: `Reader.chunks` finds, checks and filters every batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sawlog import Log, LogConfig, Record
from sawlog.batch.build import encode
from sawlog.batch.header import scan
from sawlog.config import Isolation
from sawlog.errors import SawlogError

from ..places import FilePlace
from ..transactional import send
from .test_usual_reads import Nothing

T = 1_700_000_000_000
CONFIG = LogConfig(durability="os", segment_age_ms=None, index_interval_bytes=200, max_decompressed_bytes=1 << 20)
#: With this no segment stays open, and the kernel cannot answer alone.
UNMAPPED = CONFIG.with_(max_mapped_segments=0)

steps = st.one_of(
    st.tuples(st.just("one"), st.integers(0, 300)),
    st.tuples(st.just("many"), st.integers(1, 30)),
    st.tuples(st.just("compressed"), st.integers(1, 30)),
    st.tuples(st.just("seal"), st.just(0)),
    st.tuples(st.just("transaction"), st.integers(1, 3)),
    st.tuples(st.just("commit"), st.integers(1, 3)),
    st.tuples(st.just("abort"), st.integers(1, 3)),
    st.tuples(st.just("skip"), st.integers(1, 5)),
)


def take(log: Log, step: str, number: int) -> None:
    """One change of a log. Keys repeat, so that compaction leaves holes."""
    match step:
        case "one":
            log.append(b"v" * number, b"%d" % (number % 7), timestamp=T)
        case "many":
            log.append_many([(b"%d" % each, b"%d" % (each % 5), (("h", b"x"),), T) for each in range(number)])
        case "compressed":
            log.append_batches(
                encode([(b"packed" * 5, b"%d" % (each % 5)) for each in range(number)], compression="lz4")
            )
        case "seal":
            log.seal()
        case "transaction":
            send(log, [b"in a transaction"] * number, number)
        case "skip":
            log._advance(log.next_offset + number)
        case _:
            log.append_marker(number, 0, commit=step == "commit")


def judge_of(log: Log) -> Log:
    """Return the log, read only through the general path."""
    made = Log.open(log.path, log.config, mode="r")
    reader: Any = made._access.reader
    reader._fast = Nothing()
    return made


def outcome(records: Iterator[Record]) -> tuple[list[Record], object]:
    """Return the records, and the error that ended the scan."""
    found: list[Record] = []
    try:
        found.extend(records)  # keeps what came before an error
    except SawlogError as error:
        return found, (type(error), str(error), getattr(error, "next_offset", None))
    return found, None


def scanned(log: Log, start: int, end: int | None, most: int | None, isolation: Isolation) -> object:
    try:
        records = log.scan(start, end, most, isolation=isolation)
    except SawlogError as error:
        return type(error), str(error)
    return outcome(records)


def paged(log: Log, start: int, most: int, isolation: Isolation) -> object:
    try:
        page = log.fetch(start, most, isolation=isolation)
    except SawlogError as error:
        return type(error), str(error)
    return page.raw, page.next_offset, page.last_stable_offset, outcome(page.records())


def compare(log: Log, judge: Log, asked: list[tuple[int, int | None, int | None]]) -> None:
    for start, length, most in asked:
        for isolation in ("committed", "uncommitted"):
            end = None if length is None else start + length
            expected = scanned(judge, start, end, most, isolation)  # type: ignore[arg-type]
            assert scanned(log, start, end, most, isolation) == expected, (start, end, most)  # type: ignore[arg-type]
            size = 1 if most is None else most
            assert paged(log, start, size, isolation) == paged(judge, start, size, isolation)  # type: ignore[arg-type]


asking = st.lists(
    st.tuples(
        st.integers(0, 120),
        st.none() | st.integers(0, 60),
        st.none() | st.sampled_from([0, 1, 80, 300, 1024, 5000]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=14), asking, st.booleans(), st.integers(0, 20))
def test_short_scans_and_pages_are_those_of_the_general_path(
    done: list[tuple[str, int]], asked: list[tuple[int, int | None, int | None]], compacted: bool, trimmed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, Log.open(folder, CONFIG) as log:
        for step, number in done:
            take(log, step, number)
        if compacted:
            log.seal()
            log.compact(delete_retention_ms=0)
        log.trim(min(trimmed, log.last_stable_offset))
        with (
            judge_of(log) as judge,
            Log.open(folder, CONFIG, mode="r") as reader,
            Log.open(folder, UNMAPPED, mode="r") as unmapped,
        ):
            for each in (log, reader, unmapped):
                compare(each, judge, asked)
                compare(each, judge, asked)  # now the segments are open, and checksums remembered


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=2, max_size=10), asking, st.integers(0, 10**6), st.integers(1, 255))
def test_short_scans_stop_at_damage_where_the_general_path_stops(
    done: list[tuple[str, int]], asked: list[tuple[int, int | None, int | None]], where: int, flip: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, Log.open(folder, CONFIG) as log:
        for step, number in done:
            take(log, step, number)
        log.append(b"last")
        files = [Path(each.path) for each in log.segments if each.size_bytes]
        file = files[where % len(files)]
        data = bytearray(file.read_bytes())
        data[where % len(data)] ^= flip
        with (
            Log.open(folder, CONFIG, mode="r") as reader,
            Log.open(folder, UNMAPPED, mode="r") as unmapped,
            judge_of(log) as judge,
        ):
            file.write_bytes(data)
            compare(reader, judge, asked)
            compare(unmapped, judge, asked)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=14), st.integers(0, 120), st.sampled_from([1, 300, 1024, 5000, 10**6]))
def test_the_records_of_a_page_are_those_of_a_scan(done: list[tuple[str, int]], start: int, most: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Log.open(folder, CONFIG) as log:
        for step, number in done:
            take(log, step, number)
        isolations: tuple[Isolation, Isolation] = ("committed", "uncommitted")
        for isolation in isolations:
            at = min(start, log.last_stable_offset)
            page = log.fetch(at, most, isolation=isolation)
            assert list(page.records()) == list(log.scan(at, page.next_offset, isolation=isolation))


def test_the_records_of_a_page_are_checked(file_place: FilePlace) -> None:
    log = file_place.open()
    for number in range(3):
        log.append(b"%d" % number * 20)
    page = log.fetch(0)
    data = bytearray(page.raw)
    data[-5] ^= 1
    found, error = outcome(page._replace(buffers=(memoryview(data),)).records())
    assert [record.value for record in found] == [b"0" * 20, b"1" * 20]
    assert "checksum" in str(error)
    found, error = outcome(page._replace(buffers=(memoryview(data)[:-30],)).records())
    assert len(found) == 2
    assert "no complete batch after offset 1" in str(error)


def test_pages_and_scans_across_segments_end_within_their_size(file_place: FilePlace) -> None:
    log = file_place.open(segment_age_ms=None)
    for number in range(40):
        log.append(b"%02d" % number, timestamp=T)
        if number % 10 == 9:
            log.seal()
    list(log.scan())  # opens the segments
    for start, stop in pairwise(range(0, 41, 20)):
        for _ in range(2):
            page = log.fetch(start, log.size_bytes // 2)
            assert (page.next_offset, len(page.buffers)) == (stop, 2)
            assert [record.offset for record in page.records()] == list(range(start, stop))
    sizes = [header.size_bytes for header in scan(log.fetch(0).raw)]
    for first in range(40):
        for count in (1, 2, 5, 12):
            most, stop = sum(sizes[first : first + count]), min(first + count, 40)
            for size, end in ((most, stop), (most + 1, stop), (most - 1, max(stop - 1, first + 1))):
                assert log.fetch(first, size).next_offset == end
                assert [record.offset for record in log.scan(first, max_bytes=size)] == list(range(first, end))


def test_a_scan_that_was_begun_reads_segments_that_came_later(file_place: FilePlace) -> None:
    """A scan reads only the first bytes immediately, and continues after the log has grown and rotated."""
    log = file_place.open(segment_age_ms=None)
    log.append_many([b"%d" % number for number in range(10)])
    log.seal()
    log.append_many([b"%d" % number for number in range(10, 20)])
    records = log.scan()
    assert next(records).offset == 0
    log.seal()
    log.append(b"later")
    assert [record.offset for record in records] == list(range(1, 20))


@pytest.mark.parametrize("stopped", [0, 5, 15])
def test_a_cursor_that_is_stopped_ends_the_scan(file_place: FilePlace, stopped: int) -> None:
    log = file_place.open(segment_age_ms=None)
    for number in range(20):
        log.append(b"%d" % number)
        if number == 9:
            log.seal()
    seen = []
    for cursor in log._cursors():
        for record in cursor:
            seen.append(record.offset)
            if record.offset == stopped:
                cursor.stop()
    assert seen == list(range(stopped + 1))
