"""Logs that are opened with mode "a": readers until their first write, which takes the lock."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.errors import DirectoryLocked, InvalidConfig, LogClosed, LogNotFound, ReadOnlyLog
from sawlog.log import lock as locking
from sawlog.log import rewrite
from sawlog.log.checkpoint import Checkpoint
from sawlog.storage import FileDirectory, Lock

from .places import FilePlace, MemoryPlace, Place, fill, named, values

CONFIG = LogConfig(durability="os")


def lazily(place: Place, on_lock: Callable[[Log], None] | None = None, config: LogConfig = CONFIG) -> Log:
    log = Log.open(place.directory(), config, mode="a", on_lock=on_lock)
    place.logs.append(log)
    return log


def made(place: Place, count: int = 3) -> None:
    """Return the directory of a log that was closed cleanly."""
    log = place.open()
    fill(log, count)
    log.close()


# --- opening


def test_nothing_is_locked_or_written_before_the_first_write(place: Place) -> None:
    made(place)
    before = place.files()
    log = lazily(place)
    assert len(values(log)) == 3
    assert (log.lowest_offset, log.next_offset, log.size_bytes > 0) == (0, 3, True)
    assert log.verify()
    assert list(log.follow(timeout=0))[-1].offset == 2
    assert not log._locked
    assert not log._is_writable
    place.open().close()  # anybody else may write
    log.close()
    assert place.files() == before


def test_the_first_write_takes_the_lock_and_keeps_it(place: Place) -> None:
    made(place)
    log = lazily(place)
    assert log.append(b"four") == 3
    assert log._locked
    assert log._is_writable
    with pytest.raises(DirectoryLocked):
        place.open()
    assert values(log)[-1] == b"four"
    log.close()
    assert not log._locked
    assert values(place.open())[-1] == b"four"


WRITES: dict[str, Callable[[Log], object]] = {
    "append": lambda log: log.append(b"x"),
    "append_many": lambda log: log.append_many([b"x"]),
    "append_stream": lambda log: log.append_stream([b"x"]),
    "writer": lambda log: log.writer().close(),
    "truncate": lambda log: log.truncate(1),
    "trim": lambda log: log.trim(1),
    "seal": lambda log: log.seal(),
    "sync": lambda log: log.sync(),
    "compact": lambda log: log.compact(),
    "merge_segments": lambda log: log._merge_segments(),
    "recompress": lambda log: log._recompress(),
    "scrub": lambda log: log._scrub(),
    "maintain": lambda log: log.maintain(),
    "apply_retention": lambda log: log.apply_retention(),
    "remove_expired": lambda log: log.remove_expired(10**12),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_kind_of_write_takes_the_lock(place: Place, write: str) -> None:
    made(place)
    log = lazily(place)
    WRITES[write](log)
    assert log._locked


def test_a_write_beside_another_writer_is_refused_and_reading_goes_on(place: Place) -> None:
    made(place)
    log = lazily(place)
    writer = place.open()
    with pytest.raises(DirectoryLocked):
        log.append(b"mine")
    assert not log._locked
    writer.append(b"theirs")
    assert values(log)[-1] == b"theirs"
    writer.close()
    assert log.append(b"mine") == 4


def test_the_first_write_sees_what_others_wrote_since_it_was_opened(place: Place) -> None:
    made(place)
    log = lazily(place)
    assert len(values(log)) == 3
    writer = place.open()
    fill(writer, 2, start=3)
    writer.seal()
    fill(writer, 2, start=5)
    writer.close()
    assert log.append(b"x") == 7
    assert [record.offset for record in log] == list(range(8))


def test_what_a_crash_left_behind_is_repaired_by_the_first_write_and_not_before(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    crashed = place.copy()
    crashed.extend(named(0), b"\0\0\0\0\0\0\0\3torn")
    before = crashed.files()
    lazy = lazily(crashed)
    assert len(values(lazy)) == 3
    assert crashed.files() == before
    assert lazy.append(b"x") == 3
    assert lazy.recovery.truncated_bytes == 12
    lazy.close()
    crashed.close()


def test_there_has_to_be_a_log(place: Place) -> None:
    with pytest.raises(LogNotFound):
        lazily(place)


def test_an_unknown_mode_is_refused(place: Place) -> None:
    with pytest.raises(InvalidConfig, match='"w", "r" or "a"'):
        place.open(mode="x")


def test_a_reader_still_may_not_write(place: Place) -> None:
    made(place)
    log = place.open(mode="r")
    with pytest.raises(ReadOnlyLog):
        log.append(b"x")
    with pytest.raises(ReadOnlyLog), log._hold():
        pass


def test_a_closed_log_does_not_lock_again(place: Place) -> None:
    made(place)
    log = lazily(place)
    log.append(b"x")
    log.close()
    log.close()
    with pytest.raises(LogClosed):
        log.append(b"y")
    with pytest.raises(LogClosed):
        list(log)
    place.open()


def test_many_threads_write_first(place: Place) -> None:
    made(place, 1)
    told: list[Log] = []
    log = lazily(place, told.append)
    together = threading.Barrier(8)

    def write(_: int) -> int:
        together.wait(60)
        return log.append(b"x")

    with ThreadPoolExecutor(8) as pool:
        offsets = sorted(pool.map(write, range(8)))
    assert offsets == list(range(1, 9))
    assert told == [log]


def test_a_scan_that_began_before_the_lock_goes_on(place: Place) -> None:
    log = place.open(segment_bytes=200)
    fill(log, 30)
    log.close()
    log = lazily(place, config=CONFIG.with_(segment_bytes=200))
    scan, follow = log.scan(), log.follow(timeout=0.05)
    assert (next(scan).offset, next(follow).offset) == (0, 0)
    log.append(b"thirty")
    assert [record.offset for record in scan] == list(range(1, 30))
    assert [record.offset for record in follow][:29] == list(range(1, 30))


def test_a_follower_that_began_before_the_lock_sees_what_is_written_after_it(place: Place) -> None:
    made(place)
    log = lazily(place)
    found: list[int] = []
    ready = threading.Event()

    def follow() -> None:
        for record in log.follow(0):
            found.append(record.offset)
            if record.offset == 2:
                ready.set()
            if record.offset == 4:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert ready.wait(60)
    log.append(b"x")
    log.append(b"y")
    thread.join(60)
    assert found == [0, 1, 2, 3, 4]


# --- on_lock


def test_on_lock_is_told_before_the_first_write_and_may_write_itself(place: Place) -> None:
    made(place)
    seen: list[tuple[bool, int]] = []

    def told(log: Log) -> None:
        seen.append((log._locked, log.next_offset))
        assert log.append(b"first") == 3

    log = lazily(place, told)
    assert seen == []
    assert log.append(b"second") == 4
    assert seen == [(True, 3)]
    log.append(b"third")
    assert len(seen) == 1


def test_an_error_of_on_lock_gives_the_lock_back(place: Place) -> None:
    made(place)
    errors = [RuntimeError("not now")]

    def told(log: Log) -> None:
        if errors:
            raise errors.pop()

    log = lazily(place, told)
    with pytest.raises(RuntimeError, match="not now"):
        log.append(b"x")
    assert not log._locked
    assert len(values(log)) == 3
    place.open().close()
    assert log.append(b"x") == 3


def test_on_lock_of_a_writer_is_told_at_once(place: Place) -> None:
    told: list[Log] = []
    log = Log.open(place.directory(), CONFIG, on_lock=told.append)
    assert told == [log]
    log.close()


def test_an_error_of_on_lock_closes_a_writer(place: Place) -> None:
    def told(log: Log) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        Log.open(place.directory(), CONFIG, on_lock=told)
    place.open()


# --- release


def test_a_released_log_reads_on_and_may_lock_again(place: Place) -> None:
    made(place)
    log = lazily(place)
    log.append(b"mine")
    log._release()
    assert not log._locked
    with place.open() as other:
        assert other.recovery.clean
        assert other.append(b"theirs") == 4
    assert values(log)[-2:] == [b"mine", b"theirs"]
    assert log.append(b"mine again") == 5
    assert log._locked


def test_a_lock_that_another_thread_releases_before_it_is_held_is_taken_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(place)
    log = lazily(place)
    log.append(b"one")
    writable = Log._writable

    def released(self: Log) -> Any:
        monkeypatch.undo()
        appender = writable(self)
        log._release()
        return appender

    monkeypatch.setattr(Log, "_writable", released)
    with log._hold():
        assert log.append(b"two") == 4
    log.close()
    with pytest.raises(LogClosed), log._hold():
        pass


def test_releasing_what_is_not_locked_does_nothing(place: Place) -> None:
    made(place)
    log = lazily(place)
    log._release()
    log.append(b"x")
    log._release()
    log._release()
    log.close()
    log._release()


def test_a_plain_writer_does_not_release(place: Place) -> None:
    log = place.open()
    with pytest.raises(InvalidConfig):
        log._release()
    assert log.append(b"x") == 0


def test_releasing_writes_out_what_a_writer_holds(place: Place) -> None:
    made(place)
    log = lazily(place)
    writer = log.writer()
    writer.append(b"held")
    log._release()
    assert values(log)[-1] == b"held"
    with pytest.raises(LogClosed):
        writer.append(b"late")


def test_readers_go_on_over_a_release(place: Place) -> None:
    made(place)
    log = lazily(place)
    log.append(b"x")
    scan, follow = log.scan(), log.follow(timeout=0.05)
    next(scan)
    next(follow)
    log._release()
    assert [record.offset for record in scan] == [1, 2, 3]
    assert [record.offset for record in follow] == [1, 2, 3]


def test_a_follower_sees_what_is_written_after_a_release(place: Place) -> None:
    made(place)
    log = lazily(place)
    log.append(b"x")
    found: list[int] = []
    ready = threading.Event()

    def follow() -> None:
        for record in log.follow(0):
            found.append(record.offset)
            if record.offset == 3:
                ready.set()
            if record.offset == 5:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert ready.wait(60)
    log._release()
    log.append(b"y")
    log._release()
    with place.open() as other:
        other.append(b"z")
    thread.join(60)
    assert found == [0, 1, 2, 3, 4, 5]


def test_writes_that_meet_a_release_lock_again_or_say_that_it_is_closed(place: Place) -> None:
    made(place, 1)
    log = lazily(place)
    done = threading.Event()
    placed: list[int] = []

    def write() -> None:
        while not done.is_set():
            try:
                placed.append(log.append(b"x"))
            except LogClosed:
                pass

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(write) for _ in range(2)]
        for _ in range(50):
            log._release()
        done.set()
        for each in running:
            each.result(timeout=60)
    log._release()
    assert sorted(placed) == list(range(1, log.next_offset))


# --- hold


def test_no_other_thread_appends_while_the_log_is_held(place: Place) -> None:
    made(place)
    log = lazily(place)
    with ThreadPoolExecutor(1) as pool:
        with log._hold():
            assert log._locked
            waiting = pool.submit(log.append, b"other")
            assert log.append(b"mine") == 3
            assert log.append(b"mine too") == 4
            assert not waiting.done()
        assert waiting.result(timeout=60) == 5


def test_holding_a_closed_log_is_refused(place: Place) -> None:
    made(place)
    log = lazily(place)
    log.append(b"x")
    log.close()
    with pytest.raises(LogClosed), log._hold():
        pass


def test_a_held_log_may_be_closed_while_maintenance_waits_for_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made(place)
    log = lazily(place)
    log.append_many([(b"1", b"k"), (b"2", b"k")])
    log.seal()
    written, held = threading.Event(), threading.Event()
    real = rewrite.replace_run

    def replace(*arguments: Any) -> Any:
        done = real(*arguments)
        written.set()
        assert held.wait(60)
        return done

    monkeypatch.setattr(rewrite, "replace_run", replace)
    with ThreadPoolExecutor(2) as pool:
        work = pool.submit(log.compact)
        assert written.wait(60)

        def close() -> None:
            with log._hold():
                held.set()
                log.close()

        closing = pool.submit(close)
        try:
            closing.result(timeout=60)
        finally:  # or the pool would wait forever
            if not closing.done():
                appender = log._access.appender
                assert appender is not None
                appender.maintenance_lock._lock.release()
        assert isinstance(work.exception(timeout=60), LogClosed)
    assert not [name for name in place.names() if name.endswith((".tmp", ".swap"))]
    assert place.open().recovery.clean


def test_an_error_ends_holding(place: Place) -> None:
    made(place)
    log = lazily(place)
    with pytest.raises(RuntimeError), log._hold():
        raise RuntimeError
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(log.append, b"x").result(timeout=60) == 3


# --- create


def test_a_created_log_can_be_read_at_once(place: Place) -> None:
    Log._create(place.directory(), CONFIG)
    log = place.open(mode="r")
    assert (log.lowest_offset, log.next_offset, values(log)) == (0, 0, [])
    writer = place.open()
    assert writer.recovery.clean
    assert not writer.recovery.findings
    writer.append(b"x")
    assert values(log) == [b"x"]


def test_creating_where_a_log_is_changes_nothing(place: Place) -> None:
    made(place)
    before = place.files()
    Log._create(place.directory(), CONFIG)
    assert place.files() == before


def test_a_created_log_starts_where_it_is_told(place: Place) -> None:
    config = CONFIG.with_(initial_offset=1000)
    Log._create(place.directory(), config)
    assert Checkpoint.decode(place.files()["checkpoint"]).durable_offset == 1000
    log = lazily(place, config=config)
    assert (log.lowest_offset, log.next_offset) == (1000, 1000)
    assert log.append(b"x") == 1000


def test_creating_leaves_no_descriptor_and_no_lock(file_place: FilePlace) -> None:
    for _ in range(2):
        Log._create(file_place.path, CONFIG)
    file_place.open()


def test_a_crash_while_creating_leaves_an_empty_log_or_none(memory_place: MemoryPlace) -> None:
    memory_place.path.create(named(0))  # the first of its two steps
    log = lazily(memory_place)
    assert values(log) == []
    assert log.append(b"x") == 0
    assert log.recovery


# --- maintenance that holds the lock


def lock_of(place: Place) -> Lock:
    """Hold the writer's lock in another process."""
    directory = place.path if isinstance(place, MemoryPlace) else FileDirectory(place.directory())
    return directory.lock("LOCK")


