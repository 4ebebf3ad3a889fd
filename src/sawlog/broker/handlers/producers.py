"""InitProducerId without a transaction: an id for an idempotent producer."""

from __future__ import annotations

import secrets

from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context, KafkaError


async def init_producer_id(context: Context, request: Body) -> Body:
    """A new id. It is random: 61 bits are enough never to meet the same twice, and nothing has to be remembered."""
    if request["transactional_id"] is not None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "transactions are not ready")
    return {"error_code": ErrorCode.NONE, "producer_id": secrets.randbits(61), "producer_epoch": 0}


HANDLERS = {Key.INIT_PRODUCER_ID: init_producer_id}
