"""The command line, and the client behind it, against a broker that asks who is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sawlog.broker.client import Access, Login, encrypted, read_access
from sawlog.broker.remote import connect
from sawlog.errors import AuthenticationFailed, BrokerUnavailable, InvalidConfig
from sawlog.testing import Broker

from ...cli.conftest import Cli
from .certificates import Authority, Files


@pytest.fixture
def sawlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("SAWLOG_BROKER", raising=False)
    monkeypatch.delenv("SAWLOG_DATA", raising=False)
    return Cli(tmp_path / "data")


def write(place: Path, broker: str, **given: object) -> str:
    """A file for `-b`."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"broker": broker, **given}.items()]
    (place / "client.toml").write_text("\n".join(lines))
    return str(place / "client.toml")


@pytest.fixture
def ann(tmp_path: Path, tls_broker: Broker, authority: Authority) -> str:
    (tmp_path / "ann.password").write_text("secret of ann\n")
    return write(tmp_path, tls_broker.address, tls_ca=authority.file, user="ann", password_file="ann.password")


def test_commands_work_with_tls_and_a_user(sawlog: Cli, ann: str, tls_broker: Broker) -> None:
    sawlog("topic", "create", "clicks", "-b", ann).ok()
    sawlog("produce", "clicks", "-b", ann, stdin=b"one\ntwo\n").ok()
    assert sawlog("read", "clicks", "-b", ann, "--raw").ok().lines == ["onetwo"]
    assert "clicks" in sawlog("topic", "list", "-b", ann).ok().out
    sawlog("topic", "delete", "clicks", "-b", ann, "--yes").ok()


