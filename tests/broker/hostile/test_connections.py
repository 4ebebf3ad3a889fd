"""Limits of a running broker: refused and waiting clients, log lines, and unaffected other clients."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from sawlog.broker import limits
from sawlog.broker.handlers import fetch
from sawlog.broker.limits import UNSENT_BYTES
from sawlog.broker.wire import ErrorCode, Key
from sawlog.testing import Broker

from ..peers import Peer, batch, fetch_body, produce_body

MIB = 1 << 20
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
PATIENCE_S = 60.0
#: For SO_LINGER: a close is a reset.
RESET = struct.pack("ii", 1, 0)


#: Refusals of each broker before the test.
_before: dict[str, Counter[str]] = {}


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[str, Broker]]:
    """By their settings: tests share one."""
    with ExitStack() as stack:
        made: dict[str, Broker] = {}
        stack.callback(lambda: [each.stop() for each in made.values()])
        yield made


@pytest.fixture
def broker(request: pytest.FixtureRequest, brokers: dict[str, Broker], hurried: None) -> Broker:
    """With the settings that the test gives."""
    settings = getattr(request, "param", {})
    if (made := brokers.get(repr(settings))) is None:
        made = brokers[repr(settings)] = Broker(**settings).start()
    until(lambda: made._live().metrics.connections == 0)
    _before[made.address] = made._live().metrics.rejected.copy()
    return made


def rejected(broker: Broker) -> dict[str, int]:
    return dict(broker._live().metrics.rejected - _before[broker.address])


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check connections often, so that tests do not wait for seconds."""
    monkeypatch.setattr(limits, "PRESSURE_S", 0.3)
    monkeypatch.setattr(limits, "_LONGEST_S", 0.1)


def blocked(broker: Broker) -> int:
    """Return the number of connections with responses that neither the client nor the kernel accepts."""
    return sum(each.unread_bytes > 0 for each in list(broker._live().server._connections))


def with_settings(**settings: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("broker", [settings], indirect=True, ids=[""])


def serves(broker: Broker) -> bool:
    """Return whether a good client is served."""
    with Peer(broker.address) as peer:
        raw = batch(b"good")
        [answer] = peer.ask(Key.PRODUCE, 9, produce_body("good", raw))["responses"]
        if answer["partition_responses"][0]["error_code"] != ErrorCode.NONE:
            peer.ask(Key.METADATA, 9, {"topics": [{"name": "good"}], "allow_auto_topic_creation": True})
            [answer] = peer.ask(Key.PRODUCE, 9, produce_body("good", raw))["responses"]
        offset = answer["partition_responses"][0]["base_offset"]
        [topic] = peer.ask(Key.FETCH, 11, fetch_body("good", offset))["responses"]
        return bytes(topic["partitions"][0]["records"])[8:] == raw[8:]


def new_topic(broker: Broker, name: str) -> None:
    """An empty topic that takes large records."""
    if name in broker.store.topics():
        broker._call(broker._live().delete_topic(name))
    broker.create_topic(name, max_message_bytes=20 * MIB)


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


# --- connections


@with_settings(max_connections=3)
def test_more_connections_than_allowed_are_refused_until_one_ends(broker: Broker) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(broker.address)) for _ in range(3)]
        for peer in peers:
            peer.ask(Key.API_VERSIONS, 0, {})
        with Peer(broker.address) as refused:
            assert refused.is_closed()
        assert rejected(broker) == {"connections": 1}
        peers[0].ask(Key.API_VERSIONS, 0, {})
    until(lambda: broker._live().metrics.connections == 0)
    assert serves(broker)


@with_settings(max_connections_per_address=2)
def test_an_address_has_its_own_limit(broker: Broker) -> None:
    host, port = broker.listening.host, broker.listening.port
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Peer(broker.address)).ask(Key.API_VERSIONS, 0, {})
        with Peer(broker.address) as refused:
            assert refused.is_closed()
        other = stack.enter_context(Peer(broker.address, source="127.0.0.9"))
        assert other.ask(Key.API_VERSIONS, 0, {})["api_keys"]
        assert rejected(broker) == {"address": 1}
    assert (host, port) == (broker.listening.host, broker.listening.port)
    until(lambda: broker._live().metrics.connections == 0)
    assert serves(broker)


