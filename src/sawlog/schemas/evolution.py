"""Schema evolution: can values of an earlier schema be read with a later one? By Avro's rules for schema resolution.

The earlier schema is the writer's, the later one the reader's:

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

from .types import Field, ListOf, MapOf, Scalar, Schema, Type

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
