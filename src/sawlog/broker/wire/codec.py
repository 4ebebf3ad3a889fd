"""Compile a table of `messages` and a version into one function that reads or writes the message.

`decoder` and `encoder` write Python source for all structs of the message and execute it: no call and no lookup in a
table is left per field, so that Produce and Fetch need no code of their own. Consecutive fields of fixed size are read
or written by one `struct` call.

```python
def decode(frame, p):                       # Heartbeat request, version 1, shortened
    ...
    n, = _0(frame, p)                       # length of group_id
    p += 2
    if n < 0:
        v1 = missing(n, False, 'group_id')
    else:
        e = p + n
        if e > end: raise too_long('group_id', n)
        v1 = str(frame[p:e], 'utf-8')
        p = e
    v2, = _1(frame, p)                      # generation_id
    p += 4
    ...
    v4 = {'group_id': v1, 'generation_id': v2, 'member_id': v3, 'group_instance_id': None}
```

**Reading.** A length is compared with the remaining bytes before anything is allocated, and the length of an array with
the minimum size of its elements. Time and memory are therefore bounded by the size of the frame. An element of two
bytes becomes a dict of hundreds, so all arrays of a request together are limited to `elements_max` elements.

**Writing.** A writer appends to a `Sink`. Records are not copied into it: the sink notes their position, and
`Sink.buffers` splits the written bytes there. A value that does not match the table (a key that no version has, text
for a number, null where it is not allowed) raises `Unencodable`: that is an error of the caller, not of the peer.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from struct import Struct, calcsize
from typing import Any, Final, TypeAlias

from ...errors import Malformed, Unencodable
from .schema import ARRAY, BYTES, RECORDS, STRING, STRUCT, Body, Field, Fields, Kind

Buffer: TypeAlias = bytes | bytearray | memoryview
Decoder: TypeAlias = Callable[[memoryview, int], Body]
Encoder: TypeAlias = Callable[["Sink", Body], None]

#: Exceptions of a frame that ends early or contains invalid text.
UNREADABLE: Final = (struct.error, IndexError, UnicodeDecodeError)
#: Exceptions of a value that has the wrong type or does not fit.
UNWRITABLE: Final = (struct.error, TypeError, AttributeError, ValueError)


def decoder(fields: Fields, version: int, *, flexible: bool, elements_max: int = sys.maxsize) -> Decoder:
    """Return a function that reads the message at a position. Bytes that follow the message are ignored."""
    source = _DecoderSource(version, flexible)
    source.line(f"end, left = len(frame), {elements_max}")
    with source.block("try:"):
        source.line(f"return {source.struct(fields)}")
    with source.block("except UNREADABLE as error:"):
        source.line('raise Malformed(f"the message ends too early or is not text: {error}") from error')
    decode: Decoder = source.compiled("decode(frame, p)")
    return decode


def encoder(fields: Fields, version: int, *, flexible: bool, what: str) -> Encoder:
    """Return a function that writes the message. `what` names the message in errors."""
    source = _EncoderSource(version, flexible)
    with source.block("try:"):
        source.struct(fields, "given", what)
    with source.block("except Unencodable:"):
        source.line("raise")
    with source.block("except UNWRITABLE as error:"):
        source.line(f"raise Unencodable({f'{what} version {version}: '!r} + str(error)) from error")
    encode: Encoder = source.compiled("encode(sink, given)")
    return encode


class _Source:
    """The body of a function, and the constants that it refers to."""

    def __init__(self, version: int, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._lines: list[str] = []
        self._depth = 1
        self._constants: dict[str, Any] = {}
        self._count = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def variable(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def constant(self, value: object) -> str:
        """Return a name for a value that has no literal."""
        name = f"_{len(self._constants)}"
        self._constants[name] = value
        return name

    def compiled(self, signature: str) -> Any:
        found = {**globals(), **self._constants}
        source = "\n".join((f"def {signature}:", *self._lines))
        exec(compile(source, "<compiled by sawlog.broker.wire.codec>", "exec"), found)
        return found[signature.partition("(")[0]]

    def _present(self, fields: Fields) -> tuple[list[tuple[bool, list[Field]]], list[Field]]:
        """Return the untagged fields of this version, in runs of fixed (True) or variable size, and the tagged ones."""
        present = [field for field in fields if field.exists_in(self._version)]
        untagged = (field for field in present if field.tag is None)
        runs = [(is_fixed, list(run)) for is_fixed, run in groupby(untagged, key=lambda field: bool(field.kind.code))]
        return runs, [field for field in present if field.tag is not None]


# --- reading


class _DecoderSource(_Source):
    """Reads from `frame`, which has `end` bytes, at `p`; `left` array elements may still be read."""

    def struct(self, fields: Fields) -> str:
        """Read a struct; return the variable that holds it."""
        values = {field.name: _default_literal(field) for field in fields}
        runs, tagged = self._present(fields)
        for is_fixed, run in runs:
            if not is_fixed:
                values.update({field.name: self._value(field) for field in run})
                continue
            numbers = Struct(">" + "".join(field.kind.code for field in run))
            names = [self.variable() for _ in run]
            self.line(f"{', '.join(names)}, = {self.constant(numbers.unpack_from)}(frame, p)")
            self.line(f"p += {numbers.size}")
            values.update(zip((field.name for field in run), names, strict=True))
        made = self.variable()
        self.line(f"{made} = {{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}}")
        if self._flexible:
            self._tags(tagged, made)
        return made

    def _value(self, field: Field) -> str:
        """Read a field of variable size or a tagged one; return its variable."""
        kind, is_nullable, made = field.kind, field.nullable_in(self._version), self.variable()
        if kind.code:
            self.line(f"{made}, = {self.constant(Struct('>' + kind.code).unpack_from)}(frame, p)")
            self.line(f"p += {calcsize('>' + kind.code)}")
        elif kind is not STRUCT:
            self._sized(kind, field, made, is_nullable)
        elif not is_nullable:
            return self.struct(_inner(field))
        else:
            self.line("n, p = frame[p], p + 1")
            with self.block("if n == 1:"):
                self.line(f"{made} = {self.struct(_inner(field))}")
            with self.block("elif n == 0xFF:"):
                self.line(f"{made} = None")
            with self.block("else:"):
                self.line(f"raise Malformed(f'{field.name} is neither null nor there: its marker is {{n}}')")
        return made

    def _sized(self, kind: Kind, field: Field, made: str, is_nullable: bool = False) -> None:
        """Read a length and its content: text, bytes, records or an array."""
        if self._flexible:
            self._uvarint()
            self.line("n -= 1")
        else:
            code = ">h" if kind is STRING else ">i"
            self.line(f"n, = {self.constant(Struct(code).unpack_from)}(frame, p)")
            self.line(f"p += {calcsize(code)}")
        with self.block("if n < 0:"):
            self.line(f"{made} = missing(n, {is_nullable}, {field.name!r})")
        with self.block("else:"):
            if kind is ARRAY:
                self._array(field, made)
                return
            self.line("e = p + n")
            self.line(f"if e > end: raise too_long({field.name!r}, n)")
            # Small bytes are kept for long (a member's metadata): a view would keep the whole frame.
            read = {STRING: "str(frame[p:e], 'utf-8')", BYTES: "bytes(frame[p:e])", RECORDS: "frame[p:e]"}[kind]
            self.line(f"{made} = {read}")
            self.line("p = e")

    def _array(self, field: Field, made: str) -> None:
        inner = field.inner
        if isinstance(inner, Kind):
            least = calcsize(">" + inner.code) if inner.code else 1 if self._flexible else 2
        else:
            least = _least(inner, self._version, self._flexible)
        self.line(f"if n * {least} > end - p: raise too_long({field.name!r}, n)")
        self.line("left -= n")
        self.line(f"if left < 0: raise too_many({field.name!r})")
        if isinstance(inner, Kind) and inner.code:
            self.line(f"e = p + n * {least}")
            self.line(f"{made} = [x for x, in {self.constant(Struct('>' + inner.code).iter_unpack)}(frame[p:e])]")
            self.line("p = e")
            return
        self.line(f"{made} = []")
        with self.block("for _ in range(n):"):
            if isinstance(inner, Kind):
                element = self.variable()
                self._sized(inner, field, element)
            else:
                element = self.struct(inner)
            self.line(f"{made}.append({element})")

    def _tags(self, tagged: list[Field], body: str) -> None:
        if not tagged:
            self.line("p = skip_tags(frame, p) if frame[p] else p + 1")
            return
        self._uvarint()
        with self.block("for _ in range(n):"):
            stop = self.variable()
            self.line("tag, p = uvarint(frame, p)")
            self.line("n, p = uvarint(frame, p)")
            self.line(f"{stop} = p + n")
            self.line(f"if {stop} > end: raise too_long('a tagged field', n)")
            for number, field in enumerate(tagged):
                with self.block(f"{'elif' if number else 'if'} tag == {field.tag}:"):
                    self.line(f"{body}[{field.name!r}] = {self._value(field)}")
                    self.line(f"if p != {stop}: raise Malformed('the content of {field.name} has another size')")
            self.line(f"p = {stop}")

    def _uvarint(self) -> None:
        self.line("n = frame[p]")
        with self.block("if n < 0x80:"):
            self.line("p += 1")
        with self.block("else:"):
            self.line("n, p = uvarint(frame, p)")


def _inner(field: Field) -> Fields:
    assert isinstance(field.inner, tuple)
    return field.inner


def _default_literal(field: Field) -> str:
    """Return source for the default of a field. Lists and dicts are new each time, because callers may change them."""
    if field.kind is ARRAY and field.default is not None:
        return "[]"
    if field.kind is STRUCT and field.default is not None:
        return f"{{{', '.join(f'{inner.name!r}: {_default_literal(inner)}' for inner in _inner(field))}}}"
    return repr(field.default)


def _least(fields: Fields, version: int, flexible: bool) -> int:
    """Return the minimum number of bytes of a struct."""
    least = 1 if flexible else 0
    for field in fields:
        if not field.exists_in(version) or field.tag is not None:
            continue
        if field.kind.code:
            least += calcsize(">" + field.kind.code)
        elif field.kind is STRUCT and not field.nullable_in(version):
            least += _least(_inner(field), version, flexible)
        else:
            least += 1 if flexible or field.kind is STRUCT else 2 if field.kind is STRING else 4
    assert least > 0, "an element without bytes: an array of them would have no bound"
    return least


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
            raise too_long("a tagged field", size)
    return position


def missing(length: int, is_nullable: bool, what: str) -> None:
    """Accept a negative length as null, or refuse it."""
    if length != -1:
        raise Malformed(f"{what} has the negative length {length}")
    if not is_nullable:
        raise Malformed(f"{what} is null, which this version does not allow")


def too_long(what: str, length: int) -> Malformed:
    """Return the error for a length beyond the end of the message."""
    return Malformed(f"{what} claims a length of {length}, which does not fit into the message")


def too_many(what: str) -> Malformed:
    """Return the error for more array elements than a request may have."""
    return Malformed(f"{what} has too many elements: the arrays of a request are limited in total")


# --- writing


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


class _EncoderSource(_Source):
    """Writes to `sink`."""

    def struct(self, fields: Fields, given: str, what: str) -> None:
        """Write the struct in the variable `given`."""
        defaults = {field.name: self._default(field) for field in fields}
        body, complete = self.variable(), self.constant(defaults)
        self.line(f"{body} = {{**{complete}, **{given}}}")
        self.line(f"if len({body}) != {len(defaults)}: raise unknown({what!r}, {given}, {complete})")
        runs, tagged = self._present(fields)
        for is_fixed, run in runs:
            if is_fixed:
                pack = self.constant(Struct(">" + "".join(field.kind.code for field in run)).pack)
                self.line(f"sink += {pack}({', '.join(f'{body}[{field.name!r}]' for field in run)})")
                continue
            for field in run:
                self._value(field, f"{body}[{field.name!r}]")
        if self._flexible:
            self._tags(tagged, body)

    def _default(self, field: Field) -> object:
        """Return the value of an omitted field: null only in versions that allow it."""
        if field.default is None and not field.nullable_in(self._version):
            return {} if field.kind is STRUCT else field.kind.zero
        return field.default

    def _value(self, field: Field, expression: str) -> None:
        """Write a field of variable size or a tagged one."""
        kind, is_nullable, value = field.kind, field.nullable_in(self._version), self.variable()
        self.line(f"{value} = {expression}")
        if kind.code:
            self.line(f"sink += {self.constant(Struct('>' + kind.code).pack)}({value})")
            return
        if kind is STRUCT and not is_nullable:
            self.struct(_inner(field), value, field.name)
            return
        with self.block(f"if {value} is None:"):
            null = "FF" if kind is STRUCT else "00" if self._flexible else "FFFF" if kind is STRING else "FFFFFFFF"
            refusal = f"raise Unencodable('{field.name} is None, which this version does not allow')"
            self.line(f"sink += {bytes.fromhex(null)!r}" if is_nullable else refusal)
        with self.block("else:"):
            if kind is STRUCT:
                self.line("sink.append(1)")
                self.struct(_inner(field), value, field.name)
            elif kind is ARRAY:
                self._array(field, value)
            else:
                self._scalar(kind, value)

    def _scalar(self, kind: Kind, value: str) -> None:
        """Write text, bytes or records."""
        if kind is RECORDS:
            self.line(f"b, n = records_of({value})")
            self._length(kind)
            self.line("if n: sink.splice(b, n)")
            return
        self.line(f"b = {value}.encode()" if kind is STRING else f"b = {value}")
        self.line("n = len(b)")
        self._length(kind)
        self.line("sink += b")

    def _array(self, field: Field, values: str) -> None:
        inner = field.inner
        self.line(f"n = len({values})")
        self._length(ARRAY)
        if isinstance(inner, Kind) and inner.code:
            self.line(f"sink += struct.pack('>' + n * {inner.code!r}, *{values})")
            return
        element = self.variable()
        with self.block(f"for {element} in {values}:"):
            if isinstance(inner, Kind):
                self._scalar(inner, element)
            else:
                self.struct(inner, element, field.name)

    def _length(self, kind: Kind) -> None:
        if self._flexible:
            with self.block("if n < 0x7F:"):
                self.line("sink.append(n + 1)")
            with self.block("else:"):
                self.line("sink += uvarint_bytes(n + 1)")
        else:
            self.line(f"sink += {self.constant(Struct('>h' if kind is STRING else '>i').pack)}(n)")

    def _tags(self, tagged: list[Field], body: str) -> None:
        """Write the tagged fields that differ from their default, by tag."""
        if not tagged:
            self.line("sink.append(0)")
            return
        written, outer, value = self.variable(), self.variable(), self.variable()
        self.line(f"{written} = []")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            default, content = self.constant(field.default), f"{body}[{field.name!r}]"
            self.line(f"{value} = {content}")
            with self.block(f"if {value} is not {default} and comparable({value}, {default}) != {default}:"):
                self.line(f"{outer}, sink = sink, Sink()")
                self._value(field, content)
                self.line(f"{written}.append(({field.tag}, sink))")
                self.line(f"sink = {outer}")
        self.line(f"sink += uvarint_bytes(len({written})) if {written} else b'\\0'")
        with self.block(f"for n, b in {written}:"):
            self.line("sink += uvarint_bytes(n)")
            self.line("sink += uvarint_bytes(len(b))")
            self.line("sink += b")


def comparable(value: Any, default: object) -> object:
    """Return the value of a tagged field in the form of its default."""
    if isinstance(default, dict):
        return {**default, **value}
    return tuple(value) if isinstance(default, tuple) and value is not None else value


def unknown(what: str, given: Body, defaults: Body) -> Unencodable:
    """Return the error for keys that no version has."""
    return Unencodable(f"{what} has no field {', '.join(sorted(given.keys() - defaults.keys()))}")


def uvarint_bytes(value: int) -> bytes:
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
