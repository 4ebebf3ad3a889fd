"""Kafka's log directories: read, checked, imported unchanged. test_kafka_tools.py runs Kafka's own tools."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Log, interop
from sawlog.batch.compression import compress
from sawlog.batch.header import scan
from sawlog.errors import (
    ChecksumMismatch,
    ForeignDamage,
    ImportMismatch,
    LogClosed,
    OffsetOutOfRange,
    RecordRemoved,
    SawlogError,
    SourceInUse,
    TopicNotFound,
    UnknownFormat,
)
from sawlog.interop import Kind
from sawlog.store.directory.store import DirectoryStore

from ..batch import wire
from ..log.places import quick
from ..log.sampling import some_of, some_or_all
from ..looping import for_each
from .kafkas import HIGH, RECOVERY, START, T, batch, broker_on, lay, marker, named, offsets, partition, seen, stopped


@pytest.fixture(autouse=True)
def fsync_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick(monkeypatch):
        yield


# --- bytes written by hand


DRAWN = """
00 00 00 00 00 00 00 05     # base offset 5
00 00 00 4a                 # 74 bytes follow
00 00 00 03                 # leader epoch 3
02                          # magic
03 42 53 14                 # CRC-32C of the following bytes
00 00                       # attributes: plain, producer's time
00 00 00 01                 # last offset delta 1
00 00 01 8b cf e5 68 00     # base timestamp 1,700,000,000,000
00 00 01 8b cf e5 68 01     # max timestamp, a millisecond later
ff ff ff ff ff ff ff ff     # no producer
ff ff
ff ff ff ff
00 00 00 02                 # two records
1c                          # 14 bytes: attributes, times and offsets +0, key "k", value "one", header h=x
  00 00 00 02 6b 06 6f 6e 65 02 02 68 02 78
12                          # 9 bytes: +1 ms, +1, key null, value "two", no header
  00 02 02 01 06 74 77 6f 00
00 00 00 00 00 00 00 09     # base offset 9: 7 and 8 were compacted away
00 00 00 39                 # 57 bytes follow
00 00 00 04                 # leader epoch 4
02
4a 21 8f 86
00 00
00 00 00 00
00 00 01 8b cf e5 68 05
00 00 01 8b cf e5 68 05
ff ff ff ff ff ff ff ff
ff ff
ff ff ff ff
00 00 00 01
0e                          # 7 bytes: key "k", value null
  00 00 00 02 6b 01 00
