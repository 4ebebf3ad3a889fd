"""Writers, readers and maintainers of one store, simulated: killed, stopped, in each other's way. One seed, one story.

`python -m tests.objects.scenario --seed 7 --scenarios 20 [--bug "no nonce"]`
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import random
import sys
import traceback
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from unittest import mock

from sawlog.batch.build import encode
from sawlog.errors import AmbiguousAppend, CorruptData, StorageError
from sawlog.objects import consolidate, partition
from sawlog.objects.collect import Collector
from sawlog.objects.commit import UpgradeRequired
from sawlog.objects.extents import Extent
from sawlog.objects.journal import Journal
from sawlog.objects.reading import ExtentReader
from sawlog.objects.store import ObjectStore
from sawlog.objects.terms import Terms
from sawlog.topics.transactions.staging import Part

from .planted import BUGS, planted
from .simulated import Actor, Faults, InlineCommitter, SimulatedBucket, SimulatedClocks, World
from .verdict import KEYED, PARTITIONS, PLAIN, SHORT, Told, value_of, wrong_with_bucket, wrong_with_records

TERMS = Terms(belief_s=6.0, grace_s=12.0, readers_s=2.0, checkpoint_every=4)
#: How long somebody is stopped: shorter than an answer is believed, longer, longer than the grace period.
STOPS_S = (0.5, 2.0, 5.0, 8.0, 20.0, 30.0)
FAULTS = Faults(lost=0.01, applied=0.02, late=0.01, late_s=60.0, stalls=0.03, stalls_s=STOPS_S)


@dataclass
class Result:
    """What became of a scenario."""

    wrong: list[str] = field(default_factory=list)
    acked: int = 0
    commits: int = 0
    #: How often another writer went on after a kill, a stop or a forced conflict.
    changes: int = 0
    removed: int = 0
    #: How often a snapshot was read again.
    kept: int = 0


class Scenario:
    """One store and its processes."""

    def __init__(self, seed: int, faults: Faults = FAULTS) -> None:
        self.world = World(seed, faults)
        self.told = Told()
        self.result = Result()
        self.seen: dict[str, dict[int, bytearray]] = {}
        self._writers = 0
        self._event_at: int | None = None

    def open(self) -> ObjectStore:
        """Open the store, as a new process does."""
        while True:
            try:
                bucket, clocks = SimulatedBucket(self.world), SimulatedClocks(self.world)
                return ObjectStore.open(bucket, terms=TERMS, upkeep_interval_s=None, clocks=clocks)
            except StorageError:
                self.world.sleep(0.1)

    # --- what processes do

    def write(self, name: str) -> Callable[[], None]:
        """A writer: says which values were acknowledged, and where."""

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
                    pass  # nobody knows: it may be there once, or not at all
                if chance.random() < 0.3:
                    self.world.sleep(chance.uniform(0, 0.5))

        return work

    def _values(self, name: str, topic: str, number: int) -> list[tuple[bytes, bytes | None]]:
        chance = self.world.random
        made = []
        for each in range(chance.randint(1, 3)):
            value = value_of(name, 10 * number + each, chance.choice((20, 20, 700)))
            key = None
            if topic == KEYED:
                key = b"k%d" % chance.randint(0, 4)
                value = value.rstrip(b".") + b"key=" + key
            made.append((value, key))
        return made

    def _append(self, store: ObjectStore, name: str, number: int) -> None:
        topic = self.world.random.choice((PLAIN, PLAIN, KEYED, SHORT))
        at = self.world.random.randrange(PARTITIONS[topic])
        made = self._values(name, topic, number)
        offsets = store.topic(topic).append_many([(value, key) for value, key in made], partition=at)[at]
        self.told.note((topic, at), offsets, [value for value, _ in made])

    def _publish(self, store: ObjectStore, name: str, number: int) -> None:
        made = self._values(name, PLAIN, number)
        topic = store.topic(PLAIN)
        task = store.staging.task(f"job-{name}-{number}")
        piece = task.write(encode([value for value, _ in made]))
        task.sync()
        self.world.sleep(self.world.random.choice((0, *STOPS_S)))
        parts = [Part(PLAIN, topic.id, 0, len(made), (piece,))]
        placed = store.staging.publish(f"job-{name}-{number}", parts, name=f"query-{name}", sequence=number)
        if placed:
            self.told.note((PLAIN, 0), placed[PLAIN, 0], [value for value, _ in made])

    def _upload(self, store: ObjectStore, name: str, number: int) -> None:
        """What is committed long after it was uploaded."""
        values = [value_of(name, 10 * number, 700)]
        action, inline = store.topic(PLAIN).partition(1).action(encode(values))
        assert not inline
        self.world.sleep(self.world.random.choice((0, *STOPS_S)))
        first, end = store._core.commit([action])[0]  # type: ignore[misc]
        self.told.note((PLAIN, 1), range(first, end), values)

    def _transact(self, store: ObjectStore, name: str, number: int) -> None:
        made = self._values(name, PLAIN, number)
        transaction = store.transaction()
        transaction.append_many(PLAIN, [value for value, _ in made], 1)
        transaction.append_many(SHORT, [value for value, _ in made], 0)
        for place, offsets in transaction.commit().items():
            self.told.note(place, offsets, [value for value, _ in made])

    def read(self, name: str) -> Callable[[], None]:
        """A reader: keeps the bytes of all batches."""
        seen = self.seen[name] = {number: bytearray() for number in range(PARTITIONS[PLAIN])}

        def work() -> None:
            store = self.open()
            at = dict.fromkeys(seen, 0)
            while True:
                for number in seen:
                    try:
                        page = store.topic(PLAIN).partition(number).fetch(at[number])
                    except StorageError:
                        continue
                    seen[number] += page.raw
                    at[number] = page.next_offset
                self.world.sleep(self.world.random.uniform(0, 4))

        return work

    def maintain(self) -> None:
        """A maintainer."""
        store = self.open()
        while True:
            try:
                self._upkeep(store)
            except (AmbiguousAppend, StorageError):
                pass
            self.world.sleep(self.world.random.uniform(0, 1))

    def _upkeep(self, store: ObjectStore) -> None:
        maintainer = store._maintainer
        maintainer._since_collection = None
        maintainer.run()
        done = maintainer.collected
        self.result.removed += done.commits + done.uploads + done.tombstones + done.checkpoints

    def archive(self, name: str) -> Callable[[], None]:
        """Takes snapshots, forks them, and reads them for a long time: nothing in them may change, or be gone."""

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
        """The bytes of some extents of a snapshot: always the same, since to read all of them takes too long."""
        extents: list[Extent] = []
        for topic, count in sorted(PARTITIONS.items()):
            for number in range(count):
                extents += store.topic(topic, at=name).partition(number).extents(0, 1 << 62)
        return [self._read(store, name, each) for each in extents[:: len(extents) // 8 + 1]]

    def _read(self, store: ObjectStore, name: str, extent: Extent) -> bytes:
        while True:
            try:
                return bytes(store._core.extents.read(extent))
            except StorageError as error:
                if error.errno == errno.ENOENT:
                    self.result.wrong.append(f"{extent.key}, which the snapshot {name} refers to, is gone")
                    raise
            self.world.sleep(0.1)

    # --- the story

    def begin(self) -> None:
        """A store with topics, and those who use it."""
        store = self.open()
        store.create_topic(PLAIN, PARTITIONS[PLAIN])
        store.create_topic(KEYED, cleanup_policy="compact", min_cleanable_dirty_ratio=0.1)
        store.create_topic(SHORT, retention_bytes=2000)
        for _ in range(5):
            self.start_writer()
        for name in ("a", "b"):
            self.world.start(f"reader {name}", self.read(name))
        for number in range(2):
            self.world.start(f"maintainer {number}", self.maintain)
        self.world.start("archivist 0", self.archive("s0"))

    def start_writer(self) -> None:
        """One more writer."""
        self._writers += 1
        name = f"w{self._writers}"
        self.world.start(name, self.write(name))

    def disturb(self) -> None:
        """Kill or stop somebody, or let two writers go for the same number."""
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
        """Let them work, and disturb them."""
        self.begin()
        for step in range(steps):
            self.world.step()
            if step % every == every - 1:
                self.disturb()
            self._count_change()
            if any(actor.error is not None for actor in self.world.actors):
                break
        for actor in self.world.actors:
            if actor.error is not None:
                self.result.wrong.append(f"{actor.name} stopped: {_told(actor.error)}")
        self.world.end()

    def _count_change(self) -> None:
        creators, at = self.world.creators, self._event_at
        if at is not None and len(creators) > at:
            self.result.changes += creators[-1] != creators[at - 1]
            self._event_at = None

    def judge(self) -> None:
        """What is wrong, after all is quiet."""
        self.world.late.clear()
        try:
            store = self.open()
            self.result.wrong += wrong_with_records(store, self.told)
            self._compare_readers(store)
            # Until nothing is collected any more: notes, the floor, garbage and a sweep take a grace period each.
            for _ in range(12):
                self.world.now_s += TERMS.grace_s + 1
                self._upkeep(store)
            self.result.wrong += wrong_with_records(self.open(), self.told)
            self.result.wrong += wrong_with_bucket(store._core)
            self._compare_digests(store)
        except (CorruptData, UpgradeRequired, StorageError, AssertionError) as error:
            self.result.wrong.append(f"at the end: {_told(error)}")
        self.result.acked = len(self.told.acked)
        self.result.commits = len(self.world.history)

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
        """Against a fold over all commits that there ever were."""
        truth = Journal(SimulatedBucket(World(0)), TERMS)
        for key in sorted(self.world.history):
            truth._fold(self.world.history[key])
        number, digest = store._core.look(lambda state: (state.number, state.digest), fresh=True)
        if (number, digest) != (truth.state.number, truth.state.digest):
            self.result.wrong.append(f"the state after {number} commits is not that of all {truth.state.number}")


def _at_once(reader: ExtentReader, run: Sequence[Extent]) -> Future[list[memoryview]]:
    """A request that is not made by another thread, so that a seed says what happens."""
    made: Future[list[memoryview]] = Future()
    try:
        made.set_result(reader._fetch(run))
    except Exception as error:
        made.set_exception(error)
    return made


def _told(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


def run(seed: int, *, steps: int = 10_000, every: int = 60, bug: str | None = None, faults: Faults = FAULTS) -> Result:
    """One scenario."""
    scenario = Scenario(seed, faults)
    names = random.Random(seed)

    def name() -> uuid.UUID:
        return uuid.UUID(int=names.getrandbits(128), version=4)

    def is_old() -> bool:  # every second writer is an old version, and so is one of the others
        actor = scenario.world.actor()
        return actor is not None and sum(map(ord, actor.name)) % 2 == 1

    with ExitStack() as stack:
        for patch in (
            mock.patch("sawlog.objects.core.Committer", InlineCommitter),
            mock.patch.object(Collector, "_each", lambda self, do, keys: [do(key) for key in list(keys)]),
            mock.patch.object(partition, "INLINE_BATCH_BYTES", 600),
            mock.patch.object(ExtentReader, "_submit", _at_once),
            mock.patch.object(consolidate, "_LEAST_EXTENTS", 6),
            mock.patch.object(uuid, "uuid4", name),
            planted(bug, is_affected=is_old, now_s=lambda: scenario.world.now_s),
        ):
            stack.enter_context(patch)
        scenario.run(steps, every)
        scenario.judge()
    return scenario.result


def say(text: str) -> None:
    """Tell whoever runs this."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenarios", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--bug", choices=sorted(BUGS))
    wanted = parser.parse_args()
    failed = 0
    for seed in range(wanted.seed, wanted.seed + wanted.scenarios):
        result = run(seed, steps=wanted.steps, bug=wanted.bug)
        say(
            f"seed {seed}: {result.commits} commits, {result.acked} acknowledged, {result.changes} changes of the "
            f"writer, {result.removed} objects removed, {len(result.wrong)} wrong"
        )
        for each in result.wrong[:5]:
            say(f"    {each}")
        failed += bool(result.wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
