"""Every API in every version, with anything in it: the broker answers or closes the connection, has no error that it
did not expect, and serves others afterwards."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from random import Random

import pytest

from sawlog.broker import wire
from sawlog.broker.handlers import HANDLERS
from sawlog.broker.wire import Api
from sawlog.testing import Broker

from ...faults.seeds import repeat, seed_of_this_run
from .fuzzing import TOPIC, Plausible, damaged, framed, request
from .test_connections import serves

#: A request without a response for this long is taken to wait, as a JoinGroup may.
WAITS_S = 0.25
#: Time after which an API counts as never answering.
PATIENCE_S = 30.0
#: Size of the part of a request that names its API and version.
HEADER_BYTES = 8
SERVED = {wire.BY_KEY[key].name: wire.BY_KEY[key] for key in HANDLERS}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"group_max_session_timeout_ms": 10_000, "transaction_max_timeout_ms": 10_000}
    with Broker(auto_create_topics=True, **settings) as made:
        yield made


class Client:
    """Sends frames one after the other; connects again when it has to."""

    def __init__(self, broker: Broker, timeout_s: float) -> None:
        self._broker = broker
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def answer(self, frame: bytes) -> bytes | None:
        """The response to a frame; None if the connection was closed, or if it waits."""
        if self._socket is None:
            listening = self._broker.listening
            self._socket = socket.create_connection((listening.host, listening.port), timeout=self._timeout_s)
        try:
            self._socket.sendall(framed(frame))
            size = struct.unpack(">i", self._exactly(4))[0]
            return self._exactly(size)
        except (TimeoutError, ConnectionError, EOFError):
            self.close()
            return None

    def _exactly(self, size: int) -> bytes:
        found = b""
        assert self._socket is not None
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise EOFError
            found += more
        return found


def topic_id(broker: Broker) -> bytes:
    from sawlog.broker.partitions import id_of

    if TOPIC not in broker.store.topics():
        broker.create_topic(TOPIC)
    return id_of(broker.store.topic(TOPIC))


def fuzz(
    broker: Broker, api: Api, versions: range, rounds: int, random: Random, timeout_s: float = WAITS_S
) -> tuple[int, int]:
    """Send requests of an API and return how many were sent and how many answered. Every response must decode."""
    client, sent, answered = Client(broker, timeout_s), 0, 0
    for version in versions:
        for _ in range(rounds):
            body = Plausible(random, version, topic_id(broker)).body(api.request)
            whole = request(api, version, body)
            silent = body.get("acks") == 0  # nobody would answer
            for frame in (whole, damaged(whole, random, HEADER_BYTES)):
                found = client.answer(frame) if not silent else client.close()
                sent += 1
                if found is not None:
                    answered += 1
                    wire.decode_response(api.key, version, memoryview(found))
    client.close()
    return sent, answered


def unexpected(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Tracebacks, and what asyncio complains about."""
    return [
        f"{record.getMessage()}\n{record.exc_text or record.exc_info}"
        for record in caplog.records
        if record.exc_info or record.name == "asyncio"
    ]


@pytest.mark.parametrize("name", SERVED)
def test_anything_is_answered_or_ends_the_connection(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    api, versions = SERVED[name], broker._live().versions[SERVED[name].key]
    sent, answered = fuzz(broker, api, versions, 1, Random(name))
    if not answered:  # a busy machine may take longer than a request that waits
        sent, answered = fuzz(broker, api, versions, 1, Random(name), PATIENCE_S)
    assert not unexpected(caplog)
    assert answered, f"none of {sent} requests was answered"
    assert serves(broker)


def test_no_request_was_answered_with_an_unknown_server_error(broker: Broker) -> None:
    """After the tests above, in the same broker."""
    assert not [each for each in broker._live().metrics.errors if each[1] == "UNKNOWN_SERVER_ERROR"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_anything_is_answered_or_ends_the_connection_often(name: str, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(f"{name} {seed_of_this_run()}")
    with Broker() as broker:
        fuzz(broker, SERVED[name], broker._live().versions[SERVED[name].key], 60, random)
        assert not unexpected(caplog), repeat()
        assert not [each for each in broker._live().metrics.errors if each[1] == "UNKNOWN_SERVER_ERROR"], repeat()
        assert serves(broker)
