"""One group in several processes: shared work, deaths, takeovers, stopped members. Nothing is lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sawlog.store.directory.store import DirectoryStore

from ..processes.launch import PATIENCE_S, ready, start

PARTITIONS = 4


class Worker:
    """A consumer process. A thread reads its output."""

    def __init__(self, path: Path, group: str = "billing", **options: Any) -> None:
        self.process: subprocess.Popen[str] = ready(start("consuming", "consume", path, group, json.dumps(options)))
        #: (partition, offset) in the order in which they were processed.
        self.got: list[tuple[int, int]] = []
        #: The last positions that it knows to be committed.
        self.committed: dict[int, int] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # killed in the middle of a word
            what, _, rest = line.strip().partition(" ")
            if what == "got":
                _, partition, offset = rest.split()
                self.got.append((int(partition), int(offset)))
            elif what == "committed":
                self.committed.update((int(n), offset) for n, offset in json.loads(rest).items())

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._end()
        assert self.process.returncode == -signal.SIGKILL

    def finish(self) -> None:
        """Make the process close its consumer."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._end()
        assert self.process.stderr is not None
        assert self.process.returncode == 0, self.process.stderr.read()

    def _end(self) -> None:
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)

    def close(self) -> None:
        """Whatever happened: leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
            self._end()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def by_partition(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for partition, offset in list(self.got):
            found[partition].append(offset)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore.open(tmp_path / "store") as made:
        made.create_topic("orders", partitions=PARTITIONS)
        yield made


@pytest.fixture
def pollers(store: DirectoryStore) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that poll and commit when told to; none of them outlives the test."""
    made: list[subprocess.Popen[str]] = []

    def begin(**options: Any) -> subprocess.Popen[str]:
        made.append(ready(start("consuming", "poll", store.path, "billing", json.dumps(options))))
        return made[-1]

    yield begin
    for process in made:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.close()


def fill(store: DirectoryStore, count: int) -> None:
    for partition in range(PARTITIONS):
        store.topic("orders").partition(partition).append_many([b"x"] * count)


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def wait_for_everything(store: DirectoryStore, workers: list[Worker], what: str = "everything is processed") -> None:
    """Nothing is appended any more."""
    expected = everything(store)
    wait(lambda: sum(len(worker.got) for worker in workers) >= len(expected) and processed(workers) == expected, what)


def everything(store: DirectoryStore) -> set[tuple[int, int]]:
    topic = store.topic("orders")
    return {(n, offset) for n in range(PARTITIONS) for offset in range(topic.partition(n).next_offset)}


def processed(workers: list[Worker]) -> set[tuple[int, int]]:
    return {each for worker in workers for each in list(worker.got)}


def committed(store: DirectoryStore) -> dict[int, int | None]:
    return {row.partition: row.committed for row in store.groups.describe("billing").rows}


def owners(store: DirectoryStore) -> list[str | None]:
    return [row.owner for row in store.groups.describe("billing").rows]


@contextmanager
def appending(store: DirectoryStore) -> Iterator[None]:
    """Records come all the time."""
    stop = threading.Event()

    def append() -> None:
        while not stop.wait(0.05):
            fill(store, 3)

    writer = threading.Thread(target=append)
    writer.start()
    yield
    stop.set()
    writer.join()


