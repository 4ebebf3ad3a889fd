"""Readers in the crash enumeration: readers in other processes, consumer groups, and planners of micro-batches.

One process writes to a topic of two partitions in every possible form; some operations fail and are rolled back.
Readers in other processes (`Eyes`) look before every change of the disk; groups and planners come and go between the
operations. The run is crashed at every change, in every way, as in `workloads`; then a reader looks, a writer opens the
topic and appends, and everyone drains it. `witness` checks what they saw.

The variants: an older published value of the same boot is put back, before the next writer comes and while there is
one; the files that record the epochs are lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, ClassVar

from sawlog import clock
from sawlog.config import LogConfig
from sawlog.errors import PositionLost, SawlogError, TransactionAborted, TransactionError
from sawlog.log import ingest, shared
from sawlog.log.files import CHECKPOINT, LEADER_EPOCHS
from sawlog.log.log import Log
from sawlog.store import position
from sawlog.store.directory import offsets as committed_offsets
from sawlog.store.directory.store import DirectoryStore

from .acts import ACTS, GivenUp
from .device import Step
from .disk import FaultyStorage
from .enumeration import Workload
from .eyes import Eyes, partition_of, restore, view_of
from .planners import PLANNERS, TOPIC
from .report import corruption_of
from .witness import PARTITIONS, Witness

DURABILITIES = {"always": "always", "os": "os", "interval": "interval:3600000:500"}
#: group -> its reset policy for missing records
GROUPS = {"early": "earliest", "late": "latest"}
OLD = "old"


# --- the work


class ReadersWorkload(Workload):
    """Operations on one topic, with concurrent readers."""

    durability: ClassVar[str] = "always"
    plan: ClassVar[Sequence[str]] = ()
    #: "", "restored" or "lost"
    variant: ClassVar[str] = ""
    planners: ClassVar[Sequence[str]] = ("planner",)
    #: Operations that may follow a recovery.
    afterwards: ClassVar[Sequence[str]] = ("append_many", "append_arrow", "transaction", "truncate", "block", "append")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.promise = Witness(always=self.durability == "always")
        self._numbers = 0

    def copy(self, promise: Witness) -> Witness:
        return promise.copy()

    def value(self, size: int | None = None) -> bytes:
        """Return a value that was never sent before."""
        self._numbers += 1
        length = self.random.choice((0, 20, 60, 300)) if size is None else size
        body = b"%d:" % self._numbers
        return body + b"x" * max(0, length - len(body))

    def values(self, count: int, size: int | None = None) -> list[bytes]:
        return [self.value(size) for _ in range(count)]

    def work(self, disk: FaultyStorage) -> None:
        watch, disk.watch = disk.watch, None  # no crashes during set-up, which is the same every time
        with _small():
            store = self._prepare(disk)
            shift = Shift(self, disk, store, self.promise, watch)
            for name in self.plan:
                shift.do(name)
            shift.drain()
            if self.random.random() < 0.5:
                shift.store.close()
                shift.look("a reader at the end")

    def _prepare(self, disk: FaultyStorage) -> DirectoryStore:
        store = _opened(disk)
        store.create_topic(
            TOPIC, PARTITIONS, segment_bytes=900, durability=DURABILITIES[self.durability], index_interval_bytes=150
        )
        shift = Shift(self, disk, store, self.promise, None)
        for _ in range(2):
            shift.do("append_many")
        return store

    # --- after a crash

    def recover(self, disk: FaultyStorage, promise: Witness, *, power_cut: bool) -> None:
        promise.check()
        promise.crash(power_cut=power_cut)
        chance = random.Random(disk.seed)
        disk.capacity_bytes = None
        watch, disk.watch = disk.watch, None
        self._tamper(disk, promise, chance)
        other = type(self)(disk.seed)
        other._numbers = 1000 * (1 + self._numbers // 1000) + len(promise.sent)
        with _small():
            Eyes(disk, promise).look("a reader before the next writer")
            promise.check()
            disk.watch = watch
            for planner in self.planners:
                # If the epochs are lost, reads before the next writer comes return none: see `come_as_old`.
                if chance.random() < 0.3 and not promise.unknown:
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

    def _tamper(self, disk: FaultyStorage, promise: Witness, chance: random.Random) -> None:
        """Apply the variant's damage before any process opens the topic."""
        for number in range(PARTITIONS):
            folder = partition_of(disk, number)
            if self.variant == "restored" and promise.told[number] and chance.random() < 0.7:
                restore(folder, promise, number, chance)
            if self.variant == "lost":
                # After a power cut and without the checkpoint, a torn tail cannot be distinguished from damage; without
                # both files, an epoch whose records are all gone is unknown.
                for name in (LEADER_EPOCHS,) if promise.was_cut else (LEADER_EPOCHS, CHECKPOINT):
                    if chance.random() < 0.5 and (folder.exists(CHECKPOINT) or not promise.was_cut):
                        folder.remove(name)
                known = folder.exists(CHECKPOINT) or (promise.told[number] and folder.exists(LEADER_EPOCHS))
                if not known:
                    promise.lose_epochs(number)


