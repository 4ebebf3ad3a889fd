"""The visible end: readers see a record as soon as it is safe, and never before.

    durable_offset <= visible_offset <= written_offset <= next_offset

The tests stop the disk during a sync, look at half-finished appends, and kill writers between a write and its sync.
Readers in the writer's process, in a second `Log` and in another process must agree.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sawlog
from sawlog import JSON, Interval, Log, LogConfig, clock
from sawlog.batch.build import encode
from sawlog.batch.header import scan
from sawlog.errors import CorruptBatch, NotYetVisible, OffsetOutOfRange, StorageFull
from sawlog.log import durability, ingest
from sawlog.log.durability import Durability
from sawlog.log.epochs import Epochs
from sawlog.log.segments import SegmentSet
from sawlog.storage import FileDirectory, MemoryDirectory
from sawlog.storage import file as file_module
from sawlog.storage import published as published_module
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ...faults.disk import FaultyStorage
from ...storage.elsewhere import Elsewhere
from ..places import Place, fill, named, values
from .test_keeping import foreign

PATIENCE_S = 60.0
QUIET = LogConfig(checkpoint_interval_ms=3_600_000, segment_age_ms=None)
LAZY = [Interval(ms=3_600_000, bytes=1 << 40), "os"]
POLICIES = ["always", *LAZY]
POLICY_IDS = ["always", "interval", "os"]
T = 1_700_000_000_000


class Gate:
    """Blocks syncs of segments while it is shut."""

    def __init__(self, directory: FaultyDirectory) -> None:
        self.shut = False
        self.inside, self._go = threading.Event(), threading.Event()
        directory.before = self._hold

    def _hold(self, call: Call) -> None:
        if self.shut and call.operation == "sync" and call.name.endswith(".log"):
            self.inside.set()
            assert self._go.wait(PATIENCE_S)

    def open(self) -> None:
        self.shut = False
        self._go.set()


@contextmanager
def held(gate: Gate, call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Make a call in a thread that has written and waits for the disk during the block. Yields a list that has the
    result of the call after the block."""
    gate.shut = True
    gate.inside.clear()
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(call()))
    thread.start()
    try:
        assert gate.inside.wait(PATIENCE_S)
        yield given
        assert given == [], "the call returned before the disk had answered"
    finally:
        gate.open()
        thread.join(PATIENCE_S)
    assert len(given) == 1, "the call failed"


@pytest.fixture(params=["files", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultyDirectory]:
    made = FaultyDirectory(FileDirectory(tmp_path / "log") if request.param == "files" else MemoryDirectory())
    yield made
    made.inner.close()


def second(directory: FaultyDirectory, mode: Any = "r") -> Log:
    """Return another `Log` over the same directory, as another process would open it. It does not own the directory."""
    inner = directory.inner
    return Log.open(FileDirectory(inner.path) if isinstance(inner, FileDirectory) else inner, QUIET, mode=mode)


def ends(log: Log) -> tuple[int, int, int, int]:
    return log.durable_offset, log.visible_offset, log.written_offset, log.next_offset


def shows(log: Log, end: int) -> None:
    """Check that every way to read ends at `end` and returns all records below it. Record i has the timestamp T + i."""
    offsets = list(range(log.lowest_offset, end))
    assert log.visible_offset == end
    assert len(log) == len(offsets)
    assert [record.offset for record in log.scan()] == offsets
    assert [record.offset for record in log] == offsets
    assert [record.offset for record in log[:]] == offsets
    assert [record.offset for record in log.follow(timeout=0)] == offsets
    assert [record.offset for cursor in log._cursors() for record in cursor] == offsets
    assert sum(batch.num_rows for batch in log.scan_arrow()) == len(offsets)
    assert log.offset_at(T + end) == log.offset_at(T + end + 1000) == end
    fetched = log.fetch(log.lowest_offset, 1 << 30)
    assert (fetched.next_offset, [batch.last_offset for batch in scan(fetched.raw)][-1:]) == (end, offsets[-1:])
    assert (log.fetch(end).buffers, log.fetch(end).next_offset) == ((), end)
    if offsets:
        assert log[-1].offset == log.read(end - 1).offset == end - 1
    for call in (lambda: log.read(end), lambda: log[end], lambda: log.scan(end + 1), lambda: log.fetch(end + 1)):
        with pytest.raises(OffsetOutOfRange) as caught:
            call()
        assert caught.value.next == end
    if log._access.appender is None:
        assert (log.next_offset, log.written_offset) == (end, end)


def stamped(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.append(b"value", timestamp=T + log.next_offset)


# --- the invariant


@pytest.mark.sampled(2)  # 0.1 s each
@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_the_four_ends_are_in_order_while_threads_append_sync_and_truncate(place: Place, policy: Any) -> None:
    log = place.open(QUIET.with_(durability=policy, segment_bytes=3000))
    appender, wrong, ended = log._access.appender, [], threading.Event()
    assert appender is not None

    def watch() -> None:
        try:
            while not ended.is_set():
                found = appender.durability.consistent_ends()
                assert found[0] <= found[1] <= found[2] <= found[3]
                with suppress(OffsetOutOfRange):  # truncated between the two calls
                    assert log.read(log.visible_offset - 1) is not None
        except BaseException as error:
            wrong.append(error)

    def append() -> None:
        try:
            for number in range(60):
                log.append_many([b"x" * 20] * 3)
                if number % 20 == 0:
                    log.sync()
        except BaseException as error:
            wrong.append(error)

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=append) for _ in range(3)]
    watcher.start()
    for writer in writers:
        writer.start()
    for _ in range(10):
        with suppress(OffsetOutOfRange):
            log.truncate(max(log.next_offset - 4, 0))
    for writer in writers:
        writer.join(PATIENCE_S)
    ended.set()
    watcher.join(PATIENCE_S)
    assert wrong == []
    log.sync()
    assert len(set(ends(log))) == 1


