"""The real storages, with each of their system calls failing in turn.

`tests/faults/errors.py` fails the calls of the storage interface; here the calls below it fail: `pwrite` after half of
its bytes, `ftruncate` during a rollback, `fsync` of a new name, `mmap`, `open`, `stat`... In addition to the promises
there, no descriptor may stay open. fsync itself does nothing here, which makes this quick: no power is cut.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import SawlogError
from sawlog.log import recovery
from sawlog.storage import file as file_module
from sawlog.storage import locks as locks_module
from sawlog.storage import mapped as mapped_module
from sawlog.storage import system as handle_module
from sawlog.storage import system as system_module

from ...processes.operations import CONFIG, OPERATIONS, Operation, Promise, fill
from ..sampling import some_of, some_or_all

#: Errors of failing calls.
ERRORS = {
    "open": errno.EMFILE,
    "pwrite": errno.ENOSPC,
    "write": errno.ENOSPC,
    "pread": errno.EIO,
    "fdatasync": errno.EIO,
    "fsync": errno.EIO,
    "ftruncate": errno.EIO,
    "rename": errno.EIO,
    "unlink": errno.EROFS,
    "listdir": errno.EIO,
    "stat": errno.EIO,
    "fstat": errno.EIO,
    "mkdir": errno.ENOSPC,
    "mmap": errno.ENOMEM,
}
WRITING = {"pwrite", "write", "fdatasync", "fsync", "ftruncate", "rename", "unlink", "mkdir"}
#: Number of failing calls in the quick tests, for each operation.
SOME = 10
#: Operations with the longest paths through the storages; the others make the same calls.
SWEPT = [
    "append_with_rotation",
    "append_batches",
    "append_stream_async",
    "truncate_in_batch",
    "trim_all",
    "close_with_writer",
    "read_everything",
]


@dataclass
class System:
    """Replacement of `os` and `mmap` in the storages. Fails the `at`-th call, or every call from it on."""

    at: int = 0
    forever: bool = False
    calls: list[str] = field(default_factory=list)
    failed: int = 0

    def enter(self, name: str) -> None:
        """Count a call, and fail it if it is the chosen one."""
        if self.forever and name not in WRITING:
            return
        self.calls.append(name)
        if self.at and (len(self.calls) == self.at or (self.forever and len(self.calls) > self.at)):
            self.failed += 1
            raise OSError(ERRORS[name], os.strerror(ERRORS[name]))

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                self.enter(name)
            except OSError:
                if name in {"pwrite", "write"}:  # a short write, and then the error
                    real(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
                raise
            if name in {"fsync", "fdatasync"}:
                return None
            return real(*arguments, **keywords)

        return call

    def module(self, real: ModuleType) -> Any:
        made = ModuleType(real.__name__)
        made.__dict__.update(
            {
                name: self.wrapped(name, value) if name in ERRORS and callable(value) else value
                for name, value in vars(real).items()
            }
        )
        if real is mmap:
            made.mmap = self.mapping()  # type: ignore[attr-defined]
        return made

    def mapping(self) -> type[mmap.mmap]:
        system = self

        class Mapping(mmap.mmap):
            def __new__(cls, *arguments: Any, **keywords: Any) -> Mapping:
                system.enter("mmap")
                return super().__new__(cls, *arguments, **keywords)

        return Mapping


@contextmanager
def used(system: System) -> Iterator[None]:
    """Replace the storages' system calls by this system."""
    fake_os, fake_mmap = system.module(os), system.module(mmap)
    with pytest.MonkeyPatch.context() as patch:
        for module in (file_module, handle_module, locks_module, mapped_module, system_module):
            patch.setattr(module, "os", fake_os)
            if hasattr(module, "mmap"):
                patch.setattr(module, "mmap", fake_mmap)
        yield


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a new directory, in memory if possible, because renames on a busy disk take long."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@dataclass(frozen=True)
class Start:
    """The files of a log before each run."""

    directory: Path
    promise: Promise
    config: LogConfig

    def fresh(self) -> tuple[Path, Promise]:
        place = self.directory.with_name("run")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.directory, place)
        return place, Promise(dict(self.promise.kept), set(self.promise.sent), prefix="n")