def _opened(disk: FaultyStorage) -> DirectoryStore:
    return DirectoryStore.open(disk, maintenance_interval_s=None)


@contextmanager
def _small() -> Iterator[None]:
    """Use small tables and segments, short waits, and a clock that stands still between operations, so that everything
    that the crash enumeration reaches happens."""
    changed: list[tuple[Any, str, Any]] = [
        (committed_offsets, "_CONFIG", LogConfig(segment_bytes=900)),
        (committed_offsets, "_SEGMENTS", 2),
        (ingest, "_GROUP_BYTES", 200),
        (ingest, "BATCH_BYTES", 150),
        (clock, "_RECHECK_S", 0.0),
        (position, "_TOPICS_S", 1e9),
        (shared, "_CHECKPOINT_S", 1e9),
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
    """One writer's time on a disk, with its concurrent readers."""

    def __init__(
        self,
        run: ReadersWorkload,
        disk: FaultyStorage,
        store: DirectoryStore,
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
        """Return a random partition."""
        number = self.random.randrange(PARTITIONS)
        return number, self.log(number)

    def do(self, name: str) -> None:
        """Run one operation, then let the readers look."""
        ACTS[name](self)
        self.settle(f"{self.store.path} after {name}")

    def settle(self, who: str) -> None:
        """Check after an operation that all readers see everything that exists."""
        self.eyes.writers = [log for log in map(self.log, range(PARTITIONS)) if log._access.appender is not None]
        for number in range(PARTITIONS):
            log = self.log(number)
            if log._is_writable:
                visible, following = log.visible_offset, log.next_offset
                assert visible == following, f"{who}: {visible} of {following} is seen"
                self.witness.durable[number] = log.durable_offset
                self.witness.look(number, view_of("the writer", log))
        self.look("a reader between two operations")
        if self.witness.always:
            self._check_durable()

    def look(self, who: str) -> None:
        """Let the readers look, whether anything has changed or not."""
        self.eyes._known.clear()
        self.eyes.look(who)

    def _check_durable(self) -> None:
        for number in range(PARTITIONS):
            log = self.log(number)
            if log._is_writable and log.durable_offset != log.visible_offset:
                self.witness.complain("I4", f"{log.visible_offset} is shown, and {log.durable_offset} durable")

    def send(self, parts: Mapping[int, Sequence[bytes]], act: Callable[[], object]) -> bool:
        """Append something and return whether it was stored. If it fails, the log continues without it or is
        reopened."""
        number = self.witness.send(parts)
        try:
            act()
        except (SawlogError, GivenUp) as error:
            pending = isinstance(error, TransactionError) and not isinstance(error, TransactionAborted)
            failed = [log for log in map(self.log, parts) if log._access.appender is not None and not log._is_writable]
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
        """Reopen the topic, after a clean close if possible."""
        self.disk.disarm()
        self.disk.capacity_bytes = None
        self.eyes.writers = []
        with suppress(SawlogError):
            self.store.close()
        self.store = _opened(self.disk)
        self.hold_all()

    def leave(self) -> None:
        """Release all locks, as the death of the process would."""
        self.eyes.writers = []
        for folder in (self.disk.plain.child("groups"), *(partition_of(self.disk, n) for n in range(PARTITIONS))):
            folder.locked.clear()

    def hold_all(self) -> None:
        """Become the writer of all partitions, which completes pending transactions."""
        for number in range(PARTITIONS):
            with self.log(number)._hold():
                pass

    def take_over(self) -> None:
        """Recover after a crash and check the contents."""
        for number in range(PARTITIONS):
            log = self.log(number)
            with log._hold():
                pass
            assert log.recovery, corruption_of(log)
            assert log.verify(), str(log.verify())
            self.witness.unknown.discard(number)
        self.witness.is_published = True
        self.settle("the next writer")
        for number in range(PARTITIONS):
            self.witness.take_over(number, {value for value, _ in view_of("", self.log(number)).rows.values()})
        self.come_as_old()

    # --- those who read

    def come(self, name: str, most: int | None, *, on_lost: Any = "earliest", keep_epochs: bool = True) -> None:
        """Join a group, read that many records or all, commit and leave."""
        got = self.witness.got.setdefault(name, set())
        with DirectoryStore.open(self.disk.plain, maintenance_interval_s=None) as store:
            patient = {"auto_commit_ms": None, "session_timeout_ms": 10**9, "max_poll_interval_ms": 10**9}
            with store.consumer(name, [TOPIC], on_lost=on_lost, **patient) as consumer:
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
        """Let the group without epochs read before anything is appended after a loss, as after a restart of the machine
        with its consumers: its positions are only checked against the end."""
        if self.witness.old:
            self.come(OLD, None)

    def drain(self) -> None:
        """Let every reader drain the topic; none may have skipped an existing record."""
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


#: name -> (operations, settings)
_PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "appending": (
        """early_group append_arrow look append_stream plan append_batches append_kept micro_batch append_many
        late_group advance append plan append_arrow""",
        {},
    ),
    "blocks": (
        """block micro_batch block_given_up early_group block_truncated look append plan block_given_up block
        strict_group""",
        {},
    ),
    "truncating": (
        """append_arrow early_group plan truncate append_many micro_batch truncate late_group append_arrow strict_group
        plan truncate old_group append truncate append_many""",
        {},
    ),
    "rewriting": (
        """append append append truncate append append early_group compact plan append_many trim append late_group
        truncate append append merge trim""",
        {},
    ),
    "transactions": (
        """transaction early_group plan failing transaction micro_batch append failing reopen late_group transaction""",
        {},
    ),
    "failing": ("failing early_group failing plan truncate failing sync failing look", {}),
    "restored": (
        """append_many early_group restore_published plan truncate append_many restore_published micro_batch transaction
        late_group""",
        {"variant": "restored"},
    ),
    "lost": (
        "append_many early_group truncate append_many plan reopen truncate append late_group transaction",
        {"variant": "lost"},
    ),
    "spark": (
        """append_arrow micro_batch truncate append_many plan truncate append_many micro_batch transaction plan trim""",
        {"planners": ("spark",)},
    ),
}

#: By the name they have on the command line: `tests.faults.readers:NAME`.
READERS: dict[str, type[Workload]] = {
    name: type(
        name,
        (ReadersWorkload,),
        {"plan": steps.split(), "durability": durability, "__module__": __name__, **fields},
    )
    for kind, (steps, fields) in _PLANS.items()
    for durability in DURABILITIES
    for name in [f"readers_{kind}_{durability}"]
}
globals().update(READERS)


def without_epochs(store: DirectoryStore, group: str) -> None:
    """Commit the offsets of a group again without a leader epoch, as a client on the network may."""
    with store.groups._offsets.turn() as turn:
        records = []
        for (topic, partition), each in sorted(turn.offsets(group).items()):
            fields = asdict(each)
            del fields["leader_epoch"]
            records.append((json.dumps(fields).encode(), json.dumps(["offset", group, topic, partition]).encode()))
        if records:
            turn._log.append_many(records)
