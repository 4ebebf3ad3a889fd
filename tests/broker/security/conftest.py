"""An authority, and brokers that ask who is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sawlog.broker import connection
from sawlog.broker.security import authentication
from sawlog.testing import Broker

from .certificates import Authority, Files
from .roles import believing, change


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def server(authority: Authority) -> Files:
    return authority.server()


@pytest.fixture(scope="module")
def scram_broker() -> Iterator[Broker]:
    """Passwords, no TLS."""
    with Broker(sasl_mechanisms=["SCRAM-SHA-256", "SCRAM-SHA-512"], refresh_s=0.05) as broker:
        broker.add_user("ann", "secret of ann")
        broker.add_user("bob", "secret of bob")
        yield broker


@pytest.fixture(scope="module")
def tls_broker(server: Files) -> Iterator[Broker]:
    """Passwords, over TLS."""
    with Broker(
        sasl_mechanisms=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        tls_certificate=server.certificate,
        tls_key=server.key,
    ) as broker:
        broker.add_user("ann", "secret of ann")
        yield broker


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are answered soon: there are many of them here."""
    monkeypatch.setattr(authentication, "_DELAY_S", 0.01)
    monkeypatch.setattr(connection, "LINGER_S", 0.01)


@pytest.fixture(scope="module")
def believing_broker() -> Iterator[Broker]:
    """A broker that trusts the identity that clients claim, with two topics."""
    with believing(refresh_s=600) as made:
        made.create_topic("orders")
        made.create_topic("secret")
        yield made


@pytest.fixture
def broker(believing_broker: Broker) -> Broker:
    """The trusting broker, without rules."""
    change(believing_broker)
    return believing_broker
