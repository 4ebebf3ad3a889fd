"""Bytes to dicts: a table and a version are compiled into a function that reads the message.

A reader takes the frame and a position and returns the value and the position after it. Consecutive fields of fixed
size are read by one `struct` call.

A length is compared with the remaining bytes before anything is allocated, and the length of an array with the minimum
size of its elements. Time and memory are therefore bounded by the size of the frame. As an element of two bytes becomes
a dict of hundreds, all arrays of a request together are limited to `ELEMENTS_MAX` elements.

A reader may also raise `struct.error`, `IndexError` or `UnicodeDecodeError` where the frame ends or is not text;
`decoder` turns them into `Malformed`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from struct import Struct, calcsize
from struct import error as StructError
from typing import Any, Final, TypeAlias

from ...errors import Malformed
from .schema import ARRAY, BYTES, STRING, STRUCT, Body, Field, Fields, Kind

Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]
Length: TypeAlias = Callable[[memoryview, int], tuple[int, int]]
Decoder: TypeAlias = Callable[[memoryview, int], Body]

#: Exceptions that a reader may raise, apart from `Malformed`.
UNREADABLE: Final = (StructError, IndexError, UnicodeDecodeError)

#: Maximum number of array elements in a request, in total. A commit of 100,000 partitions has that many.
ELEMENTS_MAX: Final = 200_000


class _Allowance(threading.local):
    """Number of elements that may still be read in this thread."""

    left = sys.maxsize

    def take(self, count: int, name: str) -> None:
        self.left -= count
        if self.left < 0:
            raise Malformed(f"{name} has too many elements: a request may have {ELEMENTS_MAX:,} in all of its arrays")


_allowance: Final = _Allowance()

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


def decoder(fields: Fields, version: int, *, flexible: bool, elements_max: int = sys.maxsize) -> Decoder:
    """Return a function that reads the message at a position. Bytes that follow the message are ignored."""
    read = _struct(tuple(fields), version, flexible)

    def decode(frame: memoryview, position: int) -> Body:
        _allowance.left = elements_max
        try:
            body: Body = read(frame, position)[0]
        except UNREADABLE as error:
            raise Malformed(f"the message ends too early or is not text: {error}") from error
        return body

    return decode


def uvarint(frame: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits, and the position after it."""
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise Malformed("a number is longer than five bytes")


def skip_tags(frame: memoryview, position: int) -> int:
    """Return the position after tagged fields that are ignored."""
    count, position = uvarint(frame, position)
    for _ in range(count):
        _, position = uvarint(frame, position)
        size, position = uvarint(frame, position)
        position += size
        if position > len(frame):
            raise Malformed("a tagged field ends after the message")
    return position


# --- lengths: -1 is null -----------------------------------------------------------------------------------------


def _compact_length(frame: memoryview, position: int) -> tuple[int, int]:
    length = frame[position]
    if length < 0x80:
        return length - 1, position + 1
    length, position = uvarint(frame, position)
    return length - 1, position


def _int16_length(frame: memoryview, position: int) -> tuple[int, int]:
    return _INT16.unpack_from(frame, position)[0], position + 2


