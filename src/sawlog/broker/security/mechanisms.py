"""The SASL mechanisms PLAIN and SCRAM as pure functions of bytes.

PLAIN (RFC 4616) sends a name and a password in clear text, so it requires TLS:

```
[authorization identity] NUL user NUL password
```

SCRAM (RFC 5802, RFC 7677), the server side:

```
client first    n,,n=ann,r=<client nonce>
server first    r=<client nonce><server nonce>,s=<salt>,i=<iterations>
client final    c=biws,r=<both nonces>,p=<proof>
server final    v=<signature>
```

With SCRAM, the password never crosses the network and the server does not store it. The server has `StoredKey`, which
verifies a proof but cannot create one, and `ServerKey`, with which it proves that it knows the user.

Passwords and names are used as UTF-8 bytes without SASLprep, as in Kafka's brokers and clients: normalizing a password
here would make it differ from the client's.

Errors raise `AuthenticationFailed`. The message never contains a secret, and it is the same for a wrong password and
for a nonexistent user.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ...errors import AuthenticationFailed

PLAIN: Final = "PLAIN"


def parse_plain(message: bytes) -> tuple[str, str]:
    """Return the user and the password in a message of PLAIN."""
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationFailed("the message does not consist of a user and a password")
    if parts[0] not in ("", parts[1]):
        raise AuthenticationFailed("a user cannot act as another one")
    return parts[1], parts[2]


#: Kafka's limits. Fewer iterations make guessing too easy; more could keep a client busy.
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
SALT_BYTES: Final = 32
_NONCE_BYTES: Final = 24
#: Maximum length of a message.
_LONGEST: Final = 4096
_WRONG: Final = "the user or the password is wrong"

_CLIENT_FIRST: Final = re.compile(r"(?P<gs2>(?P<binding>[^,]*),(?:a=(?P<authzid>[^,]*))?,)(?P<bare>.*)", re.DOTALL)
_BARE: Final = re.compile(r"n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<more>(?:,[A-Za-z]+=[^,]*)*)")
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[A-Za-z]+=[^,]*)*),p=(?P<proof>[^,]*)"
)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """SCRAM with one hash function."""

    name: str
    #: Name in `hashlib`.
    hash: str
    #: Kafka's number.
    number: int

    def digest(self, data: bytes) -> bytes:
        return hashlib.new(self.hash, data).digest()

    def sign(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash)

    def salted(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Hash a password with a salt, which takes milliseconds. The result is as sensitive as the password."""
        return hashlib.pbkdf2_hmac(self.hash, password.encode(), salt, iterations)

    @property
    def size_bytes(self) -> int:
        return hashlib.new(self.hash).digest_size


SHA_256: Final = Mechanism("SCRAM-SHA-256", "sha256", 1)
SHA_512: Final = Mechanism("SCRAM-SHA-512", "sha512", 2)
#: Strongest first.
MECHANISMS: Final = {each.name: each for each in (SHA_512, SHA_256)}
BY_NUMBER: Final = {each.number: each for each in MECHANISMS.values()}
#: Supported mechanisms, by Kafka's names.
OFFERED: Final = (*MECHANISMS, PLAIN)


@dataclass(frozen=True, slots=True)
class Salted:
    """A salted password, from which credentials are derived. Kafka's admin clients send it."""

    mechanism: Mechanism
    iterations: int
    salt: bytes = field(repr=False)
    password: bytes = field(repr=False)

    @classmethod
    def new(cls, mechanism: Mechanism, password: str, iterations: int = MAX_ITERATIONS) -> Salted:
        """Hash a password with a new random salt."""
        salt = secrets.token_bytes(SALT_BYTES)
        return cls(mechanism, iterations, salt, mechanism.salted(password, salt, iterations))

    def credential(self) -> Credential:
        """Derive the part that a server stores."""
        sign = self.mechanism.sign
        stored_key = self.mechanism.digest(sign(self.password, b"Client Key"))
        return Credential(self.iterations, self.salt, stored_key, sign(self.password, b"Server Key"))


