"""TLS: requirements of a listener, its certificate, and a new certificate without a restart."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sawlog.broker.broker import serve
from sawlog.broker.config import BrokerConfig, changed
from sawlog.broker.security import tls
from sawlog.broker.security.tls import load_context
from sawlog.broker.wire import ErrorCode, Key
from sawlog.errors import InvalidConfig
from sawlog.testing import Broker
from sawlog.testing import broker as testing_broker

from ..peers import batch, fetch_body, produce_body
from ..serving import Serving
from .certificates import Authority, Files, serial_of
from .talking import Talker


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both event loops."""
    if request.param == "asyncio":
        monkeypatch.setattr(testing_broker, "new_loop", asyncio.new_event_loop)
    return str(request.param)


def settings(files: Files, **more: Any) -> dict[str, Any]:
    return {"tls_certificate": files.certificate, "tls_key": files.key, **more}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline


def test_records_of_any_size_go_through_tls(loop: str, authority: Authority, server: Files) -> None:
    values = [b"x" * 3_000_000, b"small", bytes(500_000)]
    with Broker(**settings(server)) as broker, Talker(broker.address, authority.trusting()) as talker:
        broker.create_topic("orders", max_message_bytes=10_000_000)
        for number, value in enumerate(values):
            answer = talker.ask(Key.PRODUCE, 9, produce_body("orders", batch(value)))
            assert answer["responses"][0]["partition_responses"][0]["base_offset"] == number
        for number, value in enumerate(values):
            body = fetch_body("orders", number, partition_max_bytes=1)
            records = talker.ask(Key.FETCH, 11, body)["responses"][0]["partitions"][0]["records"]
            assert bytes(records).count(value)
        assert [record.value for record in broker.records("orders")] == values


