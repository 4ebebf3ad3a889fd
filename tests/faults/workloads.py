"""Work on one log for the crash enumeration: every public operation that writes, each with its promise.

`LOGS` has one workload for each operation under each durability policy that matters for it, and `mixed` ones that do
everything in an order that the seed decides. After a crash:

- a reader that comes before the next writer sees a state that keeps the promise, changes nothing, and agrees with the
  writer;
- the next writer's recovery finds no corruption, the log verifies, and holds the promised records, nothing else;
- opening it once more, without having closed it, changes not a byte, nor does opening and closing it twice;
- it continues: more operations follow, under the same promises, and it is closed, or not.

The reader and the second openings come at random, not every time: there are very many runs.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import pyarrow as pa

from sawlog import Interval, Log, LogConfig, MaintenanceConfig, Record
from sawlog.batch.build import Producer, encode
from sawlog.batch.header import scan as batches_of
from sawlog.errors import CorruptBatch, LogNotFound, SawlogError
from sawlog.log.files import CHECKPOINT, LEADER_EPOCHS, VISIBLE, file_name
from sawlog.log.verify import missing_ends
from sawlog.storage import Directory, open_published
from sawlog.testing import Fault

from .disk import FaultyStorage
from .disturbed import (
    aborted_stream,
    aborted_stream_async,
    append_within_maintenance,
    given,
    hand_back,
    interrupted_append,
    interrupted_producer,
    interrupted_writer,
    maintenance_within_append,
    tick_within,
)
from .enumeration import Workload
from .offsets import advance, append_kept
from .promises import LogPromise, Row
from .report import corruption_of
from .thresholds import chosen, small, small_blocks

#: Timestamp of all records: old, so that they can expire.
OLD_MS = 1_000_000_000_000
CONFIG = LogConfig(
    segment_bytes=1500, segment_overflow_bytes=4000, index_interval_bytes=200, checkpoint_interval_ms=3_600_000
)
DURABILITIES: dict[str, Any] = {"always": "always", "os": "os", "interval": Interval(ms=3_600_000, bytes=600)}
#: Calls that change something.
WRITING = frozenset({"append", "create", "remove", "rename", "replace", "sync", "truncate", "write_at"})
#: Operations on a newly recovered log.
AFTERWARDS = ("append", "append_many", "append_stream", "seal", "truncate", "trim", "sync", "merge")


class LogWorkload(Workload):
    """Some operations on one log."""

    config: ClassVar[LogConfig] = CONFIG
    #: Operations, in this order; "any" is one that the seed chooses.
    plan: ClassVar[Sequence[str]] = ()
    #: True if the log is closed in the end.
    closes: ClassVar[bool] = True
    keys: ClassVar[int] = 4
    #: True if "any" includes operations with interrupts or concurrent operations.
    disturbs: ClassVar[bool] = True

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.promise = LogPromise()
        #: Changed sizes of the engine.
        self.sizes = chosen(seed)
        #: The disk, if it is a simulated one.
        self.disk: FaultyStorage | None = None
        self._sent = 0

    def copy(self, promise: LogPromise) -> LogPromise:
        return promise.copy()

    def work(self, disk: FaultyStorage) -> None:
        self.disk = disk
        with small(self.sizes):
            self.run(disk)

    def run(self, disk: FaultyStorage) -> None:
        """Run the plan."""
        log = Log.open(disk.plain, self.config)
        for name in self.plan:
            log = self.do(name, log, self.promise, disk.plain)
        if self.closes:
            log.close()
            self.promise.durable = self.promise.end

    def do(self, name: str, log: Log, promise: LogPromise, directory: Directory) -> Log:
        """Run one operation and return the log to continue with."""
        if name == "any":
            name = self.random.choice([*OPERATIONS, *DISTURBED] if self.disturbs else [*OPERATIONS])
        if name == "reopen":
            log.close()
            promise.durable = promise.end
            return Log.open(directory, self.config)
        log = self.act(name, log, promise)
        self._check_interval(log, promise)
        return log

    def act(self, name: str, log: Log, promise: LogPromise) -> Log:
        """Run one operation, perhaps during another one, and return the log to continue with."""
        return (OPERATIONS.get(name) or DISTURBED[name])(self, log, promise) or log

    def reopened(self, log: Log, promise: LogPromise) -> Log:
        """Reopen a failed log: acknowledged records are there, and the append in progress may be."""
        with suppress(SawlogError):
            log.close()
        log = Log.open(log._access.directory, self.config)
        assert log.recovery, corruption_of(log)
        found = list(log.scan())
        promise.check(found, log.lowest_offset, log.next_offset)
        promise.take_over(found, log)
        return log

    def _check_interval(self, log: Log, promise: LogPromise) -> None:
        """Under an interval, fewer acknowledged bytes than its limit are not durable."""
        policy, appender = log.config.durability, log._access.appender
        if isinstance(policy, Interval) and log._is_writable and appender is not None:
            # Data that the background task has synced during an append counts as durable only later.
            safe = max(promise.durable, appender.durability.synced[0])
            at_risk = sum(_size(row) for at, row in promise.rows.items() if safe <= at < promise.end)
            assert at_risk < policy.bytes, f"{at_risk} bytes are at risk, not less than {policy.bytes}"

    def rows(self, count: int = 1, size: int | None = None, *, keyed: bool = True) -> list[Row]:
        """Make records that were never sent before: small ones, and now and then one of several sectors."""
        made: list[Row] = []
        for _ in range(count):
            self._sent += 1
            body = b"%d:" % self._sent
            length = self.random.choice((0, 30, 90, 700)) if size is None else size
            body += self.random.randbytes(max(0, length - len(body)))
            key = b"k%d" % self.random.randrange(self.keys) if keyed and self.random.random() < 0.8 else None
            headers = (("h", b"v"), ("none", None)) if self.random.random() < 0.2 else ()
            made.append((key, body, OLD_MS + self._sent, headers))
        return made

    # --- after a crash

    def recover(self, disk: FaultyStorage, promise: LogPromise, *, power_cut: bool) -> None:
        with small(self.sizes):
            self.check(disk, promise, power_cut=power_cut)

    def check(self, disk: FaultyStorage, promise: LogPromise, *, power_cut: bool) -> None:
        """Recover, check, and continue."""
        disk.capacity_bytes = None  # somebody has made room
        if power_cut:
            promise.end = promise.durable  # even if the next process dies before it has recovered the log
        chance = random.Random(disk.seed)
        seen = self._read(disk, promise) if chance.random() < 0.5 else None
        log = Log.open(disk.plain, self.config)
        assert log.recovery, corruption_of(log)
        lowest, end, found = log.lowest_offset, log.next_offset, list(log.scan())
        promise.check(found, lowest, end)
        if seen is not None:
            told, *seen_ends = seen[0], seen[1], seen[2]
            # Records that were placed but not visible exist for the writer, and did not for the reader.
            reached = (
                end if told is None else max(told, lowest)
            )  # the start of an empty log moves before it is published
            # Or the open has completed a truncation.
            assert reached <= end or end == promise.cutting, f"readers were told {told}, and the log ends at {end}"
            assert seen_ends == [lowest, reached], f"a reader saw {seen_ends}, and was told {told} of {lowest} to {end}"
            both = [record for record in seen[3] if record.offset < end]
            assert both == [record for record in found if record.offset < reached], "a reader saw something else"
        verified = log.verify()
        assert verified, str(verified)
        self._send_again(log, promise)
        promise.settle(found, lowest, log)
        if chance.random() < 0.25:
            self._open_twice(disk, found)
        if chance.random() < 0.25:
            self._loses_a_file(disk, log, chance)
        self._go_on(log, promise, disk, chance)

    @staticmethod
    def _send_again(log: Log, promise: LogPromise) -> None:
        """Check that a repeated batch of an idempotent producer is recognised."""
        if promise.produced is not None:
            producer, records, placed = promise.produced
            if log.lowest_offset <= placed.start and placed.stop <= log.next_offset and not promise.compacted:
                assert log.append_many(records, producer=producer) == placed, (
                    "a batch that was sent twice is there twice"
                )

    def _read(self, disk: FaultyStorage, promise: LogPromise) -> tuple[int | None, int, int, list[Record]] | None:
        """Read as the next process, before there is a writer again: the published end and the records."""
        before, told = disk.steps, published(disk.plain)
        try:
            reader = Log.open(disk.plain, self.config, mode="r")
        except LogNotFound:
            assert (promise.end, promise.start) == (0, 0), "a reader finds no log"
            return None
        with reader:
            lowest, end, found = reader.lowest_offset, reader.next_offset, list(reader.scan())
            verified = reader.verify()
            assert verified, f"a reader is told of a loss: {verified}"
            assert not missing_ends(reader._segment_set), "the quick check reports a loss"
        promise.check(found, lowest, end)
        assert disk.steps == before, "a reader has written"
        return told, lowest, end, found

    def _loses_a_file(self, disk: FaultyStorage, log: Log, chance: random.Random) -> None:
        """The process dies, and a segment is deleted or cut. Everything was durable and visible, so everyone reports
        it, and no offset is used again."""
        segments = [each for each in log.segments if each.size_bytes and each.next_offset > log.lowest_offset]
        if not segments:
            return
        lost, twin = chance.choice(segments), disk.process_dies()
        name = file_name(lost.base_offset)
        data = twin.plain.read(name)
        if chance.random() < 0.3:
            twin.plain.remove(name)
        else:
            places = [batch.position for batch in batches_of(data)]
            storage = twin.plain.open(name)
            storage.truncate(chance.choice([*places, chance.randrange(lost.size_bytes)]))
            storage.close()
        with Log.open(twin.plain, self.config, mode="r") as reader:
            assert not reader.verify(), f"{name} was lost, and verify reports nothing"
            assert missing_ends(reader._segment_set), f"{name} was lost, and the quick check reports nothing"
            try:
                list(reader.scan())
                raise AssertionError(f"{name} was lost, and a scan passes over it")
            except CorruptBatch:
                pass
        with Log.open(twin.plain, self.config) as again:
            assert again.recovery.corruption, f"{name} was lost, and the next writer reports nothing"
            assert again.next_offset >= log.next_offset, f"offset {again.next_offset} is used again"
            assert not again.verify()
        with Log.open(twin.plain, self.config, mode="r") as reader:
            assert not reader.verify(), f"{name} was lost, and verify has forgotten it"

    def _open_twice(self, disk: FaultyStorage, found: list[Record]) -> None:
        """The process dies right after opening the log; then the log is opened twice more.

        The dead process may have published more than is left, so the next open begins a leader epoch, unless the last
        epoch began at the same end and nothing was published since. The third open therefore never begins one.
        """
        for opened in (2, 3):
            twin = disk.process_dies()
            before = twin.content()
            with_log = Log.open(twin.plain, self.config)
            assert list(with_log.scan()) == found
            assert with_log.recovery.truncated_bytes == 0
            changed = _changed(before, twin.content())
            if opened == 2 and changed:
                assert set(changed) <= {CHECKPOINT, LEADER_EPOCHS}, f"opening it twice has changed {changed}"
                assert with_log._leader_epochs[-1] == (with_log.leader_epoch, with_log.next_offset)
                disk = twin
                continue
            assert not changed, f"opening it {opened} times has changed {changed}"

    def _go_on(self, log: Log, promise: LogPromise, disk: FaultyStorage, chance: random.Random) -> None:
        """Run some more operations as another process."""
        other = type(self)(disk.seed)
        other.disk = disk
        other._sent = 1000 + self._sent
        for name in chance.sample(AFTERWARDS, chance.choice((1, 1, 2))):
            log = other.do(name, log, promise, disk.plain)
        if chance.random() < 0.25:
            log.close()
            promise.durable = promise.end
            Log.open(disk.plain, self.config).close()  # which may take away a segment that lies before the start
            before = disk.content()
            Log.open(disk.plain, self.config).close()
            changed = _changed(before, disk.content())
            assert not changed, f"opening and closing has changed {changed}"


def published(directory: Directory) -> int | None:
    """Return the published end for readers in other processes; None: they see every whole batch."""
    found = open_published(directory, VISIBLE)
    told = None if found is None else found.load()
    return None if told is None else told[0]


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _size(row: Row) -> int:
    """Return the minimum size of a record."""
    key, value, _, headers = row
    return len(key or b"") + len(value or b"") + sum(len(name) + len(each or b"") for name, each in headers)


# --- the operations


def append(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = run.rows()
    promise.send(rows)
    offset = log.append(*given(rows[0]))
    promise.acknowledge(log, range(offset, offset + 1))


def append_expecting(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = run.rows()
    promise.send(rows)
    offset = log.append(*given(rows[0]), expect_offset=promise.end)
    promise.acknowledge(log, range(offset, offset + 1))


def append_many(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = run.rows(run.random.randrange(2, 6), 40)
    promise.send(rows)
    promise.acknowledge(log, log.append_many([given(row) for row in rows]))


def append_arrow(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = [(key, value, timestamp, ()) for key, value, timestamp, _ in run.rows(8, 250)]
    promise.send_loosely(rows)
    table = pa.table(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "timestamp": pa.array([row[2] for row in rows], pa.int64()),
        }
    )
    promise.acknowledge(log, log.append_arrow(table))


def append_batches(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = run.rows(6, 330)
    promise.send_loosely(rows)
    raw = b"".join(encode([given(row)]) for row in rows)
    promise.acknowledge(log, log.append_batches(raw))


def append_stream(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    [(key, value, timestamp, headers)] = rows = run.rows(1, run.random.choice((200, 1000, 1900)))
    promise.send(rows)
    chunks = [value[at : at + 400] for at in range(0, len(value or b""), 400)] if value is not None else []
    with small_blocks():
        offset = log.append_stream(chunks, key, headers=headers, timestamp=timestamp)
    promise.acknowledge(log, range(offset, offset + 1))


def append_stream_async(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    [(key, value, timestamp, headers)] = rows = run.rows(1, 900)
    promise.send(rows)

    async def chunks() -> AsyncIterator[bytes]:
        yield (value or b"")[:400]
        yield (value or b"")[400:]

    offset = asyncio.run(log.append_stream_async(chunks(), key, headers=headers, timestamp=timestamp))
    promise.acknowledge(log, range(offset, offset + 1))


def append_async(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = run.rows(3, 60)
    promise.send_loosely(rows)

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(log.append_async(*given(row)) for row in rows))

    placed = asyncio.run(all_of_them())
    assert placed == list(range(promise.end, promise.end + len(rows)))
    promise.acknowledge(log, range(placed[0], placed[-1] + 1))


def writer(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    rows = run.rows(6, 150)
    promise.send_loosely(rows)
    try:
        with log.writer(batch_bytes=400) as made:
            for row in rows:
                made.append(*given(row))
    except SawlogError:
        if log._is_writable:  # the batches before the one that failed are stored
            promise.end = max(promise.end, log.next_offset)
        raise
    promise.acknowledge(log, range(promise.end, promise.end + len(rows)))


def produce(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Send a batch of an idempotent producer, and send it again."""
    rows = run.rows(2, 60)
    records, producer = [given(row) for row in rows], Producer(promise.end + 1, 0, 0)
    promise.send(rows)
    placed = log.append_many(records, producer=producer)
    promise.acknowledge(log, placed)
    promise.produced = producer, records, placed
    assert log.append_many(records, producer=producer) == placed, "a batch that was sent twice is there twice"


