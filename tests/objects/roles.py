"""Roles of processes that use a store in a bucket (see `acting`). Each role works until it is killed.

    write      append, publish and upload                        notes acknowledged values and their offsets
    read       keep the bytes of all batches of a topic          in files, one per partition
    consume    read a topic as a member of a group               notes records before it commits
    maintain   consolidate, expire, compact, collect

A call that fails because the bucket did not answer is repeated. Any other exception ends the process and is a defect.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from sawlog.batch.build import encode
from sawlog.errors import AmbiguousAppend, GroupError, StorageError
from sawlog.store.directory.transactions.staging import Part
from sawlog.store.objects.bucket import Bucket, Entry, Unanswered
from sawlog.store.objects.journal import StoreParameters
from sawlog.store.objects.store import ObjectStore

from .acting import Diary
from .verdict import KEYED, PARTITIONS, PLAIN, SHORT, Place, value_of

#: The group of `consume`.
GROUP = "billing"


def parameters(grace_s: float) -> StoreParameters:
    """Return StoreParameters with times short enough for tests."""
    return StoreParameters(belief_s=grace_s / 3, grace_s=grace_s, readers_s=grace_s / 5, checkpoint_every=8)


class FaultyBucket(Bucket):
    """A bucket whose requests fail without an answer: not applied, applied, or applied later. The client library
    repeats creates that were applied, requests are denied, and bits flip in transit."""

    def __init__(self, url: str, seed: int, rate: float) -> None:
        super().__init__(url)
        self._chance = random.Random(seed)
        self._rate = rate
        #: Set if the next request is to be denied.
        self._is_denied = False

    def _fails(self) -> str:
        point = self._chance.random()
        kinds = (("lost", 1), ("applied", 3), ("late", 4), ("repeated", 5), ("denied", 5.5), ("flipped", 6))
        return next((kind for kind, at in kinds if point < at * self._rate), "")

    def _before(self) -> str:
        kind = self._fails()
        if kind == "lost":
            raise Unanswered(errno.EIO, "torture: not applied")
        if kind == "denied" or self._is_denied:
            self._is_denied = False
            raise StorageError(errno.EACCES, "torture: denied")
        return kind

    def _after(self, kind: str) -> None:
        if kind == "applied":
            raise Unanswered(errno.EIO, "torture: applied")

    def create(self, key: str, data: bytes) -> bool:
        """See `Bucket`."""
        kind = self._before()
        if kind == "late":
            later = threading.Timer(self._chance.uniform(0, 4), self._create_late, (key, data))
            later.daemon = True
            later.start()
            raise Unanswered(errno.EIO, "torture: on its way")
        made = super().create(key, data)
        if kind == "repeated":
            self._is_denied = self._chance.random() < 0.5
            made = super().create(key, data)
        self._after(kind)
        return made

    def _create_late(self, key: str, data: bytes) -> None:
        with suppress(StorageError):
            super().create(key, data)

    def put(self, key: str, data: bytes) -> None:
        """See `Bucket`."""
        kind = self._before()
        super().put(key, data)
        self._after(kind)

    def get(self, key: str) -> bytes | None:
        """See `Bucket`."""
        kind = self._before()
        found = super().get(key)
        if not found or kind != "flipped" or not key.startswith(("commits/", "checkpoints/")):
            return found
        flipped = bytearray(found)
        flipped[self._chance.randrange(len(found))] ^= 1 << self._chance.randrange(8)
        return bytes(flipped)

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """See `Bucket`."""
        self._before()
        return super().list(prefix, after)

    def delete(self, key: str) -> None:
        """See `Bucket`."""
        kind = self._before()
        super().delete(key)
        self._after(kind)


@dataclass(frozen=True)
class Site:
    """The address of a store, and the faults on the way to it."""

    url: str
    grace_s: float
    #: Share of requests that fail in each way, injected in the process itself.
    faults: float = 0.0
    #: Environment variables for the server.
    variables: dict[str, str] = field(default_factory=dict)

    def open(self, seed: int) -> ObjectStore:
        """Open the store with a faulty bucket."""
        os.environ.update(self.variables)
        while True:
            try:
                return ObjectStore.open(FaultyBucket(self.url, seed, self.faults), maintenance_interval_s=None)
            except StorageError:
                time.sleep(0.05)

    def found(self, topics: bool = True) -> None:
        """Create the store with its topics."""
        os.environ.update(self.variables)
        with ObjectStore.open(self.url, parameters=parameters(self.grace_s), maintenance_interval_s=None) as store:
            if topics:
                store.create_topic(PLAIN, PARTITIONS[PLAIN])
                store.create_topic(KEYED, cleanup_policy="compact", min_cleanable_dirty_ratio=0.1)
                store.create_topic(SHORT, retention_bytes=2000)


class Writer:
    """Appends, publishes and uploads. Each value names its writer and a number."""

    def __init__(self, site: Site, diary: Diary, seed: int) -> None:
        self._site, self._diary, self._chance = site, diary, random.Random(seed)
        self._store = site.open(seed)

    def work(self) -> None:
        """Write forever."""
        number = 0
        while True:
            number += 1
            kind = self._chance.random()
            try:
                if kind < 0.8:
                    self._append(number)
                elif kind < 0.9:
                    self._publish(number)
                else:
                    self._upload(number)
            except (AmbiguousAppend, StorageError):
                pass  # unknown outcome: stored once or not at all
            time.sleep(self._chance.choice((0.0, 0.0, 0.005)))

    def _values(self, topic: str, number: int) -> list[tuple[bytes, bytes | None]]:
        made = []
        for each in range(self._chance.randint(1, 3)):
            value, key = value_of(self._diary.name, 10 * number + each, self._chance.choice((20, 20, 700))), None
            if topic == KEYED:
                key = b"k%d" % self._chance.randint(0, 4)
                value = value.rstrip(b".") + b"key=" + key
            made.append((value, key))
        return made

    def _acknowledged(self, place: Place, offsets: range, values: list[bytes]) -> None:
        self._diary.say(*place, offsets.start, *(value.decode() for value in values))

    def _append(self, number: int) -> None:
        topic = self._chance.choice((PLAIN, PLAIN, KEYED, SHORT))
        at = self._chance.randrange(PARTITIONS[topic])
        made = self._values(topic, number)
        offsets = self._insist(topic, made, at)
        self._acknowledged((topic, at), offsets, [value for value, _ in made])

    def _insist(self, topic: str, made: list[tuple[bytes, bytes | None]], at: int) -> range:
        """Append, and repeat after a failure like a program: nothing was stored unless the error is ambiguous."""
        for _ in range(2):
            try:
                return self._store.topic(topic).append_many(made, partition=at)[at]
            except AmbiguousAppend:
                raise
            except StorageError:
                time.sleep(0.01)
        return self._store.topic(topic).append_many(made, partition=at)[at]

    def _publish(self, number: int) -> None:
        values = [value for value, _ in self._values(PLAIN, number)]
        job = f"job-{self._diary.name}-{number}"
        task = self._store._staging.task(job)
        piece = task.write(encode(values))
        task.sync()
        self._hesitate()
        part = Part(PLAIN, self._store.topic(PLAIN).id, 0, len(values), (piece,))
        placed = self._store._staging.publish(job, [part], name=self._diary.name, sequence=number)
        if placed:
            self._acknowledged((PLAIN, 0), placed[PLAIN, 0], values)

    def _upload(self, number: int) -> None:
        values = [value_of(self._diary.name, 10 * number, 700)]
        action, _ = self._store.topic(PLAIN)._append_action(1, values)
        self._hesitate()
        first, end = self._store._session.commit([action])[0]  # type: ignore[misc]
        self._acknowledged((PLAIN, 1), range(first, end), values)

    def _hesitate(self) -> None:
        time.sleep(self._site.grace_s * self._chance.choice((0, 0, 0, 0.3, 2)))


def write(site: Site, diary: Diary, seed: int) -> None:
    """Append, publish and upload forever."""
    Writer(site, diary, seed).work()


def read(site: Site, diary: Diary, seed: int) -> None:
    """Keep the bytes of all batches."""
    store = site.open(seed)
    at = dict.fromkeys(range(PARTITIONS[PLAIN]), 0)
    files = {number: (diary.folder / f"{diary.name}.{number}.seen").open("wb") for number in at}
    while True:
        for number in at:
            with suppress(StorageError):
                page = store.topic(PLAIN).partition(number).fetch(at[number], timeout=0.1, min_bytes=1)
                files[number].write(page.raw)
                files[number].flush()
                at[number] = page.next_offset


def consume(site: Site, diary: Diary, seed: int) -> None:
    """Read as a member of a group. Note records before committing their offsets."""
    store = site.open(seed)
    session_ms = int(site.grace_s * 1000)
    while True:
        with (
            suppress(StorageError, AmbiguousAppend, GroupError),
            store.consumer(GROUP, [PLAIN], auto_commit_ms=None, session_timeout_ms=session_ms) as consumer,
        ):
            while True:
                for record in consumer.poll(0.2):
                    diary.say(record.partition, record.offset, (record.value or b"").decode())
                consumer.commit()


def maintain(site: Site, diary: Diary, seed: int) -> None:
    """Consolidate, expire, compact, collect."""
    store, chance = site.open(seed), random.Random(seed)
    while True:
        with suppress(StorageError, AmbiguousAppend):
            store._maintainer._since_collection = None
            store.maintain()
        time.sleep(chance.uniform(0, 0.3))
