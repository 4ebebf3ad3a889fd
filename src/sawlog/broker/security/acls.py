"""Access control lists: bindings, filters and their evaluation. Values only, no I/O.

A `Binding` allows or denies a principal ("User:ann", or "User:*" for every user) an operation from a host (an IP
address, or "*" for every host) on the resources of one type that match a pattern:

```
literal     orders      the topic orders; the name * matches every name
prefixed    orders-     every topic whose name begins with orders-
```

A `Filter` selects bindings to list or delete. Numbers and meanings are Kafka's.

An `AclIndex` evaluates a set of bindings. An operation is allowed if a binding allows it and none denies it. Allowing
READ, WRITE, DELETE or ALTER implies DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS; denying an operation implies
nothing. A resource that no binding covers is denied, unless `allow_if_no_acl` is set (Kafka's
`allow.everyone.if.no.acl.found`).

Decisions are cached, because clients repeat the same few questions with each request. A change of the bindings creates
a new index with an empty cache. Not thread-safe: the broker uses it in its event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from ...errors import InvalidConfig

#: Matches every name in a literal pattern, and every host.
EVERY: Final = "*"
EVERYBODY: Final = "User:*"
#: Name of the only resource of type cluster.
CLUSTER_NAME: Final = "kafka-cluster"
#: Maximum length of a name, principal or host.
_MAX_LENGTH = 1024


class Resource(IntEnum):
    """Resource types."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """Pattern types of a name. ANY and MATCH are for filters: MATCH selects the bindings that cover a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations on a resource."""

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
    """Effect of a binding. Deny wins."""

    ANY = 1
    DENY = 2
    ALLOW = 3


def _operations(names: str) -> tuple[Operation, ...]:
    return tuple(Operation[name] for name in names.split())


#: Valid operations by resource type.
OPERATIONS: Final[Mapping[Resource, tuple[Operation, ...]]] = {
    Resource.TOPIC: _operations("READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"),
    Resource.GROUP: _operations("READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS"),
    Resource.CLUSTER: _operations(
        "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE"
    ),
    Resource.TRANSACTIONAL_ID: _operations("WRITE DESCRIBE TWO_PHASE_COMMIT"),
    Resource.DELEGATION_TOKEN: _operations("DESCRIBE"),
    Resource.USER: _operations("CREATE_TOKENS DESCRIBE_TOKENS"),
}

#: Operations whose ALLOW implies the key, in addition to the operation itself and ALL.
_IMPLYING: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
#: For each operation, the operations of a binding that allow it, and the operations that deny it.
ALLOWING: Final = {each: frozenset({each, Operation.ALL, *_IMPLYING.get(each, ())}) for each in Operation}
DENYING: Final = {each: frozenset({each, Operation.ALL}) for each in Operation}

_E = TypeVar("_E", bound=IntEnum)


def word(value: IntEnum) -> str:
    """Return the spelling for people, such as `transactional-id`."""
    return value.name.lower().replace("_", "-")


def parse(kind: type[_E], text: str) -> _E:
    """Parse a word. Case, hyphens and underscores are ignored, so Kafka's spellings work too."""
    wanted = text.replace("-", "").replace("_", "").lower()
    for each in kind:
        if each.name.replace("_", "").lower() == wanted:
            return each
    words = [word(each) for each in kind if each != 1]  # 1 is ANY, for filters only
    raise InvalidConfig(f"{text!r} is unknown; use one of {', '.join(words)}")


@dataclass(frozen=True, slots=True)
class Binding:
    """One access control rule. Raises `InvalidConfig` if invalid."""

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
            if not 1 <= len(text) <= _MAX_LENGTH or not text.isprintable():
                raise InvalidConfig(f"the {what} of a rule has 1 to {_MAX_LENGTH} printable characters")
        check_principal(self.principal)
        if self.resource is Resource.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidConfig(f"the name of the cluster is {CLUSTER_NAME}, not {self.name!r}")

    @property
    def fields(self) -> dict[str, str]:
        """The values as words, as stored and displayed."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: word(each) if isinstance(each, IntEnum) else each for name, each in values.items()}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Binding:
        """Parse `fields`. Raise `InvalidConfig` for a missing, unknown or extra field."""
        names = {each.name for each in fields(cls)}
        if given.keys() != names or not all(isinstance(value, str) for value in given.values()):
            raise InvalidConfig(f"a rule has the fields {', '.join(sorted(names))}, each a text")
        values: dict[str, Any] = {**given, **{name: parse(kind, given[name]) for name, kind in _KINDS.items()}}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects bindings. None and ANY match everything.

    With the pattern MATCH, `name` selects every binding that covers the resource of that name. With any other pattern,
    it selects the bindings of exactly that name.
    """

    resource: Resource = Resource.ANY
    name: str | None = None
    principal: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY
    pattern: Pattern = Pattern.ANY
    host: str | None = None

    def matches(self, binding: Binding) -> bool:
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


#: Kafka's names of the fields of a binding: in a response, in a request that creates it, and in a filter.
DESCRIBED: Final = {
    "resource": "resource_type",
    "name": "resource_name",
    "pattern": "pattern_type",
    "principal": "principal",
    "host": "host",
    "operation": "operation",
    "permission": "permission_type",
}
CREATED: Final = {**DESCRIBED, "pattern": "resource_pattern_type"}
FILTERED: Final = {
    ours: theirs if ours in ("operation", "permission") else f"{theirs}_filter" for ours, theirs in DESCRIBED.items()
}
_KINDS: Final = {"resource": Resource, "pattern": Pattern, "operation": Operation, "permission": Permission}
_Rule = TypeVar("_Rule", Binding, Filter)


