"""Streaming appends: one record of unknown length, not held in memory; a failed append leaves the log unchanged."""

from __future__ import annotations

import asyncio
import errno
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log, LogConfig, Record
from sawlog.batch.header import HEADER_BYTES
from sawlog.errors import (
    InvalidRecordType,
    LogClosed,
    OffsetMismatch,
    RecordTooLarge,
    SawlogError,
    StorageFull,
    StreamAborted,
    StreamTooLong,
)
from sawlog.log import streams
from sawlog.log.streams import StreamedBatch
from sawlog.storage import Storage

from ...batch import wire
from ..places import Place, fill, named, values

CHUNKS = [b"one", b"", b"two" * 50, bytearray(b"three"), memoryview(b"xfourx")[1:5], b"five" * 1000]
WHOLE = b"".join(bytes(chunk) for chunk in CHUNKS)


def overhead(key: bytes | None = None, headers: Any = ()) -> int:
    """Size of a streamed batch without its value."""
    return StreamedBatch(key, headers, 0, append_time=False).overhead_bytes


async def as_async(chunks: Any) -> AsyncIterator[Any]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


def sync_append(log: Log, chunks: Any, **arguments: Any) -> int:
    return log.append_stream(chunks, **arguments)


def async_append(log: Log, chunks: Any, **arguments: Any) -> int:
    return asyncio.run(log.append_stream_async(as_async(chunks), **arguments))


@pytest.fixture(params=[sync_append, async_append], ids=["sync", "async"])
def stream(request: pytest.FixtureRequest) -> Any:
    return request.param


# --- what is stored


def test_stream_becomes_one_record(place: Place, stream: Any) -> None:
    log = place.open()
    log.append(b"before")
    assert stream(log, CHUNKS, key=b"k", headers=[("h", b"v"), ("n", None)], timestamp=1234) == 1
    log.append(b"after")
    record = log.read(1)
    assert record == Record(WHOLE, b"k", (("h", b"v"), ("n", None)), 1234, offset=1)
    assert values(log) == [b"before", WHOLE, b"after"]
    assert log.verify()
    log.close()
    assert values(place.open()) == [b"before", WHOLE, b"after"]


@pytest.mark.parametrize("chunks", [[], [b""], [b"", b""]])
def test_stream_of_nothing_is_an_empty_value(place: Place, stream: Any, chunks: list[bytes]) -> None:
    log = place.open()
    assert stream(log, chunks) == 0
    assert log.read(0).value == b""
    assert log.verify()


@pytest.mark.parametrize("size", [1, 62, 63, 64, 127, 128, 8191, 8192, 2**20 - 1, 2**20, 2**21 + 5])
def test_value_of_any_size_can_be_read(place: Place, stream: Any, size: int) -> None:
    """The lengths of a long value are varints of five bytes, whatever they hold; a short one is stored as `append`
    stores it."""
    log = place.open()
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    stream(log, [data[i : i + 100_000] for i in range(0, size, 100_000)])
    assert log.read(0).value == data
    (batch,) = place.batches()
    shortest = sum(len(wire.varint(each)) for each in (size, 4 + len(wire.varint(size)) + size + 1))
    assert batch.size_bytes == overhead() + size - (10 - shortest if size <= 16 << 10 else 0)
    assert batch.count == 1


def test_streamed_batches_are_read_by_other_clients(place: Place, stream: Any) -> None:
    from aiokafka.record.memory_records import MemoryRecords

    log = place.open()
    stream(log, CHUNKS, key=b"k", headers=[("h", b"v")], timestamp=1234)
    stream(log, [], timestamp=1235)
    reader = MemoryRecords(place.files()[named(0)])
    found = []
    while reader.has_next():
        batch = reader.next_batch()
        assert batch.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value, [tuple(h) for h in r.headers]) for r in batch]
    assert found == [(0, 1234, b"k", WHOLE, [("h", b"v")]), (1, 1235, None, b"", [])]


def test_stream_may_be_any_iterable(place: Place, tmp_path: Any) -> None:
    log = place.open()
    (tmp_path / "file").write_bytes(WHOLE)
    with open(tmp_path / "file", "rb") as file:
        log.append_stream(iter(lambda: file.read(100), b""))
    log.append_stream(bytes([byte]) for byte in WHOLE[:50])
    log.append_stream(())
    assert values(log) == [WHOLE, WHOLE[:50], b""]


