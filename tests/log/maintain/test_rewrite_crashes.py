"""Maintenance interrupted at every step: the log has its old content or the intended one.

For each task the I/O calls of an undisturbed run are counted. Then it runs again and again on a copy of the same log. A
*crash* is a call from which on every call fails; then the files on the disk are opened. An *error* is one failing call
while the rest works. A *power cut* is a crash that also loses everything unsynced: bytes, and any of the names changed
since the directory was last synced. A *kill* is a real process, on real files.

Each swap is atomic, so meanwhile the log has every record that is kept and some of those that are dropped, and no
other record. Repeating the maintenance leads to the same result.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, LogConfig, MaintenanceConfig
from sawlog.errors import LogFailed, SawlogError
from sawlog.storage import MemoryDirectory, MemoryStorage
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ...batch.clients import Seen, seen
from ...faults.seeds import repeat
from ...processes import rewriting
from ...processes.launch import PATIENCE_S, start
from ..keyed import Filling
from ..sampling import some_of, some_or_all

CHANGES = frozenset({"append", "create", "remove", "rename", "replace", "sync", "truncate", "write_at"})
pytestmark = pytest.mark.usefixtures("no_background")

CONFIG = LogConfig(segment_bytes=9000, index_interval_bytes=300, durability="os", checkpoint_interval_ms=3_600_000)
Content = tuple[tuple[str, bytes], ...]
KILLS = int(os.environ.get("SAWLOG_KILLS", "2"))
#: Number of crashes, errors or power cuts per kind of maintenance in the quick tests.
SOME = 12
SEED = int(os.environ.get("SAWLOG_SEED", "11"))


def compact(log: Log) -> None:
    log.compact()


def forget(log: Log) -> None:
    log.compact(delete_retention_ms=0)


def everything(log: Log) -> None:
    log.maintain(MaintenanceConfig(compact=True, recompress_after_ms=0, scrub_interval_ms=0))


#: The maintenance operation, and the preparation of the log.
WORK: dict[str, tuple[Callable[[Log], object], list[Callable[[Log], object]]]] = {
    "compaction": (compact, []),
    "compaction of tombstones": (forget, [compact]),
    "merging": (lambda log: log._merge_segments(), []),
    "recompression": (lambda log: log._recompress(), []),
    "everything": (everything, []),
}


def copy_of(directory: MemoryDirectory) -> MemoryDirectory:
    """Return the files that a dead process leaves behind."""
    made = MemoryDirectory(directory.path)
    for name in directory.names():
        made.replace(name, directory.read(name))
    return made


def filled(before: list[Callable[[Log], object]]) -> MemoryDirectory:
    """A log with several sealed segments, closed cleanly."""
    directory = MemoryDirectory()
    with Log.open(directory, CONFIG) as log:
        filling = Filling(log, random.Random(5), keys=8)
        for _ in range(3):
            while filling.log.segments[-1].size_bytes < 1200:
                filling.random.choice([filling.append_many, filling.produce, filling.mark])()
            log.append(None, b"k1")
            log.seal()
        for work in before:
            work(log)
        log.append(b"last", b"k")
    return directory


def content_of(disk: MemoryDirectory) -> Content:
    """Return the content of a disk, so that equal disks are checked once."""
    return tuple((name, disk.read(name)) for name in disk.names())


def records(log: Log) -> list[Seen]:
    return [seen(record) for record in log.scan()]


class Case:
    """A maintenance operation: the log before, the records after, and the calls in between."""

    def __init__(self, name: str) -> None:
        self.work, before = WORK[name]
        self.image = filled(before)
        directory = FaultyDirectory(copy_of(self.image))
        log = Log.open(directory, CONFIG)
        self.before = records(log)
        at = len(directory.calls)
        self.work(log)
        self.calls = directory.calls[at:]
        self.after = records(log)
        log.close()
        assert any(call.operation == "rename" for call in self.calls), "there was nothing to do"

    @property
    def changes(self) -> list[Call]:
        return [call for call in self.calls if call.operation in CHANGES]

    def check_between(self, found: list[Seen]) -> None:
        """Check for all kept records, perhaps some dropped ones, nothing else, in order."""
        stay, there = set(self.after), set(found)
        assert [record for record in found if record in stay] == self.after
        assert [record for record in self.before if record in there] == found

    def crashed(self, number: int, effect: Any) -> MemoryDirectory:
        """Return the disk if every call fails from that change on."""
        directory = FaultyDirectory(copy_of(self.image))
        log = Log.open(directory, CONFIG)
        directory.arm(Fault(number, operations=CHANGES, forever=True, effect=effect, undo=False))
        try:
            self.work(log)
        except SawlogError:
            pass
        assert directory.failed
        assert isinstance(directory.inner, MemoryDirectory)
        return copy_of(directory.inner)

    def check_crashed(self, image: MemoryDirectory) -> None:
        """Check a reader before the next writer, the next writer, and repeated maintenance."""
        with Log.open(copy_of(image), CONFIG, mode="r") as reader:
            self.check_between(records(reader))
            assert reader.next_offset == self.before[-1][0] + 1
        self.check_opening(image)

    def check_opening(self, image: MemoryDirectory) -> None:
        with Log.open(image, CONFIG) as log:
            assert log.recovery, str(log.recovery)
            assert log.verify(), str(log.verify())
            found = records(log)
            self.check_between(found)
            assert log.next_offset == self.before[-1][0] + 1
            self.work(log)
            assert log.verify()
            self.check_done(records(log))
        with Log.open(image, CONFIG) as log:
            assert not log.recovery.findings
            assert log.append(b"on") == self.before[-1][0] + 1

    def check_done(self, found: list[Seen]) -> None:
        """Check for the intended content; a tombstone may remain until the next run if its state was not written."""
        stay = set(self.after)
        assert [r for r in found if r in stay or r[3] is None or r[4] is not None] == self.after


@pytest.fixture(scope="module", params=list(WORK))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def all_of(troubles: Iterator[tuple[str, Callable[[], None]]], most: int | None) -> None:
    """Run all cases or some, then report the failed ones."""
    failures, count = [], 0
    for name, run in some_of(troubles, most):
        count += 1
        try:
            run()
        except (Exception, pytest.fail.Exception) as error:
            text = str(error).splitlines() or [""]
            failures.append(f"{name}: {type(error).__name__}: {text[0][:200]}")
    assert count
    assert not failures, f"{len(failures)} of {count} ({repeat()}):\n   " + "\n   ".join(failures[:25])


def effects(call: Call) -> tuple[str, ...]:
    if call.operation == "append":
        return ("nothing", "part", "all")
    return ("nothing",) if call.operation == "sync" else ("nothing", "all")


@pytest.mark.alternating
@pytest.mark.sampled(2)  # kinds of work; 0.2 s each
@some_or_all(SOME)
def test_a_crash_at_any_call_loses_nothing(case: Case, most: int | None) -> None:
    disks: dict[Content, tuple[str, MemoryDirectory]] = {}
    crashes = [(number, call, each) for number, call in enumerate(case.changes, 1) for each in effects(call)]
    for number, call, effect in some_of(crashes, most):
        disk = case.crashed(number, effect)
        disks.setdefault(content_of(disk), (f"{number} {call} {effect}", disk))
    all_of(((name, lambda disk=disk: case.check_crashed(disk)) for name, disk in disks.values()), most)


@pytest.mark.alternating
@pytest.mark.sampled(1)  # kinds of work; 0.2 s each
@some_or_all(SOME)
def test_a_second_crash_during_recovery_loses_nothing(case: Case, most: int | None) -> None:
    """For every disk that the first crash can leave with a swap under way, every call of opening it."""
    first = [case.crashed(number, "nothing") for number, _ in enumerate(case.changes, 1)]
    swapping = {tuple(disk.names()): disk for disk in first if any(name.endswith(".swap") for name in disk.names())}
    assert swapping

    def crashed(disk: MemoryDirectory, number: int, effect: Any) -> MemoryDirectory | None:
        directory = FaultyDirectory(copy_of(disk))
        directory.arm(Fault(number, operations=CHANGES, forever=True, effect=effect, undo=False))
        try:
            Log.open(directory, CONFIG)
        except SawlogError:
            pass
        assert isinstance(directory.inner, MemoryDirectory)
        return copy_of(directory.inner) if directory.failed else None

    disks: dict[Content, MemoryDirectory] = {}
    for disk, effect in some_of(itertools.product(swapping.values(), ("nothing", "all")), most and most // 2):
        for number in itertools.count(1):
            found = crashed(disk, number, effect)
            if found is None:
                break
            disks.setdefault(content_of(found), found)
    all_of(((str(disk.names()), lambda disk=disk: case.check_crashed(disk)) for disk in disks.values()), most)


@pytest.mark.alternating
@pytest.mark.sampled(2)  # kinds of work; 0.2 s each
@some_or_all(SOME)
def test_any_call_that_fails_once_leaves_the_work_done_or_not_done(case: Case, most: int | None) -> None:
    def disturb(number: int, effect: Any) -> None:
        directory = FaultyDirectory(copy_of(case.image))
        log = Log.open(directory, CONFIG)
        directory.arm(Fault(number, effect=effect))
        raised = False
        try:
            case.work(log)
        except SawlogError:
            raised = True
        assert directory.failed
        case.check_between(records(log))
        try:
            assert log.append(b"more", b"k") == case.before[-1][0] + 1
            assert log.read(case.before[-1][0] + 1).value == b"more"
            log.truncate(case.before[-1][0] + 1)
        except LogFailed:
            assert raised, "the log has failed and nobody was told"
        log.close()
        assert isinstance(directory.inner, MemoryDirectory)
        case.check_opening(copy_of(directory.inner))

    def troubles() -> Iterator[tuple[str, Callable[[], None]]]:
        for number, call in enumerate(case.calls, 1):
            for effect in effects(call) if call.operation in CHANGES else ("nothing",):
                yield f"{number} {call} {effect}", lambda number=number, effect=effect: disturb(number, effect)

    all_of(troubles(), most)


@pytest.mark.sampled(2)  # kinds of work; 0.2 s each
@some_or_all(SOME)
def test_a_log_that_goes_on_after_a_failed_call_can_be_truncated(case: Case, most: int | None) -> None:
    """No remains of abandoned work may reappear after the log has changed."""
    cut = case.before[len(case.before) // 2][0]

    def disturb(number: int, effect: Any) -> None:
        directory = FaultyDirectory(copy_of(case.image))
        log = Log.open(directory, CONFIG)
        directory.arm(Fault(number, operations=CHANGES, effect=effect))
        try:
            case.work(log)
        except SawlogError:
            pass
        try:
            log.truncate(cut)
            assert log.append(b"new", b"new") == cut
        except LogFailed:
            return
        expected = records(log)
        assert expected[-1][0] == cut
        log.close()
        assert isinstance(directory.inner, MemoryDirectory)
        with Log.open(copy_of(directory.inner), CONFIG) as log:
            assert log.recovery, str(log.recovery)
            assert records(log) == expected
            assert log.next_offset == cut + 1

    def troubles() -> Iterator[tuple[str, Callable[[], None]]]:
        for number, call in enumerate(case.changes, 1):
            for effect in effects(call):
                yield f"{number} {call} {effect}", lambda number=number, effect=effect: disturb(number, effect)

    all_of(troubles(), most)


# --- power cuts


class _Volatile(MemoryDirectory):
    """Tracks which changes would survive a power cut, and yields the possible disks.

    Bytes of a file survive up to its last sync. Names survive once the directory was synced, which `create` and a
    durable `replace` do themselves; of the changes of names since then, any may have reached the disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self.durable: dict[str, MemoryStorage] = {}
        #: (the old name, or a new file; the new name, or none)
        self.pending: list[tuple[str | MemoryStorage, str]] = []
        self.synced: dict[MemoryStorage, int] = {}
        #: Called before each change.
        self.watch: Callable[[], None] | None = None

    def _changing(self) -> None:
        if self.watch is not None:
            self.watch()

    def create(self, name: str) -> Any:
        self._changing()
        made = super().create(name)
        made = self._files[name] = _VolatileStorage(self, name)
        self.sync()
        return made

    def replace(self, name: str, data: Any, *, durable: bool = True) -> None:
        self._changing()
        made = _VolatileStorage(self, name)
        MemoryStorage.append(made, data)
        self._files[name] = made
        if durable:
            self.synced[made] = made.size
            self._settle()
        else:
            self.pending.append((made, name))

    def rename(self, old: str, new: str) -> None:
        self._changing()
        super().rename(old, new)
        self.pending.append((old, new))

    def remove(self, name: str) -> None:
        self._changing()
        if self.exists(name):
            self.pending.append((name, ""))
        super().remove(name)

    def sync(self) -> None:
        self._changing()
        self._settle()

    def _settle(self) -> None:
        self.durable, self.pending = dict(self._files), []

    @staticmethod
    def _losses(count: int) -> Iterator[tuple[bool, ...]]:
        """Yield sets of lost changes: all combinations of a few, else none, all, each alone, all but each, some."""
        if count <= 3:
            yield from itertools.product((False, True), repeat=count)
            return
        rng = random.Random(count)
        for alone in (False, True):
            yield (alone,) * count
            for number in range(count):
                yield tuple((each == number) != alone for each in range(count))
        for _ in range(10):
            yield tuple(rng.random() < 0.5 for _ in range(count))

    def survivors(self) -> Iterator[MemoryDirectory]:
        """Return the disks that a power cut at this moment can leave, or a sample of them."""
        for lost in self._losses(len(self.pending)):
            names = dict(self.durable)
            for (old, new), is_lost in zip(self.pending, lost, strict=True):
                moved = None if is_lost else names.pop(old, None) if isinstance(old, str) else old
                if moved is not None and new:
                    names[new] = moved
            made = MemoryDirectory(self.path)
            for name, storage in names.items():
                size = self.synced.get(storage, 0)
                made.replace(name, storage.read(0, min(size, storage.size)))
            yield made


