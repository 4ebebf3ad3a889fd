"""What becomes of a request: the parts of which the table in `gate.py` is made.

A guard looks at a request and returns a `Plan`: what of it the handler gets, and how the rest is answered. Most
requests name several resources; what the client may not do with some of them is answered with an error for these alone,
in the form that `trouble.refusal` gives to errors of the API.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ..handlers import Body, KafkaError
from ..trouble import refusal
from ..wire.apis import BY_KEY, Key
from ..wire.errors import ErrorCode
from ..wire.schema import ARRAY, Fields
from .acls import CLUSTER_NAME, Operation, Resource, Who, word
from .authorizer import Authority

_logger = logging.getLogger("sawlog.broker")

NO_ID: Final = bytes(16)

CODES: Final = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


@dataclass(slots=True)
class Asker:
    """Who asks, for what: one for each request."""

    authority: Authority
    who: Who
    key: Key
    version: int
    #: The names of the topics that the request names by id; None for one that does not exist.
    names: Mapping[bytes, str | None]
    #: All topics, if the request asks for all of them.
    topics: Sequence[str] = ()
    #: Whether topics that are asked for are created.
    creates: bool = False
    #: What was refused, for messages: by the error, because within a request one error has one reason.
    _reasons: dict[ErrorCode, str] = field(default_factory=dict)

    def may(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Whether it is allowed, for what is left out silently if not."""
        return self.authority.allows(self.who, operation, resource, name)

    def may_some(self, operation: Operation, resource: Resource) -> bool:
        """Whether it is allowed for some resource of the type."""
        return self.authority.allows_some(self.who, operation, resource)

    def refused(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> ErrorCode | None:
        """The error if it is not allowed; then it is logged."""
        if self.may(operation, resource, name):
            return None
        api, code = BY_KEY[self.key].name, CODES[resource]
        reason = f"{self.who.principal} is not allowed: {api} needs {word(operation)} on the {word(resource)}"
        self._reasons[code] = reason
        _logger.info("%s %r (from %s)", reason, name, self.who.host)
        return code

    def sees(self, topic: str) -> bool:
        """Whether it may know of a topic."""
        return self.may(Operation.DESCRIBE, Resource.TOPIC, topic)

    def refusal(self, request: Body, code: ErrorCode) -> Body:
        """The answer to a request, or to a part of one, that is refused."""
        made = refusal(self.key, request, KafkaError(code))
        reason = self._reasons.get(code)
        return made if reason is None else _explained(BY_KEY[self.key].response, made, reason)


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a request."""

    #: What the handler gets, one after the other; most often it is one request.
    requests: tuple[Body, ...]
    #: Makes the response of what the handler answered; None: it is the response.
    finish: Callable[[list[Body]], Body] | None = None


#: Looks at a request.
Guard: TypeAlias = Callable[[Asker, Body], Plan]
#: The error of one element of a request, if it is refused.
Verdict: TypeAlias = Callable[[Asker, Body], ErrorCode | None]


class Need(NamedTuple):
    """An operation on the resource that a field of the request names; on the cluster if there is no field."""

    operation: Operation
    resource: Resource
    field: str | None = None

    def refused(self, asker: Asker, request: Body) -> ErrorCode | None:
        """The error if the client may not do it."""
        return asker.refused(self.operation, self.resource, CLUSTER_NAME if self.field is None else request[self.field])


def answered(body: Body) -> Plan:
    """The handler is not asked."""
    return Plan((), lambda bodies: body)


def free(asker: Asker, request: Body) -> Plan:
    """Everybody may ask."""
    return Plan((request,))


def whole(*needs: Need, hide: Callable[[Asker, Body], Body] | None = None) -> Guard:
    """A request that is refused as a whole, unless all needs are met; the first that is not says the error."""

    def guard(asker: Asker, request: Body) -> Plan:
        for need in needs:
            code = need.refused(asker, request)
            if code is not None:
                return answered(asker.refusal(request, code))
        return Plan((request,), None if hide is None else lambda bodies: hide(asker, bodies[0]))

    return guard


def each(
    items: str,
    answers: str,
    verdict: Verdict,
    *needs: Need,
    unless: Need | None = None,
    hide: Callable[[Asker, Body], Body] | None = None,
) -> Guard:
    """A request with a list of elements, each refused or not; its response has a list of answers. `needs` are those of
    the request as a whole, and who may do `unless` may do it with every element."""

    def guard(asker: Asker, request: Body) -> Plan:
        for need in needs:
            code = need.refused(asker, request)
            if code is not None:
                return answered(asker.refusal(request, code))
        may_all = unless is not None and asker.may(unless.operation, unless.resource)
        good, bad = (request[items], {}) if may_all else split(asker, request[items] or (), verdict)

        def finish(bodies: list[Body]) -> Body:
            made = bodies[0] if bodies else {answers: []}
            if hide is not None:
                made = hide(asker, made)
            for code, some in bad.items():
                refused = asker.refusal({**request, items: some}, code)[answers]
                made = {**made, answers: [*made[answers], *refused]}
            return made

        if not bad:
            return Plan((request,), None if hide is None else finish)
        return Plan(({**request, items: good},) if good else (), finish)

    return guard


def split(asker: Asker, items: Iterable[Body], verdict: Verdict) -> tuple[list[Body], dict[ErrorCode, list[Body]]]:
    """The elements that are allowed, and the others by their errors."""
    good: list[Body] = []
    bad: dict[ErrorCode, list[Body]] = {}
    for item in items:
        code = verdict(asker, item)
        (good if code is None else bad.setdefault(code, [])).append(item)
    return good, bad


def named(operation: Operation, resource: Resource, field: str | None = None) -> Verdict:
    """Elements that are names themselves, or have a field with one."""

    def verdict(asker: Asker, item: Body) -> ErrorCode | None:
        return asker.refused(operation, resource, str(item) if field is None else item[field])

    return verdict


def topic_of(operation: Operation, field: str = "name") -> Verdict:
    """Elements that name a topic by its id, in versions that do so, else by its name."""

    def verdict(asker: Asker, item: Body) -> ErrorCode | None:
        topic_id = item.get("topic_id", NO_ID)
        name = item[field] if topic_id == NO_ID else asker.names[bytes(topic_id)]
        return ErrorCode.UNKNOWN_TOPIC_ID if name is None else asker.refused(operation, Resource.TOPIC, name)

    return verdict


def _explained(fields: Fields, body: Body, message: str) -> Body:
    """A refusal with a message beside each error code, where the API has one."""
    made = dict(body)
    for each_field in fields:
        name, inner = each_field.name, each_field.inner
        if name == "error_message" and body.get("error_code"):
            made[name] = message
        elif each_field.kind is ARRAY and isinstance(inner, tuple) and name in body:
            made[name] = [_explained(inner, one, message) for one in body[name]]
    return made