def test_chunks_of_wider_items_are_taken_as_bytes(place: Place, stream: Any) -> None:
    import array

    log = place.open()
    stream(log, [memoryview(array.array("I", [1, 2, 3]))])
    assert log.read(0).value == struct.pack("=3I", 1, 2, 3)


def test_chunks_are_taken_as_they_are_when_they_come(place: Place) -> None:
    """Sources usually reuse one buffer."""
    log = place.open()
    buffer = bytearray(3)

    def source() -> Iterator[bytearray]:
        for i in range(5):
            buffer[:] = b"%03d" % i
            yield buffer

    log.append_stream(source())
    assert log.read(0).value == b"000001002003004"


def test_stream_may_read_the_log_it_is_appended_to(place: Place) -> None:
    log = place.open(segment_bytes=500)
    fill(log, 20)
    expected = b"".join(value or b"" for value in values(log))
    log2 = place.copy().open()
    assert log2.append_stream(record.value for record in log2.scan()) == 20
    assert log2.read(20).value == expected


def test_expected_offset_holds_for_streams(place: Place) -> None:
    log = place.open()
    assert log.append_stream([b"x"], expect_offset=0) == 0
    before = place.files()
    taken = []

    def source() -> Iterator[bytes]:
        taken.append(1)
        yield b"x"

    with pytest.raises(OffsetMismatch):
        log.append_stream(source(), expect_offset=0)
    assert place.files() == before
    assert taken == []


# --- the bound


@pytest.mark.parametrize("max_bytes", [0, 1, 10, 1000])
def test_value_may_reach_max_bytes_and_not_pass_it(place: Place, stream: Any, max_bytes: int) -> None:
    log = place.open()
    fill(log, 2)
    before = place.files()
    for size in range(max_bytes + 1, max_bytes + 4):
        with pytest.raises(StreamTooLong, match="max_bytes"):
            stream(log, [b"x" * size], max_bytes=max_bytes)
        with pytest.raises(StreamTooLong):
            stream(log, [b"x"] * size, max_bytes=max_bytes)
        assert place.files() == before
    assert stream(log, [b"x" * max_bytes], max_bytes=max_bytes) == 2
    assert stream(log, [b"x"] * max_bytes, max_bytes=max_bytes) == 3
    assert len(log.read(3).value or b"") == max_bytes


@pytest.mark.alternating
@pytest.mark.sampled(3)  # 0.1 s each
@pytest.mark.parametrize("overflow", [0, 100, None])
def test_segment_and_its_overflow_bound_a_stream_exactly(place: Place, stream: Any, overflow: int | None) -> None:
    log = place.open(segment_bytes=1000, segment_overflow_bytes=overflow)
    log.append(b"x" * 100)
    used = log.size_bytes
    most = 1000 + (500 if overflow is None else overflow)
    before = place.files()
    with pytest.raises(StreamTooLong, match="raise segment_bytes"):
        stream(log, [b"y"] * (most - overhead() + 1))
    assert place.files() == before
    bound = most - used
    assert stream(log, [b"y"] * (bound - overhead())) == 1
    assert log.segments[-1].size_bytes == used + bound
    assert len(log.segments) == 1
    # over the limit now: the next record goes to a new segment
    log.append(b"z")
    assert [s.base_offset for s in log.segments] == [0, 2]
    log.close()
    log = place.open(segment_bytes=1000)
    assert len(log.read(1).value or b"") == bound - overhead()


