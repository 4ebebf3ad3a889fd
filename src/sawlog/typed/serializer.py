"""What turns objects into the bytes of a record and back: `Serializer`, with two methods. Write your own:

```python
class Point:
    def encode(self, value: complex) -> bytes:
        return struct.pack(">dd", value.real, value.imag)

    def decode(self, data: bytes) -> complex:
        return complex(*struct.unpack(">dd", data))
```

Whatever exception `decode` raises means that the bytes do not parse, whatever `encode` raises that the object cannot be
stored.

Threads: a view calls its serializers from every thread that uses it.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeAlias, TypeVar

from ..errors import InvalidRecordType

T = TypeVar("T")
M = TypeVar("M")

#: The headers of a record.
RawHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Serializer(Protocol[T]):
    """Turns values of one type into bytes and back: `encode` and `decode` are all that it needs."""

    def encode(self, value: T, /) -> bytes | None:
        """The bytes of a value. None stores a record without a value: a tombstone."""

    def decode(self, data: bytes, /) -> T:
        """The value of bytes; any exception if they are not one."""


class MetadataSerializer(Protocol[M]):
    """Turns metadata into the headers of a record and back."""

    def encode(self, metadata: M, /) -> RawHeaders:
        """The headers of metadata."""

    def decode(self, headers: RawHeaders, /) -> M:
        """The metadata of headers; any exception if they are none."""

    def empty(self) -> M:
        """What a record has that was appended without metadata."""


class Bytes:
    """Bytes, unchanged: for keys or values that have no other type."""

    def encode(self, value: bytes, /) -> bytes:
        """The same."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"expected bytes, not {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes, /) -> bytes:
        """The same."""
        return data

    def __repr__(self) -> str:
        return "Bytes()"


class Utf8:
    """Text, as UTF-8."""

    def encode(self, value: str, /) -> bytes:
        """The text in UTF-8."""
        if not isinstance(value, str):
            raise InvalidRecordType(f"expected a str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        """The text; `UnicodeDecodeError` if it is not UTF-8."""
        return data.decode()

    def __repr__(self) -> str:
        return "Utf8()"


class Nullable(Generic[T]):
    """Values that may be missing: None is a record without a value, which deletes its key in a compacted topic.

    `Nullable(JSON(Order))` is a serializer of `Order | None`. Without it, such a record is an error.
    """

    def __init__(self, serializer: Serializer[T]) -> None:
        self._serializer = serializer

    def encode(self, value: T | None, /) -> bytes | None:
        """The bytes of a value, or None."""
        return None if value is None else self._serializer.encode(value)

    def decode(self, data: bytes | None, /) -> T | None:
        """The value of bytes, or None."""
        return None if data is None else self._serializer.decode(data)

    def __repr__(self) -> str:
        return f"Nullable({self._serializer!r})"