def to_wire(rule: Binding | Filter, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a binding or a filter by Kafka's names."""
    return {theirs: getattr(rule, ours) for ours, theirs in names.items()}


def from_wire(kind: type[_Rule], given: Mapping[str, Any], names: Mapping[str, str]) -> _Rule:
    """Return the binding or filter with these fields. Raise `InvalidConfig` if it is invalid."""
    fields = {ours: given[theirs] for ours, theirs in names.items()}
    for name, numbers in _KINDS.items():
        try:
            fields[name] = numbers(fields[name])
        except ValueError:
            raise InvalidConfig(f"{fields[name]} is not the number of a {numbers.__name__.lower()}") from None
    return kind(**fields)


def covers(binding: Binding, name: str) -> bool:
    """Return whether a binding covers the resource of that name, which has the binding's type."""
    if binding.pattern is Pattern.PREFIXED:
        return name.startswith(binding.name)
    return binding.name in (name, EVERY)


def check_principal(text: str) -> None:
    """Raise `InvalidConfig` unless the text is a principal."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise InvalidConfig(f"a principal is TYPE:NAME, as User:ann or {EVERYBODY}, not {text!r}")


#: Maximum number of cached decisions, and maximum length of a cached name. A client that sends ever new or long names
#: empties the cache but does not grow it.
_CACHE_SIZE, _CACHED_NAME_LENGTH = 20_000, 255


class ClientIdentity(NamedTuple):
    """The client that sends a request."""

    principal: str
    host: str


class AclIndex:
    """A set of bindings, indexed by the resources they cover."""

    def __init__(self, bindings: Iterable[Binding], *, allow_if_no_acl: bool = False) -> None:
        self.bindings = frozenset(bindings)
        self._allow_if_no_acl = allow_if_no_acl
        self._literal: defaultdict[tuple[Resource, str], list[Binding]] = defaultdict(list)
        self._prefixed: defaultdict[tuple[Resource, str], list[Binding]] = defaultdict(list)
        lengths: defaultdict[Resource, set[int]] = defaultdict(set)
        for each in self.bindings:
            if each.pattern is Pattern.PREFIXED:
                self._prefixed[each.resource, each.name].append(each)
                lengths[each.resource].add(len(each.name))
            else:
                self._literal[each.resource, each.name].append(each)
        #: Prefix lengths by type: a lookup tries each of them.
        self._lengths = {resource: sorted(found) for resource, found in lengths.items()}
        self._decisions: dict[tuple[ClientIdentity, Operation, Resource, str], bool] = {}

    def allows(self, client: ClientIdentity, operation: Operation, resource: Resource, name: str) -> bool:
        """Return whether a client may perform an operation on one resource."""
        if len(name) > _CACHED_NAME_LENGTH:
            return self._decide(client, operation, self._covering(resource, name))
        asked = client, operation, resource, name
        found = self._decisions.get(asked)
        if found is None:
            if len(self._decisions) >= _CACHE_SIZE:
                self._decisions.clear()
            found = self._decisions[asked] = self._decide(client, operation, self._covering(resource, name))
        return found

    def allows_some(self, client: ClientIdentity, operation: Operation, resource: Resource) -> bool:
        """Return whether the operation is allowed for at least one name of the type, existing or not."""
        if self._allow_if_no_acl and (resource, EVERY) not in self._literal:
            return True  # a name that no binding covers remains
        applicable = [each for each in self.bindings if each.resource is resource and _is_for(each, client)]
        denied = [each for each in applicable if _denies(each, operation)]
        return any(
            _allows(each, operation) and not any(_overrides(other, each) for other in denied) for each in applicable
        )

    def _covering(self, resource: Resource, name: str) -> Iterator[Binding]:
        yield from self._literal.get((resource, name), ())
        if name != EVERY:
            yield from self._literal.get((resource, EVERY), ())
        for length in self._lengths.get(resource, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((resource, name[:length]), ())

    def _decide(self, client: ClientIdentity, operation: Operation, covering: Iterable[Binding]) -> bool:
        is_allowed, has_acl = False, False
        for each in covering:
            has_acl = True
            if _is_for(each, client):
                if _denies(each, operation):
                    return False
                is_allowed = is_allowed or _allows(each, operation)
        return is_allowed if has_acl else self._allow_if_no_acl


def _is_for(binding: Binding, client: ClientIdentity) -> bool:
    return binding.principal in (client.principal, EVERYBODY) and binding.host in (client.host, EVERY)


def _allows(binding: Binding, operation: Operation) -> bool:
    return binding.permission is Permission.ALLOW and binding.operation in ALLOWING[operation]


def _denies(binding: Binding, operation: Operation) -> bool:
    return binding.permission is Permission.DENY and binding.operation in DENYING[operation]


def _overrides(denied: Binding, allowed: Binding) -> bool:
    """Return whether a DENY binding covers every resource that an ALLOW binding covers."""
    if denied.pattern is Pattern.LITERAL:
        return denied.name == EVERY or (allowed.pattern is Pattern.LITERAL and denied.name == allowed.name)
    if allowed.pattern is Pattern.LITERAL and allowed.name == EVERY:
        return False  # other names remain
    return covers(denied, allowed.name)
