"""Export to Kafka: the bytes, the allowed targets, and the round trip."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sawlog import Log, LogConfig, interop
from sawlog.batch.header import BASE, COUNT, LAST, scan
from sawlog.errors import ExportRefused, InvalidConfig, SourceInUse
from sawlog.log.ingest import rows_of
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.topic import DirectoryTopic

from ..batch import wire
from ..log.places import quick
from .kafkas import HIGH, RECOVERY, START, T, batch, broker_on, lay, marker, named, offsets, partition, seen

ID = "rGGT5D-JSW6qO6iA3s-4bQ"
CLEANER = "cleaner-offset-checkpoint"


@pytest.fixture(autouse=True)
def fsync_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick(monkeypatch):
        yield


def content(directory: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def topic_of(store: DirectoryStore, *raw: bytes, name: str = "orders", **settings: Any) -> DirectoryTopic:
    """A topic whose partitions hold these batches."""
    made = store.create_topic(name, len(raw), durability="os", **settings)
    for number, each in enumerate(raw):
        if each:
            made.partition(number)._advance(scan(each)[0].base_offset)
            made.partition(number)._append_at_offsets(each)
    return made


# --- the bytes


def test_a_partition_is_written_byte_for_byte(tmp_path: Path) -> None:
    first, second = batch(5, b"x" * 5000, epoch=2), batch(6, b"y", b"z", epoch=3)
    with DirectoryStore.open(tmp_path / "data") as store:
        [report] = interop.export_topic(topic_of(store, first + second), tmp_path / "out", format="kafka", topic_id=ID)
    assert content(tmp_path / "out") == {
        f"orders-0/{named(5)}": first + second,
        # One entry, because more than 4096 bytes precede the second batch: it ends at 5 + 2, and begins after them.
        f"orders-0/{named(5, '.index')}": bytes.fromhex("00000002") + struct.pack(">i", len(first)),
        # The largest time before that entry, and the largest of all, each with the last offset of its batch.
        f"orders-0/{named(5, '.timeindex')}": wire.hex_bytes("""
            00 00 01 8b cf e5 68 05     # 1,700,000,000,005
            00 00 00 00                 # 5 + 0
            00 00 01 8b cf e5 68 07     # 1,700,000,000,007
            00 00 00 02                 # 5 + 2
        """),
        "orders-0/leader-epoch-checkpoint": b"0\n2\n2 5\n3 6\n",
        "orders-0/partition.metadata": f"version: 0\ntopic_id: {ID}".encode(),
        RECOVERY: b"0\n1\norders 0 8\n",
        HIGH: b"0\n1\norders 0 8\n",
    }
    assert (report.format, report.start_offset, report.next_offset, report.records) == ("kafka", 5, 8, 3)
    assert report.path == f"{tmp_path}/out/orders-0"
    assert report.notes == ()


def test_aborted_transactions_are_listed(tmp_path: Path) -> None:
    def paid(offset: int, producer: int) -> bytes:
        return batch(offset, b"v", attributes=wire.TRANSACTIONAL, producer_id=producer, producer_epoch=0)

    raw = paid(0, 7) + paid(1, 8) + paid(2, 7) + marker(3, 7, commit=False) + marker(4, 8, commit=True)
    raw += paid(5, 8) + marker(6, 8, commit=False) + marker(7, 9, commit=False)
    with DirectoryStore.open(tmp_path / "data") as store:
        interop.export_topic(topic_of(store, raw), tmp_path / "out", format="kafka")
    assert (tmp_path / "out/orders-0" / named(0, ".txnindex")).read_bytes() == wire.hex_bytes("""
        00 00                       # version
        00 00 00 00 00 00 00 07     # producer 7
        00 00 00 00 00 00 00 00     # from 0
        00 00 00 00 00 00 00 03     # to 3
        00 00 00 00 00 00 00 01     # last stable offset 1: the transaction of producer 8 was open
        00 00
        00 00 00 00 00 00 00 08     # producer 8
        00 00 00 00 00 00 00 05     # from 5
        00 00 00 00 00 00 00 06     # to 6
        00 00 00 00 00 00 00 07     # no other transaction was open
    """)


def test_leader_epochs_that_go_back_are_raised(tmp_path: Path) -> None:
    raw = batch(0, b"a", epoch=5) + batch(1, b"b", epoch=5) + batch(2, b"c", epoch=6)
    with DirectoryStore.open(tmp_path / "data") as store:
        path = Path(topic_of(store, raw).partition(0).path) / named(0)
    # An append in epoch 0 after an import with higher epochs.
    path.write_bytes(batch(0, b"a", epoch=5) + batch(1, b"b", epoch=0) + batch(2, b"c", epoch=6))
    with DirectoryStore.open(tmp_path / "data") as store:
        [report] = interop.export_topic(store["orders"], tmp_path / "out", format="kafka")
    written = (tmp_path / "out/orders-0" / named(0)).read_bytes()
    assert [each.leader_epoch for each in scan(written)] == [5, 5, 6]
    assert written == batch(0, b"a", epoch=5) + batch(1, b"b", epoch=5) + batch(2, b"c", epoch=6)
    assert (tmp_path / "out/orders-0/leader-epoch-checkpoint").read_bytes() == b"0\n2\n5 0\n6 2\n"
    assert "1 batches had a lower leader epoch" in report.notes[0]


def test_a_log_start_within_a_batch_is_in_the_checkpoint(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = topic_of(store, batch(0, b"a") + batch(1, b"b", b"c") + batch(3, b"d"))
        topic.partition(0).trim(2)
        [report] = interop.export_topic(topic, tmp_path / "out", format="kafka")
    assert (tmp_path / "out" / START).read_bytes() == b"0\n1\norders 0 2\n"
    assert (tmp_path / "out/orders-0" / named(1)).read_bytes() == batch(1, b"b", b"c") + batch(3, b"d")
    assert report.notes == ("batches are exported whole: the first begins at offset 1, below 2",)
    with interop.open(tmp_path / "out/orders-0") as log:
        assert [record.value for record in log.scan()] == [b"c", b"d"]


def test_an_empty_partition_has_a_file_named_after_the_next_offset(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", 2, durability="os")
        topic.partition(1)._advance(77)
        interop.export_topic(topic, tmp_path / "out", format="kafka")
    assert (tmp_path / "out/orders-0" / named(0)).read_bytes() == b""
    assert (tmp_path / "out/orders-1" / named(77)).read_bytes() == b""
    with interop.open(tmp_path / "out/orders-1") as log:
        assert (log.lowest_offset, log.next_offset) == (77, 77)


def test_files_end_at_our_segments_and_at_the_given_size(tmp_path: Path) -> None:
    raw = b"".join(batch(number, b"x" * 100) for number in range(20))
    size = len(raw) // 20
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = topic_of(store, raw[: 10 * size])
        topic.partition(0).seal()
        topic.partition(0)._append_at_offsets(raw[10 * size :])
        interop.export_topic(topic, tmp_path / "a", format="kafka")
        interop.export_topic(topic, tmp_path / "b", format="kafka", segment_bytes=4 * size)
    assert [path.name for path in sorted(tmp_path.glob("a/*/*.log"))] == [named(0), named(10)]
    assert [path.name for path in sorted(tmp_path.glob("b/*/*.log"))] == [named(n) for n in (0, 4, 8, 10, 14, 18)]
    for name in "ab":
        assert b"".join(path.read_bytes() for path in sorted(tmp_path.glob(f"{name}/*/*.log"))) == raw


def test_a_range_of_offsets_is_exported_in_whole_batches(tmp_path: Path) -> None:
    raw = [batch(0, b"a", b"b"), batch(2, b"c", b"d"), batch(4, b"e", b"f")]
    with DirectoryStore.open(tmp_path / "data") as store:
        log = topic_of(store, b"".join(raw)).partition(0)
        report = interop.export_log(log, tmp_path / "orders-0", format="kafka", start=3, end=5)
    assert (tmp_path / "orders-0" / named(2)).read_bytes() == raw[1] + raw[2]
    assert (report.start_offset, report.next_offset, len(report.notes)) == (2, 6, 2)


# --- targets


def test_an_empty_topic_of_a_stopped_broker_is_filled(tmp_path: Path) -> None:
    for number in (0, 1):
        partition(tmp_path, {0: b""}, f"orders-{number}")
    partition(tmp_path, {0: batch(0, b"theirs")}, "other-0")
    lay(
        tmp_path,
        {
            "meta.properties": b"cluster.id=x\n",
            ".kafka_cleanshutdown": b"{}",
            RECOVERY: offsets(other_0=1, orders_0=0, orders_1=0),
            HIGH: b"",
            START: offsets(other_0=0, orders_1=0),
            CLEANER: offsets(orders_0=0),
        },
    )
    before = content(tmp_path / "other-0")
    with DirectoryStore.open(tmp_path / "data") as store:
        interop.export_topic(topic_of(store, batch(3, b"a"), batch(0, b"b")), tmp_path, format="kafka")
    assert (tmp_path / "orders-0" / named(3)).read_bytes() == batch(3, b"a")
    assert (tmp_path / "orders-0/partition.metadata").read_text() == f"version: 0\ntopic_id: {ID}"
    assert (tmp_path / RECOVERY).read_bytes() == b"0\n3\norders 0 4\norders 1 1\nother 0 1\n"
    assert (tmp_path / HIGH).read_bytes() == b"0\n2\norders 0 4\norders 1 1\n"
    assert (tmp_path / START).read_bytes() == b"0\n1\nother 0 0\n"
    assert (tmp_path / CLEANER).read_bytes() == b"0\n0\n"
    assert content(tmp_path / "other-0") == before
    assert not list(tmp_path.glob("*-delete"))


@pytest.mark.parametrize("there", ["records", "more partitions", "different ids", "damaged checkpoint"])
def test_an_export_never_overwrites_records(tmp_path: Path, there: str) -> None:
    target = tmp_path / "kafka"
    partition(target, {0: b""}, "orders-0")
    partition(target, {0: batch(0, b"theirs") if there == "records" else b""}, "orders-1")
    if there == "more partitions":
        partition(target, {0: b""}, "orders-2")
    if there == "different ids":
        lay(target, {"orders-1/partition.metadata": b"version: 0\ntopic_id: " + b"x" * 22})
    if there == "damaged checkpoint":
        lay(target, {RECOVERY: b"0\n7\n"})
    before = content(target)
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = topic_of(store, batch(0, b"a"), batch(0, b"b"))
        with pytest.raises(ExportRefused):
            interop.export_topic(topic, target, format="kafka")
    assert content(target) == before


def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with DirectoryStore.open(tmp_path / "data") as store, broker_on(tmp_path / "kafka"):
        topic = topic_of(store, batch(0, b"a"))
        with pytest.raises(SourceInUse):
            interop.export_topic(topic, tmp_path / "kafka", format="kafka")
    assert [path.name for path in (tmp_path / "kafka").iterdir()] == [".lock"]


def test_an_interrupted_export_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    partition(tmp_path / "kafka", {0: b""}, "orders-0")
    before = content(tmp_path / "kafka")
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = topic_of(store, batch(0, b"a"))
        with pytest.raises(KeyboardInterrupt):
            interop.export_topic(topic, tmp_path / "kafka", format="kafka", progress=interrupt)
    assert content(tmp_path / "kafka") == before
    assert [path.name for path in (tmp_path / "kafka").iterdir()] == ["orders-0"]


def test_a_brokers_directory_can_be_created(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = topic_of(store, batch(0, b"a"))
        interop.export_topic(topic, tmp_path / "out", format="kafka", cluster_id=ID, node_id=3)
        said = (tmp_path / "out/meta.properties").read_text().splitlines()
        assert said[:3] == ["version=1", f"cluster.id={ID}", "node.id=3"]
        assert said[3].startswith("directory.id=")
        with pytest.raises(ExportRefused, match=r"already has a meta\.properties"):
            interop.export_topic(topic, tmp_path / "out", format="kafka", cluster_id=ID, node_id=3)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"segment_bytes": 0},
        {"segment_bytes": True},
        {"topic_id": "short"},
        {"topic_id": 7},
        {"cluster_id": ID},
        {"node_id": 3},
        {"cluster_id": "?", "node_id": 3},
        {"cluster_id": ID, "node_id": -1},
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with DirectoryStore.open(tmp_path / "data") as store, pytest.raises(InvalidConfig):
        interop.export_topic(topic_of(store, batch(0, b"a")), tmp_path / "out", format="kafka", **options)
    assert not list(tmp_path.glob("out/orders*"))


def test_the_topic_id_is_exported(tmp_path: Path) -> None:
    with DirectoryStore.open(tmp_path / "data") as store:
        topic = topic_of(store, batch(0, b"a"), batch(0, b"b"))
        interop.export_topic(topic, tmp_path / "out", format="kafka")
        ids = {(tmp_path / f"out/orders-{n}/partition.metadata").read_text() for n in (0, 1)}
        interop.export_topic(topic, tmp_path / "again", format="kafka", topic_id=topic.id)
    assert len(ids) == 1
    assert (tmp_path / "again/orders-0/partition.metadata").read_text() in ids


# --- round trip


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_an_exported_log_is_imported_unchanged(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("trip")
    config = LogConfig(
        durability="os",
        segment_bytes=chance.choice([300, 2000, 1 << 20]),
        compression=chance.choice(["none", "gzip", "zstd"]),
    )
    with Log.open(path / "from", config) as log, Log.open(path / "to", config) as copy:
        for _ in range(chance.randrange(12)):
            what = chance.randrange(6)
            if what == 0:
                log._advance(log.next_offset + chance.choice([1, 5, 1000]))
            elif what == 1 and len(log):
                log.trim(chance.randrange(log.lowest_offset, log.next_offset + 1))
            elif what == 2:
                log.seal()
            else:
                records = [
                    (chance.choice([None, b"v" * chance.randrange(40)]), chance.choice([None, b"k"]), [], T + n)
                    for n in range(chance.randrange(1, 6))
                ]
                log.append_many(records)
        interop.export_log(log, path / "kafka-0", format="kafka")
        interop.import_log(path / "kafka-0", copy, format="kafka")
        assert copy.next_offset == log.next_offset
        visible = [record for record in seen(copy) if record[0] >= log.lowest_offset]
        assert visible == seen(log)
        assert copy.verify()


# --- gaps


def headers_in(directory: Path) -> list[tuple[int, int, int]]:
    """(first offset, last offset, records) of every batch, file by file."""
    found = []
    for path in sorted(directory.glob("*.log")):
        rows = rows_of(memoryview(path.read_bytes()))
        found += [(int(row[BASE]), int(row[LAST]), int(row[COUNT])) for row in rows]
    return found


def test_batches_that_represent_a_gap_are_left_out(tmp_path: Path) -> None:
    """Kafka has real gaps, and does not need a file for each part of a long one."""
    far = 2**40
    with Log.in_memory() as log:
        log.append(b"a")
        log._advance(5)
        log.append(b"b")
        log._advance(far)
        log.append(b"c")
        report = interop.export_log(log, tmp_path / "t-0", format="kafka")
    assert headers_in(tmp_path / "t-0") == [(0, 0, 1), (5, 5, 1), (far, far, 1)]
    assert (report.start_offset, report.next_offset, report.records) == (0, far + 1, 3)
    assert len(list((tmp_path / "t-0").glob("*.log"))) == 2
    with interop.open(tmp_path / "t-0", format="kafka") as theirs, Log.in_memory() as mine:
        interop.import_log(theirs, mine)
        assert [(record.offset, record.value) for record in mine] == [(0, b"a"), (5, b"b"), (far, b"c")]


def test_a_gap_at_either_end_keeps_the_bounds_of_the_log(tmp_path: Path) -> None:
    with Log.in_memory() as log:
        log.append(b"a")
        log._advance(2**33)
        log.append(b"b")
        log._advance(2**34)
        log.trim(1)
        report = interop.export_log(log, tmp_path / "t-0", format="kafka")
        assert (report.start_offset, report.next_offset) == (log.lowest_offset, log.next_offset) == (1, 2**34)
    with interop.open(tmp_path / "t-0", format="kafka") as theirs:
        assert (theirs.lowest_offset, theirs.next_offset) == (1, 2**34)
        assert [record.value for record in theirs] == [b"b"]
