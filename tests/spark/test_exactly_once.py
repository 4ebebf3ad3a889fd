"""Processes die at every point of a micro-batch, and the copy contains every record exactly once.

- Micro-batches that are repeated, by hand: every state in which the first try can have ended.
- `die`: the Python process that plans, reads, stages or publishes gets a SIGKILL, under a Spark that stays.
- `kill`: driver, JVM and all workers get one, in the middle of it; another driver continues with the checkpoint.

What is killed is said in jobs/faults.py. The point `published` is the one that matters most: everything is stored, and
Spark does not know it yet.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.launch import ROOT

import sawlog
from sawlog import Store, Topic
from sawlog.errors import ReplayMismatch, StorageError, TransactionAborted, TransactionPending
from sawlog.log.log import Log
from sawlog.spark import commit
from sawlog.spark.options import WriteOptions, write_options
from sawlog.spark.writing import TaskCommit, stage
from sawlog.store.directory.transactions.placement import Placement

from .jobs import faults
from .jobs.copying import copy
from .test_writing import batch, left

QUERY = "5e0e3a9c-6c58-4d43-9d2b-7f6d5e4f3a2b"
#: A driver takes its time to start on a busy machine.
PATIENCE_S = 240.0


def values(store: Store, name: str = "copies") -> list[int]:
    return sorted(int(record.value or b"") for record in store[name].scan())


# --- a micro-batch that is repeated


@pytest.fixture(params=["in messages", "in files"])
def options(request: pytest.FixtureRequest, data: Path, store: Store) -> Iterator[WriteOptions]:
    """A sink with two partitions, for tasks that send their output in messages and for tasks that stage it."""
    store.create_topic("copies", 2)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in files":
            patch.setattr("sawlog.spark.writing.INLINE_BYTES", -1)
        yield write_options({"path": str(data), "topic": "copies", "lockTimeout": "5s"})


def tasks(options: WriteOptions, number: int) -> list[TaskCommit]:
    """The tasks of a micro-batch: two, with two rows each."""
    name = commit.stage_name(QUERY, number)
    return [stage(iter([batch(number * 10 + n, number * 10 + n + 1)]), options, name, QUERY) for n in (0, 2)]


def publish(options: WriteOptions, number: int, staged: list[TaskCommit]) -> None:
    commit.publish(options, commit.stage_name(QUERY, number), staged, name=QUERY, sequence=number)


def rows(*numbers: int) -> list[int]:
    return [number * 10 + n for number in numbers for n in range(4)]


def test_a_micro_batch_that_is_repeated_is_placed_once(store: Store, options: WriteOptions, data: Path) -> None:
    for number in (0, 0, 1, 1, 1, 2):
        publish(options, number, tasks(options, number))
    assert values(store) == rows(0, 1, 2)
    assert left(data) == []


def test_a_repetition_counts_for_its_own_query_only(store: Store, options: WriteOptions) -> None:
    """A query that was restarted, with a new checkpoint, has another id and starts with number 0 again."""
    publish(options, 0, tasks(options, 0))
    other = "11111111-2222-3333-4444-555555555555"
    name = commit.stage_name(other, 0)
    staged = [stage(iter([batch(77)]), options, name, other)]
    commit.publish(options, name, staged, name=other, sequence=0)
    assert values(store) == [*rows(0), 77]


def test_a_micro_batch_without_rows_is_remembered_too(store: Store, options: WriteOptions) -> None:
    name = commit.stage_name(QUERY, 3)
    for _ in range(2):
        publish(options, 3, [stage(iter([]), options, name, QUERY)])
    with pytest.raises(ReplayMismatch):
        publish(options, 3, tasks(options, 3))
    assert values(store) == []


def test_what_an_earlier_try_staged_is_swept_by_its_repetition(store: Store, options: WriteOptions, data: Path) -> None:
    staged = any(part.pieces for task in tasks(options, 0) for part in task.parts)
    assert bool(left(data)) == staged
    publish(options, 0, tasks(options, 0))
    assert values(store) == rows(0)
    assert left(data) == []


def test_what_very_many_tasks_send_goes_into_a_file_beside_the_intent(
    store: Store, options: WriteOptions, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sawlog.spark.commit._INTENT_BYTES", 100)
    publish(options, 0, tasks(options, 0))
    assert values(store) == rows(0)
    assert left(data) == []


def test_a_small_micro_batch_waits_for_the_disk_eight_times(
    data: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks not at all; the commit for the partition's checkpoint twice, the intent, the batches and its end."""
    store.create_topic("copies", 1)
    options = write_options({"path": str(data), "topic": "copies"})
    publish(options, 0, tasks(options, 0))
    syncs: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, name=name, real=real: (syncs.append(name), real(fd))[1])
    commit.prepare(options, ("value",))
    staged = tasks(options, 1)
    assert syncs == []
    publish(options, 1, staged)
    assert len(syncs) == 8


