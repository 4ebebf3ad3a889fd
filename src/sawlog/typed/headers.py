"""Metadata of records, stored as headers: `Headers`, and what a view without metadata has.

One field is one header: text as UTF-8, everything else as JSON. So other programs, and Kafka clients, read it without
knowing the class.

Threads: any.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Generic, TypeVar, overload

from ..batch.text import parse_json
from ..errors import InvalidConfig, InvalidRecordType
from .models import model_of
from .serializer import RawHeaders
from .shapes import parser_of

M = TypeVar("M")


class Headers(Generic[M]):
    """Metadata as headers. `Headers(Trace)` takes and returns a dataclass, one header per field; `Headers()` takes and
    returns a dict of str.

    Headers that the class does not name are left out of the metadata; `record.headers` has all of them. With
    `Headers()` the last of several headers of one name counts, and one without a value is left out.
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
        """One header per field; fields that are None are left out."""
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
        """The metadata; `ValueError` if a field is missing or has another type."""
        found: dict[str, Any] = {}
        for name, value in headers:
            if value is None or (self._kind is not None and name not in self._text):
                continue
            found[name] = value.decode() if self._kind is None or self._text[name] else parse_json(value)
        made: M = found if self._kind is None else self._parse(found, "")  # type: ignore[assignment]  # dict[str, str]
        return made

    def empty(self) -> M:
        """No metadata: an empty dict, or the class with all its defaults."""
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
    """Headers as they are: the metadata of a view for which none was declared."""

    def encode(self, metadata: RawHeaders, /) -> RawHeaders:
        """The same."""
        return metadata

    def decode(self, headers: RawHeaders, /) -> RawHeaders:
        """The same."""
        return headers

    def empty(self) -> RawHeaders:
        """No headers."""
        return ()