@pytest.mark.alternating
@pytest.mark.costly  # two interpreters
def test_after_kill_9_the_other_takes_over_from_the_committed_offset(
    store: DirectoryStore, workers: list[Worker]
) -> None:
    path = Path(store.path)
    one, two = Worker(path, every=7), Worker(path, every=7)
    workers += [one, two]
    wait(lambda: len(set(owners(store)) - {None}) == 2, "both own partitions")
    with appending(store):
        wait(lambda: min(len(one.by_partition()), len(two.by_partition())) == PARTITIONS // 2, "both have processed")
        moved = set(one.by_partition()) - set(two.by_partition())
        assert len(moved) == PARTITIONS // 2
        one.kill()
        wait(lambda: len(two.by_partition()) == PARTITIONS, "the other has taken over")
    wait_for_everything(store, workers)
    for partition in moved:
        before, after = one.by_partition()[partition], two.by_partition()[partition]
        assert after[0] >= one.committed[partition], "what was committed is processed again"
        assert after[0] <= before[-1] + 1, "something was passed over"
        assert after == list(range(after[0], after[-1] + 1)), "not in order"
    two.finish()
    ends = {n: store.topic("orders").partition(n).next_offset for n in range(PARTITIONS)}
    assert committed(store) == ends


@pytest.mark.alternating
@pytest.mark.costly  # three interpreters
def test_work_is_shared_and_nothing_is_done_twice_unless_a_worker_dies(
    store: DirectoryStore, workers: list[Worker]
) -> None:
    """Also while members come and go in order."""
    path = Path(store.path)
    workers.append(Worker(path, every=5))
    with appending(store):
        for _ in range(2):
            workers.append(Worker(path, every=5))
            wait(lambda: bool(workers[-1].got), "the new one has work")
        workers[0].finish()
        done = len(workers[1].got), len(workers[2].got)
        wait(lambda: len(workers[1].got) > done[0] and len(workers[2].got) > done[1], "the others go on")
    wait_for_everything(store, workers)
    for worker in workers[1:]:
        worker.finish()
    assert sum(len(worker.got) for worker in workers) == len(everything(store)), "something was processed twice"


def test_a_stopped_member_loses_its_partitions_and_cannot_commit(
    store: DirectoryStore, pollers: Callable[..., subprocess.Popen[str]]
) -> None:
    fill(store, 10)
    stopped = pollers(session_timeout_ms=600, auto_commit_ms=None)
    assert ask(stopped, "poll") == str(10 * PARTITIONS)
    assert ask(stopped, "commit") == "committed"
    fill(store, 10)
    assert ask(stopped, "poll") == str(10 * PARTITIONS)
    stopped.send_signal(signal.SIGSTOP)
    with store.consumer("billing", ["orders"], auto_commit_ms=None) as other:
        deadline = time.monotonic() + PATIENCE_S
        found = []
        while len(found) < 10 * PARTITIONS:
            assert time.monotonic() < deadline, "nobody took over from the stopped one"
            found += other.poll(0.05)
        assert {record.offset for record in found} == set(range(10, 20)), "not from the committed offset"
        other.commit({("orders", 0): 15})
        stopped.send_signal(signal.SIGCONT)
        assert ask(stopped, "commit") == "fenced"
        assert other.committed("orders", 0) == 15
        assert other.committed("orders", 1) == 10
        assert len(other.assignment) == PARTITIONS
    # Its next call joins again; it gets all partitions once the other member has left.
    wait(lambda: ask(stopped, "poll") != "0", "the stopped one works again")
    assert ask(stopped, "assignment") == str(list(range(PARTITIONS)))


def ask(process: subprocess.Popen[str], command: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{command}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_member_that_was_stopped_for_a_moment_keeps_its_partitions(
    store: DirectoryStore, pollers: Callable[..., subprocess.Popen[str]]
) -> None:
    stopped = pollers(session_timeout_ms=60_000, auto_commit_ms=None)
    fill(store, 1)
    assert ask(stopped, "poll") == str(PARTITIONS)
    stopped.send_signal(signal.SIGSTOP)
    with store.consumer("billing", ["orders"]) as other:
        for _ in range(10):
            assert other.poll(0.05) == []
        assert other.assignment == set()
        stopped.send_signal(signal.SIGCONT)
        assert ask(stopped, "commit") == "committed"


@pytest.mark.costly  # an interpreter for every worker that joins
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 5), *(pytest.param(seed, 10, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_every_record_is_processed_while_members_join_leave_and_die(
    store: DirectoryStore, workers: list[Worker], seed: int, steps: int
) -> None:
    chance = random.Random(seed)
    path = Path(store.path)
    alive: list[Worker] = []
    with appending(store):
        for _ in range(steps):
            what = chance.choice(["join", "join", "kill", "kill", "leave"]) if alive else "join"
            if what == "join" and len(alive) < 3:
                alive.append(Worker(path, every=chance.choice([1, 5, 20])))
                workers.append(alive[-1])
            elif what == "leave":
                alive.pop(chance.randrange(len(alive))).finish()
            elif what == "kill":
                alive.pop(chance.randrange(len(alive))).kill()
            time.sleep(chance.random() * 0.4)
    if not alive:
        alive.append(Worker(path))
        workers.append(alive[-1])
    wait_for_everything(store, workers, f"everything is processed (seed {seed})")
    for worker in alive:
        worker.finish()
    for worker in workers:
        for partition, offsets in worker.by_partition().items():
            assert max(offsets) < store.topic("orders").partition(partition).next_offset
    assert committed(store) == {n: store.topic("orders").partition(n).next_offset for n in range(PARTITIONS)}
