"""What processes do with a store in a bucket, as roles of `acting`: each goes on until it is killed.

    write      append, publish and upload                        notes what was acknowledged, and where
    read       keep the bytes of all batches of a topic          in files, one per partition
    consume    read a topic as a member of a group               notes what it has read, before it commits
    maintain   consolidate, expire, compact, collect

A call that fails because the bucket did not answer is begun again; whatever else is raised ends the process, and is
found.
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
from sawlog.store.objects.bucket.bucket import Bucket, Entry, Unanswered
from sawlog.store.objects.journal.store_file import StoreParameters
from sawlog.store.objects.store import ObjectStore

from .acting import Diary
from .verdict import KEYED, PARTITIONS, PLAIN, SHORT, Place, value_of

#: The group of `consume`.
GROUP = "billing"


def parameters(grace_s: float) -> StoreParameters:
    """StoreParameters with times that are short enough to wait for."""
    return StoreParameters(belief_s=grace_s / 3, grace_s=grace_s, readers_s=grace_s / 5, checkpoint_every=8)


class FaultyBucket(Bucket):
    """Requests that fail without an answer: not applied, applied, or applied later. Creates that the client library
    repeats after they were applied, requests that are denied, and a bit that flips on the way."""

    def __init__(self, url: str, seed: int, rate: float) -> None:
        super().__init__(url)
        self._chance = random.Random(seed)
        self._rate = rate
        #: The next request is denied.
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
    """Where a store is, and how badly it is reached."""

    url: str
    grace_s: float
    #: The share of requests that fail in each way, in the process itself.
    faults: float = 0.0
    #: For the environment: where the server is.
    variables: dict[str, str] = field(default_factory=dict)

    def open(self, seed: int) -> ObjectStore:
        """The store, with a bucket that fails."""
        os.environ.update(self.variables)
        while True:
            try:
                return ObjectStore.open(FaultyBucket(self.url, seed, self.faults), maintenance_interval_s=None)
            except StorageError:
                time.sleep(0.05)

    def found(self, topics: bool = True) -> None:
        """Create the store; with the topics that are written here."""
        os.environ.update(self.variables)
        with ObjectStore.open(self.url, parameters=parameters(self.grace_s), maintenance_interval_s=None) as store:
            if topics:
                store.create_topic(PLAIN, PARTITIONS[PLAIN])
                store.create_topic(KEYED, cleanup_policy="compact", min_cleanable_dirty_ratio=0.1)
                store.create_topic(SHORT, retention_bytes=2000)


class Writer:
    """Appends, publishes and uploads; each value says who wrote it and when."""

    def __init__(self, site: Site, diary: Diary, seed: int) -> None:
        self._site, self._diary, self._chance = site, diary, random.Random(seed)
        self._store = site.open(seed)

    def work(self) -> None:
        """For ever."""
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
                pass  # nobody knows: it may be there once, or not at all
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
        """Append; repeat it if that has failed, as a program does: nothing was stored, unless the error says that it
        may be."""
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
    """Append, publish and upload for ever."""
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
    """Read as a member of a group; what was read is noted before it is committed."""
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
