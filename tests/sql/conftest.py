"""A small store with a topic of orders, and a plain list of its records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Store, Topic
from sawlog.log import slices

T = 1_700_000_000_000
COUNT = 600
SCHEMA = "id BIGINT, amount DOUBLE, status STRING"


def order(number: int) -> dict[str, Any]:
    return {"id": number, "amount": number * 1.5, "status": "failed" if number % 7 == 0 else "paid"}


@pytest.fixture(scope="package")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a closed store with the topic of orders: copying is ten times as fast as writing them."""
    path = tmp_path_factory.mktemp("template") / "data"
    with sawlog.open(path, maintenance_interval_s=None) as made:
        filled(made)
    return path


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Open a new store: empty, or with the topic of orders if the test uses it."""
    if "orders" in request.fixturenames:
        shutil.copytree(request.getfixturevalue("template"), tmp_path / "data")
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as made:
        yield made


def filled(store: Store) -> Topic:
    """Write three partitions of several segments each, with times out of order."""
    topic = store.create_topic("orders", partitions=3, durability="os", segment_bytes=2048)
    for first in range(0, COUNT, 20):
        topic.append_many(
            [
                (json.dumps(order(n)).encode(), b"customer-%d" % (n % 10), (("n", b"%d" % n),), T + (n ^ 3))
                for n in range(first, first + 20)
            ]
        )
    return topic


@pytest.fixture
def orders(store: Store) -> Topic:
    """The topic of orders."""
    return store["orders"]


@pytest.fixture(scope="package")
def shared(template: Path) -> Iterator[Store]:
    """A read-only store with the same topic."""
    with sawlog.open(template, mode="r") as made:
        yield made


class Asked:
    """Records the reads of logs: columns, first offset, end."""

    def __init__(self) -> None:
        self.pieces: list[tuple[tuple[str, ...], int, int]] = []

    def read(self, directory: Any, piece: slices.Slice, config: Any, **options: Any) -> Any:
        self.pieces.append((tuple(options["columns"]), piece.start_offset, piece.end_offset))
        return _read(directory, piece, config, **options)


_read = slices.read


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record reads from now on."""
    made = Asked()
    monkeypatch.setattr(slices, "read", made.read)
    return made


def rows(topic: Topic) -> list[tuple[int, int, int, bytes | None, bytes | None]]:
    """Return all records by the plain scan."""
    return [(r.partition, r.offset, r.timestamp, r.key, r.value) for r in topic.scan()]
