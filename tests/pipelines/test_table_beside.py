"""The job next to writers, retention, compaction, merges and kills, with concurrent readers of the union.

Each promise is checked against the writer's own count: every offset once, up to at least what was written before the
query was planned.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import sawlog.spark
from sawlog import tables
from sawlog.clock import Deadline
from sawlog.errors import DataLoss
from sawlog.pipelines import table
from sawlog.pipelines.table import TableParams
from sawlog.store.directory.store import DirectoryStore
from sawlog.tables import FORMATS

from ..tables.conftest import Lake
from .test_table import places

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
PATIENCE_S = 240.0
SCHEMA = "n bigint"


@contextmanager
def running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run work in a thread during the block, and raise its error here."""
    ended, errors = threading.Event(), []

    def run() -> None:
        try:
            work(ended)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE_S)
    assert errors == []


class Writer:
    """Appends to `orders`, keeps the log short, and counts the records written."""

    def __init__(self, data: Path, *, compacted: bool, bad: bool = False) -> None:
        self._data, self._compacted = data, compacted
        #: True if some values do not fit the schema.
        self._bad = bad
        #: The next offset of each partition, as far as it is acknowledged.
        self.written: dict[int, int] = {}
        self.last: dict[bytes, int] = {}
        self._n = 0
        #: The ends of the table, as it was each time when the log was looked after.
        self._ends: list[dict[int, int]] = []
        settings: dict[str, Any] = {"segment_bytes": 16 << 10, "durability": "os"}
        if compacted:
            settings |= {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01}
        with DirectoryStore.open(data, maintenance_interval_s=None) as store:
            store.create_topic("orders", 2, **settings)

    def work(self, ended: threading.Event) -> None:
        with DirectoryStore.open(self._data, maintenance_interval_s=None) as store:
            topic = store["orders"]
            while not ended.wait(0.02):
                for _ in range(20):
                    key = b"k%d" % (self._n % 50)
                    place = topic.append(self._value(), key)
                    self.last[key] = self._n
                    self._n += 1
                    self.written[place.partition] = place.offset + 1
                self._tend(topic)

    def _value(self) -> bytes:
        return b"bad" if self._bad and self._n % 97 == 5 else b'{"n": %d}' % self._n

    def _tend(self, topic: Any) -> None:
        """Compact, or drop records that were in the table a moment ago."""
        info = topic.table
        if self._n % 200:
            return
        if self._compacted:
            topic.maintain()
        elif info is not None:
            self._ends.append(tables.snapshot(info).ends)
            topic.trim(self._ends[len(self._ends) // 2])


def keeper(spark: Any, data: Path, lake: Path, form: str) -> Callable[[threading.Event], None]:
    """Run the job repeatedly."""
    params = TableParams(str(data), "orders", str(lake), form, schema=SCHEMA, merge_from=3, max_records=500)  # type: ignore[arg-type]

    def work(ended: threading.Event) -> None:
        while not ended.wait(0.05):
            table.run(spark, params)

    return work


def read(spark: Any, data: Path, columns: list[str]) -> list[Any]:
    """Read the union. A query that retention overtakes fails and names the missing records; it never returns fewer."""
    for _ in range(5):
        try:
            found: list[Any] = sawlog.spark.table(spark, str(data), "orders", columns=columns).collect()
            return found
        except PySparkException as error:
            assert "are gone" in str(error)
    raise AssertionError("retention is always faster")


@pytest.mark.parametrize("form", FORMATS)
def test_the_union_has_every_offset_once_while_all_of_it_runs(spark: Any, tmp_path: Path, form: str) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    writer = Writer(data, compacted=False)
    with running(writer.work), running(keeper(spark, data, lake, form)):
        moved = set()
        for _ in range(15):
            before = dict(writer.written)
            found = Counter((row.partition, row.offset) for row in read(spark, data, ["partition", "offset"]))
            assert set(found.values()) <= {1}
            for number in (0, 1):
                offsets = sorted(offset for partition, offset in found if partition == number)
                assert offsets == list(range(len(offsets)))
                assert len(offsets) >= before.get(number, 0)
            with DirectoryStore.open(data, "r") as store:
                moved.add((store["orders"].table is not None, store["orders"].offsets()[0].lowest))
    assert len(moved) > 2  # the table was made and the log was cut meanwhile
    table.run(spark, TableParams(str(data), "orders", str(lake), form))  # type: ignore[arg-type]
    with DirectoryStore.open(data, "r") as store:
        info = store["orders"].table
        ends = {number: each.next for number, each in store["orders"].offsets().items()}
    assert info is not None
    assert tables.snapshot(info).ends == ends
    assert tables.snapshot(info).rows == sum(ends.values())


def test_the_union_of_a_compacted_topic_has_the_last_value_of_every_key(spark: Any, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    writer = Writer(data, compacted=True)
    with running(writer.work), running(keeper(spark, data, lake, "delta")):
        for _ in range(10):
            before = dict(writer.last)
            rows = read(spark, data, ["key", "value", "partition", "offset"])
            assert set(Counter((row.partition, row.offset) for row in rows).values()) <= {1}
            last: dict[bytes, int] = {}
            for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
                last[bytes(row.key)] = json.loads(row.value)["n"]
            # A record that has a successor since the query was planned may be gone, as for every reader of the log.
            after = dict(writer.last)
            assert [key for key, n in before.items() if last.get(key, -1) < n == after[key]] == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_job_that_is_killed_again_and_again_neither_loses_nor_doubles(spark: Any, tmp_path: Path, form: str) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    job = [sys.executable, str(HERE / "jobs" / "tabling.py"), str(data), str(lake), form]
    environment = {**os.environ, "PYTHONPATH": str(Path(sawlog.__file__).parents[1])}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYSPARK_GATEWAY")}
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 2, durability="os")
        for step in ("written", "quarantined", "committed", "merged", "swapped"):
            for n in range(500):
                topic.append(b"bad" if n % 100 == 7 else b'{"n": %d}' % n, b"k%d" % n)
            done = subprocess.run(
                [*job, step, SCHEMA], env=environment, capture_output=True, check=False, timeout=PATIENCE_S
            )
            assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert table.run(spark, TableParams(str(data), "orders", str(lake), form)).stopped is False  # type: ignore[arg-type]
    found = places(row.asDict() for row in sawlog.spark.table(spark, str(data), "orders").collect())
    bad = places(row.asDict() for row in sawlog.spark.quarantined(spark, str(data), "orders").collect())
    with DirectoryStore.open(data, "r") as store:
        ends = {number: each.next for number, each in store["orders"].offsets().items()}
        rows = store.sql("select partition, offset from orders").to_pylist()
    expected = every(ends)
    assert found + bad == expected
    assert sum(bad.values()) == 25
    assert places(Lake(lake, form).read()) == found  # by the format's own package
    assert places(rows) == expected


def every(ends: dict[int, int]) -> Counter[tuple[int, int]]:
    return Counter((number, offset) for number, end in ends.items() for offset in range(end))


@contextmanager
def program(data: Path, lake: Path, form: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`sawlog pipeline table` with Java in a process group of its own, which is killed at the end."""
    command = [sys.executable, "-m", "sawlog.cli", "pipeline", "table", "orders", "-d", str(data), "--to", str(lake)]
    command += ["--format", form, "--schema", SCHEMA, "--merge-from", "3", *more]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


@pytest.mark.parametrize("form", FORMATS)
def test_sql_has_every_offset_once_beside_a_job_killed_at_random(tmp_path: Path, form: str) -> None:
    moments = random.Random(form)
    data, lake = tmp_path / "data", tmp_path / "lake"
    writer = Writer(data, compacted=False, bad=True)
    with running(writer.work), DirectoryStore.open(data, "r") as store:
        for _ in range(4):
            with program(data, lake, form, "--freshness", "500ms", "--max-records", "300") as process:
                before, until = _ends(store), None
                deadline = Deadline(PATIENCE_S)
                while until is None or not until.passed:
                    assert process.poll() is None, process.communicate()[1].decode()[-2000:]
                    assert not deadline.passed
                    if until is None and _ends(store) != before:  # it is at work: some time from now it is killed
                        until = Deadline(moments.uniform(0.0, 4.0))
                    _check_union(store, writer)
    with DirectoryStore.open(data, "r") as store, program(data, lake, form) as process:
        assert process.wait(PATIENCE_S) == 0
        expected = every({number: each.next for number, each in store["orders"].offsets().items()})
        assert places(store.sql("select partition, offset from orders").to_pylist()) == expected
        bad = places(store.sql("select partition, offset from orders where decode(value) = 'bad'").to_pylist())
        assert bad
        assert places(Lake(lake, form).read()) == expected - bad  # by the format's own package
        assert store.sql("select count(*) from orders").column(0).to_pylist() == [sum(expected.values())]


def _ends(store: DirectoryStore) -> dict[int, int]:
    info = store["orders"].table
    return {} if info is None else tables.snapshot(info).ends


def _check_union(store: DirectoryStore, writer: Writer) -> None:
    """Check that every offset exists once, at least up to the records written before."""
    before = dict(writer.written)
    for _ in range(20):
        try:
            found = places(store.sql("select partition, offset from orders").to_pylist())
            break
        except DataLoss:  # retention may be faster than a query, which then fails; it never returns less
            continue
    else:
        raise AssertionError("retention is always faster")
    ends = Counter(number for number, _ in found)
    assert found == every(dict(ends))
    assert all(ends[number] >= end for number, end in before.items())
