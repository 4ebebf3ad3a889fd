"""Logs imported while their system is running, and again after it has written more."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog import Log, LogConfig, interop
from sawlog.errors import ImportMismatch
from sawlog.interop import Kind

from .files import lay
from .test_restarts import message

VALUES = [b"value %d" % i + b"." * (i % 40) for i in range(1000)]
#: Records per segment, and bytes per write.
SEGMENT, BUFFER_BYTES = 50, 1024


def gumlog(records: int, *, closed: bool = False, buffer: int = BUFFER_BYTES) -> dict[str, bytes | str]:
    """A GUMLOG with that many records. While it is running, each store ends where its buffer was last written."""
    files: dict[str, bytes | str] = {}
    for base in range(0, records, SEGMENT):
        made = [message(base + i, value) for i, value in enumerate(VALUES[base : min(base + SEGMENT, records)])]
        store, index, position = b"".join(made), b"", 0
        for number, each in enumerate(made):
            index += number.to_bytes(4, "big") + position.to_bytes(8, "big")
            position += len(each)
        size = len(store) if closed else len(store) // buffer * buffer
        files[f"{base}.store"] = store[:size]
        files[f"{base}.index"] = index if closed else index.ljust(SEGMENT * 12, b"\0")
    return files


def content(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log]


@pytest.mark.parametrize(
    "buffer",
    [
        BUFFER_BYTES,
        # Many small gaps, and no writes at all: the same guarantee, 0.3 s of CPU each.
        pytest.param(256, marks=pytest.mark.slow),
        pytest.param(1 << 20, marks=pytest.mark.slow),
    ],
)
def test_the_next_import_adds_records_that_were_not_yet_written(tmp_path: Path, buffer: int) -> None:
    """Some segments, including the first ones, may have been completely empty."""
    with Log.open(tmp_path / "ours", LogConfig(segment_bytes=4096)) as mine:
        for records in (120, 430, 1000):
            lay(tmp_path / "gumlog", gumlog(records, buffer=buffer))
            interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        lay(tmp_path / "gumlog", gumlog(1000, closed=True))
        report = interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        assert content(mine) == list(enumerate(VALUES))
        if buffer < 1 << 20:  # otherwise the first import was empty
            late = [finding for finding in report.findings if finding.kind is Kind.LATE]
            assert len(late) == 1
            assert late[0].outcome == "repaired"
        again = interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        assert (again.records, again.findings) == (0, ())


def test_the_first_import_reports_missing_records(tmp_path: Path) -> None:
    lay(tmp_path / "gumlog", gumlog(120))
    with Log.in_memory() as mine:
        report = interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        gaps = [finding for finding in report.findings if finding.kind is Kind.GAP]
        assert len(gaps) == 2
        assert all(finding.outcome == "missing" and "import again" in finding.detail for finding in gaps)


def test_records_that_stay_missing_are_a_gap_and_nothing_is_copied_twice(tmp_path: Path) -> None:
    """GUMLOG was killed, and the ends of its segments are lost."""
    lay(tmp_path / "gumlog", gumlog(430))
    with Log.in_memory() as mine:
        interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        before, epoch = content(mine), mine.leader_epoch
        report = interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        assert (report.records, content(mine), mine.leader_epoch) == (0, before, epoch)


def test_only_a_copy_of_the_same_log_is_truncated(tmp_path: Path) -> None:
    """The source has the last record of the copy, but a different one before it."""
    lay(tmp_path / "gumlog", gumlog(430))
    with Log.in_memory() as mine:
        interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        last = list(mine)[-1]
        mine.truncate(last.offset - 1)
        mine.append(b"somebody else's")
        mine.append(last.value)
        before = content(mine)
        lay(tmp_path / "gumlog", gumlog(1000, closed=True))
        with pytest.raises(ImportMismatch, match="new log"):
            interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        assert content(mine) == before


def test_readers_of_the_copy_go_back_to_late_records(tmp_path: Path) -> None:
    lay(tmp_path / "gumlog", gumlog(120))
    with Log.in_memory() as mine:
        interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        epoch, position = mine.leader_epoch, mine.next_offset
        lay(tmp_path / "gumlog", gumlog(120, closed=True))
        report = interop.import_log(tmp_path / "gumlog", mine, format="gumlog")
        assert mine.leader_epoch > epoch
        assert report.logs[0].start_offset < position
