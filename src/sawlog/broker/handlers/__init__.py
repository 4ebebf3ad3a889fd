"""Request handlers: one module per family, each with a table `HANDLERS` from API key to function.

A handler gets a `Context` and the decoded request. It returns the response, or an awaitable of it; None sends no
response. Handlers run in the event loop's thread. Calls that may block on the disk go through `Broker.run`. What a
request requires as a whole was checked before (`api_requirements`); handlers check the resources that it lists.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import SawlogError
from ..security.acls import CLUSTER_NAME, OPERATIONS, ClientIdentity, Operation, Resource, word
from ..security.credentials import ANONYMOUS
from ..wire.errors import ErrorCode
from ..wire.messages import BY_KEY

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config import Address
    from ..security.authentication import Session
    from ..wire.frames import RequestHeader

_logger = logging.getLogger("sawlog.broker")

#: Errors of clients that may not use a resource.
_DENIED = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

#: Prefix of IPv4 addresses on a dual-stack listener.
_MAPPED = "::ffff:"

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

    # --- authorization

    @property
    def client(self) -> ClientIdentity:
        """The client, as bindings name it."""
        return ClientIdentity(self.principal, self.client_host.removeprefix(_MAPPED))

    def allows(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may perform an operation. For responses that omit denied resources silently."""
        authorizer = self.broker.authorizer
        return authorizer.is_open or authorizer.allows(self.client, operation, resource, name)

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        """Return whether an operation is allowed on at least one resource of the type, existing or not."""
        return self.broker.authorizer.allows_some(self.client, operation, resource)

    def sees(self, topic: str) -> bool:
        """Return whether the client may describe a topic."""
        return self.allows(Operation.DESCRIBE, Resource.TOPIC, topic)

    def operations(self, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may perform on a resource, as the bit set of Kafka's responses."""
        return sum(1 << each for each in OPERATIONS[resource] if self.allows(each, resource, name))

    def denial(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> KafkaError | None:
        """Return the error if the client may not perform an operation, and log it."""
        if self.broker.authorizer.is_open or self.allows(operation, resource, name):
            return None
        api = BY_KEY[self.header.api_key].name
        reason = f"{self.principal} is not allowed: {api} needs {word(operation)} on the {word(resource)}"
        _logger.info("%s %r (from %s)", reason, name, self.client.host)
        return KafkaError(_DENIED[resource], reason)

    def require(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Raise unless the client may perform an operation."""
        error = self.denial(operation, resource, name)
        if error is not None:
            raise error


Handler = Callable[[Context, Body], Answer]


class KafkaError(SawlogError):
    """An error with Kafka's error code, of a whole request or of one of its elements."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        super().__init__(message or code.name)
