"""`Message`: a record that a queue has delivered; and the headers that queues write.

```
sawlog.queue.not_before      milliseconds since 1970: earliest time of delivery
sawlog.queue.group           only the queue of this group delivers the message
```

A dead letter has the key, value and headers of its message, and

```
sawlog.dead.topic  sawlog.dead.partition  sawlog.dead.offset  sawlog.dead.timestamp
sawlog.dead.group            group whose dead letter it is
sawlog.dead.deliveries       number of deliveries
sawlog.dead.reason           why the message is dead
```

Consumers see these as ordinary headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...batch.kernel import Record


class Message:
    """A record that a queue has delivered to this worker, until `ack`, `release` or `reject`, or until `until_ms`."""

    __slots__ = ("_answered", "_lease", "_place", "_queue_id", "deliveries", "record", "until_ms")

    def __init__(self, record: Record, deliveries: int, until_ms: int, lease: str, queue_id: object) -> None:
        #: The record as it is stored.
        self.record = record
        #: Partition and offset.
        self._place: tuple[int, int] = (record.partition, record.offset)
        #: Number of deliveries including this one: 1 the first time.
        self.deliveries = deliveries
        #: End of the lease (milliseconds since 1970): other workers may get the message from then on.
        self.until_ms = until_ms
        #: Id of the worker that it was delivered to.
        self._lease = lease
        #: True once this worker has answered. The queue that delivered the message.
        self._answered = False
        self._queue_id = queue_id

    @property
    def value(self) -> bytes | None:
        """Value of the record."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        return self.record.key

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Headers of the record."""
        return self.record.headers

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 if it has none."""
        return self.record.timestamp

    @property
    def topic(self) -> str:
        """Topic of the record."""
        return str(self.record.topic)

    @property
    def partition(self) -> int:
        """Partition of the record."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """Offset of the record."""
        return self.record.offset

    def _close(self) -> None:
        """Record that the message is answered."""
        self._answered = True

    def _extend(self, until_ms: int) -> None:
        """Record a new end of the time in which to answer."""
        self.until_ms = until_ms

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition} offset {self.offset}, delivery {self.deliveries}>"


@dataclass(slots=True)
class Answer:
    """Answer to a delivered message, other than an ack."""

    message: Message
    #: "done", "free" (deliver again, from `until_ms` on), "unseen" (as free, and the delivery does not count),
    #: "dead" (to the dead letters) or "longer" (extend the time-out to `until_ms`).
    what: str
    until_ms: int = 0
    reason: str = ""

    def finish(self) -> None:
        """The message is done."""
        self.what = "done"


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Number of messages in each state."""

    #: Can be delivered now. Includes new messages whose delay no worker has looked at yet.
    ready: int
    #: Wait for their time: put with a delay, or released with one.
    delayed: int
    #: With a worker, or fetched by one in advance.
    in_flight: int
    #: Records of the dead-letter topic that `redrive` has not put back.
    dead: int

    @property
    def unfinished(self) -> int:
        """Messages that are neither finished nor dead."""
        return self.ready + self.delayed + self.in_flight


_DEAD = "sawlog.dead."
_NOT_BEFORE, _GROUP = "sawlog.queue.not_before", "sawlog.queue.group"
_MOST_REASON = 1000

Headers = Sequence[tuple[str, bytes | None]]


def delayed(headers: Headers, not_before_ms: int) -> list[tuple[str, bytes | None]]:
    return [*headers, (_NOT_BEFORE, b"%d" % not_before_ms)]


def not_before_ms(record: Record) -> int:
    """Return the earliest time of delivery; 0 if there is none or it is invalid."""
    return next((_number(value) for name, value in record.headers if name == _NOT_BEFORE), 0)


def is_for(record: Record, group: str) -> bool:
    return all(value == group.encode() for name, value in record.headers if name == _GROUP)


def _number(value: bytes | None) -> int:
    try:
        return min(max(int(value or b"0"), 0), 2**53)
    except ValueError:
        return 0


def redrive_group(group: str) -> str:
    return f"redrive.{group}"


def dead_letter(message: Message, group: str, reason: str) -> tuple[Any, ...]:
    """Return the record for the dead-letter topic, as `append_many` takes it."""
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
class DeadLetter:
    """Parsed dead letter."""

    topic: str
    group: str
    record: Record

    @classmethod
    def of(cls, record: Record) -> DeadLetter | None:
        """Parse a record; None if it is not a dead letter."""
        fields = {name: value for name, value in record.headers if name.startswith(_DEAD)}
        topic, group = fields.get(_DEAD + "topic"), fields.get(_DEAD + "group")
        if not topic or not group:
            return None
        return cls(topic.decode(errors="replace"), group.decode(errors="replace"), record)

    def revived(self) -> tuple[Any, ...]:
        """Return the message for redelivery by the queue of its group only, as `append_many` takes it."""
        kept = [
            (name, value)
            for name, value in self.record.headers
            if not name.startswith(_DEAD) and name not in (_GROUP, _NOT_BEFORE)
        ]
        return self.record.value, self.record.key, (*kept, (_GROUP, self.group.encode()))
