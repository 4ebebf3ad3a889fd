"""`Message`: a record that a queue has delivered, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass

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
