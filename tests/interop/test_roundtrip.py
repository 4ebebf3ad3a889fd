"""Random logs: exported and imported with the same records and offsets; imported and exported byte for byte."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import Log, LogConfig, interop
from sawlog.errors import OffsetOutOfRange

from ..batch.strategies import share
from .files import content_of, pairs

every_format = pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])

values = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.builds(
            lambda size, byte: bytes([byte]) * size, st.sampled_from([0, 1, 126, 127, 128, 300]), st.integers(0, 255)
        ),
    ),
    max_size=25,
)
#: Sizes of the gaps before some of the records.
gaps = st.dictionaries(st.integers(0, 24), st.integers(1, 1000), max_size=3)
firsts = st.sampled_from([0, 1, 41, 127, 128, 300, 2**31 - 3, 2**32 - 5, 2**40])
segments = st.sampled_from([1, 50, 200, 1000, 1 << 20])


def ours(first: int, contents: list[bytes], holes: dict[int, int]) -> Log:
    """Return a log in memory with these records, and gaps before some of them."""
    log = Log.in_memory(LogConfig(initial_offset=first))
    for number, value in enumerate(contents):
        if number in holes:
            log._advance(log.next_offset + holes[number])
        log.append(value)
    return log


@every_format
@share(0.08)
@given(first=firsts, contents=values, holes=gaps, segment_bytes=segments)
def test_an_export_is_read_and_imported_with_the_same_records(
    format: str, first: int, contents: list[bytes], holes: dict[int, int], segment_bytes: int
) -> None:
    with TemporaryDirectory() as place, ours(first, contents, holes) as log, Log.in_memory() as copy:
        out = Path(place) / "out"
        report = interop.export_log(log, out, format=format, segment_bytes=segment_bytes)
        assert (report.records, report.dropped) == (len(contents), {})
        with interop.open(out, format=format) as found:
            expected = [(record.offset, record.value) for record in log]
            if format == "plain":  # counts records from 0
                expected = list(enumerate(contents))
            assert pairs(found) == expected
            assert {finding.outcome for finding in found.report} <= {"missing"}
            if format != "plain":
                assert (found.lowest_offset, found.next_offset) == (log.lowest_offset, log.next_offset)
            interop.import_log(found, copy)
            assert [(record.offset, record.value) for record in copy] == expected


@every_format
@share(0.05)
@given(first=firsts, contents=values, segment_bytes=segments)
def test_an_import_is_exported_byte_for_byte(
    format: str, first: int, contents: list[bytes], segment_bytes: int
) -> None:
    with TemporaryDirectory() as place, ours(first, contents, {}) as log, Log.in_memory() as copy:
        theirs, again = Path(place) / "theirs", Path(place) / "again"
        interop.export_log(log, theirs, format=format, segment_bytes=segment_bytes)
        interop.import_log(theirs, copy, format=format)
        interop.export_log(copy, again, format=format, segment_bytes=segment_bytes)
        assert content_of(again) == content_of(theirs)


@pytest.mark.parametrize("format", ["kafka", "laminarmq", "rustlog", "gumlog", "plain"])
def test_the_same_ranges_can_be_read_as_in_a_log(tmp_path: Path, format: str) -> None:
    out = tmp_path / ("orders-0" if format == "kafka" else format)
    with ours(0, [b"%d" % i for i in range(10)], {}) as log:
        interop.export_log(log, out, format=format, segment_bytes=100)
        for start, end in ((20, None), (20, 30), (20, 5), (11, 12), (10, 30), (10, 5), (5, 3), (3, 5), (-1, 5)):
            with interop.open(out, format=format) as found:  # a new log: earlier reads must not matter
                assert _outcome(found, start, end) == _outcome(log, start, end), (start, end)


def _outcome(log: Log | interop.ForeignLog, start: int, end: int | None) -> list[bytes | None] | str:
    try:
        return [record.value for record in log.scan(start, end)]
    except OffsetOutOfRange as error:
        return str(error).replace(str(log.path), "PATH")


@every_format
def test_every_format_can_be_converted_to_every_other(tmp_path: Path, format: str) -> None:
    contents = [b"%d" % i * (i % 40) for i in range(300)]
    with ours(5, contents, {}) as log:
        interop.export_log(log, tmp_path / format, format=format, segment_bytes=2000)
    first = 0 if format == "plain" else 5
    for other in ("laminarmq", "rustlog", "gumlog"):
        with Log.in_memory() as log:
            interop.import_log(tmp_path / format, log)
            report = interop.export_log(log, tmp_path / f"{format}-{other}", format=other)
        with interop.open(tmp_path / f"{format}-{other}", strict=True) as found:
            assert found.format == other
            assert pairs(found) == list(enumerate(contents, first))
        assert report.dropped == ({"headers": 300} if format == "plain" else {})
