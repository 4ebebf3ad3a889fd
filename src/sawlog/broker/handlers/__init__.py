"""Request handlers: one module per family, each with a table `HANDLERS` from API key to function.

A handler gets a `Context` and the decoded request. It returns the response, or an awaitable of it; None sends no
response. Handlers run in the event loop's thread. Calls that may block on the disk go through `Broker.run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import SawlogError
from ..security.credentials import ANONYMOUS
from ..wire.errors import ErrorCode

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config import Address
    from ..security.authentication import Session
    from ..wire.frames import RequestHeader

Body = dict[str, Any]
Answer = Body | None | Awaitable[Body | None]


@dataclass(frozen=True, slots=True)
class Context:
    """The client and the broker of a request."""

    broker: Broker
    header: RequestHeader
    client_host: str
    #: Principal of the client, as ACLs name it.
    principal: str = ANONYMOUS
    #: Authentication state of the connection.
    session: Session | None = None

    @property
    def advertised(self) -> Address:
        """Address that clients should connect to."""
        return self.broker.server.advertised


Handler = Callable[[Context, Body], Answer]


class KafkaError(SawlogError):
    """An error with Kafka's error code. It concerns the whole request."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        super().__init__(message or code.name)
