"""Impossible gaps and offsets above the limit are damage, and are never filled."""

from __future__ import annotations

import struct
from itertools import product
from pathlib import Path

import pytest

from sawlog import Log, interop
from sawlog.errors import OffsetsOutOfOrder
from sawlog.interop import Kind

from ..looping import for_each
from .files import lay, pairs, read_all
from .test_defects import entry, framed, marker
from .test_restarts import message
from .test_unindexed import wide


def segments(format: str, *bases: int) -> dict[str, bytes | str]:
    """Segments of two records each."""
    files: dict[str, bytes | str] = {}
    for base in bases:
        if format == "rustlog":
            files[f"{base:020d}.log"] = framed(base, b"a") + framed(base + 1, b"b")
        elif format == "gumlog":
            files[f"{base}.store"] = message(base, b"a") + message(base + 1, b"b")
        else:
            first, second = wide(base, b"a"), wide(base + 1, b"b")
            files[f"{base}.store"] = first + second
            files[f"{base}.index"] = marker(base) + entry(first, 0) + entry(second, len(first))
    return files


formats = pytest.mark.parametrize("format", ["rustlog", "gumlog", "laminarmq"])


@formats
@for_each("far", [2**44 + 3, 2**61, 2**62, 2**63 - 2, 2**63, 2**64 - 2])
def test_an_impossible_segment_base_is_damage(tmp_path: Path, format: str, far: int) -> None:
    source = lay(tmp_path / str(far), segments(format, 0, far))
    with Log.in_memory() as mine, pytest.raises(OffsetsOutOfOrder, match=str(far)):
        interop.import_log(source, mine, format=format)
    with Log.in_memory() as mine:
        report = interop.import_log(source, mine, format=format, damage="skip")
        assert [(record.offset, record.value) for record in mine] == [(0, b"a"), (1, b"b")]
        assert mine.next_offset == 2
        assert [finding.outcome for finding in report.findings if finding.kind is Kind.BAD_OFFSET] == ["lost"]


@formats
def test_the_largest_possible_gap_is_read(tmp_path: Path, format: str) -> None:
    lay(tmp_path, segments(format, 0, 2**44 + 2))
    found, wrong = read_all(tmp_path, format)
    assert found == [(0, b"a"), (1, b"b"), (2**44 + 2, b"a"), (2**44 + 3, b"b")]
    assert Kind.GAP in wrong


@formats
@pytest.mark.parametrize("base", [2**62, 2**63 - 2, 2**64 - 2])
def test_a_log_that_begins_above_the_offset_limit_is_refused(tmp_path: Path, format: str, base: int) -> None:
    lay(tmp_path, segments(format, base))
    for damage in ("stop", "skip"):
        with pytest.raises(OffsetsOutOfOrder, match=rf"{base}.*2\*\*62"):
            interop.open(tmp_path, format=format, damage=damage)  # type: ignore[arg-type]


@formats
def test_a_log_is_read_up_to_the_offset_limit(tmp_path: Path, format: str) -> None:
    lay(tmp_path, segments(format, 2**62 - 1))
    with (
        interop.open(tmp_path, format=format) as log,
        pytest.raises(OffsetsOutOfOrder, match="sawlog does not support"),
    ):
        list(log)
    with interop.open(tmp_path, format=format, damage="skip") as log:
        assert pairs(log) == [(2**62 - 1, b"a")]
        assert log.report.lost


@for_each(("bit", "which"), product([61, 45, 44, 38, 34, 31], [-1, 0, 10]))
def test_a_flipped_bit_in_a_kafka_base_offset_is_damage(tmp_path: Path, bit: int, which: int) -> None:
    """No checksum covers it. A Kafka segment cannot hold such offsets, so the gap is not filled."""
    with Log.in_memory() as log:
        for i in range(20):
            log.append(b"value %d" % i)
        source = tmp_path / f"{bit}-{which}" / "t-0"
        interop.export_log(log, source, format="kafka")
    path = source / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 12 + int(struct.unpack_from(">i", data, at + 8)[0])
    (base,) = struct.unpack_from(">q", data, starts[which])
    struct.pack_into(">q", data, starts[which], base ^ 1 << bit)
    path.write_bytes(data)
    lost = range(20)[which]
    with Log.in_memory() as mine:
        with pytest.raises(OffsetsOutOfOrder, match="too large for a segment"):
            interop.import_log(source, mine, format="kafka")
        assert [record.value for record in mine] == [b"value %d" % i for i in range(lost)]
    with Log.in_memory() as mine:
        report = interop.import_log(source, mine, format="kafka", damage="skip")
        expected = [(i, b"value %d" % i) for i in range(20) if i != lost]
        assert [(record.offset, record.value) for record in mine] == expected
        assert Kind.BAD_OFFSET in [finding.kind for finding in report.findings]
        assert mine.next_offset <= 20


def test_a_kafka_file_with_an_impossible_base_is_damage(tmp_path: Path) -> None:
    with Log.in_memory() as log:
        log.append(b"a")
        interop.export_log(log, tmp_path / "t-0", format="kafka")
    (tmp_path / "t-0" / f"{2**50:020d}.log").write_bytes(b"")
    with Log.in_memory() as mine, pytest.raises(OffsetsOutOfOrder, match="too large for a log"):
        interop.import_log(tmp_path / "t-0", mine, format="kafka")
    with Log.in_memory() as mine:
        interop.import_log(tmp_path / "t-0", mine, format="kafka", damage="skip")
        assert mine.next_offset == 1


# --- small logs


def test_gumlog_is_recognised_when_its_first_stores_are_empty(tmp_path: Path) -> None:
    """GUMLOG was killed with every store but the fifth in memory. The missing records are reported."""
    empty = {f"{10 * i}.store": b"" for i in range(5)} | {f"{10 * i}.index": bytes(1024) for i in range(5)}
    lay(tmp_path, {**empty, "50.store": message(50, b"a") + message(51, b"b")})
    found = interop.detect(tmp_path)
    assert found is not None
    assert (found.format, found.certain) == ("gumlog", True)
    with interop.open(tmp_path) as log, Log.in_memory() as mine:
        assert pairs(log) == [(50, b"a"), (51, b"b")]
        assert sum(finding.kind is Kind.GAP for finding in log.report) == 5
        interop.import_log(log, mine)
        assert (mine.lowest_offset, mine.next_offset, len(list(mine))) == (0, 52, 2)


@pytest.mark.parametrize("base", [0, 42])
def test_an_emptied_laminarmq_log_is_recognised(tmp_path: Path, base: int) -> None:
    """Truncated to its first record: the store is empty, and the index holds only its marker."""
    lay(tmp_path, {f"{base}.store": b"", f"{base}.index": marker(base)})
    with interop.open(tmp_path) as log:
        assert (log.format, log.next_offset, list(log)) == ("laminarmq", base, [])


def test_rustlogs_empty_record_after_a_restart_is_read_if_it_is_indexed(tmp_path: Path) -> None:
    content = b"".join(framed(i, b"abc") for i in range(3))
    index = struct.pack(">4Q", 0, 0, 0, len(content))
    for tail, values in ((b"", []), (framed(1, b"x"), [b"x"]), (bytes(24), [])):
        lay(tmp_path, {f"{0:020d}.log": content + framed(0, b"") + tail, f"{0:020d}.index": index})
        found, wrong = read_all(tmp_path, "rustlog")
        assert [value for _, value in found] == [b"abc", b"abc", b"abc", b"", *values]
        assert wrong[0] is Kind.RESTART
