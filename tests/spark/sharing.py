"""One Spark for all tests of a process that need one: starting a JVM takes longer than most of them.

`tests/spark`, `tests/pipelines` and `tests/objects` import the fixture into their conftest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: The tests with this Spark run in one worker.
GROUP = "spark"

#: Settings that make small jobs quick to start. Compiling the generated code of a plan takes longer than interpreting
#: the plan over a few hundred rows, and the C1 compiler is enough for a JVM that lives for a minute.
QUICK = {
    "spark_driver_extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark_sql_shuffle_partitions": "1",
    "spark_sql_codegen_wholeStage": "false",
    "spark_sql_codegen_factoryMode": "NO_CODEGEN",
}

#: Starts Python without the archives that Spark puts first on the path of its workers. They hold the installed
#: packages without bytecode, so each of the eight daemons would compile them again: a second of CPU each.
_WORKER = r"""#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\n' | grep -v '/pyspark/\(python/lib\|jars\)/' | paste -sd: -)
export PYTHONPATH
exec {python} "$@"
"""


def group(items: list[pytest.Item]) -> None:
    """Run all tests that use the session in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.group(GROUP))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session: two cores, four attempts a task, quick to start rather than quick to run."""
    import sawlog.spark
    from sawlog.pipelines import running

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(make_worker(tmp_path_factory.mktemp("worker"))))
        made = sawlog.spark.session("sawlog-tests", cores=2, memory="1g", **QUICK)
    assert running.session() is made  # which knows our format then
    yield made
    made.stop()


def make_worker(place: Path) -> Path:
    """A program that starts the Python of a worker."""
    program = place / "python"
    program.write_text(_WORKER.format(python=sys.executable))
    program.chmod(0o755)
    return program
