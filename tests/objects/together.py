"""All roles at once on one bucket, behind a proxy that is slow, busy, and loses requests and answers.

`python -m tests.objects.together --minutes 15 [--changes 300] [--server seaweedfs] [--bug "no nonce"]`

One store of the bucket has, each in processes of their own:

    write, read, consume, maintain    the library, see `roles`
    broker                            `sawlog serve`
    produce, move, subscribe, modern  Kafka clients of these brokers, see `brokerage`: idempotent producers, a mover
                                      with transactions, and a group of each protocol
    watch                             checks that no group goes back

Another prefix has the replica of a directory:

    source                            writes the directory
    ship                              two replicators at once
    standby                           restores, and follows
    restore                           restores into new directories repeatedly
    tend                              maintains the replica

All actors are killed, stopped for longer than the grace period, or replaced while stopped and then resumed beside their
successors. At the end every role must make progress. Then everything is read again, without the proxy.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tests.broker.serving import Serving
from tests.replicas.pairs import assert_same, batches

import sawlog
from sawlog.batch.header import BASE, BASE_SEQUENCE, LAST, PRODUCER_EPOCH, PRODUCER_ID
from sawlog.errors import AmbiguousAppend, DirectoryLocked, GroupNotFound
from sawlog.log.ingest import rows_of
from sawlog.store.objects.bucket import Unanswered
from sawlog.store.objects.store import ObjectStore
from sawlog.store.replica import replicate, replicator, restore

from . import roles
from .acting import Actor, Diary, told
from .brokerage import (
    PARTITIONS,
    Fleet,
    Mover,
    Orders,
    Reader,
    Watcher,
    Writer,
    orders_in,
    wrong_with_copies,
    wrong_with_orders,
    wrong_with_reading,
)
from .planted import BUGS
from .roles import GROUP, Site
from .servers import Server, proxied, started
from .torture import STOPS, Torture, make_small
from .verdict import PARTITIONS as PLAIN_PARTITIONS
from .verdict import PLAIN, Told, wrong_with_bucket, wrong_with_digests

#: Longer than without brokers: requests are slow behind a proxy, and an answer that takes longer than a third of it is
#: not believed.
GRACE_S = 6.0
#: The default: a commit may take seconds here, and with less, brokers would keep removing each other.
PATIENT = ("--set", "broker_expiry_s=10")
#: The groups of Kafka clients, and the role of their members; None for the mover's.
GROUPS = {"readers": "subscribe", "modern": "modern", "movers": None}
#: Roles that must make progress at the end.
_ALIVE = ("write", "consume", "produce", "move", "subscribe", "modern", "source", "restore")
PATIENCE_S = 180.0
_NEVER_MS = 24 * 3600 * 1000
#: Interval between writes to the directory, which is not under test.
_SOURCE_PAUSE_S = 0.05


class Broker:
    """A broker as an actor. Its successor has the same address."""

    role = "broker"

    def __init__(self, number: int, serving: Serving) -> None:
        self.name = f"broker-{number}"
        self._serving = serving

    def start(self) -> None:
        """See `Actor`. Without an answer of the bucket, the broker does not start."""
        for _ in range(5):
            with suppress(AssertionError):
                self._serving.start()
                return
        self._serving.start()

    def kill(self) -> None:
        """See `Actor`."""
        self._serving.kill()

    def stop(self) -> None:
        """See `Actor`."""
        self._serving.freeze()

    def resume(self) -> None:
        """See `Actor`."""
        self._serving.thaw()

    def again(self) -> Broker:
        """See `Actor`."""
        return self

    def death(self) -> str:
        """See `Actor`."""
        return "" if self._serving.is_running else self._serving.said[-2000:]


# --- Kafka clients: each in the process that calls it


def produce(fleet: Fleet, site: Site, diary: Diary, seed: int) -> None:
    """Append through brokers and never give up: after giving up a message, librdkafka begins a new epoch and resends
    others that may be stored, which no broker can recognise."""
    Writer(fleet, diary.name, 0.1, diary.say, timeout_ms=_NEVER_MS).work()


def move(fleet: Fleet, site: Site, diary: Diary, seed: int) -> None:
    """Copy in transactions."""
    Mover(fleet, diary.say).work()


def subscribe(fleet: Fleet, site: Site, diary: Diary, seed: int) -> None:
    """Read as a member of a group."""
    Reader(fleet, "readers", say=diary.say).work()


def modern(fleet: Fleet, site: Site, diary: Diary, seed: int) -> None:
    """Read as a member of a group, with the protocol of KIP-848."""
    Reader(fleet, "modern", "consumer", say=diary.say).work()


def watch(fleet: Fleet, site: Site, diary: Diary, seed: int) -> None:
    """Check that no group goes back."""
    Watcher(fleet, [*GROUPS], say=diary.say).work()


# --- a directory and its replica


def source(data: Path, site: Site, diary: Diary, seed: int) -> None:
    """Write the directory. The successor of a stopped process waits for its lock or its answer; an append forwarded
    to it has an unknown outcome."""
    chance, number = random.Random(seed), 0
    while True:
        with suppress(DirectoryLocked, AmbiguousAppend), sawlog.open(data, maintenance_interval_s=None) as store:
            topic = store.topic("orders")
            while True:
                number += 1
                at = chance.randrange(2)
                values = [f"{diary.name}:{number}:{each}".encode() for each in range(chance.randint(1, 5))]
                offsets = topic.append_many(values, partition=at)[at]
                diary.say(at, offsets.start, *(value.decode() for value in values))
                if chance.random() < 0.1:
                    store.groups.commit(GROUP, {("orders", at): chance.randrange(offsets.stop)})
                time.sleep(_SOURCE_PAUSE_S)
        time.sleep(_SOURCE_PAUSE_S)


def ship(data: Path, site: Site, diary: Diary, seed: int) -> None:
    """Keep the replica up to date."""
    os.environ.update(site.variables)
    replicator.POLL_S = 0.1
    while True:
        with suppress(Unanswered, AmbiguousAppend):
            replicate(data, site.url, maintenance_interval_s=None, on_round=lambda _: diary.say())


def standby(to: Path, site: Site, diary: Diary, seed: int) -> None:
    """Restore and follow. A stopped process keeps the lock."""
    os.environ.update(site.variables)
    while True:
        with suppress(Unanswered, DirectoryLocked):
            restore(site.url, to, follow=True)
        time.sleep(0.1)


def restore_often(place: Path, site: Site, diary: Diary, seed: int) -> None:
    """Restore into new directories."""
    os.environ.update(site.variables)
    number = 0
    while True:
        number += 1
        to = place / f"{diary.name}-{number}"
        while True:
            with suppress(Unanswered):
                restore(site.url, to)
                break
        diary.say(str(to))
        time.sleep(0.5)


# --- the run


class Together(Torture):
    """One bucket, two prefixes, and all actors."""

    parts: ClassVar = {"write": 2, "read": 2, "consume": 2, "maintain": 1}

    def __init__(self, server: Server, behind: Server, folder: Path, seed: int, **more: Any) -> None:
        grace_s, faults = more.pop("grace_s"), more.pop("faults")
        site = Site(server.new_url(), grace_s, faults, behind.variables)
        super().__init__(site, folder, seed, **more)
        self._replica = Site(server.new_url(), grace_s, faults, behind.variables)
        self._data, self._standby, self._restored = folder / "data", folder / "standby", folder / "restored"
        module = ("sawlog.cli",) if self._bug is None else ("tests.objects.planted", self._bug)
        self._fleet = Fleet(folder, behind, 2, *PATIENT, url=site.url, module=module)
        self._server = server

    def _found(self) -> None:
        self._at_server()
        Site(self._site.url, self._site.grace_s).found()
        with ObjectStore.open(self._site.url, maintenance_interval_s=None) as store:
            store.create_topic("orders", PARTITIONS)
            store.create_topic("copies", 2)
        Site(self._replica.url, self._replica.grace_s).found(topics=False)
        with sawlog.open(self._data) as made:
            made.create_topic("orders", 2, segment_bytes=20_000)

    def _at_server(self) -> None:
        """Run a function in a process of its own, without the proxy."""
        os.environ.update(self._server.variables)

    def _begin(self) -> None:
        for number, each in enumerate(self._fleet.brokers):
            self._cast.add(Broker(number, each))
        super()._begin()
        kafka = {"produce": (produce, 2), "move": (move, 1), "subscribe": (subscribe, 1), "modern": (modern, 1)}
        for role, (work, count) in {**kafka, "watch": (watch, 1)}.items():
            self._play(role, count, partial(work, self._fleet), self._site)
        self._play("source", 1, partial(source, self._data), self._site)
        self._play("ship", 2, partial(ship, self._data), self._replica)
        self._play("standby", 1, partial(standby, self._standby), self._replica)
        self._play("restore", 1, partial(restore_often, self._restored), self._replica)
        self._play("tend", 1, roles.maintain, self._replica)

    def _strike(self, chosen: Actor) -> None:
        if (
            chosen.role == "produce"
        ):  # the store forgets a producer a grace period after its last batch; Kafka, after a day
            if self._chance.random() < 0.5:
                self._cast.kill(chosen)
            else:
                self._cast.stop(chosen, self._site.grace_s * self._chance.choice(STOPS[:2]))
        elif chosen.role != "broker":
            super()._strike(chosen)
        elif len(self._cast.running("broker")) < 2:
            return  # clients forget removed brokers, so one that they know must be alive
        elif self._chance.random() < 0.4:
            self._cast.kill(chosen)
        else:
            self._cast.stop(chosen, self._site.grace_s * self._chance.choice(STOPS))

    def _end(self) -> None:
        """Resume all actors and wait for progress of every role."""
        self._cast.resume_all()
        begun = self._noted()
        end_s = time.monotonic() + PATIENCE_S
        waiting = set(_ALIVE)
        while waiting and not self.result.wrong and time.monotonic() < end_s:
            time.sleep(0.2)
            self.result.wrong += self._cast.deaths()
            now = self._noted()
            waiting = {role for role in waiting if now[role] <= begun[role]}
        self.result.wrong += [f"nobody goes on to {role}" for role in sorted(waiting) if not self.result.wrong]

    def _noted(self) -> dict[str, int]:
        """Return the number of entries of each role."""
        return {role: sum(each.stat().st_size for each in self._folder.glob(f"{role}-*.told")) for role in _ALIVE}

    # --- the verdict

    def _verdict(self, acked: Told) -> tuple[list[str], int]:
        self._at_server()
        wrong, commits = super()._verdict(acked)
        with ObjectStore.open(self._site.url, "r") as store:
            wrong += self._wrong_with_group(store)
            wrong += self._wrong_with_brokers(store)
        wrong += [each for (each,) in told(self._folder, "watch")]
        wrong += self._wrong_with_replica()
        return wrong, commits

    def _wrong_with_group(self, store: ObjectStore) -> list[str]:
        numbers = range(PLAIN_PARTITIONS[PLAIN])
        logs = [(number, store.topic(PLAIN).partition(number)) for number in numbers]
        stored = {(number, each.offset): each.value for number, log in logs for each in log.scan()}
        return wrong_with_reading(stored, self._seen("consume"), _committed(store, GROUP))

    def _seen(self, role: str) -> Orders:
        return {(partition, offset): value.encode() for partition, offset, value in told(self._folder, role)}

    def _wrong_with_brokers(self, store: ObjectStore) -> list[str]:
        stored = orders_in(store)  # type: ignore[arg-type]
        said = told(self._folder, "produce")
        wrong = wrong_with_orders(stored, {value.encode(): (partition, offset) for value, partition, offset in said})
        wrong += [f"{value!r} was sent as {', '.join(of)}" for value, of in list(_doubled(store, stored).items())[:20]]
        for group, role in GROUPS.items():
            if role is not None:
                wrong += wrong_with_reading(stored, self._seen(role), _committed(store, group))
        moved = _committed(store, "movers")
        wanted = [value for (partition, offset), value in stored.items() if offset < moved.get(partition, 0)]
        found = {n: [each.value for each in store.topic("copies").partition(n).scan()] for n in (0, 1)}
        return wrong + wrong_with_copies(wanted, found)

    def _wrong_with_replica(self) -> list[str]:
        url, again = self._replica.url, self._folder / "again"
        done = replicate(self._data, url, once=True, maintenance_interval_s=None)
        wrong = [f"the replica: {each}" for each in done.problems.values()]
        restore(url, again)
        restore(url, self._standby)
        with sawlog.open(self._data, "r") as mine:
            for place in (again, self._standby):
                with sawlog.open(place, "r") as restored:
                    assert_same(mine, restored)
            for place in {Path(each) for (each,) in told(self._folder, "restore")}:
                wrong += _wrong_with_prefix(mine, place)
            for partition, first, *values in told(self._folder, "source"):
                found = mine.topic("orders").partition(partition)
                for offset, value in enumerate(values, first):
                    if found.read(offset).value != value.encode():
                        wrong.append(f"source: {value} was acknowledged at {offset} of {partition}")
        with ObjectStore.open(url, maintenance_interval_s=None) as store, ObjectStore.open(url, "r") as other:
            if self._leftovers:
                self._settle(store)
                wrong += wrong_with_bucket(store._session)
            wrong += wrong_with_digests(store, other)
        return wrong


def _doubled(store: ObjectStore, stored: Orders) -> dict[bytes | None, list[str]]:
    """Return values that are stored more than once, with the producer ids, epochs and sequences of their batches."""
    times = Counter(stored.values())
    found: dict[bytes | None, list[str]] = defaultdict(list)
    for number in range(PARTITIONS):
        log, at = store.topic("orders").partition(number), 0
        while at < log.visible_offset:
            page = log.fetch(at, isolation="uncommitted")
            for row in rows_of(memoryview(page.raw)):
                sender = f"{row[PRODUCER_ID]}/{row[PRODUCER_EPOCH]}/{row[BASE_SEQUENCE]} at {number}/{row[BASE]}"
                for offset in range(int(row[BASE]), int(row[LAST]) + 1):
                    value = stored.get((number, offset))
                    if times[value] > 1:
                        found[value].append(sender)
            at = page.next_offset
    return found


def _committed(store: ObjectStore, group: str) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    with suppress(GroupNotFound):
        for row in store.groups.describe(group).rows:
            found[row.partition] = row.committed or 0
    return found


def _wrong_with_prefix(mine: sawlog.Store, place: Path) -> list[str]:
    """Check that a directory restored earlier is a prefix of the present content."""
    with sawlog.open(place, "r") as restored:
        if "orders" not in restored.topics():
            return []  # restored before anything was shipped
        logs = [(mine["orders"].partition(number), restored["orders"].partition(number)) for number in range(2)]
        is_same = all(batches(one).startswith(batches(other)) for one, other in logs)
    return [] if is_same else [f"{place.name} has other bytes than there are"]


def faults(seed: int, share: float) -> list[str]:
    """Return options of the proxy for a share of requests with each fault."""
    kinds = ("lost-before", "lost-after", "late", "failed", "busy", "conflict", "slow")
    given = [word for kind in kinds for word in (f"--{kind}", str(share))]
    return ["--seed", str(seed), "--latency-ms", "2", "--late-s", "3", "--slow-s", "2.5", *given]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", type=int, default=0, help="end after so many changes of the writer")
    parser.add_argument("--server", choices=["moto", "seaweedfs"], default="moto")
    parser.add_argument("--faults", type=float, default=0.005, help="the share of requests with each fault")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="the grace period in seconds; others follow")
    parser.add_argument("--no-leftovers", action="store_true", help="do not wait until nothing is left to collect")
    parser.add_argument("--bug", choices=sorted(BUGS))
    given = parser.parse_args()
    make_small()
    folder = Path(tempfile.mkdtemp(prefix="sawlog-together-"))
    with ExitStack() as last:
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        server = last.enter_context(started(given.server, folder / "server"))
        behind = last.enter_context(proxied(server, *faults(given.seed, given.faults)))
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        made = Together(
            server,
            behind,
            folder,
            given.seed,
            bug=given.bug,
            leftovers=not given.no_leftovers,
            grace_s=given.grace,
            faults=given.faults / 5,
        )
        found = made.run(60 * given.minutes, given.changes)
    sys.stdout.write(f"seed {given.seed}: {found}\n")
    for each in found.wrong[:20]:
        sys.stdout.write(f"    {each}\n")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