"""
RAW = wire.hex_bytes(DRAWN)
FIRST, SECOND = RAW[:86], RAW[86:]
RECORDS = [
    (5, b"k", b"one", (("h", b"x"),), T),
    (6, None, b"two", (), T + 1),
    (9, b"k", None, (), T + 5),
]


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """The partition of the drawing."""
    return partition(tmp_path / "kafka", {5: RAW})


def test_the_drawn_bytes_are_read(drawn: Path) -> None:
    with interop.open(drawn) as log:
        assert (log.format, log.lowest_offset, log.next_offset, log.size_bytes) == ("kafka", 5, 10, len(RAW))
        assert seen(log.scan()) == RECORDS
        assert log.read(6).value == b"two"


def test_the_drawn_bytes_are_imported_unchanged(drawn: Path, tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        report = interop.import_log(drawn, log)
        assert (report.records, log.lowest_offset, log.next_offset) == (3, 5, 10)
        assert seen(log) == RECORDS
        assert log.verify()
    stored = (tmp_path / "log" / named(5)).read_bytes()
    gap = stored[len(FIRST) : len(FIRST) + 61]
    assert stored == FIRST + gap + SECOND
    found = scan(gap)[0]
    assert (found.base_offset, found.last_offset, found.count, found.leader_epoch) == (7, 8, 0, 3)


def test_a_removed_record_differs_from_an_offset_out_of_range(drawn: Path) -> None:
    with interop.open(drawn) as log:
        with pytest.raises(RecordRemoved) as removed:
            log.read(7)
        assert removed.value.following == 9
        for offset in (4, 10):
            with pytest.raises(OffsetOutOfRange):
                log.read(offset)
    with pytest.raises(LogClosed):
        log.read(5)


def test_gaps_are_counted_in_the_report(drawn: Path) -> None:
    with interop.open(drawn) as log:
        [gap] = log.report
    assert (gap.kind, gap.offset, gap.outcome) == (Kind.GAP, 7, "repaired")
    assert "2 offsets in 1 places" in gap.detail


@for_each(("start", "end"), product([5, 6, 7, 9, 10], [None, 6, 9, 50]))
def test_any_range_can_be_scanned(drawn: Path, start: int, end: int | None) -> None:
    with interop.open(drawn) as log:
        wanted = [record for record in RECORDS if start <= record[0] < (end or 99)]
        assert seen(log.scan(start, end)) == wanted
        tables = list(log.scan_arrow(start, end, columns=("offset", "value")))
    assert [row for table in tables for row in table.column(0).to_pylist()] == [record[0] for record in wanted]


# --- detection


def test_a_brokers_directory_is_recognised(tmp_path: Path) -> None:
    for name in ("b-1", "b-0", "a-10", "a-2", "dashed-name-0", "__consumer_offsets-3", "__cluster_metadata-0"):
        partition(tmp_path, {0: FIRST}, name)
    stray = "0123456789abcdef0123456789abcdef"
    for state in ("delete", "future", "stray"):
        partition(tmp_path, {0: FIRST}, f"gone-0.{stray}-{state}")
    partition(tmp_path, {0: FIRST}, "odd.tmp-0")
    partition(tmp_path, {0: FIRST}, "B-0")
    lay(tmp_path, {"meta.properties": b"version=1\n", "nothing-0/readme": b"", "notes/x": b""})
    found = interop.detect(tmp_path)
    assert found is not None
    assert (found.format, found.kind, found.certain) == ("kafka", "data", True)
    assert [(place.topic, place.partition) for place in found.logs] == [
        ("B", 0),
        ("a", 2),
        ("a", 10),
        ("dashed-name", 0),
    ]
    ignored = dict(each.split(": ", 1) for each in found.ignored)
    assert "only in case" in ignored["b-0"]
    assert "internal topic" in ignored["__consumer_offsets-3"]
    assert "internal topic" in ignored["__cluster_metadata-0"]
    assert "not a valid topic name in sawlog" in ignored["odd.tmp-0"]
    assert "deleting" in ignored[f"gone-0.{stray}-delete"]
    assert "moving" in ignored[f"gone-0.{stray}-future"]
    assert "no such partition" in ignored[f"gone-0.{stray}-stray"]


def test_a_partition_is_recognised_by_its_files_or_its_first_batch(tmp_path: Path) -> None:
    marked = partition(tmp_path / "a", {0: b""})
    bare = lay(tmp_path / "b" / "x-3", {named(5): FIRST})
    broken = lay(tmp_path / "c" / "x", {named(5): FIRST[:-1] + b"?"})
    empty = lay(tmp_path / "d" / "x", {named(5): b""})
    seen_as = [interop.detect(path, format="kafka") for path in (marked, bare, broken, empty)]
    assert [each is not None and each.certain for each in seen_as] == [True, True, False, False]
    assert seen_as[1] is not None
    assert (seen_as[1].kind, seen_as[1].logs[0].topic, seen_as[1].logs[0].partition) == ("partition", "x", 3)


def test_directories_of_other_systems_are_not_mistaken_for_kafka(tmp_path: Path) -> None:
    Log.open(tmp_path / "ours").close()
    lay(tmp_path / "text", {named(0): b"hello, this is no batch at all, however long it goes on and on and on"})
    lay(tmp_path / "nothing", {"readme": b""})
    for name in ("ours", "text", "nothing"):
        assert interop.detect(tmp_path / name, format="kafka") is None


def test_open_requires_one_of_several_logs(tmp_path: Path) -> None:
    partition(tmp_path, {0: FIRST}, "a-0")
    partition(tmp_path, {0: FIRST}, "a-1")
    with pytest.raises(UnknownFormat, match="2 logs of kafka"):
        interop.open(tmp_path)


def test_a_directory_without_segments_is_refused(tmp_path: Path) -> None:
    lay(tmp_path / "a-0", {"partition.metadata": b""})
    with pytest.raises(UnknownFormat, match="no Kafka segment"):
        interop.open(tmp_path / "a-0", format="kafka")


# --- importing


def many(count: int, start: int = 0, size: int = 20, step: int = 1) -> bytes:
    """Batches of one record each."""
    return b"".join(batch(start + step * n, b"%d" % (start + step * n) + b"." * size) for n in range(count))


def imported(source: Path, target: Path, **options: Any) -> tuple[interop.ImportReport, DirectoryStore]:
    store = DirectoryStore.open(target)
    return interop.import_log(source, store, **options), store


def test_topics_and_partitions_keep_their_names_and_offsets(tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    partition(source, {0: many(3)}, "a-0")
    partition(source, {100: many(3, 100)}, "a-2")
    partition(source, {7: b""}, "b-0")
    report, store = imported(source, tmp_path / "data")
    with store:
        assert store.topics() == ["a", "b"]
        assert (store["a"].partitions, store["b"].partitions) == (3, 1)
        ends = [(log.lowest_offset, log.next_offset) for log in map(store["a"].partition, range(3))]
        assert ends == [(0, 3), (0, 0), (100, 103)]
        assert (store["b"].partition(0).lowest_offset, store["b"].partition(0).next_offset) == (7, 7)
        assert store["b"].append(b"x") == (0, 7)
    assert (report.format, report.records, len(report.logs)) == ("kafka", 6, 3)


def test_one_topic_of_several_can_be_imported(tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    partition(source, {0: many(3)}, "a-0")
    partition(source, {0: many(4)}, "b-0")
    report, store = imported(source, tmp_path / "data", only="b")
    with store:
        assert store.topics() == ["b"]
        assert report.records == 4
        with pytest.raises(TopicNotFound, match="its topics are a, b"):
            interop.import_log(source, store, only="c")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_every_compression_are_copied_byte_for_byte(tmp_path: Path, codec: str) -> None:
    number = ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    body = b"".join(wire.record((n, n, b"key", b"value " * 20, ())) for n in range(10))
    packed = compress(number, memoryview(body), None) if number else body
    assert packed is not None
    head = wire.Header(base_offset=4, attributes=number, last_delta=9, count=10, leader_epoch=8)
    raw = wire.around(bytes(packed), head)
    source = partition(tmp_path / "kafka", {4: raw})
    report, store = imported(source, tmp_path / "data")
    with store:
        assert report.records == 10
        assert store["orders"].partition(0).fetch(4).raw == raw
        assert [record.value for record in store["orders"].scan()] == [b"value " * 20] * 10


FLAGS = {"attributes": wire.TRANSACTIONAL, "producer_id": 9, "producer_epoch": 0}


def test_transactions_and_their_markers_are_kept(tmp_path: Path) -> None:
    raw = batch(0, b"a", base_sequence=0, **FLAGS) + marker(1, 9, commit=False)
    raw += batch(2, b"b", base_sequence=1, **FLAGS) + marker(3, 9, commit=True)
    report, store = imported(partition(tmp_path / "kafka", {0: raw}), tmp_path / "data")
    assert report.records == 2
    with store:
        log = store["orders"].partition(0)
        assert log.fetch(0).raw == raw
        assert log.fetch(0).aborted == ((9, 0),)
        assert [each.is_control for each in scan(raw)] == [False, True, False, True]
        assert [record.value for record in log] == [b"b"]
        assert [record.value for record in log.scan(isolation="uncommitted")] == [b"a", b"b"]


def test_aborted_records_and_markers_are_not_read(tmp_path: Path) -> None:
    raw = batch(0, b"a", **FLAGS) + batch(1, b"b") + marker(2, 9, commit=False) + batch(3, b"c", **FLAGS)
    raw2 = marker(4, 9, commit=True) + batch(5, b"d") + batch(6, b"e", **FLAGS)
    source = partition(tmp_path / "kafka", {0: raw, 4: raw2})
    with interop.open(source) as log:
        assert [(record.offset, record.value) for record in log] == [(1, b"b"), (3, b"c"), (5, b"d")]
        assert [each.kind for each in log.report] == [Kind.OPEN_TRANSACTION]
    report, store = imported(source, tmp_path / "data")
    assert [(each.kind, each.offset) for each in report.findings] == [(Kind.OPEN_TRANSACTION, 6)]
    with store:
        log = store["orders"].partition(0)
        assert [(record.offset, record.value) for record in log] == [(1, b"b"), (3, b"c"), (5, b"d")]
        assert log.last_stable_offset == 6
        again = interop.import_log(source, store)
        assert again.records == 0
        log.append_marker(9, 0, commit=True)
        assert [record.offset for record in log] == [1, 3, 5, 6]


def test_leader_epochs_are_kept(tmp_path: Path) -> None:
    raw = batch(0, b"a", epoch=2) + batch(1, b"b", epoch=5) + batch(2, b"c", epoch=5)
    _, store = imported(partition(tmp_path / "kafka", {0: raw}), tmp_path / "data")
    with store:
        assert [each.leader_epoch for each in scan(store["orders"].partition(0).fetch(0).raw)] == [2, 5, 5]


@pytest.mark.parametrize("clean", [True, False])
def test_gaps_within_between_and_after_segments_keep_their_offsets(tmp_path: Path, clean: bool) -> None:
    segments = {
        10: batch(12, b"a", b"b") + batch(20, b"c"),
        30: batch(30, b"d"),
        40: batch(45, b"e"),
        60: b"",
    }
    source = partition(tmp_path / "kafka", segments)
    if clean:
        stopped(tmp_path / "kafka", orders_0=60)
    report, store = imported(source, tmp_path / "data")
    with store:
        log = store["orders"].partition(0)
        assert (log.lowest_offset, log.next_offset) == (10, 60)
        assert [record.offset for record in log] == [12, 13, 20, 30, 45]
        assert log.verify()
        assert log.append(b"next") == 60
    with interop.open(source) as foreign:
        assert [record.offset for record in foreign.scan()] == [12, 13, 20, 30, 45]
    [gap] = report.findings
    assert (gap.kind, gap.offset) == (Kind.GAP, 10)
    assert "45 offsets in 5 places" in gap.detail


def test_records_below_a_log_start_within_a_batch_are_invisible(tmp_path: Path) -> None:
    raw = batch(100, b"a", b"b", b"c") + batch(103, b"d")
    source = partition(tmp_path / "kafka", {90: batch(90, b"old") + raw})
    lay(tmp_path / "kafka", {START: offsets(orders_0=102)})
    with interop.open(source) as foreign:
        assert [record.value for record in foreign.scan()] == [b"c", b"d"]
        with pytest.raises(OffsetOutOfRange):
            foreign.read(101)
    report, store = imported(source, tmp_path / "data")
    with store:
        log = store["orders"].partition(0)
        assert (log.lowest_offset, log.next_offset, report.records) == (102, 104, 2)
        assert [record.value for record in log] == [b"c", b"d"]
    with DirectoryStore.open(tmp_path / "data") as store:
        assert [record.value for record in store["orders"].scan()] == [b"c", b"d"]
        assert interop.import_log(source, store).records == 0


def test_a_topic_can_be_given_another_name(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(2)}, "odd.tmp-0")
    _, store = imported(source, tmp_path / "data", topic="fine", settings={"segment_bytes": 12345})
    with store:
        assert store.topics() == ["fine"]
        assert store["fine"].settings == {"segment.bytes": 12345}


# --- interruption and repetition


def test_an_interrupted_import_continues(tmp_path: Path) -> None:
    halves = many(200, size=20_000), many(200, 200, size=20_000)
    raw = b"".join(halves)
    source = partition(tmp_path / "kafka", {0: halves[0], 200: halves[1]})

    def interrupt(done: int, total: int) -> None:
        assert total >= len(raw)
        if done > total // 2:
            raise KeyboardInterrupt

    with DirectoryStore.open(tmp_path / "data") as store:
        with pytest.raises(KeyboardInterrupt):
            interop.import_log(source, store, progress=interrupt)
        there = store["orders"].partition(0).next_offset
        assert 200 <= there < 400
        report = interop.import_log(source, store)
        assert (report.logs[0].start_offset, report.records) == (there, 400 - there)
        log = store["orders"].partition(0)
        assert b"".join(bytes(buffer) for buffer in log.fetch(0, 1 << 30).buffers) == raw


_KILLED = """
import os, signal, sys
import sawlog
from sawlog import interop

