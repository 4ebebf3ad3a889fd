"""laminarmq killed while its index lagged behind its store: records without entries, found by their metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog import Log, interop
from sawlog.errors import IndexGap, IndexSizeMismatch, InvalidConfig, UnreadableRecord
from sawlog.interop import Kind

from .files import bytes_of, lay, pairs
from .test_defects import entry, marker, record

Files = dict[str, bytes | str]

VALUES = [b"value %d" % i + b"." * (i * 31 % 100) for i in range(200)]


def wide(index: int, value: bytes) -> bytes:
    """A record with a u64 index."""
    return bytes_of("09 00 00 00 01") + index.to_bytes(8, "little") + value


def behind(contents: list[bytes], base: int, entries: int) -> Files:
    """Return a segment whose index has only the first of these records."""
    index, position = marker(base), 0
    for content in contents[:entries]:
        index += entry(content, position)
        position += len(content)
    return {f"{base}.store": b"".join(contents), f"{base}.index": index}


@pytest.mark.parametrize("make", [record, wide])
@pytest.mark.parametrize("entries", [0, 1, 57, 198, 199])
def test_records_without_entries_are_found_by_the_metadata_of_the_next(tmp_path: Path, make, entries: int) -> None:  # type: ignore[no-untyped-def]
    """All but the last one, which may be torn. If its head is torn, the one before it counts as the last."""
    contents = [make(42 + i, value) for i, value in enumerate(VALUES)]
    for torn in (1, len(contents[-1]) // 2, len(contents[-1])):
        files = behind([*contents[:-1], contents[-1][:torn]], 42, entries)
        with interop.open(lay(tmp_path, files)) as log:
            assert log.format == "laminarmq"
            found = max(199 if torn > 1 else 198, entries)
            assert pairs(log) == list(enumerate(VALUES[:found], 42))
            outcomes = [(finding.kind, finding.outcome) for finding in log.report]
            recovered = [(Kind.INDEX_BEHIND, "repaired")] if entries < found else []
            assert outcomes == [*recovered, (Kind.ORPHAN_BYTES, "cut")]
    with interop.open(tmp_path, strict=True) as log, pytest.raises((IndexSizeMismatch, IndexGap)):
        list(log)


def test_a_log_is_recognised_by_one_record_without_an_entry(tmp_path: Path) -> None:
    for number, index in enumerate((b"", marker(42), marker(42)[:5])):
        found = interop.detect(lay(tmp_path / str(number), {"42.store": record(42, b"x"), "42.index": index}))
        assert found is not None
        assert (found.format, found.certain) == ("laminarmq", True)


def test_a_store_without_an_index_is_read_up_to_its_last_record(tmp_path: Path) -> None:
    lay(tmp_path, {"0.store": b"".join(record(i, value) for i, value in enumerate(VALUES))})
    with interop.open(tmp_path, damage="skip") as log:
        assert pairs(log) == list(enumerate(VALUES[:-1]))
        assert [finding.kind for finding in log.report.lost] == [Kind.MISSING_FILE]


def test_records_after_the_index_of_every_segment_are_found(tmp_path: Path) -> None:
    """The record left out at the end of a segment is a gap, and is reported."""
    first = [record(i, value) for i, value in enumerate(VALUES[:50])]
    second = [record(50 + i, value) for i, value in enumerate(VALUES[50:100])]
    lay(tmp_path, {**behind(first, 0, 10), **behind(second, 50, 20)})
    with interop.open(tmp_path) as log, Log.in_memory() as mine:
        interop.import_log(log, mine)
        assert [(each.offset, each.value) for each in mine] == [
            (i, value) for i, value in enumerate(VALUES[:99]) if i != 49
        ]
        assert Kind.GAP in [finding.kind for finding in log.report]


def test_records_larger_than_the_read_buffer_are_found(tmp_path: Path) -> None:
    values = [b"a" * (9 << 20), b"b", b"c" * (5 << 20), b"d", b"e"]
    lay(tmp_path, behind([record(i, value) for i, value in enumerate(values)], 0, 0))
    with interop.open(tmp_path) as log:
        assert pairs(log) == list(enumerate(values[:-1]))


@pytest.mark.parametrize("where", [0, 1, 3])
def test_only_ambiguous_records_are_lost(tmp_path: Path, where: int) -> None:
    """A value contains the beginning of the next record."""
    values = [b"%d" % i * 5 for i in range(8)]
    values[where] = b"x" + record(where + 1, b"y")
    lay(tmp_path, behind([record(i, value) for i, value in enumerate(values)], 0, 0))
    with interop.open(tmp_path, format="laminarmq") as log, pytest.raises(IndexSizeMismatch, match="no clear boundary"):
        list(log)
    with interop.open(tmp_path, format="laminarmq", damage="skip") as log:
        assert pairs(log) == [(i, v) for i, v in enumerate(values[:-1]) if i not in (where, where + 1)]


# --- metadata other than ()


def with_metadata(index: int, metadata: bytes, value: bytes) -> bytes:
    """A record of `MetaWithIdx<Own, u32>`: the own metadata, then `Some(index)`."""
    whole = metadata + b"\1" + index.to_bytes(4, "little")
    return len(whole).to_bytes(4, "little") + whole + value


def index_of(metadata: bytes) -> int | None:
    """The index at the end of metadata."""
    if metadata[-5:-4] != b"\1":
        raise ValueError("no index")
    return int.from_bytes(metadata[-4:], "little")


@pytest.mark.parametrize("entries", [20, 5, 0])
def test_other_metadata_is_decoded_and_kept(tmp_path: Path, entries: int) -> None:
    own = [b"m%03d" % i for i in range(20)]
    contents = [with_metadata(7 + i, own[i], VALUES[i]) for i in range(20)]
    lay(tmp_path, behind(contents, 7, entries))
    count = 20 if entries == 20 else 19
    with interop.open(tmp_path, format="laminarmq", metadata=index_of) as log, Log.in_memory() as mine:
        assert pairs(log) == list(enumerate(VALUES[:count], 7))
        interop.import_log(log, mine)
        kept = [dict(each.headers)["laminarmq.metadata"] for each in mine]
        assert kept == [own[i] + b"\1" + bytes([7 + i, 0, 0, 0]) for i in range(count)]
    with Log.in_memory() as mine:
        report = interop.import_log(tmp_path, mine, format="laminarmq", metadata=index_of)
        assert report.records == count


def test_records_whose_metadata_the_decoder_rejects_are_lost(tmp_path: Path) -> None:
    contents = [with_metadata(0, b"own", b"a"), with_metadata(1, b"own", b"b")[:-6] + b"\2" + bytes(4) + b"b"]
    lay(tmp_path, behind(contents, 0, 2))
    with interop.open(tmp_path, format="laminarmq", metadata=index_of) as log:
        with pytest.raises(UnreadableRecord, match="decoder"):
            list(log)
        assert log.read(0).value == b"a"


def test_indexed_metadata_of_variable_length_is_decoded(tmp_path: Path) -> None:
    contents = [with_metadata(i, b"m" * i, b"%d" % i) for i in range(5)]
    lay(tmp_path, behind(contents, 0, 5))
    with interop.open(tmp_path, format="laminarmq", metadata=index_of) as log:
        assert pairs(log) == [(i, b"%d" % i) for i in range(5)]


def test_a_decoder_is_refused_for_other_formats(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="metadata"):
        interop.open(tmp_path, format="rustlog", metadata=index_of)
