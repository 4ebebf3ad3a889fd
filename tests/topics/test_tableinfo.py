"""A topic remembers where its table is, as long as it is that topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog.errors import CorruptFile, ReadOnlyLog
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.table_info import TableInfo

INFO = TableInfo("iceberg", "/lake/orders", (("id", "bigint"),), 17, {"name": "prod"}, "sawlog.orders")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with DirectoryStore.open(tmp_path / "data", maintenance_interval_s=None) as store:
        store.create_topic("orders", 2)
    return tmp_path / "data"


def test_readers_find_the_table_by_the_topics_name(data: Path) -> None:
    with DirectoryStore.open(data, maintenance_interval_s=None) as store, DirectoryStore.open(data, "r") as other:
        assert other["orders"].table is None
        store["orders"].table = INFO
        assert other["orders"].table == INFO
        store["orders"].table = None
        assert other["orders"].table is None
        store["orders"].table = None


def test_a_recreated_topic_has_no_table(data: Path) -> None:
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].table = INFO
        store.delete_topic("orders")
        assert store.create_topic("orders", 2).table is None


def test_a_store_that_is_only_read_cannot_change_it(data: Path) -> None:
    with DirectoryStore.open(data, "r") as store, pytest.raises(ReadOnlyLog):
        store["orders"].table = INFO


def test_a_changed_byte_is_noticed(data: Path) -> None:
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].table = INFO
        path = data / "topics" / "orders" / "table.json"
        path.write_bytes(path.read_bytes().replace(b"/lake", b"/leak"))
        with pytest.raises(CorruptFile):
            _ = store["orders"].table