def test_abort_after_publishing_removes_nothing(store: Store, options: WriteOptions) -> None:
    publish(options, 0, tasks(options, 0))
    commit.discard(options, commit.stage_name(QUERY, 0))
    assert values(store) == rows(0)


class Failing:
    """A log that cannot be written to for a while, as on a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def _refuse(self, *_: object, **__: object) -> None:
        raise StorageError(28, "No space left on device")

    def places_nothing(self) -> None:
        self._patch.setattr(Log, "_place_batches", self._refuse)

    def takes_nothing_back(self) -> None:
        self._patch.setattr(Log, "truncate", self._refuse)

    def ends(self) -> None:
        self._patch.undo()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """A disk that can be full."""
    return Failing(monkeypatch)


def test_a_full_disk_stores_nothing_and_the_repetition_stores_it(
    store: Store, options: WriteOptions, disk: Failing, data: Path
) -> None:
    disk.places_nothing()
    with pytest.raises(TransactionAborted):
        publish(options, 0, tasks(options, 0))
    commit.discard(options, commit.stage_name(QUERY, 0))
    assert left(data) == []
    disk.ends()
    assert values(store) == []
    publish(options, 0, tasks(options, 0))
    assert values(store) == rows(0)


@pytest.mark.parametrize("still_full", [False, True])
def test_abort_and_a_repetition_keep_what_is_committed_and_not_placed(
    store: Store, options: WriteOptions, disk: Failing, data: Path, still_full: bool
) -> None:
    """The intent is written, and nothing can be placed: not at the first try, maybe not at the second either."""
    disk.places_nothing()
    disk.takes_nothing_back()
    with pytest.raises(TransactionPending):
        publish(options, 0, tasks(options, 0))
    commit.discard(options, commit.stage_name(QUERY, 0))
    if still_full:
        publish(options, 0, tasks(options, 0))
        assert values(store) == []
    disk.ends()
    publish(options, 0, tasks(options, 0))
    assert values(store) == rows(0)
    publish(options, 1, tasks(options, 1))
    assert values(store) == rows(0, 1)
    assert left(data) == []


def test_a_commit_whose_driver_died_goes_on_beside_its_repetition(
    store: Store, options: WriteOptions, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    """The JVM is gone, the Python process that publishes does not know it yet; a new driver repeats the micro-batch."""
    placing, go_on = threading.Event(), threading.Event()
    place = Placement.place

    def slowly(*arguments: Any) -> None:
        if threading.current_thread() is old:
            placing.set()
            go_on.wait(60)
        place(*arguments)

    monkeypatch.setattr(Placement, "place", slowly)
    first = tasks(options, 0)
    old = threading.Thread(target=publish, args=(options, 0, first))
    old.start()
    assert placing.wait(60)
    second = tasks(options, 0)
    threading.Timer(0.2, go_on.set).start()
    publish(options, 0, second)
    old.join()
    assert values(store) == rows(0)
    assert left(data) == []


# --- under a Spark that stays


@pytest.fixture
def orders(store: Store) -> Topic:
    """The topic to copy, with ten records."""
    store.create_topic("copies", 3)
    topic = store.create_topic("orders", 2)
    topic.append_many([b"%d" % n for n in range(10)])
    return topic


def run(spark: Any, data: Path, **options: Any) -> str | None:
    """One run of the query, to its end; the error, if there was one."""
    query = copy(spark, data, data.parent / "checkpoint", maxOffsetsPerTrigger=30, **options)
    try:
        query.awaitTermination()
    except Exception as error:
        return str(error)
    return None


@pytest.mark.slow  # three runs of a query; by hand in test_replays.py
@pytest.mark.parametrize("kept", [0, 1])
def test_a_checkpoint_that_is_older_than_the_sink_loses_nothing(
    spark: Any, data: Path, store: Store, orders: Topic, kept: int
) -> None:
    """Restored from a backup: the last micro-batch, or the last two, are planned again, and have more rows now."""
    for _ in range(2):
        assert run(spark, data) is None
        orders.append_many([b"%d" % n for n in range(10, 20)])
    stored = values(store)
    for each in ("offsets", "commits"):
        for file in (data.parent / "checkpoint" / each).iterdir():
            if file.name.strip(".").partition(".")[0] in {str(number) for number in range(kept, 2)}:
                file.unlink()
    said = run(spark, data) or ""
    assert "ReplayMismatch" in said
    assert "new checkpointLocation" in said
    assert values(store) == stored


@pytest.mark.parametrize("points", [("staged",), pytest.param(("reading", "staged"), marks=pytest.mark.slow)])
def test_python_workers_that_die_in_tasks_are_replaced_and_nothing_is_written_twice(
    spark: Any, data: Path, store: Store, orders: Topic, points: tuple[str, ...]
) -> None:
    faults.register(spark)
    for point in points:
        mark = data.parent / point
        orders.append_many([b"%d" % n for n in range(10)])
        assert run(spark, data, fault=point, how="die", mark=mark) is None
        assert mark.exists()
    assert values(store) == values(store, "orders")
    assert left(data) == []


@pytest.mark.parametrize(
    ("how", "points"),
    [
        ("die", ("published",)),  # everything is stored, and Spark does not know it; the slow tier has all points
        pytest.param("die", ("plan", "commit", "intent", "placed", "published"), marks=pytest.mark.slow),
        pytest.param("raise", ("intent", "placed", "published"), marks=pytest.mark.slow),
    ],
)
def test_a_query_that_ends_at_any_point_beside_the_driver_goes_on_as_if_it_had_not(
    spark: Any, data: Path, store: Store, orders: Topic, how: str, points: tuple[str, ...]
) -> None:
    """One query, restarted after each end. After an exception Spark calls `abort`, after a death as well."""
    faults.register(spark)
    for point in points:
        mark = data.parent / point
        orders.append_many([b"%d" % n for n in range(10)])
        assert run(spark, data, fault=point, how=how, mark=mark) is not None
        assert mark.exists()
    assert run(spark, data) is None
    assert values(store) == values(store, "orders")
    assert left(data) == []


@pytest.mark.slow  # by hand in test_writing.py
def test_a_query_beside_a_process_that_holds_its_sink_stores_everything_once(
    spark: Any, data: Path, store: Store, orders: Topic
) -> None:
    """This process writes to all partitions of the sink, like a broker; the two take turns."""
    faults.register(spark)
    for number in range(3):
        store["copies"].partition(number).append(b"-1")
    mark = data.parent / "placed"
    assert run(spark, data, fault="placed", how="die", mark=mark) is not None  # it is committed, not completed
    assert mark.exists()
    orders.append_many([b"%d" % n for n in range(10)])
    assert run(spark, data) is None
    assert values(store) == sorted([-1, -1, -1, *values(store, "orders")])
    assert left(data) == []


# --- drivers that are killed


class Driver:
    """A driver with its JVM and its workers: a session of processes of its own."""

    def __init__(self, data: Path, **options: Any) -> None:
        given = [f"{name}={value}" for name, value in options.items()]
        path = os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])
        self._said = (data.parent / f"driver-{time.monotonic_ns()}.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.jobs.copying", str(data), str(data.parent / "checkpoint"), *given],
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def said(self) -> str:
        """Its output so far."""
        if not self._said.closed:
            self._said.seek(0)
            self._output = self._said.read()
        return self._output

    def wait(self) -> int:
        """Its end."""
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.end()

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def end(self) -> None:
        """Kill whatever is left of it: the driver, the JVM, Python workers."""
        for process in faults.processes_of(self.process.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        if not self._said.closed:
            self.said()
            self._said.close()


@pytest.fixture
def drive(data: Path) -> Iterator[Callable[..., Driver]]:
    """Start drivers; none of them outlives the test."""
    made: list[Driver] = []

    def start(**options: Any) -> Driver:
        made.append(Driver(data, maxOffsetsPerTrigger=30, **options))
        return made[-1]

    yield start
    for driver in made:
        driver.end()


def killed_at(points: list[str], data: Path, orders: Topic, drive: Callable[..., Driver]) -> None:
    """A driver for each point, killed there; the last one gets through."""
    for point in points:
        mark = data.parent / point
        orders.append_many([b"%d" % n for n in range(10)])
        driver = drive(fault=point, how="kill", mark=mark)
        assert driver.wait() == -signal.SIGKILL, driver.said()
        assert mark.exists()
        planned, done = noted(data.parent / "checkpoint", "offsets"), noted(data.parent / "checkpoint", "commits")
        assert (planned > done) == (point != "latest"), "Spark's checkpoint says that this was another moment"
    last = drive()
    assert last.wait() == 0, last.said()


def noted(checkpoint: Path, what: str) -> int:
    """The last micro-batch that Spark has noted as planned, or as done; -1 if none."""
    folder = checkpoint / what
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


@pytest.mark.slow
def test_a_driver_that_is_killed_between_publishing_and_sparks_own_commit_is_repeated_without_effect(
    data: Path, store: Store, orders: Topic, drive: Callable[..., Driver]
) -> None:
    killed_at(["published"], data, orders, drive)
    assert values(store) == values(store, "orders")
    assert left(data) == []


@pytest.mark.slow
def test_a_driver_can_be_killed_at_every_point(
    data: Path, store: Store, orders: Topic, drive: Callable[..., Driver]
) -> None:
    points = ["latest", "plan", "reading", "staging", "staged", "commit", "intent", "placed", "published"]
    killed_at(points, data, orders, drive)
    assert values(store) == values(store, "orders")
    assert left(data) == []


@pytest.mark.slow
def test_a_driver_can_be_killed_at_any_moment_during_writes(
    data: Path, store: Store, orders: Topic, drive: Callable[..., Driver]
) -> None:
    """Only the JVM and the driver are killed, so Python workers continue for a moment beside the next driver."""
    chance = random.Random(7)
    for _ in range(6):
        driver = drive()
        driver.wait_for(lambda driver=driver: "ready" in driver.said())  # type: ignore[misc]
        ending = time.monotonic() + chance.uniform(0, 4)
        while time.monotonic() < ending and driver.process.poll() is None:
            orders.append_many([b"%d" % n for n in range(5)])
            time.sleep(0.02)
        for process in faults.processes_of(driver.process.pid, of="java"):
            os.kill(process, signal.SIGKILL)
        driver.process.kill()
        driver.process.wait()
    last = drive()
    assert last.wait() == 0, last.said()
    assert values(store) == values(store, "orders")
