"""`sawlog read`: selection, formats, and reports of unreadable records."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sawlog import Log, LogConfig
from sawlog.store.directory.store import DirectoryStore

from ..log.transactional import send
from .conftest import Cli
from .damage import flip_bit, segment_of


def test_tail_prints_the_last_records_of_all_partitions_in_order_of_time(sawlog: Cli, data: Path) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("mixed", 3, durability="os")
        for number in range(20):
            topic.append(b"%d" % number, timestamp=1_700_000_000_000 + number, partition=number % 2)
    assert sawlog("read", "mixed", "--tail", 3).ok().lines == ["17", "18", "19"]
    assert sawlog("read", "mixed", "--tail", 3, "--grep", "8").ok().lines == ["18"]
    assert sawlog("read", "mixed", "--tail", 100).ok().lines == [str(number) for number in range(20)]
    assert sawlog("read", "mixed", "--tail", 2, "-p", 0).ok().lines == ["16", "18"]
    assert [row["offset"] for row in sawlog("read", "mixed", "--tail", 2, "--output", "json").ok().json] == [9, 9]
    assert "--tail or --offset" in sawlog("read", "mixed", "--tail", 3, "-o", "end").failed(2)
    assert "group" in sawlog("read", "mixed", "--tail", 3, "--group", "g").failed(2)


def test_tail_finds_its_records_behind_offsets_without_any(sawlog: Cli, data: Path) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("state", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, durability="os")
        for number in range(50):
            topic.append(b"%d" % number, b"key" if number > 2 else b"%d" % number)
        topic.partition(0).seal()
        topic.append(b"last", b"key")
        topic.partition(0).compact()
    assert sawlog("read", "state", "--tail", 3).ok().lines[-1] == "last"
    assert len(sawlog("read", "state", "--tail", 3).ok().lines) == 3


def test_an_offset_from_the_end_of_several_partitions_is_explained(sawlog: Cli, orders: Path) -> None:
    result = sawlog("read", "orders", "-o", "-3").ok()
    assert len(result.lines) == 6
    assert "-o -3 is per partition, and orders has several; --tail 3 prints the last 3 of all" in result.err
    assert sawlog("read", "orders", "-o", "-3", "-p", 0).ok().err == ""
    assert sawlog("read", "orders", "-o", "-3", "--output", "ndjson").ok().err == ""


def test_values_are_printed_one_per_line_partition_by_partition(sawlog: Cli, orders: Path) -> None:
    assert sawlog("read", "orders").ok().lines == [*(f"a{n}" for n in range(10)), *(f"b{n}" for n in range(5))]


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("start", "a0 a1 a2 a3 a4 a5 a6 a7 a8 a9"),
        ("end", ""),
        ("-3", "a7 a8 a9"),
        ("8", "a8 a9"),
        ("+8", "a8 a9"),
        ("2:5", "a2 a3 a4"),
        (":2", "a0 a1"),
        ("@1700000007000", "a7 a8 a9"),
        ("@1700000002000:1700000004000", "a2 a3"),
        ("@2023-11-14T22:13:28Z:", "a8 a9"),
        ("-4:-2", "a6 a7"),
    ],
)
def test_offset_expressions_select_records(sawlog: Cli, orders: Path, offset: str, expected: str) -> None:
    assert sawlog("read", "orders", "-p", 0, "-o", offset).ok().lines == expected.split()


#: Event times that are not in the order of the records.
UNORDERED = [50, 10, 90, 20, 70, 30, 60, 40, 80, 0]


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("@1700000020:1700000060", [50, 20, 30, 40]),
        ("@1700000060:", [90, 70, 60, 80]),
        ("@1700000085", [90]),
        (":@1700000030", [10, 20, 0]),
        ("2:@1700000060", [20, 30, 40, 0]),
        ("@1700000050:@1700000051", [50]),
        ("@1700000091:1700000099", []),
    ],
)
def test_a_range_of_times_selects_records_in_any_order(
    sawlog: Cli, data: Path, tmp_path: Path, offset: str, expected: list[int]
) -> None:
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("events")
        for at in UNORDERED[:5]:
            topic.append(b"%d" % at, timestamp=1_700_000_000_000 + 1000 * at)
        topic.append_many([(b"%d" % at, None, (), 1_700_000_000_000 + 1000 * at) for at in UNORDERED[5:]])
    wanted = [str(each) for each in expected]
    assert sawlog("read", "events", "-o", offset).ok().lines == wanted
    assert sawlog("read", "events", "-o", offset, "--grep", "0").ok().lines == wanted
    for more in ([], ["--grep", "0"]):
        sawlog("read", "events", "-o", offset, "--out", tmp_path / "out.parquet", *more).ok()
        values = pq.read_table(tmp_path / "out.parquet")["value"].to_pylist()
        assert values == [each.encode() for each in wanted]


def test_the_last_n_records_are_those_of_each_partition(sawlog: Cli, orders: Path) -> None:
    assert sawlog("read", "orders", "-o", "-1").ok().lines == ["a9", "b4"]


def test_count_limits_the_total_over_all_partitions(sawlog: Cli, orders: Path) -> None:
    assert len(sawlog("read", "orders", "-n", 12).ok().lines) == 12
    assert sawlog("read", "orders", "-n", 0).ok().raw == b""


def test_format_prints_the_requested_fields(sawlog: Cli, orders: Path) -> None:
    lines = sawlog("read", "orders", "-o", "-1", "-f", r"%t/%p@%o %k=%v %h %T\n").ok().lines
    assert lines == ["orders/0@9 k9=a9 n=9 1700000009000", "orders/1@4 =b4  1700000104000"]


def test_raw_prints_values_without_separators(sawlog: Cli, orders: Path) -> None:
    assert sawlog("read", "orders", "-p", 1, "--raw").ok().raw == b"b0b1b2b3b4"


def test_read_prints_records_in_every_format(sawlog: Cli, orders: Path) -> None:
    expected = {
        "topic": "orders",
        "partition": 0,
        "offset": 9,
        "timestamp": 1_700_000_009_000,
        "key": "k9",
        "value": "a9",
        "headers": [{"key": "n", "value": "9"}],
    }
    assert sawlog("read", "orders", "-p", 0, "-o", "-1", "--output", "json").ok().json == [expected]
    assert [json.loads(line) for line in sawlog("read", "orders", "-p", 0, "-o", "-1", "--output", "ndjson").lines] == [
        expected
    ]
    [row] = csv.DictReader(sawlog("read", "orders", "-p", 0, "-o", "-1", "--output", "csv").ok().lines)
    assert (row["offset"], row["value"], json.loads(row["headers"])) == ("9", "a9", expected["headers"])
    head, line = sawlog("read", "orders", "-p", 0, "-o", "-1", "--output", "table").ok().lines
    assert head.split() == ["TOPIC", "PARTITION", "OFFSET", "TIME", "KEY", "VALUE", "HEADERS"]
    assert line.split()[-3:] == ["k9", "a9", "n=9"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("a[3-4]", ["a3", "a4"]), ("^k7$", ["a7"]), ("^5$", ["a5"]), ("(?i)A1", ["a1"]), ("nothing", [])],
)
def test_grep_searches_value_key_and_headers(sawlog: Cli, orders: Path, pattern: str, expected: list[str]) -> None:
    assert sawlog("read", "orders", "--grep", pattern).ok().lines == expected


def test_count_limits_the_matches_of_grep(sawlog: Cli, orders: Path) -> None:
    assert sawlog("read", "orders", "--grep", "[ab]4", "-n", 2).ok().lines == ["a4", "b4"]


def test_parquet_has_every_column(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    result = sawlog("read", "orders", "--out", tmp_path / "o.parquet").ok()
    assert result.raw == b""
    table = pq.read_table(tmp_path / "o.parquet")
    assert table.column_names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.num_rows == 15
    assert table.column("value").to_pylist()[-1] == b"b4"
    assert not list(tmp_path.glob("*.tmp"))


def test_parquet_of_a_search_and_of_a_count(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    sawlog("read", "orders", "--out", tmp_path / "g.parquet", "--grep", "a[12]").ok()
    found = pq.read_table(tmp_path / "g.parquet").to_pylist()
    assert [(each["offset"], each["key"], each["headers"]) for each in found] == [
        (1, b"k1", [{"key": "n", "value": b"1"}]),
        (2, b"k2", []),
    ]
    sawlog("read", "orders", "--out", tmp_path / "n.parquet", "-n", 12).ok()
    assert pq.read_table(tmp_path / "n.parquet").num_rows == 12


def test_parquet_output_can_be_produced_again_unchanged(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    sawlog("read", "orders", "--out", tmp_path / "o.parquet").ok()
    sawlog("topic", "create", "copy").ok()
    sawlog("produce", "copy", tmp_path / "o.parquet").ok()
    form = r"%k %v %h %T\n"
    assert sawlog("read", "copy", "-f", form).raw == sawlog("read", "orders", "-f", form).raw


def test_output_can_go_to_a_file(sawlog: Cli, orders: Path, tmp_path: Path) -> None:
    assert sawlog("read", "orders", "-p", 1, "--out", tmp_path / "o.txt").ok().raw == b""
    assert (tmp_path / "o.txt").read_text() == "b0\nb1\nb2\nb3\nb4\n"


def test_stats_of_a_partition_directory_needs_no_store(
    sawlog: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAWLOG_DATA")
    with Log.open(tmp_path / "plain") as log:
        log.append_many([b"one", b"two"])
    assert sawlog("read", "--log", tmp_path / "plain", "-f", r"%t %o %v\n").ok().lines == ["plain 0 one", "plain 1 two"]
    assert "no log" in sawlog("read", "--log", tmp_path / "nowhere").failed(3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["orders", "-o", "soon"], "the last 100"),
        (["orders", "-f", "%q"], "%q is not known"),
        (["orders", "--grep", "("], "not a regular expression"),
        (["orders", "-p", "9"], "0 to 1"),
        (["orders", "-n", "-1"], "--count"),
        (["orders", "--raw", "-f", "%v"], "exclude each other"),
        (["orders", "--output", "xml"], "--output"),
        (["orders", "--out", "x.parquet", "--follow"], "leave out --follow"),
        (["orders", "--out", "x.parquet", "--raw"], "has its own format"),
        ([], "give a topic, or the directory of one partition"),
        (["orders", "--bogus"], "--bogus"),
    ],
)
def test_wrong_option_is_a_usage_error_on_one_line(
    sawlog: Cli, orders: Path, arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sawlog("read", *arguments)
    assert complaint in result.failed(2)
    assert len(result.err.splitlines()) == 1
    assert result.raw == b""


def test_the_log_option_overrides_the_environment(sawlog: Cli, orders: Path) -> None:
    partition = orders / "topics/orders/partition-0"
    assert sawlog("read", "--log", partition).ok().lines == [f"a{number}" for number in range(10)]
    assert "a topic needs a store" in sawlog("read", "orders", "--log", partition).failed(2)


def test_a_missing_topic_lists_the_existing_ones(sawlog: Cli, orders: Path) -> None:
    said = sawlog("read", "nope").failed(3)
    assert "orders" in said
    assert "sawlog topic create" in said


# --- damage


@pytest.fixture
def damaged(sawlog: Cli, data: Path) -> Cli:
    """A topic with thirty records in small segments; the batch with offset 12 is bad."""
    with DirectoryStore.open(data) as store:
        topic = store.create_topic("orders", durability="os", segment_bytes=2000)
        for number in range(30):
            topic.append(b"value %02d " % number + b"x" * 100)
    file = next(f for f in sorted(segment_of(data).parent.glob("*.log"), reverse=True) if int(f.stem) <= 12)
    position = file.read_bytes().index(b"value 12")
    flip_bit(file, position)
    return sawlog


def test_reading_stops_at_damage_and_names_the_next_readable_offset(damaged: Cli) -> None:
    result = damaged("read", "orders", "-f", r"%o\n")
    assert "the next readable offset is 13" in result.failed(4)
    assert result.lines == [str(number) for number in range(12)]
    assert damaged("read", "orders", "-o", "13", "-f", r"%o\n").ok().lines == [str(number) for number in range(13, 30)]


def test_damage_can_be_skipped_and_is_still_reported(damaged: Cli) -> None:
    result = damaged("read", "orders", "-f", r"%o\n", "--skip-damage")
    assert result.code == 4
    assert result.lines == [str(number) for number in range(30) if number != 12]
    assert "orders/0" in result.err


def test_parquet_with_damage_leaves_no_file_unless_it_is_skipped(damaged: Cli, tmp_path: Path) -> None:
    out = tmp_path / "o.parquet"
    damaged("read", "orders", "--out", out).failed(4)
    assert not list(tmp_path.glob("o.parquet*"))
    assert damaged("read", "orders", "--out", out, "--skip-damage").code == 4
    assert pq.read_table(out).num_rows == 29


def test_damage_at_the_end_of_the_last_segment_is_not_mistaken_for_its_end(sawlog: Cli, orders: Path) -> None:
    file = segment_of(orders)
    flip_bit(file, file.stat().st_size - 3)
    result = sawlog("read", "orders", "-p", 0)
    assert str(file) in result.failed(4)
    assert result.lines == [f"a{number}" for number in range(9)]


def test_reading_changes_nothing_on_disk(sawlog: Cli, orders: Path) -> None:
    def look() -> dict[str, tuple[int, bytes]]:
        return {str(f): (f.stat().st_mtime_ns, f.read_bytes()) for f in orders.rglob("*") if f.is_file()}

    before = look()
    for command in (["read", "orders"], ["topic", "list"], ["verify"], ["stats"], ["repair"], ["groups", "list"]):
        sawlog(*command).ok()
    assert look() == before


def test_records_that_are_trimmed_while_they_are_read_are_reported(
    sawlog: Cli, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DirectoryStore.open(data) as store:
        log = store.create_topic("orders", durability="os", segment_bytes=300).partition(0)
        for number in range(20):
            log.append(b"%d" % number + b" " * 100)
        monkeypatch.setattr("sawlog.cli.read.resolve", lambda span, log: (0, 20))  # as it was before the trim
        log.trim(15)
        result = sawlog("read", "orders", "-f", r"%o\n").ok()
    assert result.lines == ["15", "16", "17", "18", "19"]
    assert "offsets 0 to 14 were removed" in result.err


def test_large_values_are_printed_whole(sawlog: Cli, tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", LogConfig(durability="os")) as log:
        log.append(b"x" * 3_000_000)
    assert sawlog("read", "--log", tmp_path / "log", "--raw").ok().raw == b"x" * 3_000_000


def test_uncommitted_records_are_printed_only_on_request(sawlog: Cli, data: Path, tmp_path: Path) -> None:
    with DirectoryStore.open(data) as store:
        log = store.create_topic("orders").partition(0)
        send(log, [b"gone"], 7)
        log.append_marker(7, 0, commit=False)
        log.append(b"there")
        send(log, [b"open"], 7)
    assert sawlog("read", "orders", "-d", data).lines == ["there"]
    everything = sawlog("read", "orders", "-d", data, "--isolation", "uncommitted")
    assert everything.lines == ["gone", "there", "open"]
    assert sawlog("read", "orders", "-d", data, "-o", "-1").lines == ["there"]
    out = tmp_path / "out.parquet"
    sawlog("read", "orders", "-d", data, "--out", out)
    assert pq.read_table(out).column("value").to_pylist() == [b"there"]
