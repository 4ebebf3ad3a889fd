"""How a client proves who it is, and checks whom it talks to: TLS, and a user with a password.

```toml
broker = "logs.example:9092"
tls_ca = "ca.pem"                   # who has signed the broker's certificate; or tls = true: whom this machine trusts
user = "ann"
password_file = "ann.password"      # without it, the command line asks
mechanism = "SCRAM-SHA-512"
tls_certificate = "ann.pem"         # if the broker wants certificates of its clients
tls_key = "ann.key"
```

Relative paths are relative to the file. The password is in a file of its own, so that this one can be shown around.
"""

from __future__ import annotations

import ssl
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...errors import AuthenticationFailed, InvalidConfig
from ..kinds import Choice, File, Kind, Text, Truth, shown
from ..security import mechanisms
from ..security.mechanisms import MECHANISMS, OFFERED, Client
from ..security.tls import load_authorities, load_chain, read_password

_KINDS: Final[dict[str, Kind]] = {
    "broker": Text(1024),
    "tls": Truth(),
    "tls_ca": File(),
    "tls_certificate": File(),
    "tls_key": File(),
    "tls_key_password_file": File(),
    "user": Text(255),
    "password_file": File(),
    "mechanism": Choice(OFFERED),
}
#: Sends a message of a mechanism, and returns the broker's answer.
Send = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password. Neither `repr` nor messages show the password."""

    user: str
    password: str = field(repr=False)
    mechanism: str = "SCRAM-SHA-512"

    def authenticate(self, send: Send) -> None:
        """Go through the exchange; `AuthenticationFailed` also if the broker does not know the user's secret."""
        if self.mechanism == mechanisms.NAME:
            send(mechanisms.Login(self.user, self.password).message())
            return
        client = Client(MECHANISMS[self.mechanism], self.user, self.password)
        client.verify(send(client.final(send(client.first()))))


@dataclass(frozen=True, slots=True)
class Access:
    """What a connection needs besides an address."""

    #: None: connections are not encrypted.
    tls: ssl.SSLContext | None = None
    login: Login | None = None

    def __post_init__(self) -> None:
        if self.login is not None and self.login.mechanism == mechanisms.NAME and self.tls is None:
            raise AuthenticationFailed("PLAIN sends the password in clear text, so it needs TLS")


def encrypted(
    ca: str | None = None, certificate: str | None = None, key: str | None = None, key_password_file: str | None = None
) -> ssl.SSLContext:
    """TLS that checks the broker's certificate and name, with a certificate of the client's if one is given."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_authorities(context, ca, "tls_ca")
    if certificate is not None:
        load_chain(context, certificate, key, key_password_file)
    return context


def read_access(path: Path, ask: Callable[[str], str]) -> tuple[str, Access]:
    """The address and the access that a file describes. `ask` is called with the user if a password is needed."""
    try:
        given = _checked(path)
        return given["broker"], _access(given, ask)
    except InvalidConfig as error:
        raise InvalidConfig(f"{path}: {error}") from error


def _access(given: dict[str, Any], ask: Callable[[str], str]) -> Access:
    tls = None
    names = ("tls_ca", "tls_certificate", "tls_key", "tls_key_password_file")
    if given.get("tls", any(name in given for name in names)):
        tls = encrypted(*(given.get(name) for name in names))
    elif any(name in given for name in names):
        raise InvalidConfig("tls = false, but there are settings of TLS")
    user = given.get("user")
    if user is None:
        if "password_file" in given or "mechanism" in given:
            raise InvalidConfig("password_file and mechanism need a user")
        return Access(tls)
    if given.get("mechanism") == mechanisms.NAME and tls is None:
        raise InvalidConfig("PLAIN sends the password in clear text, so it needs TLS")
    file = given.get("password_file")
    password = ask(user) if file is None else read_password(Path(file))
    return Access(tls, Login(user, password, given.get("mechanism", "SCRAM-SHA-512")))


def _checked(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InvalidConfig(f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):  # the message would show what is in the file
        raise InvalidConfig("it is not TOML") from None
    if "password" in found:
        raise InvalidConfig("a password belongs into a file of its own: password_file")
    made = {}
    for name, value in found.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise InvalidConfig(f"unknown setting {shown(name)}; use one of {', '.join(_KINDS)}")
        try:
            made[name] = kind.read(value)
        except ValueError:
            raise InvalidConfig(f"{name} must be {kind.expected}, not {shown(value)}") from None
        if isinstance(kind, File):
            made[name] = str(path.parent / made[name])
    if "broker" not in made:
        raise InvalidConfig('it does not say where the broker is: broker = "HOST:PORT"')
    return made
