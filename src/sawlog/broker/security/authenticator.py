"""`Authenticator`: the certificate, users and SASL mechanisms shared by all connections of a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...errors import SawlogError
from .credentials import StoredUsers, UserCache, UserSnapshot
from .mechanisms import MECHANISMS, Login
from .session import Session
from .tls import Tls, TlsFiles, name_of

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker")

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
        self._files = TlsFiles.of(broker.config)
        #: None if connections are not encrypted.
        self.tls: Tls | None = None
        self._salting = asyncio.Semaphore(_SALTING)
        self._has_complained = False

    async def start(self) -> None:
        """Load the certificate and the users. Raise if either is invalid."""
        if self._files is not None:
            self.tls = await self._broker.run(Tls, self._files)
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
        self._broker.limits.rate_limited_log.tell("authentication", "authentication of %s failed: %s", host, reason)

    async def matches(self, login: Login) -> bool:
        """Whether the password is that of an existing user."""
        mechanism, credential = self.users.strongest(login.user, tuple(MECHANISMS.values()))
        async with self._salting:
            return await self._broker.run(credential.matches, mechanism, login.password)
