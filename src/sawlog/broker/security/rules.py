"""Which settings of a broker's security go together, and when other machines may connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import InvalidConfig
from . import plain
from .scram import MECHANISMS

if TYPE_CHECKING:
    from ..config import BrokerConfig

#: What clients can authenticate with, as Kafka calls it.
OFFERED: Final = (*MECHANISMS, plain.NAME)
#: Whether clients are asked for a certificate.
CLIENT_AUTH: Final = ("none", "requested", "required")
_WITH_CERTIFICATE: Final = ("tls_key", "tls_key_password_file", "tls_client_ca", "tls_client_auth")


def client_auth(config: BrokerConfig) -> str:
    """Whether clients are asked for a certificate: if nothing else is said, whoever has an authority requires one."""
    return config.tls_client_auth or ("none" if config.tls_client_ca is None else "required")


def check(config: BrokerConfig) -> None:
    """`InvalidConfig` if the settings contradict each other, or let strangers in without a word."""
    if config.tls_certificate is None:
        for name in _WITH_CERTIFICATE:
            if getattr(config, name) is not None:
                raise InvalidConfig(f"{name} needs tls_certificate: the listener does not use TLS")
        if plain.NAME in config.sasl_mechanisms:
            raise InvalidConfig(
                "sasl_mechanisms: PLAIN sends passwords in clear text, so it needs TLS (tls_certificate); "
                f"use {' or '.join(sorted(MECHANISMS))} without it"
            )
    if client_auth(config) != "none" and config.tls_client_ca is None:
        raise InvalidConfig(f'tls_client_auth = "{config.tls_client_auth}" needs tls_client_ca, who signs certificates')
    if client_auth(config) == "none" and config.tls_client_ca is not None:
        raise InvalidConfig('tls_client_ca is not used with tls_client_auth = "none"')
    _check_reach(config)


def _check_reach(config: BrokerConfig) -> None:
    is_known = bool(config.sasl_mechanisms) or client_auth(config) == "required"
    for reached, authenticated in ((config.listen, is_known), (config.metrics, False)):
        if reached is not None and not (reached.is_loopback or authenticated or config.allow_anonymous):
            raise InvalidConfig(
                f"{reached} can be reached from other machines, and nothing is authenticated there: use 127.0.0.1, "
                + ("" if reached is config.metrics else "set sasl_mechanisms or tls_client_ca, ")
                + "or say --allow-anonymous (allow_anonymous = true)"
            )
