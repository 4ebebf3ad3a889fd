"""Serializers: convert objects to the bytes of a record and back. A serializer has two methods; write your own:

```python
class Point:
    def encode(self, value: complex) -> bytes:
        return struct.pack(">dd", value.real, value.imag)

    def decode(self, data: bytes) -> complex:
        return complex(*struct.unpack(">dd", data))
```

Any exception from `decode` means that the bytes do not parse, any exception from `encode` that the object cannot be
stored. A view calls its serializers from every thread that uses it.

`JSON` and `ArrowRows` serialize values: JSON text of a class or of anything `json.dumps` takes, and rows of a fixed
schema as an Arrow IPC stream. `Headers` stores metadata as headers: one field is one header, text as UTF-8, everything
else as JSON. So other programs, and Kafka clients, read all of them without knowing the class.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, overload

from ..batch.inputs import SchemaInput
from ..batch.text import parse_json
from ..errors import InvalidConfig, InvalidRecordType
from .json_types import model_of, parser_of

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
M = TypeVar("M")

#: The headers of a record.
RawHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Serializer(Protocol[T]):
    """Converts values of one type to bytes and back. Implement `encode` and `decode`."""

    def encode(self, value: T, /) -> bytes | None:
        """Return the bytes of a value. None stores a record without a value: a tombstone."""

    def decode(self, data: bytes, /) -> T:
        """Return the value. Raises any exception if the bytes do not parse."""


class MetadataSerializer(Protocol[M]):
    """Converts metadata to the headers of a record and back."""

    def encode(self, metadata: M, /) -> RawHeaders:
        """Return the headers."""

    def decode(self, headers: RawHeaders, /) -> M:
        """Return the metadata. Raises any exception if the headers do not parse."""

    def empty(self) -> M:
        """Return the metadata of a record that is appended without any."""


class Bytes:
    """Bytes, unchanged: for keys or values without another type."""

    def encode(self, value: bytes, /) -> bytes:
        """Copy the bytes. Raises `InvalidRecordType` for anything else."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"expected bytes, not {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes, /) -> bytes:
        """Return the bytes unchanged."""
        return data

    def __repr__(self) -> str:
        return "Bytes()"


