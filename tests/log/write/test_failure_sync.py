"""A failed fsync: nothing is acknowledged, nothing is retried, reading continues, reopening recovers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from sawlog import Interval, Log, LogConfig
from sawlog.batch.build import encode
from sawlog.errors import LogFailed, StorageError, SyncFailed
from sawlog.log import checkpoint
from sawlog.storage import MemoryDirectory
from sawlog.testing.faulty import Call, Fault, FaultyDirectory

from ...faults.disk import FaultyStorage

QUIET = LogConfig(checkpoint_interval_ms=3_600_000)
SEGMENT_SYNC = Fault(operations={"sync"}, names="*.log")
PATIENCE_S = 60.0


def opened(config: LogConfig = QUIET) -> tuple[FaultyDirectory, Log]:
    directory = FaultyDirectory(MemoryDirectory())
    log = Log.open(directory, config)
    log.append(b"before")
    log.sync()
    return directory, log


def syncs(directory: FaultyDirectory) -> int:
    return sum(call.operation == "sync" and call.name.endswith(".log") for call in directory.calls)


def check_failed_for_good(directory: FaultyDirectory, log: Log, *, durable: int, visible: int | None = None) -> None:
    """The device works again, but this log must not trust it. Under "always" no reader sees records that may be lost;
    under a lazy policy the written end stays visible, as before the sync failed."""
    visible = durable if visible is None else visible
    directory.disarm()
    before = syncs(directory)
    refused: list[Callable[[], object]] = [
        lambda: log.append(b"x"),
        lambda: log.append_many([b"x"]),
        lambda: log.append_stream([b"x"]),
        log.sync,
        log.seal,
        lambda: log.truncate(0),
        lambda: log.trim(1),
        lambda: asyncio.run(log.append_async(b"x")),
    ]
    for call in refused:
        with pytest.raises(LogFailed) as caught:
            call()
        assert isinstance(caught.value.__cause__, SyncFailed)
    assert not log._is_writable
    assert log.durable_offset == durable
    assert log.read(0).value == b"before"
    assert log.visible_offset == visible
    assert [record.offset for record in log.scan()] == list(range(visible))
    with Log.open(directory.inner, mode="r") as reader:
        assert reader.next_offset == visible
    assert log.verify()
    log.close()
    assert syncs(directory) == before, "the fsync was tried again"
    saved = checkpoint.load(directory.inner)
    assert saved is not None
    assert not saved.clean
    assert saved.durable_offset <= durable


def check_recovers(directory: FaultyDirectory) -> None:
    with Log.open(directory.inner, QUIET) as log:
        assert not log.recovery.clean
        assert log.recovery
        assert log.verify()
        assert log.read(0).value == b"before"
        following = log.next_offset
        assert log.append(b"after") == following
        assert log.durable_offset == following + 1


def test_append_is_not_acknowledged_and_the_log_fails_for_good() -> None:
    directory, log = opened()
    directory.arm(SEGMENT_SYNC)
    with pytest.raises(SyncFailed):
        log.append(b"lost or not, nobody was told")
    check_failed_for_good(directory, log, durable=1)
    check_recovers(directory)


def test_sync_that_fails_under_a_lazy_policy_fails_the_log() -> None:
    directory, log = opened(QUIET.with_(durability="os"))
    log.append(b"written")
    directory.arm(SEGMENT_SYNC)
    with pytest.raises(SyncFailed):
        log.sync()
    check_failed_for_good(directory, log, durable=1, visible=2)
    check_recovers(directory)


def test_the_append_that_crosses_the_interval_reports_the_failure() -> None:
    directory, log = opened(QUIET.with_(durability=Interval(ms=3_600_000, bytes=1000)))
    directory.arm(SEGMENT_SYNC)
    assert log.append(b"x") == 1
    with pytest.raises(SyncFailed):
        log.append(bytes(2000))
    check_failed_for_good(directory, log, durable=1, visible=3)
    check_recovers(directory)


def test_a_background_sync_that_fails_is_reported_by_the_next_append() -> None:
    directory, log = opened(QUIET.with_(durability=Interval(ms=1, bytes=1 << 30)))
    directory.arm(SEGMENT_SYNC)
    waited = threading.Event()
    log.append(b"x")
    for _ in range(3000):
        if not log._is_writable:
            break
        waited.wait(PATIENCE_S / 3000)
    check_failed_for_good(directory, log, durable=1, visible=2)
    check_recovers(directory)


def test_rotation_that_cannot_sync_the_old_segment_fails_the_log() -> None:
    directory, log = opened(QUIET.with_(durability="os"))
    directory.arm(SEGMENT_SYNC)
    with pytest.raises(SyncFailed):
        log.seal()
    check_failed_for_good(directory, log, durable=1)
    check_recovers(directory)


def test_closing_that_cannot_sync_says_so_and_leaves_no_clean_mark() -> None:
    directory, log = opened(QUIET.with_(durability="os"))
    log.append(b"x")
    directory.arm(SEGMENT_SYNC)
    with pytest.raises(SyncFailed):
        log.close()
    assert syncs(directory) == 2
    saved = checkpoint.load(directory.inner)
    assert saved is not None
    assert not saved.clean
    check_recovers(directory)


def test_everyone_who_shares_a_failed_sync_gets_an_error() -> None:
    directory, log = opened()
    directory.arm(SEGMENT_SYNC)
    inside, go = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        if call.operation == "sync" and call.name:
            inside.set()
            go.wait(PATIENCE_S)

    directory.before = hold
    outcomes: list[object] = []

    def append() -> None:
        try:
            outcomes.append(log.append(b"x"))
        except (SyncFailed, LogFailed) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=append) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert inside.wait(PATIENCE_S)
    while log.next_offset < 9:
        go.wait(0.001)
    go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(outcomes) == 8
    assert all(isinstance(each, (SyncFailed, LogFailed)) for each in outcomes), outcomes
    assert syncs(directory) == 2
    directory.before = None
    check_failed_for_good(directory, log, durable=1)
    check_recovers(directory)


@pytest.mark.parametrize("meanwhile", ["seal", "rotating append", "truncate", "sync"])
def test_no_waiter_of_a_failing_sync_repeats_it(meanwhile: str) -> None:
    """The one who comes while an fsync runs, and continues when it has failed, must not sync the same file again."""
    directory, log = opened(QUIET.with_(segment_bytes=1000))
    directory.arm(SEGMENT_SYNC)
    inside, go = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        if call.operation == "sync" and call.name and not inside.is_set():
            inside.set()
            go.wait(PATIENCE_S)

    directory.before = hold
    outcomes: dict[str, object] = {}

    def run(name: str, call: Callable[[], object]) -> threading.Thread:
        def body() -> None:
            try:
                outcomes[name] = call()
            except (SyncFailed, LogFailed) as error:
                outcomes[name] = error

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    threads = [run("append", lambda: log.append(bytes(500)))]
    assert inside.wait(PATIENCE_S)
    calls: dict[str, Callable[[], object]] = {
        "seal": log.seal,
        "rotating append": lambda: log.append(bytes(800)),
        "truncate": lambda: log.truncate(1),
        "sync": log.sync,
    }
    threads.append(run(meanwhile, calls[meanwhile]))
    # A thread that waits for the lock cannot be seen from outside; a moment is enough for it to get there.
    threads[1].join(0.1)
    go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(isinstance(each, (SyncFailed, LogFailed)) for each in outcomes.values()), outcomes
    assert len(outcomes) == 2
    assert syncs(directory) == 2, "the fsync was tried again"
    assert log.durable_offset == 1
    directory.before = None
    log.close()
    check_recovers(directory)


def test_async_appends_that_share_a_failed_sync_all_get_an_error() -> None:
    directory, log = opened()
    directory.arm(SEGMENT_SYNC)

    async def many() -> list[int | BaseException]:
        return await asyncio.gather(*(log.append_async(b"x") for _ in range(20)), return_exceptions=True)

    found = asyncio.run(many())
    assert all(isinstance(each, (SyncFailed, LogFailed)) for each in found), found
    check_failed_for_good(directory, log, durable=1)
    check_recovers(directory)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(operations={"create"}, names="*.log", effect="all"),
        Fault(operations={"replace"}, names="checkpoint", effect="all"),
        Fault(operations={"replace"}, names="*.index", effect="all"),
    ],
    ids=["new segment", "checkpoint", "index"],
)
def test_a_failed_fsync_of_the_directory_is_not_tried_again_either(fault: Fault) -> None:
    """The last step of a create or replace is an fsync of the directory; a second one would say that all is well."""
    directory, log = opened()
    directory.arm(fault)
    try:
        log.seal()
    except SyncFailed:
        pass
    assert directory.failed
    directory.disarm()
    with pytest.raises(LogFailed):
        log.append(b"x")
    assert log.read(0).value == b"before"
    log.close()
    check_recovers(directory)


def test_a_writer_whose_flush_cannot_sync_does_not_keep_the_directory_locked() -> None:
    directory, log = opened()
    writer = log.writer()
    writer.append(b"x")
    directory.arm(SEGMENT_SYNC)
    with pytest.raises(SyncFailed):
        log.close()
    check_recovers(directory)


def test_a_writer_with_records_left_does_not_keep_a_failed_log_locked() -> None:
    directory, log = opened()
    directory.arm(SEGMENT_SYNC)
    with pytest.raises(SyncFailed):
        log.append(b"x")
    directory.disarm()
    writer = log.writer()
    writer.append(b"never placed")
    with pytest.raises(LogFailed):
        log.close()
    check_recovers(directory)


@pytest.mark.alternating
@pytest.mark.sampled(2)  # 0.2 s each
@pytest.mark.parametrize("work", ["append", "append_many", "append_batches", "append_stream"])
def test_no_power_cut_brings_back_an_append_that_failed(work: str) -> None:
    """The append was written, the disk reported an error, the append was rolled back: it stays away, even before the
    next sync."""
    calls: dict[str, Callable[[Log], object]] = {
        "append": lambda log: log.append(b"failed"),
        "append_many": lambda log: log.append_many([b"failed"] * 3),
        "append_batches": lambda log: log.append_batches(encode([(b"failed",)])),
        "append_stream": lambda log: log.append_stream([b"failed"]),
    }
    for operations in ({"append"}, {"write_at"}):
        for number in (1, 2):
            disk = FaultyStorage()
            log = Log.open(disk, LogConfig(durability="os"))
            log.append(b"kept")
            log.sync()
            disk.arm(Fault(number, operations=operations, effect="all"))
            try:
                calls[work](log)
            except StorageError:
                assert log._is_writable
                for seed in range(200):
                    found = Log.open(disk.crash("reorder", seed), mode="r")
                    assert [record.value for record in found] == [b"kept"]
