"""A store on object storage passes the suite for stores on every kind of bucket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sawlog.store.objects.store import ObjectStore
from sawlog.testing import StoreSuite


class TestStoreInMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with ObjectStore.open(f"memory://{uuid.uuid4().hex}") as store:
            yield store


class TestStoreInADirectory(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        with ObjectStore.open(f"file://{tmp_path}/store") as store:
            yield store
