"""Notation of the tables in `messages/`: the fields of a message, version by version.

```python
METADATA = Api(
    Key.METADATA,
    versions=(0, 13),                  # both ends included
    flexible_from=9,                   # compact lengths and tagged fields from this version
    request=[
        array("topics", nullable=1).of(                # null is allowed from version 1
            uuid("topic_id", since=10),                # not in versions 0 to 9
            string("name", nullable=10),
        ),
        boolean("allow_auto_topic_creation", since=4, default=True),
        boolean("include_cluster_authorized_operations", since=8, until=10),    # 10 is the last that has it
    ],
    response=[...],
)
```

A field has its place on the wire in the order of the table, except one with a `tag`: from `since`, tagged fields follow
the others of their struct, and are left out if they have their default.

Fields are named as Kafka names them, in snake_case. Without `default`, a number is 0, a string empty, a list empty, a
uuid zero; also if it is nullable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from .errors import Key

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

#: `nullable=ALWAYS`: in every version that has the field.
ALWAYS: Final = 0
#: Value of a bit set of authorized operations that was not requested.
NOT_ASKED: Final = -(1 << 31)
#: The uuid of a topic that has none.
NO_ID: Final = bytes(16)
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

_ZERO: Final = object()


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
    inner: tuple[Field, ...] | Kind = ()

    def __post_init__(self) -> None:
        # A mistake in a table fails at import.
        assert self.until is None or self.until >= self.since, f"{self.name} ends before it begins"
        assert self.default is not None or self.nullable is not None, f"{self.name} is null, but never may be"

    def of(self, *inner: Field | Kind) -> Field:
        """Return this array or struct with its content: fields, or the kind of an array's elements."""
        assert self.kind in (ARRAY, STRUCT), f"{self.name} is a {self.kind.name}, which consists of nothing else"
        if isinstance(inner[0], Kind):
            assert self.kind is ARRAY
            assert len(inner) == 1
            return replace(self, inner=inner[0])
        fields = tuple(field for field in inner if isinstance(field, Field))
        assert len(fields) == len(inner)
        if self.kind is STRUCT and self.default == {}:
            return replace(self, inner=fields, default={field.name: field.default for field in fields})
        return replace(self, inner=fields)

    def exists_in(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
        return self.nullable is not None and version >= self.nullable


Fields: TypeAlias = Sequence[Field]


def _field(
    kind: Kind,
    name: str,
    *,
    since: int = 0,
    until: int | None = None,
    nullable: int | None = None,
    default: object = _ZERO,
    tag: int | None = None,
) -> Field:
    return Field(name, kind, since, until, nullable, kind.zero if default is _ZERO else default, tag)


boolean = partial(_field, BOOLEAN)
int8 = partial(_field, INT8)
int16 = partial(_field, INT16)
uint16 = partial(_field, UINT16)
int32 = partial(_field, INT32)
int64 = partial(_field, INT64)
float64 = partial(_field, FLOAT64)
uuid = partial(_field, UUID)
string = partial(_field, STRING)
binary = partial(_field, BYTES)
records = partial(_field, RECORDS)
array = partial(_field, ARRAY)
struct = partial(_field, STRUCT)


class Api:
    """One API: its key, its supported versions, and the tables of its request and response."""

    __slots__ = ("flexible_versions", "key", "name", "request", "response", "versions")

    def __init__(
        self, key: Key, *, versions: tuple[int, int], flexible_from: int | None, request: Fields, response: Fields
    ) -> None:
        self.key = key
        #: Kafka's spelling, such as `FindCoordinator`.
        self.name = "".join(word.capitalize() for word in key.name.split("_"))
        self.versions = range(versions[0], versions[1] + 1)
        #: Versions with compact lengths and tagged fields.
        first = self.versions.stop if flexible_from is None else max(flexible_from, self.versions.start)
        self.flexible_versions = range(first, self.versions.stop)
        self.request = tuple(request)
        self.response = tuple(response)

    def flexible(self, version: int) -> bool:
        """Return whether this version has compact lengths and tagged fields."""
        return version in self.flexible_versions

    def __repr__(self) -> str:
        return f"Api({self.name}, versions {self.versions[0]} to {self.versions[-1]})"
