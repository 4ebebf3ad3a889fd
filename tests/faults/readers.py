"""Readers inside the crash enumeration: in other processes, in groups, and those that plan micro-batches.

One process writes to a topic of two partitions in every form there is; some of it fails on the way and is taken back.
Others read meanwhile. Readers in other processes (`Eyes`) look before every change of the disk, groups and planners
come and go between the operations. All of it ends at every change, in every way, as in `workloads`; then somebody
reads, somebody opens it for writing, more is appended, everybody drains. `witness` says what has to be true of what
they saw.

The variants: what is published is put back to an older value of the same start of the machine, before the next writer
comes and while there is one; the files that know the epochs are lost; the store is one that version 0.2 has left.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pyarrow as pa

from sawlog.batch import kernel
from sawlog.batch.build import encode
from sawlog.config import LogConfig
from sawlog.errors import LogNotFound, PositionLost, SawlogError, TransactionAborted, TransactionError
from sawlog.log import log as log_module
from sawlog.log import slices
from sawlog.log.append import Appender
from sawlog.log.log import Log
from sawlog.log.names import CHECKPOINT, LEADER_EPOCHS, VISIBLE
from sawlog.storage import open_published
from sawlog.testing import Fault, FaultyStorage, Workload
from sawlog.testing.device import Folder, Step
from sawlog.topics import consumer as consumer_module
from sawlog.topics import groups
from sawlog.topics.store import Store

from .planners import PLANNERS, TOPIC, Planner
from .upgraded import downgrade, without_epochs
from .witness import PARTITIONS, View, Witness

DURABILITIES = {"always": "always", "os": "os", "interval": "interval:3600000:500"}
#: group -> what it does about records that are gone
GROUPS = {"early": "earliest", "late": "latest"}
OLD = "old"
#: As old as a timestamp may be, so that nothing depends on when this runs.
_STAMP = 1_000_000_000_000


class _Given(Exception):
    """Somebody thinks better of it in the middle of an append."""


# --- looking


def partition_of(disk: FaultyStorage, number: int) -> Folder:
    """The directory of a partition, without faults."""
    found = disk.plain.child("topics").child(TOPIC).child(f"partition-{number}")
    assert isinstance(found, Folder)
    return found


def view_of(who: str, log: Log) -> View:
    """All that can be read of a log now."""
    rows = {}
    for cursor in log.cursors():
        for record in cursor:
            rows[record.offset] = (record.value or b"", int(cursor.leader_epoch))
    return View(who, log.lowest_offset, log.visible_offset, rows, log.leader_epochs)


class Eyes:
    """Readers in another process, one for each partition, which look before every change of the disk."""

    def __init__(self, disk: FaultyStorage, witness: Witness) -> None:
        self._disk = disk
        self._witness = witness
        self._logs: dict[int, Log] = {}
        self._known: dict[int, object] = {}
        #: The writers whose ends are looked at, too: those that have begun.
        self.writers: list[Log] = []

    def watch(self, then: Callable[[Step], None] | None) -> Callable[[Step], None]:
        """Look, and let whoever watched before do so, too."""

        def watching(step: Step) -> None:
            self.look(f"a reader before {step}")
            if then is not None:
                then(step)

        return watching

    def look(self, who: str) -> None:
        """At whatever may have changed; at all of it if nothing is published."""
        try:
            for number in range(PARTITIONS):
                self._look_at(who, number)
            for log in self.writers:
                if log._appender is not None:
                    self._check_ends(who, log._appender)
        except SawlogError as error:
            self._witness.complain("I2", f"{who} cannot read: {type(error).__name__}: {error}")

    def _look_at(self, who: str, number: int) -> None:
        folder = partition_of(self._disk, number)
        found = open_published(folder, VISIBLE)
        told = None if found is None else found.load()
        self._witness.tell(number, told)
        state = told, folder.stamp()
        if told is not None and self._known.get(number) == state:
            return
        self._known[number] = state
        if number not in self._logs:
            with suppress(LogNotFound):
                self._logs[number] = Log.open(folder, mode="r")
        if number in self._logs:
            log = self._logs[number]
            self._witness.look(number, view_of(who, log))
            if not log.durable_offset <= log.visible_offset == log.written_offset == log.next_offset:
                self._witness.complain("I4", f"{who} sees {log.durable_offset} durable of {log.visible_offset}")

    def _check_ends(self, who: str, appender: Appender) -> None:
        segments = appender.segments
        ends = appender.commit.durable_offset, segments.visible_offset, appender.written_offset, segments.next_offset
        if list(ends) != sorted(ends):
            self._witness.complain("I4", f"{who}: durable, visible, written and next are {ends}")


# --- the work


class ReadersWorkload(Workload):
    """Some operations on one topic, with readers beside it."""

    durability: ClassVar[str] = "always"
    plan: ClassVar[Sequence[str]] = ()
    #: "", "restored", "lost" or "upgraded"
    variant: ClassVar[str] = ""
    planners: ClassVar[Sequence[str]] = ("planner",)
    #: What may be done to what was just recovered.
    afterwards: ClassVar[Sequence[str]] = ("append_many", "append_arrow", "transaction", "truncate", "block", "append")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.promise = Witness(always=self.durability == "always")
        self._numbers = 0

    def copy(self, promise: Witness) -> Witness:
        return promise.copy()

    def value(self, size: int | None = None) -> bytes:
        """One that nobody has sent before."""
        self._numbers += 1
        length = self.random.choice((0, 20, 60, 300)) if size is None else size
        body = b"%d:" % self._numbers
        return body + b"x" * max(0, length - len(body))

    def values(self, count: int, size: int | None = None) -> list[bytes]:
        return [self.value(size) for _ in range(count)]

    def work(self, disk: FaultyStorage) -> None:
        watch, disk.watch = disk.watch, None  # what is laid out first is not crashed: it is the same every time
        with _small():
            store = self._prepare(disk)
            shift = Shift(self, disk, store, self.promise, watch)
            for name in self.plan:
                shift.do(name)
            shift.drain()
            if self.random.random() < 0.5:
                shift.store.close()
                shift.look("a reader at the end")

    def _prepare(self, disk: FaultyStorage) -> Store:
        store = _opened(disk)
        store.create_topic(
            TOPIC, PARTITIONS, segment_bytes=900, durability=DURABILITIES[self.durability], index_interval_bytes=150
        )
        shift = Shift(self, disk, store, self.promise, None)
        for _ in range(2):
            shift.do("append_many")
        if self.variant == "upgraded":
            shift.do("old_group")
            if self.random.random() < 0.5 and self.durability != "always":
                without_epochs(store, OLD, beyond=2)
            if self.random.random() < 0.5:
                store.close()
            shift.leave()
            downgrade(disk.plain, TOPIC)
            self.promise.told = [[] for _ in range(PARTITIONS)]
            self.promise.is_published = False
            store = _opened(disk)
            Shift(self, disk, store, self.promise, None).take_over()
        return store

    # --- after a crash

    def recover(self, disk: FaultyStorage, promise: Witness, *, power_cut: bool) -> None:
        promise.check()
        promise.crash(power_cut=power_cut)
        chance = random.Random(disk.seed)
        disk.capacity_bytes = None
        watch, disk.watch = disk.watch, None
        self._tamper(disk, promise, chance, power_cut=power_cut)
        other = type(self)(disk.seed)
        other._numbers = 1000 * (1 + self._numbers // 1000) + len(promise.sent)
        with _small():
            Eyes(disk, promise).look("a reader before the next writer")
            promise.check()
            disk.watch = watch
            for planner in self.planners:
                if chance.random() < 0.3:
                    PLANNERS[planner](disk, promise).drain()
            shift = Shift(other, disk, _opened(disk), promise, watch)
            shift.take_over()
            for name in chance.sample(self.afterwards, chance.choice((1, 1, 2))):
                shift.do(name)
            shift.drain()
            if chance.random() < 0.25:
                shift.store.close()
                shift.look("a reader at the end")
        promise.check()

    def _tamper(self, disk: FaultyStorage, promise: Witness, chance: random.Random, *, power_cut: bool) -> None:
        """What the variants do before anybody comes."""
        for number in range(PARTITIONS):
            folder = partition_of(disk, number)
            if self.variant == "restored" and promise.told[number] and chance.random() < 0.7:
                restore(folder, promise, number, chance)
            if self.variant == "lost":
                # After a power cut, without the checkpoint nobody could tell a torn tail from damage.
                for name in (LEADER_EPOCHS,) if power_cut else (LEADER_EPOCHS, CHECKPOINT):
                    if chance.random() < 0.5:
                        folder.remove(name)
                known = folder.exists(CHECKPOINT) or (promise.told[number] and folder.exists(LEADER_EPOCHS))
                if not known:
                    promise.lose_epochs(number)


def restore(folder: Folder, promise: Witness, number: int, chance: random.Random) -> None:
    """Put back what was published some time ago."""
    older = chance.choice(promise.told[number])
    published = open_published(folder, VISIBLE)
    if published is not None and published.load() not in (None, older):
        published.store(*older)
        promise.restored[number] = older


def _opened(disk: FaultyStorage) -> Store:
    return Store.open(disk, upkeep_interval_s=None)


@contextmanager
def _small() -> Iterator[None]:
    """Tables in several groups, the log of the groups in small segments, and nobody waits in vain."""
    changed: list[tuple[Any, str, Any]] = [
        (groups, "_CONFIG", LogConfig(segment_bytes=900)),
        (groups, "_SEGMENTS", 2),
        (log_module, "_TABLE_BYTES", 200),
        (log_module, "BATCH_BYTES", 150),
        (consumer_module, "_DOUBT_S", 0.0),
        (slices, "_DOUBT_S", 0.0),
    ]
    before = [getattr(module, name) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(changed, before, strict=True):
            setattr(module, name, value)


class Shift:
    """One writer's time on a disk, with those who read beside it."""

    def __init__(
        self,
        run: ReadersWorkload,
        disk: FaultyStorage,
        store: Store,
        witness: Witness,
        watch: Callable[[Step], None] | None,
    ) -> None:
        self.run = run
        self.random = run.random
        self.disk = disk
        self.store = store
        self.witness = witness
        self.eyes = Eyes(disk, witness)
        disk.watch = self.eyes.watch(watch)

    # --- the writer

    def log(self, number: int) -> Log:
        """A partition, to write to."""
        return self.store[TOPIC].partition(number)

    def some(self) -> tuple[int, Log]:
        """Any of them."""
        number = self.random.randrange(PARTITIONS)
        return number, self.log(number)

    def do(self, name: str) -> None:
        """One operation, and look."""
        OPERATIONS[name](self)
        self.settle(f"{self.store.path} after {name}")

    def settle(self, who: str) -> None:
        """An operation is over: everything that is there can be seen, here and by others."""
        self.eyes.writers = [log for log in map(self.log, range(PARTITIONS)) if log._appender is not None]
        for number in range(PARTITIONS):
            log = self.log(number)
            if log.writable:
                visible, following = log.visible_offset, log.next_offset
                assert visible == following, f"{who}: {visible} of {following} is seen"
                self.witness.durable[number] = log.durable_offset
                self.witness.look(number, view_of("the writer", log))
        self.look("a reader between two operations")
        if self.witness.always:
            self._check_durable()

    def look(self, who: str) -> None:
        """The readers look, whether anything has changed or not."""
        self.eyes._known.clear()
        self.eyes.look(who)

    def _check_durable(self) -> None:
        for number in range(PARTITIONS):
            log = self.log(number)
            if log.writable and log.durable_offset != log.visible_offset:
                self.witness.complain("I4", f"{log.visible_offset} is shown, and {log.durable_offset} durable")

    def send(self, parts: Mapping[int, Sequence[bytes]], act: Callable[[], object]) -> bool:
        """Append something; whether it was stored. If it fails, the log goes on without it, or is opened again."""
        number = self.witness.send(parts)
        try:
            act()
        except (SawlogError, _Given) as error:
            pending = isinstance(error, TransactionError) and not isinstance(error, TransactionAborted)
            failed = [log for log in map(self.log, parts) if log._appender is not None and not log.writable]
            if pending or (failed and not isinstance(error, TransactionAborted)):
                self.witness.doubt(number)
            else:
                self.witness.refuse(number)
            if failed or pending:
                self.reopen()
            return False
        self.witness.stored(number)
        return True

    def reopen(self) -> None:
        """In order, if that is possible."""
        self.disk.disarm()
        self.disk.capacity_bytes = None
        self.eyes.writers = []
        with suppress(SawlogError):
            self.store.close()
        self.store = _opened(self.disk)
        self.hold_all()

    def leave(self) -> None:
        """As a process that dies: its locks are free."""
        self.eyes.writers = []
        for folder in (self.disk.plain.child("groups"), *(partition_of(self.disk, n) for n in range(PARTITIONS))):
            folder.locked.clear()

    def hold_all(self) -> None:
        """Become the writer of all partitions, which completes what was promised."""
        for number in range(PARTITIONS):
            with self.log(number).hold():
                pass

    def take_over(self) -> None:
        """After a crash: recover, and find what has to be there."""
        for number in range(PARTITIONS):
            log = self.log(number)
            with log.hold():
                pass
            assert log.recovery, f"corruption was reported: {log.recovery}"
            assert log.verify(), str(log.verify())
            self.witness.unknown.discard(number)
        self.witness.is_published = True
        self.settle("the next writer")
        for number in range(PARTITIONS):
            self.witness.take_over(number, {value for value, _ in view_of("", self.log(number)).rows.values()})
        self.come_as_old()

    # --- those who read

    def come(self, name: str, most: int | None, *, on_lost: Any = "earliest", keep_epochs: bool = True) -> None:
        """A member of a group comes, reads so many records, or all, commits and goes."""
        got = self.witness.got.setdefault(name, set())
        with Store.open(self.disk.plain, upkeep_interval_s=None) as store:
            with store.consumer(name, [TOPIC], on_lost=on_lost, auto_commit_ms=None) as consumer:
                for _ in range(50):
                    try:
                        records = consumer.poll(timeout_s=0, max_records=most or 100)
                    except PositionLost:
                        continue
                    for record in records:
                        self.witness.deliver(name, record.partition, record.offset, record.value or b"")
                    if most is not None or not records:
                        break
                else:
                    raise AssertionError(f"{name} gets records for ever")
                consumer.commit()
            assert got is self.witness.got[name]
            if not keep_epochs:
                without_epochs(store, name)

    def come_as_old(self) -> None:
        """A group whose commits have no epoch is only checked against the end: so it comes before anything is appended
        after a loss, as it would if the machine had been started again with its consumers."""
        if self.witness.old:
            self.come(OLD, None)

    def drain(self) -> None:
        """Everybody reads all there is; then nothing that is there was skipped by anybody."""
        names = {name: GROUPS[name] for name in GROUPS if name in self.witness.got}
        for name, on_lost in (names or {"early": "earliest"}).items():
            self.come(name, None, on_lost=on_lost)
        if "strict" in self.witness.got:
            self.come("strict", None, on_lost="error")
        self.come_as_old()
        for planner in self.run.planners:
            PLANNERS[planner](self.disk, self.witness).drain()
        for number in range(PARTITIONS):
            there = view_of("the writer", self.log(number)).rows.values()
            again = self.witness.trimmed if self.run.variant == "lost" else set()  # back, because the start was lost
            self.witness.check_delivered(number, [value for value, _ in there if value not in again])


