"""Dicts to bytes: a table and a version are compiled into a function that writes the message.

A writer appends to a `Sink`. Records are not copied into it: the sink notes their position, and `Sink.buffers` splits
the written bytes there.

A value that does not match the table (a key that no version has, text for a number, null where it is not allowed)
raises `Unencodable`: that is an error of the caller, not of the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias

from ...errors import Unencodable
from .schema import ARRAY, RECORDS, STRING, STRUCT, Body, Field, Fields, Kind

Buffer: TypeAlias = bytes | bytearray | memoryview
Writer: TypeAlias = Callable[["Sink", Any], None]
PutLength: TypeAlias = Callable[["Sink", int], None]
Encoder: TypeAlias = Callable[["Sink", Body], None]

#: Exceptions that a writer may raise, apart from `Unencodable`, if a value has the wrong type or does not fit.
UNWRITABLE: Final = (StructError, TypeError, AttributeError, ValueError)

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


class Sink(bytearray):
    """The bytes written so far, and what belongs between them."""

    __slots__ = ("inserted_bytes", "inserts")

    def __init__(self, start: bytes = b"") -> None:
        super().__init__(start)
        self.inserts: list[tuple[int, Sequence[Buffer]]] = []
        self.inserted_bytes = 0

    def splice(self, buffers: Sequence[Buffer], size: int) -> None:
        """Put buffers here without copying them."""
        self.inserts.append((len(self), buffers))
        self.inserted_bytes += size

    def buffers(self) -> list[Buffer]:
        """Return everything in order."""
        if not self.inserts:
            return [self]
        whole, parts, position = memoryview(self), list[Buffer](), 0
        for at, buffers in self.inserts:
            if at > position:
                parts.append(whole[position:at])
            parts.extend(buffers)
            position = at
        if position < len(self):
            parts.append(whole[position:])
        return parts


def encoder(fields: Fields, version: int, *, flexible: bool, what: str) -> Encoder:
    """Return a function that writes the message."""
    write = _struct(tuple(fields), version, flexible, what)

    def encode(sink: Sink, body: Body) -> None:
        try:
            write(sink, body)
        except UNWRITABLE as error:
            if isinstance(error, Unencodable):
                raise
            raise Unencodable(f"{what} version {version}: {error}") from error

    return encode


def uvarint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def records_of(value: Any) -> tuple[Sequence[Buffer], int]:
    """Return the buffers of a `records` field, given as one or as several, and their size."""
    if isinstance(value, bytes | bytearray):
        return (value,), len(value)
    if isinstance(value, memoryview):
        return (value,), value.nbytes
    return value, sum(len(part) if not isinstance(part, memoryview) else part.nbytes for part in value)


# --- lengths: -1 is null -----------------------------------------------------------------------------------------


def put_compact_length(sink: Sink, length: int) -> None:
    if length < 0x7F:
        sink.append(length + 1)
    else:
        sink += uvarint(length + 1)


def put_int16_length(sink: Sink, length: int) -> None:
    sink += _INT16.pack(length)


def put_int32_length(sink: Sink, length: int) -> None:
    sink += _INT32.pack(length)


# --- values ------------------------------------------------------------------------------------------------------


def _nullable(write: Writer, put_length: PutLength, nullable: bool, name: str) -> Writer:
    def write_or_null(sink: Sink, value: Any) -> None:
        if value is not None:
            write(sink, value)
        elif nullable:
            put_length(sink, -1)
        else:
            raise Unencodable(f"{name} is None, which this version does not allow")

    return write_or_null


def _text(put_length: PutLength) -> Writer:
    def write(sink: Sink, value: str) -> None:
        data = value.encode()
        put_length(sink, len(data))
        sink += data

    return write


def _bytes(put_length: PutLength) -> Writer:
    def write(sink: Sink, value: Buffer) -> None:
        put_length(sink, len(value))
        sink += value

    return write


def _records(put_length: PutLength) -> Writer:
    def write(sink: Sink, value: Buffer | Sequence[Buffer]) -> None:
        buffers, size = records_of(value)
        put_length(sink, size)
        if size:
            sink.splice(buffers, size)

    return write


def _array(put_length: PutLength, element: Writer) -> Writer:
    def write(sink: Sink, values: Sequence[Any]) -> None:
        put_length(sink, len(values))
        for value in values:
            element(sink, value)

    return write


def _fixed_array(put_length: PutLength, kind: Kind) -> Writer:
    def write(sink: Sink, values: Sequence[Any]) -> None:
        put_length(sink, len(values))
        if values:
            sink += Struct(f">{kind.code * len(values)}").pack(*values)

    return write


def _put_struct_marker(sink: Sink, _null: int) -> None:
    sink.append(0xFF)


def _marked(write: Writer) -> Writer:
    def write_marked(sink: Sink, value: Body) -> None:
        sink.append(1)
        write(sink, value)

    return write_marked


def value_writer(field: Field, version: int, *, flexible: bool) -> Writer:
    """Return the writer of a field of variable size, or of one that is tagged."""
    kind, nullable, name = field.kind, field.nullable_in(version), field.name
    if kind.code:
        fixed = Struct(">" + kind.code)

        def write_fixed(sink: Sink, value: Any) -> None:
            sink += fixed.pack(value)

        return write_fixed
    if kind is STRUCT:
        assert isinstance(field.inner, tuple)
        inner = _struct(field.inner, version, flexible, name)
        return _nullable(_marked(inner), _put_struct_marker, True, name) if nullable else inner
    put_length = _length_for(kind, flexible)
    return _nullable(_content(field, put_length, version, flexible), put_length, nullable, name)


def _length_for(kind: Kind, flexible: bool) -> PutLength:
    if flexible:
        return put_compact_length
    return put_int16_length if kind is STRING else put_int32_length


def _content(field: Field, put_length: PutLength, version: int, flexible: bool) -> Writer:
    if field.kind is not ARRAY:
        return _scalar(field.kind, put_length)
    if isinstance(field.inner, tuple):
        return _array(put_length, _struct(field.inner, version, flexible, field.name))
    if field.inner.code:
        return _fixed_array(put_length, field.inner)
    return _array(put_length, _scalar(field.inner, _length_for(field.inner, flexible)))


def _scalar(kind: Kind, put_length: PutLength) -> Writer:
    if kind is STRING:
        return _text(put_length)
    return _records(put_length) if kind is RECORDS else _bytes(put_length)


# --- structs -----------------------------------------------------------------------------------------------------


def defaults_of(fields: Sequence[Field], version: int) -> Body:
    """Return the defaults of a struct's fields."""
    return {field.name: _default(field, version) for field in fields}


