"""Classes of other packages that describe their own JSON: pydantic's models and msgspec's structs.

Neither package is needed, and none is imported unless the class is one of its own: then the caller has imported it
already. `model_of` finds out which it is.

Threads: any.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..batch.text import parse_json
from ..errors import InvalidConfig, InvalidRecordType
from .shapes import parser_of, plain

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain).encode


@dataclass(frozen=True, slots=True)
class Model:
    """How values of one class become JSON and are made from it."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def model_of(kind: type | None) -> Model:
    """How to store values of a class; None: whatever JSON can express. `InvalidConfig` if the class is none that has a
    form in JSON."""
    if kind is None:
        return Model("JSON", lambda value: _encode(value).encode(), parse_json)
    if not isinstance(kind, type):
        raise InvalidConfig(f"JSON expects a class, such as a dataclass, not {kind!r}")
    if hasattr(kind, "__struct_config__"):
        return _of_msgspec(kind)
    if hasattr(kind, "__pydantic_validator__"):
        return _of_pydantic(kind)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if kind in (dict, list, str, int, float, bool):
        parser = parser_of(kind)
        return _checked(kind, lambda value: _encode(value).encode(), lambda data: parser(parse_json(data), ""))
    raise InvalidConfig(
        f"JSON expects a dataclass, a pydantic or msgspec model, dict or list, not {kind.__name__}; without a class, "
        "JSON() takes what json.dumps takes"
    )


def _checked(kind: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Model:
    def checked(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise InvalidRecordType(f"expected {kind.__name__}, not {type(value).__name__}")
        return encode(value)

    return Model(kind.__name__, checked, decode)


def _of_dataclass(kind: type) -> Model:
    parser = parser_of(kind)
    return _checked(kind, lambda value: _encode(value).encode(), lambda data: parser(parse_json(data), ""))


def _of_msgspec(kind: type) -> Model:
    import msgspec

    return _checked(kind, msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)


def _of_pydantic(kind: type) -> Model:
    import pydantic

    adapter: Any = pydantic.TypeAdapter(kind)
    return _checked(kind, adapter.dump_json, adapter.validate_json)