def test_a_broker_stops_although_a_client_does_not_say_goodbye(
    authority: Authority, server: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_SHUTDOWN_S", 0.1)
    with Broker(**settings(server, stop_timeout_s=80_000)) as broker:
        talker = Talker(broker.address, authority.trusting())
        assert talker.works()
        broker.stop()
        assert talker.socket.recv(1) == b""
        talker.socket.close()


def test_old_versions_of_tls_are_refused(authority: Authority, server: Files, tls_broker: Broker) -> None:
    context = authority.trusting()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        Talker(tls_broker.address, context)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_authenticate_over_tls(authority: Authority, tls_broker: Broker, mechanism: str) -> None:
    with Talker(tls_broker.address, authority.trusting()) as talker:
        assert talker.log_in("ann", "secret of ann", mechanism)["error_code"] == ErrorCode.NONE
        assert talker.works()
    for user in ("ann", "nobody"):
        with Talker(tls_broker.address, authority.trusting()) as talker:
            answer = talker.log_in(user, "wrong", mechanism)
            assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert talker.is_closed()


PLAIN = {
    "nothing": b"",
    "no password": b"\0ann\0",
    "no user": b"\0\0secret of ann",
    "two parts": b"ann\0secret of ann",
    "four parts": b"\0ann\0secret of ann\0",
    "as somebody else": b"root\0ann\0secret of ann",
    "not text": b"\0ann\0\xff\xfe",
    "long": b"\0ann\0" + b"x" * 5000,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_message_that_is_wrong_is_refused(authority: Authority, tls_broker: Broker, name: str) -> None:
    with Talker(tls_broker.address, authority.trusting()) as talker:
        talker.handshake("PLAIN")
        assert talker.say(PLAIN[name])["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert talker.is_closed()


# --- certificates of clients


def principals(broker: Broker) -> list[str]:
    """Record the principals that request metadata from now on."""
    seen: list[str] = []
    live = broker._live()
    real = live.handlers[Key.METADATA]
    live.handlers[Key.METADATA] = lambda context, request: seen.append(context.principal) or real(context, request)
    return seen


def test_a_required_certificate_names_the_principal(loop: str, authority: Authority, server: Files) -> None:
    ann = authority.client("ann", "Example, Inc.")
    with Broker(**settings(server, tls_client_ca=authority.file)) as broker:
        seen = principals(broker)
        with Talker(broker.address, authority.trusting(ann)) as talker:
            assert talker.works()
        [name] = seen
        assert name.startswith("User:CN=ann,OU=")
        assert name.endswith(r",O=Example\, Inc.")


def test_a_client_without_a_certificate_of_the_authority_is_refused(
    authority: Authority, server: Files, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path).client("ann")
    with Broker(**settings(server, tls_client_ca=authority.file, tls_client_auth="required")) as broker:
        for files in (None, stranger):
            with pytest.raises((OSError, EOFError)), Talker(broker.address, authority.trusting(files)) as talker:
                talker.works()
        with Talker(broker.address, authority.trusting(authority.client("ann"))) as talker:
            assert talker.works()


def test_a_requested_certificate_may_be_missing(authority: Authority, server: Files, tmp_path: Path) -> None:
    with Broker(**settings(server, tls_client_ca=authority.file, tls_client_auth="requested")) as broker:
        seen = principals(broker)
        for files in (None, authority.client("bob")):
            with Talker(broker.address, authority.trusting(files)) as talker:
                assert talker.works()
        assert seen[0] == "User:ANONYMOUS"
        assert seen[1].startswith("User:CN=bob,")
        stranger = Authority(tmp_path).client("ann")
        with pytest.raises((OSError, EOFError)), Talker(broker.address, authority.trusting(stranger)) as talker:
            talker.works()


def test_a_password_counts_more_than_a_certificate(authority: Authority, server: Files) -> None:
    more = settings(server, tls_client_ca=authority.file, sasl_mechanisms=["PLAIN"])
    with Broker(**more) as broker:
        broker.add_user("eve", "x")
        seen = principals(broker)
        with Talker(broker.address, authority.trusting(authority.client("ann"))) as talker:
            talker.send(Key.METADATA, 9, {"topics": []})
            assert talker.is_closed()
        with Talker(broker.address, authority.trusting(authority.client("ann"))) as talker:
            talker.log_in("eve", "x", "PLAIN")
            assert talker.works()
        assert seen == ["User:eve"]


# --- what is not TLS


def handshakes(broker: Broker) -> tls.TlsListener:
    found = broker._live().server._listener
    assert isinstance(found, tls.TlsListener)
    return found


@pytest.mark.parametrize("rubbish", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff", b""])
def test_plain_text_at_a_tls_listener_ends_only_its_connection(
    authority: Authority, server: Files, rubbish: bytes
) -> None:
    with Broker(**settings(server, handshake_timeout_s=0.2)) as broker:
        with socket.create_connection(("127.0.0.1", broker.listening.port), 20) as stranger:
            stranger.sendall(rubbish)
            while stranger.recv(1000):
                pass  # an alert
        until(lambda: broker._live().metrics.rejected["tls"] == 1)
        handshakes(broker)._timeout_s = 60  # a busy machine needs more
        with Talker(broker.address, authority.trusting()) as talker:
            assert talker.works()


def test_silent_connections_of_one_client_are_limited(
    authority: Authority, server: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_MOST_PER_HOST", 3)
    with Broker(**settings(server, handshake_timeout_s=80_000)) as broker:
        silent = [socket.create_connection(("127.0.0.1", broker.listening.port), 20) for _ in range(5)]
        until(lambda: broker._live().metrics.rejected["handshakes"] == 2)
        dropped = select.select(silent, [], [], 20)[0]
        assert all(each.recv(1) == b"" for each in dropped)
        for each in silent:
            each.close()
        until(lambda: not handshakes(broker)._by_host)
        with Talker(broker.address, authority.trusting()) as talker:
            assert talker.works()


def test_a_broker_stops_within_a_handshake(loop: str, server: Files) -> None:
    with (
        Broker(**settings(server)) as broker,
        socket.create_connection(("127.0.0.1", broker.listening.port), 20) as silent,
    ):
        silent.sendall(b"\x16")
        until(lambda: bool(handshakes(broker)._handshakes))
        broker.stop()
        with suppress(ConnectionResetError):  # the byte may be unread when the socket is closed
            assert silent.recv(1) == b""


def test_a_tls_hello_on_a_plain_port_is_refused(authority: Authority) -> None:
    with Broker() as broker, pytest.raises(OSError, match=r"."):
        Talker(broker.address, authority.trusting())


# --- another certificate


def copy(files: Files, to: Files) -> None:
    for source, target in ((files.certificate, to.certificate), (files.key, to.key)):
        shutil.copyfile(source, target)


@pytest.fixture
def live(tmp_path: Path, authority: Authority) -> Files:
    """The files of a running broker."""
    files = Files(str(tmp_path / "live.pem"), str(tmp_path / "live.key"))
    copy(authority.server("first"), files)
    return files


def test_new_files_are_used_for_new_connections_and_old_connections_go_on(
    loop: str, authority: Authority, live: Files
) -> None:
    with Broker(**settings(live, refresh_s=0.05)) as broker, Talker(broker.address, authority.trusting()) as old:
        assert old.works()
        before = serial_of(authority.trusting(), broker.address)
        copy(authority.server("second"), live)
        until(lambda: serial_of(authority.trusting(), broker.address) != before)
        assert old.works()


def test_broken_files_are_reported_and_the_old_ones_stay_in_use(
    authority: Authority, live: Files, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(**settings(live, refresh_s=0.05)) as broker:
        before = serial_of(authority.trusting(), broker.address)
        Path(live.key).write_bytes(Path(authority.server("other").key).read_bytes())  # of another certificate
        until(lambda: "stays in use" in caplog.text)
        assert serial_of(authority.trusting(), broker.address) == before
        caplog.clear()
        Path(live.certificate).write_text("half a cert")
        until(lambda: "stays in use" in caplog.text)
        assert serial_of(authority.trusting(), broker.address) == before
        copy(authority.server("third"), live)
        until(lambda: serial_of(authority.trusting(), broker.address) != before)


@pytest.mark.parametrize("which", ["certificate", "key"])
def test_a_pipe_in_the_place_of_a_file_is_reported_and_holds_up_nothing(
    authority: Authority, live: Files, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    with Broker(**settings(live, refresh_s=0.05)) as broker:
        before = serial_of(authority.trusting(), broker.address)
        path = Path(getattr(live, which))
        path.unlink()
        os.mkfifo(path)
        until(lambda: "it is not a regular file" in caplog.text)
        assert serial_of(authority.trusting(), broker.address) == before
        path.unlink()
        copy(authority.server("third"), live)
        until(lambda: serial_of(authority.trusting(), broker.address) != before)


def test_a_removed_authority_admits_no_more_clients(authority: Authority, live: Files, tmp_path: Path) -> None:
    trusted, ann = tmp_path / "trusted.pem", authority.client("ann")
    shutil.copyfile(authority.file, trusted)
    with Broker(**settings(live, tls_client_ca=str(trusted), refresh_s=0.05)) as broker:
        with Talker(broker.address, authority.trusting(ann)) as talker:
            assert talker.works()
        shutil.copyfile(Authority(tmp_path / "other").file, trusted)

        def refused() -> bool:
            try:
                with Talker(broker.address, authority.trusting(ann)) as talker:
                    return not talker.works()
            except (OSError, EOFError):
                return True

        until(refused)


def test_sighup_reloads_the_certificate(authority: Authority, live: Files, tmp_path: Path) -> None:

    options = [
        "--set",
        f"tls_certificate={live.certificate}",
        "--set",
        f"tls_key={live.key}",
        "--set",
        "refresh_s=80000",
    ]
    with Serving(tmp_path / "data", *options) as broker:
        before = serial_of(authority.trusting(), broker.address)
        copy(authority.server("second"), live)
        os.kill(broker.pid, signal.SIGHUP)
        until(lambda: serial_of(authority.trusting(), broker.address) != before)
        assert broker.stop() == 0


# --- wrong files at the start


def load(**given: Any) -> ssl.SSLContext:
    """Load a certificate as a broker does at startup."""
    return load_context(changed(BrokerConfig(), given))


def test_a_key_with_a_password_needs_the_password(authority: Authority, server: Files, tmp_path: Path) -> None:
    locked, password = authority.lock(server, "open sesame"), tmp_path / "password"
    given = {"tls_certificate": server.certificate, "tls_key": locked}
    with pytest.raises(InvalidConfig, match="is encrypted: set tls_key_password_file"):
        load(**given)
    password.write_text("open sesame\n")
    with (
        Broker(**given, tls_key_password_file=str(password)) as broker,
        Talker(broker.address, authority.trusting()) as talker,
    ):
        assert talker.works()
    password.write_text("something else")
    with pytest.raises(InvalidConfig) as found:
        load(**given, tls_key_password_file=str(password))
    assert "something else" not in str(found.value)
    assert f"tls_key_password_file: {password} does not decrypt the key" in str(found.value)


def test_wrong_files_are_reported_before_there_is_a_store(server: Files, tmp_path: Path) -> None:
    config = changed(BrokerConfig(), {**settings(server), "tls_key": str(tmp_path / "none.pem")})
    with pytest.raises(InvalidConfig, match=r"tls_key: .*none\.pem cannot be read"):
        serve(tmp_path / "data", config, lambda broker, metrics: None)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key", "tls_client_ca", "tls_key_password_file"])
@pytest.mark.parametrize("content", [None, b"", b"\xffrubbish"], ids=["missing", "empty", "rubbish"])
def test_a_file_that_is_missing_or_wrong_is_said_in_a_line_with_its_name(
    authority: Authority, server: Files, tmp_path: Path, name: str, content: bytes | None
) -> None:
    wrong = tmp_path / "wrong.pem"
    if content is not None:
        wrong.write_bytes(content)
    given = settings(server, tls_client_ca=authority.file)
    if name == "tls_key_password_file":
        given["tls_key"] = authority.lock(server, "x")
    with pytest.raises(InvalidConfig, match=name + r": .*wrong\.pem"):
        load(**{**given, name: str(wrong)})
