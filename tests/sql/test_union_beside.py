"""The union of table and log during rounds, merges, kills, appends, retention and compaction. Without Spark, whose
job has the same rounds; with it: tests/pipelines/test_table_beside.py.

Each promise is checked against the writer's own count: every offset once, up to at least what was written before the
query began.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import sawlog
from sawlog import Store
from sawlog.errors import DataLoss
from sawlog.tables import FORMATS

from ..tables.conftest import Lake, places
from .keeping import Keeper

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
STEPS = ("begun", "written", "ready", "quarantined", "committed", "forgotten", "merged", "swapped")
slow = pytest.mark.slow


@contextmanager
def running(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run functions in threads until the block ends; raise their errors."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(ended)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert errors == []


class Traffic:
    """Appends to `orders`, trims the log, and records the appended values."""

    def __init__(self, data: Path, *, compacted: bool) -> None:
        self._data, self._compacted = data, compacted
        self.written = {0: 0, 1: 0}
        #: Last value of every key.
        self.last: dict[bytes, bytes] = {}
        #: Ends of the two previous versions of the table.
        self.table = [{0: 0, 1: 0}]
        settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01} if compacted else {}
        with sawlog.open(data, maintenance_interval_s=None) as store:
            store.create_topic("orders", 2, segment_bytes=8 << 10, durability="os", **settings)

    def work(self, ended: threading.Event) -> None:
        with sawlog.open(self._data, maintenance_interval_s=None) as store:
            topic = store["orders"]
            for first in count(0, 20):
                if ended.wait(0.005):
                    break
                for n in range(first, first + 20):
                    key, value = b"k%d" % (n % 50), b"bad" if n % 97 == 5 else b'{"id": %d}' % n
                    place = topic.append(value, key)
                    self.last[key] = value
                    self.written[place.partition] = place.offset + 1
                if self._compacted:
                    topic.maintain()
                else:
                    topic.trim(self.table[len(self.table) // 2])


def keeping(traffic: Traffic, keeper: Keeper, data: Path) -> Callable[[threading.Event], None]:
    def work(ended: threading.Event) -> None:
        with sawlog.open(data, maintenance_interval_s=None) as store:
            while not ended.wait(0.005):
                keeper.round(store["orders"])
                keeper.merge(store["orders"])
                traffic.table.append(dict(keeper.ends))

    return work


def read(store: Store, query: str) -> pa.Table:
    """Query the union. If retention is faster than the query, it fails; it never returns fewer records."""
    for _ in range(20):
        try:
            return store.sql(query)
        except DataLoss:
            continue
    raise AssertionError("retention is always faster")


@pytest.mark.parametrize(("form", "times"), [("parquet", 6), *(pytest.param(form, 60, marks=slow) for form in FORMATS)])
def test_the_union_has_every_offset_once_while_all_of_it_runs(tmp_path: Path, form: str, times: int) -> None:
    data = tmp_path / "data"
    traffic, keeper = Traffic(data, compacted=False), Keeper(tmp_path / "lake", form)
    seen = set()
    queries = ["select partition, offset from orders", "select partition, offset, value from orders where offset >= 0"]
    with running(traffic.work, keeping(traffic, keeper, data)), sawlog.open(data, "r") as store:
        for number in range(times):
            before = dict(traffic.written)
            found = Counter((row["partition"], row["offset"]) for row in read(store, queries[number % 2]).to_pylist())
            assert set(found.values()) <= {1}
            for partition in (0, 1):
                offsets = sorted(offset for where, offset in found if where == partition)
                assert offsets == list(range(len(offsets)))
                assert len(offsets) >= before[partition]
            counted = store.sql("select partition, count(*) as n from orders group by partition").to_pylist()
            assert all(row["n"] >= before[row["partition"]] for row in counted)
            seen.add((keeper.ends.get(0), store["orders"].offsets()[0].lowest))
    assert len(seen) > times // 4  # the table has grown and the log was cut meanwhile


@pytest.mark.parametrize("form", [pytest.param("parquet", marks=slow), pytest.param("delta", marks=slow)])
def test_the_union_of_a_compacted_topic_has_the_last_value_of_every_key(tmp_path: Path, form: str) -> None:
    data = tmp_path / "data"
    traffic, keeper = Traffic(data, compacted=True), Keeper(tmp_path / "lake", form)
    with running(traffic.work, keeping(traffic, keeper, data)), sawlog.open(data, "r") as store:
        for _ in range(60):
            before = dict(traffic.last)
            rows = read(store, "select * from orders").to_pylist()
            assert set(Counter((row["partition"], row["offset"]) for row in rows).values()) <= {1}
            last = {row["key"]: row["value"] for row in sorted(rows, key=lambda row: row["offset"])}
            after = dict(traffic.last)
            # A record that was replaced since the query began may be missing, as for every reader of the log.
            assert [key for key, value in before.items() if after[key] == value and last.get(key) != value] == []


@pytest.mark.costly  # an interpreter that imports PyArrow
@pytest.mark.parametrize(
    ("form", "steps"),
    [("parquet", ("quarantined",)), *(pytest.param(form, STEPS, marks=slow) for form in FORMATS)],
)
def test_a_job_killed_at_each_step_neither_loses_nor_doubles(tmp_path: Path, form: str, steps: tuple[str, ...]) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    command = [sys.executable, "-m", "tests.sql.keeping", str(data), str(lake), form]
    with sawlog.open(data, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", 2, durability="os")
        for step in steps:
            for n in range(100):
                topic.append(b"bad" if n % 20 == 7 else b'{"id": %d}' % n, b"k%d" % n)
            killed = subprocess.run([*command, step], cwd=ROOT, env=_environment(), check=False, timeout=PATIENCE_S)
            assert killed.returncode == -signal.SIGKILL
            expected = Counter((number, at) for number, each in topic.offsets().items() for at in range(each.next))
            # The union is right before the table is repaired.
            found = store.sql("select partition, offset from orders").to_pylist()
            assert Counter((row["partition"], row["offset"]) for row in found) == expected
        keeper = Keeper(lake, form)
        keeper.round(topic)
        assert keeper.ends == {number: each.next for number, each in topic.offsets().items()}
        bad = store.sql("select partition, offset from orders where decode(value) = 'bad'").to_pylist()
        good = expected - Counter((row["partition"], row["offset"]) for row in bad)
        assert len(bad) == 5 * len(steps)
        assert places(Lake(lake, form).read()) == good  # by the format's own package


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
