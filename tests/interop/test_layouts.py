"""Layouts: the bytes in the documents are read and written exactly."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from sawlog import Log, LogConfig, interop
from sawlog.errors import ExportRefused, InvalidConfig, OffsetOutOfRange, UnreadableRecord
from sawlog.interop.laminarmq import LaminarmqLog

from ..looping import for_each
from .files import bytes_of, content_of, kinds, lay, pairs
from .fixtures import FIXTURES, LAMINARMQ, LAMINARMQ_64, NAMES, PLAIN, PLAIN_64, VALUES

every_layout = pytest.mark.parametrize(("format", "files", "first"), FIXTURES, ids=NAMES)


def ours(path: Path, first: int, values: list[bytes | None]) -> Log:
    """Return a sawlog log with these records from an offset on."""
    log = Log.open(path, LogConfig(initial_offset=first, durability="os"))
    log.append_many(values)
    return log


@every_layout
def test_records_are_read_with_their_offsets(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    with interop.open(lay(tmp_path, dict(files))) as log:
        assert log.format == format
        assert pairs(log) == list(enumerate(VALUES, first))
        assert (log.lowest_offset, log.next_offset, len(log)) == (first, first + 3, 3)
        assert log.report.ok


@every_layout
def test_an_intact_log_has_no_findings(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    with interop.open(lay(tmp_path, dict(files)), format=format, strict=True) as log:
        assert pairs(log) == list(enumerate(VALUES, first))


@every_layout
def test_a_range_can_be_read(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    with interop.open(lay(tmp_path, dict(files))) as log:
        assert pairs(log, first + 1, first + 2) == [(first + 1, b"")]
        assert pairs(log, first + 2) == [(first + 2, b"log")]
        assert pairs(log, None, first) == []
        assert pairs(log, first + 3) == []
        for wrong in (first - 1, first + 4):
            with pytest.raises(OffsetOutOfRange):
                pairs(log, wrong)


@every_layout
def test_one_record_can_be_read(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    with interop.open(lay(tmp_path, dict(files))) as log:
        assert [log.read(first + i).value for i in (2, 0, 1)] == [b"log", b"hello", b""]
        assert (log.read(-1).offset, log.read(-1).value) == (first + 2, b"log")
        assert log[-3].value == b"hello"
        with pytest.raises(OffsetOutOfRange):
            log.read(first + 3)


@every_layout
def test_arrow_has_the_columns_of_a_log(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    with interop.open(lay(tmp_path, dict(files))) as log, Log.in_memory() as mine:
        mine.append_many(VALUES)
        columns = ("value", "headers", "offset", "timestamp", "timestamp_type", "key")
        (table,) = log.scan_arrow(columns=columns)
        (like,) = mine.scan_arrow(columns=columns)
        table.validate(full=True)
        assert table.schema == like.schema
        assert table.column(0).to_pylist() == VALUES
        assert table.column(2).to_pylist() == [first, first + 1, first + 2]
        assert table.column(5).null_count == 3
        assert [part.num_rows for part in log.scan_arrow(batch_rows=2)] == [2, 1]


@every_layout
def test_export_writes_the_same_bytes(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    options = {"index_bits": 64} if files is LAMINARMQ_64 else {}
    with interop.open(lay(tmp_path / "theirs", dict(files))) as theirs, Log.open(tmp_path / "ours") as log:
        interop.import_log(theirs, log)
        report = interop.export_log(log, tmp_path / "again", format=format, **options)  # type: ignore[arg-type]
    assert content_of(tmp_path / "again") == files
    assert (report.records, report.start_offset, report.next_offset) == (3, first, first + 3)
    assert sorted(report.files) == sorted(files)
    assert report.dropped == {}


@every_layout
def test_the_checksums_of_the_fixtures_are_those_of_zlib(
    tmp_path: Path, format: str, files: dict[str, bytes], first: int
) -> None:
    if format == "laminarmq":
        for at in range(16, 64, 16):
            entry = files["42.index"][at : at + 16]
            length, position = int.from_bytes(entry[8:12], "little"), int.from_bytes(entry[12:], "little")
            record = files["42.store"][position : position + length]
            assert zlib.crc32(record) == int.from_bytes(entry[:8], "little")
    if format == "plain":
        assert zlib.crc32(files["4096.store"][8:21]) == int.from_bytes(files["4096.store"][:4], "little")


# --- laminarmq


def test_laminarmq_index_width_is_detected(tmp_path: Path) -> None:
    for name, files, width in (("32", LAMINARMQ, 4), ("64", LAMINARMQ_64, 8)):
        with interop.open(lay(tmp_path / name, dict(files))) as log:
            assert isinstance(log, LaminarmqLog)
            assert log.index_bytes is None
            assert [record.value for record in log.scan()] == [b"hello", b"", b"log"]
            assert log.index_bytes == width


def test_laminarmq_record_without_an_index_gets_the_next_one(tmp_path: Path) -> None:
    store = bytes_of("01 00 00 00  00  68 69")  # one byte of metadata: None; hi
    index = bytes_of("2a 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00") + zlib.crc32(store).to_bytes(8, "little")
    index += len(store).to_bytes(4, "little") + bytes(4)
    with interop.open(lay(tmp_path, {"42.store": store, "42.index": index})) as log:
        assert pairs(log) == [(42, b"hi")]


def test_laminarmq_segments_are_sorted_by_number(tmp_path: Path) -> None:
    """9 comes before 10."""
    files: dict[str, bytes | str] = {}
    for base in (9, 10, 100):
        record = bytes_of("05 00 00 00 01") + base.to_bytes(4, "little") + b"%d" % base
        files[f"{base}.store"] = record
        files[f"{base}.index"] = (
            base.to_bytes(8, "little")
            + bytes(8)
            + zlib.crc32(record).to_bytes(8, "little")
            + len(record).to_bytes(4, "little")
            + bytes(4)
        )
    with interop.open(lay(tmp_path, files)) as log:
        assert pairs(log) == [(9, b"9"), (10, b"10"), (100, b"100")]
        assert kinds(log) == [interop.Kind.GAP]
        assert "11 to 99" in str(next(iter(log.report)))


def test_laminarmq_32_bit_indices_are_refused_for_larger_offsets(tmp_path: Path) -> None:
    with ours(tmp_path / "ours", 2**32 - 1, [b"last that fits", b"does not"]) as log:
        with pytest.raises(ExportRefused, match="index_bits=64"):
            interop.export_log(log, tmp_path / "out", format="laminarmq", index_bits=32)
        interop.export_log(log, tmp_path / "out", format="laminarmq")
    with interop.open(tmp_path / "out") as found:
        assert pairs(found) == [(2**32 - 1, b"last that fits"), (2**32, b"does not")]


# --- GUMLOG


def test_gumlog_keeps_term_and_type_as_headers_and_writes_them_back(tmp_path: Path) -> None:
    store = bytes_of("""
        00 00 00 00 00 00 00 09   0a 01 61   10 01   18 05   20 02     # value = a, offset = 1, term = 5, type = 2
        00 00 00 00 00 00 00 05   0a 01 62   10 02                     # value = b, offset = 2
        00 00 00 00 00 00 00 10   0a 01 63   10 03   18 ff ff ff ff ff ff ff ff ff 01    # term = 2^64 - 1
    """)
    index = bytes_of("""
        00 00 00 00   00 00 00 00 00 00 00 00
        00 00 00 01   00 00 00 00 00 00 00 11
        00 00 00 02   00 00 00 00 00 00 00 1e
    """)
    with interop.open(lay(tmp_path / "theirs", {"1.store": store, "1.index": index})) as theirs:
        assert kinds(theirs) == []
        assert [record.headers for record in theirs] == [
            (("gumlog.term", bytes([0, 0, 0, 0, 0, 0, 0, 5])), ("gumlog.type", bytes([0, 0, 0, 0, 0, 0, 0, 2]))),
            (),
            (("gumlog.term", b"\xff" * 8),),
        ]
        with Log.open(tmp_path / "ours") as log:
            interop.import_log(theirs, log)
            assert [record.headers for record in log] == [record.headers for record in theirs]
            report = interop.export_log(log, tmp_path / "again", format="gumlog")
    assert report.dropped == {}
    assert content_of(tmp_path / "again") == {"1.store": store, "1.index": index}


@for_each("field", ["28 07", "31 01 02 03 04 05 06 07 08", "3d 01 02 03 04", "42 00", "4a 01 61", "12 00"])
def test_gumlog_record_with_an_unknown_field_is_lost(tmp_path: Path, field: str) -> None:
    body = bytes_of("0a 01 61" + field)
    store = len(body).to_bytes(8, "big") + body
    with interop.open(lay(tmp_path, {"0.store": store}), format="gumlog") as log, pytest.raises(UnreadableRecord):
        list(log)


# --- the plain log


def test_plain_finds_records_by_byte_in_the_source_and_in_the_copy(tmp_path: Path) -> None:
    from sawlog.interop import plain

    with interop.open(lay(tmp_path / "theirs", dict(PLAIN))) as theirs, Log.open(tmp_path / "ours") as log:
        interop.import_log(theirs, log)
        for byte_offset, offset in ((0x1000, 0), (0x1015, 1), (0x1025, 2)):
            assert theirs.offset_of(byte_offset) == offset
            assert plain.offset_of(log, byte_offset) == offset
        for wrong in (0, 0xFFF, 0x1001, 0x1026, 0x1038, 2**40):
            with pytest.raises(OffsetOutOfRange):
                theirs.offset_of(wrong)
            with pytest.raises(OffsetOutOfRange):
                plain.offset_of(log, wrong)


def test_plain_finds_every_record_of_many_segments_by_byte(tmp_path: Path) -> None:
    with ours(tmp_path / "ours", 0, [b"%d" % i for i in range(200)]) as log:
        interop.export_log(log, tmp_path / "out", format="plain", segment_bytes=777)
    with interop.open(tmp_path / "out") as found:
        said = [int.from_bytes(dict(record.headers)["plain.byte-offset"] or b"", "big") for record in found]
        assert said[0] == 0
        assert [found.offset_of(byte) for byte in reversed(said)] == list(reversed(range(200)))
    with interop.open(tmp_path / "out") as fresh:
        assert fresh.offset_of(said[-1]) == 199


def test_a_log_not_imported_from_a_plain_one_has_no_byte_offsets(tmp_path: Path) -> None:
    from sawlog.interop import plain

    with ours(tmp_path / "ours", 0, [b"a"]) as log, pytest.raises(InvalidConfig, match="plain"):
        plain.offset_of(log, 0)


def test_plain_log_with_u64_heads_is_read_and_written(tmp_path: Path) -> None:
    with interop.open(lay(tmp_path / "theirs", dict(PLAIN_64))) as theirs, Log.open(tmp_path / "ours") as log:
        assert pairs(theirs) == [(0, b"hello"), (1, b"log")]
        assert theirs.offset_of(4096 + 21) == 1
        interop.import_log(theirs, log)
        interop.export_log(log, tmp_path / "again", format="plain", head="u64")
    assert content_of(tmp_path / "again") == PLAIN_64


def test_plain_log_with_u64_heads_cannot_hold_an_empty_record(tmp_path: Path) -> None:
    with ours(tmp_path / "ours", 0, [b"a", b""]) as log, pytest.raises(ExportRefused, match="u32"):
        interop.export_log(log, tmp_path / "out", format="plain", head="u64")
    assert not (tmp_path / "out").exists()


# --- RustLog


def test_rustlog_indexes_the_first_record_and_every_hundredth(tmp_path: Path) -> None:
    with ours(tmp_path / "ours", 5, [b"x"] * 250) as log:
        interop.export_log(log, tmp_path / "out", format="rustlog")
    index = (tmp_path / "out/00000000000000000005.index").read_bytes()
    entries = [
        (int.from_bytes(index[i : i + 8], "big"), int.from_bytes(index[i + 8 : i + 16], "big")) for i in (0, 16, 32)
    ]
    assert len(index) == 48
    assert entries == [(5, 0), (105, 1300), (205, 2600)]


def test_rustlog_accepts_records_up_to_ten_mebibytes(tmp_path: Path) -> None:
    with ours(tmp_path / "ours", 0, [b"x" * (10 << 20)]) as log:
        interop.export_log(log, tmp_path / "out", format="rustlog")
        log.append(b"x" * ((10 << 20) + 1))
        with pytest.raises(ExportRefused, match="10 MiB"):
            interop.export_log(log, tmp_path / "more", format="rustlog")
    with interop.open(tmp_path / "out", strict=True) as found:
        assert [len(record.value or b"") for record in found] == [10 << 20]


# --- all formats


@pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])
def test_segments_end_at_segment_bytes(tmp_path: Path, format: str) -> None:
    values: list[bytes | None] = [b"%d" % i * 10 for i in range(200)]
    with ours(tmp_path / "ours", 1000, values) as log:
        report = interop.export_log(log, tmp_path / "out", format=format, segment_bytes=500)
    sizes = [(tmp_path / "out" / name).stat().st_size for name in report.files if not name.endswith(".index")]
    assert len(sizes) > 10
    assert max(sizes) <= 500
    with interop.open(tmp_path / "out", strict=True) as found:
        assert [record.value for record in found] == values


@pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])
def test_a_record_larger_than_a_segment_gets_its_own(tmp_path: Path, format: str) -> None:
    values: list[bytes | None] = [b"a", b"b" * 1000, b"c", b"d"]
    with ours(tmp_path / "ours", 0, values) as log:
        interop.export_log(log, tmp_path / "out", format=format, segment_bytes=100)
    with interop.open(tmp_path / "out", strict=True) as found:
        assert [record.value for record in found] == values


@pytest.mark.parametrize(
    "format",
    [
        "laminarmq",
        "gumlog",
        # Length-prefixed and read by the same code as GUMLOG; 0.2 s of CPU each.
        pytest.param("rustlog", marks=pytest.mark.slow),
        pytest.param("plain", marks=pytest.mark.slow),
    ],
)
def test_records_larger_than_the_read_buffer_are_read(tmp_path: Path, format: str) -> None:
    values: list[bytes | None] = [b"a" * 9_000_000, b"b", b"c" * 5_000_000]
    with ours(tmp_path / "ours", 3, values) as log:
        interop.export_log(log, tmp_path / "out", format=format)
    with interop.open(tmp_path / "out", strict=True) as found:
        assert [record.value for record in found] == values
        assert found.read(found.lowest_offset + 1).value == b"b"


@pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])
def test_fields_that_a_format_cannot_store_are_counted(tmp_path: Path, format: str) -> None:
    with Log.open(tmp_path / "ours") as log:
        log.append_many([(b"a", b"key"), (None, b"key"), (b"c", None, (("h", b"1"), ("i", b"2")))])
        report = interop.export_log(log, tmp_path / "out", format=format)
    assert report.dropped == {"keys": 2, "null values": 1, "headers": 1}
    with interop.open(tmp_path / "out") as found:
        assert [record.value for record in found] == [b"a", b"", b"c"]


@pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog"])
def test_an_empty_log_keeps_its_next_offset(tmp_path: Path, format: str) -> None:
    with Log.open(tmp_path / "ours", LogConfig(initial_offset=77)) as log:
        interop.export_log(log, tmp_path / "out", format=format)
    with interop.open(tmp_path / "out", format=format, strict=True) as found:
        assert (found.lowest_offset, found.next_offset, len(found), list(found)) == (77, 77, 0, [])


@pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])
def test_unknown_options_are_refused(tmp_path: Path, format: str) -> None:
    with ours(tmp_path / "ours", 0, [b"a"]) as log:
        for options in ({"segmentbytes": 5}, {"segment_bytes": 0}, {"segment_bytes": "5"}, {"segment_bytes": 2**32}):
            with pytest.raises(InvalidConfig):
                interop.export_log(log, tmp_path / "out", format=format, **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidConfig, match="unknown format"):
            interop.export_log(log, tmp_path / "out", format=format + "x")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.partial"))
