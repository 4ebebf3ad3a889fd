"""Logs with a flipped bit: the promises about each of them, and their judge; see bits.py.

All hold the same records, in three segments: single records, batches, a compressed batch, a stream, a producer's
batches, a value that looks like a batch, tombstones. They differ in how they ended:

    closed             cleanly
    killed             the watermark lies in the middle of the last segment
    killed, stale      the watermark is older than the last rotation
    killed, bare       there is no checkpoint
    swap               a rewrite has been renamed to `.swap`, and everything that it replaces is still there
    swap, begun        part of what it replaces is gone

`Expected` derives the permitted loss from the bytes alone: the batch of the flip, and the position of the watermark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sawlog import Log, LogConfig, Producer, Record
from sawlog.batch.build import encode
from sawlog.batch.header import BatchHeader, scan
from sawlog.errors import CorruptBatch, OffsetOutOfRange
from sawlog.log.checkpoint import Checkpoint
from sawlog.log.recovery import Where
from sawlog.log.verify import Problem
from sawlog.storage import MemoryDirectory
from sawlog.testing import Call, FaultyDirectory

from .bits import Fixture, Flip, disk, files_of

_CONFIG = LogConfig(durability="os", index_interval_bytes=100, segment_age_ms=None, checkpoint_interval_ms=1_000_000)
#: The first offset that is not trimmed.
_LOWEST = 2
#: A segment's records are of one day, the next one's of the day after; so ages need not be exact.
_FIRST, _SECOND, _THIRD = (1_000_000_000_000 + 86_400_000 * day for day in range(3))
_TIMES = [day + more for day in (_FIRST, _SECOND, _THIRD) for more in (-1, 4)]
#: Bytes of a batch's header without meaning, which its checksum does not cover.
_LEADER_EPOCH = range(12, 16)
#: Bytes that determine position and base offset of the next batch: length, base offset, last offset delta.
_PLACE = {*range(12), *range(23, 27)}
_CACHES = (".index", ".timeindex", "producers", "maintenance", "LOCK")


@dataclass(frozen=True)
class Whole:
    """The contents of an undamaged log."""

    #: All records by offset, including trimmed ones.
    records: Mapping[int, Record]
    next_offset: int
    #: Of every segment's file, the batches.
    batches: Mapping[str, list[BatchHeader]]
    #: File and position up to which everything is known to be durable; None if unknown.
    watermark: tuple[str, int] | None
    closed: bool
    #: The first offset not older than a time, were nothing trimmed.
    offset_at: Mapping[int, int] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """The file that was written to."""
        return max(self.batches)

    def batch_of(self, flip: Flip) -> BatchHeader:
        """The batch that the flip is in."""
        return next(
            each for each in self.batches[flip.path] if each.position <= flip.position < each.position + each.size_bytes
        )


# --- making them


def _fill(log: Log) -> None:
    """Three segments' worth; the last one stays active, and its end is not synced."""
    log.append(b"first", key=b"k", headers=[("h", b"1")], timestamp=_FIRST)
    log.append_many([(b"a", b"k", (), _FIRST + 1), (None, b"k", (), _FIRST + 2), (b"c" * 30, None, (), _FIRST + 3)])
    log.append_many([(b"p0", b"p", (), _FIRST + 4)], producer=Producer(7, 0, 0))
    log.seal()
    looks_like_the_next = encode([(b"inner", None, (), _SECOND)], base_offset=6)
    log.append(looks_like_the_next, timestamp=_SECOND)
    log.append_batches(encode([(b"zip" * 40, b"z", (), _SECOND + 1 + i) for i in range(3)], compression="zstd"))
    log.append_stream([b"str", b"eam"], key=b"s", timestamp=_SECOND + 5)
    log.seal()
    log.append(b"kept", timestamp=_THIRD)
    log.append_many([(b"p1", b"p", (), _THIRD + 1), (b"p2", b"p", (), _THIRD + 2)], producer=Producer(7, 0, 1))
    log.append(b"", timestamp=_THIRD + 3)
    log._scrub()
    log.sync()
    log.trim(_LOWEST)  # which writes the watermark, too
    log.append(b"above", key=b"k", timestamp=_THIRD + 10)
    log.append_many([(b"the", None, (), _THIRD + 11), (b"end", None, (), _THIRD + 12)])


