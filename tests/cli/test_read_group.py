"""`sawlog read --group`: each record is printed once per group, and printed records are committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Broker

from ..looping import for_each
from .conftest import PATIENCE_S, Cli, Program, Result
from .damage import flip_bit, segment_of

ALL = sorted([f"a{number}" for number in range(10)] + [f"b{number}" for number in range(5)])


@pytest.fixture(params=["directory", "broker"])
def where(request: pytest.FixtureRequest, orders: Path) -> Iterator[list[str]]:
    """The options that name the store with the topic `orders`."""
    if request.param == "directory":
        yield ["-d", str(orders)]
        return
    with Broker(directory=str(orders)) as broker:
        yield ["-b", broker.address]


@pytest.fixture
def read(sawlog: Cli, where: list[str], monkeypatch: pytest.MonkeyPatch) -> Reading:
    monkeypatch.delenv("SAWLOG_DATA")
    return Reading(sawlog, where)


class Reading:
    """`sawlog read orders` for the group `g`."""

    def __init__(self, sawlog: Cli, where: list[str]) -> None:
        self.sawlog, self.where = sawlog, where

    def __call__(self, *options: object, group: str = "g") -> Result:
        return self.sawlog("read", "orders", *self.where, "--group", group, *options)


def test_a_group_gets_every_record_once(read: Reading) -> None:
    assert sorted(read().ok().lines) == ALL
    assert read().ok().lines == []
    read.sawlog("produce", "orders", *read.where, "-p", 1, stdin=b"new\n").ok()
    assert read().ok().lines == ["new"]
    assert sorted(read(group="other").ok().lines) == sorted([*ALL, "new"])


def test_a_count_commits_what_was_printed_and_no_more(read: Reading) -> None:
    parts = [read("-n", 4).ok().lines for _ in range(5)]
    assert [len(part) for part in parts] == [4, 4, 4, 3, 0]
    assert sorted(line for part in parts for line in part) == ALL


def test_records_that_grep_leaves_out_are_committed_too(read: Reading) -> None:
    assert sorted(read("--grep", "b[0-2]").ok().lines) == ["b0", "b1", "b2"]
    assert read().ok().lines == []


def test_a_new_group_can_begin_at_the_end(read: Reading) -> None:
    assert read("-o", "end").ok().lines == []
    read.sawlog("produce", "orders", *read.where, "-p", 0, stdin=b"new\n").ok()
    assert read("-o", "end").ok().lines == ["new"]


def test_records_come_in_any_format(read: Reading) -> None:
    (row,) = read("-n", 1, "--output", "json").ok().json
    assert {"topic", "partition", "offset", "key", "value"} <= set(row)
    assert len(read("-n", 2, "-f", "%p/%o %v\\n").ok().lines) == 2


@for_each(
    "options",
    [["-o", "5"], ["-o", "@-1h"], ["-p", "0"], ["--skip-damage"], ["--out", "x.parquet"], ["--log", "somewhere"]],
)
def test_options_that_contradict_group_are_refused(sawlog: Cli, orders: Path, options: list[str]) -> None:
    sawlog("read", "orders", "--group", "g", *options).failed(2)
    with DirectoryStore.open(orders, mode="r") as store:
        assert store.groups.list() == []


def test_a_missing_topic_creates_no_group(sawlog: Cli, orders: Path) -> None:
    assert "nothing" in sawlog("read", "nothing", "--group", "g").failed(3)
    with DirectoryStore.open(orders, mode="r") as store:
        assert store.groups.list() == []


def test_two_members_share_the_partitions(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store, store.consumer("g", "orders", auto_commit_ms=None) as consumer:
        first = {record.value for record in consumer.drain()}
        assert len(first) == 15
        assert len(sawlog("read", "orders", "--group", "g").ok().lines) <= 10


def test_a_follower_commits_what_it_printed_while_it_waits(program: Program, sawlog: Cli, orders: Path) -> None:
    process = program.start("read", "orders", "--group", "g", "--follow")
    assert process.stdout is not None
    lines = [process.stdout.readline().decode().strip() for _ in ALL]
    assert sorted(lines) == ALL
    with DirectoryStore.open(orders, mode="r") as store:
        deadline = time.monotonic() + PATIENCE_S
        while _lag(store) != 0:
            assert time.monotonic() < deadline, "it committed nothing"
            time.sleep(0.02)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert sawlog("read", "orders", "--group", "g").ok().lines == []


def test_a_broken_pipe_commits_nothing(program: Program, sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        store["orders"].append_many([b"x" * 1000] * 2000, partition=0)
    process = program.start("read", "orders", "--group", "g")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=PATIENCE_S)
    assert len(sawlog("read", "orders", "--group", "g").ok().lines) == 2015


def _lag(store: DirectoryStore) -> int:
    if "g" not in store.groups.list():
        return -1
    rows = store.groups.describe("g").rows
    return sum(row.lag for row in rows) if len(rows) == 2 and all(row.committed is not None for row in rows) else -1


def test_records_printed_before_damage_are_committed(sawlog: Cli, orders: Path) -> None:
    with DirectoryStore.open(orders) as store:
        topic = store.create_topic("single", durability="os")
        for number in range(30):
            topic.append(b"%d" % number)
    flip_bit(segment_of(orders, "single", 0), 1500)
    first = sawlog("read", "single", "--group", "g")
    first.failed(4)
    assert 0 < len(first.lines) < 30
    again = sawlog("read", "single", "--group", "g")
    again.failed(4)
    assert again.lines == []
