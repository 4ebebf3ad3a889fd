"""All supported APIs, by key."""

from __future__ import annotations

from typing import Final

from .errors import Key
from .messages import cluster, groups, records, security, topics, transactions
from .schema import Api

__all__ = ["BY_KEY", "Api", "Key"]

_FAMILIES = (security, cluster, records, groups, topics, transactions)

BY_KEY: Final[dict[int, Api]] = {
    api.key: api for family in _FAMILIES for api in vars(family).values() if isinstance(api, Api)
}
