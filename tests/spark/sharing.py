"""One Spark for all tests of a process that need one: starting a JVM takes longer than most of them.

`tests/spark`, `tests/pipelines` and `tests/objects` import the fixture into their conftest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

#: The tests with this Spark run in one process of xdist.
GROUP = "spark"


def group(items: list[pytest.Item]) -> None:
    """Let all tests that use the session run in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(GROUP))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session: two cores, four attempts a task, quick to start rather than quick to run."""
    import sawlog.spark
    from sawlog.pipelines import running

    made = sawlog.spark.session(
        "sawlog-tests",
        cores=2,
        memory="1g",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        spark_sql_shuffle_partitions="1",
    )
    assert running.session() is made  # which knows our format then
    yield made
    made.stop()