def _int32_length(frame: memoryview, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(frame, position)[0], position + 4


def _missing(length: int, nullable: bool, what: str) -> None:
    """Accept a negative length as null, or refuse it."""
    if length != -1:
        raise Malformed(f"{what} has the negative length {length}")
    if not nullable:
        raise Malformed(f"{what} is null, which this version does not allow")


# --- values ------------------------------------------------------------------------------------------------------


def _sized(kind: Kind, length_of: Length, nullable: bool, name: str) -> Reader:
    """Return a reader of text, bytes or records."""
    as_text, as_copy = kind is STRING, kind is BYTES

    def read(frame: memoryview, position: int) -> tuple[str | bytes | memoryview | None, int]:
        length, position = length_of(frame, position)
        if length < 0:
            _missing(length, nullable, name)
            return None, position
        end = position + length
        if end > len(frame):
            raise Malformed(f"{name} of {length} bytes ends after the message")
        if as_text:
            return str(frame[position:end], "utf-8"), end
        # Small bytes are kept for long (a member's metadata): a view would keep the whole frame.
        return (bytes(frame[position:end]) if as_copy else frame[position:end]), end

    return read


def _array(length_of: Length, nullable: bool, name: str, element: Reader, element_bytes_min: int) -> Reader:
    def read(frame: memoryview, position: int) -> tuple[list[object] | None, int]:
        length, position = length_of(frame, position)
        if length < 0:
            _missing(length, nullable, name)
            return None, position
        if length * element_bytes_min > len(frame) - position:
            raise Malformed(f"{name} claims {length} elements, which do not fit into the message")
        _allowance.take(length, name)
        values = []
        for _ in range(length):
            value, position = element(frame, position)
            values.append(value)
        return values, position

    return read


def _fixed_array(length_of: Length, nullable: bool, name: str, kind: Kind) -> Reader:
    """Return a reader of an array of numbers or uuids: one `struct` call for all."""
    size = calcsize(">" + kind.code)
    one = Struct(">" + kind.code)

    def read(frame: memoryview, position: int) -> tuple[list[object] | None, int]:
        length, position = length_of(frame, position)
        if length < 0:
            _missing(length, nullable, name)
            return None, position
        end = position + length * size
        if end > len(frame):
            raise Malformed(f"{name} claims {length} elements, which do not fit into the message")
        _allowance.take(length, name)
        return [value for (value,) in one.iter_unpack(frame[position:end])], end

    return read


def _nullable_struct(name: str, read: Reader) -> Reader:
    def read_nullable(frame: memoryview, position: int) -> tuple[Body | None, int]:
        marker = frame[position]
        if marker == 0xFF:
            return None, position + 1
        if marker != 1:
            raise Malformed(f"{name} is neither null nor there: its marker is {marker}")
        return read(frame, position + 1)

    return read_nullable


def _value(field: Field, version: int, flexible: bool) -> Reader:
    """Return the reader of a field of variable size, or of one that is tagged."""
    kind, nullable, name = field.kind, field.nullable_in(version), field.name
    if kind.code:
        fixed = Struct(">" + kind.code)
        return lambda frame, position: (fixed.unpack_from(frame, position)[0], position + fixed.size)
    if kind is STRUCT:
        assert isinstance(field.inner, tuple)
        inner = _struct(field.inner, version, flexible)
        return _nullable_struct(name, inner) if nullable else inner
    if flexible:
        length_of = _compact_length
    else:
        length_of = _int16_length if kind is STRING else _int32_length
    if kind is not ARRAY:
        return _sized(kind, length_of, nullable, name)
    if isinstance(field.inner, tuple):
        return _array(
            length_of, nullable, name, _struct(field.inner, version, flexible), _least(field.inner, version, flexible)
        )
    if field.inner.code:
        return _fixed_array(length_of, nullable, name, field.inner)
    element_length = _compact_length if flexible else _int16_length if field.inner is STRING else _int32_length
    return _array(length_of, nullable, name, _sized(field.inner, element_length, False, name), 1 if flexible else 2)


def _least(fields: Sequence[Field], version: int, flexible: bool) -> int:
    """Return the least number of bytes that a struct takes: all that may be empty is."""
    least = 1 if flexible else 0
    for field in fields:
        if not field.exists_in(version) or field.tag is not None:
            continue
        if field.kind.code:
            least += calcsize(">" + field.kind.code)
        elif field.kind is STRUCT and not field.nullable_in(version):
            assert isinstance(field.inner, tuple)
            least += _least(field.inner, version, flexible)
        else:
            least += 1 if flexible or field.kind is STRUCT else 2 if field.kind is STRING else 4
    assert least > 0, "an element without bytes: an array of them would have no bound"
    return least


# --- structs -----------------------------------------------------------------------------------------------------


def _struct(fields: tuple[Field, ...], version: int, flexible: bool) -> Reader:
    present = [field for field in fields if field.exists_in(version)]
    inline = [field for field in present if field.tag is None]
    elsewhere = [field for field in fields if field not in inline]
    simple = {field.name: field.default for field in elsewhere if _immutable(field)}
    fresh = [(field.name, _maker(field)) for field in elsewhere if not _immutable(field)]
    steps = _steps(inline, version, flexible)
    tagged = {field.tag: (field.name, _value(field, version, flexible)) for field in present if field.tag is not None}

    def read(frame: memoryview, position: int) -> tuple[Body, int]:
        body: Body = simple.copy()
        for name, make in fresh:
            body[name] = make()
        for names, step, size in steps:
            if size:
                body.update(zip(names, step(frame, position), strict=True))
                position += size
            else:
                body[names], position = step(frame, position)
        if flexible:
            count, position = _compact_count(frame, position)
            if count:
                position = _read_tags(frame, position, count, tagged, body)
        return body, position

    return read


def _steps(fields: Sequence[Field], version: int, flexible: bool) -> list[tuple[Any, Callable[..., Any], int]]:
    """Return what to read in which order: (names, unpack, size) for fields of fixed size, else (name, reader, 0)."""
    steps: list[tuple[Any, Callable[..., Any], int]] = []
    run: list[Field] = []

    def end_run() -> None:
        if run:
            fixed = Struct(">" + "".join(field.kind.code for field in run))
            steps.append((tuple(field.name for field in run), fixed.unpack_from, fixed.size))
            run.clear()

    for field in fields:
        if field.kind.code:
            run.append(field)
        else:
            end_run()
            steps.append((field.name, _value(field, version, flexible), 0))
    end_run()
    return steps


def _compact_count(frame: memoryview, position: int) -> tuple[int, int]:
    count = frame[position]
    return (count, position + 1) if count < 0x80 else uvarint(frame, position)


def _read_tags(frame: memoryview, position: int, count: int, tagged: dict[int, tuple[str, Reader]], body: Body) -> int:
    for _ in range(count):
        tag, position = uvarint(frame, position)
        size, position = uvarint(frame, position)
        end = position + size
        if end > len(frame):
            raise Malformed(f"the field with tag {tag} ends after the message")
        if tag in tagged:
            name, read = tagged[tag]
            body[name], position = read(frame, position)
            if position != end:
                raise Malformed(f"{name} has {size} bytes, but its content ends elsewhere")
        position = end
    return position


def _immutable(field: Field) -> bool:
    return field.default is None or field.kind not in (ARRAY, STRUCT)


def _maker(field: Field) -> Callable[[], object]:
    """Return a function that makes the default of a field which callers may change: a list or a dict."""
    if field.kind is ARRAY:
        return list
    assert isinstance(field.inner, tuple)
    makers = [
        (inner.name, (lambda value=inner.default: value) if _immutable(inner) else _maker(inner))
        for inner in field.inner
    ]
    return lambda: {name: make() for name, make in makers}