# --- the operations


def append(shift: Shift) -> None:
    number, log = shift.some()
    value = shift.run.value()
    key = shift.random.choice((None, b"a", b"b"))
    shift.send({number: [value]}, lambda: log.append(value, key, (), _STAMP))


def append_many(shift: Shift) -> None:
    for number in range(PARTITIONS):
        values = shift.run.values(shift.random.randrange(2, 5), 40)
        shift.send({number: values}, lambda: shift.log(number).append_many(values))


def append_arrow(shift: Shift) -> None:
    """In several groups, over several segments."""
    number, log = shift.some()
    values = shift.run.values(6, 150)
    table = pa.table({"value": pa.array(values, pa.binary())})
    shift.send({number: values}, lambda: log.append_arrow(table))


def append_stream(shift: Shift) -> None:
    number, log = shift.some()
    value = shift.run.value(300)
    shift.send({number: [value]}, lambda: log.append_stream([value[:100], value[100:]]))


def append_batches(shift: Shift) -> None:
    number, log = shift.some()
    values = shift.run.values(4, 250)
    shift.send({number: values}, lambda: log.append_batches(b"".join(encode([value]) for value in values)))


def append_kept(shift: Shift) -> None:
    """Batches that keep their offsets, with a gap before and between them."""
    number, log = shift.some()
    values = shift.run.values(4, 90)
    raw, offset = bytearray(), log.next_offset + shift.random.randrange(2)
    for value in values:
        batch = bytearray(encode([value]))
        kernel.patch_place(memoryview(batch), 0, offset, 0)
        raw += batch
        offset += 1 + shift.random.randrange(2)
    shift.send({number: values}, lambda: log.append_kept(bytes(raw)))


