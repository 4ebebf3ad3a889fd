"""`Rules`: what a set of bindings allows. Values only, no I/O.

Something is allowed if a binding allows it and none denies it. Allowing to read, write, delete or alter allows to
describe as well, altering a configuration allows to describe it; denying denies no more than it says.

What no binding concerns is refused; or, if `open_without`, allowed to everybody, as Kafka does with
`allow.everyone.if.no.acl.found`.

Decisions are remembered, because clients repeat the same few questions with each request; a change of the bindings
makes new rules, which remember nothing yet. Not thread-safe: a broker asks in its event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .acls import ALLOWING, DENYING, EVERY, EVERYBODY, Binding, Operation, Pattern, Permission, Resource, covers

#: How many decisions are remembered, and about names of what length: whoever asks for ever new or long names makes it
#: forget, and no more.
_REMEMBERED, _REMEMBERED_CHARACTERS = 20_000, 255


class Who(NamedTuple):
    """Whoever asks."""

    principal: str
    host: str


class Rules:
    """The bindings, found by the resources that they concern."""

    def __init__(self, bindings: Iterable[Binding], *, open_without: bool = False) -> None:
        self.bindings = frozenset(bindings)
        self._open_without = open_without
        self._literal: defaultdict[tuple[Resource, str], list[Binding]] = defaultdict(list)
        self._prefixed: defaultdict[tuple[Resource, str], list[Binding]] = defaultdict(list)
        lengths: defaultdict[Resource, set[int]] = defaultdict(set)
        for each in self.bindings:
            if each.pattern is Pattern.PREFIXED:
                self._prefixed[each.resource, each.name].append(each)
                lengths[each.resource].add(len(each.name))
            else:
                self._literal[each.resource, each.name].append(each)
        #: The lengths of prefixes, by type: a name is looked up once for each.
        self._lengths = {resource: sorted(found) for resource, found in lengths.items()}
        self._known: dict[tuple[Who, Operation, Resource, str], bool] = {}

    def allows(self, who: Who, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether somebody may do something with one resource."""
        if len(name) > _REMEMBERED_CHARACTERS:
            return self._decide(who, operation, self._about(resource, name))
        asked = who, operation, resource, name
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[asked] = self._decide(who, operation, self._about(resource, name))
        return found

    def allows_some(self, who: Who, operation: Operation, resource: Resource) -> bool:
        """Whether there is a name, of whatever resource of the type, for which it is allowed."""
        if self._open_without and (resource, EVERY) not in self._literal:
            return True  # names are left that no binding concerns
        concerned = [each for each in self.bindings if each.resource is resource and _is_for(each, who)]
        denied = [each for each in concerned if _denies(each, operation)]
        return any(
            _allows(each, operation) and not any(_swallows(other, each) for other in denied) for each in concerned
        )

    def _about(self, resource: Resource, name: str) -> Iterator[Binding]:
        """The bindings that concern a resource."""
        yield from self._literal.get((resource, name), ())
        if name != EVERY:
            yield from self._literal.get((resource, EVERY), ())
        for length in self._lengths.get(resource, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((resource, name[:length]), ())

    def _decide(self, who: Who, operation: Operation, about: Iterable[Binding]) -> bool:
        is_allowed, is_concerned = False, False
        for each in about:
            is_concerned = True
            if _is_for(each, who):
                if _denies(each, operation):
                    return False
                is_allowed = is_allowed or _allows(each, operation)
        return is_allowed if is_concerned else self._open_without


def _is_for(binding: Binding, who: Who) -> bool:
    return binding.principal in (who.principal, EVERYBODY) and binding.host in (who.host, EVERY)


def _allows(binding: Binding, operation: Operation) -> bool:
    return binding.permission is Permission.ALLOW and binding.operation in ALLOWING[operation]


def _denies(binding: Binding, operation: Operation) -> bool:
    return binding.permission is Permission.DENY and binding.operation in DENYING[operation]


def _swallows(denied: Binding, allowed: Binding) -> bool:
    """Whether a binding denies every resource that another one allows."""
    if denied.pattern is Pattern.LITERAL:
        return denied.name == EVERY or (allowed.pattern is Pattern.LITERAL and denied.name == allowed.name)
    if allowed.pattern is Pattern.LITERAL and allowed.name == EVERY:
        return False  # other names are left
    return covers(denied, allowed.name)
