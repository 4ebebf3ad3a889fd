"""Shell completion of topic, group and setting names.

Completion never fails: if the store is missing or damaged, it offers no candidates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .stores import StoreLike


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Return the topics of the store or broker that the command line or the environment names."""
    return _offered(ctx, incomplete, lambda store: store.topics())


def complete_group(ctx: Any, incomplete: str) -> list[str]:
    """Return the groups of that store."""
    return _offered(ctx, incomplete, lambda store: store.groups.list())


def complete_setting(incomplete: str) -> list[str]:
    """Return `NAME=` for each topic setting; after `=`, the values that the setting accepts."""
    from ..store.settings import SETTINGS, values_of

    name, given, _ = incomplete.partition("=")
    if not given:
        return [f"{each}=" for each in SETTINGS if each.startswith(name)]
    offered = [f"{name}={value}" for value in values_of(name)] if name in SETTINGS else []
    return [each for each in offered if each.startswith(incomplete)]


def complete_setting_name(incomplete: str) -> list[str]:
    """Return the names of the topic settings."""
    from ..store.settings import SETTINGS

    return [each for each in SETTINGS if each.startswith(incomplete)]


def _offered(ctx: Any, incomplete: str, names: Callable[[StoreLike], Iterable[str]]) -> list[str]:
    from .places import open_place, parse_location

    data, broker = ctx.params.get("data"), ctx.params.get("broker")
    if data is None and broker is None:
        data, broker = os.environ.get("SAWLOG_DATA"), os.environ.get("SAWLOG_BROKER")
    try:
        with open_place(None if data is None else parse_location(data), broker) as store:
            return [name for name in names(store) if name.startswith(incomplete)]
    except Exception:  # an incomplete command line is no place to report errors
        return []
