"""What one connection has proved: nothing, that it owns a certificate, or that it knows a user's password.

```
    new ──handshake──▶ in exchange ──authenticate…──▶ authenticated ──handshake──▶ in exchange (the same user again)
     └─────────────────────┴── anything wrong ──▶ failed: answered after a while, then closed
```

If the broker asks for authentication, nothing but ApiVersions and the two requests for it is answered before. A failure
is answered after a tenth of a second and a little more, without holding a thread: guessing is slow, and the time that
it took says nothing. The client hears that it failed; why, the broker's log says.

Clients from before Kafka 1.0 say with version 0 of the handshake that they send the messages of the mechanism as they
are, without Kafka's header, and expect such answers (`takes_tokens`). A failure then has no answer but the end of the
connection.

A connection may authenticate again (KIP-368), as the same user and with the same mechanism. Sessions have no end of
their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from ...errors import AuthenticationFailed
from ..kinds import shown
from ..wire.errors import ErrorCode, Key
from ..wire.schema import Body
from . import mechanisms as plain
from .credentials import ANONYMOUS, KnownUsers
from .mechanisms import MECHANISMS
from .mechanisms import Server as ScramServer

#: What is answered before a client has authenticated.
_OPEN: Final = frozenset({Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE})
#: How long a failure is not answered: this, and up to half as much again.
_DELAY_S: Final = 0.1
#: How long a connection stays open after that, so that a client reads the answer before it sees the end.
LINGER_S: Final = 0.1


class Keeper(Protocol):
    """What sessions need of who keeps the broker: `Guard`."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """How clients may authenticate; none: nobody has to."""

    @property
    def timeout_s(self) -> float:
        """How long that may take."""

    @property
    def users(self) -> KnownUsers:
        """The users."""

    async def matches(self, login: plain.Login, /) -> bool:
        """Whether this is the password of an existing user."""

    def failed(self, host: str, reason: str) -> None:
        """A client could not authenticate."""


class Exchange(Protocol):
    """One attempt to authenticate."""

    @property
    def user(self) -> str:
        """Who it is about, as far as the client has said it."""

    @property
    def is_done(self) -> bool:
        """Whether the user is proved."""

    async def respond(self, message: bytes) -> bytes:
        """Answer a message of the client; `AuthenticationFailed`."""


class Session:
    """Who is at the other end of a connection. Belongs to the event loop's thread."""

    def __init__(self, keeper: Keeper, host: str, principal: str | None, late: Callable[[], None]) -> None:
        """`principal` is that of a certificate. `late` is called if the client does not authenticate in time."""
        self._keeper = keeper
        self._host = host
        self.principal = principal or ANONYMOUS
        self.is_authenticated = not keeper.mechanisms
        #: After the answer the connection is closed.
        self.has_failed = False
        self._mechanism = ""
        self._is_bare = False
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        if not self.is_authenticated:
            self._timer = asyncio.get_running_loop().call_later(keeper.timeout_s, late)

    def close(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()

    # --- what a connection asks

    def admits(self, api_key: int) -> bool:
        """Whether a request is answered now."""
        return (self.is_authenticated and self._exchange is None) or api_key in _OPEN

    @property
    def takes_tokens(self) -> bool:
        """Whether what comes next is no request, but a message of the mechanism."""
        return self._is_bare and self._exchange is not None

    # --- requests

    async def handshake(self, mechanism: str, is_bare: bool = False) -> Body:
        """SaslHandshake: with which mechanism the client wants to authenticate, and whether without headers. That is
        for the first time only: clients that authenticate again are newer."""
        offered = list(self._keeper.mechanisms)
        if not offered or self._exchange is not None or (is_bare and self.is_authenticated):
            return {"error_code": await self._fail(ErrorCode.ILLEGAL_SASL_STATE, "handshake"), "mechanisms": offered}
        if mechanism not in offered or (self.is_authenticated and mechanism != self._mechanism):
            code = await self._fail(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"the mechanism {shown(mechanism)}")
            return {"error_code": code, "mechanisms": offered}
        self._mechanism, self._is_bare = mechanism, is_bare
        self._exchange = self._begin(mechanism)
        return {"error_code": ErrorCode.NONE, "mechanisms": offered}

    def _begin(self, mechanism: str) -> Exchange:
        if mechanism == plain.NAME:
            return _Plain(self._keeper)
        return _Scram(self._keeper, mechanism)

    async def authenticate(self, message: bytes) -> Body:
        """SaslAuthenticate: the next message of the mechanism."""
        exchange = self._exchange
        if exchange is None:
            code = await self._fail(ErrorCode.ILLEGAL_SASL_STATE, "no handshake")
            return _answer(code, "SaslAuthenticate needs a SaslHandshake before it")
        try:
            said = await exchange.respond(message)
            if exchange.is_done:
                self._accept(exchange.user)
        except AuthenticationFailed as error:
            reason = f"{self._mechanism}, user {shown(exchange.user)}: {error}"
            code = await self._fail(ErrorCode.SASL_AUTHENTICATION_FAILED, reason)
            return _answer(code, f"authentication failed with {self._mechanism}")
        return _answer(ErrorCode.NONE, None, said)

    async def token(self, message: bytes) -> Body | None:
        """The same without a header; None if it failed."""
        answer = await self.authenticate(message)
        return None if self.has_failed else answer

    def _accept(self, user: str) -> None:
        principal = f"User:{user}"
        if self.is_authenticated and principal != self.principal:
            raise AuthenticationFailed(f"the connection belongs to {self.principal}")
        self.principal = principal
        self.is_authenticated = True
        self._exchange = None
        self.close()

    async def _fail(self, code: ErrorCode, reason: str) -> ErrorCode:
        """Nothing more is read from this connection, and it is answered after a while."""
        self._keeper.failed(self._host, reason)
        self.is_authenticated, self.has_failed = False, True
        await asyncio.sleep(_DELAY_S * random.uniform(1.0, 1.5))
        return code


def _answer(code: ErrorCode, message: str | None, said: bytes = b"") -> Body:
    return {"error_code": code, "error_message": message, "auth_bytes": said, "session_lifetime_ms": 0}


class _Scram:
    """SCRAM, with the users of the broker."""

    def __init__(self, keeper: Keeper, name: str) -> None:
        mechanism = MECHANISMS[name]
        self._server = ScramServer(mechanism, keeper.users.finder(mechanism))

    @property
    def user(self) -> str:
        return self._server.user

    @property
    def is_done(self) -> bool:
        return self._server.is_done

    async def respond(self, message: bytes) -> bytes:
        return self._server.respond(message)


class _Plain:
    """PLAIN, against the credentials of SCRAM. Salting takes milliseconds, in a thread."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self.user = ""
        self.is_done = False

    async def respond(self, message: bytes) -> bytes:
        login = plain.Login.parse(message)
        self.user = login.user
        if not await self._keeper.matches(login):
            raise AuthenticationFailed("the user or the password is wrong")
        self.is_done = True
        return b""