def test_an_end_that_is_out_of_order_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties check the order; they do not hide a violation by returning a minimum."""
    monkeypatch.setattr(durability, "_READ_ATTEMPTS", 3)
    log = place.open(QUIET)
    fill(log, 3)
    appender = log._access.appender
    assert appender is not None
    assert log.durable_offset == 3
    for broken, sound in (((4, 3), (3, 3)), ((3, 2), (3, 3)), ((3, 4), (3, 3))):
        appender.durability.durable_offset, log._access.segments.visible_offset = broken
        with pytest.raises(AssertionError, match="out of order"):
            _ = log.durable_offset
        appender.durability.durable_offset, log._access.segments.visible_offset = sound
        assert log.durable_offset == 3
    with pytest.raises(AssertionError, match="only 3 is written"):
        appender.durability.mark_durable(4)
    appender.durability.durable_offset = 3


# --- a sync that is held


@pytest.mark.parametrize("mode", ["w", "r", "a"])
def test_no_reader_sees_a_record_that_is_not_durable(directory: FaultyDirectory, mode: Any) -> None:
    gate = Gate(directory)
    writer = Log.open(directory, QUIET)
    stamped(writer, 3)
    reader = writer if mode == "w" else second(directory, mode)
    shows(reader, 3)
    with held(gate, lambda: writer.append(b"value", timestamp=T + 3)):
        assert ends(writer) == (3, 3, 4, 4)
        shows(reader, 3)
        if mode != "w":
            with second(directory, mode) as late:
                shows(late, 3)
    assert ends(writer) == (4, 4, 4, 4)
    shows(reader, 4)
    reader.close()
    writer.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda log, offset: log.read(offset),
        lambda log, offset: log.read(offset, isolation="uncommitted"),
        lambda log, offset: log[offset],
        lambda log, offset: log.typed(JSON()).read(offset),
        lambda log, offset: log.scan(offset + 1),
        lambda log, offset: log.fetch(offset + 1),
    ],
    ids=["read", "uncommitted", "index", "typed", "scan", "fetch"],
)
def test_a_record_that_is_written_but_not_durable_is_not_called_out_of_range(
    directory: FaultyDirectory, read: Callable[[Log, int], Any]
) -> None:
    with Log.open(directory, QUIET) as log:
        stamped(log, 2)
        log.append_batches(encode([(b"{}", None, (), T)] * 2), wait=False)
        with pytest.raises(NotYetVisible, match=r"written but not durable yet, .* call sync\(\)") as caught:
            read(log, 2)
        assert (caught.value.lowest_offset, caught.value.next_offset, caught.value.in_transaction) == (0, 2, False)
        assert 2 not in log
        for outside in (-1, 4):
            with pytest.raises(OffsetOutOfRange) as beyond:
                log.read(outside)
            assert type(beyond.value) is OffsetOutOfRange
        log.sync()
        read(log, 2)


def test_a_record_that_is_not_durable_is_not_called_out_of_range_in_a_store(tmp_path: Path) -> None:
    with sawlog.open(tmp_path / "data") as store:
        log = store.create_topic("orders").partition(0)
        log.append_batches(encode([(b"one", None, (), T)]), wait=False)
        with pytest.raises(NotYetVisible):
            log.read(0)
        log.sync()
        assert log.read(0).value == b"one"


def test_no_other_process_sees_a_record_that_is_not_durable(tmp_path: Path) -> None:
    directory = FaultyDirectory(FileDirectory(tmp_path / "log"))
    gate = Gate(directory)
    writer = Log.open(directory, QUIET)
    stamped(writer, 3)
    with Elsewhere(tmp_path / "log") as other:
        other.tell(
            "from sawlog import clock, Log; from sawlog.errors import OffsetOutOfRange; log = Log.open(place, mode='r')"
        )
        other.tell(
            "def seen(log):\n"
            "    try: log.read(3); read = True\n"
            "    except OffsetOutOfRange: read = False\n"
            "    return (len(log), log[-1].offset, read, len(list(log.scan())), len(list(log.follow(timeout=0))),\n"
            "        sum(batch.num_rows for batch in log.scan_arrow()), log.fetch(0).next_offset,\n"
            f"       log.offset_at({T + 9}), log.next_offset)"
        )
        before, after = (3, 2, False, 3, 3, 3, 3, 3, 3), (4, 3, True, 4, 4, 4, 4, 4, 4)
        assert other.tell("seen(log)") == before
        with held(gate, lambda: writer.append(b"value", timestamp=T + 3)):
            assert other.tell("seen(log)") == before
            assert other.tell("seen(Log.open(place, mode='r'))") == before
        assert other.tell("seen(log)") == after
        assert other.tell("seen(Log.open(place, mode='r'))") == after
    writer.close()
    directory.inner.close()


@pytest.mark.parametrize("policy", LAZY, ids=POLICY_IDS[1:])
def test_under_a_lazy_policy_what_is_written_is_seen_at_once(directory: FaultyDirectory, policy: Any) -> None:
    """A lazy policy asks for that, even while a sync is slow."""
    gate = Gate(directory)
    writer = Log.open(directory, QUIET.with_(durability=policy))
    reader = second(directory)
    for end in range(1, 4):
        stamped(writer)
        assert ends(writer) == (0, end, end, end)
        shows(writer, end)
        shows(reader, end)
    with held(gate, writer.sync):
        stamped(writer)
        assert ends(writer) == (0, 4, 4, 4)
        shows(reader, 4)
    assert ends(writer) == (3, 4, 4, 4), "the sync covers no record that was appended after it began"
    reader.close()
    writer.close()


def test_the_published_end_decides_and_not_the_readers_own_settings(directory: FaultyDirectory) -> None:
    gate = Gate(directory)
    writer = Log.open(directory, QUIET)
    stamped(writer, 1)
    with held(gate, lambda: writer.append(b"value", timestamp=T + 1)):
        for policy in POLICIES:
            inner = directory.inner
            place = FileDirectory(inner.path) if isinstance(inner, FileDirectory) else inner
            with Log.open(place, QUIET.with_(durability=policy), mode="r") as reader:
                shows(reader, 1)
    writer.close()


def test_several_appends_that_share_a_sync_become_visible_together_when_it_is_done(
    directory: FaultyDirectory,
) -> None:
    gate = Gate(directory)
    writer = Log.open(directory, QUIET)
    stamped(writer, 1)
    with held(gate, lambda: writer.append(b"value", timestamp=T + 1)):
        threads = [threading.Thread(target=writer.append, args=(b"more",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while writer.next_offset < 6:
            threading.Event().wait(0.001)
        assert ends(writer) == (1, 1, 6, 6)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ends(writer) == (6, 6, 6, 6)
    writer.close()


def test_rotation_shows_what_it_has_made_durable_and_no_more(directory: FaultyDirectory) -> None:
    """A rotation does not sync the record that caused it."""
    gate = Gate(directory)
    writer = Log.open(directory, QUIET.with_(segment_bytes=200))
    writer.append(b"x" * 100)
    reader, seen = second(directory), []
    hold = directory.before

    def look(call: Call) -> None:
        if call.operation in ("append", "create", "sync", "replace"):
            assert writer.durable_offset == writer.visible_offset
            seen.append((call.operation, writer.visible_offset, reader.next_offset))
        assert hold is not None
        hold(call)

    directory.before = look
    writer.append(b"x" * 100)
    assert {(visible, read) for _, visible, read in seen} == {(1, 1)}
    assert [operation for operation, _, _ in seen].count("create") == 1
    assert (writer.visible_offset, reader.next_offset) == (2, 2)
    assert gate.shut is False
    directory.before = None
    reader.close()
    writer.close()


# --- followers


def following(log: Log) -> tuple[threading.Thread, queue.SimpleQueue[int]]:
    """Follow a log from its end in a thread. Return the thread and a queue of the offsets that it received."""
    given: queue.SimpleQueue[int] = queue.SimpleQueue()
    records = log.follow(log.visible_offset, timeout=PATIENCE_S)

    def follow() -> None:
        for record in records:
            given.put(record.offset)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread, given


@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_a_follower_is_woken_when_the_visible_end_moves(
    directory: FaultyDirectory, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polling is switched off, so a follower that is not woken gets no record."""
    monkeypatch.setattr(clock, "_POLL_S", 3600.0)
    monkeypatch.setattr(clock, "_POLL_MOST_S", 3600.0)
    log = Log.open(directory, QUIET.with_(durability=policy))
    thread, given = following(log)
    for offset in range(5):
        while not log._access.segments.waiting:
            threading.Event().wait(0.001)
        log.append(b"value")
        assert given.get(timeout=PATIENCE_S) == offset
    log.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert given.empty()


