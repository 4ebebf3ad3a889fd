"""Leader epochs: a reader of lost records notices the loss, and other readers are not disturbed.

A position is an offset and the epoch in which it was read. For any sequence of appends, truncations, kills and power
cuts:

    offset <= epoch_end(epoch)   if and only if   every record below the offset is the one that was read
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sawlog import Interval, Log, LogConfig
from sawlog.batch import kernel
from sawlog.batch.build import encode
from sawlog.batch.header import scan
from sawlog.errors import CorruptFile, OffsetOutOfRange, StorageError, StorageFull
from sawlog.log import checkpoint
from sawlog.log.checkpoint import Checkpoint
from sawlog.log.epochs import MAX_EPOCH, Epochs, load_epochs
from sawlog.log.recovery import Action, Where
from sawlog.log.shared import SharedLog
from sawlog.storage import MemoryDirectory
from sawlog.storage import file as file_module
from sawlog.storage import published as published_module
from sawlog.storage.checksummed import LINE
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ...faults.disk import MODES, FaultyStorage
from ...storage.elsewhere import Elsewhere
from ..places import Place, fill, named, values
from ..sampling import some_of, some_or_all
from ..write.test_keeping import foreign

QUIET = LogConfig(checkpoint_interval_ms=3_600_000, segment_age_ms=None)
FILE = "leader-epoch-checkpoint"
PATIENCE_S = 60.0


def as_kafka_reads_it(data: bytes) -> list[tuple[int, int]]:
    """LeaderEpochCheckpointFile in Kafka: version, number of lines, lines of two numbers, nothing after them."""
    lines = data.decode("utf-8").splitlines()
    assert data.endswith(b"\n")
    assert int(lines[0]) == 0, "the only version there is"
    assert int(lines[1]) == len(lines) - 2
    found = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:])]
    assert all(epoch >= 0 and start >= 0 for epoch, start in found)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(found))
    return found


def epochs_by_offset(log: Log) -> dict[int, int]:
    """The epoch of every offset, from the batch that covers it."""
    found: dict[int, int] = {}
    offset = log.lowest_offset
    while offset < log.visible_offset:
        fetched = log.fetch(offset)
        for batch in scan(fetched.raw):
            for each in range(batch.base_offset, batch.last_offset + 1):
                assert found.setdefault(each, batch.leader_epoch) == batch.leader_epoch, "two batches at one offset"
        offset = fetched.next_offset
    return found


def cut(log: Log) -> None:
    """Begin a new epoch at the end by truncating a record that may have been read."""
    log.append(b"gone")
    log.truncate(log.next_offset - 1)


# --- when one begins


def test_a_new_log_is_in_epoch_0_and_has_no_file_for_it(place: Place) -> None:
    log = place.open(QUIET)
    for _ in range(2):
        assert (log.leader_epoch, log._leader_epochs) == (0, ((0, 0),))
        assert (log.epoch_end(0), log.epoch_end(-1), log.epoch_end(7)) == (log.next_offset,) * 3
        assert log.position() == (log.next_offset, 0)
        fill(log, 3)
    log.seal()
    log.close()
    assert FILE not in place.names()


def test_a_log_that_was_closed_cleanly_stays_in_its_epoch(place: Place) -> None:
    for round_ in range(3):
        with place.open(QUIET) as log:
            assert log._leader_epochs == ((0, 0),)
            fill(log, 2)
        assert FILE not in place.names(), round_
    log = place.open(QUIET)
    cut(log)
    log.close()
    for _ in range(2):
        with place.open(QUIET) as log:
            assert log.recovery.findings == []
            assert log._leader_epochs == ((0, 0), (1, 6))


@pytest.mark.parametrize("synced", [True, False])
def test_a_log_that_was_not_closed_cleanly_begins_the_next_epoch_at_its_end(place: Place, synced: bool) -> None:
    log = place.open(QUIET.with_(durability="os"))
    for epoch in range(4):
        assert log.leader_epoch == epoch
        assert log._leader_epochs == ((0, 0), *((each, 3 * each) for each in range(1, epoch + 1)))
        assert [log.epoch_end(each) for each in range(epoch)] == [3 * each for each in range(1, epoch + 1)]
        fill(log, 3, start=log.next_offset)
        if synced:
            log.sync()
        place = place.copy()
        log = place.open(QUIET.with_(durability="os"))
        assert not log.recovery.clean
    assert as_kafka_reads_it(place.files()[FILE]) == list(log._leader_epochs)
    assert epochs_by_offset(log) == {offset: offset // 3 for offset in range(12)}


def test_opening_again_without_an_append_begins_no_further_epoch(place: Place) -> None:
    """Otherwise a process that is killed and restarted repeatedly would use up the epochs."""
    log = place.open(QUIET.with_(durability="os"))
    fill(log, 3)
    for _ in range(4):
        place = place.copy()
        log = place.open(QUIET.with_(durability="os"))
        assert log._leader_epochs == ((0, 0), (1, 3))
    fill(log, 1, start=3)
    log = place.copy().open(QUIET)
    assert log._leader_epochs == ((0, 0), (1, 3), (2, 4))


def test_opening_again_after_a_restart_of_the_machine_does_begin_one() -> None:
    """The log does not know which records of the previous epoch were read: some of them may be lost."""
    disk = FaultyStorage(seed=1)
    log = Log.open(disk, QUIET.with_(durability="os"))
    fill(log, 3)
    log.sync()
    for epoch in range(1, 4):
        disk = disk.crash("lose")
        log = Log.open(disk, QUIET.with_(durability="os"))
        assert log._leader_epochs == ((0, 0), (epoch, 3))
        fill(log, 2, start=3)  # lost each time; a reader of them was in this epoch
        assert log.epoch_end(epoch) == 5
    assert [log.epoch_end(each) for each in range(3)] == [3, 3, 3]


def test_a_file_of_another_start_of_the_machine_is_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(tmp_path, QUIET.with_(durability="os"))
    fill(log, 3)
    for number in range(1, 4):
        log._access.appender.held.release()  # type: ignore[union-attr]  # what the kernel does for a dead process
        boot = bytes([number] * 16)
        for module in (published_module, file_module):
            monkeypatch.setattr(module, "boot_id", lambda boot=boot: boot)
        log = Log.open(tmp_path, QUIET.with_(durability="os"))
        assert log._leader_epochs == ((0, 0), (number, 3))
    log.close()


def test_truncating_what_was_visible_begins_an_epoch_where_it_was_cut(place: Place) -> None:
    log = place.open(QUIET)
    fill(log, 10)
    assert log.truncate(7) == 3
    assert log._leader_epochs == ((0, 0), (1, 7))
    fill(log, 3)
    assert log.truncate(8) == 2
    assert log._leader_epochs == ((0, 0), (1, 7), (2, 8))
    assert log.truncate(3) == 5
    assert log._leader_epochs == ((0, 0), (3, 3)), "no number is used twice"
    assert [log.epoch_end(epoch) for epoch in (0, 1, 2, 3)] == [3, 3, 3, 3]
    assert log.truncate(0) == 3
    assert log._leader_epochs == ((4, 0),)
    assert as_kafka_reads_it(place.files()[FILE]) == [(4, 0)]
    log.append(b"x")
    assert epochs_by_offset(log) == {0: 4}


def test_truncating_nothing_begins_none(place: Place) -> None:
    log = place.open(QUIET)
    fill(log, 5)
    assert log.truncate(5) == 0
    for offset in (6, -1):
        with pytest.raises(OffsetOutOfRange):
            log.truncate(offset)
    assert log._leader_epochs == ((0, 0),)
    assert FILE not in place.names()


@pytest.mark.parametrize("to", [3, 4])
def test_truncating_what_was_never_visible_begins_none(place: Place, to: int) -> None:
    """Under "always", records that are written and not synced. The remaining ones become durable, and so visible."""
    log = place.open(QUIET)
    fill(log, 3)
    log._append_at_offsets(foreign((3, [b"a"]), (4, [b"b"]), epoch=0), wait=False)
    assert (log.visible_offset, log.next_offset) == (3, 5)
    assert log.truncate(to) == 5 - to
    assert (log._leader_epochs, log.visible_offset, log.next_offset) == (((0, 0),), to, to)
    assert log.truncate(2) == to - 2
    assert log._leader_epochs == ((0, 0), (1, 2))


@pytest.mark.parametrize("policy", ["always", "os"])
def test_an_append_that_fails_begins_none(policy: Any) -> None:
    directory = FaultyDirectory(MemoryDirectory())
    log = Log.open(directory, QUIET.with_(durability=policy, segment_bytes=300))
    fill(log, 2)
    calls: list[Callable[[], object]] = [
        lambda: log.append(b"x"),
        lambda: log.append_batches(encode([b"x" * 60]) * 5),
        lambda: log.append_stream([b"x"] * 3),
        lambda: log.append_arrow(pa.table({"value": [b"x" * 60] * 9})),
    ]
    for call in calls:
        directory.arm(Fault(errno=28, operations={"append"}, names="*.log", forever=True))
        with pytest.raises(StorageFull):
            call()
        directory.disarm()
        assert (log._leader_epochs, log.next_offset) == (((0, 0),), 2)
    log.append(b"x")
    assert epochs_by_offset(log) == dict.fromkeys(range(3), 0)
    log.close()


@pytest.mark.parametrize("how", ["crash", "truncate", "import"])
def test_an_epoch_is_durable_before_the_first_append_in_it(how: str) -> None:
    """After a power cut, the same number must not be used again."""
    disk = FaultyStorage(seed=2)
    log = Log.open(disk, QUIET)
    fill(log, 5)
    if how == "crash":
        disk = disk.crash("keep")
        log = Log.open(disk, QUIET)
    elif how == "truncate":
        log.truncate(3)
    seen: list[tuple[int, int | None]] = []

    def look(call: Call) -> None:
        if call.operation == "append" and call.name.endswith(".log"):
            lost = disk.crash("lose")
            found, saved = load_epochs(lost), checkpoint.load(lost)
            assert found is not None
            assert saved is not None
            assert saved.epochs_crc == found.crc
            seen.append((found.current, saved.leader_epoch))

    disk.before = look
    epoch = 1
    if how == "import":
        epoch = 4
        log._append_at_offsets(foreign((log.next_offset, [b"x"]), epoch=4))
    else:
        log.append(b"x")
    disk.before = None
    assert seen == [(epoch, epoch)]
    assert log.leader_epoch == epoch
    log.close()


def test_every_batch_carries_the_epoch_in_which_it_was_appended(place: Place) -> None:
    log = place.open(QUIET)
    for epoch in range(3):
        first = log.next_offset
        log.append(b"x")
        log.append_many([b"x", b"y"])
        log.append_stream([b"x"])
        log.append_arrow(pa.table({"value": [b"x"] * 3}))
        log.append_batches(encode([b"x"]) * 2)
        log._place_batches(bytearray(encode([b"x"])))
        log._append_at_offsets(foreign((log.next_offset + 1, [b"x"]), epoch=0))
        log._advance(log.next_offset + 2)
        asyncio.run(log.append_async(b"x"))

        async def streamed(log: Log = log) -> None:
            async def chunks() -> Any:
                yield b"x"

            await log.append_stream_async(chunks())

        asyncio.run(streamed())
        with log.writer() as writer:
            writer.append(b"x")
        found = epochs_by_offset(log)
        assert {found[offset] for offset in range(first, log.next_offset)} == {epoch}
        assert log.verify()
        cut(log)


def test_readers_learn_the_epochs(place: Place) -> None:
    log = place.open(QUIET)
    reader = Log.open(place.directory(), mode="r")
    for _ in range(4):
        fill(log, 3)
        assert reader.leader_epoch == log.leader_epoch
        assert reader._leader_epochs == log._leader_epochs
        assert reader.position() == log.position()
        for epoch in range(-1, log.leader_epoch + 2):
            assert reader.epoch_end(epoch) == log.epoch_end(epoch)
        log.truncate(log.next_offset - 1)
    log.close()
    with Log.open(place.directory(), mode="r") as late:
        assert late._leader_epochs == reader._leader_epochs == ((0, 0), (1, 2), (2, 4), (3, 6), (4, 8))
    reader.close()


# --- the file


def test_the_file_is_what_kafka_writes() -> None:
    epochs = Epochs(((0, 0), (3, 1200), (4, 1201)))
    assert epochs.encode() == b"0\n3\n0 0\n3 1200\n4 1201\n"
    assert as_kafka_reads_it(epochs.encode()) == list(epochs.entries)
    assert Epochs.decode(epochs.encode(), "x") == epochs
    assert Epochs.decode(f"0\n1\n{MAX_EPOCH} 5\n".encode(), "x").current == MAX_EPOCH


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"0\n",
        b"0\n0\n",
        b"1\n1\n0 0\n",
        b"0\n2\n0 0\n",
        b"0\n1\n0 0\n1 5\n",
        b"0\n1\n0 0",
        b"0\n1\n0 0\n\n",
        b"0\n1\n0  0\n",
        b"0\n1\n 0 0\n",
        b"0\n1\n+1 0\n",
        b"0\n1\n0 0 0\n",
        b"0\n1\n0\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n0 -1\n",
        b"0\n1\n01 0\n",
        b"0\n1\n1_0 0\n",
        b"0\n1\n2147483648 0\n",
        b"0\n2\n1 5\n0 7\n",
        b"0\n2\n0 5\n1 5\n",
        b"0\n2\n0 5\n1 3\n",
        b"0\n1\nx y\n",
        "0\n1\n١ 0\n".encode(),
        b"\xff\xfe",
        bytes(100),
    ],
)
def test_anything_else_is_no_list_of_epochs(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="somewhere/x"):
        Epochs.decode(data, "somewhere/x")


@given(data=st.binary(max_size=60) | st.text("0123456789 \n-", max_size=40).map(str.encode))
def test_arbitrary_bytes_decode_exactly_or_raise_corrupt_file(data: bytes) -> None:
    try:
        found = Epochs.decode(data, "x")
    except CorruptFile:
        return
    assert found.encode() == data
    assert as_kafka_reads_it(data) == list(found.entries)


# --- the promise, for any sequence


@dataclass
class Seen:
    """The position of a reader, and the records it has read."""

    offset: int
    epoch: int
    read: list[bytes | None]
    #: True if it was read under "always", and nothing was truncated since.
    stays: bool


class World:
    """A log on a simulated disk, everything that was ever read from it, and the invariants."""

    def __init__(self, policy: Any) -> None:
        self.config = QUIET.with_(durability=policy, segment_bytes=400)
        self.disk = FaultyStorage(seed=5)
        self.log = Log.open(self.disk, self.config)
        self.reader = Log.open(self.disk, mode="r")
        self.seen: list[Seen] = []
        self.number = 0

    def value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number + b"." * 40

    def append(self, count: int) -> None:
        if count % 2:
            self.log.append_many([self.value() for _ in range(count)])
        else:
            for _ in range(count):
                self.log.append(self.value())

    def truncate(self, back: int) -> None:
        offset = max(self.log.next_offset - back, 0)
        for each in self.seen:
            each.stays = each.stays and each.offset <= offset
        self.log.truncate(offset)

    def sync(self, _: int) -> None:
        self.log.sync()

    def seal(self, _: int) -> None:
        self.log.seal()

    def compact(self, _: int) -> None:
        self.log.seal()
        self.log._merge_segments()

    def failed(self, _: int) -> None:
        """Placing in a block that raises leaves no record."""

        def fail() -> None:
            with self.log._appending():
                self.append(3)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()

    def close(self, _: int) -> None:
        self.log.close()
        self.open()

    def kill(self, count: int) -> None:
        for _ in range(1 + count % 2):
            self.move_to(self.disk.process_dies())

    def power_cut(self, mode: int) -> None:
        self.move_to(self.disk.crash(MODES[mode % len(MODES)]))

    def move_to(self, disk: FaultyStorage) -> None:
        self.disk = disk
        with Log.open(disk, mode="r") as reader:  # a reader opens the log before the next writer
            self.look(reader)
            self.check(reader)
        self.open()

    def open(self) -> None:
        self.log = Log.open(self.disk, self.config)
        self.reader = Log.open(self.disk, mode="r")
        assert self.log.recovery

    def look(self, log: Log) -> None:
        """A reader of the whole log and a reader of a part both use the epoch of the batch."""
        offset, epoch = log.position()
        read = values(log.scan())
        assert len(read) == offset
        stays = self.config.durability == "always"
        self.seen.append(Seen(offset, epoch, read, stays))
        by_offset = epochs_by_offset(log)
        for some in {offset // 2, offset - 1} - {0, -1}:
            self.seen.append(Seen(some, by_offset[some - 1], read[:some], stays))

    def check(self, log: Log, told: str = "") -> None:
        now = values(log.scan())
        for each in self.seen:
            same = now[: each.offset] == each.read
            found = each.offset <= log.epoch_end(each.epoch)
            assert found == same, (
                f"{told}: {each.offset} in epoch {each.epoch}: {'unnoticed loss' if found else 'false alarm'}; "
                f"epochs {log._leader_epochs}, end {log.visible_offset}"
            )
            assert same or not each.stays, "a record that was seen under 'always' is gone"

    def check_all(self) -> None:
        assert self.reader._leader_epochs == self.log._leader_epochs
        for log in (self.log, self.reader):
            self.check(log)
            self.look(log)
        by_offset = [epoch for _, epoch in sorted(epochs_by_offset(self.log).items())]
        assert by_offset == sorted(by_offset), "epochs never go back"
        for epoch, start in self.log._leader_epochs:
            assert start >= len(by_offset) or by_offset[start] >= epoch
            assert not start or start > len(by_offset) or by_offset[start - 1] < epoch


STEPS = ["append", "append", "truncate", "sync", "seal", "compact", "failed", "close", "kill", "power_cut"]


@pytest.mark.costly  # a model of every change, compared after each step
@settings(max_examples=settings().max_examples // 3)
@given(
    policy=st.sampled_from(["always", "os", Interval(ms=3_600_000, bytes=300)]),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 6)), max_size=12),
)
@example(policy="os", steps=[("append", 4), ("power_cut", 0 + 6), ("append", 5), ("power_cut", 6), ("append", 6)])
@example(policy="os", steps=[("append", 6), ("truncate", 3), ("power_cut", 6), ("append", 6), ("kill", 2)])
@example(policy="always", steps=[("append", 6), ("truncate", 6), ("close", 1), ("append", 6), ("truncate", 1)])
def test_a_position_is_beyond_the_end_of_its_epoch_if_and_only_if_its_records_are_others_now(
    policy: Any, steps: list[tuple[str, int]]
) -> None:
    world = World(policy)
    world.check_all()
    for name, number in steps:
        getattr(world, name)(number)
        world.check_all()
    world.log.close()


@pytest.mark.alternating
@pytest.mark.sampled(4)  # 0.3 s each
@pytest.mark.parametrize("to", [0, 5, *(pytest.param(to, marks=pytest.mark.slow) for to in (3, 7))])
@pytest.mark.parametrize("mode", ["kill", *MODES])
def test_a_truncation_that_is_interrupted_anywhere_is_noticed_if_it_cut_something(to: int, mode: Any) -> None:
    """An interrupt between writing the epoch and the first cut loses no record, and readers do not move back."""
    disk = FaultyStorage(seed=4)
    log = Log.open(disk, QUIET.with_(segment_bytes=250))
    sent = fill(log, 8, size=30)
    assert len(log.segments) > 2
    found: list[FaultyStorage] = []
    disk.before = lambda call: found.append(disk.process_dies() if mode == "kill" else disk.crash(mode))
    log.truncate(to)
    disk.before = None
    found.append(disk.process_dies() if mode == "kill" else disk.crash(mode))
    outcomes = set()
    for number, after in enumerate(found):
        with Log.open(after, QUIET) as log:
            now = values(log.scan())
            assert now == sent[: len(now)]
            assert len(now) >= to
            outcomes.add(len(now))
            for offset in range(9):
                assert (offset <= log.epoch_end(0)) == (offset <= len(now)), f"step {number}: {log._leader_epochs}"
            fill(log, 9, start=100)
            for offset in range(9):
                assert (offset <= log.epoch_end(0)) == (offset <= len(now)), f"step {number}: {log._leader_epochs}"
        with Log.open(after, QUIET) as log:
            assert log.recovery.findings == []
    assert {to, 8} <= outcomes
    log.close()


@pytest.mark.alternating
@pytest.mark.sampled(6)  # 0.2 s each
@pytest.mark.parametrize("to", [0, *(pytest.param(to, marks=pytest.mark.slow) for to in (2, 3, 5)), 4, 7])
@pytest.mark.parametrize("mode", ["kill", *MODES])
@some_or_all(6)
def test_a_truncation_across_earlier_epochs_that_is_interrupted_anywhere_hides_no_loss(
    to: int, mode: Any, most: int | None
) -> None:
    """Losses of earlier epochs are still reported, even if this truncation never took effect."""
    world = World("os")
    for back in (2, 1, 0):
        world.append(5)
        world.log.sync()
        world.check_all()
        world.truncate(back)
    assert world.log._leader_epochs == ((0, 0), (1, 3), (2, 7))
    world.truncate(4)
    world.check_all()
    disk, found = world.disk, []
    disk.before = lambda call: found.append((call, disk.process_dies() if mode == "kill" else disk.crash(mode)))
    world.log.truncate(to)
    disk.before = None
    seen = list(world.seen)
    for number, (call, after) in some_of(enumerate(found), most):
        world.seen, world.disk = list(seen), after
        told = f"step {number}, before {call}"
        with Log.open(after, mode="r") as reader:
            world.check(reader, told)
        world.open()
        world.check(world.log, told)
        world.append(5)
        world.check(world.log, told)
        world.check(world.reader, told)
        world.log.close()


# --- rewrites


def written_in_epochs(place: Place, **settings_: Any) -> Log:
    """Four epochs of small batches, whose borders lie in the middle of segments."""
    log = place.open(QUIET.with_(segment_bytes=1 << 20, **settings_))
    for epoch in range(4):
        for number in range(6):
            log.append(b"%d of %d" % (number, epoch), b"key %d" % (number % 3), timestamp=1000)
            if number == 2:
                log.seal()
        cut(log)
    log.append(b"last", b"key 0", timestamp=1000)
    log.seal()
    log.append(b"active", b"another")
    return log


@pytest.mark.alternating
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "work",
    [
        lambda log: log.compact(),
        lambda log: log._merge_segments(),
        lambda log: log._recompress("gzip"),
        lambda log: (log._merge_segments(), log.compact(), log._recompress("lz4"), log._merge_segments()),
    ],
    ids=["compact", "merge", "recompress", "all"],
)
def test_a_rewrite_keeps_the_epoch_of_every_offset(
    place: Place, work: Callable[[Log], object], compression: str
) -> None:
    """And never joins batches of different epochs."""
    log = written_in_epochs(place, compression=compression)
    before, epochs = epochs_by_offset(log), log._leader_epochs
    assert epochs == ((0, 0), (1, 6), (2, 12), (3, 18), (4, 24))
    batches, segments = sum(len(place.batches(base)) for base in place.bases()), len(log.segments)
    work(log)
    after = sum(len(place.batches(base)) for base in place.bases()), len(log.segments)
    assert after[0] < batches or after[1] < segments, "nothing was joined"
    assert epochs_by_offset(log) == before
    assert log._leader_epochs == epochs
    for base in place.bases():
        for batch in place.batches(base):
            assert len({before[offset] for offset in range(batch.base_offset, batch.last_offset + 1)}) == 1
    assert log.verify()
    log.close()
    place.remove(FILE)
    log = place.open(QUIET)
    assert log._leader_epochs == epochs, "rebuilt from what the rewrite has left"


def test_a_rewrite_keeps_the_epoch_of_batches_that_stand_alone(place: Place) -> None:
    """Batches of idempotent producers are kept unchanged."""
    from sawlog import Producer

    log = place.open(QUIET)
    for sequence in range(3):
        log.append_many([b"x"], producer=Producer(7, 0, sequence))
        log.append(b"y")
        log.append(b"z")
        cut(log)
    log.seal()
    before = epochs_by_offset(log)
    assert sorted(set(before.values())) == [0, 1, 2]
    log._recompress("gzip")
    log._merge_segments()
    assert epochs_by_offset(log) == before


# --- import


def test_imported_batches_keep_their_epochs_and_begin_them(place: Place) -> None:
    log = place.open(QUIET)
    raw = foreign((0, [b"a"]), (1, [b"b"]), epoch=3) + foreign((2, [b"c"]), epoch=5) + foreign((3, [b"d"]), epoch=5)
    assert log._append_at_offsets(raw) == range(4)
    assert log._leader_epochs == ((3, 0), (5, 2))
    assert epochs_by_offset(log) == {0: 3, 1: 3, 2: 5, 3: 5}
    assert place.files()[named(0)] == raw, "not a byte was changed"
    assert as_kafka_reads_it(place.files()[FILE]) == [(3, 0), (5, 2)]
    log.append(b"ours")
    assert epochs_by_offset(log)[4] == 5
    log.close()
    with place.open(QUIET) as log:
        assert (log.recovery.findings, log._leader_epochs) == ([], ((3, 0), (5, 2)))


def test_imported_batches_of_lower_epochs_are_raised(place: Place) -> None:
    log = place.open(QUIET)
    log._append_at_offsets(foreign((0, [b"a"]), epoch=4))
    raw = foreign((1, [b"b"]), epoch=2) + foreign((2, [b"c"]), epoch=6) + foreign((3, [b"d"]), epoch=5)
    kept = bytes(raw)
    log._append_at_offsets(raw)
    assert raw == kept, "the caller's buffer is not changed"
    assert epochs_by_offset(log) == {0: 4, 1: 4, 2: 6, 3: 6}
    assert log._leader_epochs == ((4, 0), (6, 2))
    assert log.verify()
    assert values(log) == [b"a", b"b", b"c", b"d"]


def test_offsets_that_an_import_leaves_out_are_in_an_epoch_as_well(place: Place) -> None:
    log = place.open(QUIET)
    log.append(b"ours")
    log._append_at_offsets(foreign((5, [b"a"]), epoch=2) + foreign((9, [b"b"]), epoch=3))
    found = epochs_by_offset(log)
    assert [found[offset] for offset in range(10)] == sorted(found.values())
    assert (found[0], found[5], found[9]) == (0, 2, 3)
    assert log._leader_epochs[0] == (0, 0)
    assert log.leader_epoch == 3
    for epoch, start in log._leader_epochs[1:]:
        assert (found[start - 1] < epoch, found[start]) == (True, epoch)
    assert log.epoch_end(0) >= 1


def test_an_import_that_fails_loses_no_position(place: Place) -> None:
    directory = FaultyDirectory(MemoryDirectory())
    log = Log.open(directory, QUIET.with_(segment_bytes=300))
    fill(log, 3)
    raw = foreign(*((3 + i, [b"x" * 60]) for i in range(3)), epoch=5)
    raw += foreign(*((6 + i, [b"x" * 60]) for i in range(3)), epoch=6)
    directory.arm(Fault(2, errno=28, operations={"append"}, names="*.log"))
    with pytest.raises(StorageFull):
        log._append_at_offsets(raw)
    directory.disarm()
    assert (log.next_offset, log.visible_offset) == (3, 3)
    assert log.epoch_end(0) == 3
    log.append(b"ours")
    found = epochs_by_offset(log)
    assert found[3] == log.leader_epoch
    assert log.epoch_end(0) >= 3
    assert log._append_at_offsets(foreign((4, [b"y"]), epoch=9)) == range(4, 5)
    assert log._leader_epochs[-1] == (9, 4)
    log.close()


def test_positions_of_before_an_import_stay_good(place: Place) -> None:
    log = place.open(QUIET)
    fill(log, 3)
    assert log.position() == (3, 0)
    log._append_at_offsets(foreign((3, [b"x"]), epoch=8))
    assert log.epoch_end(0) == 3
    assert log.epoch_end(8) == 4


def test_processes_that_take_turns_go_on_in_the_epoch_that_another_has_begun() -> None:
    directory = MemoryDirectory()
    one, two = SharedLog(directory, QUIET), SharedLog(directory, QUIET)
    with one.turn() as log:
        log.append(b"a")
    with two.turn() as log:
        log.append(b"b")
    with one.turn() as log:
        log._append_at_offsets(foreign((2, [b"c"]), epoch=5))
    with two.turn() as log:
        log.append(b"d")
        assert log.leader_epoch == 5
        assert epochs_by_offset(log) == {0: 0, 1: 0, 2: 5, 3: 5}
    with one.turn() as log:
        log.truncate(3)
    with two.turn() as log:
        log.append(b"e")
        assert epochs_by_offset(log) == {0: 0, 1: 0, 2: 5, 3: 6}
    one.close()
    two.close()


# --- a list other than the checkpoint's


def lived(place: Place, closed: bool) -> Place:
    """Eight records. The positions (5, epoch 0) and (6, epoch 1) were lost; (8, epoch 2) is valid."""
    log = place.open(QUIET.with_(durability="os"))
    fill(log, 5)
    log.truncate(3)
    fill(log, 3)
    log.truncate(5)
    fill(log, 3)
    assert log._leader_epochs == ((0, 0), (1, 3), (2, 5))
    if closed:
        log.close()
    return place.copy()


LISTS: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "cut": b"0\n3\n0 0\n1 3\n2",
    "another": b"0\n1\n0 0 0\n",
    "older": Epochs(((0, 0), (1, 3))).encode(),
    "oldest": Epochs().encode(),
    "newer": Epochs(((0, 0), (1, 3), (2, 5), (3, 8))).encode(),
    "newer and not cut": Epochs(((0, 0), (1, 3), (3, 4))).encode(),
    "of another log": Epochs(((7, 2),)).encode(),
}


def with_list(place: Place, which: str) -> Place:
    data = LISTS[which]
    if data is None:
        place.remove(FILE)
    else:
        place.write(FILE, data)
    return place


@pytest.mark.alternating
@pytest.mark.parametrize("told", [True, False], ids=["published", "restarted"])
@pytest.mark.parametrize("which", LISTS)
def test_a_reader_does_without_a_list_that_is_not_the_last(place: Place, which: str, told: bool) -> None:
    """The reader may come before the next writer repairs the list."""
    damaged = with_list(lived(place, closed=False), which)
    if not told:
        damaged.remove("visible")
    before = damaged.files()
    with Log.open(damaged.directory(), mode="r") as reader:
        positions(reader)
        assert reader.position() == (8, 2)
    assert damaged.files() == before


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("which", LISTS)
def test_a_list_that_is_not_the_last_is_rebuilt_from_the_batches(place: Place, which: str, closed: bool) -> None:
    """Lost records stay lost, existing records stay, and no epoch is used twice."""
    damaged = with_list(lived(place, closed), which)
    log = damaged.open(QUIET)
    positions(log)
    if which in ("missing", "empty", "cut", "another"):
        assert (Where.EPOCHS, Action.REBUILD) in {(each.where, each.action) for each in log.recovery.findings}
    before = log.leader_epoch
    fill(log, 2)
    assert epochs_by_offset(log)[8] == before
    positions(log)
    cut(log)
    assert log.leader_epoch == before + 1
    log.close()
    log = damaged.open(QUIET)
    assert log.recovery.findings == []
    assert as_kafka_reads_it(damaged.files()[FILE]) == list(log._leader_epochs)
    positions(log)


def positions(log: Log) -> None:
    """Check which positions of `lived` still refer to existing records."""
    assert log.visible_offset >= 8
    assert [log.epoch_end(0), log.epoch_end(1)] == [3, 5]
    assert log.epoch_end(2) >= 8
    assert log.leader_epoch >= 2
    assert list(epochs_by_offset(log).values())[:8] == [0] * 3 + [1] * 2 + [2] * 3


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("what", ["checkpoint", "both"])
def test_epochs_are_rebuilt_without_a_checkpoint(place: Place, what: str, closed: bool) -> None:
    damaged = lived(place, closed)
    damaged.flip("checkpoint", 30)
    if what == "both":
        damaged.remove(FILE)
    with Log.open(damaged.directory(), mode="r") as reader:
        positions(reader)
    log = damaged.open(QUIET)
    positions(log)
    assert log.leader_epoch > 2, "nobody knows how it ended"


@pytest.mark.parametrize("durable", [4, 5])
def test_an_epoch_that_was_written_down_and_not_begun_ends_a_truncation_or_is_wrong(place: Place, durable: int) -> None:
    """A truncation to 4 was interrupted after list and checkpoint were written, before a byte was cut; or the
    checkpoint says that more than that is durable, which no truncation does."""
    interrupted = lived(place, closed=False)
    planned = Epochs(((0, 0), (1, 3), (3, 4)))
    interrupted.write(FILE, planned.encode())
    saved = Checkpoint.decode(interrupted.files()["checkpoint"])
    saved = replace(saved, durable_offset=min(durable, saved.durable_offset), leader_epoch=3, epochs_crc=planned.crc)
    if durable == 5:
        [at] = [batch.position for batch in interrupted.batches(0) if batch.base_offset == 5]
        saved = replace(saved, durable_offset=5, segment=0, position=at)
    interrupted.write("checkpoint", saved.encode())
    interrupted.remove("visible")
    end = 4 if durable == 4 else 8
    with Log.open(interrupted.directory(), mode="r") as reader:
        assert (reader.next_offset, reader.epoch_end(2)) == (end, end), "a false alarm"
    log = interrupted.open(QUIET)
    assert log.next_offset == end
    assert log.epoch_end(2) == end, "a false alarm"
    assert [log.epoch_end(0), log.epoch_end(1)] == [3, min(end, 5)]
    assert log.leader_epoch > 3, "the number may have been seen by somebody"


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_list_that_was_lost_is_there_again_after_opening(place: Place, closed: bool) -> None:
    """Otherwise every opening and every reader would read the whole log to rebuild it."""
    damaged = lived(place, closed)
    damaged.remove(FILE)
    log = damaged.open(QUIET)
    assert as_kafka_reads_it(damaged.files()[FILE]) == list(log._leader_epochs)
    log.close()
    log = damaged.open(QUIET)
    assert log.recovery.findings == []


# --- version 0.2


def as_version_02(place: Place, *, closed: bool, epochs: dict[int, int] | None = None) -> Place:
    """Return the records as version 0.2 leaves them: a checkpoint without epochs, no list, no published end."""
    made = place.copy()
    saved = Checkpoint.decode(made.files()["checkpoint"])
    fields = {name: getattr(saved, name) for name in ("clean", "durable_offset", "segment", "position", "log_start")}
    assert saved.clean == closed
    made.write("checkpoint", LINE.append_to(f"sawlog checkpoint 1\n{json.dumps(fields)}\n".encode()))
    for name in ("visible", FILE):
        if name in made.names():
            made.remove(name)
    for base in made.bases():
        data = bytearray(made.files()[named(base)])
        for batch in made.batches(base):
            epoch = (epochs or {}).get(batch.base_offset, 0)
            kernel.patch_place(memoryview(data), batch.position, batch.base_offset, epoch)
        made.write(named(base), bytes(data))
    return made


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize(
    "epochs",
    [{}, dict.fromkeys(range(8), 5), dict.fromkeys(range(4), 5), {0: 2, 1: 2, 2: 5, 3: 5, 4: 5, 5: 0, 6: 0, 7: 1}],
    ids=["zero", "imported", "imported, then appended", "up and down"],
)
def test_a_log_of_version_02_opens_and_loses_no_position(place: Place, closed: bool, epochs: dict[int, int]) -> None:
    log = place.open(QUIET)
    for start in (0, 5):
        sent = fill(log, 5 if not start else 3, start=start)
        if not start:
            log.seal()
    sent = values(log)
    if closed:
        log.close()
    old = as_version_02(place, closed=closed, epochs=epochs)
    before = old.files()
    with Log.open(old.directory(), mode="r") as reader:
        assert values(reader) == values(reader.follow(timeout=0)) == sent
        reached = [
            reader.position(),
            (8, -1),
            *((offset + 1, epoch) for offset, epoch in epochs_by_offset(reader).items()),
        ]
        assert all(offset <= reader.epoch_end(epoch) for offset, epoch in reached)
    assert old.files() == before, "a reader upgrades nothing"
    log = old.open(QUIET)
    assert log.recovery.clean == closed
    assert log.recovery
    assert values(log) == sent
    for _ in range(3):
        log.append(b"new")
        assert all(offset <= log.epoch_end(epoch) for offset, epoch in reached), f"{reached} {log._leader_epochs}"
    by_offset = epochs_by_offset(log)
    assert by_offset[8] == log.leader_epoch >= max(by_offset.values())
    saved = Checkpoint.decode(old.files()["checkpoint"])
    assert saved.leader_epoch == log.leader_epoch, "upgraded at the first write"
    log.truncate(6)
    assert all((offset <= log.epoch_end(epoch)) == (offset <= 6) for offset, epoch in reached), "lost from here on"
    log.close()
    log = old.open(QUIET)
    assert log.recovery.findings == []
    assert all((offset <= log.epoch_end(epoch)) == (offset <= 6) for offset, epoch in reached if epoch >= 0)


def test_a_log_of_version_02_that_was_closed_cleanly_stays_in_its_epoch(place: Place) -> None:
    log = place.open(QUIET)
    fill(log, 3)
    log.close()
    old = as_version_02(place, closed=True)
    log = old.open(QUIET)
    assert log._leader_epochs == ((0, 0),)
    assert FILE not in old.names()


# --- following


def test_a_follower_whose_records_were_replaced_learns_the_end_of_its_epoch(place: Place) -> None:
    """The log has grown beyond the follower's position: continuing there would skip new records below it."""
    log = place.open(QUIET)
    fill(log, 8)
    reader = Log.open(place.directory(), mode="r")
    for each in (log, reader):
        records = each.follow(timeout=PATIENCE_S)
        for _ in range(8):
            next(records)
        log.truncate(3)
        fill(log, 9, start=100)
        with pytest.raises(OffsetOutOfRange) as caught:
            next(records)
        assert (caught.value.requested, caught.value.next) == (8, 3)
        assert [record.offset for record in each.follow(3, timeout=0)] == list(range(3, 12))
        log.truncate(3)
        fill(log, 5, start=200)
    reader.close()


