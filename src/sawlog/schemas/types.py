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
#: How a date or a timestamp is written in JSON.
Notation = Literal["text", "days", "ms", "us"]


class _Missing:
    """There is no default."""

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
    #: What a reader uses for a symbol that it does not know.
    default_symbol: str | None = None

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})" if self.kind == "decimal" else self.kind


@dataclass(frozen=True, slots=True)
class ListOf:
    """Values of one type."""

    element: Type
    nullable: bool = True

    def __str__(self) -> str:
        return f"list of {self.element}"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Strings to values of one type."""

    value: Type
    nullable: bool = True

    def __str__(self) -> str:
        return f"map of {self.value}"


@dataclass(frozen=True, slots=True)
class Field:
    """A name and what it stands for."""

    name: str
    type: Type
    nullable: bool = True
    default: Any = MISSING
    #: Names that it had before.
    aliases: tuple[str, ...] = ()

    @property
    def has_default(self) -> bool:
        """Whether a value may lack it although it is not null."""
        return self.default is not MISSING


@dataclass(frozen=True, slots=True)
class Schema:
    """Fields in order: a whole schema, or a struct inside of one."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return "struct"

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def field(self, name: str) -> Field | None:
        """The field of that name."""
        return next((each for each in self.fields if each.name == name), None)

    @property
    def names(self) -> list[str]:
        """The names of all fields."""
        return [each.name for each in self.fields]


Type = Scalar | ListOf | MapOf | Schema
