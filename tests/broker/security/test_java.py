"""Kafka's own tools, over TLS and with passwords: the client that most others copy.

Skipped without a Java or Kafka's jars (tools/fetch_kafka.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sawlog.testing import Broker

from ...interop.brokers import needs_kafka, run
from .certificates import Authority, Files
from .talking import Talker

pytestmark = [pytest.mark.slow, needs_kafka]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"


def properties(place: Path, authority: Authority, **given: str) -> Path:
    """A file for `--command-config`."""
    lines = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.file,
        "default.api.timeout.ms": "30000",
        **{name.replace("_", "."): value for name, value in given.items()},
    }
    (place / "client.properties").write_text("\n".join(f"{name}={value}" for name, value in lines.items()))
    return place / "client.properties"


def jaas(module: str, user: str, password: str) -> str:
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_a_user_creates_and_lists_topics(
    tls_broker: Broker, authority: Authority, tmp_path: Path, mechanism: str, module: str
) -> None:
    login = {"sasl_mechanism": mechanism, "sasl_jaas_config": jaas(module, "ann", "secret of ann")}
    file = properties(tmp_path, authority, **login)
    given = ("--bootstrap-server", tls_broker.address, "--command-config", file)
    run(TOPICS, *given, "--create", "--topic", f"java-{mechanism}")
    assert f"java-{mechanism}" in run(TOPICS, *given, "--list")


def test_a_wrong_password_is_reported_as_such(tls_broker: Broker, authority: Authority, tmp_path: Path) -> None:
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": jaas("scram.ScramLoginModule", "ann", "wrong")}
    file = properties(tmp_path, authority, **login)
    with pytest.raises(AssertionError, match="authentication failed with SCRAM-SHA-256"):
        run(TOPICS, "--bootstrap-server", tls_broker.address, "--command-config", file, "--list")


def test_an_administrator_adds_describes_and_deletes_users(
    tls_broker: Broker, authority: Authority, tmp_path: Path
) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_jaas_config": jaas("plain.PlainLoginModule", "ann", "secret of ann")}
    file = properties(tmp_path, authority, **login)
    given = ("--bootstrap-server", tls_broker.address, "--command-config", file)
    user = ("--entity-type", "users", "--entity-name", "gil")
    run(CONFIGS, *given, *user, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=of gil]")
    with Talker(tls_broker.address, authority.trusting()) as talker:
        assert talker.log_in("gil", "of gil", "SCRAM-SHA-512")["error_code"] == 0
    assert "SCRAM-SHA-512=iterations=8192" in run(CONFIGS, *given, *user, "--describe")
    run(CONFIGS, *given, *user, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "gil" not in tls_broker._live().authenticator._stored.list()


def test_a_certificate_is_enough_where_it_is_required(authority: Authority, server: Files, tmp_path: Path) -> None:
    store = {"ssl_keystore_type": "PEM", "ssl_keystore_location": authority.together(authority.client("ann"))}
    file = properties(tmp_path, authority, security_protocol="SSL", **store)
    with Broker(tls_certificate=server.certificate, tls_key=server.key, tls_client_ca=authority.file) as broker:
        broker.create_topic("seen")
        assert "seen" in run(TOPICS, "--bootstrap-server", broker.address, "--command-config", file, "--list")
