"""Headers that queues write: delayed messages, messages for one group, and dead letters.

```
sawlog.queue.not_before      milliseconds since 1970: queues deliver the message then, and not before
sawlog.queue.group           only the queue of this group delivers it
```

A dead letter has key, value and headers of its message, and

```
sawlog.dead.topic  sawlog.dead.partition  sawlog.dead.offset  sawlog.dead.timestamp
sawlog.dead.group            whose dead letter it is
sawlog.dead.deliveries       how often it was delivered
sawlog.dead.reason           why it is dead
```

Consumers see all of these as headers like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...batch.kernel import Record
from .message import Message

_DEAD = "sawlog.dead."
_NOT_BEFORE, _GROUP = "sawlog.queue.not_before", "sawlog.queue.group"
_MOST_REASON = 1000

Headers = Sequence[tuple[str, bytes | None]]


def delayed(headers: Headers, not_before_ms: int) -> list[tuple[str, bytes | None]]:
    """Headers of a message that is delivered later."""
    return [*headers, (_NOT_BEFORE, b"%d" % not_before_ms)]


def not_before_ms(record: Record) -> int:
    """When a message is to be delivered; 0 if it says nothing, or nothing that makes sense."""
    return next((_number(value) for name, value in record.headers if name == _NOT_BEFORE), 0)


def is_for(record: Record, group: str) -> bool:
    """Whether the queue of a group delivers it."""
    return all(value == group.encode() for name, value in record.headers if name == _GROUP)


def _number(value: bytes | None) -> int:
    try:
        return min(max(int(value or b"0"), 0), 2**53)
    except ValueError:
        return 0


def dead_letter(message: Message, group: str, reason: str) -> tuple[Any, ...]:
    """The record for the topic of dead letters, as `append_many` takes it."""
    fields = {
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": str(message.offset),
        "timestamp": str(message.timestamp),
        "group": group,
        "deliveries": str(message.deliveries),
        "reason": reason[:_MOST_REASON],
    }
    extra = [(_DEAD + name, text.encode(errors="replace")) for name, text in fields.items()]
    return message.value, message.key, (*message.headers, *extra)


@dataclass(frozen=True, slots=True)
class Letter:
    """What a dead letter says about itself."""

    topic: str
    group: str
    record: Record

    @classmethod
    def of(cls, record: Record) -> Letter | None:
        """From a record; None if it is not a dead letter."""
        fields = {name: value for name, value in record.headers if name.startswith(_DEAD)}
        topic, group = fields.get(_DEAD + "topic"), fields.get(_DEAD + "group")
        if not topic or not group:
            return None
        return cls(topic.decode(errors="replace"), group.decode(errors="replace"), record)

    def revived(self) -> tuple[Any, ...]:
        """The message again, for the queue of its group alone, as `append_many` takes it."""
        kept = [
            (name, value)
            for name, value in self.record.headers
            if not name.startswith(_DEAD) and name not in (_GROUP, _NOT_BEFORE)
        ]
        return self.record.value, self.record.key, (*kept, (_GROUP, self.group.encode()))
