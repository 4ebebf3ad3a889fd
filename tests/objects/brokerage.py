"""Brokers over one bucket, their Kafka clients, and a verdict on the promises made to the clients.

A `Fleet` is several processes of `sawlog serve` over one address. `Traffic` uses them meanwhile:

- *writers* append numbers, each to every partition of `orders` in turn, as idempotent producers, and record the
  acknowledged offsets;
- a *mover* reads `orders` as a member of a group and writes each record to both partitions of `copies`, in transactions
  that also commit its offsets;
- a *reader* reads `orders` as a member of another group and commits as it goes;
- a *watcher* reads the committed offsets of the groups.

`Traffic.verdict` reads everything again and lists the defects: acknowledged records that are lost, duplicated, moved or
reordered, gaps in the offsets, partial transactions, and groups that went back.

In this module the clients are threads of one process. `together` runs each in a process of its own, which is killed and
stopped as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker.serving import Serving

import sawlog
from sawlog.errors import GroupNotFound
from sawlog.store.objects.bucket import Unanswered

from .servers import Server, started

PATIENCE_S = 180.0
PARTITIONS = 3
#: Time after which a mover without progress gives up; time limits of its transactions and of aborting one.
_STILL_S, _MOVE_S, _ABORT_S = 25.0, 15.0, 5.0
#: Factor by which these times may grow where everything is slow.
_SLOWEST = 4
#: Times short enough that a test soon sees the removal of a stalled broker, and long enough that a busy machine
#: does not lose healthy ones.
QUICK = ("--set", "broker_heartbeat_s=0.3", "--set", "broker_expiry_s=3", "--set", "refresh_s=0.2")
#: A client that soon notices a stalled broker and new ones. It does not restart from its bootstrap servers: with
#: transactions, librdkafka 2.16 then fails an assertion.
CLIENT = {
    "socket.timeout.ms": 2000,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 300,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class Fleet:
    """Several brokers over one address."""

    def __init__(
        self,
        place: Path,
        server: Server,
        count: int = 2,
        *options: str,
        url: str | None = None,
        module: tuple[str, ...] = ("sawlog.cli",),
    ) -> None:
        self.url = server.new_url() if url is None else url
        self.variables = server.variables
        given = {"url": self.url, "variables": server.variables, "module": module}
        self.brokers = [
            Serving(place / f"broker-{number}", *QUICK, *options, **given)  # type: ignore[arg-type]
            for number in range(count)
        ]

    def __enter__(self) -> Fleet:
        for each in self.brokers:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.brokers:
            each.__exit__(kind, error, trace)

    @property
    def servers(self) -> str:
        """Addresses for `bootstrap.servers`."""
        return ",".join(each.address for each in self.brokers)

    def client(self, **more: object) -> dict[str, object]:
        """Return the settings of a client."""
        given = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.servers, **CLIENT, **given}

    def admin(self) -> AdminClient:
        """Return an admin client."""
        return AdminClient(self.client())

    def create(self, *topics: tuple[str, int]) -> None:
        """Create topics."""
        admin = self.admin()  # must live until it is answered
        for made in admin.create_topics([NewTopic(name, count, 1) for name, count in topics]).values():
            made.result(PATIENCE_S)

    def wait_for(self, count: int) -> None:
        """Wait until this many brokers are listed."""
        admin = self.admin()
        wait_until(lambda: len(admin.list_topics(timeout=10).brokers) == count, f"{count} brokers")

    def coordinator(self, group: str) -> int:
        """Return the number of the broker that coordinates a group."""
        admin = self.admin()  # must live until it is answered
        found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S).coordinator
        return [each.port for each in self.brokers].index(found.port)

    def open(self) -> sawlog.Store:
        """Open the store directly, without a broker."""
        options = _options(self.variables) if self.url.startswith("s3:") else None
        return sawlog.open(self.url, "r", options=options)  # type: ignore[return-value]


def _options(variables: dict[str, str]) -> dict[str, str]:
    return {
        "endpoint": variables["AWS_ENDPOINT_URL"],
        "access_key_id": variables["AWS_ACCESS_KEY_ID"],
        "secret_access_key": variables["AWS_SECRET_ACCESS_KEY"],
        "region": variables["AWS_REGION"],
    }


def wait_until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(0.05)


#: Called by a client with every acknowledgement and every record that it reads.
Say = Callable[..., None]


def _keep_quiet(*what: object) -> None:
    pass


class _Worker(threading.Thread):
    """A thread that works until told to stop. Keeps its exception."""

    def __init__(self, name: str, say: Say = _keep_quiet) -> None:
        super().__init__(name=name, daemon=True)
        self.say = say
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.ended.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error


class Writer(_Worker):
    """Appends `<name>-<number>` to `orders`."""

    def __init__(
        self, fleet: Fleet, name: str, pause_s: float, say: Say = _keep_quiet, *, timeout_ms: int = 60_000
    ) -> None:
        super().__init__(name, say)
        self._pause_s = pause_s
        self._producer = Producer(
            fleet.client(enable_idempotence=True, linger_ms=5, message_timeout_ms=timeout_ms, request_timeout_ms=2000)
        )
        #: Value to (partition, offset).
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.refused: list[str] = []

    def work(self) -> None:
        number = 0
        while not self.ended.is_set():
            for _ in range(5):
                value = f"{self.name}-{number}".encode()
                self._producer.produce("orders", value, partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0)
            self.ended.wait(self._pause_s)
        assert self._producer.flush(PATIENCE_S) == 0, "what was sent is neither acknowledged nor refused"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None and partition is not None and offset is not None  # noqa: PT018 - for mypy
            self.acknowledged[value] = partition, offset
            self.say(value.decode(), partition, offset)
        else:
            self.refused.append(str(error))


class Reader(_Worker):
    """Reads `orders` in a group, with the classic protocol or that of KIP-848 ("consumer"), and commits after
    noting."""

    def __init__(
        self, fleet: Fleet, group: str = "readers", protocol: str = "classic", say: Say = _keep_quiet, **more: object
    ) -> None:
        super().__init__(group, say)
        given: dict[str, object] = {"group.protocol": protocol}
        if protocol == "classic":  # otherwise the broker decides
            given["session.timeout.ms"] = 6000
        settings = fleet.client(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **more)
        self._consumer = Consumer({**settings, **given})
        self.seen: dict[tuple[int, int], bytes | None] = {}
        self.problems: list[str] = []
        #: Number of assigned partitions. No other thread may call the consumer meanwhile: both would deadlock.
        self.assigned = 0

    def work(self) -> None:
        self._consumer.subscribe(["orders"])
        while not self.ended.is_set():
            self.assigned = len(self._consumer.assignment())
            for message in self._consumer.consume(100, 0.1):
                error = message.error()
                if error is None:
                    self._note(message.partition(), message.offset(), message.value())  # type: ignore[arg-type]
                elif error.fatal():
                    raise KafkaException(error)  # otherwise it would silently never read again
            with suppress(KafkaException):
                self._consumer.commit(asynchronous=False)
        self._consumer.close()

    def _note(self, partition: int, offset: int, value: bytes) -> None:
        before = self.seen.setdefault((partition, offset), value)
        if before != value:
            self.problems.append(f"{(partition, offset)} was {before!r} and is {value!r}")
        self.say(partition, offset, value.decode())


class Mover(_Worker):
    """Copies `orders` into both partitions of `copies`, exactly once.

    Uses aiokafka: librdkafka 2.16 hangs or crashes if a transaction commits offsets of a group whose coordinator
    disappears from the metadata meanwhile.

    aiokafka retries forever. So a client without progress is replaced, like a program that is restarted, by one with
    longer timeouts: on a machine where a commit takes seconds, a session of three seconds expires while its heartbeats
    wait, and a transaction of ten is aborted before it can end.
    """

    def __init__(self, fleet: Fleet, say: Say = _keep_quiet) -> None:
        super().__init__("mover", say)
        self._fleet = fleet
        #: Committed transactions, and errors after which the mover restarted.
        self.moved, self.troubles = 0, Counter[str]()

    def work(self) -> None:
        for name in ("aiokafka", "asyncio"):  # one warning for every failed transaction
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        slowness = 1
        while not self.ended.is_set():
            before = self.moved
            try:
                asyncio.run(self._life(slowness))
            except (AioKafkaError, TimeoutError, OSError) as error:
                self.troubles[type(error).__name__] += 1
            slowness = 1 if self.moved > before else min(2 * slowness, _SLOWEST)

    async def _life(self, slowness: int) -> None:
        """Move with one client while it makes progress."""
        still_s, now_s = slowness * _STILL_S, asyncio.get_running_loop().time
        consumer, producer = self._clients(slowness)
        turn = asyncio.Lock()
        consumer.subscribe(["orders"], listener=_Patient(turn))
        async with asyncio.timeout(still_s) as limit, contextlib.AsyncExitStack() as last:
            # First the producer, which fences the previous mover. Otherwise that one could still commit after the
            # consumer has fetched its start, and its records would be moved again.
            last.push_async_callback(_stopped, producer)
            await producer.start()
            last.push_async_callback(_stopped, consumer)
            await consumer.start()
            while not self.ended.is_set():
                async with turn:
                    found = await consumer.getmany(timeout_ms=200, max_records=200)
                    if found:
                        await self._move(producer, found, slowness)
                        limit.reschedule(now_s() + still_s)

    def _clients(self, slowness: int) -> tuple[AIOKafkaConsumer, AIOKafkaProducer]:
        given: dict[str, Any] = {
            "bootstrap_servers": self._fleet.servers,
            "request_timeout_ms": 3000 * slowness,
            "metadata_max_age_ms": 500,
            "retry_backoff_ms": 50,
        }
        consumer = AIOKafkaConsumer(
            group_id="movers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=3000 * slowness,
            heartbeat_interval_ms=500,
            isolation_level="read_committed",
            **given,
        )
        timeout_ms = 10_000 * slowness
        return consumer, AIOKafkaProducer(transactional_id="mover", transaction_timeout_ms=timeout_ms, **given)

    async def _move(self, producer: AIOKafkaProducer, found: dict[Any, list[Any]], slowness: int) -> None:
        """Run one transaction. After a time limit, abort it, without waiting for the abort, which may never return."""
        moving = asyncio.create_task(_copy(producer, found))
        if not (await asyncio.wait({moving}, timeout=_MOVE_S * slowness))[0]:
            moving.cancel()
            await asyncio.wait({moving}, timeout=_ABORT_S)
            raise TimeoutError
        moving.result()
        self.moved += 1
        self.say(self.moved)


async def _copy(producer: AIOKafkaProducer, found: dict[Any, list[Any]]) -> None:
    async with producer.transaction():
        sent = [
            await producer.send("copies", message.value, partition=partition)
            for messages in found.values()
            for message in messages
            for partition in (0, 1)
        ]
        await asyncio.gather(*sent)  # aiokafka commits even if some could not be stored
        offsets = {share: messages[-1].offset + 1 for share, messages in found.items()}
        await producer.send_offsets_to_transaction(offsets, "movers")


class _Patient(ConsumerRebalanceListener):  # type: ignore[misc] - aiokafka has no types
    """Prevents a rebalance during a transaction: the consumer would start at offsets that are about to be committed."""

    def __init__(self, turn: asyncio.Lock) -> None:
        self._turn = turn

    async def on_partitions_revoked(self, revoked: object) -> None:
        async with self._turn:
            pass

    async def on_partitions_assigned(self, assigned: object) -> None:
        pass


async def _stopped(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Stop a client in any state."""
    with suppress(AioKafkaError, TimeoutError, OSError):
        async with asyncio.timeout(5):
            await client.stop()