# --- time


@with_settings(first_frame_timeout_s=0.2)
@pytest.mark.parametrize("sent", [b"", b"\0", struct.pack(">ih", 100, 18)], ids=["nothing", "a byte", "a header"])
def test_a_client_that_sends_no_request_is_dropped(
    broker: Broker, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer(broker.address) as waiting:
        waiting.ask(Key.API_VERSIONS, 0, {})
        with Peer(broker.address) as peer:
            peer.socket.sendall(sent)
            assert peer.is_closed()
        waiting.ask(Key.API_VERSIONS, 0, {})
    assert rejected(broker) == {"slow" if sent else "silent": 1}
    assert "the connection of 127.0.0.1 was closed" in said(caplog)


@with_settings(frame_timeout_s=0.2)
def test_a_client_that_does_not_complete_a_request_is_dropped(broker: Broker) -> None:
    with Peer(broker.address) as peer:
        peer.ask(Key.API_VERSIONS, 0, {})
        peer.socket.sendall(struct.pack(">ih", 1000, 18))
        assert peer.is_closed()
    assert rejected(broker) == {"slow": 1}


@with_settings(idle_timeout_s=0.3)
def test_an_idle_client_is_dropped_but_not_one_that_waits_for_a_response(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    new_topic(broker, "quiet")
    with Peer(broker.address) as idle, Peer(broker.address) as waiting:
        waiting.send(Key.FETCH, 11, fetch_body("quiet", 0, wait_ms=800))
        idle.ask(Key.API_VERSIONS, 0, {})
        assert idle.is_closed()
        waiting.receive()
    assert rejected(broker)["idle"] >= 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]  # clients do that every day


@with_settings(idle_timeout_s=0.3)
def test_a_client_that_never_reads_its_responses_is_dropped(broker: Broker) -> None:
    new_topic(broker, "large")
    with Peer(broker.address) as deaf:
        deaf.ask(Key.PRODUCE, 9, produce_body("large", batch(bytes(15 * MIB))))
        deaf.send(Key.FETCH, 11, fetch_body("large", 0))
        until(lambda: "unread" in rejected(broker))
    until(lambda: broker._live().limits.budget.used_bytes == 0)
    assert serves(broker)


# --- invalid requests


@pytest.mark.parametrize(
    ("sent", "hint"),
    [
        (HELLO, "this looks like TLS"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "this looks like HTTP"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "this looks like HTTP"),
        (struct.pack(">i", 2**31 - 1), "a request of 2147483647 bytes; 8 to 104857600 are allowed"),
    ],
    ids=["tls", "http", "http post", "oversized"],
)
def test_the_log_says_what_a_stranger_looks_like(
    broker: Broker, sent: bytes, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer(broker.address) as stranger:
        stranger.socket.sendall(sent)
        assert stranger.is_closed()
    assert hint in said(caplog)
    assert rejected(broker) == {"size": 1}
    assert serves(broker)


@with_settings(node_id=9)
def test_a_flood_of_strangers_does_not_flood_the_log(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        with Peer(broker.address) as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.is_closed()
    assert rejected(broker) == {"size": 100}
    assert 1 <= said(caplog).count("this looks like HTTP") <= 10


def test_requests_that_follow_garbage_in_the_same_write_are_not_executed(broker: Broker) -> None:
    new_topic(broker, "records")
    rubbish = struct.pack(">ihhih", 14, Key.METADATA, 1, 1, -1) + struct.pack(">i", 2**31 - 1)
    with Peer(broker.address) as peer:
        peer.ask(Key.PRODUCE, 9, produce_body("records", batch(b"before")))
        peer.socket.sendall(rubbish + peer.encoded(Key.PRODUCE, 9, produce_body("records", batch(b"after"))))
        assert peer.is_closed()
    assert rejected(broker) == {"malformed": 1}
    assert [record.value for record in broker.records("records")] == [b"before"]


# --- bytes


def responses_taken(peer: Peer, count: int) -> list[int]:
    return [len(peer.receive()[1]["responses"][0]["partitions"][0]["records"]) for _ in range(count)]


@with_settings(max_buffered_bytes=8 * MIB, max_request_bytes=8 * MIB)
def test_large_requests_wait_for_room_and_are_all_answered(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRESSURE_S", PATIENCE_S)  # on a busy machine a thread may send nothing for a while
    new_topic(broker, "large")
    budget = broker._live().limits.budget
    raw = batch(bytes(3 * MIB))
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(broker.address)) for _ in range(6)]
        requests = [peer.encoded(Key.PRODUCE, 9, produce_body("large", raw)) for peer in peers]
        for peer, request in zip(peers, requests, strict=True):
            peer.socket.sendall(request[:70_000])
        until(lambda: budget.has_waiters)
        assert budget.used_bytes <= 8 * MIB
        assert serves(broker)  # small requests go on
        with ThreadPoolExecutor(len(peers)) as senders:
            for peer, request in zip(peers, requests, strict=True):
                senders.submit(peer.socket.sendall, request[70_000:])
        for peer in peers:
            peer.receive()
    assert len(broker.records("large")) == 6
    assert rejected(broker) == {}
    until(lambda: budget.used_bytes == 0)


@with_settings(max_buffered_bytes=8 * MIB, max_request_bytes=8 * MIB)
def test_a_client_that_pins_memory_is_dropped_when_others_need_it(broker: Broker) -> None:
    new_topic(broker, "large")
    raw = batch(bytes(3 * MIB))
    with ExitStack() as stack:
        for _ in range(4):
            hog = stack.enter_context(Peer(broker.address))
            hog.socket.sendall(struct.pack(">ihhih", 4 * MIB, Key.PRODUCE, 9, 1, -1) + bytes(70_000))
        with Peer(broker.address) as good:
            [answer] = good.ask(Key.PRODUCE, 9, produce_body("large", raw))["responses"]
            assert answer["partition_responses"][0]["error_code"] == ErrorCode.NONE
    assert rejected(broker)["room"] >= 1


@with_settings(max_buffered_bytes=8 * MIB, max_request_bytes=8 * MIB)
def test_consumers_that_never_read_take_no_more_than_the_budget(broker: Broker) -> None:
    """Each asks for more than a hundred megabytes in one write, so that all of it could be answered at once."""
    new_topic(broker, "records")
    budget = broker._live().limits.budget
    with ExitStack() as stack:
        writer = stack.enter_context(Peer(broker.address))
        for _ in range(32):
            writer.ask(Key.PRODUCE, 9, produce_body("records", batch(bytes(MIB // 4))))
        fetch = (Key.FETCH, 11, fetch_body("records", 0, partition_max_bytes=8 * MIB))
        highest = 0
        for _ in range(40):
            deaf = stack.enter_context(Peer(broker.address, receive_bytes=1 << 16))
            deaf.send_together([fetch] * 16)
            assert writer.ask(Key.API_VERSIONS, 0, {})["api_keys"]
            highest = max(highest, budget.used_bytes)
        # All are answered, until their sockets take no more; and that is not memory. How much a socket takes depends
        # on the machine.
        until(lambda: blocked(broker) == 40)
        assert max(highest, budget.used_bytes) < 12 * MIB
        with Peer(broker.address) as good:
            good.send(*fetch)
            assert responses_taken(good, 1)[0] > 0
        assert rejected(broker) == {}  # nobody had to be dropped
    until(lambda: budget.used_bytes == 0)


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system has no such option")
def test_the_system_keeps_little_of_what_a_client_does_not_take(broker: Broker) -> None:
    with Peer(broker.address) as peer:
        peer.ask(Key.API_VERSIONS, 0, {})
        (connection,) = broker._live().server._connections
        assert connection._transport is not None
        found = connection._transport.get_extra_info("socket")
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES


def test_a_consumer_that_never_reads_gets_one_response_at_a_time(broker: Broker) -> None:
    """Though there is room for all, and though they are asked for in one write."""
    new_topic(broker, "records")
    server = broker._live().server
    with Peer(broker.address, receive_bytes=1 << 16) as deaf, Peer(broker.address) as other:
        raw = batch(bytes(8 * MIB))
        deaf.ask(Key.PRODUCE, 9, produce_body("records", raw))
        deaf.send_together([(Key.FETCH, 11, fetch_body("records", 0, partition_max_bytes=8 * MIB))] * 6)
        until(lambda: blocked(broker) == 1)
        other.ask(Key.API_VERSIONS, 0, {})
        assert server.in_flight_bytes < 10 * MIB
        assert responses_taken(deaf, 6) == [len(raw)] * 6


@with_settings(max_buffered_bytes=8 * MIB, max_request_bytes=8 * MIB)
def test_a_record_that_many_wait_for_is_not_read_for_all_of_them_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_topic(broker, "records")
    budget, seen, max_bytes = broker._live().limits.budget, [0], fetch._max_bytes

    def looked_at(live: Any, asked: int) -> int:
        seen.append(budget.used_bytes + budget.promised_bytes)
        return max_bytes(live, asked)

    with ExitStack() as stack:
        waiting = [stack.enter_context(Peer(broker.address)) for _ in range(60)]
        for peer in waiting:
            peer.send(Key.FETCH, 11, fetch_body("records", 0, wait_ms=30_000, partition_max_bytes=MIB))
        until(lambda: broker._live().server.in_flight == 60)
        monkeypatch.setattr(fetch, "_max_bytes", looked_at)
        with Peer(broker.address) as writer:
            writer.ask(Key.PRODUCE, 9, produce_body("records", batch(bytes(MIB))))
        for peer in waiting:
            assert responses_taken(peer, 1)[0] > MIB
    assert MIB < max(seen) < 11 * MIB  # 5/4 of the budget, and one more
    assert rejected(broker) == {}


@with_settings(max_buffered_bytes=8 * MIB, max_request_bytes=8 * MIB, node_id=9, stop_timeout_s=600)
def test_a_stop_answers_those_who_wait_for_room(broker: Broker) -> None:
    new_topic(broker, "records")
    live = broker._live()
    with Peer(broker.address) as waiting, Peer(broker.address) as writer:
        waiting.send(Key.FETCH, 11, fetch_body("records", 0, wait_ms=60_000))
        until(lambda: live.server.in_flight == 1)
        live.limits.budget.used_bytes += 20 * MIB
        writer.ask(Key.PRODUCE, 9, produce_body("records", batch(b"x")))
        until(lambda: live.limits.budget.has_waiters)
        began = time.monotonic()
        with ThreadPoolExecutor() as stopping:
            stopping.submit(broker.stop)
            assert responses_taken(waiting, 1)[0] > 0
        assert time.monotonic() - began < 500  # less than stop_timeout_s


def test_buffers_are_released_with_their_connection(broker: Broker) -> None:
    new_topic(broker, "records")
    live = broker._live()
    whole = b""
    with Peer(broker.address) as peer:
        whole = peer.encoded(Key.PRODUCE, 9, produce_body("records", batch(bytes(MIB))))
    # The second one waits for the first, so that nothing is read from the socket any more.
    fetch = (Key.FETCH, 11, fetch_body("records", 0, wait_ms=60_000, min_bytes=1 << 30))
    for size in (3, 100, 70_000, len(whole) - 1):
        for _ in range(5):
            with Peer(broker.address) as peer:
                peer.send_together([fetch, fetch])
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            with Peer(broker.address) as peer:
                peer.socket.sendall(whole[:size])
    until(lambda: live.metrics.connections == 0)
    assert live.limits.budget.used_bytes == 0
    assert serves(broker)
    until(lambda: live.limits.budget.used_bytes == 0)
