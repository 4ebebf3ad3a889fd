"""Valid combinations of security settings, and access from other machines without authentication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sawlog.broker.config import BrokerConfig, changed, from_text, read_toml
from sawlog.errors import InvalidConfig

from ...looping import for_each

TLS = {"tls_certificate": "server.pem"}
PUBLIC = {"listen": "0.0.0.0:9092"}
SCRAM = {"sasl_mechanisms": ["SCRAM-SHA-256"]}


def made(**given: Any) -> BrokerConfig:
    return changed(BrokerConfig(), given)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sasl_mechanisms": ["PLAIN"]}, "PLAIN sends passwords in clear text, so it needs TLS"),
    ({"sasl_mechanisms": ["SCRAM-SHA-512", "PLAIN"]}, "needs TLS"),
    ({"sasl_mechanisms": ["GSSAPI"]}, "sasl_mechanisms must be a list of"),
    ({"sasl_mechanisms": ["SCRAM-SHA-256"] * 2}, "sasl_mechanisms must be a list of"),
    ({"sasl_mechanisms": "SCRAM-SHA-256"}, "sasl_mechanisms must be a list of"),
    ({"tls_key": "x"}, "tls_key needs tls_certificate"),
    ({"tls_client_ca": "x"}, "tls_client_ca needs tls_certificate"),
    ({"tls_client_auth": "none"}, "tls_client_auth needs tls_certificate"),
    ({**TLS, "tls_client_auth": "required"}, "needs tls_client_ca"),
    ({**TLS, "tls_client_auth": "requested"}, "needs tls_client_ca"),
    ({**TLS, "tls_client_auth": "perhaps"}, "tls_client_auth must be none or requested or required"),
    ({**TLS, "tls_client_ca": "x", "tls_client_auth": "none"}, "tls_client_ca is not used"),
    (PUBLIC, "--allow-anonymous"),
    ({**PUBLIC, **TLS}, "--allow-anonymous"),
    ({**PUBLIC, **TLS, "tls_client_ca": "x", "tls_client_auth": "requested"}, "--allow-anonymous"),
    ({**PUBLIC, **SCRAM, "metrics": "0.0.0.0:1"}, "0.0.0.0:1 can be reached"),
]
ALLOWED: list[dict[str, Any]] = [
    {**PUBLIC, **SCRAM},
    {**PUBLIC, **TLS, "sasl_mechanisms": ["PLAIN"]},
    {**PUBLIC, **TLS, "tls_client_ca": "x"},
    {**PUBLIC, **TLS, "tls_client_ca": "x", "tls_client_auth": "required"},
    {**PUBLIC, **TLS, "allow_anonymous": True},
    {**PUBLIC, **SCRAM, "metrics": "0.0.0.0:1", "allow_anonymous": True},
]


@for_each(("given", "said"), REFUSED)
def test_settings_that_contradict_each_other_or_let_strangers_in_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig) as found:
        made(**given)
    assert said in str(found.value)


@for_each("given", ALLOWED)
def test_a_public_listener_that_authenticates_needs_no_flag(given: dict[str, Any]) -> None:
    assert made(**given)


def test_a_command_line_gives_mechanisms_with_commas() -> None:
    assert from_text("sasl_mechanisms", "SCRAM-SHA-256, SCRAM-SHA-512") == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert from_text("sasl_mechanisms", "") == ()


def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('tls_certificate = "server.pem"\ntls_key = "/etc/server.key"\n')
    assert read_toml(file) == {"tls_certificate": str(tmp_path / "server.pem"), "tls_key": "/etc/server.key"}
