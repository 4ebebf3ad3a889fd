"""Every step of every operation fails once, for ever, and with the disk turned read-only: nothing promised is lost.

For each operation the I/O calls of an undisturbed run are counted. Then it is run again and again on a fresh copy of
the same log, with the first, the second, the third... call failing, until all have. Each time:

- the operation succeeds or raises a `SawlogError`;
- what was acknowledged before can still be read in the same process, also while writing is refused;
- the log goes on, or says with `LogFailed` that it does not, and a file whose fsync failed is not synced again;
- closing works, and reopening gives a log that verifies, with everything that was acknowledged, and goes on.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pytest

from sawlog import Log, LogConfig, SawlogError
from sawlog.log import recovery
from sawlog.storage import MemoryDirectory
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ..processes.operations import CONFIG, OPERATIONS, Operation, Promise, fill

WRITING = frozenset({"append", "create", "remove", "rename", "replace", "sync", "truncate", "write_at"})


def copy_of(directory: MemoryDirectory) -> MemoryDirectory:
    made = MemoryDirectory(directory.path)
    for name in directory.names():
        made.replace(name, directory.read(name))
    return made


@dataclass(frozen=True)
class Start:
    """A log as it lies on disk before the operation, and what it has promised."""

    directory: MemoryDirectory
    promise: Promise

    def fresh(self) -> tuple[FaultyDirectory, Promise]:
        promise = Promise(dict(self.promise.kept), set(self.promise.sent), prefix="n")
        return FaultyDirectory(copy_of(self.directory)), promise


def ended(config: LogConfig, how: str) -> Start:
    """A log that was closed in order, or whose process died, with or without a torn tail."""
    directory, promise = MemoryDirectory(), Promise()
    log = Log.open(directory, config)
    fill(log, promise)
    if how == "closed":
        log.close()
    directory = copy_of(directory)
    if how == "torn":
        last = max(name for name in directory.names() if name.endswith(".log"))
        directory.open(last).append(directory.read(last)[:70])
    return Start(directory, promise)


@dataclass(frozen=True)
class Trouble:
    """One way for one call to fail."""

    mode: str
    fault: Fault
    call: Call

    def __str__(self) -> str:
        fault = self.fault
        how = f"{fault.effect}, {'undone' if fault.undo else 'not undone'}" if self.call.operation == "append" else ""
        how = how or ("done" if fault.effect == "all" else "not done")
        return f"{self.mode}: call {fault.number} {self.call} {errno.errorcode[fault.errno]} ({how})"


#: What the system says, by call, while the disk works otherwise; EIO for those that are not here.
ERRORS = {
    "append": errno.ENOSPC,
    "create": errno.EMFILE,
    "open": errno.EMFILE,
    "open_sealed": errno.EMFILE,
    "replace": errno.ENOSPC,
    "remove": errno.EROFS,
    "rename": errno.EROFS,
}

Effect = Literal["nothing", "part", "all"]


def effects_of(mode: str, operation: str) -> Iterator[tuple[Effect, bool]]:
    """(what takes effect, whether it can be undone)"""
    if operation == "append":
        yield "part", mode != "dead"
        if mode == "once":
            yield "part", False
            yield "all", True
    else:
        yield "nothing", True
        if mode == "once" and operation in WRITING - {"sync"}:
            yield "all", True


def troubles(calls: list[Call]) -> Iterator[Trouble]:
    """Every way in which one of these calls can fail."""
    writing = [call for call in calls if call.operation in WRITING]
    for mode, matching in (("once", calls), ("dead", calls if writing else []), ("read-only", writing)):
        for number, call in enumerate(matching, 1):
            code = ERRORS.get(call.operation, errno.EIO) if mode == "once" else errno.EIO
            for effect, undo in effects_of(mode, call.operation):
                operations = WRITING if mode == "read-only" else None
                forever = mode != "once"
                fault = Fault(number, code, operations, forever=forever, effect=effect, undo=undo)
                yield Trouble(mode, fault, call)


def check_not_synced_again(directory: FaultyDirectory) -> bool:
    """A segment whose fsync failed is not synced again by this log; whether there is one."""
    for at in directory.failed:
        failed = directory.calls[at]
        if failed.operation == "sync" and failed.name.endswith(".log"):
            assert failed not in directory.calls[at + 1 :], f"{failed} was tried again"
            return True
    return False


def check_afterwards(directory: FaultyDirectory, config: LogConfig, promise: Promise) -> None:
    """Open, verify, go on, close in order, open again."""
    with Log.open(FaultyDirectory(directory.inner), config) as log:
        assert log.recovery, f"recovery calls it corruption: {log.recovery}"
        assert log.verify(), str(log.verify())
        promise.check_reading(log)
        promise.cut_from = 2**62
        promise.kept = {record.offset: record.value or b"" for record in log.scan()}
        assert promise.try_append(log)
    with Log.open(FaultyDirectory(directory.inner), config) as log:
        assert log.recovery.clean
        assert not log.recovery.findings
        assert log.verify()
        promise.check_reading(log)


def disturb(start: Start, config: LogConfig, operation: Operation, trouble: Trouble) -> None:
    """One run with one trouble."""
    directory, promise = start.fresh()
    log = Log.open(directory, config)
    directory.arm(trouble.fault)
    try:
        operation(log, promise)
    except SawlogError:
        pass
    assert directory.failed, "the fault was never met"
    if not log._closed:
        if trouble.mode == "read-only":
            promise.check_reading(log)
        directory.disarm()
        promise.check_reading(log)
        went_on = promise.try_append(log)
        if check_not_synced_again(directory):
            assert not went_on
        promise.check_reading(log)
        log.close()
    directory.disarm()
    check_not_synced_again(directory)
    check_afterwards(directory, config, promise)


def disturb_opening(start: Start, config: LogConfig, trouble: Trouble) -> None:
    """One try to open with one trouble."""
    directory, promise = start.fresh()
    directory.arm(trouble.fault)
    try:
        log = Log.open(directory, config)
    except SawlogError:
        log = None
    assert directory.failed, "the fault was never met"
    directory.disarm()
    if log is not None:
        promise.check_reading(log)
        promise.try_append(log)
        log.close()
    check_afterwards(directory, config, promise)


def sweep(calls: list[Call], run: Callable[[Trouble], None]) -> None:
    """All troubles; then say which of them it did not survive."""
    failures = []
    count = 0
    for trouble in troubles(calls):
        count += 1
        try:
            run(trouble)
        except (Exception, pytest.fail.Exception) as error:
            text = str(error).splitlines() or [""]
            failures.append(f"{trouble}\n      {type(error).__name__}: {text[0][:200]}")
    assert count >= len(calls)
    assert not failures, f"{len(failures)} of {count} troubles:\n   " + "\n   ".join(failures[:25])


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_step_of_an_operation_may_fail(name: str) -> None:
    operation, config = OPERATIONS[name]
    start = ended(config, "closed")
    directory, promise = start.fresh()
    log = Log.open(directory, config)
    before = len(directory.calls)
    operation(log, promise)
    calls = directory.calls[before:]
    log.close()
    assert calls
    sweep(calls, lambda trouble: disturb(start, config, operation, trouble))


@pytest.mark.parametrize("small_bytes", [recovery.SMALL_BYTES, 1], ids=["copied", "split"])
@pytest.mark.parametrize("how", ["closed", "killed", "torn"])
def test_every_step_of_opening_may_fail(how: str, small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SMALL_BYTES", small_bytes)
    start = ended(CONFIG.with_(durability="os"), how)
    directory, _ = start.fresh()
    with Log.open(directory, CONFIG) as log:
        calls = list(directory.calls)
        assert log.recovery.clean == (how == "closed")
    sweep(calls, lambda trouble: disturb_opening(start, CONFIG, trouble))


def test_opening_without_any_file_may_fail() -> None:
    start = Start(MemoryDirectory(), Promise())
    directory, _ = start.fresh()
    log = Log.open(directory, CONFIG)
    calls = list(directory.calls)
    log.close()
    sweep(calls, lambda trouble: disturb_opening(start, CONFIG, trouble))
