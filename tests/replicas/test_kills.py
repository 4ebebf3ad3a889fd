"""Replicators and restores are killed with SIGKILL at any moment, next to a writer: no record is lost, duplicated or
moved."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sawlog
from sawlog import Store
from sawlog.errors import StoreIncomplete
from sawlog.store.objects.store import ObjectStore

from .. import warm
from ..log.transactional import send
from .pairs import assert_comes_back, assert_same, eventually, ship

_SHIP = """
import sys
from sawlog.store.replica import replicate, replicator
replicator.POLL_S = 0.01
print('begun', flush=True)
replicate(*sys.argv[1:])
"""
_RESTORE = """
import sys
from sawlog.store.objects import extent_reader
from sawlog.store.replica import restore
extent_reader.REQUEST_BYTES = 1000
print('begun', flush=True)
restore(*sys.argv[1:])
"""


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process, which is killed at the end of the block."""
    made = warm.start(["-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert made.stdout is not None
        assert made.stdout.readline() == "begun\n"
        yield made
    finally:
        made.send_signal(signal.SIGKILL)
        made.communicate()


class Busy:
    """A store with writes, compactions, trims and commits, in steps that a seed determines."""

    def __init__(self, data: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store: Store = sawlog.open(data, maintenance_interval_s=None)
        self.store.create_topic("orders", partitions=2, segment_bytes=20_000)
        self.store.create_topic("keyed", cleanup_policy="compact", segment_bytes=20_000)
        self._number = 0
        self._sequences = dict.fromkeys(range(5), 0)

    def step(self) -> None:
        """Run a random step."""
        chosen = self.random.randrange(20)
        self._number += 1
        value = b"%d " % self._number * self.random.randrange(1, 60)
        if chosen < 8:
            self.store["orders"].append_many([value] * self.random.randrange(1, 8), partition=chosen % 2)
        elif chosen < 15:
            self.store["keyed"].append(value, key=b"%d" % self.random.randrange(50))
        elif chosen < 17:
            self._transaction(self.random.randrange(5), [value, value])
        elif chosen < 18:
            offset = self.random.randrange(self.store["orders"].partition(0).visible_offset + 1)
            self.store.groups.commit("billing", {("orders", 0): offset})
        elif chosen < 19:
            self.store["keyed"].maintain()
        else:
            log = self.store["orders"].partition(1)
            log.trim(self.random.randrange(log.lowest_offset, log.visible_offset + 1))

    def _transaction(self, producer: int, values: list[bytes]) -> None:
        log = self.store["orders"].partition(0)
        send(log, values, producer, sequence=self._sequences[producer])
        self._sequences[producer] += len(values)
        if self.random.random() < 0.8:
            log.append_marker(producer, 0, commit=self.random.random() < 0.6)

    def run(self, until: threading.Event) -> None:
        """Run steps until the test ends."""
        while not until.wait(0.002):
            self.step()


def run(tmp_path: Path, kills: int, seed: int) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/bucket"
    busy, enough = Busy(data, seed), threading.Event()
    writer = threading.Thread(target=busy.run, args=(enough,))
    writer.start()
    try:
        with ObjectStore.open(url, maintenance_interval_s=None) as watched:
            for _ in range(kills):
                before = watched._session.look(lambda state: state.number, fresh=True)
                more = busy.random.randrange(1, 8)
                with process(_SHIP, str(data), url):  # killed some commits later, whatever it does then
                    eventually(lambda: watched._session.look(lambda state: state.number, fresh=True) >= before + more)  # noqa: B023 - called at once
    finally:
        enough.set()
        writer.join()
    done = ship(data, url, mirror_retention=True)
    assert not done.problems
    assert_holds(busy.store, url, tmp_path / "again")
    kill_restores(url, tmp_path / "killed", kills)
    with sawlog.open(tmp_path / "again", "r") as one, sawlog.open(tmp_path / "killed", "r") as other:
        assert_same(one, other)
    busy.store.close()


def logs_in(directory: Path) -> int:
    """Return the number of segments; 0 while directories are renamed."""
    try:
        return sum(1 for _ in directory.rglob("*.log"))
    except FileNotFoundError:
        return 0


def kill_restores(url: str, to: Path, kills: int) -> None:
    """Kill a restore several times; an incomplete one never counts as complete."""
    for number in range(kills):
        with process(_RESTORE, url, str(to)) as restoring:
            eventually(lambda: restoring.poll() is not None or logs_in(to) > number)  # noqa: B023 - called at once
        if restoring.returncode == 0 or not (to / "restore.json").exists():
            return
        with pytest.raises(StoreIncomplete):
            sawlog.open(to)
    with warm.start(["-c", _RESTORE, url, str(to)], stdout=subprocess.PIPE, text=True) as last:
        assert last.communicate() == ("begun\n", None)
    assert last.returncode == 0


def assert_holds(store: Store, url: str, to: Path) -> None:
    """Check that the topic without compaction is byte for byte the same, and that the compacted one has the last value
    of each key."""
    keyed = {each.key: each.value for each in store["keyed"].scan()}
    from sawlog.store.replica import restore

    restore(url, to)
    with sawlog.open(to, "r") as again:
        for number in range(2):
            mine, theirs = store["orders"].partition(number), again["orders"].partition(number)
            assert theirs.lowest_offset == mine.lowest_offset
            assert [(r.offset, r.value) for r in theirs.scan()] == [(r.offset, r.value) for r in mine.scan()]
            assert [r.offset for r in theirs.scan(isolation="uncommitted")] == [
                r.offset for r in mine.scan(isolation="uncommitted")
            ]
            assert not theirs.verify().problems
        assert {each.key: each.value for each in again["keyed"].scan()} == keyed
        assert not again["keyed"].partition(0).verify().problems
        if "billing" in store.groups.list():
            assert again.groups.describe("billing").rows == store.groups.describe("billing").rows


@pytest.mark.costly  # a writer beside five processes that are killed
def test_a_replicator_and_a_restore_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    run(tmp_path, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_replicators_and_restores_that_are_killed_often_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    run(tmp_path, kills=25, seed=seed)


def test_a_stand_by_that_is_killed_can_be_opened_and_written(tmp_path: Path) -> None:
    data, url, to = tmp_path / "data", f"file://{tmp_path}/bucket", tmp_path / "standby"
    with sawlog.open(data, maintenance_interval_s=None) as store:
        store.create_topic("orders").append(b"one")
        ship(data, url)
        with process(_RESTORE.replace("argv[1:]", "argv[1:], follow=True"), url, str(to)):
            eventually(
                lambda: (to / "restore.json").exists() and b'"complete": true' in (to / "restore.json").read_bytes()
            )
            store["orders"].append(b"two")
            ship(data, url)

            def has_two() -> bool:
                with sawlog.open(to, "r") as standby:
                    return standby["orders"].partition(0).visible_offset == 2

            eventually(has_two)
    with sawlog.open(to) as standby:
        assert [each.value for each in standby["orders"].scan()] == [b"one", b"two"]
        standby["orders"].append(b"mine")
    assert not (to / "restore.json").exists()


@pytest.mark.slow
def test_a_writer_that_was_killed_is_shipped_up_to_what_it_wrote(tmp_path: Path) -> None:
    data, url = tmp_path / "data", f"file://{tmp_path}/bucket"
    program = (
        "import sys, sawlog; topic = sawlog.open(sys.argv[1]).create_topic('orders', exist_ok=True); "
        "topic.append(b'x'); print('begun', flush=True)\nwhile True: topic.append(b'x' * 100)"
    )
    for _ in range(2):
        with process(program, str(data)):
            ship(data, url)
        assert not ship(data, url).problems
    with sawlog.open(data, maintenance_interval_s=None) as store:
        assert not ship(data, url).problems
        assert_comes_back(store, url, tmp_path / "again")
