"""What a shell offers when somebody presses TAB behind a topic or a group: the ones that are there.

A completion never complains: where there is no store, or a broken one, there is simply nothing to offer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..topics.store import Store


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Topics of the store that the line names, or `SAWLOG_DATA`."""
    return _offered(ctx, incomplete, lambda store: store.topics())


def complete_group(ctx: Any, incomplete: str) -> list[str]:
    """Groups of that store."""
    return _offered(ctx, incomplete, lambda store: store.groups.list())


def _offered(ctx: Any, incomplete: str, names: Callable[[Store], Iterable[str]]) -> list[str]:
    from ..topics.store import Store

    data = ctx.params.get("data") or os.environ.get("SAWLOG_DATA")
    if not data:
        return []
    try:
        with Store.open(data, mode="r") as store:
            return [name for name in names(store) if name.startswith(incomplete)]
    except Exception:  # whatever it is, a half-typed line is no place to report it
        return []