def test_a_waiting_follower_raises_when_its_records_are_truncated(place: Place) -> None:
    log = place.open(QUIET)
    fill(log, 8)
    for each in (log, Log.open(place.directory(), mode="r")):
        records = each.follow(timeout=PATIENCE_S)
        for _ in range(log.next_offset):
            next(records)
        requested, outcome = log.next_offset, []

        def wait(records: Any = records, outcome: list[Any] = outcome) -> None:
            try:
                outcome.append(next(records, None))
            except OffsetOutOfRange as error:
                outcome.append((error.requested, error.next))

        thread = threading.Thread(target=wait)
        thread.start()
        log.truncate(log.next_offset - 2)
        thread.join(PATIENCE_S)
        assert outcome == [(requested, requested - 2)]
        if each is not log:
            each.close()


def test_a_follower_in_another_process_learns_the_end_of_its_epoch(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", QUIET)
    fill(log, 8)
    with Elsewhere(tmp_path / "log") as other:
        other.tell(
            "from sawlog import Log; from sawlog.errors import OffsetOutOfRange; log = Log.open(place, mode='r')"
        )
        other.tell("records = log.follow(timeout=30)")
        other.tell(
            "def following():\n"
            "    try: return next(records).offset\n"
            "    except OffsetOutOfRange as error: return (error.requested, error.next)\n"
        )
        assert [other.tell("following()") for _ in range(8)] == list(range(8))
        log.truncate(3)
        fill(log, 9, start=100)
        assert other.tell("following()") == (8, 3)
        assert other.tell("(log._leader_epochs, log.epoch_end(0), log.position())") == (((0, 0), (1, 3)), 3, (12, 1))
        other.tell("records = log.follow(3, timeout=30)")
        assert [other.tell("following()") for _ in range(9)] == list(range(3, 12))
    log.close()


def test_a_follower_goes_on_over_an_epoch_that_took_nothing_from_it(place: Place) -> None:
    log = place.open(QUIET)
    reader = Log.open(place.directory(), mode="r")
    following = [each.follow(timeout=PATIENCE_S) for each in (log, reader)]
    for round_ in range(4):
        fill(log, 3)
        for records in following:
            assert [next(records).offset for _ in range(3)] == list(range(3 * round_, 3 * round_ + 3))
        cut(log)
    assert log.leader_epoch == 4
    reader.close()


@pytest.mark.sampled(1)  # starts processes
@pytest.mark.parametrize("policy", ["always", "os"])
def test_a_follower_goes_on_when_another_writer_has_recovered_the_log(tmp_path: Path, policy: Any) -> None:
    with Elsewhere(tmp_path / "log") as other:
        other.tell(f"from sawlog import Log, LogConfig; log = Log.open(place, LogConfig(durability={policy!r}))")
        other.tell("[log.append(b'%d' % i) for i in range(5)] and None")
        reader = Log.open(tmp_path / "log", mode="r")
        records = reader.follow(timeout=PATIENCE_S)
        assert [next(records).offset for _ in range(5)] == list(range(5))
        other.kill()
    with Log.open(tmp_path / "log", QUIET) as log:
        assert log._leader_epochs == ((0, 0), (1, 5))
        log.append(b"5")
        assert next(records).value == b"5"
        assert reader.epoch_end(0) == 5
    reader.close()


# --- epochs that cannot be recorded


@pytest.mark.parametrize("name", [FILE, "checkpoint"])
@pytest.mark.parametrize("effect", ["nothing", "all"])
def test_a_log_whose_new_epoch_cannot_be_written_down_is_not_opened(name: str, effect: Any) -> None:
    """No record is appended in an epoch that is not durable. The next attempt succeeds."""
    disk = FaultyStorage(seed=6)
    log = Log.open(disk, QUIET.with_(durability="os"))
    fill(log, 3)
    disk = disk.process_dies()
    disk.arm(Fault(operations={"replace"}, names=name, effect=effect))
    with pytest.raises(StorageError):
        Log.open(disk, QUIET)
    disk.disarm()
    with Log.open(disk, QUIET) as log:
        assert len(log) == 3
        assert log.epoch_end(0) == 3
        assert log.leader_epoch >= 1
        log.append(b"x")
        assert epochs_by_offset(log)[3] == log.leader_epoch
    with Log.open(disk, QUIET) as log:
        assert log.recovery.findings == []


def test_a_damaged_batch_does_not_keep_the_epochs_from_being_rebuilt(place: Place) -> None:
    damaged = lived(place, closed=True)
    damaged.remove(FILE)
    damaged.flip(named(0), damaged.batches(0)[1].position + 65)
    log = damaged.open(QUIET)
    assert [log.epoch_end(0), log.epoch_end(1)] == [3, 5]
    assert log.epoch_end(2) >= 8