class _VolatileStorage(MemoryStorage):
    def append(self, data: Any) -> int:
        self._directory._changing()  # type: ignore[attr-defined]
        return super().append(data)

    def sync(self) -> None:
        self._directory._changing()  # type: ignore[attr-defined]
        self._directory.synced[self] = self.size  # type: ignore[attr-defined]


def cut_during(image: MemoryDirectory, work: Callable[[_Volatile], Callable[[], object]]) -> list[MemoryDirectory]:
    """Return every disk that a power cut can leave. `work` opens the directory and returns the call to interrupt."""
    directory = _Volatile()
    for name in image.names():
        directory.replace(name, image.read(name))
    run = work(directory)
    disks: dict[Content, MemoryDirectory] = {}

    def watch() -> None:
        for disk in directory.survivors():
            disks.setdefault(content_of(disk), disk)

    directory.watch = watch
    run()
    directory.watch = None
    return list(disks.values())


@pytest.mark.alternating
@pytest.mark.sampled(2)  # kinds of work; 0.2 s each
@some_or_all(SOME)
def test_a_power_cut_at_any_moment_loses_nothing(case: Case, most: int | None) -> None:
    def work(directory: _Volatile) -> Callable[[], object]:
        log = Log.open(directory, CONFIG)
        return lambda: case.work(log)

    disks = cut_during(case.image, work)
    assert any(name.endswith(".swap") for disk in disks for name in disk.names())
    all_of(((str(disk.names()), lambda disk=disk: case.check_crashed(disk)) for disk in disks), most)