def unknown(what: str, given: Body, defaults: Body) -> Unencodable:
    """Return the error for keys that no version has."""
    return Unencodable(f"{what} has no field {', '.join(sorted(given.keys() - defaults.keys()))}")


def _struct(fields: tuple[Field, ...], version: int, flexible: bool, what: str) -> Writer:
    defaults = defaults_of(fields, version)
    count = len(defaults)
    steps = _steps([field for field in fields if field.exists_in(version) and field.tag is None], version, flexible)
    put_tags = tags_writer(fields, version) if flexible else None

    def write(sink: Sink, given: Body) -> None:
        body = {**defaults, **given}
        if len(body) != count:
            raise unknown(what, given, defaults)
        for pick, step, fixed in steps:
            if fixed:
                sink += step(*pick(body))
            else:
                step(sink, pick(body))
        if put_tags is not None:
            put_tags(sink, body)

    return write


def tags_writer(fields: Sequence[Field], version: int) -> Callable[[Sink, Body], None]:
    """Return a function that writes the tagged fields of a struct that differ from their default."""
    tagged = sorted((field for field in fields if field.exists_in(version) and field.tag is not None), key=_tag)
    known = [
        (_tag(field), field.name, _normaliser(field), field.default, value_writer(field, version, flexible=True))
        for field in tagged
    ]

    def write(sink: Sink, body: Body) -> None:
        given = [
            (tag, put, value)
            for tag, name, normal, default, put in known
            if body[name] is not default and (value := normal(body[name])) != default
        ]
        sink += uvarint(len(given))
        for tag, put, value in given:
            content = Sink()
            put(content, value)
            sink += uvarint(tag)
            sink += uvarint(len(content))
            sink += content

    def write_none(sink: Sink, _body: Body) -> None:
        sink.append(0)

    return write if known else write_none


def _tag(field: Field) -> int:
    assert field.tag is not None
    return field.tag


def _steps(fields: Sequence[Field], version: int, flexible: bool) -> list[tuple[Any, Any, bool]]:
    """Return what to write in which order: (values, pack, True) if of fixed size, else (value, writer, False)."""
    steps: list[tuple[Any, Any, bool]] = []
    run: list[Field] = []

    def end_run() -> None:
        if run:
            names = [field.name for field in run]
            pick = itemgetter(*names) if len(names) > 1 else _single(names[0])
            steps.append((pick, Struct(">" + "".join(field.kind.code for field in run)).pack, True))
            run.clear()

    for field in fields:
        if field.kind.code:
            run.append(field)
        else:
            end_run()
            steps.append((itemgetter(field.name), value_writer(field, version, flexible=flexible), False))
    end_run()
    return steps


def _single(name: str) -> Callable[[Body], tuple[Any]]:
    return lambda body: (body[name],)


def _default(field: Field, version: int) -> Any:
    """Return the value of an omitted field: null only in versions that allow it."""
    if field.default is None and not field.nullable_in(version):
        return {} if field.kind is STRUCT else field.kind.zero
    return field.default


def _normaliser(field: Field) -> Callable[[Any], Any]:
    """Return a function that makes a tagged value comparable with the field's default."""
    if field.kind is STRUCT and isinstance(field.default, dict):
        default: dict[str, Any] = field.default
        return lambda value: {**default, **value}
    if field.kind is ARRAY:
        return lambda value: value if value is None else tuple(value)
    return lambda value: value
