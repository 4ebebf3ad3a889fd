"""Names of before: they work for one more release, with a warning that says the new one.

```python
@names_of_before({"hold": "engine.hold"})
class Log: ...
```

Each is a descriptor, not a case of `__getattr__`: CPython 3.11 specialises no access to an attribute if the class has
that, whether the attribute is an old one or not. It made `topic.append` and `log.read` a tenth slower.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


class _Renamed:
    """One name, of objects only: the class does not have it. It has no `__set__`, so an object may have its own."""

    def __init__(self, name: str, now: str) -> None:
        self._name = name
        self._now = now

    def __get__(self, thing: object | None, kind: type[Any]) -> Any:
        if thing is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {self._name!r}", name=self._name)
        warnings.warn(
            f"{kind.__name__}.{self._name} is now {kind.__name__}.{self._now}", DeprecationWarning, stacklevel=2
        )
        return attrgetter(self._now)(thing)


def names_of_before(names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Give a class these names, each with what it is called now. Type checkers do not see them, and `dir` of an object
    does not list them."""

    def give(kind: type[T]) -> type[T]:
        made: Any = kind
        for name, now in names.items():
            setattr(made, name, _Renamed(name, now))
        every = made.__dir__
        made.__dir__ = lambda self: [name for name in every(self) if name not in names]
        return kind

    return give