def advance(shift: Shift) -> None:
    number, log = shift.some()
    shift.send({number: []}, lambda: log.advance(log.next_offset + 2))


def block(shift: Shift) -> None:
    """Several appends that count together."""
    number, log = shift.some()
    first, *others = shift.run.values(4, 120)

    inside = shift.random.random() < 0.5

    def act() -> None:
        with log.appending():
            log.append(first)
            log.append_many(others)
            if inside:
                log.sync()
        log.sync()  # nothing is acknowledged before: an append inside does not wait for the disk

    shift.send({number: [first, *others]}, act)


def block_given_up(shift: Shift) -> None:
    number, log = shift.some()
    values = shift.run.values(5, 250)

    def act() -> None:
        with log.appending():
            for value in values:
                log.append(value)
            log.sync()
            raise _Given

    assert not shift.send({number: values}, act)


def block_truncated(shift: Shift) -> None:
    """Records that nobody was shown are cut off again: no new epoch begins, and what follows counts."""
    number, log = shift.some()
    kept, cut, more = shift.run.values(2, 100), shift.run.values(4, 250), shift.run.values(2, 40)
    before = log.leader_epoch

    def act() -> None:
        with log.appending():
            log.append_many(kept)
            offset = log.next_offset
            for value in cut:
                log.append(value)
            log.truncate(offset)
            log.append_many(more)
        log.sync()

    said = shift.witness.send({number: cut})
    if shift.send({number: [*kept, *more]}, act):
        assert log.leader_epoch == before, "nobody has read what was cut off, and a new epoch has begun"
    shift.witness.refuse(said)


