"""`sawlog import` and `sawlog export`."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from sawlog import interop
from sawlog.store.directory.store import DirectoryStore

from ..interop.kafkas import batch, broker_on, lay, named, partition
from .conftest import Cli, Program


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    """A broker's directory: `orders` with two partitions, `users` with a gap and a torn tail, and Kafka's own."""
    source = tmp_path / "kafka"
    partition(source, {0: b"".join(batch(n, b"a%d" % n) for n in range(5))}, "orders-0")
    partition(source, {7: batch(7, b"b7", b"b8")}, "orders-1")
    partition(source, {0: batch(0, b"u0") + batch(3, b"u3") + b"torn"}, "users-0")
    partition(source, {0: b""}, "__consumer_offsets-0")
    return lay(source, {"meta.properties": b"version=1\n"})


# --- import


def test_everything_is_imported(sawlog: Cli, kafka: Path, data: Path) -> None:
    done = sawlog("import", kafka).ok()
    assert [line.split()[:5] for line in done.lines[1:]] == [
        ["orders", "0", "0", "5", "5"],
        ["orders", "1", "7", "9", "2"],
        ["users", "0", "0", "4", "2"],
    ]
    assert "not imported: __consumer_offsets-0: an internal topic of Kafka" in done.err
    assert "torn tail: 4 bytes" in done.err
    assert "9 records from kafka" in done.err
    with DirectoryStore.open(data, mode="r") as store:
        assert store.topics() == ["orders", "users"]
        assert [record.value for record in store["orders"].partition(1)] == [b"b7", b"b8"]


def test_a_repeated_import_adds_nothing(sawlog: Cli, kafka: Path) -> None:
    sawlog("import", kafka).ok()
    rows = sawlog("import", kafka, "--output", "json").ok().json
    assert [row["records"] for row in rows] == [0, 0, 0]
    assert [row["start_offset"] for row in rows] == [5, 9, 4]


def test_one_topic_is_selected_by_name(sawlog: Cli, kafka: Path, data: Path) -> None:
    rows = sawlog("import", kafka, "users", "--output", "json").ok().json
    assert [(row["topic"], row["partition"], row["records"]) for row in rows] == [("users", 0, 2)]
    assert len(rows[0]["findings"]) == 2
    with DirectoryStore.open(data, mode="r") as store:
        assert store.topics() == ["users"]
    assert "no topic 'nobody' in" in sawlog("import", kafka, "nobody").failed(3)
    assert "an internal topic of Kafka" in sawlog("import", kafka, "__consumer_offsets", "--dry-run").failed(3)


def test_a_single_log_gets_the_given_name(sawlog: Cli, kafka: Path, data: Path) -> None:
    sawlog("import", kafka / "orders-1", "old", "--set", "segment.bytes=64MiB").ok()
    with DirectoryStore.open(data, mode="r") as store:
        assert store.topics() == ["old"]
        assert store["old"].settings == {"segment.bytes": 64 << 20}
        assert [record.offset for record in store["old"].partition(1)] == [7, 8]


def test_a_dry_run_of_an_import_writes_nothing(sawlog: Cli, kafka: Path, data: Path) -> None:
    told = sawlog("import", kafka, "--dry-run")
    assert told.ok().lines[1].split()[:4] == ["orders", "0", "0", "5"]
    assert "create the topic and copy all" in told.out
    assert "kafka, data (meta.properties" in told.err
    assert "nothing was written" in told.err
    assert not data.exists()
    sawlog("import", kafka, "users").ok()
    rows = sawlog("import", kafka, "--dry-run", "--output", "json").ok().json
    assert [row["action"] for row in rows] == ["create the topic and copy all"] * 2 + ["nothing new"]
    assert len(rows[2]["findings"]) == 2


def test_damage_stops_an_import_unless_skipped(sawlog: Cli, tmp_path: Path, data: Path) -> None:
    raw = bytearray(b"".join(batch(n, b"a%d" % n) for n in range(5)))
    raw[len(raw) // 5 * 2 + 62] ^= 1
    source = partition(tmp_path / "kafka", {0: bytes(raw), 5: batch(5, b"a5")})
    said = sawlog("import", source).failed(4)
    assert f"{source}/{named(0)} at byte {len(raw) // 5 * 2}: checksum mismatch" in said
    assert "--on-damage skip" in said
    with DirectoryStore.open(data, mode="r") as store:
        assert [record.offset for record in store["orders"].scan()] == [0, 1]
    done = sawlog("import", source, "--on-damage", "skip")
    assert done.code == 4
    assert "(lost)" in done.err
    with DirectoryStore.open(data, mode="r") as store:
        assert [record.offset for record in store["orders"].scan()] == [0, 1, 3, 4, 5]


def test_import_refuses_the_directory_of_a_running_broker(sawlog: Cli, kafka: Path) -> None:
    with broker_on(kafka):
        assert "stop it, then try again" in sawlog("import", kafka).failed(5)


def test_errors_are_one_line(sawlog: Cli, kafka: Path, tmp_path: Path, data: Path) -> None:
    assert "no log of a supported system" in sawlog("import", tmp_path).failed(1)
    assert "no such directory" in sawlog("import", tmp_path / "missing").failed(3)
    sawlog("import", kafka, "--format", "redis").failed(2)
    sawlog("import", kafka, "--set", "nonsense").failed(2)
    sawlog("import", kafka, "--timestamp", "yesterday").failed(2)
    assert not data.exists()
    sawlog("import", kafka).ok()
    assert "is a sawlog store" in sawlog("import", data).failed(1)


def test_other_systems_are_imported_the_same_way(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    for system in ("laminarmq", "rustlog", "gumlog", "plain"):
        sawlog("export", "orders", tmp_path / system, "--format", system).ok()
        found = interop.detect(tmp_path / system, format=system)
        assert found is not None
        place = min(each.path for each in found.logs)
        rows = sawlog("import", place, f"from-{system}", "--format", system, "--output", "json").ok().json
        assert [row["records"] for row in rows] == [10]


@pytest.mark.alternating
def test_an_interrupted_import_continues(program: Program, sawlog: Cli, tmp_path: Path, data: Path) -> None:
    """The process is ended at some moment; whatever was stored by then, the next run stores the rest."""
    raw = b"".join(batch(n, b"x" * 50_000) for n in range(500))
    source = partition(tmp_path / "kafka", {0: raw})
    process = program.start("import", source)
    target = data / "topics" / "orders" / "partition-0" / named(0)
    deadline = time.monotonic() + 60
    while process.poll() is None and not (target.exists() and target.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    sawlog("import", source).ok()
    assert target.read_bytes() == raw
    assert sawlog("verify", "orders").ok()


# --- export


def test_a_topic_is_exported(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    done = sawlog("export", "orders", tmp_path / "out", "--format", "kafka").ok()
    assert [line.split()[:4] for line in done.lines[1:]] == [["0", "0", "10", "10"], ["1", "0", "5", "5"]]
    assert "15 records" in done.err
    with interop.open(tmp_path / "out" / "orders-0") as log:
        assert [record.value for record in log.scan()] == [b"a%d" % number for number in range(10)]
    assert "holds records" in sawlog("export", "orders", tmp_path / "out", "--format", "kafka").failed(1)


def test_fields_that_the_format_cannot_store_are_reported(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    done = sawlog("export", "orders", tmp_path / "out", "--format", "gumlog", "--output", "json").ok()
    assert done.json[0]["dropped"]["keys"] == 10
    assert "gumlog cannot store keys: dropped from 10 records" in done.err


def test_a_dry_run_of_an_export_writes_nothing(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    rows = sawlog("export", "orders", tmp_path / "out", "--format", "kafka", "--dry-run", "--output", "json").ok().json
    assert [row["path"] for row in rows] == [f"{tmp_path}/out/orders-{number}" for number in (0, 1)]
    assert not (tmp_path / "out").exists()


def test_format_options_are_passed_on(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    cluster = "rGGT5D-JSW6qO6iA3s-4bQ"
    given = ["--option", f"cluster_id={cluster}", "--option", "node_id=3", "--option", "segment_bytes=1KiB"]
    sawlog("export", "orders", tmp_path / "out", "--format", "kafka", *given).ok()
    assert f"cluster.id={cluster}\nnode.id=3\n" in (tmp_path / "out" / "meta.properties").read_text()
    for wrong in ("segment_bytes=many", "nothing", "colour=blue"):
        sawlog("export", "orders", tmp_path / "other", "--format", "kafka", "--option", wrong).failed(2)
    sawlog("export", "nobody", tmp_path / "other", "--format", "kafka").failed(3)


def test_an_export_can_be_imported_again(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    sawlog("export", "orders", tmp_path / "out", "--format", "kafka").ok()
    sawlog("import", tmp_path / "out", "-d", tmp_path / "other").ok()
    read = ["read", "orders", "--output", "ndjson", "-d"]
    assert sorted(sawlog(*read, tmp_path / "other").ok().lines) == sorted(sawlog(*read, orders).ok().lines)
