"""Fixtures of this folder: a Spark session, the program, a store with records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog.store.directory.store import DirectoryStore

from ..cli.conftest import Cli
from ..spark import sharing
from ..spark.sharing import spark as spark  # noqa: PLC0414


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that use the session in one process."""
    sharing.group(items)


class NoSpark:
    """Replacement of the session in tests of jobs that must refuse before they use one: no JVM is needed."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark was used: {name}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Directory of the store, which may not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def cli(data: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The program, run inside this process with the existing session."""
    monkeypatch.setenv("SAWLOG_DATA", str(data))
    monkeypatch.setenv("COLUMNS", "100")
    return Cli(data)


@pytest.fixture
def filled(data: Path) -> Callable[..., Path]:
    """A store with a topic `orders`: records with values v0, v1, …, keys k0 to k4, a minute apart; `count` of them."""

    def fill(count: int = 30, partitions: int = 2, first: int = 0, **settings: Any) -> Path:
        with DirectoryStore.open(data, maintenance_interval_s=None) as store:
            topic = store.create_topic("orders", partitions, exist_ok=True, durability="os", **settings)
            for number in range(first, first + count):
                key, headers = b"k%d" % (number % 5), [("n", b"%d" % number)]
                topic.append(b'{"n": %d, "who": "k%d"}' % (number, number % 5), key, headers, moment(number))
        return data

    return fill


def moment(number: int) -> int:
    """Timestamp of a record, by its number."""
    return 1_767_225_600_000 + 60_000 * number  # 2026-01-01T00:00Z, and minutes


@pytest.fixture
def contents(data: Path) -> Callable[..., list[sawlog.Record]]:
    """Return all records of a topic."""

    def scan(topic: str = "orders") -> list[sawlog.Record]:
        with DirectoryStore.open(data, "r") as store:
            return list(store[topic].scan())

    return scan


def forget_last_commit(checkpoint: Path) -> int:
    """Make Spark believe that it died after its sink was done and before it recorded that. Return the micro-batch."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last
