"""A stand-in for the `cython` module, for the interpreted kernel.

The kernel is written in Cython's pure-Python mode: all its Cython constructs are ordinary decorators and annotations.
Interpreted, they must exist and do nothing. The stand-in is used even where Cython is installed, so that the
interpreted kernel behaves the same with every version of Cython and with none. The compiler uses the real module, which
`kernel/__init__.pyx` imports.
"""

from __future__ import annotations

from typing import Any


class _Nothing:
    """Stand-in for every directive: used bare or called, it returns the object it decorates."""

    compiled = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, _item: Any) -> Any:
        """Stand-in for a parametrized C type in an annotation."""
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    @staticmethod
    def declare(*_types: Any, **_keywords: Any) -> None:
        """Stand-in for a typed declaration."""

    @staticmethod
    def cast(_type: Any, value: Any) -> Any:
        """Stand-in for a C cast: return the value."""
        return value

    @staticmethod
    def address(value: Any) -> Any:
        """Stand-in for the address of a C struct: return the object, which Python passes by reference anyway."""
        return value


cython: Any = _Nothing()
