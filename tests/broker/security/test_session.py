"""A connection before, during and after authentication: every step out of order refuses or closes."""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterator

import pytest

from sawlog.broker.security import authentication
from sawlog.broker.security.credentials import SHA_256
from sawlog.broker.wire import BY_KEY, ErrorCode, Key
from sawlog.testing import Broker

from ...looping import for_each
from ..peers import batch, produce_body
from .scram_client import Client
from .talking import OPEN, Talker


@pytest.fixture
def talker(scram_broker: Broker) -> Iterator[Talker]:
    with Talker(scram_broker.address) as made:
        yield made


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_with_the_right_password_is_admitted(talker: Talker, mechanism: str) -> None:
    answer = talker.log_in("ann", "secret of ann", mechanism)
    assert (answer["error_code"], answer["error_message"], answer["session_lifetime_ms"]) == (ErrorCode.NONE, None, 0)
    assert talker.works()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_the_request_works(talker: Talker, version: int) -> None:
    client = Client(SHA_256, "ann", "secret of ann")
    talker.handshake("SCRAM-SHA-256")
    first = talker.say(client.first(), version)
    client.verify(bytes(talker.say(client.final(bytes(first["auth_bytes"])), version)["auth_bytes"]))
    assert talker.works()


@pytest.mark.parametrize(("user", "password"), [("ann", "secret of bob"), ("nobody", "x"), ("Ann", "secret of ann")])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_with_a_wrong_password_gets_an_error_and_is_disconnected(
    talker: Talker, user: str, password: str, mechanism: str
) -> None:
    answer = talker.log_in(user, password, mechanism)
    assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer["error_message"] == f"authentication failed with {mechanism}"
    assert bytes(answer["auth_bytes"]) == b""
    assert talker.is_closed()


@for_each("key", sorted(set(BY_KEY) - OPEN))
def test_nothing_else_is_answered_before(scram_broker: Broker, key: int) -> None:
    """Only the header is looked at: the body is never decoded."""
    version = BY_KEY[key].versions[-1]
    with Talker(scram_broker.address) as talker:
        talker.socket.sendall(struct.pack(">ihhih", 11, key, version, 1, -1) + b"\0")
        assert talker.is_closed()


