"""Fixtures of this folder: a Spark session, a store, a reader of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Store

from . import sharing
from .sharing import spark as spark  # noqa: PLC0414


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that use the session in one process."""
    sharing.group(items)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Directory of the store, which may not exist yet."""
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Iterator[Store]:
    """A store without maintenance."""
    with sawlog.open(data, maintenance_interval_s=None) as made:
        yield made


@pytest.fixture
def load(spark: Any, data: Path) -> Callable[..., Any]:
    """`spark.read` of the store with these options."""

    def loaded(subscribe: str | None = "orders", **options: Any) -> Any:
        reader = spark.read.format("sawlog").option("path", str(data))
        if subscribe is not None:
            reader = reader.option("subscribe", subscribe)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return loaded
