"""Many threads and tasks at once: every offset is acknowledged once, in order, and no thread waits forever."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sawlog import Log, LogConfig, Record, Writer
from sawlog.errors import LogClosed, LogFailed, OffsetOutOfRange
from sawlog.log import durability as group_commit
from sawlog.log.durability import Durability
from sawlog.log.segments import SegmentSet
from sawlog.storage import MemoryDirectory
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ...processes import content

PATIENCE_S = 60.0


@contextmanager
def eager_switching() -> Iterator[None]:
    """Switch threads as often as the interpreter can, to provoke races."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_all(*bodies: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Run each in a thread; raise the first error of any; fail, with all stacks, if one does not come back."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.1))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(all_threads=True)
        pytest.fail("a thread hangs; its stack is above")
    if errors:
        raise errors[0]


# --- group commit


def test_sixteen_threads_get_each_offset_once_and_share_fsyncs() -> None:
    directory = FaultyDirectory(MemoryDirectory())

    def slow_disk(call: Call) -> None:
        if call.operation == "sync" and call.name.endswith(".log"):
            time.sleep(0.001)  # without it a sync in memory is over before another thread can join it

    directory.before = slow_disk
    log = Log.open(directory, LogConfig(segment_bytes=20_000))
    got: dict[int, list[int]] = {}
    each = 40

    def append(thread: int) -> None:
        offsets = got[thread] = []
        for number in range(each):
            offset = log.append(content.make(f"{thread}.{number}"))
            assert log.durable_offset > offset
            offsets.append(offset)

    with eager_switching():
        run_all(*(lambda thread=thread: append(thread) for thread in range(16)))
    assert sorted(itertools.chain(*got.values())) == list(range(16 * each))
    for thread, offsets in got.items():
        assert offsets == sorted(offsets)
        for number, offset in enumerate(offsets):
            assert content.name_of(log.read(offset).value) == f"{thread}.{number}"
    syncs = sum(call.operation == "sync" and call.name.endswith(".log") for call in directory.calls)
    assert syncs < 16 * each / 2
    assert log.verify()
    log.close()


class Gates:
    """Stands in for `threading.Lock` in group commit, so that a test can act at the moment of a wait or a wake-up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self.on_release: Callable[[], None] = lambda: None
        made, gates = threading.Lock, self

        class Gate:
            def __init__(self) -> None:
                self.inner = made()
                self.taken = False

            def acquire(self) -> bool:
                if self.taken:
                    gates.on_wait()
                self.taken = True
                return self.inner.acquire()

            def release(self) -> None:
                gates.on_release()
                self.inner.release()

            def __enter__(self) -> bool:
                return self.inner.acquire()

            def __exit__(self, *_: object) -> None:
                self.inner.release()

        monkeypatch.setattr(group_commit, "threading", SimpleNamespace(Lock=Gate))


def durability(sync: Callable[[], int]) -> Durability:
    """The durability of a log of which nothing is durable yet."""
    directory = MemoryDirectory()
    made = Durability(directory, SegmentSet(directory, LogConfig()), (0, 0, 0), sync, publishes_written=True)
    made.written = 100, 0, 0
    return made


def slow_commit(*reached: int) -> tuple[Durability, threading.Event, threading.Thread]:
    """A group commit whose first sync runs in a thread until the event is set; then it has reached these offsets."""
    inside, go = threading.Event(), threading.Event()
    answers = iter(reached)

    def sync() -> int:
        inside.set()
        assert go.wait(PATIENCE_S)
        return next(answers)

    commit = durability(sync)
    leader = threading.Thread(target=commit.ensure_durable, args=(1,), daemon=True)
    leader.start()
    assert inside.wait(PATIENCE_S)
    return commit, go, leader


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_waiting_thread_that_is_interrupted_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the main thread while it waits for another's sync: the next one is led by somebody alive."""
    commit, go, leader = slow_commit(1, 10)
    with monkeypatch.context() as patch:
        Gates(patch).on_wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            commit.ensure_durable(2)
    go.set()
    run_all(leader.join, lambda: commit.ensure_durable(3), patience_s=10)
    assert commit.durable_offset == 10


