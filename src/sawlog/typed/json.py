"""`JSON`: values as JSON text, of a class that describes them or of whatever `json.dumps` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from .models import model_of

T = TypeVar("T")


class JSON(Generic[T]):
    """Values as JSON. `JSON(Order)` takes and returns `Order`: a dataclass, a pydantic model or a msgspec struct.
    `JSON()` takes and returns dicts, lists, str, numbers, bools and None.

    Text that is not JSON, or does not match the class, is not accepted; NaN and Infinity are neither read nor written.
    """

    @overload
    def __init__(self: JSON[Any]) -> None: ...

    @overload
    def __init__(self, model: type[T]) -> None: ...

    def __init__(self, model: type[T] | None = None) -> None:
        self._model = model_of(model)

    @property
    def encode(self) -> Callable[[T], bytes]:
        """Turns a value into JSON text; `InvalidRecordType` if it is not of the class."""
        return self._model.encode

    @property
    def decode(self) -> Callable[[bytes], T]:
        """Turns JSON text into a value; an exception if the text does not match the class."""
        return self._model.decode

    def __repr__(self) -> str:
        return "JSON()" if self._model.name == "JSON" else f"JSON({self._model.name})"
