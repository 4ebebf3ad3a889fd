"""Directories that GUMLOG, RustLog and laminarmq wrote themselves, with their own bugs: tests/golden/interop."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog import Log, interop
from sawlog.interop import Kind

from .files import content_of, kinds

GOLDEN = Path(__file__).resolve().parent.parent / "golden/interop"


def values(*counts: int) -> list[bytes]:
    """The values of that many appends in each run of the program."""
    return [b"value %d" % i for count in counts for i in range(count)]


WRITTEN = [
    ("gumlog-closed", range(5, 135), values(130), []),
    ("gumlog-killed", range(5, 15), values(10), [Kind.PADDED_INDEX]),
    (
        "gumlog-stuck",
        range(5, 18),
        values(10, 3),
        [Kind.RESTART, Kind.RESTART, Kind.RESTART, Kind.PADDED_INDEX, Kind.INDEX_BEHIND],
    ),
    ("rustlog-new", range(7, 127), values(120), []),
    ("rustlog-reopened", range(7, 14), values(4, 3), [Kind.RESTART]),
    ("laminarmq-u32", range(42, 142), values(100), []),
    ("laminarmq-u64", range(42, 62), values(20), []),
    # laminarmq counts the second marker as a record: the next one after opening again gets an index too many.
    ("laminarmq-truncated-to-its-start", (42, 44, 45), values(1, 2), [Kind.SECOND_MARKER, Kind.GAP]),
    (
        "laminarmq-truncated-between-segments",
        (*range(42, 134), 135),
        values(89, 3, 1),
        [Kind.SECOND_MARKER, Kind.GAP],
    ),
]


@pytest.mark.parametrize(("name", "offsets", "contents", "wrong"), WRITTEN, ids=[row[0] for row in WRITTEN])
def test_files_written_by_the_systems_themselves_are_read(
    name: str, offsets: range, contents: list[bytes], wrong: list[Kind]
) -> None:
    with interop.open(GOLDEN / name) as log:
        assert log.format == name.partition("-")[0]
        assert [(record.offset, record.value) for record in log] == list(zip(offsets, contents, strict=True))
        assert kinds(log) == wrong
        assert log.report.lost == ()
        assert log.next_offset == offsets[-1] + 1


@pytest.mark.parametrize(
    ("name", "segment_bytes"),
    [("gumlog-closed", 2006), ("rustlog-new", 10_000), ("laminarmq-u32", 1503), ("laminarmq-u64", 1503)],
)
def test_an_export_reproduces_their_files(tmp_path: Path, name: str, segment_bytes: int) -> None:
    """Import and export them: the files are the same, byte for byte."""
    format = name.partition("-")[0]
    options = {"index_bits": 64} if name == "laminarmq-u64" else {}
    with Log.open(tmp_path / "ours") as log:
        interop.import_log(GOLDEN / name, log)
        interop.export_log(log, tmp_path / "out", format=format, segment_bytes=segment_bytes, **options)  # type: ignore[arg-type]
    assert content_of(tmp_path / "out") == content_of(GOLDEN / name)


def test_gumlog_term_and_type_are_read() -> None:
    with interop.open(GOLDEN / "gumlog-closed") as log:
        for number, record in enumerate(log):
            wanted = {"gumlog.term": number.to_bytes(8, "big"), "gumlog.type": bytes(7) + b"\2"}
            assert dict(record.headers) == (wanted if number % 7 == 3 else {})