class Utf8:
    """Text, as UTF-8."""

    def encode(self, value: str, /) -> bytes:
        """Encode text. Raises `InvalidRecordType` for anything else."""
        if not isinstance(value, str):
            raise InvalidRecordType(f"expected a str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        """Decode text. Raises `UnicodeDecodeError` if it is not UTF-8."""
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
        """Encode a value; None stays None."""
        return None if value is None else self._serializer.encode(value)

    def decode(self, data: bytes | None, /) -> T | None:
        """Decode a value; None stays None."""
        return None if data is None else self._serializer.decode(data)

    def __repr__(self) -> str:
        return f"Nullable({self._serializer!r})"


class Headers(Generic[M]):
    """Metadata as headers. `Headers(Trace)` takes and returns a dataclass, one header per field; `Headers()` takes and
    returns a dict of str.

    Headers that the class does not name are left out of the metadata; `record.headers` has all of them. With
    `Headers()`, the last of several headers of one name wins, and a header without a value is left out.
    """

    @overload
    def __init__(self: Headers[dict[str, str]]) -> None: ...

    @overload
    def __init__(self, model: type[M]) -> None: ...

    def __init__(self, model: type[M] | None = None) -> None:
        self._kind: type | None = model
        if model is None:
            return
        if not isinstance(model, type) or not dataclasses.is_dataclass(model):
            raise InvalidConfig(f"Headers expects a dataclass, not {model!r}")
        hints = typing.get_type_hints(model)
        self._parse = parser_of(model)
        self._text = {field.name: hints[field.name] is str for field in dataclasses.fields(model)}

    def encode(self, metadata: M, /) -> RawHeaders:
        """Return one header per field; fields that are None are left out."""
        if self._kind is None:
            if not isinstance(metadata, dict):
                raise InvalidRecordType(f"metadata must be a dict of str, not {type(metadata).__name__}")
            return tuple((_name(name), _text(value)) for name, value in metadata.items())
        if not isinstance(metadata, self._kind):
            raise InvalidRecordType(f"metadata must be {self._kind.__name__}, not {type(metadata).__name__}")
        fields = ((name, getattr(metadata, name), text) for name, text in self._text.items())
        return tuple(
            (name, _text(value) if text else _json.encode(value)) for name, value, text in fields if value is not None
        )

    def decode(self, headers: RawHeaders, /) -> M:
        """Return the metadata. Raises `ValueError` if a field is missing or has another type."""
        found: dict[str, Any] = {}
        for name, value in headers:
            if value is None or (self._kind is not None and name not in self._text):
                continue
            found[name] = value.decode() if self._kind is None or self._text[name] else parse_json(value)
        made: M = found if self._kind is None else self._parse(found, "")  # type: ignore[assignment]  # dict[str, str]
        return made

    def empty(self) -> M:
        """Return an empty dict, or the class with all its defaults."""
        return self.decode(())

    def __repr__(self) -> str:
        return f"Headers({'' if self._kind is None else self._kind.__name__})"


_json = model_of(None)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRecordType(f"the name of a header must be a str, not {type(name).__name__}")
    return name


def _text(value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidRecordType(f"the value of a header must be a str, not {type(value).__name__}")
    return value.encode()


class Unchanged:
    """Raw headers: the metadata of a view that declares none."""

    def encode(self, metadata: RawHeaders, /) -> RawHeaders:
        return metadata

    def decode(self, headers: RawHeaders, /) -> RawHeaders:
        return headers

    def empty(self) -> RawHeaders:
        return ()


class ArrowRows:
    """Values are `pyarrow.RecordBatch`es of one schema. The schema is stored with each value (a few hundred bytes), so
    a value written with another one is detected and not misread.

    For large tables of keys and values use `append_arrow`: one record per row.
    """

    def __init__(self, schema: SchemaInput) -> None:
        import pyarrow as pa

        if not isinstance(schema, pa.Schema):
            raise InvalidConfig(f"ArrowRows expects a pyarrow.Schema, not {type(schema).__name__}")
        self._schema = schema

    def encode(self, value: pa.RecordBatch, /) -> bytes:
        """Return the rows as an IPC stream. Raises `InvalidRecordType` if they have another schema."""
        import pyarrow as pa

        if not isinstance(value, pa.RecordBatch):
            raise InvalidRecordType(f"expected a pyarrow.RecordBatch, not {type(value).__name__}")
        if not value.schema.equals(self._schema):
            raise InvalidRecordType(f"expected rows of ({_shown(self._schema)}), not ({_shown(value.schema)})")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(value)
        made: bytes = sink.getvalue().to_pybytes()
        return made

    def decode(self, data: bytes, /) -> pa.RecordBatch:
        """Return the rows. Raises `ValueError` if the bytes are not rows of this schema."""
        import pyarrow as pa

        with pa.ipc.open_stream(data) as stream:
            if not stream.schema.equals(self._schema):
                raise ValueError(f"expected rows of ({_shown(self._schema)}), not ({_shown(stream.schema)})")
            batches = list(stream)
        for batch in batches:
            batch.validate(full=True)  # the bytes are untrusted
        if len(batches) != 1:
            raise ValueError(f"expected one record batch, found {len(batches)}")
        return batches[0]

    def __repr__(self) -> str:
        return f"ArrowRows({_shown(self._schema)})"


def _shown(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


class JSON(Generic[T]):
    """Values as JSON. `JSON(Order)` takes and returns `Order`: a dataclass, a pydantic model or a msgspec struct.
    `JSON()` takes and returns dicts, lists, str, numbers, bools and None.

    Text that is not JSON, or does not match the class, is rejected; NaN and Infinity are neither read nor written.
    """

    @overload
    def __init__(self: JSON[Any]) -> None: ...

    @overload
    def __init__(self, model: type[T]) -> None: ...

    def __init__(self, model: type[T] | None = None) -> None:
        self._model = model_of(model)

    @property
    def encode(self) -> Callable[[T], bytes]:
        """Function that encodes a value as JSON text. Raises `InvalidRecordType` if it is not of the class."""
        return self._model.encode

    @property
    def decode(self) -> Callable[[bytes], T]:
        """Function that decodes JSON text. Raises if the text does not match the class."""
        return self._model.decode

    def __repr__(self) -> str:
        return "JSON()" if self._model.name == "JSON" else f"JSON({self._model.name})"