def _states() -> dict[str, dict[str, bytes]]:
    """The files of every kind of end, by its name."""
    directory = MemoryDirectory()
    log = Log.open(directory, _CONFIG)
    first = files_of(directory)["checkpoint"]
    _fill(log)
    killed = files_of(directory)
    log.close()
    stale = Checkpoint(clean=False, durable_offset=1, segment=0, position=_end_of(killed, 0, 0), log_start=0)
    assert Checkpoint.decode(first).log_start == 0
    return {
        "closed": files_of(directory),
        "killed": killed,
        "killed, stale": {**killed, "checkpoint": stale.encode()},
        "killed, bare": {name: data for name, data in killed.items() if name != "checkpoint"},
    }


def _end_of(files: Mapping[str, bytes], base: int, number: int) -> int:
    batch = scan(files[f"{base:020d}.log"])[number]
    return batch.position + batch.size_bytes


def whole_of(files: Mapping[str, bytes]) -> Whole:
    """Return the contents of a log, read from a copy of its files."""
    batches = {name: scan(data) for name, data in files.items() if name.endswith(".log")}
    saved = Checkpoint.decode(files["checkpoint"]) if "checkpoint" in files else None
    untrimmed = disk({name: data for name, data in files.items() if name != "checkpoint"})
    with Log.open(untrimmed, _CONFIG, mode="r") as log:
        records = {record.offset: record for record in log}
        following = log.next_offset
        times = {when: log.offset_at(when) for when in _TIMES}
    mark = None if saved is None else (f"{saved.segment:020d}.log", saved.position)
    return Whole(records, following, batches, mark, saved is not None and saved.clean, times)


def fixtures() -> list[Fixture]:
    """One for every kind of end."""
    return [
        *(Fixture(name, files, ["*"], _Judge(whole_of(files))) for name, files in _states().items()),
        *_swaps(),
    ]


# --- judging


def readable(log: Log, whole: Whole) -> tuple[dict[int, Record], list[CorruptBatch]]:
    """Everything that a scan gives, continuing after damage; and the damage."""
    found: dict[int, Record] = {}
    damage: list[CorruptBatch] = []
    offset, end = log.lowest_offset, log.next_offset
    while offset < end:
        try:
            for record in log.scan(offset):
                assert record.offset >= offset, "a scan goes back"
                assert record == whole.records.get(record.offset), f"{record} was never written"
                found[record.offset] = record
                offset = record.offset + 1
            break
        except CorruptBatch as error:
            damage.append(error)
            if error.next_offset is None:
                break
            assert error.next_offset > offset, "the next readable offset is no further on"
            offset = error.next_offset
    return found, damage


def look(log: Log, whole: Whole) -> tuple[set[int], bool]:
    """Return the offsets that can be read in any way, and the verdict of `verify`."""
    found, damage = readable(log, whole)
    for offset in range(log.lowest_offset, log.next_offset):
        try:
            assert log.read(offset) == whole.records[offset], f"another record at {offset}"
            assert offset in found, f"{offset} can be read, but a scan does not give it"
        except (CorruptBatch, OffsetOutOfRange):  # or removed by compaction
            assert offset not in found, f"a scan gives {offset}, but it cannot be read"
    for first, last in _runs(found):
        rows = [row for batch in log.scan_arrow(first, last + 1) for row in batch["value"].to_pylist()]
        assert rows == [found[offset].value for offset in range(first, last + 1)], "Arrow differs"
    for when, offset in whole.offset_at.items():
        try:
            at = log.offset_at(when)
        except CorruptBatch:
            continue  # it is in the way
        there = [each for each in found if each >= offset]
        assert at in (offset, log.lowest_offset, *there[:1], log.next_offset), f"offset_at({when}) is {at}"
        assert at <= min(there, default=at), f"offset_at({when}) is {at}, and {there[0]} is not older"
    problems = [each for each in log.verify().problems if not _is_of_an_index(each)]
    assert bool(damage) <= bool(problems), f"reading meets {damage}, verify nothing"
    return set(found), not problems