@dataclass(frozen=True, slots=True)
class Credential:
    """The verifier that a server stores for a password."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def matches(self, mechanism: Mechanism, password: str) -> bool:
        """Return whether the password is correct. Takes as long as hashing it in either case."""
        salted = mechanism.salted(password, self.salt, self.iterations)
        made = Salted(mechanism, self.iterations, self.salt, salted).credential()
        return hmac.compare_digest(made.stored_key, self.stored_key)


class ScramServer:
    """The server side of one exchange. `find` returns the credential of a user, or one that nothing matches."""

    def __init__(
        self, mechanism: Mechanism, find: Callable[[str], Credential], *, nonce: Callable[[], str] | None = None
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._new_nonce = nonce or new_nonce
        self._step = self._first
        self._gs2 = self._bare = self._said = self._nonce = ""
        self._credential: Credential | None = None
        #: The claimed user name; verified when `is_done`.
        self.user = ""
        self.is_done = False

    def respond(self, message: bytes) -> bytes:
        """Answer the next message of the client."""
        step, self._step = self._step, self._too_much  # a single attempt: an error ends the exchange
        return step(_text(message)).encode()

    def _first(self, text: str) -> str:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the first message of the client is malformed")
        if found["binding"] not in ("n", "y"):  # y: the client knows that we lack it
            raise AuthenticationFailed("channel binding is not supported")
        bare = _BARE.fullmatch(found["bare"])
        if bare is None:
            raise AuthenticationFailed("the first message of the client is malformed, or has an unknown extension")
        if ",tokenauth=true" in bare["more"]:
            raise AuthenticationFailed("delegation tokens are not supported")
        user = _unquoted(bare["name"])
        if found["authzid"] is not None and _unquoted(found["authzid"]) not in ("", user):
            raise AuthenticationFailed("a user cannot act as another one")
        self._gs2, self._bare, self.user = found["gs2"], found["bare"], user
        self._credential = self._find(user)
        self._nonce = bare["nonce"] + self._new_nonce()
        self._said = f"r={self._nonce},s={_base64(self._credential.salt)},i={self._credential.iterations}"
        self._step = self._final
        return self._said

    def _final(self, text: str) -> str:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise AuthenticationFailed("the last message of the client is malformed")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce does not belong to this exchange")
        if _bytes(found["binding"]) != self._gs2.encode():
            raise AuthenticationFailed("the channel binding has changed during the exchange")
        proof, sign, known = _bytes(found["proof"]), self._mechanism.sign, self._credential
        assert known is not None
        said = f"{self._bare},{self._said},{found['unproved']}".encode()
        client_key = _xor(proof, sign(known.stored_key, said))
        is_proved = hmac.compare_digest(self._mechanism.digest(client_key), known.stored_key)
        is_current = hmac.compare_digest(self._find(self.user).stored_key, known.stored_key)
        if not (is_proved and is_current):  # the user may have been deleted since the first message
            raise AuthenticationFailed(_WRONG)
        self.is_done = True
        return f"v={_base64(sign(known.server_key, said))}"

    def _too_much(self, text: str) -> str:
        raise AuthenticationFailed("the exchange has ended")


def new_nonce() -> str:
    """Return a random nonce: printable, without commas."""
    return secrets.token_urlsafe(_NONCE_BYTES)


def _text(message: bytes) -> str:
    if len(message) > _LONGEST:
        raise AuthenticationFailed(f"a message of {len(message)} bytes; the most is {_LONGEST}")
    try:
        return bytes(message).decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message is not UTF-8") from None


def _unquoted(text: str) -> str:
    if re.search(r"=(?!2C|3D)", text):
        raise AuthenticationFailed("the name of the user is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("a message has bytes that are not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise AuthenticationFailed(_WRONG)
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
