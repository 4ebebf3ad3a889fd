"""Simulated writers, readers and maintainers of one store, killed, stopped and in conflict. One seed is one story.

`python -m tests.objects.scenario --seed 7 --scenarios 20 [--bug "no nonce"] [--roll-back]`

With `roll_back` all processes share a block cache, and in the middle of the story the bucket returns to an earlier
state. New processes continue from there, on the machine whose cache has the first history. At the end objects with
cached blocks are damaged and deleted, and everything that must detect that has to detect it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from unittest import mock

from sawlog.batch.build import encode
from sawlog.errors import AmbiguousAppend, CorruptData, StorageError
from sawlog.store.directory.transactions.staging import Part
from sawlog.store.objects import maintenance, session
from sawlog.store.objects.journal import Journal, StoreParameters
from sawlog.store.objects.state.commit import Extent, UpgradeRequired
from sawlog.store.objects.store import ObjectStore

from .histories import give_cache
from .planted import BUGS, CACHE_BUGS, planted
from .simulated import Actor, Faults, SimulatedBucket, SimulatedClocks, World, determined
from .verdict import (
    KEYED,
    PARTITIONS,
    PLAIN,
    SHORT,
    Told,
    value_of,
    wrong_with_bucket,
    wrong_with_proofs,
    wrong_with_records,
)

_T = TypeVar("_T")

PARAMETERS = StoreParameters(belief_s=6.0, grace_s=12.0, readers_s=2.0, checkpoint_every=4)
#: Lengths of stops: shorter than an answer is believed, longer, and longer than the grace period.
STOPS_S = (0.5, 2.0, 5.0, 8.0, 20.0, 30.0)
FAULTS = Faults(
    lost=0.01,
    applied=0.02,
    late=0.01,
    late_s=60.0,
    repeated=0.02,
    denied=0.005,
    flipped=0.01,
    slow=0.02,
    stalls=0.03,
    stalls_s=STOPS_S,
)
#: Maximum staleness of a state: 50 ms and a typical round trip, with ten processes.
FRESH_S = 1.0


@dataclass
class Result:
    """The result of a scenario."""

    wrong: list[str] = field(default_factory=list)
    acked: int = 0
    commits: int = 0
    #: Number of changes of the writer after a kill, a stop or a forced conflict.
    changes: int = 0
    removed: int = 0
    #: Number of repeated reads of snapshots.
    kept: int = 0
    #: Number of commit numbers that two histories have in common.
    repeated: int = 0
    #: All requests of all processes: equal for equal seeds.
    trace: list[str] = field(default_factory=list, repr=False)

    @property
    def story(self) -> str:
        """A digest that two equal runs have in common."""
        return hashlib.blake2b("\n".join(self.trace).encode(), digest_size=6).hexdigest()


class Scenario:
    """One store and its processes."""

    def __init__(self, seed: int, faults: Faults = FAULTS, cache: Path | None = None) -> None:
        self.world = World(seed, faults)
        self.told = Told()
        self.result = Result()
        self.seen: dict[str, dict[int, bytearray]] = {}
        #: Times of acknowledgements, with the next offset, by partition.
        self.acked: dict[int, list[tuple[float, int]]] = {number: [] for number in range(PARTITIONS[PLAIN])}
        self._writers = 0
        self._event_at: int | None = None
        #: The block cache shared by all processes.
        self._cache = cache
        #: The commits lost by the rollback.
        self._gone: set[str] = set()
        #: The saved state of the bucket: objects, commits, and the acknowledgements until then.
        self._saved: (
            tuple[dict[str, tuple[bytes, float]], dict[str, bytes], Told, dict[int, list[tuple[float, int]]]] | None
        ) = None

    def open(self, *, cached: bool = True) -> ObjectStore:
        """Open the store like a new process."""
        while True:
            try:
                bucket, clocks = SimulatedBucket(self.world), SimulatedClocks(self.world)
                store = ObjectStore.open(bucket, parameters=PARAMETERS, maintenance_interval_s=None, clocks=clocks)
                break
            except StorageError:
                self.world.sleep(0.1)
        if cached and self._cache is not None:
            give_cache(store, self._cache)
        return store

    # --- processes

    def write(self, name: str) -> Callable[[], None]:
        """Run a writer, which notes acknowledged values and their offsets."""

        def work() -> None:
            store, chance, number = self.open(), self.world.random, 0
            while True:
                number += 1
                kind = chance.random()
                try:
                    if kind < 0.7:
                        self._append(store, name, number)
                    elif kind < 0.8:
                        self._publish(store, name, number)
                    elif kind < 0.9:
                        self._upload(store, name, number)
                    else:
                        self._transact(store, name, number)
                except (AmbiguousAppend, StorageError):
                    pass  # unknown outcome: stored once or not at all
                if chance.random() < 0.3:
                    self.world.sleep(chance.uniform(0, 0.5))

        return work

    def _insist(self, call: Callable[[], _T]) -> _T:
        """Repeat a failed call like a program: nothing was stored unless the error is ambiguous."""
        for attempt in range(3):
            try:
                return call()
            except AmbiguousAppend:
                raise
            except StorageError:
                if attempt == 2:
                    raise
            self.world.sleep(0.1)
        raise AssertionError

    def _note(self, place: tuple[str, int], offsets: range, values: list[bytes]) -> None:
        self.told.note(place, offsets, values)
        if place[0] == PLAIN:
            self.acked[place[1]].append((self.world.now_s, offsets.stop))

    def _values(self, name: str, topic: str, number: int) -> list[tuple[bytes, bytes | None]]:
        chance = self.world.random
        made = []
        # With a cache, values have one size, so that another history has its batches in the same places.
        is_alike = self._cache is not None and chance.random() < 0.9
        for each in range(1 if is_alike else chance.randint(1, 3)):
            value = value_of(name, 10 * number + each, 20 if is_alike else chance.choice((20, 20, 700)))
            key = None
            if topic == KEYED:
                key = b"k%d" % chance.randint(0, 4)
                value = value.rstrip(b".") + b"key=" + key
            made.append((value, key))
        return made

    def _record(self, value: bytes, key: bytes | None = None) -> tuple[bytes, bytes | None, tuple[()], int]:
        """Return a record with the simulated time: the kernel has a clock of its own."""
        return value, key, (), int(self.world.now_s * 1000)

    def _append(self, store: ObjectStore, name: str, number: int) -> None:
        topic = self.world.random.choice((PLAIN, PLAIN, KEYED, SHORT))
        at = self.world.random.randrange(PARTITIONS[topic])
        made = self._values(name, topic, number)
        offsets = self._insist(
            lambda: store.topic(topic).append_many([self._record(*each) for each in made], partition=at)[at]
        )
        self._note((topic, at), offsets, [value for value, _ in made])

    def _publish(self, store: ObjectStore, name: str, number: int) -> None:
        made = self._values(name, PLAIN, number)
        topic = store.topic(PLAIN)
        task = store._staging.task(f"job-{name}-{number}")
        piece = task.write(encode([self._record(value) for value, _ in made]))
        task.sync()
        self.world.sleep(self.world.random.choice((0, *STOPS_S)))
        parts = [Part(PLAIN, topic.id, 0, len(made), (piece,))]
        placed = store._staging.publish(f"job-{name}-{number}", parts, name=f"query-{name}", sequence=number)
        if placed:
            self._note((PLAIN, 0), placed[PLAIN, 0], [value for value, _ in made])

    def _upload(self, store: ObjectStore, name: str, number: int) -> None:
        """Upload a batch and commit it long after."""
        values = [value_of(name, 10 * number, 700)]
        action, inline = store.topic(PLAIN)._append_action(1, [self._record(value) for value in values])
        assert not inline
        self.world.sleep(self.world.random.choice((0, *STOPS_S)))
        first, end = store._session.commit([action])[0]  # type: ignore[misc]
        self._note((PLAIN, 1), range(first, end), values)

    def _transact(self, store: ObjectStore, name: str, number: int) -> None:
        made = self._values(name, PLAIN, number)
        transaction = store.transaction()
        transaction.append_many(PLAIN, [self._record(value) for value, _ in made], 1)
        transaction.append_many(SHORT, [self._record(value) for value, _ in made], 0)
        for place, offsets in self._insist(transaction.commit).items():
            self._note(place, offsets, [value for value, _ in made])

    def read(self, name: str) -> Callable[[], None]:
        """Run a reader, which keeps the bytes of all batches."""
        seen = self.seen[name] = {number: bytearray() for number in range(PARTITIONS[PLAIN])}

        def work() -> None:
            store = self.open()
            at = dict.fromkeys(seen, 0)
            while True:
                for number in seen:
                    try:
                        self._check_fresh(name, store, number)
                        page = store.topic(PLAIN).partition(number).fetch(at[number])
                    except StorageError:
                        continue
                    seen[number] += page.raw
                    at[number] = page.next_offset
                self.world.sleep(self.world.random.uniform(0, 4))

        return work

    def _check_fresh(self, name: str, store: ObjectStore, number: int) -> None:
        """Check that a call sees everything acknowledged shortly before it, even right after a slow call."""
        log = store.topic(PLAIN).partition(number)
        for _ in range(2):
            now_s = self.world.now_s
            acked = max((end for time_s, end in self.acked[number] if time_s <= now_s - FRESH_S), default=0)
            if log.visible_offset < acked:
                self.result.wrong.append(f"reader {name} does not see what was acknowledged long before: {acked}")

    def maintain(self) -> None:
        """Run a maintainer."""
        store = self.open()
        while True:
            try:
                self._maintain(store)
            except (AmbiguousAppend, StorageError):
                pass
            self.world.sleep(self.world.random.uniform(0, 1))

    def _maintain(self, store: ObjectStore) -> None:
        maintainer = store._maintainer
        maintainer._since_collection = None
        maintainer.run()
        done = maintainer.collected
        self.result.removed += done.commits + done.uploads + done.tombstones + done.checkpoints

    def archive(self, name: str) -> Callable[[], None]:
        """Take snapshots, fork them, and read them repeatedly: their content must never change."""

        def work() -> None:
            store, number = self.open(), 0
            while True:
                number += 1
                with contextlib.suppress(AmbiguousAppend, StorageError):
                    self._keep(store, f"{name}-{number}")
                self.world.sleep(self.world.random.uniform(0, 4))

        return work

    def _keep(self, store: ObjectStore, name: str) -> None:
        taken = store.snapshot(name)
        before = self._kept(store, name)
        forked = None
        if self.world.random.random() < 0.3:
            forked = store.topic(PLAIN, at=taken).fork(f"fork-{name}").name
        for _ in range(self.world.random.randint(1, 4)):
            self.world.sleep(self.world.random.choice(STOPS_S[-2:]))
            if self._kept(store, name) != before:
                self.result.wrong.append(f"the snapshot {name} has changed")
            self.result.kept += 1
        store.delete_snapshot(name)
        if forked is not None:
            store.delete_topic(forked)

    def _kept(self, store: ObjectStore, name: str) -> list[bytes]:
        """Return the bytes of some extents of a snapshot, always the same ones: reading all takes too long."""
        extents: list[Extent] = []
        for topic, count in sorted(PARTITIONS.items()):
            for number in range(count):
                extents += store.topic(topic, at=name).partition(number)._extents(0, 1 << 62)
        return [self._read(store, name, each) for each in extents[:: len(extents) // 8 + 1]]

    def _read(self, store: ObjectStore, name: str, extent: Extent) -> bytes:
        while True:
            try:
                return bytes(store._session.extents.read(extent))
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    self.result.wrong.append(f"{extent.key}, which the snapshot {name} refers to, is gone")
                    raise
            self.world.sleep(0.1)

    # --- the story

    def begin(self) -> None:
        """Create a store with topics, and start its processes."""
        store = self.open()
        store.create_topic(PLAIN, PARTITIONS[PLAIN])
        store.create_topic(KEYED, cleanup_policy="compact", min_cleanable_dirty_ratio=0.1)
        store.create_topic(SHORT, retention_bytes=2000)
        self._start_all(0)

    def _start_all(self, number: int) -> None:
        for _ in range(5):
            self.start_writer()
        for name in ("a", "b"):
            self.world.start(f"reader {name}", self.read(name))
        for each in range(2):
            self.world.start(f"maintainer {each}", self.maintain)
        self.world.start(f"archivist {number}", self.archive(f"s{number}"))

    def save(self) -> None:
        """Save a copy of the bucket."""
        acked = {number: list(ends) for number, ends in self.acked.items()}
        self._saved = dict(self.world.objects), dict(self.world.history), Told(dict(self.told.acked)), acked

    def roll_back(self) -> None:
        """Restore the copy and continue with new processes and the same cache. Later commits are lost."""
        assert self._saved is not None
        gone = set(self.world.history)
        self.end()
        self.world.late.clear()
        self.world.objects, self.world.history, self.told, self.acked = self._saved
        self._event_at, self.seen, self._gone = None, {}, gone - set(self.world.history)
        self._start_all(1000)

    def start_writer(self) -> None:
        """Start another writer."""
        self._writers += 1
        name = f"w{self._writers}"
        self.world.start(name, self.write(name))

    def disturb(self) -> None:
        """Kill or stop a process, or make two writers compete for one number."""
        chance, world = self.world.random, self.world
        alive = [actor for actor in world.actors if not actor.has_ended and not actor.is_killed]
        last = world.creators[-1] if world.creators else ""
        active = [actor for actor in alive if actor.name == last and actor.until_s <= world.now_s]
        kind = chance.random()
        if kind < 0.7 and active:
            chosen = active[0]
        else:
            chosen = chance.choice(alive)
        if kind < 0.35:
            world.kill(chosen)
            self._replace(chosen)
        else:
            world.stop(chosen, chance.choice(STOPS_S))
        if chosen.name == last:
            self._event_at = len(world.creators)

    def _replace(self, actor: Actor) -> None:
        if actor.name.startswith("w"):
            self.start_writer()
        elif actor.name.startswith("maintainer"):
            self.world.start(actor.name, self.maintain)
        elif actor.name.startswith("archivist"):
            number = int(actor.name.split()[1]) + 1
            self.world.start(f"archivist {number}", self.archive(f"s{number}"))
        else:
            self.world.start(actor.name, self.read(f"r{len(self.seen)}"))

    def run(self, steps: int, every: int) -> None:
        """Run the processes and disturb them."""
        self.begin()
        for step in range(steps):
            if self._cache is not None and step == steps // 6:
                self.save()
            if self._cache is not None and step == steps // 2:
                self.roll_back()
            self.world.step()
            if step % every == every - 1:
                self.disturb()
            self._count_change()
            if any(actor.error is not None for actor in self.world.actors):
                break
        self.end()

    def end(self) -> None:
        """End all processes. A process that has ended by itself is a defect."""
        for actor in self.world.actors:
            if actor.error is not None:
                self.result.wrong.append(f"{actor.name} stopped: {_told(actor.error)}")
        self.world.end()
        self.world.actors.clear()

    def _count_change(self) -> None:
        creators, at = self.world.creators, self._event_at
        if at is not None and len(creators) > at:
            self.result.changes += creators[-1] != creators[at - 1]
            self._event_at = None

    def judge(self) -> None:
        """List the defects after all processes have ended."""
        self.world.late.clear()
        try:
            store = self.open(cached=False)
            self.result.wrong += wrong_with_records(store, self.told)
            self._compare_readers(store)
            if self._cache is not None:
                self.result.wrong += wrong_with_records(self.open(), self.told)
            # Wait until nothing is left to collect: notes, the floor, garbage and a sweep take a grace period each.
            for _ in range(12):
                self.world.now_s += PARAMETERS.grace_s + 1
                self._maintain(store)
            self.result.wrong += wrong_with_records(self.open(), self.told)
            self.result.wrong += wrong_with_bucket(store._session)
            self._compare_digests(store)
            if self._cache is not None:
                self.result.wrong += wrong_with_proofs(self.open(), self.world)
        except (CorruptData, UpgradeRequired, StorageError, AssertionError) as error:
            self.result.wrong.append(f"at the end: {_told(error)}")
        self.result.acked = len(self.told.acked)
        self.result.commits = len(self.world.history)
        self.result.repeated = len(self._gone & set(self.world.history))

    def _compare_readers(self, store: ObjectStore) -> None:
        for number in range(PARTITIONS[PLAIN]):
            partition_ = store.topic(PLAIN).partition(number)
            whole, at = bytearray(), 0
            while at < partition_.visible_offset:
                page = partition_.fetch(at)
                whole += page.raw
                at = page.next_offset
            for name, seen in self.seen.items():
                if whole[: len(seen[number])] != seen[number]:
                    self.result.wrong.append(f"reader {name} has read other bytes of partition {number}")

    def _compare_digests(self, store: ObjectStore) -> None:
        """Compare with a fold over all commits that ever existed."""
        truth = Journal(SimulatedBucket(World(0)), PARAMETERS)
        for key in sorted(self.world.history):
            truth._fold(self.world.history[key])
        number, digest = store._session.look(lambda state: (state.number, state.digest), fresh=True)
        if (number, digest) != (truth.state.number, truth.state.digest):
            self.result.wrong.append(f"the state after {number} commits is not that of all {truth.state.number}")


def _told(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def run(
    seed: int,
    *,
    steps: int = 10_000,
    every: int = 60,
    bug: str | None = None,
    faults: Faults = FAULTS,
    roll_back: bool = False,
) -> Result:
    """Run one scenario. With `roll_back`, the bucket is rolled back in the middle, and the cache is not."""
    if not roll_back:
        return _run(Scenario(seed, faults), seed, steps, every, bug)
    with tempfile.TemporaryDirectory(prefix="sawlog-cache-") as cache:
        return _run(Scenario(seed, faults, Path(cache)), seed, steps, every, bug)


def _run(scenario: Scenario, seed: int, steps: int, every: int, bug: str | None) -> Result:
    def is_old() -> bool:  # every second writer runs an old version, and so does one of the others
        actor = scenario.world.actor()
        return actor is not None and sum(map(ord, actor.name)) % 2 == 1

    with ExitStack() as stack:
        for patch in (
            determined(scenario.world, seed),
            mock.patch.object(session, "INLINE_BATCH_BYTES", 600),
            mock.patch.object(maintenance, "_LEAST_EXTENTS", 6),
            planted(bug, is_affected=is_old, now_s=lambda: scenario.world.now_s),
        ):
            stack.enter_context(patch)
        scenario.run(steps, every)
        scenario.judge()
    scenario.result.trace = scenario.world.trace
    return scenario.result


def say(text: str) -> None:
    """Print the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run many scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenarios", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--bug", choices=sorted(BUGS | CACHE_BUGS))
    parser.add_argument("--roll-back", action="store_true", help="roll the bucket back, and keep the cache")
    wanted = parser.parse_args()
    failed = 0
    for seed in range(wanted.seed, wanted.seed + wanted.scenarios):
        result = run(seed, steps=wanted.steps, bug=wanted.bug, roll_back=wanted.roll_back)
        say(
            f"seed {seed}: {result.commits} commits, {result.acked} acknowledged, {result.changes} changes of the "
            f"writer, {result.removed} objects removed, {len(result.wrong)} wrong; story {result.story}"
        )
        for each in result.wrong[:5]:
            say(f"    {each}")
        failed += bool(result.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