def ended(directory: Path, config: LogConfig, how: str) -> Start:
    promise, before = Promise(), directory / "before"
    with used(System()), Log.open(before, config) as log:
        fill(log, promise)
        if how != "closed":  # a copy of the files as a killed process would leave them
            shutil.copytree(before, directory / how)
    start = directory / "before" if how == "closed" else directory / how
    if how == "torn":
        last = max(start.glob("*.log"))
        last.write_bytes(last.read_bytes() + last.read_bytes()[:70])
    return Start(start, promise, config)


def check_afterwards(place: Path, config: LogConfig, promise: Promise) -> None:
    with Log.open(place, config) as log:
        assert log.recovery, f"recovery calls it corruption: {log.recovery}"
        assert log.verify(), str(log.verify())
        promise.check_reading(log)
        promise.cut_from = 2**62
        promise.kept = {record.offset: record.value or b"" for record in log.scan()}
        assert promise.try_append(log)
    with Log.open(place, config) as log:
        assert log.recovery.clean
        assert log.verify()
        promise.check_reading(log)


def check_descriptors(before: int) -> None:
    if descriptors() != before:
        gc.collect()
    now = descriptors()
    assert now <= before, f"{now - before} descriptors stay open"


def disturb(start: Start, operation: Operation, system: System) -> None:
    """Run an operation with one failing call."""
    place, promise = start.fresh()
    before = descriptors()
    with used(System()):
        log = Log.open(place, start.config)
    with used(system):
        try:
            operation(log, promise)
        except SawlogError:
            pass
        if system.forever and not log._access.closed:
            promise.check_reading(log)
    assert system.failed, "the call was never made"
    with used(System()):
        if not log._access.closed:
            promise.check_reading(log)
            promise.try_append(log)
            promise.check_reading(log)
            log.close()
        del log
        check_descriptors(before)
        check_afterwards(place, start.config, promise)
        check_descriptors(before)


def disturb_opening(start: Start, mode: Any, system: System) -> None:
    place, promise = start.fresh()
    before = descriptors()
    with used(system):
        try:
            log = Log.open(place, start.config, mode=mode)
        except SawlogError:
            log = None
    assert system.failed, "the call was never made"
    with used(System()):
        if log is not None:
            promise.check_reading(log)
            log.close()
        del log
        check_descriptors(before)
        check_afterwards(place, start.config, promise)
        check_descriptors(before)