def test_a_leader_who_is_served_meanwhile_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between being chosen to lead and waking up, a rotation makes the chosen one's records durable."""
    commit, go, leader = slow_commit(1, 10)
    gates = Gates(monkeypatch)
    chosen, other = (threading.Thread(target=commit.ensure_durable, args=(offset,), daemon=True) for offset in (2, 3))
    waiting = threading.Semaphore(0)
    gates.on_wait = waiting.release
    for thread in (chosen, other):
        thread.start()
        assert waiting.acquire(timeout=PATIENCE_S)
    gates.on_release = lambda: commit.mark_durable(2)
    go.set()
    run_all(leader.join, chosen.join, other.join, patience_s=10)
    assert commit.durable_offset == 10


def test_a_sync_that_succeeds_while_somebody_else_fails_the_log_is_a_success() -> None:
    commit = durability(lambda: commit.fail(OSError("a torn write of another thread")) or 5)
    commit.ensure_durable(5)
    assert commit.durable_offset == 5
    with pytest.raises(LogFailed):
        commit.ensure_durable(6)


# --- writers


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_threads_that_share_a_writer_lose_nothing(compression: str) -> None:
    log = Log.in_memory(LogConfig(durability="os", compression=compression))
    writer = log.writer(batch_bytes=2000)
    each = 5000

    def append(thread: int) -> None:
        for number in range(each):
            writer.append(b"%d.%d" % (thread, number))

    with eager_switching():
        run_all(*(lambda thread=thread: append(thread) for thread in range(4)))
    writer.close()
    found = [(record.value or b"").decode().split(".") for record in log.scan()]
    assert len(found) == 4 * each
    for thread in range(4):
        assert [int(number) for name, number in found if int(name) == thread] == list(range(each))


def test_a_lingering_writer_and_threads_lose_nothing() -> None:
    log = Log.in_memory(LogConfig(durability="os"))
    writer = log.writer(batch_bytes=1 << 20, linger_ms=0.5)
    each = 10_000

    def append(thread: int) -> None:
        for number in range(each):
            writer.append(b"%d.%d" % (thread, number))

    def flush() -> None:
        for _ in range(200):
            writer.flush()

    with eager_switching():
        run_all(*(lambda thread=thread: append(thread) for thread in range(3)), flush)
    writer.close()
    assert Counter((record.value or b"").split(b".")[0] for record in log.scan()) == dict.fromkeys(
        [b"0", b"1", b"2"], each
    )


def test_a_flush_reports_what_the_background_could_not_sync() -> None:
    """The batch was placed by the clock, and its fsync failed: nobody but the next flush can tell the caller."""
    directory = FaultyDirectory(MemoryDirectory())
    log = Log.open(directory, LogConfig(checkpoint_interval_ms=3_600_000))
    writer = log.writer(linger_ms=1)
    directory.arm(Fault(operations={"sync"}, names="*.log"))
    writer.append(b"x")
    for _ in range(3000):
        if not log._is_writable:
            break
        time.sleep(0.01)
    with pytest.raises(LogFailed):
        writer.flush()
    with pytest.raises(LogFailed):
        writer.close()
    assert log.durable_offset == 0
    log.close()


def test_a_flush_waits_for_the_sync_of_another_thread() -> None:
    directory = FaultyDirectory(MemoryDirectory())
    log = Log.open(directory)
    inside, go = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        if call.operation == "sync" and call.name.endswith(".log"):
            inside.set()
            assert go.wait(PATIENCE_S)

    directory.before = hold
    writer = log.writer(batch_bytes=100)
    durable: list[int] = []

    def fill() -> None:
        writer.append(bytes(200))  # places the batch and waits for its sync

    def flush() -> None:
        writer.flush()
        durable.append(log.durable_offset)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    assert inside.wait(PATIENCE_S)
    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    flushing.join(0.1)  # time for a flush that does not wait to come back
    go.set()
    run_all(filling.join, flushing.join)
    assert durable == [1]
    log.close()


