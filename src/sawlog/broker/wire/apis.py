"""All APIs that can be read and written, by key."""

from __future__ import annotations

from typing import Final

from .keys import Key
from .messages import (
    acls,
    clients,
    configs,
    consumer_groups,
    fetch,
    group_admin,
    group_offsets,
    groups,
    handshake,
    metadata,
    offsets,
    produce,
    quorum,
    replicas,
    topics,
    transaction_admin,
    transactions,
)
from .schema import Api

__all__ = ["BY_KEY", "Api", "Key"]

_FAMILIES = (
    handshake,
    metadata,
    produce,
    fetch,
    offsets,
    groups,
    group_offsets,
    group_admin,
    consumer_groups,
    topics,
    configs,
    replicas,
    quorum,
    transactions,
    transaction_admin,
    acls,
    clients,
)

BY_KEY: Final[dict[int, Api]] = {
    api.key: api for family in _FAMILIES for api in vars(family).values() if isinstance(api, Api)
}