def sweep(calls: list[str], run: Callable[[System], None], most: int | None, *, modes: tuple[bool, ...]) -> None:
    failures = []
    count = 0
    gc.collect()
    gc.freeze()  # equal files need not be checked again
    for forever in modes:
        counted = [name for name in calls if not forever or name in WRITING]
        # A long list of calls repeats a short one: a part is enough.
        for at, name in some_of(list(enumerate(counted, 1))[:: 1 + len(counted) // 100], most):
            count += 1
            try:
                run(System(at, forever))
            except Exception as error:
                text = (str(error).splitlines() or [""])[0][:200]
                how = "for ever from" if forever else "once"
                failures.append(f"{how} call {at}, {name}: {type(error).__name__}: {text}")
    gc.unfreeze()
    assert count
    assert not failures, f"{len(failures)} of {count} runs:\n   " + "\n   ".join(failures[:25])


@pytest.mark.alternating
@pytest.mark.sampled(3)  # 0.5 s each
@some_or_all(SOME)
@pytest.mark.parametrize("name", SWEPT)
def test_every_call_of_an_operation_may_fail(place: Path, name: str, most: int | None) -> None:
    operation, config = OPERATIONS[name]
    start = ended(place, config, "closed")
    run, promise = start.fresh()
    system = System()
    with Log.open(run, config) as log, used(system):
        operation(log, promise)
        calls = list(system.calls)
    assert calls
    modes = (False, True) if name in {"append_with_rotation", "trim_all"} else (False,)
    sweep(calls, lambda system: disturb(start, operation, system), most, modes=modes)


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.4 s each
@some_or_all(SOME)
@pytest.mark.parametrize("how", ["closed", "killed", "torn"])
def test_every_call_of_opening_may_fail(
    place: Path, how: str, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SMALL_BYTES", 1)
    start = ended(place, CONFIG.with_(durability="os"), how)
    run, _ = start.fresh()
    system = System()
    with used(system):
        log = Log.open(run, start.config)
        calls = list(system.calls)
        log.close()
    sweep(calls, lambda system: disturb_opening(start, "w", system), most, modes=(False,))


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.5 s each
@some_or_all(SOME)
@pytest.mark.parametrize("how", ["closed", "torn"])
def test_every_call_of_opening_to_read_may_fail(place: Path, how: str, most: int | None) -> None:
    start = ended(place, CONFIG.with_(durability="os"), how)
    run, _ = start.fresh()
    system = System()
    with used(system):
        log = Log.open(run, start.config, mode="r")
        calls = list(system.calls)
        log.close()
    sweep(calls, lambda system: disturb_opening(start, "r", system), most, modes=(False,))


@some_or_all(SOME)
def test_every_call_of_making_a_new_log_may_fail(place: Path, most: int | None) -> None:
    (place / "nothing").mkdir()
    start = Start(place / "nothing", Promise(), CONFIG)
    system = System()
    with used(system):
        log = Log.open(start.fresh()[0] / "deep" / "log", CONFIG)
        calls = list(system.calls)
        log.close()

    def run(system: System) -> None:
        fresh, promise = start.fresh()
        before = descriptors()
        with used(system):
            try:
                Log.open(fresh / "deep" / "log", CONFIG).close()
            except SawlogError:
                pass
        assert system.failed
        check_descriptors(before)
        with used(System()):
            check_afterwards(fresh / "deep" / "log", CONFIG, promise)

    sweep(calls, run, most, modes=(False,))


@pytest.mark.alternating
@pytest.mark.parametrize("undo_works", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_write_that_stops_half_way_is_taken_back_or_reported_as_torn(
    tmp_path: Path, undo_works: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short write, then the error; then the truncation that rolls it back works or fails."""
    from sawlog.errors import LogFailed, StorageError, StorageFull

    log = Log.open(tmp_path, CONFIG)
    log.append(b"before")
    (path,) = tmp_path.glob("*.log")
    size = path.stat().st_size
    real, writes = os.pwrite, 0

    def pwrite(fd: int, data: Any, position: int) -> int:
        nonlocal writes
        writes += 1
        if writes == 1:
            return real(fd, memoryview(data)[:70], position)
        raise OSError(code, os.strerror(code))

    def ftruncate(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        if not undo_works:
            patch.setattr(os, "ftruncate", ftruncate)
        with pytest.raises(StorageError) as caught:
            log.append(bytes(200))
    assert writes == 2
    assert caught.value.errno == code
    assert isinstance(caught.value, StorageFull) == (code != errno.EIO)
    assert path.stat().st_size == size + (0 if undo_works else 70)
    assert log.read(0).value == b"before"
    assert log.next_offset == 1
    if undo_works:
        assert log.append(b"after") == 1
    else:
        with pytest.raises(LogFailed):
            log.append(b"after")
    log.close()
    with Log.open(tmp_path, CONFIG) as again:
        assert again.recovery.clean == undo_works
        assert again.recovery
        assert again.recovery.truncated_bytes == (0 if undo_works else 70)
        assert again.verify()
        assert [record.value for record in again.scan()] == [b"before", b"after"][: 1 + undo_works]
