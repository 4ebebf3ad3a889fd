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

`incompatibilities` says whether values of an earlier schema can be read with a later one, by Avro's rules for schema
resolution. The earlier schema is the writer's, the later one the reader's:

    a new field                   needs a default; without one it must be nullable in DDL and JSON Schema, where a
                                  missing field is null
    a removed field               is ignored
    a renamed field               is the same one if the later schema lists the earlier name as an alias
    a nullable field              stays nullable
    int                           can become long, float, double; long: float, double; float: double
    string and bytes              can become each other
    an enum                       keeps its symbols, or has a default symbol; it can become a string
    a decimal                     keeps its scale and does not get narrower
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
        return next((each for each in self.fields if each.name == name), None)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.fields]


Type = Scalar | ListOf | MapOf | Schema


_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
    "enum": ("string",),
}


def incompatibilities(earlier: Schema, later: Schema, where: str = "") -> Iterator[str]:
    """Yield the reasons why values of `earlier` cannot be read with `later`; none if they can."""
    for field in later:
        path = f"{where}{field.name}"
        written = earlier.field(field.name) or next(filter(None, map(earlier.field, field.aliases)), None)
        if written is None:
            if not field.has_default and not field.nullable:
                yield f"the new field {path!r} has no default, and earlier values do not have it"
            continue
        yield from _of_field(written, field, path)


def _of_field(written: Field, read: Field, path: str) -> Iterator[str]:
    if written.nullable and not read.nullable:
        yield f"the field {path!r} can no longer be null, but earlier values may be"
    yield from _of_type(written.type, read.type, path)


def _of_type(written: Type, read: Type, path: str) -> Iterator[str]:
    if isinstance(written, Schema) and isinstance(read, Schema):
        yield from incompatibilities(written, read, f"{path}.")
    elif isinstance(written, ListOf) and isinstance(read, ListOf):
        yield from _of_field(
            Field(path, written.element, written.nullable), Field(path, read.element, read.nullable), path
        )
    elif isinstance(written, MapOf) and isinstance(read, MapOf):
        yield from _of_field(Field(path, written.value, written.nullable), Field(path, read.value, read.nullable), path)
    elif isinstance(written, Scalar) and isinstance(read, Scalar):
        yield from _of_scalar(written, read, path)
    else:
        yield f"the field {path!r} was a {written} and cannot become a {read}"


def _of_scalar(written: Scalar, read: Scalar, path: str) -> Iterator[str]:
    if written.kind != read.kind:
        if read.kind not in _PROMOTIONS.get(written.kind, ()):
            yield f"the field {path!r} was {written} and cannot become {read}"
        return
    if written.kind == "enum" and read.default_symbol is None:
        gone = [each for each in written.symbols if each not in read.symbols]
        if gone:
            yield f"the enum {path!r} no longer has {', '.join(gone)}, which earlier values may be"
    if written.kind == "decimal" and (read.scale != written.scale or read.precision < written.precision):
        yield f"the field {path!r} was {written} and cannot become {read}: its scale stays, its precision may grow"
    if written.notation != read.notation:
        yield f"the field {path!r} was written as {written.notation} and cannot be read as {read.notation}"
