"""`-b HOST:PORT` instead of `-d DIR`: the same commands, output and exit codes, against a real broker."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pyarrow.parquet as pq
import pytest

from sawlog.cli.program import command
from sawlog.store.directory.store import DirectoryStore

from .conftest import PATIENCE_S, Cli, Program
from .test_reference import commands


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A store with a topic of 300 records, and the address of a `sawlog serve` process for it."""
    data = tmp_path_factory.mktemp("served") / "data"
    with DirectoryStore.open(data) as store:
        orders = store.create_topic("orders", 2, retention_ms=10**12, compression_type="lz4")
        for first in range(0, 300, 50):
            orders.append_many(
                [
                    (
                        b'{"id": %d}' % number,
                        b"customer-%d" % (number % 7),
                        {"n": b"%d" % number},
                        1_700_000_000_000 + number,
                    )
                    for number in range(first, first + 50)
                ]
            )
        store.create_topic("empty")
        store.groups.commit("billing", {("orders", 0): 10, ("orders", 1): 20})
    process = Program(data).start("serve", "--listen", "127.0.0.1:0", "--no-auto-create")
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("listening on "), line
        yield data, line.removeprefix("listening on ").partition(",")[0]
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err.decode()


@pytest.fixture
def both(served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Cli, list[str], list[str]]:
    """The program, and how it finds the store: in its directory, and behind its broker."""
    data, address = served
    monkeypatch.delenv("SAWLOG_DATA", raising=False)
    monkeypatch.delenv("SAWLOG_BROKER", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return Cli(data), ["-d", str(data)], ["-b", address]


Both = tuple[Cli, list[str], list[str]]

READ = [
    [],
    ["-o", "-5"],
    ["-o", "+10", "-n", "7"],
    ["-o", "20:30"],
    ["-o", "end"],
    ["-o", "@1700000000100:1700000000120"],
    ["-o", "@-1h"],
    ["-p", "1", "-o", ":3"],
    ["--grep", '"id": 1[0-3]'],
    ["--grep", "customer-3", "--output", "json"],
    ["-o", ":4", "--output", "table"],
    ["-o", ":4", "--output", "ndjson"],
    ["-o", ":4", "--output", "csv"],
    ["-o", ":4", "--raw"],
    ["-o", "-4", "-f", "%t %p %o %k %v %h %T %d{%H:%M} %V\\n"],
]


@pytest.mark.parametrize("options", READ, ids=" ".join)
def test_records_look_the_same_through_a_broker(both: Both, options: list[str]) -> None:
    sawlog, here, there = both
    expected, found = sawlog("read", "orders", *here, *options).ok(), sawlog("read", "orders", *there, *options).ok()
    assert found.raw == expected.raw
    assert found.raw or options[-1] in ("end", "@-1h")


@pytest.mark.parametrize("options", [[], ["--output", "json"], ["--output", "csv"]], ids=" ".join)
def test_topics_are_listed_as_from_the_directory(both: Both, options: list[str]) -> None:
    sawlog, here, there = both
    assert sawlog("topic", "list", *there, *options).ok().raw == sawlog("topic", "list", *here, *options).ok().raw


def test_describe_through_a_broker_shows_what_the_protocol_carries(both: Both) -> None:
    sawlog, here, there = both
    expected = sawlog("topic", "describe", "orders", *here, "--output", "json").ok().json
    found = sawlog("topic", "describe", "orders", *there, "--output", "json").ok().json
    untold = {"created_ms": None}
    untold_of_rows = {"segments": None, "path": None}
    assert found == {**expected, **untold, "rows": [{**row, **untold_of_rows} for row in expected["rows"]]}
    assert "orders" in sawlog("topic", "describe", "orders", *there).ok().out


def test_stats_are_the_same_through_a_broker(both: Both) -> None:
    sawlog, here, there = both
    expected = sawlog("stats", "orders", *here, "--output", "json").ok().json
    found = sawlog("stats", "orders", *there, "--output", "json").ok().json
    assert found["rate"] == expected["rate"]
    assert found["partitions"] == [{**row, "segments": None} for row in expected["partitions"]]
    assert sawlog("stats", *there).ok().lines


def test_parquet_files_have_the_same_records_through_a_broker(both: Both, tmp_path: Path) -> None:
    sawlog, here, there = both
    for name, options in (("all", []), ("some", ["--grep", "customer-3"])):
        sawlog("read", "orders", *here, *options, "--out", tmp_path / f"{name}-here.parquet").ok()
        sawlog("read", "orders", *there, *options, "--out", tmp_path / f"{name}-there.parquet").ok()
        there_table = pq.read_table(tmp_path / f"{name}-there.parquet")
        assert there_table.to_pylist() == pq.read_table(tmp_path / f"{name}-here.parquet").to_pylist()
        assert there_table.num_rows > 10


def test_a_topic_is_created_changed_trimmed_and_deleted(both: Both) -> None:
    sawlog, here, there = both
    made = sawlog("topic", "create", "fresh", *there, "-P", 2, "--set", "retention.ms=7d", "--output", "json").ok().json
    assert made["settings"]["retention.ms"] == 604_800_000
    assert "already exists" in sawlog("topic", "create", "fresh", *there).failed(1)
    assert "already exists" in sawlog("topic", "create", "fresh", *there, "--if-not-exists").ok().err
    sawlog("topic", "alter", "fresh", *there, "-P", 3, "--unset", "retention.ms", "--set", "segment.bytes=1MiB").ok()
    assert "partitions" in sawlog("topic", "alter", "fresh", *there, "-P", 1).failed(2)
    about = sawlog("topic", "describe", "fresh", *here, "--output", "json").ok().json
    assert (about["id"], about["partitions"]) == (made["id"], 3)
    assert about["settings"]["segment.bytes"] == 1 << 20
    sawlog("produce", "fresh", *there, "-p", 1, stdin=b"one\ntwo\nthree\n").ok()
    sawlog("topic", "trim", "fresh", *there, "--to", 2, "-p", 1, "--yes").ok()
    assert sawlog("read", "fresh", *here).ok().lines == ["three"]
    sawlog("topic", "delete", "fresh", *there, "--yes").ok()
    assert "fresh" not in sawlog("topic", "list", *here).ok().out
    assert "no topic 'fresh'" in sawlog("topic", "delete", "fresh", *there, "--yes").failed(3)


@pytest.mark.parametrize(
    ("options", "stdin"),
    [
        ([], b"one\ntwo\n"),
        (["--key-delimiter", ":"], b"a:1\nb:2\nc:3\n"),
        (["--input", "ndjson", "--key", "id", "--timestamp", "at"], b'{"id": "x", "at": 1700000000123}\n'),
        (["--input", "csv", "--key", "name", "--value", "price"], b"name,price\napple,3\npear,4\n"),
        (["--compression", "zstd", "-H", "a=b"], b"one\ntwo\n"),
        (["--partition", "1", "--compression", "gzip"], b"one\n"),
        (["--partition", "1"], b"one\n"),
        (["--empty-is-null", "--key", "k"], b"\nx\n"),
        (["--input", "file", "--key", "k"], b"a whole\nfile"),
        (["--rate", "1000"], b"one\ntwo\n"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_produce_through_a_broker_stores_the_same_records(both: Both, options: list[str], stdin: bytes) -> None:
    sawlog, _, there = both
    form = ["-f", "%p %o %k %v %V %h\n"]
    read = []
    with_directory = Cli(sawlog.data.parent / "alone")
    alone = ["-d", str(with_directory.data)]
    name = f"made-{abs(hash(tuple(options)))}"
    for where in (alone, there):
        sawlog("topic", "create", name, *where, "-P", 2, "--if-not-exists").ok()
        done = sawlog("produce", name, *where, *options, "--output", "json", stdin=stdin).ok().json
        read.append((sorted(sawlog("read", name, *where, *form).ok().lines), done["records"], done["size_bytes"]))
    keyed = any(each in options for each in ("--key", "--key-delimiter", "--partition"))
    if not keyed:  # without a key the partition is chosen at random
        read = [(sorted(line[4:] for line in lines), *rest) for lines, *rest in read]
    assert read[0] == read[1]
    assert read[0][0]


def test_records_and_parquet_are_copied_through_a_broker(both: Both, tmp_path: Path) -> None:
    sawlog, _, there = both
    for name, given in (("copy-records", "records"), ("copy-parquet", "parquet")):
        sawlog("topic", "create", name, *there, "-P", 2).ok()
        if given == "records":
            lines = sawlog("read", "orders", *there, "--output", "ndjson").ok().raw
            sawlog("produce", name, *there, "--input", "records", stdin=lines).ok()
        else:
            sawlog("read", "orders", *there, "--out", tmp_path / "orders.parquet").ok()
            sawlog("produce", name, *there, tmp_path / "orders.parquet").ok()
        form = ["-f", "%p %k %v %T %h\n"]
        assert sawlog("read", name, *there, *form).ok().raw == sawlog("read", "orders", *there, *form).ok().raw


def test_new_records_are_followed(both: Both, served: tuple[Path, str]) -> None:
    sawlog, _, there = both
    sawlog("topic", "create", "followed", *there, "-P", 2).ok()
    process = Program(served[0]).start("read", "followed", *there, "--follow", "-o", "start", "-f", "%p %v\n")
    try:
        assert process.stdout is not None
        for number in (0, 1, 0):
            sawlog("produce", "followed", *there, "-p", number, stdin=b"news\n").ok()
            assert process.stdout.readline() == b"%d news\n" % number
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_record_for_a_compacted_topic_needs_a_key(both: Both) -> None:
    sawlog, _, there = both
    sawlog("topic", "create", "state", *there, "--set", "cleanup.policy=compact").ok()
    assert "needs a key" in sawlog("produce", "state", *there, stdin=b"x\n").failed(1)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["read", "nope"], 3, "no topic 'nope'"),
        (["produce", "nope"], 3, "no topic 'nope'"),
        (["topic", "describe", "nope"], 3, "no topic 'nope'"),
        (["topic", "alter", "nope", "-P", "3"], 3, "no topic 'nope'"),
        (["topic", "create", "a/b"], 2, "a/b"),
        (["read", "orders", "-p", "7"], 2, "partitions 0 to 1"),
        (["stats", "nope"], 3, "no topic 'nope'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_errors_have_the_same_exit_code(both: Both, arguments: list[str], code: int, told: str) -> None:
    sawlog, here, there = both
    assert told in sawlog(*arguments, *there).failed(code)
    if arguments[:2] != ["topic", "create"]:
        sawlog(*arguments, *here).failed(code)


def test_an_unreachable_broker_is_reported_on_one_line(both: Both) -> None:
    sawlog = both[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert f"no broker at 127.0.0.1:{port}" in sawlog("topic", "list", "-b", f"127.0.0.1:{port}").failed(1)
    assert "HOST:PORT" in sawlog("topic", "list", "-b", "nowhere:x").failed(2)


def test_without_kafka_python_the_error_has_the_install_command(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    for name in ("client", "remote"):
        monkeypatch.delitem(sys.modules, f"sawlog.broker.{name}", raising=False)
    assert "pip install '.[cli]'" in both[0]("topic", "list", *both[2]).failed(1)


# --- where the store is


def test_the_environment_names_a_broker(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    sawlog, here, there = both
    monkeypatch.setenv("SAWLOG_BROKER", there[1])
    assert sawlog("topic", "list").ok().raw == sawlog("topic", "list", *here).ok().raw


def test_options_override_the_environment(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sawlog, here, there = both
    other = tmp_path / "other"
    sawlog("topic", "create", "elsewhere", "-d", other).ok()
    monkeypatch.setenv("SAWLOG_BROKER", there[1])
    assert sawlog("topic", "list", "-d", other, "--output", "csv").ok().lines[1].startswith("elsewhere,")
    monkeypatch.setenv("SAWLOG_DATA", str(other))
    monkeypatch.delenv("SAWLOG_BROKER")
    assert sawlog("topic", "list", *there).ok().raw == sawlog("topic", "list", *here).ok().raw


def test_a_directory_and_a_broker_exclude_each_other(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    sawlog, here, there = both
    assert "not both" in sawlog("topic", "list", *here, *there).failed(2)
    monkeypatch.setenv("SAWLOG_BROKER", there[1])
    monkeypatch.setenv("SAWLOG_DATA", here[1])
    assert "both set" in sawlog("topic", "list").failed(2)
    partition = Path(here[1]) / "topics" / "orders" / "partition-0"
    assert sawlog("read", "--log", partition, "-n", 1).ok().lines  # a log is none of both


def test_a_command_without_a_store_is_a_usage_error(both: Both) -> None:
    for arguments in (["topic", "list"], ["read", "orders"], ["stats"]):
        message = both[0](*arguments).failed(2)
        assert "-d DIR" in message
        assert "-b HOST:PORT" in message


ON_FILES = {
    path
    for path, found in commands(command())
    if "data" in (names := {each.name for each in found.params}) and "broker" not in names
}


def test_the_commands_that_need_files_are_known() -> None:
    assert {("verify",), ("repair",), ("maintenance",), ("import",), ("export",), ("serve",)} <= ON_FILES
    assert not ON_FILES & {("read",), ("produce",), ("stats",), ("topic", "list"), ("groups", "seek")}


@pytest.mark.parametrize("path", sorted(ON_FILES), ids=" ".join)
def test_a_command_that_needs_files_refuses_a_broker(both: Both, path: tuple[str, ...]) -> None:
    message = both[0](*path, "-b", "127.0.0.1:9092").failed(2)
    assert "works on the files of a store" in message
    assert "-d DIR" in message


def test_topics_are_completed_from_a_broker(both: Both, served: tuple[Path, str]) -> None:
    environment = {"_SAWLOG_COMPLETE": "complete_bash", "COMP_WORDS": "sawlog read ord", "COMP_CWORD": "2"}
    found = Program(served[0])("read", env={**environment, "SAWLOG_BROKER": both[2][1], "SAWLOG_DATA": ""})
    assert found.out.split() == ["orders"]


# --- groups


def test_groups_look_the_same_through_a_broker(both: Both) -> None:
    sawlog, here, there = both
    for arguments in (["groups", "list"], ["groups", "describe", "billing"]):
        for output in ("table", "csv", "json"):
            expected = sawlog(*arguments, *here, "--output", output).ok()
            found = sawlog(*arguments, *there, "--output", output).ok()
            assert found.raw == expected.raw
    assert json.loads(expected.raw)["rows"][0]["committed"] == 10


def test_unknown_members_of_a_served_group_are_not_shown_as_zero(both: Both) -> None:
    sawlog, here, there = both
    settings = {"bootstrap.servers": there[1], "group.id": "live", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.subscribe(["orders"])
        while not consumer.consume(1, 0.1):
            pass  # it has joined when it reads
        consumer.commit(asynchronous=False)

        def listed(place: list[str]) -> dict[str, object]:
            rows = sawlog("groups", "list", *place, "--output", "json").ok().json
            [row] = [each for each in rows if each["group"] == "live"]
            return {name: row[name] for name in ("members", "partitions", "broker")}

        assert listed(there) == {"members": 1, "partitions": 2, "broker": None}
        assert listed(here) == {"members": None, "partitions": 2, "broker": there[1]}
        found = sawlog("groups", "list", *here).ok()
        assert there[1] in next(line for line in found.lines if line.startswith("live"))
        assert f"sawlog groups list -b {there[1]}" in found.err
        found = sawlog("groups", "describe", "live", *here).ok()
        assert "0 members" not in found.err
        assert f"served by the broker {there[1]}" in found.err
        told = sawlog("groups", "describe", "live", *here, "--output", "json").ok().json
        assert (told["members"], told["broker"]) == (None, there[1])
    finally:
        consumer.close()
    sawlog("groups", "delete", "live", *there, "--yes").ok()


def test_a_group_is_moved_and_deleted(both: Both) -> None:
    sawlog, here, there = both
    with_topic = ["groups", "seek", "moving", "--topic", "orders"]
    sawlog(*with_topic, *there, "--to", "5").ok()
    for options in (["--to", "-3"], ["--to", "@1700000000100"], ["--by", "2"], ["--to", "9999"]):
        expected = sawlog("groups", "seek", "moving", *here, *options, "--dry-run", "--output", "json").ok().raw
        found = sawlog("groups", "seek", "moving", *there, *options, "--output", "json").ok().raw
        assert found == expected
    rows = sawlog("groups", "describe", "moving", *here, "--output", "json").ok().json["rows"]
    assert [row["lag"] for row in rows] == [0, 0]
    sawlog("groups", "delete", "moving", *there, "--yes").ok()
    assert "moving" not in sawlog("groups", "list", *here).ok().out
    assert "no group 'moving'" in sawlog("groups", "describe", "moving", *there).failed(3)
    assert "no group 'moving'" in sawlog("groups", "delete", "moving", *there, "--yes").failed(3)
