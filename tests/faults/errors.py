"""`python -m tests.faults errors`: every call to the disk that an operation makes fails, in every way.

For each operation the calls of an undisturbed run are counted. Then it runs again and again on a copy of the same disk,
with the first, the second, the third... call failing, with each errno, once and forever, before it takes effect, in the
middle of it, or after all of it. Each time:

- the operation succeeds or raises a `SawlogError`;
- acknowledged records can be read in the same process; if only writes fail, also while the fault lasts;
- the log continues, or raises `LogFailed`; a file whose fsync failed is not synced again;
- after the death of the process, and after a power cut at that moment, the directory opens, verifies, keeps its
  promises and continues (the checks of the crash enumeration, `workloads` and `stores`);
- on real files, no descriptor stays open.
"""

from __future__ import annotations

import argparse
import errno
import fnmatch
import functools
import gc
import os
import random
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sawlog import Log, LogConfig, background
from sawlog.errors import LogFailed, SawlogError
from sawlog.log import recovery
from sawlog.storage import FileDirectory
from sawlog.storage import file as file_module
from sawlog.store.directory.store import DirectoryStore
from sawlog.testing import Call, Fault, FaultyDirectory
from sawlog.testing.faulty import OPERATIONS as CALLS

from . import stores, workloads
from .device import copy_numbers
from .disk import FaultyStorage, Mode
from .promises import LogPromise
from .report import Tally, say
from .stores import StorePromise, StoreWorkload
from .workloads import CONFIG, OLD_MS, WRITING, LogWorkload

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EROFS, errno.EINTR)
Times = Literal["once", "forever", "read-only"]
Effect = Literal["nothing", "part", "all"]
#: Calls that change something; the others only read.
CHANGES = WRITING | {"make_child", "move", "remove_child", "lock", "dispose"}
_POWER_CUTS: tuple[Mode, ...] = ("lose", "keep", "tear", "reorder", "garbage")
_ENOUGH = 25


@dataclass(frozen=True, slots=True)
class Trouble:
    """One way for one call of one operation to fail."""

    target: str
    number: int
    errno: int
    times: Times
    effect: Effect
    undo: bool
    call: Call

    @property
    def fault(self) -> Fault:
        operations = CHANGES & CALLS if self.times == "read-only" else None
        return Fault(
            self.number, self.errno, operations, forever=self.times != "once", effect=self.effect, undo=self.undo
        )

    def __str__(self) -> str:
        """Describe the fault, with the command that replays it."""
        undone = "" if self.undo else " --torn"
        return (
            f"{self.call.operation} of {self.call.name or 'the directory'}\n    python -m tests.faults errors "
            f"--target {self.target} --number {self.number} --errno {errno.errorcode[self.errno]} "
            f"--times {self.times} --effect {self.effect}{undone}"
        )


def _effects(times: Times, operation: str) -> Iterator[tuple[Effect, bool]]:
    """Return pairs: the part of the call that takes effect, and whether it can be undone."""
    if operation == "append":
        yield "part", times == "once"
        if times == "once":
            yield "part", False
            yield "all", True
    else:
        yield "nothing", True
        if times == "once" and operation in CHANGES - {"sync", "lock", "dispose"}:
            yield "all", True


def troubles(target: str, calls: list[Call]) -> Iterator[Trouble]:
    """Yield every way in which one of these calls can fail."""
    changes = [call for call in calls if call.operation in CHANGES]
    modes: list[tuple[Times, list[Call]]] = [("once", calls), ("forever", calls), ("read-only", changes)]
    for times, matching in modes:
        for number, call in enumerate(matching, 1):
            for code in ERRNOS:
                for effect, undo in _effects(times, call.operation):
                    yield Trouble(target, number, code, times, effect, undo, call)


# --- what is done


@dataclass(frozen=True)
class Start:
    """A disk before the operation, and the promises about it."""

    disk: FaultyStorage
    promise: Any


def _nothing(promise: Any) -> None:
    """Do not cut the power."""


