"""Unit tests of buffers and limits: the budget, its waiters, timeouts and log lines."""

from __future__ import annotations

import asyncio
import logging
import mmap
import random
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sawlog.broker.buffers import (
    BYTES_PER_ITERATION,
    CHUNK_BYTES,
    READ_BUFFER_BYTES,
    SMALL_CHUNK_BYTES,
    Chunk,
    FrameReader,
    InvalidFrameSize,
    MemoryBudget,
    SendQueue,
    WriteScheduler,
)
from sawlog.broker.config import BrokerConfig
from sawlog.broker.limits import ProgressSample, ProgressTracker, RateLimitedLog

from ...looping import for_each

KIB = 1 << 10
LARGE = READ_BUFFER_BYTES * 4


class Loop:
    """Calls when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Client:
    """A connection without a socket."""

    def __init__(self, budget: MemoryBudget, scratch: bytearray | None = None, limit_bytes: int = 1 << 30) -> None:
        self.queue: deque[memoryview] = deque()
        self.resumed = 0
        self.intake = FrameReader(scratch or bytearray(READ_BUFFER_BYTES), budget, self.resume, self.queue, limit_bytes)

    def resume(self) -> bool:
        self.resumed += 1
        return self.intake.retry()

    def send(self, data: bytes) -> int:
        """Deliver bytes as the event loop does: as many as there is room for, repeatedly."""
        complete = 0
        while data:
            buffer = self.intake.buffer()
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            complete += self.intake.received(size)
        return complete

    @property
    def frames(self) -> list[bytes]:
        return list(map(bytes, self.queue))


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.fixture
def loop() -> Loop:
    return Loop()


def budget_of(loop: Loop) -> MemoryBudget:
    """Three quarters of it, eight large requests, are for large requests."""
    return MemoryBudget(32 * LARGE // 3 + 1, loop.soon)


@pytest.fixture
def budget(loop: Loop) -> MemoryBudget:
    return budget_of(loop)


BODIES = [bytes(8), bytes(range(256)) * 8, b"z" * (READ_BUFFER_BYTES - 4), b"L" * LARGE, b"m" * 65533, bytes(9)]
#: Number of bytes per read, and the bodies. A large one in pieces of some bytes takes a hundred thousand calls.
STEPS = [
    *((step, [BODIES[0], BODIES[1], BODIES[5]]) for step in (1, 3, 4)),
    *((step, BODIES) for step in (97, 1000, 65535, 65536, 65537, 1 << 30)),
]


@for_each(("step", "bodies"), STEPS)
def test_frames_are_the_same_however_their_bytes_come(loop: Loop, step: int, bodies: list[bytes]) -> None:
    budget = budget_of(loop)
    client, sent = Client(budget), b"".join(map(framed, bodies))
    complete = 0
    for at in range(0, len(sent), step):
        complete += client.send(sent[at : at + step])
    assert client.frames == bodies
    assert complete == sum(map(len, bodies)) == budget.used_bytes
    assert client.intake.count == len(bodies)


def test_connections_share_the_buffer_without_seeing_each_other(budget: MemoryBudget) -> None:
    scratch = bytearray(READ_BUFFER_BYTES)
    one, two = Client(budget, scratch), Client(budget, scratch)
    mine, yours = framed(b"a" * 5000), framed(b"b" * 5000)
    for at in range(0, 5004, 700):
        one.send(mine[at : at + 700])
        two.send(yours[at : at + 700])
    assert (one.frames, two.frames) == ([b"a" * 5000], [b"b" * 5000])


def test_a_large_request_takes_its_bytes_before_they_come_and_waits_if_there_are_none(
    budget: MemoryBudget, loop: Loop
) -> None:
    budget.used_bytes = 8 * LARGE - LARGE // 2
    client = Client(budget)
    client.send(framed(b"x" * LARGE)[:100])
    assert client.intake.is_waiting
    assert budget.used_bytes == 8 * LARGE - LARGE // 2
    budget.release(LARGE // 4)
    loop.turn()
    assert client.intake.is_waiting
    budget.release(LARGE // 4)
    loop.turn()
    assert not client.intake.is_waiting
    assert budget.used_bytes == 8 * LARGE
    client.send(framed(b"x" * LARGE)[100:])
    assert client.frames == [b"x" * LARGE]


def test_large_requests_begin_in_the_order_in_which_they_came(budget: MemoryBudget, loop: Loop) -> None:
    budget.used_bytes = 8 * LARGE - 100
    first, second = Client(budget), Client(budget)
    for client in (first, second):
        client.send(framed(b"x" * LARGE)[:8])
    budget.release(LARGE)
    loop.turn()
    assert (first.intake.is_waiting, second.intake.is_waiting) == (False, True)
    assert first.intake.close() == LARGE
    budget.release(LARGE)
    loop.turn()
    assert not second.intake.is_waiting


def test_a_closed_connection_does_not_block_the_queue(budget: MemoryBudget, loop: Loop) -> None:
    budget.used_bytes = 8 * LARGE - 100
    first, second = Client(budget), Client(budget)
    first.send(framed(b"x" * 7 * LARGE)[:8])
    second.send(framed(b"x" * LARGE)[:8])
    budget.release(LARGE)
    loop.turn()
    assert second.intake.is_waiting  # the first one is first, though it does not fit
    budget.leave(first.resume)
    loop.turn()
    assert not second.intake.is_waiting


def test_a_request_of_the_size_of_the_budget_begins_when_little_else_is_there(budget: MemoryBudget) -> None:
    budget.used_bytes = 2 * LARGE
    client = Client(budget)
    client.send(framed(b"x" * 10 * LARGE)[:8])
    assert not client.intake.is_waiting


def test_a_length_that_is_only_announced_takes_no_memory(budget: MemoryBudget) -> None:
    with open("/proc/self/statm") as statm:
        before = int(statm.read().split()[1])
        big = MemoryBudget(1 << 34, Loop().soon)
        clients = [Client(big) for _ in range(10)]
        for client in clients:
            client.send((200 << 20).to_bytes(4, "big") + bytes(1000))
        statm.seek(0)
        grown_pages = int(statm.read().split()[1]) - before
    assert grown_pages * 4096 < 100 << 20


def test_a_promise_is_counted_until_the_response_is(budget: MemoryBudget, loop: Loop) -> None:
    budget.promise(11 * LARGE)
    assert budget.is_full
    loop.turn()
    assert budget.is_full
    loop.turn()
    assert not budget.is_full


# --- responses


class Transport(asyncio.WriteTransport):
    """A transport that accepts a limited number of bytes."""

    def __init__(self, passes_bytes: int) -> None:
        self.passes_bytes = passes_bytes
        self.kept, self.got = 0, b""

    def writelines(self, list_of_data: Iterable[Chunk]) -> None:
        data = b"".join(list_of_data)
        self.got += data
        passed = min(self.passes_bytes, len(data))
        self.passes_bytes -= passed
        self.kept += len(data) - passed

    def get_write_buffer_size(self) -> int:
        return self.kept

    def is_closing(self) -> bool:
        return False

    def drain(self) -> None:
        self.kept = 0


@pytest.fixture
def mapped(tmp_path: Path) -> memoryview:
    path = tmp_path / "records"
    path.write_bytes(random.Random(7).randbytes(5 * CHUNK_BYTES + 123))
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def outbox_of(budget: MemoryBudget) -> SendQueue:
    """One whose turn never ends."""
    return SendQueue(budget, WriteScheduler(lambda call: call()), lambda: None)


def test_responses_are_passed_on_a_piece_at_a_time_in_their_order(mapped: memoryview) -> None:
    outbox, transport = outbox_of(MemoryBudget(1 << 30, Loop().soon)), Transport(0)
    sent: list[list[Chunk]] = [[b"head", mapped], [b"small"], [mapped[5:], b"tail"]]
    for buffers in sent:
        outbox.send(transport, buffers, sum(map(len, buffers)))
    assert transport.kept == CHUNK_BYTES  # and nothing of those after it
    while outbox.size_bytes:
        before = len(transport.got)
        transport.drain()
        outbox.feed(transport)
        assert before < len(transport.got) <= before + CHUNK_BYTES
    assert transport.got == b"".join(each for buffers in sent for each in buffers)
    assert outbox.copied_bytes == 0


def test_a_transport_that_passes_everything_on_gets_everything_at_once(mapped: memoryview) -> None:
    outbox, transport = outbox_of(MemoryBudget(1 << 30, Loop().soon)), Transport(1 << 30)
    outbox.send(transport, [mapped], len(mapped))
    assert transport.got == mapped
    assert outbox.size_bytes == 0


def test_the_unsent_rest_of_a_small_response_does_not_block_a_large_one(mapped: memoryview) -> None:
    outbox, transport = outbox_of(MemoryBudget(1 << 30, Loop().soon)), Transport(0)
    outbox.send(transport, [b"small"], 5)
    assert transport.kept == 5  # it may say nothing when that is gone
    outbox.send(transport, [mapped], len(mapped))
    assert transport.kept == 5 + CHUNK_BYTES


def test_bytes_of_a_mapped_file_are_not_memory_and_others_are(mapped: memoryview) -> None:
    outbox, transport = outbox_of(MemoryBudget(1 << 30, Loop().soon)), Transport(0)
    copied = bytes(mapped)
    outbox.send(transport, [mapped, copied], 2 * len(mapped))
    assert outbox.size_bytes == 2 * len(mapped) - CHUNK_BYTES
    assert outbox.copied_bytes == len(copied)


def test_connections_that_have_much_to_send_take_turns(mapped: memoryview) -> None:
    """Clients with small requests are answered in between."""
    loop, transports = Loop(), [Transport(1 << 30) for _ in range(5)]
    budget, turns = MemoryBudget(1 << 30, loop.soon), WriteScheduler(loop.soon)
    boxes: list[SendQueue] = []
    for transport in transports:
        at = len(boxes)
        boxes.append(SendQueue(budget, turns, lambda at=at: boxes[at].feed(transports[at])))  # type: ignore[misc]
        boxes[-1].send(transport, [mapped], len(mapped))
    assert sum(len(each.got) for each in transports) == BYTES_PER_ITERATION, "in the turn in which they were asked"
    assert [each.is_waiting for each in boxes] == [True] * 5
    while any(each.size_bytes for each in boxes):
        before = sum(len(each.got) for each in transports)
        loop.turn()
        written = sum(len(each.got) for each in transports) - before
        assert 0 < written < BYTES_PER_ITERATION + CHUNK_BYTES, "the last piece may be a part of the next turn"
    assert all(each.got == mapped for each in transports)
    assert not any(each.is_waiting for each in boxes)


def test_pieces_are_small_if_there_is_little_room(budget: MemoryBudget, mapped: memoryview) -> None:
    outbox, transport = outbox_of(budget), Transport(0)
    budget.used_bytes = budget.max_bytes * 3 // 4
    outbox.send(transport, [mapped], len(mapped))
    assert transport.kept == SMALL_CHUNK_BYTES


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x16\x03\x01\x02", "this looks like TLS"),
        (b"GET ", "this looks like HTTP"),
        (b"PRI ", "this looks like HTTP/2"),
        (b"\x7f\xff\xff\xff", "a request of 2147483647 bytes; 8 to 1000 are allowed"),
        (b"\xff\xff\xff\xff", "a request of -1 bytes"),
        (b"\0\0\0\7", "a request of 7 bytes"),
    ],
)
def test_a_length_that_cannot_be_is_refused_and_says_what_it_looks_like(
    budget: MemoryBudget, head: bytes, said: str
) -> None:
    with pytest.raises(InvalidFrameSize, match=said):
        Client(budget, limit_bytes=1000).send(head)
    assert budget.used_bytes == 0


# --- time

PATIENCE = BrokerConfig(first_frame_timeout_s=10, frame_timeout_s=30, idle_timeout_s=600, min_frame_bytes_per_s=1000)
NEW = ProgressSample(
    requests=0, partial_bytes=0, expected_bytes=0, is_reading=True, is_busy=False, read_bytes=0, unread_bytes=0
)
OLD = NEW._replace(requests=5, read_bytes=500)


def same(seen: ProgressSample, second: int) -> ProgressSample:
    return seen


def closed_after(
    seen: ProgressSample, changes: Callable[[ProgressSample, int], ProgressSample] = same
) -> tuple[int, str] | None:
    """After how many seconds a connection that looks like this is closed, and why; within an hour."""
    pace = ProgressTracker()
    pace.check(seen, 0, PATIENCE)
    for second in range(1, 3600):
        late = pace.check(changes(seen, second), 1, PATIENCE)
        if late is not None:
            return second, late[0]
    return None


@pytest.mark.parametrize(
    ("seen", "closed"),
    [
        pytest.param(NEW, (10, "silent"), id="says nothing"),
        pytest.param(NEW._replace(partial_bytes=3), (10, "slow"), id="three bytes of the first request"),
        pytest.param(OLD, (600, "idle"), id="has nothing to say any more"),
        pytest.param(OLD._replace(partial_bytes=1, expected_bytes=100), (30, "slow"), id="half a request"),
        pytest.param(OLD._replace(partial_bytes=1, expected_bytes=90_000), (90, "slow"), id="much to send"),
        pytest.param(OLD._replace(unread_bytes=9), (600, "unread"), id="does not read"),
        pytest.param(OLD._replace(is_busy=True), None, id="waits for an answer"),
        pytest.param(NEW._replace(is_reading=False, partial_bytes=9), None, id="is not read from"),
    ],
)
def test_a_connection_that_takes_too_long_is_closed(seen: ProgressSample, closed: tuple[int, str] | None) -> None:
    assert closed_after(seen) == closed


def test_a_byte_per_second_is_no_progress() -> None:
    assert closed_after(NEW, lambda seen, second: seen._replace(partial_bytes=second)) == (10, "slow")


def test_a_connection_that_makes_progress_is_not_closed() -> None:
    assert closed_after(OLD, lambda seen, second: seen._replace(requests=5 + second // 500)) is None
    unread = OLD._replace(unread_bytes=100_000)
    assert closed_after(unread, lambda seen, second: seen._replace(read_bytes=500 + second // 500)) is None


# --- lines


def test_a_flood_of_lines_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    rate_limited_log = RateLimitedLog(lambda: now, max_lines=3, window_s=60)
    for number in range(1000):
        rate_limited_log.log("size", "line %s", number)
    rate_limited_log.log("other", "another line")
    assert [record.getMessage() for record in caplog.records] == ["line 0", "line 1", "line 2", "another line"]
    now = 61.0
    rate_limited_log.log("size", "line again")
    rate_limited_log.report_suppressed()
    assert [record.getMessage() for record in caplog.records[4:]] == [
        "997 more lines like those about 'size' were left out",
        "line again",
    ]


def test_suppressed_lines_are_reported_even_if_none_follows(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    rate_limited_log = RateLimitedLog(lambda: now, max_lines=1, window_s=60)
    for _ in range(3):
        rate_limited_log.log("size", "line", level=logging.ERROR)
    rate_limited_log.report_suppressed()
    now = 60.0
    rate_limited_log.report_suppressed()
    rate_limited_log.report_suppressed()
    assert [record.getMessage() for record in caplog.records] == [
        "line",
        "2 more lines like those about 'size' were left out",
    ]


def test_suppressed_lines_are_reported_when_the_broker_stops(caplog: pytest.LogCaptureFixture) -> None:
    rate_limited_log = RateLimitedLog(lambda: 0.0, max_lines=1, window_s=60)
    for _ in range(3):
        rate_limited_log.log("size", "line")
    rate_limited_log.end()
    rate_limited_log.end()
    assert [record.getMessage() for record in caplog.records] == [
        "line",
        "2 more lines like those about 'size' were left out",
    ]
