"""Authentication: `Session` is the state of one connection, `Authenticator` what all connections of a broker share.

```
    new ──handshake──▶ in exchange ──authenticate…──▶ authenticated ──handshake──▶ in exchange (the same user again)
     └─────────────────────┴── any error ──▶ failed: answered after a delay, then closed
```

If the broker requires authentication, it answers nothing but ApiVersions and the two SASL requests before it. A failure
is answered after 100 to 150 ms without blocking a thread: this slows down guessing, and the response time reveals
nothing. The response says that authentication failed; only the broker's log says why.

Clients older than Kafka 1.0 send version 0 of the handshake. They then exchange the messages of the mechanism without
Kafka's header (`takes_tokens`); after a failure the broker just closes the connection.

A connection may authenticate again (KIP-368), as the same user and with the same mechanism. Sessions do not expire.

The mechanisms are functions of bytes. PLAIN (RFC 4616) sends a name and a password in clear text, so it requires TLS:

```
[authorization identity] NUL user NUL password
```

With SCRAM (RFC 5802, RFC 7677), the password never crosses the network and the server does not store it:

```
client first    n,,n=ann,r=<client nonce>
server first    r=<client nonce><server nonce>,s=<salt>,i=<iterations>
client final    c=biws,r=<both nonces>,p=<proof>
server final    v=<signature>
```

Errors raise `AuthenticationFailed`. The message never contains a secret, and it is the same for a wrong password and
for a nonexistent user.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import random
import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from ...errors import AuthenticationFailed, SawlogError
from ..config import shown
from ..wire import Body, ErrorCode, Key
from .credentials import ANONYMOUS, MECHANISMS, PLAIN, Credential, Mechanism, StoredUsers, UserCache, UserSnapshot
from .tls import Tls, name_of

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: Requests that are answered before authentication.
BEFORE_AUTHENTICATION: Final = frozenset({Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE})
#: Minimum delay before a failure is answered; the maximum is half as much again.
_DELAY_S: Final = 0.1
#: Time that a failed connection stays open after the response, so that the client reads it before the connection ends.
LINGER_S: Final = 0.1


class Session:
    """The authenticated identity of a connection. Belongs to the event loop's thread."""

    def __init__(
        self, authenticator: Authenticator, host: str, principal: str | None, late: Callable[[], None]
    ) -> None:
        """`principal` is the owner of the client's certificate. `late` is called if the client does not authenticate in
        time."""
        self._authenticator = authenticator
        self._host = host
        self.principal = principal or ANONYMOUS
        self.is_authenticated = not authenticator.mechanisms
        #: Set when the connection must be closed after the response.
        self.has_failed = False
        self._mechanism = ""
        self._exchange: ScramServer | _Plain | None = None
        #: True if requests of every API may be answered now.
        self.is_established = self.is_authenticated
        #: True if the next frame is a bare message of the mechanism instead of a request.
        self.takes_tokens = False
        self._timer: asyncio.TimerHandle | None = None
        if not self.is_authenticated:
            self._timer = asyncio.get_running_loop().call_later(authenticator.timeout_s, late)

    def close(self) -> None:
        """Stop the authentication timeout."""
        if self._timer is not None:
            self._timer.cancel()

    # --- requests

    async def handshake(self, mechanism: str, is_bare: bool = False) -> Body:
        """Answer SaslHandshake. `is_bare`: the messages that follow have no headers. Bare messages are only allowed the
        first time, because clients that reauthenticate are newer."""
        offered = list(self._authenticator.mechanisms)
        if not offered or self._exchange is not None or (is_bare and self.is_authenticated):
            return {"error_code": await self._fail(ErrorCode.ILLEGAL_SASL_STATE, "handshake"), "mechanisms": offered}
        if mechanism not in offered or (self.is_authenticated and mechanism != self._mechanism):
            code = await self._fail(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"the mechanism {shown(mechanism)}")
            return {"error_code": code, "mechanisms": offered}
        self._mechanism, self.takes_tokens, self.is_established = mechanism, is_bare, False
        if mechanism == PLAIN:
            self._exchange = _Plain(self._authenticator)
        else:
            found = MECHANISMS[mechanism]
            self._exchange = ScramServer(found, partial(self._authenticator.users.find, mechanism=found))
        return {"error_code": ErrorCode.NONE, "mechanisms": offered}

    async def authenticate(self, message: bytes) -> Body:
        """Answer SaslAuthenticate: the next message of the mechanism."""
        exchange = self._exchange
        if exchange is None:
            code = await self._fail(ErrorCode.ILLEGAL_SASL_STATE, "no handshake")
            return _answer(code, "SaslAuthenticate needs a SaslHandshake before it")
        try:
            said = await exchange.respond(message) if isinstance(exchange, _Plain) else exchange.respond(message)
            if exchange.is_done:
                self._accept(exchange.user)
        except AuthenticationFailed as error:
            reason = f"{self._mechanism}, user {shown(exchange.user)}: {error}"
            code = await self._fail(ErrorCode.SASL_AUTHENTICATION_FAILED, reason)
            return _answer(code, f"authentication failed with {self._mechanism}")
        return _answer(ErrorCode.NONE, None, said)

    async def token(self, message: bytes) -> Body | None:
        """Answer a message without a header; None after a failure."""
        answer = await self.authenticate(message)
        return None if self.has_failed else answer

    def _accept(self, user: str) -> None:
        principal = f"User:{user}"
        if self.is_authenticated and principal != self.principal:
            raise AuthenticationFailed(f"the connection belongs to {self.principal}")
        self.principal = principal
        self.is_authenticated = self.is_established = True
        self._exchange, self.takes_tokens = None, False
        self.close()

    async def _fail(self, code: ErrorCode, reason: str) -> ErrorCode:
        """Log a failure, refuse everything else on this connection, and delay the response."""
        self._authenticator.failed(self._host, reason)
        self.is_authenticated, self.is_established, self.has_failed = False, False, True
        await asyncio.sleep(_DELAY_S * random.uniform(1.0, 1.5))
        return code


