"""`sawlog topic`: made, listed, described, altered, trimmed and deleted from the command line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import get_args

import pytest

from sawlog.cli.output import OutputFormat
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.settings import SETTINGS

from .conftest import Cli


def test_create_makes_the_store_and_the_topic(sawlog: Cli, data: Path) -> None:
    result = sawlog("topic", "create", "orders", "--partitions", 3).ok()
    assert "orders: created, 3 partitions" in result.err
    assert result.raw == b""
    with DirectoryStore.open(data, mode="r") as store:
        assert store.topic("orders").partitions == 3


def test_the_data_option_overrides_the_environment(sawlog: Cli, data: Path, tmp_path: Path) -> None:
    sawlog("topic", "create", "orders", "-d", tmp_path / "other").ok()
    assert not data.exists()
    assert sawlog("topic", "list", "--data", tmp_path / "other", "--output", "json").json[0]["name"] == "orders"


def test_settings_take_units(sawlog: Cli) -> None:
    arguments = ["--set", "retention.ms=7d", "-s", "segment.bytes=64MiB", "-s", "retention_bytes=-1"]
    made = sawlog("topic", "create", "orders", *arguments, "--output", "json").json
    assert made["settings"] == {"retention.ms": 604_800_000, "segment.bytes": 64 << 20, "retention.bytes": -1}


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("retention.ms", "is not NAME=VALUE"),
        ("retention.ms=soon", "1h30m"),
        ("segment.bytes=big", "64KiB"),
        ("segment.bytes=0", "segment.bytes must be"),
        ("colour=red", "`sawlog topic settings` lists them"),
        ("cleanup.policy=shred", "delete, compact"),
    ],
)
def test_an_invalid_setting_is_a_usage_error_with_valid_values(sawlog: Cli, setting: str, complaint: str) -> None:
    assert complaint in sawlog("topic", "create", "orders", "--set", setting).failed(2)


def test_wrong_name_is_a_usage_error(sawlog: Cli) -> None:
    assert "a-z A-Z 0-9" in sawlog("topic", "create", "no/slash").failed(2)


def test_an_existing_topic_is_an_error_unless_allowed(sawlog: Cli, orders: Path) -> None:
    assert "orders" in sawlog("topic", "create", "orders").failed(1)
    assert "orders: already exists, 2 partitions" in sawlog("topic", "create", "orders", "--if-not-exists").ok().err


def test_list_shows_topics_in_every_format(sawlog: Cli, orders: Path) -> None:
    sawlog("topic", "create", "empty").ok()
    table = sawlog("topic", "list").ok().lines
    assert table[0].split() == ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "SETTINGS"]
    assert table[2].split()[:3] == ["orders", "2", "15"]
    found = sawlog("topic", "list", "--output", "json").ok().json
    assert [(each["name"], each["partitions"], each["records"]) for each in found] == [
        ("empty", 1, 0),
        ("orders", 2, 15),
    ]
    assert len(sawlog("topic", "list", "--output", "ndjson").ok().lines) == 2
    rows = list(csv.DictReader(sawlog("topic", "list", "--output", "csv").ok().lines))
    assert [row["name"] for row in rows] == ["empty", "orders"]


def test_an_empty_list_says_how_to_begin(sawlog: Cli, data: Path) -> None:
    DirectoryStore.open(data).close()
    result = sawlog("topic", "list").ok()
    assert result.raw == b""
    assert "sawlog topic create" in result.err
    assert sawlog("topic", "list", "--output", "json").json == []


def test_describe_shows_settings_and_partitions(sawlog: Cli, orders: Path) -> None:
    text = sawlog("topic", "describe", "orders").ok().out
    assert "durability" in text
    assert "PARTITION" in text
    found = sawlog("topic", "describe", "orders", "--output", "json").ok().json
    assert found["settings"] == {"durability": "os"}
    assert [(row["lowest_offset"], row["next_offset"]) for row in found["rows"]] == [(0, 10), (0, 5)]
    rows = list(csv.DictReader(sawlog("topic", "describe", "orders", "--output", "csv").ok().lines))
    assert [row["next_offset"] for row in rows] == ["10", "5"]


@pytest.mark.parametrize(
    "arguments",
    [("describe", "nope"), ("alter", "nope", "-P", "3"), ("delete", "nope", "--yes"), ("trim", "nope", "--to", "5")],
)
def test_missing_topic_is_not_found(sawlog: Cli, orders: Path, arguments: tuple[str, ...]) -> None:
    assert "nope" in sawlog("topic", *arguments).failed(3)


@pytest.mark.parametrize(
    "arguments", [("list",), ("describe", "a"), ("alter", "a", "-P", "3"), ("delete", "a", "--yes")]
)
def test_a_missing_store_is_reported_and_not_created(sawlog: Cli, data: Path, arguments: tuple[str, ...]) -> None:
    assert "no store in" in sawlog("topic", *arguments).failed(3)
    assert not data.exists()


def test_alter_changes_settings_and_adds_partitions(sawlog: Cli, orders: Path) -> None:
    sawlog("topic", "alter", "orders", "--set", "retention.ms=1d", "--unset", "durability", "--partitions", 4).ok()
    found = sawlog("topic", "describe", "orders", "--output", "json").json
    assert found["partitions"] == 4
    assert found["settings"] == {"retention.ms": 86_400_000}


def test_alter_without_a_change_is_a_usage_error(sawlog: Cli, orders: Path) -> None:
    assert "nothing to change" in sawlog("topic", "alter", "orders").failed(2)
    assert "colour" in sawlog("topic", "alter", "orders", "--unset", "colour").failed(2)


def test_fewer_partitions_are_refused(sawlog: Cli, orders: Path) -> None:
    assert sawlog("topic", "alter", "orders", "--partitions", 1).code == 2


def test_delete_without_a_terminal_or_yes_is_refused(sawlog: Cli, orders: Path) -> None:
    assert "--yes" in sawlog("topic", "delete", "orders").failed(2)
    assert sawlog("topic", "list", "--output", "json").json[0]["name"] == "orders"
    assert sawlog("topic", "delete", "orders", "--yes", "--output", "json").ok().json["records"] == 15
    assert sawlog("topic", "list", "--output", "json").json == []


def test_trim_drops_the_oldest(sawlog: Cli, orders: Path) -> None:
    rows = sawlog("topic", "trim", "orders", "--to", "-3", "--yes", "--output", "json").ok().json
    assert [(row["keep_from"], row["dropped"]) for row in rows] == [(7, 7), (2, 2)]
    found = sawlog("topic", "describe", "orders", "--output", "json").json["rows"]
    assert [row["lowest_offset"] for row in found] == [7, 2]


def test_trim_reports_an_offset_beyond_the_end(sawlog: Cli, orders: Path) -> None:
    said = sawlog("topic", "trim", "orders", "--to", 7, "--dry-run").ok().err
    assert "orders/0:" not in said
    assert "orders/1: offset 7 is beyond the end; using the end, 5" in said


def test_trim_by_time_in_one_partition(sawlog: Cli, orders: Path) -> None:
    sawlog("topic", "trim", "orders", "--to", "@1700000004000", "-p", 0, "--yes").ok()
    found = sawlog("topic", "describe", "orders", "--output", "json").json["rows"]
    assert [row["lowest_offset"] for row in found] == [4, 0]


def test_trim_without_yes_or_with_dry_run_drops_nothing(sawlog: Cli, orders: Path) -> None:
    assert "--yes" in sawlog("topic", "trim", "orders", "--to", "5").failed(2)
    rows = sawlog("topic", "trim", "orders", "--to", "5", "--dry-run", "--output", "json").ok().json
    assert [row["dropped"] for row in rows] == [5, 5]
    found = sawlog("topic", "describe", "orders", "--output", "json").json["rows"]
    assert [row["lowest_offset"] for row in found] == [0, 0]


def test_trim_to_an_invalid_offset_is_a_usage_error(sawlog: Cli, orders: Path) -> None:
    assert "--to" in sawlog("topic", "trim", "orders", "--to", "soon").failed(2)
    assert "0 to 1" in sawlog("topic", "trim", "orders", "--to", "5", "-p", "7").failed(2)


@pytest.mark.parametrize("form", get_args(OutputFormat))
def test_settings_are_listed_with_descriptions(sawlog: Cli, form: str) -> None:
    text = sawlog("topic", "settings", "--output", form).ok().out
    assert all(name in text for name in SETTINGS)
