"""Looking after a store: verify, repair, inspect, maintenance, doctor, bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sawlog import Log, LogConfig, Producer
from sawlog.cli import doctor
from sawlog.store.directory.store import DirectoryStore

from .conftest import Cli, Program
from .damage import flip_bit, segment_of

# --- verify


def test_verify_counts_an_intact_store(sawlog: Cli, orders: Path) -> None:
    rows = sawlog("verify", "--output", "json").ok().json
    assert [(row["topic"], row["partition"], row["records"], row["problems"]) for row in rows] == [
        ("orders", 0, 10, []),
        ("orders", 1, 5, []),
    ]
    assert sawlog("verify", "orders", "-p", 1).ok().lines[1].split()[-1] == "none"


def test_verify_finds_a_flipped_bit_wherever_it_is(sawlog: Cli, orders: Path) -> None:
    file = segment_of(orders)
    content = file.read_bytes()
    for position in range(17, len(content), 101):
        flip_bit(file, position)
        result = sawlog("verify", "orders", "--output", "json")
        assert result.code == 4, position
        [problem] = result.json[0]["problems"][:1]
        assert problem["path"] == str(file)
        assert problem["position"] <= position
        assert "sawlog inspect" in result.err
        file.write_bytes(content)


def test_verify_of_one_directory(sawlog: Cli, orders: Path) -> None:
    [row] = sawlog("verify", "--log", orders / "topics/orders/partition-1", "--output", "json").ok().json
    assert (row["topic"], row["records"]) == ("partition-1", 5)


def test_verify_of_a_store_includes_committed_offsets(sawlog: Cli, orders: Path) -> None:
    for offset in (3, 5):  # the second process notes how far the first one's commits are durable
        with DirectoryStore.open(orders) as store:
            store.groups.commit("billing", {("orders", 0): offset})
    assert sawlog("verify", "--output", "json").ok().json[-1]["topic"] == "(groups)"
    [file] = (orders / "groups").glob("*.log")
    flip_bit(file, 100)
    assert sawlog("verify").code == 4
    sawlog("verify", "orders").ok()


def test_verify_beside_a_writer(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        for number in range(50):
            store.topic("orders").append(b"more", partition=0)
            if number % 10 == 0:
                sawlog("verify").ok()


# --- inspect


def test_inspect_shows_every_batch(sawlog: Cli, orders: Path) -> None:
    result = sawlog("inspect", segment_of(orders)).ok()
    assert len(result.lines) == 11
    assert result.lines[0].split()[:5] == ["POSITION", "BYTES", "FIRST", "LAST", "RECORDS"]
    assert "10 records in 10 batches" in result.err
    found = sawlog("inspect", segment_of(orders), "--output", "json").ok().json
    assert [(each["kind"], each["base_offset"], each["crc"]) for each in found] == [
        ("batch", n, "ok") for n in range(10)
    ]


def test_inspect_marks_the_first_bad_byte_and_continues(sawlog: Cli, orders: Path) -> None:
    file = segment_of(orders)
    bad = file.read_bytes().index(b"a4")
    flip_bit(file, bad, 0x20)
    result = sawlog("inspect", file)
    assert result.code == 4
    assert f"the first bad byte is {bad}" in result.out
    assert "41 should be 61" in result.out
    dump = [line for line in result.lines if line.startswith(f"   {bad // 16 * 16:08x}")]
    marker = result.lines[result.lines.index(dump[0]) + 1]
    assert dump[0][marker.index("^^") : marker.index("^^") + 2] == "41"
    assert len(result.lines) > 15
    [damage] = [each for each in sawlog("inspect", file, "--output", "json").json if each["kind"] == "damage"]
    assert damage["bad_position"] == bad
    assert bytes.fromhex(damage["dump"]["hex"])[bad - damage["dump"]["position"]] == 0x41


def test_inspect_of_a_torn_tail_marks_the_end(sawlog: Cli, orders: Path) -> None:
    file = segment_of(orders)
    content = file.read_bytes()[:-5]
    file.write_bytes(content)
    result = sawlog("inspect", file)
    assert result.code == 4
    assert f"the first bad byte is {len(content)}" in result.out
    assert "5 bytes of a batch of" in result.out
    assert "no good batch follows" in result.out


def test_inspect_shows_records(sawlog: Cli, orders: Path) -> None:
    assert "value=b'a3'" in sawlog("inspect", segment_of(orders), "--records").ok().out
    found = sawlog("inspect", segment_of(orders), "--records", "--output", "json").json
    assert found[3]["record_values"] == [{"offset": 3, "key": "k3", "value": "a3"}]


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """A log whose segment has index entries."""
    with Log.open(tmp_path / "log", LogConfig(index_interval_bytes=0, durability="os")) as log:
        for number in range(5):
            log.append(b"v", timestamp=1000 + number)
    return tmp_path / "log"


def test_inspect_shows_the_indexes(sawlog: Cli, indexed: Path) -> None:
    entries = sawlog("inspect", indexed / f"{0:020d}.index", "--output", "json").ok().json
    assert entries
    assert all(entry["remark"] == "" for entry in entries)
    times = sawlog("inspect", indexed / f"{0:020d}.timeindex", "--output", "json").ok().json
    assert times[-1]["timestamp"] == 1004
    assert times[-1]["offset"] == 4


def test_inspect_finds_a_wrong_index_entry(sawlog: Cli, indexed: Path) -> None:
    file = indexed / f"{0:020d}.index"
    flip_bit(file, 15)
    result = sawlog("inspect", file, "--output", "json")
    assert result.code == 4
    assert "no batch that ends at offset" in next(entry["remark"] for entry in result.json if entry["remark"])
    file.write_bytes(file.read_bytes() + b"xyz")
    assert "3 bytes at the end" in sawlog("inspect", file).err


@pytest.mark.parametrize("name", ["sawlog.json", "topics/orders/topic.json"])
def test_inspect_shows_the_documents_of_a_store(sawlog: Cli, orders: Path, name: str) -> None:
    file = orders / name
    stored = json.loads(file.read_bytes())
    del stored["crc32c"]
    assert sawlog("inspect", file, "--output", "json").ok().json == stored
    assert stored["id"] in sawlog("inspect", file).ok().out
    flip_bit(file, file.read_bytes().index(stored["id"].encode()))
    assert "checksum does not match" in sawlog("inspect", file).err
    assert sawlog("inspect", file).code == 4


def test_inspect_does_not_call_a_lock_damaged(sawlog: Cli, orders: Path) -> None:
    assert "process" in sawlog("inspect", orders / "LOCK").ok().out
    sawlog("inspect", segment_of(orders).parent / "LOCK").ok()


def test_every_file_of_a_store_can_be_inspected(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        store.groups.commit("billing", {("orders", 0): 4})
    for file in sorted(path for path in orders.rglob("*") if path.is_file()):
        assert sawlog("inspect", file).code == 0, file


def test_inspect_shows_the_checkpoint(sawlog: Cli, orders: Path) -> None:
    file = segment_of(orders).parent / "checkpoint"
    found = sawlog("inspect", file, "--output", "json").ok().json
    assert (found["clean"], found["durable_offset"]) == (True, 10)
    flip_bit(file, 30)
    result = sawlog("inspect", file)
    assert result.code == 4
    assert "checksum" in result.err


def test_inspect_shows_the_producers(sawlog: Cli, tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append_many([b"a", b"b"], producer=Producer(7, 1, 40))
    file = tmp_path / "log" / "producers"
    [row] = sawlog("inspect", file, "--output", "json").ok().json
    assert (row["producer"], row["epoch"], row["first_sequence"], row["last_offset"]) == (7, 1, 40, 1)
    flip_bit(file, 25)
    assert sawlog("inspect", file).code == 4


def test_inspect_reports_what_is_not_a_segment(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    assert "is a directory" in sawlog("inspect", orders).failed(2)
    sawlog("inspect", tmp_path / "nowhere.log").failed(3)
    (tmp_path / "empty.log").write_bytes(b"")
    sawlog("inspect", tmp_path / "empty.log").ok()
    (tmp_path / "text.log").write_bytes(b"hello world " * 50)
    assert sawlog("inspect", tmp_path / "text.log").code == 4


# --- repair


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def torn(orders: Path) -> Path:
    """The last write to partition 0 of `orders` was interrupted."""
    file = segment_of(orders)
    (file.parent / "checkpoint").unlink()
    file.write_bytes(file.read_bytes() + file.read_bytes()[:40])
    return orders


def test_repair_of_an_intact_store_says_so(sawlog: Cli, orders: Path) -> None:
    result = sawlog("repair").ok()
    assert result.raw == b""
    assert "nothing to repair" in result.err
    before = contents(orders)
    assert "nothing repaired" in sawlog("repair", "--apply").ok().err
    assert contents(orders) == before
    assert [path.name for path in orders.parent.iterdir()] == ["data"]


def test_plan_lists_repairs_and_changes_nothing(sawlog: Cli, torn: Path) -> None:
    before = contents(torn)
    rows = sawlog("repair", "--plan", "--output", "json").ok().json
    assert any(row["action"] == "save a copy, then cut" and row["partition"] == 0 for row in rows)
    assert contents(torn) == before


def test_apply_copies_first_and_repairs(sawlog: Cli, torn: Path) -> None:
    before = contents(torn)
    result = sawlog("repair", "orders", "--apply").ok()
    [copy] = torn.parent.glob("data.before-repair-*")
    assert str(copy) in result.err
    kept = contents(copy)
    for files in (kept, before):
        files.pop("topics/orders/partition-0/LOCK")  # it has the last holder's note
    assert kept == {name: content for name, content in before.items() if name.startswith("topics/orders/partition-0/")}
    assert list(segment_of(torn).parent.glob("*.torn"))
    assert sawlog("read", "orders", "-p", 0).ok().lines == [f"a{number}" for number in range(10)]
    assert sawlog("inspect", segment_of(torn)).ok()
    assert "nothing to repair" in sawlog("repair").ok().err


def test_backup_chooses_the_place_of_the_copies(sawlog: Cli, torn: Path, tmp_path: Path) -> None:
    sawlog("repair", "orders", "--apply", "--backup", tmp_path / "spare").ok()
    assert (tmp_path / "spare/topics/orders/partition-0" / f"{0:020d}.log").exists()
    partition = torn / "topics/orders/partition-0"
    (partition / "checkpoint").unlink()
    sawlog("repair", "--log", partition, "--apply", "--backup", tmp_path / "again").ok()
    assert (tmp_path / "again/partition-0" / f"{0:020d}.log").exists()


def test_damaged_data_is_kept_reported_and_skipped(sawlog: Cli, orders: Path) -> None:
    file = segment_of(orders)
    flip_bit(file, file.read_bytes().index(b"a4"))
    damaged = file.read_bytes()
    rows = sawlog("repair", "--output", "json")
    assert rows.code == 4
    assert any("reading continues at 5" in row["detail"] for row in rows.json)
    assert sawlog("repair", "--apply").code == 4
    assert file.read_bytes() == damaged
    assert [path.name for path in orders.parent.iterdir()] == ["data"]  # nothing was done, so nothing was copied
    result = sawlog("read", "orders", "-p", 0, "--skip-damage")
    assert result.lines == ["a0", "a1", "a2", "a3", "a5", "a6", "a7", "a8", "a9"]
    with DirectoryStore.open(orders) as store:
        assert store.topic("orders").append(b"new", partition=0).offset == 10


def test_a_partition_without_files_is_reported_and_made_usable(sawlog: Cli, orders: Path) -> None:
    for file in segment_of(orders).parent.glob("0*"):
        file.unlink()
    checked = sawlog("verify")
    assert checked.code == 4
    assert "offsets 0 to 9 are missing" in checked.err
    assert "is missing; the next readable offset is 10" in sawlog("read", "orders", "-p", 0).failed(4)
    assert len(sawlog("read", "orders", "-p", 1).ok().lines) == 5
    plan = sawlog("repair", "--output", "json")
    assert plan.code == 4
    assert "offsets 0 to 9" in plan.json[0]["detail"]
    assert sawlog("repair", "--apply").code == 4
    sawlog("produce", "orders", "-p", 0, stdin=b"new\n").ok()
    assert sawlog("read", "orders", "-p", 0, "-o", 10, "-f", r"%o %v\n").ok().lines == ["10 new"]
    assert "offsets 0 to 9 are missing" in sawlog("verify").err


def test_a_partition_that_is_being_written_is_not_repaired(sawlog: Cli, torn: Path) -> None:
    with Log.open(segment_of(torn).parent) as _:
        (segment_of(torn).parent / "checkpoint").unlink()
        before = sorted(path.name for path in torn.parent.iterdir())
        sawlog("repair", "--apply").failed(5)
        assert sorted(path.name for path in torn.parent.iterdir()) == before


# --- maintenance


def test_maintenance_removes_expired_records(sawlog: Cli, data: Path) -> None:
    sawlog("topic", "create", "old", "--set", "retention.ms=1h", "--set", "segment.bytes=200").ok()
    with DirectoryStore.open(data) as store:
        for number in range(10):
            store.topic("old").append(b"x" * 100, timestamp=1000 + number)
    rows = sawlog("maintenance", "--output", "json").ok().json
    assert rows[0]["retention"]["removed_records"] > 0
    assert sawlog("topic", "describe", "old", "--output", "json").json["records"] < 10
    assert "nothing to do" in sawlog("maintenance", "old").ok().err
    sawlog("maintenance", "nope").failed(3)


def test_maintenance_skips_partitions_that_another_process_writes(program: Program, data: Path) -> None:
    with DirectoryStore.open(data) as store:
        store.create_topic("old", retention_ms=1000).append(b"x", timestamp=1)
    with Log.open(segment_of(data, "old").parent):  # unlike a store, it keeps its lock when another process asks for it
        result = program("maintenance").ok()
    assert "skipped 1 of 1 partitions: another process" in result.err


def test_damage_found_by_scrubbing_is_reported(sawlog: Cli, data: Path) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("old", scrub_interval_ms=1)
        topic.append(b"value")
        topic.partition(0).seal()
    flip_bit(segment_of(data, "old"), 68)
    result = sawlog("maintenance")
    assert result.code == 4
    assert "scrubbed" in result.out
    assert "!! " in result.err


# --- doctor


def test_doctor_runs_every_check(sawlog: Cli, orders: Path) -> None:
    before = contents(orders)
    result = sawlog("doctor", "--output", "json").ok()
    checks = {each["check"]: each for each in result.json}
    expected = {
        "versions",
        "kernel",
        "file system",
        "free space",
        "locks",
        "fsync",
        "open files",
        "file size",
        "mappings",
    }
    assert expected | {"store", "logs", "clock"} == set(checks)
    assert checks["store"]["detail"] == "1 topic, 2 partitions"
    assert checks["locks"]["state"] == "ok"
    assert "median" in checks["fsync"]["detail"]
    assert contents(orders) == before


def test_doctor_of_a_directory_without_a_store(sawlog: Cli, tmp_path: Path) -> None:
    checks = [each["check"] for each in sawlog("doctor", "--dir", tmp_path, "--output", "json").json]
    assert "fsync" in checks
    assert "store" not in checks
    sawlog("doctor", "--dir", tmp_path / "nowhere").failed(3)


def test_doctor_reports_a_damaged_store_as_bad(sawlog: Cli, orders: Path) -> None:
    (orders / "topics/orders/topic.json").write_text("{", encoding="utf-8")
    result = sawlog("doctor", "--output", "json")
    assert result.code == 1
    assert {each["check"]: each["state"] for each in result.json}["store"] == "bad"


def test_doctor_notices_records_from_the_future(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        store.topic("orders").append(b"x", timestamp=9_999_999_999_999, partition=0)
    states = {each["check"]: each["state"] for each in sawlog("doctor", "--output", "json").json}
    assert states["clock"] == "warning"


def test_doctor_warns_of_an_implausibly_fast_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for times_ms, state in (([0.001] * 5, "warning"), ([1.0] * 5, "ok"), ([200.0] * 5, "warning")):
        monkeypatch.setattr(doctor, "measure_sync", lambda file, times_ms=times_ms: times_ms)
        assert {each.check: each.state for each in doctor.examine(tmp_path, None)}["fsync"] == state


def test_advice_is_not_mixed_with_data(sawlog: Cli, orders: Path) -> None:
    (orders / "topics/orders/topic.json").write_text("{", encoding="utf-8")
    result = sawlog("doctor")
    assert "sawlog verify" in result.err
    assert "sawlog verify" not in result.out


# --- bench


def test_bench_measures_and_leaves_nothing(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    result = sawlog(
        "bench", "--seconds", 0.05, "--durability", "os", "-z", "lz4", "--size", "1KiB", "--output", "ndjson"
    )
    rows = [json.loads(line) for line in result.ok().lines]
    assert len(rows) == 6
    assert all(row["records_per_second"] > 0 and row["bytes_per_second"] > 0 for row in rows)
    assert sorted(tmp_path.iterdir()) == before


def test_bench_describes_the_machine(sawlog: Cli, orders: Path) -> None:
    result = sawlog("bench", "--seconds", 0.05).ok()
    assert "durability always" in result.err
    assert result.lines[0].split()[0] == "STEP"


@pytest.mark.parametrize("arguments", [["--size", "big"], ["--durability", "maybe"], ["--seconds", "0"]])
def test_bench_refuses_invalid_options(sawlog: Cli, arguments: list[str]) -> None:
    sawlog("bench", *arguments).failed(2)