def test_a_closed_writer_accepts_no_records_even_through_a_kept_method() -> None:
    log = Log.in_memory()
    writer = log.writer()
    append = writer.append
    append(b"one")
    writer.close()
    for refused in (append, writer.append):
        with pytest.raises(LogClosed):
            refused(b"two")
    assert len(log) == 1


def test_what_threads_handed_to_a_writer_that_is_closed_meanwhile_is_stored_or_refused() -> None:
    for _ in range(20):
        log = Log.in_memory(LogConfig(durability="os"))
        writer = log.writer(batch_bytes=300)
        taken: Counter[int] = Counter()

        def append(thread: int, taken: Counter[int] = taken, append: Callable[[bytes], None] = writer.append) -> None:
            try:
                while True:
                    append(b"x")
                    taken[thread] += 1
            except LogClosed:
                return

        def close(writer: Writer = writer, taken: Counter[int] = taken) -> None:
            while taken.total() < 200:
                time.sleep(0)
            writer.close()

        with eager_switching():
            run_all(lambda append=append: append(0), lambda append=append: append(1), close)  # type: ignore[misc]
        # A record that its thread was interrupted in may be stored although the call has said that it was closed.
        assert taken.total() <= len(log) <= taken.total() + 2


# --- tasks


def test_256_tasks_append_durably() -> None:
    directory = FaultyDirectory(MemoryDirectory())
    log = Log.open(directory)

    async def all_of_them() -> list[list[int]]:
        async def one(task: int) -> list[int]:
            found = []
            for number in range(4):
                offset = await log.append_async(content.make(f"{task}.{number}"))
                assert log.durable_offset > offset
                found.append(offset)
            return found

        return await asyncio.gather(*map(one, range(256)))

    found = asyncio.run(asyncio.wait_for(all_of_them(), PATIENCE_S))
    assert sorted(itertools.chain(*found)) == list(range(1024))
    for task, offsets in enumerate(found):
        assert [content.name_of(log.read(offset).value) for offset in offsets] == [f"{task}.{n}" for n in range(4)]
    assert sum(call.operation == "sync" and call.name.endswith(".log") for call in directory.calls) < 256
    log.close()


def test_tasks_whose_records_do_not_fit_into_one_batch_together_are_all_served() -> None:
    log = Log.in_memory(LogConfig(segment_bytes=65_536))

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(log.append_async(content.make(str(n), 5000)) for n in range(256)))

    found = asyncio.run(asyncio.wait_for(all_of_them(), PATIENCE_S))
    assert sorted(found) == list(range(256))
    assert [content.name_of(log.read(offset).value) for offset in found] == [str(n) for n in range(256)]


