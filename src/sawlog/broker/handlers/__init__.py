"""What answers each request: one module per family, each with a table `HANDLERS` from API key to function.

A handler gets a `Context` and the decoded request, and returns the response, or an awaitable of it; None if none is
sent. It runs in the event loop's thread. What may wait for the disk goes through `Broker.run`.
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
    from ..security.session import Session
    from ..wire.frames import RequestHeader

Body = dict[str, Any]
Answer = Body | None | Awaitable[Body | None]


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks, and whom."""

    broker: Broker
    header: RequestHeader
    client_host: str
    #: Where clients of this listener are sent.
    advertised: Address
    #: Who asks, as ACLs name them.
    principal: str = ANONYMOUS
    #: What the connection has proved so far.
    session: Session | None = None


Handler = Callable[[Context, Body], Answer]


class KafkaError(SawlogError):
    """An error as Kafka's clients know it; it concerns the whole request."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        super().__init__(message or code.name)
