"""The tables of Kafka's messages: one module per family, one table per message, one field or small struct per line.

See `schema` for the notation. The version ranges cover current clients and those of recent years.
"""

from __future__ import annotations

from typing import Final

from ..schema import Api
from . import cluster, groups, records, security, topics, transactions

_FAMILIES = (security, cluster, records, groups, topics, transactions)

#: All supported APIs, by key.
BY_KEY: Final[dict[int, Api]] = {
    api.key: api for family in _FAMILIES for api in vars(family).values() if isinstance(api, Api)
}