def test_tasks_that_wait_when_the_log_is_closed_get_an_answer() -> None:
    log = Log.in_memory()

    async def close_in_the_middle() -> list[int | BaseException]:
        first = [asyncio.ensure_future(log.append_async(b"x")) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = [asyncio.ensure_future(log.append_async(b"y")) for _ in range(10)]
        await asyncio.sleep(0)
        log.close()
        _, waiting = await asyncio.wait([*first, *second], timeout=60)
        assert not waiting, f"{len(waiting)} tasks wait for ever"
        return await asyncio.gather(*first, *second, return_exceptions=True)

    for outcome in asyncio.run(close_in_the_middle()):
        assert isinstance(outcome, (int, LogClosed)), outcome


def test_event_loops_that_are_gone_leave_no_thread_behind() -> None:
    log = Log.in_memory()
    asyncio.run(log.append_async(b"x"))
    before = threading.active_count()
    for _ in range(5):
        asyncio.run(log.append_async(b"x"))
    assert threading.active_count() <= before + 1
    log.close()


def test_a_cancelled_task_does_not_disturb_the_others() -> None:
    log = Log.in_memory()

    async def cancel_some() -> list[int | BaseException]:
        tasks = [asyncio.ensure_future(log.append_async(content.make(str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)

    found = asyncio.run(cancel_some())
    for number, outcome in enumerate(found):  # too late to be cancelled: the offset comes first
        assert isinstance(outcome, int)
        assert content.name_of(log.read(outcome).value) == str(number)
    assert len(log) == 20


# --- iterators


def long_log(path: Path, **settings: object) -> tuple[Log, int]:
    """Three sealed segments and an active one, each with more batches than a scan takes at a time."""
    config = LogConfig(durability="os", segment_bytes=1 << 20, index_interval_bytes=4096)
    log = Log.open(path, config.with_(**settings))
    with log.writer(batch_bytes=512) as writer:
        while len(log.segments) < 4 or log.segments[-1].size_bytes < 900_000:
            writer.append(bytes(400))
    assert len(log.segments) == 4
    return log, log.next_offset


@pytest.mark.sampled(1)  # 0.3 s each
@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_scan_survives_that_its_segment_is_let_go(tmp_path: Path, most: int) -> None:
    log, end = long_log(tmp_path, max_mapped_segments=most)
    scans = [log.scan(), log.scan()]
    arrow = log.scan_arrow(batch_rows=100)
    found: list[list[int]] = [[], []]
    for start in range(0, end, 97):
        for scan, offsets in zip(scans, found, strict=True):
            offsets.extend(record.offset for record in itertools.islice(scan, 97))
        next(arrow, None)
        log.read(random.Random(start).randrange(end))
    assert found == [list(range(end)), list(range(end))]
    log.close()


def test_a_scan_survives_that_its_segment_is_sealed(tmp_path: Path) -> None:
    log, end = long_log(tmp_path)
    scan = log.scan(log.segments[-1].base_offset)
    first = next(scan).offset
    log.seal()
    log.append(b"x")
    assert [record.offset for record in scan] == list(range(first + 1, end))
    log.close()


@pytest.mark.alternating
@pytest.mark.parametrize("number", [1, 3], ids=["sealed", "active"])
def test_a_scan_survives_that_the_end_behind_it_is_cut(tmp_path: Path, number: int) -> None:
    log, _ = long_log(tmp_path)
    base, end = log.segments[number].base_offset, log.segments[number].next_offset - 100
    scan, arrow = log.scan(base, end), log.scan_arrow(base, end, batch_rows=10)
    next(scan)
    rows = next(arrow).num_rows
    log.truncate(end + 50)
    log.append_many([b"others"] * 100)
    assert [record.offset for record in scan] == list(range(base + 1, end))
    assert rows + sum(batch.num_rows for batch in arrow) == end - base
    log.close()


def test_a_scan_past_a_cut_says_that_the_records_are_gone(tmp_path: Path) -> None:
    log, _ = long_log(tmp_path)
    scan = log.scan()
    next(scan)
    log.truncate(10)
    with pytest.raises(OffsetOutOfRange):
        list(scan)
    log.close()


def test_a_scan_over_a_cut_that_was_filled_again() -> None:
    """Nothing is damaged: it continues with what stands there now, and ends where nothing does."""
    log = Log.in_memory()
    for number in range(100):
        log.append(b"old %d" % number)
    scan = log.scan()
    log.truncate(50)
    seen = [next(scan)]
    log.append_many([b"new %d" % number for number in range(50, 60)])
    with pytest.raises(OffsetOutOfRange):
        seen.extend(scan)
    kinds = [b"old"] * 50 + [b"new"] * 10
    assert [record.value for record in seen] == [b"%b %d" % (kind, number) for number, kind in enumerate(kinds)]


def test_a_scan_that_was_overtaken_by_a_trim_says_so(tmp_path: Path) -> None:
    log, _ = long_log(tmp_path)
    scan = log.scan()
    seen = [next(scan).offset]
    log.trim(log.segments[-1].base_offset)
    with pytest.raises(OffsetOutOfRange):
        seen.extend(record.offset for record in scan)
    assert seen == list(range(len(seen)))
    assert log.verify()
    log.close()


def test_a_scan_ahead_of_a_trim_does_not_notice_it(tmp_path: Path) -> None:
    log, end = long_log(tmp_path)
    start = log.segments[2].base_offset
    scan = log.scan(start)
    next(scan)
    log.trim(start)
    assert [record.offset for record in scan] == list(range(start + 1, end))
    log.close()


# --- everything at once


class Load:
    """All kinds of appends, reads and changes of one log, each as a call that checks its result."""

    WRITING = ("append", "append_many", "append_arrow", "append_stream", "write")
    CHANGING = ("truncate", "trim", "seal")
    REQUIRED = (*WRITING, *CHANGING, "verify", "read")
    #: Number of successful calls of each required kind.
    ROUNDS = 10

    def __init__(self, log: Log) -> None:
        self.log = log
        self.numbers = itertools.count()
        self.done: Counter[str] = Counter()

    def value(self) -> bytes:
        number = next(self.numbers)
        return content.make(str(number), number % 700)

    def append(self) -> None:
        self.log.append(self.value())

    def append_many(self) -> None:
        self.log.append_many([self.value() for _ in range(20)])

    def append_arrow(self) -> None:
        self.log.append_arrow(pa.table({"value": pa.array([self.value() for _ in range(100)], pa.binary())}))

    def append_stream(self) -> None:
        made = self.value()
        self.log.append_stream([made[:10], made[10:]])

    def write(self) -> None:
        with self.log.writer(batch_bytes=1000) as writer:
            for _ in range(30):
                writer.append(self.value())

    @staticmethod
    def check(records: Iterator[Record]) -> None:
        expected = None
        for record in records:
            assert expected in (None, record.offset)
            content.name_of(record.value)
            expected = record.offset + 1

    def scan(self) -> None:
        self.check(self.log.scan())

    def scan_arrow(self) -> None:
        for batch in self.log.scan_arrow(batch_rows=50):
            for each in batch.column("value").to_pylist():
                content.name_of(each)

    def follow(self) -> None:
        self.check(itertools.islice(self.log.follow(timeout=0.01), 500))

    def read(self) -> None:
        content.name_of(self.log.read(random.randrange(self.log.lowest_offset, self.log.next_offset + 1)).value)

    def verify(self) -> None:
        report = self.log.verify()
        assert report, str(report)

    def truncate(self) -> None:
        self.log.truncate(max(self.log.next_offset - random.randrange(40), self.log.lowest_offset))

    def trim(self) -> None:
        self.log.trim(max(self.log.next_offset - 1000, self.log.lowest_offset))

    def seal(self) -> None:
        self.log.seal()

    def again(self, name: str, pause_s: float = 0.0) -> Callable[[], None]:
        """One of them over and over, until all of `REQUIRED` have succeeded often enough."""

        def loop() -> None:
            while any(self.done[each] < self.ROUNDS for each in self.REQUIRED):
                try:
                    getattr(self, name)()
                    self.done[name] += 1
                except OffsetOutOfRange:
                    self.done[f"{name} out of range"] += 1
                time.sleep(pause_s)

        return loop


@pytest.mark.costly  # fourteen threads
@pytest.mark.parametrize("most", [1, pytest.param(128, marks=pytest.mark.slow)])
def test_everything_at_once_without_a_deadlock(tmp_path: Path, most: int) -> None:
    config = LogConfig(segment_bytes=30_000, max_mapped_segments=most, index_interval_bytes=512)
    log = Log.open(tmp_path, config.with_(checkpoint_interval_ms=20))
    load = Load(log)
    unhindered = ["append", *load.WRITING, "scan", "scan_arrow", "follow", "read", "verify"]
    with eager_switching():
        run_all(
            *(load.again(name) for name in unhindered),
            *(load.again(name, pause_s=0.02) for name in load.CHANGING),
        )
    assert log.verify()
    assert log.durable_offset == log.next_offset
    kept = [(record.offset, record.value) for record in log.scan()]
    log.close()
    with Log.open(tmp_path, config) as log:
        assert log.recovery.clean
        assert log.verify()
        assert [(record.offset, record.value) for record in log.scan()] == kept