def truncate(shift: Shift) -> None:
    number, log = shift.some()
    with log.hold():
        offset = shift.random.randrange(log.lowest_offset, log.next_offset + 1)
        dropped = offset < log.next_offset
    before = log.leader_epoch
    shift.witness.begin_truncation(number, offset)
    log.truncate(offset)
    shift.witness.end_truncation(number, offset)
    assert log.leader_epoch == before + dropped, f"was in epoch {before}, is in {log.leader_epoch}"
    shift.come_as_old()


def trim(shift: Shift) -> None:
    """Whoever does not want to read what is left of it has read it."""
    number, log = shift.some()
    offset = shift.random.randrange(log.lowest_offset, log.next_offset + 1)
    if "late" in shift.witness.got:
        shift.come("late", None, on_lost="latest")
    shift.witness.begin_trim(number, offset)
    log.trim(offset)
    shift.witness.end_trim(number, offset)


def seal(shift: Shift) -> None:
    shift.some()[1].seal()


def compact(shift: Shift) -> None:
    number, log = shift.some()
    log.seal()
    last = {record.key: record.offset for record in log.scan() if record.key is not None}
    shift.witness.going.update(
        record.value or b"" for record in log.scan() if record.key is not None and last[record.key] > record.offset
    )
    log.compact()