class Target(ABC):
    """One operation on a prepared disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Called with the promise after the operation, before anything is closed: to cut the power.
        self.cut: Callable[[Any], None] = _nothing

    @abstractmethod
    def start(self) -> Start:
        """Prepare the disk."""

    @abstractmethod
    def attempt(self, place: FaultyDirectory, promise: Any, arm: Callable[[], None]) -> None:
        """Open the log or store, call `arm`, run the operation, check the result in the same process, close
        everything."""

    @abstractmethod
    def recover(self, disk: FaultyStorage, promise: Any, *, power_cut: bool) -> None:
        """Check the disk as another process finds it."""


class OnLog(Target):
    """An operation of a log."""

    def __init__(self, name: str, config: LogConfig = CONFIG, how: str = "closed") -> None:
        super().__init__(name if how == "closed" else f"{name}_{how}")
        self.operation = name
        self.how = how
        self.kind = type("target", (LogWorkload,), {"config": config})
        self.config = config

    @functools.cached_property
    def _start(self) -> Start:
        disk, run = FaultyStorage(), self.kind(1)
        if self.how == "empty":
            return Start(disk, LogPromise())
        log = Log.open(disk.plain, self.config)
        for name in ("fill", "produce", "delete", "append", "append"):
            log = run.do(name, log, run.promise, disk.plain)
        if self.how == "closed":
            log.close()
            run.promise.durable = run.promise.end
        elif self.how == "torn":
            last = max(name for name in disk.names() if name.endswith(".log"))
            disk.plain.open(last).append(disk.read(last)[:70])
        return Start(disk, run.promise)

    def start(self) -> Start:
        return Start(self._start.disk.process_dies(), self._start.promise.copy())

    def attempt(self, place: FaultyDirectory, promise: LogPromise, arm: Callable[[], None]) -> None:
        run = self.kind(2)
        run._sent = 500
        log = Log.open(place, self.config)
        arm()
        try:
            if self.operation in ONLY_HERE:
                ONLY_HERE[self.operation](run, log, promise)
            else:
                log = run.do(self.operation, log, promise, place)
        except SawlogError:
            pass
        self.check_alive(log, place, promise, run)

    def check_alive(self, log: Log, place: FaultyDirectory, promise: LogPromise, run: LogWorkload) -> None:
        """Check that the process of the fault can still read, and write unless the log has failed."""
        fault = place._fault
        if not log._access.closed:
            if fault is not None and fault.operations is not None:  # only writing fails
                _check_reading(log, promise)
            place.disarm()
            _check_reading(log, promise)
            if log._is_writable:
                self._settle(log, promise)
            went_on = _goes_on(log, promise, run)
            if _check_not_synced_again(place):
                assert not went_on, "the log goes on after a failed fsync"
            self.cut(promise)
            log.close()
        place.disarm()
        _check_not_synced_again(place)

    @staticmethod
    def _settle(log: Log, promise: LogPromise) -> None:
        """Update the promise of a log that continues: the failed append does not exist. A failed trim may have moved
        the log start by any part."""
        promise.refuse()
        rows, start, trimming = promise.rows, promise.start, promise.trimming
        promise.take_over(list(log.scan()), log)
        if trimming is not None:
            promise.rows, promise.start, promise.trimming = {**rows, **promise.rows}, start, trimming

    def recover(self, disk: FaultyStorage, promise: LogPromise, *, power_cut: bool) -> None:
        self.kind(3).recover(disk, promise, power_cut=power_cut)


class OnOpening(OnLog):
    """Opening a log, after a clean close or a crash."""

    def __init__(self, how: str, *, split: bool = False) -> None:
        super().__init__("opening", CONFIG.with_(durability="os"), how)
        self.name = f"opening_{how}{'_large' if split else ''}"
        self._split = split

    def attempt(self, place: FaultyDirectory, promise: LogPromise, arm: Callable[[], None]) -> None:
        small = recovery.SMALL_BYTES
        recovery.SMALL_BYTES = 1 if self._split else small
        arm()
        try:
            log = Log.open(place, self.config)
        except SawlogError:
            place.disarm()
            self.cut(promise)
            return
        finally:
            recovery.SMALL_BYTES = small
        place.disarm()
        found = list(log.scan())
        promise.check(found, log.lowest_offset, log.next_offset)
        promise.take_over(found, log)
        self.check_alive(log, place, promise, self.kind(2))


def _check_reading(log: Log, promise: LogPromise) -> None:
    """Check the visible records. A failed log may have placed more, which are never shown and may be lost."""
    found = list(log.scan())
    promise.check(found, log.lowest_offset, log.visible_offset)
    assert not log._is_writable or log.visible_offset == log.next_offset, "the log goes on, and does not show all of it"
    for record in found[::3]:
        assert log.read(record.offset) == record


def _goes_on(log: Log, promise: LogPromise, run: LogWorkload) -> bool:
    """Append another record. Return False if the log has failed; any other error is a violation."""
    tried = promise.copy()
    try:
        workloads.append(run, log, tried)
    except LogFailed:
        return False
    vars(promise).update(vars(tried))
    return True


def _check_not_synced_again(place: FaultyDirectory) -> bool:
    """Check that the log never syncs a segment again whose fsync failed. Return whether there is such a segment."""
    for at in place.failed:
        failed = place.calls[at]
        if failed.operation == "sync" and failed.name.endswith(".log"):
            assert failed not in place.calls[at + 1 :], f"{failed} was tried again"
            return True
    return False


# --- operations that the crash enumeration does not have


def read_everything(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Read in every way."""
    found = list(log.scan())
    for record in found:
        assert log.read(record.offset) == record
    assert sum(batch.num_rows for batch in log.scan_arrow()) == len(found)
    assert log.fetch(log.lowest_offset, 1 << 20).next_offset == log.next_offset
    assert log.offset_at(OLD_MS * 2) == log.next_offset
    assert [record.offset for record in log.follow(timeout=0)] == [record.offset for record in found]
    log.verify()  # lists the batches that it could not read


