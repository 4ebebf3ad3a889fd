"""`Guard`: what all connections of a broker share to know who is there: the certificate, the users, the mechanisms."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...errors import SawlogError
from .credentials import KnownUsers, Snapshot, Users
from .mechanisms import MECHANISMS, Login
from .session import Session
from .tls import Tls, TlsFiles, name_of

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker")

#: Passwords that are salted at a time: each takes a core for milliseconds.
_SALTING: Final = 2


class Guard:
    """Belongs to the event loop's thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.mechanisms = broker.config.sasl_mechanisms
        self.timeout_s = broker.config.authentication_timeout_s
        self.users = KnownUsers(Snapshot(-1, {}, b""))
        self._stored = Users(broker.store.registry)
        self._files = TlsFiles.of(broker.config)
        #: None: connections are not encrypted.
        self.tls: Tls | None = None
        self._salting = asyncio.Semaphore(_SALTING)
        self._has_complained = False

    async def start(self) -> None:
        """Read certificate and users; what is wrong with them is an error now."""
        if self._files is not None:
            self.tls = await self._broker.run(Tls, self._files)
        if self.mechanisms:
            self.users.replace(await self._broker.run(self._stored.prepare))

    async def refresh(self, *, force: bool = False) -> None:
        """Look whether users or certificates have changed; `force`: read the certificates in any case."""
        if self.tls is not None:
            await self._broker.run(self.tls.refresh, force=force)
        if not self.mechanisms:
            return
        try:
            self.users.replace(await self._broker.run(self._stored.read))
            self._has_complained = False
        except SawlogError as error:
            if not self._has_complained:
                _logger.error("the users cannot be read, those that are known stay in use: %s", error)
            self._has_complained = True

    def session(self, transport: asyncio.BaseTransport, host: str, late: Callable[[], None]) -> Session:
        """The session of a new connection. `AuthenticationFailed` if its certificate cannot be parsed."""
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return Session(self, host, f"User:{name_of(certificate)}" if certificate else None, late)

    def failed(self, host: str, reason: str) -> None:
        """A client could not authenticate."""
        self._broker.metrics.rejected["authentication"] += 1
        self._broker.limits.notices.tell("authentication", "authentication of %s failed: %s", host, reason)

    async def matches(self, login: Login) -> bool:
        """Whether this is the password of an existing user."""
        mechanism, credential = self.users.strongest(login.user, tuple(MECHANISMS.values()))
        async with self._salting:
            return await self._broker.run(credential.matches, mechanism, login.password)
