"""One Spark for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests with this Spark in one process; those of tests/pipelines have another one, beside it."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session: two cores, four attempts a task, quick to start rather than quick to run."""
    import sawlog.spark

    made = sawlog.spark.session(
        "sawlog-tests",
        cores=2,
        memory="1g",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    yield made
    made.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where a store is, or will be."""
    return tmp_path / "data"


@pytest.fixture
def store(data: Path) -> Iterator[Store]:
    """A store without upkeep."""
    with sawlog.open(data, upkeep_interval_s=None) as made:
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
