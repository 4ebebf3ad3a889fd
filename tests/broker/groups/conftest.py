"""A store for the tests that need one: in files, where fsync takes no time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.store.directory.store import DirectoryStore

from ...log.places import quick


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryStore]:
    with quick(monkeypatch), DirectoryStore.open(path, maintenance_interval_s=None) as made:
        topic = made.create_topic("orders", partitions=2)
        topic.partition(0).append_many([b"x"] * 10)
        yield made
