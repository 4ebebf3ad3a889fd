"""`Schema`: the fields of a value, each with a type, whether it may be null, and a default.

boolean                      true, false
int, long                    whole numbers of 32 and 64 bits
float, double                numbers of 32 and 64 bits
string, bytes                text; bytes as text, each character one byte
enum                         text, one of its symbols
decimal(precision, scale)    a number, or text
date                         text as 2026-11-01, or (as Avro writes it) the number of days since 1970
timestamp                    text as 2026-11-01T08:30:00Z, or (as Avro writes it) milli- or microseconds since 1970
struct, list, map            of these; the keys of a map are strings
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

ScalarKind = Literal[
    "boolean", "int", "long", "float", "double", "string", "bytes", "enum", "decimal", "date", "timestamp"
]
#: JSON notation of a date or a timestamp.
Notation = Literal["text", "days", "ms", "us"]


class _Missing:
    """Marker for a field without a default."""

    def __repr__(self) -> str:
        return "no default"


MISSING: Any = _Missing()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts."""

    kind: ScalarKind
    precision: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    notation: Notation = "text"
    #: The symbol that a reader substitutes for an unknown one.
    default_symbol: str | None = None

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})" if self.kind == "decimal" else self.kind


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one type."""

    element: Type
    nullable: bool = True

    def __str__(self) -> str:
        return f"list of {self.element}"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from strings to values of one type."""

    value: Type
    nullable: bool = True

    def __str__(self) -> str:
        return f"map of {self.value}"


@dataclass(frozen=True, slots=True)
class Field:
    """A named field: its type, nullability and default."""

    name: str
    type: Type
    nullable: bool = True
    default: Any = MISSING
    #: Former names.
    aliases: tuple[str, ...] = ()

    @property
    def has_default(self) -> bool:
        """The field may be missing from a value, even if it is not nullable."""
        return self.default is not MISSING


@dataclass(frozen=True, slots=True)
class Schema:
    """Fields in order: a whole schema, or a struct inside one."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return "struct"

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def field(self, name: str) -> Field | None:
        """Return the field of that name, or None."""
        return next((each for each in self.fields if each.name == name), None)

    @property
    def names(self) -> list[str]:
        """Names of all fields."""
        return [each.name for each in self.fields]


Type = Scalar | ListOf | MapOf | Schema