class Watcher(_Worker):
    """Checks in the store itself that the committed offsets of groups never go back."""

    def __init__(self, fleet: Fleet, groups: Sequence[str] = ("readers", "movers"), say: Say = _keep_quiet) -> None:
        super().__init__("watcher", say)
        self._fleet, self._groups = fleet, groups
        self.last: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.problems: list[str] = []
        self.looks = 0

    def work(self) -> None:
        with self._fleet.open() as store:
            while not self.ended.wait(0.1):
                for group in self._groups:
                    with suppress(GroupNotFound, Unanswered):
                        self._look(store, group)
                self.looks += 1

    def _look(self, store: sawlog.Store, group: str) -> None:
        for row in store.groups.describe(group).rows:
            before, now = self.last[group].get(row.partition, -1), row.committed
            if now is not None and now < before:
                self.problems.append(f"{group} was at {before} of partition {row.partition}, and is at {now}")
                self.say(self.problems[-1])
            self.last[group][row.partition] = max(-1 if now is None else now, before)


#: Partition and offset to value.
Orders = dict[tuple[int, int], bytes | None]


def orders_in(store: sawlog.Store) -> Orders:
    """Return all of `orders` by offset, read by the library and not through a broker."""
    logs = [(number, store.topic("orders").partition(number)) for number in range(PARTITIONS)]
    return {(number, record.offset): record.value for number, log in logs for record in log.scan()}


