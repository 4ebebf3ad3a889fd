"""Operations for `workloads` that fail, are interrupted, or overlap with others.

- Streams that abort: their source raises or is cancelled, they are too long, or an interrupt comes.
- Appends of every kind with an interrupt anywhere in them, sometimes with a second one while the first is handled. The
  interrupted append is stored once or not at all; a producer or writer retries, and it is stored exactly once.
- The background task (`tick`) during an append, a truncation or a trim; records that are appended and cut off in the
  middle of maintenance; maintenance during an append. All in one thread, at points where the locks would admit another
  thread, so that a run can be repeated.
- A log opened with mode "a" releases its lock, other processes write, and it continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sawlog import Interval, Log
from sawlog.batch.build import Producer, encode
from sawlog.errors import InvalidRecordType, SawlogError, StreamAborted, StreamTooLong

from .interrupts import Stop, Within, is_free, stop
from .promises import LogPromise, Row
from .thresholds import small_blocks

if TYPE_CHECKING:
    from .workloads import LogWorkload

_TRIES = 10
#: Each is interrupted somewhere else.
_FLUSHES = 6


def given(row: Row) -> tuple[bytes | None, bytes | None, Any, int]:
    """As `append` takes it."""
    key, value, timestamp, headers = row
    return value, key, headers, timestamp


# --- aborted streams


def aborted_stream(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Nothing of it is there, then or after a power cut."""
    size, how = run.random.choice((300, 700, 1500)), run.random.choice(("raises", "too long", "type", "stop"))

    def chunks() -> Iterator[Any]:
        for at in range(0, size, 350):
            yield run.random.randbytes(min(350, size - at))
        if how == "raises":
            raise ConnectionError("the client went away")
        if how == "stop":
            raise Stop
        yield "text" if how == "type" else b"x" * size

    try:
        with small_blocks():
            log.append_stream(chunks(), b"key", size if how == "too long" else None)
    except (StreamAborted, StreamTooLong, InvalidRecordType, Stop):
        pass
    else:
        raise AssertionError("a stream that was aborted was stored")
    promise.note(log)


def aborted_stream_async(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    size, how = run.random.choice((100, 700, 1500)), run.random.choice(("raises", "too long", "cancelled"))

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, size, 350):
            yield run.random.randbytes(min(350, size - at))
        if how == "raises":
            raise ConnectionError("the client went away")
        task = asyncio.current_task()
        if how == "cancelled" and task is not None:
            task.cancel()
        yield b"x" * size

    try:
        with small_blocks():  # a longer stream is collected in a file
            asyncio.run(log.append_stream_async(chunks(), b"key", size if how == "too long" else None))
    except (StreamAborted, StreamTooLong, asyncio.CancelledError):
        pass
    else:
        raise AssertionError("a stream that was aborted was stored")
    promise.note(log)


# --- interrupts


def _interrupts(run: LogWorkload) -> Within:
    """At some place of an append, and perhaps once more soon after that."""
    first = run.random.randrange(1, run.random.choice((40, 120, 300)))
    return Within(stop, first, *((run.random.randrange(1, 40),) if run.random.random() < 0.3 else ()))


def _until_done(run: LogWorkload, call: Callable[[], Any]) -> Any:
    """Ask again after each interrupt, as a program that catches it does."""
    interrupts = _interrupts(run)
    for _ in range(_TRIES):
        try:
            with interrupts.on(run.disk):
                return call()
        except Stop:
            continue
    raise AssertionError(f"interrupted {_TRIES} times")


def _resolve(run: LogWorkload, log: Log, promise: LogPromise, count: int, *, told: bool) -> Log:
    """Find out what an interrupted append of that many records has come to; the log to continue with."""
    if not log._is_writable:  # it could be neither finished nor rolled back
        assert not told, "an append has returned, and the log has failed"
        return run.reopened(log, promise)
    with log._hold():
        pass
    assert log.verify(), str(log.verify())  # the index, too
    there = log.next_offset - promise.end
    assert there in (0, count), f"{there} records of {count} are there after an interrupt"
    assert there or not told, "an append has returned, and nothing is there"
    if there:
        if log.config.durability != "os":
            log.sync()  # log.sync()  # the interrupted append has not waited for the disk
        assert log.visible_offset == log.next_offset, "what is there is not shown"
        promise.acknowledge(log, range(promise.end, promise.end + count))
    else:
        promise.refuse()
        _sync_what_is_late(log)
        promise.note(log)
    return log


def _sync_what_is_late(log: Log) -> None:
    if isinstance(log.config.durability, Interval):
        log.sync()


