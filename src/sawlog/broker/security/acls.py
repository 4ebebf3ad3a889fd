"""Access control lists: who is allowed or denied what, on which resources, from where. Values only, no I/O.

A `Binding` is one rule: a principal ("User:ann"; "User:*" is everybody), a host (an IP address; "*" is every one), an
operation, allow or deny, and a pattern of resources of one type:

```
literal     orders      the topic orders; the name * stands for every name
prefixed    orders-     every topic whose name begins with orders-
```

A `Filter` selects bindings, to list or delete them. Numbers and meanings are Kafka's.

`Rules`: what a set of bindings allows. Values only, no I/O.

Something is allowed if a binding allows it and none denies it. Allowing to read, write, delete or alter allows to
describe as well, altering a configuration allows to describe it; denying denies no more than it says.

What no binding concerns is refused; or, if `open_without`, allowed to everybody, as Kafka does with
`allow.everyone.if.no.acl.found`.

Decisions are remembered, because clients repeat the same few questions with each request; a change of the bindings
makes new rules, which remember nothing yet. Not thread-safe: a broker asks in its event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from ...errors import InvalidConfig

#: Every name, as a literal pattern; every host.
EVERY: Final = "*"
EVERYBODY: Final = "User:*"
#: The name of the only resource of type cluster.
CLUSTER_NAME: Final = "kafka-cluster"
#: The longest name, principal and host.
_LONGEST = 1024


class Resource(IntEnum):
    """Types of resources."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How the name of a binding is meant. A filter may also ask for any, or for all that match a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What can be done with a resource."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Deny wins over allow."""

    ANY = 1
    DENY = 2
    ALLOW = 3


#: Which operations a type of resource has.
OPERATIONS: Final[Mapping[Resource, tuple[Operation, ...]]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    Resource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}

#: Which bindings that allow something allow an operation as well, beside those for the operation itself and for all.
_IMPLYING: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
#: By operation: those whose bindings allow it, and those whose bindings deny it.
ALLOWING: Final = {each: frozenset({each, Operation.ALL, *_IMPLYING.get(each, ())}) for each in Operation}
DENYING: Final = {each: frozenset({each, Operation.ALL}) for each in Operation}

_E = TypeVar("_E", bound=IntEnum)


def word(value: IntEnum) -> str:
    """How people write it: `transactional-id`."""
    return value.name.lower().replace("_", "-")


def parse(kind: type[_E], text: str) -> _E:
    """What a word means; capitals, hyphens and underscores do not matter, so that Kafka's spellings work too."""
    wanted = text.replace("-", "").replace("_", "").lower()
    for each in kind:
        if each.name.replace("_", "").lower() == wanted:
            return each
    words = [word(each) for each in kind if each != 1]  # 1 is any, which only filters have
    raise InvalidConfig(f"{text!r} is unknown; use one of {', '.join(words)}")


@dataclass(frozen=True, slots=True)
class Binding:
    """One rule. `InvalidConfig` if it cannot be one."""

    resource: Resource
    name: str
    principal: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    pattern: Pattern = Pattern.LITERAL
    host: str = EVERY

    def __post_init__(self) -> None:
        if self.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
            raise InvalidConfig("the pattern of a rule is literal or prefixed")
        for value in (self.resource, self.operation, self.permission):
            if value == 1:
                raise InvalidConfig(f"a rule names one {type(value).__name__.lower()}; any is for filters only")
        for what, text in (("name", self.name), ("principal", self.principal), ("host", self.host)):
            if not 1 <= len(text) <= _LONGEST or not text.isprintable():
                raise InvalidConfig(f"the {what} of a rule has 1 to {_LONGEST} printable characters")
        check_principal(self.principal)
        if self.resource is Resource.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidConfig(f"the name of the cluster is {CLUSTER_NAME}, not {self.name!r}")

    @property
    def fields(self) -> dict[str, str]:
        """Its values as words, as they are stored and shown."""
        return {each.name: _shown(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Binding:
        """From `fields`; `InvalidConfig` if anything is missing, unknown or too much."""
        names = {each.name for each in fields(cls)}
        if given.keys() != names or not all(isinstance(value, str) for value in given.values()):
            raise InvalidConfig(f"a rule has the fields {', '.join(sorted(names))}, each a text")
        return cls(
            resource=parse(Resource, given["resource"]),
            name=given["name"],
            principal=given["principal"],
            operation=parse(Operation, given["operation"]),
            permission=parse(Permission, given["permission"]),
            pattern=parse(Pattern, given["pattern"]),
            host=given["host"],
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """Which bindings. What is None or any matches everything.

    The pattern `match` selects by effect: every binding that concerns the resource of that name. The others select by
    the name that the binding has.
    """

    resource: Resource = Resource.ANY
    name: str | None = None
    principal: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY
    pattern: Pattern = Pattern.ANY
    host: str | None = None

    def matches(self, binding: Binding) -> bool:
        """Whether it is one of them."""
        return (
            self.resource in (Resource.ANY, binding.resource)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self._names(binding)
        )

    def _names(self, binding: Binding) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, binding.pattern):
            return False
        if self.name is None:
            return True
        return covers(binding, self.name) if self.pattern is Pattern.MATCH else binding.name == self.name


def covers(binding: Binding, name: str) -> bool:
    """Whether a binding concerns the resource of that name, which has its type."""
    if binding.pattern is Pattern.PREFIXED:
        return name.startswith(binding.name)
    return binding.name in (name, EVERY)


def check_principal(text: str) -> None:
    """`InvalidConfig` unless it can be somebody's."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise InvalidConfig(f"a principal is TYPE:NAME, as User:ann or {EVERYBODY}, not {text!r}")


def _shown(value: str | IntEnum) -> str:
    return word(value) if isinstance(value, IntEnum) else value


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