def _is_of_an_index(problem: Problem) -> bool:
    """True for a wrong index entry, which `verify` reports and which costs readers nothing."""
    return problem.reason.startswith("the index says")


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs


@dataclass(frozen=True)
class _Judge:
    """Of a log that holds what `whole` says."""

    whole: Whole

    def __call__(self, fixture: Fixture, flip: Flip) -> str:
        if flip.path.endswith(".log"):
            batch = self.whole.batch_of(flip)
            if flip.position - batch.position in _LEADER_EPOCH:
                return self._costs_nothing(fixture, flip)
            if self._is_durable(flip, batch):
                return self._is_corruption(fixture, flip, batch)
            return self._is_torn(fixture, flip, batch)
        if flip.path == "checkpoint":
            return self._costs_the_watermark(fixture, flip)
        assert flip.path.endswith(_CACHES), f"nobody has said what {flip.path} is"
        return self._costs_nothing(fixture, flip)

    def _is_durable(self, flip: Flip, batch: BatchHeader) -> bool:
        whole = self.whole
        if whole.closed or flip.path != whole.last:
            return True
        if whole.watermark is None:  # then a torn tail is what nothing follows that is whole and has a known place
            behind = len(whole.batches[whole.last]) - whole.batches[whole.last].index(batch) - 1
            return behind >= 2 or (behind == 1 and flip.position - batch.position not in _PLACE)
        return flip.path < whole.watermark[0] or (flip.path, batch.position) < whole.watermark

    def _offsets(self, lowest: int = _LOWEST) -> set[int]:
        return {offset for offset in self.whole.records if offset >= lowest}

    @property
    def _lowest(self) -> int:
        """Trimmed records return with a checkpoint that does not record the trim."""
        return _LOWEST if self.whole.closed or (self.whole.watermark or ("",))[0] == self.whole.last else 0

    def _is_corruption(self, fixture: Fixture, flip: Flip, batch: BatchHeader) -> str:
        """All but the damaged batch is there, for readers and writers, and everybody says that it is damaged."""
        whole, directory = self.whole, fixture.damaged(flip)
        lost = set(range(batch.base_offset, batch.last_offset + 1))
        wanted = self._offsets(self._lowest) - lost
        gone = lost <= set(range(self._lowest))
        with Log.open(directory, _CONFIG, mode="r") as log:
            found = look(log, whole)
            if whole.watermark is None and flip.path == whole.last:
                # The watermark is unknown, so an incomplete batch may be one that is just being written.
                assert found == ({offset for offset in wanted if offset < batch.base_offset}, True)
            else:
                assert found == (wanted, False), f"a reader has {found}, not {wanted}"
                assert gone or readable(log, whole)[1], "a reader says nothing"
                assert log.next_offset == whole.next_offset, f"a reader ends at {log.next_offset}"
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        with Log.open(directory, _CONFIG) as log:
            found = look(log, whole)
            assert found == (wanted, False), f"a writer has {found}, not {wanted}"
            if not whole.closed and flip.path == whole.last:
                assert log.recovery.corruption, "opening says nothing"
            assert log.recovery.truncated_bytes == 0, "something was cut"
            assert log.next_offset == whole.next_offset, f"a writer goes on at {log.next_offset}"
            if 11 not in lost:
                self._knows_its_producer(log)
            new = log.read(log.append(b"new", timestamp=2000))
            assert new.offset == whole.next_offset
            killed = disk(files_of(directory))
        before = flip.of(fixture.files)[flip.path]
        more = Whole({**whole.records, new.offset: new}, new.offset + 1, {}, None, True)
        for how, left in (("closed", directory), ("killed", killed)):
            assert left.read(flip.path)[: len(before)] == before, f"{how}, the damaged file is another one"
            with Log.open(left, _CONFIG) as log:
                found = look(log, more)
                assert found == (wanted | {new.offset}, False), f"{how} and opened again, it has {found}"
        return "reported, the rest served"

    def _is_torn(self, fixture: Fixture, flip: Flip, batch: BatchHeader) -> str:
        """The cut tail was never acknowledged; it is set aside, and everything before it is there."""
        whole, directory = self.whole, fixture.damaged(flip)
        wanted = {offset for offset in self._offsets(self._lowest) if offset < batch.base_offset}
        with Log.open(directory, _CONFIG, mode="r") as log:
            found = look(log, whole)
            assert found == (wanted, True), f"a reader has {found}, not {wanted}"
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        tail = flip.of(fixture.files)[flip.path][batch.position :]
        with Log.open(directory, _CONFIG) as log:
            found = look(log, whole)
            assert found == (wanted, True), f"a writer has {found}, not {wanted}"
            assert log.next_offset == batch.base_offset, f"a writer goes on at {log.next_offset}"
            assert not log.recovery.corruption
            assert log.recovery.truncated_bytes == len(tail)
            (kept,) = log.recovery.torn_files
            assert directory.read(kept) == tail, "what was cut is not what was kept"
        return "cut as a torn tail, kept aside"

    def _costs_nothing(self, fixture: Fixture, flip: Flip) -> str:
        """Everything is as it was."""
        whole, directory = self.whole, fixture.damaged(flip)
        wanted = self._offsets(self._lowest)
        with Log.open(directory, _CONFIG, mode="r") as log:
            self._is_whole(log, wanted)
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        with Log.open(directory, _CONFIG) as log:
            self._is_whole(log, wanted)
            assert not log.recovery.corruption, f"{log.recovery}"
            assert log.recovery.clean is whole.closed
            self._goes_on(log)
        return "costs nothing"

    def _costs_the_watermark(self, fixture: Fixture, flip: Flip) -> str:
        """Trimmed records may return if they still exist; nothing else changes, and opening reports it."""
        directory = fixture.damaged(flip)
        with Log.open(directory, _CONFIG, mode="r") as log:
            self._is_whole(log, self._offsets(0))
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        with Log.open(directory, _CONFIG) as log:
            self._is_whole(log, self._offsets(0))
            assert [each.where for each in log.recovery.findings].count(Where.CHECKPOINT) == 1
            assert not log.recovery.corruption, f"{log.recovery}"
            self._goes_on(log)
        return "told, and rebuilt"

    def _is_whole(self, log: Log, wanted: set[int]) -> None:
        whole = self.whole
        found, damage = readable(log, whole)
        assert set(found) == wanted, f"{set(found)}, not {wanted}"
        assert not damage, f"{damage}"
        assert log.next_offset == whole.next_offset
        for when, offset in whole.offset_at.items():
            assert log.offset_at(when) == max(offset, log.lowest_offset), f"offset_at({when})"
        for problem in log.verify().problems:
            assert _is_of_an_index(problem), f"{problem}"

    @staticmethod
    def _knows_its_producer(log: Log) -> None:
        found = log.append_many([b"p1", b"p2"], producer=Producer(7, 0, 1))
        assert found == range(11, 13), f"a producer is forgotten: its batch is stored again at {found}"

    def _goes_on(self, log: Log) -> None:
        """Producers are known, retention removes old segments and no others, the next offset follows."""
        following = self.whole.next_offset
        self._knows_its_producer(log)
        assert log.append_many([b"p3"], producer=Producer(7, 0, 3)) == range(following, following + 1)
        before = log.lowest_offset
        assert log.remove_expired(time.time() * 1000 - (_FIRST + _SECOND) / 2) == 5 - before, "retention is misled"
        assert log.lowest_offset == 5


