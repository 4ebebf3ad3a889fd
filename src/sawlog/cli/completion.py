"""Shell completion of topic and group names.

Completion never fails: without a store, or with a broken one, it offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..topics.store import Store


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Return the topics of the store in the command line or in `SAWLOG_DATA`."""
    return _offered(ctx, incomplete, lambda store: store.topics())


def complete_group(ctx: Any, incomplete: str) -> list[str]:
    """Return the groups of that store."""
    return _offered(ctx, incomplete, lambda store: store.groups.list())


def _offered(ctx: Any, incomplete: str, names: Callable[[Store], Iterable[str]]) -> list[str]:
    from ..topics.store import Store

    data = ctx.params.get("data") or os.environ.get("SAWLOG_DATA")
    if not data:
        return []
    try:
        with Store.open(data, mode="r") as store:
            return [name for name in names(store) if name.startswith(incomplete)]
    except Exception:  # an incomplete command line is no place to report errors
        return []