def test_users_are_managed_through_the_broker(sawlog: Cli, ann: str, tls_broker: Broker, authority: Authority) -> None:
    assert "carl: added" in sawlog("user", "add", "carl", "-b", ann, stdin=b"first\n").ok().err
    found = sawlog("user", "list", "-b", ann, "--output", "json").ok().json
    assert {"user": "carl", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": [16384, 16384]} in found
    tls = encrypted(authority.file)
    connect(tls_broker.address, access=Access(tls, Login("carl", "first"))).close()
    changed = sawlog("user", "add", "carl", "-b", ann, "-m", "SCRAM-SHA-256", stdin=b"second\n").ok()
    assert "carl: has a new password" in changed.err
    with pytest.raises(AuthenticationFailed, match="does not accept 'carl'"):
        connect(tls_broker.address, access=Access(tls, Login("carl", "first")))
    connect(tls_broker.address, access=Access(tls, Login("carl", "second", "SCRAM-SHA-256"))).close()
    connect(tls_broker.address, access=Access(tls, Login("carl", "second", "PLAIN"))).close()
    sawlog("user", "delete", "carl", "-b", ann, "--yes").ok()
    assert "no user 'carl'" in sawlog("user", "delete", "carl", "-b", ann, "--yes").failed(3)


def test_users_are_managed_in_a_directory(sawlog: Cli, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    data = ["-d", str(sawlog.data)]
    sawlog("user", "add", "ann", *data, "--password-file", tmp_path / "password").ok()  # also creates the store
    sawlog("user", "add", "bob", *data, stdin=b"of bob\n").ok()
    with Broker(directory=str(sawlog.data), sasl_mechanisms=["SCRAM-SHA-512"]) as broker:
        connect(broker.address, access=Access(login=Login("ann", "secret"))).close()
        connect(broker.address, access=Access(login=Login("bob", "of bob"))).close()
    assert [row["user"] for row in sawlog("user", "list", *data, "--output", "json").ok().json] == ["ann", "bob"]
    assert "give --yes" in sawlog("user", "delete", "bob", *data).failed(2)
    assert "stdin has no password" in sawlog("user", "add", "eve", *data).failed(2)
    assert "spaces around it" in sawlog("user", "add", " eve", *data, stdin=b"x\n").failed(2)
    assert "not 'MD5'" in sawlog("user", "add", "eve", *data, "-m", "MD5", stdin=b"x\n").failed(2)


def test_no_option_takes_a_password(sawlog: Cli) -> None:
    for text in (sawlog("user", "add", "--help").ok().out, sawlog("serve", "--help").ok().out):
        assert "--password " not in text


def test_a_wrong_password_is_said_in_a_line(sawlog: Cli, tmp_path: Path, ann: str) -> None:
    (tmp_path / "ann.password").write_text("a wrong secret")
    line = sawlog("topic", "list", "-b", ann).failed(1)
    assert "does not accept 'ann' and the password" in line
    assert "secret" not in line


def test_a_broker_with_an_untrusted_certificate_gets_no_password(
    sawlog: Cli, tmp_path: Path, tls_broker: Broker, ann: str
) -> None:
    other = Authority(tmp_path / "other")
    (tmp_path / "ann.password").write_text("secret of ann")
    file = write(tmp_path, tls_broker.address, tls_ca=other.file, user="ann", password_file="ann.password")
    assert "the certificate of 127.0.0.1" in sawlog("topic", "list", "-b", file).failed(1)
    system = write(tmp_path, tls_broker.address, tls=True, user="ann", password_file="ann.password")
    assert "the certificate of 127.0.0.1" in sawlog("topic", "list", "-b", system).failed(1)


def test_a_client_without_tls_or_without_a_user_gets_an_error(
    sawlog: Cli, tmp_path: Path, tls_broker: Broker, authority: Authority
) -> None:
    file = write(tmp_path, tls_broker.address, tls_ca=authority.file)
    for place in (tls_broker.address, file):
        assert "it may want TLS, a user or a certificate" in sawlog("topic", "list", "-b", place).failed(1)


def test_a_mechanism_that_is_not_offered_is_said_with_those_that_are() -> None:
    with (
        Broker(sasl_mechanisms=["SCRAM-SHA-256"]) as broker,
        pytest.raises(AuthenticationFailed, match="but SCRAM-SHA-256"),
    ):
        connect(broker.address, access=Access(login=Login("ann", "x", "SCRAM-SHA-512")))
    with Broker() as broker, pytest.raises(AuthenticationFailed, match="does not offer"):
        connect(broker.address, access=Access(login=Login("ann", "x")))


def test_a_client_with_a_certificate_is_let_in(authority: Authority, server: Files) -> None:
    ann = authority.client("ann")
    with Broker(tls_certificate=server.certificate, tls_key=server.key, tls_client_ca=authority.file) as broker:
        with connect(broker.address, access=Access(encrypted(authority.file, ann.certificate, ann.key))) as store:
            assert store.topics() == []
        with pytest.raises(BrokerUnavailable):
            connect(broker.address, access=Access(encrypted(authority.file)))


WRONG = {
    'user = "ann"': "does not say where the broker is",
    'broker = "x:1"\npassword = "hunter2"': "a password belongs into a file of its own",
    'broker = "x:1"\nmechanism = "SCRAM-SHA-256"': "need a user",
    'broker = "x:1"\nuser = "ann"\nmechanism = "PLAIN"': "needs TLS",
    'broker = "x:1"\nuser = "ann"\nmechanism = "MD5"': "mechanism must be",
    'broker = "x:1"\nuser = "ann"\npassword_file = "none"': "none cannot be read",
    'broker = "x:1"\ntls_ca = "none"': "none cannot be read",
    'broker = "x:1"\ntls = false\ntls_ca = "none"': "settings of TLS",
    'broker = "x:1"\nno_such = 1': "unknown setting 'no_such'",
    'broker = "x:1"\nuser = 1': "user must be a text",
    'password = "hunter2': "is not TOML",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_error_in_a_file_does_not_reveal_its_secrets(tmp_path: Path, text: str) -> None:
    file = tmp_path / "client.toml"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as found:
        read_access(file, lambda user: "asked")
    assert str(found.value).startswith(str(file))
    assert WRONG[text] in str(found.value)
    assert "hunter2" not in str(found.value)


def test_without_a_password_file_it_is_asked_for(tmp_path: Path, sawlog: Cli) -> None:
    file = Path(write(tmp_path, "127.0.0.1:1", user="ann"))
    _, access = read_access(file, lambda user: f"told by {user}")
    assert access.login == Login("ann", "told by ann")
    assert "told by" not in repr(access)
    assert "set password_file, or use a terminal" in sawlog("topic", "list", "-b", str(file)).failed(2)


def test_plain_without_tls_is_refused_by_the_client() -> None:
    with pytest.raises(AuthenticationFailed, match="needs TLS"):
        Access(login=Login("ann", "x", "PLAIN"))