def interrupted_append(run: LogWorkload, log: Log, promise: LogPromise) -> Log:
    """One record, some in one batch, a stream, or several batches: there once, or not at all."""
    kind = run.random.choice(("append", "append_many", "append_stream", "append_batches", "appending"))
    rows = run.rows(1 if kind in ("append", "append_stream") else 4, 200)
    if kind in ("append_batches", "appending"):
        promise.send_loosely(rows)
    else:
        promise.send(rows)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: log.append(*given(rows[0])),
        "append_many": lambda: log.append_many([given(row) for row in rows]),
        "append_stream": lambda: _stream(log, rows[0]),
        "append_batches": lambda: log.append_batches(b"".join(encode([given(row)]) for row in rows)),
        "appending": lambda: _block(log, rows),
    }
    told, interrupts = False, _interrupts(run)
    with suppress(Stop), interrupts.on(run.disk):
        calls[kind]()
        told = True
    return _resolve(run, log, promise, len(rows), told=told)


def _stream(log: Log, row: Row) -> None:
    key, value, timestamp, headers = row
    log.append_stream([(value or b"")[:90], (value or b"")[90:]], key, headers=headers, timestamp=timestamp)


def _block(log: Log, rows: list[Row]) -> None:
    with log._appending():
        for row in rows:
            log.append(*given(row))
    log.sync()


def interrupted_producer(run: LogWorkload, log: Log, promise: LogPromise) -> Log:
    """Retry a producer's batch until it is acknowledged. It is stored once."""
    rows = run.rows(3, 60)
    records, producer = [given(row) for row in rows], Producer(promise.end + 1, 0, 0)
    promise.send(rows)
    placed = _until_done(run, lambda: log.append_many(records, producer=producer))
    promise.acknowledge(log, placed)
    promise.produced = producer, records, placed
    assert log.append_many(records, producer=producer) == placed, "a batch that was sent twice is there twice"
    return log


def interrupted_writer(run: LogWorkload, log: Log, promise: LogPromise) -> Log:
    """Retry a flush until it succeeds. Every record is stored once."""
    writer = log.writer(batch_bytes=run.random.choice((200, 4000)))
    for _ in range(_FLUSHES):
        rows = run.rows(2, 40)
        promise.send_loosely(rows)
        for row in rows:
            writer.append(*given(row))
        _until_done(run, writer.flush)
        promise.acknowledge(log, range(promise.end, promise.end + len(rows)))
    writer.close()
    return log


# --- others' turns


def _turn(run: LogWorkload, log: Log) -> bool | None:
    """Run the background task if the locks that it needs are free."""
    appender = log._access.appender
    if appender is None or not is_free(log):
        return False
    if isinstance(log.config.durability, Interval) or run.random.random() < 0.5:
        appender._sync_in_time()
    appender._save_in_time()
    return None


def tick_within(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """The background syncs, and saves the watermark, during something."""
    name = run.random.choice(
        ("append", "append_many", "append_batches", "append_stream", "seal", "truncate", "trim", "append_kept")
    )
    numbers = [run.random.randrange(1, 90) for _ in range(3)]
    with Within(lambda: _turn(run, log), *numbers).on(run.disk):
        run.act(name, log, promise)


def append_within_maintenance(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Records come and go while segments are being rewritten."""
    outer = run.random.choice(("compact", "merge", "recompress", "scrub", "forget"))
    inner = run.random.choice(("append", "append_many", "truncate", "trim", "seal", "append_kept"))
    promise.compacted = promise.compacted or outer in ("compact", "forget")

    def turn() -> bool | None:
        if not is_free(log, also_to_write=True):
            return False
        run.act(inner, log, promise)
        return None

    with Within(turn, run.random.randrange(1, 900)).on(run.disk):
        run.act(outer, log, promise)


def maintenance_within_append(run: LogWorkload, log: Log, promise: LogPromise) -> None:
    """Rewrite segments while an append is about to start or waits for the disk."""
    outer = run.random.choice(("append", "append_many", "append_batches", "append_stream", "truncate", "trim"))
    # No compaction during a truncation: the promise records the removed offsets before compaction begins.
    merges = outer == "truncate" or run.random.random() < 0.5
    promise.compacted = promise.compacted or not merges

    def turn() -> bool | None:
        if not is_free(log, also_to_write=True):
            return False
        with suppress(SawlogError):  # it would be another thread's, which is told; the append is not
            if merges:
                log._merge_segments()
            else:
                log.compact()
        return None

    with Within(turn, run.random.randrange(1, 120)).on(run.disk):
        run.act(outer, log, promise)


# --- handing back


def hand_back(run: LogWorkload, log: Log, promise: LogPromise) -> Log:
    """Release the writer's lock, let another process write or not, and take the lock again with the next write."""
    directory = log._access.directory
    if not log._access._locks_late:
        log.close()
        log = Log.open(directory, run.config, mode="a")
    else:
        log._release()
    promise.durable = promise.end
    assert not log._locked
    if run.random.random() < 0.5:
        other = Log.open(directory, run.config)
        run.act("append", other, promise)
        other.close()
        promise.durable = promise.end
    assert log.next_offset == promise.end, f"handed back at {promise.end}, and it ends at {log.next_offset}"
    return log
