"""Work on a store: creating, altering and deleting topics, records, transactions, groups, and Spark commits.

Each operation takes the store from one state to another. After a crash, the next process that opens the store for
writing finds the state before the operation or the one after it, and nothing else; an operation that had returned is
there. A reader that comes earlier finds, partition by partition, one or the other. Nothing half-done is left, every log
verifies, and the operation can be repeated: with effect only once, if it has a name and a number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from sawlog.batch import kernel
from sawlog.batch.build import Encoder, EncoderOptions, encode
from sawlog.config import LogConfig
from sawlog.errors import SawlogError, StoreNotFound, StreamAborted, StreamTooLong, TransactionError
from sawlog.spark.commit import stage_name
from sawlog.store.directory import offsets as committed_offsets
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.directory.transactions import placement, staging
from sawlog.store.directory.transactions.commits import INLINE_BYTES
from sawlog.store.directory.transactions.intent import Part, Piece
from sawlog.store.directory.transactions.staging_directory import StagedFile
from sawlog.store.directory.transactions.transaction import PartitionBuffer
from sawlog.store.partitioner import partition_for

from .acts import GivenUp
from .disk import FaultyStorage
from .enumeration import Workload
from .interrupts import Stop, Within, stop
from .report import corruption_of
from .thresholds import chosen, small

placement._THREADS = 1  # the calls of a seed come in the same order each time

#: name -> (settings, the values of each partition, where each partition starts)
Topics = dict[str, tuple[dict[str, Any], tuple[tuple[bytes | None, ...], ...]]]
#: group -> its committed offsets
Groups = dict[str, dict[tuple[str, int], int]]
SMALL = {"segment_bytes": 1200}


@dataclass(frozen=True)
class State:
    """The promised content of a store."""

    topics: Topics = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)

    def with_topic(self, name: str, *partitions: Sequence[bytes | None], **settings: Any) -> State:
        """Return a copy with this state of a topic."""
        made = tuple(tuple(each) for each in partitions)
        return replace(self, topics={**self.topics, name: (settings, made)})

    def without(self, name: str) -> State:
        """Return a copy without a topic."""
        return replace(self, topics={other: each for other, each in self.topics.items() if other != name})

    def appended(self, name: str, number: int, *values: bytes | None) -> State:
        """Return a copy with these records at the end of a partition."""
        settings, partitions = self.topics[name]
        made = list(partitions)
        made[number] = (*made[number], *values)
        return replace(self, topics={**self.topics, name: (settings, tuple(made))})

    def committed(self, group: str, offsets: dict[tuple[str, int], int] | None) -> State:
        """Return a copy with these offsets of a group; with None, without the group."""
        kept = {other: each for other, each in self.groups.items() if other != group}
        if offsets is None:
            return replace(self, groups=kept)
        return replace(self, groups={**kept, group: {**self.groups.get(group, {}), **offsets}})


def state_of(store: DirectoryStore) -> State:
    """Return the state of the store."""
    topics: Topics = {}
    for topic in store:
        values = [tuple(record.value for record in topic.partition(n).scan()) for n in range(topic.partitions)]
        topics[topic.name] = (topic.settings, tuple(values))
    offsets: Groups = {}
    for name in store.groups._offsets.groups():
        offsets[name] = {share: each.offset for share, each in store.groups._offsets.of(name).items()}
    return State(topics, offsets)


def _shown(state: State) -> str:
    topics = {name: (each[0], [len(values) for values in each[1]]) for name, each in state.topics.items()}
    return f"{topics} {state.groups}"


Act = Callable[[DirectoryStore], object]


@dataclass
class StorePromise:
    """Acknowledged operations, and the one in progress."""

    now: State = field(default_factory=State)
    then: State | None = None
    #: The operation in progress, to be repeated.
    act: Act | None = None
    #: If set, each partition may be in the state before, in the state after, or in between.
    loose: bool = False
    #: If set, the operation has a name and a number, and repeating it has no effect.
    once: bool = False
    made: bool = False

    def begin(self, then: State, act: Act, *, loose: bool = False, once: bool = False) -> None:
        self.then, self.act, self.loose, self.once = then, act, loose, once

    def end(self) -> None:
        assert self.then is not None
        self.now, self.then, self.act = self.then, None, None

    def copy(self) -> StorePromise:
        return replace(self)

    def check(self, found: State) -> None:
        """Check for the state before or after the operation; if it is loose, partition by partition."""
        if found in (self.now, self.then):
            return
        assert self.then is not None, f"found {_shown(found)}, not {_shown(self.now)}"
        assert self.loose, f"found {_shown(found)}, neither {_shown(self.now)} nor {_shown(self.then)}"
        self.check_partitions(found)

    def check_partitions(self, found: State) -> None:
        """Each partition has the records of the state before the operation, and possibly some of those after it."""
        then = self.now if self.then is None else self.then
        for name, (_, partitions) in found.topics.items():
            known = [each.topics[name][1] for each in (self.now, then) if name in each.topics]
            assert known, f"the topic {name!r} was never made"
            for number, values in enumerate(partitions):
                least, most = (each[number] if number < len(each) else () for each in (known[0], known[-1]))
                least, most = (least, most) if len(least) <= len(most) else (most, least)
                assert most[: len(values)] == values or values in (least, most), f"{name}/{number} holds something else"
                assert len(least) <= len(values), f"{name}/{number} has lost records"
        self._check_groups(found.groups, then.groups)

    def _check_groups(self, found: Groups, then: Groups) -> None:
        """Each group and partition has an offset of the state before, of the one after, or in between."""
        for name in {*found, *self.now.groups, *then}:
            known = [groups.get(name, {}) for groups in (self.now.groups, then)]
            for share in {*found.get(name, {}), *known[0], *known[1]}:
                offset = found.get(name, {}).get(share, 0)
                low, high = sorted(each.get(share, 0) for each in known)
                assert low <= offset <= high, f"{name} is at {offset} of {share}, not between {low} and {high}"


class StoreWorkload(Workload):
    """Some operations on one store."""

    plan: ClassVar[Sequence[str]] = ()

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.promise = StorePromise()
        #: Changed sizes of the engine.
        self.sizes = chosen(seed)
        #: The disk, if it is a simulated one.
        self.disk: FaultyStorage | None = None
        self._numbers = 0

    def copy(self, promise: StorePromise) -> StorePromise:
        return promise.copy()

    def value(self, size: int = 30) -> bytes:
        self._numbers += 1
        body = b"%d:" % self._numbers
        return body + self.random.randbytes(max(0, size - len(body)))

    def work(self, disk: FaultyStorage) -> None:
        self.disk = disk
        with _small_groups(), small(self.sizes):
            store = _opened(disk)
            self.promise.made = True
            for name in self.plan:
                if name == "reopen":
                    store.close()
                    store = _opened(disk)
                elif name in DISTURBED:
                    store = self._interrupt(name, store, disk)
                else:
                    self.do(name, store, self.promise)
            if self.random.random() < 0.5:
                store.close()

    def do(self, name: str, store: DirectoryStore, promise: StorePromise) -> None:
        for then, act, how in OPERATIONS[name](self, promise.now):
            promise.begin(then, act, **how)
            act(store)
            promise.end()
            assert state_of(store) == promise.now, f"{name}: {_shown(state_of(store))} is not {_shown(promise.now)}"

    def _interrupt(self, name: str, store: DirectoryStore, disk: FaultyStorage) -> DirectoryStore:
        """Interrupt an operation somewhere. After the store is reopened, it has taken effect completely or not at all.
        Return the store to continue with."""
        promise = self.promise
        for then, act, how in DISTURBED[name](self, promise.now):
            promise.begin(then, act, **how)
            first = self.random.randrange(1, self.random.choice((100, 400, 1500)))
            try:
                with Within(stop, first).on(disk):
                    act(store)
            except (Stop, TransactionError):
                with suppress(SawlogError):
                    store.close()
                store = _opened(disk)
            promise.now, promise.then, promise.act = self._check_all(store, promise), None, None
            break  # later operations depend on it
        return store

    # --- after a crash

    def recover(self, disk: FaultyStorage, promise: StorePromise, *, power_cut: bool) -> None:
        chance = random.Random(disk.seed)
        with _small_groups(), small(self.sizes):
            if chance.random() < 0.5:
                self._read(disk, promise)
            store = _opened(disk)
            found = self._check_all(store, promise)
            promise.made = True
            self._go_on(store, promise, found, chance)
            if chance.random() < 0.3:
                store.close()
                before = disk.content()
                _opened(disk).close()
                after = disk.content()
                changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
                assert not changed, f"opening and closing has changed {changed}"

    def _read(self, disk: FaultyStorage, promise: StorePromise) -> None:
        before = disk.steps
        try:
            store = DirectoryStore.open(disk.plain, "r")
        except StoreNotFound:
            assert not promise.made, "a reader finds no store"
            return
        with store:
            promise.check_partitions(state_of(store))
        assert disk.steps == before, "a reader has written"

    def _check_all(self, store: DirectoryStore, promise: StorePromise) -> State:
        """Open every partition for writing, which completes pending transactions; then check everything."""
        for topic in store:
            for number in range(topic.partitions):
                log = topic.partition(number)
                with log._hold():
                    pass
                assert log.recovery, corruption_of(log)
                assert log.verify(), str(log.verify())
        if "groups" in store._directory.children():
            with store.groups._offsets.turn():
                pass  # an offset that is seen before a turn may go back in a power cut, which costs a repetition
        found = state_of(store)
        promise.check(found)
        topics = store._directory.child("topics")
        assert topics.children() == store.topics(), f"left behind: {topics.children()}"
        for topic in store:
            assert len(topics.child(topic.name).children()) == topic.partitions
        if "staging" in store._directory.children():
            self._check_staging(store._directory.child("staging").names())
        return found

    @staticmethod
    def _check_staging(names: list[str]) -> None:
        """Only staged files that are leased to a job, and the notes of finished numbers, may be left."""
        lent = {name.partition(".")[0] for name in names if name.endswith(".lease")}
        left = [name for name in names if not name.startswith("=") and name.partition(".")[0] not in lent]
        assert not left, f"left behind: {left}"
        assert not any(name.endswith(".intent") for name in names), f"not completed: {names}"

    def _go_on(self, store: DirectoryStore, promise: StorePromise, found: State, chance: random.Random) -> None:
        act, then = promise.act, promise.then
        if act is not None and then is not None and (promise.once or found == promise.now):
            promise.now = found
            act(store)
            assert state_of(store) == then, f"done again: {_shown(state_of(store))} is not {_shown(then)}"
            found = then
        promise.now, promise.then, promise.act = found, None, None
        other = type(self)(chance.getrandbits(32))
        other._numbers = 10_000 + self._numbers
        for name in chance.sample(AFTERWARDS, 1):
            other.do(name, store, promise)


def _opened(disk: FaultyStorage) -> DirectoryStore:
    return DirectoryStore.open(disk.plain, maintenance_interval_s=None)


@contextmanager
def _small_groups() -> Iterator[None]:
    """The log of the groups with small segments, so that it is rotated and compacted."""
    before = committed_offsets._CONFIG, committed_offsets._SEGMENTS
    committed_offsets._CONFIG, committed_offsets._SEGMENTS = LogConfig(segment_bytes=600), 2
    try:
        yield
    finally:
        committed_offsets._CONFIG, committed_offsets._SEGMENTS = before


# --- the operations: each returns (the state after it, the function that does it, its promise)

Steps = Iterator[tuple[State, Act, dict[str, bool]]]


def _some(run: StoreWorkload, now: State) -> str | None:
    """Return a random topic, if there is one."""
    return run.random.choice(sorted(now.topics)) if now.topics else None


def create(run: StoreWorkload, now: State) -> Steps:
    name = f"t{len(now.topics)}"
    while name in now.topics:
        name += "x"
    settings = {"segment.bytes": 1200} if run.random.random() < 0.5 else {}
    given: dict[str, Any] = {key.replace(".", "_"): value for key, value in settings.items()}
    yield now.with_topic(name, (), (), **settings), lambda store: store.create_topic(name, 2, **given), {}


def more_partitions(run: StoreWorkload, now: State) -> Steps:
    if name := _some(run, now):
        settings, partitions = now.topics[name]
        then = now.with_topic(name, *partitions, (), **settings)
        yield then, lambda store: store.alter_topic(name, len(partitions) + 1), {}


def other_settings(run: StoreWorkload, now: State) -> Steps:
    if name := _some(run, now):
        settings, partitions = now.topics[name]
        size = run.random.randrange(1000, 2000)
        then = now.with_topic(name, *partitions, **{**settings, "segment.bytes": size})
        yield then, lambda store: store.alter_topic(name, segment_bytes=size), {}


def delete(run: StoreWorkload, now: State) -> Steps:
    if name := _some(run, now):
        yield now.without(name), lambda store: store.delete_topic(name), {}


def replace_topic(run: StoreWorkload, now: State) -> Steps:
    names = sorted(now.topics)
    if len(names) >= 2:
        name, by = run.random.sample(names, 2)
        settings, partitions = now.topics[by]
        then = now.without(by).with_topic(name, *partitions, **settings)
        yield then, lambda store: store.replace_topic(name, by), {}


def append(run: StoreWorkload, now: State) -> Steps:
    if name := _some(run, now):
        number, value = run.random.randrange(len(now.topics[name][1])), run.value(run.random.choice((20, 700)))
        yield now.appended(name, number, value), lambda store: store[name].append(value, partition=number), {}


def append_many(run: StoreWorkload, now: State) -> Steps:
    """Append to all partitions; each gets all of its records or none."""
    if name := _some(run, now):
        then, given = now, []
        for number in range(len(now.topics[name][1])):
            values = [run.value(), run.value()]
            then = then.appended(name, number, *values)
            given.append((number, values))

        def act(store: DirectoryStore) -> None:
            for number, values in given:
                store[name].append_many(values, partition=number)

        yield then, act, {"loose": True}


def append_arrow(run: StoreWorkload, now: State) -> Steps:
    if name := _some(run, now):
        values = [run.value(), run.value()]
        table = pa.table({"value": pa.array(values, pa.binary())})
        yield now.appended(name, 0, *values), lambda store: store[name].append_arrow(table, partition=0), {}


def write(run: StoreWorkload, now: State) -> Steps:
    """Append with the buffered writer; the keys determine the partitions."""
    if name := _some(run, now):
        then, given = now, []
        for _ in range(4):
            key, value = b"%d" % run.random.randrange(100), run.value()
            then = then.appended(name, partition_for(key, len(now.topics[name][1])), value)
            given.append((value, key))

        def act(store: DirectoryStore) -> None:
            with store[name].writer() as writer:
                for value, key in given:
                    writer.append(value, key)

        yield then, act, {"loose": True}


def _transacted(run: StoreWorkload, now: State, size: int) -> tuple[State, list[tuple[str, int, bytes]]]:
    then, given = now, []
    for name, (_, partitions) in sorted(now.topics.items()):
        for number in range(len(partitions)):
            value = run.value(size)
            then = then.appended(name, number, value)
            given.append((name, number, value))
    return then, given


def _transact(store: DirectoryStore, given: list[tuple[str, int, bytes]], *name: Any) -> None:
    with store.transaction(*name) as transaction:
        for topic, number, value in given:
            transaction.append(topic, value, partition=number)


def transaction(run: StoreWorkload, now: State) -> Steps:
    then, given = _transacted(run, now, 40)
    yield then, lambda store: _transact(store, given), {}


def large_transaction(run: StoreWorkload, now: State) -> Steps:
    """Commit a transaction that is too large for the intent: its batches are in a file."""
    if all("segment.bytes" not in settings for settings, _ in now.topics.values()):
        then, given = _transacted(run, now, INLINE_BYTES // 2)
        yield then, lambda store: _transact(store, given), {}


def named_transactions(run: StoreWorkload, now: State) -> Steps:
    name = f"query{run.random.getrandbits(48)}"
    for sequence in (1, 2):
        then, given = _transacted(run, now, 40)

        def act(store: DirectoryStore, given: Any = given, sequence: int = sequence) -> None:
            _transact(store, given, name, sequence)

        yield then, act, {"once": True}
        now = then


def publish(run: StoreWorkload, now: State) -> Steps:
    """Stage and publish as Spark does; a repeated commit is recognised."""
    query, batch = f"q{run.random.getrandbits(48)}", run.random.randrange(5)
    then, given = _transacted(run, now, 60)
    alone, least = run.random.random() < 0.6, run.random.choice((1, 8 << 20))

    def act(store: DirectoryStore) -> None:
        stage = stage_name(query, batch)
        _staged(store, stage, given)  # by an attempt that failed later
        parts = _staged(store, stage, given, alone=alone)
        with _set(placement, ADOPT_BYTES=least):
            store._staging.publish(stage, parts, name=query, sequence=batch)
            store._staging.publish(stage, parts, name=query, sequence=batch)

    yield then, act, {"once": True}


def publish_inline(run: StoreWorkload, now: State) -> Steps:
    """Publish a job so small that its tasks sent their batches in messages: they are in the intent, or staged for
    it."""
    query = f"q{run.random.getrandbits(48)}"
    then, given = _transacted(run, now, 60)
    staged = run.random.random() < 0.5

    def act(store: DirectoryStore) -> None:
        stage, parts, position = stage_name(query, 1), [], 0
        batches = [encode([(value,)]) for _, _, value in given]
        data = b"".join(batches)
        file = store._staging.put(stage, data) if staged else ""
        for (name, number, _), batch in zip(given, batches, strict=True):
            parts.append(Part(name, store[name].id, number, 1, (Piece(file, position, len(batch)),)))
            position += len(batch)
        store._staging.publish(stage, parts, data=b"" if staged else data, name=query, sequence=1)

    yield then, act, {"once": True}


def _staged(
    store: DirectoryStore, stage: str, given: list[tuple[str, int, bytes]], *, alone: bool = False
) -> list[Part]:
    """Stage as a task does: batches in a file that is leased to the job; with `alone`, one file per partition."""
    with store._staging.task(stage) as task:
        parcels: dict[tuple[str, int], PartitionBuffer] = {}
        files: dict[tuple[str, int], StagedFile] = {}
        for name, number, value in given:
            place = name, number
            buffer = parcels.setdefault(place, PartitionBuffer())
            buffer.add(Encoder(EncoderOptions()).many([(value,)]))
            if not alone:
                buffer.move(task.write)
            else:
                buffer.move_alone(files.get(place) or files.setdefault(place, task.own_file()))
        task.sync()
    return [
        Part(name, store[name].id, number, buffer.count, buffer.pieces) for (name, number), buffer in parcels.items()
    ]


def publish_and_discard(run: StoreWorkload, now: State) -> Steps:
    """Abort a job: nothing of it is stored."""
    _, given = _transacted(run, now, 60)
    stage = stage_name(f"q{run.random.getrandbits(48)}", 0)

    def act(store: DirectoryStore) -> None:
        _staged(store, stage, given)
        store._staging.discard(stage)

    yield now, act, {}


def commit(run: StoreWorkload, now: State) -> Steps:
    """Commit offsets of a group several times; each commit is atomic."""
    if name := _some(run, now):
        for _ in range(3):
            offsets = {(name, n): run.random.randrange(100) for n in range(len(now.topics[name][1]))}
            now = now.committed("group", offsets)

            def act(store: DirectoryStore, offsets: Any = offsets) -> None:
                store.groups.commit("group", offsets)

            yield now, act, {}


def forget_group(run: StoreWorkload, now: State) -> Steps:
    if now.groups:
        name = min(now.groups)
        yield now.committed(name, None), lambda store: store.groups.delete(name), {}


def consume(run: StoreWorkload, now: State) -> Steps:
    """Read everything as a member of a group and commit."""
    if name := _some(run, now):
        partitions = now.topics[name][1]
        offsets = {(name, number): len(values) for number, values in enumerate(partitions)}

        def act(store: DirectoryStore) -> None:
            with store.consumer("readers", [name], start="earliest") as consumer:
                for _ in consumer.drain():
                    pass

        # If reading fails midway, closing the consumer commits the records that it returned until then.
        yield now.committed("readers", offsets), act, {"loose": True}


def maintain(run: StoreWorkload, now: State) -> Steps:
    yield now, lambda store: store.maintain(), {}


def aborted_stream(run: StoreWorkload, now: State) -> Steps:
    """Abort a stream: nothing of it is stored."""
    if name := _some(run, now):
        number, value = run.random.randrange(len(now.topics[name][1])), run.value(run.random.choice((90, 900)))

        def chunks() -> Iterator[bytes]:
            yield value
            raise ConnectionError("the client went away")

        def act(store: DirectoryStore) -> None:
            try:
                store[name].partition(number).append_stream(chunks())
            except (StreamAborted, StreamTooLong):  # whichever comes first, if little is collected at once
                return
            raise AssertionError("a stream that was aborted was stored")

        yield now, act, {}


def aborted_transaction(run: StoreWorkload, now: State) -> Steps:
    """Abort a transaction after a part of it may have been staged."""
    _, given = _transacted(run, now, run.random.choice((40, 400)))

    def act(store: DirectoryStore) -> None:
        with suppress(GivenUp), store.transaction() as made:
            for topic, number, value in given:
                made.append(topic, value, partition=number)
            raise GivenUp

    yield now, act, {}


def advance(run: StoreWorkload, now: State) -> Steps:
    """Continue a partition at a later offset. A group that has read all of it has to pass the gap."""
    if name := _some(run, now):
        number, gap = run.random.randrange(len(now.topics[name][1])), run.random.choice((1, 6))

        def act(store: DirectoryStore) -> None:
            log = store[name].partition(number)
            log._advance(log.next_offset + gap)

        yield now, act, {}


def append_kept(run: StoreWorkload, now: State) -> Steps:
    """Append batches with given offsets and gaps between them."""
    if name := _some(run, now):
        place, values = run.random.randrange(len(now.topics[name][1])), [run.value(80), run.value(80)]

        def act(store: DirectoryStore) -> None:
            log, raw = store[name].partition(place), bytearray()
            for number, value in enumerate(values):
                batch = bytearray(encode([value]))
                kernel.patch_place(memoryview(batch), 0, log.next_offset + 1 + 3 * number, 0)
                raw += batch
            log._append_at_offsets(bytes(raw))

        yield now.appended(name, place, *values), act, {"loose": True}


def spark_write(run: StoreWorkload, now: State) -> Steps:
    """Stage as Spark's tasks do: in memory, in files, or inside their messages, and once more in a file."""
    query = f"q{run.random.getrandbits(48)}"
    then, given = _transacted(run, now, 60)
    held, own = run.random.choice((1, 200, 2 << 20)), run.random.choice((1, 200, 2 << 20))
    inline, least = run.random.choice((1, 1 << 20)), run.random.choice((1, 8 << 20))

    def act(store: DirectoryStore) -> None:
        from sawlog.spark import commit, writing
        from sawlog.spark.options import StoreLocation, WriteOptions

        stage, parts = stage_name(query, 1), list[writing.StagedPartition]()
        options = WriteOptions(StoreLocation(store._directory), None, None, None, 128 << 10, 5.0)  # type: ignore[arg-type]
        with (
            _set(writing, _HELD_BYTES=held),
            _set(writing, _OWN_BYTES=own),
            _set(commit, _INTENT_BYTES=inline),
            _set(staging, ADOPT_BYTES=least),
            _set(placement, ADOPT_BYTES=least),
        ):
            for begin in range(0, len(given), 3):
                task = writing.TaskAttempt(options, stage)
                task.take(_rows(given[begin : begin + 3]))
                parts += task.finish()
                task.close()
            gathered, data = commit._collect_parts(store, stage, parts)
            store._staging.publish(stage, gathered, data=data, name=query, sequence=1)

    yield then, act, {"once": True}