def merge(shift: Shift) -> None:
    log = shift.some()[1]
    log.seal()
    log.merge_segments()


def sync(shift: Shift) -> None:
    shift.some()[1].sync()


def reopen(shift: Shift) -> None:
    """In order: nothing is lost, so no epoch begins."""
    shift.hold_all()
    before = [shift.log(number).leader_epochs for number in range(PARTITIONS)]
    shift.reopen()
    after = [shift.log(number).leader_epochs for number in range(PARTITIONS)]
    assert before == after, f"closed in order in the epochs {before}, and opened in {after}"


def transaction(shift: Shift) -> None:
    parts = {number: shift.run.values(shift.random.randrange(1, 4), 90) for number in range(PARTITIONS)}

    def act() -> None:
        with shift.store.transaction() as made:
            for number, values in parts.items():
                made.append_many(TOPIC, values[:1], partition=number)
                made.append_many(TOPIC, values[1:], partition=number) if values[1:] else None

    shift.send(parts, act)


def failing(shift: Shift) -> None:
    """Some call fails, or there is no room, in the middle of something that counts together."""
    chance = shift.random
    if chance.random() < 0.3:
        used = sum(map(len, shift.disk.content().values()))
        shift.disk.capacity_bytes = used + chance.randrange(2000)
    else:
        fault = Fault(
            chance.randrange(1, 5),
            chance.choice((errno.EIO, errno.ENOSPC)),
            chance.choice(({"append"}, {"append", "create"}, {"sync"}, {"replace", "rename"}, {"claim", "append"})),
            names=chance.choice(("*.log", "*")),
            forever=chance.random() < 0.3,
            effect=chance.choice(("nothing", "part", "all")),
            undo=chance.random() < 0.7,
        )
        shift.disk.arm(fault)
    chance.choice((transaction, transaction, append_arrow, block, append_batches))(shift)
    shift.disk.disarm()
    shift.disk.capacity_bytes = None
    if any(log._appender is not None and not log.writable for log in map(shift.log, range(PARTITIONS))):
        shift.reopen()


