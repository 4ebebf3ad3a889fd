"""Notation of the tables in `messages`: the fields of a message, version by version.

```
Metadata 0-13, flexible 9+                      # compact lengths and tagged fields from version 9
  request
    topics []?1+ { name string?10+ }            # null is allowed from version 1
    allow_auto_topic_creation boolean 4+ = true
    include_cluster_authorized_operations boolean 8-10
  response
    brokers []
      node_id int32, host string, port int32
      rack string? 1+ = null
```

A field has a name, a type, the versions that have it (all unless given), a default, and a tag. `[]int32` is an array of
numbers. `[]` is an array of structs, whose fields follow in braces, or indented in the lines below; `struct` is a
single one. A question mark allows null. A line has one field, or several with commas between them.

A field has its place on the wire in the order of the table, except one with a tag: from its first version, tagged
fields follow the others of their struct, and are left out if they have their default.

Fields are named as Kafka names them, in snake_case. Without a default, a number is 0, a string empty, a list empty, a
uuid zero; also if it is nullable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias


class Key(IntEnum):
    """The API of a request: its first two bytes."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


#: A message or a part of it. Handlers know the type of each field; a union of all types would make them check each
#: time.
Body: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """The encoding of one value. `code` is its `struct` format if its size is fixed."""

    name: str
    code: str = ""
    zero: object = 0


BOOLEAN: Final = Kind("boolean", "?", zero=False)
INT8: Final = Kind("int8", "b")
INT16: Final = Kind("int16", "h")
UINT16: Final = Kind("uint16", "H")
INT32: Final = Kind("int32", "i")
INT64: Final = Kind("int64", "q")
FLOAT64: Final = Kind("float64", "d", zero=0.0)
UUID: Final = Kind("uuid", "16s", zero=bytes(16))
STRING: Final = Kind("string", zero="")
BYTES: Final = Kind("bytes", zero=b"")
RECORDS: Final = Kind("records", zero=b"")
ARRAY: Final = Kind("array", zero=())
STRUCT: Final = Kind("struct", zero={})

#: Value of a bit set of authorized operations that was not requested.
NOT_ASKED: Final = -(1 << 31)
#: The uuid of a topic that has none.
NO_ID: Final = bytes(16)
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field. Its position on the wire is its position in the table."""

    name: str
    kind: Kind
    #: First version that has it.
    since: int
    #: Last version that has it.
    until: int | None
    #: First version in which it may be null.
    nullable: int | None
    default: object
    tag: int | None
    #: Content of an array or a struct.
    inner: tuple[Field, ...] | Kind

    def __post_init__(self) -> None:
        # A mistake in a table fails at import.
        assert self.until is None or self.until >= self.since, f"{self.name} ends before it begins"
        assert self.default is not None or self.nullable is not None, f"{self.name} is null, but never may be"

    def exists_in(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
        return self.nullable is not None and version >= self.nullable


Fields: TypeAlias = Sequence[Field]


class Api:
    """One API: its key, its supported versions, and the tables of its request and response."""

    __slots__ = ("flexible_versions", "key", "name", "request", "response", "versions")

    def __init__(self, name: str, versions: range, flexible_from: int, request: Fields, response: Fields) -> None:
        self.key = _KEYS[name]
        #: Kafka's spelling, such as `FindCoordinator`.
        self.name = name
        self.versions = versions
        #: Versions with compact lengths and tagged fields.
        self.flexible_versions = range(max(flexible_from, versions.start), versions.stop)
        self.request = request
        self.response = response

    def flexible(self, version: int) -> bool:
        """Return whether this version has compact lengths and tagged fields."""
        return version in self.flexible_versions

    def __repr__(self) -> str:
        return f"Api({self.name}, versions {self.versions[0]} to {self.versions[-1]})"


# --- the notation


_KINDS: Final = {
    each.name: each
    for each in (BOOLEAN, INT8, INT16, UINT16, INT32, INT64, FLOAT64, UUID, STRING, BYTES, RECORDS, ARRAY, STRUCT)
}
_KEYS: Final = {"".join(word.capitalize() for word in key.name.split("_")): key for key in Key}
_API: Final = re.compile(r"(\w+) (\d+)(?:-(\d+))?(?:, flexible (\d+)\+)?\n  request\b(.*)\n  response\b(.*)", re.DOTALL)
_FIELD: Final = re.compile(
    r"(?P<name>\w+) (?P<array>\[\])?(?P<kind>\w*)(?:(?P<null>\?)(?:(?P<null_since>\d+)\+)?)?"
    r"(?: (?P<since>\d+)(?P<last>\+|-\d+)?)?(?: = (?P<default>-?\w+))?(?: tag (?P<tag>\d+))?"
)
_WORDS: Final = {"null": None, "true": True, "INT32_MAX": INT32_MAX, "INT64_MAX": INT64_MAX, "NOT_ASKED": NOT_ASKED}


def parse_apis(text: str) -> Iterator[Api]:
    """Parse the tables of several APIs."""
    for table in filter(None, map(str.strip, re.split(r"\n(?=\w)", re.sub(r" *#.*", "", text)))):
        found = _API.fullmatch(table)
        assert found is not None, f"not the table of an API: {table}"
        name, first, last, flexible_from, request, response = found.groups()
        versions = range(int(first), int(last or first) + 1)
        flexible = versions.stop if flexible_from is None else int(flexible_from)
        yield Api(name, versions, flexible, parse_fields(request), parse_fields(response))


def parse_fields(text: str) -> tuple[Field, ...]:
    tokens = re.findall(r"[{}]|[^{},\n]+", _braced(text))
    return _struct(iter([token.strip() for token in tokens if token.strip()]))


def _braced(text: str) -> str:
    """Put indented lines into braces."""
    made, indents = list[str](), [0]
    for line in filter(str.strip, text.splitlines()):
        indent = len(line) - len(line.lstrip())
        if made and indent > indents[-1]:
            made.append("{")
        while made and indent < indents[-1]:
            made.append("}")
            indents.pop()
        if indent != indents[-1]:
            indents.append(indent)
        made.append(line)
    return "\n".join(made)


def _struct(tokens: Iterator[str]) -> tuple[Field, ...]:
    """Parse the fields up to the end of the struct."""
    found: list[tuple[str, tuple[Field, ...]]] = []
    for token in tokens:
        if token == "}":
            break
        if token == "{":
            found[-1] = found[-1][0], _struct(tokens)
        else:
            found.append((token, ()))
    return tuple(_field(text, inner) for text, inner in found)


def _field(text: str, inner: tuple[Field, ...]) -> Field:
    found = _FIELD.fullmatch(text)
    assert found is not None, f"not a field: {text}"
    since, last = int(found["since"] or 0), found["last"]
    until = since if found["since"] and last is None else None if last in (None, "+") else int(last[1:])
    kind = ARRAY if found["array"] else _KINDS[found["kind"]]
    default = kind.zero
    if found["default"] is not None:
        default = _WORDS[found["default"]] if found["default"] in _WORDS else int(found["default"])
    elif kind is STRUCT:
        default = {field.name: field.default for field in inner}
    return Field(
        found["name"],
        kind,
        since,
        until,
        int(found["null_since"] or 0) if found["null"] else None,
        default,
        int(found["tag"]) if found["tag"] else None,
        _KINDS[found["kind"]] if found["array"] and found["kind"] else inner,
    )
