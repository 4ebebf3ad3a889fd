"""Encryption and authentication of a client, from the file of `-b FILE.toml`.

```toml
broker = "logs.example:9092"
tls_ca = "ca.pem"                   # signer of the broker's certificate; or tls = true: the system's authorities
user = "ann"
password_file = "ann.password"      # without it, the command line asks
mechanism = "SCRAM-SHA-512"
tls_certificate = "ann.pem"         # if the broker requires client certificates
tls_key = "ann.key"
```

Relative paths are relative to the file. The password has its own file, so that this one may be shared.
"""

from __future__ import annotations

import ssl
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import AuthenticationFailed, InvalidConfig
from .config import FILE, TRUTH, SettingType, choice, shown, text
from .security.mechanisms import OFFERED, PLAIN
from .security.tls import load_authorities, load_chain, read_password

_TYPES: Final[dict[str, SettingType]] = {
    "broker": text(1024),
    "tls": TRUTH,
    "tls_ca": FILE,
    "tls_certificate": FILE,
    "tls_key": FILE,
    "tls_key_password_file": FILE,
    "user": text(255),
    "password_file": FILE,
    "mechanism": choice(*OFFERED),
}
_TLS: Final = ("tls_ca", "tls_certificate", "tls_key", "tls_key_password_file")
_DEFAULT: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password. Neither `repr` nor messages show the password."""

    user: str
    password: str = field(repr=False)
    mechanism: str = _DEFAULT

    def kafka_settings(self) -> dict[str, str]:
        """Return user and password for kafka-python, which does not escape a user's name for SCRAM."""
        user = self.user if self.mechanism == PLAIN else self.user.replace("=", "=3D").replace(",", "=2C")
        return {"sasl_plain_username": user, "sasl_plain_password": self.password}


@dataclass(frozen=True, slots=True)
class Access:
    """TLS and login of a connection; without `tls` it is not encrypted."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None

    def __post_init__(self) -> None:
        if self.login is not None and self.login.mechanism == PLAIN and self.tls is None:
            raise AuthenticationFailed("PLAIN sends the password in clear text, so it needs TLS")

    def kafka_settings(self) -> dict[str, Any]:
        """Return the settings of kafka-python for this."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        if self.login is None:
            return {"security_protocol": transport, "ssl_context": self.tls}
        return {
            "security_protocol": f"SASL_{transport}",
            "ssl_context": self.tls,
            "sasl_mechanism": self.login.mechanism,
            **self.login.kafka_settings(),
        }


def encrypted(
    ca: str | None = None, certificate: str | None = None, key: str | None = None, key_password_file: str | None = None
) -> ssl.SSLContext:
    """Return a TLS context that checks the broker's certificate and name, with a client certificate if one is given."""
    if ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, ca, "tls_ca")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        load_chain(context, certificate, key, key_password_file)
    return context


def read_access(path: Path, ask: Callable[[str], str]) -> tuple[str, Access]:
    """Return the address and the access that a file describes. `ask` is called with the user if a password is needed
    and no file contains it."""
    try:
        given = _checked(path)
        return given["broker"], _access(given, ask)
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from error


def _access(given: dict[str, Any], ask: Callable[[str], str]) -> Access:
    tls, wanted = None, any(name in given for name in _TLS)
    if given.get("tls", wanted):
        tls = encrypted(*(given.get(name) for name in _TLS))
    elif wanted:
        raise InvalidConfig("tls = false, but there are settings of TLS")
    user, mechanism = given.get("user"), given.get("mechanism")
    if user is None:
        if "password_file" in given or mechanism is not None:
            raise InvalidConfig("password_file and mechanism need a user")
        return Access(tls)
    if mechanism == PLAIN and tls is None:
        raise InvalidConfig("PLAIN sends the password in clear text, so it needs TLS")
    file = given.get("password_file")
    password = ask(user) if file is None else read_password(Path(file))
    return Access(tls, Login(user, password, mechanism or _DEFAULT))


def _checked(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):  # the parser's message would quote the file
        raise InvalidConfig("it is not TOML") from None
    if "password" in found:
        raise InvalidConfig("a password belongs into a file of its own: password_file")
    checked = {}
    for name, value in found.items():
        kind = _TYPES.get(name)
        if kind is None:
            raise InvalidConfig(f"unknown setting {shown(name)}; use one of {', '.join(_TYPES)}")
        try:
            checked[name] = kind.read(value)
        except ValueError:
            raise InvalidConfig(f"{name} must be {kind.expected}, not {shown(value)}") from None
        if kind.is_file:
            checked[name] = str(path.parent / checked[name])
    if "broker" not in checked:
        raise InvalidConfig('it does not say where the broker is: broker = "HOST:PORT"')
    return checked
