"""`sawlog groups` and `sawlog redrive`: lag, moving groups without members, and returning dead letters."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sawlog.store.directory.store import DirectoryStore

from .conftest import Cli


@pytest.fixture
def billing(sawlog: Cli, orders: Path) -> Cli:
    """A group that has committed offset 4 in partition 0 of `orders` and 1 in partition 1."""
    with DirectoryStore.open(orders) as store:
        store.groups.commit("billing", {("orders", 0): 4, ("orders", 1): 1})
    return sawlog


def committed(data: Path, group: str = "billing") -> dict[tuple[str, int], int | None]:
    with DirectoryStore.open(data, mode="r") as store:
        return {(row.topic, row.partition): row.committed for row in store.groups.describe(group).rows}


def test_list_shows_the_lag(billing: Cli) -> None:
    assert billing("groups", "list", "--output", "json").ok().json == [
        {"group": "billing", "members": 0, "partitions": 2, "lag": 10, "open": None, "broker": None}
    ]
    assert billing("groups", "list").ok().lines[1].split() == ["billing", "0", "2", "10"]


def test_an_empty_list_says_why(sawlog: Cli, orders: Path) -> None:
    result = sawlog("groups", "list").ok()
    assert result.raw == b""
    assert "no groups yet" in result.err


def test_describe_shows_every_partition(billing: Cli) -> None:
    found = billing("groups", "describe", "billing", "--output", "json").ok().json
    assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in found["rows"]] == [
        (0, 4, 10, 6),
        (1, 1, 5, 4),
    ]
    rows = list(csv.DictReader(billing("groups", "describe", "billing", "--output", "csv").ok().lines))
    assert [row["lag"] for row in rows] == ["6", "4"]
    result = billing("groups", "describe", "billing").ok()
    assert result.lines[0].split()[:3] == ["TOPIC", "PARTITION", "COMMITTED"]
    assert "10 records not yet consumed" in result.err


def test_describe_tells_open_messages_of_a_queue_from_its_lag(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store, store.queue("orders", group="workers") as queue:
        for message in queue.drain():
            if (message.partition, message.offset) == (0, 2):
                queue.release(message, delay_s=3600)
            else:
                queue.ack(message)
    found = sawlog("groups", "describe", "workers", "--output", "json").ok().json
    assert [(row["lag"], row["open"]) for row in found["rows"]] == [(8, 1), (0, 0)]
    result = sawlog("groups", "describe", "workers").ok()
    assert "OPEN" in result.lines[0]
    assert "1 message open" in result.err
    [listed] = sawlog("groups", "list", "--output", "json").ok().json
    assert (listed["lag"], listed["open"]) == (8, 1)
    assert "OPEN" in sawlog("groups", "list").ok().lines[0]


def test_a_group_served_by_a_broker_names_it_and_is_not_moved(billing: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        served = store.groups._claim("billing", "127.0.0.1:9092")
        served.take()
        assert "served by the broker 127.0.0.1:9092" in billing("groups", "describe", "billing").ok().err
        assert "connect to 127.0.0.1:9092" in billing("groups", "seek", "billing", "--to", "start").err
        served.release()


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "start"], (0, 0)),
        (["--to", "end"], (10, 5)),
        (["--to", "earliest"], (0, 0)),
        (["--to", "latest"], (10, 5)),
        (["--to", "3"], (3, 3)),
        (["--to", "-2"], (8, 3)),
        (["--to", "@1700000005000"], (5, 0)),
        (["--by", "-3"], (1, 0)),
        (["--by", "100"], (10, 5)),
        (["--to", "end", "-p", "1"], (4, 5)),
    ],
)
def test_seek_moves_to_an_offset(billing: Cli, data: Path, arguments: list[str], expected: tuple[int, int]) -> None:
    billing("groups", "seek", "billing", *arguments).ok()
    assert committed(data) == {("orders", 0): expected[0], ("orders", 1): expected[1]}


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--to", "500"],
            ["offset 500 is beyond the end; using the end, 10", "offset 500 is beyond the end"],
        ),
        (["--to", "+7"], ["", "offset 7 is beyond the end; using the end, 5"]),
        (["--by", "100"], ["offset 104 is beyond the end; using the end, 10", "offset 101 is beyond the end"]),
        (["--by", "-3"], ["", "offset -2 is before the first record; using the start, 0"]),
        (["--to", "-500"], ["", ""]),
        (["--to", "@2100-01-01"], ["", ""]),
        (["--to", "end"], ["", ""]),
        (["--to", "5"], ["", ""]),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--output", "json"]], ids=["table", "dry run", "json"])
def test_seek_reports_an_adjusted_offset(billing: Cli, arguments: list[str], said: list[str], more: list[str]) -> None:
    result = billing("groups", "seek", "billing", *arguments, *more).ok()
    for number, text in enumerate(said):
        told = f"orders/{number}: {text}"
        assert (told in result.err) if text else (f"orders/{number}:" not in result.err)
    if more == ["--output", "json"]:
        assert [bool(row["remark"]) for row in result.json] == [bool(text) for text in said]


def test_seek_with_dry_run_moves_nothing(billing: Cli, data: Path) -> None:
    rows = billing("groups", "seek", "billing", "--to", "start", "--dry-run", "--output", "json").ok().json
    assert [(row["committed"], row["to"]) for row in rows] == [(4, 0), (1, 0)]
    assert committed(data) == {("orders", 0): 4, ("orders", 1): 1}


def test_seek_creates_a_group_for_a_named_topic(sawlog: Cli, orders: Path) -> None:
    sawlog("groups", "seek", "fresh", "--to", "-1", "--topic", "orders").ok()
    assert committed(orders, "fresh") == {("orders", 0): 9, ("orders", 1): 4}


def test_group_with_members_is_not_moved_or_deleted(billing: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store, store.consumer("billing", ["orders"]) as consumer:
        consumer.poll(5.0, 1)
        billing("groups", "seek", "billing", "--to", "start").failed(5)
        billing("groups", "delete", "billing", "--yes").failed(5)
        found = billing("groups", "describe", "billing", "--output", "json").ok().json
        assert len(found["members"]) == 1
        assert {row["owner"] for row in found["rows"]} == {found["members"][0]["id"]}


def test_delete_asks_for_confirmation(billing: Cli) -> None:
    assert "--yes" in billing("groups", "delete", "billing").failed(2)
    assert billing("groups", "delete", "billing", "--yes", "--output", "json").ok().json["deleted"] is True
    assert billing("groups", "list", "--output", "json").json == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "nobody"],
        ["seek", "nobody", "--to", "end"],
        ["delete", "nobody", "--yes"],
        ["seek", "billing", "--to", "end", "-t", "nope"],
    ],
)
def test_missing_group_or_topic_is_not_found(billing: Cli, arguments: list[str]) -> None:
    billing("groups", *arguments).failed(3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--to OFFSET or --by N"),
        (["--to", "end", "--by", "1"], "--to OFFSET"),
        (["--to", "1:2"], "a single offset"),
        (["--to", "end", "-p", "5"], "0 to 1"),
    ],
)
def test_seek_without_a_target_is_a_usage_error(billing: Cli, arguments: list[str], complaint: str) -> None:
    assert complaint in billing("groups", "seek", "billing", *arguments).failed(2)


def test_dead_letters_are_listed_and_returned(sawlog: Cli) -> None:
    with DirectoryStore.open(sawlog.data) as store:
        store.create_topic("orders").append_many([b"one", b"two"])
        with store.queue("orders", group="workers") as queue:
            for message in queue.drain():
                queue.reject(message)
    row = {"group": "workers", "topic": "orders", "partition": 0, "letters": 2}
    assert sawlog("redrive", "orders-dead", "--dry-run", "--output", "json").ok().json == [row]
    assert "dry run: 2 would be returned" in sawlog("redrive", "orders-dead", "--dry-run").ok().err
    assert "orders-dead: 2 returned" in sawlog("redrive", "orders-dead").ok().err
    assert "no dead letters" in sawlog("redrive", "orders-dead").ok().err
    assert sawlog("redrive", "orders-dead", "--output", "json").ok().json == []
    sawlog("redrive", "missing").failed(3)
    sawlog("redrive", "orders-dead", "--limit", "0").failed(2)
