"""Clients from before Kafka 1.0: version 0 of SaslHandshake, then messages of the mechanism without a header."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from sawlog.broker.security.credentials import MECHANISMS
from sawlog.broker.wire import ErrorCode, Key
from sawlog.testing import Broker

from ..peers import batch, produce_body
from .certificates import Authority
from .scram_client import Client, plain
from .talking import Talker

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Old(Talker):
    """A client that sends tokens."""

    def handshake(self, mechanism: str) -> dict[str, object]:
        return self.ask(Key.SASL_HANDSHAKE, 0, {"mechanism": mechanism})

    def send_token(self, token: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(token)) + token)

    def receive_token(self) -> bytes:
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def exchange(self, token: bytes) -> bytes:
        self.send_token(token)
        return self.receive_token()

    def begin(self, mechanism: str = "SCRAM-SHA-256") -> None:
        assert self.handshake(mechanism)["error_code"] == ErrorCode.NONE

    def prove(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
        self.begin(mechanism)
        client = Client(MECHANISMS[mechanism], user, password)
        first = self.exchange(client.first())
        client.verify(self.exchange(client.final(first)))


@pytest.fixture
def old(scram_broker: Broker) -> Iterator[Old]:
    with Old(scram_broker.address) as made:
        yield made


def test_the_version_is_offered(old: Old) -> None:
    offered = {each["api_key"]: each for each in old.ask(Key.API_VERSIONS, 3, {})["api_keys"]}
    assert (offered[Key.SASL_HANDSHAKE]["min_version"], offered[Key.SASL_HANDSHAKE]["max_version"]) == (0, 1)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_client_with_the_right_password_is_admitted(old: Old, mechanism: str) -> None:
    old.prove("ann", "secret of ann", mechanism)
    assert old.works()


def test_a_password_in_clear_text_is_answered_by_an_empty_message(tls_broker: Broker, authority: Authority) -> None:
    tls_broker.add_user("a", "b")
    for user, password in (("ann", "secret of ann"), ("a", "b")):  # the second takes less than any request
        with Old(tls_broker.address, authority.trusting()) as old:
            old.begin("PLAIN")
            assert old.exchange(plain(user, password)) == b""
            assert old.works()


def test_requests_have_their_headers_again_afterwards(scram_broker: Broker, old: Old) -> None:
    """Also that of another authentication, and they may be large."""
    scram_broker.create_topic("large-of-old")
    old.prove("ann", "secret of ann")
    raw = batch(b"x" * 200_000)
    answer = old.ask(Key.PRODUCE, 9, produce_body("large-of-old", raw))
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE
    assert Talker.handshake(old, "SCRAM-SHA-256")["error_code"] == ErrorCode.NONE
    client = Client(MECHANISMS["SCRAM-SHA-256"], "ann", "secret of ann")
    first = old.say(client.first())
    assert old.say(client.final(bytes(first["auth_bytes"])))["error_code"] == ErrorCode.NONE
    assert old.works()


def test_a_request_that_is_too_short_ends_the_connection_afterwards(old: Old) -> None:
    old.prove("ann", "secret of ann")
    old.send_token(b"short")
    assert old.is_closed()


def test_an_authenticated_client_cannot_return_to_messages_without_a_header(old: Old) -> None:
    old.prove("ann", "secret of ann")
    assert old.handshake("SCRAM-SHA-256")["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
    assert old.is_closed()


def test_a_mechanism_that_is_not_offered_is_refused(old: Old) -> None:
    answer = old.handshake("GSSAPI")
    assert (answer["error_code"], answer["mechanisms"]) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(SCRAM))
    assert old.is_closed()


def _rubbish(old: Old) -> None:
    old.send_token(bytes(range(256)))


def _wrong_password(old: Old) -> None:
    client = Client(MECHANISMS["SCRAM-SHA-256"], "ann", "wrong")
    old.send_token(client.final(old.exchange(client.first())))


def _first_twice(old: Old) -> None:
    old.exchange(b"n,,n=ann,r=abc")
    old.send_token(b"n,,n=ann,r=abc")


def _nothing(old: Old) -> None:
    old.send_token(b"")


def _negative(old: Old) -> None:
    old.socket.sendall(struct.pack(">i", -1))


def _too_large(old: Old) -> None:
    old.socket.sendall(struct.pack(">i", (64 << 10) + 1))


def _large(old: Old) -> None:
    old.send_token(b"n,,n=ann,r=" + b"a" * 60_000)


def _versions(old: Old) -> None:
    old.send(Key.API_VERSIONS, 0, {})


def _handshake(old: Old) -> None:
    old.send(Key.SASL_HANDSHAKE, 0, {"mechanism": "SCRAM-SHA-256"})


def _newer_handshake(old: Old) -> None:
    old.send(Key.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})


def _with_a_header(old: Old) -> None:
    old.send(Key.SASL_AUTHENTICATE, 2, {"auth_bytes": b"n,,n=ann,r=abc"})


def _metadata(old: Old) -> None:
    old.send(Key.METADATA, 9, {"topics": []})


WRONG = [
    _rubbish,
    _wrong_password,
    _first_twice,
    _nothing,
    _negative,
    _too_large,
    _large,
    _versions,
    _handshake,
    _newer_handshake,
    _with_a_header,
    _metadata,
]


@pytest.mark.parametrize("act", WRONG, ids=lambda act: act.__name__)
def test_anything_else_ends_the_connection_without_a_word(old: Old, act: Callable[[Old], None]) -> None:
    old.begin()
    act(old)
    assert old.is_closed()


def test_nothing_that_follows_a_failure_is_carried_out(scram_broker: Broker, old: Old) -> None:
    scram_broker.create_topic("guarded-of-old")
    old.begin()
    request = old.encoded(Key.PRODUCE, 9, produce_body("guarded-of-old", batch(b"x")))
    old.socket.sendall(struct.pack(">i", 8) + b"rubbish!" + request)
    assert old.is_closed()
    assert scram_broker.records("guarded-of-old") == []


def test_a_request_behind_the_last_message_is_answered(scram_broker: Broker, old: Old) -> None:
    """In one piece: the message is looked at first, and what follows it is a request by then."""
    old.begin()
    client = Client(MECHANISMS["SCRAM-SHA-256"], "ann", "secret of ann")
    last = client.final(old.exchange(client.first()))
    old.socket.sendall(struct.pack(">i", len(last)) + last + old.encoded(Key.METADATA, 9, {"topics": []}))
    client.verify(old.receive_token())
    assert old.receive()[1]["brokers"]


def test_a_client_that_stops_during_authentication_is_dropped() -> None:
    with Broker(sasl_mechanisms=["SCRAM-SHA-256"]) as broker:
        broker.add_user("ann", "x")
        broker._live().authenticator.timeout_s = 0.2
        with Old(broker.address) as old:
            old.socket.sendall(old.encoded(Key.SASL_HANDSHAKE, 0, {"mechanism": "SCRAM-SHA-256"}))
            while old.socket.recv(1000):
                pass  # perhaps the answer, and then the end


def test_the_log_says_who_failed_and_contains_no_password(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(sasl_mechanisms=["SCRAM-SHA-256"]) as broker:
        broker.add_user("ann", "secret of ann")
        with Old(broker.address) as old:
            old.begin()
            client = Client(MECHANISMS["SCRAM-SHA-256"], "ann", "a wrong secret")
            old.send_token(client.final(old.exchange(client.first())))
            assert old.is_closed()
    assert "'ann'" in caplog.text
    assert "secret" not in caplog.text
