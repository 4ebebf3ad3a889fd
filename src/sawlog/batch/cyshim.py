"""A stand-in for the `cython` module: what the units of the kernel import when they are interpreted.

The kernel is written in Cython's pure-Python mode: every Cython word in it is an ordinary decorator or annotation.
Interpreted, those words must exist but do nothing; here they are. The units use them also where Cython is installed, so
that the interpreted kernel behaves the same with every version of Cython and with none. The compiler knows the words
itself (`kernel/__init__.pyx` imports the real module) and does not look here.
"""

from __future__ import annotations

from typing import Any


class _Nothing:
    """Replaces every directive: used bare or called, it returns what it decorates."""

    compiled = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, _item: Any) -> Any:
        """A C type made of another, in an annotation."""
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    @staticmethod
    def declare(*_types: Any, **_keywords: Any) -> None:
        """A typed declaration: nothing to declare here."""

    @staticmethod
    def cast(_type: Any, value: Any) -> Any:
        """A C cast: Python's integers do not need it."""
        return value

    @staticmethod
    def address(value: Any) -> Any:
        """The address of a C struct: Python's objects are handed over by reference anyway."""
        return value


cython: Any = _Nothing()
