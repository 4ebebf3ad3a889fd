"""Building blocks of `api_requirements`: check a request, forward the allowed part, answer the rest.

A `RequestCheck` inspects a request and returns a `CheckedRequest`: the part that the handler gets, and how to complete
the response. Most requests name several resources. Those that the client may not use are answered with an error of
their own, in the form that `error_responses.refusal` gives to the errors of the API.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ..error_responses import refusal
from ..handlers import Body
from ..wire.errors import ErrorCode, Key
from ..wire.messages import BY_KEY
from ..wire.schema import ARRAY, NO_ID, Fields
from .acls import CLUSTER_NAME, ClientIdentity, Operation, Resource, word
from .authorizer import Authorizer

_logger = logging.getLogger("sawlog.broker")

CODES: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


@dataclass(slots=True)
class AuthorizationContext:
    """The client, API and version of one request, with the decisions about it."""

    authorizer: Authorizer
    client: ClientIdentity
    key: Key
    version: int
    #: Names of the topics that the request refers to by id; None for an id that does not exist.
    names: Mapping[bytes, str | None]
    #: All topics, if the request asks for all of them.
    topics: Sequence[str] = ()
    #: True if the broker creates missing topics on request.
    creates: bool = False
    #: Reasons for the error messages, by error: within a request, one error has one reason.
    _reasons: dict[ErrorCode, str] = field(default_factory=dict)

    def allows(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Return whether an operation is allowed. For responses that omit denied resources silently."""
        return self.authorizer.allows(self.client, operation, resource, name)

    def allows_some(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed on at least one resource of the type."""
        return self.authorizer.allows_some(self.client, operation, resource)

    def refused(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> ErrorCode | None:
        """Return the error if an operation is not allowed, and log the denial."""
        if self.allows(operation, resource, name):
            return None
        api, code = BY_KEY[self.key].name, CODES[resource]
        reason = f"{self.client.principal} is not allowed: {api} needs {word(operation)} on the {word(resource)}"
        self._reasons[code] = reason
        _logger.info("%s %r (from %s)", reason, name, self.client.host)
        return code

    def sees(self, topic: str) -> bool:
        """Return whether the client may describe a topic."""
        return self.allows(Operation.DESCRIBE, Resource.TOPIC, topic)

    def refusal(self, request: Body, code: ErrorCode) -> Body:
        """Return the error response to a request, or to the denied part of one."""
        made = refusal(self.key, request, code)
        reason = self._reasons.get(code)
        return made if reason is None else _explained(BY_KEY[self.key].response, made, reason)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """The outcome of a check."""

    #: Requests for the handler, in order; usually one.
    requests: tuple[Body, ...]
    #: Builds the response from the handler's answers. None if the handler's answer is the response.
    finish: Callable[[list[Body]], Body] | None = None


#: Checks a whole request.
RequestCheck: TypeAlias = Callable[[AuthorizationContext, Body], CheckedRequest]
#: Returns the error of one element of a request, or None if it is allowed.
ElementCheck: TypeAlias = Callable[[AuthorizationContext, Body], ErrorCode | None]


class Requirement(NamedTuple):
    """An operation on the resource that a field of the request names, or on the cluster if `field` is None."""

    operation: Operation
    resource: Resource
    field: str | None = None

    def refused(self, auth: AuthorizationContext, request: Body) -> ErrorCode | None:
        """Return the error if the client may not perform the operation."""
        return auth.refused(self.operation, self.resource, CLUSTER_NAME if self.field is None else request[self.field])


def answered(body: Body) -> CheckedRequest:
    """Answer without calling the handler."""
    return CheckedRequest((), lambda bodies: body)


def free(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """Allow the request to every client."""
    return CheckedRequest((request,))


def whole(*needs: Requirement, hide: Callable[[AuthorizationContext, Body], Body] | None = None) -> RequestCheck:
    """Check a request as a whole. The first requirement that is not met determines the error."""

    def guard(auth: AuthorizationContext, request: Body) -> CheckedRequest:
        for need in needs:
            code = need.refused(auth, request)
            if code is not None:
                return answered(auth.refusal(request, code))
        return CheckedRequest((request,), None if hide is None else lambda bodies: hide(auth, bodies[0]))

    return guard


def each(
    items: str,
    answers: str,
    verdict: ElementCheck,
    *needs: Requirement,
    unless: Requirement | None = None,
    hide: Callable[[AuthorizationContext, Body], Body] | None = None,
) -> RequestCheck:
    """Check a request element by element. `items` is its list of elements, `answers` the list in the response. `needs`
    apply to the request as a whole. A client that meets `unless` may use every element."""

    def guard(auth: AuthorizationContext, request: Body) -> CheckedRequest:
        for need in needs:
            code = need.refused(auth, request)
            if code is not None:
                return answered(auth.refusal(request, code))
        may_all = unless is not None and auth.allows(unless.operation, unless.resource)
        good, bad = (request[items], {}) if may_all else split(auth, request[items] or (), verdict)

        def finish(bodies: list[Body]) -> Body:
            made = bodies[0] if bodies else {answers: []}
            if hide is not None:
                made = hide(auth, made)
            for code, some in bad.items():
                refused = auth.refusal({**request, items: some}, code)[answers]
                made = {**made, answers: [*made[answers], *refused]}
            return made

        if not bad:
            return CheckedRequest((request,), None if hide is None else finish)
        return CheckedRequest(({**request, items: good},) if good else (), finish)

    return guard


def split(
    auth: AuthorizationContext, items: Iterable[Body], verdict: ElementCheck
) -> tuple[list[Body], dict[ErrorCode, list[Body]]]:
    """Return the allowed elements, and the denied ones by error."""
    good: list[Body] = []
    bad: dict[ErrorCode, list[Body]] = {}
    for item in items:
        code = verdict(auth, item)
        (good if code is None else bad.setdefault(code, [])).append(item)
    return good, bad


def named(operation: Operation, resource: Resource, field: str | None = None) -> ElementCheck:
    """Check elements that are names, or that have one in `field`."""

    def verdict(auth: AuthorizationContext, item: Body) -> ErrorCode | None:
        return auth.refused(operation, resource, str(item) if field is None else item[field])

    return verdict


def topic_of(operation: Operation, field: str = "name") -> ElementCheck:
    """Check elements that refer to a topic by id, in versions that have ids, or else by name."""

    def verdict(auth: AuthorizationContext, item: Body) -> ErrorCode | None:
        topic_id = item.get("topic_id", NO_ID)
        name = item[field] if topic_id == NO_ID else auth.names[bytes(topic_id)]
        return ErrorCode.UNKNOWN_TOPIC_ID if name is None else auth.refused(operation, Resource.TOPIC, name)

    return verdict


def _explained(fields: Fields, body: Body, message: str) -> Body:
    """Add a message next to each error code, where the API has a field for it."""
    made = dict(body)
    for each_field in fields:
        name, inner = each_field.name, each_field.inner
        if name == "error_message" and body.get("error_code"):
            made[name] = message
        elif each_field.kind is ARRAY and isinstance(inner, tuple) and name in body:
            made[name] = [_explained(inner, one, message) for one in body[name]]
    return made