def test_nothing_that_follows_a_failure_is_carried_out(scram_broker: Broker, talker: Talker) -> None:
    scram_broker.create_topic("guarded")
    talker.handshake("SCRAM-SHA-256")
    talker.send_together(
        [
            (Key.SASL_AUTHENTICATE, 2, {"auth_bytes": b"rubbish"}),
            (Key.PRODUCE, 9, produce_body("guarded", batch(b"x"))),
            (Key.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"}),
        ]
    )
    assert talker.receive()[1]["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert talker.is_closed()
    assert scram_broker.records("guarded") == []


def test_nothing_is_carried_out_within_an_exchange(scram_broker: Broker, talker: Talker) -> None:
    talker.handshake("SCRAM-SHA-256")
    talker.say(Client(SHA_256, "ann", "secret of ann").first())
    talker.send(Key.METADATA, 9, {"topics": None})
    assert talker.is_closed()


def test_every_client_may_ask_for_versions(talker: Talker) -> None:
    offered = {each["api_key"]: each for each in talker.ask(Key.API_VERSIONS, 3, {})["api_keys"]}
    assert set(offered) >= OPEN
    assert (offered[Key.SASL_AUTHENTICATE]["min_version"], offered[Key.SASL_AUTHENTICATE]["max_version"]) == (0, 2)


def _unknown_mechanism(talker: Talker) -> int:
    answer = talker.handshake("GSSAPI")
    assert answer["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    return int(answer["error_code"])


def _plain_without_tls(talker: Talker) -> int:
    return int(talker.handshake("PLAIN")["error_code"])


def _no_handshake(talker: Talker) -> int:
    return int(talker.say(b"n,,n=ann,r=abc")["error_code"])


def _two_handshakes(talker: Talker) -> int:
    talker.handshake("SCRAM-SHA-256")
    return int(talker.handshake("SCRAM-SHA-512")["error_code"])


def _handshake_within(talker: Talker) -> int:
    talker.handshake("SCRAM-SHA-256")
    talker.say(b"n,,n=ann,r=abc")
    return int(talker.handshake("SCRAM-SHA-256")["error_code"])


def _message_after_the_last(talker: Talker) -> int:
    talker.log_in("ann", "secret of ann")
    return int(talker.say(b"n,,n=ann,r=abc")["error_code"])


def _first_twice(talker: Talker) -> int:
    talker.handshake("SCRAM-SHA-256")
    talker.say(b"n,,n=ann,r=abc")
    return int(talker.say(b"n,,n=ann,r=abc")["error_code"])


def _another_mechanisms_message(talker: Talker) -> int:
    talker.handshake("SCRAM-SHA-256")
    return int(talker.say(b"\0ann\0secret of ann")["error_code"])


def _empty_message(talker: Talker) -> int:
    talker.handshake("SCRAM-SHA-256")
    return int(talker.say(b"")["error_code"])


def _another_user_again(talker: Talker) -> int:
    talker.log_in("ann", "secret of ann")
    return int(talker.log_in("bob", "secret of bob")["error_code"])


def _another_mechanism_again(talker: Talker) -> int:
    talker.log_in("ann", "secret of ann")
    return int(talker.handshake("SCRAM-SHA-512")["error_code"])


def _wrong_password_again(talker: Talker) -> int:
    talker.log_in("ann", "secret of ann")
    return int(talker.log_in("ann", "wrong")["error_code"])


WRONG: dict[Callable[[Talker], int], ErrorCode] = {
    _unknown_mechanism: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    _plain_without_tls: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    _no_handshake: ErrorCode.ILLEGAL_SASL_STATE,
    _two_handshakes: ErrorCode.ILLEGAL_SASL_STATE,
    _handshake_within: ErrorCode.ILLEGAL_SASL_STATE,
    _message_after_the_last: ErrorCode.ILLEGAL_SASL_STATE,
    _first_twice: ErrorCode.SASL_AUTHENTICATION_FAILED,
    _another_mechanisms_message: ErrorCode.SASL_AUTHENTICATION_FAILED,
    _empty_message: ErrorCode.SASL_AUTHENTICATION_FAILED,
    _another_user_again: ErrorCode.SASL_AUTHENTICATION_FAILED,
    _another_mechanism_again: ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    _wrong_password_again: ErrorCode.SASL_AUTHENTICATION_FAILED,
}


@pytest.mark.parametrize("act", WRONG, ids=lambda act: act.__name__)
def test_a_step_out_of_order_is_refused_and_ends_the_connection(talker: Talker, act: Callable[[Talker], int]) -> None:
    assert act(talker) == WRONG[act]
    assert talker.is_closed()


def test_a_connection_authenticates_again_as_the_same_user(talker: Talker) -> None:
    for _ in range(3):
        assert talker.log_in("ann", "secret of ann")["error_code"] == ErrorCode.NONE
        assert talker.works()


def test_requests_are_small_before_authentication_and_large_after(scram_broker: Broker, talker: Talker) -> None:
    with Talker(scram_broker.address) as stranger:
        stranger.socket.sendall(struct.pack(">i", (64 << 10) + 1))
        assert stranger.is_closed()
    scram_broker.create_topic("large")
    talker.log_in("ann", "secret of ann")
    answer = talker.ask(Key.PRODUCE, 9, produce_body("large", batch(b"x" * 200_000)))
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE


def test_a_client_that_does_not_authenticate_in_time_is_dropped() -> None:
    with Broker(sasl_mechanisms=["SCRAM-SHA-256"]) as broker:
        broker.add_user("ann", "x")
        guard = broker._live().authenticator
        with Talker(broker.address) as good:
            good.ask(Key.API_VERSIONS, 0, {})  # it was accepted before the time is short
            guard.timeout_s = 0.2
            with Talker(broker.address) as silent, Talker(broker.address) as slow:
                slow.send(Key.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
                assert silent.is_closed()
                while slow.socket.recv(1000):
                    pass  # the answer, and then the end
            guard.timeout_s = 60
            good.log_in("ann", "x")
            assert good.works()


def test_a_failure_is_answered_later_and_delays_no_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_DELAY_S", 3600)
    with Broker(sasl_mechanisms=["SCRAM-SHA-256"], threads=1) as broker:
        broker.add_user("ann", "x")
        wrong = [Talker(broker.address) for _ in range(20)]
        for each in wrong:
            each.handshake("SCRAM-SHA-256")
            each.send(Key.SASL_AUTHENTICATE, 2, {"auth_bytes": b"rubbish"})
        with Talker(broker.address) as good:
            assert good.log_in("ann", "x")["error_code"] == ErrorCode.NONE
            assert good.works()
        assert select.select([each.socket for each in wrong], [], [], 0)[0] == []
        for each in wrong:
            each.socket.close()


def test_without_authentication_there_is_nothing_to_shake_hands_about() -> None:
    with Broker() as broker, Talker(broker.address) as talker:
        assert talker.works()
        assert talker.handshake("SCRAM-SHA-256") == {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}


def test_the_principal_reaches_the_handlers(scram_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    broker = scram_broker._live()
    real = broker.handlers[Key.METADATA]
    monkeypatch.setitem(
        broker.handlers, Key.METADATA, lambda context, request: seen.append(context.principal) or real(context, request)
    )
    for user in ("ann", "bob"):
        with Talker(scram_broker.address) as talker:
            talker.log_in(user, f"secret of {user}")
            assert talker.works()
    assert seen == ["User:ann", "User:bob"]


def test_logs_say_who_failed_and_contain_no_password(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(sasl_mechanisms=["SCRAM-SHA-256"]) as broker:  # its own: of each reason a few lines are written
        broker.add_user("ann", "secret of ann")
        with Talker(broker.address) as talker:
            talker.log_in("ann", "a wrong secret")
            assert talker.is_closed()
    text = caplog.text
    assert "127.0.0.1" in text
    assert "'ann'" in text
    assert "secret" not in text