def close_with_writer(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Close a log with a writer, which writes its buffered records."""
    rows = run.rows(2, 60)
    promise.send(rows)
    writer = log.writer()
    for key, value, timestamp, headers in rows:
        writer.append(value, key, headers, timestamp)
    log.close()
    promise.end += len(rows)
    promise.durable = promise.end


def writer_that_tries_again(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Flush again after a failed flush, which keeps the batch: it is placed once."""
    rows = run.rows(4, 60)
    promise.send(rows)
    with log.writer() as writer:
        for key, value, timestamp, headers in rows:
            writer.append(value, key, headers, timestamp)
        with suppress(OSError):
            writer.flush()
        writer.flush()
    promise.acknowledge(log, range(promise.end, promise.end + len(rows)))


def append_and_sync(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Append under the policy "os", and make the records durable with `sync`."""
    workloads.append(run, log, promise)
    workloads.sync(run, log, promise)


def scrub(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Scrub. Unreadable batches are listed, not raised."""
    log._scrub()
    promise.note(log)


ONLY_HERE: dict[str, workloads.Operation] = {
    each.__name__: each
    for each in (read_everything, close_with_writer, writer_that_tries_again, append_and_sync, scrub)
}


class OnStore(Target):
    """An operation of a store."""

    def __init__(self, name: str) -> None:
        super().__init__(f"store_{name}")
        self.operation = name

    @functools.cached_property
    def _start(self) -> Start:
        disk, run = FaultyStorage(), StoreWorkload(1)
        with DirectoryStore.open(disk.plain, maintenance_interval_s=None) as store:
            plain = "create_plain" if self.operation == "large_transaction" else "create"
            for name in (plain, "append_many", plain, "append", "commit"):
                run.do(name, store, run.promise)
        run.promise.made = True
        return Start(disk, run.promise)

    def start(self) -> Start:
        return Start(self._start.disk.process_dies(), self._start.promise.copy())

    def attempt(self, place: FaultyDirectory, promise: StorePromise, arm: Callable[[], None]) -> None:
        run = StoreWorkload(2)
        run._numbers = 500
        store = DirectoryStore.open(place, maintenance_interval_s=None)
        arm()
        try:
            run.do(self.operation, store, promise)
        except SawlogError:
            pass
        place.disarm()
        promise.check_partitions(stores.state_of(store))
        self.cut(promise)
        with suppress(SawlogError):  # a failed log raises again when it is closed
            store.close()

    def recover(self, disk: FaultyStorage, promise: StorePromise, *, power_cut: bool) -> None:
        StoreWorkload(3).recover(disk, promise, power_cut=power_cut)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(OnLog(name, CONFIG.with_(retention_bytes=600)) for name in [*workloads.OPERATIONS, "reopen", *ONLY_HERE]),
        OnLog("reopen", CONFIG.with_(durability="os"), "killed"),
        OnLog("append_many", CONFIG.with_(compression="zstd"), "killed"),
        OnLog("read_everything", CONFIG.with_(max_mapped_segments=1), "killed"),
        OnLog("append_and_sync", CONFIG.with_(durability="os"), "killed"),
        OnLog("maintain", CONFIG.with_(compression="zstd", max_mapped_segments=1), "killed"),
        *(OnOpening(how, split=split) for how in ("closed", "killed", "torn") for split in (False, True)),
        OnOpening("empty"),
        *(OnStore(name) for name in stores.OPERATIONS if name != "create_plain"),
    )
}


# --- doing it


class _Counting(FaultyStorage):
    """Records the calls from `arm` until `disarm`."""

    spans: list[int]

    def arm(self, fault: Fault) -> None:
        self.spans.append(len(self.calls))

    def disarm(self) -> None:
        self.spans.append(len(self.calls))


def calls_of(target: Target) -> list[Call]:
    """Return the calls of an undisturbed run that could fail."""
    target.cut = _nothing
    with background.suspended():
        start = target.start()
        disk = start.disk
        disk.__class__, disk.spans = _Counting, []  # type: ignore[attr-defined]
        target.attempt(disk, start.promise, lambda: disk.arm(Fault()))
        first, last = disk.spans[:2]  # type: ignore[attr-defined]
    return disk.calls[first:last]


