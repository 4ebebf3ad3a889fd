"""Workers in several processes that are killed and stopped: every message is finished, and none after its ack."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sawlog
from sawlog import Store

from ...processes.launch import PATIENCE_S, ready, start

PARTITIONS = 2


class Worker:
    """A worker process of the queue. A thread reads its output."""

    def __init__(self, store: Store, role: str = "work", **options: Any) -> None:
        self.process: subprocess.Popen[str] = ready(start("queueing", role, store.path, json.dumps(options)))
        #: ((partition, offset), deliveries) in the order of delivery.
        self.got: list[tuple[tuple[int, int], int]] = []
        #: Messages with durable acks, and messages whose acks had at least begun.
        self.acked: set[tuple[int, int]] = set()
        self.acking: set[tuple[int, int]] = set()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # else killed in the middle of a word
                what, partition, offset, *count = line.split()
                if what == "got":
                    self.got.append(((int(partition), int(offset)), int(count[0])))
                else:
                    (self.acked if what == "acked" else self.acking).add((int(partition), int(offset)))

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.join()

    def join(self) -> int:
        """Wait for its end."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def close(self) -> None:
        """Whatever happened: leave nothing behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as made:
        made.create_topic("orders", partitions=PARTITIONS)
        yield made


@pytest.fixture
def worker(store: Store) -> Iterator[Callable[..., Worker]]:
    """Starts workers; none of them outlives the test."""
    made: list[Worker] = []

    def begin(**options: Any) -> Worker:
        made.append(Worker(store, **options))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def fill(store: Store, count: int) -> set[tuple[int, int]]:
    for partition in range(PARTITIONS):
        store["orders"].append_many([b"x"] * count, partition=partition)
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(count)}


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)


def check_history(store: Store, workers: list[Worker], everything: set[tuple[int, int]], seed: str = "") -> None:
    """Every message was acknowledged, as far as that is known; none twice; and nothing is left."""
    acked = Counter(place for each in workers for place in each.acked)
    begun = set[tuple[int, int]]().union(*(each.acking for each in workers))
    assert everything <= begun, seed
    assert max(acked.values()) == 1, seed  # acknowledged durably: never delivered again, so never acknowledged again
    killed = [each for each in workers if each.process.returncode == -signal.SIGKILL]
    unknown = set[tuple[int, int]]().union(*(each.acking - each.acked for each in killed))
    assert everything - set(acked) <= unknown, seed
    assert sum(row.lag for row in store.groups.describe("workers").rows) == 0
    assert store.groups._offsets.pages("workers") == {}


@pytest.mark.alternating
@pytest.mark.costly  # two interpreters
def test_a_killed_workers_messages_go_to_another_at_once(store: Store, worker: Callable[..., Worker]) -> None:
    everything = fill(store, 20)
    with store.queue("orders", group="workers", visibility_s=3600) as mine:
        mine.receive(1)
        first = worker(visibility_s=3600, idle_s=60)  # nobody will wait for that
        wait(lambda: len(first.got) >= 10, "ten messages")
        first.kill()
        again = [message for message in mine.drain() if message.deliveries > 1]
        assert {(message.partition, message.offset) for message in again}.isdisjoint(first.acked)
    second = worker(visibility_s=3600, idle_s=0.2)
    assert second.join() == 0
    check_history(store, [first, second], everything)


@pytest.mark.slow
def test_workers_that_are_killed_again_and_again_finish_everything(store: Store, worker: Callable[..., Worker]) -> None:
    seed = int(os.environ.get("SAWLOG_SEED", "7"))
    chance = random.Random(seed)
    everything = fill(store, 1500)
    workers = [worker(max_deliveries=None) for _ in range(3)]
    for _ in range(8):
        victim = workers[-1 - chance.randrange(3)]
        goal = len(victim.got) + chance.randrange(1, 200)
        wait(lambda v=victim, g=goal: len(v.got) >= g or v.process.poll() is not None, "work")  # type: ignore[misc]
        victim.kill()
        workers.remove(victim)
        workers.insert(0, victim)
        workers.append(worker(max_deliveries=None))
    for each in workers[-3:]:
        assert each.join() == 0, each.process.stderr
    last = worker(max_deliveries=None)
    assert last.join() == 0
    check_history(store, [*workers, last], everything, f"SAWLOG_SEED={seed}")


@pytest.mark.slow
def test_a_stopped_workers_messages_come_back_after_the_time_out(store: Store, worker: Callable[..., Worker]) -> None:
    everything = fill(store, 50)
    stopped = worker(role="hold", visibility_s=1.0, max_deliveries=None)
    wait(lambda: len(stopped.got) >= 10, "ten messages")  # now it waits, and is not in a turn
    stopped.process.send_signal(signal.SIGSTOP)
    other = worker(visibility_s=60.0, max_deliveries=None)
    assert other.join() == 0
    assert other.acked == everything
    assert {place for place, deliveries in other.got if deliveries == 2} == {place for place, _ in stopped.got}
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.process.stdin is not None
    stopped.process.stdin.close()  # it acknowledges them, too late
    assert stopped.join() == 0
    assert sum(row.lag for row in store.groups.describe("workers").rows) == 0


@pytest.mark.slow
def test_the_state_of_a_queue_does_not_grow_with_what_went_through_it(store: Store) -> None:
    """Millions of answers later the groups' log is as small as before."""
    with store.queue("orders", group="workers") as queue:
        queue.put(b"held")
        (held,) = queue.receive()
        for _ in range(30):
            fill(store, 2000)
            for message in queue.drain():
                queue.ack(message)
        groups = Path(store.path) / "groups"
        size = sum(each.stat().st_size for each in groups.glob("*.log"))
        assert size < 8 << 20, size
        queue.ack(held)
    assert store.groups._offsets.pages("workers") == {}


@pytest.mark.slow
def test_dead_letters_go_back_once_however_often_that_is_killed(store: Store) -> None:
    everything = fill(store, 100)
    with store.queue("orders", group="workers") as queue:
        for message in queue.drain():
            queue.reject(message)
    chance = random.Random(5)
    done = False
    while not done:
        process = ready(start("queueing", "put-back", store.path))
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 6)):
            done = done or process.stdout.readline() in ("done\n", "")
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    with store.queue("orders", group="workers") as queue:
        assert len([queue.ack(message) for message in queue.drain()]) == len(everything)
