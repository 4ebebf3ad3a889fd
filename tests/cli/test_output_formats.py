"""Every command that prints data prints it as a table, JSON, NDJSON or CSV, chosen by the same option."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import pytest

from sawlog.store.directory.store import DirectoryStore

from ..looping import for_each
from .conftest import Cli
from .test_reference import ALL

#: A command line of every command that prints data and changes nothing.
COMMANDS = (
    "topic list",
    "topic describe orders",
    "topic settings",
    "topic trim orders --to 3 --dry-run",
    "read orders",
    "read orders --tail 3",
    "read orders --group fresh",
    "sql 'select partition, count(*) as n from orders group by all'",
    "stats",
    "stats orders",
    "groups list",
    "groups describe billing",
    "groups describe workers",
    "groups seek billing --to start --dry-run",
    "redrive orders-dead --dry-run",
    "user list",
    "acl list",
    "export orders out --format kafka --dry-run",
    "verify",
    "inspect data/topics/orders/partition-0/00000000000000000000.log",
    "repair --plan",
    "maintenance",
    "help",
)


@pytest.fixture
def filled(orders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store with a group, a queue and a dead letter."""
    with DirectoryStore.open(orders) as store:
        store.groups.commit("billing", {("orders", 0): 4})
        with store.queue("orders", group="workers") as queue:
            queue.reject(next(iter(queue)))
    monkeypatch.chdir(orders.parent)
    return orders


def test_the_option_has_one_spelling() -> None:
    found = {option.metavar for each in ALL.values() for option in each.params if "--output" in option.opts}
    assert found == {"table|json|ndjson|csv"}


@for_each("line", COMMANDS)
def test_data_is_printed_in_every_format(sawlog: Cli, filled: Path, line: str) -> None:
    words = shlex.split(line)
    shown = sawlog(*words, "--output", "table").ok()
    assert shown.out or shown.err
    as_json = json.loads(sawlog(*words, "--output", "json").ok().out)
    rows = [json.loads(each) for each in sawlog(*words, "--output", "ndjson").ok().lines]
    whole = as_json if isinstance(as_json, list) else [as_json]
    assert len(rows) == len(whole)
    assert [set(row) for row in rows] == [set(row) for row in whole]
    table = list(csv.DictReader(io.StringIO(sawlog(*words, "--output", "csv").ok().out)))
    assert table or not rows
