"""Making views: what `Topic.typed` and `Log.typed` call."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidConfig
from ..topics.base import Partition, Store, Topic
from .bad import BadRecords
from .codec import Codec
from .headers import Unchanged
from .log import TypedLog
from .serializer import Bytes
from .topic import TypedTopic


def typed_topic(
    topic: Topic, store: Store | None, value: Any, key: Any, metadata: Any, errors_to: str | Topic | Partition | None
) -> TypedTopic[Any, Any, Any]:
    """A view of a topic; None stands for bytes and for headers as they are."""
    return TypedTopic(topic, _codec(value, key, metadata), _bad(errors_to, store, topic.name), store)


def typed_log(
    log: Partition, value: Any, key: Any, metadata: Any, errors_to: Topic | Partition | None
) -> TypedLog[Any, Any, Any]:
    """A view of a log."""
    return TypedLog(log, _codec(value, key, metadata), _bad(errors_to, None, None))


def _codec(value: Any, key: Any, metadata: Any) -> Codec[Any, Any, Any]:
    return Codec(value, Bytes() if key is None else key, Unchanged() if metadata is None else metadata)


def _bad(errors_to: str | Topic | Partition | None, store: Store | None, name: str | None) -> BadRecords:
    """Where bad records go. A topic that is given by name is created, with one partition, for the first of them."""
    if errors_to is None:
        return BadRecords()
    if isinstance(errors_to, str):
        if store is None:
            raise InvalidConfig(f"errors_to={errors_to!r} names a topic, but there is no store: give a topic or a log")
        if errors_to == name:
            raise InvalidConfig(f"errors_to={errors_to!r} is the topic itself: a bad record would be copied forever")
        return BadRecords(lambda: store.create_topic(errors_to, exist_ok=True))
    if not callable(getattr(errors_to, "append", None)):
        raise InvalidConfig(f"errors_to must be the name of a topic, a topic or a log, not {errors_to!r}")
    return BadRecords(lambda: errors_to)