@pytest.mark.alternating
@pytest.mark.sampled(2)  # kinds of work; 0.2 s each
@some_or_all(SOME)
def test_a_power_cut_during_recovery_loses_nothing(case: Case, most: int | None) -> None:
    image, _ = with_swap(case)
    disks = cut_during(image, lambda directory: lambda: Log.open(directory, CONFIG))
    assert any(name.endswith(".swap") for disk in disks for name in disk.names())
    all_of(((str(disk.names()), lambda disk=disk: case.check_crashed(disk)) for disk in disks), most)


# --- a damaged replacement


def with_swap(case: Case) -> tuple[MemoryDirectory, str]:
    """A crash right after the replacement got its name."""
    for number, _ in enumerate(case.changes, 1):
        image = case.crashed(number, "nothing")
        for name in image.names():
            if name.endswith(".swap"):
                return image, name
    raise AssertionError("there was no swap")


@pytest.mark.alternating
def test_a_replacement_that_is_damaged_is_set_aside_and_the_old_segments_serve(case: Case) -> None:
    image, name = with_swap(case)
    data = bytearray(image.read(name))
    data[len(data) // 2] ^= 1
    image.replace(name, data)
    with Log.open(image, CONFIG) as log:
        assert not log.recovery
        assert log.verify()
        case.check_between(records(log))
        assert image.read(name.removesuffix(".swap") + ".quarantined") == bytes(data)
        assert not image.exists(name)
    with Log.open(image, CONFIG) as log:
        assert log.recovery
        assert image.exists(name.removesuffix(".swap") + ".quarantined")


# --- real processes


def test_kill_9_during_maintenance_loses_nothing(tmp_path: Path) -> None:
    """One process appends and keeps rewriting; it is killed repeatedly. Every acknowledged record survives, of each
    key at least the last value."""
    rng = random.Random(SEED)
    for kill in range(KILLS):
        worker = start("rewriting", tmp_path, SEED + kill)
        assert worker.stdout is not None
        said = [worker.stdout.readline()]
        assert said == ["ready\n"], worker.communicate()[1]
        time.sleep(rng.uniform(0.02, 0.25))
        worker.send_signal(signal.SIGKILL)
        output, errors = worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == -signal.SIGKILL, errors
        told = f"seed {SEED}, kill {kill}"
        with Log.open(tmp_path, rewriting.SETTINGS, mode="r") as reader:
            rewriting.check(reader, output, told)
        with Log.open(tmp_path, rewriting.SETTINGS) as log:
            assert log.recovery, f"{told}: {log.recovery}"
            assert log.verify(), f"{told}: {log.verify()}"
            rewriting.check(log, output, told)


@pytest.mark.slow
def test_kill_9_during_maintenance_loses_nothing_at_length(tmp_path: Path) -> None:
    for part in range(10):
        test_kill_9_during_maintenance_loses_nothing(tmp_path / str(part))
