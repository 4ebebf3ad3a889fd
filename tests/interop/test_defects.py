"""Known on-disk defects of these systems (notes L1-L9, G1-G9, and RustLog's), and how they are handled."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, interop
from sawlog.errors import (
    BaseMismatch,
    ChecksumMismatch,
    ForeignDamage,
    IndexGap,
    IndexSizeMismatch,
    MissingRecords,
    NoBase,
    OffsetsOutOfOrder,
    TornFile,
    UnreadableRecord,
)
from sawlog.interop import Kind

from ..looping import for_each
from .files import bytes_of, kinds, lay, pairs, read_all
from .fixtures import GUMLOG, LAMINARMQ, PLAIN, RUSTLOG, VALUES

WHOLE = list(enumerate(VALUES, 42))


def strictly(directory: Path, format: str) -> type[BaseException] | None:
    """Return the error that a strict reader raises."""
    try:
        with interop.open(directory, format=format, strict=True) as log:
            list(log)
    except ForeignDamage as error:
        assert error.path is not None
        assert error.position is not None
        assert str(error.position) in str(error)
        return type(error)
    return None


# --- laminarmq ------------------------------------------------------------------------------------------------------


def record(index: int, value: bytes) -> bytes:
    """A record of laminarmq with a u32 index."""
    return bytes_of("05 00 00 00 01") + index.to_bytes(4, "little") + value


def entry(content: bytes, position: int) -> bytes:
    """The entry of a record that lies at that byte."""
    return (
        zlib.crc32(content).to_bytes(8, "little") + len(content).to_bytes(4, "little") + position.to_bytes(4, "little")
    )


def marker(base: int) -> bytes:
    """Return the beginning of an index."""
    return base.to_bytes(8, "little") + bytes(8)


def test_l1_second_base_marker_is_skipped(tmp_path: Path) -> None:
    """The log was truncated to its first record and written again, which leaves two markers."""
    index = LAMINARMQ["42.index"]
    lay(tmp_path, {**LAMINARMQ, "42.index": index[:16] + index})
    assert read_all(tmp_path, "laminarmq") == (WHOLE, [Kind.SECOND_MARKER])
    assert strictly(tmp_path, "laminarmq") is IndexSizeMismatch


def test_l1_second_base_marker_of_zeros_is_skipped(tmp_path: Path) -> None:
    """The marker of a log that begins at 0 is all zeros."""
    content = record(0, b"a")
    lay(tmp_path, {"0.store": content, "0.index": marker(0) + marker(0) + entry(content, 0)})
    assert read_all(tmp_path, "laminarmq") == ([(0, b"a")], [Kind.SECOND_MARKER])


def test_l1_records_after_a_restart_keep_their_index(tmp_path: Path) -> None:
    """laminarmq counted the marker as record 0, so the next record got index 2, and no record has index 1."""
    first, second, third = record(0, b"a"), record(2, b"b"), record(3, b"c")
    index = marker(0) + marker(0) + entry(first, 0) + entry(second, 10) + entry(third, 20)
    lay(tmp_path, {"0.store": first + second + third, "0.index": index})
    assert read_all(tmp_path, "laminarmq") == (
        [(0, b"a"), (2, b"b"), (3, b"c")],
        [Kind.SECOND_MARKER, Kind.GAP],
    )


@pytest.mark.parametrize("decoder", [None, lambda metadata: int.from_bytes(metadata[1:], "little")])
def test_offset_findings_point_at_the_start_of_the_record(tmp_path: Path, decoder: Any) -> None:
    first, second, third = record(0, b"a"), record(1, b"b"), record(7, b"c")
    index = marker(0) + entry(first, 0) + entry(second, 10) + entry(third, 20)
    lay(tmp_path, {"0.store": first + second + third, "0.index": index})
    with interop.open(tmp_path, format="laminarmq", damage="skip", metadata=decoder) as log:
        assert pairs(log) == [(0, b"a"), (1, b"b"), (7, b"c")]
        assert [(each.kind, each.file, each.position, each.offset) for each in log.report] == [
            (Kind.GAP, "0.store", 20, 7)
        ]


def test_l2_several_markers_are_skipped(tmp_path: Path) -> None:
    index = LAMINARMQ["42.index"]
    lay(tmp_path, {**LAMINARMQ, "42.index": index[:16] * 3 + index})
    assert read_all(tmp_path, "laminarmq") == (WHOLE, [Kind.SECOND_MARKER] * 3)


def test_l5_bytes_of_a_failed_append_are_left_out(tmp_path: Path) -> None:
    """The store was written, the index was not, and the next append continued after the bytes."""
    first, orphan, second = record(0, b"a"), record(1, b"orphan"), record(1, b"b")
    index = marker(0) + entry(first, 0) + entry(second, len(first + orphan))
    lay(tmp_path, {"0.store": first + orphan + second, "0.index": index})
    assert read_all(tmp_path, "laminarmq") == ([(0, b"a"), (1, b"b")], [Kind.ORPHAN_BYTES])
    assert strictly(tmp_path, "laminarmq") is IndexGap


@for_each("torn", range(1, 16))
def test_l6_record_of_a_torn_last_entry_is_read_if_its_checksum_survives(tmp_path: Path, torn: int) -> None:
    """Eight bytes of the entry contain its checksum, and the record extends to the end of the store."""
    lay(tmp_path, {**LAMINARMQ, "42.index": LAMINARMQ["42.index"][: 48 + torn]})
    found, wrong = read_all(tmp_path, "laminarmq")
    assert found == WHOLE[: 3 if torn >= 8 else 2]
    assert wrong == [Kind.TORN_INDEX] + ([] if torn >= 8 else [Kind.ORPHAN_BYTES])
    assert strictly(tmp_path, "laminarmq") is IndexSizeMismatch


@for_each("torn", range(1, 16))
def test_l6_misaligned_entries_after_a_torn_one_are_read(tmp_path: Path, torn: int) -> None:
    """laminarmq appends after the torn entry and from then on reads only noise."""
    first, lost, second, third = (record(i, v) for i, v in ((0, b"a"), (1, b"lost"), (1, b"b"), (2, b"c")))
    at = len(first + lost)
    index = marker(0) + entry(first, 0) + entry(lost, len(first))[:torn]
    index += entry(second, at) + entry(third, at + len(second))
    lay(tmp_path, {"0.store": first + lost + second + third, "0.index": index})
    found, wrong = read_all(tmp_path, "laminarmq")
    assert found == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert wrong == [Kind.TORN_INDEX, Kind.ORPHAN_BYTES]


def test_l6_entries_beyond_the_store_are_left_out(tmp_path: Path) -> None:
    lay(tmp_path, {**LAMINARMQ, "42.store": LAMINARMQ["42.store"][:20]})
    found, wrong = read_all(tmp_path, "laminarmq")
    assert found == WHOLE[:1]
    assert wrong == [Kind.INDEX_AHEAD, Kind.ORPHAN_BYTES]


def test_l6_a_single_record_after_the_last_entry_is_left_out(tmp_path: Path) -> None:
    """Its end is unknown, and it may not have been acknowledged. test_unindexed.py covers the records before it."""
    contents = [record(i, b"%d" % i) for i in range(4)]
    index = marker(0) + b"".join(entry(content, 10 * i) for i, content in enumerate(contents[:3]))
    with interop.open(lay(tmp_path, {"0.store": b"".join(contents), "0.index": index}), format="laminarmq") as log:
        assert pairs(log) == [(0, b"0"), (1, b"1"), (2, b"2")]
        assert [finding.outcome for finding in log.report] == ["cut"]


def test_l7_base_that_differs_from_the_file_name_is_reported(tmp_path: Path) -> None:
    lay(tmp_path, {**LAMINARMQ, "42.index": marker(41) + LAMINARMQ["42.index"][16:]})
    assert read_all(tmp_path, "laminarmq") == (WHOLE, [Kind.BASE_MISMATCH])
    assert strictly(tmp_path, "laminarmq") is BaseMismatch


@pytest.mark.parametrize("size", [1, 8, 15])
def test_index_that_ends_within_its_marker_is_reported(tmp_path: Path, size: int) -> None:
    first = record(42, b"a")
    lay(tmp_path, {"42.store": first, "42.index": marker(42)[:size]})
    assert read_all(tmp_path, "laminarmq") == ([], [Kind.NO_BASE, Kind.ORPHAN_BYTES])
    assert strictly(tmp_path, "laminarmq") is NoBase


def test_checksum_finding_mentions_another_hasher(tmp_path: Path) -> None:
    index = bytearray(LAMINARMQ["42.index"])
    index[16:24] = b"sip hash"
    lay(tmp_path, {**LAMINARMQ, "42.index": bytes(index)})
    with interop.open(tmp_path, format="laminarmq") as log, pytest.raises(ChecksumMismatch, match="another hasher"):
        list(log)


def test_l9_store_without_an_index_raises(tmp_path: Path) -> None:
    first = record(0, b"a")
    lay(tmp_path, {"0.store": first, "0.index": marker(0) + entry(first, 0), "1.store": record(1, b"b")})
    with interop.open(tmp_path, format="laminarmq") as log, pytest.raises(MissingRecords, match="without an index"):
        list(log)
    assert read_all(tmp_path, "laminarmq") == ([(0, b"a")], [Kind.MISSING_FILE])


def test_l9_index_without_a_store_is_reported(tmp_path: Path) -> None:
    lay(tmp_path, {"42.index": LAMINARMQ["42.index"]})
    found, wrong = read_all(tmp_path, "laminarmq")
    assert found == []
    assert wrong == [Kind.MISSING_FILE, Kind.INDEX_AHEAD]


@pytest.mark.parametrize("size", [1, 8, 15, 16, 100])
def test_zeros_at_the_end_of_an_index_are_skipped(tmp_path: Path, size: int) -> None:
    lay(tmp_path, {**LAMINARMQ, "42.index": LAMINARMQ["42.index"] + bytes(size)})
    found, wrong = read_all(tmp_path, "laminarmq")
    assert found == WHOLE
    assert set(wrong) == {Kind.PADDED_INDEX}
    assert strictly(tmp_path, "laminarmq") is IndexSizeMismatch


def test_a_checksum_mismatch_raises_at_that_record(tmp_path: Path) -> None:
    index = bytearray(LAMINARMQ["42.index"])
    index[32] ^= 1
    lay(tmp_path, {**LAMINARMQ, "42.index": bytes(index)})
    with interop.open(tmp_path, format="laminarmq") as log:
        seen = []
        with pytest.raises(ChecksumMismatch) as raised:
            seen.extend(iter(log))
        assert raised.value.offset == 43
        assert [finding.outcome for finding in log.report] == ["lost"]
        assert pairs(log, 44) == WHOLE[2:]
    assert read_all(tmp_path, "laminarmq") == ([WHOLE[0], WHOLE[2]], [Kind.CHECKSUM])
    assert strictly(tmp_path, "laminarmq") is ChecksumMismatch


@pytest.mark.parametrize("at", [40, 43, 44, 47])
def test_an_entry_with_a_damaged_length_or_position_is_corrected_by_its_checksum(tmp_path: Path, at: int) -> None:
    index = bytearray(LAMINARMQ["42.index"])
    index[at] ^= 0x40
    lay(tmp_path, {**LAMINARMQ, "42.index": bytes(index)})
    assert read_all(tmp_path, "laminarmq") == (WHOLE, [Kind.BAD_INDEX])
    assert strictly(tmp_path, "laminarmq") is IndexGap


def test_unknown_metadata_is_reported_as_lost(tmp_path: Path) -> None:
    content = bytes_of("06 00 00 00 07 01 00 00 00 00") + b"value"
    lay(tmp_path, {"0.store": content, "0.index": marker(0) + entry(content, 0)})
    with interop.open(tmp_path, format="laminarmq") as log, pytest.raises(UnreadableRecord, match="metadata"):
        list(log)


# --- RustLog --------------------------------------------------------------------------------------------------------


def framed(offset: int, value: bytes) -> bytes:
    """A record of RustLog."""
    return len(value).to_bytes(4, "big") + offset.to_bytes(8, "big") + value


def rustlog(directory: Path, *records: bytes, base: int = 0) -> Path:
    """A partition with one segment."""
    return lay(directory, {f"{base:020d}.log": b"".join(records)})


def test_restarted_offsets_are_renumbered_and_kept_in_a_header(tmp_path: Path) -> None:
    """A reopened RustLog starts again at 0: the offsets on disk are 0, 1, 0, 1, 2, 0."""
    said = [0, 1, 0, 1, 2, 0]
    rustlog(tmp_path, *(framed(offset, b"%d" % i) for i, offset in enumerate(said)))
    with interop.open(tmp_path, format="rustlog") as log:
        assert pairs(log) == [(i, b"%d" % i) for i in range(6)]
        assert kinds(log) == [Kind.MISSING_FILE, Kind.RESTART, Kind.RESTART]
        headers = [dict(record.headers).get("rustlog.offset") for record in log]
        assert headers == [None, None, *(bytes(7) + bytes([n]) for n in (0, 1, 2, 0))]
        with Log.open(tmp_path / "ours") as mine:
            interop.import_log(log, mine)
            assert [record.value for record in mine] == [b"%d" % i for i in range(6)]
            assert [dict(record.headers).get("rustlog.offset") for record in mine] == headers
    lay(tmp_path, {f"{0:020d}.index": bytes(16)})
    assert strictly(tmp_path, "rustlog") is OffsetsOutOfOrder


def test_overlapping_segments_are_read_one_after_the_other(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            f"{0:020d}.log": framed(0, b"a") + framed(1, b"b") + framed(0, b"c"),
            f"{2:020d}.log": framed(2, b"d") + framed(3, b"e"),
        },
    )
    found, wrong = read_all(tmp_path, "rustlog")
    assert found == [(i, b"abcde"[i : i + 1]) for i in range(5)]
    assert [kind for kind in wrong if kind is not Kind.MISSING_FILE] == [Kind.RESTART, Kind.RESTART]


@for_each("cut", range(1, 15))
def test_a_torn_tail_is_cut(tmp_path: Path, cut: int) -> None:
    name = "00000000000000000007.log"
    lay(tmp_path, {**RUSTLOG, name: RUSTLOG[name][:-cut]})
    with interop.open(tmp_path, format="rustlog") as log:
        assert pairs(log) == [(7, b"hello"), (8, b"")]
        (finding,) = log.report
        assert (finding.kind, finding.outcome, finding.position) == (Kind.TORN_TAIL, "cut", 29)
        assert finding.size_bytes == 15 - cut
    assert strictly(tmp_path, "rustlog") is TornFile


@for_each("kept", [12, 13, 30, 111])
def test_a_record_torn_and_written_again_is_read_once(tmp_path: Path, kept: int) -> None:
    """The disk was full for a moment: a fragment, then the record with the same offset, and others."""
    torn = framed(1, b"b" * 100)[:kept]
    rustlog(tmp_path, framed(0, b"a"), torn, framed(1, b"B" * 90), framed(2, b"c"), framed(3, b"d"))
    found, wrong = read_all(tmp_path, "rustlog")
    assert found == [(0, b"a"), (1, b"B" * 90), (2, b"c"), (3, b"d")]
    assert wrong == [Kind.MISSING_FILE, Kind.TORN_TAIL]


@pytest.mark.parametrize("size", [12, 13, 24, 4096])
def test_zeros_after_the_last_record_are_not_records(tmp_path: Path, size: int) -> None:
    """Twelve zeros could also be an empty record with offset 0."""
    rustlog(tmp_path, framed(0, b"a"), framed(1, b"b"), bytes(size))
    found, wrong = read_all(tmp_path, "rustlog")
    assert found == [(0, b"a"), (1, b"b")]
    assert wrong == [Kind.MISSING_FILE, Kind.ZERO_TAIL]


def test_a_single_empty_record_is_read(tmp_path: Path) -> None:
    rustlog(tmp_path, framed(0, b""))
    assert read_all(tmp_path, "rustlog")[0] == [(0, b"")]
    rustlog(tmp_path, framed(0, b""), framed(1, b""), framed(2, b"x"), framed(3, b""))
    assert read_all(tmp_path, "rustlog")[0] == [(0, b""), (1, b""), (2, b"x"), (3, b"")]


def test_a_damaged_offset_is_corrected_from_its_neighbours(tmp_path: Path) -> None:
    rustlog(tmp_path, framed(0, b"a"), framed(1 + 2**40, b"b"), framed(2, b"c"))
    assert read_all(tmp_path, "rustlog") == (
        [(0, b"a"), (1, b"b"), (2, b"c")],
        [Kind.MISSING_FILE, Kind.BAD_OFFSET],
    )


def test_a_gap_in_the_offsets_stays_a_gap(tmp_path: Path) -> None:
    rustlog(tmp_path, framed(0, b"a"), framed(5, b"b"), framed(6, b"c"))
    with interop.open(tmp_path, format="rustlog") as log, Log.open(tmp_path / "ours") as mine:
        interop.import_log(log, mine)
        assert [(record.offset, record.value) for record in mine] == [(0, b"a"), (5, b"b"), (6, b"c")]
        assert mine.next_offset == 7
        assert Kind.GAP in kinds(log)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_damaged_length_loses_one_record(tmp_path: Path, indexed: bool) -> None:
    """The next record is found by its offset, with or without an index."""
    records = [framed(i, b"%d" % i * 30) for i in range(250)]
    position = sum(map(len, records[:120]))
    data = bytearray(b"".join(records))
    data[position + 2] ^= 0xFF
    files: dict[str, bytes | str] = {f"{0:020d}.log": bytes(data)}
    if indexed:
        places = ((i, sum(map(len, records[:i]))) for i in (0, 100, 200))
        files[f"{0:020d}.index"] = b"".join(a.to_bytes(8, "big") + b.to_bytes(8, "big") for a, b in places)
    lay(tmp_path, files)
    with interop.open(tmp_path, format="rustlog") as log, pytest.raises(UnreadableRecord) as raised:
        list(log)
    assert (raised.value.position, raised.value.offset) == (position, 120)
    found, wrong = read_all(tmp_path, "rustlog")
    assert dict(found[:120]) == {i: b"%d" % i * 30 for i in range(120)}
    assert dict(found[-50:]) == {i: b"%d" % i * 30 for i in range(200, 250)}
    assert len(found) == 249
    assert wrong == ([] if indexed else [Kind.MISSING_FILE]) + [Kind.UNREADABLE]


@pytest.mark.parametrize(
    ("index", "kind", "error"),
    [
        (b"", None, None),
        (RUSTLOG["00000000000000000007.index"] + b"abc", Kind.TORN_INDEX, IndexSizeMismatch),
        (bytes_of("00 00 00 00 00 00 00 08  00 00 00 00 00 00 00 00"), Kind.BAD_INDEX, IndexGap),
        (bytes_of("00 00 00 00 00 00 00 07  00 00 00 00 00 00 00 01"), Kind.BAD_INDEX, IndexGap),
        (bytes_of("00 00 00 00 00 00 00 09  ff ff ff ff ff ff ff ff"), Kind.INDEX_AHEAD, IndexSizeMismatch),
        (
            bytes_of("00 00 00 00 00 00 00 09  00 00 00 00 00 00 00 1d") + RUSTLOG["00000000000000000007.index"],
            Kind.BAD_INDEX,
            IndexGap,
        ),
    ],
)
def test_rustlog_index_is_never_needed(tmp_path: Path, index: bytes, kind: Kind | None, error: type) -> None:
    lay(tmp_path, {**RUSTLOG, "00000000000000000007.index": index})
    found, wrong = read_all(tmp_path, "rustlog")
    assert found == list(enumerate(VALUES, 7))
    assert wrong == ([] if kind is None else [kind])
    assert strictly(tmp_path, "rustlog") is error


# --- GUMLOG ---------------------------------------------------------------------------------------------------------


def message(offset: int, value: bytes) -> bytes:
    """A record of GUMLOG with a small offset."""
    body = (b"\x0a" + bytes([len(value)]) + value if value else b"") + (bytes([0x10, offset]) if offset else b"")
    return len(body).to_bytes(8, "big") + body


@pytest.mark.parametrize("size", [48, 1020, 1024, 100_000])
def test_g1_index_padded_with_zeros_is_reported(tmp_path: Path, size: int) -> None:
    index = GUMLOG["300.index"]
    lay(tmp_path, {**GUMLOG, "300.index": index + bytes(size - len(index))})
    with interop.open(tmp_path) as log:
        assert pairs(log) == list(enumerate(VALUES, 300))
        assert log.next_offset == 303
        (finding,) = log.report
        assert (finding.kind, finding.position, finding.size_bytes) == (Kind.PADDED_INDEX, 36, size - 36)
    assert strictly(tmp_path, "gumlog") is IndexSizeMismatch


def test_g1_g3_refused_appends_are_kept_with_new_offsets(tmp_path: Path) -> None:
    """After an unclean stop GUMLOG continues at base + 1, writes to the store, and finds the index full."""
    store = b"".join(message(i, b"%d" % i) for i in range(5)) + message(1, b"x") + message(1, b"y")
    places = [0, 11, 24, 37, 50]
    index = b"".join(i.to_bytes(4, "big") + p.to_bytes(8, "big") for i, p in enumerate(places))
    lay(tmp_path, {"0.store": store, "0.index": index + bytes(1024 - len(index))})
    with interop.open(tmp_path, format="gumlog") as log:
        assert [value for _, value in pairs(log)] == [b"0", b"1", b"2", b"3", b"4", b"x", b"y"]
        assert [offset for offset, _ in pairs(log)] == list(range(7))
        assert kinds(log) == [Kind.RESTART, Kind.RESTART, Kind.PADDED_INDEX, Kind.INDEX_BEHIND]
        assert [dict(record.headers).get("gumlog.offset") for record in log][5:] == [bytes(7) + b"\1"] * 2
    assert strictly(tmp_path, "gumlog") is OffsetsOutOfOrder


def test_g2_wedged_log_keeps_refused_appends(tmp_path: Path) -> None:
    """The index is full: every append is refused, and each leaves a record with the same offset."""
    store = b"".join(message(i, b"ok") for i in (0, 1, 2, 3, 3, 3))
    index = b"".join(i.to_bytes(4, "big") + p.to_bytes(8, "big") for i, p in ((0, 0), (1, 12), (2, 26), (3, 40)))
    lay(tmp_path, {"0.store": store, "0.index": index})
    found, wrong = read_all(tmp_path, "gumlog")
    assert [offset for offset, _ in found] == list(range(6))
    assert wrong == [Kind.RESTART, Kind.RESTART, Kind.INDEX_BEHIND]


def test_g7_unrelated_files_are_ignored(tmp_path: Path) -> None:
    strangers: dict[str, bytes | str] = {
        "notes.txt": b"x",
        "7.index": b"",
        "a.store": b"x",
        "301": b"",
        "-1.store": b"y",
    }
    lay(tmp_path, {**GUMLOG, **strangers})
    with interop.open(tmp_path, format="gumlog") as log:
        assert pairs(log) == list(enumerate(VALUES, 300))
        assert {finding.file for finding in log.report if finding.kind is Kind.UNKNOWN_FILE} == {
            "notes.txt",
            "a.store",
            "301",
            "-1.store",
        }


@pytest.mark.parametrize("cut", [1, 3, 8, 12])
def test_g9_shortened_index_loses_no_record(tmp_path: Path, cut: int) -> None:
    lay(tmp_path, {**GUMLOG, "300.index": GUMLOG["300.index"][:-cut]})
    found, wrong = read_all(tmp_path, "gumlog")
    assert found == list(enumerate(VALUES, 300))
    assert set(wrong) <= {Kind.TORN_INDEX, Kind.INDEX_BEHIND}
    assert wrong


def test_index_ahead_of_the_store_is_reported(tmp_path: Path) -> None:
    """The store is buffered and the index is not: after a crash the index has entries for unwritten records."""
    lay(tmp_path, {**GUMLOG, "300.store": GUMLOG["300.store"][:29]})
    found, wrong = read_all(tmp_path, "gumlog")
    assert found == list(enumerate(VALUES, 300))[:2]
    assert wrong == [Kind.INDEX_AHEAD]


def test_missing_index_is_not_needed(tmp_path: Path) -> None:
    lay(tmp_path, {"300.store": GUMLOG["300.store"]})
    assert read_all(tmp_path, "gumlog") == (list(enumerate(VALUES, 300)), [Kind.MISSING_FILE])


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("at", "lost", "kind"),
    [
        (25, 1, Kind.UNREADABLE),  # the length of the second record: 3 becomes 252
        (26, 1, Kind.UNREADABLE),  # its first tag
    ],
)
def test_a_damaged_record_loses_only_itself(tmp_path: Path, at: int, lost: int, kind: Kind, indexed: bool) -> None:
    store = bytearray(GUMLOG["300.store"])
    store[at] ^= 0xFF
    files: dict[str, bytes | str] = {**GUMLOG, "300.store": bytes(store)}
    if not indexed:
        del files["300.index"]
    lay(tmp_path, files)
    found, wrong = read_all(tmp_path, "gumlog")
    assert found == [(300, b"hello"), (302, b"log")]
    assert wrong == ([] if indexed else [Kind.MISSING_FILE]) + [kind]
    with interop.open(tmp_path, format="gumlog") as log, pytest.raises(UnreadableRecord) as raised:
        list(log)
    assert (raised.value.offset, raised.value.position) == (301, 18)


# --- the plain log --------------------------------------------------------------------------------------------------


def test_plain_log_ends_at_a_head_of_zeros(tmp_path: Path) -> None:
    """Files were written in blocks."""
    lay(tmp_path, {"4096.store": PLAIN["4096.store"] + bytes(4096 - 56)})
    assert read_all(tmp_path, "plain") == (list(enumerate(VALUES)), [Kind.ZERO_TAIL])


@for_each("cut", range(1, 19))
def test_plain_log_with_a_torn_tail_is_cut(tmp_path: Path, cut: int) -> None:
    lay(tmp_path, {"4096.store": PLAIN["4096.store"][:-cut]})
    assert read_all(tmp_path, "plain") == (list(enumerate(VALUES))[:2], [Kind.TORN_TAIL])


@for_each("at", range(37))
def test_plain_log_resynchronises_after_damage(tmp_path: Path, at: int) -> None:
    """The third record is read at its position whichever byte of the first two is damaged."""
    data = bytearray(PLAIN["4096.store"])
    data[at] ^= 0x81
    lay(tmp_path, {"4096.store": bytes(data)})
    with interop.open(tmp_path, format="plain", damage="skip") as log:
        values = [record.value for record in log]
        assert values == ([b"", b"log"] if at < 21 else [b"hello", b"log"])
        assert [int.from_bytes(dict(r.headers)["plain.byte-offset"] or b"", "big") for r in log][-1] == 0x1025
        assert log.report.lost
    with interop.open(tmp_path, format="plain") as log, pytest.raises((ChecksumMismatch, UnreadableRecord)):
        list(log)


def test_plain_segments_that_are_not_contiguous_are_reported(tmp_path: Path) -> None:
    lay(tmp_path, {**PLAIN, "9999.store": bytes_of("fe e1 b6 f0   09 00 00 00   0f 27 00 00 00 00 00 00   61")})
    found, wrong = read_all(tmp_path, "plain")
    assert found == [*enumerate(VALUES), (3, b"a")]
    assert wrong == [Kind.GAP]


def test_plain_segments_are_contiguous_despite_zeros(tmp_path: Path) -> None:
    """A segment written in blocks is longer than its records; the next one is named after their end."""
    second = bytes_of("81 16 ee 35   09 00 00 00   38 10 00 00 00 00 00 00   61")
    lay(tmp_path, {"4096.store": PLAIN["4096.store"] + bytes(512 - 56), "4152.store": second})
    found, wrong = read_all(tmp_path, "plain")
    assert found == [*enumerate(VALUES), (3, b"a")]
    assert wrong == [Kind.ZERO_TAIL]