def test_a_writer_waits_for_maintenance_and_not_for_a_writer(place: Place) -> None:
    made(place)
    lock = lock_of(place)
    with pytest.raises(DirectoryLocked):
        place.open()
    lock.leave(locking.MAINTENANCE_NOTE)
    released = threading.Timer(0.1, lock.release)
    released.start()
    log = place.open()
    assert log.append(b"x") == 3
    released.join()


def test_a_writer_does_not_wait_for_maintenance_for_ever(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "_PATIENCE_S", 0.05)
    made(place)
    lock = lock_of(place)
    lock.leave(locking.MAINTENANCE_NOTE)
    with pytest.raises(DirectoryLocked):
        place.open()
    lock.release()
    place.open()


def test_the_note_of_maintenance_that_is_gone_is_no_reason_to_wait(place: Place) -> None:
    made(place)
    lock = lock_of(place)
    lock.leave(locking.MAINTENANCE_NOTE)
    lock.release()
    writer = place.open()
    with pytest.raises(DirectoryLocked):
        place.open()
    writer.close()


# --- other processes


@pytest.mark.alternating
def test_the_lock_of_one_process_is_seen_by_another(file_place: FilePlace) -> None:
    made(file_place)
    log = lazily(file_place)
    script = (  # a process of its own for each line that it is sent
        "import os, sys; from sawlog import Log; from sawlog.errors import DirectoryLocked\n"
        "while sys.stdin.readline():\n"
        "    if child := os.fork():\n"
        "        os.waitpid(child, 0)\n"
        "        print('gone', flush=True)\n"
        "        continue\n"
        "    log = Log.open(sys.argv[1], mode='a')\n"
        "    assert len(list(log)) >= 3\n"
        "    try: print(log.append(b'theirs'), flush=True)\n"
        "    except DirectoryLocked: print('locked', flush=True)\n"
        "    break\n"
    )
    command = [sys.executable, "-c", script, str(file_place.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def elsewhere() -> str:
            process.stdin.write("\n")
            process.stdin.flush()
            said = process.stdout.readline().strip()
            assert process.stdout.readline() == "gone\n"
            return said

        assert elsewhere() == "3"
        assert log.append(b"mine") == 4
        assert elsewhere() == "locked"
        log._release()
        assert elsewhere() == "5"
        assert log.append(b"mine") == 6
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("work", ["compact", "_merge_segments", "_recompress", "_scrub", "maintain"])
def test_maintenance_is_refused_while_the_log_is_held(place: Place, work: str) -> None:
    """Otherwise it would wait for concurrent maintenance, which waits for the holder."""
    log = place.open(LogConfig())
    log.append(b"one")
    with log._hold(), pytest.raises(InvalidConfig, match="hold"):
        getattr(log, work)()
    getattr(log, work)()