def disturb(trouble: Trouble) -> None:
    """Run with one fault on a simulated disk, then simulate the death of the process and a power cut at that moment."""
    target = TARGETS[trouble.target]
    chance = random.Random(str(trouble))
    cut: list[tuple[FaultyStorage, Any]] = []
    with background.suspended():
        start = target.start()

        def cut_power(promise: Any) -> None:
            cut.append((start.disk.crash(chance.choice(_POWER_CUTS), chance.getrandbits(32)), promise.copy()))

        target.cut = cut_power
        target.attempt(start.disk, start.promise, lambda: start.disk.arm(trouble.fault))
        assert start.disk.failed, "the call was never made"
        left = start.disk.process_dies()
        left.seed = chance.getrandbits(32)
        target.recover(left, start.promise, power_cut=False)
        for found, promise in cut:
            found.seed = chance.getrandbits(32)
            target.recover(found, promise, power_cut=True)


class _KeptOpen(FaultyDirectory):
    """A directory that stays open when its log is closed, so that another log can use it."""

    def close(self) -> None:
        """Do nothing: the test closes it."""


def disturb_files(trouble: Trouble, path: Path) -> None:
    """Run with one fault in a directory of real files, and check that no descriptor stays open."""
    target = TARGETS[trouble.target]
    target.cut = _nothing
    with background.suspended(), _without_fsync():
        start = target.start()
        for name, data in start.disk.content().items():
            if name.endswith("/"):
                (path / name).mkdir(parents=True)
            else:
                (path / name).write_bytes(data)
        for folder, name, numbers in start.disk.published_numbers():
            place = FileDirectory(path / folder)
            made = place.published(name, create=True)
            copy_numbers(numbers, made)
            if made is not None:
                made.close()
            place.close()
        gc.freeze()  # gc.freeze()  # only objects made from now on matter and are scanned
        before = _descriptors()
        kept = _KeptOpen(FileDirectory(path))
        target.attempt(kept, start.promise, lambda: kept.arm(trouble.fault))
        assert kept.failed, "the call was never made"
        kept.inner.close()
        gc.collect()
        left = _descriptors() - before
        gc.unfreeze()
        assert not left, f"left open: {sorted(left)}"


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {each for each in found if "/proc/" not in each}


@contextmanager
def _without_fsync() -> Iterator[None]:
    """Replace fsync by nothing: no power is cut here."""
    real_sync, real_fsync = file_module.sync_data, os.fsync
    file_module.sync_data = lambda fd, path: None
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        file_module.sync_data, os.fsync = real_sync, real_fsync


def failures(chosen: Iterable[Trouble], run: Callable[[Trouble], None]) -> tuple[int, list[str]]:
    """Return the number of runs, and a description of each run that broke a promise."""
    count, found = 0, []
    for trouble in chosen:
        count += 1
        try:
            run(trouble)
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            found.append(f"{type(error).__name__}: {said[:300]}: {trouble}")
    return count, found


def in_files(trouble: Trouble) -> None:
    """Run `disturb_files` in a temporary directory."""
    path = Path(tempfile.mkdtemp(prefix="sawlog-errors-"))
    try:
        disturb_files(trouble, path)
    finally:
        shutil.rmtree(path)


# --- the command


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="*", metavar="PATTERN", help="only the operations whose name matches")
    parser.add_argument("--share", type=float, default=1.0, help="how many of all troubles, 0 to 1 (default: all)")
    parser.add_argument("--files", action="store_true", help="in real files, where descriptors are counted")
    parser.add_argument("--number", type=int, help="only where this call fails")
    parser.add_argument("--errno", choices=[errno.errorcode[code] for code in ERRNOS], help="only with this one")
    parser.add_argument("--times", choices=["once", "forever", "read-only"], help="only so often")
    parser.add_argument("--effect", choices=["nothing", "part", "all"], help="only with so much done before")
    parser.add_argument("--torn", action="store_true", help="only where a part cannot be taken back")


def _matches(trouble: Trouble, options: argparse.Namespace) -> bool:
    return (
        options.number in (None, trouble.number)
        and options.errno in (None, errno.errorcode[trouble.errno])
        and options.times in (None, trouble.times)
        and options.effect in (None, trouble.effect)
        and not (options.effect and options.torn == trouble.undo)
    )


def run(options: argparse.Namespace) -> int:
    chosen = [target for name, target in TARGETS.items() if fnmatch.fnmatchcase(name, options.target)]
    if not chosen:
        say(*TARGETS)
        return 2
    chance = random.Random(options.seed)
    planned = [
        trouble
        for target in chosen
        for trouble in troubles(target.name, calls_of(target))
        if _matches(trouble, options) and chance.random() < options.share
    ]
    with Tally("errors", len(planned), "troubles") as tally:
        for trouble in planned:
            _, found = failures([trouble], in_files if options.files else disturb)
            tally.advance(what=trouble.target)
            for each in found:
                tally.violation(each)
            if len(tally.violations) >= _ENOUGH:
                break
    return tally.finish()
