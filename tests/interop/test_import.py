"""Import: offsets are kept, and interruptions cause neither loss nor duplicates."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sawlog
from sawlog import Log, LogConfig, interop
from sawlog.errors import (
    ChecksumMismatch,
    ImportMismatch,
    InvalidConfig,
    RecordRemoved,
    UnknownFormat,
    UnreadableRecord,
)

from ..processes.launch import PATIENCE_S, start
from .files import lay, pairs
from .fixtures import FIXTURES, GUMLOG, LAMINARMQ, NAMES, PLAIN, RUSTLOG, VALUES

every_layout = pytest.mark.parametrize(("format", "files", "first"), FIXTURES, ids=NAMES)
every_format = pytest.mark.parametrize("format", ["laminarmq", "rustlog", "gumlog", "plain"])


def all_of(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log]


def theirs(place: Path, format: str, count: int, **options: int) -> Path:
    """A log of another system with that many records."""
    with Log.in_memory(LogConfig(initial_offset=options.pop("first", 0))) as log:
        for start in range(0, count, 1000):
            log.append_many([b"record %d" % i for i in range(start, min(start + 1000, count))])
        interop.export_log(log, place, format=format, **options)  # type: ignore[arg-type]
    return place


@every_layout
def test_a_log_is_copied_with_its_offsets(tmp_path: Path, format: str, files: dict[str, bytes], first: int) -> None:
    with Log.open(tmp_path / "ours") as log:
        report = interop.import_log(lay(tmp_path / "theirs", dict(files)), log)
        assert all_of(log) == list(enumerate(VALUES, first))
        assert (log.lowest_offset, log.next_offset) == (first, first + 3)
    (done,) = report.logs
    assert (report.format, report.records, report.findings) == (format, 3, ())
    assert (done.start_offset, done.next_offset) == (first, first + 3)
    assert report.size_bytes == sum(len(content) for name, content in files.items() if not name.endswith(".index"))
    with Log.open(tmp_path / "ours", mode="r") as log:
        assert all_of(log) == list(enumerate(VALUES, first))
        assert log.verify().ok


@every_format
def test_a_repeated_import_adds_nothing(tmp_path: Path, format: str) -> None:
    source = theirs(tmp_path / "theirs", format, 50)
    with Log.open(tmp_path / "ours") as log:
        assert interop.import_log(source, log).records == 50
        before = all_of(log)
        again = interop.import_log(source, log)
        assert (again.records, again.logs[0].start_offset) == (0, 50)
        assert all_of(log) == before


@every_format
def test_an_import_adds_new_records_of_the_source(tmp_path: Path, format: str) -> None:
    with Log.open(tmp_path / "ours") as log:
        interop.import_log(theirs(tmp_path / "theirs", format, 30), log)
        assert interop.import_log(theirs(tmp_path / "later", format, 45), log).records == 15
        assert all_of(log) == [(i, b"record %d" % i) for i in range(45)]


@every_format
@pytest.mark.parametrize("kept", [1, 39])
def test_an_import_continues_where_it_was_interrupted(tmp_path: Path, format: str, kept: int) -> None:
    source = theirs(tmp_path / "theirs", format, 40, first=3 if format != "plain" else 0, segment_bytes=300)
    with Log.open(tmp_path / "whole") as log:
        interop.import_log(source, log)
        whole = list(log)
    with Log.open(tmp_path / "ours") as log:
        interop.import_log(source, log)
        log.truncate(whole[kept].offset)
        report = interop.import_log(source, log)
        assert report.records == 40 - kept
        # Without the timestamp, which is the time of the import.
        assert [(r.offset, r.value, r.headers) for r in log] == [(r.offset, r.value, r.headers) for r in whole]


def test_a_log_with_other_records_is_not_continued(tmp_path: Path) -> None:
    source = lay(tmp_path / "theirs", dict(LAMINARMQ))
    cases: list[tuple[int, list[bytes]]] = [
        (42, [b"other"]),  # another value
        (42, [b"hello", b"", b"log", b"more"]),  # more than the source
        (0, [b"hello"]),  # begins before it
        (42, [b"hello", b"x"]),  # another second record
    ]
    for number, (first, values) in enumerate(cases):
        with Log.open(tmp_path / str(number), LogConfig(initial_offset=first)) as log:
            log.append_many(values)
            before = all_of(log)
            with pytest.raises(ImportMismatch):
                interop.import_log(source, log)
            assert all_of(log) == before


@pytest.mark.parametrize("trimmed", [1, 20, 29, 30, 31])
def test_a_trimmed_source_is_continued_if_it_still_overlaps_the_copy(tmp_path: Path, trimmed: int) -> None:
    with Log.open(tmp_path / "ours") as log:
        interop.import_log(theirs(tmp_path / "theirs", "gumlog", 30), log)
        later = theirs(tmp_path / "all", "gumlog", 45)
        with Log.open(tmp_path / "all-of-it") as whole:
            interop.import_log(later, whole)
            interop.export_log(whole, tmp_path / "later", format="gumlog", start=trimmed)
        if trimmed < 30:
            assert interop.import_log(tmp_path / "later", log).records == 15
            assert all_of(log) == [(i, b"record %d" % i) for i in range(45)]
        else:
            with pytest.raises(ImportMismatch):
                interop.import_log(tmp_path / "later", log)


def test_an_empty_log_that_starts_above_the_source_is_refused(tmp_path: Path) -> None:
    with (
        Log.open(tmp_path / "ours", LogConfig(initial_offset=43)) as log,
        pytest.raises(ImportMismatch, match="begins"),
    ):
        interop.import_log(lay(tmp_path / "theirs", dict(LAMINARMQ)), log)


@pytest.mark.parametrize("first", [1, 1000, 2**31 - 1, 2**31, 5_000_000_000])
def test_a_log_may_begin_anywhere(tmp_path: Path, first: int) -> None:
    source = theirs(tmp_path / "theirs", "laminarmq", 5, first=first)
    with Log.open(tmp_path / "ours") as log:
        interop.import_log(source, log)
        assert (log.lowest_offset, log.next_offset) == (first, first + 5)
    with Log.open(tmp_path / "ours") as log:
        assert all_of(log) == [(first + i, b"record %d" % i) for i in range(5)]
        assert log.verify().ok


def test_a_gap_survives_import_reopening_and_export(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = dict(RUSTLOG)
    second = b"\0\0\0\1" + (1000).to_bytes(8, "big") + b"z"
    files["00000000000000001000.log"] = second
    source = lay(tmp_path / "theirs", files)
    expected = [*enumerate(VALUES, 7), (1000, b"z")]
    with Log.open(tmp_path / "ours") as log:
        report = interop.import_log(source, log)
        assert [finding.kind for finding in report.findings] == [interop.Kind.MISSING_FILE, interop.Kind.GAP]
        with pytest.raises(RecordRemoved):
            log.read(500)
    with Log.open(tmp_path / "ours") as log:
        assert all_of(log) == expected
        assert log.verify().ok
        for format in ("laminarmq", "rustlog", "gumlog"):
            interop.export_log(log, tmp_path / format, format=format)
            with interop.open(tmp_path / format) as again:
                assert pairs(again) == expected
                assert {finding.outcome for finding in again.report} == {"missing"}


def test_an_import_that_ended_within_a_gap_continues(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = dict(RUSTLOG)
    files["00000000000000001000.log"] = b"\0\0\0\1" + (1000).to_bytes(8, "big") + b"z"
    source = lay(tmp_path / "theirs", files)
    with Log.open(tmp_path / "ours") as log:
        interop.import_log(source, log)
        log.truncate(1000)
        assert interop.import_log(source, log).records == 1
        assert all_of(log) == [*enumerate(VALUES, 7), (1000, b"z")]


def test_damage_stops_an_import_and_skip_continues_from_there(tmp_path: Path) -> None:
    index = bytearray(LAMINARMQ["42.index"])
    index[33] ^= 1
    source = lay(tmp_path / "theirs", {**LAMINARMQ, "42.index": bytes(index)})
    with Log.open(tmp_path / "ours") as log:
        with pytest.raises(ChecksumMismatch):
            interop.import_log(source, log)
        assert all_of(log) == [(42, b"hello")]
        with pytest.raises(ChecksumMismatch):
            interop.import_log(source, log)
        report = interop.import_log(source, log, damage="skip")
        assert all_of(log) == [(42, b"hello"), (44, b"log")]
        assert [finding.offset for finding in report.logs[0].report.lost] == [43]


def test_records_before_damage_are_stored_even_in_small_segments(tmp_path: Path) -> None:
    source = theirs(tmp_path / "theirs", "gumlog", 100, segment_bytes=100)
    last = max(source.glob("*.store"), key=lambda path: int(path.stem))
    last.write_bytes(b"\xff" + last.read_bytes()[1:])
    with Log.open(tmp_path / "ours") as log:
        with pytest.raises(UnreadableRecord) as raised:
            interop.import_log(source, log)
        assert raised.value.offset == int(last.stem)
        assert all_of(log) == [(i, b"record %d" % i) for i in range(int(last.stem))]


def test_records_get_the_time_of_the_import_or_the_given_one(tmp_path: Path) -> None:
    source = lay(tmp_path / "theirs", dict(GUMLOG))
    before = time.time_ns() // 1_000_000
    with Log.open(tmp_path / "now") as log, Log.open(tmp_path / "then") as other:
        interop.import_log(source, log)
        assert all(before <= record.timestamp <= time.time_ns() // 1_000_000 + 1 for record in log)
        interop.import_log(source, other, timestamp=1_600_000_000_000)
        assert {record.timestamp for record in other} == {1_600_000_000_000}


def test_progress_increases_to_the_total(tmp_path: Path) -> None:
    with Log.in_memory() as big:
        big.append_many([b"x" * 100_000] * 120)
        interop.export_log(big, tmp_path / "theirs", format="gumlog", segment_bytes=5_000_000)
        seen: list[tuple[int, int]] = []
        interop.export_log(
            big, tmp_path / "out", format="rustlog", progress=lambda done, total: seen.append((done, total))
        )
        assert seen[-1] == (big.size_bytes, big.size_bytes)
    said: list[tuple[int, int]] = []
    with Log.open(tmp_path / "ours", LogConfig(durability="os")) as log:
        report = interop.import_log(tmp_path / "theirs", log, progress=lambda done, total: said.append((done, total)))
    assert {total for _, total in said} == {report.size_bytes}
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert said[-1][0] == report.size_bytes
    assert len({done for done, _ in said}) > 2


# --- into a store


def test_a_directory_of_topics_becomes_a_store_of_topics(tmp_path: Path) -> None:
    for place in ("orders/partition-0", "orders/partition-2", "stock/partition-0"):
        lay(tmp_path / "data/topics" / place, dict(RUSTLOG))
    with sawlog.open(tmp_path / "store") as store:
        report = interop.import_log(tmp_path / "data", store)
        assert report.records == 9
        assert store.topics() == ["orders", "stock"]
        orders = store.topic("orders")
        assert orders.partitions == 3
        assert [len(orders.partition(number)) for number in range(3)] == [3, 0, 3]
        assert all_of(orders.partition(2)) == list(enumerate(VALUES, 7))
        assert [(done.location.topic, done.location.partition) for done in report.logs] == [
            ("orders", 0), ("orders", 2), ("stock", 0),
        ]  # fmt: skip
        assert interop.import_log(tmp_path / "data", store).records == 0


def test_a_log_without_a_name_becomes_the_given_topic_or_its_directory(tmp_path: Path) -> None:
    source = lay(tmp_path / "clicks", dict(PLAIN))
    with sawlog.open(tmp_path / "store") as store:
        interop.import_log(source, store)
        interop.import_log(source, store, topic="other", settings={"retention_ms": 5_000_000_000_000})
        assert store.topics() == ["clicks", "other"]
        assert store.topic("other").settings == {"retention.ms": 5_000_000_000_000}
        assert len(store.topic("clicks").partition(0)) == 3


def test_a_topic_name_requires_a_single_topic(tmp_path: Path) -> None:
    for place in ("a", "b"):
        lay(tmp_path / "data" / place, dict(GUMLOG))
    with sawlog.open(tmp_path / "store") as store, pytest.raises(InvalidConfig, match="several"):
        interop.import_log(tmp_path / "data", store, topic="both")


def test_a_topic_with_too_few_partitions_is_refused(tmp_path: Path) -> None:
    lay(tmp_path / "data/topics/orders/partition-1", dict(RUSTLOG))
    with sawlog.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=1)
        with pytest.raises(ImportMismatch, match="partitions"):
            interop.import_log(tmp_path / "data", store)


def test_several_logs_cannot_be_imported_into_one(tmp_path: Path) -> None:
    for place in ("a", "b"):
        lay(tmp_path / "data" / place, dict(GUMLOG))
    with Log.open(tmp_path / "ours") as log, pytest.raises(InvalidConfig, match="2 logs"):
        interop.import_log(tmp_path / "data", log)
    with pytest.raises(UnknownFormat, match="2 logs"):
        interop.open(tmp_path / "data")


def test_a_topic_is_exported_in_the_layout_of_the_other_system(tmp_path: Path) -> None:
    with sawlog.open(tmp_path / "store") as store:
        orders = store.create_topic("orders", partitions=2)
        orders.partition(0).append_many([b"a", b"b"])
        orders.partition(1).append_many([b"c"])
        reports = interop.export_topic(orders, tmp_path / "data", format="rustlog")
        assert [report.records for report in reports] == [2, 1]
        found = interop.detect(tmp_path / "data")
        assert found is not None
        assert (found.kind, [(place.topic, place.partition) for place in found.logs]) == (
            "data", [("orders", 0), ("orders", 1)],
        )  # fmt: skip
        interop.import_log(tmp_path / "data", store, topic="copy")
        assert [all_of(store.topic("copy").partition(n)) for n in (0, 1)] == [
            all_of(orders.partition(n)) for n in (0, 1)
        ]


# --- kill -9


def killed_at(source: Path, target: Path, nth: int) -> None:
    """Import in a process that kills itself in the middle of its nth write to the copy."""
    process = start("importing", source, target, nth)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == ("ready\n", -signal.SIGKILL), errors


def killed_again_and_again(place: Path, format: str, moments: list[int]) -> None:
    """Kill an import at each of these writes in turn, and check that the next one continues correctly."""
    values = [b"%05d" % i * 20 for i in range(5000)]
    with Log.in_memory() as log:
        log.append_many(values)
        interop.export_log(log, place / "theirs", format=format, segment_bytes=200_000)
    reached = 0
    for nth in moments:
        killed_at(place / "theirs", place / "ours", nth)
        with Log.open(place / "ours") as log:
            assert reached < log.next_offset or nth == 1
            reached = log.next_offset
            assert [record.value for record in log] == values[:reached]
    assert 0 < reached < len(values)
    with Log.open(place / "ours") as log:
        report = interop.import_log(place / "theirs", log)
        assert report.records == len(values) - reached
        assert [record.value for record in log] == values
        assert log.verify().ok


def test_a_killed_import_continues_without_loss_or_duplicates(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, "laminarmq", [4])


@pytest.mark.slow  # starts eight processes per format
@every_format
def test_a_repeatedly_killed_import_continues_without_loss_or_duplicates(tmp_path: Path, format: str) -> None:
    killed_again_and_again(tmp_path, format, [1, 2, 3, 2, 5, 4, 2])


# --- memory

MEASURED = """
import resource, sys
from sawlog import Log, LogConfig, interop
with Log.open(sys.argv[2], LogConfig(durability="os")) as log:
    interop.import_log(sys.argv[1], log)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow  # writes and imports a million records per format
@every_format
def test_memory_does_not_depend_on_the_size_of_the_log(tmp_path: Path, format: str) -> None:
    """Ten times the data, in one segment, needs at most a few megabytes more."""
    needed = []
    for number, count in enumerate((100_000, 1_000_000)):
        with Log.open(tmp_path / f"ours-{number}", LogConfig(durability="os")) as log:
            for start_ in range(0, count, 10_000):
                log.append_many([b"%08d" % i * 15 for i in range(start_, start_ + 10_000)])
            interop.export_log(log, tmp_path / f"theirs-{number}", format=format)
        command = [sys.executable, "-c", MEASURED, tmp_path / f"theirs-{number}", tmp_path / f"copy-{number}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        needed.append(int(done.stdout))
    assert needed[1] - needed[0] < 30, f"{needed} MiB"