def die(done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

interop.import_log(sys.argv[1], sawlog.open(sys.argv[2]), progress=die)
"""


@pytest.mark.slow  # starts a process; quick: test_an_interrupted_import_continues, and the kill in test_import.py
def test_an_import_continues_after_its_process_was_killed(tmp_path: Path) -> None:
    raw = many(400, size=20_000)
    source = partition(tmp_path / "kafka", {0: raw})
    environment = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    killed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _KILLED, str(source), str(tmp_path / "data")],
        env=environment,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with DirectoryStore.open(tmp_path / "data") as store:
        log = store["orders"].partition(0)
        report = interop.import_log(source, store)
        assert 0 < report.records <= 400
        assert log.recovery
        copied = b"".join(bytes(buffer) for buffer in log.fetch(0, 1 << 30).buffers)
        assert [each.leader_epoch for each in scan(copied)] == sorted(each.leader_epoch for each in scan(copied))
        assert _in_epoch_0(copied) == raw, "except for the leader epoch, which is new after the kill"


def _in_epoch_0(raw: bytes) -> bytes:
    """Return the batches with leader epoch 0. The checksum does not cover the epoch."""
    made = bytearray(raw)
    for each in scan(raw):
        made[each.position + 12 : each.position + 16] = bytes(4)
    return bytes(made)


def test_records_that_the_broker_has_written_since_are_added(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5)})
    report, store = imported(source, tmp_path / "data")
    with store:
        assert interop.import_log(source, store).records == 0
        (source / named(0)).write_bytes(many(8))
        lay(source, {named(8): many(2, 8)})
        report = interop.import_log(source, store)
        assert (report.records, report.logs[0].start_offset) == (5, 5)
        assert [record.offset for record in store["orders"].scan()] == list(range(10))


def test_another_log_is_not_continued(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5)})
    other = partition(tmp_path / "other", {0: many(4) + batch(4, b"4" + b"." * 20, key=b"k") + many(3, 5)})
    _, store = imported(source, tmp_path / "data")
    with store:
        with pytest.raises(ImportMismatch, match="not a copy of it"):
            interop.import_log(other, store)
        store["orders"].append(b"ours")
        with pytest.raises(ImportMismatch):
            interop.import_log(partition(tmp_path / "more", {0: many(9)}), store)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    raw = many(32, size=1 << 20)
    source = partition(tmp_path / "kafka", {0: raw})
    del raw
    with DirectoryStore.open(tmp_path / "data") as store:
        store.create_topic("orders", durability="os")
        tracemalloc.start()
        try:
            interop.import_log(source, store)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 16 << 20


# --- running brokers


def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(3)})
    with broker_on(tmp_path / "kafka") as lock, DirectoryStore.open(tmp_path / "data") as store:
        assert lock == "held"
        with pytest.raises(SourceInUse, match="stop it"):
            interop.open(source)
        with pytest.raises(SourceInUse):
            interop.import_log(tmp_path / "kafka", store)
    with interop.open(source) as log:
        assert len(log) == 3


def test_a_broker_does_not_start_while_its_log_is_open(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(3)})
    (tmp_path / "kafka" / ".lock").touch()
    log = interop.open(source)
    with broker_on(tmp_path / "kafka") as lock:
        assert lock == "refused"
    log.close()
    with broker_on(tmp_path / "kafka") as lock:
        assert lock == "held"


def test_the_source_is_never_modified(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(3), 3: many(3, 3)[:-5]})
    lay(source, {named(0, ".index"): bytes(64), named(3, ".index"): b"torn"})
    (tmp_path / "kafka" / ".lock").touch()
    before = {path: path.read_bytes() for path in (tmp_path / "kafka").rglob("*") if path.is_file()}
    _, store = imported(tmp_path / "kafka", tmp_path / "data")
    store.close()
    assert before == {path: path.read_bytes() for path in (tmp_path / "kafka").rglob("*") if path.is_file()}


# --- torn tails and damage


@pytest.mark.parametrize("cut", [8, 40, 60, 61, 70])
def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, cut: int) -> None:
    raw = many(5)
    source = partition(tmp_path / "kafka", {0: raw + batch(5, b"x" * 50)[:cut]})
    report, store = imported(source, tmp_path / "data")
    with store:
        assert store["orders"].partition(0).next_offset == 5
    [torn] = report.findings
    assert (torn.kind, torn.outcome, torn.position, torn.size_bytes) == (Kind.TORN_TAIL, "cut", len(raw), cut)


def test_zeros_at_the_end_are_space_that_was_never_written(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5) + bytes(5000)})
    stopped(tmp_path / "kafka", orders_0=5)
    with interop.open(source) as log:
        assert log.next_offset == 5
        assert [(each.kind, each.outcome) for each in log.report] == [(Kind.ZERO_TAIL, "cut")]


@pytest.mark.parametrize("why", ["stopped in order", "flushed"])
def test_an_incomplete_tail_of_flushed_data_is_damage(tmp_path: Path, why: str) -> None:
    source = partition(tmp_path / "kafka", {0: many(5) + batch(5, b"x" * 50)[:70]})
    if why == "flushed":
        lay(tmp_path / "kafka", {RECOVERY: offsets(orders_0=6)})
    else:
        stopped(tmp_path / "kafka", orders_0=6)
    with interop.open(source) as log, pytest.raises(ForeignDamage):
        list(log.scan())
    with interop.open(source, damage="skip") as log:
        assert len(list(log.scan())) == 5
        assert log.report.lost


def test_a_file_shorter_than_the_recovery_point_is_damage(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5)})
    stopped(tmp_path / "kafka", orders_0=8)
    with DirectoryStore.open(tmp_path / "data") as store:
        with pytest.raises(ForeignDamage, match="end at offset 5, but had been flushed up to 8"):
            interop.import_log(source, store)
        assert store["orders"].partition(0).next_offset == 5
        assert interop.import_log(source, store, damage="skip").findings[0].outcome == "lost"


def test_damage_in_the_middle_stops_the_import_and_earlier_records_are_stored(tmp_path: Path) -> None:
    raw = bytearray(many(9))
    where = len(raw) // 9 * 4
    raw[where + 80] ^= 1
    source = partition(tmp_path / "kafka", {0: bytes(raw), 9: many(3, 9)})
    with DirectoryStore.open(tmp_path / "data") as store:
        with pytest.raises(ChecksumMismatch) as stopped_at:
            interop.import_log(source, store)
        assert (stopped_at.value.path, stopped_at.value.position) == (str(source / named(0)), where)
        log = store["orders"].partition(0)
        assert [record.offset for record in log] == [0, 1, 2, 3]
        report = interop.import_log(source, store, damage="skip")
        assert [record.offset for record in log] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
        assert [each.kind for each in report.findings if each.outcome == "lost"] == [Kind.CHECKSUM]


def test_damage_followed_by_batches_is_not_a_torn_tail(tmp_path: Path) -> None:
    raw = bytearray(many(9))
    raw[len(raw) // 9 * 4 + 80] ^= 1
    source = partition(tmp_path / "kafka", {0: bytes(raw)})
    with interop.open(source) as log:
        assert log.next_offset == 9
        with pytest.raises(ChecksumMismatch):
            list(log.scan())
        assert [record.offset for record in log.scan(6)] == [6, 7, 8]


def test_a_batch_that_overlaps_the_next_segment_is_damage(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(3) + batch(7, b"a", b"b"), 8: many(2, 8)})
    with interop.open(source, damage="skip") as log, pytest.raises(ForeignDamage, match="the next segment begins at 8"):
        list(log.scan())


def test_strict_raises_every_finding(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(3) + b"torn"})
    with pytest.raises(ForeignDamage):
        interop.open(source, strict=True)


def test_records_above_the_high_watermark_are_imported_and_reported(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5)})
    lay(tmp_path / "kafka", {HIGH: offsets(orders_0=3)})
    report, store = imported(source, tmp_path / "data")
    with store:
        assert report.records == 5
    assert [(each.kind, each.offset, each.outcome) for each in report.findings] == [(Kind.UNREPLICATED, 3, "repaired")]


@pytest.mark.parametrize("text", [b"", b"0\n", b"1\n0\n", b"0\n2\norders 0 7\n", b"0\n1\norders zero 7\n", b"\xff\xfe"])
def test_damaged_checkpoints_are_ignored(tmp_path: Path, text: bytes) -> None:
    source = partition(tmp_path / "kafka", {0: many(5)})
    lay(tmp_path / "kafka", {START: text})
    with interop.open(source) as log:
        assert (log.lowest_offset, log.next_offset) == (0, 5)
        assert bool(log.report.findings) == bool(text)


def test_unrelated_files_are_ignored_and_reported(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(2)})
    lay(source, {"notes.txt": b"", named(0, ".snapshot"): b"", named(0, ".txnindex"): b""})
    with interop.open(source) as log:
        assert [(each.kind, each.file) for each in log.report] == [(Kind.UNKNOWN_FILE, "notes.txt")]


# --- files in transition


def test_deleted_files_are_ignored(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {5: many(2, 5)})
    lay(source, {named(0) + ".deleted": many(5), named(0, ".index.deleted"): b""})
    with interop.open(source) as log:
        assert [record.offset for record in log.scan()] == [5, 6]


def test_a_finished_compaction_replaces_the_segments_it_covers(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5), 5: many(5, 5), 10: many(2, 10)})
    lay(source, {named(0) + ".swap": batch(3, b"kept") + batch(9, b"kept")})
    with interop.open(source) as log:
        assert [(record.offset, record.value) for record in log.scan(0, 10)] == [(3, b"kept"), (9, b"kept")]
        assert log.next_offset == 12


def test_an_unfinished_compaction_is_ignored(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(5), 5: many(5, 5)})
    lay(source, {named(0) + ".cleaned": b"half", named(5) + ".swap": batch(9, b"kept")})
    with interop.open(source) as log:
        assert [record.offset for record in log.scan()] == list(range(10))


# --- indexes


@pytest.mark.parametrize("index", ["none", "padded", "zeros", "garbage", "wrong"])
def test_an_index_is_used_only_if_the_batches_confirm_it(tmp_path: Path, index: str) -> None:
    source = partition(tmp_path / "kafka", {0: many(200, size=200), 200: many(5, 200)})
    sized = len(many(1, size=200))
    right = b"".join(struct.pack(">ii", n, n * sized) for n in range(20, 200, 20))
    bytes_of = {"padded": right + bytes(800), "zeros": bytes(80), "garbage": b"x" * 83, "wrong": right[:4] * 2}
    if index in bytes_of:
        lay(source, {named(0, ".index"): bytes_of[index], named(0, ".timeindex"): bytes(24)})
    with interop.open(source) as log:
        for offset in (0, 19, 20, 21, 120, 199, 200, 204):
            assert log.read(offset).offset == offset


@pytest.mark.parametrize("index", ["none", "right", "padded", "torn", "ahead", "wrong", "garbage", "empty"])
def test_the_end_of_the_last_segment_does_not_depend_on_its_index(tmp_path: Path, index: str) -> None:
    raw = b"".join(batch(n, b"%03d" % n * 50) for n in range(100))
    size = len(raw) // 100
    right = b"".join(struct.pack(">ii", n, n * size) for n in range(20, 100, 20))
    bytes_of = {
        "right": right,
        "padded": right + bytes(800),
        "torn": right[:-3],
        "ahead": right + struct.pack(">ii", 120, 120 * size),
        "wrong": struct.pack(">ii", 7, 5),
        "garbage": b"x" * 83,
        "empty": b"",
    }
    source = partition(tmp_path / "kafka", {0: raw + raw[: size // 2]})
    if index in bytes_of:
        lay(source, {named(0, ".index"): bytes_of[index]})
    with interop.open(source) as log:
        assert log.next_offset == 100
        [torn] = log.report
        assert (torn.kind, torn.position) == (Kind.TORN_TAIL, len(raw))
        assert len(list(log.scan())) == 100


# --- old formats


def old_message(offset: int, magic: int, value: bytes) -> bytes:
    """Return a message in a format from before Kafka 0.11."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", T) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    whole = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(whole)) + whole