@pytest.fixture(params=[64, 256 << 10], ids=["small blocks", "large blocks"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes that a stream gathers before it writes."""
    monkeypatch.setattr(streams, "_BLOCK_BYTES", request.param)
    size: int = request.param
    return size


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("over", [1, 300, "empty segment"])
@pytest.mark.parametrize("chunk_bytes", [1, 50, 10_000])
def test_stream_that_is_too_long_for_the_rest_of_the_segment_goes_to_the_next(
    place: Place, stream: Any, over: int | str, chunk_bytes: int
) -> None:
    log = place.open(segment_bytes=1000, segment_overflow_bytes=0)
    log.append(b"x" * 300)
    rest = 1000 - log.size_bytes
    size = (1000 if isinstance(over, str) else rest + over) - overhead(b"key")
    value = bytes(range(256)) * 4
    value = value[:size]
    chunks = [value[i : i + chunk_bytes] for i in range(0, size, chunk_bytes)]
    assert stream(log, chunks, key=b"key") == 1
    assert [(each.base_offset, each.sealed) for each in log.segments] == [(0, True), (1, False)]
    assert (log.read(1).key, log.read(1).value) == (b"key", value)
    assert log.append(b"after") == 2
    assert not [name for name in place.names() if name.endswith(".tmp")]
    assert log.verify()
    log.close()
    log = place.open()
    assert log.recovery.clean
    assert values(log) == [b"x" * 300, value, b"after"]


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("failure", ["too long", "raises", "interrupt", "disk full"])
def test_stream_that_fails_beyond_the_rest_of_the_segment_leaves_it_as_it_was(
    place: Place, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.open(segment_bytes=1000, segment_overflow_bytes=0)
    expected = fill(log, 5, 100)
    before = place.files()

    def chunks() -> Iterator[bytes]:
        yield from [b"y" * 10] * 70
        if failure == "raises":
            raise OSError
        if failure == "interrupt":
            raise KeyboardInterrupt
        yield from [b"y" * 10] * 300

    if failure == "disk full":
        monkeypatch.setattr(streams, "_new_file", lambda appender: full())
    with pytest.raises((StreamTooLong, StreamAborted, KeyboardInterrupt, StorageFull)):
        log.append_stream(chunks())
    assert place.files() == before
    assert values(log) == expected
    assert log.append(b"after") == 5
    assert log.verify()


def full() -> Storage:
    raise StorageFull(errno.ENOSPC, "no space left")


def test_key_and_headers_count_against_the_bound(place: Place, stream: Any) -> None:
    log = place.open(segment_bytes=300, segment_overflow_bytes=0)
    before = place.files()
    for arguments in ({"key": b"k" * 1000}, {"headers": [("h", b"v" * 1000)]}):
        for chunks in ([], [b"x"]):
            with pytest.raises(RecordTooLarge):
                stream(log, chunks, **arguments)
            assert place.files() == before
    assert stream(log, [b"v"], key=b"k" * (300 - overhead(b"") - 2)) == 0


def test_max_record_bytes_is_for_records_whose_length_is_known(place: Place, stream: Any) -> None:
    log = place.open(max_record_bytes=10)
    assert stream(log, [b"x" * 100]) == 0


def test_too_long_is_found_before_all_of_it_was_taken(place: Place) -> None:
    log = place.open()
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 100

    with pytest.raises(StreamTooLong):
        log.append_stream(endless(), max_bytes=1000)
    assert len(taken) == 11


# --- roll-back


def broken(good: int, error: BaseException) -> Iterator[bytes]:
    for i in range(good):
        yield b"%d" % i * 700
    raise error


@pytest.mark.parametrize("sealed_before", [False, True])
def test_stream_that_raises_leaves_nothing_whenever_it_does(place: Place, stream: Any, sealed_before: bool) -> None:
    log = place.open()
    fill(log, 3)
    if sealed_before:
        log.seal()
    before = place.files()
    for good in range(5):
        cause = OSError(5, "broken pipe")
        with pytest.raises(StreamAborted, match="broken pipe") as caught:
            stream(log, broken(good, cause))
        assert caught.value.__cause__ is cause
        assert isinstance(caught.value, RuntimeError)
        assert place.files() == before
        assert (log.next_offset, len(log)) == (3, 3)
    assert log.append(b"after") == 3
    log.close()
    assert values(place.open())[-1] == b"after"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupt_in_the_stream_leaves_nothing_and_comes_through(place: Place, interrupt: type[BaseException]) -> None:
    log = place.open()
    fill(log, 3)
    before = place.files()
    for good in range(4):
        with pytest.raises(interrupt):
            log.append_stream(broken(good, interrupt()))
        assert place.files() == before
    assert log.append(b"after") == 3


@pytest.mark.parametrize("chunk", ["text", 5, None, [1, 2], memoryview(b"abcdef")[::2]])
@pytest.mark.parametrize("good", [0, 2])
def test_chunk_that_is_not_bytes_is_refused_and_leaves_nothing(
    place: Place, stream: Any, chunk: Any, good: int
) -> None:
    log = place.open()
    fill(log, 3)
    before = place.files()
    with pytest.raises(InvalidRecordType):
        stream(log, [*[b"fine"] * good, chunk])
    assert place.files() == before
    assert stream(log, [b"fine"]) == 3


def test_what_is_no_stream_is_refused(place: Place) -> None:
    log = place.open()
    before = place.files()
    for bad in (5, None, object()):
        with pytest.raises(InvalidRecordType):
            log.append_stream(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidRecordType):
            asyncio.run(log.append_stream_async(bad))  # type: ignore[arg-type]
    for bad in (b"bytes", "text"):
        with pytest.raises(InvalidRecordType):
            log.append_stream(bad)  # type: ignore[arg-type]
    for arguments in ({"key": "k"}, {"headers": [("h", 5)]}, {"timestamp": -1}, {"timestamp": "now"}):
        with pytest.raises(SawlogError):
            log.append_stream([b"x"], **arguments)  # type: ignore[arg-type]
        with pytest.raises(SawlogError):
            asyncio.run(log.append_stream_async(as_async([b"x"]), **arguments))  # type: ignore[arg-type]
    assert place.files() == before


def test_generator_is_closed_when_the_append_fails(place: Place) -> None:
    """Its `finally` block runs and its file is closed, without waiting for the garbage collector."""
    log = place.open()
    closed = []

    def source() -> Iterator[bytes]:
        try:
            while True:
                yield b"x" * 100
        finally:
            closed.append(1)

    held = source()
    with pytest.raises(StreamTooLong):
        log.append_stream(held, max_bytes=500)
    held.close()
    assert closed == [1]


# --- a stream that writes to its own log


def nested(log: Log, what: Any) -> Iterator[bytes]:
    yield b"outer"
    what(log)
    yield b"outer"


@pytest.mark.parametrize(
    "what",
    [
        lambda log: log.append(b"inner"),
        lambda log: log.append_many([b"inner"]),
        lambda log: log.append_stream([b"inner"]),
        lambda log: log.seal(),
        lambda log: log.truncate(1),
        lambda log: log.trim(2),
        lambda log: log.remove_expired(0),
        lambda log: log.remove(),
    ],
    ids=["append", "append_many", "append_stream", "seal", "truncate", "trim", "remove_expired", "remove"],
)
def test_stream_that_changes_its_own_log_is_refused(place: Place, what: Any) -> None:
    """Another append would write into the middle of the streamed record."""
    log = place.open()
    expected = fill(log, 3)
    before = place.files()
    with pytest.raises(SawlogError):
        log.append_stream(nested(log, what))
    assert place.files() == before
    assert values(log) == expected
    assert log.append(b"after") == 3
    assert log.verify()


def test_stream_that_closes_its_own_log_loses_nothing(place: Place) -> None:
    """The call is refused, or the log is closed. Afterwards the lock is free and no record is missing."""
    log = place.open()
    expected = fill(log, 3)
    with pytest.raises(SawlogError):
        log.append_stream(nested(log, lambda log: log.close()))
    log.close()
    log = place.open()
    assert values(log) == expected
    assert log.append(b"after") == 3


# --- async only


class Paused:
    """An async stream that pauses at each chunk until it is released."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.reached: asyncio.Queue[int] = asyncio.Queue()
        self.let_go: asyncio.Queue[None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for i, chunk in enumerate(self.chunks):
            await self.reached.put(i)
            await self.let_go.get()
            yield chunk
        await self.reached.put(len(self.chunks))
        await self.let_go.get()


def test_task_cancelled_at_any_chunk_leaves_nothing(place: Place) -> None:
    log = place.open()
    fill(log, 3)
    before = place.files()

    async def cancel_at(chunk: int) -> None:
        source = Paused([b"x" * 500] * 3)
        task = asyncio.ensure_future(log.append_stream_async(source))
        for _ in range(chunk):
            await source.reached.get()
            await source.let_go.put(None)
        await source.reached.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for chunk in range(4):
        asyncio.run(cancel_at(chunk))
        assert place.files() == before
        assert log.next_offset == 3


def test_task_cancelled_at_every_await_leaves_nothing_or_the_whole_record(place: Place) -> None:
    """Step the loop by hand: cancel after the first step, after the second, and so on until the append completes."""
    log = place.open()
    fill(log, 3)

    async def cancel_after(steps: int) -> int | None:
        task = asyncio.ensure_future(log.append_stream_async(as_async([b"x" * 500] * 3)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    through = 0
    for steps in range(400):
        before, expected = place.files(), log.next_offset
        offset = asyncio.run(cancel_after(steps))
        if offset is None and log.next_offset == expected:
            assert place.files() == before, steps
        else:
            assert log.next_offset == expected + 1
            assert log.read(expected).value == b"x" * 1500
            through += 1
            if through == 3:
                break
    assert not [name for name in place.names() if name.endswith(".tmp")]
    assert log.verify()


def test_task_cancelled_by_its_own_stream_stores_nothing(place: Place) -> None:
    """A short stream ends without suspending the task, so only the append itself can deliver the cancellation."""
    log = place.open()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        yield b"b"

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(log.append_stream_async(chunks()))
    assert log.next_offset == 0


def test_slow_stream_delays_no_other_append(place: Place) -> None:
    log = place.open()

    async def main() -> list[int]:
        source = Paused([b"a", b"b"])
        task = asyncio.ensure_future(log.append_stream_async(source))
        await source.reached.get()
        offsets = [log.append(b"meanwhile"), await log.append_async(b"meanwhile")]
        log.seal()
        for _ in range(2):
            await source.let_go.put(None)
            await source.reached.get()
            offsets.append(log.append(b"meanwhile"))
        await source.let_go.put(None)
        offsets.append(await task)
        return offsets

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert values(log) == [b"meanwhile"] * 4 + [b"ab"]


def test_several_streams_at_once_do_not_mix(place: Place) -> None:
    log = place.open(segment_bytes=3000)

    async def main() -> list[int]:
        return await asyncio.gather(
            *(log.append_stream_async(as_async([bytes([65 + i]) * 50] * 10), key=b"%d" % i) for i in range(12))
        )

    offsets = asyncio.run(main())
    assert sorted(offsets) == list(range(12))
    assert [log.read(offset).value for offset in offsets] == [bytes([65 + i]) * 500 for i in range(12)]
    assert not [name for name in place.names() if name.endswith(".tmp")]


def test_stream_that_no_longer_fits_goes_to_the_next_segment(place: Place) -> None:
    log = place.open(segment_bytes=1000, segment_overflow_bytes=0)

    async def main() -> int:
        source = Paused([b"x" * 800])
        task = asyncio.ensure_future(log.append_stream_async(source))
        await source.reached.get()
        log.append(b"y" * 500)
        for _ in range(2):
            await source.let_go.put(None)
        return await task

    assert asyncio.run(main()) == 1
    assert [s.base_offset for s in log.segments] == [0, 1]


def test_log_closed_during_a_stream_refuses_its_end(place: Place) -> None:
    log = place.open()
    log.append(b"kept")

    async def main() -> None:
        source = Paused([b"x"])
        task = asyncio.ensure_future(log.append_stream_async(source))
        await source.reached.get()
        log.close()
        for _ in range(2):
            await source.let_go.put(None)
        with pytest.raises(LogClosed):
            await task

    asyncio.run(main())
    log = place.open()
    assert values(log) == [b"kept"]
    assert not [name for name in place.names() if name.endswith(".tmp")]


def test_spool_that_a_crash_left_behind_goes_at_the_next_open(place: Place) -> None:
    log = place.open()
    log.append(b"kept")

    async def main() -> Place:
        source = Paused([b"x" * 100])
        task = asyncio.ensure_future(log.append_stream_async(source))
        await source.reached.get()
        left_behind = place.copy()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return left_behind

    left_behind = asyncio.run(main())
    again = left_behind.open()
    assert values(again) == [b"kept"]
    assert not [name for name in left_behind.names() if name.endswith(".tmp")]


def test_killed_in_the_middle_of_a_stream_the_log_ends_before_it(place: Place) -> None:
    """The copies are the files that a kill at each chunk would leave."""
    log = place.open()
    expected = fill(log, 3)
    left_behind: list[Place] = []

    def source() -> Iterator[bytes]:
        for _ in range(3):
            left_behind.append(place.copy())
            yield b"x" * 300

    log.append_stream(source())
    left_behind.append(place.copy())
    for copy in left_behind[:-1]:
        beside = copy.open(mode="r")
        assert values(beside) == expected
        beside.close()
        again = copy.open()
        assert values(again) == expected
        assert again.append(b"next") == 3
    assert values(left_behind[-1].open()) == [*expected, b"x" * 900]


def test_reader_sees_nothing_of_a_stream_before_it_is_whole(place: Place) -> None:
    log = place.open()
    log.append(b"before")
    beside = place.open(mode="r")

    def source() -> Iterator[bytes]:
        for _ in range(3):
            assert log.next_offset == beside.next_offset == 1
            assert values(log) == values(beside) == [b"before"]
            assert log.size_bytes == len(place.files()[named(0)][: log.size_bytes])
            yield b"x" * 200

    log.append_stream(source())
    assert log.next_offset == beside.next_offset == 2
    assert beside.read(1).value == b"x" * 600


def test_header_of_a_streamed_batch_is_an_ordinary_one(place: Place, stream: Any) -> None:
    log = place.open(compression="zstd")
    stream(log, [b"x" * 100], timestamp=5)
    (batch,) = place.batches()
    assert (batch.compression, batch.base_timestamp, batch.max_timestamp, batch.producer_id) == (0, 5, 5, -1)
    assert batch.size_bytes > HEADER_BYTES


def test_sync_from_another_thread_is_not_taken_for_the_stream_itself(tmp_path: Path) -> None:
    """Only the code of the stream must not use the log; other threads may sync it meanwhile."""
    errors: list[BaseException] = []

    def sync(log: Log) -> None:
        try:
            log.sync()
        except BaseException as error:
            errors.append(error)

    with Log.open(tmp_path / "log", LogConfig(durability="os")) as log:
        log.append(b"before")

        def chunks() -> Iterator[bytes]:
            yield b"first"
            other = threading.Thread(target=sync, args=(log,))
            other.start()
            other.join(60)
            assert not other.is_alive()
            yield b"last"

        assert log.append_stream(chunks()) == 1
        assert not errors
        assert log.durable_offset >= 1
        assert log.read(1).value == b"firstlast"


# --- short streams


@pytest.mark.alternating
@pytest.mark.sampled(25)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"key": b"k"},
        {"key": b""},
        {"headers": [("h", b"v"), ("n", None)]},
        {"key": b"k" * 70, "headers": {"h": b"v" * 200}},
    ],
    ids=["plain", "key", "empty key", "headers", "both"],
)
@pytest.mark.parametrize("chunks", [[], [b""], [b"x"], [b"one", b"", b"two"], [b"x" * 100] * 163])
def test_a_short_stream_is_stored_as_append_stores_its_value(
    place: Place, stream: Any, chunks: list[bytes], arguments: dict[str, Any]
) -> None:
    log, other = place.open(), place.copy().open()
    for _ in range(3):
        assert stream(log, chunks, timestamp=1234, **arguments) == other.append(
            b"".join(chunks), timestamp=1234, **arguments
        )
    assert [record.value for record in log.scan()] == [b"".join(chunks)] * 3
    (one,), (two,) = ([each.fetch(0).raw] for each in (log, other))
    assert one == two


def test_a_short_async_stream_needs_no_file(place: Place) -> None:
    log = place.open()
    names = set(place.files())
    seen = []

    async def source() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 1000
            seen.append(set(place.files()) - names)

    assert asyncio.run(log.append_stream_async(source())) == 0
    assert seen == [set()] * 10
    assert log.read(0).value == b"x" * 10_000


def test_an_async_stream_becomes_a_file_when_it_is_no_longer_short(place: Place) -> None:
    log = place.open()
    names, files = set(place.files()), []
    chunks = [b"%03d" % number * 1000 for number in range(12)]

    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
            files.append(len(set(place.files()) - names))

    assert asyncio.run(log.append_stream_async(source())) == 0
    assert files == [0] * 5 + [1] * 7
    assert log.read(0).value == b"".join(chunks)
    assert set(place.files()) == names


def test_closing_the_log_ends_a_short_async_stream(place: Place) -> None:
    log = place.open()
    log.append(b"before")

    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        log.close()
        yield b"two"

    with pytest.raises(LogClosed, match="before the stream ended"):
        asyncio.run(log.append_stream_async(source()))
    assert values(place.open()) == [b"before"]