def _rows(given: list[tuple[str, int, bytes]]) -> pa.RecordBatch:
    topics, numbers, values = zip(*given, strict=True)
    columns = [pa.array(topics), pa.array(numbers, pa.int32()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["topic", "partition", "value"])


@contextmanager
def _set(module: Any, **sizes: int) -> Iterator[None]:
    before = {name: getattr(module, name) for name in sizes}
    vars(module).update(sizes)
    try:
        yield
    finally:
        vars(module).update(before)


OPERATIONS: dict[str, Callable[[StoreWorkload, State], Steps]] = {
    each.__name__: each
    for each in (
        create,
        more_partitions,
        other_settings,
        delete,
        replace_topic,
        append,
        append_many,
        append_arrow,
        write,
        transaction,
        large_transaction,
        named_transactions,
        publish,
        publish_inline,
        publish_and_discard,
        commit,
        forget_group,
        consume,
        maintain,
        aborted_stream,
        aborted_transaction,
    )
}
#: By name; operations that are interrupted, each at another place.
DISTURBED: dict[str, Callable[[StoreWorkload, State], Steps]] = {
    f"interrupted_{each.__name__}": each for each in (append, transaction, large_transaction, publish, commit, create)
}
#: Operations on a newly recovered store.
AFTERWARDS = ("append_many", "transaction", "commit", "create", "publish", "write")

_PLANS: dict[str, Sequence[str]] = {
    "catalogue": ("create", "append", "more_partitions", "other_settings", "create", "delete"),
    "replacing": ("create", "append_many", "create", "append_many", "replace_topic", "append"),
    "records": ("create", "append", "append_many", "append_arrow", "write", "reopen", "append"),
    "transactions": ("create", "transaction", "append", "transaction", "reopen", "transaction"),
    "large_transactions": ("create_plain", "large_transaction", "append"),
    "named": ("create", "named_transactions", "named_transactions"),
    "spark": ("create", "publish", "append", "publish_inline", "publish", "publish_and_discard"),
    "commits": ("create", "commit", "commit", "reopen", "commit", "forget_group", "commit"),
    "consumers": ("create", "append_many", "consume", "append", "consume"),
    "aborting": ("create", "aborted_stream", "append", "aborted_transaction", "transaction", "aborted_stream"),
    "gaps": ("create", "advance", "append_many", "append_kept", "transaction", "advance", "publish", "append_kept"),
    "tasks": ("create", "spark_write", "append", "spark_write"),
    "interrupted": (
        "create",
        "interrupted_append",
        "interrupted_transaction",
        "interrupted_commit",
        "interrupted_publish",
        "interrupted_transaction",
        "interrupted_create",
        "interrupted_append",
    ),
    "everything": (
        "create",
        "append_many",
        "transaction",
        "commit",
        "maintain",
        "publish",
        "replace_topic",
        "delete",
    ),
}


def create_plain(run: StoreWorkload, now: State) -> Steps:
    name = f"t{len(now.topics)}"
    yield now.with_topic(name, (), ()), lambda store: store.create_topic(name, 2), {}


#: These leave offsets out, which `consume` does not count on; or take Spark along, which an error sweep need not.
OPERATIONS |= {each.__name__: each for each in (create_plain, advance, append_kept, spark_write)}

#: By the name they have on the command line: `tests.faults.stores:NAME`.
STORES: dict[str, type[Workload]] = {
    f"store_{name}": type(f"store_{name}", (StoreWorkload,), {"plan": plan, "__module__": __name__})
    for name, plan in _PLANS.items()
}
globals().update(STORES)