def restore_published(shift: Shift) -> None:
    """Somebody puts back the file in which the end is published, while there is a writer; and the others read."""
    number = shift.random.randrange(PARTITIONS)
    restore(partition_of(shift.disk, number), shift.witness, number, shift.random)
    shift.look("a reader who is told an older end")
    shift.come("early", 3)
    _planner(shift).drain()
    shift.send({number: [value := shift.run.value()]}, lambda: shift.log(number).append(value))


def look(shift: Shift) -> None:
    """A reader that comes anew, and reads in every way there is."""
    for number in range(PARTITIONS):
        with Log.open(partition_of(shift.disk, number), mode="r") as log:
            view = view_of("a new reader", log)
            shift.witness.look(number, view)
            values = {offset: value for offset, (value, _) in view.rows.items()}
            assert {record.offset: record.value for record in log.follow(timeout=0)} == values
            batches = list(log.scan_arrow(columns=("offset", "value")))
            found = [row for batch in batches for row in batch.to_pylist()]
            assert {row["offset"]: row["value"] for row in found} == values
            assert log.fetch(log.lowest_offset).next_offset == view.end


def early_group(shift: Shift) -> None:
    shift.come("early", shift.random.randrange(2, 9))


def late_group(shift: Shift) -> None:
    shift.come("late", shift.random.randrange(2, 9), on_lost="latest")


