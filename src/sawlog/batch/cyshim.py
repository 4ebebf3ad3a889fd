"""A stand-in for the `cython` module, for machines that have neither a compiled kernel nor Cython.

The kernel is written in Cython's pure-Python mode: every Cython word in it is an ordinary decorator or annotation.
Interpreted, those words must exist but do nothing; here they are. Annotations are never evaluated (`from __future__
import annotations`), so only what is executed has to be here.
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

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    @staticmethod
    def declare(*_types: Any, **_keywords: Any) -> None:
        """A typed declaration: nothing to declare here."""

    @staticmethod
    def cast(_type: Any, value: Any) -> Any:
        """A C cast: Python's integers do not need it."""
        return value


cython: Any = _Nothing()
