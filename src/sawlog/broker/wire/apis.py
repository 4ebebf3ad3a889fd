"""All APIs that can be read and written, by key."""

from __future__ import annotations

from typing import Final

from .errors import Key
from .messages import cluster, groups, records, security, topics, transactions
from .schema import Api

__all__ = ["BY_KEY", "Api", "Key"]

_FAMILIES = (
    security,
    cluster,
    records,
    records,
    records,
    groups,
    groups,
    groups,
    groups,
    topics,
    topics,
    cluster,
    cluster,
    transactions,
    transactions,
    security,
    security,
)

BY_KEY: Final[dict[int, Api]] = {
    api.key: api for family in _FAMILIES for api in vars(family).values() if isinstance(api, Api)
}