def wrong_with_orders(stored: Orders, acknowledged: Mapping[bytes, tuple[int, int]]) -> list[str]:
    """List gaps in the offsets, and acknowledged records that are lost, duplicated, moved or reordered."""
    problems = []
    for number in range(PARTITIONS):
        offsets = [offset for partition, offset in stored if partition == number]
        if offsets != list(range(len(offsets))):
            problems.append(f"the offsets of partition {number} have gaps")
    problems += [f"{value!r} is stored {times} times" for value, times in Counter(stored.values()).items() if times > 1]
    for value, at in acknowledged.items():
        if stored.get(at) != value:
            problems.append(f"{value!r} was acknowledged at {at}, where {stored.get(at)!r} is")
    last: dict[tuple[int, bytes], int] = {}
    for (partition, _), stored_value in stored.items():
        name, _, number_text = (stored_value or b"").rpartition(b"-")
        if int(number_text) <= last.get((partition, name), -1):
            problems.append(f"{stored_value!r} is after {last[partition, name]}")
        last[partition, name] = int(number_text)
    return problems


def wrong_with_reading(stored: Orders, seen: Orders, committed: Mapping[int, int] | None = None) -> list[str]:
    """List records that were read differently, and committed offsets of records that no member has read."""
    problems = [
        f"{at} is {stored.get(at)!r}, and was read as {value!r}"
        for at, value in seen.items()
        if stored.get(at) != value
    ]
    for partition, end in (committed or {}).items():
        missing = [offset for offset in range(end) if (partition, offset) not in seen]
        if missing:
            problems.append(f"{end} of partition {partition} is committed; {missing[0]} was never read")
    return problems


