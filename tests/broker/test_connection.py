"""Connections: order, pipelining, back-pressure, and garbage."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest

from sawlog.broker.wire import ErrorCode, Key
from sawlog.testing import Broker

from .peers import Peer, batch, fetch_body, produce_body


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.address) as made:
        yield made


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name[:80]
    broker.create_topic(name)
    return name


def first_part(body: dict) -> dict:
    """The answer about the one partition of a Produce or Fetch request."""
    return (body["responses"][0].get("partition_responses") or body["responses"][0]["partitions"])[0]


def test_responses_come_in_the_order_of_the_requests(peer: Peer, topic: str) -> None:
    wanted = [peer.send(Key.PRODUCE, 9, produce_body(topic, batch(b"%d" % n))) for n in range(100)]
    wanted.append(peer.send(Key.METADATA, 9, {"topics": None}))
    wanted += [peer.send(Key.FETCH, 11, fetch_body(topic, n)) for n in range(50)]
    assert [peer.receive()[0] for _ in wanted] == wanted


def test_offsets_of_pipelined_requests_are_in_order(peer: Peer, topic: str) -> None:
    for n in range(200):
        peer.send(Key.PRODUCE, 9, produce_body(topic, batch(b"%d" % n)))
    assert [first_part(peer.receive()[1])["base_offset"] for _ in range(200)] == list(range(200))


def test_more_requests_at_once_than_may_be_in_flight_are_all_answered(topic: str) -> None:
    """In one write, so that they are there when the first is begun: answered at once, later, and without an answer."""
    asked = [(Key.METADATA, 9, {"topics": []}), (Key.PRODUCE, 9, produce_body(topic, batch(b"x")))]
    silent = (Key.PRODUCE, 9, produce_body(topic, batch(b"x"), acks=0))
    with Broker(max_in_flight=3) as broker, Peer(broker.address) as peer:
        broker.create_topic(topic)
        numbers = peer.send_together([*asked * 8, silent, silent, silent, silent, *asked * 8])
        assert [peer.receive()[0] for _ in range(32)] == [*numbers[:16], *numbers[20:]]
        assert len(broker.records(topic)) == 20


def test_a_fetch_that_waits_holds_up_what_follows_it_and_is_answered_first(
    broker: Broker, peer: Peer, topic: str
) -> None:
    waiting = peer.send(Key.FETCH, 11, fetch_body(topic, 0, wait_ms=15_000))
    after = peer.send(Key.METADATA, 9, {"topics": []})
    with Peer(broker.address) as other:
        other.ask(Key.PRODUCE, 9, produce_body(topic, batch(b"one")))
    number, body = peer.receive()
    assert number == waiting
    assert bytes(first_part(body)["records"]) != b""
    assert peer.receive()[0] == after


def test_a_fetch_ends_when_its_time_is_over(peer: Peer, topic: str) -> None:
    body = peer.ask(Key.FETCH, 11, fetch_body(topic, 0, wait_ms=50))
    assert (first_part(body)["error_code"], bytes(first_part(body)["records"])) == (ErrorCode.NONE, b"")


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(broker: Broker, peer: Peer, topic: str) -> None:
    one = batch(b"x" * 100)
    peer.send(Key.FETCH, 11, fetch_body(topic, 0, wait_ms=15_000, min_bytes=len(one) + 1))
    with Peer(broker.address) as other:
        other.ask(Key.PRODUCE, 9, produce_body(topic, one))
        other.ask(Key.PRODUCE, 9, produce_body(topic, one))
    assert len(first_part(peer.receive()[1])["records"]) == 2 * len(one)


def test_without_acknowledgement_there_is_no_response(peer: Peer, topic: str, broker: Broker) -> None:
    number = peer.send(Key.PRODUCE, 9, produce_body(topic, batch(b"silent"), acks=0))
    peer._sent.clear()
    assert peer.ask(Key.METADATA, 9, {"topics": []})["brokers"]
    assert number == 1
    assert [record.value for record in broker.records(topic)] == [b"silent"]


def test_acks_that_do_not_exist_are_refused_in_the_form_of_the_response(peer: Peer, topic: str) -> None:
    body = peer.ask(Key.PRODUCE, 9, produce_body(topic, batch(b"x"), acks=7))
    assert first_part(body)["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS


def test_many_connections_at_once(broker: Broker, topic: str) -> None:
    peers = [Peer(broker.address) for _ in range(200)]
    for peer in peers:
        peer.send(Key.PRODUCE, 9, produce_body(topic, batch(b"x")))
    offsets = {first_part(peer.receive()[1])["base_offset"] for peer in peers}
    for peer in peers:
        peer.socket.close()
    assert offsets == set(range(200))


def test_a_large_request_arrives_in_pieces(broker: Broker, topic: str) -> None:
    broker.create_topic("large", max_message_bytes=20_000_000)
    with Peer(broker.address) as peer:
        raw = batch(b"x" * 10_000_000)
        assert first_part(peer.ask(Key.PRODUCE, 9, produce_body("large", raw)))["base_offset"] == 0
        body = peer.ask(Key.FETCH, 11, fetch_body("large", 0, partition_max_bytes=10))
        assert len(first_part(body)["records"]) == len(raw)  # at least one batch, however large


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, Key.METADATA, 99, 1, -1),
        struct.pack(">ihhih", 12, Key.METADATA, 1, 1, 400) + b"xx",
        struct.pack(">ihhih", 14, Key.METADATA, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
    ],
    ids=["http", "negative", "huge", "short", "unknown api", "unknown version", "client id", "array"],
)
def test_garbage_ends_only_its_connection(broker: Broker, peer: Peer, rubbish: bytes) -> None:
    peer.socket.sendall(rubbish)
    assert peer.is_closed()
    with Peer(broker.address) as other:
        assert other.ask(Key.METADATA, 9, {"topics": []})["brokers"]


def test_api_versions_of_an_unknown_version_are_answered_in_the_first(peer: Peer) -> None:
    peer.socket.sendall(struct.pack(">ihhih", 10, Key.API_VERSIONS, 99, 5, -1))
    peer._sent.append((Key.API_VERSIONS, 0))
    number, body = peer.receive()
    assert (number, body["error_code"]) == (5, ErrorCode.UNSUPPORTED_VERSION)
    assert {each["api_key"] for each in body["api_keys"]} >= {Key.PRODUCE, Key.FETCH, Key.API_VERSIONS}


@pytest.mark.alternating
def test_a_client_that_does_not_read_does_not_stop_the_others(broker: Broker, topic: str) -> None:
    with Peer(broker.address) as peer:
        peer.ask(Key.PRODUCE, 9, produce_body(topic, batch(b"x" * 500_000)))
        for _ in range(400):  # 200 MB of responses that the client does not read
            peer.send(Key.FETCH, 11, fetch_body(topic, 0))
        with Peer(broker.address) as other:
            assert other.ask(Key.METADATA, 9, {"topics": []})["brokers"]
        assert [len(first_part(peer.receive()[1])["records"]) > 0 for _ in range(400)] == [True] * 400


def test_clients_that_go_away_in_the_middle_leave_nothing(broker: Broker, topic: str) -> None:
    def come_and_go() -> None:
        for n in range(20):
            with Peer(broker.address) as peer:
                peer.send(Key.FETCH, 11, fetch_body(topic, 0, wait_ms=60_000))
                if n % 2:
                    peer.socket.sendall(struct.pack(">i", 1000) + b"half of a request")

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Peer(broker.address) as peer:
        assert first_part(peer.ask(Key.PRODUCE, 9, produce_body(topic, batch(b"x"))))["base_offset"] == 0