def test_a_follower_is_not_given_what_is_only_placed(
    directory: FaultyDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Semaphore(0)
    refresh = SegmentSet.refresh
    monkeypatch.setattr(SegmentSet, "refresh", lambda self: (looked.release(), refresh(self))[1])
    gate = Gate(directory)
    log = Log.open(directory, QUIET)
    _, given = following(log)
    with held(gate, lambda: log.append(b"value")):
        assert log.next_offset == 1
        for _ in range(5):
            assert looked.acquire(timeout=PATIENCE_S)
            log._access.segments.wake()
        assert given.empty()
    assert given.get(timeout=PATIENCE_S) == 0
    log.close()


def test_a_follower_in_another_process_is_given_a_record_when_it_is_durable(tmp_path: Path) -> None:
    directory = FaultyDirectory(FileDirectory(tmp_path / "log"))
    gate = Gate(directory)
    log = Log.open(directory, QUIET)
    stamped(log, 2)
    with Elsewhere(tmp_path / "log") as other:
        other.tell("from sawlog import clock, Log; log = Log.open(place, mode='r'); records = log.follow(timeout=30)")
        assert [other.tell("next(records).offset") for _ in range(2)] == [0, 1]
        with held(gate, lambda: log.append(b"value")):
            assert other.tell("[record.offset for record in log.follow(timeout=0.02)]") == [0, 1]
            other.begin("next(records).offset")
        assert other.end() == 2
    log.close()
    directory.inner.close()


# --- appends of several parts


def in_parts(log: Log, way: str, count: int = 8) -> None:
    """One append of several batches, which do not fit into one segment."""
    if way == "appending":
        with log._appending():
            for _ in range(count):
                log.append(b"x" * 90)
            log.sync()
    elif way == "append_arrow":
        log.append_arrow(pa.table({"value": [b"x" * 90] * count}))
    elif way == "append_batches":
        log.append_batches(encode([b"x" * 90]) * count)
    else:
        at = log.next_offset
        log._append_at_offsets(foreign(*((at + i, [b"x" * 90]) for i in range(count)), epoch=0))


WAYS = ["appending", "append_arrow", "append_batches", "append_kept"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_visible_in_the_middle_of_an_append(
    directory: FaultyDirectory, way: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor reported as durable, even if another thread syncs. At the end, all of it is both."""
    monkeypatch.setattr(ingest, "_GROUP_BYTES", 1)
    log = Log.open(directory, QUIET.with_(durability=policy, segment_bytes=400))
    stamped(log, 3)
    log.sync()
    reader = second(directory)
    seen: list[tuple[int, ...]] = []

    def look(call: Call) -> None:
        if call.operation == "append" and call.name.endswith(".log"):
            syncing = threading.Thread(target=log.sync)
            syncing.start()
            syncing.join(PATIENCE_S)
            assert not syncing.is_alive()
            seen.append((*ends(log)[:3], reader.next_offset, len(list(log.scan())), len(list(reader.scan()))))

    directory.before = look
    in_parts(log, way)
    directory.before = None
    assert len(seen) > 2, "it was one write"
    assert len(log.segments) > 2, "it was one segment"
    assert set(seen) == {(3, 3, 3, 3, 3, 3)}
    assert log.visible_offset == log.written_offset == log.next_offset == 11
    if policy == "always":
        assert log.durable_offset == 11
    assert [record.offset for record in reader.scan()] == [record.offset for record in log.scan()] == list(range(11))
    assert (log.leader_epoch, log._leader_epochs) == (0, ((0, 0),))
    reader.close()
    log.close()
    with second(directory, "w") as log:
        assert (log.next_offset, log.leader_epoch) == (11, 0)


@pytest.mark.alternating
@pytest.mark.sampled(8)
@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
@pytest.mark.parametrize("way", WAYS)
def test_an_append_that_fails_in_the_middle_was_never_there(
    directory: FaultyDirectory, way: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the log, by a reader, or after a kill of the process. No leader epoch begins."""
    monkeypatch.setattr(ingest, "_GROUP_BYTES", 1)
    log = Log.open(directory, QUIET.with_(durability=policy, segment_bytes=400))
    stamped(log, 3)
    reader = second(directory)
    directory.arm(Fault(3, errno=28, operations={"append"}, names="*.log"))
    with pytest.raises(StorageFull):
        in_parts(log, way)
    directory.disarm()
    assert (log.visible_offset, log.written_offset, log.next_offset) == (3, 3, 3)
    shows(log, 3)
    shows(reader, 3)
    assert (log.leader_epoch, log._leader_epochs) == (0, ((0, 0),))
    stamped(log)
    shows(log, 4)
    shows(reader, 4)
    in_parts(log, way)
    assert reader.next_offset == 12
    assert log.leader_epoch == 0
    reader.close()
    log.close()


@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_a_block_of_appends_that_raises_leaves_nothing(place: Place, policy: Any) -> None:
    log = place.open(QUIET.with_(durability=policy, segment_bytes=400))
    stamped(log, 3)
    before = ends(log)

    def fail_half_way() -> None:
        with log._appending():
            for number in range(8):
                stamped(log)
                if number == 5:
                    log.sync()
            assert log.next_offset == 11
            assert log.visible_offset == log.written_offset == 3
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail_half_way()
    after = ends(log)
    assert after[1:] == before[1:] == (3, 3, 3)
    assert after[0] in (before[0], 3)
    shows(log, 3)
    assert log._leader_epochs == ((0, 0),)
    assert "leader-epoch-checkpoint" not in place.names()
    with place.copy().open(QUIET) as killed:
        assert killed.next_offset == 3
    stamped(log)
    shows(log, 4)
    assert [batch.leader_epoch for batch in scan(log.fetch(0).raw)] == [0] * 4


def test_blocks_of_appends_count_when_the_outermost_ends(place: Place) -> None:
    log = place.open(QUIET.with_(durability="os"))
    with log._appending():
        log.append(b"a")
        with log._appending():
            log.append_many([b"b", b"c"])
        assert log.visible_offset == log.written_offset == 0
        with suppress(RuntimeError), log._appending():
            log.append(b"taken back")
            raise RuntimeError
        assert log.next_offset == 3
        log.append(b"d")
        assert list(log.scan()) == []
    assert values(log) == [b"a", b"b", b"c", b"d"]


def test_a_block_of_appends_that_syncs_inside_is_durable_when_it_ends(directory: FaultyDirectory) -> None:
    log = Log.open(directory, QUIET)
    with log._appending():
        stamped(log, 3)
        assert ends(log)[:3] == (0, 0, 0)
        log.sync()
        assert ends(log)[:3] == (0, 0, 0)
    assert ends(log) == (3, 3, 3, 3)
    log.close()


# --- every way to append settles


def flushed(log: Log) -> range:
    with log.writer() as writer:
        writer.append(b"x")
        return writer.flush()


@pytest.mark.alternating
@pytest.mark.sampled(22)
@pytest.mark.parametrize(
    "append",
    [
        lambda log: log.append(b"x") + 1,
        lambda log: log.append_many([b"x", b"y"]).stop,
        lambda log: log.append_stream([b"x", b"y"]) + 1,
        lambda log: log.append_arrow(pa.table({"value": [b"x"] * 3})).stop,
        lambda log: log.append_batches(encode([b"x"]) * 3).stop,
        lambda log: log._place_batches(bytearray(encode([b"x"]) * 3)).stop,
        lambda log: log._append_at_offsets(foreign((log.next_offset, [b"x"]), epoch=0)).stop,
        lambda log: log._append_at_offsets(foreign((log.next_offset + 5, [b"x"]), epoch=7)).stop,
        lambda log: log._advance(log.next_offset + 10) + log.next_offset - 10,
        lambda log: asyncio.run(log.append_async(b"x")) + 1,
        lambda log: flushed(log).stop,
    ],
    ids=[
        "append",
        "append_many",
        "append_stream",
        "append_arrow",
        "append_batches",
        "place_batches",
        "append_kept",
        "append_kept_with_a_gap",
        "advance",
        "append_async",
        "writer",
    ],
)
@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_what_was_appended_is_visible_when_the_call_returns(
    directory: FaultyDirectory, append: Callable[[Log], int], policy: Any
) -> None:
    """And durable under "always": every caller reads its own writes."""
    log = Log.open(directory, QUIET.with_(durability=policy))
    log.append(b"first")
    reader = second(directory)
    for _ in range(3):
        end = append(log)
        assert log.next_offset == log.written_offset == log.visible_offset == reader.next_offset == end
        assert log.durable_offset == (end if policy == "always" else 0)
        log.append(b"between")
        assert log.read(end).value == reader.read(end).value == b"between"
    reader.close()
    log.close()


@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_an_empty_log_that_is_advanced_is_visible_from_there_on(directory: FaultyDirectory, policy: Any) -> None:
    log = Log.open(directory, QUIET.with_(durability=policy))
    reader = second(directory)
    assert log._advance(100) == 100
    assert ends(log) == (100, 100, 100, 100)
    assert (reader.next_offset, reader.lowest_offset, len(reader), list(reader)) == (100, 100, 0, [])
    log.append(b"x")
    assert reader.read(100).value == b"x"
    reader.close()
    log.close()


def test_what_was_imported_without_waiting_is_visible_after_a_sync(directory: FaultyDirectory) -> None:
    log = Log.open(directory, QUIET)
    reader = second(directory)
    log._append_at_offsets(foreign((0, [b"a"]), (1, [b"b"]), epoch=0), wait=False)
    assert ends(log) == (0, 0, 2, 2)
    log._advance(5, wait=False)
    assert ends(log) == (0, 0, 5, 5)
    assert (reader.next_offset, list(reader), list(log)) == (0, [], [])
    log.sync()
    assert ends(log) == (5, 5, 5, 5)
    assert [record.value for record in reader] == [b"a", b"b"]
    reader.close()
    log.close()


# --- the end of the writer


def test_a_batch_that_a_killed_writer_had_not_synced_is_hidden_until_the_next_writer(tmp_path: Path) -> None:
    """The page cache has it, and a power cut could still take it."""
    place = tmp_path / "log"
    with Elsewhere(place) as other:
        other.tell("import os, signal; from sawlog import clock, Log; log = Log.open(place)")
        other.tell("[log.append(b'%d' % i) for i in range(3)] and None")
        reader = Log.open(place, mode="r")
        other.tell("os.fdatasync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)")
        other.begin("log.append(b'not synced')")
        assert other.is_killed()
    assert len(scan((place / f"{0:020d}.log").read_bytes())) == 4, "the batch was not even written"
    for each in (reader, Log.open(place, mode="r"), Log.open(place, mode="a")):
        assert values(each.scan()) == [b"0", b"1", b"2"]
        assert (each.next_offset, each.leader_epoch) == (3, 0)
        with pytest.raises(OffsetOutOfRange):
            each.read(3)
        if each is not reader:
            each.close()
    with Log.open(place, QUIET) as log:
        assert values(log.scan()) == values(reader.scan()) == [b"0", b"1", b"2", b"not synced"]
        assert (log.durable_offset, log._leader_epochs) == (4, ((0, 0), (1, 4)))
        assert (reader.next_offset, reader._leader_epochs) == (4, ((0, 0), (1, 4)))
    reader.close()


@pytest.mark.sampled(1)  # starts a process
@pytest.mark.parametrize("end", ["kill", "close"])
def test_readers_go_on_with_what_was_published_after_the_writer_has_ended(tmp_path: Path, end: str) -> None:
    place = tmp_path / "log"
    with Elsewhere(place) as other:
        other.tell("from sawlog import clock, Log, LogConfig; log = Log.open(place, LogConfig(durability='os'))")
        other.tell("[log.append(b'%d' % i) for i in range(50)] and None")
        reader = Log.open(place, mode="r")
        other.tell("log.append(b'last')")
        if end == "kill":
            other.kill()
        else:
            other.tell("log.close()")
    assert len(reader) == 51
    with Log.open(place, mode="r") as late:
        assert values(late.scan()) == values(reader.scan())
    reader.close()


def restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a restart of the machine."""
    for module in (published_module, file_module):
        monkeypatch.setattr(module, "boot_id", lambda: bytes(range(16)))


@pytest.mark.parametrize("how", ["another boot", "missing", "damaged"])
def test_a_reader_without_a_published_end_sees_every_whole_batch(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the machine, a record that is in the file is also on the disk."""
    directory = FaultyDirectory(FileDirectory(tmp_path / "log"))
    log = Log.open(directory, QUIET)
    stamped(log, 2)
    directory.arm(Fault(operations={"sync"}, names="*.log"))
    with pytest.raises(Exception, match="injected"):
        stamped(log)
    log.close()
    visible = tmp_path / "log" / "visible"
    with Log.open(tmp_path / "log", mode="r") as reader:
        assert len(reader) == 2
    if how == "another boot":
        restart(monkeypatch)
    elif how == "missing":
        visible.unlink()
    else:
        visible.write_bytes(b"\xff" * 128)
    with Log.open(tmp_path / "log", mode="r") as reader:
        assert len(reader) == 3
        shows(reader, 3)
        assert (visible.exists(), how) in ((True, "another boot"), (False, "missing"), (True, "damaged"))
        with Log.open(tmp_path / "log", QUIET) as log:
            stamped(log)
            shows(log, 4)
            shows(reader, 4)
    with Log.open(tmp_path / "log", mode="r") as reader:
        shows(reader, 4)


# --- mode "a"


def test_a_log_that_locks_late_reads_up_to_the_visible_end_before_its_first_write(directory: FaultyDirectory) -> None:
    gate = Gate(directory)
    writer = Log.open(directory, QUIET)
    stamped(writer, 2)
    late = second(directory, "a")
    with held(gate, lambda: writer.append(b"value", timestamp=T + 2)):
        shows(late, 2)
        assert late.next_offset == 2
    shows(late, 3)
    writer.close()
    assert late.append(b"mine", timestamp=T + 3) == 3
    shows(late, 4)
    late._release()
    shows(late, 4)
    late.close()


def test_what_on_lock_appends_counts_when_it_is_done(place: Place) -> None:
    """`on_lock` rolls an intent forward before other threads may write. Readers see all of it or nothing."""
    with place.open(QUIET) as log:
        stamped(log, 2)
    seen: list[tuple[int, ...]] = []

    def on_lock(log: Log) -> None:
        for _ in range(3):
            log.append(b"value", timestamp=T + log.next_offset)
            log.sync()
            with Log.open(place.directory(), mode="r") as reader:
                seen.append((*ends(log)[:3], reader.next_offset))

    for mode in ("w", "a"):
        log = Log.open(place.directory(), QUIET, mode=mode, on_lock=on_lock)  # type: ignore[call-overload]
        if mode == "a":
            with log._hold():
                pass
        shows(log, 5 if mode == "w" else 8)
        assert len(set(ends(log))) == 1
        log.close()
    assert seen == [(2, 2, 2, 2)] * 3 + [(5, 5, 5, 5)] * 3


# --- numbers that are old, or of another log


@pytest.mark.parametrize("told", [0, 1, 2, 4])
def test_an_older_published_end_shows_less_and_the_next_writer_corrects_it(place: Place, told: int) -> None:
    """A backup restored an old file. The log is unchanged, but readers see less of it until the next writer comes."""
    with place.open(QUIET.with_(segment_bytes=200)) as log:
        stamped(log, 5)
        assert len(log.segments) > 1
    directory = place.directory()
    where = FileDirectory(directory) if isinstance(directory, Path) else directory
    published = where.published("visible", create=True)
    assert published is not None
    assert published.load() == (5, 0)
    published.store(told, 0)
    published.close()
    with Log.open(directory, mode="r") as reader:
        shows(reader, told)
        assert reader.durable_offset == told
        assert reader.verify()
        with place.open(QUIET) as log:
            shows(log, 5)
            shows(reader, 5)
            assert log.leader_epoch == 0
            stamped(log)
            shows(reader, 6)


def publish(directory: Any, told: tuple[int, int]) -> None:
    """Write these numbers to the `visible` file of a log."""
    where = FileDirectory(directory) if isinstance(directory, Path) else directory
    published = where.published("visible", create=True)
    assert published is not None
    published.store(*told)
    published.close()


@pytest.mark.parametrize("told", [9, 6, 4, 2])
@pytest.mark.parametrize("closed", [True, False])
def test_an_end_from_before_a_truncation_counts_up_to_the_cut(place: Place, told: int, closed: bool) -> None:
    """Records that were truncated are not lost, so nothing is reported and no offset is skipped."""
    log = place.open(QUIET.with_(segment_bytes=200))
    stamped(log, 9)
    log.truncate(3)
    stamped(log, 2)
    if closed:
        log.close()
    elsewhere = place.copy()
    log.close()
    publish(elsewhere.directory(), (told, 0))
    with Log.open(elsewhere.directory(), mode="r") as reader:
        shows(reader, min(told, 3))
        assert reader.verify()
        with elsewhere.open(QUIET) as again:
            assert again.recovery, str(again.recovery)
            shows(again, 5)
            shows(reader, 5)
            assert again.epoch_end(0) == reader.epoch_end(0) == 3
            stamped(again)
            shows(reader, 6)


def test_an_end_from_before_a_truncation_counts_up_to_the_cut_while_an_epoch_is_begun(place: Place) -> None:
    """The writer died after it had stored the list of epochs, and before the checkpoint named the new one. Epoch 1 has
    no record, so epoch 2 takes its place in the list."""
    with place.open(QUIET) as log:
        stamped(log, 9)
        log.truncate(3)
        elsewhere = place.copy()
    elsewhere.write("leader-epoch-checkpoint", Epochs(((0, 0), (2, 3))).encode())
    publish(elsewhere.directory(), (9, 0))
    with Log.open(elsewhere.directory(), mode="r") as reader:
        shows(reader, 3)
        with elsewhere.open(QUIET) as again:
            assert not again.recovery.corruption, str(again.recovery)
            shows(again, 3)
            stamped(again)
            shows(reader, 4)


def test_an_end_from_before_a_truncation_still_proves_what_is_below_the_cut(place: Place) -> None:
    """It proves nothing about the truncated records, but the kept records must exist."""
    with place.open(QUIET) as log:
        stamped(log, 9)
        log.truncate(6)
        elsewhere = place.copy()
    elsewhere.cut(named(0), elsewhere.batches()[4].position)
    publish(elsewhere.directory(), (9, 0))
    with Log.open(elsewhere.directory(), mode="r") as reader:
        with pytest.raises(CorruptBatch) as raised:
            list(reader.scan())
        assert raised.value.next_offset == 6
    with elsewhere.open(QUIET) as again:
        assert again.recovery.corruption
        assert again.append(b"next") == 6


def test_an_end_from_before_a_truncation_shows_no_record_that_is_not_durable(directory: FaultyDirectory) -> None:
    """The files may reach beyond the published end with records that replaced the truncated ones."""
    with Log.open(directory, QUIET) as log:
        stamped(log, 9)
        log.truncate(3)
        stamped(log, 2)
        publish(directory.inner, (9, 0))
        with second(directory) as reader, held(Gate(directory), lambda: stamped(log, 1)):
            shows(reader, 3)


def published_by_hand(place: Place, told: tuple[int, int]) -> Any:
    """The directory of a closed log with five records whose `visible` file contains these numbers."""
    with place.open(QUIET) as log:
        stamped(log, 5)
    directory = place.directory()
    publish(directory, told)
    return directory


@pytest.mark.parametrize("told", [(9, 0), (9, 3)])
def test_a_published_end_beyond_the_log_is_a_loss_and_hides_no_record(place: Place, told: tuple[int, int]) -> None:
    directory = published_by_hand(place, told)
    with Log.open(directory, mode="r") as reader:
        assert [reader.read(offset).offset for offset in range(5)] == list(range(5))
        with pytest.raises(CorruptBatch) as raised:
            list(reader.scan())
        assert raised.value.next_offset == 9
        assert not reader.verify().ok
    with place.open(QUIET) as log:
        assert log.recovery.corruption
        assert log.append(b"next") == 9


@pytest.mark.parametrize("told", [(0, 3), (5, 3)])
def test_published_numbers_of_another_log_break_nothing(place: Place, told: tuple[int, int]) -> None:
    """A leader epoch that no writer has begun has no records."""
    directory = published_by_hand(place, told)
    with Log.open(directory, mode="r") as reader:
        shows(reader, min(told[0], 5))
        assert reader.epoch_end(0) <= 5
        with place.open(QUIET) as log:
            shows(log, 5)
            shows(reader, 5)
            assert (log.leader_epoch, reader.leader_epoch) == (0, 0)


def test_a_reader_sees_the_new_log_where_the_old_one_was_removed(place: Place) -> None:
    """The directory stays because it contains another file."""
    log = place.open(QUIET)
    place.write("stranger", b"mine")
    stamped(log, 2)
    reader = Log.open(place.directory(), mode="r")
    shows(reader, 2)
    log.remove()
    log = place.open(QUIET)
    stamped(log, 5)
    with Log.open(place.directory(), mode="r") as late:
        shows(late, 5)
    shows(reader, 5)
    reader.close()


def test_a_reader_that_finds_less_than_was_published_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published end and the file names stay the same while the file becomes whole again, so the reader must look
    again."""
    monkeypatch.setattr(file_module, "_CLOCK_STEP_NS", 0)  # names that have just changed are taken for settled
    log = Log.open(tmp_path, QUIET.with_(durability="os"))
    stamped(log, 3)
    path = tmp_path / f"{0:020d}.log"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    with Log.open(tmp_path, mode="r") as reader:
        with pytest.raises(CorruptBatch):
            list(reader.scan())
        path.write_bytes(whole)
        shows(reader, 3)
    log.close()


# --- truncation beside a group commit


def test_a_sync_that_began_before_a_truncation_makes_nothing_durable_after_it(
    directory: FaultyDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of a group commit is stopped between its fsync and announcing it."""
    at, go = threading.Event(), threading.Event()
    pass_on = Durability._hand_over

    def slowly(self: Durability, reached: int, gate: threading.Lock) -> None:
        if threading.current_thread().name == "leader":
            at.set()
            assert go.wait(PATIENCE_S)
        pass_on(self, reached, gate)

    monkeypatch.setattr(Durability, "_hand_over", slowly)
    log = Log.open(directory, QUIET)
    stamped(log, 20)
    leader = threading.Thread(target=stamped, args=(log,), name="leader")
    leader.start()
    assert at.wait(PATIENCE_S)
    assert log.truncate(5) == 16
    assert ends(log) == (5, 5, 5, 5)
    go.set()
    leader.join(PATIENCE_S)
    assert ends(log) == (5, 5, 5, 5), "the leader's fsync covered records that were truncated since"
    reader = second(directory)
    for end in range(6, 16):
        before = sum(call == Call("sync", f"{0:020d}.log") for call in directory.calls)
        stamped(log)
        assert sum(call == Call("sync", f"{0:020d}.log") for call in directory.calls) == before + 1
        assert ends(log) == (end, end, end, end)
        assert reader.next_offset == end
    reader.close()
    log.close()


@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_what_is_durable_survives_a_power_cut_and_under_always_what_is_visible_does(policy: Any) -> None:
    """Threads append while the log is truncated. The simulated disk shows what a power cut would keep."""
    disk = FaultyStorage(seed=3)
    log = Log.open(disk, QUIET.with_(durability=policy, segment_bytes=2000))
    stamped(log, 5)
    threads = [threading.Thread(target=stamped, args=(log, 30)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(12):
        durable, visible = log.durable_offset, log.visible_offset
        with Log.open(disk.crash("lose"), QUIET) as found:
            assert found.recovery
            assert found.next_offset >= (visible if policy == "always" else durable)
        if number % 3 == 2:
            log.truncate(max(log.next_offset - 3, 0))
        elif number % 3 == 1:
            log.sync()
    for thread in threads:
        thread.join(PATIENCE_S)
    log.sync()
    assert len(set(ends(log))) == 1
    with Log.open(disk.crash("lose"), QUIET) as found:
        assert values(found) == values(log)
    log.close()


# --- truncation that fails


@pytest.mark.alternating
@pytest.mark.parametrize(("name", "number"), [("checkpoint", 1), ("leader-epoch-checkpoint", 1)], ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=POLICY_IDS)
def test_a_truncation_that_is_refused_before_it_begins_hides_nothing(
    directory: FaultyDirectory, name: str, number: int, policy: Any
) -> None:
    """The log is unchanged, and every acknowledged record can be read."""
    log = Log.open(directory, QUIET.with_(durability=policy))
    stamped(log, 8)
    log.sync()
    reader = second(directory)
    directory.arm(Fault(number, errno=28, operations={"replace"}, names=name, effect="nothing"))
    with pytest.raises(StorageFull):
        log.truncate(3)
    directory.disarm()
    assert log._is_writable
    assert ends(log) == (8, 8, 8, 8)
    shows(log, 8)
    shows(reader, 8)
    stamped(log)
    shows(reader, 9)
    assert (log.leader_epoch, reader.leader_epoch) == (0, 0)
    assert log.epoch_end(0) == reader.epoch_end(0) == 9
    assert log.truncate(3) == 6
    shows(log, 3)
    shows(reader, 3)
    assert log.leader_epoch == reader.leader_epoch > 0
    assert log._leader_epochs == reader._leader_epochs
    stamped(log, 2)
    shows(reader, 5)
    reader.close()
    log.close()
    with second(directory, "w") as log:
        assert log.recovery.findings == []
        assert log.epoch_end(0) == 3


def test_offsets_go_up_by_one_whatever_became_visible_when(place: Place) -> None:
    log = place.open(QUIET, segment_bytes=300)
    for _ in range(3):
        with log._appending():
            stamped(log, 3)
        with suppress(RuntimeError), log._appending():
            stamped(log, 3)
            raise RuntimeError
        stamped(log, 2)
    log.sync()
    offsets = [record.offset for record in log.scan()]
    assert offsets == list(range(15))
    assert all(after == before + 1 for before, after in pairwise(offsets))