def _answer(code: ErrorCode, message: str | None, said: bytes = b"") -> Body:
    return {"error_code": code, "error_message": message, "auth_bytes": said, "session_lifetime_ms": 0}


class _Plain:
    """PLAIN against SCRAM credentials. Hashing takes milliseconds and runs in a thread."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.user = ""
        self.is_done = False

    async def respond(self, message: bytes) -> bytes:
        self.user, password = parse_plain(message)
        if not await self._authenticator.matches(self.user, password):
            raise AuthenticationFailed("the user or the password is wrong")
        self.is_done = True
        return b""


#: Maximum number of passwords hashed concurrently. Each takes a core for milliseconds.
_SALTING: Final = 2


class Authenticator:
    """Authentication of a broker's clients. Belongs to the event loop's thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.mechanisms = broker.config.sasl_mechanisms
        self.timeout_s = broker.config.authentication_timeout_s
        self.users = UserCache(UserSnapshot(-1, {}, b""))
        self._stored = StoredUsers(broker.store.registry)
        #: None if connections are not encrypted.
        self.tls: Tls | None = None
        self._salting = asyncio.Semaphore(_SALTING)
        self._has_complained = False

    async def start(self) -> None:
        """Load the certificate and the users. Raise if either is invalid."""
        if self._broker.config.tls_certificate is not None:
            self.tls = await self._broker.run(Tls, self._broker.config)
        if self.mechanisms:
            self.users.replace(await self._broker.run(self._stored.prepare))

    async def refresh(self, *, force: bool = False) -> None:
        """Reload the users and the certificate if they changed. `force` reloads the certificate in any case."""
        if self.tls is not None:
            await self._broker.run(self.tls.refresh, force=force)
        if not self.mechanisms:
            return
        try:
            self.users.replace(await self._broker.run(self._stored.read))
            self._has_complained = False
        except SawlogError as error:
            if not self._has_complained:
                _logger.error("cannot read the users, keeping the previous ones: %s", error)
            self._has_complained = True

    def session(self, transport: asyncio.BaseTransport, host: str, late: Callable[[], None]) -> Session:
        """Return the session of a new connection. Raise `AuthenticationFailed` if its certificate cannot be parsed."""
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return Session(self, host, f"User:{name_of(certificate)}" if certificate else None, late)

    def failed(self, host: str, reason: str) -> None:
        """Count and log a failed authentication."""
        self._broker.metrics.rejected["authentication"] += 1
        self._broker.limits.rate_limited_log.log("authentication", "authentication of %s failed: %s", host, reason)

    async def matches(self, user: str, password: str) -> bool:
        """Return whether the password is that of an existing user."""
        mechanism, credential = self.users.strongest(user, tuple(MECHANISMS.values()))
        async with self._salting:
            return await self._broker.run(credential.matches, mechanism, password)


# --- the mechanisms


_NONCE_BYTES: Final = 24
#: Maximum length of a message.
_LONGEST: Final = 4096
_WRONG: Final = "the user or the password is wrong"

_CLIENT_FIRST: Final = re.compile(r"(?P<gs2>(?P<binding>[^,]*),(?:a=(?P<authzid>[^,]*))?,)(?P<bare>.*)", re.DOTALL)
_BARE: Final = re.compile(r"n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<more>(?:,[A-Za-z]+=[^,]*)*)")
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[A-Za-z]+=[^,]*)*),p=(?P<proof>[^,]*)"
)


def parse_plain(message: bytes) -> tuple[str, str]:
    """Return the user and the password in a message of PLAIN."""
    parts = _text(message).split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationFailed("the message does not consist of a user and a password")
    if parts[0] not in ("", parts[1]):
        raise AuthenticationFailed("a user cannot act as another one")
    return parts[1], parts[2]


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
        if _unbase64(found["binding"]) != self._gs2.encode():
            raise AuthenticationFailed("the channel binding has changed during the exchange")
        proof, sign, known = _unbase64(found["proof"]), self._mechanism.sign, self._credential
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


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except ValueError:
        raise AuthenticationFailed("a message has bytes that are not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise AuthenticationFailed(_WRONG)
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