def strict_group(shift: Shift) -> None:
    shift.come("strict", shift.random.randrange(2, 9), on_lost="error")


def old_group(shift: Shift) -> None:
    """As version 0.2 commits: without an epoch."""
    shift.witness.old = True
    shift.come(OLD, None, keep_epochs=False)


def _planner(shift: Shift) -> Planner:
    return PLANNERS[shift.random.choice(shift.run.planners)](shift.disk, shift.witness)


def plan(shift: Shift) -> None:
    """A micro-batch is planned; it is read another time."""
    _planner(shift).plan(shift.random.choice((None, 3, 6)))


def micro_batch(shift: Shift) -> None:
    planner = _planner(shift)
    if planner.plan(shift.random.choice((None, 5))):
        planner.finish()


OPERATIONS: dict[str, Callable[[Shift], None]] = {
    each.__name__: each
    for each in (
        append,
        append_many,
        append_arrow,
        append_stream,
        append_batches,
        append_kept,
        advance,
        block,
        block_given_up,
        block_truncated,
        truncate,
        trim,
        seal,
        compact,
        merge,
        sync,
        reopen,
        transaction,
        failing,
        restore_published,
        look,
        early_group,
        late_group,
        strict_group,
        old_group,
        plan,
        micro_batch,
    )
}

_PLANS: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "appending": (
        ("early_group", "append_arrow", "look", "append_stream", "plan", "append_batches", "append_kept", "micro_batch")
        + ("append_many", "late_group", "advance", "append", "plan", "append_arrow"),
        {},
    ),
    "blocks": (
        ("block", "micro_batch", "block_given_up", "early_group", "block_truncated", "look", "append", "plan")
        + ("block_given_up", "block", "strict_group"),
        {},
    ),
    "truncating": (
        ("append_arrow", "early_group", "plan", "truncate", "append_many", "micro_batch", "truncate", "late_group")
        + ("append_arrow", "strict_group", "plan", "truncate", "old_group", "append", "truncate", "append_many"),
        {},
    ),
    "rewriting": (
        ("append", "append", "append", "truncate", "append", "append", "early_group", "compact", "plan", "append_many")
        + ("trim", "append", "late_group", "truncate", "append", "append", "merge", "trim"),
        {},
    ),
    "transactions": (
        ("transaction", "early_group", "plan", "failing", "transaction", "micro_batch", "append", "failing", "reopen")
        + ("late_group", "transaction"),
        {},
    ),
    "failing": (("failing", "early_group", "failing", "plan", "truncate", "failing", "sync", "failing", "look"), {}),
    "restored": (
        ("append_many", "early_group", "restore_published", "plan", "truncate", "append_many", "restore_published")
        + ("micro_batch", "transaction", "late_group"),
        {"variant": "restored"},
    ),
    "lost": (
        ("append_many", "early_group", "truncate", "append_many", "plan", "reopen", "truncate", "append", "late_group")
        + ("transaction",),
        {"variant": "lost"},
    ),
    "upgraded": (
        ("append_many", "early_group", "micro_batch", "truncate", "append", "compact", "transaction", "reopen", "plan")
        + ("append_many",),
        {"variant": "upgraded"},
    ),
    "spark": (
        ("append_arrow", "plan", "truncate", "append_many", "micro_batch", "transaction", "plan", "append", "truncate")
        + ("append_many", "trim", "plan"),
        {"planners": ("spark",)},
    ),
}

#: By the name they have on the command line: `tests.faults.readers:NAME`.
READERS: dict[str, type[Workload]] = {
    name: type(name, (ReadersWorkload,), {"plan": steps, "durability": durability, "__module__": __name__, **fields})
    for kind, (steps, fields) in _PLANS.items()
    for durability in DURABILITIES
    for name in [f"readers_{kind}_{durability}"]
}
globals().update(READERS)
