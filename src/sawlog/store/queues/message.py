"""`Message`: a record that a queue has delivered, and what is said about it.

Headers that queues write: delayed messages, messages for one group, and dead letters.

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


class Message:
    """A record that a queue has delivered to this worker, until `ack`, `release` or `reject`, or until `until_ms`."""

    __slots__ = ("answered", "deliveries", "lease", "place", "queue_id", "record", "until_ms")

    def __init__(self, record: Record, deliveries: int, until_ms: int, lease: str, queue_id: object) -> None:
        #: The record as it is stored.
        self.record = record
        #: Partition and offset.
        self.place: tuple[int, int] = (record.partition, record.offset)
        #: How often it was delivered, this time included: 1 the first time.
        self.deliveries = deliveries
        #: From then on (milliseconds since 1970) others may get it.
        self.until_ms = until_ms
        #: The id of the worker that it was delivered to.
        self.lease = lease
        #: Whether this worker has answered, and which queue it got the message from.
        self.answered = False
        self.queue_id = queue_id

    def settle(self) -> None:
        """The worker has answered."""
        self.answered = True

    def keep_until(self, until_ms: int) -> None:
        """The worker has it until then."""
        self.until_ms = until_ms

    @property
    def value(self) -> bytes | None:
        """The value of the record."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """The key of the record."""
        return self.record.key

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers of the record."""
        return self.record.headers

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 if it has none."""
        return self.record.timestamp

    @property
    def topic(self) -> str:
        """The topic it is in."""
        return str(self.record.topic)

    @property
    def partition(self) -> int:
        """The partition it is in."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """Its offset."""
        return self.record.offset

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition} offset {self.offset}, delivery {self.deliveries}>"


@dataclass(slots=True)
class Answer:
    """What to do with a message that was delivered, other than that it is finished."""

    message: Message
    #: "done", "free" (deliver again, from `until_ms` on), "unseen" (as free, and the delivery does not count),
    #: "dead" (to the dead letters) or "longer" (extend the time-out to `until_ms`).
    what: str
    until_ms: int = 0
    reason: str = ""

    def buried(self) -> None:
        """Its dead letter is stored: the message is finished."""
        self.what = "done"


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
