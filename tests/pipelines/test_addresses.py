"""Jobs write to local directories: an address is refused, and no directory "s3:" appears."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import interop
from sawlog.errors import InvalidConfig
from sawlog.pipelines import export, scaffold, stats, table
from sawlog.store.replica import restore

ADDRESSES = ["s3://bucket/lake", "file://scratch/lake", "file:///lake", "hdfs://nn/lake", "abfss://c@a.windows.net/l"]

USES: dict[str, Callable[[str], Any]] = {
    "table": lambda to: table.check_params(table.TableParams(data="data", topic="orders", to=to)),
    "export": lambda to: export.check_params(export.ExportParams(data="data", topic="orders", target=to)),
    "stats": lambda to: stats.check_params(stats.StatsParams(data="data", parquet=to)),
    "scaffold": lambda to: scaffold.run(scaffold.ScaffoldParams(target=to, data="data", topic="orders")),
    "interop": lambda to: interop.export_topic(sawlog.open("data", "r")["orders"], to, format="rustlog"),
    "restore": lambda to: restore("memory://nothing", to),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a store."""
    monkeypatch.chdir(tmp_path)
    with sawlog.open("data", maintenance_interval_s=None) as store:
        store.create_topic("orders").append(b"{}")
    return tmp_path


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_refused_where_a_local_directory_is_written(here: Path, use: str, address: str) -> None:
    for given in (address, str(Path(address))):  # a command line that parses paths drops a slash
        with pytest.raises(InvalidConfig, match="must be a path on this machine, not the address"):
            USES[use](given)
    assert os.listdir(here) == ["data"]


def test_a_relative_path_with_a_colon_is_a_path(here: Path) -> None:
    for given in ("lake:2026/x", "./s3:/lake", "C:/lake"):
        table.check_params(table.TableParams(data="data", topic="orders", to=given, format="parquet"))