def sync(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    log.sync()
    promise.note(log)
    assert promise.durable == promise.end


def tick(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Run the background tasks: the sync of an interval and the recording of the watermark."""
    with log._hold():
        appender = log._access.appender
    assert appender is not None
    if isinstance(log.config.durability, Interval):
        appender._sync_in_time()
        assert log.durable_offset == log.next_offset or not log._is_writable  # the next append raises the reason
    appender._save_in_time()
    promise.note(log)


def seal(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    log.seal()
    promise.note(log)


def truncate(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.truncate(log, run.random.randrange(promise.start, promise.end + 1))


def truncate_all(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.truncate(log, promise.start)


def trim(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    offset = run.random.randrange(promise.start, promise.end + 1)
    promise.begin_trim(offset)
    log.trim(offset)
    promise.end_trim(log)


def trim_all(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.begin_trim(promise.end)
    log.trim(promise.end)
    promise.end_trim(log)


def trim_but_one(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """To an offset in the active segment, which may not be durable yet."""
    offset = max(promise.start, promise.end - 1)
    promise.begin_trim(offset)
    log.trim(offset)
    promise.end_trim(log)


def expire(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.begin_trim(_expired(log, promise))
    log.remove_expired(1)
    promise.end_trim(log)


def _expired(log: Log, promise: LogPromise) -> int:
    """Return the log start after all old segments expire; a segment without a timestamp and its successors stay."""
    offset = promise.start
    for segment in log._segment_set.all:
        if segment.size and segment.newest_timestamp() < 0:
            break
        offset = max(offset, segment.next_offset)
    return offset


def _retained(log: Log, promise: LogPromise) -> int:
    """Return the log start after `retention_bytes` has been applied."""
    size, offset, keep = log.size_bytes, promise.start, log.config.retention_bytes
    for segment in log.segments[:-1] if keep is not None else ():
        if size - segment.size_bytes < (keep or 0):
            break
        size, offset = size - segment.size_bytes, max(offset, segment.next_offset)
    return offset


def retain(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.begin_trim(_retained(log, promise))
    log.apply_retention()
    promise.end_trim(log)


def delete(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Append tombstones for some keys."""
    rows: list[Row] = [(b"k%d" % run.random.randrange(run.keys), None, OLD_MS, ())]
    promise.send(rows)
    offset = log.append(*given(rows[0]))
    promise.acknowledge(log, range(offset, offset + 1))


def compact(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.compacted = True
    log.compact()
    promise.note(log)


def forget(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Compact twice; the second compaction removes tombstones."""
    promise.compacted = promise.forgotten = True
    log.compact(delete_retention_ms=0)
    promise.note(log)


def merge(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    log._merge_segments()
    promise.note(log)


def recompress(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    log._recompress()
    promise.note(log)


def scrub(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    assert log._scrub().ok
    promise.note(log)


def maintain(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    promise.compacted = True
    promise.begin_trim(_retained(log, promise))
    log.maintain(MaintenanceConfig(compact=True, recompress_after_ms=0, scrub_interval_ms=0, min_dirty_ratio=0.1))
    promise.end_trim(log)


def fill(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Write the initial contents of the log: a few batches, some sealed segments."""
    append_many(run, log, promise)
    append(run, log, promise)
    log.seal()
    promise.note(log)
    append_many(run, log, promise)
    log.seal()
    promise.note(log)
    append_many(run, log, promise)


#: Return the log to continue with, if it is another one.
Operation = Callable[[LogWorkload, Log, LogPromise], Log | None]

#: By name; all of these can follow each other.
OPERATIONS: dict[str, Operation] = {
    each.__name__: each
    for each in (
        append,
        append_expecting,
        append_many,
        append_arrow,
        append_batches,
        append_stream,
        append_stream_async,
        append_async,
        writer,
        produce,
        sync,
        tick,
        seal,
        truncate,
        truncate_all,
        trim,
        trim_all,
        trim_but_one,
        expire,
        retain,
        delete,
        compact,
        forget,
        merge,
        recompress,
        scrub,
        maintain,
        fill,
        append_kept,
        advance,
        aborted_stream,
        aborted_stream_async,
    )
}
#: By name; these need a simulated disk, or change the settings of the log.
DISTURBED: dict[str, Operation] = {
    each.__name__: each
    for each in (
        interrupted_append,
        interrupted_producer,
        interrupted_writer,
        tick_within,
        append_within_maintenance,
        maintenance_within_append,
        hand_back,
    )
}

#: name -> (operations, settings, closed at the end)
_PLANS: dict[str, tuple[Sequence[str], dict[str, Any], bool]] = {
    "appending": (("append", "append_expecting", "append_many", "append", "append", "append"), {}, True),
    "tables": (("append", "append_arrow", "append_arrow"), {}, False),
    "batches": (("append", "append_batches", "append_batches"), {}, False),
    "streams": (("append", "append_stream", "append", "append_stream", "append_stream"), {}, True),
    # Streams that are too long for the rest of their segment.
    "moving_streams": (
        ("append_many", "append_stream", "aborted_stream", "append", "append_stream", "append_stream"),
        {"segment_bytes": 2200, "segment_overflow_bytes": 0},
        True,
    ),
    "asynchronous": (("append_async", "append_stream_async", "append_async"), {}, True),
    "writers": (("writer", "append", "writer"), {}, False),
    "producers": (("produce", "append", "produce", "seal", "produce", "reopen", "produce"), {}, False),
    "rotation": (("append_batches", "seal", "append", "seal", "append_many"), {"segment_bytes": 800}, True),
    "truncation": (("fill", "truncate", "append", "truncate", "append_many", "truncate_all", "append"), {}, False),
    "trimming": (
        ("fill", "trim", "append", "trim_but_one", "append", "trim", "append", "trim_all", "append"),
        {},
        False,
    ),
    "expiry": (("fill", "expire", "append", "seal", "append", "expire"), {}, True),
    "retention": (("fill", "fill", "retain", "append", "retain"), {"retention_bytes": 900}, False),
    # With room for all of it, so that most of the batches are placed in one call of the kernel, if they are in files.
    "growing": (
        (*["append"] * 6, "append_many", "append_stream", "sync", "append", "writer", "append", "truncate", "append"),
        {"segment_bytes": 30_000},
        False,
    ),
    "syncing": (("append", "sync", "append_many", "tick", "append", "append", "sync"), {}, False),
    "reopening": (("append", "reopen", "append_many", "reopen", "seal", "append", "reopen", "append"), {}, True),
    "compaction": (("fill", "fill", "seal", "compact", "delete", "seal", "forget", "forget", "append"), {}, False),
    "merging": (("fill", "fill", "merge", "append", "fill", "merge"), {}, True),
    "recompression": (("fill", "fill", "seal", "recompress", "append"), {"compression": "lz4"}, False),
    "scrubbing": (("fill", "scrub", "append", "scrub"), {}, True),
    "maintaining": (("fill", "fill", "fill", "maintain", "append", "maintain"), {"retention_bytes": 2500}, True),
    "keeping": (
        ("append_kept", "append", "append_kept", "seal", "truncate", "append_kept", "trim", "append_kept"),
        {},
        False,
    ),
    "advancing": (
        ("advance", "append", "advance", "append_kept", "truncate", "trim_all", "advance", "append"),
        {},
        True,
    ),
    "aborting": (
        ("append", "aborted_stream", "reopen", "aborted_stream_async", "append", "aborted_stream", "reopen", "append"),
        {},
        True,
    ),
    "interrupted": (("append", *["interrupted_append"] * 5, "append"), {}, False),
    "interrupted_twice": (
        ("interrupted_producer", "interrupted_writer", "seal", "interrupted_writer", "interrupted_producer"),
        {},
        True,
    ),
    "ticking": (("append", *["tick_within"] * 6), {}, False),
    "beside_maintenance": (
        ("fill", "fill", "append_within_maintenance", "maintenance_within_append", "fill", "append_within_maintenance"),
        {},
        False,
    ),
    "handing_back": (
        ("append", "hand_back", "append_many", "hand_back", "hand_back", "truncate", "append", "hand_back"),
        {},
        False,
    ),
    "mixed": (("fill", *["any"] * 8), {}, False),
    "mixed_and_closed": (("any", *["any"] * 8), {"max_mapped_segments": 1}, True),
}


def _made(name: str, durability: str) -> type[LogWorkload]:
    plan, settings, closes = _PLANS[name]
    config = CONFIG.with_(durability=DURABILITIES[durability], **settings)
    fields = {"plan": plan, "config": config, "closes": closes, "__module__": __name__}
    return type(f"{name}_{durability}", (LogWorkload,), fields)


#: By the name they have on the command line: `tests.faults.workloads:NAME`.
LOGS: dict[str, type[Workload]] = {
    made.__name__: made for name in _PLANS for durability in DURABILITIES for made in [_made(name, durability)]
}


class removal(LogWorkload):
    """Remove the log with all its files. An interrupted removal promises nothing, but the log can be opened and
    written."""

    plan = ("fill",)

    def run(self, disk: FaultyStorage) -> None:
        log = Log.open(disk.plain, self.config)
        self.do("fill", log, self.promise, disk.plain)
        self.promise.removed = True
        log.remove()
        assert disk.content() == {}

    def check(self, disk: FaultyStorage, promise: LogPromise, *, power_cut: bool) -> None:
        if not promise.removed:
            super().check(disk, promise, power_cut=power_cut)
            return
        for _ in range(2):
            with Log.open(disk.plain, self.config) as log:
                offset = log.append(b"new")
                assert log.read(offset).value == b"new"


class _Failing(LogWorkload):
    """Some call to the disk fails during the work: once or forever, an fsync or a write, or the disk is full. The
    outcome that the log reported for each operation is true, then and after a crash; a failed log is opened again."""

    plan = ("fill", *["any"] * 7)
    #: An error that is raised inside of another operation would have to be told apart from that operation's own.
    disturbs = False

    def run(self, disk: FaultyStorage) -> None:
        self._break(disk)
        log = self._open(disk)
        for name in self.plan:
            try:
                log = self.do(name, log, self.promise, disk)
            except SawlogError:
                log = self._go_on_after(log, disk)
        with suppress(SawlogError):  # with suppress(SawlogError):  # a log that is not closed cleanly is recovered
            log.close()

    def _break(self, disk: FaultyStorage) -> None:
        if self.random.random() < 0.2:
            disk.capacity_bytes = self.random.randrange(2000, 9000)
            return
        what = self.random.choice((None, {"sync"}, {"append"}, {"replace"}, {"create", "rename", "remove"}))
        fault = Fault(
            self.random.randrange(1, 60 if what is None else 15),
            self.random.choice((errno.EIO, errno.ENOSPC)),
            WRITING if what is None else what,
            forever=self.random.random() < 0.5,
            effect=self.random.choice(("nothing", "part", "all")),
            undo=self.random.random() < 0.7,
        )
        disk.arm(fault)

    def _open(self, disk: FaultyStorage) -> Log:
        try:
            return Log.open(disk, self.config)
        except SawlogError:
            disk.disarm()
            disk.capacity_bytes = None
            return Log.open(disk, self.config)

    def _go_on_after(self, log: Log, disk: FaultyStorage) -> Log:
        promise = self.promise
        if not log._is_writable or disk.capacity_bytes is not None:
            disk.disarm()
            disk.capacity_bytes = None
            with suppress(SawlogError):
                log.close()
            log = Log.open(disk, self.config)
            assert log.recovery, corruption_of(log)
        else:
            promise.refuse()
        found = list(log.scan())
        promise.check(found, log.lowest_offset, log.visible_offset)
        assert log.visible_offset == log.next_offset, "the log goes on, and does not show all of it"
        promise.take_over(found, log)
        assert log.verify(), str(log.verify())
        return log


for _durability, _policy in DURABILITIES.items():
    _name = f"failing_{_durability}"
    _fields = {"config": CONFIG.with_(durability=_policy), "__module__": __name__}
    LOGS[_name] = type(_name, (_Failing,), _fields)

LOGS["removal"] = removal
globals().update(LOGS)