def test_the_fixture_of_the_old_format_matches_its_description() -> None:
    assert old_message(1, 1, b"v").hex(" ") == (
        "00 00 00 00 00 00 00 01 "  # offset
        "00 00 00 17 "  # size
        "c1 67 2a c5 "  # CRC-32
        "01 00 "  # magic, attributes
        "00 00 01 8b cf e5 68 00 "  # timestamp
        "ff ff ff ff "  # no key
        "00 00 00 01 76"  # value
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_older_than_v2_are_refused(tmp_path: Path, magic: int) -> None:
    raw = b"".join(old_message(n, magic, b"v" * 20) for n in range(5))
    source = lay(tmp_path / "old-0", {named(0): raw})
    found = interop.detect(source)
    assert found is not None
    assert (found.format, found.certain) == ("kafka", True)
    with pytest.raises(UnknownFormat, match=f"format v{magic}, from before Kafka 0.11"):
        interop.open(source)


def test_old_messages_after_new_batches_are_refused(tmp_path: Path) -> None:
    source = partition(tmp_path / "kafka", {0: many(2) + old_message(2, 1, b"v"), 3: many(2, 3)})
    with DirectoryStore.open(tmp_path / "data") as store, pytest.raises(UnknownFormat, match="byte"):
        interop.import_log(source, store)


# --- arbitrary bytes


def tried(source: Path) -> list[tuple[int, bytes | None]] | None:
    """Return the readable records, with `skip` if needed; None if the log is refused. Any other error is a failure."""
    for damage in ("stop", "skip"):
        try:
            with interop.open(source, format="kafka", damage=damage) as log:  # type: ignore[arg-type]
                found = [(record.offset, record.value) for record in log.scan()]
                _ = log.report
                return found
        except SawlogError:
            continue
    return None


SMALL = batch(0, b"a", b"b") + batch(2, b"c")
SMALL_RECORDS = [(0, b"a"), (1, b"b"), (2, b"c")]


@some_or_all(40)
def test_every_truncation_keeps_the_complete_batches_before_it(tmp_path: Path, most: int | None) -> None:
    source = partition(tmp_path, {0: SMALL})
    ends = [each.position + each.size_bytes for each in scan(SMALL)]
    counts = {0: 0, ends[0]: 2, ends[1]: 3}
    for size in some_of(range(len(SMALL), -1, -1), most):
        os.truncate(source / named(0), size)
        whole = max(end for end in counts if end <= size)
        assert tried(source) == SMALL_RECORDS[: counts[whole]], size


@some_or_all(80)
def test_no_flipped_bit_invents_a_record(tmp_path: Path, most: int | None) -> None:
    source = partition(tmp_path, {0: SMALL})
    values = [value for _, value in SMALL_RECORDS]
    outcomes = set()
    with (source / named(0)).open("r+b", buffering=0) as file:  # in place, which is ten times faster
        for number in some_of(range(8 * len(SMALL)), most):
            position, bit = divmod(number, 8)
            os.pwrite(file.fileno(), bytes([SMALL[position] ^ 1 << bit]), position)
            found = tried(source)
            outcomes.add(None if found is None else len(found))
            left = iter(values)
            assert all(value in left for _, value in found or []), (position, bit)
            os.pwrite(file.fileno(), SMALL[position : position + 1], position)
    assert tried(source) == SMALL_RECORDS
    if most is None:
        assert {1, 2, 3} <= outcomes


def test_no_flipped_bit_in_a_checkpoint_is_an_unhandled_error(tmp_path: Path) -> None:
    source = partition(tmp_path, {0: SMALL})
    for name, text in ((START, offsets(orders_0=1)), (RECOVERY, offsets(orders_0=3))):
        lay(tmp_path, {name: text})
        for position in range(len(text)):
            data = bytearray(text)
            data[position] ^= 1 << position % 8
            lay(tmp_path, {name: bytes(data)})
            interop.detect(tmp_path)
            tried(source)
        (tmp_path / name).unlink()
