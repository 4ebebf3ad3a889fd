"""Failures between a client and a broker: each is an error of sawlog, names the broker, and occurs in bounded time."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

import sawlog
from sawlog.broker import wire
from sawlog.broker.config import Address
from sawlog.broker.remote import RemoteStore, connect
from sawlog.broker.wire import ErrorCode, Key
from sawlog.errors import BrokerRefused, BrokerTimeout, BrokerUnavailable
from sawlog.testing import Broker

#: One who closes without having read resets the connection; if our request comes only then, it ends without an error.
HUNG_UP = "broke|has closed the connection"


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Somebody who accepts one connection after the other, and may not be a broker."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(60)


def request_of(connection: socket.socket) -> memoryview:
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise ConnectionResetError("the client has gone")
    (size,) = struct.unpack(">i", head)
    return memoryview(connection.recv(size, socket.MSG_WAITALL))


def test_an_address_without_listener_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BrokerUnavailable, match=f"no broker at 127.0.0.1:{port}"):
        connect(f"127.0.0.1:{port}", timeout_s=60)


def test_another_address_of_the_cluster_is_tried(broker: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with connect(f"127.0.0.1:{port}, {broker.address}") as store:
        assert store.topics() == []


@pytest.mark.parametrize("text", ["", "host:port", ":9092", "a:1,,b:2"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(sawlog.errors.InvalidConfig, match="HOST:PORT"):
        connect(text)


def test_one_who_never_answers_is_given_up() -> None:
    def read_only(connection: socket.socket) -> None:
        while connection.recv(1 << 20):
            pass

    with listening(read_only) as address, pytest.raises(BrokerTimeout, match=r"did not answer within 0\.2"):
        connect(address, timeout_s=0.2)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">ii", 4, 1),
        struct.pack(">iih", 6, 99, 0),
        struct.pack(">ii", 1 << 20, 1) + b"\xff" * (1 << 20),
    ],
    ids=["http", "negative size", "no body", "another correlation id", "garbage"],
)
def test_one_who_is_no_broker_is_recognised(answer: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(answer)

    with listening(serve) as address, pytest.raises(BrokerUnavailable, match=str(address)):
        connect(address, timeout_s=60)


def test_a_broker_that_hangs_up_is_reported() -> None:
    with listening(lambda connection: None) as address, pytest.raises(BrokerUnavailable, match=HUNG_UP):
        connect(address, timeout_s=60)


def test_a_request_that_the_broker_does_not_offer_is_refused() -> None:
    """An old broker, which knows ApiVersions only in version 0."""

    def serve(connection: socket.socket) -> None:
        while True:
            header = wire.parse_header(request_of(connection))
            if header.api_key == Key.METADATA:
                me = connection.getsockname()
                node = {"node_id": 0, "host": me[0], "port": me[1]}
                reply = wire.encode_response(header, {"brokers": [node], "controller_id": 0, "topics": []})
            else:
                keys = [{"api_key": Key.METADATA, "min_version": 0, "max_version": 1}]
                code = ErrorCode.NONE if header.version == 0 else ErrorCode.UNSUPPORTED_VERSION
                reply = wire.encode_response(header._replace(version=0), {"error_code": code, "api_keys": keys})
            connection.sendall(b"".join(reply))

    with listening(serve) as address, connect(address, timeout_s=60) as store:
        assert store.topics() == []
        with pytest.raises(BrokerRefused, match="offers no version of ListGroups") as caught:
            store.groups.list()
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_asking_survives_a_broken_connection(broker: Broker, store: RemoteStore) -> None:
    topic = store.create_topic("orders")
    topic.append_many([b"%d" % number for number in range(10)])
    log = topic.partition(0)
    broker.drop_connections()
    assert log.visible_offset == 10
    broker.faults.drop("Fetch", times=2)
    assert len(list(log.scan())) == 10


def test_asking_survives_a_restart(broker: Broker, store: RemoteStore) -> None:
    topic = store.create_topic("orders")
    topic.append(b"before")
    broker.restart()
    assert store.topics() == ["orders"]
    assert topic.append(b"after").offset == 1


def test_a_leader_that_moved_is_asked_for_again(broker: Broker, store: RemoteStore) -> None:
    topic = store.create_topic("orders")
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert topic.append(b"x").offset == 0
    broker.faults.fail("ListOffsets", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert topic.partition(0).visible_offset == 1


def test_a_batch_whose_acknowledgement_was_lost_is_stored_once(broker: Broker, store: RemoteStore) -> None:
    topic = store.create_topic("orders")
    topic.append(b"first")
    broker.faults.drop("Produce", after=True)
    topic.append(b"second")
    topic.append(b"third")
    assert [record.value for record in topic.partition(0).scan()] == [b"first", b"second", b"third"]


def test_an_error_that_stays_is_raised_with_kafkas_name(broker: Broker) -> None:
    with connect(broker.address, timeout_s=0.5) as store:
        topic = store.create_topic("orders")
        broker.faults.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)
        with pytest.raises(BrokerRefused, match="TOPIC_AUTHORIZATION_FAILED") as caught:
            topic.append(b"x")
        assert (caught.value.code, caught.value.name) == (29, "TOPIC_AUTHORIZATION_FAILED")
        broker.faults.clear()
        broker.faults.fail("ListOffsets", "LEADER_NOT_AVAILABLE", times=None)
        with pytest.raises(BrokerRefused, match="LEADER_NOT_AVAILABLE"):
            assert topic.partition(0).visible_offset


def test_a_slow_broker_is_given_up(broker: Broker) -> None:
    with connect(broker.address, timeout_s=0.3) as store:
        broker.faults.delay("Metadata", 5)
        with pytest.raises(BrokerTimeout, match="Metadata"):
            store.topics()


def test_errors_can_be_pickled() -> None:
    error = BrokerRefused("no", code=29, name="TOPIC_AUTHORIZATION_FAILED")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.name) == ("no", 29, "TOPIC_AUTHORIZATION_FAILED")
