"""Many values to append, as the tuples that `append_many` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from ..clock import milliseconds
from .codec import Codec

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")


def entries(
    codec: Codec[V, K, M],
    values: Iterable[V],
    key: Callable[[V], K | None] | None,
    metadata: Callable[[V], M] | None,
    timestamp: Callable[[V], int | datetime] | None,
) -> list[tuple[Any, ...]]:
    """Each value with what these functions say of it, encoded; raises before anything is appended."""
    return [
        (
            *codec.encode(value, None if key is None else key(value), None if metadata is None else metadata(value)),
            None if timestamp is None else milliseconds(timestamp(value)),
        )
        for value in values
    ]
