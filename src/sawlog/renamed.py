"""Names of before: they work for one more release, with a warning that says the new one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from operator import attrgetter
from typing import Any


def renamed(thing: object, name: str, names: Mapping[str, str]) -> Any:
    """For `__getattr__`: what has the new name, if `name` is one of the old ones."""
    kind = type(thing).__name__
    if name not in names:
        raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=thing)
    warnings.warn(f"{kind}.{name} is now {kind}.{names[name]}", DeprecationWarning, stacklevel=3)
    return attrgetter(names[name])(thing)