def wrong_with_copies(wanted: Iterable[bytes | None], found: Mapping[int, Sequence[bytes | None]]) -> list[str]:
    """List records that are not in each partition exactly once."""
    problems, all_wanted = [], Counter(wanted)
    for number, values in found.items():
        missing, extra = all_wanted - Counter(values), Counter(values) - all_wanted
        if missing or extra:
            problems.append(
                f"copies/{number}: {missing.total()} are missing ({list(missing)[:3]}), "
                f"{extra.total()} are there too often ({list(extra)[:3]})"
            )
    return problems


class Traffic:
    """All clients of a fleet."""

    def __init__(self, fleet: Fleet, *, writers: int = 2, pause_s: float = 0.05, moves: bool = True) -> None:
        self._fleet = fleet
        fleet.create(("orders", PARTITIONS), ("copies", 2))
        self.writers = [Writer(fleet, f"w{number}", pause_s) for number in range(writers)]
        self.reader, self.watcher = Reader(fleet), Watcher(fleet)
        self.mover = Mover(fleet) if moves else None

    def _all(self) -> Iterator[_Worker]:
        yield from self.writers
        yield self.reader
        yield self.watcher
        if self.mover is not None:
            yield self.mover

    def __enter__(self) -> Traffic:
        for each in self._all():
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._all():
            each.ended.set()

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged records."""
        return sum(len(each.acknowledged) for each in self.writers)

    def go_on(self, count: int = 30) -> None:
        """Wait until more records are acknowledged, read and moved."""
        written, read = self.acknowledged + count, len(self.reader.seen) + count
        wait_until(lambda: self.acknowledged >= written, "more is acknowledged")
        wait_until(lambda: len(self.reader.seen) >= read, "more is read")
        if self.mover is not None:
            moved = self.mover.moved
            wait_until(lambda: self.mover is None or self.mover.moved > moved, "more is moved")

    def settle(self) -> None:
        """Wait until every client knows all brokers, because later it must know one that is alive."""
        looks = self.watcher.looks + 10
        wait_until(lambda: self.watcher.looks >= looks, "time passes")

    def verdict(self) -> list[str]:
        """Stop the clients, read everything again, and list the defects."""
        for writer in self.writers:
            writer.finish()
        with self._fleet.open() as store:
            stored = orders_in(store)
        acknowledged = {value: at for writer in self.writers for value, at in writer.acknowledged.items()}
        problems = wrong_with_orders(stored, acknowledged)
        self._catch_up(stored)
        for each in (self.reader, self.watcher, *([] if self.mover is None else [self.mover])):
            each.finish()
        problems += self.reader.problems + self.watcher.problems
        problems += wrong_with_reading(stored, self.reader.seen)
        problems += [f"{at} was never read" for at in stored if at not in self.reader.seen]
        if self.mover is not None:
            problems += self._copies(stored)
        return problems

    def _catch_up(self, stored: Orders) -> None:
        """Wait until everything is read and moved."""
        wait_until(lambda: len(self.reader.seen) >= len(stored), f"{len(stored)} records are read")
        if self.mover is None:
            return
        ends = Counter(partition for partition, _ in stored)
        moved = self.watcher.last["movers"]
        wait_until(lambda: all(moved.get(number, 0) >= end for number, end in ends.items()), "everything is moved")

    def _copies(self, stored: Orders) -> list[str]:
        """List records that are not in both partitions of `copies` exactly once, with isolation "read_committed"."""
        consumer = Consumer(
            self._fleet.client(group_id="judge", enable_auto_commit=False, isolation_level="read_committed")
        )
        try:
            ends = {}
            for number in (0, 1):
                ends[number] = consumer.get_watermark_offsets(TopicPartition("copies", number), timeout=PATIENCE_S)[1]
            consumer.assign([TopicPartition("copies", number, 0) for number in (0, 1)])
            found: dict[int, list[bytes | None]] = {0: [], 1: []}
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.2):
                    if message.error() is None:
                        found[message.partition()].append(message.value())  # type: ignore[index]
                positions = consumer.position([TopicPartition("copies", number) for number in (0, 1)])
                if all(each.offset >= ends[each.partition] for each in positions):
                    break
        finally:
            consumer.close()
        return wrong_with_copies(stored.values(), found)


def disturb(
    fleet: Fleet, traffic: Traffic, rounds: int, seed: int, *, seconds: float = math.inf, loudly: bool = False
) -> Counter[str]:
    """Kill a broker, stop it beyond its timeout, or end it cleanly, one at a time, and wait for progress of all
    clients. Ends after a number of rounds or a time."""
    chance, done = random.Random(seed), Counter[str]()
    end_s = time.monotonic() + seconds
    while done.total() < rounds and time.monotonic() < end_s:
        if loudly:
            sys.stderr.write(f"{done.total()} rounds, {traffic.acknowledged} acknowledged\n")
        victim = chance.choice(fleet.brokers)
        how = chance.choice(("kill", "freeze", "stop", "blink"))
        done[how] += 1
        if how == "kill":
            victim.kill()
        elif how == "stop":
            victim.stop()
        else:
            victim.freeze()
        traffic.go_on()
        if how == "freeze":
            fleet_without(fleet, victim)
        if how in ("freeze", "blink"):
            victim.thaw()
        else:
            victim.start()
        fleet.wait_for(len(fleet.brokers))
        traffic.settle()
        traffic.go_on()
    return done


def fleet_without(fleet: Fleet, victim: Serving) -> None:
    """Wait until the others have removed a broker."""
    rest = ",".join(each.address for each in fleet.brokers if each is not victim)
    admin = AdminClient({"bootstrap.servers": rest, **CLIENT})
    left = len(fleet.brokers) - 1
    wait_until(lambda: len(admin.list_topics(timeout=10).brokers) <= left, "it is left out")


def main() -> None:
    """`python -m tests.objects.brokerage --rounds 100`: the long form, with three brokers."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rounds", type=int, default=20)
    given.add_argument("--minutes", type=float, default=math.inf, help="no further round after that time")
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--server", choices=["moto", "seaweedfs"], default="moto")
    options = given.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        started(options.server, Path(place) / "server") as server,
        Fleet(Path(place), server, 3) as fleet,
        Traffic(fleet) as traffic,
    ):
        traffic.go_on()
        seconds = 60 * options.minutes
        done = disturb(fleet, traffic, options.rounds, options.seed, seconds=seconds, loudly=True)
        problems = traffic.verdict()
        moved = 0 if traffic.mover is None else traffic.mover.moved
        said = f"{dict(done)}: {traffic.acknowledged} acknowledged, {moved} transactions, {len(problems)} problems"
    sys.stdout.write("\n".join([said, *problems[:20], ""]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