# --- rewrites


def _interrupted(rewrite: Callable[[Log], object]) -> list[dict[str, bytes]]:
    """Return the files at every step of a rewrite from its commit on."""
    inner = MemoryDirectory()
    directory = FaultyDirectory(inner)
    log = Log.open(directory, _CONFIG)
    _fill(log)
    log.seal()
    steps: list[dict[str, bytes]] = []

    def note(_: Call) -> None:
        if any(name.endswith(".swap") for name in inner.names()):
            steps.append(files_of(inner))

    directory.before = note
    rewrite(log)
    directory.before = None
    return steps


def _swaps() -> list[Fixture]:
    made: list[Fixture] = []
    for name, rewrite in (("compaction", lambda log: log.compact()), ("merge", lambda log: log._merge_segments())):
        steps = _interrupted(rewrite)
        for when, files in (("swap", steps[0]), ("swap, begun", steps[-1])):
            swap = next(each for each in files if each.endswith(".swap"))
            run = [each for each in files if each[:20] < swap[21:41] and each[:20].isdigit()]
            made.append(Fixture(f"{when} of a {name}", files, run, _SwapJudge.of(files, swap)))
    return made


@dataclass(frozen=True)
class _SwapJudge:
    """Judge of a log during a rewrite: `whole` holds its contents before, `kept` those after."""

    swap: str
    #: True if everything that is to be replaced is still there.
    untouched: bool
    whole: Whole
    kept: frozenset[int]
    batches: list[BatchHeader]

    @classmethod
    def of(cls, files: Mapping[str, bytes], swap: str) -> _SwapJudge:
        base, end = int(swap[:20]), int(swap[21:41])
        batches = scan(files[swap])
        full = _interrupted(lambda log: log.compact())[0]
        whole = whole_of({name: data for name, data in full.items() if not name.endswith(".swap")})
        with Log.open(disk(files), _CONFIG, mode="r") as log:
            kept = frozenset(readable(log, whole)[0])
        old = [name for name in files if name.endswith(".log") and base <= int(name[:20]) < end]
        return cls(swap, len(old) == 3, whole, kept, batches)

    def __call__(self, fixture: Fixture, flip: Flip) -> str:
        if flip.path != self.swap:
            return self._serves(fixture, flip, self.kept, self.kept, "costs nothing")
        batch = next(each for each in self.batches if flip.position < each.position + each.size_bytes)
        if flip.position - batch.position in _LEADER_EPOCH:
            return self._serves(fixture, flip, self.kept, self.kept, "costs nothing")
        rest = self.kept - set(range(batch.base_offset, batch.last_offset + 1))
        if self.untouched:
            everything = frozenset(offset for offset in self.whole.records if offset >= _LOWEST)
            return self._serves(fixture, flip, rest, everything, "set aside, the old files serve", damaged=True)
        return self._serves(fixture, flip, rest, rest, "reported, the rest served", damaged=True)

    def _serves(
        self,
        fixture: Fixture,
        flip: Flip,
        reader: frozenset[int],
        writer: frozenset[int],
        what: str,
        *,
        damaged: bool = False,
    ) -> str:
        """A reader has that much before it is opened for writing, a writer that much, now and later."""
        directory = fixture.damaged(flip)
        with Log.open(directory, _CONFIG, mode="r") as log:
            found = look(log, self.whole)
            assert found == (reader, not damaged), f"a reader has {found}, not {reader}"
        assert files_of(directory) == flip.of(fixture.files), "a reader has changed something"
        for opened in ("first", "second"):
            with Log.open(directory, _CONFIG) as log:
                found = look(log, self.whole)
                assert found == (writer, not damaged or self.untouched), f"a writer has {found}, not {writer}"
                assert log.next_offset == self.whole.next_offset
                told = bool(log.recovery.corruption)
                assert told is (damaged and opened == "first"), f"opening says {log.recovery}"
        if damaged:
            aside = [name for name in directory.names() if name.endswith(".quarantined")]
            assert len(aside) == 1, f"{aside} were kept aside"
        return what
