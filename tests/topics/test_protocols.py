"""The store suite passes on every kind of directory, and notices what
a store does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog.storage import MemoryDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import StoreSuite

from ..faults.disk import FaultyStorage


class TestStoreInFiles(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[DirectoryStore]:
        with DirectoryStore.open(tmp_path, maintenance_interval_s=None) as store:
            yield store


# A store uses a directory by its interface alone, and tests/storage has a suite for each kind of directory.
@pytest.mark.slow
class TestStoreInMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[DirectoryStore]:
        with DirectoryStore.open(MemoryDirectory(), maintenance_interval_s=None) as store:
            yield store


@pytest.mark.slow
class TestStoreOnASimulatedDisk(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[DirectoryStore]:
        with DirectoryStore.open(FaultyStorage(1), maintenance_interval_s=None) as store:
            yield store


class _DeletesNothing(DirectoryStore):
    def delete_topic(self, name: str) -> None:
        self.topic(name)


class _StoresTwice(DirectoryStore):
    """Names and numbers do not count."""

    def transaction(self, *arguments: Any, **named: Any) -> Any:
        return super().transaction()


class _ListsUnsorted(DirectoryStore):
    def topics(self) -> list[str]:
        return super().topics()[::-1]


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (_DeletesNothing, "test_a_recreated_topic_is_a_new_topic"),
        (_StoresTwice, "test_a_named_transaction_is_stored_once_per_number"),
        (_ListsUnsorted, "test_topics_are_listed_by_name"),
    ],
)
def test_a_store_that_breaks_a_promise_is_noticed(kind: type[DirectoryStore], promise: str) -> None:
    with kind.open(MemoryDirectory(), maintenance_interval_s=None) as store, pytest.raises(AssertionError):
        getattr(StoreSuite(), promise)(store)
